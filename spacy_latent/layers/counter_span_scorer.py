"""Span scores from learned counters: brackets that are matched to any depth."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spacy_latent.kernels.scores.counter_pairs import counter_pairs
from spacy_latent.kernels.scores.counter_rows import SEEN
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.counting_scorer import (
    CounterSettings,
    CountingScorer,
    build_counting_scorer,
)
from spacy_latent.layers.encoded_scorer import EncoderBuilder


class CounterSpanScorer(CountingScorer):
    """Scores ``(B, n, n)``, [first, last], from K running sums of increments of the tokens.

    For the counters see :class:`CounterScorer`. The inputs for a span are, for each counter:

    - its change over the span, and its minimum and maximum inside the span, minus its value before
      the first token, and minus its value after the last; all are clipped to −1 … 1.
    - how near the change is to 0, to 1 and to −1.

    Other inputs are the length of the span, and four vectors: of its first and last token, and of
    the tokens before and after it, 0 at the ends of the text. A pair of brackets with its content
    is a span over which a counter returns to its value, and stays above it inside. Entries with
    first after last are no spans, and have score 0.

    Time is O(n²·hidden_width²), memory O(n²).
    """

    parts = "spans"

    def __init__(self, width: int, settings: CounterSettings) -> None:
        super().__init__(width, settings)
        counters, hidden_width = settings.counters, settings.hidden_width
        # For a span: eight features of each counter, and its shortness.
        self.span = nn.Linear(SEEN * counters + 1, hidden_width)
        self.hidden = nn.Linear(hidden_width, hidden_width)
        self.first = nn.Linear(2 * self.width, hidden_width, bias=False)
        self.last = nn.Linear(2 * self.width, hidden_width, bias=False)
        self.output = nn.Linear(hidden_width, 1)

    def score(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        counters = self.steps(vectors).cumsum(1)
        # A span is from one boundary to another: 0 is before the first token, n after the last.
        after = nn.functional.pad(vectors, (0, 0, 0, 1))
        before = nn.functional.pad(vectors, (0, 0, 1, 0))
        hidden = nn.functional.linear
        scores = counter_pairs(
            nn.functional.pad(counters, (0, 0, 1, 0)),
            lengths + 1,
            torch.cat([self.span.weight.t(), self.span.bias[None]]),
            self.hidden.weight.t(),
            hidden(torch.cat([after, before], -1), self.first.weight, self.hidden.bias),
            self.last(torch.cat([before, after], -1)),
            self.output.weight[0],
            inner=True,
        )
        return (scores[:, :-1, 1:] + self.output.bias).triu()


def build_counter_span_scorer_v1(
    counters: int = 4,
    hidden_width: int = 64,
    encoder: EncoderBuilder | None = None,
    noise: float = 0.0,
    whole_steps: bool = False,
    step_cost: float = 0.0,
    input_noise: float = 0.0,
) -> ScorerBuilder:
    """Return a builder of :class:`CounterSpanScorer`; see :class:`CounterSettings`."""
    settings = CounterSettings(
        counters, hidden_width, encoder, noise, whole_steps, step_cost, input_noise
    )
    return build_counting_scorer(CounterSpanScorer, settings)
