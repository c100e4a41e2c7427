"""The CRF loss of a batch of tag sequences, against enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, LatentError
from spacy_latent.models.crf_loss import Loss, crf_loss, log_partitions
from spacy_latent.models.crf_tagger import TagScores
from spacy_latent.models.tag_evidence import Run, TagEvidence
from spacy_latent.models.tag_groups import bound_chain
from spacy_latent.models.tag_losses import LOSSES
from spacy_latent.structures.tag_sequence import TagSequence, allowed_transitions, scheme_tags
from tests.enumeration import tag_sequences

TAGS = scheme_tags(["A", "B"], "biluo")
K = len(TAGS)
O, B_A, I_A, L_A, U_A = range(5)


def every_sequence(chain: TagSequence, n: int) -> Tensor:
    """Return all sequences of ``n`` tags that the chain allows."""
    assert chain.bound is not None
    transitions, start, end = chain.bound
    rows = [
        tags
        for tags in tag_sequences(n, len(start))
        if start[tags[0]] > -math.inf
        and end[tags[-1]] > -math.inf
        and all(transitions[a, b] > -math.inf for a, b in zip(tags, tags[1:]))
    ]
    return torch.tensor(rows)


def totals_of(chain: TagSequence, emissions: Tensor) -> tuple[Tensor, Tensor]:
    """Return all sequences and their scores, which are differentiable."""
    assert chain.bound is not None
    transitions, start, end = chain.bound
    every, n = every_sequence(chain, len(emissions)), len(emissions)
    totals = start[every[:, 0]] + end[every[:, -1]]
    for i in range(n):
        totals = totals + emissions[i, every[:, i]]
        if i:
            totals = totals + transitions[every[:, i - 1], every[:, i]]
    return every, totals


def random_scores(n: int, seed: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    emissions = torch.randn(n, K, generator=generator, dtype=torch.float64) * scale
    return emissions, torch.randn(K + 2, K, generator=generator, dtype=torch.float64) * scale


def has_run(every: Tensor, run: Run) -> Tensor:
    there = every[:, run.start : run.start + len(run.tags)] == torch.tensor(run.tags)
    return there.all(1)


def found_loss(
    emissions: Tensor, transitions: Tensor, allowed: list[np.ndarray], rejected: list[list[Run]]
) -> Loss:
    chain = bound_chain(transitions.detach(), TAGS)
    evidence = [TagEvidence.of_mask(mask, runs) for mask, runs in zip(allowed, rejected)]
    return crf_loss(chain, emissions.detach().numpy(), evidence)


# ---------------------------------------------------------------- sums over a batch


# Sums underflow at the scale 1000, and are computed again with logarithms.
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("scheme", ["biluo", "iob2", "all"])
def test_sums_over_a_batch_are_those_of_each_item(scheme: str, scale: float) -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([9, 0, 1, 2, 30])
    tags = scheme_tags(["A", "B", "C"], "biluo" if scheme == "all" else scheme)  # type: ignore[arg-type]
    count = len(tags)
    if scheme == "all":
        allowed = torch.zeros(count, count), torch.zeros(count), torch.zeros(count)
    else:
        allowed = allowed_transitions(tags, scheme)  # type: ignore[arg-type]
    bound = [
        (torch.randn(part.shape, dtype=torch.float64) * scale).requires_grad_() for part in allowed
    ]
    chain = TagSequence().bind(*(a + b for a, b in zip(bound, allowed)))
    rows = (torch.randn(int(lengths.sum()), count, dtype=torch.float64) * scale).requires_grad_()
    padded = torch.nn.utils.rnn.pad_sequence(list(rows.split(lengths.tolist())), batch_first=True)
    expected = chain.log_partition(padded, lengths)
    weights = torch.tensor([1.0, 2.0, -0.5, 0.0, 3.0], dtype=torch.float64)
    sums = chain.batch_sums(rows, lengths)
    np.testing.assert_allclose(sums.log_partition, expected.detach().numpy(), rtol=1e-11)
    emissions, shared = sums.uses(weights.numpy())
    gradients = torch.autograd.grad((weights * expected).sum(), (rows, *bound))
    np.testing.assert_allclose(emissions, gradients[0].numpy(), atol=1e-9)
    for found, gradient in zip((shared[:count], shared[count], shared[count + 1]), gradients[1:]):
        np.testing.assert_allclose(found, gradient.numpy(), atol=1e-8)


def test_items_without_a_sequence_have_no_gradient_and_wrong_scores_are_named() -> None:
    chain = TagSequence().bind(*allowed_transitions(["O", "B-X", "I-X", "L-X"], "biluo"))
    lengths, rows = torch.tensor([2, 1, 2]), torch.zeros(5, 4)
    rows[2, 0] = -torch.inf
    sums = chain.batch_sums(rows, lengths)
    assert np.isneginf(sums.log_partition).tolist() == [False, True, False]
    emissions, shared = sums.uses(np.ones(3))
    assert not emissions[2].any() and np.isfinite(shared).all() and shared[4].sum() == 2.0
    rows[4, 1] = torch.nan
    with pytest.raises(InvalidScores, match=r"\[2\]"):
        chain.batch_sums(rows, lengths)
    with pytest.raises(InvalidScores, match="add up"):
        chain.batch_sums(torch.zeros(4, 4), lengths)
    with pytest.raises(InvalidScores, match="bound"):
        chain.batch_sums(torch.zeros(5, 3), lengths)


def test_of_scores_that_all_pairs_share_the_wrong_ones_are_found() -> None:
    chain = TagSequence().bind(torch.full((2, 2), torch.nan), torch.zeros(2), torch.zeros(2))
    with pytest.raises(InvalidScores):
        chain.batch_sums(torch.zeros(3, 2), torch.tensor([3]))


# ---------------------------------------------------------------- wrong spans


def partial(n: int) -> np.ndarray:
    """Return a mask of allowed tags: the second token is O, and the third is not B-A."""
    allowed = np.ones((n, K), dtype=bool)
    allowed[1, 1:] = False
    allowed[2, B_A] = False
    return allowed


@pytest.mark.parametrize("run", [Run(1, (U_A,)), Run(0, (B_A, I_A, L_A)), Run(2, (B_A, L_A))])
@pytest.mark.parametrize("known", [False, True])
def test_a_wrong_run_adds_the_logarithm_of_its_complement(run: Run, known: bool) -> None:
    n = 4
    for seed in range(3):
        emissions, transitions = (part.requires_grad_() for part in random_scores(n, seed))
        allowed = partial(n) if known else np.ones((n, K), dtype=bool)
        every, totals = totals_of(bound_chain(transitions, TAGS), emissions)
        agrees = torch.from_numpy(allowed)[torch.arange(n), every].all(1)
        p = totals.softmax(0)[has_run(every, run)].sum()
        expected = totals.logsumexp(0) - totals[agrees].logsumexp(0) - torch.log1p(-p)
        found = found_loss(emissions, transitions, [allowed], [[run]])
        assert found.losses[0] == pytest.approx(expected.item())
        gradients = torch.autograd.grad(expected, (emissions, transitions))
        np.testing.assert_allclose(found.emissions, gradients[0].numpy(), atol=1e-10)
        np.testing.assert_allclose(found.transitions, gradients[1].numpy(), atol=1e-10)


@pytest.mark.parametrize("sure", [40.0, 300.0, -40.0, -300.0])
def test_it_holds_where_the_run_is_nearly_certain_or_impossible(sure: float) -> None:
    """The loss keeps its precision if the probability P of the run is near 1.

    A subtraction 1 − P would lose all digits.
    """
    n, run = 3, Run(0, (B_A, L_A))
    emissions, transitions = random_scores(n, 7)
    emissions[0, B_A] += sure
    emissions.requires_grad_()
    every, totals = totals_of(bound_chain(transitions, TAGS), emissions)
    with_it = has_run(every, run)
    expected = torch.nn.functional.softplus(
        totals[with_it].logsumexp(0) - totals[~with_it].logsumexp(0)
    )
    found = found_loss(emissions, transitions, [np.ones((n, K), dtype=bool)], [[run]])
    assert found.losses[0] == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    (gradient,) = torch.autograd.grad(expected, emissions)
    np.testing.assert_allclose(found.emissions, gradient.numpy(), rtol=1e-7, atol=1e-12)


def test_several_wrong_runs_and_docs_add_up() -> None:
    sizes, runs = [3, 0, 2, 4], [Run(0, (U_A,)), Run(1, (B_A, L_A))]
    emissions, transitions = random_scores(sum(sizes), 2)
    allowed = [np.ones((size, K), dtype=bool) for size in sizes]
    allowed[2][:] = [tag == O for tag in range(K)]
    rejected = [runs, [], [], runs[:1]]
    together = found_loss(emissions, transitions, allowed, rejected)
    assert together.losses[1] == 0.0 and (together.losses[[0, 2, 3]] > 0).all()
    total, begin = np.zeros_like(together.transitions), 0
    for d, size in enumerate(sizes):
        alone = found_loss(
            emissions[begin : begin + size], transitions, [allowed[d]], [rejected[d]]
        )
        assert alone.losses[0] == pytest.approx(together.losses[d])
        np.testing.assert_allclose(
            alone.emissions, together.emissions[begin : begin + size], atol=1e-12
        )
        total, begin = total + alone.transitions, begin + size
    np.testing.assert_allclose(total, together.transitions, atol=1e-12)
    one, other = (
        found_loss(emissions[:3], transitions, allowed[:1], [[run]]).losses[0] for run in runs
    )
    assert together.losses[0] == pytest.approx(one + other)


@pytest.mark.parametrize("rows", [1, 5, 9])
def test_wrong_runs_that_are_summed_in_parts_add_up(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums do not depend on the number of runs in a part."""
    runs = [Run(0, (B_A, I_A, L_A)), Run(1, (U_A,)), Run(2, (U_A,)), Run(0, (B_A, L_A))]
    emissions, transitions = random_scores(6, 3)
    free = [np.ones((4, K), dtype=bool), np.ones((2, K), dtype=bool)]
    given = emissions, transitions, free, [runs, runs[3:]]
    whole = found_loss(*given)
    monkeypatch.setattr("spacy_latent.models.crf_loss.ROWS", rows)
    parts = found_loss(*given)
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-12)
    np.testing.assert_allclose(parts.emissions, whole.emissions, atol=1e-13)
    np.testing.assert_allclose(parts.transitions, whole.transitions, atol=1e-13)


