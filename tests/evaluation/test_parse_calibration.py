"""Calibration of ``latent_parser``: temperatures of trees and labels, confidences of arcs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.util import fix_random_seed

from spacy_latent.analysis.arc_calibration import judged_arcs
from spacy_latent.analysis.calibration import (
    by_label,
    entity_figures,
    expected_calibration_error,
)
from spacy_latent.analysis.precision_bound import PromisedThreshold, promised_threshold
from spacy_latent.analysis.thresholds import apply_threshold
from spacy_latent.annotations import to_json
from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.evaluation.assessment import assess
from spacy_latent.evaluation.calibration_fit import surprise
from spacy_latent.evaluation.counterfactuals import counterfactual
from spacy_latent.evaluation.parse_calibration import calibrate, measure, measure_sets, precise_arcs
from spacy_latent.interventions import Intervention
from spacy_latent.pipeline.learnt_parse_calibration import ParseCalibration
from tests.cli.commands import json_of, said
from tests.pipeline.test_latent_parser import PARSED, parsed, pipeline

TEXT = "The old dog left"


def trained(updates: int) -> Language:
    fix_random_seed(0)
    nlp = pipeline(annotate="probabilities")
    optimizer = nlp.initialize(lambda: parsed(nlp))
    for _ in range(updates):
        nlp.update(parsed(nlp), sgd=optimizer)
    return nlp


@pytest.fixture(scope="module")
def plain() -> bytes:
    return trained(40).to_bytes()


@pytest.fixture
def nlp(plain: bytes) -> Language:
    return pipeline(annotate="probabilities").from_bytes(plain)


def doubtful(nlp: Language) -> list[Example]:
    """Return texts whose gold tree is the parser's tree in two of three texts."""
    made = []
    for i in range(24):
        heads, deps = ([2, 2, 3, 3], "det amod nsubj ROOT")
        if i % 3 == 2:
            heads, deps = [1, 3, 1, 3], "amod det amod ROOT"
        made += parsed(nlp, (TEXT, heads, deps))
    return made


def probabilities(nlp: Language) -> np.ndarray:
    (span,) = nlp(TEXT)._.latent["latent_parser"].spans
    assert span.probabilities is not None
    return span.probabilities


def error(found: Any) -> float:
    return expected_calibration_error(found.probabilities, found.correct)


def loss(found: Any) -> float:
    return float(surprise(found.probabilities, np.asarray(found.correct, dtype=bool)).mean())


def test_what_was_too_sure_is_so_no_more(nlp: Language, tmp_path: Path) -> None:
    before = nlp(TEXT)
    found = calibrate(nlp, doubtful(nlp))
    assert found.arcs.kept and found.calibration.temperature > 1
    assert found.calibration.docs == 24 and found.calibration.arcs == 96
    assert error(found.arcs.after) < error(found.arcs.before)
    assert error(found.arcs.crossed) < error(found.arcs.before)
    assert loss(found.arcs.after) < loss(found.arcs.before)
    # Labels are fitted given their arcs, so the fit need not improve labelled arcs.
    assert found.labelled.gain.mean > 0 or not found.labelled.kept
    # The parse is unchanged, and the pipeline has the fitted confidences.
    after = nlp(TEXT)
    assert [t.head.i for t in before] == [t.head.i for t in after]
    assert [t.dep_ for t in before] == [t.dep_ for t in after]
    judged = measure(nlp, doubtful(nlp))
    for noun, fit in (("arc", found.arcs), ("labelled arc", found.labelled)):
        assert judged[noun].correct == fit.after.correct
        assert judged[noun].probabilities == pytest.approx(fit.after.probabilities, abs=0.02)
    nlp.to_disk(tmp_path)
    again: Any = spacy.load(tmp_path).get_pipe("latent_parser")
    # Values are rounded to ten digits when they are saved.
    assert again.calibration.shifts == pytest.approx(found.calibration.shifts)
    assert again.calibration.temperature == pytest.approx(found.calibration.temperature)
    # Without a map, the confidences of a word's heads still sum to 1.
    plain = calibrate(nlp, doubtful(nlp), confidence=False)
    assert not plain.confidences.kept and plain.calibration.slope == 1
    nlp.get_pipe("latent_parser").cfg["threshold"] = 0.0  # type: ignore[union-attr]
    (span,) = nlp(TEXT)._.latent["latent_parser"].spans
    assert np.bincount(span.parts[:, 1], span.probabilities)[1:] == pytest.approx(1, abs=1e-4)


def test_a_fit_without_a_sure_gain_is_not_kept(nlp: Language) -> None:
    pipe: Any = nlp.get_pipe("latent_parser")
    pipe.calibration = calibrate(nlp, doubtful(nlp)).calibration
    # Two texts show no sure gain. The earlier calibration is dropped, since it was not compared.
    found = calibrate(nlp, parsed(nlp, *PARSED[2:3], (TEXT, [1, 3, 1, 3], "amod det amod ROOT")))
    assert not found.arcs.kept and found.calibration.temperature == 1
    assert not found.confidences.kept and not found.calibration.changes_odds
    assert found.arcs.before.probabilities == pytest.approx(found.arcs.after.probabilities)
    assert pipe.calibration is None or found.labelled.kept


