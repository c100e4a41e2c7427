from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, library

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.kernels import operators
from spacy_latent.structures.k_best import lawler
from spacy_latent.structures.linear_chain import LinearChain
from tests.enumeration import tag_sequences, transitions

STRUCTURE = LinearChain()


@cache
def chains_of(n: int, num_tags: int) -> Tensor:
    rows = [transitions(tags, num_tags) for tags in tag_sequences(n, num_tags)]
    return torch.from_numpy(np.stack(rows))


def padded(scores: Tensor, room: int) -> Tensor:
    """Scores of one item ``(n, K, K)`` as a batch, with NaN wherever nothing may be read."""
    n, num_tags = scores.shape[:2]
    result = torch.full((1, room, num_tags, num_tags), torch.nan, dtype=scores.dtype)
    result[0, :n] = scores
    result[0, :1, 1:] = torch.nan
    return result


# At 1000 what underflows matters, and the kernel runs on logarithms.
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("num_tags", [1, 2, 3])
def test_everything_against_enumeration(num_tags: int, scale: float) -> None:
    torch.manual_seed(0)
    for n in range(6):
        chains, lengths = chains_of(n, num_tags), torch.tensor([n])
        own = torch.randn(n, num_tags, num_tags, dtype=torch.float64) * scale
        scores = padded(own, n + 2).requires_grad_()
        totals = torch.where(chains > 0, own, 0.0).sum((1, 2, 3))
        p = totals.softmax(0)
        mean = torch.einsum("z,znpt->npt", p, chains)
        log_partition = STRUCTURE.log_partition(scores, lengths)
        torch.testing.assert_close(log_partition[0], totals.logsumexp(0), rtol=1e-10, atol=1e-10)
        marginals = STRUCTURE.marginals(scores, lengths)
        torch.testing.assert_close(marginals[0, :n], mean, rtol=1e-10, atol=1e-12)
        assert not marginals[0, n:].any()
        (first,) = torch.autograd.grad(log_partition.sum(), scores)
        assert torch.equal(first, marginals)
        vector = torch.randn_like(own)
        (product,) = torch.autograd.grad((marginals[0, :n] * vector).sum(), scores)
        along = torch.einsum("znpt,npt->z", chains, vector)
        expected = torch.einsum("z,znpt->npt", p * (along - p @ along), chains)
        torch.testing.assert_close(product[0, :n], expected, rtol=1e-9, atol=1e-11)
        assert not product[0, n:].any()
        torch.testing.assert_close(STRUCTURE.map(scores, lengths)[0, :n], chains[totals.argmax()])
        entropy = -(p * totals.log_softmax(0)).sum()
        torch.testing.assert_close(STRUCTURE.entropy(scores, lengths)[0], entropy)
        count = STRUCTURE.log_count(scores, lengths).exp().item()
        assert count == pytest.approx(len(chains))
        order = totals.argsort(descending=True)[:5]
        best = STRUCTURE.top_k(scores, lengths, 5)
        found = best.z[: len(order), 0, :n]
        torch.testing.assert_close(found, chains[order])
        torch.testing.assert_close(best.scores[: len(order), 0], totals[order])
        assert torch.isneginf(best.scores[len(order) :]).all()
        assert not best.z[len(order) :].any()


