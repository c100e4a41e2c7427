"""Latent layer as a Thinc model: rows of a batch of docs through one structure per span."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from spacy.tokens import Doc
from thinc.api import Model, torch2xp, xp2torch
from thinc.types import Floats2d
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.base import Estimator, Given
from spacy_latent.kernels.core.gpu_transfers import fetch
from spacy_latent.kernels.gpu.dispatch import checks_postponed
from spacy_latent.layers.batch_interventions import BatchInterventions
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.layers.latent_module import LatentModule, LatentOutput
from spacy_latent.models.autograd_recording import recorded
from spacy_latent.models.batch_share import share_of_batch
from spacy_latent.models.interventions import interventions_of_layer
from spacy_latent.models.latent_shim import TrainingSettings, Width
from spacy_latent.models.layer_settings import LayerSettings
from spacy_latent.models.separate_tok2vec import total
from spacy_latent.models.shim_model import refuse_not_finite, rows_of, shim_model
from spacy_latent.models.span_groups import (
    Group,
    Placed,
    Spans,
    group_spans,
    of_group,
    side_by_side,
)
from spacy_latent.models.supervision import Supervision, supervise

NAME = "latent_layer"
INITIAL_GAIN = 0.25


@dataclass
class LatentBatch:
    """Output of the latent layer for a batch of docs.

    Attributes:
        vectors: for each doc ``(len(doc), width)``.
        outputs: for each group of spans its structures and scores, without gradient.
    """

    vectors: list[Floats2d]
    spans: Spans
    groups: list[Group]
    outputs: list[LatentOutput]


class SpanModule(nn.Module):
    """Module from rows ``(N, d)`` to rows ``(N, output_width)`` through the latent layer.

    Each span has its own structure.

    Args:
        projection: linear map of the composer's output, or None.
        residual: whether to add the input to the result, multiplied by a learned gain. The gain
            starts small, so that the first vectors are nearly the embedder's (ReZero, Bachlechner
            et al. 2020). It does not start at 0, since the structure would then get no gradient.
        entropy_weight: see ``build_latent_tok2vec_v1``.
    """

    def __init__(
        self,
        latent: LatentModule,
        projection: nn.Linear | None,
        residual: bool,
        entropy_weight: float,
    ) -> None:
        super().__init__()
        self.latent = latent
        self.dropout = nn.Dropout(0.0)
        self.projection = projection
        self.gain = nn.Parameter(torch.tensor([INITIAL_GAIN])) if residual else None
        self.entropy_weight = entropy_weight

    @property
    def output_width(self) -> int:
        """Width of the projection, or of the composer without a projection."""
        if self.projection is None:
            return self.latent.composer.output_width
        return self.projection.out_features

    def forward(
        self,
        rows: Tensor,
        groups: list[Group],
        given: Given | None = None,
        supervision: Supervision | None = None,
        interventions: list[BatchInterventions] | None = None,
    ) -> tuple[tuple[Tensor], Tensor | None, list[LatentOutput]]:
        """Return the rows, the penalty and the structures of each group.

        Args:
            rows: ``(N, d)``.
            interventions: conditions on the structures of each group, for prediction, or None.
        """
        # Supervision leaves out items that have no structure. The checks that name them must come
        # first.
        later = self.training and supervision is None
        with checks_postponed() if later else nullcontext():
            return self._forward(rows, groups, given, supervision, interventions)

    def _forward(
        self,
        rows: Tensor,
        groups: list[Group],
        given: Given | None,
        supervision: Supervision | None,
        interventions: list[BatchInterventions] | None,
    ) -> tuple[tuple[Tensor], Tensor | None, list[LatentOutput]]:
        padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
        composed, outputs = [], []
        loss, tokens = rows.new_zeros(()), 0
        placed = Placed.of(groups, len(rows), rows.device)
        for number, (group, (places, lengths)) in enumerate(zip(groups, placed)):
            vectors = padded[places]
            known_here = of_group(given, group)
            if interventions is not None:
                # Models raise an error for layers that cannot be edited.
                assert isinstance(self.latent, LatentLayer)
                output = self.latent(vectors, lengths, known_here, interventions[number])
            elif supervision is None:
                output = self.latent(vectors, lengths, known_here)
            else:
                # Components refuse supervision of modules that decide while they compose.
                assert isinstance(self.latent, LatentLayer)
                draw, scores, losses, known = supervise(
                    supervision, self.latent, group.members, vectors, lengths, known_here
                )
                output = LatentOutput(self.latent.compose(vectors, draw, lengths), draw, scores)
                loss, tokens = loss + losses, tokens + known
            composed.append(output.vectors)
            outputs.append(output)
        width = self.latent.composer.output_width
        cells = side_by_side([part[None] for part in composed], groups, rows, width)
        result = self.dropout(cells.index_select(1, placed.cells)[0])
        if self.projection is not None:
            result = self.projection(result)
        if self.gain is not None:
            result = self.gain * result + rows
        penalty = None
        if self.training:
            penalty = total_penalty(self.latent, placed, outputs, self.entropy_weight)
        if supervision is not None and tokens:
            loss = loss / tokens
            supervision.mean = float(loss.detach())
            loss = supervision.weight * share_of_batch() * loss
            penalty = loss if penalty is None else penalty + loss
        return (result.float(),), penalty, outputs


def total_penalty(
    latent: LatentModule, placed: Placed, outputs: list[LatentOutput], entropy_weight: float
) -> Tensor | None:
    """Return the sum of all penalties of a batch, None if there are none.

    The terms are ``entropy_weight`` times the entropy of the structures in nats per token, the
    scorer's cost per token, and the estimator's penalties, summed over structures. If several
    processes share a batch, the tokens of the whole batch count.
    """
    terms = [output.draw.penalty.sum() for output in outputs if output.draw.penalty is not None]
    tokens = max(sum(int(fetch(each).sum()) for each in placed.lengths), 1) / share_of_batch()
    costs = [output.draw.cost for output in outputs if output.draw.cost is not None]
    terms += [cost.sum() / tokens for cost in costs]
    if entropy_weight:
        for lengths, output in zip(placed.lengths, outputs):
            nats = latent.present_structure.entropy(output.scores, lengths).sum()
            terms.append(entropy_weight * nats / tokens)
    return torch.stack(terms).sum() if terms else None


def check_needs_no_loss(estimator: Estimator) -> None:
    """Raise an error for estimators that only a component with its own loss can train."""
    stages = [*(stage for _, stage in estimator.stages), estimator]
    for number, stage in enumerate(stages):
        if stage.needs_loss:
            before = f" after {stages[number - 1].name}" if number else ""
            raise IncompatiblePair(
                f"{stage.name}{before}",
                "LatentTok2Vec",
                f"{stage.name} needs the loss of each structure, and components that read token "
                "vectors give back only a gradient",
                "the component latent_textcat or latent_textcat_multilabel with this estimator, or "
                "an estimator that needs no loss, such as Marginals, SparseMAP or ImplicitMLE",
            )


def build_module(
    input_width: Width, *, settings: LayerSettings, width: int | None, residual: bool
) -> SpanModule:
    """Build the module for the width of the embedder.

    Args:
        width: width of the projection; None for a projection only if the composer's width differs.
    """
    latent, total_width = settings.build(input_width), total(input_width)
    return span_module(latent, total_width, width, residual, settings.entropy_weight)


def span_module(
    latent: LatentModule,
    input_width: int,
    width: int | None,
    residual: bool,
    entropy_weight: float = 0.0,
) -> SpanModule:
    """Build the module over rows around a latent layer, or around a parser that also composes."""
    output_width = input_width if width is None else width
    if residual and output_width != input_width:
        raise LatentError(
            f"width is {width}; expected {input_width}, the width of the embedder, since residual "
            "is true. Set width = null, or residual = false."
        )
    projection = None
    if width is not None or latent.composer.output_width != output_width:
        projection = nn.Linear(latent.composer.output_width, output_width)
    return SpanModule(latent, projection, residual, entropy_weight)


def build_latent_layer_model(
    settings: LayerSettings,
    training: TrainingSettings,
    *,
    input_width: Width | None,
    width: int | None,
    residual: bool,
) -> Model[tuple[list[Floats2d], Spans], LatentBatch]:
    """Build a model from (rows of each doc, spans of each doc) to a :class:`LatentBatch`.

    Its backprop takes the gradients of ``vectors`` and returns the gradients of the rows. For the
    arguments see ``build_latent_tok2vec_v1``.
    """
    check_needs_no_loss(settings.estimator)
    build = partial(build_module, settings=settings, width=width, residual=residual)
    staged = [settings.structure, settings.estimator]
    return shim_model(
        NAME, forward, build, training, input_width=input_width, width=width, staged=staged
    )


@recorded
def forward(model: Model, inputs: tuple[Any, ...], is_train: bool) -> Any:
    """Return the latent batch of docs and its backprop.

    Args:
        inputs: rows of each doc, and its spans. Then optionally structures that are given for spans
            or None, and in training a Supervision or None.
    """
    arrays, spans, *known = inputs
    shim: Any = model.shims[0]
    ops: Any = model.ops
    lengths = [len(array) for array in arrays]
    if not sum(lengths):
        width = model.maybe_get_dim("nO") or 0
        empty = LatentBatch([ops.alloc2f(0, width) for _ in arrays], spans, [], [])
        return empty, lambda gradients: [ops.alloc2f(*array.shape) for array in arrays]
    groups = group_spans(lengths, spans)
    rows = rows_of(model, arrays, is_train)
    prepare(model, is_train)
    backprop_rows = None
    if is_train:
        ((result,), _, outputs), backprop_rows = shim.begin_update((rows, groups, *known))
    else:
        interventions = interventions_of_layer(model, groups, spans)
        if interventions is not None:
            known = [known[0] if known else None, None, interventions]
        (result,), _, outputs = shim.predict((rows, groups, *known))
        refuse_not_finite([result])
    # The backward pass of torch may read the result, so callers get a copy.
    vectors = torch2xp(result.detach().clone() if is_train else result)
    of_docs = ops.unflatten(ops.asarray2f(vectors), lengths)
    batch = LatentBatch(of_docs, spans, groups, [detached(output) for output in outputs])

    def backprop(gradients: list[Floats2d]) -> list[Floats2d]:
        if backprop_rows is None:
            raise LatentError(
                "The latent layer cannot backpropagate from a prediction. Call it with "
                "is_train=True."
            )
        given = ops.xp.concatenate([ops.asarray2f(d) for d in gradients if len(d)])
        gradient = xp2torch(ops.xp.ascontiguousarray(given), device=shim.device)
        return ops.unflatten(ops.asarray2f(torch2xp(backprop_rows([gradient]))), lengths)

    return batch, backprop


def prepare(model: Model, is_train: bool) -> None:
    """Set the temperature, the stage of training and the dropout of the module."""
    shim: Any = model.shims[0]
    module = shim.module
    module.latent.temperature = shim.temperature
    module.latent.update = shim.updates if is_train else None
    bring_dropout(model, module)


def bring_dropout(model: Model, module: nn.Module) -> None:
    """Set the rate of every dropout of the module to the rate of the model."""
    rate = model.attrs["dropout_rate" if "dropout_rate" in model.attrs else "fixed_dropout_rate"]
    for child in module.modules():
        if isinstance(child, nn.Dropout):
            child.p = rate


def given_structures(
    model: Model, docs: Sequence[Doc], spans: Spans, is_train: bool
) -> Given | None:
    """Return the structures that ``given`` of a model's latent layer returns for these docs.

    They belong to the present stage of training, or to prediction.
    """
    prepare(model, is_train)
    shim: Any = model.shims[0]
    return shim.module.latent.given(docs, spans)


def detached(output: LatentOutput) -> LatentOutput:
    """Return the output without gradients, and without the terms of an objective."""
    draw = replace(output.draw, penalty=None, cost=None, extras=None)
    draw.z, draw.weights = draw.z.detach(), draw.weights.detach()
    if draw.log_probs is not None:
        draw.log_probs = draw.log_probs.detach()
    vectors, scores = output.vectors.detach(), output.scores.detach()
    return replace(output, vectors=vectors, draw=draw, scores=scores)
