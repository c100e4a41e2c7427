"""The CRF loss with evidence about tags, against enumeration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.models import entity_counts
from spacy_latent.models.crf_loss import crf_loss
from spacy_latent.models.entity_counts import jointly_counted
from spacy_latent.models.tag_evidence import Contradiction, EntityCount, Run, TagEvidence
from spacy_latent.models.tag_groups import bound_chain
from spacy_latent.models.tag_losses import LOSSES
from spacy_latent.structures.tag_sequence import scheme_tags
from tests.models.test_crf_loss import TAGS, U_A, K, every_sequence, has_run, random_scores

ENDS = {"A": (3, 4), "B": (7, 8)}


@lru_cache
def sequences(n: int) -> Tensor:
    """Return all valid sequences of ``n`` tags."""
    return every_sequence(bound_chain(torch.zeros(K + 2, K), TAGS), n)


def totals_of(transitions: Tensor, emissions: Tensor) -> tuple[Tensor, Tensor]:
    """Return all sequences and their scores, which are differentiable."""
    every = sequences(len(emissions))
    totals = transitions[K][every[:, 0]] + transitions[K + 1][every[:, -1]]
    totals = totals + transitions[every[:, :-1], every[:, 1:]].sum(1)
    return every, totals + emissions[torch.arange(len(emissions)), every].sum(1)


def log_weight(every: Tensor, evidence: TagEvidence) -> Tensor:
    """Return the logarithm of the weight that the evidence gives to each sequence."""
    potentials = torch.from_numpy(evidence.potentials)
    total = potentials[torch.arange(every.shape[1]), every].sum(1)
    for one in evidence.counts:
        found = torch.isin(every, torch.tensor(one.ends)).sum(1)
        right = (found >= one.least) == one.holds
        likely = torch.tensor([one.wrong, 1 - one.wrong], dtype=torch.float64)
        total = total + likely[right.long()].log()
    return total


def expected_loss(emissions: Tensor, transitions: Tensor, evidence: TagEvidence) -> Tensor:
    every, totals = totals_of(transitions, emissions)
    loss = totals.logsumexp(0) - (totals + log_weight(every, evidence)).logsumexp(0)
    for run in evidence.rejected:
        loss = loss + totals.logsumexp(0) - totals[~has_run(every, run)].logsumexp(0)
    return loss


def masked(n: int, gold: dict[int, int]) -> np.ndarray:
    found = np.zeros((n, K))
    for token, tag in gold.items():
        found[token] = np.where(np.arange(K) == tag, 0.0, -np.inf)
    return found


def check(parts: Sequence[tuple[int, TagEvidence]], seed: int, scale: float = 1.0) -> None:
    """Check losses, gradients and posteriors of one batch, each against enumeration.

    Args:
        parts: Number of tokens and evidence of each doc.
    """
    sizes = [n for n, _ in parts]
    emissions, transitions = random_scores(sum(sizes), seed, scale)
    chain = bound_chain(transitions, TAGS)
    found = crf_loss(chain, emissions.numpy(), [evidence for _, evidence in parts])
    assert not found.left_out and not found.contradictory
    shared, begin = torch.zeros_like(transitions), 0
    for d, (n, evidence) in enumerate(parts):
        rows = slice(begin, begin + n)
        begin += n
        if not n:
            weights = [one.log_weights(np.array(0)) for one in evidence.counts]
            assert found.losses[d] == pytest.approx(-float(np.sum(weights)))
            continue
        own, given = emissions[rows].clone().requires_grad_(), transitions.clone().requires_grad_()
        expected = expected_loss(own, given, evidence)
        assert found.losses[d] == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)
        gradients = torch.autograd.grad(expected, (own, given))
        np.testing.assert_allclose(found.emissions[rows], gradients[0].numpy(), atol=1e-9)
        shared += gradients[1]
        if evidence.potentials.any():
            every, totals = totals_of(transitions, emissions[rows])
            weights = (totals + log_weight(every, evidence)).softmax(0)
            posterior = torch.zeros(n, K, dtype=torch.float64)
            for i in range(n):
                posterior[i].index_add_(0, every[:, i], weights)
            np.testing.assert_allclose(found.posteriors[rows], posterior.numpy(), atol=1e-9)
    np.testing.assert_allclose(found.transitions, shared.numpy(), atol=1e-9)


def some_potentials(n: int, kind: str) -> np.ndarray:
    if kind == "gold":
        return masked(n, {0: 4}) if n else np.zeros((0, K))
    if kind == "label set":
        # The text is annotated for A and has none. It is not annotated for B.
        found = np.zeros((n, K))
        found[:, 1:5] = -np.inf
        return found
    if kind == "source":
        return np.log(np.random.default_rng(n).uniform(size=(n, K)))
    return np.zeros((n, K))


COUNTS = {
    "nothing": (),
    "at least one": (EntityCount(ENDS["B"]),),
    "one, perhaps": (EntityCount(ENDS["B"], 1, True, 0.1),),
    "none, perhaps": (EntityCount(ENDS["B"], 1, False, 0.05),),
    "fewer than two": (EntityCount(ENDS["B"], 2, False),),
    "two": (EntityCount(ENDS["B"], 2, True, 0.01),),
    "both": (EntityCount(ENDS["A"], 1, True, 0.2), EntityCount(ENDS["B"], 2, False, 0.3)),
}
RUNS = {"none": (), "one": (Run(0, (U_A,)),), "two": (Run(0, (5,)), Run(0, (8,)))}


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("kind", ["nothing", "gold", "label set", "source"])
def test_every_evidence_combined_with_every_other(kind: str, scale: float) -> None:
    parts = []
    for n, counts, runs in itertools.product((1, 2, 4), COUNTS, RUNS):
        evidence = TagEvidence(some_potentials(n, kind), COUNTS[counts], RUNS[runs])
        if (log_weight(sequences(n), evidence) > -math.inf).any():
            parts.append((n, evidence))
    assert len(parts) > 40
    # The enumeration is slow, so only one doc has five tokens.
    parts.append((5, TagEvidence(some_potentials(5, kind), COUNTS["both"], RUNS["two"])))
    parts.append((0, TagEvidence(np.zeros((0, K)), COUNTS["none, perhaps"])))
    parts.append((0, TagEvidence(np.zeros((0, K)))))
    check(parts, seed=len(kind), scale=scale)


def test_sequences_that_are_known_have_a_known_number_of_entities() -> None:
    whole = masked(3, {0: U_A, 1: 0, 2: U_A})
    for least, wrong in ((2, 0.0), (3, 0.25)):
        check([(3, TagEvidence(whole, (EntityCount(ENDS["A"], least, True, wrong),)))], 3)


@pytest.mark.parametrize("height", [-30.0, -300.0, 30.0, 300.0])
def test_no_digit_is_lost_where_entities_are_nearly_certain_or_impossible(height: float) -> None:
    emissions, transitions = random_scores(4, 1)
    emissions[:, [5, 8]] += height
    every, totals = totals_of(transitions, emissions)
    for counts in (COUNTS["at least one"], (EntityCount(ENDS["B"], 1, False),)):
        evidence = TagEvidence(np.zeros((4, K)), counts)
        there = torch.isin(every, torch.tensor(ENDS["B"])).any(1)
        agrees = there if counts[0].holds else ~there
        gap = totals[~agrees].logsumexp(0) - totals[agrees].logsumexp(0)
        expected = torch.nn.functional.softplus(gap)
        found = crf_loss(bound_chain(transitions, TAGS), emissions.numpy(), [evidence])
        assert found.losses[0] == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
        assert np.isfinite(found.emissions).all()


def test_counts_that_are_too_many_are_summed_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of counts are treated as independent of each other, given the tags."""
    monkeypatch.setattr(entity_counts, "MOST", 2)
    counts = (EntityCount(ENDS["A"], 1, True, 0.2), EntityCount(ENDS["B"], 1))
    assert [len(group) for group in jointly_counted(counts)] == [1, 1]
    emissions, transitions = (part.requires_grad_() for part in random_scores(3, 4))
    for potentials in (np.zeros((3, K)), masked(3, {1: 0})):
        every, totals = totals_of(transitions, emissions)
        given = totals + log_weight(every, TagEvidence(potentials))
        expected = totals.logsumexp(0) - given.logsumexp(0)
        for one in counts:
            own = totals + log_weight(every, TagEvidence(potentials, (one,)))
            expected = expected + given.logsumexp(0) - own.logsumexp(0)
        chain = bound_chain(transitions.detach(), TAGS)
        evidence = TagEvidence(potentials, counts)
        found = crf_loss(chain, emissions.detach().numpy(), [evidence])
        assert found.losses[0] == pytest.approx(expected.item())
        gradients = torch.autograd.grad(expected, (emissions, transitions))
        np.testing.assert_allclose(found.emissions, gradients[0].numpy(), atol=1e-9)
        np.testing.assert_allclose(found.transitions, gradients[1].numpy(), atol=1e-9)


