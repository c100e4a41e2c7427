"""``spacy latent calibrate``, and the output of other commands on calibrated pipelines."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import DocBin

from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.thresholds import apply_threshold, threshold_for
from spacy_latent.cli.calibration_tables import print_calibration, print_gain, print_left_out
from spacy_latent.cli.calibration_thresholds import print_least, print_thresholds
from spacy_latent.errors import LatentWarning
from spacy_latent.evaluation.calibration_fit import Gain
from spacy_latent.evaluation.entity_calibration import Calibrated, EntityCalibration, calibrate
from tests.cli.commands import json_of, latent
from tests.evaluation.test_entity_calibration import TEXT, doubtful
from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized, learn


def run(*arguments: Any, code: int = 0) -> str:
    result = latent(*arguments, code=code)
    return result.stdout if "--json" in arguments else result.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The paths of a pipeline, of annotated texts, and of the output."""
    path = tmp_path_factory.mktemp("calibrate")
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy-latent.CrfTagger.v1", "tok2vec": TOK2VEC}
    nlp.add_pipe("crf_ner", config={"model": model})
    optimizer = initialized(nlp)
    learn(nlp, examples(nlp), 20, optimizer)
    nlp.to_disk(path / "model")
    DocBin(docs=[example.reference for example in doubtful(nlp)]).to_disk(path / "dev.spacy")
    return path / "model", path / "dev.spacy", path / "out"


def test_texts_of_calibration_are_no_test(made: Any, tmp_path: Path) -> None:
    model, dev, _ = made
    copy = tmp_path / "test.spacy"
    copy.write_bytes(dev.read_bytes())
    arguments = ("calibrate", model, dev, tmp_path / "out", "--force", "--json", "--test")
    assert "--test" in latent(*arguments, dev).stderr
    assert "--test" not in latent(*arguments, copy).stderr


def test_what_it_writes_and_prints(made: Any, tmp_path: Path) -> None:
    model, dev, output = made
    arguments = ("calibrate", model, dev, output, "--coverage", 0.8, "--precision", 0.4)
    shown = run(*arguments, "--point-estimate", "--test", dev)
    for said in ("temperature", "48 texts with 24 entities", "sets with coverage 0.8", "100.0 %"):
        assert said in " ".join(shown.split())
    # The pipeline of the fixture stores no probabilities.
    assert "annotate is 'map'" in shown and "precision" in shown and "min_confidence" in shown
    nlp = spacy.load(output)
    pipe: Any = nlp.get_pipe("crf_ner")
    assert pipe.calibration.temperature > 1
    # Half of the entities are right, so the requested precision needs no threshold.
    assert "so min_confidence is 0" in " ".join(shown.split()) and pipe.cfg["min_confidence"] == 0
    assert nlp.config["components"]["crf_ner"]["min_confidence"] == pipe.cfg["min_confidence"]
    # min_confidence is a setting of the config, so it can be changed at loading.
    again = spacy.load(output, config={"components.crf_ner.min_confidence": 0.99})
    assert not again(TEXT).ents and nlp(TEXT).ents
    found = json_of("calibrate", model, dev, tmp_path, "--json", "--test", dev)
    assert found["calibration"]["temperature"] > 1 and found["after"]["gold"] == 24
    assert found["test"] == found["after"] and "min_confidence" not in found
    (entry,) = json_of("show", output, TEXT, "--json")["latent"].values()
    assert entry["entities"][0] in entry["possible"]


def test_a_threshold_that_was_set_for_other_confidences_is_told(made: Any, tmp_path: Path) -> None:
    model, dev, _ = made
    nlp = spacy.load(model, config={"components.crf_ner.min_confidence": 0.25})
    nlp.to_disk(tmp_path / "model")
    told = "min_confidence of crf_ner is 0.25, which was set"
    arguments = ("calibrate", tmp_path / "model", dev, tmp_path / "out", "--force")
    assert told in " ".join(run(*arguments).split())
    anew = run(*arguments, "--precision", 0.4, "--point-estimate")
    assert told not in " ".join(anew.split())
    assert told not in " ".join(run("calibrate", *made[:2], tmp_path / "out", "--force").split())
    # Further training drops the calibration, and the threshold stays.
    run(*arguments)
    nlp = spacy.load(tmp_path / "out")
    with pytest.warns(LatentWarning, match="min_confidence stays 0.25"):
        nlp.update(examples(nlp), sgd=nlp.resume_training())


