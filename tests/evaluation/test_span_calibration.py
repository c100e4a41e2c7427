"""Calibration of ``tree_spancat``: a temperature of trees, and a map of confidences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.util import fix_random_seed

from spacy_latent.analysis.calibration import (
    by_label,
    by_length,
    expected_calibration_error,
)
from spacy_latent.analysis.span_calibration import judged_spans
from spacy_latent.annotations import to_json
from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.evaluation.entity_calibration import set_precision
from spacy_latent.evaluation.span_calibration import calibrate, measure
from spacy_latent.pipeline.learnt_calibration import EntityCalibration
from tests.cli.commands import json_of, said
from tests.pipeline.test_tree_spancat import (
    KEY,
    NESTED,
    example,
    examples,
    found,
    pipeline,
    trained,
)

TEXT = NESTED[0][0]


@pytest.fixture(scope="module")
def plain() -> bytes:
    fix_random_seed(0)
    return trained(annotate="probabilities").to_bytes()


@pytest.fixture
def nlp(plain: bytes) -> Language:
    return pipeline(annotate="probabilities").from_bytes(plain)


def doubtful(nlp: Language, count: int = 30) -> list[Example]:
    """Return texts whose gold spans are the component's spans in two of three texts."""
    made = []
    for i in range(count):
        text, spans = NESTED[i % len(NESTED)]
        made.append(example(nlp, text, spans if i % 3 else []))
    return made


def error(judged: Any) -> float:
    return expected_calibration_error(judged.probabilities, judged.correct)


def test_names_of_documents_are_checked_before_anything_is_predicted(nlp: Language) -> None:
    texts = doubtful(nlp)
    texts[0].reference.user_data["document"] = "a"
    stages = []

    def progress(each: Any, stage: str, total: int) -> Any:
        stages.append(stage)
        return each

    with pytest.raises(LatentError, match="29 docs of 30"):
        calibrate(nlp, texts, progress=progress)
    assert not stages


def test_what_was_too_sure_is_so_no_more(nlp: Language, tmp_path: Path) -> None:
    texts = [text for text, _ in NESTED]
    predicted = [found(doc) for doc in nlp.pipe(texts)]
    made = calibrate(nlp, doubtful(nlp))
    calibration = made.calibration
    # The predicted spans are unchanged.
    assert [found(doc) for doc in nlp.pipe(texts)] == predicted
    # The spans come in the same order: the labels and lengths within a text differ.
    for name in ("correct", "labels", "lengths", "texts"):
        assert getattr(made.after, name) == getattr(made.before, name)
    assert made.kept and (calibration.temperature > 1 or calibration.changes_odds)
    assert calibration.docs == 30 and calibration.entities == made.after.gold > 0
    assert error(made.after) < error(made.before) and error(made.crossed) < error(made.before)
    # The pipeline has the fitted confidences, also after saving and loading.
    judged = measure(nlp, doubtful(nlp)).entities
    assert judged.probabilities == pytest.approx(made.after.probabilities)
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    stored: Any = again.get_pipe("tree_spancat").calibration  # type: ignore[union-attr]
    assert stored.temperature == pytest.approx(calibration.temperature)
    for one, other in zip(nlp.pipe(texts), again.pipe(texts)):
        scores = [doc.spans[KEY].attrs["scores"] for doc in (one, other)]
        assert found(one) == found(other) and np.allclose(*scores)
    # The brackets and the group of spans have the same confidences.
    doc = nlp(TEXT)
    brackets = doc._.latent["tree_spancat"].brackets()
    shown = doc.spans[KEY].attrs["scores"].tolist()
    assert [b.probability for b in brackets] == pytest.approx(shown)
    assert max(shown) < 0.95


def test_the_whole_set_of_a_text_is_as_probable_as_its_loss_says(nlp: Language) -> None:
    examples = doubtful(nlp)
    made = calibrate(nlp, examples)
    assert made.sets is not None
    before, after = made.sets
    # The gold spans are exactly the found spans in two of three texts.
    assert len(before.correct) == 30 and before.correct == after.correct
    assert before.correct == [i % 3 != 0 for i in range(30)]
    pipe: Any = nlp.get_pipe("tree_spancat")
    right = examples[1]
    loss, _ = pipe.get_loss([right], pipe.model.predict([right.predicted]))
    assert before.probabilities[1] == pytest.approx(np.exp(-loss), rel=1e-4)
    assert 0 < after.probabilities[1] <= 1
    # A text without the group of spans is not judged.
    del examples[1].reference.spans[KEY]
    sets = calibrate(nlp, examples).sets
    assert sets is not None and len(sets[0].correct) == 29 and sets[0].unannotated == 1


def test_documents_take_the_place_of_docs(nlp: Language) -> None:
    examples = doubtful(nlp)
    for i, one in enumerate(examples):
        one.reference.user_data["document"] = f"page {i // 6}"
    made = calibrate(nlp, examples)
    assert made.after.by_document and set(made.after.texts) == set(range(5))


