"""What is known of a latent sequence of tags, as a weight of each sequence.

The loss of a text is log Z − log Z_E: Z sums over all sequences, Z_E over the same ones with their
evidence multiplied in. Complete annotation is evidence that leaves one sequence; a missing tag, a
set of labels that a text was annotated for and what an annotator wrote who may be wrong are weights
of tags at a token; that a text has at least so many entities of a label is a weight of the whole
sequence, which a sum over tags and numbers of entities holds exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from spacy_latent.errors import LatentError


@dataclass(frozen=True)
class Run:
    """Tags, by number, of the tokens from ``start`` on."""

    start: int
    tags: tuple[int, ...]


@dataclass(frozen=True)
class EntityCount:
    """How many entities of a label a text has.

    ends: the tags, by number, with which an entity of the label ends: its L and its U.
    least: it is said to have at least so many, 1 or more; or fewer, where ``holds`` is False.
    wrong: how probable it is that this is wrong.
    """

    ends: tuple[int, ...]
    least: int = 1
    holds: bool = True
    wrong: float = 0.0

    def log_weights(self, counts: np.ndarray) -> np.ndarray:
        """Of sequences with so many entities of the label, −inf for those that cannot be."""
        agrees = (counts >= self.least) == self.holds
        with np.errstate(divide="ignore"):
            return np.log(np.where(agrees, 1.0 - self.wrong, self.wrong))


@dataclass
class TagEvidence:
    """What is known of the tags of one text.

    potentials: ``(n, K)`` float64, how probable what was written at each token is given each tag,
        as a logarithm: at most 0. −inf forbids the tag; where all are 0 nothing is known.
    counts: of different labels; their weights multiply.
    rejected: runs of tags that are wrong, each of which adds −log(1 − P(run)).
    """

    potentials: np.ndarray
    counts: tuple[EntityCount, ...] = ()
    rejected: Sequence[Run] = field(default=())

    @classmethod
    def of_mask(cls, allowed: np.ndarray, rejected: Sequence[Run] = ()) -> TagEvidence:
        """allowed: ``(n, K)`` bool, the tags that each token may have."""
        return cls(np.where(allowed, 0.0, -np.inf), (), rejected)

    @property
    def allowed(self) -> np.ndarray:
        """Tags that each token may have, ``(n, K)`` bool."""
        return self.potentials != -np.inf

    @property
    def only_forbids(self) -> bool:
        """Whether :attr:`allowed` is all that it says."""
        finite = self.potentials[self.allowed]
        return not (self.counts or self.rejected or finite.any())


class Contradiction(LatentError):
    """Counts of entities that no sequence has which agrees with the rest of the annotation.

    docs: their places in the batch.
    """

    def __init__(self, docs: Sequence[int]) -> None:
        self.docs = list(docs)
        super().__init__(
            f"tag evidence: no sequence of tags of item(s) {self.docs} has as many entities as it "
            "is said to have, and agrees with the tags that are known. Expected evidence that one "
            "sequence at least agrees with."
        )


__all__ = ["Contradiction", "EntityCount", "Run", "TagEvidence"]
