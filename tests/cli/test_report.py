"""Exit codes, JSON, files and input of ``spacy latent report``, ``stats`` and other commands."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import spacy
import srsly
from spacy.tokens import Doc, DocBin
from spacy.util import load_config, load_model_from_path
from thinc.api import Config

from spacy_latent.cli.corpus import read_counted, read_examples
from spacy_latent.cli.pipelines import short_name
from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.estimators.given_trees import TREES
from tests.cli.commands import json_of, latent, said
from tests.pipeline.keyword_pipelines import CHOICE, TREE, keyword_examples, keyword_pipeline, texts
from tests.pipeline.small_pipelines import TOK2VEC
from tests.pipeline.small_pipelines import examples as small_examples

COMMANDS = (
    "show",
    "report",
    "control",
    "debug",
    "generate",
    "evaluate",
    "evaluate scores",
    "evaluate stats",
    "evaluate attachment",
    "evaluate rationale",
    "evaluate pairs",
    "evaluate compare",
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with pipelines and texts.

    The pipelines are "model", "other", which is untrained, and "choice". The texts are dev.spacy,
    dev.jsonl and dev.txt.
    """
    path = tmp_path_factory.mktemp("saved")
    nlp = keyword_pipeline(TREE, steps=20)
    nlp.to_disk(path / "model")
    keyword_pipeline(TREE, steps=0).to_disk(path / "other")
    keyword_pipeline(CHOICE, steps=20).to_disk(path / "choice")
    examples = keyword_examples(nlp, 30)
    DocBin(docs=[e.reference for e in examples]).to_disk(path / "dev.spacy")
    rows = [
        {
            "text": e.reference.text,
            "cats": e.reference.cats,
            "heads": [token.head.i for token in e.reference],
            "deps": [token.dep_ for token in e.reference],
            "id": 7,
        }
        for e in examples
    ]
    srsly.write_jsonl(path / "dev.jsonl", rows)
    (path / "dev.txt").write_text("\n".join(t for t, _ in texts(5, 1)) + "\n", encoding="utf8")
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    shown = said(*command.split(), "--help")
    if command not in ("show", "generate", "evaluate"):
        assert "Examples:" in shown and f"spacy latent {command}" in shown


def test_report(saved: Path, tmp_path: Path) -> None:
    page, log = tmp_path / "new" / "report.html", tmp_path / "train.jsonl"
    row = {"step": 5, "losses": {"textcat": 1.0}, "scores": {"cats_score": 9.0}, "score": 0.1}
    srsly.write_jsonl(log, [row, {**row, "step": 9}])
    arguments = (saved / "model", saved / "dev.spacy", page)
    shown = said("report", *arguments, "-l", log, "-o", saved / "other")
    assert "Random trees in the place of the single best ones, at prediction only, cost" in shown
    assert "report.html" in shown and "No better than a control" in shown
    html = page.read_text(encoding="utf8")
    assert "Latent structures of" in html and "Loss of textcat" in html
    assert f"accuracy of {saved.name}/other" in html
    first = latent("report", *arguments, "--json").stdout
    found = srsly.json_loads(first)
    assert found["docs"] == 30 and found["task"]["measures"]["accuracy"]["value"] > 0.7
    assert {"level", "code", "text"} <= set(found["verdicts"]["latent_encoder"][0])
    again = page.read_bytes()
    assert latent("report", *arguments, "--json").stdout == first and page.read_bytes() == again


