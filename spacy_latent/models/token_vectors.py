"""Vectors of an embedder for a batch of docs, some of which may have no tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from spacy_latent.errors import LatentError, number_of
from spacy_latent.models.listener import holds_batch

Vectors = list[Floats2d]


def token_vectors(
    tok2vec: Model[list[Doc], Vectors], docs: Sequence[Doc], is_train: bool
) -> tuple[Vectors, Callable[[Vectors], Any]]:
    """Return the vectors of an embedder for docs, with rows ``(len(doc), width)`` for each doc.

    Only docs with tokens are passed to the embedder, unless a listener returns vectors for all
    docs. Some embedders return an array without width for a doc without tokens, and some fail if a
    batch has no other docs. In training, a listener returns the whole batch of the upstream
    component, whatever docs it is given.

    Returns:
        The rows, and a callback that takes their gradients, one for each of ``docs``. It passes as
        many gradients to the embedder as this returned rows.
    """
    docs = list(docs)
    filled = [i for i, doc in enumerate(docs) if len(doc)]
    width = tok2vec.maybe_get_dim("nO")
    if not filled:
        return [tok2vec.ops.alloc2f(0, width or 0) for _ in docs], lambda gradients: docs
    answered = is_train and len(filled) < len(docs) and any(map(holds_batch, tok2vec.walk()))
    asked = docs if answered else [docs[i] for i in filled]
    given, backprop_given = tok2vec(asked, is_train)
    places = [i for i, rows in enumerate(given) if len(rows)]
    sizes = [len(given[i]) for i in places]
    if sizes != [len(docs[i]) for i in filled]:
        raise LatentError(
            f"The embedder {tok2vec.name!r} gave vectors for {number_of(len(places), 'doc')} of "
            f"{sizes[:10]} tokens; expected one for each token of "
            f"{number_of(len(filled), 'doc')} of {[len(docs[i]) for i in filled][:10]} tokens."
        )
    if len(docs) == len(given) == len(filled):
        return given, backprop_given
    blank = tok2vec.ops.alloc2f(0, given[places[0]].shape[1])
    made = [blank] * len(docs)
    for i, place in zip(filled, places):
        made[i] = given[place]

    def backprop(gradients: Vectors) -> Any:
        own = [tok2vec.ops.alloc2f(*rows.shape) if not len(rows) else rows for rows in given]
        for i, place in zip(filled, places):
            own[place] = gradients[i]
        return backprop_given(own)

    return made, backprop


def with_tokens(docs: Iterable[Doc] | None) -> list[Doc] | None:
    """Return the docs that initialize an embedder, each once; None without any.

    Thinc takes the width from the first doc, and the vectors of an empty doc may have none. Each
    doc occurs once: if a batch repeats a doc, a transformer of spacy-transformers aligns its tokens
    with wrong word pieces.
    """
    return [doc for doc in dict.fromkeys(docs or ()) if len(doc)] or None
