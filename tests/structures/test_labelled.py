"""The k best labelled structures, against enumeration, and sums over labels by folding."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.labelled import top_k_labelled
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from tests import enumeration

LABELS = 2


def trees(structure: Structure, n: int) -> list[Tensor]:
    if isinstance(structure, ConstituencyTree):
        return [torch.from_numpy(z) for z in enumeration.constituency_trees(n)]
    if isinstance(structure, Bits):
        return [torch.tensor(z, dtype=torch.float64) for z in product([0.0, 1.0], repeat=n)]
    projective = isinstance(structure, ProjectiveTree)
    heads = enumeration.dependency_trees(n, projective, single_root=structure.single_root)
    return [torch.from_numpy(enumeration.arcs(tree)) for tree in heads]


def labelled(structure: Structure, n: int, room: tuple[int, ...]) -> Tensor:
    """Return all labelled members of an item, padded to ``room``, as ``(M, *room, LABELS)``."""
    found = []
    for tree in trees(structure, n):
        parts = tree.nonzero()
        for labels in product(range(LABELS), repeat=len(parts)):
            z = torch.zeros(*room, LABELS, dtype=torch.float64)
            for part, label in zip(parts.tolist(), labels):
                z[(*part, label)] = 1.0
            found.append(z)
    return torch.stack(found)


CASES = pytest.mark.parametrize(
    "structure, room, lengths",
    [
        (ConstituencyTree(), (3, 3), [3, 2, 0, 1]),
        (ProjectiveTree(), (4, 4), [3, 0, 2]),
        (SpanningTree(), (4, 4), [2, 3]),
        (Bits(), (3,), [3, 1, 0]),
        (ConstituencyTree(), (0, 0), [0]),
    ],
    ids=str,
)


def scores_for(room: tuple[int, ...], lengths: list[int], ties: bool) -> Tensor:
    generator = torch.Generator().manual_seed(len(lengths))
    scores = torch.randn(len(lengths), *room, LABELS, generator=generator, dtype=torch.float64)
    return scores.round() if ties else scores


@CASES
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [1, 3, 50])
def test_the_k_best_are_those_of_all(
    structure: Structure, room: tuple[int, ...], lengths: list[int], ties: bool, k: int
) -> None:
    scores = scores_for(room, lengths, ties)
    best = top_k_labelled(structure, scores, torch.tensor(lengths), k)
    assert best.z.shape == (k, *scores.shape)
    for b, n in enumerate(lengths):
        members = labelled(structure, n, room)
        totals = (members * scores[b]).flatten(1).sum(1).sort(descending=True).values[:k]
        expected = torch.full((k,), -torch.inf, dtype=torch.float64)
        expected[: len(totals)] = totals
        torch.testing.assert_close(best.scores[:, b], expected)
        own = best.z[: len(totals), b]
        torch.testing.assert_close((own * scores[b]).flatten(1).sum(1), totals)
        assert not best.z[len(totals) :, b].any()
        # The structures are members of the set, and all different.
        given, listed = own.flatten(1).tolist(), members.flatten(1).tolist()
        assert all(z in listed for z in given) and len({*map(tuple, given)}) == len(given)


def test_sums_best_and_marginals_by_folding_the_labels() -> None:
    structure, lengths = ConstituencyTree(), torch.tensor([3])
    scores = scores_for((3, 3), [3], False)
    scores[0, 0, 1, 0] = -torch.inf
    members = labelled(structure, 3, (3, 3))
    used = torch.where(members > 0, scores[0], 0.0).flatten(1).sum(1)
    folded = scores.logsumexp(-1)
    torch.testing.assert_close(structure.log_partition(folded, lengths)[0], used.logsumexp(0))
    marginals = structure.marginals(folded, lengths)[..., None] * scores.softmax(-1)
    expected = (used.softmax(0)[:, None] * members.flatten(1)).sum(0)
    torch.testing.assert_close(marginals.flatten(), expected)
    best = top_k_labelled(structure, scores, lengths, 1)
    z = structure.map(scores.amax(-1), lengths)[..., None]
    z = z * torch.nn.functional.one_hot(scores.argmax(-1), LABELS)
    assert torch.equal(best.z[0], z)


def test_forbidden_labels_padding_and_precision() -> None:
    structure, lengths = ProjectiveTree(), torch.tensor([2, 1])
    scores = torch.zeros(2, 3, 3, LABELS)
    scores[1, 2:], scores[1, :, 2:] = torch.nan, torch.inf
    scores[0, 0, 1, 1] = scores[0, 1, 2, 0] = -torch.inf
    best = top_k_labelled(structure, scores, lengths, 8)
    assert best.z.dtype == torch.float32 and not best.z[:, 0, 0, 1, 1].any()
    assert best.z[:, 1, 0, 1].sum() == 2 and not best.z[:, 1, :, 2].any()
    with pytest.raises(InfeasibleError):
        top_k_labelled(structure, torch.full((1, 3, 3, 2), -torch.inf), torch.tensor([2]), 2)
    for wrong in (torch.zeros(2, 3, 3), torch.zeros(2, 3, 3, 0), None):
        with pytest.raises(InvalidScores, match=r"\(B, parts, labels\)"):
            top_k_labelled(structure, wrong, lengths, 2)  # type: ignore[arg-type]
    with pytest.raises(InvalidScores, match=r"\bk\b"):
        top_k_labelled(structure, scores, lengths, 0)
