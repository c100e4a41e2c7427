"""Small problems of checks of an estimator, with scores and a loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, LatentError
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.merge_sequence import MergeSequence
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.shift_reduce import ShiftReduce
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.testing.listing import Length


@dataclass(frozen=True)
class Problem:
    """Problem of a check: a structure, lengths of a batch, and the shape of the scores of an item.

    Entries beyond the lengths are padding. There are at least three items. The third has parts, and
    errors have to name it.
    """

    structure: Structure
    lengths: tuple[Length, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.lengths) < 3 or not np.all(self.lengths[2]):
            raise LatentError(
                f"Problem: the lengths are {self.lengths}; expected at least three, the third of "
                "them not 0."
            )


def problems() -> list[Problem]:
    """Return the default problems of :func:`check_estimator`.

    There is one of each kind of parts and of each degree of tractability.
    """
    return [
        Problem(OneOfN(), (5, 0, 4, 1), (6,)),
        Problem(KOfN(2), (5, 0, 4, 1), (6,)),
        Problem(Bits(), (4, 0, 3, 1), (6,)),
        Problem(SpanningTree(), (3, 0, 2, 1), (5, 5)),
        Problem(ConstituencyTree(), (5, 0, 4, 1), (6, 6)),
        Problem(LinearChain(), (4, 0, 3, 1), (5, 2, 2)),
        Problem(MonotoneAlignment(), ((3, 3), (0, 2), (2, 3), (1, 1)), (4, 4)),
        Problem(OneToOneAlignment(), ((3, 3), (0, 2), (2, 3), (1, 1)), (4, 4)),
        Problem(ShiftReduce(), (5, 0, 4, 1), (6, 6)),
        Problem(MergeSequence(), (4, 0, 3, 1), (4, 4)),
    ]


class Case:
    """Scores and a loss for a problem."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.structure = problem.structure
        self.lengths = torch.tensor(problem.lengths, dtype=torch.int64)
        self.seed = seed

    @property
    def name(self) -> str:
        """Name of the structure, for messages."""
        return self.structure.name

    def parts(self) -> Tensor:
        """Return a mask of the entries that are parts, ``(B, *shape)`` bool."""
        like = torch.zeros(len(self.lengths), *self.problem.shape)
        return self.structure.part_mask(like, self.lengths).expand_as(like)

    def may_be_empty(self) -> bool:
        """Return whether item 2 still has a structure if all parts are forbidden."""
        scores = torch.full((len(self.lengths), *self.problem.shape), -torch.inf)
        try:
            self.structure.map(scores[2:3], self.lengths[2:3])
        except InfeasibleError:
            return False
        return True

    def scores(
        self, scale: float = 1.0, forbids: bool = False, offset: int = 0, fill: float = 0.0
    ) -> Tensor:
        """Return scores ``(B, *shape)`` float64, with ``fill`` at entries that are no part.

        If ``forbids`` is set, some parts are −inf, but no part of the best structure is.
        """
        generator = torch.Generator().manual_seed(self.seed + offset)
        shape = (len(self.lengths), *self.problem.shape)
        scores = scale * torch.randn(*shape, generator=generator, dtype=torch.float64)
        parts = self.parts()
        scores = scores.masked_fill(~parts, 0.0)
        if forbids:
            best = self.structure.map(scores, self.lengths) > 0
            closed = (torch.rand(shape, generator=generator) < 0.3) & ~best & parts
            scores = scores.masked_fill(closed, -torch.inf)
        return scores.masked_fill(~parts, fill)

    def random(self, count: int, offset: int) -> Tensor:
        """Return random numbers ``(count, B, *shape)`` float64."""
        generator = torch.Generator().manual_seed(self.seed + offset)
        shape = (count, len(self.lengths), *self.problem.shape)
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def loss(self, z: Tensor) -> Tensor:
        """Return losses ``(K, B)`` for ``(K, B, *shape)``.

        They are not linear, and differ much from zero, so that control variates have an effect.
        """
        generator = torch.Generator().manual_seed(self.seed + 17)
        table = torch.randn(*self.problem.shape, generator=generator, dtype=torch.float64).to(z)
        axes = tuple(range(2, z.dim()))
        first = (z * table).sum(axes)
        second = (z * table.flip(0)).sum(axes)
        return 2.0 + first.tanh() + 0.3 * second.square()