def test_up_to_four_labels_are_counted_together() -> None:
    counts = [EntityCount((2 * i, 2 * i + 1)) for i in range(6)]
    assert [len(group) for group in jointly_counted(counts)] == [4, 2]
    assert [len(group) for group in jointly_counted([EntityCount((1,), 40)])] == [1]


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize("n", [1, 4])
def test_four_labels_that_are_counted_together(n: int, scale: float) -> None:
    tags = scheme_tags(["A", "B", "C", "D"], "biluo")
    generator = torch.Generator().manual_seed(n)
    emissions, transitions = (
        (
            scale * torch.randn(rows, len(tags), generator=generator, dtype=torch.float64)
        ).requires_grad_()
        for rows in (n, len(tags) + 2)
    )
    counts = tuple(
        EntityCount((4 * label + 3, 4 * label + 4), 1, holds, wrong)
        for label, (holds, wrong) in enumerate(
            [(True, 0.1), (True, 0.0), (False, 0.2), (True, 0.3)]
        )
    )
    assert jointly_counted(counts) == [counts]
    chain = bound_chain(transitions.detach(), tags)
    every = every_sequence(chain, n)
    totals = transitions[-2][every[:, 0]] + transitions[-1][every[:, -1]]
    totals = totals + transitions[every[:, :-1], every[:, 1:]].sum(1)
    totals = totals + emissions[torch.arange(n), every].sum(1)
    evidence = TagEvidence(np.zeros((n, len(tags))), counts)
    loss = totals.logsumexp(0) - (totals + log_weight(every, evidence)).logsumexp(0)
    gradients = torch.autograd.grad(loss, (emissions, transitions))
    found = crf_loss(chain, emissions.detach().numpy(), [evidence])
    assert found.losses[0] == pytest.approx(loss.item(), rel=1e-10)
    np.testing.assert_allclose(found.emissions, gradients[0].numpy(), atol=1e-10)
    np.testing.assert_allclose(found.transitions, gradients[1].numpy(), atol=1e-10)


