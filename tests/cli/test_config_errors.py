"""Messages of commands on mistakes in a config, with the block and the setting."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from spacy import blank
from spacy.cli._util import app
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.util import load_config, load_model_from_config, registry
from thinc.api import Config
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401 (adds the commands)
from spacy_latent.cli.config_errors import errors_with_blocks, unknown_names
from spacy_latent.cli.config_settings import unknown_settings, unread_overrides, unread_settings
from spacy_latent.cli.debug import gradients, initialize
from spacy_latent.cli.pipelines import load
from spacy_latent.errors import IncompatiblePair, LatentError
from tests.cli.commands import latent
from tests.pipeline.small_pipelines import TOK2VEC, examples, latent_pipeline
from tests.repository.recipes import RECIPES

MODEL = "components.latent_encoder.model"


def changed(path: str, **settings: Any) -> Config:
    """Return the config of an encoder and a listener, with changed settings of a block."""
    return with_settings(latent_pipeline("textcat").config.copy(), path, settings)


def with_settings(config: Config, path: str, settings: dict[str, Any]) -> Config:
    """Change settings of a block of the config, and return the config.

    If the settings have a registered name, they replace all settings of the block.
    """
    block = config
    for key in path.split("."):
        block = block[key]
    if any(key.startswith("@") for key in settings):
        block.clear()
    block.update(settings)
    return config


def refused(config: Config) -> LatentError:
    with pytest.raises(LatentError) as raised, errors_with_blocks(config):
        load_model_from_config(config, auto_fill=True)
    return raised.value


@pytest.mark.parametrize("name", ["SpaningTree.v1", "SpanningTree", "spanning-tree"])
def test_an_unknown_name_is_told_with_its_block_and_the_nearest(name: str) -> None:
    place = f"{MODEL}.structure"
    said = str(refused(changed(place, **{"@misc": f"spacy-latent.{name}"})))
    assert said.startswith(f"[{place}] @misc: there is no structure 'spacy-latent.{name}'. ")
    assert "Did you mean spacy-latent.SpanningTree.v1?" in said and "ProjectiveTree" in said
    # Names of other kinds in the same registry are not suggested.
    assert "SparseMAP" not in said and "Biaffine" not in said and len(said) < 500


@pytest.mark.parametrize(
    ("place", "name", "near", "others"),
    [
        (f"{MODEL}.estimator", "SparseMap.v3", "SparseMAP.v", "ImplicitMLE"),
        (f"{MODEL}.scorer", "BiafineScorer.v1", "BiaffineScorer.v1", "ItemScorer"),
        (f"{MODEL}.composer", "GraphConvolutions.v1", "GraphConvolution.v1", "Selection"),
    ],
)
def test_names_of_that_kind_only(place: str, name: str, near: str, others: str) -> None:
    said = str(refused(changed(place, **{"@misc": f"spacy-latent.{name}"})))
    assert f"Did you mean spacy-latent.{near}" in said and others in said
    assert "SpanningTree" not in said


def test_of_other_registries_the_nearest_is_named() -> None:
    place = "components.textcat.model.tok2vec"
    said = str(refused(changed(place, **{"@architectures": "spacy-latent.LatentListner.v1"})))
    assert said.startswith(f"[{place}] @architectures: there is no function")
    assert said.endswith("Did you mean spacy-latent.LatentListener.v1?")


@pytest.mark.parametrize(
    ("place", "key"),
    [(f"{MODEL}.structure", "@misc"), ("components.textcat.model.tok2vec", "@architectures")],
)
def test_a_name_of_ones_own_is_registered_by_a_file(place: str, key: str) -> None:
    # The name resembles no name that other tests register, so none is suggested.
    said = str(refused(changed(place, **{key: "nobodys.Xylophone.v1"})))
    assert said.endswith("'nobodys.Xylophone.v1'. Give the file that registers it with --code.")


def test_a_pipeline_that_needs_a_file_says_so(tmp_path: Path, capsys: Any) -> None:
    latent_pipeline("textcat").to_disk(tmp_path)
    changed(f"{MODEL}.structure", **{"@misc": "nobodys.Tree.v1"}).to_disk(tmp_path / "config.cfg")
    with pytest.raises(SystemExit):
        load(str(tmp_path))
    said = " ".join(capsys.readouterr().err.split())
    assert "there is no structure 'nobodys.Tree.v1'. Give the file" in said
    assert "copied" not in said


def test_what_is_registered_is_known() -> None:
    assert list(unknown_names(latent_pipeline("textcat").config)) == []


def test_an_error_of_a_value_begins_with_its_block() -> None:
    config = changed(f"{MODEL}.structure", **{"@misc": "spacy-latent.KOfN.v1", "k": -2})
    assert str(refused(config)).startswith(f"[{MODEL}.structure] KOfN: k is -2")
    config = changed(MODEL, temperature=-1.0)
    assert str(refused(config)).startswith(f"[{MODEL}] The temperature is -1.0")
    # The error keeps its class.
    config = changed(f"{MODEL}.composer", **{"@misc": "spacy-latent.Selection.v1"})
    error = refused(config)
    assert isinstance(error, IncompatiblePair) and str(error).startswith(f"[{MODEL}] Selection")


def test_of_settings_that_no_block_makes_no_block_is_named() -> None:
    said = str(refused(changed("components.latent_encoder", annotate="all")))
    assert said.startswith("latent_encoder: annotate is 'all'")


@pytest.mark.parametrize("command", ["debug", "init"])
def test_commands_say_so(command: str, tmp_path: Path) -> None:
    place = f"{MODEL}.structure"
    config = changed(place, **{"@misc": "spacy-latent.SpaningTree.v1"})
    config.to_disk(tmp_path / "wrong.cfg")
    more = ["-", "--estimator", "sparsemap"] if command == "init" else []
    result = latent(command, tmp_path / "wrong.cfg", *more, code=1)
    assert not result.stdout
    said = " ".join(result.stderr.split())
    assert f"[{place}]" in said and "Did you mean spacy-latent.SpanningTree.v1?" in said


def test_debug_says_so_of_training_too(tmp_path: Path) -> None:
    config = load_model_from_config(latent_pipeline("textcat").config, auto_fill=True).config.copy()
    config["training"]["batcher"]["@batchers"] = "spacy.batch_by_word.v1"
    config.to_disk(tmp_path / "wrong.cfg")
    result = CliRunner().invoke(app, ["latent", "debug", str(tmp_path / "wrong.cfg")])
    said = " ".join((result.stdout + result.stderr).split())
    assert (
        "[training.batcher] @batchers" in said and "Did you mean spacy.batch_by_words.v1?" in said
    )


@pytest.mark.parametrize(
    ("estimator", "setting"), [("SparseMAP", "tolerance"), ("AdaptiveImplicitMLE", "initial")]
)
def test_a_text_in_the_place_of_a_number_is_told_with_its_setting(
    estimator: str, setting: str
) -> None:
    """The message names the setting, which Python's error of a comparison would not.

    Such a text is a typing error, as in ``1e-6x``, or a number in quotation marks.
    """
    place = f"{MODEL}.estimator"
    block = {"@misc": f"spacy-latent.{estimator}.v1", setting: "x"}
    said = str(refused(changed(place, **block)))
    assert said.startswith(f"[{place}] ") and re.search(rf"{setting} is 'x'; .*number", said)


def with_setting(place: str, name: str, value: Any) -> Config:
    """Return a config with one more setting in a block."""
    nlp = latent_pipeline("textcat")
    nlp.add_pipe("latent_textcat_multilabel")
    config = nlp.config.copy()
    block = config
    for key in place.split("."):
        block = block[key]
    block[name] = value
    return config


GROUPS = {"@misc": "spacy-latent.CategoryConstraints.v1"}
BITS = {"@misc": "spacy-latent.Bits.v1", "parts": "items"}


@pytest.mark.parametrize(
    ("place", "name", "near", "takes"),
    [
        (MODEL, "temprature", "temperature", "entropy_weight"),
        (f"{MODEL}.structure", "singleroot", "single_root", ""),
        ("components.latent_encoder", "anotate", "annotate", "supervision"),
        ("components.textcat", "treshold", "threshold", "scorer"),
    ],
)
def test_a_misspelt_setting_is_told_with_its_block_and_the_nearest(
    place: str, name: str, near: str, takes: str
) -> None:
    said = str(refused(with_setting(place, name, 1)))
    assert said.startswith(f"[{place}] {name}: ") and f"Did you mean {near}?" in said
    # The message has no settings of other blocks, and no values.
    assert takes in said and "{" not in said and len(said) < 500


def test_the_block_of_constraints_and_of_structures_in_others_is_told_whole() -> None:
    place = "components.latent_textcat_multilabel.constraints"
    config = with_setting(place.rpartition(".")[0], "constraints", {**GROUPS, "exclusiv": []})
    assert str(refused(config)).startswith(f"[{place}] exclusiv: spacy-latent.Category")
    graph = {"@misc": "spacy-latent.FactorGraph.v1", "structures": {"words": {**BITS, "budge": 2}}}
    config = with_setting(MODEL, "structure", graph)
    said = str(refused(config))
    assert said.startswith(f"[{MODEL}.structure.structures.words] budge: ")
    assert "Did you mean budget?" in said


def test_what_another_version_or_its_twin_takes_is_told() -> None:
    nlp = blank("en")
    nlp.add_pipe("latent_textcat")
    place = "components.latent_textcat"
    said = str(refused(with_settings(nlp.config.copy(), place, {"score_range": [0.0, 5.0]})))
    assert said.startswith(f"[{place}] score_range: latent_textcat has no such setting. ")
    assert "latent_textcat_multilabel has one." in said and "Did you mean" not in said
    nlp = blank("en")
    nlp.add_pipe("crf_ner")
    place = "components.crf_ner.model"
    tok2vec = {"@architectures": "spacy.HashEmbedCNN.v2", "width": 8, "depth": 1}
    first = {"@architectures": "spacy-latent.CrfTagger.v1", "tok2vec": tok2vec, "gain": 2.0}
    said = str(refused(with_settings(nlp.config.copy(), place, first)))
    assert "spacy-latent.CrfTagger.v2 has one." in said


def test_all_misspelt_settings_are_told_at_once() -> None:
    config = with_setting(MODEL, "temprature", 2.0)
    config["components"]["textcat"]["treshold"] = 0.5
    said = str(refused(config))
    assert f"[{MODEL}] temprature" in said and "[components.textcat] treshold" in said


def test_a_value_of_a_wrong_type_is_told_with_its_block() -> None:
    said = str(refused(with_setting("components.latent_textcat_multilabel", "threshold", "x")))
    assert said.startswith("[components.latent_textcat_multilabel] threshold is 'x': ")
    assert "{" not in said


def test_an_unknown_component_is_told_with_the_nearest() -> None:
    said = str(refused(changed("components.textcat", factory="latent_textcatt")))
    assert said.startswith("[components.textcat] factory: there is no component 'latent_textcatt'.")
    assert said.endswith("Did you mean latent_textcat?")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_of_shipped_configs_every_setting_is_known(path: Path) -> None:
    config = load_config(path, interpolate=False)
    latent_pipeline("textcat")
    assert not [*unknown_settings(config), *unread_settings(config)]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A directory with a complete config, and a corpus for its training."""
    nlp = latent_pipeline("textcat")
    config = load_model_from_config(nlp.config, auto_fill=True).config.copy()
    config["paths"].update(train=None, dev=None)
    reader = {"@readers": "spacy.Corpus.v1", "max_length": 0}
    config["corpora"] = {
        name: {**reader, "path": f"${{paths.{name}}}"} for name in ("train", "dev")
    }
    config.to_disk(tmp_path / "config.cfg", interpolate=False)
    docs = []
    for text, label in (("a good film", "A"), ("a bad film", "B")):
        doc = nlp.make_doc(text)
        doc.cats = {name: float(name == label) for name in "AB"}
        docs.append(doc)
    DocBin(docs=docs).to_disk(tmp_path / "train.spacy")
    return tmp_path


