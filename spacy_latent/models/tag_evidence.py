"""Evidence about a latent sequence of tags, as a weight of each sequence.

The loss of a text is log Z − log Z_E. Z sums over all sequences. Z_E sums over the same sequences,
each multiplied by the probability of the evidence given that sequence. Complete annotation leaves
one sequence. A missing tag, the set of labels that a text was annotated for and the tags of an
annotator who may be wrong are weights of tags at a token. A least number of entities of a label is
a weight of the whole sequence, which a sum over tags and counts represents exactly.
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
    """A statement about the number of entities of a label in a text.

    Attributes:
        ends: numbers of the tags with which an entity of the label ends, its L and its U.
        least: the number in the statement, 1 or more.
        holds: True if the statement is "at least ``least`` entities", False if it is "fewer".
        wrong: probability that the statement is wrong.
    """

    ends: tuple[int, ...]
    least: int = 1
    holds: bool = True
    wrong: float = 0.0

    def log_weights(self, counts: np.ndarray) -> np.ndarray:
        """Return the log-weights of sequences with these counts; −inf excludes them."""
        agrees = (counts >= self.least) == self.holds
        with np.errstate(divide="ignore"):
            return np.log(np.where(agrees, 1.0 - self.wrong, self.wrong))


@dataclass
class TagEvidence:
    """Evidence about the tags of one text.

    Attributes:
        potentials: ``(n, K)`` float64, log-probability of the annotation at each token given each
            tag, at most 0. −inf forbids the tag. A row of zeros is no evidence.
        counts: statements about different labels, whose weights multiply.
        rejected: runs of tags that are wrong; each adds −log(1 − P(run)) to the loss.
    """

    potentials: np.ndarray
    counts: tuple[EntityCount, ...] = ()
    rejected: Sequence[Run] = field(default=())

    @classmethod
    def of_mask(cls, allowed: np.ndarray, rejected: Sequence[Run] = ()) -> TagEvidence:
        """Return evidence that allows the tags of a mask.

        Args:
            allowed: ``(n, K)`` bool, the tags that each token may have.
            rejected: runs of tags that are wrong.
        """
        return cls(np.where(allowed, 0.0, -np.inf), (), rejected)

    @property
    def allowed(self) -> np.ndarray:
        """Return a mask of the tags that each token may have, ``(n, K)`` bool."""
        return self.potentials != -np.inf

    @property
    def only_forbids(self) -> bool:
        """True if :attr:`allowed` represents all of the evidence."""
        finite = self.potentials[self.allowed]
        return not (self.counts or self.rejected or finite.any())


class Contradiction(LatentError):
    """Error if no sequence of tags has both the stated counts of entities and the known tags.

    Attributes:
        docs: places of the texts in the batch.
    """

    def __init__(self, docs: Sequence[int]) -> None:
        self.docs = list(docs)
        super().__init__(
            f"tag evidence: no sequence of tags of item(s) {self.docs} has as many entities as it "
            "is said to have, and agrees with the tags that are known. Expected evidence that one "
            "sequence at least agrees with."
        )