def test_words_without_heads_do_not_count(nlp: Language) -> None:
    whole = calibrate(nlp, doubtful(nlp))
    partly = doubtful(nlp)
    for text in ("He left", "She saw him"):
        partly.append(Example(nlp.make_doc(text), nlp.make_doc(text)))
    found = calibrate(nlp, partly)
    assert found.arcs.before.unannotated == 5 and found.calibration.arcs == 96
    assert found.calibration.temperature == pytest.approx(whole.calibration.temperature, rel=1e-3)
    with pytest.raises(LatentError, match="heads"):
        calibrate(nlp, partly[-2:])
    with pytest.raises(LatentError, match=r"'tagger'.*latent_parser"):
        calibrate(nlp, partly, "tagger")


def test_parts_of_a_word_of_the_reference_are_not_judged(nlp: Language) -> None:
    """The reference has "olddog" as one word, with the head that each of its parts might have."""
    reference = Doc(
        nlp.vocab,
        words=["The", "olddog", "left"],
        heads=[1, 2, 2],
        deps=["det", "nsubj", "ROOT"],
    )
    words, spaces = ["The", "old", "dog", "left"], [True, False, True, True]
    example = Example(Doc(nlp.vocab, words=words, spaces=spaces), reference)
    found = measure(nlp, [example])
    arcs = found["arc"]
    # The head of "The" is one of the parts, so it is not known either.
    assert (len(arcs.correct), arcs.unannotated, found["tree"].unannotated) == (1, 3, 1)
    assert not found["tree"].correct
    example.predicted = nlp(Doc(nlp.vocab, words=words, spaces=spaces))
    assert len(judged_arcs([example], "latent_parser")["arc"].correct) == 1


def test_arcs_are_judged_by_head_and_label(nlp: Language) -> None:
    rows = (TEXT, [2, 2, 3, 3], "det WRONG nsubj ROOT"), (TEXT, [1, 3, 1, 3], "det amod x ROOT")
    examples = parsed(nlp, *rows)
    for example in examples:
        example.predicted = nlp(example.predicted)
    found = judged_arcs(examples, "latent_parser")
    assert [t.head.i for t in examples[0].predicted] == [2, 2, 3, 3]
    assert found["arc"].correct == [True] * 4 + [False, False, False, True]
    # The label of a root does not count.
    assert found["labelled arc"].correct == [True, False, True, True] + [False] * 3 + [True]
    pairs = zip(found["arc"].probabilities, found["labelled arc"].probabilities)
    assert all(both <= arc + 1e-6 for arc, both in pairs)


def test_it_ends_with_the_weights_that_it_is_of(nlp: Language) -> None:
    calibrate(nlp, doubtful(nlp))
    pipe: Any = nlp.get_pipe("latent_parser")
    with pytest.warns(LatentWarning, match="is removed"):
        nlp.update(parsed(nlp), sgd=nlp.resume_training())
    assert pipe.calibration is None
    for wrong in (
        3,
        {"temperature": 0.0},
        {"heat": 1.0},
        {"arcs": "many"},
        {"slope": 0.0},
        {"shift": float("nan")},
        {"shift": 10**400},
        {"shifts": 1.0},
        {"shifts": {"det": True}},
        {"shifts": {"det": float("inf")}},
        {"shifts": {"GPE": 1.0}},
        {"coverage": 0.9},
        {"coverage": 1.5, "least": 0.1},
        {"coverage": "0.9", "least": 0.1},
    ):
        with pytest.raises(LatentError, match="numbers"):
            ParseCalibration.from_dict(wrong, "latent_parser", ["det", "nsubj"])


def test_the_command_and_the_report(nlp: Language, tmp_path: Path) -> None:
    model, dev, output = tmp_path / "model", tmp_path / "dev.spacy", tmp_path / "out"
    nlp.to_disk(model)
    DocBin(docs=[example.reference for example in doubtful(nlp)]).to_disk(dev)
    shown = said("calibrate", model, dev, output, "--test", dev)
    assert "24 texts with 96 arcs" in shown and "temperature of trees" in shown
    assert "Labelled arcs of the further texts at or above a confidence" in shown
    assert spacy.load(output).get_pipe("latent_parser").calibration.temperature > 1  # type: ignore[union-attr]
    found = json_of("calibrate", model, dev, tmp_path / "json", "--json")
    assert found["arc"]["after"]["error"] < found["arc"]["before"]["error"]
    assert found["arc"]["by_length"][0]["name"] == "root"
    assert sum(one["count"] for one in found["arc"]["by_label"]) == 96
    for options in (
        ("--precision", 0.99),
        ("--few",),
        ("--point-estimate",),
        ("--confidence", 0.9),
        ("--coverage", 0.99),
        ("--biases",),
    ):
        shown = said("calibrate", model, dev, tmp_path / "no", *options, code=1)
        assert options[0].strip("-") in shown
        assert not (tmp_path / "no").exists()
    assert found["calibration"]["shifts"]["det"] < 0 and found["confidence"]["gain"]["kept"]
    sets = json_of(
        "calibrate", model, dev, tmp_path / "sets", "--json", "--coverage", 0.8, "--test", dev
    )
    assert sets["test_coverage"] >= 0.8 and sets["test_texts"] == 24
    assert sets["set_size"] == sets["test_set_size"] >= 0.8
    shown = said("calibrate", model, dev, tmp_path / "shown", "--coverage", 0.8, "--test", dev)
    assert "sets with coverage 0.8" in shown and "averaged over 24 texts" in shown
    plain = json_of("calibrate", model, dev, tmp_path / "plain", "--json", "--no-slope")
    assert plain["calibration"]["shifts"] == {} and plain["calibration"]["slope"] == 1
    page = tmp_path / "report.html"
    shown = said("report", output, dev, page)
    assert "latent_parser: labelled arcs" in shown and "96 labelled arcs" in shown
    html = page.read_text(encoding="utf8")
    assert "latent_parser: labelled trees" in shown
    assert html.count("reliability diagram:") == 4
    assert "Confidence of the labelled arcs of" in html and "of the entities of" not in html
    assert 'href="#confidence-latent_parser-labelled-arcs"' in html
    assert 'id="confidence-latent_parser-labelled-arcs"' in html
    assert said("report", output, dev, page, "--component", "latent_parser") == shown