@pytest.fixture
def few(made: Any, tmp_path: Path) -> Any:
    """The paths of a pipeline, of texts, and of the output. Five of 35 entities are surely right.

    The tagger is surer of the entities in these five texts. It is right in half of the others.
    """
    nlp = spacy.load(made[0], config={"components.crf_ner.annotate": "probabilities"})
    # Without calibration, both confidences round to 1.
    calibrate(nlp, doubtful(nlp))
    places = {"I like London a lot": (7, 13), "Berlin is very grey": (0, 6)}

    def confidence(text: str) -> float:
        (ent,) = nlp(text).ents
        return ent._.confidence

    unsure, sure = sorted(places, key=confidence)
    docs = []
    for text, right in [(sure, True)] * 5 + [(unsure, bool(i % 2)) for i in range(30)]:
        doc = nlp.make_doc(text)
        doc.set_ents([doc.char_span(*places[text], "GPE")] if right else [], default="outside")
        docs.append(doc)
    DocBin(docs=docs).to_disk(tmp_path / "few.spacy")
    return made[0], tmp_path / "few.spacy", tmp_path / "out"


def test_a_threshold_that_keeps_few_is_refused(few: Any) -> None:
    model, dev, output = few
    arguments = ("calibrate", model, dev, output, "--precision", 0.95, "--point-estimate")
    said = " ".join(run(*arguments, code=1).split())
    assert "would keep 5 of 35 entities of the calibration texts (precision 100.0 %" in said
    assert "95 % interval 56.6 % to 100.0 %" in said and "--few" in said
    # The next threshold keeps all 35 entities, of which 5 + 15 are right.
    assert "keeps more is 0.571, for 35" in said
    assert not output.exists()
    # The table shows the precisions that the texts support.
    assert "confidence entities precision" in said
    said = " ".join(run(*arguments, "--few", "--test", dev).split())
    for texts in ("calibration", "further"):
        assert f"keeps 5 of 35 entities of the {texts} texts (precision 100.0 %" in said
        assert f"leaves few entities of the {texts} texts" in said
    assert "recall 25.0 %" in said
    assert spacy.load(output).config["components"]["crf_ner"]["min_confidence"] > 0


def test_what_the_threshold_keeps_of_both_texts_is_told(made: Any, few: Any) -> None:
    model, dev, output = made[0], made[1], few[2]
    given = ("calibrate", model, dev, output, "--precision", 0.5, "--test", few[1])
    arguments = [*given, "--point-estimate"]
    said = " ".join(run(*arguments).split())
    arguments.append("--force")
    assert "of 48 entities of the calibration texts (precision 50.0 %" in said
    assert "Dropping entities of the further texts below" in said
    assert "leaves few" not in said
    found = json_of(*arguments, "--json")
    assert found["test_min_confidence"]["threshold"] == found["min_confidence"]["threshold"]
    assert found["test_min_confidence"]["kept"] == 35
    # The losses are given before and after calibration.
    assert found["losses"]["calibrated"] < found["losses"]["as trained"]
    # These losses are on the texts of the fit, and the message says so.
    assert "mean loss of the texts, as trained:" in said
    assert "loss of texts left out of the fit" not in said
    assert re.search(r"texts, calibrated: [\d.]+, on the texts that it was fitted to", said)
    said = " ".join(run(*arguments, "--biases").split())
    assert "mean loss of texts left out of the fit, temperature and biases:" in said
    assert "that it was fitted to" not in said


