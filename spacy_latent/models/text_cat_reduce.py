"""spaCy's classifier of pooled vectors, which reads texts without tokens as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spacy.util import registry
from thinc.api import Model, chain, noop
from thinc.types import Floats2d

# Layers of Thinc that refuse a text of no words, and what configs call them.
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
    """``spacy.TextCatReduce.v1``, which gives a text without tokens the categories of a vector of
    zeros, as it does by itself with ``use_reduce_mean`` alone. With the other ways of pooling
    spaCy's own raises an error at such a text. All else is the same, to the last digit. (Where a
    batch has nothing but empty texts, the component gives them 0 for each label, as it always
    does.)

    tok2vec: gives the vectors of tokens.
    exclusive_classes: whether a text has one category.
    use_reduce_first, use_reduce_last, use_reduce_max, use_reduce_mean: how the vectors of the
        tokens make one of the doc, one after the other: the first, the last, the largest of each
        dimension, the mean.
    nO: the number of categories; the component sets it.
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
    model.replace_node(pooling, _zeros_for_empty(before, pooling))
    return model


def refuses_empty_texts(model: Model) -> list[str]:
    """Settings of a classifier of pooled vectors for which it fails at a text without tokens."""
    safe = {inner.id for node in model.walk() if node.name == _NAME for inner in node.walk()}
    tok2vec = model.maybe_get_ref("tok2vec")
    below = set() if tok2vec is None else {node.id for node in tok2vec.walk()}
    refuse = {node.name for node in model.walk() if node.id not in safe | below}
    return [setting for name, setting in NEED_WORDS.items() if name in refuse]


def _pooling(model: Model) -> tuple[Model, Model]:
    """Of spaCy's classifier the layer that puts the vectors of all texts one after another, and the
    next, which pools them."""
    for node in model.walk():
        for before, after in zip(node.layers, node.layers[1:]):
            # A chain may be inside of another.
            last = before
            while last.name != FLATTEN and ">>" in last.name:
                last = last.layers[-1]
            if last.name == FLATTEN:
                return last, after
    raise ValueError("spacy.TextCatReduce.v1 is not made of the layers that are known here.")


def _zeros_for_empty(flatten: Model, pooling: Model) -> Model[list[Floats2d], Floats2d]:
    return Model(_NAME, _forward, layers=[chain(flatten, pooling)])


def _forward(
    model: Model[list[Floats2d], Floats2d], texts: list[Floats2d], is_train: bool
) -> tuple[Floats2d, Callable[[Floats2d], list[Floats2d]]]:
    pooling: Model[Any, Any] = model.layers[0]
    # By shapes: numbers of tokens on a GPU would have to be waited for.
    some = [place for place, vectors in enumerate(texts) if len(vectors)]
    if len(some) == len(texts):
        return pooling(texts, is_train)
    # Where there are none, one of zeros tells the width of what is pooled.
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


__all__ = ["build_text_cat_reduce_v1", "refuses_empty_texts"]
