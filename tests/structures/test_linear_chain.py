from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_latent.errors import InvalidScores
from spacy_latent.structures.k_best import lawler
from spacy_latent.structures.linear_chain import LinearChain

STRUCTURE = LinearChain()


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_gradients(scale: float) -> None:
    torch.manual_seed(1)
    lengths = torch.tensor([4, 1, 0])
    scores = torch.randn(3, 4, 3, 3, dtype=torch.float64)
    # The best first tags have bad successors. Sums of weights underflow, so the kernel uses
    # logarithms.
    scores[:, 0, 0, 0] += scale
    scores[:, 1, 0] -= 4 * scale
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda s: STRUCTURE.marginals(s, lengths), scores)
    assert torch.autograd.gradgradcheck(lambda s: STRUCTURE.log_partition(s, lengths), scores)


def reference(scores: np.ndarray) -> tuple[float, np.ndarray]:
    """Return log Z and marginals of one item ``(n, K, K)``, from logarithms in long double
    precision.
    """
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


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 4), st.integers(1, 6))
def test_top_k_is_that_of_the_general_algorithm(seed: int, n: int, num_tags: int, k: int) -> None:
    generator = np.random.default_rng(seed)
    # Small integers give many ties.
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


def test_ties_are_broken_alike() -> None:
    zeros, lengths = torch.zeros(1, 5, 4, 4), torch.tensor([5])
    best = STRUCTURE.map(zeros, lengths)
    assert STRUCTURE.decode(best[0].numpy(), 5).tolist() == [0] * 5
    assert torch.equal(STRUCTURE.top_k(zeros, lengths, 1).z[0], best)


def test_the_gradient_of_a_forbidden_transition_is_zero_whatever_comes_from_above() -> None:
    scores = torch.zeros(1, 3, 2, 2, dtype=torch.float64)
    scores[0, 1, 0, 1] = -torch.inf
    scores.requires_grad_()
    marginals = STRUCTURE.marginals(scores, torch.tensor([3]))
    upstream = torch.randn_like(scores)
    upstream[0, 1, 0, 1] = torch.inf
    (gradient,) = torch.autograd.grad(marginals, scores, upstream)
    assert gradient.isfinite().all() and gradient[0, 1, 0, 1] == 0


def test_wrong_input_is_refused() -> None:
    scores, lengths = torch.zeros(2, 4, 3, 3), torch.tensor([4, 3])
    for bad, match in (
        ((scores.int(), lengths), "float"),
        ((scores, torch.tensor([3, 5])), "0 to 4"),
        ((scores, torch.tensor([-1, 3])), "-1"),
        ((scores, torch.tensor([3])), "shape"),
        ((scores, torch.tensor([[3], [3]])), r"\(B,\)"),
        ((scores[:, :, :2], lengths), "previous tag"),
        ((scores[..., :0, :0], lengths), "tag"),
        ((scores[0], lengths), "shape"),
        ((scores, lengths.float()), "int64"),
    ):
        with pytest.raises(InvalidScores, match=match):
            STRUCTURE.map(*bad)
    with pytest.raises(InvalidScores, match=r"\bk\b"):
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
