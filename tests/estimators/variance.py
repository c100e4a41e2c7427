"""The variance of each score-function estimator on a fixed problem, as a table for docs.

    python -m tests.estimators.variance

The first problem is a choice of one of five items, with a loss of 5 plus a small part. The second
one is trees over three tokens, with the scores of traces. The variance is of one sample, over
20,000 draws.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.control_variates import (
    LearnedConstant,
    LeaveOneOut,
    MovingAverage,
    SelfCritical,
)
from spacy_latent.estimators.rebar import Rebar
from spacy_latent.estimators.relax import Relax
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.estimators.sum_and_sample import SumAndSample
from spacy_latent.estimators.trace_relax import TraceRelax
from spacy_latent.estimators.trace_score_function import TraceScoreFunction
from spacy_latent.structures.base import Structure
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.estimators.test_expected_loss import (
    exact_gradient,
    gradients,
    loss_of,
    network,
    objective_of,
    problem,
    relax,
    warm,
)
from tests.structures.test_traces import tree_traces

Trained = TypeVar("Trained", Rebar, Relax, TraceRelax)

CHOICES: dict[str, Callable[[], Estimator]] = {
    "plain": ScoreFunction,
    "three samples": lambda: ScoreFunction(3),
    "moving average": lambda: warm(ScoreFunction(control_variate=MovingAverage())),
    "constant": lambda: ScoreFunction(control_variate=LearnedConstant()),
    "network": lambda: ScoreFunction(control_variate=network()),
    "self-critical": lambda: ScoreFunction(control_variate=SelfCritical()),
    "leave one out (three samples)": lambda: ScoreFunction(3, LeaveOneOut()),
    "REBAR": Rebar,
    "REBAR, trained": lambda: trained_relax(learned_rebar(), OneOfN()),
    "RELAX": relax,
    "RELAX, trained": lambda: trained_relax(relax(), OneOfN()),
    "RELAX with the relaxed loss": lambda: relaxed_relax(),
    "RELAX with the relaxed loss, trained": lambda: trained_relax(relaxed_relax(), OneOfN()),
    "sum and sample": lambda: SumAndSample(2),
    "sum and sample, self-critical": lambda: SumAndSample(2, SelfCritical()),
}


def learned_rebar() -> Rebar:
    return Rebar(learn_strength=True, learn_relaxation=True).double()


def relaxed_relax() -> Relax:
    torch.manual_seed(0)
    return Relax(relaxed_loss=True).double()


def trained_relax(estimator: Trained, structure: Structure) -> Trained:
    optimizer = torch.optim.Adam(estimator.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        objective_of(estimator, structure, 100)[0].backward()
        optimizer.step()
    return estimator


def known_mean(structure: Structure) -> TraceScoreFunction:
    """Return an estimator that subtracts the mean loss of many samples, which no training knows."""
    scores, length, table = problem(structure)
    drawn = structure.sample_trace(scores.repeat(20_000, 1, 1), length.repeat(20_000))
    constant = LearnedConstant()
    with torch.no_grad():
        constant.value.fill_(float(loss_of(drawn.z, table).mean()))
    return TraceScoreFunction(control_variate=constant)


def trace_relax(
    num_samples: int = 1, leave_one_out: bool = False, relaxed_loss: bool = False
) -> TraceRelax:
    torch.manual_seed(0)
    settings = {"leave_one_out": leave_one_out, "relaxed_loss": relaxed_loss}
    return TraceRelax(num_samples, **settings).double()


def trained_trace_relax(
    structure: SpanningTree,
    num_samples: int = 1,
    leave_one_out: bool = False,
    relaxed_loss: bool = False,
) -> TraceRelax:
    return trained_relax(trace_relax(num_samples, leave_one_out, relaxed_loss), structure)


def main() -> None:
    print_table(CHOICES, OneOfN(), exact_gradient(OneOfN())[0])
    for structure in (SpanningTree(), SpanningTree(single_root=True)):
        print(f"\n{structure!r}\n")
        traces: dict[str, Callable[[], Estimator]] = {
            "score of the trace": TraceScoreFunction,
            "less the mean loss": partial(known_mean, structure),
            "leave one out (three samples)": lambda: TraceScoreFunction(3, LeaveOneOut()),
            "RELAX over traces, untrained": trace_relax,
            "RELAX over traces, trained": partial(trained_trace_relax, structure),
            "RELAX, leave one out (three samples), trained": partial(
                trained_trace_relax, structure, 3, True
            ),
            "RELAX with the relaxed loss, untrained": lambda: trace_relax(relaxed_loss=True),
            "RELAX with the relaxed loss, trained": partial(
                trained_trace_relax, structure, relaxed_loss=True
            ),
        }
        print_table(traces, structure, exact_trace_gradient(structure))


def exact_trace_gradient(structure: SpanningTree) -> torch.Tensor:
    scores, _, table = problem(structure)
    leaf = scores[0].requires_grad_()
    expected = leaf.new_zeros(())
    for tree, log_prob in tree_traces(leaf, structure.single_root):
        z = torch.zeros_like(table)
        for arc in tree:
            z[arc] = 1.0
        expected = expected + log_prob.exp() * loss_of(z[None, None], table)[0, 0]
    return torch.autograd.grad(expected, leaf)[0]


def print_table(
    makers: dict[str, Callable[[], Estimator]], structure: Structure, exact: torch.Tensor
) -> None:
    plain = None
    print("| estimator | variance | of plain | error of the mean, in standard errors |")
    print("|---|---:|---:|---:|")
    for name, make in makers.items():
        estimator = make()
        torch.manual_seed(0)
        found = gradients(estimator, structure, 20_000)
        variance = float(found.var(0).sum())
        plain = plain or variance
        # Entries that are no parts have no gradient.
        error = (found.std(0) / 20_000**0.5).clamp_min(1e-12)
        worst = float(((found.mean(0) - exact).abs() / error).max())
        print(f"| {name} | {variance:.3f} | {variance / plain:.2f} | {worst:.1f} |", flush=True)


if __name__ == "__main__":
    main()
