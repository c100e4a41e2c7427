"""The score function of an execution trace (Struminsky et al. 2021): T-REINFORCE."""

from __future__ import annotations

from torch import Tensor

from spacy_latent.errors import IncompatiblePair
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.control_variates import ControlVariate
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.structures.base import Structure


class TraceScoreFunction(ScoreFunction):
    """The gradient of E[L(z)] for the scores, where z is what an algorithm builds by random
    choices t: (L(z) − b)·∇log p(t), averaged over samples; unbiased. Each choice is from a softmax
    of scores, so that no sum over structures is needed: of ``SpanningTree`` the choices are those
    of Chu-Liu-Edmonds with exponential clocks as arcs, of ``KOfN`` the items one after another, of
    ``OneOfN`` the one choice. At prediction the best structure by the sum of its scores.

    The distribution of z is not p(z) ∝ exp(z·s), which ScoreFunction has; for ``OneOfN``, and for
    trees whose heads are all before their tokens, it is the same.

    num_samples, control_variate, normalize_advantage: as for ScoreFunction. With LeaveOneOut it is
        the paper's T-REINFORCE+.
    entropy_bonus: as for ScoreFunction, of the entropy of the traces.
    """

    requires = frozenset({"sample_trace"})
    # Of a structure that many traces lead to, nothing says how probable it is.
    posterior = ""

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
    """Refuse structures without traces by a message that says what they are; ``instead`` names
    pairs that work."""
    missing = structure.lacks(estimator.requires)
    if missing:
        raise IncompatiblePair(
            estimator.name,
            structure.name,
            f"it needs {', '.join(missing)}, and {structure!r} is not built by choices of parts "
            "one after another",
            instead,
        )