def test_counts_that_nothing_agrees_with_are_told_from_tags_that_nothing_agrees_with() -> None:
    impossible = masked(2, {0: 1, 1: 1})
    nothing = TagEvidence(np.full((2, K), -np.inf), (EntityCount(ENDS["A"]),))
    found = crf_loss(bound_chain(random_scores(2, 0)[1], TAGS), np.zeros((2, K)), [nothing])
    assert found.left_out == [0] and not found.contradictory
    parts = [
        TagEvidence(masked(2, {0: 0, 1: 0}), (EntityCount(ENDS["A"]),)),
        TagEvidence(impossible, (EntityCount(ENDS["A"]),)),
        TagEvidence(masked(2, {0: 0}), (EntityCount(ENDS["A"], 2),)),
        TagEvidence(impossible),
        TagEvidence(np.zeros((2, K)), (EntityCount(ENDS["A"], 3),)),
        TagEvidence(np.zeros((0, K)), (EntityCount(ENDS["A"]),)),
    ]
    emissions, transitions = random_scores(10, 0)
    found = crf_loss(bound_chain(transitions, TAGS), emissions.numpy(), parts)
    assert sorted(found.contradictory) == [0, 2, 4, 5] and sorted(found.left_out) == [1, 3]
    assert np.isfinite(found.losses).all() and np.isfinite(found.emissions).all()
    from spacy_latent.models.crf_tagger import TagScores

    scores = TagScores(emissions.numpy(), transitions.numpy())  # type: ignore[arg-type]
    with pytest.raises(Contradiction) as error:
        LOSSES["crf"].loss_and_gradient(scores, TAGS, parts)
    assert sorted(error.value.docs) == [0, 2, 4, 5]