def debug(folder: Path, *arguments: str) -> tuple[int, str]:
    command = ["latent", "debug", str(folder / "config.cfg"), *arguments]
    result = CliRunner().invoke(app, command)
    return result.exit_code, " ".join((result.stdout + result.stderr).split())


def test_debug_needs_no_path_of_another_corpus_and_names_the_one_that_is_missing(
    written: Path,
) -> None:
    train = f"--paths.train={written / 'train.spacy'}"
    code, said = debug(written, train)
    assert "Norms of the gradients" in said and "cannot be read" not in said
    assert "[corpora.dev] has no path: 'spacy train' needs --paths.dev." in said
    code, said = debug(written, train, "--paths.dev", "dev.spacy")
    assert "has no path" not in said and code == 0
    assert "dev.spacy does not exist, and 'spacy train' needs it" in said
    code, said = debug(written, "--paths.dev", str(written / "train.spacy"))
    assert code == 1 and "[corpora.train] has no path: 'spacy train' needs --paths.train." in said
    code, said = debug(written, train, "--training.dev_corpus", "corpora.dve")
    assert code == 1 and "names the corpus 'corpora.dve', and the config has no block" in said
    code, said = debug(written, train, "--training.train_corpus", "corpora.trains")
    assert code == 1 and "names the corpus 'corpora.trains', and the config has no block" in said


