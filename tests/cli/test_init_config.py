"""``spacy latent init``: structures are added to configs that spaCy makes."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from click.testing import Result
from spacy.cli._util import app
from spacy.cli.init_config import init_config
from spacy.language import Language
from spacy.training import Example
from spacy.util import load_config, load_model_from_config
from thinc.api import Config
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401 (adds the commands)
from spacy_latent.cli.added_structures import filled, loaded, with_refusal, with_structure
from spacy_latent.cli.config_blocks import (
    estimator_block,
    latent_block,
    names_of,
    registered_name,
    short,
)
from spacy_latent.cli.init_config import ESTIMATORS, PURPOSES, STRUCTURES
from spacy_latent.cli.pair_components import with_pairs
from spacy_latent.cli.replaced_components import (
    REPLACEMENTS,
    WORDS,
    with_rationale,
    with_replacement,
)
from spacy_latent.corpora.text_pairs import make_pair_doc
from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.base import Estimator
from spacy_latent.evaluation.mistakes import find_traps
from spacy_latent.pipeline.inspection import inspect_docs
from spacy_latent.structures.base import Structure
from tests.pipeline.small_pipelines import REDUCE
from tests.repository import pages

CONFIGS = Path(__file__).parents[2] / "configs"
GOLD: dict[str, Any] = {
    "cats": {"A": 1.0, "B": 0.0},
    "entities": ["O", "U-X", "O"],
    "tags": ["T", "U", "T"],
    "spans": {"sc": [(2, 3, "S")]},
    "heads": [1, 1, 1],
    "deps": ["x", "ROOT", "y"],
}


def made(*pipeline: str, optimize: str = "efficiency", gpu: bool = False) -> Config:
    return init_config(lang="en", pipeline=list(pipeline), optimize=optimize, gpu=gpu)


@cache
def _filled(*pipeline: str, **settings: Any) -> Config:
    return filled(made(*pipeline, **settings))


def full(*pipeline: str, **settings: Any) -> Config:
    """Return the config of ``made`` with all defaults filled in."""
    return _filled(*pipeline, **settings).copy()


def saved(folder: Path, *pipeline: str) -> Path:
    made(*pipeline).to_disk(folder / "base.cfg")
    return folder / "base.cfg"


def init(*arguments: object, **options: Any) -> Result:
    """Run ``spacy latent init``."""
    return CliRunner().invoke(app, ["latent", "init", *map(str, arguments)], **options)


def trained(config: Config) -> Language:
    """Train a pipeline two steps."""
    nlp = load_model_from_config(config, auto_fill=True)
    examples = [Example.from_dict(nlp.make_doc("A b c"), GOLD)] * 2
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
    return nlp


def without_shared(pipeline: list[str]) -> Config:
    """Return a config in which each component has its default embedder."""
    nlp = spacy.blank("en")
    for name in pipeline:
        nlp.add_pipe(name)
    return nlp.config


def model_of(config: Config, name: str = "textcat") -> dict[str, Any]:
    found: dict[str, Any] = config["components"][name]["model"]
    return found


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
    config = with_structure(full(*pipeline), names, "spanning-tree", "marginals", shared)
    nlp = trained(config)
    assert ("latent_encoder" in nlp.pipe_names) == shared
    latent = ["latent_encoder"] if shared else names or [nlp.pipe_names[-1]]
    for name in latent:
        # The component's own name is taken by the tags of crf_ner.
        name = {"crf_ner": "crf_ner#2"}.get(name, name)
        (doc,) = nlp.pipe(["A b c"])
        stored = doc._.latent[name].heads.tolist()
        (doc,) = inspect_docs(nlp, [doc])
        assert doc._.latent[name].heads.tolist() == stored
        assert len(stored) == 3


def test_a_text_classifier_that_reads_no_vectors_gets_those_of_single_words() -> None:
    config = filled(with_structure(full("textcat"), [], "ProjectiveTree", "SparseMAP"))
    model = model_of(config)
    assert model["@architectures"] == "spacy.TextCatReduce.v1"
    tok2vec = model["tok2vec"]
    # A residual connection or a contextual embedder would bypass the structure.
    assert tok2vec["residual"] is False
    assert tok2vec["tok2vec"]["@architectures"] == "spacy.MultiHashEmbed.v2"
    assert tok2vec["scorer"]["encoder"]["@misc"] == "spacy-latent.BiLSTM.v1"
    assert tok2vec["structure"]["@misc"] == "spacy-latent.ProjectiveTree.v1"
    assert tok2vec["estimator"]["@misc"] == "spacy-latent.SparseMAP.v1"
    nlp = load_model_from_config(config)
    nlp.initialize(lambda: [Example.from_dict(nlp.make_doc("A b c"), GOLD)])
    assert [finding.code for finding in find_traps(nlp)] == ["no-sentences"]


def test_a_classifier_made_of_a_bag_of_words_takes_empty_texts_as_that_did() -> None:
    nlp = trained(with_structure(full("textcat"), [], "ProjectiveTree", "Marginals"))
    empty, text = nlp.pipe(["", "A b c"])
    assert set(empty.cats) == set(text.cats) == set(GOLD["cats"])


# Marginals does not work with a one-to-one alignment.
@pytest.mark.parametrize("estimator", ["SparseMAP", "ImplicitMLE", "ScoreFunction", "Marginals"])
@pytest.mark.parametrize("shared", [False, True])
def test_an_alignment_of_two_texts_is_refused_where_there_is_one(
    estimator: str, shared: bool
) -> None:
    structure = "one-to-one-alignment"
    with pytest.raises(LatentError, match=r"OneToOneAlignment.*--pairs"):
        with_structure(full("textcat"), [], structure, estimator, shared)
    inline = filled(with_structure(full("textcat"), [], "k-of-n", "SparseMAP", shared))
    with pytest.raises(LatentError, match="OneToOneAlignment"):
        with_structure(inline, ["textcat"], structure, estimator)


def test_an_alignment_may_follow_another() -> None:
    pairs = load_config(CONFIGS / "pairs_snli_one_to_one.cfg", interpolate=False)
    changed = with_structure(filled(pairs), [], "monotone-alignment", "SparseMAP")
    structure = components(changed)["latent_textcat"]["model"]["structure"]
    assert structure["@misc"] == "spacy-latent.MonotoneAlignment.v1"


def test_what_a_listener_reads_stays() -> None:
    before = full("tagger", "ner", optimize="accuracy")
    after = with_structure(before, ["ner"], "spanning-tree", "marginals")
    embedder = components(before)["ner"]["model"]["tok2vec"]
    assert embedder["@architectures"] == "spacy.Tok2VecListener.v1"
    assert components(after)["ner"]["model"]["tok2vec"]["tok2vec"] == embedder
    assert components(after)["tagger"] == components(before)["tagger"]
    # The given config is not changed.
    assert components(before)["ner"]["model"]["tok2vec"] == embedder


@pytest.mark.parametrize("optimize", ["efficiency", "accuracy"])
def test_an_estimator_that_needs_the_loss_makes_a_component_that_has_it(optimize: str) -> None:
    before = full("textcat", optimize=optimize)
    config = filled(with_structure(before, [], "ProjectiveTree", "ScoreFunction"))
    textcat = components(config)["textcat"]
    assert textcat["factory"] == "latent_textcat"
    assert textcat["model"]["exclusive_classes"] is True
    assert textcat["model"]["estimator"]["control_variate"] is not None
    with pytest.raises(LatentError, match="loss"):
        with_structure(full("ner"), [], "ProjectiveTree", "ScoreFunction")


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
    with pytest.raises(LatentError, match="SpanningTree"):
        registered_name("spaning-tree", "structure", Structure)
    with pytest.raises(LatentError, match=r"'SpanningTree'.*Marginals"):
        registered_name("SpanningTree", "estimator", Estimator)


@pytest.mark.parametrize(
    ("pipeline", "names", "why"),
    [
        (["ner", "textcat"], [], "--component ner"),
        (["sentencizer"], [], "embedder"),
        (["tagger"], ["ner"], "'ner'"),
        (["tagger"], ["tok2vec"], "listen"),
        (["tagger", "sentencizer"], ["sentencizer"], "'tok2vec'"),
    ],
)
def test_what_cannot_be_changed(pipeline: list[str], names: list[str], why: str) -> None:
    with pytest.raises(LatentError, match=why):
        with_structure(full(*pipeline), names, "spanning-tree", "marginals")


def test_pairs_that_cannot_work_are_refused() -> None:
    with pytest.raises(IncompatiblePair, match="Sinkhorn"):
        with_structure(full("ner"), [], "spanning-tree", "sinkhorn")


def test_the_command_writes_a_config_and_says_what_it_changed(tmp_path: Path) -> None:
    base, output = saved(tmp_path, "ner"), tmp_path / "new" / "config.cfg"
    arguments = [base, output, "--for", "research"]
    result = init(*arguments)
    assert result.exit_code == 0, result.output
    assert "+[components.ner.model.tok2vec.structure]" in result.output
    assert "-[components.ner]" not in result.output
    # The commands are on lines of their own, to be copied.
    paths = "--paths.train ./train.spacy --paths.dev ./dev.spacy"
    lines = result.output.splitlines()
    assert f"spacy latent debug {output} {paths}" in lines
    assert f"spacy train {output} --output ./training {paths}" in lines
    for line in lines[-2:]:
        pages.check_spacy(line.split()[1:])
    written = load_config(output)
    nlp = load_model_from_config(written)
    assert nlp.pipe_names == ["tok2vec", "ner"]
    # The config refuses a later stage that training does not reach.
    block = components(written)["ner"]["model"]["tok2vec"]
    first, then = block["estimator"], {"@misc": "spacy-latent.SparseMAP.v1"}
    stages = {"@misc": "spacy-latent.EstimatorSequence.v1", "first": first, "then": then}
    block["estimator"] = {**stages, "switch_at": written["training"]["max_steps"]}
    with pytest.raises(LatentError, match=r"ner.*SparseMAP.*Marginals"):
        load_model_from_config(written, auto_fill=True)
    again = init(*arguments)
    assert again.exit_code == 1 and "--force" in again.stderr
    assert init(*arguments, "--force").exit_code == 0
    missing = init(tmp_path / "no.cfg", "-")
    assert missing.exit_code == 1 and "does not exist" in missing.stderr
    piped = init("-", "-", "--for", "research", input=base.read_text("utf8"))
    assert piped.exit_code == 0
    told = Config().from_str(piped.stdout, interpolate=False)
    assert told == load_config(output, interpolate=False)
    broken = init("-", "-", "--shared", input="[nlp]\nlang = ")
    assert broken.exit_code == 1 and not broken.stdout


def test_a_callback_that_is_there_stays() -> None:
    config = full("ner")
    config["nlp"]["after_pipeline_creation"] = {"@callbacks": "of_ones_own"}
    assert with_refusal(config) == config


# ---------------------------------------------------------------- configs with a structure


@pytest.mark.parametrize(
    ("pipeline", "shared", "owner"),
    [(["textcat"], False, "textcat"), (["ner", "textcat"], True, "latent_encoder")],
)
def test_a_structure_and_an_estimator_are_replaced(
    pipeline: list[str], shared: bool, owner: str
) -> None:
    before = filled(with_structure(full(*pipeline), ["textcat"], shared=shared))

    def layer(config: Config) -> dict[str, Any]:
        return model_of(config, owner) if shared else model_of(config, owner)["tok2vec"]

    assert layer(before)["estimator"]["prediction"] == "marginals"
    # The name of a listener stands for the encoder, which ner does not listen to.
    config = filled(with_structure(before, ["textcat"], None, "implicit-mle", shared))
    assert layer(config)["estimator"]["@misc"] == "spacy-latent.ImplicitMLE.v1"
    # The new estimator does not have this setting of the old one.
    assert "prediction" not in layer(config)["estimator"]
    kept = ("structure", "scorer", "composer", "tok2vec")
    assert {key: layer(config)[key] for key in kept} == {key: layer(before)[key] for key in kept}
    # Spans have other scorers and composers than arcs.
    trees = filled(with_structure(before, ["textcat"], "constituency-tree", None, shared))
    assert layer(trees)["estimator"] == layer(before)["estimator"]
    assert layer(trees)["scorer"]["@misc"].startswith("spacy-latent.Span")
    assert layer(trees)["composer"]["@misc"].startswith("spacy-latent.Span")
    for changed in (config, trees):
        trained(changed)


def test_what_the_user_set_in_a_block_that_stays_stays() -> None:
    before = filled(with_structure(full("textcat"), []))
    model_of(before)["tok2vec"]["scorer"]["encoder"]["hidden_width"] = 48
    config = with_structure(before, [], "projective-tree")
    tok2vec = model_of(config)["tok2vec"]
    assert tok2vec["scorer"]["encoder"]["hidden_width"] == 48
    # The given config is not changed.
    structure = model_of(before)["tok2vec"]["structure"]
    assert structure["@misc"] == "spacy-latent.SpanningTree.v1"


def test_what_is_written_by_hand_without_its_defaults_is_replaced() -> None:
    base = full("textcat", optimize="efficiency")
    embedder = components(with_structure(base, []))["textcat"]["model"]["tok2vec"]["tok2vec"]
    components(base)["textcat"]["model"] = {
        **REDUCE,
        "tok2vec": {"@architectures": "spacy-latent.LatentTok2Vec.v1", "tok2vec": dict(embedder)},
    }
    config = filled(with_structure(filled(base), [], None, "sparsemap"))
    tok2vec = model_of(config)["tok2vec"]
    names = [tok2vec[part]["@misc"].split(".")[1] for part in ("structure", "estimator", "scorer")]
    assert names == ["SpanningTree", "SparseMAP", "BiaffineScorer"]
    assert tok2vec["composer"]["@misc"] == "spacy-latent.GraphConvolution.v1"
    trained(config)


def test_an_inline_structure_gets_an_estimator_that_needs_the_loss() -> None:
    before = filled(with_structure(full("textcat"), [], "projective-tree"))
    config = filled(with_structure(before, [], None, "score-function"))
    textcat = components(config)["textcat"]
    assert textcat["factory"] == "latent_textcat"
    assert textcat["model"]["structure"]["@misc"] == "spacy-latent.ProjectiveTree.v1"
    assert textcat["model"]["tok2vec"]["@architectures"] == "spacy.MultiHashEmbed.v2"
    trained(config)
    # The change can be reversed.
    soft = filled(with_structure(config, [], None, "marginals"))
    assert model_of(soft)["estimator"] == {
        "@misc": "spacy-latent.Marginals.v1",
        "prediction": "marginals",
    }
    shared = filled(with_structure(full("textcat"), [], shared=True))
    with pytest.raises(LatentError, match="latent_encoder"):
        with_structure(shared, [], None, "score-function")


def test_what_of_a_structure_cannot_be_changed() -> None:
    inline = filled(with_structure(full("ner", "textcat"), ["textcat"]))
    with pytest.raises(LatentError, match=r"SpanningTree.*\[components.textcat.model.tok2vec.est"):
        with_structure(inline, ["textcat"])
    with pytest.raises(LatentError, match="steps"):
        with_structure(inline, ["textcat", "ner"], None, "sparsemap")
    with pytest.raises(LatentError, match="--shared"):
        with_structure(inline, ["textcat"], None, "sparsemap", shared=True)
    with pytest.raises(LatentError, match="--component ner"):
        with_structure(inline, [], None, "sparsemap")
    with pytest.raises(IncompatiblePair):
        with_structure(inline, ["textcat"], None, "sinkhorn")
    shared = filled(with_structure(full("ner", "textcat"), ["textcat"], shared=True))
    with pytest.raises(LatentError, match=r"components.ner.model"):
        with_structure(shared, ["ner"], shared=True)


# ------------------------------------------- replacements of spaCy's components


# The replaced component, settings that are kept, and scores of spaCy's scorer.
REPLACED: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "crf_ner": ("ner", {"incorrect_spans_key": "wrong"}, {"ents_f", "ents_p", "ents_r"}),
    "latent_parser": ("parser", {}, {"dep_uas", "dep_las", "sents_f"}),
    "tree_spancat": ("spancat", {"spans_key": "sc", "threshold": 0.4}, {"spans_sc_f"}),
}


def replaced_by(factory: str, config: Config, names: list[str] | None = None) -> Config:
    return with_replacement(config, names or [], REPLACEMENTS[factory])


@pytest.mark.parametrize("factory", REPLACED)
@pytest.mark.parametrize("shared", [True, False])
def test_one_of_ours_gets_the_place_and_the_embedder(factory: str, shared: bool) -> None:
    name, kept, scores = REPLACED[factory]
    before = filled(made("tagger", name) if shared else without_shared([name]))
    components(before)[name] |= kept
    config = filled(replaced_by(factory, before))
    assert config["nlp"]["pipeline"] == before["nlp"]["pipeline"]
    old, new = components(before)[name], components(config)[name]
    assert new["factory"] == factory and kept.items() <= new.items()
    assert new["scorer"] == old["scorer"]
    assert new["model"]["tok2vec"] == old["model"]["tok2vec"]
    assert ("Listener" in new["model"]["tok2vec"]["@architectures"]) == shared
    # The other settings are those of a component that is added to a pipeline.
    alone = components(filled(without_shared([factory])))[factory]["model"]
    assert {**new["model"], "tok2vec": None} == {**alone, "tok2vec": None}
    nlp = trained(config)
    assert scores <= set(nlp.config["training"]["score_weights"])
    doc = nlp("A b c")
    assert all(0 <= ent._.confidence <= 1 for ent in doc.ents)
    assert doc._.latent[name].spans[0].probabilities is not None


@pytest.mark.parametrize(
    ("factory", "faster"),
    [
        ("crf_ner", {"gain": 48.0}),
        ("latent_parser", {"scorer_learn_rate": 10.0}),
        ("tree_spancat", {}),
    ],
)
def test_over_a_transformer_what_begins_at_random_is_the_faster(
    factory: str, faster: dict[str, float]
) -> None:
    name, _, _ = REPLACED[factory]
    before = over_transformer([name])
    model = components(filled(replaced_by(factory, before)))[name]["model"]
    alone = components(filled(without_shared([factory])))[factory]["model"]
    assert {key for key in alone if model[key] != alone[key]} == {"tok2vec", *faster}
    assert faster.items() <= model.items()


def over_transformer(pipeline: list[str]) -> Config:
    config = full(*pipeline, gpu=True)
    embedder = components(config)[pipeline[-1]]["model"]["tok2vec"]["@architectures"]
    assert embedder == "spacy-transformers.TransformerListener.v1"
    return config


@pytest.mark.parametrize(
    ("shared", "estimator"), [(True, "marginals"), (False, "marginals"), (False, "score-function")]
)
def test_a_scorer_over_a_transformer_learns_faster(shared: bool, estimator: str) -> None:
    before = over_transformer(["textcat"])
    config = filled(with_structure(before, [], "spanning-tree", estimator, shared))
    owner = "latent_encoder" if shared else "textcat"
    block = latent_block(components(config)[owner]["model"])
    assert block is not None and block["scorer_learn_rate"] == 5.0
    # A setting of the user is kept.
    block["scorer_learn_rate"] = 2.0
    config = filled(with_structure(config, [], None, "straight-through"))
    block = latent_block(components(config)[owner]["model"])
    assert block is not None and block["scorer_learn_rate"] == 2.0


def test_a_selector_over_a_transformer_learns_faster() -> None:
    config = filled(with_rationale(over_transformer(["textcat"]), []))
    assert model_of(config)["scorer_learn_rate"] == 5.0
    config = filled(with_rationale(full("textcat"), []))
    assert model_of(config)["scorer_learn_rate"] == 1.0


def test_what_the_page_says_to_do_by_hand() -> None:
    page = Path(__file__).parents[2] / "docs" / "from_ner.md"
    (block,) = [block for block in pages.blocks(page) if block.language == "ini"]
    text = made("ner").to_str()
    sections = re.split(r"^(?=\[)", text, flags=re.M)
    gone = [section for section in sections if section.startswith("[components.ner")]
    left = "".join(section for section in sections if section not in gone)
    assert len(gone) == 4
    own, lines = block.code.split("[components.crf_ner]", 1)
    (pipeline,) = re.findall(r"^pipeline = .*$", own, re.M)
    left = re.sub(r"^pipeline = .*$", pipeline, left, flags=re.M)
    nlp = trained(Config().from_str(f"{left}\n[components.crf_ner]{lines}", interpolate=False))
    assert nlp.pipe_names == ["tok2vec", "crf_ner"]
    assert nlp.get_pipe("tok2vec").listening_components == ["crf_ner"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("factory", REPLACED)
def test_what_does_not_become_one_of_ours(factory: str) -> None:
    name = REPLACED[factory][0]
    for pipeline, names, why in (
        (["tagger"], [], f"--pipeline {name}"),
        (["tagger", name], ["tagger"], name),
        ([name], ["another"], "'another'"),
    ):
        with pytest.raises(LatentError, match=why):
            replaced_by(factory, full(*pipeline), names)
    with pytest.raises(LatentError, match="already"):
        replaced_by(factory, filled(with_structure(full(name), [])))
    # The replacement keeps the name of spaCy's component, so the message also gives its factory.
    with pytest.raises(LatentError, match=rf"{name}.*{factory}"):
        replaced_by(factory, replaced_by(factory, full(name)))


@pytest.mark.parametrize("factory", REPLACED)
def test_who_puts_a_structure_under_spacys_is_told_of_ours(factory: str, tmp_path: Path) -> None:
    name = REPLACED[factory][0]
    base = saved(tmp_path, name, "tagger")
    option = REPLACEMENTS[factory].option
    for arguments, told in (
        (["--component", name], factory != "crf_ner"),
        (["--component", "tagger"], False),
        ([option], False),
    ):
        result = init(base, "-", *arguments)
        assert result.exit_code == 0, result.stderr
        purpose = {"latent_parser": "parse", "tree_spancat": "spans"}.get(factory)
        assert (f"give --for {purpose} instead" in result.stderr) == told
        assert option not in result.stdout


# ---------------------------------------------------------------- pairs


def pairs_file(path: Path) -> Path:
    rows = [("a dog ran", "it ran", "yes"), ("a dog ran", "it sat", "no")]
    srsly.write_jsonl(path, [{"premise": a, "claim": b, "gold": label} for a, b, label in rows * 2])
    return path


@pytest.mark.parametrize("name", ["textcat", "textcat_multilabel"])
def test_a_text_classifier_aligns_pairs_of_a_file_of_ones_own(name: str, tmp_path: Path) -> None:
    """Commands lead from spaCy's config to a trained pipeline, without editing the config."""
    base, config, data = saved(tmp_path, name), tmp_path / "config.cfg", tmp_path / "pairs.jsonl"
    result = init(base, config, "--pairs")
    assert result.exit_code == 0, result.output
    assert "--paths.train ./train.jsonl" in result.output and "sentences" not in result.output
    pairs_file(data)
    fields = {"first": "premise", "second": "claim", "label": "gold"}
    arguments = [
        *(
            f"--corpora.{c}.{key}={field}"
            for c in ("train", "dev")
            for key, field in fields.items()
        ),
        f"--paths.train={data}",
        f"--paths.dev={data}",
        "--training.max_steps=2",
        f"--output={tmp_path / 'training'}",
    ]
    result = CliRunner().invoke(app, ["train", str(config), *arguments])
    assert result.exit_code == 0, result.output
    nlp = spacy.load(tmp_path / "training" / "model-last")
    (doc,) = nlp.pipe([make_pair_doc(nlp, "a dog ran", "it ran")])
    assert set(doc.cats) == {"yes", "no"}
    assert doc._.latent[name].spans
    assert nlp.config["components"][name]["model"]["structure"]["unaligned"] is True


