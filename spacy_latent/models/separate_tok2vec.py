"""Two embedders, one for what the structure composes and one for the scorer that finds it."""

from collections.abc import Callable, Sequence
from typing import Any

from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from spacy_latent.errors import IncompatiblePair
from spacy_latent.models.latent_shim import Width
from spacy_latent.models.token_vectors import token_vectors, with_tokens

NAME = "separate_tok2vec"


def build_separate_tok2vec_v1(
    composer: Model[list[Doc], list[Floats2d]], scorer: Model[list[Doc], list[Floats2d]]
) -> Model[list[Doc], list[Floats2d]]:
    """A tok2vec for models with a latent structure, whose composer then reads one embedder and
    whose scorer reads another; what one of them learns does not move what the other reads.

    Words that are alike for the task need not be alike for the structure. With a shared embedder,
    a scorer that starts after the composer has learned reads vectors made for the composer: of
    numbers in the order of their value, say, where all the structure asks is that they are numbers.
    The scorer's own may also see context that the composer is not to see.

    composer, scorer: of any widths.
    RETURNS: rows of both, one after the other: ``(n, width of composer + width of scorer)``.
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
    docs = with_tokens(X)
    for layer in model.layers:
        layer.initialize(X=docs)
    widths = width_of(model, docs or [])
    if widths is not None:
        model.set_dim("nO", total(widths), force=True)


def forward(model: Model, docs: Sequence[Doc], is_train: bool) -> tuple[list[Floats2d], Callable]:
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
    """Of the rows of an embedder that is initialized: a number, or of two embedders those of the
    composer's and the scorer's; None where neither it nor a doc of ``docs`` tells."""
    if tok2vec.name == NAME:
        widths = [width_of(half, docs) for half in tok2vec.layers]
        known = [width for width in widths if isinstance(width, int)]
        return known if len(known) == len(widths) else None
    if tok2vec.has_dim("nO"):
        return tok2vec.get_dim("nO")
    filled = [doc for doc in docs if len(doc)][:1]
    return tok2vec.predict(filled)[0].shape[1] if filled else None


def total(width: Width) -> int:
    """Of whole rows."""
    return width if isinstance(width, int) else sum(width)


def refuse_separate(name: str, tok2vec: Model) -> None:
    """For models that have no use for two embedders."""
    if tok2vec.name == NAME:
        raise IncompatiblePair(
            name,
            "SeparateTok2Vec",
            "it does not read its scorer's words from an embedder of their own",
            "one embedder in its place",
        )