def test_arcs_of_the_best_tree_below_the_threshold_keep_their_probability(nlp: Language) -> None:
    """Each head has a small probability in a sentence of many equal words."""
    pipe: Any = nlp.get_pipe("latent_parser")
    words = ["word"] * 300
    starts = [i == 0 for i in range(len(words))]

    def found() -> list[list[float]]:
        latent = nlp(Doc(nlp.vocab, words, sent_starts=starts))._.latent["latent_parser"]
        return [
            [arc.probability for arc in arcs] for arcs in (latent.arcs(), latent.dependencies())
        ]

    stored = found()
    threshold, pipe.cfg["threshold"] = pipe.cfg["threshold"], 0.0
    for some, every in zip(stored, found()):
        assert some == pytest.approx(every, rel=1e-4)
        assert 0 < min(some) < threshold
    pipe.cfg["threshold"] = threshold
    reference = Doc(nlp.vocab, words, heads=[0] * len(words), deps=["ROOT"] + ["det"] * 299)
    made = [Example(Doc(nlp.vocab, words, sent_starts=starts), reference)]
    judged = measure(nlp, made)
    reported = assess(nlp, made).figures.entities
    for name, noun in (("latent_parser", "arc"), ("latent_parser: labelled arcs", "labelled arc")):
        # Bins without arcs hold NaN, which is not equal to itself.
        assert repr(reported[name]) == repr(entity_figures(judged[noun]))


def test_a_map_is_kept_beside_temperatures_that_are_not(nlp: Language, tmp_path: Path) -> None:
    model, dev, output = tmp_path / "model", tmp_path / "dev.spacy", tmp_path / "out"
    nlp.to_disk(model)
    DocBin(docs=[example.reference for example in doubtful(nlp)[1:3]]).to_disk(dev)
    shown = said("calibrate", model, dev, output, "--slope")
    calibration = spacy.load(output).get_pipe("latent_parser").calibration  # type: ignore[union-attr]
    assert calibration.temperature == 1 and calibration.changes_odds
    # The map changes probabilities, although the temperatures do not.
    assert "fit is kept" in shown and "no slope and shifts" not in shown


def wrong_determiners(nlp: Language) -> list[Example]:
    """Return texts in which every second arc of "det" is wrong, and all others are right."""
    rows = [(TEXT, [1 + i % 2, 2, 3, 3], "det amod nsubj ROOT") for i in range(240)]
    return parsed(nlp, *rows)


def test_labels_that_are_wrong_more_often_are_less_confident(nlp: Language) -> None:
    def errors(**options: Any) -> dict[str, float]:
        calibrate(nlp, wrong_determiners(nlp), **options)
        groups = by_label(measure(nlp, wrong_determiners(nlp))["arc"])
        return {one.name: abs(one.said - one.right) for one in groups}

    plain, mapped = errors(confidence=False), errors()
    assert plain.keys() == mapped.keys() == {"det", "nsubj", "ROOT"}
    assert all(mapped[label] < 0.06 < plain[label] for label in plain)
    calibration = nlp.get_pipe("latent_parser").calibration  # type: ignore[union-attr]
    assert calibration.shifts["det"] < 0 < calibration.shifts["nsubj"]


def random_texts(nlp: Language, calibration: ParseCalibration) -> list[Example]:
    """Return texts whose arcs are right with the confidences of this calibration."""
    generator, made = np.random.default_rng(0), []
    words = sorted({word for text, *_ in PARSED for word in text.split()})
    for _ in range(200):
        own = [words[i] for i in generator.integers(len(words), size=8)]
        starts = [i == 0 for i in range(len(own))]
        doc = nlp(Doc(nlp.vocab, own, sent_starts=starts))
        heads = [token.head.i for token in doc]
        for arc in doc._.latent["latent_parser"].arcs():
            label = doc[arc.modifier].dep_
            if generator.random() > calibration.confidence(arc.probability or 0.0, label):
                others = {*range(len(own))} - {heads[arc.modifier]}
                heads[arc.modifier] = sorted(others)[generator.integers(len(others))]
        reference = Doc(nlp.vocab, own, heads=heads, deps=[token.dep_ for token in doc])
        made.append(Example(Doc(nlp.vocab, own, sent_starts=starts), reference))
    return made


