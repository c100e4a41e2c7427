"""Batches of docs that a component predicts together, and docs that fail."""

from __future__ import annotations

import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Model

from spacy_latent.pipeline.batches import TRANSFORMED_WORDS, WORDS, BatchedComponent

VOCAB = Vocab()


class Recording(BatchedComponent):
    """A component that records the lengths of the docs in each batch that it predicts.

    It fails on a batch with a doc of ``refused`` tokens.
    """

    def __init__(self, device: str = "cpu", refused: int = -1, layer: str = "linear") -> None:
        self.name = "recording"
        inner: Model = Model(layer, lambda *_: None)
        model: Any = Model("outer", lambda *_: None, layers=[inner])
        model.ops = SimpleNamespace(device_type=device)
        self.model = model
        self.refused = refused
        self.together: list[list[int]] = []
        self.annotated: list[Doc] = []

    def predict(self, docs: Iterable[Doc]) -> list[int]:
        sizes = [len(doc) for doc in docs]
        if self.refused in sizes:
            raise ValueError("refused")
        self.together.append(sizes)
        return sizes

    def set_annotations(self, docs: Iterable[Doc], predictions: Any) -> None:
        for doc, size in zip(docs, predictions, strict=True):
            assert len(doc) == size
            self.annotated.append(doc)


def docs_of(sizes: Iterable[int]) -> list[Doc]:
    return [Doc(VOCAB, words=["a"] * size) for size in sizes]


BOUNDS = [
    ("linear", WORDS),
    ("transformer-listener>>trfs2arrays", WORDS),
    ("transformer>>split-trf-batch", TRANSFORMED_WORDS),
]


@pytest.mark.parametrize("layer, words", BOUNDS)
@given(sizes=st.lists(st.integers(0, 900), max_size=40), batch_size=st.integers(1, 30))
def test_docs_come_in_their_order_and_are_predicted_in_bounded_parts(
    layer: str, words: int, sizes: list[int], batch_size: int
) -> None:
    component, docs = Recording(layer=layer), docs_of(sizes)
    assert list(component.pipe(docs, batch_size=batch_size)) == docs
    assert sorted(map(id, component.annotated)) == sorted(map(id, docs))
    for part in component.together:
        assert len(part) == 1 or max(part) * len(part) <= words


@pytest.mark.parametrize("layer, words", BOUNDS)
def test_parts_are_as_large_as_the_bound_allows(layer: str, words: int) -> None:
    component = Recording(layer=layer)
    list(component.pipe(docs_of([64] * 64)))
    assert [len(part) for part in component.together] == [words // 64] * (64 * 64 // words)


def test_short_docs_are_not_padded_to_a_long_one() -> None:
    sizes = [10] * 20 + [500] * 4
    random.Random(0).shuffle(sizes)
    component = Recording()
    list(component.pipe(docs_of(sizes), batch_size=64))
    assert [500] * 4 in component.together and [10] * 20 in component.together


def test_a_doc_beyond_the_bound_is_predicted_alone() -> None:
    component, docs = Recording(), docs_of([5, WORDS + 1, 6])
    assert list(component.pipe(docs)) == docs
    assert sorted(component.together, key=max) == [[5, 6], [WORDS + 1]]


def test_a_gpu_gets_the_whole_batch() -> None:
    component, docs = Recording("cuda"), docs_of([900, 5, 900, 900])
    assert list(component.pipe(docs)) == docs
    assert component.together == [[900, 5, 900, 900]]


def test_the_others_of_a_part_with_a_doc_that_fails_come_in_their_order() -> None:
    component, docs, failed = Recording(refused=7), docs_of([900, 8, 7, 900, 6, 900]), []
    component.set_error_handler(lambda name, proc, docs, error: failed.extend(docs))
    assert list(component.pipe(docs)) == [doc for doc in docs if len(doc) != 7]
    assert failed == [docs[2]]
    # Each doc is annotated once: a part without the failing doc is not predicted again.
    assert sorted(map(len, component.annotated)) == [6, 8, 900, 900, 900]


def test_docs_that_fail_are_handed_over_in_the_order_of_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    component, docs, failed = Recording(), docs_of([5, 300, 5, 1100]), []
    monkeypatch.setattr(component, "set_annotations", lambda docs, predictions: 1 / 0)
    component.set_error_handler(lambda name, proc, docs, error: failed.extend(docs))
    assert list(component.pipe(docs)) == [] and failed == docs


def test_without_a_handler_the_error_is_raised() -> None:
    with pytest.raises(ValueError, match="refused"):
        list(Recording(refused=7).pipe(docs_of([8, 7])))


@pytest.mark.parametrize("batch_size", [1, 7, 256])
def test_a_parser_finds_the_same_trees_whatever_is_predicted_together(batch_size: int) -> None:
    nlp = spacy.blank("en")
    parser: Any = nlp.add_pipe("latent_parser")
    for label in ("one", "other"):
        parser.add_label(label)
    nlp.initialize()
    rng = random.Random(0)
    texts = [
        " ".join(rng.choice("the cat sat on a mat".split()) for _ in range(size))
        for size in [3, 200, 40, 1, 170, 60, 2, 190, 33, 150, 160, 170, 180]
    ]
    alone = [nlp(text) for text in texts]
    for doc, expected in zip(nlp.pipe(texts, batch_size=batch_size), alone, strict=True):
        assert doc.text == expected.text
        assert [token.head.i for token in doc] == [token.head.i for token in expected]
