"""spaCy's classifier of pooled vectors, which reads texts without tokens as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from spacy.util import registry
from thinc.api import Model
from thinc.types import Floats2d, Ragged

# Layers of Thinc that refuse a text of no words, and what configs call them.
NEED_WORDS = {f"reduce_{which}": f"use_reduce_{which}" for which in ("first", "last", "max")}
_NAME = "zeros_for_empty"


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
    spaCy's own raises an error at such a text. All else is the same, to the last digit.

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
    for layer in list(_pooling(model, tok2vec)):
        model.replace_node(layer, _zeros_for_empty(layer))
    return model


def refuses_empty_texts(model: Model) -> list[str]:
    """Settings of a classifier of pooled vectors for which it fails at a text without tokens."""
    safe = {layer.id for node in model.walk() if node.name == _NAME for layer in node.layers}
    tok2vec = model.maybe_get_ref("tok2vec")
    refuse = {node.name for node in _pooling(model, tok2vec) if node.id not in safe}
    return [setting for name, setting in NEED_WORDS.items() if name in refuse]


def _pooling(model: Model, tok2vec: Model | None) -> Iterator[Model]:
    """Pooling layers that need words, of the classifier itself and not of what is below it."""
    below = set() if tok2vec is None else {node.id for node in tok2vec.walk()}
    return (node for node in model.walk() if node.name in NEED_WORDS and node.id not in below)


def _zeros_for_empty(pooling: Model[Ragged, Floats2d]) -> Model[Ragged, Floats2d]:
    return Model(_NAME, _forward, layers=[pooling])


def _forward(
    model: Model[Ragged, Floats2d], given: Ragged, is_train: bool
) -> tuple[Floats2d, Callable[[Floats2d], Ragged]]:
    pooling: Model[Any, Any] = model.layers[0]
    some = given.lengths > 0
    if some.all():
        return pooling(given, is_train)
    # Of texts without words there are no rows to leave out.
    pooled, backpropagate_pooled = pooling(Ragged(given.dataXd, given.lengths[some]), is_train)
    found = model.ops.alloc2f(len(given.lengths), pooled.shape[1])
    found[some] = pooled

    def backpropagate(gradient: Floats2d) -> Ragged:
        return Ragged(backpropagate_pooled(gradient[some]).dataXd, given.lengths)

    return found, backpropagate


__all__ = ["build_text_cat_reduce_v1", "refuses_empty_texts"]