def test_many_labels_are_as_few() -> None:
    """The probabilities with and without an entity of a label sum to one, with twelve labels.

    The second probability comes from a sum that forbids the tags of the label.
    """
    tags = scheme_tags([f"L{i}" for i in range(12)], "biluo")
    generator = torch.Generator().manual_seed(0)
    transitions = torch.randn(len(tags) + 2, len(tags), generator=generator, dtype=torch.float64)
    emissions = torch.randn(6, len(tags), generator=generator, dtype=torch.float64)
    ends = (tags.index("L-L3"), tags.index("U-L3"))
    chain, free = bound_chain(transitions, tags), np.zeros((6, len(tags)))
    without = free.copy()
    without[:, [tag.endswith("-L3") for tag in tags]] = -np.inf
    none, some = (
        crf_loss(chain, emissions.numpy(), [evidence]).losses[0]
        for evidence in (TagEvidence(without), TagEvidence(free, (EntityCount(ends),)))
    )
    assert math.exp(-none) + math.exp(-some) == pytest.approx(1.0)


def many_labels(n: int) -> tuple[list[str], Tensor, Tensor]:
    """Return the tags of 18 labels, emissions for ``n`` tokens, and transitions."""
    tags = scheme_tags([f"L{i}" for i in range(18)], "biluo")
    generator = torch.Generator().manual_seed(n)
    emissions = torch.randn(n, len(tags), generator=generator, dtype=torch.float64)
    transitions = torch.randn(len(tags) + 2, len(tags), generator=generator, dtype=torch.float64)
    return tags, emissions, transitions


def flags_of(n: int, tags: Sequence[str], holds: Sequence[bool], wrong: float = 0.0) -> TagEvidence:
    """Return evidence of flags of the last labels, beginning with the last one."""
    named = [tags.index(f"L-L{17 - place}") for place in range(len(holds))]
    counts = tuple(EntityCount((at, at + 1), 1, said, wrong) for at, said in zip(named, holds))
    return TagEvidence(np.zeros((n, len(tags))), counts)


@pytest.mark.parametrize("n", [6, 70])
def test_probabilities_of_all_flags_of_four_labels_sum_to_one(n: int) -> None:
    tags, emissions, transitions = many_labels(n)
    emissions[:, 0] += 4.0
    answers = itertools.product((True, False), repeat=4)
    evidence = [flags_of(n, tags, holds) for holds in answers]
    chain = bound_chain(transitions, tags)
    found = crf_loss(chain, emissions.repeat(16, 1).numpy(), evidence)
    assert np.exp(-found.losses).sum() == pytest.approx(1.0, rel=1e-12)
    without = np.zeros((n, len(tags)))
    without[:, tags.index("B-L14") :] = -np.inf
    none = crf_loss(chain, emissions.numpy(), [TagEvidence(without)])
    assert found.losses[-1] == pytest.approx(none.losses[0], rel=1e-11)
    np.testing.assert_allclose(found.emissions[-n:], none.emissions, atol=1e-12)


def test_gradients_of_flags_of_many_labels() -> None:
    """Gradients equal finite differences with six flags in two groups, and known tags."""
    tags, emissions, transitions = many_labels(12)
    evidence = flags_of(12, tags, (True, True, False, True, True, True), 0.01)
    evidence.potentials[5, 1:] = -np.inf
    assert len(jointly_counted(evidence.counts)) == 2

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, emissions: Tensor, transitions: Tensor) -> Tensor:
            found = crf_loss(bound_chain(transitions, tags), emissions.numpy(), [evidence])
            ctx.save_for_backward(
                torch.from_numpy(found.emissions), torch.from_numpy(found.transitions)
            )
            return torch.tensor(found.losses[0])

        @staticmethod
        def backward(ctx, slope: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            of_emissions, of_transitions = ctx.saved_tensors
            return slope * of_emissions, slope * of_transitions

    given = emissions.requires_grad_(), transitions.requires_grad_()
    assert torch.autograd.gradcheck(Loss.apply, given, fast_mode=True)
