"""Docs without tokens, with one token, and of white space alone, in every component and embedder.

They raise no error in training. A doc without tokens does not change the losses, gradients and
predictions of the other docs.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from thinc.api import Adam, fix_random_seed

from spacy_latent.corpora.text_pairs import make_pair_doc
from spacy_latent.errors import LatentError
from spacy_latent.models.token_vectors import token_vectors
from tests.pipeline.small_pipelines import (
    LISTENER,
    REDUCE,
    TO_TRANSFORMER,
    TOK2VEC,
    TRANSFORMER_WIDTH,
    WIDTH,
    add_transformer,
    save_small_transformer,
    step,
    stock,
)

TEXTS = {
    "i like london": ([1, 1, 1], "s ROOT o", (2, 3), "A"),
    "london i hate s": ([2, 2, 2, 2], "o s ROOT p", (0, 1), "B"),
    "i hate i like london": ([1, 1, 3, 1, 3], "s ROOT s c o", (4, 5), "A"),
}
FIRST, SECOND, THIRD = TEXTS
PLAIN = [FIRST, SECOND, THIRD]
# Each is the batch PLAIN and some docs without tokens.
AMONG_OTHERS = [["", "", *PLAIN], [FIRST, "", SECOND, THIRD, ""]]
ODD = [["", ""], [" "], ["", "london", " ", "", FIRST, "\n\n", ""]]

MARGINALS = {"@misc": "spacy-latent.Marginals.v1"}
ARCS = {"@misc": "spacy-latent.BiaffineScorer.v1", "hidden_width": 8}
TREES = {"@misc": "spacy-latent.SpanningTree.v1", "single_root": True}
WORDS = {
    "@architectures": "spacy.MultiHashEmbed.v2",
    "width": 8,
    "attrs": ["NORM"],
    "rows": [50],
    "include_static_vectors": False,
}
BASELINE = {"@misc": "spacy-latent.NetworkBaseline.v1", "hidden_width": 4}
SAMPLES = {
    "@misc": "spacy-latent.ScoreFunction.v1",
    "num_samples": 2,
    "inner_steps": 2,
    "control_variate": BASELINE,
}


def owner(architecture: str, **model: Any) -> dict[str, Any]:
    return {"@architectures": f"spacy-latent.{architecture}", "exclusive_classes": True, **model}


# Names to a factory and its config without the embedder.
COMPONENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "crf_ner": ("crf_ner", {"annotate": "probabilities", "model": {"hidden_width": 8}}),
    "quadratic": ("crf_ner", {"loss": "quadratic", "model": {"hidden_width": None}}),
    "tree_spancat": ("tree_spancat", {"model": {"hidden_width": 8}}),
    "latent_parser": (
        "latent_parser",
        {"annotate": "probabilities", "model": {"structure": TREES, "scorer": ARCS}},
    ),
    "parser of words": (
        "latent_parser",
        {"model": {"scorer": ARCS, "evidence": {"@misc": "spacy-latent.CrfAutoencoder.v1"}}},
    ),
    "latent_textcat": ("latent_textcat", {"model": {"estimator": MARGINALS}}),
    "samples": ("latent_textcat", {"model": {"estimator": SAMPLES}}),
    "latent_textcat_multilabel": (
        "latent_textcat_multilabel",
        {"model": {"estimator": MARGINALS, "use_reduce_max": True, "use_reduce_first": True}},
    ),
    "pairs": ("latent_textcat", {"model": owner("AlignedPairTextCat.v1")}),
    "composed pairs": ("latent_textcat", {"model": owner("ComposedPairTextCat.v1")}),
    "rationale": (
        "latent_textcat",
        {
            "spans_key": "rationale",
            "model": owner(
                "RationaleTextCat.v1",
                embed=WORDS,
                estimator=MARGINALS,
                structure={"@misc": "spacy-latent.Bits.v1"},
            ),
        },
    ),
    "code": (
        "latent_textcat",
        {
            "annotate": "none",
            "model": owner(
                "DocumentCode.v1",
                size=4,
                code_width=8,
                evidence={"@misc": "spacy-latent.EvidenceBound.v1"},
            ),
        },
    ),
    "supervised": ("latent_encoder", {"supervision": 1.0, "model": {"width": WIDTH}}),
    "ner": ("ner", stock("ner", {})),
    "tagger": ("tagger", stock("tagger", {})),
}

OF_PAIRS = ("pairs", "composed pairs")
SHARED = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "tok2vec"}


def inline(tok2vec: dict[str, Any], width: int = WIDTH) -> dict[str, Any]:
    return {
        "@architectures": "spacy-latent.LatentTok2Vec.v1",
        "tok2vec": tok2vec,
        "scorer": ARCS,
        "width": width,
    }


SEPARATE = {
    "@architectures": "spacy-latent.SeparateTok2Vec.v1",
    "composer": TOK2VEC,
    "scorer": SHARED,
}
# Names to the factories before the component, and the component's embedder.
EMBEDDERS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "own": ([], TOK2VEC),
    "inline": (["tok2vec"], inline(SHARED)),
    "separate": (["tok2vec"], inline(SEPARATE)),
    "encoder": (["tok2vec", "latent_encoder"], inline(LISTENER)),
    "transformer": (["transformer"], TO_TRANSFORMER),
    "inline transformer": (["transformer"], inline(TO_TRANSFORMER, TRANSFORMER_WIDTH)),
}
# Every component with the embedder "inline", and every other embedder with some components.
PLACES = [
    *itertools.product(COMPONENTS, ["inline"]),
    *itertools.product(["latent_parser", "pairs", "rationale", "tree_spancat"], ["transformer"]),
    *itertools.product(["crf_ner"], ["own", "separate", "encoder", "inline transformer"]),
    *itertools.product(["latent_textcat"], ["separate", "encoder", "transformer"]),
]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("transformer")
    save_small_transformer(path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return path


def built(name: str, embedder: str, path: Path) -> Language:
    before, tok2vec = EMBEDDERS[embedder]
    nlp = spacy.blank("xx")
    for upstream in before:
        if upstream == "transformer":
            add_transformer(nlp, path)
            strides = {"@span_getters": "spacy-transformers.strided_spans.v1"}
            nlp.get_pipe("transformer").model.attrs["get_spans"] = spacy.registry.resolve(  # type: ignore[attr-defined]
                {"getter": {**strides, "window": 128, "stride": 96}}
            )["getter"]
        elif upstream == "tok2vec":
            nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
        else:
            nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": SHARED, "scorer": ARCS}})
    factory, config = COMPONENTS[name]
    config = copy.deepcopy(config)
    config["model"]["tok2vec"] = tok2vec
    nlp.add_pipe(factory, config=config, name="component")
    return nlp


def example(nlp: Language, name: str, text: str) -> Example:
    words = text.split() or ([text] if text else [])
    if name in OF_PAIRS:
        # "first | second" is a pair. A text without a bar is paired with its reversed words.
        first, bar, second = (side.split() for side in text.partition("|"))
        sides = (first, second) if bar else (words, words[::-1])
        docs = [make_pair_doc(nlp, *sides) for _ in range(2)]
    else:
        docs = [Doc(nlp.vocab, words=words) for _ in range(2)]
    reference = docs[1]
    reference.cats = {"A": 1.0, "B": 0.0}
    if text in TEXTS and name not in OF_PAIRS:
        heads, deps, (start, end), category = TEXTS[text]
        reference = Doc(
            nlp.vocab, words=words, heads=heads, deps=deps.split(), tags=deps.upper().split()
        )
        reference.ents = [Span(reference, start, end, "PLACE")]
        reference.spans["sc"] = [Span(reference, start, end, "NP")]
        reference.cats = {"A": float(category == "A"), "B": float(category == "B")}
    elif len(reference):
        reference.set_ents([], default="outside")
    return Example(docs[0], reference)


def batch(nlp: Language, name: str, texts: list[str]) -> list[Example]:
    return [example(nlp, name, text) for text in texts]


def trained(name: str, embedder: str, path: Path, sample: list[str]) -> Language:
    nlp = built(name, embedder, path)
    fix_random_seed(0)
    nlp.initialize(lambda: batch(nlp, name, sample))
    optimizer = Adam(0.01)
    # Some gradients are 0 in the first step.
    for _ in range(2):
        step(nlp, batch(nlp, name, PLAIN), optimizer)
    return nlp


def told(nlp: Language, name: str, texts: list[str]) -> tuple[dict[str, float], dict[Any, Any]]:
    """Return the losses of a batch, and the gradients of all weights."""
    fix_random_seed(1)
    losses = nlp.update(batch(nlp, name, texts), sgd=False)  # type: ignore[arg-type]
    found = {}

    def take(key: Any, weights: Any, gradient: Any, **_: Any) -> Any:
        found[key] = gradient.copy()
        gradient[...] = 0.0
        return weights, gradient

    for _, pipe in nlp.pipeline:
        getattr(pipe, "_further", []).clear()
        if getattr(pipe, "is_trainable", False):
            pipe.finish_update(take)  # type: ignore[attr-defined]
    return losses, found


@pytest.mark.parametrize("name, embedder", PLACES)
def test_an_empty_doc_changes_nothing_for_others(
    name: str, embedder: str, transformer: Path
) -> None:
    # The sample begins with an empty doc: the widths are inferred from a doc with tokens.
    nlp = trained(name, embedder, transformer, ["", *PLAIN])
    losses, gradients = told(nlp, name, PLAIN)
    assert any(gradient.any() for gradient in gradients.values())
    for texts in AMONG_OTHERS:
        own_losses, own = told(nlp, name, texts)
        assert own_losses == pytest.approx(losses, rel=1e-4, abs=1e-6)
        # A gradient of zeros may also be missing.
        for key in own.keys() | gradients.keys():
            np.testing.assert_allclose(
                own.get(key, 0.0), gradients.get(key, 0.0), rtol=1e-3, atol=1e-5
            )
    alone = [said(doc) for doc in nlp.pipe(docs_of(nlp, name, PLAIN))]
    for texts in AMONG_OTHERS:
        docs = nlp.pipe(docs_of(nlp, name, texts))
        assert [said(doc) for doc in docs if len(doc)] == alone
        whole = list(docs_of(nlp, name, texts))
        for _, pipe in nlp.pipeline:
            # Call the pipes directly: nlp.pipe would hide an error by predicting each doc alone.
            pipe.set_annotations(whole, pipe.predict(whole))  # type: ignore[attr-defined]
        assert [said(doc) for doc in whole if len(doc)] == alone
    pairs = [["london |"], ["", "london |", "| i like", FIRST]]
    odd = [*ODD, *pairs] if name in OF_PAIRS else ODD
    optimizer = Adam(0.001)
    for texts in odd:
        found = step(nlp, batch(nlp, name, texts), optimizer)
        assert all(np.isfinite(loss) for loss in found.values())
        assert nlp.evaluate(batch(nlp, name, texts))["token_acc"] in (1.0, None)
    assert all(np.isfinite(array).all() for array in told(nlp, name, PLAIN)[1].values())


def docs_of(nlp: Language, name: str, texts: list[str]) -> Iterator[Doc]:
    return (one.predicted for one in batch(nlp, name, texts))


def said(doc: Doc) -> Any:
    spans = {key: [(s.start, s.end) for s in group] for key, group in doc.spans.items()}
    cats = {label: pytest.approx(value, abs=1e-5) for label, value in doc.cats.items()}
    return [span.text for span in doc.ents], [t.head.i for t in doc], spans, cats


@pytest.mark.parametrize("name", ["latent_textcat", "latent_textcat_multilabel", "crf_ner"])
def test_rehearsal(name: str, transformer: Path) -> None:
    nlp = trained(name, "own", transformer, PLAIN)
    nlp.resume_training()
    step(nlp, batch(nlp, name, PLAIN), Adam(0.05))
    pipe: Any = nlp.get_pipe("component")
    found = [
        pipe.rehearse(batch(nlp, name, texts))["component"] for texts in [PLAIN, *AMONG_OTHERS]
    ]
    assert found[0] > 0 and found == pytest.approx([found[0]] * len(found), rel=1e-4)


@pytest.mark.parametrize("name", ["crf_ner", "latent_textcat", "latent_textcat_multilabel"])
def test_a_corpus_may_begin_with_empty_docs(name: str, transformer: Path) -> None:
    # spaCy infers the shapes from fewer docs than these twelve.
    nlp = trained(name, "transformer", transformer, [""] * 12 + PLAIN)
    assert len(list(nlp.pipe(docs_of(nlp, name, ["", FIRST])))) == 2


def test_a_classifier_of_spacy_may_begin_with_empty_docs(transformer: Path) -> None:
    nlp = spacy.blank("xx")
    pooled = dict.fromkeys(("use_reduce_first", "use_reduce_last", "use_reduce_max"), True)
    model = {**REDUCE, **pooled, "@architectures": "spacy-latent.TextCatReduce.v1"}
    nlp.add_pipe("textcat", config={"model": {**model, "tok2vec": TOK2VEC}})
    nlp.initialize(lambda: batch(nlp, "textcat", [""] * 12 + PLAIN))
    assert step(nlp, batch(nlp, "textcat", PLAIN), Adam(0.01))["textcat"] > 0


def test_a_frozen_embedder_answers_beside_empty_docs() -> None:
    """Training works with docs without tokens, for which spaCy's listener has no vectors."""
    nlp = spacy.blank("xx")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    model = {"tok2vec": SHARED, "scorer": ARCS, "estimator": MARGINALS}
    nlp.add_pipe("latent_textcat", config={"model": model})
    nlp.initialize(lambda: batch(nlp, "frozen", PLAIN))
    for texts in (PLAIN, *AMONG_OTHERS):
        examples = batch(nlp, "frozen", texts)
        losses = nlp.update(examples, exclude=["tok2vec"], annotates=["tok2vec"], sgd=Adam(0.01))
        assert losses["latent_textcat"] > 0


def test_an_embedder_that_answers_for_other_docs_is_refused() -> None:
    nlp = spacy.blank("xx")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    nlp.initialize(lambda: batch(nlp, "tok2vec", PLAIN))
    model: Any = nlp.get_pipe("tok2vec").model  # type: ignore[attr-defined]
    docs = list(docs_of(nlp, "tok2vec", PLAIN))
    own = model._func
    model._func = lambda node, given, is_train: own(node, given[1:], is_train)
    with pytest.raises(LatentError, match=r"2.*\[4, 5\].*3"):
        token_vectors(model, docs, False)
