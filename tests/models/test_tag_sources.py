"""Learned reliability of sources of annotation, compared with enumeration."""

from __future__ import annotations

import numpy as np
import pytest

from spacy_latent.models.crf_loss import crf_loss
from spacy_latent.models.tag_evidence import EntityCount, TagEvidence
from spacy_latent.models.tag_groups import bound_chain
from spacy_latent.models.tag_sources import TagSources, Written, source_totals
from tests.models.test_crf_loss import TAGS, random_scores
from tests.models.test_tag_evidence import ENDS, log_weight, totals_of


def written(number: int, *tags: str) -> Written:
    """Return the annotation of source ``number``, given as tags of the labels A and B."""
    classes = [0 if tag == "O" else 1 + "AB".index(tag[2]) for tag in tags]
    places = [-1 if tag == "O" else "BILU".index(tag[0]) for tag in tags]
    return Written(number, np.array(classes), np.array(places))


def learned() -> TagSources:
    """Return two sources with random counts."""
    chance = np.random.default_rng(0)
    return TagSources(chance.uniform(0, 50, size=(2, 3, 3)), chance.uniform(0, 9, size=(2, 5, 4)))


TEXTS = [written(0, "U-A", "O", "B-B"), written(1, "B-A", "L-A", "O")]


def test_what_may_be_written_has_a_probability_of_one() -> None:
    every = ["O", *(f"{place}-{label}" for label in "AB" for place in "BILU")]
    for number in range(2):
        for sources in (learned(), TagSources.empty(2, 2)):
            each = [sources.log_likelihood(written(number, tag))[0] for tag in every]
            np.testing.assert_allclose(np.exp(each).sum(0), 1.0)


def test_before_anything_is_known_sources_are_believed_but_not_blindly() -> None:
    likely = TagSources.empty(1, 2).log_likelihood(written(0, "B-A", "O"))
    assert likely[0].argmax() == TAGS.index("B-A") and likely[1].argmax() == 0
    assert np.isfinite(likely).all()
    one = TagSources.empty(1, 1).log_likelihood(written(0, "U-A"))
    assert one.shape == (1, 5) and one[0].argmax() == 4


def test_expected_counts_are_those_of_all_sequences() -> None:
    emissions, transitions = random_scores(3, 0)
    sources = learned()
    potentials = sum(sources.log_likelihood(one) for one in TEXTS)
    potentials[1, 5:] = -np.inf
    evidence = TagEvidence(potentials, (EntityCount(ENDS["A"], 1, True, 0.1),))
    found = crf_loss(bound_chain(transitions, TAGS), emissions.numpy(), [evidence])
    counted = sources.counted(TEXTS, [found.posteriors] * 2)
    every, totals = totals_of(transitions, emissions)
    weights = (totals + log_weight(every, evidence)).softmax(0).tolist()
    labels, places = np.zeros((2, 3, 3)), np.zeros((2, 5, 4))
    for tags, weight in zip(every.tolist(), weights):
        for one in TEXTS:
            for tag, own, place in zip(tags, one.classes, one.places):
                labels[one.number, (tag + 3) // 4, own] += weight
                if own:
                    places[one.number, (tag - 1) % 4 + 1 if tag else 0, place] += weight
    np.testing.assert_allclose(counted.labels, labels, atol=1e-9)
    np.testing.assert_allclose(counted.places, places, atol=1e-9)


def test_a_step_of_learning_makes_what_was_written_more_probable() -> None:
    emissions, transitions = random_scores(3, 1)
    chain = bound_chain(transitions, TAGS)

    def loss(sources: TagSources) -> tuple[float, np.ndarray]:
        given = TagEvidence(sum(sources.log_likelihood(one) for one in TEXTS))  # type: ignore[arg-type]
        found = crf_loss(chain, emissions.numpy(), [given])
        return float(found.losses[0]), found.posteriors

    sources, before = TagSources.empty(2, 2), np.inf
    for _ in range(4):
        own, posteriors = loss(sources)
        assert own < before
        before = own
        for _ in range(20):
            sources.learn(sources.counted(TEXTS, [posteriors] * 2))


def test_more_labels_change_nothing_of_the_known_ones() -> None:
    sources = learned()
    wide = sources.with_labels(3)
    assert wide.labels.shape == (2, 4, 4) and not wide.labels[:, 3].any()
    np.testing.assert_array_equal(wide.labels[:, :3, :3], sources.labels)
    assert wide.log_likelihood(TEXTS[0]).shape == (3, 13)


def test_reliability_by_hand() -> None:
    sources = TagSources(np.array([[[90.0, 10, 0], [20, 30, 0], [0, 0, 0]]]), np.zeros((1, 5, 4)))
    first, second = sources.reliability(["x"], ["A", "B"])
    assert (first.source, first.label, first.tokens) == ("x", "A", 40)
    assert (first.precision, first.recall) == (pytest.approx(0.75), pytest.approx(0.6))
    assert first.confusions == pytest.approx({"O": 0.4, "A": 0.6, "B": 0.0})
    assert np.isnan(second.precision) and np.isnan(second.recall)
    assert (first.expected_tokens, second.expected_tokens) == (50, 0)


def test_totals_by_hand_begin_with_the_least_reliable_source() -> None:
    nothing = np.zeros((3, 3))
    good = np.array([[80.0, 0, 0], [10, 50, 0], [0, 0, 40]])
    # The poor source marks tokens of B as A, and never as B.
    poor = np.array([[80.0, 10, 0], [10, 20, 0], [0, 30, 0]])
    silent = np.array([[80.0, 0, 0], [10, 0, 0], [10, 0, 0]])
    names, counts = ["unseen", "good", "poor", "silent"], [nothing, good, poor, silent]
    sources = TagSources(np.array(counts), np.zeros((4, 5, 4)))
    found = source_totals(sources.reliability(names, ["A", "B"]))
    assert [one.source for one in found] == ["silent", "poor", "good", "unseen"]
    assert np.isnan(found[0].precision) and found[0].recall == 0
    assert (found[1].precision, found[1].recall) == (pytest.approx(20 / 60), pytest.approx(20 / 60))
    assert (found[2].precision, found[2].recall) == (1, pytest.approx(0.9))
    assert [one.tokens for one in found] == [0, 60, 90, 0]
    assert np.isnan(found[3].precision) and np.isnan(found[3].recall)