def test_labels_that_were_added_since_training_count_as_little_as_in_a_parse() -> None:
    nlp = trained(6)
    pipe: Any = nlp.get_pipe("latent_parser")
    for i in range(20):
        pipe.add_label(f"new{i}")
    as_trained = measure(nlp, doubtful(nlp))["labelled arc"]
    found = calibrate(nlp, doubtful(nlp)).labelled.before
    assert found.probabilities == pytest.approx(as_trained.probabilities, abs=1e-5)
    assert found.labels == as_trained.labels


def test_the_threshold_of_annotation_does_not_change_what_is_measured(nlp: Language) -> None:
    pipe: Any = nlp.get_pipe("latent_parser")
    found = calibrate(nlp, doubtful(nlp))
    pipe.cfg["threshold"] = 0.99
    judged = measure(nlp, doubtful(nlp))
    for fit in (found.arcs, found.labelled):
        said = judged[fit.after.noun].probabilities
        assert said == pytest.approx(fit.after.probabilities, abs=0.02)
    assert pipe.cfg["threshold"] == 0.99


def test_a_forced_arc_is_certain(nlp: Language) -> None:
    pipe: Any = nlp.get_pipe("latent_parser")
    pipe.calibration = ParseCalibration(slope=0.5, shift=-1.0)
    # Force the last word as the head of the first one, which no training text has.
    with counterfactual(nlp, {"latent_parser": Intervention(forced=((0, (4, 1)),))}):
        arcs = nlp(TEXT)._.latent["latent_parser"].arcs()
    sure = {arc.modifier: arc.probability for arc in arcs}
    assert arcs[0].head == 3 and sure[0] == pytest.approx(1, abs=1e-6)
    assert all(sure[i] < 0.99 for i in (1, 2, 3))


def test_a_known_map_is_recovered(nlp: Language) -> None:
    pipe: Any = nlp.get_pipe("latent_parser")
    pipe.cfg["threshold"] = 0.0
    true = ParseCalibration(slope=0.4, shift=-0.2, shifts={"det": -0.8, "nsubj": 0.8})
    examples = random_texts(nlp, true)

    def fresh() -> list[Example]:
        return [Example(one.predicted.copy(), one.reference) for one in examples]

    trained = measure(nlp, fresh())["arc"]
    expected = [true.confidence(*pair) for pair in zip(trained.probabilities, trained.labels)]

    def distance(**options: Any) -> float:
        calibrate(nlp, fresh(), **options)
        said = measure(nlp, fresh())["arc"].probabilities
        return float(np.abs(np.subtract(said, expected)).mean())

    assert distance() < 0.03 < distance(confidence=False)


def test_whole_trees_are_as_right_as_is_said(nlp: Language, tmp_path: Path) -> None:
    examples = [one for _ in range(3) for one in doubtful(nlp)]
    found = calibrate(nlp, examples)
    for fit in (found.trees, found.labelled_trees):
        assert len(fit.after.correct) == 72 and sum(fit.after.correct) <= 48
        assert loss(fit.after) < loss(fit.before) and set(fit.after.lengths) == {4}
        assert error(fit.crossed) < error(fit.before)
    # The pipeline has the fitted confidences, and a labelled tree is less probable.
    judged = measure(nlp, [one for _ in range(3) for one in doubtful(nlp)])
    for fit in (found.trees, found.labelled_trees):
        shown = judged[fit.after.noun]
        assert shown.correct == fit.after.correct
        assert shown.probabilities == pytest.approx(fit.after.probabilities, abs=0.02)
    nlp.to_disk(tmp_path)
    (span,) = spacy.load(tmp_path)(TEXT)._.latent["latent_parser"].spans
    assert span.whole_probability == pytest.approx(judged["tree"].probabilities[0], abs=1e-4)
    doc = nlp(TEXT)
    (stored,) = Doc(nlp.vocab).from_bytes(doc.to_bytes())._.latent["latent_parser"].spans
    assert stored.labelled_whole_probability == pytest.approx(span.labelled_whole_probability)


def test_a_tree_needs_all_heads_of_its_words_to_be_known(nlp: Language) -> None:
    whole, partly = parsed(nlp, (TEXT, [2, 2, 3, 3], "det WRONG nsubj ROOT"), PARSED[0])
    partly.reference = Example.from_dict(
        nlp.make_doc(partly.text), {"words": partly.text.split()}
    ).reference
    found = measure(nlp, [whole, Example(nlp.make_doc(partly.text), partly.reference)])
    assert found["tree"].correct == [True] and found["labelled tree"].correct == [False]
    assert found["tree"].unannotated == 1


def judged_with(nlp: Language, words: list[str], starts: list[int], gold: dict[int, Any]) -> Any:
    """Return the judged trees of words with given starts.

    Args:
        starts: Positions of the first words of sentences.
        gold: Gold heads that differ from the parser's, by position. None is an unknown head.
    """
    made = nlp(Doc(nlp.vocab, words, sent_starts=[i in starts for i in range(len(words))]))
    heads: Any = [gold.get(token.i, token.head.i) for token in made]
    deps: Any = [None if head is None else "dep" for head in heads]
    reference = Doc(nlp.vocab, words, heads=heads, deps=deps)
    return judged_arcs([Example(made, reference)], "latent_parser")["tree"]


