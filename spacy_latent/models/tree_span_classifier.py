"""Scores of labelled spans: every span of a sentence, with every label and without one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from spacy.tokens import Doc
from thinc.api import Linear, Model, glorot_uniform_init, torch2xp, xp2torch
from thinc.types import Floats2d, Floats3d
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, check_whole
from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.kernels.core.pool import one_torch_thread
from spacy_latent.layers.encoded_scorer import DISTANCE_BUCKETS
from spacy_latent.layers.span_features import SpanCells, span_cells, span_features
from spacy_latent.models.added_labels import BEHIND, IMPOSSIBLE, UNTRAINED, count_as_trained
from spacy_latent.models.autograd_recording import recorded
from spacy_latent.models.configured_attributes import ConfiguredNumber
from spacy_latent.models.sentences import white_space
from spacy_latent.models.separate_tok2vec import initialize_embedder, refuse_separate
from spacy_latent.models.span_getters import PairSpans, SentenceSpans, SpanGetter
from spacy_latent.models.span_groups import Group, Spans, group_spans
from spacy_latent.models.token_vectors import token_vectors

NAME = "tree_span_classifier"
# Weights of the node of pairs, in addition to the linear map below it.
PAIRS = ("weight", "bias", "width")


@dataclass
class SpanScores:
    """Output of the model. Its backprop takes a gradient for each tensor of ``scores``.

    Attributes:
        spans: for each doc the pieces that have their own tree, as (start, end).
        cells: for each group its P spans. Longer spans only have the class "no label", with score
            0.
        scores: for each group ``(C, P, B)``, [class, span, piece]. Class 0 is "no label". Scores of
            spans that reach into the padding have no meaning.
    """

    spans: Spans
    groups: list[Group]
    cells: list[SpanCells]
    scores: list[Floats3d]


def build_tree_span_classifier_v1(
    tok2vec: Model[list[Doc], list[Floats2d]],
    hidden_width: int = 64,
    max_width: int | None = None,
    span_getter: SpanGetter | None = None,
    nO: int | None = None,
) -> Model[list[Doc], SpanScores]:
    """Build the model of ``tree_spancat``: docs to scores of all spans.

    Each span has a score for each label and for none. It is scored from its first and last token,
    the mean of all its tokens, and their number, by one hidden layer:

    s[i, j] = W relu(F vᵢ + L vⱼ + M mean(vᵢ … vⱼ) + d[j − i + 1]) + b.

    Spans that begin or end with white space have no label.

    Args:
        tok2vec: embedder, or a listener.
        hidden_width: width of the hidden layer.
        max_width: largest number of tokens of a span with a label; None for no bound.
        span_getter: function that returns the spans of tokens that share a tree; sentences of up to
            128 tokens if None.
        nO: number of classes, "no label" among them; set by the component.
    """
    check_whole("TreeSpanClassifier", hidden_width=hidden_width)
    check_whole("TreeSpanClassifier", or_null=True, max_width=max_width)
    refuse_separate("TreeSpanClassifier", tok2vec)
    if isinstance(span_getter, PairSpans):
        raise IncompatiblePair(
            "PairSpans",
            "TreeSpanClassifier",
            "it gives pairs of texts, and a tree is over one",
            "spacy-latent.SentenceSpans.v1 or spacy-latent.DocSpans.v1 as span_getter",
        )
    attrs = {
        "span_getter": span_getter or SentenceSpans(),
        "max_width": ConfiguredNumber(max_width or 0),
        UNTRAINED: 0,
    }
    layers: list[Model] = [tok2vec, Linear(3 * hidden_width), build_pairs(hidden_width)]
    model: Model = Model(NAME, forward, init=init, layers=layers, dims={"nO": nO}, attrs=attrs)
    model.set_ref("tok2vec", tok2vec)
    model.set_ref("ends", layers[1])
    model.set_ref("pairs", layers[2])
    return model


def build_pairs(hidden_width: int) -> Model:
    """Build a separate node, since Thinc cannot change dimensions of a model that has weights."""
    params: dict[str, Any] = {name: None for name in PAIRS}
    return Model("span_pairs", no_forward, params=params, dims={"nI": hidden_width})


def no_forward(model: Model, X: Any, is_train: bool) -> Any:
    """Raise an error: the node only holds parameters and is never run."""
    raise NotImplementedError("This node only holds weights of the span classifier.")


def init(model: Model, X: Any = None, Y: Any = None) -> Model:
    """Set the width of the embedder, and make the weights of the classes if these are known."""
    tok2vec, ends, pairs = model.layers
    width: Any = initialize_embedder(tok2vec, X)
    if width is not None and not ends.has_dim("nI"):
        ends.set_dim("nI", width)
    if ends.has_dim("nI"):
        ends.initialize()
    hidden = pairs.get_dim("nI")
    if model.has_dim("nO"):
        classes = model.get_dim("nO")
        pairs.set_param("weight", glorot_uniform_init(model.ops, (classes, hidden)))
        pairs.set_param("bias", model.ops.alloc1f(classes))
        pairs.set_param("width", model.ops.alloc2f(DISTANCE_BUCKETS, hidden))
    count_as_trained(model)
    return model


def set_classes(model: Model, classes: int) -> None:
    """Set the number of classes and keep the weights of the first ones.

    Predictions stay the same if these weights were trained; see
    :mod:`spacy_latent.models.added_labels`.
    """
    known = model.maybe_get_dim("nO")
    if known == classes:
        return
    pairs = model.get_ref("pairs")
    if known is not None and pairs.has_param("weight"):
        old_weight: Any = pairs.get_param("weight")
        old_bias: Any = pairs.get_param("bias")
        weight: Any = model.ops.alloc2f(classes, old_weight.shape[1])
        bias: Any = model.ops.alloc1f(classes)
        weight[:known], bias[:known] = old_weight, old_bias
        # All biases are 0 before training, while the weights are drawn at random.
        if old_bias.any():
            weight[known:], bias[known:] = old_weight[0], old_bias[0] - BEHIND
            model.attrs[UNTRAINED] += classes - known
        wider = build_pairs(old_weight.shape[1])
        wider.set_param("weight", weight)
        wider.set_param("bias", bias)
        wider.set_param("width", pairs.get_param("width"))
        model.layers[-1] = wider
        model.set_ref("pairs", wider)
    model.set_dim("nO", classes, force=True)


@recorded
def forward(model: Model, docs: Sequence[Doc], is_train: bool) -> Any:
    """Return :class:`SpanScores` of all docs, and a backprop that takes their gradients."""
    tok2vec, ends, pairs = model.layers
    arrays, backprop_tok2vec = token_vectors(tok2vec, docs, is_train)
    sizes = [len(array) for array in arrays]
    spans = model.attrs["span_getter"](docs)
    groups = group_spans(sizes, spans)
    ops: Any = model.ops
    roles, backprop_ends = ends(ops.flatten(arrays), is_train)
    given: list[Any] = [roles, *(pairs.get_param(name) for name in PAIRS)]
    leaves = [xp2torch(array, requires_grad=is_train) for array in given]
    cells = [span_cells(group.rows.shape[1], model.attrs["max_width"] or None) for group in groups]
    with threads_of(leaves[0]):
        rows, weights = leaves[0], leaves[1:]
        padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
        scores = [
            score_spans(padded[send(group.rows, rows.device)], own, *weights)
            for group, own in zip(groups, cells)
        ]
        spaces = spaces_of_rows(docs)
        if spaces is not None:
            scores = [
                without_labels_at(spaces[group.rows], own, part)
                for group, own, part in zip(groups, cells, scores)
            ]
        untrained = model.attrs[UNTRAINED]
        if untrained and not is_train:
            for part in scores:
                part[-untrained:] = IMPOSSIBLE

    def backprop(gradient: SpanScores) -> Any:
        if not scores:
            # A span getter may return no spans.
            return backprop_tok2vec([ops.alloc2f(*array.shape) for array in arrays])
        with threads_of(leaves[0]):
            received = torch.autograd.grad(
                scores, leaves, [xp2torch(part) for part in gradient.scores]
            )
        d_roles, *d_weights = (torch2xp(part.contiguous()) for part in received)
        for name, d_weight in zip(PAIRS, d_weights):
            pairs.inc_grad(name, d_weight)  # type: ignore[arg-type]
        return backprop_tok2vec(ops.unflatten(backprop_ends(d_roles), sizes))

    made = [torch2xp(part.detach()) for part in scores]
    return SpanScores(spans, groups, cells, made), backprop  # type: ignore[arg-type]


def spaces_of_rows(docs: Sequence[Doc]) -> Tensor | None:
    """Return a mask of the batch's white space, ``(N + 1,)`` bool, or None without white space.

    The last entry is for padding.
    """
    found = white_space(docs)
    if all(own is None for own in found):
        return None
    rows = [np.zeros(len(doc), bool) if own is None else own for doc, own in zip(docs, found)]
    return torch.from_numpy(np.concatenate([*rows, np.zeros(1, bool)]))


def without_labels_at(spaces: Tensor, cells: SpanCells, scores: Tensor) -> Tensor:
    """Return scores ``(C, P, B)`` without labels for spans that begin or end with white space.

    Args:
        spaces: ``(B, n)`` bool.
    """
    closed = (spaces[:, cells.first] | spaces[:, cells.last]).t().to(scores.device)
    labelled = scores[1:].masked_fill(closed, IMPOSSIBLE)
    return torch.cat([scores[:1], labelled])


def threads_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Return a context with one torch thread on a CPU.

    The operations are too small for several threads, which would only slow down other work.
    """
    return one_torch_thread() if tensor.device.type == "cpu" else nullcontext()


def score_spans(
    roles: Tensor, cells: SpanCells, weight: Tensor, bias: Tensor, width: Tensor
) -> Tensor:
    """Return scores ``(C, P, B)`` of the spans of padded pieces.

    Args:
        roles: ``(B, n, 3h)``.
        weight: ``(C, h)``.
        bias: ``(C,)``.
        cells, width: see :func:`spacy_latent.layers.span_features.span_features`.
    """
    made = span_features(roles.transpose(0, 1), width, cells)
    scores = torch.addmm(bias[:, None], weight, made.flatten(0, 1).t())
    return scores.view(-1, *made.shape[:2])
