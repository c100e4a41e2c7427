"""Latent layer for losses of whole structures, with a vector per text for each of K structures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from thinc.api import Model, torch2xp, xp2torch
from thinc.types import Floats2d
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.models.alignment_evidence import AlignedWords
from spacy_latent.models.autograd_recording import recorded
from spacy_latent.models.evidence_bound import BoundTerms, WordObjective
from spacy_latent.models.interventions import interventions_of_layer
from spacy_latent.models.latent_layer_model import LatentBatch, detached, prepare
from spacy_latent.models.latent_shim import TrainingSettings, Width
from spacy_latent.models.layer_settings import LayerSettings
from spacy_latent.models.shim_model import refuse_not_finite, rows_of, shim_model
from spacy_latent.models.span_groups import Spans, group_spans
from spacy_latent.models.text_batch import Range
from spacy_latent.models.text_module import Kept, TextModule, build_text_module
from spacy_latent.stages import Staged
from spacy_latent.structures.derivatives import recording


@dataclass
class TextVectors:
    """Output of the layer for D texts.

    Attributes:
        vectors: ``(K·D, width)``, first of all texts with their first structure, then with the
            second.
        weights: ``(K, D)``.
        log_probs: ``(K, D)``, 0 if the estimator has none.
        extras: ``(E, D)``, see :class:`spacy_latent.estimators.base.Draw`; E is 0 if it has none.
        features: ``(D, d)``, the mean input vectors, without gradient.
        batch: the structures; its vectors are empty.
        evidence: terms of the bound on the evidence of words, if requested.
    """

    vectors: Floats2d
    weights: Tensor
    log_probs: Tensor
    extras: Tensor
    features: Tensor
    batch: LatentBatch
    evidence: BoundTerms | None = None


def build_text_layer_model(
    settings: LayerSettings,
    training: TrainingSettings,
    *,
    input_width: Width | None,
    pooling: tuple[str, ...],
    texts: int,
    evidence: AlignedWords | None = None,
    module: type[TextModule] = TextModule,
) -> Model[tuple[list[Floats2d], Spans], TextVectors]:
    """Build a model from (rows of each doc, spans of each doc) to :class:`TextVectors`.

    Its backprop takes the gradients of vectors, weights, log_probs and extras, and returns the
    gradients of the rows.

    Args:
        input_width: width of the rows, None if it is not known.
        pooling: reductions of the vectors of tokens, see TextModule.
        texts: number of texts of each doc that are pooled separately: 1, or 2 for pairs of spans.
    """
    structure = settings.structure
    if "root" in pooling and structure.parts != "arcs":
        raise IncompatiblePair(
            "use_reduce_root",
            structure.name,
            f"only trees of arcs have a root, and this structure is made of {structure.parts}",
            "use_reduce_mean or another of the reductions, or a tree such as ProjectiveTree",
        )
    build = partial(
        build_text_module,
        settings=settings,
        pooling=pooling,
        texts=texts,
        evidence=evidence,
        module=module,
    )
    staged = [structure, settings.estimator]
    return text_layer_model(
        build, training, input_width=input_width, staged=staged, evidence=evidence
    )


def text_layer_model(
    build: Callable[[Any], nn.Module],
    training: TrainingSettings,
    *,
    input_width: Width | None,
    staged: Sequence[Staged],
    evidence: WordObjective | None = None,
) -> Model[tuple[list[Floats2d], Spans], TextVectors]:
    """Build the model around a module that ``build`` makes for the width of the input."""
    return shim_model(
        "latent_text",
        forward,
        build,
        training,
        input_width=input_width,
        staged=staged,
        learn_rates={} if evidence is None else {"evidence.": evidence.learn_rate},
    )


@recorded
def forward(model: Model, inputs: tuple[Any, ...], is_train: bool) -> Any:
    """Return the vectors of texts and their backprop.

    Args:
        inputs: rows of each doc, and its spans. Then optionally structures that are given for
            spans, or None, and hashes of the words, if training needs a bound on their evidence.
    """
    arrays, spans, *known = inputs
    words = known.pop() if len(known) == 2 else None
    shim: Any = model.shims[0]
    ops: Any = model.ops
    sizes = [len(array) for array in arrays]
    groups = group_spans(sizes, spans)
    rows = rows_of(model, arrays, is_train)
    prepare(model, is_train)
    backprop_rows = None
    ends = list(accumulate(sizes, initial=0))
    docs = list(zip(ends, ends[1:]))
    texts = docs if shim.module.texts == 1 else pair_ranges(docs, spans)
    read = (rows, groups, docs, texts, *known)
    if words is not None:
        read = (*read, None, torch.as_tensor(words))
    if is_train:
        (results, _, (outputs, features)), backprop_rows = shim.begin_update(read)
    else:
        interventions = interventions_of_layer(model, groups, spans)
        if interventions is not None:
            read = (rows, groups, docs, texts, known[0] if known else None, interventions)
        results, _, (outputs, features) = shim.predict(read)
        refuse_not_finite(results)
    pooled, weights, log_probs, extras, *more = (result.detach() for result in results)
    vectors: Any = torch2xp(pooled.flatten(0, 1).clone())
    batch = LatentBatch([], spans, groups, [detached(output) for output in outputs])
    detached_features = features.detach()
    evidence = BoundTerms(*more) if more else None
    made = TextVectors(
        ops.asarray2f(vectors), weights, log_probs, extras, detached_features, batch, evidence
    )

    def backprop(gradients: tuple[Any, ...]) -> list[Floats2d]:
        if backprop_rows is None:
            raise LatentError(
                "The latent layer cannot backpropagate from a prediction. Call it with "
                "is_train=True."
            )
        d_vectors = xp2torch(ops.xp.ascontiguousarray(gradients[0]), device=shim.device)
        d_rows = backprop_rows([d_vectors.view(pooled.shape), *gradients[1:]])
        return ops.unflatten(ops.asarray2f(torch2xp(d_rows)), sizes)

    return made, backprop


def pair_ranges(docs: list[Range], spans: Spans) -> list[Range]:
    """Return the ranges of rows of all texts: the first and second text of each doc in turn.

    A doc without a pair has empty ranges.
    """
    ranges = []
    for (begin, _), pairs in zip(docs, spans):
        if not all(len(pair) == 4 for pair in pairs):
            raise LatentError(
                f"The span getter gave {pairs[:3]} for a doc of two texts; expected (start, end, "
                "other_start, other_end) for each pair. Use spacy-latent.PairSpans.v1."
            )
        for side in (0, 2):
            first = min((pair[side] for pair in pairs), default=0)
            end = max((pair[side + 1] for pair in pairs), default=0)
            ranges.append((begin + first, begin + end))
    return ranges


def keep(model: Model, arrays: list[Floats2d], made: TextVectors) -> Kept:
    """Return the input of :func:`inner_step` from an update."""
    with recording():
        rows = rows_of(model, arrays).clone()
    drawn = [output.draw.z for output in made.batch.outputs]
    return Kept(rows, made.batch.groups, len(arrays), drawn)


def inner_step(model: Model, kept: Kept, advantage: Tensor, before: Tensor, clip: float) -> None:
    """Add the gradient of PPO's clipped objective (Schulman et al. 2017, eq. 7) to the scorer's.

    Args:
        advantage: ``(K, D)``, gradient of the objective for log_probs at the draw.
        before: ``(K, D)``, log_probs at the draw.
        clip: largest difference to 1 of the ratio of new to old probabilities.
    """
    shim: Any = model.shims[0]

    def objective(module: TextModule) -> Tensor:
        ratio = (module.again(kept) - before).exp()
        clipped = ratio.clamp(1 - clip, 1 + clip)
        return torch.maximum(ratio * advantage, clipped * advantage).sum()

    shim.accumulate(objective, kept.rows)
