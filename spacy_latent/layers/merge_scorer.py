"""Scores of a parser that merges adjacent spans, computed from the composition of each pair.

See Havrylov et al. 2019.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.errors import check_whole
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.binary_tree_lstm import BinaryTreeLstm, State, node_places, read_spans
from spacy_latent.layers.encoded_scorer import EncodedScorer, EncoderBuilder
from spacy_latent.layers.shared_structures import distinct_pairs
from spacy_latent.layers.state_store import StateStore
from spacy_latent.structures.base import Structure
from spacy_latent.structures.merge_sequence import MergePolicy, MergeSequence, merged_spans


class MergeScorer(EncodedScorer):
    """Scorer of merges by a query's product with the state of the new span.

    The state comes from a separate binary Tree-LSTM: parser and composer only share the embedder.

    Sampling composes two new pairs in each step. Log-probabilities of given sequences, and their
    gradient, compose all pairs that are adjacent in any step, some 3n, at once.
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
        """Return zeros; the scores are in the structure of :meth:`bind`."""
        steps = max(vectors.shape[1] - 1, 0)
        return vectors.new_zeros(len(vectors), steps, steps)

    def bind(
        self, structure: Structure, vectors: Tensor, lengths: Tensor, temperature: float
    ) -> Structure:
        leaves = self.lstm.leaves(self.encode(vectors, lengths))
        return BoundMergeSequence(self, leaves, temperature)

    def score(self, left: State, right: State) -> tuple[State, Tensor]:
        """Return the compositions of pairs, and the scores of merging them."""
        made = self.lstm.merge(left, right)
        return made, self.query(made[0]).squeeze(-1)


class BoundMergeSequence(MergeSequence):
    """MergeSequence over sentences with bound states of words.

    The states are ``(B, n, state_width)`` hidden and cell. Scores in arguments are not read.
    """

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
        item = torch.arange(len(lengths), device=z.device).repeat(rows // len(lengths))
        lengths = lengths.to(z.device)[item]
        merged = merged_spans(z, lengths)
        spans = read_spans(merged.spans, lengths)
        states, known = self.scorer.lstm.shared_states(spans, item, *self.leaves)
        index = torch.arange(steps, device=z.device)
        there = (index[:, None] + index) < (lengths - 1)[:, None, None]
        row, step, place = there.nonzero(as_tuple=True)
        node = node_places(spans, merged.spans)
        left, right = (
            known[node[row, merged.first[row, step, at], merged.last[row, step, at]]]
            for at in (place, place + 1)
        )
        left, right, which = distinct_pairs(left, right, len(states[0]))
        _, found = self.scorer.score(
            (states[0][left], states[1][left]), (states[0][right], states[1][right])
        )
        return found.new_zeros(z.shape).index_put(
            (row, step, place), found[which] / self.temperature
        )


class PairStates(MergePolicy):
    """Rows of spans and the compositions of adjacent ones, for ``copies`` batches of parsers.

    They have no gradient. Rows and pairs hold places in the store: a merge copies the place of a
    pair into the row.
    """

    def __init__(self, scorer: MergeScorer, leaves: State, temperature: float, copies: int) -> None:
        batch, longest, _ = leaves[0].shape
        self.scorer = scorer
        self.temperature = temperature
        self.store = StateStore(leaves)
        places = torch.arange(batch * longest, device=leaves[0].device).view(batch, longest)
        left, right = places[:, :-1], places[:, 1:]
        made, scores = self._compose(left.flatten(), right.flatten())
        self.row = places.repeat(copies, 1)
        self.pairs = made.view_as(left).repeat(copies, 1)
        self.scores = scores.view_as(left).repeat(copies, 1)

    def _compose(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return places and scores of the compositions of these places."""
        made, scores = self.scorer.score(self.store[left], self.store[right])
        return self.store.add(made), scores

    def logits(self, step: int) -> Tensor:
        return self.scores / self.temperature

    def follow(self, step: int, place: Tensor) -> None:
        size = self.row.shape[1]
        item = torch.arange(len(place), device=place.device)
        token = torch.arange(size - 1, device=place.device)
        merged = self.pairs[item, place]
        self.row = self.row.gather(1, token + (token > place[:, None]))
        self.row[item, place] = merged
        if size < 3:
            return
        token = token[: size - 2]
        other = token + (token >= place[:, None])
        self.pairs, self.scores = self.pairs.gather(1, other), self.scores.gather(1, other)
        # The two pairs that include the merged span. At an end of the row there is only one, which
        # is then computed twice.
        at = torch.cat([place - 1, place]).clamp(0, size - 3)
        item = item.repeat(2)
        pairs, scores = self._compose(self.row[item, at], self.row[item, at + 1])
        self.pairs[item, at], self.scores[item, at] = pairs, scores

    def select(self, rows: Tensor) -> None:
        self.row, self.pairs, self.scores = self.row[rows], self.pairs[rows], self.scores[rows]


def build_merge_scorer_v1(
    state_width: int | None = None, encoder: EncoderBuilder | None = None
) -> ScorerBuilder:
    """Return a builder of :class:`MergeScorer`.

    Args:
        state_width: width of the Tree-LSTM's states; None for the input's width.
        encoder: module that gives the context of each token to the scorer alone; None for the token
            vectors themselves.
    """
    check_whole("MergeScorer", or_null=True, state_width=state_width)
    return partial(MergeScorer, state_width=state_width, encoder=encoder)
