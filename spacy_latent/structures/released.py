"""Sets of structures with which training begins, before a larger one.

The larger set is used at the end of training and at prediction. Scorer and composer first adapt to
each other on the restricted set.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import accumulate, groupby, islice

from spacy_latent.errors import LARGEST, MANY, LatentError, is_whole
from spacy_latent.stages import follow
from spacy_latent.structures.base import Structure
from spacy_latent.structures.dependency import DependencyTree


def release(restricted: Structure, free: Structure, release_at: int) -> Structure:
    """Return ``free``, replaced by ``restricted`` in updates before ``release_at``."""
    if restricted.parts != free.parts or restricted.part_axes != free.part_axes:
        raise LatentError(
            f"A release from {restricted!r} to {free!r}: the first is made of {restricted.parts}, "
            f"the second of {free.parts}. Use structures of the same parts."
        )
    sets = [stage for _, stage in restricted.stages] + [restricted]
    sets += [stage for end, stage in free.stages if end > release_at] + [free]
    for smaller, larger in zip(sets, sets[1:]):
        if larger.covers(smaller) is not True:
            raise LatentError(
                f"A release from {smaller!r} to {larger!r}: the second is not known to have every "
                "structure of the first, so that training could end with a smaller set than it "
                "began with. Give the smaller set first, or define covers() in the larger one."
            )
    return follow(restricted, free, release_at)


def build_released_structure_v1(
    restricted: Structure, free: Structure, release_at: int
) -> Structure:
    """Build a set of structures that is restricted in the first updates of the weights.

    Args:
        restricted: the set of structures in the first updates. It may be released itself.
        free: the set from then on, and at prediction. It has to hold all structures of
            ``restricted``, and may be released itself.
        release_at: number of updates under the restriction, at least 1.
    """
    return release(restricted, free, release_at)


def build_growing_arcs_v1(
    structure: Structure, max_arc_length: Iterable[float], release_at: int
) -> Structure:
    """Build dependency trees whose arcs may become longer during training.

    Args:
        structure: the trees from ``release_at`` on, and at prediction.
        max_arc_length: a Thinc schedule with a value for each update, rounded down, or a list whose
            last value stays; it may not fall.
        release_at: number of updates under the bounds, at least 1.
    """
    if not isinstance(structure, DependencyTree) or structure.stages:
        raise LatentError(
            f"GrowingArcs: the structure is {structure!r}; expected dependency trees such as "
            "spacy-latent.ProjectiveTree.v1, without a release of their own."
        )
    if not is_whole(release_at, 1):
        raise LatentError(
            f"GrowingArcs: release_at is {release_at!r}; expected the number of updates of "
            f"training after which {structure!r} is free, at least 1."
        )
    if isinstance(max_arc_length, (int, float)):
        max_arc_length = [max_arc_length]
    # A schedule has no end, and all of its values are read here.
    bounds = list(islice(iter(max_arc_length), min(release_at, MANY + 1)))
    if len(bounds) > MANY:
        raise LatentError(
            f"GrowingArcs: release_at is {release_at}; expected at most {MANY:,} updates of a "
            "schedule. Give a lower number, or max_arc_length as a list, whose last value stays."
        )
    if not bounds or not all(1 <= bound <= LARGEST for bound in bounds):
        raise LatentError(
            f"GrowingArcs: max_arc_length gives {bounds[:10]}; expected numbers of tokens, each at "
            "least 1."
        )
    runs = [(bound, len([*same])) for bound, same in groupby(map(int, bounds))]
    ends = [*accumulate(length for _, length in runs)]
    result: Structure = structure
    for (bound, _), end in reversed([*zip(runs, [*ends[:-1], release_at])]):
        bounded = copy.copy(structure)
        bounded.max_arc_length = bound
        result = release(bounded, result, end)
    return result
