"""Sequences of merges: binary trees built in any order, one pair of adjacent spans at a time."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores
from spacy_latent.kernels.autograd.tracing import INFEASIBLE, not_traced, refuse, source
from spacy_latent.structures.base import chosen_parts
from spacy_latent.structures.decisions import (
    Choice,
    DecisionStructure,
    KnownScores,
    ParserRows,
    widened,
)


class MergeSequence(DecisionStructure):
    """Sequences of n − 1 merges that make one span of n words (Havrylov et al. 2019, section 2.1).

    At step t there are n − t adjacent spans, and one adjacent pair becomes a span.

    Parts ``(B, N − 1, N − 1)`` are merges [step, place of the left span]. Entries with step + place
    < n − 1 are parts. Scores are their unnormalised log-probabilities, one softmax for each step;
    −inf forbids a merge. Several sequences make the same tree: log p is the log-probability of the
    sequence. lengths are numbers of words, and an item has one part per step.

    ``map`` is greedy, and ``top_k`` the best of a beam search. With a scorer such as MergeScorer
    the probabilities depend on the merges made before.
    """

    part_axes: ClassVar[int] = 2
    parts: ClassVar[str] = "merges"
    annotation: ClassVar[str] = "spans"
    advice = (
        "sample and log_prob, which are exact, or ConstituencyTree, which is of trees and not of "
        "the order in which they are built"
    )

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return allowed_merges(scores.shape[-1], lengths.to(scores.device))

    def check(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        scores, lengths = super().check(scores, lengths)
        if scores.shape[1] != scores.shape[2]:
            raise InvalidScores(
                f"{self.name}: scores have shape {tuple(scores.shape)}; expected (B, N − 1, N − 1) "
                "for lengths of 0 to N words."
            )
        return scores, self.check_lengths(lengths, scores.shape[1] + 1)

    def masked(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        prepared, lengths = super().masked(scores, lengths)
        mask = self.part_mask(prepared, lengths)
        stuck = (mask.any(2) & prepared.isneginf().all(2)).any(1)
        return refuse(prepared, stuck, INFEASIBLE, self.name), lengths

    @not_traced
    def contains(self, z: Tensor, lengths: Tensor) -> Tensor:
        chosen, valid, sizes = chosen_parts(self, z, lengths)
        steps = self.part_mask(z, sizes).any(2)
        return valid & (chosen.sum(2) == steps).all(1)

    def policy(self, scores: Tensor, lengths: Tensor, copies: int = 1) -> MergePolicy:
        """Return the decision policy of ``copies`` batches of parsers, one batch after another."""
        return StepScores(scores, copies)

    def decided(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores of all merges at each step that leads to given sequences.

        Args:
            z: ``(R, N − 1, N − 1)``, sequences; R is a multiple of the number of items B.
            scores: ``(B, N − 1, N − 1)``.
            lengths: ``(B,)`` int64.

        Returns:
            ``(R, N − 1, N − 1)``.
        """
        return scores.repeat(len(z) // max(1, len(scores)), 1, 1)

    @not_traced
    def log_prob(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        prepared, lengths = self._read(scores, lengths)
        self._check_structures(z, scores)
        several = z if z.dim() == 4 else z[None]
        flat = several.flatten(0, 1)
        steps = self.decided(flat, prepared, lengths)
        mask = allowed_merges(z.shape[-1], lengths).repeat(len(several), 1, 1)
        result = log_probs(steps, mask)
        total = torch.where((flat > 0.5) & mask, result, 0.0).sum((1, 2))
        total = total.view(several.shape[:2]).to(scores.dtype)
        return total if z.dim() == 4 else total[0]

    def _beam(self, scores: Tensor, lengths: Tensor, size: int) -> tuple[Tensor, Tensor]:
        return beam_search(self.policy(scores, lengths), lengths, scores.shape[1], size)

    def decode(self, z: np.ndarray, length: int) -> np.ndarray:
        """Return the spans of the tree, as ConstituencyTree does.

        The order of merges is lost.
        """
        n = int(length)
        row = [(token, token) for token in range(n)]
        spans = list(row)
        for step in range(n - 1):
            place = int(z[step].argmax())
            merged = row[place][0], row[place + 1][1]
            row[place : place + 2] = [merged]
            spans.append(merged)
        return np.array(sorted(spans), dtype="int32").reshape(-1, 2)

    def encode(self, gold: np.ndarray, length: int) -> np.ndarray:
        """Return the merges of a tree from its spans; spans that end first are merged first.

        Raises:
            ValueError: the spans are no binary tree.
        """
        n = int(length)
        z = np.zeros((max(n - 1, 0), max(n - 1, 0)), dtype="float32")
        row = list(range(n))
        spans = np.asarray(gold, dtype="int64").reshape(-1, 2).tolist()
        inner = sorted((last, -first) for first, last in spans if first < last)
        if len(inner) != max(n - 1, 0):
            raise ValueError(f"{len(inner)} spans of two and more words cannot be a binary tree.")
        ends = list(range(n))
        for step, (last, first) in enumerate(inner):
            place = row.index(-first)
            if place + 1 >= len(row) or ends[place + 1] != last:
                raise ValueError(f"The span {(-first, last)} is not two spans of the tree.")
            z[step, place] = 1.0
            del row[place + 1], ends[place]
        return z

    @not_traced
    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return parse(self.policy(scores, lengths), lengths, scores.shape[1], greedy)

    @not_traced
    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        policy = self.policy(scores, lengths, num_samples)
        chosen = parse(policy, lengths.repeat(num_samples), scores.shape[1], at_random(generator))
        return chosen.view(num_samples, *scores.shape)


@dataclass
class MergedSpans:
    """Spans that R sequences of merges make.

    Attributes:
        spans: ``(R, n, n)`` float 0/1, the tree with its single words.
        first, last: ``(R, n − 1, n)`` int64, the adjacent spans before each step.
    """

    spans: Tensor
    first: Tensor
    last: Tensor


def merged_spans(z: Tensor, lengths: Tensor) -> MergedSpans:
    """Follow the merges ``(R, n − 1, n − 1)``."""
    rows, steps = z.shape[:2]
    # Padded to one place even if there are no words: n − 1 parts are the same for n = 0 and n = 1.
    longest = steps + 1
    token = torch.arange(longest, device=z.device)
    lengths = lengths.to(z.device)
    spans = torch.diag_embed((token < lengths[:, None]).float())
    first = last = token.expand(rows, longest)
    firsts, lasts = [], []
    row = torch.arange(rows, device=z.device)
    for step in range(steps):
        firsts.append(first)
        lasts.append(last)
        active = step < lengths - 1
        place = (z[:, step] > 0.5).int().argmax(1) if steps else row
        begin, end = first[row, place], last[row, place + 1]
        spans[row[active], begin[active], end[active]] = 1.0
        behind = (token > place[:, None]) & active[:, None]
        shifted = (token + behind).clamp_max(longest - 1)
        at = (token == place[:, None]) & active[:, None]
        first = first.gather(1, shifted)
        last = torch.where(at, end[:, None], last.gather(1, shifted))
    blank = first[:, None][:, :0]
    return MergedSpans(
        spans,
        torch.stack(firsts, 1) if firsts else blank,
        torch.stack(lasts, 1) if lasts else blank,
    )


def trees_of_merges(z: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """Return the trees ``(R, n, n)`` [first, last] that merges make of n = ``longest`` places."""
    return merged_spans(z.detach(), lengths).spans[:, :longest, :longest]


def allowed_merges(steps: int, lengths: Tensor) -> Tensor:
    """Return a mask of the merges, ``(B, steps, steps)`` bool [step, place]."""
    index = torch.arange(steps, device=lengths.device)
    return (index[:, None] + index) < (lengths - 1)[:, None, None]


def log_probs(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the log-softmax over the places of each step; 0 at steps without any."""
    masked = scores.masked_fill(~mask, -torch.inf)
    some = ~masked.isneginf().all(-1, keepdim=True)
    return masked.masked_fill(~some, 0.0).log_softmax(-1) * some


class MergePolicy(ParserRows):
    """Decision policy of R parsers."""

    @abstractmethod
    def logits(self, step: int) -> Tensor:
        """Return the scores of the merges at this step, ``(R, places)``."""

    @abstractmethod
    def follow(self, step: int, place: Tensor) -> None:
        """Record the merges, places ``(R,)``, including the places of finished parsers."""


class StepScores(KnownScores, MergePolicy):
    """Policy by scores ``(B, N − 1, N − 1)`` that are known beforehand."""

    def logits(self, step: int) -> Tensor:
        return self.scores[self.item, step]

    def follow(self, step: int, place: Tensor) -> None:
        pass


def greedy(log_p: Tensor) -> Tensor:
    """Choose the most probable merge for each row of ``(R, places)``."""
    return log_p.argmax(1)


def at_random(generator: torch.Generator | None) -> Choice:
    """Return a choice that draws merges by their probabilities, in float64 on the CPU."""

    def choose(log_p: Tensor) -> Tensor:
        uniform = torch.rand(len(log_p), 1, dtype=torch.float64, device="cpu", **source(generator))
        cumulative = log_p.double().exp().cumsum(1)
        below = cumulative <= uniform.to(log_p.device) * cumulative[:, -1:]
        return below.sum(1).clamp_max(log_p.shape[1] - 1)

    return choose


def parse(policy: MergePolicy, lengths: Tensor, steps: int, choose: Choice) -> Tensor:
    """Return one sequence for each row, ``(R, steps, steps)`` float 0/1."""
    z = torch.zeros(len(lengths), steps, steps, device=lengths.device)
    mask = allowed_merges(steps, lengths)
    row = torch.arange(len(lengths), device=lengths.device)
    for step in range(steps):
        active = mask[:, step, 0]
        log_p = log_probs(policy.logits(step)[:, : steps - step], mask[:, step, : steps - step])
        place = torch.where(active, choose(log_p), 0)
        z[row[active], step, place[active]] = 1.0
        policy.follow(step, place)
    return z


def beam_search(
    policy: MergePolicy, lengths: Tensor, steps: int, size: int
) -> tuple[Tensor, Tensor]:
    """Return the merges of a beam search and their log-probabilities, as ``_beam`` does."""
    batch, history = len(lengths), []
    of_rows, total, base = widened(policy, lengths, size)
    mask = allowed_merges(steps, of_rows)
    row = torch.arange(batch * size, device=lengths.device)
    for step in range(steps):
        places = steps - step
        here = mask[:, step, :places]
        log_p = log_probs(policy.logits(step).double()[:, :places], here)
        active = here[:, 0]
        # A finished parser has one successor, itself.
        log_p = torch.where(here, log_p, -torch.inf)
        log_p[~active, 0] = 0.0
        candidates = (total[:, :, None] + log_p.view(batch, size, places)).flatten(1)
        total, best = candidates.topk(size) if places > 1 else candidates.sort(1, descending=True)
        rows, place = (base + best // places).flatten(), (best % places).flatten()
        policy.select(rows)
        history.append((rows, place))
        policy.follow(step, place)
    # Built from the end, since most prefixes are not part of any kept sequence.
    z = torch.zeros(batch * size, steps, steps, device=lengths.device)
    tree = row
    for step, (rows, place) in reversed(list(enumerate(history))):
        merges = mask[:, step, 0]
        z[tree[merges], step, place[row[merges]]] = 1.0
        row = rows[row]
    return z.view(batch, size, steps, steps).transpose(0, 1), total.t()