def test_other_alignments_of_pairs() -> None:
    config = filled(with_pairs(full("textcat"), [], "monotone-alignment", "marginals"))
    model = model_of(config)
    assert model["structure"]["@misc"] == "spacy-latent.MonotoneAlignment.v1"
    assert model["estimator"]["@misc"] == "spacy-latent.Marginals.v1"
    # The alignment can be replaced by another one.
    changed = components(filled(with_structure(config, [], "many-to-one-alignment")))
    assert changed["textcat"]["model"]["structure"]["@misc"].startswith("spacy-latent.ManyToOne")


def test_over_a_transformer_pairs_learn_faster_than_it() -> None:
    config = filled(with_pairs(over_transformer(["textcat"]), []))
    model = model_of(config)
    assert model["scorer_learn_rate"] == 5.0 and "ransformer" in model["tok2vec"]["@architectures"]


def test_readers_of_ones_own_stay() -> None:
    before = full("textcat")
    own = {"@readers": "spacy-latent.ListOps.v1", "path": "dev.tsv"}
    before["corpora"]["dev"] = own
    corpora = with_pairs(before, [])["corpora"]
    assert corpora["dev"] == own and corpora["train"]["@readers"] == "spacy-latent.TextPairs.v1"
    # A variable is kept.
    assert corpora["train"]["path"] == "${paths.train}"


