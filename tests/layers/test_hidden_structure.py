"""Classes with a hidden structure: their probabilities, against sums over all structures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from spacy.util import registry
from torch import Tensor

from spacy_latent.errors import LatentError, NothingLeft
from spacy_latent.layers.batch_interventions import BatchInterventions
from spacy_latent.layers.hidden_structure import HiddenDraw, HiddenStructureLayer
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from tests.enumeration import arcs, dependency_trees, tag_sequences, transitions, warping_paths

WIDTH, TAGS, CLASSES = 3, 2, 3


def tags(n: int) -> list[np.ndarray]:
    return [np.eye(TAGS)[list(sequence)] for sequence in tag_sequences(n, TAGS)]


def many_to_one(rows: int, columns: int) -> list[np.ndarray]:
    chosen = product(range(columns), repeat=rows)
    return [np.eye(columns)[list(columns_of)] for columns_of in chosen]


def choices(n: int) -> list[np.ndarray]:
    return [np.isin(np.arange(n), chosen) * 1.0 for chosen in combinations(range(n), 2)]


CASES: dict[str, Any] = {
    "SpanningTree": (
        SpanningTree(),
        ("BiaffineScorer", {"hidden_width": 4}),
        lambda n: [arcs(heads) for heads in dependency_trees(n)],
        [3, 2],
    ),
    "ProjectiveTree": (
        ProjectiveTree(single_root=True),
        ("BiaffineScorer", {"hidden_width": 4}),
        lambda n: [arcs(h) for h in dependency_trees(n, projective=True, single_root=True)],
        [3, 1],
    ),
    "TagSequence": (TagSequence(), ("EmissionScorer", {"num_tags": TAGS}), tags, [3, 2]),
    "LinearChain": (
        LinearChain(),
        ("TransitionScorer", {"num_tags": TAGS}),
        lambda n: [transitions(sequence, TAGS) for sequence in tag_sequences(n, TAGS)],
        [3, 2],
    ),
    "KOfN": (KOfN(k=2), ("ItemScorer", {}), choices, [4, 3]),
    "ManyToOneAlignment": (
        ManyToOneAlignment(),
        ("CellScorer", {}),
        lambda sizes: many_to_one(*sizes),
        [[2, 3], [3, 1]],
    ),
    "MonotoneAlignment": (
        MonotoneAlignment(),
        ("CellScorer", {}),
        lambda sizes: list(warping_paths(*sizes)),
        [[2, 3], [3, 1]],
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Any:
    return CASES[request.param]


def make(case: Any, exclusive: bool = True) -> HiddenStructureLayer:
    torch.manual_seed(0)
    structure, (name, options), *_ = case
    scorer = registry.get("misc", f"spacy-latent.{name}.v1")(**options)
    layer = HiddenStructureLayer(WIDTH, structure, scorer, scorer, CLASSES, exclusive).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer.eval()


def inputs(case: Any) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor(case[3])
    longest = int(lengths.view(len(lengths), -1).sum(1).max())
    torch.manual_seed(1)
    return torch.randn(len(lengths), longest, WIDTH, dtype=torch.float64), lengths


def window(scores: Tensor, z: np.ndarray) -> Tensor:
    """Return the scores of the parts of one item, on the last axes of ``scores``."""
    return scores[(..., *(slice(0, size) for size in z.shape))]


def logits_of(layer: HiddenStructureLayer, vectors: Tensor, lengths: Tensor) -> Tensor:
    draw, _ = layer.read(vectors, lengths)
    assert isinstance(draw, HiddenDraw) and draw.logits is not None
    return draw.logits


def enumerated(
    case: Any, layer: HiddenStructureLayer, vectors: Tensor, lengths: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Return all structures of each item, and z·(s + t_y), ``(1 + C, structures)``.

    Row 0 is z·s.
    """
    shared = layer.scorer(vectors, lengths)
    own = layer.composer.of_parts(vectors, lengths)
    every = torch.cat([shared[None], shared + own])
    found = []
    for b, size in enumerate(case[3]):
        members: Sequence[np.ndarray] = case[2](size)
        z = torch.from_numpy(np.stack(members))
        scores = window(every[:, b], members[0])
        totals = (z[None] * torch.where(z[None] != 0, scores[:, None], 0.0)).flatten(2).sum(2)
        found.append((z, totals))
    return found


@pytest.mark.parametrize("exclusive", [True, False])
def test_logits_are_log_partitions(case: Any, exclusive: bool) -> None:
    layer, (vectors, lengths) = make(case, exclusive), inputs(case)
    logits = logits_of(layer, vectors, lengths)
    expected = torch.stack(
        [totals.logsumexp(1) for _, totals in enumerated(case, layer, vectors, lengths)]
    )
    expected = expected[:, 1:] if exclusive else expected[:, 1:] - expected[:, :1]
    torch.testing.assert_close(logits, expected)
    parameters = list(layer.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(logits.softmax(1)[:, 0].sum(), parameters, allow_unused=True),
        torch.autograd.grad(expected.softmax(1)[:, 0].sum(), parameters, allow_unused=True),
        strict=True,
    ):
        mine = torch.zeros(()) if mine is None else mine
        theirs = torch.zeros(()) if theirs is None else theirs
        torch.testing.assert_close(
            *torch.broadcast_tensors(mine.double(), theirs.double()), atol=1e-9, rtol=1e-7
        )


@pytest.mark.parametrize("exclusive", [True, False])
def test_gradients_by_differences(case: Any, exclusive: bool) -> None:
    layer, (vectors, lengths) = make(case, exclusive).train(), inputs(case)
    vectors.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda v: logits_of(layer, v, lengths), vectors, check_undefined_grad=False
    )