def test_texts_without_tokens_and_unknown_labels_are_told(saved: Path, tmp_path: Path) -> None:
    rows = srsly.read_jsonl(saved / "dev.jsonl")
    odd = [{"text": ""}, {"text": "a b c", "cats": {"mixed": 1.0, "good": 0.0}}, {"text": ""}]
    srsly.write_jsonl(tmp_path / "dev.jsonl", [*rows, *odd])
    nlp = spacy.load(saved / "model")
    references = [e.reference for e in read_examples(nlp, str(tmp_path / "dev.jsonl"))]
    DocBin(docs=[Doc(nlp.vocab), *references, Doc(nlp.vocab)]).to_disk(tmp_path / "dev.spacy")
    page = tmp_path / "report.html"
    for corpus in ("dev.jsonl", "dev.spacy"):
        shown = said("report", saved / "model", tmp_path / corpus, page, "--no-random")
        assert "2 texts without tokens were left out." in shown
        assert (
            "categories of the references have a label that the pipeline does not know: " in shown
        )
        assert "mixed" in shown
        html = page.read_text(encoding="utf8")
        assert "2 texts without tokens were left out." in html and "31 docs, " in html
        arguments = (saved / "model", tmp_path / corpus, page)
        found = json_of("report", *arguments, "--no-random", "--json")
        assert found["docs"] == 31 and found["left_out"] == 2
        assert found["task"]["unknown_labels"] == {"categories": ["mixed"]}
    assert "2 texts without tokens" in said(
        "evaluate", "stats", saved / "model", tmp_path / "dev.jsonl"
    )
    # A corpus without these mistakes has no such messages.
    shown = said("report", saved / "model", saved / "dev.spacy", page, "--no-random")
    assert "left out" not in shown and "does not know" not in shown
    assert "Read first" not in page.read_text(encoding="utf8")
    # With a limit, only texts without tokens before the last read text are counted.
    assert read_counted(nlp, str(tmp_path / "dev.spacy"), 3)[1] == 1
    assert len(read_examples(nlp, str(tmp_path / "dev.spacy"))) == 31
    (tmp_path / "empty.txt").write_text("\n\n", encoding="utf8")
    shown = said("report", saved / "model", tmp_path / "empty.txt", page, code=1)
    assert "holds no texts with tokens" in shown


def test_scores_of_several_corpora(saved: Path, tmp_path: Path) -> None:
    metrics = tmp_path / "new" / "scores.json"
    corpora = (saved / "dev.spacy", saved / "dev.jsonl")
    # Two corpora with the same name could not be distinguished.
    assert "one name" in said("evaluate", "scores", saved / "model", *corpora, code=1)
    other = tmp_path / "few.jsonl"
    other.write_text((saved / "dev.jsonl").read_text(encoding="utf8"), encoding="utf8")
    shown = said("evaluate", "scores", saved / "model", corpora[0], other, "--metrics", metrics)
    assert "cats_score" in shown and "few" in shown
    found = srsly.read_json(metrics)
    nlp = spacy.load(saved / "model")
    wanted = nlp.evaluate(read_examples(nlp, str(corpora[0])))
    assert found["cats_macro_f"] == pytest.approx(wanted["cats_macro_f"])
    assert found["few cats_macro_f"] == pytest.approx(wanted["cats_macro_f"])
    assert "speed" not in found
    first = json_of("evaluate", "scores", saved / "model", corpora[0], "-n", 2, "--json")
    assert not any(key.startswith("dev ") for key in first)
    assert "cannot be loaded" in said("evaluate", "scores", tmp_path, corpora[0], code=1)


def test_texts_without_annotation_have_no_scores(saved: Path, tmp_path: Path) -> None:
    shown = said("evaluate", "scores", saved / "model", saved / "dev.txt", code=1)
    assert "it cannot be evaluated: textcat needs categories" in shown and "cats_score" not in shown
    srsly.write_jsonl(tmp_path / "named.jsonl", [{"text": "a", "label": "A"}])
    shown = said("evaluate", "scores", saved / "model", tmp_path / "named.jsonl", code=1)
    assert "(there is 'text', 'label')" in shown and "'cats'" in shown
    srsly.write_jsonl(tmp_path / "words.jsonl", [{"text": "a", "cats": {"A": "yes"}}])
    shown = said("evaluate", "scores", saved / "model", tmp_path / "words.jsonl", code=1)
    assert "'cats' has 'A': 'yes'; expected a number" in shown
    # One corpus without annotation is an error, even if the other has some.
    bare = tmp_path / "bare.txt"
    bare.write_text("a text\n", encoding="utf8")
    shown = said("evaluate", "scores", saved / "model", saved / "dev.spacy", bare, code=1)
    assert "bare.txt have no annotation" in shown.replace("- ", "-")


