"""Control variates, which a score-function estimator subtracts from the loss of a sample.

None of them depends on the sample whose loss it is subtracted from, so the gradient stays unbiased.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import TypeVar

import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError, check_number, check_whole

Self = TypeVar("Self", bound="ControlVariate")


class ControlVariate(nn.Module, ABC):
    """Base class of control variates.

    Attributes:
        greedy: whether it needs the loss of the best structure.
        min_samples: number of samples of each text that it needs at least.
    """

    greedy: bool = False
    min_samples: int = 1

    def __init__(self) -> None:
        # Configs are checked against this signature; torch's takes anything.
        super().__init__()

    @property
    def name(self) -> str:
        """Name of the class, for messages."""
        return type(self).__name__

    def for_width(self: Self, width: int) -> Self:
        """Return a copy with fresh state, for features of this width."""
        made = copy.deepcopy(self)
        made.reset(width)
        return made

    def reset(self, width: int) -> None:
        """Set weights and running numbers to their first values; do nothing if there are none."""

    @abstractmethod
    def forward(self, losses: Tensor, greedy: Tensor | None, features: Tensor) -> Tensor:
        """Return the baseline, in a shape that broadcasts to ``losses``, without gradient.

        Args:
            losses: losses of the samples, ``(K, D)``, without gradient.
            greedy: losses of the best structures, ``(D,)``, if :attr:`greedy` asks for them.
            features: mean input vector of each text, ``(D, width)``.
        """

    def fit(self, losses: Tensor, features: Tensor) -> Tensor | None:
        """Return a term for the objective, ``(D,)``, that trains this control variate's weights.

        It is None if there are no weights.
        """
        return None


class MovingAverage(ControlVariate):
    """The running mean of all earlier losses.

    The mean is a buffer, stored with the weights.

    Args:
        decay: weight of the past, in [0, 1).
    """

    average: Tensor
    total: Tensor

    def __init__(self, decay: float = 0.95) -> None:
        super().__init__()
        check_number("MovingAverage", lambda d: 0 <= d < 1, "a number in [0, 1)", decay=decay)
        self.decay = decay
        self.register_buffer("average", torch.zeros((), dtype=torch.float64))
        # The sum of all earlier weights. Without it the first means would be biased to zero.
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))

    def reset(self, width: int) -> None:
        self.average.zero_()
        self.total.zero_()

    def forward(self, losses: Tensor, greedy: Tensor | None, features: Tensor) -> Tensor:
        before = (self.average / self.total.clamp_min(1e-12)).to(losses)
        if losses.numel():
            new = losses.double().mean().to(self.average.device)
            self.average.mul_(self.decay).add_((1 - self.decay) * new)
            self.total.mul_(self.decay).add_(1 - self.decay)
        return before


class LearnedConstant(ControlVariate):
    """One number, trained by squared error to the losses."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1, dtype=torch.float32))

    def reset(self, width: int) -> None:
        nn.init.zeros_(self.value)

    def forward(self, losses: Tensor, greedy: Tensor | None, features: Tensor) -> Tensor:
        return self.value.detach().to(losses.dtype)

    def fit(self, losses: Tensor, features: Tensor) -> Tensor:
        return 0.5 * (self.value - losses).square().mean(0)


class NetworkBaseline(ControlVariate):
    """A perceptron b(x) on the text's mean input vector, trained by squared error to the losses.

    Its gradient does not reach the embedder.

    Args:
        hidden_width: width of its one hidden layer.
    """

    def __init__(self, hidden_width: int = 64) -> None:
        super().__init__()
        check_whole("NetworkBaseline", hidden_width=hidden_width)
        self.hidden_width = hidden_width
        self.network: nn.Module | None = None

    def reset(self, width: int) -> None:
        self.network = nn.Sequential(
            nn.Linear(width, self.hidden_width), nn.Tanh(), nn.Linear(self.hidden_width, 1)
        )

    def _value(self, features: Tensor) -> Tensor:
        if self.network is None:
            raise LatentError("NetworkBaseline has no weights yet: call for_width(width) first.")
        return self.network(features.detach()).squeeze(-1)

    def forward(self, losses: Tensor, greedy: Tensor | None, features: Tensor) -> Tensor:
        return self._value(features).detach().to(losses.dtype)

    def fit(self, losses: Tensor, features: Tensor) -> Tensor:
        return 0.5 * (self._value(features) - losses).square().mean(0)


class SelfCritical(ControlVariate):
    """The loss of the best structure of the same text (Rennie et al. 2017)."""

    greedy = True

    def forward(self, losses: Tensor, greedy: Tensor | None, features: Tensor) -> Tensor:
        assert greedy is not None
        return greedy


def mean_of_others(values: Tensor) -> Tensor:
    """Return the mean of the other samples for each of K samples, ``(K, ...)``; K is at least 2."""
    return (values.sum(0) - values) / (len(values) - 1)


class LeaveOneOut(ControlVariate):
    """The mean loss of the other samples of the same text (Kool et al. 2019)."""

    min_samples = 2

    def forward(self, losses: Tensor, greedy: Tensor | None, features: Tensor) -> Tensor:
        return mean_of_others(losses)


class OptimalCoefficient(ControlVariate):
    """Another control variate c with the coefficient that minimises the variance of L − b.

    It is b = E[L] + β·(c − E[c]) with β = Cov(L, c) / Var(c). The moments are estimated from the
    samples of the other texts of the batch. They do not depend on the sample whose loss b is
    subtracted from, so the gradient stays unbiased. A constant c has β = 0. A text alone in its
    batch has b = c.

    Args:
        control_variate: c; None for SelfCritical.
    """

    def __init__(self, control_variate: ControlVariate | None = None) -> None:
        super().__init__()
        if not isinstance(control_variate, (ControlVariate, type(None))):
            raise LatentError(
                f"OptimalCoefficient: control_variate is of type {type(control_variate).__name__}; "
                "expected a control variate, such as spacy-latent.SelfCritical.v1, or null."
            )
        self.control_variate = control_variate or SelfCritical()
        self.greedy = self.control_variate.greedy
        self.min_samples = self.control_variate.min_samples

    def reset(self, width: int) -> None:
        self.control_variate.reset(width)

    def forward(self, losses: Tensor, greedy: Tensor | None, features: Tensor) -> Tensor:
        c = self.control_variate(losses, greedy, features).expand_as(losses)
        samples, texts = losses.shape
        if texts < 2:
            return c
        count = samples * (texts - 1)

        def mean(values: Tensor) -> Tensor:
            own = values.sum(0)
            return (own.sum() - own) / count

        # In float64 and around the mean of all, since moments are small differences.
        y, x = losses.double() - losses.double().mean(), c.double() - c.double().mean()
        variance = mean(x * x) - mean(x).square()
        covariance = mean(x * y) - mean(x) * mean(y)
        varies = variance > 1e-12 * mean(x * x)
        slope = torch.where(varies, covariance / torch.where(varies, variance, 1.0), 0.0)
        b = losses.double().mean() + mean(y) + slope * (x - mean(x))
        return b.to(losses.dtype)

    def fit(self, losses: Tensor, features: Tensor) -> Tensor | None:
        return self.control_variate.fit(losses, features)
