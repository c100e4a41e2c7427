"""Tok2vec with a latent structure on top: any embedder, then one structure per span."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from spacy_latent.annotations import write
from spacy_latent.errors import check_whole
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.layers.base import ComposerBuilder, ScorerBuilder
from spacy_latent.layers.biaffine_scorer import build_biaffine_scorer_v1
from spacy_latent.layers.graph_convolution import build_graph_convolution_v1
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.models.configured_attributes import ConfiguredName
from spacy_latent.models.latent_layer_model import (
    LatentBatch,
    build_latent_layer_model,
    given_structures,
)
from spacy_latent.models.latent_shim import TrainingSettings, Width
from spacy_latent.models.layer_settings import LayerSettings
from spacy_latent.models.listener import renew_listeners
from spacy_latent.models.scheduled_value import Temperature
from spacy_latent.models.separate_tok2vec import width_of
from spacy_latent.models.shim_model import initialize_over
from spacy_latent.models.span_getters import SentenceSpans, SpanGetter
from spacy_latent.models.span_groups import Spans
from spacy_latent.models.structure_reader import read_structures
from spacy_latent.models.supervision import Supervision
from spacy_latent.models.token_vectors import token_vectors
from spacy_latent.structures.base import Structure
from spacy_latent.structures.spanning_tree import SpanningTree

NAME = "latent_tok2vec"


def build_latent_tok2vec_v1(
    tok2vec: Model[list[Doc], list[Floats2d]],
    width: int | None = None,
    structure: Structure | None = None,
    scorer: ScorerBuilder | None = None,
    estimator: Estimator | None = None,
    composer: ComposerBuilder | None = None,
    span_getter: SpanGetter | None = None,
    residual: bool | None = None,
    scorer_learn_rate: float = 1.0,
    entropy_weight: float = 0.0,
    temperature: float | Iterable[float] = 1.0,
    dropout: float | None = None,
    mixed_precision: bool = False,
    stored_as: str | None = None,
) -> Model[list[Doc], list[Floats2d]]:
    """Build a model from docs to one vector per token, with a latent structure in between.

    Args:
        tok2vec: embedder, of any width; ``spacy-latent.SeparateTok2Vec.v1`` for two, one of them
            the scorer's own.
        width: width of the result. A number adds a linear projection of the composer's output. None
            keeps the embedder's width, and adds the embedder's vectors to the result (see
            ``residual``).
        structure: None for SpanningTree.
        scorer: None for BiaffineScorer, which like GraphConvolution is for structures of arcs.
            Other structures need a scorer and a composer for their parts, which the error names.
        estimator: None for Marginals.
        composer: None for GraphConvolution.
        span_getter: function that returns the spans of tokens that share a structure; None for
            SentenceSpans.
        residual: whether the embedder's vectors are added to the vectors of the latent layer, which
            are then multiplied by a learned gain. None: true if ``width`` is None.
        scorer_learn_rate: multiplier of the learning rate for the scorer's weights.
        entropy_weight: weight of the entropy of p(z) ∝ exp(z·s), in nats per token, in the
            objective, which is minimised. A positive weight makes the distribution over structures
            sharper, a negative one flatter. It needs a structure with a tractable entropy.
            MixedDirichlet has another distribution and raises an error.
        temperature: divisor of the scores; a number, or a Thinc schedule that advances with each
            update of the weights. Its last value is stored with the weights.
        dropout: rate for the composer's output and for every ``torch.nn.Dropout`` inside the scorer
            and composer; None to follow ``training.dropout``.
        mixed_precision: half precision in training on a GPU for scorer and composer. Inference on
            the structure stays in float32. Without a GPU it has no effect.
        stored_as: name under which predictions write the best structures to ``doc._.latent``,
            usually the name of the component around the model; None to write none. A
            ``latent_encoder`` and a ``crf_ner`` write structures under their own names.
    """
    settings = LayerSettings(
        structure or SpanningTree(),
        estimator or Marginals(),
        scorer or build_biaffine_scorer_v1(),
        composer or build_graph_convolution_v1(),
        entropy_weight,
    )
    latent = build_latent_layer_model(
        settings,
        TrainingSettings(scorer_learn_rate, Temperature(temperature), dropout, mixed_precision),
        input_width=check_widths(tok2vec, width),
        width=width,
        residual=width is None if residual is None else residual,
    )
    model = over_embedder(tok2vec, latent, span_getter)
    model.attrs["stored_as"] = ConfiguredName(stored_as or "")
    return model


def check_widths(tok2vec: Model, width: int | None) -> Width | None:
    """Return the embedder's width, None if it is not known yet."""
    check_whole(NAME, or_null=True, width=width)
    return width_of(tok2vec, [])