def test_what_does_not_become_a_classifier_of_pairs() -> None:
    with pytest.raises(LatentError, match="--pipeline textcat"):
        with_pairs(full("ner"), [])
    config = filled(with_pairs(full("textcat"), []))
    with pytest.raises(LatentError, match="--for pairs"):
        with_pairs(config, [])
    with pytest.raises(LatentError, match="textcat"):
        with_pairs(filled(with_rationale(full("textcat"), [])), [])
    for attempt in (
        lambda: with_pairs(full("textcat"), [], "spanning-tree"),
        lambda: with_pairs(full("textcat"), [], "spanning-tree", "sinkhorn"),
        lambda: with_structure(config, [], "spanning-tree"),
    ):
        with pytest.raises(LatentError, match=r"textcat.*SpanningTree"):
            attempt()
    composed = deepcopy(config)
    name = "spacy-latent.ComposedPairTextCat.v1"
    composed["components"]["textcat"]["model"]["@architectures"] = name
    for attempt in (
        lambda: with_pairs(composed, []),
        lambda: with_structure(composed, [], "spanning-tree"),
    ):
        with pytest.raises(LatentError, match=r"textcat .*pair"):
            attempt()


# ---------------------------------------------------------------- rationales


@pytest.mark.parametrize(
    ("pipeline", "optimize"),
    [
        (["textcat"], "efficiency"),
        (["textcat_multilabel"], "efficiency"),
        (["textcat"], "accuracy"),
    ],
)
def test_a_text_classifier_chooses_words(pipeline: list[str], optimize: str) -> None:
    before = made(*pipeline, optimize=optimize)
    if optimize == "accuracy":
        # The config names vectors of a pipeline that is not installed.
        before["paths"]["vectors"] = None
        components(before)["tok2vec"]["model"]["embed"]["include_static_vectors"] = False
    config = filled(with_rationale(filled(before), []))
    (name,) = pipeline
    component = components(config)[name]
    assert component["factory"] == f"latent_{name}"
    selector = component["model"]["tok2vec"]["@architectures"]
    assert ("Listener" in selector) == (optimize == "accuracy")
    nlp = trained(config)
    assert "rationale_rate" in config["training"]["score_weights"]
    doc = nlp("A b c d e f g")
    assert sum(len(span) for span in doc.spans["rationale"]) == WORDS
    assert set(doc.spans["rationale"].attrs["scores"]) == {1.0}
    scores = nlp.evaluate([Example.from_dict(nlp.make_doc("A b c"), GOLD)])
    assert scores["rationale_rate"] == 1.0


