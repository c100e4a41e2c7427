"""Text classifier over K latent structures per text: embedder, structure, composer, linear layer.

The embedder runs once for any K.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from spacy.tokens import Doc
from thinc.api import Linear, Model, torch2xp, xp2torch, zero_init
from thinc.layers.resizable import resize_linear_weighted
from thinc.types import Floats2d
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.estimators.base import Estimator
from spacy_latent.layers.base import ComposerBuilder, ScorerBuilder
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.models.added_labels import BEHIND, IMPOSSIBLE, UNTRAINED, count_as_trained
from spacy_latent.models.alignment_evidence import AlignmentWordObjective
from spacy_latent.models.autograd_recording import recording_if
from spacy_latent.models.evidence_bound import TextWordObjective, words_of
from spacy_latent.models.latent_layer_model import given_structures
from spacy_latent.models.latent_shim import TrainingSettings
from spacy_latent.models.layer_settings import LayerSettings
from spacy_latent.models.scheduled_value import Temperature
from spacy_latent.models.separate_tok2vec import width_of
from spacy_latent.models.shim_model import initialize_over
from spacy_latent.models.span_getters import DocSpans, SpanGetter
from spacy_latent.models.text_layer_model import (
    TextVectors,
    build_text_layer_model,
    inner_step,
    keep,
)
from spacy_latent.models.text_module import Kept
from spacy_latent.models.token_vectors import token_vectors
from spacy_latent.structures.base import Structure

NAME = "latent_text_classifier"
# Attribute of a model: function from logits to probabilities if labels constrain each other.
PROBABILITIES = "probabilities"


@dataclass
class TextPredictions:
    """Predictions for D texts with K structures each.

    Attributes:
        logits: ``(K, D, labels)``, for each structure.
        scores: ``(D, labels)``, the weighted mean of the probabilities of the structures.
        rewards: ``(K, D)``, rewards of the structures, if the estimator uses rewards.
    """

    logits: Tensor
    scores: Floats2d
    made: TextVectors
    rewards: Tensor | None = None


def build_latent_text_classifier_v1(
    tok2vec: Model[list[Doc], list[Floats2d]],
    exclusive_classes: bool,
    structure: Structure | None = None,
    scorer: ScorerBuilder | None = None,
    estimator: Estimator | None = None,
    composer: ComposerBuilder | None = None,
    span_getter: SpanGetter | None = None,
    use_reduce_root: bool = False,
    use_reduce_first: bool = False,
    use_reduce_last: bool = False,
    use_reduce_max: bool = False,
    use_reduce_mean: bool = True,
    scorer_learn_rate: float = 1.0,
    entropy_weight: float = 0.0,
    temperature: float | Iterable[float] = 1.0,
    dropout: float | None = None,
    mixed_precision: bool = False,
    nO: int | None = None,
) -> Model[list[Doc], Floats2d]:
    """Build a model from docs to scores of labels over latent structures.

    It is for ``latent_textcat`` and its multilabel twin, which train it by the loss of each
    structure.

    Args:
        tok2vec: embedder, of any width; ``spacy-latent.SeparateTok2Vec.v1`` for two, one of them
            the scorer's own.
        exclusive_classes: whether each doc has one label (softmax) or any number of them (sigmoid).
        structure: None for SpanningTree.
        scorer: None for BiaffineScorer.
        estimator: None for ScoreFunction with SelfCritical. Any estimator can be used: with one
            that needs no loss, the objective is the weighted mean of the losses of its structures.
        composer: None for GraphConvolution.
        span_getter: function that returns the spans of tokens that share a structure; None for
            DocSpans, the whole doc.
        use_reduce_root: whether to read the vector of the tree's root. With several roots, or a
            mixture of trees, this is the sum of the vectors of all tokens, each weighted by its
            degree of being a root. Only for structures of arcs.
        use_reduce_first, use_reduce_last, use_reduce_max, use_reduce_mean: reductions of the
            vectors of the tokens to one vector of the doc, as in ``spacy.TextCatReduce.v1``.
        scorer_learn_rate, entropy_weight, temperature, dropout, mixed_precision: as in
            ``spacy-latent.LatentTok2Vec.v1``. A negative entropy_weight also weights KL(p ‖
            uniform), which differs from the negative entropy by a constant.
        nO: number of labels; set by the component.
    """
    from spacy_latent.estimators.control_variates import SelfCritical
    from spacy_latent.estimators.score_function import ScoreFunction
    from spacy_latent.layers.biaffine_scorer import build_biaffine_scorer_v1
    from spacy_latent.layers.graph_convolution import build_graph_convolution_v1
    from spacy_latent.structures.spanning_tree import SpanningTree

    settings = LayerSettings(
        structure or SpanningTree(),
        estimator or ScoreFunction(control_variate=SelfCritical()),
        scorer or build_biaffine_scorer_v1(),
        composer or build_graph_convolution_v1(),
        entropy_weight,
    )
    pooling = used_poolings(
        NAME,
        root=use_reduce_root,
        first=use_reduce_first,
        last=use_reduce_last,
        max=use_reduce_max,
        mean=use_reduce_mean,
    )
    latent = build_text_layer_model(
        settings,
        TrainingSettings(scorer_learn_rate, Temperature(temperature), dropout, mixed_precision),
        input_width=width_of(tok2vec, []),
        pooling=pooling,
        texts=1,
    )
    spans = span_getter or DocSpans(max_length=512)
    return classifier(NAME, tok2vec, latent, init, exclusive_classes, spans, nO)


def used_poolings(name: str, **pooling: bool) -> tuple[str, ...]:
    """Return the names of the reductions that are true, or raise an error if none is."""
    used = tuple(kind for kind, on in pooling.items() if on)
    if not used:
        settings = " or ".join(f"use_reduce_{kind}" for kind in pooling)
        raise LatentError(f"{name}: no reduction is used. Set {settings} to true.")
    return used


def classifier(
    name: str,
    tok2vec: Model[list[Doc], list[Floats2d]],
    latent: Model,
    init: Callable,
    exclusive_classes: bool,
    span_getter: SpanGetter,
    nO: int | None,
) -> Model[list[Doc], Floats2d]:
    """Build the model of an embedder, a text layer and a linear layer."""
    output: Model = Linear(nO, latent.maybe_get_dim("nO"), init_W=zero_init)
    layers: list[Model] = [tok2vec, latent, output]
    attrs = {
        "span_getter": span_getter,
        "multi_label": not exclusive_classes,
        "resize_output": resize_output,
        UNTRAINED: 0,
    }
    return set_refs(Model(name, forward, init=init, layers=layers, dims={"nO": nO}, attrs=attrs))


def set_refs(model: Model) -> Model:
    """Set the refs of the model to its parts."""
    tok2vec, texts, output = model.layers
    model.set_ref("tok2vec", tok2vec)
    model.set_ref("latent", texts)
    model.set_ref("output_layer", output)
    return model


def init(model: Model, X: Any = None, Y: Any = None) -> Model:
    """Build the module for the width of the embedder, and the output for the classes of ``Y``."""
    tok2vec, texts, _ = model.layers
    initialize_over(tok2vec, texts, X)
    return init_output(model, Y)


def init_output(model: Model, Y: Any = None) -> Model:
    """Set the widths of the linear layer, and its weights to zeros."""
    _, texts, output = model.layers
    if texts.has_dim("nO"):
        output.set_dim("nI", texts.get_dim("nO"), force=True)
    if Y is not None:
        model.set_dim("nO", Y.shape[1], force=True)
        output.set_dim("nO", Y.shape[1], force=True)
    if output.has_dim("nO") and output.has_dim("nI"):
        output.initialize()
    count_as_trained(model)
    return model


def resize_output(model: Model, labels: int) -> Model:
    """Set a larger number of labels and keep the weights of the others."""
    output = model.layers[2]
    model.layers[2] = resize_linear_weighted(output, labels)
    model.set_dim("nO", labels, force=True)
    return set_refs(model)


def begin_as_absent(model: Model, known: int) -> None:
    """Set start values with which no text gets labels from ``known`` on before they are trained.

    Nothing changes if the other labels are untrained; see :mod:`spacy_latent.models.added_labels`.
    """
    output = model.layers[2]
    if not output.has_param("W") or not output.has_param("b"):
        return
    weight: Any = output.get_param("W")
    bias: Any = output.get_param("b")
    # Before training all weights are 0.
    if not (weight.any() or bias.any()):
        return
    bias[known:] = -BEHIND
    if not model.attrs["multi_label"]:
        # A score below the mean of the other labels is below the best of them, too.
        weight[known:] = weight[:known].mean(0)
        bias[known:] += bias[:known].mean()
    model.attrs[UNTRAINED] += len(bias) - known


def forward(model: Model, docs: Sequence[Doc], is_train: bool) -> Any:
    """Return scores ``(D, labels)`` and their backprop.

    The backprop takes the gradient for the scores before the softmax or sigmoid, as in spaCy's text
    classifiers. No gradient reaches the weights of the structures. Components train with
    :func:`run`.
    """
    found, backprop = run(model, docs, is_train)
    weights = found.made.weights

    def backprop_scores(d_scores: Floats2d) -> Any:
        gradient = weights[:, :, None] * xp2torch(d_scores).to(weights)
        nothing = torch.zeros_like(weights)
        return backprop((gradient, nothing, nothing, torch.zeros_like(found.made.extras)))

    return found.scores, backprop_scores


def run(model: Model, docs: Sequence[Doc], is_train: bool) -> tuple[TextPredictions, Any]:
    """Return the prediction of each structure and its backprop.

    The backprop takes the gradients of logits, weights, log-probabilities and extras.
    """
    found, backprop, _ = run_and_keep(model, docs, is_train, with_evidence=False)
    return found, backprop


def run_and_keep(
    model: Model, docs: Sequence[Doc], is_train: bool, with_evidence: bool = True
) -> tuple[TextPredictions, Any, Callable[[], Kept]]:
    """Return the results of :func:`run`, and a function that returns the :class:`Kept` structures.

    Args:
        with_evidence: whether training includes the terms of a bound on the evidence of words, if
            the model has one. Their gradients are then the last ones.
    """
    tok2vec, texts, output = model.layers
    docs = list(docs)
    spans = model.attrs["span_getter"](docs)
    if "update" in tok2vec.attrs:
        # Read the number of updates before the forward pass, since the shim of the layer counts
        # them.
        shim: Any = texts.shims[0]
        tok2vec.attrs["update"] = shim.updates if is_train else None
    arrays, backprop_tok2vec = token_vectors(tok2vec, docs, is_train)
    given = given_structures(texts, docs, spans, is_train)
    evidence = word_objective_of(model) if is_train and with_evidence else None
    words = () if evidence is None else (words_of(docs, evidence.decoder.attr),)
    made, backprop_texts = texts((arrays, spans, given, *words), is_train)
    rows, backprop_output = output(made.vectors, is_train)
    count = made.weights.shape[0]
    with recording_if(is_train):
        logits = xp2torch(rows, device=made.weights.device).view(count, len(docs), -1)
        untrained = model.attrs[UNTRAINED]
        if untrained and not is_train:
            logits[..., -untrained:] = IMPOSSIBLE
        if PROBABILITIES in model.attrs:
            probabilities = model.attrs[PROBABILITIES](logits)
        else:
            probabilities = logits.sigmoid() if model.attrs["multi_label"] else logits.softmax(-1)
        scores: Any = torch2xp((made.weights[:, :, None] * probabilities).sum(0))
    found = TextPredictions(logits, scores, made)

    def backprop(gradients: tuple[Tensor, ...]) -> Any:
        d_logits = torch2xp(gradients[0].reshape(rows.shape).to(logits))
        d_vectors = backprop_output(d_logits)
        return backprop_tok2vec(backprop_texts((d_vectors, *gradients[1:])))

    return found, backprop, lambda: keep(texts, arrays, made)


def further_step(model: Model, kept: Kept, advantage: Tensor, before: Tensor, clip: float) -> None:
    """Take a further step on kept structures, see :func:`inner_step`."""
    inner_step(model.layers[1], kept, advantage, before, clip)


def word_objective_of(model: Model) -> TextWordObjective | AlignmentWordObjective | None:
    """Return the module for a bound on the evidence of words, None if the model has none."""
    shim: Any = model.layers[1].shims[0]
    return getattr(shim.module, "evidence", None)


def latent_layer(model: Model) -> LatentLayer:
    """Return the torch module with the structure."""
    shim: Any = model.layers[1].shims[0]
    return shim.module.latent
