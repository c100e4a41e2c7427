"""Transitions of a shift-reduce parser: binary trees with the probability of their decisions."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from spacy_latent.errors import MANY, check_whole
from spacy_latent.kernels.autograd.tracing import not_traced, source
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.decisions import (
    Choice,
    DecisionStructure,
    KnownScores,
    ParserRows,
    widened,
)


class ShiftReduce(DecisionStructure, ConstituencyTree):
    """Binary bracketings of n words, built from left to right.

    A word is shifted on the stack, or the two topmost spans are reduced to one. Each tree has one
    sequence of transitions.

    Scores ``(B, N, N)`` are the log-odds of reducing, against shifting the next word, if the result
    is the span [first word, last word]. There is a choice only if there is a next word and there
    are two spans on the stack. So scores of single words and of spans that end with the last word
    are not read. log p(z) is the sum over the decisions (ancestral, or locally normalised); −inf
    forbids a reduction.

    ``map`` and ``top_k`` are the best of a beam search, not of all trees. With a scorer such as
    StackScorer the log-odds depend on the whole state of the parser.

    Args:
        beam_size: of ``map``; 1 decides greedily.
    """

    advice = (
        "sample and log_prob, which are exact, estimate_entropy, or ConstituencyTree, whose trees "
        "are the same and whose scores are of spans, not of decisions"
    )

    def __init__(self, beam_size: int = 1) -> None:
        check_whole(self.name, most=MANY, beam_size=beam_size)
        self.beam_size = beam_size

    @not_traced
    def contains(self, z: Tensor, lengths: Tensor) -> Tensor:
        return ConstituencyTree().contains(z, lengths)

    def policy(self, scores: Tensor, lengths: Tensor, copies: int = 1) -> Policy:
        """Return the decision policy of ``copies`` batches of parsers, one batch after another."""
        return SpanScores(scores, copies)

    def decided(self, z: Tensor, scores: Tensor, lengths: Tensor) -> tuple[Decisions, Tensor]:
        """Return the decisions that lead to trees, and the log-odds of reducing at each.

        Args:
            z: ``(R, n, n)``, trees; R is a multiple of the number of items B.
            scores: ``(B, n, n)``.
            lengths: ``(B,)`` int64.
        """
        decisions = Decisions(z, lengths.repeat(len(z) // max(1, len(lengths))))
        item = decisions.row % max(1, len(lengths))
        return decisions, scores[item, decisions.second, decisions.last]

    @not_traced
    def log_prob(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        prepared, lengths = self._read(scores, lengths)
        self._check_structures(z, scores)
        several = z if z.dim() == 4 else z[None]
        decisions, logits = self.decided(several.flatten(0, 1), prepared, lengths)
        rows = several.shape[0] * several.shape[1]
        result = decisions.log_prob(logits, rows).view(several.shape[:2]).to(scores.dtype)
        return result if z.dim() == 4 else result[0]

    @not_traced
    def estimate_entropy(
        self,
        scores: Tensor,
        lengths: Tensor,
        num_samples: int = 16,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Estimate the entropy of p(z) in nats, ``(B,)``.

        The estimate is the mean over samples of the sum of the entropies of their decisions. It is
        unbiased. Its gradient ignores that the scores also change which decisions occur.
        """
        prepared, lengths = self._read(scores, lengths)
        z = self.sample(scores, lengths, num_samples, generator)
        decisions, logits = self.decided(z.flatten(0, 1), prepared, lengths)
        certain = logits.isneginf()
        known = logits.masked_fill(certain, 0.0)
        nats = -logsigmoid(-known) - torch.sigmoid(known) * known
        nats = nats.masked_fill(certain, 0.0)
        total = nats.new_zeros(z.shape[:2].numel()).index_add(0, decisions.row, nats)
        return total.view(z.shape[:2]).mean(0).to(scores.dtype)

    @not_traced
    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        if self.beam_size > 1:
            return self._beam(scores, lengths, self.beam_size)[0][0]
        return parse(self.policy(scores, lengths), lengths, scores.shape[1], greedy)

    @not_traced
    def _sample(
        self, scores: Tensor, lengths: Tensor, num_samples: int, generator: torch.Generator | None
    ) -> Tensor:
        policy = self.policy(scores, lengths, num_samples)
        z = parse(policy, lengths.repeat(num_samples), scores.shape[1], at_random(generator))
        return z.view(num_samples, *scores.shape)

    def _beam(self, scores: Tensor, lengths: Tensor, size: int) -> tuple[Tensor, Tensor]:
        return beam_search(self.policy(scores, lengths), lengths, scores.shape[1], size)