@pytest.mark.parametrize(
    ("structure", "estimator"),
    [("linear-chain", "marginals"), ("tag-sequence", "marginals"), ("bits", "implicit-mle")],
)
def test_other_choices_of_words(structure: str, estimator: str) -> None:
    config = filled(with_rationale(full("textcat"), [], structure, estimator))
    nlp = trained(config)
    assert set(nlp("A b c").spans["rationale"].attrs["scores"]) <= {1.0}
    # A choice can be replaced by another one.
    config = filled(with_structure(config, [], "k-of-n", "sparsemap"))
    model = model_of(config)
    assert model["scorer"]["@misc"] == "spacy-latent.ItemScorer.v1"
    assert model["estimator"]["prediction"] == "map"
    assert len(trained(config)("A b c").spans["rationale"]) == 1


@pytest.mark.parametrize(("structure", "k"), [("k-of-n", 5), ("runs", 3)])
@pytest.mark.parametrize("estimator", ["implicit-mle", "perturb-and-map"])
def test_noise_is_of_the_size_of_the_structure(structure: str, k: int, estimator: str) -> None:
    config = filled(with_rationale(full("textcat"), [], structure, estimator))
    model = model_of(config)
    assert model["structure"]["k"] == model["estimator"]["k"] == k
    model["structure"]["k"] = 7
    model = model_of(filled(with_structure(config, [], None, "implicit-mle")))
    assert model["estimator"]["k"] == 7
    # k is a number of structures for other estimators, and trees have no k.
    assert "k" not in estimator_block("top-k-sparsemax", model["structure"])
    assert "k" not in estimator_block(estimator, {"@misc": "spacy-latent.SpanningTree.v1"})


