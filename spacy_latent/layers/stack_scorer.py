"""Scores of a shift-reduce parser from its earlier compositions (Yogatama et al. 2017)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from spacy_latent.errors import check_whole
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.binary_tree_lstm import BinaryTreeLstm, node_places, read_spans
from spacy_latent.layers.encoded_scorer import (
    EncodedScorer,
    EncoderBuilder,
    check_hidden_width,
    perceptron,
)
from spacy_latent.layers.shared_structures import distinct_pairs
from spacy_latent.layers.state_store import StateStore
from spacy_latent.structures.base import Structure
from spacy_latent.structures.shift_reduce import Decisions, Policy, ShiftReduce, Stacks


class StackScorer(EncodedScorer):
    """Log-odds of reducing against shifting.

    They are computed by one hidden layer over the states of the two topmost spans of the stack and
    of the next word.

    The states come from a separate binary Tree-LSTM, as in Havrylov et al. (2019). So the parser
    only learns from rewards, and the composer only from the loss. Sampling takes 2n − 1 steps for
    all parsers of a batch at once. Log-probabilities of given trees, and their gradient, take one
    step for each level of the trees.
    """

    parts = "spans"
    decides = "ShiftReduce"

    def __init__(
        self,
        width: int,
        state_width: int | None,
        hidden_width: int,
        encoder: EncoderBuilder | None = None,
    ) -> None:
        super().__init__(width, encoder)
        self.lstm = BinaryTreeLstm(self.width, state_width)
        self.output = perceptron(3 * self.lstm.output_width, hidden_width, 1)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Return zeros; the scores are in the structure of :meth:`bind`."""
        return vectors.new_zeros(vectors.shape[0], vectors.shape[1], vectors.shape[1])

    def bind(
        self, structure: Structure, vectors: Tensor, lengths: Tensor, temperature: float
    ) -> Structure:
        assert isinstance(structure, ShiftReduce)
        leaves = self.lstm.leaves(self.encode(vectors, lengths))
        return BoundShiftReduce(structure.beam_size, self, leaves, temperature)

    def decide(self, left: Tensor, right: Tensor, following: Tensor) -> Tensor:
        """Return log-odds ``(D,)`` from states ``(D, state_width)``."""
        return self.output(torch.cat([left, right, following], -1)).squeeze(-1)


class BoundShiftReduce(ShiftReduce):
    """ShiftReduce over sentences with bound states of words.

    The states are ``(B, n, state_width)`` hidden and cell. Scores in arguments are not read.
    """

    def __init__(
        self, beam_size: int, scorer: StackScorer, leaves: tuple[Tensor, Tensor], temperature: float
    ) -> None:
        super().__init__(beam_size)
        self.scorer = scorer
        self.leaves = leaves
        self.temperature = temperature

    def policy(self, scores: Tensor, lengths: Tensor, copies: int = 1) -> Policy:
        hidden, cell = self.leaves
        return StackStates(self.scorer, (hidden.detach(), cell.detach()), self.temperature, copies)

    def decided(self, z: Tensor, scores: Tensor, lengths: Tensor) -> tuple[Decisions, Tensor]:
        batch, longest = len(lengths), z.shape[-1]
        item = torch.arange(batch, device=z.device).repeat(len(z) // max(1, batch))
        of_each = lengths.to(z.device)[item]
        decisions = Decisions(z, of_each)
        spans = read_spans(z, of_each)
        (states, _), known = self.scorer.lstm.shared_states(spans, item, *self.leaves)
        node = node_places(spans, z)
        row, second, top, last = decisions.row, decisions.second, decisions.top, decisions.last
        left, right = known[node[row, second, top - 1]], known[node[row, top, last]]
        following = item[row] * longest + last + 1
        # Compute equal decisions once, since parsers of an item often have the same states.
        pairs = left * len(states) + right
        pairs, following, which = distinct_pairs(pairs, following, len(states))
        logits = self.scorer.decide(
            states[pairs // len(states)], states[pairs % len(states)], states[following]
        )
        return decisions, logits[which] / self.temperature


class StackStates(Policy):
    """Stacks of states, for ``copies`` batches of parsers; without gradient.

    A stack holds places in the store, whose first entries are the words.
    """

    def __init__(
        self, scorer: StackScorer, leaves: tuple[Tensor, Tensor], temperature: float, copies: int
    ) -> None:
        batch, self.longest, _ = leaves[0].shape
        self.scorer = scorer
        self.temperature = temperature
        self.store = StateStore(leaves)
        self.item = torch.arange(batch, device=leaves[0].device).repeat(copies)
        self.stack = self.item.new_zeros(len(self.item), self.longest + 1)

    def logits(self, stacks: Stacks) -> Tensor:
        row = stacks.free.nonzero().squeeze(1)
        size = stacks.size[row]
        states = self.store.hidden
        logits = self.scorer.decide(
            states[self.stack[row, size - 2]],
            states[self.stack[row, size - 1]],
            states[self._words(row, stacks)],
        )
        return logits.new_zeros(len(self.item)).index_copy(0, row, logits / self.temperature)

    def follow(self, stacks: Stacks, shifts: Tensor, reduces: Tensor) -> None:
        row = shifts.nonzero().squeeze(1)
        self.stack[row, stacks.size[row]] = self._words(row, stacks)
        row = reduces.nonzero().squeeze(1)
        size = stacks.size[row]
        left, right = self.stack[row, size - 2], self.stack[row, size - 1]
        made = self.scorer.lstm.merge(self.store[left], self.store[right])
        self.stack[row, size - 2] = self.store.add(made)

    def _words(self, row: Tensor, stacks: Stacks) -> Tensor:
        """Return places of the next words."""
        return self.item[row] * self.longest + stacks.shifted[row]

    def select(self, rows: Tensor) -> None:
        self.item, self.stack = self.item[rows], self.stack[rows]


def build_stack_scorer_v1(
    state_width: int | None = None, hidden_width: int = 64, encoder: EncoderBuilder | None = None
) -> ScorerBuilder:
    """Return a builder of :class:`StackScorer`.

    Args:
        state_width: width of the Tree-LSTM's states; None for the input's width.
        hidden_width: width of the hidden layer.
        encoder: module that gives the context of each token to the scorer alone; None for the token
            vectors themselves.
    """
    check_whole("StackScorer", or_null=True, state_width=state_width)
    check_hidden_width("StackScorer", hidden_width)
    return partial(StackScorer, state_width=state_width, hidden_width=hidden_width, encoder=encoder)
