"""Forbidden and forced parts, against lists of all structures."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, LatentError, NothingLeft
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.layers.batch_interventions import (
    BatchInterventions,
    check_forced,
    constrained_scores,
    naming_interventions,
)
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.testing.listing import Listing
from tests.structures.contracts import Listed, every_structure

# Small structures of every kind, so that a test can forbid and force several parts of each.
LISTED = [
    one
    for one in every_structure()
    if one.structure.linear and not one.only and "BudgetTree" not in one.structure.name
]
PARTS = 5


def listing(one: Listed) -> Listing:
    lengths = one.options.get("lengths", (3, 0, 2, 4))
    return Listing(one.members, lengths, one.options.get("log_potential"))


def conditioned(
    one: Listed, made: Listing, b: int, scores: Tensor, interventions: tuple[list[Any], list[Any]]
) -> Tensor | None:
    """Return the marginals of item b given the interventions, or None if no member fits."""
    forbidden, forced = interventions
    z = made.members[b]
    kept = torch.ones(len(z), dtype=torch.bool)
    for place in forbidden:
        kept &= z[(slice(None), *place)] == 0
    for place in forced:
        kept &= z[(slice(None), *place)] == 1
    if not kept.any():
        return None
    own = made.own(scores, b).double()
    potential = made.log_potential(z[kept], own, made.sizes[b])
    if potential.isneginf().all():
        return None
    weights = potential.softmax(0)
    return (weights.view(-1, *[1] * (z.dim() - 1)) * z[kept]).sum(0)


@pytest.mark.parametrize("one", LISTED, ids=str)
def test_each_part_forbidden_and_forced_as_among_all_structures(one: Listed) -> None:
    made, structure = listing(one), one.structure
    generator = torch.Generator().manual_seed(0)
    # The padding is NaN, which must have no effect.
    scores = torch.full((len(made), *made.shape), torch.nan)
    inside = made.inside()
    scores[inside] = torch.randn(int(inside.sum()), generator=generator)
    b = int(np.argmax([len(z) for z in made.members]))
    parts = [tuple(place) for place in made.members[b].amax(0).nonzero().tolist()]
    step = max(1, len(parts) // PARTS)
    pairs = list(itertools.combinations(parts, 2))
    asked: list[tuple[list[Any], list[Any]]] = []
    for part in parts[::step]:
        asked += [([part], []), ([], [part])]
    for first, second in pairs[:: max(1, len(pairs) // PARTS)]:
        asked += [([], [first, second]), ([first], [second])]
    possible = impossible = 0
    for forbidden, forced in asked:
        interventions = BatchInterventions(
            [forbidden if i == b else [] for i in range(len(made))],
            [forced if i == b else [] for i in range(len(made))],
        )
        wanted = conditioned(one, made, b, scores, (forbidden, forced))
        changed = constrained_scores(structure, scores, made.lengths, interventions)
        assert changed.dtype == torch.float64
        if not structure.has_map:
            if wanted is not None:
                mean = structure.sparsemap(changed, made.lengths).mean[b]
                assert all(float(mean[place]) > 0.99 for place in forced)
                assert all(float(mean[place]) < 0.01 for place in forbidden)
                possible += 1
            continue
        try:
            with naming_interventions(structure.name, interventions):
                best = structure.map(changed, made.lengths)
            check_forced(best, interventions, structure.name)
        except NothingLeft:
            assert wanted is None
            impossible += 1
            continue
        assert wanted is not None, (forbidden, forced)
        possible += 1
        if "marginals" in structure.tractable:
            found = made.own(structure.marginals(changed, made.lengths), b)
            torch.testing.assert_close(found, wanted, atol=1e-7, rtol=1e-6)
    assert possible


def test_nothing_of_other_items_or_of_the_scores_changes() -> None:
    scores = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(1))
    before = scores.clone()
    interventions = BatchInterventions([[(0, 1)], []], [[], []])
    changed = constrained_scores(SpanningTree(), scores, torch.tensor([3, 3]), interventions)
    assert torch.equal(scores, before)
    mask = SpanningTree().part_mask(scores, torch.tensor([3, 3]))[1]
    assert torch.equal(changed[1][mask], before[1].double()[mask])
    assert changed[0, 0, 1] == -torch.inf


@pytest.mark.parametrize("place", [(0, 4), (2, 2), (1, 0), (-1, 1), (1,), (0, 1, 2)])
def test_what_is_no_part_is_refused(place: tuple[int, ...]) -> None:
    scores = torch.zeros(1, 6, 6)
    with pytest.raises(LatentError, match="SpanningTree"):
        constrained_scores(
            SpanningTree(), scores, torch.tensor([3]), BatchInterventions([[place]], [[]])
        )


def test_two_heads_for_one_word_are_a_message_and_no_nan() -> None:
    scores = torch.zeros(1, 4, 4)
    interventions = BatchInterventions([[]], [[(0, 1), (2, 1)]])
    changed = constrained_scores(SpanningTree(), scores, torch.tensor([3]), interventions)
    assert not changed.isnan().any()
    with (
        pytest.raises(NothingLeft),
        naming_interventions("SpanningTree", interventions),
    ):
        SparseMAP()(SpanningTree(), changed, torch.tensor([3]), False)


def test_without_edits_the_scores_are_to_blame() -> None:
    with pytest.raises(InfeasibleError), naming_interventions("SpanningTree", None):
        SpanningTree().map(torch.full((1, 3, 3), -torch.inf), torch.tensor([2]))