@pytest.mark.parametrize("estimator", ["hard-kuma", "hard-concrete", "rectified-gaussian"])
def test_a_relaxed_mask_has_the_share_that_the_page_names(estimator: str) -> None:
    config = filled(with_rationale(full("textcat"), [], "bits", estimator))
    rate = model_of(config)["estimator"]["rate"]
    page = pages.ROOT / "docs" / "rationales.md"
    assert f"HardKuma, HardConcrete or RectifiedGaussian, `rate = {rate}`" in page.read_text(
        encoding="utf8"
    )
    trained(config)


def test_a_rationale_is_told_that_it_is_one() -> None:
    config = filled(with_rationale(full("textcat"), []))
    for names in ([], ["textcat"]):
        with pytest.raises(LatentError) as raised:
            with_rationale(config, names, "runs")
        assert str(raised.value).startswith(
            "textcat is a latent_textcat that already chooses words. Leave out --for rationale"
        )
    other = filled(with_structure(full("textcat"), [], None, "score-function"))
    with pytest.raises(LatentError, match="textcat"):
        with_rationale(other, [])


def test_what_does_not_become_a_rationale() -> None:
    with pytest.raises(LatentError, match="--pipeline textcat"):
        with_rationale(full("ner"), [])
    with pytest.raises(LatentError, match="ner"):
        with_rationale(full("ner", "textcat"), ["ner"])
    both = full("textcat", "textcat_multilabel")
    with pytest.raises(LatentError, match="--component textcat_multilabel"):
        with_rationale(both, [])
    with pytest.raises(IncompatiblePair):
        filled(with_rationale(full("textcat"), [], "spanning-tree"))


