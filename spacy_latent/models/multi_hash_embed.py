"""Variant of spaCy's MultiHashEmbed that embeds each different word of a batch once."""

from collections.abc import Callable
from typing import Any

import numpy as np
from spacy.ml.models.tok2vec import MultiHashEmbed
from spacy.tokens import Doc
from thinc.api import Model, chain
from thinc.types import Floats2d, Ragged


def build_multi_hash_embed_v1(
    width: int, attrs: list[str | int], rows: list[int]
) -> Model[list[Doc], list[Floats2d]]:
    """Build ``spacy.MultiHashEmbed.v2`` without static vectors, in a faster variant.

    Its layers and initial weights are the same, and its results are the same up to rounding. Tokens
    with the same attributes are embedded once for a batch, which saves nearly all of the time. With
    dropout, and on a GPU, every token is embedded on its own, as in spaCy.

    Args:
        width, attrs, rows: as in ``spacy.MultiHashEmbed.v2``.
    """
    extract, to_ragged, embed, max_out, to_list = MultiHashEmbed(width, attrs, rows, False).layers
    return chain(extract, to_ragged, once_each(chain(embed, max_out)), to_list)


def once_each(layer: Model[Ragged, Ragged]) -> Model[Ragged, Ragged]:
    """Wrap a layer that maps rows independently, so that it runs only once for equal rows."""
    return Model("once_each", forward, init=init, layers=[layer])


def init(model: Model, X: Any = None, Y: Any = None) -> None:
    """Initialize the embedding layer."""
    model.layers[0].initialize(X=X, Y=Y)


def forward(model: Model, rows: Ragged, is_train: bool) -> tuple[Ragged, Callable]:
    """Embed each different row once; with dropout, or on a GPU, embed every row."""
    layer, array = model.layers[0], rows.dataXd
    drops = is_train and any(node.attrs.get("dropout_rate") for node in layer.walk())
    if drops or not isinstance(array, np.ndarray) or not len(array):
        return layer(rows, is_train)
    ops: Any = model.ops
    keys = array[:, 0] if array.shape[1] == 1 else array
    _, first, kind = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1).astype("int32")
    different = Ragged(np.ascontiguousarray(array[first]), ops.asarray1i([len(first)]))
    embedded, backprop_layer = layer(different, is_train)

    def backprop(gradient: Ragged) -> Ragged:
        total = ops.alloc2f(*embedded.dataXd.shape)
        ops.scatter_add(total, kind, gradient.dataXd)
        backprop_layer(Ragged(total, different.lengths))
        return Ragged(np.zeros_like(array), rows.lengths)

    return Ragged(embedded.dataXd[kind], rows.lengths), backprop
