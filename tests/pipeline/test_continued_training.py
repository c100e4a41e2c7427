"""``spacy train`` continues the training of a ``crf_ner`` with spans that are known to be wrong.

The configs are from the component's page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import spacy
from confection import Config
from spacy.cli.train import train
from spacy.tokens import Doc, DocBin, Span
from spacy.util import load_config

from spacy_latent.cli.added_structures import filled
from tests.pipeline.small_pipelines import TOK2VEC
from tests.repository.pages import ROOT, blocks

LISTENER = {
    "@architectures": "spacy.Tok2VecListener.v1",
    "width": TOK2VEC["width"],
    "upstream": "tok2vec",
}
PAGE = [one.code for one in blocks(ROOT / "docs" / "crf_ner.md") if one.language == "ini"]
(CONTINUED,) = (code for code in PAGE if 'source = "training/' in code)
(KEY,) = (code for code in PAGE if re.search('^incorrect_spans_key = "', code, re.M))


def annotated(vocab: Any, words: str, place: int) -> Doc:
    doc = Doc(vocab, words=words.split())
    doc.set_ents([Span(doc, place, place + 1, label="GPE")])
    return doc


def probability(path: Path) -> float:
    """Return the probability that the first word is in an entity."""
    doc = spacy.load(path)("Berta likes Paris")
    (sequence,) = doc._.latent["crf_ner"].spans
    assert sequence.labels is not None and sequence.probabilities is not None
    return sum(
        p
        for (token, tag), p in zip(sequence.parts, sequence.probabilities)
        if token == 0 and sequence.labels[tag] != "O"
    )


def test_spacy_train_lowers_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The configs of the page name the pipeline relative to the current directory.
    monkeypatch.chdir(tmp_path)
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    settings = {"annotate": "probabilities", "threshold": 0.0, "model": {"tok2vec": LISTENER}}
    nlp.add_pipe("crf_ner", config=settings)
    config = filled(nlp.config)
    config["training"].update(max_steps=4, eval_frequency=2)
    config.to_disk("config.cfg")
    texts = [("Anna likes London", 2), ("London is grey", 0), ("Paris is not", 0)]
    docs = [annotated(nlp.vocab, *text) for text in texts]
    DocBin(docs=docs).to_disk("train.spacy")
    wrong = nlp.make_doc("Berta likes Paris")
    wrong.set_ents([], default="missing")
    wrong.spans["incorrect"] = [Span(wrong, 0, 1, label="GPE")]
    DocBin(docs=[*docs, wrong]).to_disk("checked.spacy")
    paths = {"paths.train": "train.spacy", "paths.dev": "train.spacy"}
    train(Path("config.cfg"), Path("training"), overrides=paths)

    whole = load_config("config.cfg", interpolate=False)
    whole["components"] = Config().from_str("[components]\n\n" + CONTINUED)["components"]
    whole.to_disk("continued.cfg")
    own = Path("training/model-best/config.cfg")
    found = {}
    for key in ("without", "with"):
        if key == "with":
            given = Config().from_str("[components]\n\n" + KEY)
            load_config(own, interpolate=False).merge(given).to_disk(own)
        overrides = {**paths, "paths.train": "checked.spacy", "training.max_steps": 20}
        train(Path("continued.cfg"), Path(key), overrides=overrides)
        found[key] = probability(Path(key) / "model-last")
    assert found["with"] < found["without"] / 2
    kept = load_config("with/model-last/config.cfg")["components"]["crf_ner"]
    assert kept["factory"] == "crf_ner" and kept["incorrect_spans_key"] == "incorrect"
