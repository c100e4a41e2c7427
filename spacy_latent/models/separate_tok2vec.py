"""Two embedders, one for the composer of a structure and one for its scorer."""

from collections.abc import Callable, Sequence
from typing import Any

from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.models.latent_shim import Width
from spacy_latent.models.token_vectors import token_vectors, with_tokens

NAME = "separate_tok2vec"


def build_separate_tok2vec_v1(
    composer: Model[list[Doc], list[Floats2d]], scorer: Model[list[Doc], list[Floats2d]]
) -> Model[list[Doc], list[Floats2d]]:
    """Build a tok2vec for models with a latent structure, with separate embedders.

    The composer reads one embedder and the scorer the other. Training one of them does not change
    the input of the other.

    Words that are similar for the task need not be similar for the structure. With a shared
    embedder, a scorer that starts after the composer has learned reads vectors made for the
    composer. For example, they may order numbers by value, although the structure only needs to
    know that they are numbers. The scorer's embedder may also see context that the composer must
    not see.

    Args:
        composer: embedder of any width.
        scorer: embedder of any width.

    Returns:
        Model whose rows are the rows of both, concatenated: ``(n, width of composer + width of
        scorer)``.
    """
    for half in (composer, scorer):
        refuse_separate("SeparateTok2Vec", half)
    model: Model[list[Doc], list[Floats2d]] = Model(
        NAME, forward, init=init, layers=[composer, scorer], dims={"nO": None}
    )
    for name in ("embed", "encode"):
        if composer.has_ref(name):
            model.set_ref(name, composer.get_ref(name))
    return model


def init(model: Model, X: Any = None, Y: Any = None) -> None:
    """Initialize both embedders; the width is the sum of their widths."""
    docs = with_tokens(X)
    for layer in model.layers:
        layer.initialize(X=docs)
    widths = width_of(model, docs or [])
    if widths is not None:
        model.set_dim("nO", total(widths), force=True)


def forward(model: Model, docs: Sequence[Doc], is_train: bool) -> tuple[list[Floats2d], Callable]:
    """Return the vectors for the composer, followed by the vectors for the scorer."""
    composer, scorer = model.layers
    ops: Any = model.ops
    composed, backprop_composer = token_vectors(composer, docs, is_train)
    scored, backprop_scorer = token_vectors(scorer, docs, is_train)
    width = composed[0].shape[1] if composed else 0

    def backprop(gradients: list[Floats2d]) -> Any:
        backprop_composer([ops.as_contig(rows[:, :width]) for rows in gradients])
        return backprop_scorer([ops.as_contig(rows[:, width:]) for rows in gradients])

    return [ops.xp.hstack(rows) for rows in zip(composed, scored)], backprop


def width_of(tok2vec: Model, docs: Sequence[Doc]) -> Width | None:
    """Return the width of the rows of an initialized embedder.

    For two embedders it is a list of the composer's and the scorer's width. The result is None if
    neither the embedder nor a doc of ``docs`` determines it.

    Raises:
        LatentError: if the embedder's width is below 1.
    """
    if tok2vec.name == NAME:
        widths = [width_of(half, docs) for half in tok2vec.layers]
        known = [width for width in widths if isinstance(width, int)]
        return known if len(known) == len(widths) else None
    if tok2vec.has_dim("nO"):
        width = tok2vec.get_dim("nO")
        if width < 1:
            raise LatentError(
                f"The width of the embedder is {width}; expected a number >= 1. Set it in the "
                "config, in the block of the embedder, whose name ends in tok2vec."
            )
        return width
    filled = [doc for doc in docs if len(doc)][:1]
    return tok2vec.predict(filled)[0].shape[1] if filled else None


def initialize_embedder(tok2vec: Model, X: Any) -> Width | None:
    """Initialize an embedder with docs, and return its width; None if nothing determines it.

    Raises:
        LatentError: if the embedder's width is below 1, or if it needs vectors and there are none.
    """
    docs = with_tokens(X)
    # spaCy's embedders fail with both while they are initialized.
    width_of(tok2vec, [])
    refuse_no_vectors(tok2vec, docs or [])
    tok2vec.initialize(X=docs)
    return width_of(tok2vec, docs or [])


def refuse_no_vectors(tok2vec: Model, docs: Sequence[Doc]) -> None:
    """Raise an error if an embedder reads static vectors, which the vocabulary of docs lacks."""
    static = any(node.name == "static_vectors" for node in tok2vec.walk())
    if static and any(doc.vocab.vectors.data.size == 0 for doc in docs):
        raise LatentError(
            "The embedder reads static vectors, and the pipeline has none. Name a directory or "
            "package that has vectors in initialize.vectors, as with --paths.vectors, or set the "
            "embedder's include_static_vectors to false (pretrained_vectors of HashEmbedCNN)."
        )


def total(width: Width) -> int:
    """Return the width of whole rows."""
    return width if isinstance(width, int) else sum(width)


def refuse_separate(name: str, tok2vec: Model) -> None:
    """Raise an error in models that have no use for two embedders."""
    if tok2vec.name == NAME:
        raise IncompatiblePair(
            name,
            "SeparateTok2Vec",
            "it cannot use a separate embedder for its scorer",
            "one embedder for the whole model",
        )