def test_a_tree_of_a_wrongly_split_sentence_is_wrong(nlp: Language) -> None:
    words = TEXT.split()
    assert judged_with(nlp, words, [0, 3], {}).correct == [True, True]
    # The head of white space does not count.
    spaced = [*words[:3], "\n", "left"]
    assert judged_with(nlp, spaced, [0, 4], {3: 4}).correct == [True, True]
    # A gold arc joins the two sentences, so both trees are wrong.
    assert judged_with(nlp, words, [0, 3], {3: 2}).correct == [False, False]
    # A sentence of the reference with an unknown head is not judged.
    found = judged_with(nlp, words, [0, 3], {3: None})
    assert found.correct == [True] and found.unannotated == 1

    def examples() -> list[Example]:
        made = parsed(nlp, (TEXT, [2, 2, 2, 2], "det amod ROOT dep"))
        made[0].predicted = Doc(nlp.vocab, words, sent_starts=[True, False, False, True])
        return made

    assert measure(nlp, examples())["tree"].correct == [False, False]
    assert calibrate(nlp, examples()).trees.before.correct == [False, False]


def test_trees_in_the_references_are_the_annotated_sentences(nlp: Language) -> None:
    words = TEXT.split()
    assert judged_with(nlp, words, [0, 3], {}).gold == 2
    assert judged_with(nlp, words, [0, 3], {3: 2}).gold == 1
    assert judged_with(nlp, [*words[:3], "\n", "left"], [0, 4], {3: 4}).gold == 2
    # Without known sentences, they are as many as the judged trees.
    assert judged_with(nlp, words, [0, 3], {3: None}).gold == 1
    example = parsed(nlp, (TEXT, [2, 2, 2, 2], "det amod ROOT dep"))
    example[0].predicted = Doc(nlp.vocab, words, sent_starts=[True, False, False, True])
    found = calibrate(nlp, example)
    assert (found.trees.before.gold, found.labelled_trees.before.gold) == (1, 1)


def test_labels_make_no_tree_more_probable(nlp: Language) -> None:
    pipe: Any = nlp.get_pipe("latent_parser")
    pipe.calibration = ParseCalibration(tree_shift=-3.0, labelled_tree_shift=3.0)
    judged = measure(nlp, doubtful(nlp))
    pairs = zip(judged["labelled tree"].probabilities, judged["tree"].probabilities)
    assert all(labelled <= tree for labelled, tree in pairs)


MAPPED = ParseCalibration(
    temperature=2.0, label_temperature=1.5, slope=0.7, shift=-0.3, shifts={"det": 1.0, "amod": -1.0}
)


def test_no_labelled_arc_is_more_confident_than_its_arc(nlp: Language) -> None:
    pipe: Any = nlp.get_pipe("latent_parser")
    pipe.cfg["threshold"], pipe.calibration = 0.0, MAPPED
    (span,) = nlp("old She dog the left saw")._.latent["latent_parser"].spans
    arcs = {tuple(part): p for part, p in zip(span.parts.tolist(), span.probabilities)}
    sums = dict.fromkeys(arcs, 0.0)
    for (head, modifier, _), p in zip(span.labelled_parts.tolist(), span.labelled_probabilities):
        assert p <= arcs[head, modifier]
        sums[head, modifier] += p
    # The probabilities of an arc's labels sum to the probability of the arc.
    assert [sums[part] for part in arcs] == pytest.approx(list(arcs.values()), rel=1e-4)
    pipe.calibration = ParseCalibration(temperature=2.0, label_temperature=1.5)
    (before,) = nlp("old She dog the left saw")._.latent["latent_parser"].spans
    assert np.array_equal(before.decoded, span.decoded)
    odds = {
        tuple(part): MAPPED.confidence(p, span.labels[label])
        for part, p, label in zip(
            before.parts.tolist(), before.probabilities.tolist(), best_labels(before)
        )
    }
    assert [arcs[part] for part in odds] == pytest.approx(list(odds.values()), abs=1e-5)
    assert before.whole_probability == span.whole_probability


def best_labels(span: Any) -> list[int]:
    """Return the most probable label of each arc."""
    found: dict[tuple[int, int], tuple[float, int]] = {}
    for (head, modifier, label), p in zip(
        span.labelled_parts.tolist(), span.labelled_probabilities.tolist()
    ):
        found[head, modifier] = max(found.get((head, modifier), (0.0, 0)), (p, label))
    return [found[tuple(part)][1] for part in span.parts.tolist()]


def test_texts_without_arcs_to_doubt(nlp: Language) -> None:
    pipe: Any = nlp.get_pipe("latent_parser")
    pipe.calibration = MAPPED
    assert nlp("")._.latent["latent_parser"].arcs() == []
    (arc,) = nlp("left")._.latent["latent_parser"].arcs()
    assert arc.head is None and 0.99 < arc.probability <= 1
    # White space has only one possible head, so its confidence is not mapped.
    words = Doc(nlp.vocab, ["left", "\n", "\n"], sent_starts=[True, False, False])
    _, *spaces = nlp(words)._.latent["latent_parser"].arcs()
    assert [arc.probability for arc in spaces] == [1.0, 1.0]
    # The arc of the root is the only one in a text of a single word.
    examples = [one for _ in range(30) for one in parsed(nlp, ("left", [0], "ROOT"))]
    assert len(calibrate(nlp, examples).arcs.after.probabilities) == 30


