"""Scores under an intervention: parts that are forbidden, and parts that are forced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, LatentError, NothingLeft
from spacy_latent.structures.base import Structure

# Index of a part in the scores of an item. A slice stands for any index on its axis, for example
# for any previous tag.
Index = tuple["int | slice", ...]
# 1 + exp(−SURE) is 1 in float64.
SURE = 40.0
# Scores of a larger magnitude are masks. They do not count for the size of the bonus.
MASK = 1e6


@dataclass(frozen=True)
class BatchInterventions:
    """Interventions on the structures of B items.

    Attributes:
        forbidden, forced: for each item, places in its scores.
        temperature: divisor of the scores, in addition to the layer's temperature.
    """

    forbidden: Sequence[Sequence[Index]] = field(default_factory=list)
    forced: Sequence[Sequence[Index]] = field(default_factory=list)
    temperature: float = 1.0

    @property
    def of_parts(self) -> bool:
        """True if a part of some item is forbidden or forced."""
        return any(self.forbidden) or any(self.forced)


def constrained_scores(
    structure: Structure, scores: Tensor, lengths: Tensor, interventions: BatchInterventions
) -> Tensor:
    """Return scores ``(B, *parts)`` whose structures have all forced parts and no forbidden one.

    They are in float64, since a forced part may outweigh all others.

    A part is forbidden by −inf. If the structure has ``exclusive_axes``, a part is forced by
    forbidding the parts that exclude it. A span of binary trees is forced by forbidding the spans
    that cross it. Otherwise the part's score is increased by more than all other scores together.

    Raises:
        LatentError: a place is no part.
    """
    if not interventions.of_parts:
        return scores
    mask = structure.part_mask(scores, lengths.to(scores.device)).expand(scores.shape)
    made = scores.double().masked_fill(~mask, 0.0)
    for b, (forbidden, forced) in enumerate(zip(interventions.forbidden, interventions.forced)):
        own, there = made[b], mask[b]
        known = own[there & (own.abs() < MASK)]
        bonus = SURE + 2 * float(known.abs().sum())
        for place in (*forbidden, *forced):
            if not _is_part(place, there):
                shown = ["any" if isinstance(at, slice) else at for at in place]
                raise LatentError(
                    f"{shown} is no part of {structure.name} over {lengths[b].tolist()} token(s). "
                    "Force or forbid a part that it could have."
                )
        for place in forbidden:
            own[place] = -torch.inf
        for place in forced:
            _force(structure, own, place, bonus)
    return made.masked_fill(~mask, -torch.inf)


def _force(structure: Structure, scores: Tensor, place: Index, bonus: float) -> None:
    if structure.exclusive_axes:
        row = tuple(
            slice(None) if axis in structure.exclusive_axes else at for axis, at in enumerate(place)
        )
        kept = scores[place].clone()
        scores[row] = -torch.inf
        scores[place] = kept
        return
    if structure.parts == "spans":
        # A binary tree has every span that none of its spans crosses.
        first, last = place
        assert isinstance(first, int) and isinstance(last, int)
        blocked = scores[first, last].isneginf()
        scores[:first, first:last] = -torch.inf
        scores[first + 1 : last + 1, last + 1 :] = -torch.inf
        if not blocked:
            return
        # check_forced reports a forced part that is also forbidden, or crosses another forced part.
        # The bonus is the same for all forced parts, so a structure with more of them outweighs any
        # with fewer.
    scores[place] += bonus


def _is_part(place: Index, parts: Tensor) -> bool:
    if len(place) != parts.dim() or any(
        isinstance(at, int) and not 0 <= at < size for at, size in zip(place, parts.shape)
    ):
        return False
    return bool(parts[place].any())


def check_forced(best: Tensor, interventions: BatchInterventions, name: str) -> None:
    """Refuse best structures ``(B, *parts)`` that lack a forced part, or have a forbidden one."""
    for structure, forbidden, forced in zip(best, interventions.forbidden, interventions.forced):
        lacking = any(float(structure[place].sum()) < 0.5 for place in forced)
        if lacking or any(float(structure[place].sum()) > 0.5 for place in forbidden):
            raise NothingLeft(name)


@contextmanager
def naming_interventions(name: str, interventions: BatchInterventions | None) -> Iterator[None]:
    """Replace an InfeasibleError by NothingLeft, which names the interventions as its reason."""
    try:
        yield
    except InfeasibleError:
        if interventions is None or not interventions.of_parts:
            raise
        raise NothingLeft(name) from None
