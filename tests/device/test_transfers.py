"""Transfers and waits of a GPU in a training step.

Each of them makes every step longer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from thinc.api import Adam, Optimizer
from torch import Tensor

from spacy_latent.errors import InfeasibleError, LatentError, LatentWarning
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.control_variates import SelfCritical
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.mixed_dirichlet import MixedDirichlet
from spacy_latent.estimators.noise import NOISES, draw_noise
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.kernels.core import gpu_transfers
from spacy_latent.kernels.core.gpu_transfers import (
    bring,
    derived,
    fetch,
    known_of,
    places_of,
    remember,
    send,
    send_together,
)
from spacy_latent.kernels.gpu import dispatch
from spacy_latent.layers.base import Composer, ComposerBuilder
from spacy_latent.layers.biaffine_scorer import build_biaffine_scorer_v1
from spacy_latent.layers.child_sum_tree_lstm import build_child_sum_tree_lstm_v1
from spacy_latent.layers.graph_convolution import build_graph_convolution_v1
from spacy_latent.layers.head_attention import build_head_attention_v1
from spacy_latent.layers.recursive_message_passing import build_recursive_message_passing_v1
from spacy_latent.models import latent_shim, tag_losses
from spacy_latent.models.crf_tagger import TagScores
from spacy_latent.models.latent_layer_model import build_module
from spacy_latent.models.layer_settings import LayerSettings
from spacy_latent.models.scheduled_value import Temperature
from spacy_latent.models.span_groups import group_spans
from spacy_latent.models.tag_evidence import TagEvidence
from spacy_latent.models.text_module import build_text_module
from spacy_latent.structures.base import Structure
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.device.answering_kernels import answering_kernels
from tests.device.pretended_gpu import CUDA, Log, pretended_gpu

SIZES = [5 + i % 4 for i in range(32)]
WIDTH = 6


def moved(log: Log) -> tuple[int, int, int]:
    """Return the number of transfers up, transfers down, and waits except for transfers down."""
    blocking = sum(event.kind == "up" and event.blocking for event in log)
    return log.count("up"), log.count("down"), log.count("wait") + blocking


def token_vectors(structure: Structure, estimator: Estimator, composer: ComposerBuilder) -> Any:
    """Return the module of an encoder, and a step as a tagger on top of it would run it."""
    torch.manual_seed(0)
    settings = LayerSettings(structure, estimator, build_biaffine_scorer_v1(4), composer)
    module = build_module(WIDTH, settings=settings, width=None, residual=True)
    groups = group_spans(SIZES, [[(0, size)] for size in SIZES])

    def step(rows: Tensor) -> Tensor:
        return module(rows, groups)[0][0]

    return module, step


def text_vectors(structure: Structure, estimator: Estimator, composer: ComposerBuilder) -> Any:
    """Return the module of a text classifier, and a step with a loss of its own."""
    torch.manual_seed(0)
    settings = LayerSettings(structure, estimator, build_biaffine_scorer_v1(4), composer)
    module = build_text_module(WIDTH, settings=settings, pooling=("mean", "root"), texts=1)
    groups = group_spans(SIZES, [[(0, size)] for size in SIZES])
    ends = torch.tensor([0, *SIZES]).cumsum(0).tolist()
    docs = list(zip(ends, ends[1:]))

    def step(rows: Tensor) -> Tensor:
        return torch.stack([part.sum() for part in module(rows, groups, docs, docs)[0]])

    return module, step


def counted(made: Any) -> tuple[int, int, int]:
    """Return the counts of the second step. The first step compares kernels with the CPU."""
    module, step = made
    with pretended_gpu() as log:
        module.to(CUDA).train()
        for _ in range(2):
            rows = torch.randn(sum(SIZES), WIDTH).to(CUDA).requires_grad_()
            log.clear()
            step(rows).sum().backward()
        print(log.lines("up"), log.lines("down"), log.lines("wait"), sep="\n")
        return moved(log)


def tags(count: int = 9) -> Any:
    """Return a module, and a step with the loss of ``crf_ner``.

    The scores are on the GPU, and so is their gradient.
    """
    labels = ["O", *(f"{part}-{label}" for label in ("A", "B") for part in "BILU")]
    outside = np.arange(count) == 0
    evidence = [TagEvidence.of_mask(np.tile(outside, (size, 1))) for size in SIZES]
    module = torch.nn.Linear(WIDTH, count)
    transitions = torch.nn.Parameter(torch.randn(count + 2, count))
    module.register_parameter("transitions", transitions)

    def step(rows: Tensor) -> Tensor:
        emissions = module(rows)
        given = TagScores(emissions.detach(), module.transitions.detach())
        with pytest.MonkeyPatch.context() as patched:
            # Nothing moves between torch and Thinc.
            for name in ("xp2torch", "torch2xp"):
                patched.setattr(tag_losses, name, lambda given: given)
            _, gradient, _ = tag_losses.LOSSES["crf"].loss_and_gradient(given, labels, evidence)
        return (emissions * gradient.emissions).sum()

    return module, step


attention, convolution = build_head_attention_v1(), build_graph_convolution_v1()
tree_lstm = build_child_sum_tree_lstm_v1()
# Transfers up, transfers down and other waits: first if the CPU finds the structures, then if
# kernels do.
BUDGETS: dict[str, tuple[Callable[[], Any], tuple[int, int, int], tuple[int, int, int]]] = {
    "marginals of spanning trees": (
        lambda: token_vectors(SpanningTree(), Marginals(), attention),
        # Up: places of the batch, marginals, the product with the Hessian.
        (3, 2, 0),
        # Down: the statuses.
        (1, 1, 0),
    ),
    "marginals of projective trees": (
        lambda: token_vectors(ProjectiveTree(), Marginals(), attention),
        (3, 2, 0),
        (1, 1, 0),
    ),
    "SparseMAP": (
        lambda: token_vectors(SpanningTree(), SparseMAP(), attention),
        (3, 2, 0),
        (3, 2, 0),
    ),
    "SparseMAP marginalized over Tree-LSTMs": (
        lambda: token_vectors(SpanningTree(), SparseMAP(marginalize=True), tree_lstm),
        # Also up: the trees, a mask of missing trees, and the order of the tokens. Also down: the
        # heads.
        (6, 3, 0),
        (6, 3, 0),
    ),
    "projective trees by the score function": (
        lambda: text_vectors(ProjectiveTree(), ScoreFunction(2, SelfCritical()), convolution),
        # Up: places, samples, the best structures, the log-partition in double precision, its
        # gradient. Down: scores in single and in double precision, and scores of the best
        # structures, which have no gradient.
        (5, 3, 0),
        # Up: places and samples. Down: scores for the samples, and statuses twice.
        (2, 3, 0),
    ),
    "the loss of crf_ner": (tags, (1, 1, 0), (1, 1, 0)),
}


@pytest.mark.parametrize("kernels", [False, True], ids=["by the CPU", "by kernels"])
@pytest.mark.parametrize("name", BUDGETS)
def test_a_step_moves_no_more_than_it_must(name: str, kernels: bool) -> None:
    make, by_cpu, by_kernels = BUDGETS[name]
    with answering_kernels() if kernels else nullcontext():
        assert counted(make()) == (by_kernels if kernels else by_cpu)


# ------------------------------------------------------------------------------------ operations


def on_gpu(structure: Structure, size: int = 6, tags: int = 3) -> tuple[Tensor, Tensor]:
    """Return scores ``(2, ...)`` of different lengths, and the lengths as a batch sends them."""
    torch.manual_seed(1)
    nodes = size + int(structure.parts == "arcs")
    shape: tuple[int, ...] = (2, nodes, nodes)
    if structure.parts == "transitions":
        shape = (2, size, tags, tags)
    if structure.parts == "items":
        shape = (2, size)
    return torch.randn(shape).to(CUDA), send(torch.tensor([size, size - 2]), CUDA)


@pytest.mark.parametrize("structure", [SpanningTree(), ConstituencyTree(), LinearChain()], ids=repr)
def test_scores_come_down_once_for_all_sums_of_them(structure: Structure) -> None:
    with pretended_gpu() as log:
        scores, lengths = on_gpu(structure)
        scores.requires_grad_()
        log.clear()
        z = structure.marginals(scores, lengths)
        value = (z * z).sum() + structure.log_partition(scores, lengths).sum()
        value.backward()
        # The second transfer down is the gradient of the marginals. Up: both sums and both
        # gradients.
        assert moved(log) == (4, 2, 0)


@pytest.mark.parametrize(
    "structure",
    [ConstituencyTree(), LinearChain(), ProjectiveTree(), BudgetTree(max_modifiers=2)],
    ids=repr,
)
def test_what_the_cpu_solves_step_by_step_goes_there_and_back_once(structure: Structure) -> None:
    with pretended_gpu() as log:
        scores, lengths = on_gpu(structure)
        scores.requires_grad_()
        log.clear()
        structure.sparsemap(scores, lengths).mean.square().sum().backward()
        assert moved(log) == (2, 2, 0), log.lines("down") + log.lines("wait")
        log.clear()
        found = structure.top_k(scores.detach(), lengths, 3)
        assert moved(log) == (1, 1, 0), log.lines("down") + log.lines("wait")
    reference = structure.top_k(fetch(scores), fetch(lengths), 3)
    assert torch.equal(fetch(found.z), reference.z)


def test_supports_of_sparsemap_are_the_same_on_both_devices() -> None:
    for structure in (SpanningTree(), ConstituencyTree()):
        with pretended_gpu():
            scores, lengths = on_gpu(structure)
            found = structure.sparsemap(scores, lengths)
            atoms, weights, mean = fetch(found.atoms), fetch(found.weights), fetch(found.mean)
        reference = structure.sparsemap(fetch(scores), fetch(lengths))
        assert torch.equal(atoms, reference.atoms) and torch.equal(weights, reference.weights)
        assert torch.equal(mean, reference.mean) and atoms.sum() > 0


@pytest.mark.parametrize("make", [tree_lstm, build_recursive_message_passing_v1()], ids=repr)
def test_composers_do_not_wait_for_levels(make: Callable[[int], Composer]) -> None:
    """The tree is a chain of 12 tokens, each the head of the next."""
    torch.manual_seed(0)
    z = torch.zeros(1, 13, 13)
    z[0, torch.arange(12), torch.arange(1, 13)] = 1.0
    for learned in (False, True):
        composer, vectors = make(WIDTH), torch.randn(1, 12, WIDTH)
        with torch.no_grad():
            expected = composer(vectors, z, torch.tensor([12]))
        with pretended_gpu() as log:
            composer.to(CUDA)
            inputs = vectors.to(CUDA), z.to(CUDA).requires_grad_(learned)
            lengths = send(torch.tensor([12]), CUDA)
            log.clear()
            found = composer(*inputs, lengths)
            assert moved(log) == (1, 1, 0)
            torch.testing.assert_close(fetch(found), expected)


@pytest.mark.parametrize("noise", NOISES)
def test_noise_is_the_same_on_every_device(noise: Any) -> None:
    like = torch.zeros(4, 3)
    torch.manual_seed(3)
    expected = draw_noise(noise, like, 1.0)
    with pretended_gpu() as log:
        # A real GPU has a generator of its own.
        there = like.to(CUDA)
        log.clear()
        torch.manual_seed(3)
        assert torch.equal(fetch(draw_noise(noise, there, 1.0)), expected)
        assert log.count("up") == 1 and not log.count("wait")


def test_mixed_dirichlet_draws_on_the_cpu() -> None:
    estimator, structure = MixedDirichlet(num_samples=2), OneOfN()

    def draw(scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        scores.requires_grad_()
        torch.manual_seed(4)
        drawn = estimator(structure, scores, lengths, True)
        assert drawn.log_probs is not None
        (drawn.z.square().sum() + drawn.log_probs.sum()).backward()
        assert scores.grad is not None
        return drawn.z, scores.grad

    with pretended_gpu() as log:
        scores, lengths = on_gpu(structure)
        known = fetch(scores).clone()
        log.clear()
        found = [fetch(part) for part in draw(scores, lengths)]
    for part, expected in zip(found, draw(known, fetch(lengths))):
        torch.testing.assert_close(part, expected)


# ------------------------------------------------------------------------------------ kernels


def gradients(structure: Structure, scores: Tensor, lengths: Tensor) -> list[Tensor]:
    scores = scores.detach().requires_grad_()
    z = structure.marginals(scores, lengths)
    (slope,) = torch.autograd.grad(z.square().sum(), scores)
    return [fetch(z), fetch(slope)]


@pytest.mark.parametrize("structure", [SpanningTree(), ConstituencyTree(), LinearChain()], ids=repr)
@pytest.mark.parametrize("failing", [1, 2])
def test_a_kernel_that_fails_in_the_middle_leaves_the_rest_to_the_cpu(
    structure: Structure, failing: int
) -> None:
    """The CPU has no memory reserved for this case, since a kernel was expected to run.

    The kernel fails at the marginals, or at their gradient.
    """

    def fail(count: int) -> None:
        if count == failing:
            raise RuntimeError("too few registers")

    with pretended_gpu():
        scores, lengths = on_gpu(structure)
        with answering_kernels(fail) as launched, pytest.warns(LatentWarning, match="registers"):
            found = gradients(structure, scores, lengths)
            assert len(launched) == failing
    for part, expected in zip(found, gradients(structure, fetch(scores), fetch(lengths))):
        torch.testing.assert_close(part, expected)


def test_a_gpu_that_is_lost_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(count: int) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    def refuse(device: torch.device) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    with pretended_gpu():
        scores, lengths = on_gpu(SpanningTree())
        monkeypatch.setattr(torch.cuda, "synchronize", refuse)
        with answering_kernels(fail), pytest.raises(LatentError, match="GPU"):
            SpanningTree().marginals(scores, lengths)


def test_items_can_be_looked_at_later() -> None:
    """Checks of items can be postponed.

    No transfer happens inside, so a CUDA graph could capture the calls.
    """
    structure = SpanningTree()
    with pretended_gpu() as log, answering_kernels():
        scores, lengths = on_gpu(structure)
        structure.marginals(scores, lengths)
        scores[1, :, 2] = -torch.inf
        good = scores[:1], derived(lambda each: each[:1], lengths)
        log.clear()
        with (
            pytest.raises(InfeasibleError, match=r"\b1\b"),
            dispatch.checks_postponed(),
        ):
            structure.marginals(*good)
            structure.marginals(scores, lengths)
            assert moved(log) == (0, 0, 0)
        # The results, and for an item with an error, whether its scores were too large.
        assert moved(log) == (0, 2, 0)
        with pytest.raises(InfeasibleError):
            structure.marginals(scores, lengths)
        # An error inside may follow from such an item, so the item is named instead.
        with pytest.raises(InfeasibleError), dispatch.checks_postponed():
            structure.marginals(scores, lengths)
            raise ValueError("a composer has met zeros")
        with pytest.raises(ValueError, match="zeros"), dispatch.checks_postponed():
            structure.marginals(*good)
            raise ValueError("a composer has met zeros")


def test_small_batches_can_be_left_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(), answering_kernels() as launched:
        scores, lengths = on_gpu(SpanningTree())
        monkeypatch.setattr(dispatch, "LEAST_ITEMS", 3)
        SpanningTree().marginals(scores, lengths)
        assert not launched
        monkeypatch.setattr(dispatch, "LEAST_ITEMS", 2)
        SpanningTree().marginals(scores, lengths)
        assert launched


# ------------------------------------------------------------------------------------ transfers


def test_what_is_known_is_not_fetched_until_it_is_written_to() -> None:
    with pretended_gpu() as log:
        sent = send(torch.tensor([1, 2]), CUDA)
        assert fetch(sent).tolist() == [1, 2]
        repeated = derived(lambda each: each.repeat(2), sent)
        assert fetch(repeated).tolist() == [1, 2, 1, 2]
        above = derived(lambda each: each > 1, sent)
        assert [part.tolist() for part in map(fetch, places_of(above))] == [[1]]
        assert log.count("down") == 0
        sent += 1
        assert known_of(sent) is None and fetch(sent).tolist() == [2, 3]
        assert log.count("down") == 1
        remember(sent, torch.tensor([2, 3]))
        assert fetch(sent).tolist() == [2, 3] and log.count("down") == 1


def test_tensors_of_any_kind_go_together() -> None:
    given = [
        torch.tensor([True, False, True]),
        torch.tensor(1.5, dtype=torch.float64),
        torch.zeros(2, 0),
        torch.arange(6).view(2, 3).t(),
        torch.arange(6).view(2, 3)[:1, 1],
    ]
    with pretended_gpu() as log:
        sent = send_together(given, CUDA)
        assert moved(log) == (1, 0, 0)
        for part, expected in zip(sent, given):
            assert part.device == CUDA and part.dtype == expected.dtype
            assert torch.equal(part.cpu(), expected)


def test_gradients_pass_transfers() -> None:
    with pretended_gpu() as log:
        scores = torch.tensor([1.0, 2.0]).to(CUDA).requires_grad_()
        down = bring(scores)
        up, unused = send_together([down * down, down], CUDA)
        log.clear()
        up.sum().backward()
        assert fetch(scores.grad).tolist() == [2.0, 4.0] and unused.requires_grad
        assert moved(log)[2] == 0


def small_shim() -> latent_shim.LatentShim:
    shim = latent_shim.LatentShim(
        lambda width: torch.nn.Linear(width, 2),
        latent_shim.TrainingSettings(1.0, Temperature(1.0), None),
        learn_rates={},
        has_layer=False,
    )
    shim.build(3)
    return shim


def test_the_optimizer_writes_to_the_weights_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer of Thinc writes in place.

    Only the result of another optimizer is handed back to torch.
    """
    handed: list[str] = []

    def hand_back(array: Any, *args: Any, **kwargs: Any) -> Tensor:
        handed.append("back")
        return torch.from_numpy(array)

    monkeypatch.setattr(latent_shim, "xp2torch", hand_back)
    shim = small_shim()
    before = shim.module.weight.detach().clone()
    for optimizer in (Adam(0.1), lambda key, weights, gradient: (weights - gradient, gradient)):
        for parameter in shim.module.parameters():
            parameter.grad = torch.ones_like(parameter)
        shim.finish_update(optimizer)
        assert not torch.equal(shim.module.weight, before)
        before = shim.module.weight.detach().clone()
        assert bool(handed) == (not isinstance(optimizer, Optimizer))


def test_what_the_optimizer_wrote_to_a_copy_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an Apple GPU, Thinc gives the optimizer a copy of the weights."""
    monkeypatch.setattr(latent_shim, "torch2xp", lambda tensor: tensor.detach().numpy().copy())
    shim = small_shim()
    before = shim.module.weight.detach().clone()
    for parameter in shim.module.parameters():
        parameter.grad = torch.ones_like(parameter)
    shim.finish_update(Adam(0.1))
    assert not torch.equal(shim.module.weight, before)


def test_what_came_down_is_not_remembered_where_compiled_code_may_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pretended_gpu() as log:
        monkeypatch.setattr(gpu_transfers, "writes_are_counted", lambda: False)
        scores = torch.arange(3.0, device=CUDA)
        assert gpu_transfers.fetch(scores).tolist() == [0.0, 1.0, 2.0]
        # Imitate a write by a kernel that torch does not know.
        scores.held.fill_(7.0)
        assert gpu_transfers.fetch(scores).tolist() == [7.0, 7.0, 7.0]
        assert log.count("down") == 2
