"""Precise sums if some scores are so large that adding others to them loses all digits.

Masks are often −1e30 in place of −inf. Sometimes every structure of an item has to use masked
parts, for example if a mask leaves too few words, or no arc from the root. All scores of structures
are then near −1e30, and rounding hides their differences.

The distribution is still well defined: masks decide first which structures are likely, and the
other scores decide among these. It is the same for every mask value that is low enough.
:func:`reduce_magnitudes` returns scores with a value that is low enough and whose sums are precise.
:func:`reduce_scores` does so for a structure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, too_large_message
from spacy_latent.kernels.autograd.tracing import is_transformed
from spacy_latent.kernels.core.gpu_transfers import fetch

# With scores of this magnitude for each part, sums have at most seven correct decimals.
LARGE = 1e9
# Sums of scores below this have at least seven correct decimals.
EXTREME = 1e6
# Fewer scores are compared by NumPy, so that a first short text does not wait for the compiler.
FEW_SCORES = 2048
# exp of the negative of this is 0 in float64.
NOTHING = 800.0
# Beyond this, sums of scores overflow.
LARGEST = 1e300
# Bound on the number of masks that may have been added to one score.
MOST_MASKS = 64
# A sum below this fraction of the sum of absolute values is only rounding.
ROUNDING = 1e-12
# A probability that differs by more from 0 and 1 is uncertain.
UNSURE = 1e-6


class Reduction(NamedTuple):
    """Scores of the same distribution whose sums are precise.

    The last three attributes have no gradient.

    Attributes:
        scores: float64, with precise sums.
        removed: the original scores less ``scores``.
        beyond: ``removed`` without offsets that all structures of an item have in common.
        unsure: bool ``(B,)``, the items for which there are no such scores. Only an offset that all
            structures have in common is removed from their scores.
    """

    scores: Tensor
    removed: Tensor
    beyond: Tensor
    unsure: Tensor


S = TypeVar("S", bound="ScoredStructure")


class ScoredStructure(Protocol):
    """Methods that a structure must have, see :class:`spacy_latent.structures.base.Structure`."""

    @property
    def name(self) -> str:
        """Name of the structure, for messages."""

    def _kernel_input(self, scores: Tensor) -> Tensor: ...

    def _kernel_input_mask(self, scores: Tensor, lengths: Tensor) -> Tensor: ...

    def _kernel_input_without_offset(
        self, given: Tensor, scores: Tensor, lengths: Tensor
    ) -> Tensor: ...

    def _with_kernel_input(self: S, given: Tensor, scores: Tensor) -> tuple[S, Tensor]: ...

    def _expected_uses(self, scores: Tensor, lengths: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class ReducedScores(Generic[S]):
    """Result of :func:`reduce_scores`.

    Attributes:
        structure, scores: a structure and scores of the same distribution.
        given: the values whose sums are the scores of structures.
        removed, beyond: see :class:`Reduction`.
        lost: ``(B,)``, bound on the rounding errors of sums, for items without precise scores; 0
            for the other items. Differences of sums below it are set to 0.
    """

    structure: S
    scores: Tensor
    given: Tensor
    removed: Tensor
    beyond: Tensor
    lost: Tensor

    def known(self, difference: Tensor) -> Tensor:
        """Return differences ``(..., B)`` of sums of :attr:`given`, with 0 for rounding errors."""
        return torch.where(difference.detach().abs() < self.lost, 0.0, difference)

    def common(self, lengths: Tensor) -> Tensor:
        """Return the amount ``(B,)`` to add to the log-partitions of the reduced scores.

        It is the same for all likely structures.
        """
        return (self._likely(lengths) * self.removed).flatten(1).sum(1)

    def apart(self, uses: Tensor, lengths: Tensor) -> Tensor:
        """Return original scores less reduced scores of given structures, relative to likely ones.

        The difference for likely structures, which is the same for all of them, is subtracted.

        Args:
            uses: ``(..., B, ...)``, uses of :attr:`given` by structures, or their mean.

        Returns:
            ``(..., B)``.
        """
        axes = tuple(range(-self.given.dim() + 1, 0))
        likely = self._likely(lengths)
        total = ((uses - likely) * self.beyond).sum(axes)
        sizes = ((uses + likely) * self.beyond.abs()).sum(axes)
        return torch.where(total.detach().abs() <= ROUNDING * sizes.detach(), 0.0, total)

    def _likely(self, lengths: Tensor) -> Tensor:
        with torch.no_grad():
            return self.structure._expected_uses(self.scores, lengths)


def reduce_scores(structure: S, scores: Tensor, lengths: Tensor) -> ReducedScores[S] | None:
    """Return scores of the same distribution over structures whose sums are precise.

    Returns:
        The scores, or None if the given ones already have precise sums.

    Raises:
        InvalidScores: there are no such scores, and the likely structures cannot be determined.
    """
    given, parts = structure._kernel_input(scores), structure._kernel_input_mask(scores, lengths)
    most = 2 * sum(given.shape[1:])
    found = reduce_magnitudes(
        given,
        parts,
        lambda known: structure._kernel_input_without_offset(known, scores, lengths),
        most,
    )
    if found is None:
        return None
    own, reduced = structure._with_kernel_input(found.scores, scores)
    lost = torch.zeros_like(found.unsure, dtype=found.scores.dtype)
    if bool(found.unsure.any()):
        lost = _rounding_bound(own, reduced, lengths, found.unsure, most)
    return ReducedScores(own, reduced, found.scores, found.removed, found.beyond, lost)


def has_extreme_scores(scores: Tensor) -> bool:
    """Return whether there may be finite scores of a magnitude above EXTREME.

    The result is False if it is unknown: while torch traces the code, and inside of the transforms
    of torch.func. Operators then refuse scores that lose digits, see kernels.autograd.operators.
    """
    if torch.compiler.is_compiling() or is_transformed() or not scores.numel():
        return False
    try:
        values = fetch(scores).numpy()
    except RuntimeError:
        # Tensors without values, such as those on the meta device, raise this.
        return False
    return contains_extreme(values)


def contains_extreme(scores: np.ndarray) -> bool:
    """Return whether there are finite scores of a magnitude above EXTREME."""
    if scores.size < FEW_SCORES:
        sizes = np.abs(scores)
        return bool(np.count_nonzero(sizes > EXTREME) > np.count_nonzero(sizes == np.inf))
    from spacy_latent.kernels.simd.extreme_scores import holds_beyond

    return bool(holds_beyond(scores.reshape(-1), scores.dtype.type(EXTREME)))


def reduce_magnitudes(
    scores: Tensor, parts: Tensor, level: Callable[[Tensor], Tensor], most: int
) -> Reduction | None:
    """Replace scores beyond EXTREME by smaller ones that give the same distribution.

    The result is None if no score is beyond. The gradient of the smaller scores ``(B, ...)`` is the
    gradient of the scores.

    Args:
        parts: bool, the scores that structures can use.
        level: subtracts from scores an offset that all structures of an item have in common.
        most: bound on the number of scores that a structure uses.
    """
    exact = scores.double()
    known, axes = exact.detach(), tuple(range(1, scores.dim()))
    inside = parts & known.isfinite()
    largest = _largest(known, inside, axes)
    extreme = (largest > EXTREME) & (largest < LARGEST)
    if not bool(extreme.any()):
        return None
    inside = inside & extreme
    levelled = level(known)
    # A smaller offset would be lost in the sum with a mask, and need not be subtracted.
    common = torch.where(inside & ((known - levelled).abs() > EXTREME), levelled, known)
    size = common.abs()
    masked = inside & (size > EXTREME)
    step = torch.where(masked, size, torch.inf).amin(axes, keepdim=True)
    step = torch.where(step.isfinite(), step, 1.0)
    times = torch.where(masked, (size / step).round(), 0.0)
    rest = torch.where(masked, size - times * step, common)
    # A mask that was added twice or more has a rounded sum.
    rounded = (
        masked & (rest.abs() > EXTREME) & (rest.abs() <= 4 * torch.finfo(size.dtype).eps * size)
    )
    rest = torch.where(rounded, 0.0, rest)
    spread = _largest(rest, inside, axes)
    # Bound on the differences of structures without masks, and on the log of their number.
    others = most * (2 * spread + math.log(max(scores[:1].numel(), 2)))
    place = NOTHING + others
    separable = (
        (spread <= EXTREME) & (times.amax(axes, keepdim=True) <= MOST_MASKS) & (step > 2 * place)
    )
    moved = torch.where(masked, common.sign() * (times * place + rest), common)
    moved = torch.where(separable, moved, common)
    reduced = torch.where(inside, moved + (exact - known), exact)
    removed = torch.where(inside, known - moved, 0.0)
    beyond = torch.where(inside, common - moved, 0.0)
    return Reduction(
        reduced, removed, beyond, (extreme & ~separable).flatten() & masked.flatten(1).any(1)
    )


def _rounding_bound(
    structure: ScoredStructure, scores: Tensor, lengths: Tensor, unsure: Tensor, most: int
) -> Tensor:
    """Return a bound ``(B,)`` on the rounding errors of differences of sums.

    It is 0 if all relevant digits are kept.

    Raises:
        InvalidScores: rounding may hide which structures of an item are likely.
    """
    with torch.no_grad():
        given = structure._kernel_input(scores)
        sizes = torch.where(given.isfinite(), given.abs(), 0.0)
        sizes = torch.where(structure._kernel_input_mask(scores, lengths), sizes, 0.0).flatten(1)
        try:
            uses = structure._expected_uses(scores, lengths)
            size = (uses.flatten(1) * sizes).sum(1)
        except InvalidScores:
            # Marginals cannot be computed, but samples can, if one structure is much better than
            # others.
            size = most * sizes.amax(1)
        unsure = unsure & ~(size <= LARGE * most)
        lost = torch.where(unsure, ROUNDING * size, 0.0)
        if not bool(unsure.any()):
            return lost
        # After this division, differences below the bound are too small to matter.
        divisor = torch.where(unsure, lost, 1.0)
        cooled = given / divisor.view(-1, *[1] * (given.dim() - 1))
        own, divided = structure._with_kernel_input(cooled, scores)
        p = own._expected_uses(divided, lengths)
        unsure = unsure & ~((p < UNSURE) | ((p - 1.0).abs() < UNSURE)).flatten(1).all(1)
    items = unsure.nonzero().flatten().tolist()
    if items:
        raise InvalidScores(too_large_message(structure.name, items))
    return lost


def _largest(values: Tensor, where: Tensor, axes: tuple[int, ...]) -> Tensor:
    return torch.where(where, values.abs(), 0.0).amax(axes, keepdim=True)
