"""Base of scorers with learned counters: running sums, and features of two places from them."""

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
        encoder: gives the scorer, and only the scorer, the context of each token; None for the
            token vectors themselves. The increment of a token then depends on that token alone.
        noise: standard deviation of noise added to each step in training. The longer a text, the
            further it moves a counter. The model then learns steps near −1, 0 and 1, which stand
            out from the noise, and are right for longer texts, too.
        whole_steps: in prediction each step is rounded to −1, 0 or 1, so that small remainders do
            not add up. Only for steps that noise has brought there.
        step_cost: for each counter, this times the mean distance by which the tokens of a batch
            move it is added to the objective in training, which is a sum over texts. Steps of 1 of
            all tokens cost this number. Tokens that need not move a counter then leave it alone.
            Without it, a token whose steps make no difference is driven to −1 or 1 by chance, and
            stays there. While texts have one list, this happens to all tokens except those that
            open a list. The counter can then no longer become one of brackets.
        input_noise: standard deviation of noise added before tanh in training. The mean of the cube
            over it has a slope at 0, unlike the cube itself. So a step which is not yet near −1 or
            1 can still change the sign that it began with by chance. It serves the purpose of
            ``noise`` as well, which may then be 0: with 0.4 the steps of a token keep a noise of
            0.12 around 0, and of 0.02 near −1 and 1.
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

    Token i adds u_i = tanh(U v_i)³, between −1 and 1, to each counter. After it they are at c_i =
    u_1 + … + u_i, before the first token at 0. The cube keeps values near 0 at 0: a token that is
    to leave a counter alone must do so at each of its occurrences in a text.
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
        # Autocast would compute steps in bfloat16. Sums of them would lose their digits, and the
        # kernel does not read bfloat16. On a GPU, autocast sums in float32 itself.
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
        # Steps are neither rounded nor noisy here; only padding is excluded.
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
