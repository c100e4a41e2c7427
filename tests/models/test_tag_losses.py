from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.models.crf_tagger import TagScores
from spacy_latent.models.tag_evidence import TagEvidence
from spacy_latent.models.tag_groups import bound_chain
from spacy_latent.models.tag_losses import LOSSES
from spacy_latent.models.tag_rehearsal import rehearsal_gradient
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.smoothed import smoothed_expectation
from tests.enumeration import tag_sequences
from tests.models.scored_tags import Scored

TAGS = ["O", "B-A", "I-A", "L-A", "U-A"]
K = len(TAGS)


def is_valid(tags: tuple[int, ...]) -> bool:
    inside = False
    for tag in tags:
        if inside != (tag in (2, 3)):
            return False
        inside = tag in (1, 2)
    return not inside


def valid_sequences(n: int) -> Tensor:
    return torch.tensor([tags for tags in tag_sequences(n, K) if is_valid(tags)])


def totals(every: Tensor, emissions: Tensor, transitions: Tensor) -> Tensor:
    n = every.shape[1]
    result = sum(emissions[i, every[:, i]] for i in range(n))
    result = result + transitions[K, every[:, 0]] + transitions[K + 1, every[:, -1]]
    return result + sum(transitions[every[:, i - 1], every[:, i]] for i in range(1, n))


