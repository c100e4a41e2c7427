"""Training of the configs whose trees come from a trained parser, with a small parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.tokens import Doc, DocBin, Span
from spacy.training.initialize import init_nlp
from spacy.util import load_config, registry, resolve_dot_names
from thinc.api import Adam, fix_random_seed

from benchmarks.learning_groups import GROUPS, STOCK_PARSER, Entry
from spacy_latent.corpora.text_pairs import make_pair_doc
from spacy_latent.evaluation.mistakes import find_traps
from tests.pipeline.small_pipelines import examples, step, weights_of
from tests.repository.recipes import recipe

NAMES = ("given_trees", "given_trees_entities", "given_trees_pairs")
ENTRIES = [entry for name in NAMES for entry in GROUPS[name].entries]
TEXTS = {"I like London . You hate it": "POSITIVE", "I hate Paris a lot": "NEGATIVE"}
PAIRS = [("I like London . You hate it", "I hate Paris"), ("I hate Paris a lot", "You like it")]
EMBEDDER = "model.tok2vec.embed_size"


def is_of_pairs(entry: Entry) -> bool:
    return entry.config.startswith("pairs")


def is_of_stock(entry: Entry) -> bool:
    return entry.settings == STOCK_PARSER


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with corpora, and parsers of two recipes with few rows in their embeddings.

    The recipes are parser_ewt.cfg and parser_ewt_transition.cfg.
    """
    path = tmp_path_factory.mktemp("files")
    for config, name in (("parser_ewt", "latent_parser"), ("parser_ewt_transition", "parser")):
        small: dict[str, Any] = {"nlp.lang": "xx", f"components.{name}.{EMBEDDER}": 50}
        if name == "parser":
            small["components.parser.min_action_freq"] = 1
        nlp = spacy.util.load_model_from_config(
            load_config(recipe(config), overrides=small), auto_fill=True
        )
        fix_random_seed(0)
        nlp.initialize(lambda nlp=nlp: examples(nlp))
        nlp.to_disk(path / name)
    docs = []
    for text, label in TEXTS.items():
        doc = nlp.make_doc(text)
        doc.cats = {name: float(name == label) for name in ("NEGATIVE", "POSITIVE")}
        doc.ents = [Span(doc, 2, 3, "location")]
        docs.append(doc)
    DocBin(docs=docs).to_disk(path / "docs.spacy")
    pairs = [
        {"text_a": first, "text_b": second, "label": label}
        for label, (first, second) in zip(("contradiction", "entailment"), PAIRS)
    ]
    srsly.write_jsonl(path / "pairs.jsonl", pairs)
    return path


def initialized(entry: Entry, files: Path) -> Language:
    own = load_config(recipe(entry.config))
    overrides: dict[str, Any] = {**dict(entry.settings), "nlp.lang": "xx"}
    data = files / ("pairs.jsonl" if is_of_pairs(entry) else "docs.spacy")
    overrides |= {"paths.train": str(data), "paths.dev": str(data)}
    if "parser" in own["paths"]:
        overrides["paths.parser"] = str(files / "latent_parser")
    if is_of_stock(entry):
        overrides["paths.parser"] = str(files / "parser")
        overrides["initialize.after_init.path"] = str(files / "latent_parser")
    if "keep" in own["corpora"]["train"]:
        overrides["corpora.train.keep"] = str(files / "kept")
    for name, component in own["components"].items():
        if "embed_size" in component.get("model", {}).get("tok2vec", {}):
            overrides[f"components.{name}.{EMBEDDER}"] = 50
        elif "embed_size" in component.get("model", {}):
            overrides[f"components.{name}.model.embed_size"] = 50
    return init_nlp(load_config(recipe(entry.config), overrides=overrides))


def given_doc(nlp: Language, entry: Entry) -> Doc:
    if is_of_pairs(entry):
        return make_pair_doc(nlp, *PAIRS[0])
    return nlp.make_doc(next(iter(TEXTS)))


