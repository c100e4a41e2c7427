"""Sums over tags and counters, against a chain with a tag for each pair of a tag and a layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.kernels.chains.counted_tags import CountedSums, Counters, sum_with_counters
from spacy_latent.kernels.core import pool
from spacy_latent.structures.tag_sequence import TagSequence, allowed_transitions, scheme_tags

LENGTHS = (1, 2, 7, 40)
# Three kinds of items: counters up to 1 and up to 2, one counter up to 19, and no counter.
COUNTERS = Counters(
    sizes=np.array([6, 20, 1]),
    moves=np.array([[-1, -1, -1, 0, 0, -1, -1, 1, 1], [-1, -1, 2, *[-1] * 6], [-1] * 9]),
    targets=np.array(
        [[3, 4, 5, 3, 4, 5, *[0] * 14], [1, 2, 2, 4, 5, 5, *[0] * 14], [*range(1, 20), 19]]
    ),
    weights=np.random.default_rng(3).uniform(size=(3, 20)),
)
COUNTERS.weights[0, [0, 4]] = 0.0
COUNTERS.weights[0, 6:] = 0.0
COUNTERS.weights[2, 1:] = 0.0
K = COUNTERS.moves.shape[1]


def transitions_of(scheme: str, scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    found = torch.randn(K + 2, K, generator=generator, dtype=torch.float64) * scale
    if scheme == "overlapping":
        # Two tags share some of their next tags, and tag 5 follows no tag.
        found[0, 1] = found[3, 2] = -torch.inf
        found[:K, 5] = -torch.inf
    elif scheme != "all":
        tags = scheme_tags(["A", "B"] if scheme == "biluo" else ["A", "B", "C", "D"], scheme)  # type: ignore[arg-type]
        between, start, end = allowed_transitions(tags, scheme)  # type: ignore[arg-type]
        found += torch.cat([between, start[None], end[None]])
    return found


def expected(emissions: Tensor, transitions: Tensor, kind: int) -> Tensor:
    """Return the log-partition from a chain.

    Its tags are pairs of the layer of the counters after a token, and the tag.
    """
    size, moves = int(COUNTERS.sizes[kind]), COUNTERS.moves[kind]
    inner = torch.full((size, K, size, K), -torch.inf, dtype=torch.float64)
    first = torch.full((size, K), -torch.inf, dtype=torch.float64)
    for tag in range(K):
        after = COUNTERS.targets[moves[tag]] if moves[tag] >= 0 else np.arange(20)
        first[after[0], tag] = transitions[K, tag]
        for layer in range(size):
            inner[layer, :, after[layer], tag] = transitions[:K, tag]
    weights = torch.from_numpy(COUNTERS.weights[kind, :size]).log()[:, None]
    last = weights + transitions[K + 1]
    chain = TagSequence().bind(inner.reshape(size * K, size * K), first.flatten(), last.flatten())
    scores = emissions.repeat(1, size)[None]
    return chain.log_partition(scores, torch.tensor([len(emissions)]))[0]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0])
@pytest.mark.parametrize("scheme", ["biluo", "iob2", "all", "overlapping"])
def test_sums_and_gradients_of_tags_and_counters(
    scheme: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(1)
    emissions = torch.randn(sum(LENGTHS), K, generator=generator, dtype=torch.float64) * scale
    # The last two items never have tag 2. Tag 1 is forbidden at some tokens.
    emissions[sum(LENGTHS[:2]) :, 2] = -torch.inf
    emissions[::5, 1] = -torch.inf
    emissions.requires_grad_()
    transitions = transitions_of(scheme, scale).requires_grad_()
    ends = np.cumsum(LENGTHS)
    items = [(b, kind) for b in range(len(LENGTHS)) for kind in range(len(COUNTERS.sizes))]
    values = [expected(emissions[ends[b] - LENGTHS[b] : ends[b]], transitions, k) for b, k in items]
    there = [bool(torch.isfinite(value)) for value in values]
    assert sum(there) > len(there) / 2
    total = torch.stack([value for value, known in zip(values, there) if known]).sum()
    of_emissions, of_transitions = torch.autograd.grad(total, (emissions, transitions))
    of_transitions = of_transitions.nan_to_num()
    lengths = np.array([LENGTHS[b] for b, _ in items])
    offsets = np.array([ends[b] - LENGTHS[b] for b, _ in items])
    arrays = emissions.detach().numpy(), transitions.detach().numpy()
    found = sum_with_counters(*arrays, offsets, lengths, np.array([k for _, k in items]), COUNTERS)
    assert found.precise.tolist() == there
    np.testing.assert_allclose(
        found.log_partition[found.precise], [v.item() for v, known in zip(values, there) if known]
    )
    summed, begin = np.zeros(emissions.shape), 0
    for offset, n in zip(offsets, lengths):
        summed[offset : offset + n] += found.tags[begin : begin + n]
        begin += n
    np.testing.assert_allclose(summed, of_emissions.numpy(), atol=1e-11)
    np.testing.assert_allclose(found.transitions, of_transitions.numpy(), atol=1e-11)
    monkeypatch.setattr(pool, "RANGE_NANOSECONDS", 1)
    parts = sum_with_counters(*arrays, offsets, lengths, np.array([k for _, k in items]), COUNTERS)
    np.testing.assert_allclose(parts.transitions, found.transitions, atol=1e-12)
    np.testing.assert_array_equal(parts.tags, found.tags)


def three_items(emissions: np.ndarray, transitions: np.ndarray, weights: np.ndarray) -> CountedSums:
    """Sum over three items of two tokens each. The second item has the counter up to 19."""
    counters = Counters(COUNTERS.sizes, COUNTERS.moves, COUNTERS.targets, weights)
    offsets, lengths = np.array([0, 2, 4]), np.array([2, 2, 2])
    return sum_with_counters(
        emissions, transitions, offsets, lengths, np.array([2, 1, 2]), counters
    )


@pytest.mark.parametrize("wrong", [-np.inf, np.nan, np.inf, "underflow"])
def test_an_item_whose_sums_are_not_precise_is_named_and_has_no_gradient(
    wrong: float | str,
) -> None:
    emissions, weights = np.zeros((6, K)), COUNTERS.weights.copy()
    if isinstance(wrong, str):
        # Only very improbable sequences end in the one layer with a weight.
        emissions[2:4, 2] = -1e4
        weights[1] = np.arange(20) == 2
    else:
        emissions[2] = wrong
    found = three_items(emissions, np.zeros((K + 2, K)), weights)
    assert found.precise.tolist() == [True, False, True]
    assert not found.tags[2:4].any() and np.isfinite(found.transitions).all()
    expected = 2 * np.log(K) + np.log(weights[2, 0])
    np.testing.assert_allclose(found.log_partition[[0, 2]], expected)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_with_transitions_that_are_no_scores_nothing_is_precise(wrong: float) -> None:
    transitions = np.zeros((K + 2, K))
    transitions[0, 0] = wrong
    found = three_items(np.zeros((6, K)), transitions, COUNTERS.weights)
    assert not found.precise.any() and not found.transitions.any()