def test_a_section_that_is_there_twice_is_told(written: Path) -> None:
    config = written / "config.cfg"
    text = config.read_text("utf8")
    config.write_text(f"{text}\n[training]\nseed = 1\n", "utf8")
    output = str(written / "out")
    for command in (["debug"], ["control", "-o", output], ["init", "--shared"]):
        extra = [output] if command[0] == "init" else []
        result = CliRunner().invoke(app, ["latent", command[0], str(config), *extra, *command[1:]])
        said = " ".join((result.stdout + result.stderr).split())
        assert result.exit_code == 1 and "'training' already exists" in said


def test_debug_reads_what_training_is_judged_by(written: Path) -> None:
    train = f"--paths.train={written / 'train.spacy'}"
    code, said = debug(written, train, f"--paths.dev={written / 'train.spacy'}")
    assert code == 0 and "No mistake was found" in said
    docs = [blank("en").make_doc("a good film")]
    DocBin(docs=docs).to_disk(written / "bare.spacy")
    code, said = debug(written, train, f"--paths.dev={written / 'bare.spacy'}")
    assert "None of the first 1 example of [corpora.dev] is annotated" in said and code == 0
    table = written / "train.csv"
    table.write_text("text,label\na,b\n")
    told = f"reads docs (.spacy), and {table} is none. The page 'Quick start'"
    with pytest.warns(UserWarning, match="W090"):
        code, said = debug(written, f"--paths.train={table}", f"--paths.dev={table}")
    assert code == 1 and f"[corpora.train] {told}" in said
    with pytest.warns(UserWarning, match="W090"):
        code, said = debug(written, train, f"--paths.dev={table}")
    assert code == 1 and f"[corpora.dev] {told}" in said
    (written / "broken.spacy").write_bytes(b"nothing of the kind")
    code, said = debug(written, train, f"--paths.dev={written / 'broken.spacy'}")
    assert (
        code == 1
        and "dev_corpus, the corpus that evaluates training, cannot be read" in said
        and "Norms of the gradients" in said
    )


