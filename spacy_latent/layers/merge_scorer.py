"""Decisions of a parser that merges neighbours, from what each pair composes to (Havrylov et al.
2019)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.base import ScorerBuilder, check_output_width
from spacy_latent.layers.binary_tree_lstm import BinaryTreeLstm, node_places, read_spans
from spacy_latent.layers.encoded_scorer import EncodedScorer, EncoderBuilder
from spacy_latent.structures.base import Structure
from spacy_latent.structures.merge_sequence import MergePolicy, MergeSequence, merged_spans

State = tuple[Tensor, Tensor]


class MergeScorer(EncodedScorer):
    """The score of a merge is a query's product with the state of the new span, from a binary
    Tree-LSTM of its own: parser and composer share nothing but the embedder.

    Sampling composes two new pairs a step. Log-probabilities of given sequences, and their
    gradient, compose all pairs that ever stood side by side, some 3n, at once.
    """

    parts = "merges"
    decides = "MergeSequence"

    def __init__(
        self, width: int, state_width: int | None, encoder: EncoderBuilder | None = None
    ) -> None:
        super().__init__(width, encoder)
        self.lstm = BinaryTreeLstm(self.width, state_width)
        self.query = nn.Linear(self.lstm.output_width, 1, bias=False)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Zeros: the scores are in the structure that :meth:`bind` gives."""
        steps = max(vectors.shape[1] - 1, 0)
        return vectors.new_zeros(len(vectors), steps, steps)

    def bind(
        self, structure: Structure, vectors: Tensor, lengths: Tensor, temperature: float
    ) -> Structure:
        leaves = self.lstm.leaves(self.encode(vectors, lengths))
        return BoundMergeSequence(self, leaves, temperature)

    def score(self, left: State, right: State) -> tuple[State, Tensor]:
        """What pairs compose to, and the scores of merging them."""
        made = self.lstm.merge(left, right)
        return made, self.query(made[0]).squeeze(-1)


class BoundMergeSequence(MergeSequence):
    """MergeSequence over sentences whose words have these states, ``(B, n, state_width)`` hidden
    and cell. What is given as scores is not read."""

    def __init__(self, scorer: MergeScorer, leaves: State, temperature: float) -> None:
        self.scorer = scorer
        self.leaves = leaves
        self.temperature = temperature

    def policy(self, scores: Tensor, lengths: Tensor, copies: int = 1) -> MergePolicy:
        hidden, cell = self.leaves
        return PairStates(self.scorer, (hidden.detach(), cell.detach()), self.temperature, copies)

    def decided(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        rows, steps = z.shape[:2]
        if not rows or not steps:
            return scores.new_zeros(z.shape)
        copies = rows // len(lengths)
        lengths = lengths.repeat(copies).to(z.device)
        hidden, cell = (state.repeat(copies, 1, 1).flatten(0, 1) for state in self.leaves)
        merged = merged_spans(z, lengths)
        spans = read_spans(merged.spans, lengths)
        states = self.scorer.lstm.states(spans, merged.spans.to(hidden.dtype), hidden, cell)
        index = torch.arange(steps, device=z.device)
        there = (index[:, None] + index) < (lengths - 1)[:, None, None]
        row, step, place = there.nonzero(as_tuple=True)
        node = node_places(spans, merged.spans)
        left, right = (
            node[row, merged.first[row, step, at], merged.last[row, step, at]]
            for at in (place, place + 1)
        )
        pairs, inverse = torch.unique(left * len(states[0]) + right, return_inverse=True)
        left, right = pairs // len(states[0]), pairs % len(states[0])
        _, found = self.scorer.score(
            (states[0][left], states[1][left]), (states[0][right], states[1][right])
        )
        return found.new_zeros(z.shape).index_put(
            (row, step, place), found[inverse] / self.temperature
        )


class PairStates(MergePolicy):
    """Rows of spans and what their neighbours compose to, for ``copies`` batches of parsers;
    without gradient."""

    def __init__(self, scorer: MergeScorer, leaves: State, temperature: float, copies: int) -> None:
        self.scorer = scorer
        self.temperature = temperature
        self.row: State = _each(leaves, lambda state: state.repeat(copies, 1, 1))
        self.pairs, self.scores = scorer.score(
            _each(self.row, lambda state: state[:, :-1]),
            _each(self.row, lambda state: state[:, 1:]),
        )

    def logits(self, step: int) -> Tensor:
        return self.scores / self.temperature

    def follow(self, step: int, place: Tensor) -> None:
        size = self.row[0].shape[1]
        item = torch.arange(len(place), device=place.device)
        new = _each(self.pairs, lambda state: state[item, place])
        token = torch.arange(size - 1, device=place.device)
        kept = token + (token > place[:, None])
        self.row = _each(self.row, lambda state: state[item[:, None], kept])
        for state, made in zip(self.row, new):
            state[item, place] = made
        if size < 3:
            return
        token = token[: size - 2]
        other = token + (token >= place[:, None])
        self.pairs = _each(self.pairs, lambda state: state[item[:, None], other])
        self.scores = self.scores.gather(1, other)
        for at in ((place - 1).clamp(0, size - 3), place.clamp(0, size - 3)):
            pair, score = self.scorer.score(self._row_at(item, at), self._row_at(item, at + 1))
            for state, made in zip(self.pairs, pair):
                state[item, at] = made
            self.scores[item, at] = score

    def _row_at(self, item: Tensor, place: Tensor) -> State:
        return _each(self.row, lambda state: state[item, place])

    def repeat(self, count: int) -> None:
        rows = torch.arange(len(self.scores), device=self.scores.device)
        self.select(rows.repeat_interleave(count))

    def select(self, rows: Tensor) -> None:
        self.row = _each(self.row, lambda state: state[rows])
        self.pairs = _each(self.pairs, lambda state: state[rows])
        self.scores = self.scores[rows]


def _each(state: State, change: Callable[[Tensor], Tensor]) -> State:
    return change(state[0]), change(state[1])


def build_merge_scorer_v1(
    state_width: int | None = None, encoder: EncoderBuilder | None = None
) -> ScorerBuilder:
    """state_width: of the Tree-LSTM, None for the input's. encoder: gives the scorer, and only the
    scorer, the context of each token."""
    check_output_width("MergeScorer", state_width)
    return partial(MergeScorer, state_width=state_width, encoder=encoder)
