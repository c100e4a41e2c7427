"""Each word to one word: every operation against a list of all alignments."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.structures.active_set import solve_with_oracle
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment

SIZES = [(3, 2), (2, 3), (1, 1), (0, 2), (2, 0)]
BOTH = pytest.mark.parametrize("unaligned", [False, True])


def alignments(rows: int, columns: int, unaligned: bool) -> Tensor:
    """All of them, ``(count, rows, columns)``."""
    if not rows or not columns:
        return torch.zeros(1, rows, columns, dtype=torch.float64)
    choices = torch.eye(columns, dtype=torch.float64)
    if unaligned:
        choices = torch.cat([choices, torch.zeros(1, columns, dtype=torch.float64)])
    picked = product(range(len(choices)), repeat=rows)
    return torch.stack([choices[list(rows)] for rows in picked])


def batch() -> tuple[Tensor, Tensor]:
    """Scores with NaN at padding, and lengths."""
    torch.manual_seed(0)
    scores = torch.full((len(SIZES), 4, 3), torch.nan, dtype=torch.float64)
    for item, (rows, columns) in zip(scores, SIZES):
        item[:rows, :columns] = 2 * torch.randn(rows, columns, dtype=torch.float64)
    return scores, torch.tensor(SIZES)


@BOTH
def test_everything_against_enumeration(unaligned: bool) -> None:
    structure, (scores, lengths) = ManyToOneAlignment(unaligned), batch()
    found = {
        "map": structure.map(scores, lengths),
        "log_partition": structure.log_partition(scores, lengths),
        "marginals": structure.marginals(scores, lengths),
        "entropy": structure.entropy(scores, lengths),
        "count": structure.log_count(scores, lengths).exp(),
    }
    best = structure.top_k(scores, lengths, 3)
    for b, (rows, columns) in enumerate(SIZES):
        all_z = alignments(rows, columns, unaligned)
        totals = (all_z * scores[b, :rows, :columns]).sum((1, 2))
        p = totals.softmax(0)
        expected = {
            "map": all_z[totals.argmax()],
            "log_partition": totals.logsumexp(0),
            "marginals": (p[:, None, None] * all_z).sum(0),
            "entropy": -torch.special.xlogy(p, p).sum(),
            "count": torch.tensor(len(all_z), dtype=torch.float64),
        }
        for name, value in expected.items():
            own = found[name][b]
            if own.dim():
                assert not own[rows:].any() and not own[:, columns:].any()
                own = own[:rows, :columns]
            torch.testing.assert_close(own, value, rtol=1e-9, atol=1e-9, msg=name)
        torch.testing.assert_close(
            best.scores[: len(all_z), b], totals.topk(min(3, len(all_z))).values
        )


@BOTH
def test_sparsemap_is_that_of_the_active_set_with_alignments_as_atoms(unaligned: bool) -> None:
    structure, (scores, lengths) = ManyToOneAlignment(unaligned), batch()
    solution = structure.sparsemap(scores, lengths)
    prepared, _ = structure.prepare(scores, lengths)
    reference = solve_with_oracle(structure, prepared.nan_to_num(0.0), lengths, 1000, 1e-12)
    torch.testing.assert_close(solution.mean, reference.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(solution.weights.sum(0), torch.ones(len(SIZES)).double())
    mean = (solution.weights[:, :, None, None] * solution.atoms).sum(0)
    torch.testing.assert_close(mean, solution.mean)
    for b, (rows, columns) in enumerate(SIZES):
        known = {tuple(z.flatten().tolist()) for z in alignments(rows, columns, unaligned)}
        for atom, weight in zip(solution.atoms[:, b, :rows, :columns], solution.weights[:, b]):
            assert weight == 0 or tuple(atom.flatten().tolist()) in known


@BOTH
def test_samples_and_their_reparameterization_follow_the_marginals(unaligned: bool) -> None:
    structure, (scores, lengths) = ManyToOneAlignment(unaligned), batch()
    expected = structure.marginals(scores, lengths)
    drawn = structure.sample(scores, lengths, 4000, torch.Generator().manual_seed(1))
    torch.testing.assert_close(drawn.mean(0), expected, rtol=0, atol=0.04)
    torch.manual_seed(2)
    many = scores[:1].expand(4000, -1, -1)
    sizes = lengths[:1].expand(4000, -1)
    found = structure.reparameterize(many, sizes)
    torch.testing.assert_close(found.z.mean(0), expected[0], rtol=0, atol=0.04)
    for noisy in (found.noisy, found.redrawn):
        assert torch.equal(structure.map(noisy, sizes), found.z)


@BOTH
def test_marginals_are_differentiable(unaligned: bool) -> None:
    structure = ManyToOneAlignment(unaligned)
    lengths = torch.tensor([[2, 3], [1, 2]])
    scores = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    for operation in (structure.marginals, lambda s, n: structure.sparsemap(s, n).mean):
        assert torch.autograd.gradcheck(lambda s: operation(s, lengths), scores)  # noqa: B023


def test_a_word_that_may_go_nowhere_is_an_error_or_stays_alone() -> None:
    scores, lengths = torch.zeros(2, 2, 2), torch.tensor([[2, 2], [2, 2]])
    scores[1, 1] = -torch.inf
    for operation in ("map", "marginals", "log_partition", "sample", "sparsemap"):
        with pytest.raises(InfeasibleError, match=r"ManyToOneAlignment.*1"):
            getattr(ManyToOneAlignment(), operation)(scores, lengths)
    marginals = ManyToOneAlignment(unaligned=True).marginals(scores, lengths)
    assert not marginals[1, 1].any() and marginals[1, 0].sum() == pytest.approx(2 / 3)


def test_what_is_no_number_is_refused_with_the_item() -> None:
    scores, lengths = torch.zeros(2, 2, 2), torch.tensor([[2, 2], [2, 2]])
    scores[1, 0, 0] = torch.nan
    with pytest.raises(InvalidScores, match="1"):
        ManyToOneAlignment().map(scores, lengths)
    with pytest.raises(InvalidScores, match="numbers of rows and columns"):
        ManyToOneAlignment().map(scores, torch.tensor([[2, 2, 1], [2, 2, 1]]))
