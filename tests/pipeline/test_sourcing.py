"""Latent components added to a trained pipeline, whose own components stay unchanged.

The configs are from docs/pipelines.md and docs/crf_ner.md. The trained pipeline is a small one made
here, and a real one if available: SPACY_LATENT_PIPELINE, or an installed ``en_core_web_sm``.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.cli.init_config import fill_config
from spacy.language import Language
from spacy.lookups import Lookups
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import is_package, load_config
from thinc.api import Adam, Config, fix_random_seed

from tests.pipeline.small_pipelines import TOK2VEC, examples, latent_pipeline, step, stock
from tests.repository import pages

NAME = "en_core_web_sm"
REAL = os.environ.get("SPACY_LATENT_PIPELINE", NAME if is_package(NAME) else "")
TEXTS = ["I like London a lot. Berlin is very grey.", "Nobody hates Paris.", "like"]
AROUND = """
[corpora.train]
@readers = "spacy.Corpus.v1"
path = "{corpus}"

[corpora.dev]
@readers = "spacy.Corpus.v1"
path = "{corpus}"

[training]
max_steps = 6
eval_frequency = 3

[training.score_weights]
cats_score = 1.0

[training.batcher]
@batchers = "spacy.batch_by_sequence.v1"
size = 2
"""
OWN = Config().from_str(
    """
[components]
[components.latent_encoder]
[components.latent_encoder.model]
[components.latent_encoder.model.tok2vec]
@architectures = "spacy.HashEmbedCNN.v2"
width = 96
depth = 1
embed_size = 100
window_size = 1
maxout_pieces = 2
subword_features = true
pretrained_vectors = null

[training]
annotating_components = ["parser"]
"""
)


def configs_of_the_page() -> dict[str, Config]:
    """Return configs with a frozen tok2vec, a trained one, and the encoder's own embedder."""
    page = pages.ROOT / "docs" / "pipelines.md"
    frozen, shared = [
        Config().from_str(pages.with_parents(block.code))
        for block in pages.blocks(page)
        if block.language == "ini" and f'source = "{NAME}"' in block.code
    ]
    return {
        "frozen": frozen,
        "shared": frozen.copy().merge(shared),
        "own": frozen.copy().merge(OWN, remove_extra=False),
    }


def small_pipeline() -> Language:
    """Train a small pipeline with the same components as the real one."""
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": {**TOK2VEC, "width": 96}})
    shared = {"@architectures": "spacy.Tok2VecListener.v1", "width": 96, "upstream": "tok2vec"}
    for name in ("tagger", "parser"):
        nlp.add_pipe(name, config=stock(name, shared))
    ruler: Any = nlp.add_pipe("attribute_ruler")
    nlp.add_pipe("ner", config=stock("ner", copy.deepcopy(TOK2VEC)))
    fix_random_seed(0)
    nlp.initialize(lambda: examples(nlp))
    optimizer = Adam(0.005)
    for _ in range(8):
        step(nlp, examples(nlp), optimizer)
    ruler.add([[{"ORTH": "like"}]], {"POS": "VERB"})
    lookups = Lookups()
    lookups.add_table("lemma_lookup", {"hates": "hate"})
    lemmatizer: Any = nlp.add_pipe("lemmatizer", config={"mode": "lookup"}, before="ner")
    lemmatizer.initialize(lookups=lookups)
    return nlp


@pytest.fixture(scope="module")
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "small":
        path = tmp_path_factory.mktemp("small") / "pipeline"
        small_pipeline().to_disk(path)
        return str(path)
    if not REAL:
        pytest.skip(f"{NAME} is not installed, and SPACY_LATENT_PIPELINE names no other")
    return REAL


