"""Scores of labelled spans: every span of a sentence, with every label and with none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from spacy.tokens import Doc
from thinc.api import Linear, Model, glorot_uniform_init, torch2xp, xp2torch
from thinc.types import Floats2d, Floats4d
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.kernels.pool import one_torch_thread
from spacy_latent.layers.encoded_scorer import DISTANCE_BUCKETS, distance_buckets
from spacy_latent.models.latent_layer_model import Group, Spans, group_spans
from spacy_latent.models.separate_tok2vec import refuse_separate
from spacy_latent.models.span_getters import SentenceSpans, SpanGetter

NAME = "tree_span_classifier"
# What the node of pairs learns, beside the linear map below it.
PAIRS = ("weight", "bias", "width")


@dataclass
class SpanScores:
    """What the model gives; its backprop takes ``scores`` alone, with a gradient in each.

    spans: for each doc the pieces that have a tree of their own, as (start, end).
    groups: of these pieces.
    scores: for each group ``(C, B, n, n)``, [class, piece, first token, last token]. Class 0 is "no
        label". Entries with first after last, and padding, are nothing.
    """

    spans: Spans
    groups: list[Group]
    scores: list[Floats4d]


def build_tree_span_classifier_v1(
    tok2vec: Model[list[Doc], list[Floats2d]],
    hidden_width: int = 64,
    max_width: int | None = None,
    span_getter: SpanGetter | None = None,
    nO: int | None = None,
) -> Model[list[Doc], SpanScores]:
    """Model of ``tree_spancat``: docs to scores of all spans with each label and with none, from
    the first and the last token, the mean of all of them, and the number of tokens: one hidden
    layer, s[i, j] = W relu(F vᵢ + L vⱼ + M mean(vᵢ … vⱼ) + d[j − i + 1]) + b.

    tok2vec: the embedder, or a listener.
    hidden_width: of the hidden layer.
    max_width: longer spans have no label; None for no bound.
    span_getter: which tokens share a tree; sentences of up to 128 tokens if None.
    nO: number of classes, "no label" among them; set by the component.
    """
    if hidden_width < 1:
        raise LatentError(f"TreeSpanClassifier: hidden_width is {hidden_width}; expected >= 1.")
    if max_width is not None and max_width < 1:
        raise LatentError(
            f"TreeSpanClassifier: max_width is {max_width}; expected at least 1, or null for none."
        )
    refuse_separate("TreeSpanClassifier", tok2vec)
    attrs = {"span_getter": span_getter or SentenceSpans(), "max_width": max_width}
    layers: list[Model] = [tok2vec, Linear(3 * hidden_width), build_pairs(hidden_width)]
    model: Model = Model(NAME, forward, init=init, layers=layers, dims={"nO": nO}, attrs=attrs)
    model.set_ref("tok2vec", tok2vec)
    model.set_ref("ends", layers[1])
    model.set_ref("pairs", layers[2])
    return model


def build_pairs(hidden_width: int) -> Model:
    """A node of its own, because a model that has weights cannot change its dimensions."""
    params: dict[str, Any] = {name: None for name in PAIRS}
    return Model("span_pairs", no_forward, params=params, dims={"nI": hidden_width})


def no_forward(model: Model, X: Any, is_train: bool) -> Any:
    raise NotImplementedError("This node only holds weights of the span classifier.")


def init(model: Model, X: Any = None, Y: Any = None) -> Model:
    tok2vec, ends, pairs = model.layers
    tok2vec.initialize(X=X)
    width = tok2vec.maybe_get_dim("nO")
    if width is None and X:
        width = tok2vec.predict(list(X))[0].shape[1]
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
    return model


def set_classes(model: Model, classes: int) -> None:
    """Make room for as many classes. What is known of the first ones stays."""
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
        wider = build_pairs(old_weight.shape[1])
        wider.set_param("weight", weight)
        wider.set_param("bias", bias)
        wider.set_param("width", pairs.get_param("width"))
        model.layers[-1] = wider
        model.set_ref("pairs", wider)
    model.set_dim("nO", classes, force=True)


def forward(model: Model, docs: Sequence[Doc], is_train: bool) -> Any:
    tok2vec, ends, pairs = model.layers
    arrays, backprop_tok2vec = tok2vec(list(docs), is_train)
    sizes = [len(array) for array in arrays]
    spans = model.attrs["span_getter"](docs)
    groups = group_spans(sizes, spans)
    ops: Any = model.ops
    roles, backprop_ends = ends(ops.flatten(arrays), is_train)
    given: list[Any] = [roles, *(pairs.get_param(name) for name in PAIRS)]
    leaves = [xp2torch(array, requires_grad=is_train) for array in given]
    with threads_of(leaves[0]), torch.set_grad_enabled(is_train):
        rows, weights = leaves[0], leaves[1:]
        padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
        scores = [score_pairs(padded[group.rows.to(rows.device)], *weights) for group in groups]
    bound = model.attrs["max_width"]
    if bound is not None:
        for part in scores:
            forbid_wide(part.detach(), bound)

    def backprop(gradient: SpanScores) -> Any:
        with threads_of(leaves[0]):
            received = torch.autograd.grad(
                scores,
                leaves,
                [xp2torch(part) for part in gradient.scores],
                allow_unused=True,
                materialize_grads=True,
            )
        d_roles, *d_weights = (torch2xp(part.contiguous()) for part in received)
        for name, d_weight in zip(PAIRS, d_weights):
            pairs.inc_grad(name, d_weight)  # type: ignore[arg-type]
        return backprop_tok2vec(ops.unflatten(backprop_ends(d_roles), sizes))

    made = [torch2xp(part.detach()) for part in scores]
    return SpanScores(spans, groups, made), backprop  # type: ignore[arg-type]


def threads_of(tensor: Tensor) -> AbstractContextManager[None]:
    """The operations are too small to gain from torch's threads, whose waiting costs others."""
    return one_torch_thread() if tensor.device.type == "cpu" else nullcontext()


def score_pairs(roles: Tensor, weight: Tensor, bias: Tensor, width: Tensor) -> Tensor:
    """Scores ``(C, B, n, n)`` of the spans of padded pieces.

    roles: ``(B, n, 3h)``, of each token as the first, the last and one of a span's.
    weight, bias, width: ``(C, h)``, ``(C,)``, and ``(buckets, h)`` by the number of tokens.
    """
    first, last, inner = roles.chunk(3, -1)
    batch, n, hidden = first.shape
    token = torch.arange(n, device=roles.device)
    tokens = (token[None, :] - token[:, None] + 1).clamp_min(1)
    # The mean is the difference of two sums from the beginning.
    up_to = inner.cumsum(1)
    share = (1.0 / tokens).to(roles.dtype)[:, :, None]
    made = (up_to[:, None] - (up_to - inner)[:, :, None]) * share
    made = made + first[:, :, None]
    made += last[:, None]
    made += width[distance_buckets(tokens)]
    scores = torch.addmm(bias[:, None], weight, made.relu_().view(-1, hidden).t())
    return scores.view(-1, batch, n, n)


def forbid_wide(scores: Tensor, bound: int) -> None:
    """Leave to spans of more tokens than ``bound`` no label."""
    n = scores.shape[-1]
    if n > bound:
        wide = torch.ones(n, n, dtype=torch.bool, device=scores.device).triu(bound)
        scores[1:].masked_fill_(wide, -torch.inf)