def test_debug_names_a_setting_of_training_that_spacy_would_not_read(written: Path) -> None:
    config = load_config(written / "config.cfg", interpolate=False)
    config["training"]["max_step"] = config["training"].pop("max_steps")
    # A variable of the user is not a mistake.
    config["training"]["my_rate"] = 0.1
    config.to_disk(written / "config.cfg")
    _, said = debug(written, f"--paths.train={written / 'train.spacy'}")
    assert "[training] max_step: spaCy does not read this setting. Did you mean max_steps?" in said
    assert "my_rate" not in said


@pytest.mark.parametrize(
    ("place", "settings", "said"),
    [
        (MODEL, {"temperature": -1.0}, f"[{MODEL}] The temperature is -1.0"),
        (
            f"{MODEL}.estimator",
            {"@misc": "spacy-latent.ScoreFunction.v1", "num_samples": 0},
            f"[{MODEL}.estimator] ScoreFunction: num_samples is 0",
        ),
        (
            "nlp",
            {"pipeline": ["textcatt"]},
            "no block [components.textcatt]. Did you mean textcat?",
        ),
        ("training", {"max_steps": "many"}, "[training] max_steps is 'many': "),
        (MODEL, {"dropout": "x"}, f"[{MODEL}] dropout is 'x': expected a number."),
    ],
)
def test_debug_says_without_a_traceback_what_spacy_train_ends_with(
    written: Path, place: str, settings: dict[str, Any], said: str
) -> None:
    config = load_config(written / "config.cfg", interpolate=False)
    with_settings(config, place, settings).to_disk(written / "config.cfg")
    code, printed = debug(written)
    assert code == 1 and said in printed


