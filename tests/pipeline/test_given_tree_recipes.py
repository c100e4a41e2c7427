"""The configs whose trees come from a trained parser train, each over a small one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.util import load_config, registry, resolve_dot_names
from thinc.api import Adam, fix_random_seed

from benchmarks.learning import GROUPS, Entry
from tests.pipeline.small_pipelines import examples, step

CONFIGS = Path(__file__).parents[2] / "configs"
ENTRIES = GROUPS["given_trees"].entries
TEXTS = {"I like London . You hate it": "POSITIVE", "I hate Paris a lot": "NEGATIVE"}
EMBEDDER = "model.tok2vec.embed_size"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parser as parser_ewt.cfg has it, with few rows, and a corpus."""
    path = tmp_path_factory.mktemp("files")
    small = {"nlp.lang": "xx", f"components.latent_parser.{EMBEDDER}": 50}
    nlp = spacy.util.load_model_from_config(
        load_config(CONFIGS / "parser_ewt.cfg", overrides=small), auto_fill=True
    )
    fix_random_seed(0)
    nlp.initialize(lambda: examples(nlp))
    nlp.to_disk(path / "parser")
    docs = []
    for text, label in TEXTS.items():
        doc = nlp.make_doc(text)
        doc.cats = {name: float(name == label) for name in ("NEGATIVE", "POSITIVE")}
        docs.append(doc)
    DocBin(docs=docs).to_disk(path / "docs.spacy")
    return path


def initialized(entry: Entry, files: Path) -> Language:
    own = load_config(CONFIGS / f"{entry.config}.cfg")
    overrides: dict[str, Any] = {**dict(entry.settings), "nlp.lang": "xx"}
    overrides |= {"paths.train": str(files / "docs.spacy"), "paths.dev": str(files / "docs.spacy")}
    if "parser" in own["paths"]:
        overrides["paths.parser"] = str(files / "parser")
        overrides["corpora.train.keep"] = str(files / "kept")
    for name, component in own["components"].items():
        if "embed_size" in component.get("model", {}).get("tok2vec", {}):
            overrides[f"components.{name}.{EMBEDDER}"] = 50
        elif "embed_size" in component.get("model", {}):
            overrides[f"components.{name}.model.embed_size"] = 50
    return init_nlp(load_config(CONFIGS / f"{entry.config}.cfg", overrides=overrides))


def of_parser(files: Path, doc: Doc) -> list[int]:
    parsed = spacy.load(files / "parser")(Doc(doc.vocab, words=[token.text for token in doc]))
    return [token.head.i for token in parsed]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_it_trains_over_the_trees_that_it_names(entry: Entry, files: Path) -> None:
    nlp = initialized(entry, files)
    doc = nlp(next(iter(TEXTS)))
    assert ("parser" in nlp.config["paths"]) == bool(doc._.latent)
    if doc._.latent:
        found = doc._.latent["latent_encoder"].heads.tolist()
        # Those that are let go begin as the parser's.
        assert (found == of_parser(files, doc)) != entry.is_control
    config = nlp.config.interpolate()
    training = registry.resolve(config["training"], schema=ConfigSchemaTraining)
    (read,) = resolve_dot_names(config, [training["train_corpus"]])
    trained = [name for name in nlp.pipe_names if name not in training["frozen_components"]]
    before = {name: nlp.get_pipe(name).to_bytes() for name in nlp.pipe_names}  # type: ignore[attr-defined]
    optimizer = Adam(0.001)
    with nlp.select_pipes(enable=trained):
        for _ in range(3):
            losses = step(nlp, list(read(nlp)), optimizer)
    assert all(np.isfinite(loss) for loss in losses.values())
    moved = [n for n in nlp.pipe_names if nlp.get_pipe(n).to_bytes() != before[n]]  # type: ignore[attr-defined]
    assert moved == trained


def test_all_differ_in_the_trees_alone() -> None:
    """In training, embedder and classifier."""
    given, *others = (
        load_config(CONFIGS / f"{name}.cfg") for name in dict.fromkeys(e.config for e in ENTRIES)
    )
    assert len(others) == 2
    embedder = given["components"]["latent_encoder"]["model"]["tok2vec"]
    for other in others:
        (own,) = (
            component["model"].get("tok2vec", component["model"])
            for name, component in other["components"].items()
            if name in ("latent_encoder", "tok2vec")
        )
        assert own == embedder
        for setting in set(given["training"]) - {"frozen_components", "score_weights"}:
            assert other["training"][setting] == given["training"][setting], setting
        reduced = [c["components"]["textcat"]["model"].copy() for c in (given, other)]
        for model in reduced:
            del model["tok2vec"]
        assert reduced[0] == reduced[1]