def test_a_promise_is_told_with_what_it_costs(few: Any) -> None:
    model, dev, output = few
    arguments = ("calibrate", model, dev, output, "--few", "--confidence", 0.8, "--json")
    found = json_of(*arguments, "--precision", 0.7)["min_confidence"]
    told = (found["kept"], found["promised"], found["confidence"])
    assert told == pytest.approx((5, 0.7, 0.8))
    # All five entities are right.
    assert found["bound"] == pytest.approx(0.2 ** (1 / 5))
    assert (found["recall"], found["full_recall"]) == (0.25, 1.0)
    said = " ".join(run(*arguments[:-1], "--precision", 0.7, "--force").split())
    assert "at least 70 % of the entities found in other text are right" in said
    assert "confidence of 80 % (lower bound 72.5 %)" in said
    assert "recall: 25.0 % with it, 100.0 % without a threshold" in said
    assert "a text is a doc" in said
    # A point estimate gives no lower bound.
    estimated = (*arguments[:5], "--precision", 0.7, "--force", "--point-estimate")
    said = " ".join(run(*estimated).split())
    assert "point estimate" in said and "lower bound" not in said


def test_a_confidence_and_a_point_estimate_exclude_each_other(few: Any) -> None:
    model, dev, output = few
    both = ("--precision", 0.7, "--confidence", 0.8, "--point-estimate")
    run("calibrate", model, dev, output, *both, code=1)
    assert not output.exists()


def test_a_pipeline_without_a_component_to_calibrate_is_named(few: Any, tmp_path: Path) -> None:
    _, dev, output = few
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.to_disk(tmp_path / "other")
    for named in ((), ("--component", "sentencizer"), ("--component", "crf_ner")):
        said = run("calibrate", tmp_path / "other", dev, output, *named, code=1)
        assert "sentencizer" in said and "latent_parser" in said


def test_texts_that_chose_the_checkpoint_are_told(made: Any, tmp_path: Path) -> None:
    model, dev, _ = made
    said = " ".join(run("calibrate", model, dev, tmp_path / "out").split())
    assert "If these texts chose the checkpoint" in said and "'Which texts'" in said
    nlp = spacy.load(model)
    for setting, told in (("dev", "chose the checkpoint of"), ("train", "was trained on")):
        nlp.config["corpora"] = {setting: {"path": str(dev)}}
        nlp.to_disk(tmp_path / setting)
        arguments = ("calibrate", tmp_path / setting, dev, tmp_path / f"out_{setting}")
        said = " ".join(run(*arguments).split())
        assert told in said and "If these texts" not in said
    # The dev texts did not choose model-last.
    nlp.config["corpora"] = {"dev": {"path": str(dev)}}
    nlp.to_disk(tmp_path / "model-last")
    arguments = ("calibrate", tmp_path / "model-last", dev, tmp_path / "out_last")
    assert "If these texts chose" in " ".join(run(*arguments).split())


def test_a_fit_that_does_not_gain_is_not_kept(made: Any, tmp_path: Path) -> None:
    """One wrong entity of forty does not show that the confidences need a correction."""
    nlp = spacy.load(made[0])
    docs = []
    for i in range(40):
        doc = nlp.make_doc("Berlin is very grey")
        doc.set_ents([doc.char_span(0, 6, "GPE")] if i < 39 else [], default="outside")
        docs.append(doc)
    pipe: Any = nlp.get_pipe("crf_ner")
    pipe.cfg["annotate"] = "probabilities"
    DocBin(docs=docs).to_disk(tmp_path / "dev.spacy")
    nlp.to_disk(tmp_path / "model")
    output = tmp_path / "out"
    said = " ".join(run("calibrate", tmp_path / "model", tmp_path / "dev.spacy", output).split())
    found = spacy.load(output).get_pipe("crf_ner").calibration  # type: ignore[union-attr]
    assert "the fit is not kept" in said and found is None
    arguments = ("calibrate", tmp_path / "model", tmp_path / "dev.spacy", output, "--force")
    said = " ".join(run(*arguments, "--slope").split())
    assert "kept, as --slope asks" in said
    found = spacy.load(output).get_pipe("crf_ner").calibration  # type: ignore[union-attr]
    assert found is not None