def test_debug_tells_where_a_default_is_taken_for_a_block_that_is_not_there(written: Path) -> None:
    config = load_config(written / "config.cfg", interpolate=False)
    train = f"--paths.train={written / 'train.spacy'}"
    assert "default is used" not in debug(written, train)[1]
    del config["components"]["latent_encoder"]["model"]["estimator"]
    config.to_disk(written / "config.cfg")
    code, said = debug(written, train)
    assert f"There is no block [{MODEL}.estimator]: its default is used." in said and code == 0


def test_debug_names_labels_that_training_does_not_have(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nlp = blank("en")
    docs = [nlp.make_doc(f"a {('bad', 'good')[k % 2]} film") for k in range(20)]
    for number, doc in enumerate(docs):
        doc.cats = {"A": float(number % 2), "B": float(not number % 2)}
    docs[19].cats = {"C": 1.0, "A": 0.0}
    DocBin(docs=docs).to_disk(written / "train.spacy")
    docs[0].cats = {"D": 1.0, "A": 0.0}
    DocBin(docs=[docs[0], docs[19]]).to_disk(written / "dev.spacy")
    paths = [f"--paths.{name}={written / name}.spacy" for name in ("train", "dev")]
    code, said = debug(written, *paths)
    assert code == 0, said
    assert "of [corpora.dev] have a label that [corpora.train] does not have: D." in said
    monkeypatch.setattr("spacy_latent.cli.training_corpus.SEARCHED", 10)
    _, said = debug(written, *paths)
    assert "labels that the first 10 examples of [corpora.train] do not have: C, D." in said
    (written / "dev.spacy").write_bytes((written / "train.spacy").read_bytes())
    monkeypatch.undo()
    assert "does not have" not in debug(written, *paths)[1]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("training.droput", "[training] droput: spaCy does not read this setting. Did you mean d"),
        ("training.other", "[training] other: spaCy does not read this setting."),
        ("trainng.dropout", "has no section [trainng]. Did you mean training?"),
        (f"{MODEL}.estimatr.k", f"has no section [{MODEL}.estimatr]. Did you mean {MODEL}.esti"),
        (f"{MODEL}.temprature", "has no such setting. Did you mean temperature?"),
        ("paths.trian", "Did you mean train?"),
    ],
)
def test_settings_that_nothing_would_read_are_told(name: str, said: str, tmp_path: Path) -> None:
    config = changed("training", max_steps="${paths.steps}", my_rate=0.1)
    config.to_disk(tmp_path / "config.cfg", interpolate=False)
    read = {"training.dropout": 0.1, "training.my_rate": 0.2, f"{MODEL}.temperature": 2.0}
    read["paths.steps"] = 10
    assert list(unread_overrides(tmp_path / "config.cfg", read)) == []
    (found,) = unread_overrides(tmp_path / "config.cfg", {**read, name: 1})
    assert said in found


