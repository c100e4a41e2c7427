"""Counters of a scorer: their training, and their values that are stored on a doc."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.tokens import Doc, DocBin

from spacy_latent.errors import LatentError
from spacy_latent.pipeline.inspection import inspect_docs
from tests.pipeline.small_pipelines import (
    REDUCE,
    TOK2VEC,
    examples,
    initialized,
    latent_layers,
    latent_pipeline,
    scorer_weights,
    step,
)

LSTM = {"@misc": "spacy-latent.BiLSTM.v1", "hidden_width": 4}
TREES = {
    "tok2vec": TOK2VEC,
    "scorer": {"@misc": "spacy-latent.CounterScorer.v1", "counters": 3, "hidden_width": 8},
}
SPANS = {
    "tok2vec": TOK2VEC,
    "structure": {"@misc": "spacy-latent.ConstituencyTree.v1"},
    "scorer": {"@misc": "spacy-latent.CounterSpanScorer.v1", "counters": 3, "hidden_width": 8},
    "composer": {"@misc": "spacy-latent.SpanAttention.v1"},
}
MODELS: dict[str, dict[str, Any]] = {
    "trees": TREES,
    "encoded": {**TREES, "scorer": {**TREES["scorer"], "encoder": LSTM}},  # type: ignore[dict-item]
    "stacks": {
        **TREES,
        "scorer": {
            "@misc": "spacy-latent.ContinuousStackScorer.v1",
            "stacks": 3,
            "hidden_width": 8,
        },
    },
    "spans": SPANS,
}


@pytest.mark.parametrize("name", MODELS)
def test_it_trains_and_stores_its_counters(name: str, tmp_path: Path) -> None:
    encoder = {"model": MODELS[name], "annotate": "probabilities"}
    nlp = latent_pipeline("textcat", encoder=encoder)
    optimizer = initialized(nlp)
    before = scorer_weights(nlp, "latent_encoder")
    for _ in range(2):
        losses = step(nlp, examples(nlp), optimizer)
    assert np.isfinite(list(losses.values())).all()
    assert not np.array_equal(before, scorer_weights(nlp, "latent_encoder"))
    doc = nlp("I like London a lot . I hate Paris")
    counters = doc._.latent["latent_encoder"].counters
    assert counters.shape == (len(doc), 3) and counters.dtype == np.float32
    # Each token adds at most 1.
    assert np.abs(np.diff(counters, axis=0)).max() <= 1.0 and counters.any()
    (layer,) = latent_layers(nlp, "latent_encoder")
    rows = torch.as_tensor(nlp.get_pipe("latent_encoder").model.layers[0].predict([doc])[0])  # type: ignore[attr-defined]
    with torch.no_grad():
        expected = layer.scorer.counters(rows[None], torch.tensor([len(doc)]))[0]
    np.testing.assert_allclose(counters, expected.numpy(), rtol=1e-5, atol=1e-6)
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)(doc.text)
    assert np.array_equal(again._.latent["latent_encoder"].counters, counters)
    stored = DocBin(store_user_data=True, docs=[doc]).to_bytes()
    (read,) = DocBin().from_bytes(stored).get_docs(nlp.vocab)
    assert np.array_equal(read._.latent["latent_encoder"].counters, counters)


def test_they_are_stored_with_probabilities_alone() -> None:
    nlp = latent_pipeline("textcat", encoder={"model": TREES, "annotate": "map"})
    initialized(nlp)
    doc = nlp("I like London")
    (span,) = doc._.latent["latent_encoder"].spans
    assert span.counters is None
    with pytest.raises(LatentError, match='annotate = "probabilities"'):
        _ = doc._.latent["latent_encoder"].counters
    inspect_docs(nlp, [doc])
    assert doc._.latent["latent_encoder"].counters.shape == (3, 3)


def test_a_scorer_without_counters_says_so() -> None:
    nlp = latent_pipeline("textcat", encoder={"annotate": "probabilities"})
    initialized(nlp)
    with pytest.raises(LatentError, match="CounterScorer"):
        _ = nlp("I like London")._.latent["latent_encoder"].counters
    with pytest.raises(NotImplementedError, match="BiaffineScorer"):
        latent_layers(nlp, "latent_encoder")[0].scorer.counters(None, None)


def test_a_component_that_owns_its_loss_stores_them() -> None:
    nlp = spacy.blank("en")
    model = {**TREES, "@architectures": "spacy-latent.LatentTextClassifier.v1"}
    model["exclusive_classes"] = REDUCE["exclusive_classes"]
    nlp.add_pipe("latent_textcat", config={"model": model, "annotate": "probabilities"})
    initialized(nlp)
    doc = nlp("I like London")
    assert doc._.latent["latent_textcat"].counters.shape == (3, 3)


def test_tokens_outside_of_all_spans_have_none() -> None:
    from spacy_latent.annotations import SpanStructure, write

    doc = Doc(spacy.blank("en").vocab, words=["a", "b", "c"])
    heads = np.array([0, 1], dtype="int32")
    counters = np.array([[1.0], [2.0]])
    write(doc, "x", [SpanStructure(1, 3, "SpanningTree", "heads", heads, counters=counters)])
    found = doc._.latent["x"].counters
    assert np.isnan(found[0, 0]) and found[1:, 0].tolist() == [1.0, 2.0]
