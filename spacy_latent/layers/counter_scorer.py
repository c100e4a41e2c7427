"""Arc scores from learned counters: brackets that are matched to any depth."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError
from spacy_latent.kernels.running_extremes import running_extremes
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.encoded_scorer import EncodedScorer, EncoderBuilder, check_hidden_width


class CounterScorer(EncodedScorer):
    """Scores ``(B, n+1, n+1)``, [head, modifier], from K running sums of what each token adds.

    Token i adds u_i = tanh(U v_i), between −1 and 1, to each of K counters: c_i = u_1 + … + u_i. An
    arc sees, of each counter, tanh of its difference c_m − c_h and of its least and greatest value
    from h to m less its value at either end, exp(−(c_m − c_h)²), and which end is first and how
    near they are; then the vectors of both tokens. A token is a root by its vector and the counters
    before and after it. Opening brackets that add 1, and closing ones that take 1 away, match where
    the counter is back at its value and was never below it in between: however deep they are
    nested, and however deep those of the training data were.

    Time and memory are O(n²·hidden_width).
    """

    parts = "arcs"

    def __init__(
        self, width: int, counters: int, hidden_width: int, encoder: EncoderBuilder | None = None
    ) -> None:
        super().__init__(width, encoder)
        self.step = nn.Linear(self.width, counters)
        # Of an arc: six features for each counter, the order and the nearness of its ends.
        self.arc = nn.Linear(6 * counters + 2, hidden_width)
        self.hidden = nn.Linear(hidden_width, hidden_width)
        self.head = nn.Linear(self.width, hidden_width, bias=False)
        self.modifier = nn.Linear(self.width, hidden_width, bias=False)
        self.output = nn.Linear(hidden_width, 1)
        self.root = nn.Sequential(
            nn.Linear(self.width + 2 * counters, hidden_width),
            nn.ReLU(),
            nn.Linear(hidden_width, 1),
        )

    def counters(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """The counters after each token, ``(B, n, K)``; what stands at padding means nothing."""
        return torch.tanh(self.step(self._read(vectors, lengths))).cumsum(1)

    def _read(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Encoded vectors, 0 at padding: what stands there would reach the weights' gradients."""
        vectors = self.encode(vectors, lengths)
        token = torch.arange(vectors.shape[1], device=vectors.device)
        return vectors.masked_fill((token >= lengths[:, None].to(token.device))[..., None], 0.0)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        vectors = self._read(vectors, lengths)
        added = torch.tanh(self.step(vectors))
        counters = added.cumsum(1)
        pairs = self.hidden(torch.relu(self.arc(self._features(counters, lengths))))
        pairs = pairs + self.head(vectors)[:, :, None] + self.modifier(vectors)[:, None]
        arcs = self.output(torch.relu(pairs)).squeeze(-1)
        around = [vectors, torch.tanh(counters), torch.tanh(counters - added)]
        roots = self.root(torch.cat(around, -1)).transpose(1, 2)
        scores = torch.cat([roots, arcs], 1)
        return nn.functional.pad(scores, (1, 0))

    def _features(self, counters: Tensor, lengths: Tensor) -> Tensor:
        """What an arc sees of the counters and of the place of its ends, ``(B, n, n, 6·K + 2)``."""
        batch, size, _ = counters.shape
        least, greatest = running_extremes(counters, lengths)
        head, modifier = counters[:, :, None], counters[:, None]
        difference = modifier - head
        token = torch.arange(size, device=counters.device)
        offset = token[None, :] - token[:, None]
        place = torch.stack([(offset > 0).to(counters.dtype), torch.exp(-offset.abs())], -1)
        ends = [difference, least - head, least - modifier, greatest - head, greatest - modifier]
        return torch.cat(
            [
                torch.tanh(torch.cat(ends, -1)),
                torch.exp(-(difference**2)),
                place.to(counters.dtype).expand(batch, -1, -1, -1),
            ],
            -1,
        )


def check_counters(name: str, counters: int) -> None:
    if counters < 1:
        raise LatentError(f"{name}: counters is {counters}; it must be at least 1.")


def build_counter_scorer_v1(
    counters: int = 4, hidden_width: int = 64, encoder: EncoderBuilder | None = None
) -> ScorerBuilder:
    """counters: how many running sums. hidden_width: of the hidden layers. encoder: gives the
    scorer, and only the scorer, the context of each token; without one, what a token adds depends
    on that token alone."""
    check_counters("CounterScorer", counters)
    check_hidden_width("CounterScorer", hidden_width)
    return partial(CounterScorer, counters=counters, hidden_width=hidden_width, encoder=encoder)