def test_structures_are_of_the_likeliest_class(case: Any) -> None:
    layer, (vectors, lengths) = make(case), inputs(case)
    draw, scores = layer.read(vectors, lengths)
    logits = logits_of(layer, vectors, lengths)
    for b, (z, totals) in enumerate(enumerated(case, layer, vectors, lengths)):
        own = totals[1 + int(logits[b].argmax())]
        mean = torch.tensordot(own.softmax(0), z.to(own), 1)
        torch.testing.assert_close(window(draw.z[0, b], z[0].numpy()), mean)
        best = layer.structure.map(scores, lengths)[b]
        torch.testing.assert_close(window(best, z[0].numpy()), z[own.argmax()].to(best))


def test_scores_shared_by_all_classes_leave_their_probabilities(case: Any) -> None:
    layer, (vectors, lengths) = make(case), inputs(case)
    for scorer in layer.composer.scorers:
        scorer.load_state_dict(layer.composer.scorers[0].state_dict())
    uniform = torch.full((len(lengths), CLASSES), 1 / CLASSES, dtype=torch.float64)
    torch.testing.assert_close(logits_of(layer, vectors, lengths).softmax(1), uniform)


def test_labels_with_no_scores_of_their_own_are_even(case: Any) -> None:
    layer, (vectors, lengths) = make(case, exclusive=False), inputs(case)
    for parameter in layer.composer.scorers[1].parameters():
        torch.nn.init.zeros_(parameter)
    logits = logits_of(layer, vectors, lengths)
    torch.testing.assert_close(logits[:, 1], torch.zeros(len(lengths), dtype=torch.float64))
    assert (logits[:, [0, 2]].abs() > 1e-3).all()


def test_a_constant_for_all_parts_of_all_classes_changes_nothing() -> None:
    """All structures have the same number of parts, so only the log-partitions change, by a
    constant.
    """
    case = CASES["KOfN"]
    layer, (vectors, lengths) = make(case), inputs(case)
    before = logits_of(layer, vectors, lengths).softmax(1)
    with torch.no_grad():
        for scorer in layer.composer.scorers:
            scorer.output.bias += 3.0
    torch.testing.assert_close(logits_of(layer, vectors, lengths).softmax(1), before)


def test_padding_changes_nothing(case: Any) -> None:
    layer, (vectors, lengths) = make(case), inputs(case)
    logits = logits_of(layer, vectors, lengths)
    for b in range(len(lengths)):
        length = int(lengths[b].sum())
        alone = logits_of(layer, vectors[b : b + 1, :length], lengths[b : b + 1])
        torch.testing.assert_close(alone, logits[b : b + 1])


@pytest.mark.parametrize("name", ["SpanningTree", "ProjectiveTree", "KOfN"])
def test_given_structures_are_judged_by_their_own_class_scores(name: str) -> None:
    case = CASES[name]
    layer, (vectors, lengths) = make(case), inputs(case)
    z = case[2](case[3][0])[0]
    given = [layer.structure.decode(z, case[3][0]), None]
    draw, _ = layer.read(vectors, lengths, given)
    assert isinstance(draw, HiddenDraw) and draw.logits is not None
    own = layer.composer.of_parts(vectors, lengths)[:, 0]
    expected = torch.from_numpy(z) * torch.where(torch.from_numpy(z) != 0, window(own, z), 0.0)
    torch.testing.assert_close(draw.logits[0], expected.flatten(1).sum(1))
    torch.testing.assert_close(draw.logits[1], logits_of(layer, vectors, lengths)[1])


def conditioned(
    case: Any, layer: Any, interventions: BatchInterventions, keep: Any
) -> tuple[Tensor, Tensor]:
    """Return the probabilities of classes given the interventions, and the same by enumeration.

    Enumeration is over the structures that ``keep`` accepts.
    """
    vectors, lengths = inputs(case)
    draw, _ = layer.read(vectors, lengths, None, interventions)
    (z, totals), *_ = enumerated(case, layer, vectors, lengths)
    left = torch.tensor([keep(one) for one in z])
    return draw.logits[0].softmax(0), totals[1:, left].logsumexp(1).softmax(0)


@pytest.mark.parametrize("name, place", [("KOfN", (1,)), ("SpanningTree", (1, 2))])
def test_interventions_condition_the_classes(name: str, place: tuple[int, ...]) -> None:
    case = CASES[name]
    layer = make(case)
    forced = BatchInterventions([[], []], [[place], []])
    torch.testing.assert_close(*conditioned(case, layer, forced, lambda z: bool(z[place] == 1)))
    forbidden = BatchInterventions([[place], []], [[], []])
    torch.testing.assert_close(*conditioned(case, layer, forbidden, lambda z: bool(z[place] == 0)))
    with pytest.raises(NothingLeft):
        layer.read(*inputs(case), None, BatchInterventions([[place], []], [[place], []]))


def test_a_scorer_of_other_parts_is_refused() -> None:
    scorer = registry.get("misc", "spacy-latent.ItemScorer.v1")()
    with pytest.raises(LatentError):
        HiddenStructureLayer(WIDTH, SpanningTree(), scorer, scorer, CLASSES, True)


def test_scorers_of_different_sizes_are_refused() -> None:
    def scorer(tags: int) -> Any:
        return registry.get("misc", "spacy-latent.TransitionScorer.v1")(num_tags=tags)

    layer = HiddenStructureLayer(WIDTH, LinearChain(), scorer(2), scorer(3), CLASSES, True)
    vectors, lengths = inputs(CASES["LinearChain"])
    with pytest.raises(LatentError, match="class_scorer"):
        layer.read(vectors.float(), lengths)