def test_judged_spans_are_those_of_the_doc(nlp: Language) -> None:
    calibrate(nlp, doubtful(nlp))
    given = doubtful(nlp)
    expected = measure(nlp, given).entities
    for one in given:
        one.predicted = nlp(one.predicted)
    judged = judged_spans(given, KEY)
    assert judged.probabilities == pytest.approx(expected.probabilities)
    assert (judged.correct, judged.gold) == (expected.correct, expected.gold)
    lengths, labels = by_length(judged), by_label(judged)
    assert sum(one.count for one in lengths) == sum(one.count for one in labels)
    assert {one.name for one in labels} == {"NP", "PP"}


def test_a_fit_without_a_sure_gain_is_not_kept(nlp: Language) -> None:
    pipe: Any = nlp.get_pipe("tree_spancat")
    pipe.calibration = calibrate(nlp, doubtful(nlp)).calibration
    made = calibrate(nlp, doubtful(nlp, 2))
    assert not made.kept and pipe.calibration is None


def test_a_component_that_finds_nothing_has_no_losses(nlp: Language) -> None:
    nlp.get_pipe("tree_spancat").configure("threshold", 1.0)
    made = calibrate(nlp, doubtful(nlp))
    assert not made.after.probabilities and not made.kept
    assert made.confidence_losses == {}


def test_texts_without_the_group_do_not_count(nlp: Language) -> None:
    whole = calibrate(nlp, doubtful(nlp)).calibration
    partly = doubtful(nlp)
    partly.append(Example(nlp.make_doc(TEXT), nlp.make_doc(TEXT)))
    made = calibrate(nlp, partly)
    assert made.after.unannotated > 0
    assert made.calibration.temperature == pytest.approx(whole.temperature, rel=0.1)
    for given in ([], partly[-1:], [example(nlp, TEXT, [(0, 2, "OTHER")])]):
        with pytest.raises(LatentError):
            calibrate(nlp, given)
    with pytest.raises(LatentError):
        calibrate(nlp, partly, "other")


def test_a_precision_drops_the_less_sure_spans(nlp: Language) -> None:
    pipe: Any = nlp.get_pipe("tree_spancat")
    made = calibrate(nlp, doubtful(nlp, 60))
    assert set_precision(nlp, made, 0.1).threshold == pipe.cfg["min_confidence"] == 0
    with pytest.raises(LatentError):
        set_precision(nlp, made, 0.999)
    shown = np.asarray(made.after.probabilities)
    surer = replace(made.after, correct=(shown > np.median(shown)).tolist())
    least = set_precision(nlp, replace(made, after=surer), 0.9, confidence=None, few=True)
    assert pipe.cfg["min_confidence"] == least.threshold > 0
    assert nlp.config["components"]["tree_spancat"]["min_confidence"] == least.threshold
    left = sum(len(doc.spans[KEY]) for doc in nlp.pipe(x.text for x in doubtful(nlp, 60)))
    assert left == least.kept < len(made.after.probabilities)
    # The measured confidences do not depend on min_confidence.
    found = measure(nlp, doubtful(nlp, 60)).entities
    assert found.probabilities == pytest.approx(made.after.probabilities)


def test_it_ends_with_the_weights_that_it_is_of(nlp: Language) -> None:
    calibrate(nlp, doubtful(nlp))
    pipe: Any = nlp.get_pipe("tree_spancat")
    with pytest.warns(LatentWarning):
        nlp.update(examples(nlp), sgd=nlp.resume_training())
    assert pipe.calibration is None


def test_the_command_and_the_report(nlp: Language, tmp_path: Path) -> None:
    model, dev, output = tmp_path / "model", tmp_path / "dev.spacy", tmp_path / "out"
    nlp.to_disk(model)
    DocBin(docs=[one.reference for one in doubtful(nlp)]).to_disk(dev)
    shown = said("calibrate", model, dev, output, "--test", dev, "--precision", 0.3)
    assert "30 texts with" in shown and "Spans of the further texts by label" in shown
    assert spacy.load(output).get_pipe("tree_spancat").calibration is not None  # type: ignore[union-attr]
    shown = json_of("calibrate", model, dev, tmp_path / "json", "--json")
    assert shown["after"]["error"] < shown["before"]["error"]
    assert {one["name"] for one in shown["by_label"]} == {"NP", "PP"}
    sets = json_of(
        "calibrate", model, dev, tmp_path / "sets", "--json", "--coverage", 0.7, "--test", dev
    )
    assert sets["test_coverage"] >= 0.7 and sets["test_set_size"] == sets["set_size"] > 0
    for options in (("--coverage", 0.99), ("--biases",), ("--few",), ("--confidence", 0.8)):
        said("calibrate", model, dev, tmp_path / "no", *options, code=1)
        assert not (tmp_path / "no").exists()
    page = tmp_path / "report.html"
    assert "tree_spancat" in said("report", output, dev, page)
    assert "reliability diagram" in page.read_text(encoding="utf8")


