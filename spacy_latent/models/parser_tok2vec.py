"""Tok2vec with a latent parser on top, which composes vectors while it parses."""

from collections.abc import Iterable
from functools import partial

from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from spacy_latent.layers.gumbel_tree_lstm import ParserBuilder, build_gumbel_tree_lstm_v1
from spacy_latent.models.latent_layer_model import NAME, SpanModule, forward, span_module
from spacy_latent.models.latent_shim import TrainingSettings
from spacy_latent.models.latent_tok2vec import check_widths, over_embedder
from spacy_latent.models.scheduled_value import Temperature
from spacy_latent.models.separate_tok2vec import refuse_separate
from spacy_latent.models.shim_model import shim_model
from spacy_latent.models.span_getters import SpanGetter


def build_parser_tok2vec_v1(
    tok2vec: Model[list[Doc], list[Floats2d]],
    parser: ParserBuilder | None = None,
    width: int | None = None,
    span_getter: SpanGetter | None = None,
    residual: bool | None = None,
    scorer_learn_rate: float = 1.0,
    temperature: float | Iterable[float] = 1.0,
    dropout: float | None = None,
    mixed_precision: bool = False,
) -> Model[list[Doc], list[Floats2d]]:
    """Build a model from docs to one vector per token, through a binary tree.

    The tree is built by a sequence of decisions, without a chart. The model can be used in place of
    ``spacy-latent.LatentTok2Vec.v1``.

    Args:
        tok2vec, width, span_getter, residual, scorer_learn_rate, dropout, mixed_precision: as in
            ``spacy-latent.LatentTok2Vec.v1``.
        parser: module that scores, decides and composes, one decision after another; None for
            GumbelTreeLstm.
        temperature: temperature of the softmax of its decisions; a number or a schedule.
    """
    refuse_separate("ParserTok2Vec", tok2vec)
    build = partial(
        build_module,
        parser=parser or build_gumbel_tree_lstm_v1(),
        width=width,
        residual=width is None if residual is None else residual,
    )
    training = TrainingSettings(
        scorer_learn_rate, Temperature(temperature), dropout, mixed_precision
    )
    input_width = check_widths(tok2vec, width)
    latent = shim_model(NAME, forward, build, training, input_width=input_width, width=width)
    return over_embedder(tok2vec, latent, span_getter)


def build_module(
    input_width: int, *, parser: ParserBuilder, width: int | None, residual: bool
) -> SpanModule:
    """Build the parser for the width of the embedder, and a projection if needed."""
    return span_module(parser(input_width), input_width, width, residual)
