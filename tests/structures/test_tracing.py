"""Structures inside of torch.compile, torch.export and torch.func, and under torch's modes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.cases import TAGS, scores_for, structures
from spacy_latent.errors import InfeasibleError, InvalidScores, NotDifferentiable, NotTraceable
from spacy_latent.kernels.spans import constituency, inside_outside, inside_outside_rows
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.independent_heads import IndependentHeads
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.merge_sequence import MergeSequence
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.semi_markov import SemiMarkov
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from tests.torch_versions import compiles_all

BOUND = TagSequence().bind(torch.eye(TAGS), torch.ones(TAGS), torch.zeros(TAGS))
CASES = [
    (SpanningTree(), "aot_eager"),
    (ProjectiveTree(single_root=True), "eager"),
    (ConstituencyTree(), "eager"),
    (LinearChain(), "eager"),
    (BOUND, "eager"),
]


@pytest.fixture(autouse=True)
def _forget() -> None:
    torch._dynamo.reset()


def everything(structure: Structure) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
    def operations(scores: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        return (
            structure.map(scores, lengths),
            structure.sample(scores, lengths, 2),
            structure.log_partition(scores, lengths),
            structure.marginals(scores, lengths),
            structure.entropy(scores, lengths),
        )

    return operations


def found(call: Callable[..., Any], scores: Tensor, lengths: Tensor) -> list[Tensor]:
    """Return the results for one seed, and the gradient through the results that have one."""
    torch.manual_seed(0)
    given = scores.clone().requires_grad_()
    results = list(call(given, lengths))
    total = sum((part * part.detach().cos()).sum() for part in results if part.requires_grad)
    return [*results, *torch.autograd.grad(total, given)]


def batches(structure: Structure) -> list[tuple[Tensor, Tensor]]:
    made = []
    for batch, n in ((3, 5), (4, 6), (2, 7)):
        scores, lengths = scores_for(structure, n, batch)
        lengths = lengths.clone()
        lengths[0] -= 2
        made.append((scores, lengths))
    return made


@pytest.mark.parametrize(("structure", "backend"), CASES, ids=lambda case: str(case))
def test_operations_compile_whole(structure: Structure, backend: str) -> None:
    operations = everything(structure)
    compiled = torch.compile(operations, backend=backend, fullgraph=True, dynamic=True)
    for scores, lengths in batches(structure):
        expected = found(operations, scores, lengths)
        for ours, theirs in zip(found(compiled, scores, lengths), expected, strict=True):
            torch.testing.assert_close(ours, theirs)


class Everything(nn.Module):
    def __init__(self, structure: Structure) -> None:
        super().__init__()
        self.structure = structure

    def forward(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        return everything(self.structure)(scores, lengths)


@pytest.mark.parametrize(
    ("structure", "strict"),
    [
        (SpanningTree(), False),
        (ConstituencyTree(), False),
        (BOUND, False),
        (LinearChain(), True),
        pytest.param(Bits(budget=2), False, marks=compiles_all),
    ],
    ids=lambda each: str(each),
)
def test_operations_are_exported(structure: Structure, strict: bool) -> None:
    # Older versions of torch need an upper bound of both dimensions.
    batch, room = torch.export.Dim("batch", max=1024), torch.export.Dim("room", max=1024)
    axes = {0: batch, 1: room, **({2: room} if structure.parts in ("arcs", "spans") else {})}
    module = Everything(structure)
    shapes = {"scores": axes, "lengths": {0: batch}}
    program = torch.export.export(
        module, batches(structure)[0], dynamic_shapes=shapes, strict=strict
    ).module()
    for scores, lengths in batches(structure):
        expected = found(module, scores, lengths)
        for ours, theirs in zip(found(program, scores, lengths), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
    with pytest.raises(InvalidScores, match="lengths"):
        program(scores, lengths + 5)


@compiles_all
@pytest.mark.parametrize("kind", [TagSequence, SemiMarkov], ids=lambda kind: str(kind.__name__))
def test_chains_with_bound_scores_compile_whole(kind: type[TagSequence]) -> None:
    scores, lengths = scores_for(kind(), 4, 2)
    count = scores.shape[-1]
    given = torch.randn(count, count, generator=torch.Generator().manual_seed(0))
    bound = kind().bind(given, given[0], given[1])

    def divergence(scores: Tensor, other: Tensor) -> Tensor:
        return bound.kl(scores, other, lengths)

    def of_transitions(scores: Tensor, given: Tensor) -> Tensor:
        return kind().bind(given, given[0], given[1]).marginals(scores, lengths)

    for call, arguments in ((divergence, (scores, -scores)), (of_transitions, (scores, given))):
        compiled = torch.compile(call, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(*arguments), call(*arguments))


def test_compiled_code_names_what_is_wrong_with_an_item() -> None:
    tree = ProjectiveTree()
    compiled = torch.compile(tree.marginals, backend="eager", fullgraph=True, dynamic=True)
    scores, lengths = batches(tree)[0]
    with pytest.raises(InvalidScores, match="4 and 6"):
        compiled(scores, lengths + 1)
    forbidden = scores.clone()
    forbidden[1, :, 2] = -torch.inf
    with pytest.raises(InfeasibleError) as caught:
        compiled(forbidden, lengths)
    assert caught.value.items == [1]
    forbidden[1, :, 2] = torch.nan
    with pytest.raises(InvalidScores, match="NaN"):
        compiled(forbidden, lengths)
    # If all trees of an item use masked parts, sums lose the differences between trees.
    masked = scores.clone()
    masked[2, 0] = -1e30
    with pytest.raises(InvalidScores, match=r"torch\.compile"):
        compiled(masked, lengths)
    # If trees can avoid the mask, it changes nothing.
    masked[2, 0, 1] = 0.0
    torch.testing.assert_close(compiled(masked, lengths), tree.marginals(masked, lengths))


def test_independent_choices_are_drawn_as_without() -> None:
    """Traced code also draws for entries without a choice, such as the root and padding.

    The draws of all other entries stay the same.
    """
    heads = IndependentHeads()
    scores, lengths = scores_for(heads, 6, 3)
    lengths = torch.tensor([0, 6, 4])
    for count in (1, 5):
        draw = partial(heads.sample, num_samples=count)
        compiled = torch.compile(draw, backend="eager", fullgraph=True, dynamic=True)
        drawn = []
        for call in (draw, compiled):
            torch.manual_seed(0)
            drawn.append(call(scores, lengths))
        torch.testing.assert_close(drawn[1], drawn[0])


@compiles_all
def test_sparsemap_breaks_the_graph_and_cannot_be_exported() -> None:
    tree = ProjectiveTree()

    def mean(scores: Tensor, lengths: Tensor) -> tuple[Tensor]:
        return (tree.sparsemap(2 * scores, lengths).mean,)

    compiled = torch.compile(mean, backend="eager")
    for scores, lengths in batches(tree):
        expected = found(mean, scores, lengths)
        for ours, theirs in zip(found(compiled, scores, lengths), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
    with pytest.raises(Exception, match=r"Tree\.sparsemap"):
        torch.compile(mean, backend="eager", fullgraph=True)(scores, lengths)
    with pytest.raises(NotTraceable, match=r"torch\.func"):
        torch.func.grad(lambda given: mean(given, lengths)[0].square().sum())(scores)

    class Mean(nn.Module):
        def forward(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor]:
            return mean(scores, lengths)

    with pytest.raises(NotTraceable, match="map, log_partition"):
        torch.export.export(Mean(), (scores, lengths))


@pytest.mark.parametrize("structure", [BudgetTree(), MergeSequence()], ids=lambda each: each.name)
def test_a_search_for_the_best_structure_is_named(structure: Structure) -> None:
    scores, lengths = torch.randn(2, 4, 4), torch.tensor([3, 2])
    compiled = torch.compile(structure.map, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=rf"{structure.name}\.\w+"):
        compiled(scores, lengths)


@pytest.mark.parametrize("structure", [SpanningTree(), BOUND], ids=lambda each: each.name)
def test_transforms_of_torch_func(structure: Structure) -> None:
    single, lengths = batches(structure)[0]
    scores = single.double()
    several = torch.stack([scores, 2 * scores])

    def total(given: Tensor) -> Tensor:
        return structure.log_partition(given, lengths).sum()

    def entropy(given: Tensor) -> Tensor:
        return structure.entropy(given, lengths).sum()

    expected = torch.stack([structure.marginals(each, lengths) for each in several])
    each = torch.func.vmap(torch.func.grad(total))(several)
    torch.testing.assert_close(each, expected)
    torch.testing.assert_close(
        torch.func.jacrev(entropy)(scores), torch.autograd.functional.jacobian(entropy, scores)
    )
    with pytest.raises(NotDifferentiable, match="jacrev"):
        torch.func.hessian(total)(scores)
    with pytest.raises(InfeasibleError, match="0, 1, 2"):
        torch.func.vmap(total)(several - torch.inf)


def test_torch_jit_trace_is_refused() -> None:
    tree = ProjectiveTree()
    scores, lengths = batches(tree)[0]
    with pytest.raises(NotTraceable, match=r"torch\.export"):
        torch.jit.trace(lambda given: tree.marginals(given, lengths), scores)


def test_a_parameter_is_looked_at_as_a_tensor_is() -> None:
    """A parameter is checked for large masks as any tensor is.

    Otherwise a mask that all structures must use would cost the other scores their digits.
    """
    tree = ProjectiveTree(single_root=True)
    scores, lengths = scores_for(tree, 3, 1)
    expected = tree.marginals(scores.index_fill(1, torch.tensor(0), 0.0), lengths)
    masked = nn.Parameter(scores.index_fill(1, torch.tensor(0), -1e30))
    torch.testing.assert_close(tree.marginals(masked, lengths), expected)


@pytest.mark.parametrize("structure", [case for case, _ in CASES], ids=lambda each: each.name)
def test_defaults_of_torch_change_nothing(structure: Structure) -> None:
    scores, lengths = batches(structure)[0]
    expected = found(everything(structure), scores, lengths)
    with torch.device("meta"):
        elsewhere = found(everything(structure), scores, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        half = found(everything(structure), scores, lengths)
    for ours in (elsewhere, half):
        for part, theirs in zip(ours, expected, strict=True):
            torch.testing.assert_close(part, theirs)


@pytest.mark.parametrize(
    "kept, needed",
    [
        (inside_outside.kept_size, inside_outside_rows._item_size),
        (constituency.kept_size, constituency._item_size),
    ],
)
def test_symbols_of_sizes_give_the_memory_that_kernels_need(kept: Any, needed: Any) -> None:
    for n in range(0, 260, 7):
        assert kept(n) >= needed(n)


def test_a_divergence_that_is_infinite_compiles_and_vectorizes() -> None:
    tree, lengths = SpanningTree(), torch.tensor([3])
    p, q = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    q[0, 0, 2] = -torch.inf
    expected = tree.kl(p, q, torch.tensor([3, 3]))
    assert expected.isinf().tolist() == [True, False]
    compiled = torch.compile(tree.kl, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(p, q, torch.tensor([3, 3])), expected)
    found = torch.func.vmap(lambda p, q: tree.kl(p[None], q[None], lengths))(p, q)
    torch.testing.assert_close(found.flatten(), expected)


@pytest.mark.parametrize(
    "structure",
    [each for each in structures() if "entropy" in each.tractable],
    ids=lambda each: each.name,
)
def test_vmap_over_one_argument_alone(structure: Structure) -> None:
    """The scores of p, those of q, or the lengths may be the only values that vmap splits."""
    single, lengths = scores_for(structure, 3, 2)
    scores, several = single.double(), torch.stack([single.double(), -single.double()])
    shorter = torch.stack([lengths, lengths // 2])
    cases: list[tuple[Callable[[Tensor], Tensor], Tensor]] = [
        (lambda given: structure.kl(given, scores, lengths), several),
        (lambda given: structure.kl(scores, given, lengths), several),
    ]
    operations = (
        structure.map,
        structure.log_partition,
        structure.marginals,
        structure.entropy,
        structure.log_count,
    )
    cases += [(partial(operation, scores), shorter) for operation in operations]
    for call, given in cases:
        expected = torch.stack([call(one) for one in given])
        torch.testing.assert_close(torch.func.vmap(call)(given), expected)
    sample = partial(structure.sample, scores)
    drawn = torch.func.vmap(sample, randomness="different")(shorter)
    for own, sizes in zip(drawn, shorter):
        assert bool(structure.contains(own[0], sizes).all())