def test_forbidden_transitions() -> None:
    generator = np.random.default_rng(0)
    chains, lengths = chains_of(4, 3), torch.tensor([4])
    seen = set()
    for scale in (1.0, 400.0) * 30:
        own = torch.from_numpy(generator.normal(size=(4, 3, 3))) * scale
        own[torch.from_numpy(generator.random((4, 3, 3)) < 0.55)] = -torch.inf
        scores = padded(own, 5)
        kept = chains[((chains == 0) | ~torch.isneginf(own)).flatten(1).all(1)]
        seen.add(len(kept) > 0)
        if not len(kept):
            for operation in ("map", "marginals", "log_partition", "sample", "sparsemap"):
                with pytest.raises(InfeasibleError) as error:
                    getattr(STRUCTURE, operation)(scores, lengths)
                assert error.value.items == [0]
            with pytest.raises(InfeasibleError):
                STRUCTURE.top_k(scores, lengths, 2)
            continue
        totals = torch.where(kept > 0, own, 0.0).sum((1, 2, 3))
        mean = torch.einsum("z,znpt->npt", totals.softmax(0), kept)
        torch.testing.assert_close(STRUCTURE.map(scores, lengths)[0, :4], kept[totals.argmax()])
        torch.testing.assert_close(STRUCTURE.marginals(scores, lengths)[0, :4], mean)
        chosen = STRUCTURE.top_k(scores, lengths, 1).z[0]
        torch.testing.assert_close(
            STRUCTURE.log_prob(chosen, scores, lengths)[0], totals.log_softmax(0).max()
        )
        assert STRUCTURE.kl(scores, scores * 0.5, lengths) >= -1e-9
        drawn = STRUCTURE.sample(scores, lengths, 20, torch.Generator().manual_seed(0))
        assert not drawn[:, 0, :4][:, torch.isneginf(own)].any()
    assert seen == {True, False}


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_gradients(scale: float) -> None:
    torch.manual_seed(1)
    lengths = torch.tensor([4, 1, 0])
    scores = torch.randn(3, 4, 3, 3, dtype=torch.float64)
    # The best first tags lead nowhere: sums of weights lose what matters, and logarithms run.
    scores[:, 0, 0, 0] += scale
    scores[:, 1, 0] -= 4 * scale
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: STRUCTURE.marginals(s, lengths), scores)
    assert torch.autograd.gradgradcheck(lambda s: STRUCTURE.log_partition(s, lengths), scores)


def reference(scores: np.ndarray) -> tuple[float, np.ndarray]:
    """log Z and marginals of one item ``(n, K, K)``, on logarithms of 64 bits and more."""
    s = scores.astype(np.longdouble)
    n, num_tags = s.shape[:2]
    left, right = np.empty((n, num_tags), s.dtype), np.zeros((n, num_tags), s.dtype)
    left[0] = s[0, 0]
    for i in range(1, n):
        left[i] = np.logaddexp.reduce(left[i - 1][:, None] + s[i], axis=0)
    for i in range(n - 1, 0, -1):
        right[i - 1] = np.logaddexp.reduce(s[i] + right[i], axis=1)
    total = np.logaddexp.reduce(left[-1])
    marginals = np.zeros_like(s)
    marginals[0, 0] = np.exp(s[0, 0] + right[0] - total)
    marginals[1:] = np.exp(left[:-1, :, None] + s[1:] + right[1:, None] - total)
    return float(total), marginals.astype(float)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double is no wider")
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3])
def test_long_chains_against_a_wider_type(scale: float) -> None:
    scores = np.random.default_rng(3).normal(size=(200, 7, 7)) * scale
    lengths = torch.tensor([200])
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        given_scores = torch.from_numpy(scores).to(dtype)
        total, expected = reference(given_scores.double().numpy())
        found = STRUCTURE.log_partition(given_scores[None], lengths).item()
        assert found == pytest.approx(total, rel=tolerance)
        marginals = STRUCTURE.marginals(given_scores[None], lengths)[0]
        smallest = torch.finfo(dtype).tiny
        np.testing.assert_allclose(marginals.numpy(), expected, rtol=tolerance, atol=smallest)


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_samples_have_the_marginals(scale: float) -> None:
    torch.manual_seed(4)
    scores = torch.randn(2, 4, 3, 3, dtype=torch.float64) * scale
    lengths = torch.tensor([4, 2])
    samples = STRUCTURE.sample(scores, lengths, 4000, torch.Generator().manual_seed(0))
    # Four standard errors of a share over 4000 draws are at most 0.032.
    difference = samples.mean(0) - STRUCTURE.marginals(scores, lengths)
    assert difference.abs().max() < 0.032
    assert (samples.flatten(2).sum(2) == lengths).all()
    again = STRUCTURE.sample(scores, lengths, 4000, torch.Generator().manual_seed(0))
    assert torch.equal(samples, again)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 4), st.integers(1, 6))
