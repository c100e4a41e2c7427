"""T-RELAX, RELAX over execution traces (Struminsky et al. 2021)."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import LatentError, check_flags
from spacy_latent.estimators.control_variates import mean_of_others
from spacy_latent.estimators.relax import Relax, Surrogate
from spacy_latent.estimators.trace_score_function import check_traced
from spacy_latent.structures.base import Structure
from spacy_latent.structures.results import ReparameterizedTrace


class ChoiceSurrogate(Surrogate):
    """Surrogate whose relaxation is a softmax of the noisy scores.

    The softmax is over the heads of each token, or over all items. Marginals of trees would lack
    the second derivative that training takes.
    """

    def relaxation(self, structure: Structure, noisy: Tensor, lengths: Tensor) -> Tensor:
        inside = ~noisy.detach().isneginf()
        axes = [1 + axis for axis in structure.exclusive_axes]
        flat = noisy.masked_fill(~inside, -1e30)
        if axes:
            soft = flat.softmax(axes[0])
        else:
            soft = flat.flatten(1).softmax(1).view_as(flat)
        return soft.masked_fill(~inside, 0.0)


class TraceRelax(Relax):
    """A score function of execution traces with a trained network c as control variate.

    Experimental: may change in any version.

    The gradient is [L(z) − c(r̃)]·∇log p(t) + ∇c(r) − ∇c(r̃), unbiased for any c. r are noisy
    scores, t the choices by which an algorithm builds z from them, and r̃ noisy scores drawn again
    given t. Structures and their distribution are the same as for TraceScoreFunction. For
    ``SpanningTree``, r are −log of the exponential clocks of arcs, and r̃ belong to clocks with
    which Chu-Liu-Edmonds takes the same arc at each node. Prediction uses the best structure by the
    sum of its scores.

    c is a network of the noisy scores, relaxed by a softmax, and of the scores. It is trained as in
    Relax. In the code of the paper's authors for ListOps it also reads the text.

    Args:
        num_samples, hidden_width, relaxed_loss: as for Relax. The relaxation of relaxed_loss is the
            softmax that c reads.
        leave_one_out: first subtract the mean loss of the text's other samples from each loss. c
            then only has to learn differences between samples of a text. Needs at least two
            samples.
    """

    requires = frozenset({"reparameterize_trace"})
    # As for TraceScoreFunction.
    posterior = ""
    entropy_of_scores = False
    surrogate_of = ChoiceSurrogate

    def __init__(
        self,
        num_samples: int = 1,
        hidden_width: int = 16,
        leave_one_out: bool = False,
        relaxed_loss: bool = False,
    ) -> None:
        super().__init__(num_samples, hidden_width, relaxed_loss)
        check_flags(self.name, leave_one_out=leave_one_out)
        if leave_one_out and num_samples < 2:
            raise LatentError(
                f"{self.name}: leave_one_out is true and num_samples {num_samples}; expected at "
                "least 2 samples, or false."
            )
        self.leave_one_out = leave_one_out

    def check(self, structure: Structure) -> None:
        check_traced(
            self,
            structure,
            "SpanningTree, KOfN with exactly=true or OneOfN; or TraceScoreFunction, where the "
            "choices are known but not the noise behind them",
        )
        super().check(structure)

    def perturbed(
        self, structure: Structure, scores: Tensor, lengths: Tensor
    ) -> ReparameterizedTrace:
        return structure.reparameterize_trace(scores, lengths)

    def judged(self, losses: Tensor) -> Tensor:
        if not self.leave_one_out:
            return losses
        return losses - mean_of_others(losses)
