"""Components of this package over a shared transformer, or over an encoder above it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example

from tests.pipeline.small_pipelines import (
    LISTENER,
    TO_TRANSFORMER,
    TRANSFORMER_WIDTH,
    add_transformer,
    copied_weights,
    initialized,
    moved,
    save_small_transformer,
    step,
)

COMPONENTS: dict[str, dict[str, Any]] = {
    "crf_ner": {"annotate": "probabilities", "model": {}},
    "tree_spancat": {"model": {"hidden_width": 16}},
    "latent_parser": {
        "model": {
            "structure": {"@misc": "spacy-latent.SpanningTree.v1", "single_root": True},
            "scorer": {"@misc": "spacy-latent.BiaffineScorer.v1", "hidden_width": 16},
            "label_hidden_width": 8,
        }
    },
}
STEPS = 80
ORDERS = [*([name] for name in COMPONENTS), list(COMPONENTS)]
# Words, heads, labels of arcs, the bounds of an entity, and nested spans of each sentence.
GOLD = [
    ("i like london", [1, 1, 1], "s ROOT o", (2, 3), [(0, 3), (2, 3)]),
    ("london i hate s", [2, 2, 2, 2], "o s ROOT p", (0, 1), [(0, 1), (1, 4)]),
    ("i hate i like london", [1, 1, 3, 1, 3], "s ROOT s c o", (4, 5), [(2, 5), (4, 5)]),
]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("transformer")
    save_small_transformer(path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return path


def examples(nlp: Language) -> list[Example]:
    made = []
    for text, heads, deps, (start, end), spans in GOLD:
        reference = Doc(nlp.vocab, words=text.split(), heads=heads, deps=deps.split())
        reference.ents = [Span(reference, start, end, "PLACE")]
        reference.spans["sc"] = [Span(reference, *span, "NP") for span in spans]
        made.append(Example(nlp.make_doc(text), reference))
    return made


def said(doc: Doc) -> dict[str, Any]:
    """Return the annotations that each component writes on a doc."""
    return {
        "crf_ner": [(span.start, span.end) for span in doc.ents],
        "tree_spancat": sorted((span.start, span.end) for span in doc.spans.get("sc", ())),
        "latent_parser": [(token.head.i, token.dep_) for token in doc],
    }


@pytest.mark.parametrize("encoder", [False, True], ids=["transformer", "latent encoder over it"])
@pytest.mark.parametrize("names", ORDERS, ids="-".join)
def test_they_learn_and_come_back_from_disk(
    names: list[str], encoder: bool, transformer: Path, tmp_path: Path
) -> None:
    nlp = spacy.blank("en")
    add_transformer(nlp, transformer)
    upstream = TO_TRANSFORMER
    if encoder:
        own = {"tok2vec": TO_TRANSFORMER, "width": TRANSFORMER_WIDTH}
        nlp.add_pipe("latent_encoder", config={"model": own})
        upstream = {**LISTENER, "width": TRANSFORMER_WIDTH}
    for name in names:
        config = copy.deepcopy(COMPONENTS[name])
        config["model"]["tok2vec"] = upstream
        nlp.add_pipe(name, config=config)
    batch = examples(nlp)
    optimizer = initialized(nlp, sample=batch)
    model = nlp.get_pipe("transformer").model  # type: ignore[union-attr]
    before = copied_weights(model)
    first = step(nlp, batch, optimizer)
    for _ in range(STEPS):
        last = step(nlp, batch, optimizer)
    # All weights of the transformer move, except the two of its unused pooler.
    assert len(moved(before, model)) >= len(before) - 2
    assert all(last[name] < first[name] / 2 for name in names)
    texts = [text for text, *_ in GOLD]
    docs = list(nlp.pipe(texts))
    for doc, example in zip(docs, batch):
        found, gold = said(doc), said(example.reference)
        assert {name: found[name] for name in names} == {name: gold[name] for name in names}
    nlp.to_disk(tmp_path)
    again = list(spacy.load(tmp_path).pipe(texts))
    assert [said(doc) for doc in again] == [said(doc) for doc in docs]
    for one, other in zip(docs, again):
        assert one._.latent.keys() == other._.latent.keys() >= set(names)
        assert [span._.confidence for span in one.ents] == pytest.approx(
            [span._.confidence for span in other.ents]
        )


@pytest.mark.parametrize("name", ["latent_textcat", "latent_textcat_multilabel"])
def test_a_classifier_with_its_own_transformer_begins_with_fewer_texts_than_a_sample_has(
    name: str, transformer: Path
) -> None:
    nlp = spacy.blank("en")
    windows = {"@span_getters": "spacy-transformers.strided_spans.v1", "window": 128, "stride": 96}
    own = {
        "@architectures": "spacy-transformers.Tok2VecTransformer.v3",
        "name": str(transformer),
        "tokenizer_config": {"use_fast": True},
        "get_spans": windows,
        "pooling": {"@layers": "reduce_mean.v1"},
    }
    nlp.add_pipe(name, config={"model": {"tok2vec": own}})
    batch = examples(nlp)
    for number, example in enumerate(batch):
        example.reference.cats = {"good": float(number == 0), "bad": float(number > 0)}
    # The same docs again at each call, as from a list.
    optimizer = initialized(nlp, sample=batch)
    assert step(nlp, batch, optimizer)[name] > 0
