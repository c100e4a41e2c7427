"""Structures other than trees in a ``latent_encoder``: training, prediction, storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.training import Example
from thinc.api import Adam

from spacy_latent.errors import LatentError
from tests.pipeline.small_pipelines import (
    TOK2VEC,
    examples,
    initialized,
    latent_pipeline,
    scorer_weights,
    step,
)

LAYERS = [
    ("KOfN", "ItemScorer", "SparseMAP", "Selection"),
    ("Bits", "ItemScorer", "Marginals", "Selection"),
    ("LinearChain", "TransitionScorer", "StraightThrough", "TagEmbedding"),
    ("TagSequence", "EmissionScorer", "Marginals", "TagSequenceEmbedding"),
    ("SemiMarkov", "SegmentScorer", "PerturbAndMap", "SegmentAttention"),
    ("ConstituencyTree", "SpanScorer", "Marginals", "SpanAttention"),
    ("ConstituencyTree", "SpanScorer", "StraightThrough", "BinaryTreeLstm"),
    ("ShiftReduce", "SpanScorer", "BestStraightThrough", "BinaryTreeLstm"),
    ("ShiftReduce", "StackScorer", "BestStraightThrough", "BinaryTreeLstm"),
    ("MergeSequence", "MergeScorer", "BestStraightThrough", "MergeTreeLstm"),
]


def encoder(names: tuple[str, ...], **options: Any) -> dict[str, Any]:
    keys = ("structure", "scorer", "estimator", "composer")
    blocks: dict[str, Any] = {
        key: {"@misc": f"spacy-latent.{name}.v1"} for key, name in zip(keys, names)
    }
    if names[0] == "KOfN":
        blocks["structure"]["k"] = 2
    return {"model": {"tok2vec": TOK2VEC, **blocks}, **options}


@pytest.mark.parametrize("names", LAYERS, ids="-".join)
def test_it_trains_and_its_structures_are_stored(names: tuple[str, ...]) -> None:
    options = {"annotate": "probabilities", "alternatives": 2}
    nlp = latent_pipeline("textcat", encoder=encoder(names, **options))
    optimizer = initialized(nlp)
    before = scorer_weights(nlp, "latent_encoder")
    for _ in range(2):
        losses = step(nlp, examples(nlp), optimizer)
    assert np.isfinite(losses["textcat"])
    assert not np.array_equal(before, scorer_weights(nlp, "latent_encoder"))
    again = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    texts = ["I like London a lot", "Berlin is", "Paris"]
    for text, doc in zip(texts, nlp.pipe(texts)):
        other = again(text)
        assert other.cats == pytest.approx(doc.cats)
        found = doc._.latent["latent_encoder"], other._.latent["latent_encoder"]
        assert found[0].to_displacy() == found[1].to_displacy()
        for span in found[0].spans:
            assert span.parts is not None and len(span.parts) and len(span.alternatives) >= 1


def test_a_relaxation_trains_and_the_best_tree_is_stored() -> None:
    names = ("BudgetTree", "BiaffineScorer", "SparseMAP", "GraphConvolution")
    config = encoder(names, annotate="probabilities", alternatives=2)
    config["model"]["structure"]["max_modifiers"] = 1
    nlp = latent_pipeline("textcat", encoder=config)
    optimizer = initialized(nlp)
    before = scorer_weights(nlp, "latent_encoder")
    for _ in range(2):
        losses = step(nlp, examples(nlp), optimizer)
    assert np.isfinite(losses["textcat"])
    assert not np.array_equal(before, scorer_weights(nlp, "latent_encoder"))
    (span,) = nlp("I like London a lot")._.latent["latent_encoder"].spans
    assert np.bincount(span.decoded, minlength=2)[1:].max() <= 1
    assert len(span.probabilities) and not span.alternatives


def test_heads_of_what_is_no_tree_are_refused_before_training() -> None:
    nlp = latent_pipeline("textcat", encoder=encoder(LAYERS[0], set_heads=True))
    with pytest.raises(LatentError, match="KOfN"):
        initialized(nlp)


def test_the_right_word_is_found() -> None:
    """The encoder learns to choose the one word that determines the label of a text."""
    config = encoder(("KOfN", "ItemScorer", "SparseMAP", "Selection"))
    config["model"].update(residual=False)
    config["model"]["structure"]["k"] = 1
    nlp = latent_pipeline("textcat", encoder=config)
    sample = examples(nlp)
    initialized(nlp, sample=sample)
    optimizer = Adam(0.01)
    for _ in range(40):
        losses = step(nlp, sample, optimizer)
    assert losses["textcat"] < 0.05
    for example in sample:
        doc = nlp(example.reference.text)
        assert len(doc._.latent["latent_encoder"].items()) == 1
        assert doc.cats == pytest.approx(example.reference.cats, abs=0.3)


def test_a_factor_graph_is_stored_and_annotates(tmp_path: Path) -> None:
    graph = {
        "@misc": "spacy-latent.FactorGraph.v1",
        "structures": {
            "tree": {"@misc": "spacy-latent.ProjectiveTree.v1"},
            "near": {"@misc": "spacy-latent.SpanningTree.v1", "max_arc_length": 3},
        },
        "constraints": {
            "modifiers": {"@misc": "spacy-latent.LineBudget.v1", "limit": 2, "but_first": True}
        },
    }
    model = {"structure": graph, "estimator": {"@misc": "spacy-latent.SparseMAP.v1"}}
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_encoder", config={"model": model})
    docs = [nlp.make_doc("the cat sat on the mat ."), nlp.make_doc("a dog barked at me")]
    nlp.initialize(lambda: [Example(doc, doc.copy()) for doc in docs])
    nlp.to_disk(tmp_path)
    for doc in spacy.load(tmp_path).pipe(["the cat sat on the mat .", "a dog barked at me"]):
        (span,) = doc._.latent["latent_encoder"].spans
        heads = span.decoded
        assert span.kind == "heads" and np.bincount(heads, minlength=2)[1:].max() <= 2
        inner = np.flatnonzero(heads)
        assert np.abs(heads[inner] - 1 - inner).max() <= 3