def over_embedder(
    tok2vec: Model[list[Doc], list[Floats2d]], latent: Model, span_getter: SpanGetter | None
) -> Model[list[Doc], list[Floats2d]]:
    """Build the model from docs to vectors, from its two halves."""
    model: Model = Model(
        NAME,
        forward,
        init=init,
        layers=[tok2vec, latent],
        dims={"nO": latent.maybe_get_dim("nO")},
        attrs={"span_getter": span_getter or SentenceSpans(), "replace_listener": complete_copy},
    )
    return set_refs(model)


def complete_copy(copied: Model, listener: Model, encoder: Any) -> Model:
    """Restore the refs of parts, and the listeners, which ``Model.copy`` drops.

    ``nlp.replace_listeners`` calls this on a copy of an encoder's model, which replaces a listener
    to the encoder.
    """
    renew_listeners(encoder.model, copied)
    return set_refs(copied)


def set_refs(model: Model) -> Model:
    """Set the refs of the model to its parts."""
    tok2vec, latent = model.layers
    model.set_ref("embedder", tok2vec)
    # The name in all other models, which 'spacy pretrain' uses as pretraining.layer.
    model.set_ref("tok2vec", tok2vec)
    model.set_ref("latent", latent)
    for name in ("embed", "encode"):
        if tok2vec.has_ref(name):
            model.set_ref(name, tok2vec.get_ref(name))
    return model


def init(model: Model, X: Any = None, Y: Any = None) -> Model:
    """Build the layer for the width of the embedder, and take its output width over."""
    tok2vec, latent = model.layers
    initialize_over(tok2vec, latent, X)
    if latent.has_dim("nO"):
        model.set_dim("nO", latent.get_dim("nO"))
    return model


def forward(model: Model, docs: Sequence[Doc], is_train: bool) -> Any:
    """Return vectors of tokens; at prediction, also store structures under ``stored_as``."""
    batch, backprop = run(model, docs, is_train)
    name = model.attrs.get("stored_as")
    if name and not is_train:
        layer = latent_layer(model)
        found = read_structures(batch, layer) if batch.groups else [[] for _ in docs]
        for doc, structures in zip(docs, found):
            write(doc, name, structures)
    return batch.vectors, backprop


def run(
    model: Model,
    docs: Sequence[Doc],
    is_train: bool,
    supervision: Callable[[Spans], Supervision] | None = None,
) -> tuple[LatentBatch, Any]:
    """Return the vectors with their structures, and the backprop.

    Args:
        supervision: function that returns the gold structures of the spans, for training.
    """
    tok2vec, latent = model.layers
    docs = list(docs)
    spans = model.attrs["span_getter"](docs)
    if not any(len(doc) for doc in docs):
        width = model.maybe_get_dim("nO") or 0
        nothing = LatentBatch([model.ops.alloc2f(0, width) for _ in docs], spans, [], [])
        return nothing, lambda gradients: docs
    arrays, backprop_tok2vec = token_vectors(tok2vec, docs, is_train)
    given = given_structures(latent, docs, spans, is_train)
    known = () if supervision is None else (supervision(spans),)
    batch, backprop_latent = latent((arrays, spans, given, *known), is_train)
    return batch, lambda gradients: backprop_tok2vec(backprop_latent(gradients))


def latent_layer(model: Model) -> LatentLayer:
    """Return the torch module with the structure, of a model built by this module."""
    shim: Any = model.layers[1].shims[0]
    return shim.module.latent
