"""Variant of spaCy's classifier of pooled vectors that also reads texts without tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spacy.util import registry
from thinc.api import Model, chain, noop
from thinc.types import Floats2d

# Layers of Thinc that raise an error for a text without words, and their settings in configs.
NEED_WORDS = {f"reduce_{which}": f"use_reduce_{which}" for which in ("first", "last", "max")}
FLATTEN, _NAME = "list2ragged", "zeros_for_empty"


def build_text_cat_reduce_v1(
    tok2vec: Model,
    exclusive_classes: bool,
    use_reduce_first: bool,
    use_reduce_last: bool,
    use_reduce_max: bool,
    use_reduce_mean: bool,
    nO: int | None = None,
) -> Model:
    """Build ``spacy.TextCatReduce.v1`` for texts with and without tokens.

    A text without tokens gets the categories of a vector of zeros. spaCy's model does this only if
    ``use_reduce_mean`` is its only reduction. With others it raises an error at such a text. All
    other results are exactly the same. If a batch has only empty texts, the component gives them 0
    for each label, as always.

    Args:
        tok2vec: model of the vectors of tokens.
        exclusive_classes: whether a text has one category.
        use_reduce_first, use_reduce_last, use_reduce_max, use_reduce_mean: reductions of the
            vectors of the tokens, concatenated to the vector of the doc: the first, the last, the
            largest of each dimension, the mean.
        nO: number of categories; the component sets it.
    """
    stock: Callable[..., Model] = registry.architectures.get("spacy.TextCatReduce.v1")
    model = stock(
        tok2vec=tok2vec,
        exclusive_classes=exclusive_classes,
        use_reduce_first=use_reduce_first,
        use_reduce_last=use_reduce_last,
        use_reduce_max=use_reduce_max,
        use_reduce_mean=use_reduce_mean,
        nO=nO,
    )
    before, pooling = _pooling(model)
    model.replace_node(before, noop())
    model.replace_node(pooling, Model(_NAME, _forward, layers=[chain(before, pooling)]))
    return model


def refuses_empty_texts(model: Model) -> list[str]:
    """Return the settings of a classifier that make it fail at a text without tokens."""
    safe = {inner.id for node in model.walk() if node.name == _NAME for inner in node.walk()}
    tok2vec = model.maybe_get_ref("tok2vec")
    below = set() if tok2vec is None else {node.id for node in tok2vec.walk()}
    refuse = {node.name for node in model.walk() if node.id not in safe | below}
    return [setting for name, setting in NEED_WORDS.items() if name in refuse]


def _pooling(model: Model) -> tuple[Model, Model]:
    """Return the layer of spaCy's classifier that concatenates texts, and the pooling after it."""
    for node in model.walk():
        for before, after in zip(node.layers, node.layers[1:]):
            # A chain may be nested in another chain.
            last = before
            while last.name != FLATTEN and ">>" in last.name:
                last = last.layers[-1]
            if last.name == FLATTEN:
                return last, after
    raise ValueError(f"spacy.TextCatReduce.v1 has no layer {FLATTEN}; expected one before pooling.")


def _forward(
    model: Model[list[Floats2d], Floats2d], texts: list[Floats2d], is_train: bool
) -> tuple[Floats2d, Callable[[Floats2d], list[Floats2d]]]:
    pooling: Model[Any, Any] = model.layers[0]
    # Compare shapes, since reading numbers of tokens from a GPU would wait for it.
    some = [place for place, vectors in enumerate(texts) if len(vectors)]
    if len(some) == len(texts):
        return pooling(texts, is_train)
    # If no text has tokens, a vector of zeros determines the width of the pooled vector.
    read = [texts[place] for place in some] or [model.ops.alloc2f(1, texts[0].shape[1])]
    pooled, backpropagate_pooled = pooling(read, is_train)
    if not some:
        return model.ops.alloc2f(len(texts), pooled.shape[1]), lambda gradient: texts
    found = model.ops.alloc2f(len(texts), pooled.shape[1])
    found[some] = pooled

    def backpropagate(gradient: Floats2d) -> list[Floats2d]:
        given = [model.ops.alloc2f(*vectors.shape) for vectors in texts]
        for place, own in zip(some, backpropagate_pooled(gradient[some])):
            given[place] = own
        return given

    return found, backpropagate