class Decisions:
    """The D decisions between shift and reduce that lead to R given trees ``(R, n, n)``.

    All attributes are tensors ``(D,)``, int64 except ``reduces``.

    Attributes:
        row: row of the tree.
        second, top, last: first word of the second and of the topmost span, and last word of the
            topmost one; the next word is last + 1.
        reduces: whether the tree was reached by reducing, bool.
    """

    def __init__(self, z: Tensor, lengths: Tensor) -> None:
        longest = z.shape[-1]
        token = torch.arange(longest, device=z.device)
        inner = (token < lengths.to(z.device)[:, None] - 1)[:, None]
        spans = (z.detach() > 0.5) & (token[:, None] < token) & inner
        # [i, j]: the end of the longest span from i that ends at j or before; i if it is a word.
        ends = torch.where(spans, token, token[:, None].expand_as(spans))
        ends = ends.cummax(2).values if longest else ends
        row, first, last = spans.nonzero(as_tuple=True)
        split = ends[row, first, last - 1]
        # When the next word is shifted, the top of the stack is the longest span that ends here.
        begin = (spans | torch.diag_embed(inner[:, 0].expand(len(z), -1))).int()
        begin = begin.argmax(1) if longest else begin.new_zeros(len(z), 0, dtype=torch.int64)
        at_shift, at = ((begin > 0) & inner[:, 0]).nonzero(as_tuple=True)
        top = begin[at_shift, at]
        self.row = torch.cat([row, at_shift])
        self.second = torch.cat([first, begin[at_shift, top - 1]])
        self.top = torch.cat([split + 1, top])
        self.last = torch.cat([last, at])
        self.reduces = torch.arange(len(self.row), device=z.device) < len(row)

    def log_prob(self, logits: Tensor, rows: int) -> Tensor:
        """Return the log-probability of ``rows`` trees from the log-odds of all decisions."""
        terms = logsigmoid(torch.where(self.reduces, logits, -logits))
        return terms.new_zeros(rows).index_add(0, self.row, terms)


class Stacks:
    """Stacks of R parsers.

    Attributes:
        starts: ``(R, n + 1)``, the first word of each span on the stack.
        size: ``(R,)``, number of spans on the stack.
        shifted: ``(R,)``, number of words that have been shifted.
    """

    def __init__(self, lengths: Tensor, longest: int) -> None:
        self.lengths = lengths
        self.starts = lengths.new_zeros(len(lengths), longest + 1)
        self.size = torch.zeros_like(lengths)
        self.shifted = torch.zeros_like(lengths)

    @property
    def free(self) -> Tensor:
        """Return a mask of the parsers that have a choice, ``(R,)`` bool."""
        return (self.size > 1) & (self.shifted < self.lengths)

    @property
    def span(self) -> tuple[Tensor, Tensor]:
        """Return the first and last word of the span that a reduction would give, ``(R,)`` each."""
        second = self.starts.gather(1, (self.size - 2).clamp_min(0)[:, None])
        return second.squeeze(1), (self.shifted - 1).clamp_min(0)

    def moves(self, reduce: Tensor) -> tuple[Tensor, Tensor]:
        """Return which parsers shift and which reduce; ``reduce`` is read if there is a choice."""
        more = self.shifted < self.lengths
        reduces = (self.size > 1) & (reduce | ~more)
        return more & ~reduces, reduces

    def move(self, shifts: Tensor, reduces: Tensor) -> None:
        """Shift and reduce in the parsers of these masks, ``(R,)`` bool each."""
        kept = self.starts.gather(1, self.size[:, None])
        new = torch.where(shifts[:, None], self.shifted[:, None], kept)
        self.starts.scatter_(1, self.size[:, None], new)
        self.size = self.size + shifts.long() - reduces.long()
        self.shifted = self.shifted + shifts.long()

    def select(self, rows: Tensor) -> None:
        """Replace the parsers by the parsers of these rows, which may repeat."""
        self.lengths, self.starts = self.lengths[rows], self.starts[rows]
        self.size, self.shifted = self.size[rows], self.shifted[rows]