def test_sets_of_spans_cover_what_was_asked_for(nlp: Language) -> None:
    made = calibrate(nlp, doubtful(nlp), coverage=0.8)
    pipe: Any = nlp.get_pipe("tree_spancat")
    assert made.covered is not None and made.covered.share >= 0.8
    # Texts without gold spans do not count.
    assert made.covered.texts == 20
    assert measure(nlp, doubtful(nlp)).sets == made.covered
    pipe.cfg["probability_threshold"] = 0.0
    doc = nlp(TEXT)
    latent = doc._.latent["tree_spancat"]
    least = pipe.calibration.least
    every = {(b.start, b.end, b.name): b.probability for b in latent.brackets(threshold=0.0)}
    sets = {(b.start, b.end, b.name): b.probability for b in latent.possible_brackets()}
    assert sets == {place: said for place, said in every.items() if said >= least}
    assert list(sets.values()) == sorted(sets.values(), reverse=True)
    assert len(to_json(doc, ["tree_spancat"])["tree_spancat"]["possible"]) == len(sets)
    stored = DocBin(docs=[doc], store_user_data=True).to_bytes()
    (copy,) = DocBin(store_user_data=True).from_bytes(stored).get_docs(nlp.vocab)
    assert copy._.latent["tree_spancat"].possible_brackets() == latent.possible_brackets()
    assert nlp(" ")._.latent["tree_spancat"].possible_brackets() == []
    before = dict(pipe.cfg)
    with pytest.raises(LatentError, match="coverage"):
        calibrate(nlp, doubtful(nlp, 4), coverage=0.9)
    assert dict(pipe.cfg) == before


def test_labels_that_a_text_was_not_annotated_for_are_in_no_set_that_is_measured(
    nlp: Language,
) -> None:
    texts = doubtful(nlp)
    for one in texts:
        one.reference._.annotated_labels = ["PP"]
        group = [span for span in one.reference.spans[KEY] if span.label_ == "PP"]
        one.reference.spans[KEY] = group
    made = calibrate(nlp, texts, coverage=0.6, confidence=True)
    with_pp = sum(bool(len(one.reference.spans[KEY])) for one in texts)
    assert made.covered is not None and made.covered.texts == with_pp < 20


def test_sets_of_spans_are_the_same_whatever_is_stored_beside_them(nlp: Language) -> None:
    """The stored spans do not change the sets.

    The flat map gives very improbable spans a confidence above the least one of the sets.
    """
    pipe: Any = nlp.get_pipe("tree_spancat")
    pipe.calibration = EntityCalibration(slope=0.2, coverage=0.9, least=0.01)
    found = []
    for pipe.cfg["probability_threshold"] in (0.0, 1e-7, 0.01, 1.0):
        latent = nlp(TEXT)._.latent["tree_spancat"]
        found.append([(one.start, one.end, one.name) for one in latent.possible_brackets()])
    assert all(one == found[0] for one in found)
    pipe.cfg["probability_threshold"] = 0.0
    every = nlp(TEXT)._.latent["tree_spancat"].brackets(threshold=0.01)
    assert 0 < len(found[0]) < len(every)


@pytest.mark.parametrize("coverage", [None, 0.7])
def test_an_interrupt_leaves_the_component_as_it_was(nlp: Language, coverage: float | None) -> None:
    pipe: Any = nlp.get_pipe("tree_spancat")
    pipe.calibration = EntityCalibration(temperature=3.0)
    before = dict(pipe.cfg)

    def progress(each: Any, stage: str, total: int) -> Any:
        if stage == ("Spans" if coverage is None else "Sets of spans"):
            raise KeyboardInterrupt
        return each

    with pytest.raises(KeyboardInterrupt):
        calibrate(nlp, doubtful(nlp), coverage=coverage, progress=progress)
    assert dict(pipe.cfg) == before


def test_the_command_says_that_docs_will_hold_no_sets(plain: bytes, tmp_path: Path) -> None:
    nlp = pipeline().from_bytes(plain)
    model, dev = tmp_path / "model", tmp_path / "dev.spacy"
    nlp.to_disk(model)
    DocBin(docs=[one.reference for one in doubtful(nlp)]).to_disk(dev)
    shown = said("calibrate", model, dev, tmp_path / "sets", "--coverage", 0.7)
    assert "annotate is 'map'" in shown
    # The fit needs no other value of annotate, since doc.spans has the confidences.
    assert "annotate is" not in said("calibrate", model, dev, tmp_path / "none")


@pytest.mark.parametrize("asked", [[], ["VP"]])
def test_spans_of_labels_that_no_text_was_annotated_for_are_none(
    nlp: Language, asked: list[str]
) -> None:
    texts = doubtful(nlp)
    for one in texts:
        one.reference._.annotated_labels = asked
    pipe: Any = nlp.get_pipe("tree_spancat")
    pipe.calibration = EntityCalibration(temperature=3.0)
    with pytest.raises(LatentError, match="No text has spans"):
        calibrate(nlp, texts, confidence=True)
    assert pipe.calibration == EntityCalibration(temperature=3.0)
