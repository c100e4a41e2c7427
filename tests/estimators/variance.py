"""The variance of each score-function estimator on a fixed problem, as a table for docs.

    python -m tests.estimators.variance

Choices of one of five items, with a loss of 5 and something small; per sample, over 20,000 draws.
"""

from __future__ import annotations

import torch

from spacy_latent.structures.one_of_n import OneOfN
from tests.estimators.test_expected_loss import (
    UNBIASED,
    Relax,
    exact_gradient,
    gradients,
    objective_of,
    relax,
)


def trained_relax() -> Relax:
    estimator = relax()
    optimizer = torch.optim.Adam(estimator.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        objective_of(estimator, OneOfN(), 100)[0].backward()
        optimizer.step()
    return estimator


def main() -> None:
    makers = {**UNBIASED, "RELAX, trained": trained_relax}
    makers.pop("RELAX, two samples")
    makers.pop("REBAR, two samples")
    exact = exact_gradient(OneOfN())[0]
    plain = None
    print("| estimator | variance | of plain | error of the mean, in standard errors |")
    print("|---|---:|---:|---:|")
    for name, make in makers.items():
        estimator = make()
        torch.manual_seed(0)
        found = gradients(estimator, OneOfN(), 20_000)
        variance = float(found.var(0).sum())
        plain = plain or variance
        error = float(((found.mean(0) - exact).abs() / (found.std(0) / 20_000**0.5)).max())
        print(f"| {name} | {variance:.3f} | {variance / plain:.2f} | {error:.1f} |")


if __name__ == "__main__":
    main()