def random_scores(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    emissions = torch.randn(n, K, generator=generator, dtype=torch.float64)
    return emissions, torch.randn(K + 2, K, generator=generator, dtype=torch.float64)


def partial(n: int) -> Tensor:
    """Return a mask of allowed tags: the second token is O, and the third is not B-A."""
    allowed = torch.ones(1, n, K, dtype=torch.bool)
    allowed[0, 1] = torch.tensor([True, False, False, False, False])
    allowed[0, 2, 1] = False
    return allowed


def test_partial_annotation_is_summed_over_or_maximised() -> None:
    n = 4
    emissions, transitions = random_scores(n)
    every, allowed = valid_sequences(n), partial(n)
    agrees = torch.stack([allowed[0, range(n), tags].all() for tags in every])
    scores = totals(every, emissions, transitions)
    chain, lengths = bound_chain(transitions, TAGS), torch.tensor([n])
    for kind, value in (("crf", lambda x: x.logsumexp(0)), ("perceptron", lambda x: x.amax(0))):
        found = LOSSES[kind].losses(chain, emissions[None], lengths, allowed)
        torch.testing.assert_close(found[0], value(scores) - value(scores[agrees]))


@pytest.mark.parametrize("kind", LOSSES)
def test_losses_are_never_negative_and_vanish_at_a_margin(kind: str) -> None:
    n, lengths = 5, torch.tensor([5])
    gold = [0, 1, 3, 0, 4]
    allowed = torch.zeros(1, n, K, dtype=torch.bool)
    allowed[0, range(n), gold] = True
    for seed in range(5):
        emissions, transitions = random_scores(n, seed)
        chain = bound_chain(transitions, TAGS)
        assert LOSSES[kind].losses(chain, emissions[None], lengths, allowed) > 0
        sure = emissions + 100.0 * allowed[0]
        assert LOSSES[kind].losses(chain, sure[None], lengths, allowed).abs() < 1e-9
        everything = torch.ones_like(allowed)
        assert LOSSES[kind].losses(chain, emissions[None], lengths, everything).abs() < 1e-9


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("whole", [True, False])
def test_gradients(kind: str, whole: bool) -> None:
    n, lengths = 3, torch.tensor([3])
    allowed = partial(n)
    if whole:
        allowed = torch.zeros(1, n, K, dtype=torch.bool)
        allowed[0, range(n), [1, 2, 3]] = True
    emissions, transitions = (part.requires_grad_() for part in random_scores(n, 3))

    def loss(emissions: Tensor, transitions: Tensor) -> Tensor:
        chain = bound_chain(transitions, TAGS)
        return LOSSES[kind].losses(chain, emissions[None], lengths, allowed)

    assert torch.autograd.gradcheck(loss, (emissions, transitions), eps=1e-7, atol=1e-5)


def found_scores(n: int, seed: int = 0) -> TagScores:
    emissions, transitions = random_scores(n, seed)
    return TagScores(emissions.float().numpy(), transitions.float().numpy())  # type: ignore[arg-type]


def test_the_loss_of_a_batch_is_that_of_its_docs_whatever_their_order() -> None:
    sizes = [3, 0, 30, 4]
    torch.manual_seed(0)
    found = found_scores(sum(sizes))
    offsets = np.cumsum([0, *sizes])
    allowed = []
    for size in sizes:
        mask = np.zeros((size, K), dtype=bool)
        mask[:, 0] = True
        allowed.append(TagEvidence.of_mask(mask))
    together, gradient, left_out = LOSSES["crf"].loss_and_gradient(found, TAGS, allowed)
    assert not left_out and together[1] == 0.0
    total = np.zeros_like(gradient.transitions)
    for d in (3, 0, 2):
        rows = slice(offsets[d], offsets[d + 1])
        alone = TagScores(found.emissions[rows], found.transitions)
        losses, own, _ = LOSSES["crf"].loss_and_gradient(alone, TAGS, [allowed[d]])
        assert losses[0] == pytest.approx(together[d], rel=1e-5)
        np.testing.assert_allclose(own.emissions, gradient.emissions[rows], atol=1e-5)
        total += own.transitions
    np.testing.assert_allclose(total, gradient.transitions, atol=1e-4)


def test_annotation_that_no_sequence_agrees_with_does_not_count() -> None:
    evidence = [TagEvidence.of_mask(np.tile(np.arange(K) == tag, (2, 1))) for tag in (2, 4)]
    losses, gradient, left_out = LOSSES["crf"].loss_and_gradient(found_scores(4), TAGS, evidence)
    assert left_out == [0] and losses[0] == 0.0 and losses[1] > 0
    assert not gradient.emissions[:2].any() and gradient.emissions[2:].any()


@pytest.mark.parametrize("kind", LOSSES)
def test_probabilities_of_runs(kind: str) -> None:
    """The probability of a run equals a sum over all sequences.

    For SparseMAP it is a sum over the sequences of its mixture.
    """
    n, lengths = 4, torch.tensor([4])
    emissions, transitions = random_scores(n, 5)
    chain = bound_chain(transitions, TAGS)
    best = chain.best_tags(emissions[None], lengths)
    found = LOSSES[kind].probabilities(Scored(chain, emissions[None], lengths))
    np.testing.assert_allclose(found.tags.sum(2), 1.0, atol=1e-6)
    every = valid_sequences(n)
    weights = totals(every, emissions, transitions).softmax(0)
    if kind == "sparsemap":
        pairs = chain.chain_scores(emissions[None], lengths)
        solution = LinearChain().sparsemap(pairs, lengths)
        every, weights = solution.atoms[:, 0].amax(2).argmax(-1), solution.weights[:, 0]
    for start in range(n):
        whole = found.of_run(0, start, start + 1)
        assert whole == pytest.approx(found.tags[0, start, best[0, start]])
        for end in range(start + 1, n + 1):
            p = found.of_run(0, start, end)
            assert -1e-9 <= p <= whole + 1e-9
            if kind != "quadratic":
                agrees = (every[:, start:end] == best[0, start:end]).all(1)
                assert p == pytest.approx(float((weights * agrees).sum()), abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_sequences_are_ranked_by_the_walk_that_quadratic_smoothing_learns(seed: int) -> None:
    n, lengths = 4, torch.tensor([4])
    emissions, transitions = random_scores(n, seed)
    emissions, transitions = 2 * emissions, 2 * transitions
    chain = bound_chain(transitions, TAGS)
    pairs = chain.chain_scores(emissions[None], lengths)
    walk = smoothed_expectation(LinearChain(), pairs, lengths, "quadratic")[0]
    of_tags, known = walk.sum(1), []
    for tags in valid_sequences(n).tolist():
        p = float(walk[0, 0, tags[0]])
        for i in range(1, n):
            before = float(of_tags[i - 1, tags[i - 1]])
            p *= float(walk[i, tags[i - 1], tags[i]]) / before if before > 0 else 0.0
        known.append((p, tuple(tags)))
    known = sorted((p, tags) for p, tags in known if p > 0)[::-1]
    assert sum(p for p, _ in known) == pytest.approx(1.0)
    found = LOSSES["quadratic"].ranked(Scored(chain, emissions[None], lengths), 50)[0]
    assert len(found) == len(known) < 50
    for (sequence, weight), (p, _) in zip(found, known):
        assert weight == pytest.approx(p, abs=1e-9)
        assert dict((tags, value) for value, tags in known)[tuple(sequence.tolist())] == (
            pytest.approx(p, abs=1e-9)
        )
    best = chain.best_tags(emissions[None], lengths)
    likely = LOSSES["quadratic"].probabilities(Scored(chain, emissions[None], lengths))
    listed = {tuple(sequence.tolist()): weight for sequence, weight in found}
    own = listed.get(tuple(best[0].tolist()), 0.0)
    assert own == pytest.approx(likely.of_run(0, 0, n), abs=1e-6)


@pytest.mark.parametrize("kind", ["crf", "quadratic", "sparsemap"])
def test_ranked_sequences_are_distinct_and_fall_in_weight(kind: str) -> None:
    emissions, transitions = random_scores(6, 1)
    chain = bound_chain(transitions, TAGS)
    scores = torch.stack([emissions, emissions.flip(0)])
    for sequences in LOSSES[kind].ranked(Scored(chain, scores, torch.tensor([6, 3])), 4):
        weights = [weight for _, weight in sequences]
        assert 1 <= len(sequences) <= 4 and weights == sorted(weights, reverse=True)
        assert 0 < sum(weights) <= 1 + 1e-6
        tags = {tuple(sequence.tolist()) for sequence, _ in sequences}
        assert len(tags) == len(sequences) and all(map(is_valid, tags))


def test_rehearsal_vanishes_at_the_teacher_and_ignores_new_tags() -> None:
    sizes = [3, 0, 5]
    teacher = found_scores(8)
    _, gradient = rehearsal_gradient(teacher, teacher, TAGS, sizes)
    np.testing.assert_allclose(gradient.emissions, 0.0, atol=1e-6)
    np.testing.assert_allclose(gradient.transitions, 0.0, atol=1e-5)
    more = [*TAGS, "B-B", "I-B", "L-B", "U-B"]
    emissions = np.zeros((8, 9), dtype="float32")
    transitions = np.zeros((11, 9), dtype="float32")
    student = TagScores(emissions, transitions)  # type: ignore[arg-type]
    loss, gradient = rehearsal_gradient(student, teacher, more, sizes)
    assert loss > 0 and gradient.emissions[:, :5].any()
    assert not gradient.emissions[:, 5:].any()
    assert not gradient.transitions[5:9].any() and gradient.transitions[9:, :5].any()


def test_weights_of_long_docs_neither_pass_one_nor_vanish() -> None:
    emissions = torch.zeros(2, 10_000, K)
    emissions[0, :, 0] = 40 + 5 * torch.rand(10_000, generator=torch.Generator().manual_seed(0))
    chain = bound_chain(torch.zeros(K + 2, K), TAGS)
    sure, unsure = LOSSES["crf"].ranked(Scored(chain, emissions, torch.tensor([10_000, 1_000])), 2)
    assert sure[0][1] == pytest.approx(1.0, abs=1e-6)
    assert len(unsure) == 2 and unsure[0][1] == 0.0
