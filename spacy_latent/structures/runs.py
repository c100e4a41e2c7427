"""A few runs of neighbouring items: contiguous rationales of bounded size."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, check_flags, check_whole
from spacy_latent.structures.base import Structure, chosen_parts
from spacy_latent.structures.items import ItemSet


class Runs(ItemSet):
    """Subsets of k items that lie in at most ``runs`` runs of neighbours. Scores ``(B, N)``;
    lengths ``(B,)``. Where fewer than k items are there, k is their number.

    k: how many.
    runs: into how many stretches they may fall. 1 for a single stretch of words.
    exactly: just k; else any number up to k.

    Such rationales are those of Guerreiro and Martins (2021, SPECTRA), who find them by
    LP-SparseMAP of a factor graph. Here a state holds how many items were chosen, in how many runs,
    and whether the last one was, so that the best members, sums and samples are exact, in
    O(n · k · runs); SparseMAP is exact, too, by the active-set method.
    """

    def __init__(self, k: int = 3, runs: int = 2, exactly: bool = True) -> None:
        check_whole(self.name, error=InvalidScores, k=k, runs=runs)
        check_flags(self.name, error=InvalidScores, exactly=exactly)
        self.k = k
        self.runs = runs
        self.exactly = self.incomparable = exactly

    def covers(self, other: Structure) -> bool | None:
        if not isinstance(other, Runs):
            return super().covers(other)
        if self.exactly and not (other.exactly and self.k == other.k):
            return False
        return self.k >= other.k and min(self.runs, other.k) >= min(other.runs, other.k)

    def contains(self, z: Tensor, lengths: Tensor) -> Tensor:
        chosen, plain = chosen_parts(self, z, lengths)
        count = chosen.sum(1)
        begins = chosen.clone()
        begins[:, 1:] &= ~chosen[:, :-1]
        wanted = lengths.to(z.device).clamp_max(self.k)
        right = count == wanted if self.exactly else count <= wanted
        return plain & right & (begins.sum(1) <= self.runs)

    # ---------------------------------------------------------------- inference

    def _steps(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The states before each state, ``(S, 2)``, whether it has chosen its item, ``(S,)``, and
        the number of items chosen, ``(S,)``. State S is none, and stands where there is no other.
        """
        before, chosen, count = _states(self.k, self.runs)
        return before.to(scores.device), chosen.to(scores.device), count.to(scores.device)

    def _ends(self, count: Tensor, lengths: Tensor) -> Tensor:
        """In which states an item may end, ``(B, S)``."""
        wanted = lengths.to(count.device).clamp_max(self.k)[:, None]
        return count == wanted if self.exactly else count <= wanted

    def _begin(self, scores: Tensor, states: int) -> Tensor:
        """Before the first item: no item is chosen, in no run. ``(B, S + 1)`` float64."""
        begin = scores.new_full((len(scores), states + 1), -torch.inf, dtype=torch.float64)
        begin[:, 0] = 0.0
        return begin

    def _forward(self, scores: Tensor, lengths: Tensor) -> list[Tensor]:
        """log-sums over the choices that lead to each state, ``(B, S + 1)``, before each item and
        after the last; of shorter texts those after their last stay."""
        before, chosen, count = self._steps(scores)
        sizes = lengths.to(scores.device)
        present = self._begin(scores, len(count))
        every = [present]
        for i in range(scores.shape[1]):
            own = torch.where(chosen, scores[:, i, None].double(), 0.0)
            sums = _log_sum(present[:, before]) + own
            sums = torch.cat([sums, present[:, -1:]], 1)
            present = torch.where((i < sizes)[:, None], sums, present)
            every.append(present)
        return every

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        last = self._forward(scores, lengths)[-1][:, :-1]
        ends = self._ends(self._steps(scores)[2], lengths)
        total = _log_sum(torch.where(ends, last, -torch.inf))
        self._refuse(total)
        return total

    def _refuse(self, total: Tensor) -> None:
        impossible = total.detach().isneginf().nonzero().flatten().tolist()
        if impossible:
            self.raise_infeasible(impossible)

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        before, chosen, count = self._steps(scores)
        sizes = lengths.to(scores.device)
        present = self._begin(scores, len(count))
        came: list[Tensor] = []
        for i in range(scores.shape[1]):
            own = torch.where(chosen, scores[:, i, None].double(), 0.0)
            best, place = present[:, before].max(-1)
            came.append(before[torch.arange(len(count), device=scores.device), place])
            best = torch.cat([best + own, present[:, -1:]], 1)
            present = torch.where((i < sizes)[:, None], best, present)
        ends = self._ends(count, lengths)
        total, state = torch.where(ends, present[:, :-1], -torch.inf).max(1)
        self._refuse(total)
        z = torch.zeros_like(scores)
        for i in reversed(range(scores.shape[1])):
            inside = i < sizes
            z[:, i] = (inside & chosen[state]).to(scores.dtype)
            state = torch.where(inside, came[i].gather(1, state[:, None])[:, 0], state)
        return z

    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        before, chosen, count = self._steps(scores)
        sizes = lengths.to(scores.device)
        every = self._forward(scores, lengths)
        last = torch.where(self._ends(count, lengths), every[-1][:, :-1], -torch.inf)
        self._refuse(last.amax(1))

        def drawn(logits: Tensor) -> Tensor:
            uniform = torch.rand(logits.shape, generator=generator, dtype=torch.float64)
            gumbel = -(-uniform.clamp_min(1e-300).log()).log()
            return (logits + gumbel.to(logits.device)).argmax(-1)

        state = drawn(last.expand(num_samples, -1, -1))
        z = scores.new_zeros(num_samples, *scores.shape)
        for i in reversed(range(scores.shape[1])):
            inside = i < sizes
            z[:, :, i] = (inside & chosen[state]).to(scores.dtype)
            options = before[state]
            known = every[i].expand(num_samples, -1, -1).gather(2, options)
            # Of texts that are over nothing is taken back.
            place = drawn(torch.where(inside[:, None], known, 0.0))
            earlier = options.gather(2, place[..., None])[..., 0]
            state = torch.where(inside, earlier, state)
        return z


def _log_sum(values: Tensor) -> Tensor:
    """log Σ exp along the last axis, whose gradient is 0, and not NaN, where all is −inf."""
    largest = values.detach().amax(-1)
    level = torch.where(largest.isneginf(), 0.0, largest)
    sums = (values - level[..., None]).exp().sum(-1)
    found = torch.where(largest.isneginf(), 1.0, sums).log() + level
    return torch.where(largest.isneginf(), -torch.inf, found)


@cache
def _states(k: int, runs: int) -> tuple[Tensor, Tensor, Tensor]:
    """See :meth:`Runs._steps`. The first state is that of nothing chosen."""
    states = [
        (items, used, last)
        for items in range(k + 1)
        for used in range(min(runs, items) + 1)
        for last in (False, True)
        if (items > 0) == (used > 0) and not (last and not items)
    ]
    number = {state: place for place, state in enumerate(states)}
    none = len(states)
    before = []
    for items, used, last in states:
        if not last:
            earlier = [(items, used, False), (items, used, True)]
        else:
            earlier = [(items - 1, used - 1, False), (items - 1, used, True)]
        before.append([number.get(state, none) for state in earlier])
    return (
        torch.tensor(before),
        torch.tensor([last for _, _, last in states]),
        torch.tensor([items for items, _, _ in states]),
    )