class Policy(ParserRows):
    """Decision policy of R parsers, with one row for each row of the stacks."""

    @abstractmethod
    def logits(self, stacks: Stacks) -> Tensor:
        """Return the log-odds of reducing, ``(R,)``; any value for parsers without a choice."""

    @abstractmethod
    def follow(self, stacks: Stacks, shifts: Tensor, reduces: Tensor) -> None:
        """Record the moves; called before the stacks make them."""


class SpanScores(KnownScores, Policy):
    """Policy by scores ``(B, n, n)`` that are known beforehand."""

    def logits(self, stacks: Stacks) -> Tensor:
        first, last = stacks.span
        return self.scores[self.item, first, last]

    def follow(self, stacks: Stacks, shifts: Tensor, reduces: Tensor) -> None:
        pass


def greedy(logits: Tensor) -> Tensor:
    """Choose to reduce if its log-odds ``(R,)`` are above 0."""
    return logits > 0


def at_random(generator: torch.Generator | None) -> Choice:
    """Return a choice that reduces with the probability of the log-odds."""

    def choose(logits: Tensor) -> Tensor:
        uniform = torch.rand(logits.shape, dtype=torch.float64, device="cpu", **source(generator))
        return uniform.to(logits.device) < torch.sigmoid(logits.double())

    return choose


def parse(policy: Policy, lengths: Tensor, longest: int, choose: Choice) -> Tensor:
    """Return one tree for each row, ``(R, n, n)`` float 0/1 with the single words.

    It takes 2n − 1 steps.
    """
    stacks, z = Stacks(lengths, longest), words(lengths, longest)
    for _ in range(2 * longest - 1):
        reduces, (first, last) = _step(policy, stacks, choose(policy.logits(stacks)))
        z[reduces, first[reduces], last[reduces]] = 1.0
    return z


def beam_search(policy: Policy, lengths: Tensor, longest: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the trees of a beam search and their log-probabilities, as ``_beam`` does.

    Each step keeps the ``size`` most probable prefixes.
    """
    batch, history = len(lengths), []
    of_rows, total, base = widened(policy, lengths, size)
    stacks = Stacks(of_rows, longest)
    for _ in range(2 * longest - 1):
        logits, free = policy.logits(stacks).double(), stacks.free
        shift = torch.where(free, logsigmoid(-logits), 0.0).view(batch, size)
        reduce = torch.where(free, logsigmoid(logits), -torch.inf).view(batch, size)
        total, best = torch.cat([total + shift, total + reduce], 1).topk(size)
        rows = (base + best % size).flatten()
        stacks.select(rows)
        policy.select(rows)
        history.append((rows, *_step(policy, stacks, (best >= size).flatten())))
    # Built from the end, since most prefixes are not part of any kept tree.
    z = words(stacks.lengths, longest)
    tree = row = torch.arange(len(z), device=z.device)
    for rows, reduces, (first, last) in reversed(history):
        made = reduces[row]
        place = row[made]
        z[tree[made], first[place], last[place]] = 1.0
        row = rows[row]
    return z.view(batch, size, longest, longest).transpose(0, 1), total.t()


def _step(policy: Policy, stacks: Stacks, reduce: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Take one step, and return which parsers reduce, and the spans that they make."""
    shifts, reduces = stacks.moves(reduce)
    policy.follow(stacks, shifts, reduces)
    spans = stacks.span
    stacks.move(shifts, reduces)
    return reduces, spans


def words(lengths: Tensor, longest: int) -> Tensor:
    """Return the single words of R sentences as spans, ``(R, n, n)``."""
    token = torch.arange(longest, device=lengths.device)
    return torch.diag_embed((token < lengths[:, None]).float())