def crf_over_what_is_sourced(folder: Path) -> Config:
    """Write a pipeline, and return a config of a ``crf_ner`` that shares its tok2vec."""
    nlp = blank("en")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    nlp.add_pipe("fails_to_initialize")
    with nlp.select_pipes(disable=["fails_to_initialize"]):
        nlp.initialize()
    nlp.to_disk(folder / "source")
    shared = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "tok2vec"}
    nlp.add_pipe("crf_ner", config={"model": {"tok2vec": shared}})
    config = nlp.config.copy()
    for name in ("tok2vec", "fails_to_initialize"):
        config["components"][name] = {"source": str(folder / "source")}
    config["training"]["frozen_components"] = ["tok2vec", "fails_to_initialize"]
    config["training"]["annotating_components"] = ["tok2vec"]
    config.to_disk(folder / "config.cfg")
    docs = [one.reference for one in examples(nlp)]
    DocBin(docs=docs).to_disk(folder / "train.spacy")
    return config


class FailsToInitialize:
    def __call__(self, doc: Doc) -> Doc:
        return doc

    def initialize(self, get_examples: Any, *, nlp: Any = None) -> None:
        raise ValueError("its tables are not there")

    def to_disk(self, path: Path, *, exclude: Any = ()) -> None:
        pass

    def from_disk(self, path: Path, *, exclude: Any = ()) -> FailsToInitialize:
        return self


Language.factory("fails_to_initialize", func=lambda nlp, name: FailsToInitialize())


@pytest.mark.parametrize("frozen", [["tok2vec", "fails_to_initialize"], []])
def test_debug_leaves_alone_what_is_sourced_as_spacy_train_does(
    frozen: list[str], tmp_path: Path
) -> None:
    config = crf_over_what_is_sourced(tmp_path)
    weights = (tmp_path / "source" / "tok2vec" / "model").read_bytes()
    config["training"]["frozen_components"] = frozen
    nlp = load_model_from_config(config, auto_fill=True)
    sample = examples(nlp)
    initialize(nlp, ["tok2vec", "fails_to_initialize"], sample, "")
    assert nlp.get_pipe("tok2vec").model.to_bytes() == weights  # type: ignore[attr-defined]
    assert nlp.get_pipe("crf_ner").labels == ("GPE",)  # type: ignore[attr-defined]


def test_debug_of_a_config_over_another_pipeline(tmp_path: Path) -> None:
    config = crf_over_what_is_sourced(tmp_path)
    corpus = ("--corpus", str(tmp_path / "train.spacy"))
    code, said = debug(tmp_path, *corpus)
    assert code == 0 and "Norms of the gradients" in said and "No mistake was found" in said
    code, said = debug(tmp_path, *corpus, "--training.annotating_components", "[]")
    assert code == 1 and "Add 'tok2vec' to training.annotating_components" in said
    code, said = debug(tmp_path, *corpus, "--training.frozen_components", '["tok2vek"]')
    assert code == 1 and "has no component 'tok2vek'. Did you mean tok2vec?" in said
    config["components"]["tok2vec"] = {"factory": "tok2vec", "model": TOK2VEC}
    config.to_disk(tmp_path / "config.cfg")
    code, said = debug(tmp_path, *corpus)
    assert code == 1 and "[training] frozen_components has tok2vec, which has no weights" in said


