"""Base of scorers with learned counters, which are running sums over tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError, check_not_negative, check_whole
from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.encoded_scorer import EncodedScorer, EncoderBuilder, check_hidden_width


@dataclass(frozen=True)
class CounterSettings:
    """Settings of a scorer with counters.

    Args:
        counters: number of running sums.
        hidden_width: width of the hidden layers.
        encoder: module that gives the context of each token to the scorer alone. None for the token
            vectors themselves: the increment of a token then depends on that token alone.
        noise: standard deviation of noise added to each step in training. Its sum grows with the
            length of a text. The model then learns steps near −1, 0 and 1, which differ clearly
            from the noise, and work for longer texts, too.
        whole_steps: whether to round each step in prediction to −1, 0 or 1, so that small
            remainders do not add up. Use it only with ``noise`` or ``input_noise``, which bring
            steps near these values.
        step_cost: cost of moving the counters in training. For each counter, the objective, which
            is a sum over texts, has this number times the mean |step| of the tokens of a batch.
            Tokens that need not move a counter then have steps of 0. Without the cost, steps that
            make no difference move to −1 or 1 by chance, and stay there. While texts have one list,
            this happens to all tokens except those that open a list. The counter can then no longer
            learn to count brackets.
        input_noise: standard deviation of noise added before tanh in training. The cube has slope 0
            at 0, while its mean over this noise has a slope above 0. So a step that is not yet near
            −1 or 1 can still change its initial, random sign. It can replace ``noise``: with 0.4
            the steps of a token have a noise of 0.12 around 0, and of 0.02 near −1 and 1.
    """

    counters: int
    hidden_width: int
    encoder: EncoderBuilder | None = None
    noise: float = 0.0
    whole_steps: bool = False
    step_cost: float = 0.0
    input_noise: float = 0.0


class CountingScorer(EncodedScorer):
    """Scorer in which each token moves K counters.

    Token i adds u_i = tanh(U v_i)³, between −1 and 1, to each counter. The counters are 0 before
    the first token, and c_i = u_1 + … + u_i after token i. The cube makes small steps nearly 0,
    since the steps of all occurrences of a token in a text add up.
    """

    counts = True

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        lengths = lengths.to(torch.int64)
        vectors = self.read(vectors, lengths)
        if vectors.is_cuda:
            return self.score(vectors, lengths)
        precision = self.step.weight.dtype
        if precision in (torch.float16, torch.bfloat16):
            raise LatentError(
                f"{type(self).__name__}: its weights are {precision}, which is too imprecise for "
                "sums over a text; expected float32 or float64. Call float() on the scorer. For "
                "half precision in the other layers, use torch.autocast."
            )
        # Autocast would compute steps in bfloat16, whose sums lose digits, and which the kernel
        # does not read. On a GPU, autocast sums in float32.
        with torch.autocast(vectors.device.type, enabled=False):
            return self.score(vectors.to(precision), lengths)

    @abstractmethod
    def score(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Return scores of parts from vectors that are encoded and 0 at padding."""

    def __init__(self, width: int, settings: CounterSettings) -> None:
        super().__init__(width, settings.encoder)
        self.step = nn.Linear(self.width, settings.counters)
        self.settings = settings

    def steps(self, vectors: Tensor) -> Tensor:
        """Return the increments of each token, ``(B, n, K)``, from encoded vectors."""
        if not self.training:
            return self._exact_steps(vectors)
        added = _cube(with_noise(self.step(vectors), self.settings.input_noise))
        return with_noise(added, self.settings.noise)

    def _exact_steps(self, vectors: Tensor) -> Tensor:
        added = _cube(self.step(vectors))
        return added.round() if self.settings.whole_steps and not self.training else added

    def cost(self, vectors: Tensor, lengths: Tensor) -> Tensor | None:
        if not self.settings.step_cost:
            return None
        # The cost is computed from steps without rounding and noise. Padding does not count.
        size = torch.tanh(self.step(self.read(vectors, lengths))).abs() ** 3
        return self.settings.step_cost * (size * _inside(vectors, lengths)).sum((1, 2))

    def counters(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Return the counters after each token, ``(B, n, K)``; padding has no meaning."""
        return self._exact_steps(self.read(vectors, lengths)).cumsum(1)

    def read(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Return the encoded vectors, set to 0 at padding.

        Values at padding would otherwise reach the gradients of the weights.
        """
        vectors = self.encode(vectors, lengths)
        return vectors.masked_fill(~_inside(vectors, lengths), 0.0)


def _inside(vectors: Tensor, lengths: Tensor) -> Tensor:
    """Return a mask of the tokens, without padding, ``(B, n, 1)``."""
    token = torch.arange(vectors.shape[1], device=vectors.device)
    return (token < lengths[:, None].to(token.device))[..., None]


def _cube(values: Tensor) -> Tensor:
    return torch.tanh(values) ** 3


def with_noise(values: Tensor, deviation: float) -> Tensor:
    """Return the values with Gaussian noise, the same for a seed on every device."""
    if not deviation:
        return values
    # Drawn by the CPU's generator, on whatever device the model is.
    return values + deviation * send(torch.randn_like(values, device="cpu"), values.device)


def build_counting_scorer(
    kind: Callable[..., CountingScorer], settings: CounterSettings
) -> ScorerBuilder:
    """Build a scorer, or raise an error for wrong settings."""
    name = kind.__name__
    check_whole(name, counters=settings.counters)
    check_not_negative(
        name,
        noise=settings.noise,
        input_noise=settings.input_noise,
        step_cost=settings.step_cost,
    )
    check_hidden_width(name, settings.hidden_width)
    return partial(kind, settings=settings)