@pytest.mark.parametrize(
    "option", ["--crf-ner", "--latent-parser", "--tree-spancat", "--rationale", "--pairs"]
)
def test_the_command_makes_other_components(option: str, tmp_path: Path) -> None:
    of_texts = option in ("--rationale", "--pairs")
    name = "latent_textcat" if of_texts else option[2:].replace("-", "_")
    old = REPLACED[name][0] if name in REPLACED else "ner"
    output = tmp_path / "config.cfg"
    arguments = [saved(tmp_path, old, "textcat"), output, option]
    result = init(*arguments)
    assert result.exit_code == 0, result.output
    assert f'+factory = "{name}"' in result.output
    if option != "--pairs":
        trained(load_config(output))
    wrong = init(*arguments, "--force", "--shared")
    assert wrong.exit_code == 1 and option in wrong.stderr
    other = "--crf-ner" if option != "--crf-ner" else "--tree-spancat"
    assert init(*arguments, "--force", other).exit_code == 1


@pytest.mark.parametrize(
    ("purpose", "option"),
    [
        ("entities", "--crf-ner"),
        ("parse", "--latent-parser"),
        ("spans", "--tree-spancat"),
        ("rationale", "--rationale"),
        ("pairs", "--pairs"),
        ("research", "--component textcat"),
    ],
)
def test_a_purpose_is_the_same_as_its_option(purpose: str, option: str, tmp_path: Path) -> None:
    pipeline = {"entities": "ner", "parse": "parser", "spans": "spancat"}.get(purpose, "textcat")
    base = saved(tmp_path, pipeline)
    first = init(base, "-", "--for", purpose)
    second = init(base, "-", *option.split())
    assert first.exit_code == second.exit_code == 0, first.output
    assert first.stdout == second.stdout
    if purpose != "research":
        both = init(base, "-", "--for", purpose, option)
        assert both.exit_code == 1


