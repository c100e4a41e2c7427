"""Conversion of the arrays of a latent batch to structures that can be written to a Doc."""

from typing import cast

import numpy as np
import torch
from torch import Tensor

from spacy_latent.annotations import BEST, LEVELS, SpanStructure, Stored
from spacy_latent.errors import LatentError
from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.kinds import find_kind
from spacy_latent.layers.base import PartScorer
from spacy_latent.layers.latent_module import LatentModule, LatentOutput
from spacy_latent.models.latent_layer_model import LatentBatch
from spacy_latent.models.span_groups import Group
from spacy_latent.structures.dependency import DependencyTree
from spacy_latent.structures.merge_sequence import MergeSequence, merged_spans


def read_structures(
    batch: LatentBatch, layer: LatentModule, stored: Stored = BEST
) -> list[list[SpanStructure]]:
    """Return the structures of the spans, for each doc of the batch.

    Alternatives are the structures that the estimator itself weights, if it has several. Otherwise
    they are the support of SparseMAP, or else the best structures with their probabilities. An
    estimator that only computes a point of a relaxation has none.
    """
    if stored.annotate not in LEVELS:
        raise LatentError(f"annotate is {stored.annotate!r}; expected one of {', '.join(LEVELS)}.")
    result: list[list[SpanStructure]] = [[None] * len(spans) for spans in batch.spans]  # type: ignore[list-item]
    if stored.annotate == "none":
        return [[] for _ in batch.spans]
    with torch.no_grad():
        for group, output in zip(batch.groups, batch.outputs):
            _read_group(result, batch, group, output, layer, stored)
    return result


def _read_group(
    result: list[list[SpanStructure]],
    batch: LatentBatch,
    group: Group,
    output: LatentOutput,
    layer: LatentModule,
    stored: Stored,
) -> None:
    structure = layer.structure
    kind = find_kind(structure.kind)
    best = heads = None
    if _has_best(output, layer):
        best = _numpy(output.draw.z[0])
    elif isinstance(structure, DependencyTree):
        # Fast path, which serves every prediction: heads without 0/1 arrays of arcs.
        lengths = send(group.lengths, output.scores.device)
        heads = _numpy(structure.best_heads(output.scores, lengths))[:, 1:]
    else:
        best = _numpy(structure.map(output.scores, send(group.lengths, output.scores.device)))
    soft = probable = None
    if stored.annotate == "probabilities":
        soft = kind.soft(_numpy(_probabilities(output, layer, group.lengths)))
        probable = soft > max(stored.threshold, 0.0)
    counters = None
    if soft is not None and output.scored is not None and layer.estimator.uses_scores:
        lengths = send(group.lengths, output.scored.device)
        # The scored vectors are kept only for such a scorer.
        scorer = cast(PartScorer, layer.scorer)
        counters = _numpy(scorer.counters(output.scored, lengths))
    others = weights = None
    if stored.alternatives:
        z, w = alternatives_of(output, layer, group.lengths, stored.alternatives)
        others, weights = _numpy(z), _numpy(w)
    for b, ((d, s), length) in enumerate(zip(group.members, group.lengths.tolist())):
        start, end, *other = batch.spans[d][s]
        if best is None:
            decoded = heads[b, :length].copy()  # type: ignore[index]
        else:
            decoded = structure.decode(best[b], length)
        entry = SpanStructure(start, end, structure.name, kind.name, decoded)
        if other:
            entry.other_start, entry.other_end = other
        if soft is not None and probable is not None:
            index = np.nonzero(probable[b])
            entry.parts = kind.stored(np.stack(index, 1)).astype("int32")
            entry.probabilities = soft[b][index].astype("float32")
        if counters is not None:
            entry.counters = counters[b, :length].astype("float32")
        if others is not None and weights is not None:
            order = np.argsort(-weights[:, b], kind="stable")[: stored.alternatives]
            entry.alternatives = [
                (structure.decode(others[k, b], length), float(weights[k, b]))
                for k in order
                if weights[k, b] > 0
            ]
        result[d][s] = entry


def _has_best(output: LatentOutput, layer: LatentModule) -> bool:
    """Return whether the draw is already the best structure."""
    return layer.estimator.hard_at_prediction and output.draw.z.shape[0] == 1


def _probabilities(output: LatentOutput, layer: LatentModule, lengths: Tensor) -> Tensor:
    """Return the probabilities of parts that the estimator composes with.

    If it composes with one hard structure, they are the marginals, if tractable.
    """
    draw = output.draw
    if isinstance(layer.structure, MergeSequence):
        return merged_spans(draw.z[0], lengths).spans
    sums = layer.estimator.uses_scores and "marginals" in layer.structure.tractable
    if sums and _has_best(output, layer):
        return layer.structure.marginals(output.scores, lengths.to(output.scores.device))
    return draw.mean()


def alternatives_of(
    output: LatentOutput, layer: LatentModule, lengths: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Return structures ``(K, B, *parts)`` and weights ``(K, B)``, see :func:`read_structures`.

    A support has all its structures. Otherwise there are the ``count`` best structures.
    """
    draw, structure, scores = output.draw, layer.structure, output.scores
    lengths = lengths.to(scores.device)
    if draw.z.shape[0] > 1 or not structure.linear or not layer.estimator.uses_scores:
        return draw.z, draw.weights
    if not structure.has_map:
        return draw.z[:0], draw.weights[:0]
    if layer.estimator.has_support or "log_partition" not in structure.tractable:
        solution = structure.sparsemap(scores, lengths)
        return solution.atoms, solution.weights
    best = structure.top_k(scores, lengths, count)
    return best.z, (best.scores - structure.log_partition(scores, lengths)).exp()


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
