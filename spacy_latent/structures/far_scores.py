"""Sums where some scores are so large that no total keeps a digit of the others beside them.

Masks are often −1e30 in place of −inf. Where every structure of an item has to use what is masked,
as where a mask leaves too few words, or no arc from the root, all totals lie near −1e30, and what
structures differ in is lost in them. What is masked then counts first, and all else after it: so it
is at any number far enough below. :func:`brought_near` gives such scores, and :func:`near_scores`
those of a structure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, too_large_message
from spacy_latent.kernels.tracing import is_transformed
from spacy_latent.kernels.transfers import fetch

# Of scores whose total is this for each part, seven digits after the point are left at most.
LARGE = 1e9
# In sums of scores below this at least seven digits after the point are right.
FAR = 1e6
# exp of −this is nothing.
NOTHING = 800.0
# Beyond this, sums of scores overflow.
LARGEST = 1e300
# How often one mask may have been added to another.
MOST_MASKS = 64
# Of a sum, as a share of what it is of: what is below comes from rounding.
ROUNDING = 1e-12
# What is further from 0 and 1 is no sure probability.
UNSURE = 1e-6


class Near(NamedTuple):
    """scores: float64, whose sums keep their digits. removed: what the scores given have more than
    these. beyond: the part of it that structures of an item may differ in. unsure: the items, bool
    ``(B,)``, for which there are no such scores, which stay as they are, but for what all
    structures have in common. None of the last three has a gradient."""

    scores: Tensor
    removed: Tensor
    beyond: Tensor
    unsure: Tensor


S = TypeVar("S", bound="Scored")


class Scored(Protocol):
    """What is asked of a structure, see :class:`spacy_latent.structures.base.Structure`."""

    @property
    def name(self) -> str: ...

    def _given(self, scores: Tensor) -> Tensor: ...

    def _given_parts(self, scores: Tensor, lengths: Tensor) -> Tensor: ...

    def _given_levelled(self, given: Tensor, scores: Tensor, lengths: Tensor) -> Tensor: ...

    def _with_given(self: S, given: Tensor, scores: Tensor) -> tuple[S, Tensor]: ...

    def _expected_uses(self, scores: Tensor, lengths: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class NearScores(Generic[S]):
    """What :func:`near_scores` gives. structure, scores: those of the same distribution, to be
    asked for it. given: all that its totals are sums of. removed, beyond: see :class:`Near`.
    lost: ``(B,)``, what sums of items that no scores bring near have lost: differences of their
    totals are right, or less than this and 0. 0 for the others."""

    structure: S
    scores: Tensor
    given: Tensor
    removed: Tensor
    beyond: Tensor
    lost: Tensor

    def known(self, difference: Tensor) -> Tensor:
        """A difference of totals ``(..., B)`` of :attr:`given`, without what is only rounding."""
        return torch.where(difference.detach().abs() < self.lost, 0.0, difference)

    def common(self, lengths: Tensor) -> Tensor:
        """What log-partitions lack, ``(B,)``, of which all likely structures have as much."""
        return (self._likely(lengths) * self.removed).flatten(1).sum(1)

    def apart(self, uses: Tensor, lengths: Tensor) -> Tensor:
        """What totals of structures, or their mean, of these ``uses`` ``(..., B, ...)``, have less
        than they have of near scores, beside the likely ones; ``(..., B)``."""
        axes = tuple(range(-self.given.dim() + 1, 0))
        likely = self._likely(lengths)
        more = (uses - likely) * self.beyond
        return _without_rounding(more.sum(axes), ((uses + likely) * self.beyond.abs()).sum(axes))

    def _likely(self, lengths: Tensor) -> Tensor:
        with torch.no_grad():
            return self.structure._expected_uses(self.scores, lengths)


def near_scores(structure: S, scores: Tensor, lengths: Tensor) -> NearScores[S] | None:
    """Scores of the same distribution over structures whose sums keep their digits; None where
    these do. Where there are none, and what is likely cannot be told, it raises InvalidScores."""
    given, parts = structure._given(scores), structure._given_parts(scores, lengths)
    most = 2 * sum(given.shape[1:])
    found = brought_near(
        given, parts, lambda known: structure._given_levelled(known, scores, lengths), most
    )
    if found is None:
        return None
    own, near = structure._with_given(found.scores, scores)
    lost = torch.zeros_like(found.unsure, dtype=found.scores.dtype)
    if bool(found.unsure.any()):
        lost = _lost(own, near, lengths, found.unsure, most)
    return NearScores(own, near, found.scores, found.removed, found.beyond, lost)


def looks_far(scores: Tensor) -> bool:
    """Whether there may be finite scores beyond FAR. Not known, and False, where torch only traces
    what is done, and inside of the transforms of torch.func: operators refuse then what loses
    digits, see kernels.operators."""
    if torch.compiler.is_compiling() or is_transformed() or not scores.numel():
        return False
    from spacy_latent.kernels.far import holds_beyond

    try:
        values = fetch(scores).numpy().reshape(-1)
    except RuntimeError:
        # As tensors have that are only shapes.
        return False
    return bool(holds_beyond(values, values.dtype.type(FAR)))


def brought_near(
    scores: Tensor, parts: Tensor, level: Callable[[Tensor], Tensor], most: int
) -> Near | None:
    """Scores ``(B, ...)`` with the same distribution; None where none is far. Their gradient is
    that of the scores.

    parts: which of them count, bool. level: takes from scores what all structures of an item have
        in common. most: bound on how many of them a structure uses.
    """
    exact = scores.double()
    known, axes = exact.detach(), tuple(range(1, scores.dim()))
    inside = parts & known.isfinite()
    largest = _largest(known, inside, axes)
    far = (largest > FAR) & (largest < LARGEST)
    if not bool(far.any()):
        return None
    inside = inside & far
    levelled = level(known)
    # What is less than that would be lost beside a mask, and need not be taken off.
    common = torch.where(inside & ((known - levelled).abs() > FAR), levelled, known)
    size = common.abs()
    masked = inside & (size > FAR)
    step = torch.where(masked, size, torch.inf).amin(axes, keepdim=True)
    step = torch.where(step.isfinite(), step, 1.0)
    times = torch.where(masked, (size / step).round(), 0.0)
    rest = torch.where(masked, size - times * step, common)
    # Of a mask twice or more: its sum was rounded.
    rounded = masked & (rest.abs() > FAR) & (rest.abs() <= 4 * torch.finfo(size.dtype).eps * size)
    rest = torch.where(rounded, 0.0, rest)
    spread = _largest(rest, inside, axes)
    # By so much the totals of structures may differ, and there are as many of them, without masks.
    others = most * (2 * spread + math.log(max(scores[:1].numel(), 2)))
    place = NOTHING + others
    told = (spread <= FAR) & (times.amax(axes, keepdim=True) <= MOST_MASKS) & (step > 2 * place)
    moved = torch.where(masked, common.sign() * (times * place + rest), common)
    moved = torch.where(told, moved, common)
    near = torch.where(inside, moved + (exact - known), exact)
    removed = torch.where(inside, known - moved, 0.0)
    beyond = torch.where(inside, common - moved, 0.0)
    return Near(near, removed, beyond, (far & ~told).flatten() & masked.flatten(1).any(1))


def _without_rounding(total: Tensor, of: Tensor) -> Tensor:
    """The total, 0 where it is as nothing beside what it is ``of``, the sum of sizes."""
    return torch.where(total.detach().abs() <= ROUNDING * of.detach(), 0.0, total)


def _are_sure(probabilities: Tensor) -> Tensor:
    """Which items ``(B, ...)`` have nothing but 0 and 1 for probabilities, ``(B,)``."""
    near_whole = (probabilities < UNSURE) | ((probabilities - 1.0).abs() < UNSURE)
    return near_whole.flatten(1).all(1)


def _lost(structure: Scored, scores: Tensor, lengths: Tensor, unsure: Tensor, most: int) -> Tensor:
    """What differences of totals have lost, ``(B,)``, 0 where they have all digits that count.
    Refuses items in whose totals what tells their structures apart may be lost."""
    with torch.no_grad():
        given = structure._given(scores)
        sizes = torch.where(given.isfinite(), given.abs(), 0.0)
        sizes = torch.where(structure._given_parts(scores, lengths), sizes, 0.0).flatten(1)
        try:
            uses = structure._expected_uses(scores, lengths)
            size = (uses.flatten(1) * sizes).sum(1)
        except InvalidScores:
            # Marginals cannot be told, but where one structure is far above others, samples.
            size = most * sizes.amax(1)
        unsure = unsure & ~(size <= LARGE * most)
        lost = torch.where(unsure, ROUNDING * size, 0.0)
        if not bool(unsure.any()):
            return lost
        # So divided, what rounding could change is no longer told apart.
        divisor = torch.where(unsure, lost, 1.0)
        cooled = given / divisor.view(-1, *[1] * (given.dim() - 1))
        own, divided = structure._with_given(cooled, scores)
        unsure = unsure & ~_are_sure(own._expected_uses(divided, lengths))
    items = unsure.nonzero().flatten().tolist()
    if items:
        raise InvalidScores(too_large_message(structure.name, items))
    return lost


def _largest(values: Tensor, where: Tensor, axes: tuple[int, ...]) -> Tensor:
    return torch.where(where, values.abs(), 0.0).amax(axes, keepdim=True)
