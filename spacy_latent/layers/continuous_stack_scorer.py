"""Arc scores from continuous stacks, from which each word reads earlier words."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.errors import check_not_negative, check_whole
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.counting_scorer import with_noise
from spacy_latent.layers.encoded_scorer import EncodedScorer, EncoderBuilder, check_hidden_width
from spacy_latent.layers.parts_of_batch import predict_in_parts

# Heights of a stack above this are the same for the root's score.
LIMIT = 1.0


class ContinuousStackScorer(EncodedScorer):
    """Scores ``(B, n+1, n+1)``, [head, modifier], from K stacks on which words have heights.

    The height of a word is the amount that was pushed (the neural stack of Grefenstette et al.
    2015).

    Word i first reads the topmost height of 1 of each stack: the amounts of earlier words in it.
    Then it pops u_i = σ(U v_i) from the top, and pushes itself with height d_i = σ(D v_i). The
    inputs for an arc are, for each stack, how much of the head the modifier reads, and how much of
    the modifier the head reads. Other inputs are the order of both words, their distance and their
    vectors. A word is scored as a root by its vector, and by the heights before it, up to 1.

    If operators are pushed and closing brackets pop, each word reads the operator of its list. This
    holds at any depth of nesting, even beyond the depth of the training data.

    No loop over words is needed. The remainder of word i reaches from the height at which it starts
    to the least height of the stack after its push, and is at most d_i. So a stack is a counter
    that cannot fall below 0.

    Time and memory are O(n²·(K + hidden_width)), and time O(n²·hidden_width²) in addition. Outside
    of training the memory is bounded for all texts of a batch together.

    Args:
        input_noise: standard deviation of noise added in training before σ. The model then learns
            values that are robust to noise: pushes and pops near 0 and 1, which work for longer
            texts, too.
        whole_steps: in prediction each push and pop is rounded to 0 or 1.
    """

    parts = "arcs"
    counts = True

    def __init__(
        self,
        width: int,
        stacks: int,
        hidden_width: int,
        encoder: EncoderBuilder | None = None,
        input_noise: float = 0.0,
        whole_steps: bool = False,
    ) -> None:
        super().__init__(width, encoder)
        self.input_noise = input_noise
        self.whole_steps = whole_steps
        self.push = nn.Linear(self.width, stacks)
        self.pop = nn.Linear(self.width, stacks)
        # Inputs for an arc: how much each word reads of the other, whether the head is first, and
        # exp(−distance).
        self.arc = nn.Linear(2 * stacks + 2, hidden_width)
        self.hidden = nn.Linear(hidden_width, hidden_width)
        self.head = nn.Linear(self.width, hidden_width, bias=False)
        self.modifier = nn.Linear(self.width, hidden_width, bias=False)
        self.output = nn.Linear(hidden_width, 1)
        self.root = nn.Sequential(
            nn.Linear(self.width + stacks, hidden_width), nn.ReLU(), nn.Linear(hidden_width, 1)
        )

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        vectors, inside = self._encoded(vectors, lengths)
        popped, pushed, before = self._around(vectors, inside)
        size = self.hidden.out_features
        numbers = vectors.shape[1] ** 2 * (4 * size + 8 * self.push.out_features)
        rows = vectors, popped, pushed, before
        arcs = predict_in_parts(self._score_pairs, *rows, numbers=numbers)
        roots = self.root(torch.cat([vectors, before.clamp_max(LIMIT)], -1)).transpose(1, 2)
        return nn.functional.pad(torch.cat([roots, arcs], 1), (1, 0))

    def _score_pairs(
        self, vectors: Tensor, popped: Tensor, pushed: Tensor, before: Tensor
    ) -> Tensor:
        """Return the scores of the arcs between words, ``(B, n, n)``."""
        read = _read_of_each(popped, pushed, before)
        word = torch.arange(vectors.shape[1], device=vectors.device)
        offset = (word[None, :] - word[:, None]).to(read)
        place = torch.stack([(offset > 0).to(read), torch.exp(-offset.abs())], -1)
        place = place.expand(len(read), -1, -1, -1)
        seen = torch.cat([read, read.transpose(1, 2), place], -1)
        both = self.head(vectors)[:, :, None] + self.modifier(vectors)[:, None]
        hidden = torch.relu(self.hidden(torch.relu(self.arc(seen))) + both)
        return self.output(hidden).squeeze(-1)

    def counters(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Return the heights after each word, ``(B, n, K)``; padding has no meaning."""
        return self._heights(*self._encoded(vectors, lengths))[1]

    def reads(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Return how much each word reads of each other one, ``(B, n, n, K)``, [read, reader].

        It is 0 if the reader is not later. The amounts of a reader sum to 1, or to the height of
        the stack if that is less.
        """
        return _read_of_each(*self._around(*self._encoded(vectors, lengths)))

    def _around(self, vectors: Tensor, inside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the heights after each word's pop and push, and before it, ``(B, n, K)``."""
        popped, pushed = self._heights(vectors, inside)
        before = torch.cat([torch.zeros_like(pushed[:, :1]), pushed[:, :-1]], 1)
        return popped, pushed, before

    def _encoded(self, vectors: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return encoded vectors, 0 at padding, and a mask ``(B, n, 1)`` of the words."""
        vectors = self.encode(vectors, lengths)
        word = torch.arange(vectors.shape[1], device=vectors.device)
        inside = (word < lengths[:, None].to(word.device))[..., None]
        return vectors.masked_fill(~inside, 0.0), inside

    def _heights(self, vectors: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
        """Return the heights of each stack after each word's pop and push, both ``(B, n, K)``."""
        pushes = self._strengths(self.push, vectors) * inside
        pops = self._strengths(self.pop, vectors) * inside
        # Sums of pushes minus pops, without the bound at 0. If they fall below 0, a pop exceeded
        # the height.
        free = pushes.cumsum(1) - pushes - pops.cumsum(1)
        popped = free - _running_minimum(free, 1).clamp_max(0.0)
        return popped, popped + pushes

    def _strengths(self, layer: nn.Linear, vectors: Tensor) -> Tensor:
        if self.training:
            return torch.sigmoid(with_noise(layer(vectors), self.input_noise))
        strengths = torch.sigmoid(layer(vectors))
        return strengths.round() if self.whole_steps else strengths


def _read_of_each(popped: Tensor, pushed: Tensor, before: Tensor) -> Tensor:
    """Return how much of each word each later word reads, ``(B, n, n, K)``, [read, reader].

    Args:
        popped, pushed, before: heights after the pop and the push of each word, and before its pop,
            ``(B, n, K)``.
    """
    words = popped.shape[1]
    later = torch.ones(words, words, dtype=torch.bool, device=popped.device).triu(1)[..., None]
    # Least height after the pops of the words between the word that is read and the reader.
    least = _running_minimum(torch.where(later, popped[:, None], torch.inf), 2)
    least = torch.cat([torch.full_like(least[:, :, :1], torch.inf), least[:, :, :-1]], 2)
    bottom = popped[:, :, None]
    top = torch.minimum(torch.maximum(least, bottom), pushed[:, :, None])
    read = (top - torch.maximum(bottom, before[:, None] - 1)).clamp_min(0.0)
    return torch.where(later, read, 0.0)


def _running_minimum(values: Tensor, axis: int) -> Tensor:
    # cummin refuses an axis without an entry.
    return values.cummin(axis).values if values.shape[axis] else values


def build_continuous_stack_scorer_v1(
    stacks: int = 4,
    hidden_width: int = 64,
    encoder: EncoderBuilder | None = None,
    input_noise: float = 0.0,
    whole_steps: bool = False,
) -> ScorerBuilder:
    """Return a builder of :class:`ContinuousStackScorer`, which describes the other arguments.

    Args:
        stacks: number of stacks.
        hidden_width: width of the hidden layers.
        encoder: module that gives the context of each token to the scorer alone. None for the token
            vectors themselves: the amounts that a token pushes and pops then depend on that token
            alone.
    """
    check_whole("ContinuousStackScorer", stacks=stacks)
    check_not_negative("ContinuousStackScorer", input_noise=input_noise)
    check_hidden_width("ContinuousStackScorer", hidden_width)
    return partial(
        ContinuousStackScorer,
        stacks=stacks,
        hidden_width=hidden_width,
        encoder=encoder,
        input_noise=input_noise,
        whole_steps=whole_steps,
    )
