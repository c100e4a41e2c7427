"""A structure in configs as spaCy makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spacy.cli._util import app
from spacy.cli.init_config import init_config
from spacy.training import Example
from spacy.util import load_config, load_model_from_config
from thinc.api import Config
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401 (adds the commands)
from spacy_latent.cli.init_config import filled, registered_name, with_structure
from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.base import Estimator
from spacy_latent.pipeline.diagnosis import find_traps
from spacy_latent.pipeline.inspection import inspect_docs
from spacy_latent.structures.base import Structure

GOLD: dict[str, Any] = {
    "cats": {"A": 1.0, "B": 0.0},
    "entities": ["O", "U-X", "O"],
    "tags": ["T", "U", "T"],
    "spans": {"sc": [(2, 3, "S")]},
}


def made(pipeline: list[str], optimize: str = "efficiency", **settings: Any) -> Config:
    return init_config(lang="en", pipeline=pipeline, optimize=optimize, **settings)


def components(config: Config) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = config["components"]
    return found


@pytest.mark.parametrize(
    ("pipeline", "names", "shared"),
    [
        (["textcat"], [], False),
        (["textcat_multilabel"], [], True),
        (["tok2vec", "ner"], [], False),
        (["ner", "textcat"], ["textcat", "ner"], False),
        (["ner", "textcat"], ["textcat", "ner"], True),
        (["tagger", "spancat"], ["spancat"], True),
        (["tagger", "crf_ner"], ["crf_ner"], False),
    ],
)
def test_what_spacy_makes_trains_with_a_structure(
    pipeline: list[str], names: list[str], shared: bool
) -> None:
    config = with_structure(filled(made(pipeline)), names, "spanning-tree", "marginals", shared)
    nlp = load_model_from_config(config, auto_fill=True)
    assert ("latent_encoder" in nlp.pipe_names) == shared
    examples = [Example.from_dict(nlp.make_doc("A b c"), GOLD)] * 2
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
    (doc,) = inspect_docs(nlp, [nlp.make_doc("A b c")])
    latent = ["latent_encoder"] if shared else names or [nlp.pipe_names[-1]]
    for name in latent:
        # crf_ner has its tags under its own name.
        name = {"crf_ner": "crf_ner#2"}.get(name, name)
        assert doc._.latent[name].heads.shape == (3,)


def test_a_text_classifier_that_reads_no_vectors_gets_those_of_single_words() -> None:
    config = filled(with_structure(filled(made(["textcat"])), [], "ProjectiveTree", "SparseMAP"))
    model = components(config)["textcat"]["model"]
    assert model["@architectures"] == "spacy.TextCatReduce.v1"
    tok2vec = model["tok2vec"]
    # Else what one word says of another would go around the structure.
    assert tok2vec["residual"] is False
    assert tok2vec["tok2vec"]["@architectures"] == "spacy.MultiHashEmbed.v2"
    assert tok2vec["scorer"]["encoder"]["@misc"] == "spacy-latent.BiLSTM.v1"
    assert tok2vec["structure"]["@misc"] == "spacy-latent.ProjectiveTree.v1"
    assert tok2vec["estimator"]["@misc"] == "spacy-latent.SparseMAP.v1"
    nlp = load_model_from_config(config)
    nlp.initialize(lambda: [Example.from_dict(nlp.make_doc("A b c"), GOLD)])
    assert find_traps(nlp) == []


def test_what_a_listener_reads_stays() -> None:
    before = filled(made(["tagger", "ner"], optimize="accuracy"))
    after = with_structure(before, ["ner"], "spanning-tree", "marginals")
    embedder = components(before)["ner"]["model"]["tok2vec"]
    assert embedder["@architectures"] == "spacy.Tok2VecListener.v1"
    assert components(after)["ner"]["model"]["tok2vec"]["tok2vec"] == embedder
    assert components(after)["tagger"] == components(before)["tagger"]
    # A copy was changed.
    assert components(before)["ner"]["model"]["tok2vec"] == embedder


@pytest.mark.parametrize("optimize", ["efficiency", "accuracy"])
def test_an_estimator_that_needs_the_loss_makes_a_component_that_has_it(optimize: str) -> None:
    before = filled(made(["textcat"], optimize=optimize))
    config = filled(with_structure(before, [], "ProjectiveTree", "ScoreFunction"))
    textcat = components(config)["textcat"]
    assert textcat["factory"] == "latent_textcat"
    assert textcat["model"]["exclusive_classes"] is True
    assert textcat["model"]["estimator"]["control_variate"] is not None
    with pytest.raises(LatentError, match="needs the loss of each structure"):
        with_structure(filled(made(["ner"])), [], "ProjectiveTree", "ScoreFunction")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("spanning-tree", "spacy-latent.SpanningTree.v1"),
        ("spanning_tree", "spacy-latent.SpanningTree.v1"),
        ("SpanningTree", "spacy-latent.SpanningTree.v1"),
        ("spacy-latent.SpanningTree.v1", "spacy-latent.SpanningTree.v1"),
    ],
)
def test_names_are_found(given: str, found: str) -> None:
    assert registered_name(given, "structure", Structure) == found


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(LatentError, match="Did you mean SpanningTree"):
        registered_name("spaning-tree", "structure", Structure)
    with pytest.raises(LatentError, match=r"no estimator 'SpanningTree'.*Marginals"):
        registered_name("SpanningTree", "estimator", Estimator)


@pytest.mark.parametrize(
    ("pipeline", "names", "why"),
    [
        (["ner", "textcat"], [], "--component ner, --component textcat"),
        (["sentencizer"], [], "has an embedder"),
        (["tagger"], ["ner"], "no component 'ner'"),
        (["tagger"], ["tok2vec"], "what others listen to"),
        (["tagger", "sentencizer"], ["sentencizer"], "no block 'tok2vec'"),
        (["latent_textcat"], ["latent_textcat"], "already"),
    ],
)
def test_what_cannot_be_changed(pipeline: list[str], names: list[str], why: str) -> None:
    with pytest.raises(LatentError, match=why):
        with_structure(filled(made(pipeline)), names, "spanning-tree", "marginals")


def test_pairs_that_cannot_work_are_refused() -> None:
    with pytest.raises(IncompatiblePair, match="OneToOneAlignment"):
        with_structure(filled(made(["ner"])), [], "one-to-one-alignment", "marginals")


def test_the_command_writes_a_config_and_says_what_it_changed(tmp_path: Path) -> None:
    base, output = tmp_path / "base.cfg", tmp_path / "new" / "config.cfg"
    made(["ner"]).to_disk(base)
    run = CliRunner().invoke
    arguments = ["latent", "init", str(base), str(output)]
    result = run(app, arguments)
    assert result.exit_code == 0, result.output
    assert "+[components.ner.model.tok2vec.structure]" in result.output
    assert "-[components.ner]" not in result.output
    nlp = load_model_from_config(load_config(output))
    assert nlp.pipe_names == ["tok2vec", "ner"]
    again = run(app, arguments)
    assert again.exit_code == 1 and "--force" in again.stderr
    assert run(app, [*arguments, "--force"]).exit_code == 0
    missing = run(app, ["latent", "init", str(tmp_path / "no.cfg"), "-"])
    assert missing.exit_code == 1 and "does not exist" in missing.stderr
    piped = run(app, ["latent", "init", "-", "-"], input=base.read_text("utf8"))
    assert piped.exit_code == 0
    assert Config().from_str(piped.stdout, interpolate=False) == load_config(
        output, interpolate=False
    )
    broken = run(app, ["latent", "init", "-", "-"], input="[nlp]\nlang = ")
    assert broken.exit_code == 1 and not broken.stdout