def test_other_losses_refuse_wrong_runs() -> None:
    emissions, transitions = random_scores(2, 0)
    found = TagScores(emissions.float().numpy(), transitions.float().numpy())  # type: ignore[arg-type]
    free = np.ones((2, K), dtype=bool)
    with pytest.raises(LatentError, match=r"'perceptron'.*'crf'"):
        wrong = [TagEvidence.of_mask(free, [Run(0, (U_A,))])]
        LOSSES["perceptron"].loss_and_gradient(found, TAGS, wrong)
    losses, _, _ = LOSSES["perceptron"].loss_and_gradient(found, TAGS, [TagEvidence.of_mask(free)])
    assert losses == [0.0]


def test_where_nothing_but_a_wrong_run_is_possible_the_doc_is_left_out() -> None:
    chain = TagSequence().bind(torch.zeros(1, 1), torch.zeros(1), torch.zeros(1))
    evidence = [TagEvidence.of_mask(np.ones((2, 1), dtype=bool), [Run(0, (0,))])]
    found = crf_loss(chain, np.zeros((2, 1)), evidence)
    assert found.left_out == [0] and found.losses[0] == 0.0 and not found.emissions.any()


def test_without_docs_there_is_no_loss() -> None:
    _, transitions = random_scores(0, 0)
    found = found_loss(torch.zeros(0, K, dtype=torch.float64), transitions, [], [])
    assert len(found.losses) == 0 and not found.transitions.any()