def test_a_map_is_saved_and_a_pipeline_without_one_is_as_it_was(
    nlp: Language, tmp_path: Path
) -> None:
    pipe: Any = nlp.get_pipe("latent_parser")
    pipe.calibration = MAPPED
    mapped = probabilities(nlp)
    nlp.to_disk(tmp_path / "mapped")
    for again in (
        spacy.load(tmp_path / "mapped"),
        pipeline(annotate="probabilities").from_bytes(nlp.to_bytes()),
    ):
        assert np.array_equal(probabilities(again), mapped)
    # A calibration in the format of an earlier version has no map.
    old = {"temperature": 2.0, "label_temperature": 1.5, "tree_slope": 0.9, "docs": 3, "arcs": 9}
    pipe.cfg["calibration"] = old
    stored = probabilities(nlp)
    assert not np.array_equal(stored, mapped)
    nlp.to_disk(tmp_path / "old")
    again = spacy.load(tmp_path / "old")
    assert again.get_pipe("latent_parser").calibration.changes_odds is False  # type: ignore[union-attr]
    assert np.array_equal(probabilities(again), stored)
    # The probabilities are marginals of trees, so they sum to 1 over the heads of a word.
    pipe.cfg["threshold"] = 0.0
    (span,) = nlp(TEXT)._.latent["latent_parser"].spans
    assert np.bincount(span.parts[:, 1], span.probabilities)[1:] == pytest.approx(1, abs=1e-4)


def test_a_map_is_kept_without_a_gain_if_it_is_asked_for(nlp: Language) -> None:
    few = parsed(nlp, *PARSED[2:3], (TEXT, [1, 3, 1, 3], "amod det amod ROOT"))
    found = calibrate(nlp, few, confidence=True)
    assert found.confidences.kept and not found.confidences.gain.is_sure
    pipe: Any = nlp.get_pipe("latent_parser")
    assert pipe.calibration == found.calibration and pipe.calibration.changes_odds
    judged = measure(nlp, parsed(nlp, *PARSED[2:3], (TEXT, [1, 3, 1, 3], "amod det amod ROOT")))
    for noun, fit in (("arc", found.arcs), ("labelled arc", found.labelled)):
        assert judged[noun].probabilities == pytest.approx(fit.after.probabilities, abs=0.02)


def test_improbable_trees_keep_their_order() -> None:
    calibration = ParseCalibration(tree_slope=0.8, labelled_tree_slope=0.8)
    probabilities = [0.0, 1e-200, 1e-30, 1e-6, 0.5, 1.0]
    confidences = [calibration.tree_confidences(p, p / 2) for p in probabilities]
    for found in zip(*confidences):
        assert list(found) == sorted(set(found)) and 0 <= found[0] and found[-1] <= 1


def test_names_of_documents_are_checked_before_anything_is_parsed(nlp: Language) -> None:
    examples = doubtful(nlp)
    examples[0].reference.user_data["document"] = "a"
    stages = []

    def progress(each: Any, stage: str, total: int) -> Any:
        stages.append(stage)
        return each

    with pytest.raises(LatentError, match="23 docs of 24"):
        calibrate(nlp, examples, progress=progress)
    assert not stages


def test_a_precision_is_promised_of_arcs_and_nothing_is_set(nlp: Language, tmp_path: Path) -> None:
    found = calibrate(nlp, doubtful(nlp))
    least = precise_arcs(found, 0.3, confidence=0.8)
    assert set(least) == {"arc", "labelled arc", "tree"}
    for fit in (found.arcs, found.labelled, found.trees):
        one = least[fit.after.noun]
        assert isinstance(one, PromisedThreshold) and one.bound >= 0.3
        assert one == promised_threshold(fit.after, 0.3, 0.8)
    # Labelled arcs are right less often, so the texts may support a precision only for arcs.
    reached = [apply_threshold(fit.after, 0.0).precision for fit in (found.arcs, found.labelled)]
    assert reached[1] <= reached[0]
    estimate = precise_arcs(found, 0.3, confidence=None)
    assert all(estimate[noun].threshold <= least[noun].threshold for noun in least)
    with pytest.raises(LatentError, match="do not support"):
        precise_arcs(found, 0.99)
    model, dev = tmp_path / "model", tmp_path / "dev.spacy"
    nlp.to_disk(model)
    DocBin(docs=[example.reference for example in doubtful(nlp)]).to_disk(dev)
    arguments = ("calibrate", model, dev)
    shown = said(*arguments, tmp_path / "out", "--precision", 0.3, "--test", dev)
    assert "arcs found in other text are right" in shown
    told = json_of(*arguments, tmp_path / "json", "--precision", 0.3, "--test", dev, "--json")
    row = told["test_least_probability"]["arc"]
    assert row["precision"] >= 0.3
    before, after = (
        spacy.load(path).get_pipe_config("latent_parser") for path in (model, tmp_path / "out")
    )
    assert before == after