def test_an_earlier_calibration_is_told(made: Any, tmp_path: Path) -> None:
    model, dev, _ = made
    first = run("calibrate", model, dev, tmp_path / "first")
    again = run("calibrate", tmp_path / "first", dev, tmp_path / "second")
    assert "already" in again and "already" not in first
    assert "already" not in run("calibrate", tmp_path / "first", dev, tmp_path / "third", "--json")


def test_a_pipeline_that_is_there_is_not_overwritten(made: Any, tmp_path: Path) -> None:
    model, dev, _ = made
    output = tmp_path / "out"
    output.mkdir()
    run("calibrate", model, dev, output, "--no-slope")
    before = (output / "crf_ner" / "cfg").read_bytes()
    shown = " ".join(run("calibrate", model, dev, output, "--biases", code=1).split())
    assert "exists" in shown and "Give --force to overwrite it, or another name." in shown
    assert (output / "crf_ner" / "cfg").read_bytes() == before
    run("calibrate", model, dev, output, "--biases", "--force")
    assert (output / "crf_ner" / "cfg").read_bytes() != before
    # The output is checked before the pipeline, which does not exist here.
    taken = tmp_path / "file"
    taken.write_text("mine", encoding="utf8")
    for force in ((), ("--force",)):
        shown = " ".join(run("calibrate", tmp_path / "none", dev, taken, *force, code=1).split())
        assert "is a file" in shown and "OUTPUT is the directory" in shown
    shown = " ".join(run("calibrate", model, dev, tmp_path, "--force", code=1).split())
    assert "holds files that are no pipeline: file, out" in shown
    assert taken.read_text(encoding="utf8") == "mine"