def test_who_says_nothing_is_asked_what_for(tmp_path: Path, monkeypatch: Any) -> None:
    base, output = saved(tmp_path, "textcat"), tmp_path / "config.cfg"
    arguments = [base, output]
    told = init(*arguments)
    assert told.exit_code == 1 and all(name in told.stderr for name in PURPOSES)
    assert init(*arguments, "--for", "fun").exit_code == 1
    # A question on standard output would be part of the config.
    told = init(base, "-")
    assert told.exit_code == 1 and not told.stdout
    # Answer the question as a user at a terminal would.
    monkeypatch.setattr("spacy_latent.cli.init_config.asked_purpose", lambda *_: "rationale")
    assert init(*arguments).exit_code == 0
    model = components(load_config(output))["textcat"]["model"]
    assert model["estimator"]["@misc"] == "spacy-latent.ImplicitMLE.v1"
    assert model["candidates"]["restricted"]["@misc"] == "spacy-latent.ContentWords.v1"


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (["--structure", "projective-tree"], True),
        (["--structure", "projective-tree", "--shared"], True),
        (["--structure", "spanning-tree", "--estimator", "score-function"], True),
        (["--structure", "k-of-n", "--estimator", "sparsemap"], False),
        (["--for", "rationale"], False),
        (["--for", "pairs"], False),
    ],
)
def test_latent_trees_under_a_text_classifier_are_warned_of(
    options: list[str], warned: bool, tmp_path: Path
) -> None:
    result = init(saved(tmp_path, "textcat"), "-", *options)
    assert result.exit_code == 0, result.output
    assert ("did not help" in result.stderr) == warned


