"""RELAX, a score function with a control variate that is trained (Grathwohl et al. 2018).

It is trained on the variance of the gradient.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from spacy_latent.errors import MANY, LatentError, check_flags, check_whole
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.relaxed_loss import RelaxedLoss, Sampled
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import repeat, solve_copies
from spacy_latent.structures.derivatives import recordable, recording
from spacy_latent.structures.results import ReparameterizedTrace

# Strength and temperature of the loss of the relaxation at the beginning, as in Rebar.
FIRST = (1.0, 0.5)


class Surrogate(nn.Module):
    """A network c(r) that gives a number for the noisy scores r of one item.

    A perceptron of each part's relaxation and score is summed over parts. Another perceptron reads
    this sum. The relaxation's temperature is trained.
    """

    def __init__(self, hidden_width: int) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(1, dtype=torch.float32))
        self.part = nn.Linear(2, hidden_width)
        self.hidden = nn.Linear(hidden_width, hidden_width)
        self.output = nn.Linear(hidden_width, 1)

    def forward(
        self, structure: Structure, noisy: Tensor, scores: Tensor, lengths: Tensor
    ) -> Tensor:
        temperature = 0.1 + softplus(self.log_temperature)
        inside = ~noisy.detach().isneginf()
        # The temperature's gradient at −inf would be NaN.
        sharpened = (noisy.masked_fill(~inside, 0.0) / temperature).masked_fill(~inside, -torch.inf)
        soft = self.relaxation(structure, sharpened, lengths).to(scores.dtype)
        features = torch.stack([soft, scores.masked_fill(~inside, 0.0)], -1)
        each = torch.tanh(self.part(features)).masked_fill(~inside[..., None], 0.0)
        whole = torch.tanh(self.hidden(each.flatten(1, -2).sum(1)))
        return self.output(whole).squeeze(-1)

    def relaxation(self, structure: Structure, noisy: Tensor, lengths: Tensor) -> Tensor:
        """Return a soft structure of noisy scores, differentiable twice.

        The noisy scores are −inf outside of the parts.
        """
        return structure.marginals(noisy, lengths)


class Relax(Estimator, nn.Module):
    """A score function with a trained network c as control variate.

    The gradient is [L(z) − c(r̃)]·∇log p(z) + ∇c(r) − ∇c(r̃), with r and r̃ as in REBAR. It is
    unbiased for any c. The network c is trained to lower the variance of this gradient, without an
    evaluation of the loss. Prediction uses the best structure.

    The network reads the relaxation and the scores, but neither the text nor the gold annotation.
    So it learns an average of the loss over all texts. By default c is the network alone, and
    begins like a score function without control variate. On a problem of 8 bits, this has a
    variance of 48.5, while REBAR, which has the loss of the relaxation, has 19.4.

    The paper's c is η·L(μ(r/τ)) and a network, as with ``relaxed_loss``. η and τ are then weights
    as well, and begin with 1 and 0.5. Five structures are composed for each sample, four of them
    soft. If a text has several spans, the network is trained for each span alone.

    Args:
        num_samples: samples drawn for each text.
        hidden_width: width of the hidden layers of the network.
        relaxed_loss: whether c has the loss of the relaxation, too.
    """

    requires = frozenset({"reparameterize", "log_prob", "marginals"})
    needs_loss = True
    leaves_out_unlabelled = True
    hard_at_prediction = True
    posterior: Literal["", "weights", "scores"] = "scores"
    surrogate_of: ClassVar[type[Surrogate]] = Surrogate

    def __init__(
        self, num_samples: int = 1, hidden_width: int = 16, relaxed_loss: bool = False
    ) -> None:
        nn.Module.__init__(self)
        check_whole(self.name, most=MANY, num_samples=num_samples, hidden_width=hidden_width)
        check_flags(self.name, relaxed_loss=relaxed_loss)
        self.num_samples = num_samples
        self.hidden_width = hidden_width
        self.relaxed_loss = relaxed_loss
        self.surrogate = self.surrogate_of(hidden_width)
        self._learned = RelaxedLoss(*FIRST, True, True) if relaxed_loss else None

    @property
    def hard(self) -> bool:  # type: ignore[override]
        return not self.relaxed_loss

    def reset(self, width: int) -> None:
        self.surrogate = self.surrogate_of(self.hidden_width)
        if self._learned is not None:
            self._learned.reset()

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        batch, count = scores.shape[0], self.num_samples
        if not is_train:
            return Draw.single(structure.map(scores, lengths))
        repeated, sizes = repeat(scores, count), repeat(lengths, count)
        # In a graph of its own the network learns. The scores learn below.
        with recording():
            leaf = recordable(repeated).detach().requires_grad_()
            own, sizes = recordable(structure), recordable(sizes)
            drawn = solve_copies(partial(self.perturbed, own), leaf, sizes, batch)
            network = self.surrogate.to(scores.device, scores.dtype)
            free, known = (
                network(own, noisy, leaf.detach(), sizes) for noisy in (drawn.noisy, drawn.redrawn)
            )
            (score,) = torch.autograd.grad(drawn.log_probs.sum(), leaf, retain_graph=True)
            (slope,) = torch.autograd.grad((free - known).sum(), leaf, create_graph=True)
            if self._learned is not None:
                relaxation = partial(network.relaxation, own, lengths=sizes)
                soft = self._learned.relaxed(relaxation, drawn)
                of_network = list(network.parameters())
                inner = Sampled(leaf, drawn.log_probs, soft, (slope, known), of_network)
        structures = drawn.z.detach().to(scores.dtype).view(count, *scores.shape)
        if self._learned is not None:
            log_probs, further, *relaxed = self._learned.connect(repeated, inner)
            return self._learned.draw(structures, log_probs, relaxed, (further, known.detach()))
        axes = tuple(range(1, 1 + structure.part_axes))
        # The extras of the spans of a text are summed, which is correct for all of these.
        extras = torch.stack(
            [
                (torch.where(slope.detach() != 0, repeated, 0.0) * slope.detach()).sum(axes),
                known,
                score.square().sum(axes),
                (score * slope).sum(axes),
                slope.square().sum(axes),
            ]
        )
        # The value from above, with the gradient of this sum, which is linear in the scores.
        along = (torch.where(score != 0, repeated, 0.0) * score).sum(axes)
        log_probs = (drawn.log_probs.detach() + along - along.detach()).view(count, batch)
        weights = scores.new_full((count, batch), 1.0 / count)
        return Draw(structures, weights, log_probs, extras=extras.view(5 * count, batch))

    def perturbed(
        self, structure: Structure, scores: Tensor, lengths: Tensor
    ) -> ReparameterizedTrace:
        """Return samples, their log-probabilities, and the two draws of noisy scores.

        The gradient of the log-probabilities is the score.
        """
        found = structure.reparameterize(scores, lengths)
        z = found.z.detach().to(scores.dtype)
        log_probs = structure.log_prob(z, scores, lengths)
        return ReparameterizedTrace(z, found.noisy, found.redrawn, log_probs)

    def objective(
        self,
        losses: Tensor,
        weights: Tensor,
        log_probs: Tensor,
        features: Tensor,
        extras: Tensor | None = None,
    ) -> Tensor:
        if extras is None:
            raise LatentError(f"{self.name}: its objective needs the extras of its Draw.")
        if self._learned is not None:
            losses, *relaxed = losses.split(self.num_samples)
            slope, known, *of_relaxed = extras.split(self.num_samples)
            advantage = self.judged(losses.detach()) - known.detach()
            objective = losses + advantage * log_probs[: self.num_samples] + slope
            return (objective + self._learned.terms(relaxed, of_relaxed, self.judged)).mean(0)
        slope, known, squared, mixed, slopes = extras.split(self.num_samples)
        advantage = self.judged(losses.detach()) - known
        objective = losses + advantage.detach() * log_probs + slope
        # ‖advantage·∇log p + ∇c(r) − ∇c(r̃)‖². Its mean is the variance plus the squared norm of the
        # mean gradient, which c does not change.
        norm = advantage.square() * squared.detach() + 2 * advantage * mixed + slopes
        return (objective + norm).mean(0)

    def judged(self, losses: Tensor) -> Tensor:
        """Return losses less what does not depend on the sample, ``(K, D)``, without gradient.

        It is the target of c, and linear in the losses.
        """
        return losses