def test_a_source_that_cannot_be_used_is_told_with_its_block(tmp_path: Path) -> None:
    config = crf_over_what_is_sourced(tmp_path)
    config["components"]["tok2vec"] = {"source": "sourze"}
    config["components"]["fails_to_initialize"]["component"] = "fails_to_initialise"
    said = str(refused(config))
    assert said.startswith("[components.tok2vec] source: 'sourze' cannot be loaded ([E050]")
    assert f"as seen from {Path.cwd()}" in said
    assert "[components.fails_to_initialize] source:" in said
    assert "has no component 'fails_to_initialise'. Did you mean fails_to_initialize?" in said
    config.to_disk(tmp_path / "config.cfg")
    code, printed = debug(tmp_path)
    assert code == 1 and "[components.tok2vec] source: 'sourze'" in printed


def test_debug_says_how_it_is_with_the_training_corpus(tmp_path: Path) -> None:
    config = crf_over_what_is_sourced(tmp_path)
    reader = {"@readers": "spacy.Corpus.v1", "path": None}
    config["corpora"] = {"train": reader, "dev": {**reader, "path": str(tmp_path / "train.spacy")}}
    config.to_disk(tmp_path / "config.cfg")
    DocBin().to_disk(tmp_path / "empty.spacy")
    (tmp_path / "broken.spacy").write_bytes(b"nothing of the kind")
    # The training corpus has no path, does not exist, or has no texts to train on.
    code, said = debug(tmp_path)
    assert code == 0 and "[corpora.train] has no path" in said and "No mistake was found" in said
    code, said = debug(tmp_path, f"--corpora.train.path={tmp_path / 'none.spacy'}")
    assert code == 0 and "none.spacy does not exist, and 'spacy train' needs it" in said
    assert "No mistake was found" not in said
    assert "Give examples with --corpus" in said
    for name, why in (("empty", "corpus is empty"), ("broken", "corpus cannot be read ([E1014]")):
        code, said = debug(tmp_path, f"--corpora.train.path={tmp_path / name}.spacy")
        assert code == 1 and why in said and "Give examples with --corpus" not in said


def test_a_training_step_that_fails_is_told_without_advice(tmp_path: Path) -> None:
    nlp = blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"tok2vec": TOK2VEC}})
    crf: Any = nlp.get_pipe("crf_ner")
    initialize(nlp, [], examples(nlp), "")
    crf.update = lambda *given, **options: 1 / 0
    with pytest.raises(LatentError, match="ZeroDivisionError"):
        gradients(nlp, examples(nlp), 1)


def test_debug_tells_of_what_a_component_is_initialized_with_in_a_line(tmp_path: Path) -> None:
    config = crf_over_what_is_sourced(tmp_path)
    config["initialize"]["components"] = {"crf_ner": {"labels": {"1": {"GPE": 3}}}}
    config.to_disk(tmp_path / "config.cfg")
    corpus = ("--corpus", str(tmp_path / "train.spacy"))
    code, said = debug(tmp_path, *corpus)
    assert code == 1 and "are a mapping of ['1']; expected a list of names" in said
    # spaCy itself checks this setting.
    config["initialize"]["components"] = {"crf_ner": {"label": ["GPE"]}}
    config.to_disk(tmp_path / "config.cfg")
    code, said = debug(tmp_path, *corpus)
    assert code == 1 and "[initialize.components]: crf_ner.label: " in said and "{" not in said


def test_an_error_of_a_function_of_ones_own_is_left_as_it_is() -> None:
    """The settings are valid, so only the traceback shows the place of the error."""
    name = "tests.FailingEstimator.v1"

    @registry.misc(name)
    def make(scale: float = 1.0) -> Any:
        raise TypeError("unsupported operand")

    config = changed(f"{MODEL}.estimator", **{"@misc": name, "scale": 2.0})
    with pytest.raises(TypeError, match="unsupported operand"), errors_with_blocks(config):
        load_model_from_config(config, auto_fill=True)