def test_the_help_names_all_structures_and_estimators() -> None:
    for listed, base in ((STRUCTURES, Structure), (ESTIMATORS, Estimator)):
        found = [registered_name(name, "name", base) for name in listed.split(", ")]
        # Other tests also register names.
        ours = [name for name in names_of(base) if name.startswith("spacy-latent.")]
        assert {short(name) for name in found} == {short(name) for name in ours}


def test_the_command_changes_its_own_output(tmp_path: Path) -> None:
    base, config = saved(tmp_path, "textcat"), tmp_path / "config.cfg"
    assert init(base, config, "--shared").exit_code == 0
    again = [config, config, "-F"]
    result = init(*again, "-e", "sparsemap")
    assert result.exit_code == 0, result.output
    assert '-prediction = "marginals"' in result.output
    assert '+@misc = "spacy-latent.SparseMAP.v1"' in result.output
    nothing = init(*again, "--for", "research")
    assert nothing.exit_code == 1 and "SpanningTree, with SparseMAP" in nothing.stderr


def test_the_command_says_where_nothing_sets_sentences(tmp_path: Path) -> None:
    base = saved(tmp_path, "textcat")
    arguments = [base, tmp_path / "config.cfg", "-F", "--shared"]
    result = init(*arguments)
    assert (
        "before latent_encoder sets sentence boundaries" in result.output and "128" in result.output
    )
    piped = init(base, "-", "--shared")
    assert (
        "sets sentence boundaries" in piped.stderr
        and "sets sentence boundaries" not in piped.stdout
    )
    config = full("textcat")
    config["components"]["sentencizer"] = {"factory": "sentencizer"}
    config["nlp"]["pipeline"].insert(0, "sentencizer")
    config.to_disk(base)
    result = init(*arguments)
    assert "Add sentencizer to training.annotating_components" in result.output
    config["training"]["annotating_components"] = ["sentencizer"]
    config.to_disk(base)
    result = init(*arguments)
    assert result.exit_code == 0 and "sentences" not in result.output
    # A rationale is chosen from the words of the whole text, so sentences do not matter.
    saved(tmp_path, "textcat")
    result = init(*arguments[:-1], "--rationale")
    assert result.exit_code == 0 and "sets sentence boundaries" not in result.output
    assert loaded(load_config(tmp_path / "config.cfg")).pipe_names == ["textcat"]


def test_a_config_whose_estimators_follow_one_another_gets_another_structure(
    tmp_path: Path,
) -> None:
    """The structure is replaced, also if the config begins with a byte order mark."""
    marked = tmp_path / "marked.cfg"
    marked.write_bytes(b"\xef\xbb\xbf" + (CONFIGS / "demo.cfg").read_bytes())
    for given in (CONFIGS / "demo.cfg", marked):
        arguments = [given, "-", "--structure", "ProjectiveTree"]
        done = init(*arguments)
        assert done.exit_code == 0, done.output
        block = Config().from_str(done.stdout)["components"]["latent_textcat"]["model"]
        assert block["structure"]["@misc"] == "spacy-latent.ProjectiveTree.v1"


@pytest.mark.parametrize("command", ["debug", "control", "sweep"])
def test_configs_in_another_encoding_and_unknown_options_are_told(
    command: str, tmp_path: Path
) -> None:
    path = tmp_path / "latin.cfg"
    path.write_bytes("[é]\n".encode("latin1"))
    grid = tmp_path / "grid.json"
    grid.write_text('{"training.dropout": [0.1]}', encoding="utf8")
    more = {
        "debug": [],
        "control": ["--output", str(tmp_path / "out")],
        "sweep": ["--grid", str(grid), "--study", str(tmp_path / "sweep.log")],
    }
    for unknown, said in (
        ([], "line 1, is not in UTF-8 (E9)"),
        (["--no", "1"], "'--no' is neither"),
    ):
        done = CliRunner().invoke(app, ["latent", command, str(path), *more[command], *unknown])
        assert done.exit_code == 1 and said in " ".join(done.output.split()), done.output
