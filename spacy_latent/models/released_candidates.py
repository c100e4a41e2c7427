"""Candidates of rationales that grow in the course of training."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from spacy.tokens import Doc

from spacy_latent.errors import LatentError
from spacy_latent.models.candidates import AllWords, Candidates
from spacy_latent.stages import Staged, follow


class ReleasedCandidates(Staged):
    """Candidates of prediction, with earlier ``stages`` of training, each of this class.

    A call returns the candidates of prediction.

    Args:
        candidates: words that may be chosen after the stages.
    """

    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates

    @property
    def name(self) -> str:
        """Name of the function or class of the candidates, for messages."""
        plain = type(self.candidates).__repr__ is object.__repr__
        shown = type(self.candidates).__name__ if plain else repr(self.candidates)
        return getattr(self.candidates, "__qualname__", shown)

    def __call__(self, docs: Sequence[Doc]) -> list[np.ndarray]:
        """Return a mask of the words that may be chosen at prediction."""
        return self.candidates(docs)

    def covers(self, other: "ReleasedCandidates") -> bool | None:
        """Return whether these contain every word of ``other``; None if it depends on the docs.

        Stages are ignored.
        """
        compare = getattr(self.candidates, "covers", None)
        return None if compare is None else compare(other.candidates)

    def in_training(self, docs: Sequence[Doc], update: int) -> list[np.ndarray]:
        """Return the candidates of an update, from 0.

        Raises:
            LatentError: if a word of these docs may be chosen in the present or a later stage, and
                not in the one after it.
        """
        present, *later = in_order(self, update)
        result = may = present(docs)
        for smaller, larger in pairwise([present, *later]):
            after = larger(docs)
            for doc, before, now in zip(docs, may, after):
                lost = np.flatnonzero(np.asarray(before, bool) & ~np.asarray(now, bool))
                if len(lost):
                    raise LatentError(
                        f"A release of candidates from {smaller.name} to {larger.name}: in the doc "
                        f"{doc.text[:40]!r} the word {doc[int(lost[0])].text!r} may be chosen "
                        "before the release and not after it, so that training would end with "
                        "fewer candidates than it began with. Give the smaller set first."
                    )
            may = after
        return result


def in_order(candidates: ReleasedCandidates, update: int = 0) -> list[ReleasedCandidates]:
    """Return the stages that have not ended at an update, and the candidates after them."""
    return [*(stage for end, stage in candidates.stages if update < end), candidates]


def present_candidates(
    candidates: Candidates, docs: Sequence[Doc], update: int | None
) -> list[np.ndarray]:
    """Return the candidates of an update of training, or of prediction if it is None."""
    if update is None or not isinstance(candidates, ReleasedCandidates):
        return candidates(docs)
    return candidates.in_training(docs, update)


def build_released_candidates_v1(
    restricted: Candidates, free: Candidates | None, release_at: int
) -> Candidates:
    """Build candidates that are extended after a number of updates.

    ``restricted`` and ``free`` may be ReleasedCandidates themselves.

    Args:
        restricted: words that may be chosen in the first updates of the weights.
        free: words that may be chosen from then on, and at prediction; None for all. They must
            contain all earlier ones. If that depends on the docs, this is checked in each batch
            until the release.
        release_at: number of updates under the restriction, at least 1.
    """
    first, then = _with_stages(restricted), _with_stages(free or AllWords())
    made = follow(first, then, release_at)
    for smaller, larger in pairwise(in_order(made)):
        # If that depends on the docs, training checks it.
        if larger.covers(smaller) is False:
            raise LatentError(
                f"A release of candidates from {smaller.name} to {larger.name}: the second lacks "
                "words of the first, so that training would end with fewer candidates than it "
                "began with. Give the smaller set first."
            )
    return made


def _with_stages(candidates: Candidates) -> ReleasedCandidates:
    if isinstance(candidates, ReleasedCandidates):
        return candidates
    return ReleasedCandidates(candidates)
