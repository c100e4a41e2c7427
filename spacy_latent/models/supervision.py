"""Gold structures of a batch, from which a latent layer learns directly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from spacy.training import Example
from torch import Tensor

from spacy_latent.annotations.aligned_heads import aligned_heads, same_tokens
from spacy_latent.annotations.heads import crossing
from spacy_latent.errors import InfeasibleError, LatentError, number_of
from spacy_latent.estimators.base import Draw
from spacy_latent.estimators.noise import draw_noise
from spacy_latent.kinds import complete_kind, find_kind
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.structures.base import Structure
from spacy_latent.structures.fenchel_young import structured_loss


@dataclass
class Supervision:
    """Gold structures of a batch and the settings of their loss.

    Attributes:
        gold: for each doc and each of its spans, the annotated structure, or None. Some heads of
            dependency trees may be unknown, −1.
        weight: weight of the mean loss, per token whose part of the gold structure is known.
        teacher_forcing: whether the composer gets the gold structure in place of the drawn ones.
        loss, margin: see :func:`spacy_latent.structures.fenchel_young.structured_loss`.
        noise: standard deviation of the Gaussian noise of the loss "perturbed".
        num_samples: number of draws of this noise.
        mean: mean loss, once the layer has run.
        left_out: number of gold structures that are not in the layer's set of structures; they do
            not count.
    """

    gold: list[list[np.ndarray | None]]
    weight: float
    teacher_forcing: bool
    loss: str = "crf"
    margin: float = 0.0
    noise: float = 1.0
    num_samples: int = 8
    mean: float = 0.0
    left_out: int = 0

    def draw(self, scores: Tensor) -> Tensor | None:
        """Return the noise of a batch, ``(num_samples, B, *parts)``; None for other losses."""
        if self.loss != "perturbed":
            return None
        copies = scores.detach().expand(self.num_samples, *scores.shape)
        return draw_noise("gaussian", copies, self.noise)

    def encode(
        self, structure: Structure, members: list[tuple[int, int]], lengths: Tensor, scores: Tensor
    ) -> Known:
        """Return the known structures of the spans of a group."""
        z = torch.zeros_like(scores)
        allowed = torch.ones_like(scores, dtype=torch.bool)
        tokens = lengths.new_zeros(len(members))
        partial = torch.zeros_like(tokens, dtype=torch.bool)
        partly = find_kind(structure.kind).partly
        for b, ((doc, span), length) in enumerate(zip(members, lengths.tolist())):
            gold = self.gold[doc][span]
            if gold is None:
                continue
            known = partly(gold, length, tuple(z.shape[1:]))
            if known is not None:
                partial[b], tokens[b] = True, known[0]
                allowed[b] = torch.from_numpy(known[1])
                continue
            try:
                array = torch.as_tensor(structure.encode_for(gold, length, z.shape[1:]))
            except ValueError:
                self.left_out += 1
                continue
            z[b][tuple(slice(0, size) for size in array.shape)] = array.to(z)
            # For alignments, this is the sum of the lengths of both texts.
            tokens[b] = int(np.sum(length))
        _complete(structure, z, allowed, scores, lengths, partial)
        inside = structure.contains(z, lengths)
        agrees = ((z == 0) | allowed).flatten(1).all(1)
        counts = (tokens > 0) & inside & agrees
        self.left_out += int(((tokens > 0) & ~counts).sum())
        return Known(z, torch.where(counts, tokens, 0), allowed, partial & counts)


@dataclass
class Known:
    """Gold structures of a group of B spans.

    Attributes:
        z: ``(B, *parts)``, arbitrary for spans with nothing known. If a structure is partly known,
            it is the best one under the present scores that agrees.
        tokens: ``(B,)``, number of tokens with a known part.
        allowed: ``(B, *parts)`` bool, the parts that agree with the annotation.
        partial: ``(B,)`` bool, whether the structure is only partly known.
    """

    z: Tensor
    tokens: Tensor
    allowed: Tensor
    partial: Tensor


def _complete(
    structure: Structure,
    z: Tensor,
    allowed: Tensor,
    scores: Tensor,
    lengths: Tensor,
    partial: Tensor,
) -> None:
    """Set ``z`` of ``partial`` items to the best allowed structure, or to 0 if there is none."""
    rows = partial.nonzero().flatten()
    while len(rows):
        restricted = torch.where(allowed[rows], scores[rows].detach(), -torch.inf)
        try:
            z[rows] = structure.map(restricted, lengths[rows]).to(z)
            return
        except InfeasibleError as error:
            if not error.items:
                raise
            z[rows[error.items]] = 0.0
            feasible = torch.ones_like(rows, dtype=torch.bool)
            feasible[error.items] = False
            rows = rows[feasible]


def supervise(
    supervision: Supervision,
    latent: LatentLayer,
    members: list[tuple[int, int]],
    vectors: Tensor,
    lengths: Tensor,
    given: Sequence[np.ndarray | None] | None,
) -> tuple[Draw, Tensor, Tensor, int]:
    """Return the draw to compose, the scores, the sum of losses, and the number of gold tokens.

    See :meth:`LatentLayer.read` for ``given``.
    """
    draw = None
    if given is None or all(one is None for one in given):
        structure, scores = latent.score(vectors, lengths)
    else:
        draw, scores = latent.read(vectors, lengths, given)
        structure = latent.bound(vectors, lengths)
    known = supervision.encode(latent.present_structure, members, lengths, scores)
    counts = known.tokens > 0
    if draw is None:
        # With teacher forcing the estimator is skipped, since it may take most of the time.
        forced = known.z if supervision.teacher_forcing and bool(counts.all()) else None
        draw = latent.drawn(structure, scores, vectors, lengths, forced)
    here = counts.view(-1, *[1] * structure.part_axes)
    z = torch.where(here, known.z, draw.z[0].detach().to(known.z))
    noise = supervision.draw(scores)

    def loss(scores: Tensor, rows: slice | Tensor) -> Tensor:
        # Both calls of this function use the same noise: for all structures, and for agreeing ones.
        drawn = None if noise is None else noise[:, rows]
        settings = supervision.loss, supervision.margin, drawn
        return structured_loss(structure, scores, z[rows], lengths[rows], *settings)

    losses = loss(scores, slice(None))
    rows = known.partial.nonzero().flatten()
    if len(rows):
        # This subtracts the same loss over the structures that agree. Both losses contain the score
        # of z, which cancels.
        agreeing = torch.where(known.allowed[rows], scores[rows], -torch.inf)
        losses = losses.index_add(0, rows, loss(agreeing, rows), alpha=-1)
    if supervision.teacher_forcing:
        draw = replace(draw, z=torch.where(here, known.z.to(draw.z), draw.z))
    return draw, scores, torch.where(counts, losses, 0.0).sum(), int(known.tokens.sum())


def gold_structures(
    examples: Sequence[Example],
    spans: list[list[tuple[int, ...]]],
    component: str,
    structure: Structure,
) -> list[list[np.ndarray | None]]:
    """Return the gold structure of each span from the references.

    It is ``reference._.latent[component]`` for the same tokens, or the annotation that the kind of
    the structure finds in a reference. For dependency trees this is the heads. A head is −1 if it
    is missing, if it is outside of the span, or if the tokens differ from the tokens of the
    prediction. So are the heads of several roots in a span, if trees of the structure have one, and
    heads whose arcs cross, if its arcs may not.
    """
    kind = find_kind(structure.kind)
    single = bool(getattr(structure, "single_root", False))
    crosses = bool(getattr(structure, "crosses", True))
    gold = []
    for example, doc_spans in zip(examples, spans, strict=True):
        annotated = _annotated(example, component, structure.name, kind.name)
        others = kind.gold(example, doc_spans)
        if single:
            others = [_without_several_roots(other) for other in others]
        if not crosses:
            others = [_without_crossing(other) for other in others]
        gold.append([annotated.get(offsets, other) for offsets, other in zip(doc_spans, others)])
    return gold


def _annotated(
    example: Example, component: str, structure: str, kind: str
) -> dict[tuple[int, ...], np.ndarray]:
    """Return the structures of the component on the reference, by the offsets of its texts."""
    annotation = example.reference._.latent.get(component)
    if annotation is None or not same_tokens(example):
        return {}
    for span in annotation.spans:
        if span.kind != kind:
            raise LatentError(
                f"The reference has {span.kind} for {component!r}, and {structure} has {kind}. "
                f"Annotate {kind}, or set supervision = 0."
            )
    return {
        tuple(
            offset
            for offset in (span.start, span.end, span.other_start, span.other_end)
            if offset is not None
        ): span.decoded
        for span in annotation.spans
    }


def _heads(example: Example) -> np.ndarray | None:
    """Return heads of the prediction's tokens, −1 if not known; None without reference heads."""
    return aligned_heads(example)[0] if example.reference.has_annotation("HEAD") else None


