"""A text classifier over K latent structures per text: embedder, structure, composer, linear layer.

The embedder runs once, whatever K is.
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
from spacy_latent.models.evidence_bound import EvidenceModule, begin, words_of
from spacy_latent.models.latent_layer_model import given_structures
from spacy_latent.models.recorded import recording_if
from spacy_latent.models.separate_tok2vec import width_of
from spacy_latent.models.shim_model import initialize_over
from spacy_latent.models.span_getters import DocSpans, SpanGetter
from spacy_latent.models.temperature import Temperature
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
# Attribute of a model: from logits to probabilities, where labels depend on each other.
PROBABILITIES = "probabilities"


@dataclass
class TextPredictions:
    """logits: ``(K, D, labels)``, of each structure. scores: ``(D, labels)``, the weighted mean of
    their probabilities. made: weights, log-probabilities and structures. rewards: ``(K, D)``, of
    the structures in themselves, where the estimator judges them by that."""

    logits: Tensor
    scores: Floats2d
    made: TextVectors
    rewards: Tensor | None = None


def build_latent_text_classifier_v2(
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
    """Model from docs to scores of labels, for ``latent_textcat`` and its multilabel twin, which
    train it by the loss of each structure.

    tok2vec: the embedder, of any width; ``spacy-latent.SeparateTok2Vec.v1`` for two, one of them
        the scorer's own.
    exclusive_classes: whether each doc has one label (softmax) or any number of them (sigmoid).
    structure: None for SpanningTree.
    scorer: None for BiaffineScorer.
    estimator: None for ScoreFunction with SelfCritical. Any estimator will do: with one that needs
        no loss, the objective is the weighted mean of the losses of its structures.
    composer: None for GraphConvolution.
    span_getter: which tokens share a structure; None for DocSpans, the whole doc.
    use_reduce_root: read the vector of the tree's root, a sum of several weighted by how far each
        is on the root; only for structures of arcs.
    use_reduce_first, use_reduce_last, use_reduce_max, use_reduce_mean: how the vectors of the
        tokens make one of the doc, as in ``spacy.TextCatReduce.v1``.
    scorer_learn_rate, entropy_weight, temperature, dropout, mixed_precision: as in
        ``spacy-latent.LatentTok2Vec.v1``. entropy_weight below 0 is also the weight of
        KL(p ‖ uniform), which is the entropy's complement to a constant.
    nO: number of labels; set by the component.
    """
    from spacy_latent.estimators.control_variates import SelfCritical
    from spacy_latent.estimators.score_function import ScoreFunction
    from spacy_latent.layers.biaffine_scorer import build_biaffine_scorer_v1
    from spacy_latent.layers.graph_convolution import build_graph_convolution_v1
    from spacy_latent.structures.spanning_tree import SpanningTree

    return build_text_classifier(
        NAME,
        tok2vec,
        exclusive_classes,
        span_getter or DocSpans(max_length=512),
        nO,
        pooling={
            "root": use_reduce_root,
            "first": use_reduce_first,
            "last": use_reduce_last,
            "max": use_reduce_max,
            "mean": use_reduce_mean,
        },
        texts=1,
        structure=structure or SpanningTree(),
        scorer=scorer or build_biaffine_scorer_v1(),
        estimator=estimator or ScoreFunction(control_variate=SelfCritical()),
        composer=composer or build_graph_convolution_v1(),
        scorer_learn_rate=scorer_learn_rate,
        entropy_weight=entropy_weight,
        temperature=Temperature(temperature),
        dropout=dropout,
        mixed_precision=mixed_precision,
    )


def build_latent_text_classifier_v1(
    tok2vec: Model[list[Doc], list[Floats2d]],
    exclusive_classes: bool,
    structure: Structure | None = None,
    scorer: ScorerBuilder | None = None,
    estimator: Estimator | None = None,
    composer: ComposerBuilder | None = None,
    span_getter: SpanGetter | None = None,
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
    """Model from docs to scores of labels, for ``latent_textcat`` and its multilabel twin, which
    train it by the loss of each structure.

    tok2vec: the embedder, of any width; ``spacy-latent.SeparateTok2Vec.v1`` for two, one of them
        the scorer's own.
    exclusive_classes: whether each doc has one label (softmax) or any number of them (sigmoid).
    structure: None for SpanningTree.
    scorer: None for BiaffineScorer.
    estimator: None for ScoreFunction with SelfCritical. Any estimator will do: with one that needs
        no loss, the objective is the weighted mean of the losses of its structures.
    composer: None for GraphConvolution.
    span_getter: which tokens share a structure; None for DocSpans, the whole doc.
    use_reduce_first, use_reduce_last, use_reduce_max, use_reduce_mean: how the vectors of the
        tokens make one of the doc, as in ``spacy.TextCatReduce.v1``.
    scorer_learn_rate, entropy_weight, temperature, dropout, mixed_precision: as in
        ``spacy-latent.LatentTok2Vec.v1``. entropy_weight below 0 is also the weight of
        KL(p ‖ uniform), which is the entropy's complement to a constant.
    nO: number of labels; set by the component.
    """
    return build_latent_text_classifier_v2(
        tok2vec,
        exclusive_classes,
        structure,
        scorer,
        estimator,
        composer,
        span_getter,
        False,
        use_reduce_first,
        use_reduce_last,
        use_reduce_max,
        use_reduce_mean,
        scorer_learn_rate,
        entropy_weight,
        temperature,
        dropout,
        mixed_precision,
        nO,
    )


def build_text_classifier(
    name: str,
    tok2vec: Model[list[Doc], list[Floats2d]],
    exclusive_classes: bool,
    span_getter: SpanGetter,
    nO: int | None,
    *,
    pooling: dict[str, bool],
    **layer: Any,
) -> Model[list[Doc], Floats2d]:
    """The model of a classifier, whatever its structures are of.

    pooling: which of the poolings of text_layer_model are used.
    layer: the other arguments of ``build_text_layer_model``.
    """
    known = width_of(tok2vec, [])
    used = used_poolings(name, pooling)
    latent = build_text_layer_model(input_width=known, pooling=used, **layer)
    return classifier(name, tok2vec, latent, init, exclusive_classes, span_getter, nO)


def used_poolings(name: str, pooling: dict[str, bool]) -> tuple[str, ...]:
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
    """The model of an embedder, a text layer and a linear layer."""
    output: Model = Linear(nO, latent.maybe_get_dim("nO"), init_W=zero_init)
    model: Model = Model(
        name,
        forward,
        init=init,
        layers=[tok2vec, latent, output],
        dims={"nO": nO},
        attrs={
            "span_getter": span_getter,
            "multi_label": not exclusive_classes,
            "resize_output": resize_output,
            UNTRAINED: 0,
        },
    )
    return set_refs(model)


def set_refs(model: Model) -> Model:
    """Name the parts."""
    tok2vec, texts, output = model.layers
    model.set_ref("tok2vec", tok2vec)
    model.set_ref("latent", texts)
    model.set_ref("output_layer", output)
    return model


def init(model: Model, X: Any = None, Y: Any = None) -> Model:
    tok2vec, texts, _ = model.layers
    initialize_over(tok2vec, texts, X)
    return init_output(model, Y)


def init_output(model: Model, Y: Any = None) -> Model:
    """Give the linear layer its widths, and zeros."""
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
    """Make room for more labels; what is known of the others stays."""
    output = model.layers[2]
    model.layers[2] = resize_linear_weighted(output, labels)
    model.set_dim("nO", labels, force=True)
    return set_refs(model)


def begin_as_absent(model: Model, known: int) -> None:
    """Let labels from ``known`` on be none that a text has, where something was learned of the
    others, until they are trained; see :mod:`spacy_latent.models.added_labels`."""
    output = model.layers[2]
    if not output.has_param("W") or not output.has_param("b"):
        return
    weight: Any = output.get_param("W")
    bias: Any = output.get_param("b")
    # Before training all are 0.
    if not (weight.any() or bias.any()):
        return
    bias[known:] = -BEHIND
    if not model.attrs["multi_label"]:
        # No better than the mean of the others, the best of which is better.
        weight[known:] = weight[:known].mean(0)
        bias[known:] += bias[:known].mean()
    model.attrs[UNTRAINED] += len(bias) - known


def forward(model: Model, docs: Sequence[Doc], is_train: bool) -> Any:
    """Scores ``(D, labels)``. Its backprop takes the gradient of the scores before the softmax or
    sigmoid, as those of spaCy's text classifiers do, and leaves the weights of the structures
    alone; :func:`run` is what a component trains with."""
    found, backprop = run(model, docs, is_train)
    weights = found.made.weights

    def backprop_scores(d_scores: Floats2d) -> Any:
        gradient = weights[:, :, None] * xp2torch(d_scores).to(weights)
        nothing = torch.zeros_like(weights)
        return backprop((gradient, nothing, nothing, torch.zeros_like(found.made.extras)))

    return found.scores, backprop_scores


def run(model: Model, docs: Sequence[Doc], is_train: bool) -> tuple[TextPredictions, Any]:
    """The forward pass with the prediction of each structure. Its backprop takes the gradients of
    logits, weights, log-probabilities and extras."""
    found, backprop, _ = run_and_keep(model, docs, is_train, with_evidence=False)
    return found, backprop


def _probabilities(model: Model, logits: Tensor) -> Tensor:
    """Of the labels for each structure, with what the component knows of them."""
    read: Callable[[Tensor], Tensor] | None = model.attrs.get(PROBABILITIES)
    if read is not None:
        return read(logits)
    return logits.sigmoid() if model.attrs["multi_label"] else logits.softmax(-1)


def run_and_keep(
    model: Model, docs: Sequence[Doc], is_train: bool, with_evidence: bool = True
) -> tuple[TextPredictions, Any, Callable[[], Kept]]:
    """As :func:`run`, and a function that gives what :func:`inner_step` needs. with_evidence:
    in training with the terms of a bound on the evidence of words, where the model has one; their
    gradients are then the last ones."""
    tok2vec, texts, output = model.layers
    docs = list(docs)
    spans = model.attrs["span_getter"](docs)
    if "update" in tok2vec.attrs:
        # Before the forward pass of the layer, whose shim counts them.
        shim: Any = texts.shims[0]
        tok2vec.attrs["update"] = shim.updates if is_train else None
    arrays, backprop_tok2vec = token_vectors(tok2vec, docs, is_train)
    given = given_structures(texts, docs, spans, is_train)
    told = evidence_of(model) if is_train and with_evidence else None
    words = () if told is None else (words_of(docs, told.decoder.attr),)
    made, backprop_texts = texts((arrays, spans, given, *words), is_train)
    rows, backprop_output = output(made.vectors, is_train)
    count = made.weights.shape[0]
    with recording_if(is_train):
        logits = xp2torch(rows, device=made.weights.device).view(count, len(docs), -1)
        untrained = model.attrs[UNTRAINED]
        if untrained and not is_train:
            logits[..., -untrained:] = IMPOSSIBLE
        probabilities = _probabilities(model, logits)
        mean = (made.weights[:, :, None] * probabilities).sum(0)
        scores: Any = torch2xp(mean)
    found = TextPredictions(logits, scores, made)

    def backprop(gradients: tuple[Tensor, ...]) -> Any:
        d_logits = torch2xp(gradients[0].reshape(rows.shape).to(logits))
        d_vectors = backprop_output(d_logits)
        return backprop_tok2vec(backprop_texts((d_vectors, *gradients[1:])))

    return found, backprop, lambda: keep(texts, arrays, made)


def further_step(model: Model, kept: Kept, advantage: Tensor, before: Tensor, clip: float) -> None:
    """See :func:`spacy_latent.models.text_layer_model.inner_step`."""
    inner_step(model.layers[1], kept, advantage, before, clip)


def evidence_of(model: Model) -> EvidenceModule | None:
    """What the model has for a bound on the evidence of words, if it has that."""
    shim: Any = model.layers[1].shims[0]
    return getattr(shim.module, "evidence", None)


def begin_evidence(model: Model, docs: Iterable[Doc]) -> None:
    """Show the decoder, if the model has one and knows its widths, the words of docs, of which no
    more are read otherwise."""
    shim: Any = model.get_ref("latent").shims[0]
    evidence = evidence_of(model) if shim.is_built else None
    if evidence is not None:
        begin(evidence.decoder, docs)


def latent_layer(model: Model) -> LatentLayer:
    """The torch module with the structure."""
    shim: Any = model.layers[1].shims[0]
    return shim.module.latent
