"""Calibration of ``crf_ner``: its fit, its storage, and the confidences of entities."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
import torch
from spacy import displacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example

from spacy_latent import annotations, confidence
from spacy_latent.analysis.independent_texts import IndependentTexts
from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.precision_bound import PromisedThreshold
from spacy_latent.annotations import write
from spacy_latent.errors import LatentError, LatentWarning, PartlyAnnotated
from spacy_latent.evaluation.calibration_fit import (
    choose_confidence,
    fit_confidence,
    folds_of,
    gain_of,
    left_out_confidences,
)
from spacy_latent.evaluation.entity_calibration import calibrate, measure, set_precision
from spacy_latent.evaluation.score_fit import ScoredDocs, ScoreFit
from spacy_latent.models.tag_groups import bound_chain
from spacy_latent.models.tag_losses import LOSSES
from spacy_latent.pipeline.learnt_calibration import (
    ConfidenceMap,
    EntityCalibration,
    confidence_of,
    confidences_of,
)
from spacy_latent.structures.tag_sequence import scheme_tags
from spacy_latent.visualize import render, render_svg
from spacy_latent.visualize.terminal import format_annotation
from tests.pipeline.small_pipelines import (
    LISTENER,
    TOK2VEC,
    examples,
    initialized,
    latent_pipeline,
    learn,
    step,
)

LABELS = ("A", "B")
TAGS = scheme_tags(LABELS, "biluo")


def sampled(temperature: float, bias: float, docs: int = 200, n: int = 6) -> ScoreFit:
    """Return docs with tags from a known chain, and scores that are too sure of it.

    Args:
        temperature: Factor of the scores.
        bias: Added in the chain to the scores of tags that begin an entity of B.
    """
    generator = torch.Generator().manual_seed(0)
    emissions = torch.randn(docs, n, len(TAGS), generator=generator, dtype=torch.float64)
    transitions = torch.randn(len(TAGS) + 2, len(TAGS), generator=generator, dtype=torch.float64)
    shift = torch.zeros(len(TAGS), dtype=torch.float64)
    shift[[5, 8]] = bias
    lengths = torch.full((docs,), n)
    chain = bound_chain(transitions, TAGS)
    allowed = chain.sample(emissions + shift, lengths, 1, generator)[0].bool()
    counts = torch.ones(docs, dtype=torch.float64)
    group = ScoredDocs(list(range(docs)), emissions * temperature, lengths, allowed, counts)
    folds = folds_of(IndependentTexts(list(range(docs)), docs, False))
    return ScoreFit(LOSSES["crf"], TAGS, transitions * temperature, [group], folds)


def test_the_temperature_and_the_biases_that_scores_need_are_found() -> None:
    fit = sampled(temperature=2.5, bias=2.0)
    point, told = fit.choose(True)
    assert float((-point[0]).exp()) == pytest.approx(2.5, rel=0.25)
    assert point[1:].tolist() == pytest.approx([0.0, 2.0], abs=0.5)
    assert set(told) == {"as trained", "calibrated"}
    assert told["calibrated"] < told["as trained"]


def test_labels_get_biases_where_held_out_texts_ask_for_them() -> None:
    point, told = sampled(temperature=2.5, bias=2.0, docs=60).choose(None)
    assert len(point) == 3
    assert told["temperature and biases"] < told["temperature"] < told["as trained"]
    point, told = sampled(temperature=2.5, bias=0.0, docs=60).choose(None)
    assert len(point) == 1 and told["temperature"] < told["as trained"]


def judged(said: Any, right: Any, labels: list[str] | None = None) -> JudgedEntities:
    """Return predictions of entities, each in a text of its own."""
    names = labels or ["A"] * len(said)
    return JudgedEntities(said.tolist(), right.tolist(), names, len(said))


def chosen(found: JudgedEntities, mapped: bool | None = None) -> tuple[ConfidenceMap, Any]:
    return choose_confidence(found, np.arange(len(found.probabilities)) % 5, mapped)


def test_slope_and_shift_of_confidences_that_are_too_sure() -> None:
    generator = np.random.default_rng(0)
    odds = generator.normal(1.0, 1.5, 3000)
    right = generator.random(3000) < 1 / (1 + np.exp(-odds))
    said = 1 / (1 + np.exp(-(2 * odds - 1)))
    made, told = chosen(judged(said, right))
    assert made.slope == pytest.approx(0.5, abs=0.06) and not made.shifts
    assert made.shift == pytest.approx(0.5, abs=0.15)
    assert told["slope and shift"] < told["probability"]
    mapped = [made.confidence(p, "A") for p in np.linspace(0, 1, 50)]
    assert mapped == sorted(mapped) and 0 <= mapped[0] and mapped[-1] <= 1
    good = judged(1 / (1 + np.exp(-odds)), right)
    assert chosen(good)[0].slope == pytest.approx(1.0, abs=0.1)
    assert chosen(good, True)[0].slope == pytest.approx(1.0, abs=0.1)
    assert chosen(judged(said, right), False)[0] == ConfidenceMap()
    # At these few values, full steps of Newton's method diverge.
    few, right_of_few = np.array([0.63, 0.94] * 24), np.arange(48) // 2 % 2 == 0
    made = fit_confidence(few, right_of_few, spread=1.0)
    # The narrower prior of the default keeps confidences nearer to the probabilities.
    assert made.slope < fit_confidence(few, right_of_few).slope - 0.1
    assert all(0.4 < made.confidence(p, "A") < 0.6 for p in (0.63, 0.94))
    # Confident predictions are right less often than others. No positive slope can express this,
    # and the shift makes the mean right.
    said = np.where(generator.random(2000) < 0.8, 1.0, 0.5)
    right = generator.random(2000) < np.where(said == 1.0, 0.70, 0.75)
    made = fit_confidence(said, right)
    mapped = [made.confidence(p, "A") for p in said.tolist()]
    assert np.mean(mapped) == pytest.approx(right.mean(), abs=0.005) and made.slope > 0
    # There are no predictions to learn from.
    assert fit_confidence([], []) == ConfidenceMap()


@pytest.mark.parametrize("slope", [1.0, 0.7])
def test_confidences_in_an_array_are_those_of_each_probability(slope: float) -> None:
    said, shifts = np.meshgrid([0.0, 1e-9, 0.3, 0.99, 1.0, 1.0 + 1e-12], [0.0, 0.4, -2000.0])
    found = confidences_of(said.ravel(), slope, shifts.ravel())
    expected = [confidence_of(p, slope, shift) for p, shift in zip(said.flat, shifts.flat)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_map_that_helps_in_its_own_documents_alone_is_not_chosen() -> None:
    """The probabilities are right on average, but not in single documents."""
    generator = np.random.default_rng(0)
    document = np.repeat(np.arange(5), 40)
    said = np.full(200, 0.5)
    right = generator.random(200) < np.array([0.1, 0.9, 0.1, 0.9, 0.5])[document]
    found = replace(judged(said, right), texts=list(range(200)))
    assert choose_confidence(found, document)[0] == ConfidenceMap()
    # If each document is in all folds, the held-out entities are from known documents.
    first = replace(found, correct=[bool(x) for x in document % 2])
    told = choose_confidence(first, document)[1]
    mixed = choose_confidence(first, np.arange(200) % 5)[1]
    assert mixed["slope and shift"] < told["slope and shift"]


def test_labels_that_are_trusted_too_much_get_a_shift() -> None:
    generator = np.random.default_rng(0)
    said = generator.uniform(0.3, 0.99, 1000)
    labels = ["A", "B"] * 500
    right = generator.random(1000) < np.where(np.arange(1000) % 2, 0.5 * said, said)
    made, _ = chosen(judged(said, right, labels))
    assert made.shifts["B"] < made.shifts["A"] - 0.7
    assert made.confidence(0.9, "B") < 0.6 < made.confidence(0.9, "A")


def test_documents_take_the_place_of_docs(nlp: Language) -> None:
    examples = doubtful(nlp)
    assert len(set(calibrate(nlp, examples).after.texts)) > 12
    for i, example in enumerate(examples):
        example.reference.user_data["document"] = i // (len(examples) // 4)
    found = calibrate(nlp, examples, biases=True)
    assert found.after.by_document and set(found.after.texts) <= set(range(4))
    with pytest.raises(LatentError, match="documents"):
        set_precision(nlp, found, 0.2)
    del examples[0].reference.user_data["document"]
    with pytest.raises(LatentError, match="user_data"):
        calibrate(nlp, examples)


def test_no_text_of_a_fold_is_in_the_fit_of_its_confidences() -> None:
    generator = np.random.default_rng(0)
    texts = np.repeat(np.arange(6), 20)
    said, right = generator.uniform(0.3, 0.99, 120), generator.random(120) < 0.5
    made = ConfidenceMap(slope=0.5)

    def confidences(right: np.ndarray, own: int) -> list[float]:
        found = replace(judged(said, right), texts=texts.tolist())
        folds = np.array([0, 1, 2, 3, 4, 4])
        return left_out_confidences(found, made, folds)[texts == own].tolist()

    other = np.where(texts == 5, ~right, right)
    assert confidences(other, 4) == confidences(right, 4)
    assert confidences(other, 3) != confidences(right, 3)


def test_the_error_of_a_gain_is_over_texts() -> None:
    gains = np.array([0.4, -0.2, 0.4, -0.2])
    alone = gain_of(gains, np.zeros(4))
    assert alone.mean == pytest.approx(0.1)
    assert alone.error == pytest.approx(gains.std(ddof=1) / 2) and not alone.is_sure
    # Ten entities of one text with the same gain count like one.
    texts = np.repeat(np.arange(4), 10)
    many = gain_of(np.repeat(gains, 10), np.zeros(40), texts)
    assert (many.mean, many.error) == pytest.approx((alone.mean, alone.error))
    assert gain_of(np.repeat(gains, 10), np.zeros(40)).error < alone.error / 2
    assert not gain_of(np.ones(3), np.zeros(3), np.zeros(3)).is_sure
    assert not gain_of(np.zeros(0), np.zeros(0)).is_sure


def test_neighbouring_docs_and_docs_of_a_document_are_left_out_together() -> None:
    def folds(numbers: list[int], are_documents: bool) -> list[int]:
        return folds_of(IndependentTexts(numbers, max(numbers) + 1, are_documents)).tolist()

    assert folds(list(range(7)), False) == [0, 1, 2, 3, 4, 0, 1]
    assert folds(list(range(20)), False) == np.repeat([0, 1, 2, 3, 4, 0, 1, 2, 3, 4], 2).tolist()
    many = folds(list(range(1000)), False)
    assert many[:60] == np.repeat([0, 1, 2, 3, 4, 0], 10).tolist()
    assert np.bincount(many).tolist() == [200] * 5
    assert folds([0, 1, 1, 0, *range(2, 12)], True) == [0, 1, 1, 0, *([2, 3, 4, 0, 1] * 2)]
    # There are too few documents to leave some of them out.
    assert folds([0, 0, 0, 0, 0, 1], True) == [0, 1, 2, 3, 4, 0]


# ---------------------------------------------------------------- a component


# The scores of the default model soon become so large that no entity is doubtful.
MODEL = {"@architectures": "spacy-latent.CrfTagger.v1", "tok2vec": TOK2VEC}


def trained(**config: Any) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": MODEL, **config})
    optimizer = initialized(nlp)
    learn(nlp, examples(nlp), 20, optimizer)
    return nlp


def doubtful(nlp: Language) -> list[Example]:
    """Return texts in which half of the entities that the component is sure of are annotated."""
    made = []
    for i in range(24):
        for text, start, end in (("I like London a lot", 7, 13), ("Berlin is very grey", 0, 6)):
            entities = [(start, end, "GPE")] if i % 2 else []
            made.append(Example.from_dict(nlp.make_doc(text), {"entities": entities}))
    return made


TEXT = "I like London a lot"


@pytest.fixture(scope="module")
def plain() -> bytes:
    return trained(annotate="probabilities").to_bytes()


@pytest.fixture
def nlp(plain: bytes) -> Language:
    made = spacy.blank("en")
    made.add_pipe("crf_ner", config={"model": MODEL, "annotate": "probabilities"})
    return made.from_bytes(plain)


def sure(nlp: Language) -> float:
    (ent,) = nlp(TEXT).ents
    return ent._.confidence


def test_what_was_too_sure_is_so_no_more(nlp: Language, tmp_path: Path) -> None:
    before = sure(nlp)
    found = calibrate(nlp, doubtful(nlp), coverage=0.8)
    after = sure(nlp)
    assert before > 0.9 and found.calibration.temperature > 1 and 0.3 < after < 0.7
    assert [*map(len, (found.before.labels, found.after.labels))] == [48, 48]
    # The entities come in the same order, although the folds are judged in turn.
    for crossed in (found.crossed, found.after):
        assert crossed.texts == found.before.texts and crossed.correct == found.before.correct
    latent = nlp(TEXT)._.latent["crf_ner"]
    (known,) = latent.entities()
    assert known.probability == after and known in latent.possible_entities()
    assert found.calibration.least is not None
    assert measure(nlp, doubtful(nlp)).covered == (1.0, 24)
    # The saved pipeline keeps the calibration, and a stored doc its sets of entities.
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    assert sure(again) == pytest.approx(after, abs=1e-6)
    pipe: Any = again.get_pipe("crf_ner")
    assert pipe.calibration.coverage == 0.8
    (copy,) = DocBin(docs=[nlp(TEXT)], store_user_data=True).get_docs(nlp.vocab)
    assert copy._.latent["crf_ner"].possible_entities() == latent.possible_entities()


def test_possible_entities_are_of_their_doc_and_the_surest_comes_first(nlp: Language) -> None:
    pipe: Any = nlp.get_pipe("crf_ner")
    pipe.calibration = EntityCalibration(
        temperature=3.0, slope=0.5, shift=-0.3, coverage=0.9, least=1e-4
    )
    texts = ["Berlin is very grey", TEXT, "London"]
    for doc, text in zip(nlp.pipe(texts), texts):
        found = doc._.latent["crf_ner"].possible_entities()
        said = [one.probability for one in found]
        assert len(found) > len(doc) / 2 and said == sorted(said, reverse=True)
        assert max(one.end for one in found) <= len(doc)
        # A doc alone gets the same entities.
        alone = nlp(text)._.latent["crf_ner"].possible_entities()
        assert [(one.start, one.end, one.label) for one in found] == [
            (one.start, one.end, one.label) for one in alone
        ]


def test_it_reads_what_a_shared_encoder_gives() -> None:
    nlp = latent_pipeline()
    listening = {"tok2vec": LISTENER, "hidden_width": 8}
    nlp.add_pipe("crf_ner", config={"model": listening, "annotate": "probabilities"})
    nlp.batch_size = 5
    optimizer = initialized(nlp)
    for _ in range(30):
        step(nlp, examples(nlp), optimizer)
    before, found = sure(nlp), calibrate(nlp, doubtful(nlp))
    assert before > 0.8 and 0.3 < sure(nlp) < 0.7
    # The pipeline predicts in batches of another size.
    docs = list(nlp.pipe(example.text for example in doubtful(nlp)))
    said = [entity.probability for doc in docs for entity in doc._.latent["crf_ner"].entities()]
    assert found.after.probabilities == pytest.approx(said, abs=1e-5)


def test_biases_may_change_what_is_found(nlp: Language) -> None:
    def none(text: str) -> Example:
        return Example.from_dict(nlp.make_doc(text), {"entities": []})

    rare = [none("I like London a lot") for _ in range(40)] + doubtful(nlp)[-1:]
    calibrate(nlp, rare, biases=True)
    pipe: Any = nlp.get_pipe("crf_ner")
    assert pipe.calibration.biases["GPE"] < 0
    assert not nlp(TEXT).ents


@pytest.mark.parametrize("loss", ["quadratic", "perceptron", "sparsemap"])
def test_other_losses_can_be_calibrated(loss: str) -> None:
    nlp = trained(annotate="probabilities", loss=loss, alternatives=2)
    calibrate(nlp, doubtful(nlp), coverage=0.5, confidence=True)
    assert 0.3 < sure(nlp) < 0.7
    (span,) = nlp(TEXT)._.latent["crf_ner"].spans
    assert len(span.alternative_probabilities) == len(span.alternatives) > 0


def test_an_entity_less_probable_than_a_reading_with_it_is_told_of(nlp: Language) -> None:
    """Calibrated confidences of entities may be lower than the weights of whole sequences."""
    pipe: Any = nlp.get_pipe("crf_ner")
    pipe.cfg["alternatives"] = 2

    def first(doc: Doc) -> tuple[float, float]:
        latent = doc._.latent["crf_ner"]
        (entity,) = latent.entities(0)
        assert entity.probability is not None
        return latent.spans[0].alternatives[0][1], entity.probability

    for calibration in (None, EntityCalibration(temperature=1.5)):
        pipe.calibration = calibration
        doc = nlp(TEXT)
        weight, probability = first(doc)
        # Both are probabilities of one distribution, and the entity is a part of the sequence.
        assert probability >= weight - 1e-6
        assert "not calibrated" not in format_annotation(doc._.latent["crf_ner"])
        assert "not calibrated" not in render(doc, jupyter=False, options={"alternatives": 2})
    pipe.calibration = EntityCalibration(slope=0.3, shift=-0.5)
    doc = nlp(TEXT)
    weight, probability = first(doc)
    assert probability < weight
    copy = Doc(nlp.vocab).from_bytes(doc.to_bytes())
    for one in (doc, copy):
        lines = format_annotation(one._.latent["crf_ner"]).splitlines()
        told = [line for line in lines if line.startswith("weight")]
        assert len(told) == 2 and all("(not calibrated; its entities are)" in o for o in told)
        drawn = render(one, jupyter=False, options={"alternatives": 2})
        assert drawn.count("not calibrated; its entities are") == 2
        assert "not calibrated; its" in render_svg(one, options={"alternatives": 2})
        (span,) = annotations.to_json(one, ["crf_ner"])["crf_ner"]["spans"]  # type: ignore[misc]
        assert span["entities_calibrated"] is True
    # A shift of one label changes the odds, except a shift of 0.
    assert EntityCalibration(shifts={"GPE": 0.1}).changes_odds
    assert not EntityCalibration(temperature=2.0, shifts={"GPE": 0.0}).changes_odds


def test_what_was_saved_is_checked(nlp: Language, tmp_path: Path) -> None:
    calibrate(nlp, doubtful(nlp), coverage=0.8)
    pipe: Any = nlp.get_pipe("crf_ner")
    path, found = tmp_path / "crf_ner" / "cfg", pipe.calibration.to_dict()
    assert EntityCalibration.from_dict(found, "crf_ner", ["GPE"]) == pipe.calibration
    for change, message in (
        ({"temperature": math.inf}, "finite"),
        ({"shift": 10**400}, "finite"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": "hot"}, "number"),
        ({"biases": {"NONE": 1.0}}, "biases.*NONE"),
        ({"shifts": {"GPE": "much"}}, "number"),
        ({"shifts": [1.0]}, "numbers"),
        ({"shift": None}, "number"),
        ({"least": None}, "other"),
        ({"coverage": 2.0}, "coverage"),
        ({"least": "low"}, "number"),
        ({"heat": 1.0}, "heat"),
    ):
        with pytest.raises(LatentError, match=message):
            EntityCalibration.from_dict({**found, **change}, "crf_ner", ["GPE"])
    nlp.to_disk(tmp_path)
    good = srsly.read_json(path)
    srsly.write_json(path, {**good, "calibration": 3})
    with pytest.raises(LatentError, match="fields"):
        spacy.load(tmp_path)
    # Weights that were saved without a calibration remove the present one.
    srsly.write_json(path, {"labels": good["labels"]})
    nlp.from_disk(tmp_path)
    assert nlp.get_pipe("crf_ner").calibration is None  # type: ignore[union-attr]


def test_it_ends_with_the_weights_that_it_is_of(nlp: Language) -> None:
    calibrate(nlp, doubtful(nlp))
    pipe: Any = nlp.get_pipe("crf_ner")
    pipe.add_label("ORG")
    assert pipe.calibration is not None and nlp(TEXT).ents
    unknown = Example.from_dict(nlp.make_doc(TEXT), {"entities": [(7, 13, "NEW")]})
    with pytest.raises(LatentError, match="'NEW'"):
        nlp.update([unknown], sgd=nlp.resume_training())
    assert pipe.calibration is not None
    with pytest.warns(LatentWarning, match="is removed"):
        nlp.update(examples(nlp), sgd=nlp.resume_training())
    assert pipe.calibration is None
    calibrate(nlp, doubtful(nlp))
    nlp.initialize(lambda: examples(nlp))
    assert pipe.calibration is None


def test_what_cannot_be_calibrated(nlp: Language) -> None:
    empty = [Example.from_dict(nlp.make_doc(TEXT), {"entities": []})]
    with pytest.raises(LatentError, match="text"):
        calibrate(nlp, empty)
    known = calibrate(nlp, doubtful(nlp)).calibration
    with pytest.raises(LatentError, match="99"):
        calibrate(nlp, doubtful(nlp), coverage=0.99)
    assert nlp.get_pipe("crf_ner").calibration == known  # type: ignore[union-attr]
    with pytest.raises(LatentError, match="crf_ner"):
        calibrate(spacy.blank("en"), [])
    with pytest.raises(LatentError, match=r"'other'.*crf_ner"):
        calibrate(nlp, doubtful(nlp), "other")
    with pytest.raises(LatentError, match="possible"):
        nlp(TEXT)._.latent["crf_ner"].possible_entities()
    nlp.get_pipe("crf_ner").add_label("PERSON")  # type: ignore[union-attr]
    with pytest.raises(LatentError, match="PERSON"):
        calibrate(nlp, doubtful(nlp))


def test_what_is_given_in_python_is_told_where_it_is_something_else(nlp: Language) -> None:
    docs = [example.reference for example in doubtful(nlp)]
    for call in (calibrate, measure):
        with pytest.raises(LatentError, match=r"Doc.*Examples"):
            call(nlp, docs)  # type: ignore[arg-type]
        for nothing in (None, lambda: None, 3):
            with pytest.raises(LatentError, match=r"(None|3).*Examples"):
                call(nlp, nothing)  # type: ignore[arg-type]
        for empty in ([], iter([]), lambda: []):
            with pytest.raises(LatentError, match="no texts"):
                call(nlp, empty)
    for coverage in ("0.9", 1, True):
        with pytest.raises(LatentError, match="coverage"):
            calibrate(nlp, doubtful(nlp), coverage=coverage)  # type: ignore[arg-type]
    found = calibrate(nlp, lambda: doubtful(nlp))
    assert found.calibration == calibrate(nlp, doubtful(nlp)).calibration
    with pytest.raises(LatentError, match="list"):
        set_precision(nlp, doubtful(nlp), 0.7)  # type: ignore[arg-type]
    with pytest.raises(LatentError, match="precision"):
        set_precision(nlp, found, "0.7")  # type: ignore[arg-type]


def test_labels_that_training_did_not_have_are_missed_and_fitted_to_by_nothing(
    nlp: Language,
) -> None:
    known = calibrate(nlp, doubtful(nlp))
    rare = Example.from_dict(nlp.make_doc("Anna is here"), {"entities": [(0, 4, "PERSON")]})
    found = calibrate(nlp, [*doubtful(nlp), rare])
    assert found.left_out == 1 and found.after.gold == 25 and found.unknown == ("PERSON",)
    assert found.calibration.temperature == pytest.approx(known.calibration.temperature)
    assert found.losses == pytest.approx(known.losses)


def test_entities_of_another_component_are_not_missed(nlp: Language) -> None:
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "PERSON", "pattern": "Anna"}])  # type: ignore[attr-defined]
    both = Example.from_dict(nlp.make_doc("Anna is here"), {"entities": [(0, 4, "PERSON")]})
    plain = doubtful(nlp)
    known, found = calibrate(nlp, plain), calibrate(nlp, [*plain, both], coverage=0.9)
    assert found.left_out == 0 and found.unknown == ()
    assert found.calibration.entities == found.after.gold == known.after.gold
    assert measure(nlp, [*plain, both]).covered == (1.0, known.after.gold)
    # The docs of the caller are not changed.
    assert [span.label_ for span in both.reference.ents] == ["PERSON"]


def test_entities_that_a_text_was_not_annotated_for_count_in_nothing(nlp: Language) -> None:
    rare = Example.from_dict(nlp.make_doc("Anna is here"), {"entities": [(0, 4, "PERSON")]})
    rare.reference._.annotated_labels = ["GPE"]
    texts = [*doubtful(nlp), rare]
    found = calibrate(nlp, texts, coverage=0.9)
    assert found.unknown == () and found.calibration.entities == found.after.gold == 24
    assert measure(nlp, texts).covered == (1.0, 24)


def test_texts_with_other_labels_are_no_measure_of_confidence(nlp: Language) -> None:
    other = [
        Example.from_dict(nlp.make_doc("Anna is here"), {"entities": [(0, 4, "PERSON")]}),
        Example.from_dict(nlp.make_doc("nobody is here"), {"entities": []}),
    ]
    with pytest.raises(LatentError, match=r"GPE.*PERSON"):
        calibrate(nlp, other)


def marked(nlp: Language, rest: str) -> list[Example]:
    """Return texts in which half of the found entities are annotated.

    Args:
        rest: Annotation of all other tokens, the ``default`` of ``Doc.set_ents``.
    """
    made = []
    for one in doubtful(nlp):
        reference = nlp.make_doc(one.reference.text)
        reference.set_ents(
            [Span(reference, ent.start, ent.end, label="GPE") for ent in one.reference.ents],
            default=rest,
        )
        made.append(Example(nlp.make_doc(reference.text), reference))
    return made


def test_what_is_found_where_annotation_is_missing_is_counted_apart(nlp: Language) -> None:
    partly = [*marked(nlp, "missing"), *doubtful(nlp)]
    with pytest.warns(PartlyAnnotated, match=r"24 of 96.*crf_ner"):
        found = calibrate(nlp, partly)
    # Found entities are right in texts with an annotated entity, and unknown in the other texts.
    assert [len(found.after.probabilities), found.after.unannotated] == [72, 24]
    assert set_precision(nlp, found, 0.6, confidence=None).precision == pytest.approx(48 / 72)
    with pytest.warns(PartlyAnnotated, match="24 of 96"):
        assert measure(nlp, partly).entities.unannotated == 24


@pytest.mark.filterwarnings("ignore::spacy_latent.errors.PartlyAnnotated")
def test_texts_without_annotation_do_not_lower_the_mean_loss(nlp: Language) -> None:
    whole = calibrate(nlp, doubtful(nlp)).losses
    bare = [Example(nlp.make_doc(TEXT), nlp.make_doc(TEXT)) for _ in range(5)]
    found = calibrate(nlp, [*bare, *doubtful(nlp)]).losses
    assert found["as trained"] == pytest.approx(whole["as trained"], rel=1e-6)
    assert found["calibrated"] == pytest.approx(whole["calibrated"], rel=1e-4)


def test_a_precision_is_refused_where_no_token_is_outside(nlp: Language) -> None:
    with pytest.warns(PartlyAnnotated, match="precision"):
        found = calibrate(nlp, marked(nlp, "missing"))
    with pytest.raises(LatentError, match="set_ents"):
        set_precision(nlp, found, 0.5, few=True)
    found = calibrate(nlp, marked(nlp, "outside"))
    assert (
        not found.after.unannotated
        and set_precision(nlp, found, 0.5, confidence=None).precision == 0.5
    )


def test_less_sure_entities_are_left_out(nlp: Language) -> None:
    whole = calibrate(nlp, doubtful(nlp))
    with pytest.raises(LatentError, match=r"0\.97"):
        set_precision(nlp, whole, 0.97, confidence=None)
    pipe: Any = nlp.get_pipe("crf_ner")
    for annotate in ("probabilities", "map", "none"):
        pipe.cfg.update(annotate=annotate, min_confidence=0.0)
        assert nlp(TEXT).ents
        pipe.cfg["min_confidence"] = 0.9
        doc = nlp(TEXT)
        assert not doc.ents
        if annotate != "none":
            (left_out,) = doc._.latent["crf_ner"].entities()
            assert left_out.below_min_confidence
            lines = format_annotation(doc._.latent["crf_ner"])
            assert f"[London GPE {left_out.probability:.2f} below min_confidence]" in lines
            for drawn in (render(doc, jupyter=False), render_svg(doc)):
                assert f"{left_out.probability:.2f} below min_confidence" in drawn
            assert 'class="sl-faint"' in render(doc, jupyter=False)
            (span,) = annotations.to_json(doc, ["crf_ner"])["crf_ner"]["spans"]  # type: ignore[misc]
            assert span["min_confidence"] == 0.9
            # Kept entities are not marked.
            pipe.cfg["min_confidence"] = 0.01
            kept = nlp(TEXT)
            assert kept.ents and "below" not in format_annotation(kept._.latent["crf_ner"])
            copy = Doc(nlp.vocab).from_bytes(doc.to_bytes())
            assert copy._.latent["crf_ner"].entities() == [left_out]
    # Entities of other components are kept.
    doc = nlp.make_doc(TEXT)
    doc.ents = [Span(doc, 2, 3, "GPE")]
    assert len(pipe(doc).ents) == 1
    # All entities together have this precision, so the earlier threshold is removed.
    least = set_precision(nlp, whole, 0.4, confidence=None)
    assert least.threshold == 0 == pipe.cfg["min_confidence"]
    assert nlp.config["components"]["crf_ner"]["min_confidence"] == 0
    assert nlp(TEXT).ents
    with pytest.raises(LatentError, match="min_confidence"):
        trained(min_confidence=2)


@pytest.mark.parametrize(
    ("right", "wrong", "refused", "advice"),
    [
        (19, 30, True, "for 20 with a confidence of at least 0.8"),
        (20, 30, False, ""),
        # The threshold keeps twenty entities, which is less than one in ten.
        (20, 190, True, "for 21 with a confidence of at least 0.8"),
        (5, 10, True, "No threshold keeps 20 of them"),
    ],
)
def test_a_threshold_that_keeps_few_is_set_only_where_asked(
    nlp: Language, right: int, wrong: int, refused: bool, advice: str
) -> None:
    said = [0.9] * right + [0.8 - 0.001 * i for i in range(wrong)]
    correct = [True] * right + [False] * wrong
    entities = JudgedEntities(said, correct, ["GPE"] * len(said), right)
    found = replace(calibrate(nlp, doubtful(nlp)), after=entities)
    pipe: Any = nlp.get_pipe("crf_ner")
    if refused:
        with pytest.raises(LatentError, match=rf"{right} of {right + wrong}.*{advice}"):
            set_precision(nlp, found, 0.99, confidence=None)
        assert pipe.cfg["min_confidence"] == 0.0
    least = set_precision(nlp, found, 0.99, confidence=None, few=refused)
    # The threshold is midway between the last entity that is kept and the next one.
    assert (least.kept, pipe.cfg["min_confidence"]) == (right, pytest.approx(0.85))


def test_a_precision_that_texts_do_not_support_is_refused(nlp: Language) -> None:
    found = calibrate(nlp, doubtful(nlp))
    pipe: Any = nlp.get_pipe("crf_ner")
    # Half of the 48 entities are right, so a lower bound of the precision is below 0.5.
    with pytest.raises(LatentError, match=r"0\.5"):
        set_precision(nlp, found, 0.5)
    assert pipe.cfg["min_confidence"] == 0.0
    least = set_precision(nlp, found, 0.3)
    assert isinstance(least, PromisedThreshold) and least.threshold == 0 and 0.3 < least.bound < 0.5
    # Fewer than one in ten entities are sure, so the sequence of tests starts lower.
    said, correct = [0.9] * 30 + [0.5] * 470, [True] * 30 + [False] * 470
    few = replace(found, after=JudgedEntities(said, correct, ["GPE"] * 500, 30))
    with pytest.raises(LatentError, match="support"):
        set_precision(nlp, few, 0.9)
    assert set_precision(nlp, few, 0.9, few=True).kept == 30
    assert pipe.cfg["min_confidence"] == pytest.approx(0.7)
    for wrong in (0, 1, "much"):
        with pytest.raises(LatentError, match="confidence"):
            set_precision(nlp, found, 0.5, confidence=wrong)  # type: ignore[arg-type]
    with pytest.raises(LatentError, match="prove more"):
        set_precision(nlp, found, 1.0)
    surest = replace(found, after=JudgedEntities([0.9] * 30 + [0.5] * 30, correct[:60], ["A"] * 60))
    assert set_precision(nlp, surest, 1.0, confidence=None).precision == 1
    for outside in (0, 97, -0.5, float("nan")):
        for sure in (0.9, None):
            with pytest.raises(LatentError, match=rf"{outside}.*97 %"):
                set_precision(nlp, found, outside, confidence=sure)


# ---------------------------------------------------------------- confidences of spans


def test_confidence_of_what_was_found_and_of_nothing_else(nlp: Language) -> None:
    doc = nlp(TEXT)
    (ent,) = doc.ents
    (known,) = doc._.latent["crf_ner"].entities()
    assert ent._.confidence == known.probability
    assert Span(doc, 2, 3, "ORG")._.confidence is None and doc[0:1]._.confidence is None
    given = nlp.make_doc(TEXT)
    given.ents = [Span(given, 2, 3, "GPE")]
    assert nlp.get_pipe("crf_ner")(given).ents[0]._.confidence is None  # type: ignore[operator]
    blank = Doc(nlp.vocab, words=["London"])
    assert Span(blank, 0, 1, "GPE")._.confidence is None


def test_confidences_are_read_once_for_a_loop_and_again_when_they_change(
    nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, whole = [], confidence._read

    def counted(doc: Doc) -> confidence._Known:
        read.append(doc)
        return whole(doc)

    monkeypatch.setattr(confidence, "_read", counted)
    doc = nlp(TEXT)
    (ent,) = doc.ents
    known = [ent._.confidence for _ in range(3)]
    assert len(read) == 1 and len(set(known)) == 1
    # Confidences are read again after a new annotation, a change of tokens, and a removal.
    write(doc, "crf_ner", doc._.latent["crf_ner"].spans)
    assert ent._.confidence == known[0] and len(read) == 2
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[ent.end : ent.end + 2])
    assert doc[ent.start : ent.end]._.confidence is None and len(read) == 3
    doc.user_data.clear()
    assert doc[ent.start : ent.end]._.confidence is None


def test_somebody_elses_extension_is_left_alone() -> None:
    before = Span.get_extension("confidence")
    try:
        Span.set_extension("confidence", default="mine", force=True)
        nlp = spacy.blank("en")
        nlp.add_pipe("crf_ner")
        doc = nlp.make_doc("London")
        assert doc[0:1]._.confidence == "mine"
        assert not confidence.register_extension()
        assert confidence.register_extension(force=True)
        assert doc[0:1]._.confidence is None
    finally:
        Span.remove_extension("confidence")
        Span.set_extension("confidence", getter=before[2], force=True)


def test_json_and_displacy(nlp: Language) -> None:
    doc = nlp(TEXT)
    (ent,) = doc.ents
    made = confidence.to_json(doc)
    (entry,) = srsly.json_loads(srsly.json_dumps(made))["ents"]
    assert entry["label"] == "GPE" and math.isclose(entry["confidence"], ent._.confidence)
    del made["ents"][0]["confidence"]
    assert made == doc.to_json()
    assert confidence.to_json(nlp.make_doc("one")) == nlp.make_doc("one").to_json()
    drawn = confidence.to_displacy(doc, digits=3)
    html = displacy.render(drawn, style="ent", manual=True, jupyter=False)
    assert (
        f"GPE {ent._.confidence:.3f}" in html
        and displacy.render(
            drawn, style="ent", manual=True, jupyter=False, options={"ents": ["ORG"]}
        ).count("<mark")
        == 0
    )
    doc.ents = [Span(doc, 2, 3, "<b>", kb_id="<i>")]
    html = displacy.render(confidence.to_displacy(doc), style="ent", manual=True, jupyter=False)
    assert "<b>" not in html and "<i>" not in html and "&lt;b&gt;" in html
    doc = nlp.make_doc("I \x00 like \u202e\x1b London")
    doc.ents = [Span(doc, 2, 3, "\u2066x")]
    doc.user_data["title"] = "a\x07b"
    drawn = confidence.to_displacy(doc)
    html = displacy.render(drawn, style="ent", manual=True, jupyter=False)
    assert not set("\x00\x07\x1b\u202e\u2066") & set(html)
    (entry,) = drawn["ents"]
    assert drawn["text"][entry["start"] : entry["end"]] == "like"