def test_half_precision_is_summed_in_more() -> None:
    rows = torch.tensor([[1.0, 2.0], [0.5, -1.0]])
    lengths = torch.tensor([2])
    exact = TagSequence().batch_sums(rows, lengths).log_partition
    half = TagSequence().batch_sums(rows.to(torch.bfloat16), lengths).log_partition
    np.testing.assert_allclose(half, exact, rtol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_log_partitions_over_allowed_pairs_are_those_of_the_chain(scale: float) -> None:
    lengths = torch.tensor([3, 0, 5, 1])
    emissions, transitions = random_scores(20, 0, scale)
    scores = emissions.view(4, 5, K).masked_fill(torch.rand(4, 5, K) < 0.2, -math.inf)
    scores[..., 0] = emissions.view(4, 5, K)[..., 0]
    weights = torch.tensor([1.0, 2.0, -0.5, 3.0], dtype=torch.float64)
    expected, found = [], []
    for each, results in (
        (log_partitions, found),
        (lambda chain, *batch: chain.log_partition(*batch), expected),
    ):
        given = scores.clone().requires_grad_(), transitions.clone().requires_grad_()
        values = each(bound_chain(given[1], TAGS), given[0], lengths)
        results += [values, *torch.autograd.grad((values * weights).sum(), given)]
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other)


def test_log_partitions_of_nothing_feasible_are_refused() -> None:
    scores = torch.zeros(2, 2, K)
    scores[1, 1] = -math.inf
    chain = bound_chain(torch.zeros(K + 2, K), TAGS)
    with pytest.raises(InfeasibleError) as error:
        log_partitions(chain, scores, torch.tensor([2, 2]))
    assert error.value.items == [1]