def _within(heads: np.ndarray | None, start: int, end: int) -> np.ndarray | None:
    """Return heads within the span, counted from 1, or −1; None if no head is within."""
    if heads is None:
        return None
    chosen = heads[start:end]
    inside = (chosen >= start) & (chosen < end)
    if not inside.any():
        return None
    shifted = np.where(chosen == np.arange(start, end), 0, chosen - start + 1)
    return np.where(inside, shifted, -1)


def _without_several_roots(heads: np.ndarray | None) -> np.ndarray | None:
    """Return heads of a span whose roots, if there are several, are unknown.

    They are roots of several sentences whose boundaries are not set on the doc. Each may then have
    any head.
    """
    if heads is None or (heads == 0).sum() < 2:
        return heads
    return _or_none(np.where(heads == 0, -1, heads))


def _without_crossing(heads: np.ndarray | None) -> np.ndarray | None:
    """Return heads of a span, −1 for tokens whose arcs cross others."""
    return None if heads is None else _or_none(np.where(crossing(heads), -1, heads))


def _or_none(heads: np.ndarray) -> np.ndarray | None:
    """Return the heads, or None if all are unknown: they have no mean over the known ones."""
    return heads if (heads >= 0).any() else None


def _gold_heads(example: Example, spans: Sequence[tuple[int, ...]]) -> list[np.ndarray | None]:
    heads = _heads(example) if spans else None
    return [_within(heads, *offsets[:2]) for offsets in spans]


def _known_heads(
    gold: np.ndarray, length: int, shape: tuple[int, ...]
) -> tuple[int, np.ndarray] | None:
    if len(gold) != length or gold.max() > length:
        raise LatentError(
            f"Gold heads {gold.tolist()[:10]} for a span of {number_of(length, 'token')}; expected "
            f"as many heads from 0, the root, to {length}, or -1 for an unknown head."
        )
    (modifiers,) = np.nonzero(gold >= 0)
    if len(modifiers) == length:
        return None
    allowed = np.ones(shape, dtype=bool)
    allowed[:, modifiers + 1] = False
    allowed[gold[modifiers], modifiers + 1] = True
    return len(modifiers), allowed


complete_kind("heads", gold=_gold_heads, partly=_known_heads)