def test_documents_count_as_independent(nlp: Language, tmp_path: Path) -> None:
    model, plain, named = tmp_path / "model", tmp_path / "plain.spacy", tmp_path / "named.spacy"
    nlp.to_disk(model)
    docs = [example.reference for example in doubtful(nlp)]
    DocBin(docs=docs).to_disk(plain)
    for i, doc in enumerate(docs):
        doc.user_data.update(document=f"book {i // 2}", shelf=i // 4)
    DocBin(docs=docs, store_user_data=True).to_disk(named)
    lines = tmp_path / "named.jsonl"
    rows: list[dict[str, Any]] = []
    for i, doc in enumerate(docs):
        tree = {"heads": [t.head.i for t in doc], "deps": [t.dep_ for t in doc]}
        rows.append({"words": [t.text for t in doc], "text": doc.text, **tree})
        rows[-1]["meta"] = {"shelf": i // 2}
    srsly.write_jsonl(lines, rows)

    def texts(corpus: Path, *options: Any) -> Any:
        given = ("calibrate", model, corpus, tmp_path / "out", "--force", "--json")
        found = json_of(*given, "--precision", 0.3, *options)
        return found["least_probability"]["arc"]["texts"]

    assert texts(plain) == 24 and texts(named) == 12
    assert texts(plain, "--docs-per-document", 2) == 12
    assert texts(lines) == 24 and texts(lines, "--group-by", "shelf") == 12
    given = ("calibrate", model, named, tmp_path / "out", "--force", "--precision", 0.3)
    assert "12 documents" in said(*given)
    # Fewer than ten documents do not suffice for a promise.
    assert "6 documents" in said(*given, "--group-by", "shelf", code=1)
    shown = said(*given, "--group-by", "volume", code=1)
    assert "document, shelf" in shown
    said(*given, "--docs-per-document", 2, code=1)
    said(*given, "--docs-per-document", 2, "--group-by", "shelf", code=1)


def test_documents_change_what_is_promised_and_not_the_fit(nlp: Language) -> None:
    examples = doubtful(nlp)
    plain = calibrate(nlp, examples)
    for example in examples:
        example.reference.user_data["document"] = "the only one"
    found = calibrate(nlp, examples)
    assert found.calibration == plain.calibration and found.arcs.kept
    for fit in found.fits:
        assert fit.after.by_document and set(fit.after.texts) == {0}
    with pytest.raises(LatentError, match="1 document;"):
        precise_arcs(found, 0.3)


def test_of_several_components_one_is_named(nlp: Language, tmp_path: Path) -> None:
    nlp.add_pipe("crf_ner").add_label("GPE")  # type: ignore[attr-defined]
    nlp.get_pipe("crf_ner").initialize(lambda: parsed(nlp))  # type: ignore[union-attr]
    nlp.to_disk(tmp_path / "model")
    dev = tmp_path / "dev.spacy"
    DocBin(docs=[example.reference for example in doubtful(nlp)]).to_disk(dev)
    arguments = ("calibrate", tmp_path / "model", dev, tmp_path / "out")
    shown = said(*arguments, code=1)
    assert "Several components can be calibrated: crf_ner, latent_parser" in shown
    said(*arguments, "-c", "latent_parser")


def test_texts_without_tokens_are_refused(nlp: Language) -> None:
    empty = Example(nlp.make_doc(""), nlp.make_doc(""))
    for examples in ([], [empty]):
        with pytest.raises(LatentError):
            calibrate(nlp, examples)


@pytest.mark.parametrize("confidence", [True, False])
def test_sets_of_heads_cover_what_was_asked_for(
    nlp: Language, tmp_path: Path, confidence: bool
) -> None:
    found = calibrate(nlp, doubtful(nlp), coverage=0.8, confidence=confidence)
    pipe: Any = nlp.get_pipe("latent_parser")
    assert pipe.calibration.coverage == 0.8 and 0 < pipe.calibration.least < 1
    assert found.covered is not None and found.covered.texts == 24
    assert found.covered.share >= 0.8
    assert measure_sets(nlp, doubtful(nlp)) == found.covered
    pipe.cfg["threshold"] = 0.0
    doc = nlp(TEXT)
    latent = doc._.latent["latent_parser"]
    every = {(arc.head, arc.modifier): arc.probability for arc in latent.arcs(threshold=0.0)}
    sets = {(arc.head, arc.modifier): arc.probability for arc in latent.possible_arcs()}
    # The sets have all arcs with at least the least confidence.
    assert sets.items() <= every.items()
    least = pipe.calibration.least
    assert {arc for arc, said in every.items() if said >= least} == set(sets)
    # Arcs are sorted by modifier and by falling probability.
    order = [(arc.modifier, -(arc.probability or 0)) for arc in latent.possible_arcs()]
    assert order == sorted(order)
    assert to_json(doc, ["latent_parser"])["latent_parser"]["possible"] == [
        [arc.head, arc.modifier, pytest.approx(arc.probability, abs=1e-4)]
        for arc in latent.possible_arcs()
    ]
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)(TEXT)._.latent["latent_parser"].possible_arcs()
    assert [(arc.head, arc.modifier) for arc in again] == list(sets)
    stored = DocBin(docs=[doc], store_user_data=True).to_bytes()
    (copy,) = DocBin(store_user_data=True).from_bytes(stored).get_docs(nlp.vocab)
    assert copy._.latent["latent_parser"].possible_arcs() == latent.possible_arcs()
    for words in ([], ["dog"], [" "]):
        short = nlp(Doc(nlp.vocab, words=words))._.latent["latent_parser"].possible_arcs()
        assert [(arc.head, arc.modifier) for arc in short] == [(None, 0)] * len(words)


def test_sets_are_refused_and_leave_the_parser_as_it_was(nlp: Language) -> None:
    pipe: Any = nlp.get_pipe("latent_parser")
    calibrate(nlp, doubtful(nlp))
    before = dict(pipe.cfg)
    # Gold heads outside of the sentence that the parser finds are in no set.
    far = [example for example in doubtful(nlp) for _ in range(2)]
    for one in far:
        one.predicted = Doc(nlp.vocab, words=TEXT.split(), sent_starts=[True, True, True, True])
    for texts, coverage in ((doubtful(nlp)[:3], 0.9), (far, 0.9), (doubtful(nlp), 1.2)):
        with pytest.raises(LatentError, match="coverage"):
            calibrate(nlp, texts, coverage=coverage)
        assert dict(pipe.cfg) == before
    with pytest.raises(LatentError, match="stored no set"):
        nlp(TEXT)._.latent["latent_parser"].possible_arcs()
    assert measure_sets(nlp, doubtful(nlp)) is None


def test_sets_of_heads_are_the_same_whatever_is_stored_beside_them(nlp: Language) -> None:
    """The stored arcs do not change the sets of heads.

    The flat map gives very improbable arcs a confidence above the least one of the sets.
    """
    pipe: Any = nlp.get_pipe("latent_parser")
    pipe.calibration = ParseCalibration(temperature=0.2, slope=0.3, coverage=0.9, least=0.01)
    found = []
    for pipe.cfg["threshold"] in (0.0, 1e-7, 0.01, 1.0):
        latent = nlp(TEXT)._.latent["latent_parser"]
        found.append([(arc.head, arc.modifier) for arc in latent.possible_arcs()])
    assert len(found[0]) >= 4
    assert all(one == found[0] for one in found)
    pipe.cfg["threshold"] = 0.0
    every = nlp(TEXT)._.latent["latent_parser"].arcs(threshold=0.0)
    assert any(
        arc.probability >= 0.01 and (arc.head, arc.modifier) not in found[0] for arc in every
    )


@pytest.mark.parametrize(
    "settings",
    [{}, {"slope": 1.3, "shift": -0.4}, {"slope": 0.8, "shifts": {"det": 0.9, "amod": -0.7}}],
)
def test_arcs_that_cannot_reach_a_set_are_left_out_of_its_search(
    nlp: Language, settings: dict[str, Any]
) -> None:
    pipe: Any = nlp.get_pipe("latent_parser")
    for least in (0.02, 0.2, 0.9):
        pipe.calibration = ParseCalibration(temperature=2.0, coverage=0.9, least=least, **settings)
        pipe.cfg["threshold"] = 1.0
        latent = nlp(TEXT)._.latent["latent_parser"]
        found = {(arc.head, arc.modifier) for arc in latent.possible_arcs()}
        pipe.cfg["threshold"] = 0.0
        every = nlp(TEXT)._.latent["latent_parser"].arcs(threshold=0.0)
        assert found == {(arc.head, arc.modifier) for arc in every if arc.probability >= least}


@pytest.mark.parametrize("kind", [np.float32, Fraction])
def test_a_coverage_may_be_any_number(nlp: Language, kind: Any) -> None:
    calibrate(nlp, doubtful(nlp), coverage=kind(0.75))
    pipe: Any = nlp.get_pipe("latent_parser")
    assert pipe.calibration.coverage == 0.75


def test_an_interrupt_leaves_the_parser_as_it_was(nlp: Language) -> None:
    pipe: Any = nlp.get_pipe("latent_parser")

    def progress(each: Any, stage: str, total: int) -> Any:
        if "Sets" in stage:
            raise KeyboardInterrupt
        return each

    before = dict(pipe.cfg)
    with pytest.raises(KeyboardInterrupt):
        calibrate(nlp, doubtful(nlp), coverage=0.8, confidence=True, progress=progress)
    assert dict(pipe.cfg) == before


def test_texts_without_heads_are_said_to_measure_no_coverage(nlp: Language, tmp_path: Path) -> None:
    model, dev, test = tmp_path / "model", tmp_path / "dev.spacy", tmp_path / "test.spacy"
    nlp.to_disk(model)
    DocBin(docs=[example.reference for example in doubtful(nlp)]).to_disk(dev)
    DocBin(docs=[nlp.make_doc(TEXT)]).to_disk(test)
    given = ("calibrate", model, dev, tmp_path / "out", "--coverage", 0.8, "--test", test)
    shown = said(*given)
    assert "sets with coverage 0.8" in shown and "nan" not in shown
    assert json_of(*given, "--json", "--force")["test_coverage"] is None


def test_shifts_of_labels_alone_are_a_map_that_is_kept(nlp: Language) -> None:
    found = calibrate(nlp, doubtful(nlp), confidence=False).confidences
    assert not found.kept and not replace(found, shifts={"det": 0.0}).kept
    assert replace(found, shifts={"det": 0.5}).kept
