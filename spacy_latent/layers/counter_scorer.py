"""Arc scores from learned counters: brackets that are matched to any depth."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spacy_latent.kernels.scores.counter_pairs import counter_pairs
from spacy_latent.kernels.scores.counter_rows import LIMIT, SEEN
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.counting_scorer import (
    CounterSettings,
    CountingScorer,
    build_counting_scorer,
)
from spacy_latent.layers.encoded_scorer import EncoderBuilder


class CounterScorer(CountingScorer):
    """Scores ``(B, n+1, n+1)``, [head, modifier], from K running sums of increments of the tokens.

    Token i adds u_i = tanh(U v_i)³, between −1 and 1, to each of K counters: c_i = u_1 + … + u_i.
    The inputs for an arc are, for each counter:

    - the difference c_m − c_h, and the counter's minimum and maximum between the two tokens, minus
      its value after the first token, and minus its value after the second; all are clipped to −1 …
      1.
    - how near c_m − c_h is to 0, to 1 and to −1.

    Other inputs are the order of the two tokens, their distance, and their vectors. A token is
    scored as a root by its vector, and the counters before and after it.

    Two brackets match if the counter does not fall below its value after the opening one until the
    closing one subtracts 1. This holds at any depth of nesting, even beyond the depth of the
    training data, to which a BiLSTM is limited. The minimum and maximum leave out the step of the
    closing bracket. With it, adjacent brackets could not be distinguished.

    Time is O(n²·hidden_width²), memory O(n²).
    """

    parts = "arcs"

    def __init__(self, width: int, settings: CounterSettings) -> None:
        super().__init__(width, settings)
        counters, hidden_width = settings.counters, settings.hidden_width
        # For an arc: eight features of each counter, whether the head is first, and the nearness.
        self.arc = nn.Linear(SEEN * counters + 2, hidden_width)
        self.hidden = nn.Linear(hidden_width, hidden_width)
        self.head = nn.Linear(self.width, hidden_width, bias=False)
        self.modifier = nn.Linear(self.width, hidden_width, bias=False)
        self.output = nn.Linear(hidden_width, 1)
        self.root = nn.Sequential(
            nn.Linear(self.width + 2 * counters, hidden_width),
            nn.ReLU(),
            nn.Linear(hidden_width, 1),
        )

    def score(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        added = self.steps(vectors)
        counters = added.cumsum(1)
        arcs = counter_pairs(
            counters,
            lengths,
            self._first_layer(),
            self.hidden.weight.t(),
            nn.functional.linear(vectors, self.head.weight, self.hidden.bias),
            self.modifier(vectors),
            self.output.weight[0],
        )
        around = torch.cat([counters, counters - added], -1).clamp(-LIMIT, LIMIT)
        roots = self.root(torch.cat([vectors, around], -1)).transpose(1, 2)
        return nn.functional.pad(torch.cat([roots, arcs + self.output.bias], 1), (1, 0))

    def _first_layer(self) -> Tensor:
        """Return the weights of the first layer for the output of :func:`counter_pairs`.

        The weights for arcs with the head first come before those for arcs with the modifier first.
        If the modifier is first, both ends change places, and their difference changes its sign.
        """
        groups = [*SEEN * [self.step.out_features], 1, 1]
        *counters, first, near = self.arc.weight.t().split(groups)
        difference, least_head, least_modifier, greatest_head, greatest_modifier, *others = counters
        equal, higher, lower = others
        bias = self.arc.bias[None]
        forward = [*counters, near, bias + first]
        backward = [-difference, least_modifier, least_head, greatest_modifier, greatest_head]
        backward += [equal, lower, higher, near, bias]
        return torch.cat([torch.cat(forward), torch.cat(backward)], 1)


def build_counter_scorer_v1(
    counters: int = 4,
    hidden_width: int = 64,
    encoder: EncoderBuilder | None = None,
    noise: float = 0.0,
    whole_steps: bool = False,
    step_cost: float = 0.0,
    input_noise: float = 0.0,
) -> ScorerBuilder:
    """Return a builder of :class:`CounterScorer`; see :class:`CounterSettings`."""
    settings = CounterSettings(
        counters, hidden_width, encoder, noise, whole_steps, step_cost, input_noise
    )
    return build_counting_scorer(CounterScorer, settings)