def test_top_k_is_that_of_the_general_algorithm(seed: int, n: int, num_tags: int, k: int) -> None:
    generator = np.random.default_rng(seed)
    # Small integers: many ties.
    scores = torch.from_numpy(generator.integers(0, 3, (2, n, num_tags, num_tags)).astype(float))
    lengths = torch.from_numpy(generator.integers(0, n + 1, 2))
    found = STRUCTURE.top_k(scores, lengths, k)
    expected = lawler(STRUCTURE, scores, lengths, k)
    torch.testing.assert_close(found.scores, expected.scores)
    for b in range(2):
        real = ~torch.isneginf(found.scores[:, b])
        rows = found.z[real, b].flatten(1)
        assert len(torch.unique(rows, dim=0)) == real.sum()
        own = (rows * scores[b].flatten()).sum(1)
        torch.testing.assert_close(own, found.scores[real, b])


def test_sparsemap_meets_its_optimality_conditions() -> None:
    torch.manual_seed(5)
    chains, lengths = chains_of(4, 3), torch.tensor([4, 1])
    scores = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    solution = STRUCTURE.sparsemap(scores, lengths)
    rest = scores[0] - solution.mean[0]
    best = torch.einsum("znpt,npt->z", chains, rest).max()
    assert best - (solution.mean[0] * rest).sum() <= 1e-6
    assert solution.gap.max() <= 1e-6
    mixed = (solution.weights[..., None] * solution.atoms.flatten(2)).sum(0)
    torch.testing.assert_close(mixed, solution.mean.flatten(1))


def test_ties_are_broken_alike() -> None:
    zeros, lengths = torch.zeros(1, 5, 4, 4), torch.tensor([5])
    best = STRUCTURE.map(zeros, lengths)
    assert STRUCTURE.decode(best[0].numpy(), 5).tolist() == [0] * 5
    assert torch.equal(STRUCTURE.top_k(zeros, lengths, 1).z[0], best)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_solved_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    scores, lengths = torch.randn(2, 5, 3, 3).to(dtype), torch.tensor([5, 3])
    marginals = STRUCTURE.marginals(scores, lengths)
    assert marginals.dtype == dtype
    assert torch.equal(marginals, STRUCTURE.marginals(scores.float(), lengths).to(dtype))


def test_layout_threads_and_other_items_do_not_matter() -> None:
    torch.manual_seed(7)
    scores = torch.randn(6, 6, 40, 30).permute(3, 2, 0, 1)
    lengths = torch.randint(0, 41, (30,))
    vector = torch.randn(scores.shape)
    before = torch.get_num_threads()
    results = []
    try:
        for threads, given_scores in ((1, scores), (3, scores.contiguous())):
            torch.set_num_threads(threads)
            leaf = given_scores.clone().requires_grad_()
            marginals = STRUCTURE.marginals(leaf, lengths)
            (product,) = torch.autograd.grad((marginals * vector).sum(), leaf)
            drawn = STRUCTURE.sample(scores, lengths, 2, torch.Generator().manual_seed(1))
            results.append((marginals, product, drawn, STRUCTURE.map(given_scores, lengths)))
    finally:
        torch.set_num_threads(before)
    for one, many in zip(*results):
        assert torch.equal(one, many)
    alone = STRUCTURE.marginals(scores[7:8], lengths[7:8])
    assert torch.equal(alone[0], results[0][0][7])


def test_the_gradient_of_a_forbidden_transition_is_zero_whatever_comes_from_above() -> None:
    scores = torch.zeros(1, 3, 2, 2, dtype=torch.float64)
    scores[0, 1, 0, 1] = -torch.inf
    scores.requires_grad_()
    marginals = STRUCTURE.marginals(scores, torch.tensor([3]))
    upstream = torch.randn_like(scores)
    upstream[0, 1, 0, 1] = torch.inf
    (gradient,) = torch.autograd.grad(marginals, scores, upstream)
    assert gradient.isfinite().all() and gradient[0, 1, 0, 1] == 0