def test_labels_that_only_the_texts_have_are_named_beside_the_scores(
    saved: Path, tmp_path: Path
) -> None:
    rows = [*srsly.read_jsonl(saved / "dev.jsonl"), {"text": "a b", "cats": {"mixed": 1.0}}]
    srsly.write_jsonl(tmp_path / "new.jsonl", rows)
    result = latent("evaluate", "scores", saved / "model", tmp_path / "new.jsonl")
    assert "does not know: mixed" in " ".join(result.stderr.split())
    assert "cats_score" in result.stdout and "mixed" not in result.stdout


def test_a_component_without_references_is_named_beside_the_scores_of_others(
    saved: Path, tmp_path: Path
) -> None:
    nlp = spacy.load(saved / "model")
    nlp.add_pipe("crf_ner", config={"model": {"tok2vec": TOK2VEC}})
    nlp.get_pipe("crf_ner").add_label("GPE")  # type: ignore[attr-defined]
    nlp.get_pipe("crf_ner").model.initialize()  # type: ignore[attr-defined]
    nlp.to_disk(tmp_path / "both")
    result = latent("evaluate", "scores", tmp_path / "both", saved / "dev.spacy", "--json")
    told = " ".join(result.stderr.split())
    assert "has entities, so crf_ner cannot be evaluated" in told
    # Standard output is only JSON.
    assert srsly.json_loads(result.stdout)["cats_score"] > 0