def of_parser(files: Path, name: str, entry: Entry) -> list[int]:
    nlp = spacy.load(files / name)
    parsed = nlp(given_doc(nlp, entry))
    return [token.head.i for token in parsed]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_it_trains_over_the_trees_that_it_names(entry: Entry, files: Path) -> None:
    nlp = initialized(entry, files)
    doc = nlp(given_doc(nlp, entry))
    assert ("parser" in nlp.config["paths"]) == ("latent_encoder" in doc._.latent)
    if "latent_encoder" in doc._.latent:
        found = doc._.latent["latent_encoder"].heads.tolist()
        # Trees that are released for training begin as the parser's trees.
        ours = found == of_parser(files, "latent_parser", entry)
        assert ours != entry.is_control
        if is_of_stock(entry):
            assert found == of_parser(files, "parser", entry)
    config = nlp.config.interpolate()
    training = registry.resolve(config["training"], schema=ConfigSchemaTraining)
    (read,) = resolve_dot_names(config, [training["train_corpus"]])
    assert not [one.text for one in find_traps(nlp, list(read(nlp))) if one.level != "note"]
    trained = [name for name in nlp.pipe_names if name not in training["frozen_components"]]
    before = {name: nlp.get_pipe(name).to_bytes() for name in nlp.pipe_names}  # type: ignore[attr-defined]
    optimizer = Adam(0.001)
    options = {
        "exclude": training["frozen_components"],
        "annotates": training["annotating_components"],
    }
    for _ in range(3):
        losses = step(nlp, list(read(nlp)), optimizer, **options)
    assert all(np.isfinite(loss) for loss in losses.values())
    moved = [n for n in nlp.pipe_names if nlp.get_pipe(n).to_bytes() != before[n]]  # type: ignore[attr-defined]
    assert moved == trained


def test_a_classifier_of_its_own_composes_the_parsers_trees(files: Path) -> None:
    entry = Entry("sentiment_parsed_tree_lstm")
    nlp = initialized(entry, files)
    doc = nlp(given_doc(nlp, entry))
    heads = of_parser(files, "latent_parser", entry)
    assert doc._.latent["latent_textcat"].heads.tolist() == heads
    config = nlp.config.interpolate()
    training = registry.resolve(config["training"], schema=ConfigSchemaTraining)
    (read,) = resolve_dot_names(config, [training["train_corpus"]])
    assert not [one.text for one in find_traps(nlp, list(read(nlp))) if one.level != "note"]
    before = {name: nlp.get_pipe(name).to_bytes() for name in nlp.pipe_names}  # type: ignore[attr-defined]
    for _ in range(3):
        step(nlp, list(read(nlp)), Adam(0.001), exclude=training["frozen_components"])
    moved = [n for n in nlp.pipe_names if nlp.get_pipe(n).to_bytes() != before[n]]  # type: ignore[attr-defined]
    assert moved == ["latent_textcat"]


@pytest.mark.parametrize("task", ["ner", "pairs"])
def test_without_trees_there_are_the_same_weights_and_no_arcs(task: str, files: Path) -> None:
    given, none = (initialized(Entry(f"{task}_{kind}_trees"), files) for kind in ("given", "no"))
    for name in none.pipe_names:
        own, other = (weights_of(nlp.get_pipe(name).model) for nlp in (none, given))  # type: ignore[attr-defined]
        assert {key: w.shape for key, w in own.items()} == {k: w.shape for k, w in other.items()}
    doc = none(given_doc(none, Entry(f"{task}_no_trees")))
    assert doc._.latent["latent_encoder"].heads.tolist() == list(range(len(doc)))


@pytest.mark.parametrize("kind", ["given", "started"])
def test_no_tree_is_over_both_texts_of_a_pair(kind: str, files: Path) -> None:
    entry = Entry(f"pairs_{kind}_trees")
    nlp = initialized(entry, files)
    doc = nlp(given_doc(nlp, entry))
    (second,) = doc.spans["b"]
    heads = doc._.latent["latent_encoder"].heads
    assert 0 < second.start < len(doc)
    assert all((head < second.start) == (i < second.start) for i, head in enumerate(heads))
    assert {"latent_encoder", "latent_textcat"} <= doc._.latent.keys()


@pytest.mark.parametrize("name", NAMES)
def test_all_differ_in_the_trees_alone(name: str) -> None:
    """The settings of training, the embedder and the layers above the trees are the same."""
    entries = GROUPS[name].entries
    given, *others = (
        load_config(recipe(name)) for name in dict.fromkeys(e.config for e in entries)
    )
    assert len(others) == 2
    embedder = given["components"]["latent_encoder"]["model"]["tok2vec"]
    (task,) = given["components"].keys() - {"latent_parser", "latent_encoder"}
    of_trees = {"frozen_components", "annotating_components", "score_weights"}
    for other in others:
        (own,) = (
            component["model"].get("tok2vec", component["model"])
            for name, component in other["components"].items()
            if name in ("latent_encoder", "tok2vec")
        )
        assert own == embedder
        for setting in set(given["training"]) - of_trees:
            assert other["training"][setting] == given["training"][setting], setting
        reduced = [c["components"][task]["model"].copy() for c in (given, other)]
        for model in reduced:
            del model["tok2vec"]
        assert reduced[0] == reduced[1]
