"""Latent parsers that compose vectors, in spaCy pipelines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Adam

from spacy_latent import listops
from spacy_latent.errors import LatentError
from tests.pipeline.small_pipelines import LISTENER, TOK2VEC, examples, initialized, step, stock

PARSERS: list[dict[str, Any]] = [
    {"@misc": "spacy-latent.GumbelTreeLstm.v1"},
    {"@misc": "spacy-latent.GumbelTreeLstm.v1", "output": "root", "output_width": 7},
]


def encoder(parser: dict[str, Any], **options: Any) -> dict[str, Any]:
    model = {"@architectures": "spacy-latent.ParserTok2Vec.v1", "tok2vec": TOK2VEC}
    return {"model": {**model, "parser": parser}, **options}


def pipeline(parser: dict[str, Any], *names: str, **options: Any) -> Any:
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_encoder", config=encoder(parser, **options))
    for name in names:
        nlp.add_pipe(name, config=stock(name, LISTENER))
    return nlp


def weights(nlp: Any) -> np.ndarray:
    module = nlp.get_pipe("latent_encoder").model.get_ref("latent").shims[0].module
    return np.concatenate([p.detach().numpy().ravel().copy() for p in module.parameters()])


@pytest.mark.parametrize("parser", PARSERS, ids=str)
def test_it_trains_and_its_trees_are_stored(parser: dict[str, Any]) -> None:
    nlp = pipeline(parser, "textcat", "tagger", annotate="probabilities", alternatives=2)
    optimizer = initialized(nlp)
    before = weights(nlp)
    for _ in range(2):
        losses = step(nlp, examples(nlp), optimizer)
    assert np.isfinite(losses["textcat"]) and losses["latent_encoder"] > 0
    assert not np.array_equal(before, weights(nlp))
    again = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    texts = ["I like London a lot", "Berlin is", "Paris", ""]
    for text, doc in zip(texts, nlp.pipe(texts)):
        other = again(text)
        # The scores of spaCy's textcat for an empty text depend on the other texts of the batch.
        assert not text or other.cats == pytest.approx(doc.cats)
        found, same = doc._.latent["latent_encoder"], other._.latent["latent_encoder"]
        assert found.to_displacy() == same.to_displacy()
        assert found.brackets() == same.brackets()
        made = [(b.start, b.end) for b in found.brackets() if b.end - b.start > 1]
        assert len(made) == max(0, len(doc) - 1)
        assert len(doc) < 2 or (0, len(doc)) in made
        for span in found.spans:
            assert span.kind == "spans" and len(span.alternatives) >= 1


def test_heads_are_refused() -> None:
    nlp = pipeline(PARSERS[0], "textcat", set_heads=True)
    with pytest.raises(LatentError, match="ParserTree"):
        initialized(nlp)


@pytest.mark.parametrize("parser", PARSERS[1:], ids=str)
def test_a_little_listops_is_learned(parser: dict[str, Any]) -> None:
    nlp = pipeline(parser, "textcat", annotate="none")
    (found,) = listops.generate([64], ["MIN", "MAX"], max_depth=3, max_arguments=2, max_length=9)
    sample = []
    for tokens in found:
        doc = Doc(nlp.vocab, words=tokens)
        value = listops.evaluate(tokens)
        reference = doc.copy()
        reference.cats = {label: float(label == str(value)) for label in listops.CATEGORIES}
        sample.append(Example(doc, reference))
    initialized(nlp, sample=sample)
    optimizer = Adam(0.01)
    losses = [step(nlp, sample, optimizer)["textcat"] for _ in range(40)]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