def test_a_trivial_structure_can_fail_a_build(saved: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    latent("report", saved / "other", saved / "dev.spacy", page, "--fail-trivial", code=2)
    assert "No better than a control" in page.read_text(encoding="utf8")
    latent("report", saved / "other", saved / "dev.spacy", page)
    latent("report", saved / "choice", saved / "dev.spacy", page, "--fail-trivial")
    said_on_page = page.read_text(encoding="utf8")
    # The task depends on the choice, but another choice may be as good.
    assert "Whether the selections help was not tested" in said_on_page
    assert "No sign of triviality" not in said_on_page


def test_the_help_of_a_control_names_all_trees() -> None:
    shown = said("control", "--help")
    assert [trees for trees in TREES if trees not in shown] == []


def test_a_control_is_trained_and_compared(saved: Path, tmp_path: Path) -> None:
    config, corpus = saved / "model" / "config.cfg", saved / "dev.spacy"
    training = ("--paths.train", corpus, "--paths.dev", corpus, "--training.max_steps", 4)
    training = (*training, "--training.eval_frequency", 2)
    directory = tmp_path / "new" / "flat"
    shown = said("control", config, "--trees", "flat", "-o", directory, *training)
    assert "components.latent_encoder.model.estimator:" in shown and "trees = 'flat'" in shown
    assert f"--control {directory}" in shown.replace("- ", "-")
    changed = Config().from_disk(directory / "control.cfg", interpolate=False)
    estimator = changed["components"]["latent_encoder"]["model"]["estimator"]
    assert estimator["@misc"] == "spacy-latent.GivenTrees.v1" and estimator["trees"] == "flat"
    assert changed["training"]["max_steps"] == 4
    trained = spacy.load(directory / "model-best")
    assert trained("a b c")._.latent["latent_encoder"].heads.tolist() == [0, 0, 0]
    page, arguments = tmp_path / "page.html", (saved / "model", corpus, tmp_path / "page.html")
    twice = f"flat={directory},{directory / 'model-last'}"
    shown = said("report", *arguments, "--control", twice, "--control", saved / "other")
    assert "for the control flat, the same model trained with flat trees" in shown
    assert "(mean of 2 trainings)" in shown and "two standard deviations" in shown
    assert "training.max_steps" in shown, "which the control has otherwise"
    html = page.read_text(encoding="utf8")
    assert "Do the trees help?" in html and "flat: the same model trained with flat trees" in html
    assert f"{saved.name}/other: another pipeline" in html
    found = json_of("report", *arguments, "--control", twice, "--json")
    row = found["trained"]["measures"]["accuracy"]
    assert len(row["controls"]["flat"]["seeds"]) == 2 and row["controls"]["flat"]["spread"] >= 0
    same = ("--control", directory, "--control", directory)
    assert "Two controls are called" in said("report", *arguments, *same, code=1)
    assert "names no directory" in said("report", *arguments, "--control", "a=,", code=1)


def test_a_control_that_cannot_be(saved: Path, tmp_path: Path) -> None:
    config, output = saved / "model" / "config.cfg", ("-o", tmp_path / "control")
    assert "does not exist" in said("control", tmp_path / "none.cfg", *output, code=1)
    shown = said("control", config, *output, "--trees", "up", code=1)
    assert "'up'; expected 'random'" in shown
    shown = said("control", config, *output, "--component", "tree", code=1)
    assert "no component 'tree'" in shown
    shown = said("control", saved / "choice" / "config.cfg", *output, code=1)
    assert "GivenTrees" in shown and "KOfN" in shown
    shown = said("control", config, *output, "--paths.train", "null", code=1)
    assert "--paths.train" in shown
    shown = said("control", config, *output, "--training.max_steps", "many", code=1)
    assert "max_steps" in shown
    assert not list((tmp_path / "control").iterdir()), "a config of a control without a model"
    # The config of an earlier control is kept, and the config that is read not replaced.
    earlier = tmp_path / "earlier" / "control.cfg"
    earlier.parent.mkdir()
    earlier.write_text("before", encoding="utf8")
    said("control", config, "-o", earlier.parent, "--paths.train", "null", code=1)
    assert earlier.read_text(encoding="utf8") == "before"
    config_text = config.read_text(encoding="utf8")
    earlier.write_text(config_text, encoding="utf8")
    assert "is read" in said("control", earlier, "-o", earlier.parent, code=1)
    assert earlier.read_text(encoding="utf8") == config_text
    for name in ("train", "dev"):
        given = {"train": saved / "dev.spacy", "dev": saved / "dev.spacy"}
        given[name] = tmp_path / "none.spacy"
        paths = [f"--paths.{one}={path}" for one, path in given.items()]
        shown = said("control", config, *output, *paths, code=1)
        assert f"[corpora.{name}]" in shown and "does not exist" in shown
    # A setting that has a default may be left out of the config.
    short = Config().from_disk(config, interpolate=False)
    del short["training"]["dev_corpus"]
    short.to_disk(tmp_path / "short.cfg")
    paths = ["--paths.train", tmp_path / "none.spacy", "--paths.dev", saved / "dev.spacy"]
    assert "[corpora.train]" in said("control", tmp_path / "short.cfg", *output, *paths, code=1)
    assert not (tmp_path / "control" / "model-best").exists()


def test_stats(saved: Path) -> None:
    shown = said("evaluate", "stats", saved / "model", saved / "dev.spacy")
    assert "depth" in shown and "balanced trees" in shown and "Agreement with reference" in shown
    found = json_of("evaluate", "stats", saved / "model", saved / "dev.jsonl", "--json")
    part = found["components"]["latent_encoder"]
    assert part["spans"] == 30 and part["random"] == {} and "reference" in part
    lines = "\n".join(text for text, _ in texts(4, 1))
    found = json_of("evaluate", "stats", saved / "model", "--json", text=lines)
    assert found["docs"] == 4 and found["task"]["measures"] == {}
    found = json_of("evaluate", "stats", saved / "model", saved / "dev.txt", "--json", "-n", 2)
    assert found["docs"] == 2


def test_compare_pipelines(saved: Path) -> None:
    models, corpus = (saved / "model", saved / "other"), saved / "dev.spacy"
    shown = said("evaluate", "compare", *models, "--corpus", corpus)
    assert "behind the first" in shown and "Agreement on the trees of latent_encoder" in shown
    found = json_of("evaluate", "compare", *models, "--corpus", corpus, "--json")
    assert found["models"] == [f"{saved.name}/model", f"{saved.name}/other"]
    matrix = found["components"]["latent_encoder"]["others"]["matrix"]
    assert matrix[0][0] == matrix[1][1] == 1.0 and matrix[0][1] == matrix[1][0] < 1.0
    assert "--corpus" in said("evaluate", "compare", *models, code=1)


def test_a_baseline_without_a_structure_is_compared_by_its_score(
    saved: Path, tmp_path: Path
) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("textcat")
    examples = keyword_examples(nlp, 4)
    nlp.initialize(lambda: examples)
    nlp.to_disk(tmp_path / "baseline")
    corpus = saved / "dev.spacy"
    models = [saved / "model", tmp_path / "baseline", saved / "other"]
    found = json_of("evaluate", "compare", *models, "--corpus", corpus, "--json")
    assert all("accuracy" in measures for measures in found["others"].values())
    assert found["components"]["latent_encoder"]["others"]["names"] == [f"{saved.name}/other"]
    for ordered in (models, models[1:]):
        shown = said("evaluate", "compare", *ordered, "--corpus", corpus)
        assert shown.count("accuracy") == len(ordered)
    page = tmp_path / "page.html"
    said("report", models[1], corpus, page, "--other", models[1])
    html = page.read_text(encoding="utf8")
    assert "Scores of " in html and "compared with the scores of others" in html


def test_compare_evaluations(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    srsly.write_json(first, {"cats_score": 0.5, "speed": 1000.4, "only": 1.0, "per": {"x": 1}})
    srsly.write_json(second, {"cats_score": 0.625, "speed": 2000.0})
    shown = said("evaluate", "compare", first, second)
    assert "cats_score 50.0 62.5" in shown and "words/s 1,000 2,000" in shown
    assert "Left out, since not every evaluation has it: only" in shown
    numbers = tmp_path / "numbers.json"
    srsly.write_json(numbers, {"cats_mse": 0.25, "cats_r2": 0.5})
    shown = said("evaluate", "compare", numbers, numbers)
    assert "cats_mse 0.25 0.25" in shown and "cats_r2 50.0 50.0" in shown
    namesake = tmp_path / "later" / "a.json"
    namesake.parent.mkdir()
    srsly.write_json(namesake, {"cats_score": 0.75})
    shown = said("evaluate", "compare", first, namesake)
    assert f"{tmp_path.name}/a later/a" in shown and "cats_score 50.0 75.0" in shown
    srsly.write_json(namesake, {"ents_f": 0.75})
    assert "no score in common" in said("evaluate", "compare", first, namesake, code=1)
    found = json_of("evaluate", "compare", first, second, "--json")
    assert found["scores"] == {"cats_score": [0.5, 0.625], "speed": [1000.4, 2000.0]}
    second.write_text("{", encoding="utf8")
    assert "no JSON" in said("evaluate", "compare", first, second, code=1)
    second.write_text("{}", encoding="utf16")
    shown = said("evaluate", "compare", first, second, code=1)
    assert "UTF-16" in shown and "no JSON" not in shown
    second.write_text("[1]", encoding="utf8")
    assert "holds no scores" in said("evaluate", "compare", first, second, code=1)
    assert "does not exist" in said("evaluate", "compare", tmp_path / "none.json", code=1)
    shown = said("evaluate", "compare", first, tmp_path, code=1)
    assert "not both" in shown and "--corpus" in shown


def test_debug(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = said("debug", saved / "model", "--corpus", saved / "dev.spacy")
    assert "SpanningTree(" in shown and "Norms of the gradients" in shown
    assert "No mistake was found" in shown
    with monkeypatch.context() as patch:
        patch.setattr("spacy.util.is_package", lambda name: name == "en_installed")
        patch.setattr("spacy.load", lambda name: load_model_from_path(saved / "model"))
        installed = said("debug", "en_installed", "--corpus", saved / "dev.spacy")
    assert "Norms of the gradients" in installed and "No mistake was found" in installed
    found = json_of("debug", saved / "model", "--json")
    assert found["gradients"] == {}
    assert [f["code"] for f in found["findings"] if f["level"] != "note"] == []
    config = saved / "model" / "config.cfg"
    run_it = ("debug", config, "--corpus", saved / "dev.spacy", "--json")
    found = json_of(*run_it, "-n", 6, "--steps", 2)
    assert found["gradients"]["latent_encoder"]["scorer"] > 0
    assert found["layers"]["latent_encoder"]["learn rate"]["scorer"] == 0.001
    changed = load_config(config)
    changed["components"]["latent_encoder"] = {"source": str(saved / "model")}
    changed["training"]["frozen_components"] = ["latent_encoder"]
    changed.to_disk(saved / "frozen.cfg")
    found = json_of("debug", saved / "frozen.cfg", *run_it[2:], code=1)
    assert "frozen-encoder" in {finding["code"] for finding in found["findings"]}


def test_debug_of_entities_with_an_embedder_of_their_own(tmp_path: Path) -> None:
    """Mistakes are reported and gradients are checked even without a latent structure."""
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec")
    nlp.add_pipe("crf_ner", config={"model": {"tok2vec": TOK2VEC}})
    nlp.config.to_disk(tmp_path / "base.cfg")
    DocBin(docs=[e.reference for e in small_examples(nlp)]).to_disk(tmp_path / "dev.spacy")
    run_it = ("debug", tmp_path / "base.cfg", "--corpus", tmp_path / "dev.spacy")
    assert "No component listens to tok2vec" in said(*run_it)
    found = json_of(*run_it, "--json")
    assert found["layers"] == {} and found["gradients"]["crf_ner"]["head"] > 0


@pytest.mark.parametrize("name", ["crf_ner", "latent_textcat"])
def test_debug_without_texts_says_nothing_of_their_labels(tmp_path: Path, name: str) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe(name, config={"model": {"tok2vec": TOK2VEC}})
    nlp.config.to_disk(tmp_path / "base.cfg")
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        code = 0 if name == "crf_ner" else 1
        shown = said("debug", tmp_path / "base.cfg", code=code)
    # A crf_ner can be initialized without labels, and a latent_textcat cannot.
    wanted = "Gradients were not checked" if name == "crf_ner" else "no examples to initialize"
    assert wanted in shown and "[corpora.train] has no path" in shown
    assert "no label was found" not in shown


@pytest.mark.parametrize("name", ["crf_ner", "tree_spancat"])
def test_debug_finds_components_that_no_text_gives_a_label(tmp_path: Path, name: str) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe(name, config={"model": {"tok2vec": TOK2VEC}})
    nlp.config.to_disk(tmp_path / "base.cfg")
    examples = small_examples(nlp)
    annotated = [example.reference.copy() for example in examples]
    DocBin(docs=annotated).to_disk(tmp_path / "dev.spacy")
    for example in examples:
        example.reference.set_ents([])
        example.reference.spans["sc"] = []
    DocBin(docs=[e.reference for e in examples]).to_disk(tmp_path / "bare.spacy")
    # Labels may come late in a corpus.
    late = [nlp.make_doc("nothing here")] * 30 + annotated
    DocBin(docs=late).to_disk(tmp_path / "late.spacy")
    for corpus, expected in (("dev.spacy", []), ("late.spacy", []), ("bare.spacy", [name])):
        given = ("debug", tmp_path / "base.cfg", "--corpus", tmp_path / corpus, "--json")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LatentWarning)
            found = json_of(*given, code=len(expected))["findings"]
        of_labels = [one for one in found if one["code"] == "no-labels"]
        assert [one["text"].split(":")[0] for one in of_labels] == expected
    # A trained pipeline has labels, which may be missing in a corpus.
    nlp.initialize(lambda: small_examples(nlp))
    nlp.to_disk(tmp_path / "model")
    DocBin(docs=[nlp.make_doc("I like London")]).to_disk(tmp_path / "plain.spacy")
    for corpus, expected in (("dev.spacy", False), ("plain.spacy", True)):
        given = ("debug", tmp_path / "model", "--corpus", tmp_path / corpus, "--json")
        codes = [one["code"] for one in json_of(*given)["findings"]]
        assert ("no-labels" in codes) == expected


def test_debug_finds_a_parser_that_no_text_gives_a_head(tmp_path: Path) -> None:
    learned = {"@misc": "spacy-latent.CrfAutoencoder.v1"}
    decoder = {"@misc": "spacy-latent.WordsByHeads.v1", "size": 500}
    for evidence, expected in ((None, True), ({**learned, "decoder": decoder}, False)):
        nlp = spacy.blank("en")
        model = {"tok2vec": TOK2VEC, "evidence": evidence}
        nlp.add_pipe("latent_parser", config={"model": model})
        nlp.initialize(lambda nlp=nlp: small_examples(nlp))
        nlp.to_disk(tmp_path / "model")
        for file, docs in (
            ("dev.spacy", [e.reference for e in small_examples(nlp)]),
            ("plain.spacy", [nlp.make_doc("I like London")]),
        ):
            DocBin(docs=docs).to_disk(tmp_path / file)
            given = ("debug", tmp_path / "model", "--corpus", tmp_path / file, "--json")
            codes = [one["code"] for one in json_of(*given)["findings"]]
            assert ("no-labels" in codes) == (expected and file == "plain.spacy")


@pytest.mark.parametrize("name", ["crf_ner", "latent_parser", "tree_spancat"])
def test_a_report_says_that_confidences_cannot_be_judged(tmp_path: Path, name: str) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe(name, config={"model": {"tok2vec": TOK2VEC}, "annotate": "probabilities"})
    examples = small_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.to_disk(tmp_path / "model")
    (tmp_path / "bare.txt").write_text("I like London a lot\n", encoding="utf8")
    page = tmp_path / "page.html"
    shown = said("report", tmp_path / "model", tmp_path / "bare.txt", page, "-c", name)
    assert "cannot be evaluated" in shown and "cannot be evaluated" in page.read_text("utf8")
    DocBin(docs=[e.reference for e in examples]).to_disk(tmp_path / "dev.spacy")
    shown = said("report", tmp_path / "model", tmp_path / "dev.spacy", page, "-c", name)
    assert "cannot be evaluated" not in shown
    # The message for a misspelt name lists the existing names.
    wrong = said("report", tmp_path / "model", tmp_path / "dev.spacy", page, "-c", "x", code=1)
    assert wrong.count(name) == 2


def test_an_impossible_config_is_refused_in_words(saved: Path, tmp_path: Path) -> None:
    config = Config().from_disk(saved / "model" / "config.cfg", interpolate=False)
    one_of_n = {"@misc": "spacy-latent.OneOfN.v1"}
    config["components"]["latent_encoder"]["model"]["structure"] = one_of_n
    config.to_disk(tmp_path / "bad.cfg")
    shown = said("debug", tmp_path / "bad.cfg", "--corpus", saved / "dev.spacy", code=1)
    assert "cannot be trained" in shown and "BiaffineScorer" in shown and "OneOfN" in shown
    config = Config().from_disk(saved / "model" / "config.cfg", interpolate=False)
    config["components"]["textcat"]["model"]["tok2vec"]["upstream"] = "latentencoder"
    config.to_disk(tmp_path / "misspelt.cfg")
    for corpus in (("--corpus", saved / "dev.spacy"), ()):
        shown = said("debug", tmp_path / "misspelt.cfg", *corpus, code=1)
        assert "textcat listens to 'latentencoder'" in shown and "mean 'latent_encoder'?" in shown
    assert "does not exist" in said("debug", tmp_path / "none.cfg", code=1)
    spacy.blank("en").to_disk(tmp_path / "blank")
    assert "no latent structure" in said("debug", tmp_path / "blank", code=1)


def test_bad_input_says_what_to_do(saved: Path, tmp_path: Path) -> None:
    model, page = saved / "model", tmp_path / "page.html"
    assert "does not exist" in said("report", model, tmp_path / "none", page, code=1)
    assert "cannot be loaded" in said("report", tmp_path, saved / "dev.txt", page, code=1)
    empty = tmp_path / "empty.txt"
    empty.write_text("", encoding="utf8")
    assert "holds no texts" in said("evaluate", "stats", model, empty, code=1)
    (tmp_path / "x.jsonl").write_text('{"cats": {}}\n', encoding="utf8")
    assert "line 1" in said("evaluate", "stats", model, tmp_path / "x.jsonl", code=1)
    wrong = '{"text": "fine"}\n{"text": "two of one", "entities": [[0, 3, "A"], [0, 6, "B"]]}\n'
    (tmp_path / "x.jsonl").write_text(wrong, encoding="utf8")
    shown = said("evaluate", "stats", model, tmp_path / "x.jsonl", code=1)
    assert "line 2: 'two' (0 to 3, A) and 'two of' (0 to 6, B) overlap" in shown
    (tmp_path / "x.tsv").write_text("1\n", encoding="utf8")
    assert "[corpora.dev]" in said("evaluate", "stats", model, tmp_path / "x.tsv", code=1)
    (tmp_path / "x.spacy").write_bytes(b"nothing")
    assert "cannot be read" in said("evaluate", "stats", model, tmp_path / "x.spacy", code=1)
    log = ("--training-log", empty)
    assert "no evaluations" in said("report", model, saved / "dev.txt", page, *log, code=1)
    assert "'ner'" in said("evaluate", "stats", model, saved / "dev.txt", "-c", "ner", code=1)
    assert "GPU 0" in said("evaluate", "stats", model, saved / "dev.txt", "-g", 0, code=1)
    assert "--code" in said("evaluate", "stats", model, saved / "dev.txt", "--code", page, code=1)
    assert not page.exists()


def test_code_is_imported_before_the_pipeline_is_made(saved: Path, tmp_path: Path) -> None:
    code = tmp_path / "functions.py"
    code.write_text("raise ZeroDivisionError('it runs')\n", encoding="utf8")
    result = latent("stats", saved / "model", saved / "dev.txt", "--code", code, code=1)
    assert str(code) in result.stderr and "ZeroDivisionError: it runs" in result.stderr


def test_corpora_of_every_form_hold_the_same(saved: Path) -> None:
    nlp = spacy.load(saved / "model")
    ours = read_examples(nlp, str(saved / "dev.spacy"))
    theirs = read_examples(nlp, str(saved / "dev.jsonl"))
    for a, b in zip(ours, theirs, strict=True):
        assert [t.text for t in a.reference] == [t.text for t in b.reference]
        assert a.reference.cats == b.reference.cats
        assert [t.head.i for t in a.reference] == [t.head.i for t in b.reference]
        assert not a.predicted.has_annotation("HEAD") and not a.predicted.cats
    folder = read_examples(nlp, str(saved), limit=3)
    assert len(folder) == 3
    with pytest.raises(LatentError, match="exist"):
        read_examples(nlp, "none.spacy")


def test_names_are_as_long_as_they_must_be() -> None:
    both = ["runs/0/model-best", "runs/1/model-best"]
    assert [short_name(path, both) for path in both] == ["0/model-best", "1/model-best"]
    same = ["a/0/model", "b/0/model"]
    assert [short_name(path, same) for path in same] == same
    assert short_name("dev.spacy") == "dev.spacy"


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_that_no_generator_takes_are_refused(saved: Path, tmp_path: Path, seed: int) -> None:
    page = tmp_path / "page.html"
    latent("report", saved / "model", saved / "dev.spacy", page, "--seed", seed, code=2)
    latent("explain", saved / "model", "a text", "--seed", seed, code=2)
    latent("demo", "--seed", seed, code=2)


def test_an_empty_name_of_a_corpus_is_not_the_present_directory(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable of the shell may be empty, and the directory may have other docs."""
    monkeypatch.chdir(saved)
    model = saved / "model"
    latent("report", model, "", tmp_path / "page.html", code=1)
    for command in ("scores", "stats"):
        latent("evaluate", command, model, "", code=1)


def test_a_report_does_not_replace_its_corpus(saved: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "dev.spacy"
    corpus.write_bytes((saved / "dev.spacy").read_bytes())
    for command in (["report"], ["render", "--format", "svg"]):
        latent(*command, saved / "model", corpus, corpus, code=1)
    assert corpus.read_bytes() == (saved / "dev.spacy").read_bytes()


def test_files_in_place_of_directories_end_without_traceback(saved: Path, tmp_path: Path) -> None:
    latent("demo", "--train", saved / "dev.spacy", code=2)
    (tmp_path / "grid.json").write_text('{"training.dropout": [0.1]}')
    config = saved / "model" / "config.cfg"
    latent("sweep", config, "--grid", tmp_path / "grid.json", "--study", "", code=2)