@pytest.mark.parametrize(
    ("annotated", "found", "said"),
    [
        (2, 60, "There are only 2 entities in the annotation, and 60 entities found"),
        (1, 1, "There is only 1 entity in the annotation, and 1 entity found"),
        (60, 2, "There are only 60 entities in the annotation, and 2 entities found"),
        (50, 50, None),
    ],
)
def test_a_fit_to_few_entities_is_warned_of(
    annotated: int, found: int, said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    entities = JudgedEntities([0.9] * found, [True] * found, ["A"] * found, annotated)
    made = EntityCalibration(docs=9, entities=annotated)
    print_calibration(Calibrated(made, {}, {}, entities, entities, [], 0))
    shown = " ".join(capsys.readouterr().out.split())
    assert ("fitted to fewer than 50" in shown) == (said is not None)
    assert said is None or said in shown


def test_a_fit_without_any_found_entity_does_not_call_many_annotated_ones_few(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for found in (JudgedEntities(gold=60), JudgedEntities(gold=60, unannotated=3)):
        made = EntityCalibration(docs=90, entities=60)
        print_calibration(Calibrated(made, {}, {}, found, found, [], 2))
        shown = " ".join(capsys.readouterr().out.split())
        assert "only 60" not in shown and "no confidence of a found entity is checked" in shown
        assert ("can be judged" in shown) == bool(found.unannotated)
        assert "that an earlier component wrote" in shown


def test_labels_that_training_did_not_have_are_told_with_what_comes_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    many = JudgedEntities([0.9] * 60, [True] * 60, ["A"] * 60, 60)
    made = EntityCalibration(docs=90, entities=60)
    print_calibration(Calibrated(made, {}, {}, many, many, [], 1, ("PERSON",)))
    shown = " ".join(capsys.readouterr().out.split())
    assert "have a label that the component was not trained on: PERSON. It cannot find" in shown
    assert "1 text left out of the fit of temperature and biases" in shown
    assert "because an entity has such a label, crosses" in shown
    # If all labels are known, the message does not name labels as a reason.
    print_calibration(Calibrated(made, {}, {}, many, many, [], 2))
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 texts left out" in shown and "because an entity crosses" in shown
    assert "label that" not in shown


def test_missing_annotation_is_told_with_what_comes_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = JudgedEntities([0.9] * 60, [True] * 60, ["A"] * 60, 60, unannotated=2)
    for count, said in ((0, ""), (2, "2 entities found in the further texts were left out")):
        print_left_out("the further texts", replace(found, unannotated=count))
        assert said in " ".join(capsys.readouterr().out.split())
    print_left_out("the further texts", replace(found, unannotated=40))
    shown = " ".join(capsys.readouterr().out.split())
    assert "The further texts: 40 of 100 entities" in shown and "are too high" in shown


def test_further_texts_of_which_little_is_kept_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    fitted = JudgedEntities([0.95] * 40, [True] * 38 + [False] * 2, ["GPE"] * 40, 80)
    further = JudgedEntities([0.5] * 156, [True] * 156, ["GPE"] * 156, 156)
    print_least(apply_threshold(fitted, 0.9156), fitted, further)
    said = " ".join(capsys.readouterr().out.split())
    assert "= 0.9156 keeps 40 of 40 entities of the calibration texts (precision 95.0 %" in said
    assert "keeps 0 of 156 entities of the further texts" in said and "nan" not in said
    assert "leaves few entities of the further texts: 0 of 156" in said
    assert "few entities of the calibration" not in said


@pytest.mark.parametrize("threshold", [0.0, 0.9156])
def test_further_texts_without_annotation_ask_for_no_lower_precision(
    threshold: float, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted = JudgedEntities([0.95] * 100, [True] * 100, ["GPE"] * 100, 100)
    print_least(apply_threshold(fitted, threshold), fitted, JudgedEntities([], [], [], 0))
    said = " ".join(capsys.readouterr().out.split())
    assert "annotated" in said and "lower --precision" not in said


def test_numbers_near_one_are_not_printed_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    sure = JudgedEntities([0.9999] * 3 + [0.99997] * 30, [False] * 3 + [True] * 30, ["A"] * 33, 30)
    least = threshold_for(sure, 0.99)
    assert least is not None
    print_least(least, sure, None)
    print_thresholds(sure, least)
    made = EntityCalibration(coverage=0.9, least=0.99996)
    print_calibration(Calibrated(made, {}, {}, sure, sure, [2], 0))
    said = " ".join(capsys.readouterr().out.split())
    assert "min_confidence = 0.999935 keeps 30 of 33" in said and " 0.999935 30 " in said
    assert "all spans with a probability of at least 0.99996;" in said


def test_each_confidence_has_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    """The confidence 0.90004 is printed as 0.9, so it is in the row of 0.9."""
    found = JudgedEntities(
        [0.90001] * 3 + [0.90004] * 30, [False] * 3 + [True] * 30, ["A"] * 33, 30
    )
    print_thresholds(found, apply_threshold(found, 0.90004))
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [row[1] for row in rows if row[0] == "0.9"] == ["30"]
    assert [row[1] for row in rows if row[0] == "0.8"] == ["33"]


def test_few_entities_are_told_where_all_stay(capsys: pytest.CaptureFixture[str]) -> None:
    few = JudgedEntities([0.9] * 5, [True] * 5, ["A"] * 5, 5)
    least = threshold_for(few, 0.97)
    assert least is not None
    print_least(least, few, None)
    said = " ".join(capsys.readouterr().out.split())
    assert "so min_confidence is 0" in said and "There are only 5 entities" in said


@pytest.mark.parametrize(("slope", "warned"), [(0.158, True), (0.8, False)])
def test_confidences_that_became_flat_are_told(
    slope: float, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = JudgedEntities()
    made = EntityCalibration(slope=slope, shift=1.73, docs=9, entities=9)
    print_calibration(Calibrated(made, {}, {}, nothing, nothing, [], 0))
    said = " ".join(capsys.readouterr().out.split())
    assert f"slope {slope} and shift +1.73" in said
    assert ("may add up to more than 1" in said) == warned
    assert ("a ratio of 100 between two odds becomes 2.1." in said) == warned
    # This message does not depend on the slope.
    assert "less probable than an alternative that has it" in said
    # The first message is true: the confidences of three equally probable labels exceed 1.
    assert 3 * made.confidence(1 / 3, "GPE") > 1


@pytest.mark.parametrize("gain", [Gain(0.1, math.inf), Gain(0.1, 0.2)])
def test_few_docs_of_many_sentences_are_told_how_to_be_split(
    capsys: pytest.CaptureFixture[str], gain: Gain
) -> None:
    for docs, is_told in ((1, True), (9, True), (10, False)):
        print_gain(gain, False, docs)
        assert ("--n-sents 1" in " ".join(capsys.readouterr().out.split())) == is_told


def test_the_report_draws_it(made: Any, tmp_path: Path) -> None:
    model, dev, _ = made
    shown = run("report", model, dev, tmp_path / "report.html")
    assert "expected calibration error" in shown
    page = (tmp_path / "report.html").read_text(encoding="utf8")
    assert page.count("reliability diagram: 48 said") == 1 and "Calibrate the probabilities" in page
    assert "<script" not in page and 'href="#confidence-crf_ner"' in page
    figures = json_of("report", model, dev, tmp_path / "report.html", "--json")
    found = figures["entities"]["crf_ner"]
    assert found["found"] == 48 and found["error"] > found["chance_high"]
    assert sum(one["count"] for one in found["bins"]) == 48
    # This command only reports on latent structures.
    assert "not latent" in run("stats", model, dev, code=1)
    # Scores are compared without latent structures, too.
    found = json_of("compare", model, model, "--corpus", dev, "--json")
    (other,) = found["others"].values()
    assert other and all(measure["drop"][0] == 0.0 for measure in other.values())


def test_the_report_says_that_nothing_is_found(made: Any, tmp_path: Path) -> None:
    """The report is valid for a tagger with a bias against every entity."""
    nlp = spacy.load(made[0])
    pipe: Any = nlp.get_pipe("crf_ner")
    pipe.calibration = EntityCalibration(biases={"GPE": -1000.0})
    nlp.to_disk(tmp_path / "silent")
    page = tmp_path / "report.html"
    shown = " ".join(run("report", tmp_path / "silent", made[1], page).split())
    assert "crf_ner finds no entity, and the references have 24" in shown
    assert "Train it longer" in shown and "calibration error" not in shown
    html = page.read_text(encoding="utf8")
    assert "crf_ner finds no entity" in html and "No entities found, 24 in the references" in html
    assert "nan" not in html and "reliability diagram" not in html
    found = json_of("report", tmp_path / "silent", made[1], page, "--json")
    assert found["entities"]["crf_ner"]["found"] == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--coverage", 1.5), "--coverage is 1.5"),
        (("--coverage", 0.999), "needs at least 999 texts"),
        (("--precision", 0.99, "--point-estimate"), "No threshold has a precision of 0.99"),
        (("--precision", 0.99), "do not support a precision of 0.99 with a confidence of 0.9"),
        (("--precision", 0.5, "--confidence", 1), "--confidence is 1"),
        (
            ("-c", "ner"),
            "'ner' cannot be calibrated. Name one of these (component, --component): crf_ner",
        ),
    ],
)
def test_what_it_refuses(made: Any, tmp_path: Path, options: Any, said: str) -> None:
    model, dev, _ = made
    shown = run("calibrate", model, dev, tmp_path / "out", *options, code=1)
    assert said in " ".join(shown.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("precision", "options", "refused"),
    [
        (97, (), True),
        (1.5, ("--point-estimate",), True),
        (0, (), True),
        (0, ("--point-estimate",), True),
        (1, (), True),
        (1, ("--point-estimate",), False),
    ],
)
def test_a_precision_out_of_range_is_refused_before_anything_is_calibrated(
    made: Any, tmp_path: Path, precision: float, options: tuple[str, ...], refused: bool
) -> None:
    model, dev, _ = made
    given = ("calibrate", model, dev, tmp_path / "out", "--precision", precision, *options)
    said = " ".join(run(*given, code=1).split())
    # Half of the entities are right, so a precision of 1 is also refused, with a table.
    assert (f"--precision is {precision}" in said and "0.97 for 97 %" in said) == refused
    assert ("confidence entities precision" in said) != refused