def test_empty_batch_and_empty_items() -> None:
    none, lengths = torch.zeros(0, 4, 3, 3), torch.zeros(0, dtype=torch.int64)
    assert STRUCTURE.map(none, lengths).shape == (0, 4, 3, 3)
    assert STRUCTURE.marginals(none, lengths).shape == (0, 4, 3, 3)
    assert STRUCTURE.log_partition(none, lengths).shape == (0,)
    assert STRUCTURE.sample(none, lengths, 2).shape == (2, 0, 4, 3, 3)
    for room in (0, 2):
        nothing, lengths = torch.full((1, room, 3, 3), torch.nan), torch.tensor([0])
        assert STRUCTURE.log_partition(nothing, lengths).item() == 0.0
        assert not STRUCTURE.map(nothing, lengths).any()
        assert not STRUCTURE.marginals(nothing, lengths).any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [(0, 0, 1), (2, 1, 0)])
def test_scores_that_are_no_numbers_are_named(value: float, place: tuple[int, ...]) -> None:
    scores = torch.zeros(3, 3, 2, 2)
    scores[(1, *place)] = value
    for operation in ("map", "marginals", "log_partition", "sample"):
        with pytest.raises(InvalidScores, match=r"\[1\]"):
            getattr(STRUCTURE, operation)(scores, torch.tensor([3, 3, 3]))
    with pytest.raises(InvalidScores, match=r"\[1\]"):
        STRUCTURE.top_k(scores, torch.tensor([3, 3, 3]), 2)


def test_wrong_input_is_refused() -> None:
    scores, lengths = torch.zeros(2, 4, 3, 3), torch.tensor([4, 3])
    for bad, match in (
        ((scores.int(), lengths), "float"),
        ((scores, torch.tensor([3, 5])), "room for 0 to 4"),
        ((scores, torch.tensor([-1, 3])), "between -1"),
        ((scores, torch.tensor([3])), "shape"),
        ((scores, torch.tensor([[3], [3]])), r"\(B,\)"),
        ((scores[:, :, :2], lengths), "previous tag"),
        ((scores[..., :0, :0], lengths), "at least one tag"),
        ((scores[0], lengths), "shape"),
        ((scores, lengths.float()), "int64"),
    ):
        with pytest.raises(InvalidScores, match=match):
            STRUCTURE.map(*bad)
    with pytest.raises(InvalidScores, match="k is 0"):
        STRUCTURE.top_k(scores, lengths, 0)


def test_extreme_but_finite_scores() -> None:
    lengths = torch.tensor([3])
    for value in (1e30, -1e30, 1e-30, 1e-310):
        scores = torch.full((1, 3, 4, 4), value, dtype=torch.float64)
        assert STRUCTURE.map(scores, lengths).sum() == 3
        torch.testing.assert_close(
            STRUCTURE.marginals(scores, lengths).sum((2, 3)), torch.ones(1, 3).double()
        )


def test_codes_go_both_ways() -> None:
    tags = np.array([2, 0, 1], dtype="int32")
    z = STRUCTURE.encode(tags, 3, num_tags=4)
    assert z.shape == (3, 4, 4) and z.sum() == 3 and z[0, 0, 2] == z[1, 2, 0] == z[2, 0, 1] == 1
    assert STRUCTURE.decode(z, 3).tolist() == tags.tolist()
    assert STRUCTURE.encode(np.array([], dtype="int32"), 0, num_tags=2).shape == (0, 2, 2)
    with pytest.raises(InvalidScores, match="num_tags"):
        STRUCTURE.encode(tags, 3)
    with pytest.raises(InvalidScores, match="from 0 to 1"):
        STRUCTURE.encode(tags, 3, num_tags=2)


def test_operators_follow_the_rules_of_torch() -> None:
    scores = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    arguments = (scores, torch.tensor([3, 2]), "spacy_latent.kernels.linear_chain:FAMILY", [])
    library.opcheck(operators.log_partition, arguments)
    library.opcheck(operators._marginals, (*arguments, True))
    library.opcheck(operators._best, (scores.detach(), *arguments[1:]))
