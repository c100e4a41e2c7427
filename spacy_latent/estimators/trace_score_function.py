"""T-REINFORCE, the score function of an execution trace (Struminsky et al. 2021)."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import IncompatiblePair
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.control_variates import ControlVariate
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.structures.base import Structure


class TraceScoreFunction(ScoreFunction):
    """An unbiased gradient of E[L(z)] for structures z built by random choices t.

    Experimental: may change in any version.

    An algorithm builds z by the choices. The gradient for the scores is (L(z) − b)·∇log p(t),
    averaged over samples. Each choice is from a softmax of scores, so no sum over structures is
    needed. For ``SpanningTree``, Chu-Liu-Edmonds makes the choices, with an exponential clock for
    each arc. For ``KOfN`` they are the items one after another, for ``OneOfN`` the one choice.
    Prediction uses the best structure by the sum of its scores.

    The distribution of z differs from p(z) ∝ exp(z·s), which ScoreFunction has. The two are the
    same for ``OneOfN``, and for trees whose heads are all before their tokens.

    Args:
        num_samples, control_variate, normalize_advantage: as for ScoreFunction. With LeaveOneOut it
            is the paper's T-REINFORCE+.
        entropy_bonus: as for ScoreFunction, with the entropy of the traces.
    """

    requires = frozenset({"sample_trace"})
    # The probability of a structure is unknown, since many traces lead to it. So is the entropy;
    # ``entropy_bonus`` uses the entropy of traces.
    posterior = ""
    entropy_of_scores = False

    def __init__(
        self,
        num_samples: int = 1,
        control_variate: ControlVariate | None = None,
        normalize_advantage: bool = False,
        entropy_bonus: float = 0.0,
    ) -> None:
        super().__init__(
            num_samples, control_variate, normalize_advantage, entropy_bonus=entropy_bonus
        )

    def check(self, structure: Structure) -> None:
        check_traced(
            self,
            structure,
            "SpanningTree, KOfN with exactly=true or OneOfN, or ScoreFunction, whose samples "
            "need no trace",
        )
        super().check(structure)

    def drawn(self, structure: Structure, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        found = structure.sample_trace(scores, lengths, self.num_samples)
        return found.z, found.log_probs


def check_traced(estimator: Estimator, structure: Structure, instead: str) -> None:
    """Raise IncompatiblePair if a structure has no traces.

    Args:
        instead: pairs that work, for the message.
    """
    missing = structure.lacks(estimator.requires)
    if missing:
        raise IncompatiblePair(
            estimator.name,
            structure.name,
            f"it needs {', '.join(missing)}, and {structure!r} is not sampled part by part",
            instead,
        )