def trained_beside(source: str, config: Config, path: Path) -> Language:
    """Fill the config, train the new components as ``spacy train`` does, and load the result."""
    blank = spacy.blank("en")
    DocBin(docs=[example.reference for example in examples(blank)]).to_disk(path / "all.spacy")
    around = Config().from_str(pages.with_parents(AROUND.format(corpus=path / "all.spacy")))
    text = config.merge(around).to_str().replace(f'"{NAME}"', f'"{source}"')
    (path / "base.cfg").write_text(text)
    fill_config(path / "full.cfg", path / "base.cfg", silent=True)
    nlp = init_nlp(load_config(path / "full.cfg", interpolate=False))
    (path / "trained").mkdir()
    with open(os.devnull, "w") as nowhere:
        train(nlp, path / "trained", stdout=nowhere, stderr=nowhere)
    return spacy.load(path / "trained" / "model-last")


def stored(doc: Doc, *left_out: str) -> bytes:
    """Return a doc as bytes, without the annotations of the new components."""
    return doc.to_bytes(exclude=["cats", "user_data", *left_out])


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("small", "frozen"),
        ("small", "shared"),
        ("real", "frozen"),
        ("real", "shared"),
        ("real", "own"),
    ],
    indirect=["source"],
)
def test_what_was_trained_before_is_unchanged_to_the_byte(
    source: str, kind: str, tmp_path: Path
) -> None:
    nlp, before = trained_beside(source, configs_of_the_page()[kind], tmp_path), spacy.load(source)
    # A tok2vec writes its vectors to doc.tensor, so training it changes them.
    left_out = ["tensor"] if kind == "shared" else []
    seen: list[Any] = []
    for old, new in zip(before.pipe(TEXTS), nlp.pipe(TEXTS)):
        assert stored(new, *left_out) == stored(old, *left_out)
        assert len(new.cats) == 2
        # There is one tree for each sentence of the parser.
        spans = new._.latent["latent_encoder"].spans
        assert [(one.start, one.end) for one in spans] == [(s.start, s.end) for s in new.sents]
        assert np.array_equal(old.tensor, new.tensor) == (kind != "shared")
        seen.append(new.cats["good"])
    assert len(set(seen)) > 1


# The small pipeline is left out, since the test of the page's Python code uses it.
@pytest.mark.parametrize("source", ["real"], indirect=True)
def test_entities_beside_those_of_a_trained_pipeline(source: str, tmp_path: Path) -> None:
    page = pages.ROOT / "docs" / "crf_ner.md"
    (config,) = [
        Config().from_str(block.code)
        for block in pages.blocks(page)
        if block.language == "ini" and f'source = "{NAME}"' in block.code
    ]
    nlp, before = trained_beside(source, config, tmp_path), spacy.load(source)
    assert nlp.get_pipe("crf_ner").labels == ("GPE",)  # type: ignore[union-attr]
    for old, new in zip(before.pipe(TEXTS), nlp.pipe(TEXTS)):
        assert [(t.tag, t.dep, t.lemma) for t in new] == [(t.tag, t.dep, t.lemma) for t in old]
        assert np.array_equal(old.tensor, new.tensor)
        found = {(e.start, e.end): e.probability for e in new._.latent["crf_ner"].entities()}
        # crf_ner comes before ner, which keeps the entities that it found.
        assert [ent._.confidence for ent in new.ents] == [
            found.get((ent.start, ent.end)) for ent in new.ents
        ]


def test_a_trained_encoder_is_taken_over_with_its_listeners() -> None:
    trained = latent_pipeline("textcat")
    fix_random_seed(0)
    trained.initialize(lambda: examples(trained))
    for _ in range(5):
        step(trained, examples(trained), Adam(0.005))
    expected = trained(TEXTS[0])
    nlp = spacy.blank("en", vocab=trained.vocab)
    for name in trained.pipe_names:
        nlp.add_pipe(name, source=trained)
    found = nlp(TEXTS[0])
    assert found.cats == expected.cats
    encoder: Any = nlp.get_pipe("latent_encoder")
    assert encoder.listening_components == ["textcat"]
    for _ in range(2):
        nlp.update(examples(nlp), sgd=Adam(0.005))
    assert nlp(TEXTS[0]).cats != expected.cats
