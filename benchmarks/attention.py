"""Time of attention by softmax, sparsemax, entmax, fusedmax and oscarmax.

    python -m benchmarks attention

Each weighs n items for 32 texts, as an estimator over OneOfN, on normal scores in float32. Times
are medians of the processor time of one forward and backward pass, on one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import date
from statistics import median

import torch

from benchmarks.sections import write_section
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.entmax import Entmax
from spacy_latent.estimators.fusedmax import Fusedmax
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.oscarmax import Oscarmax
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.structures.one_of_n import OneOfN

TEXTS, SIZES = 32, (10, 50, 200, 1000)
TITLE = "Attention"
ESTIMATORS: dict[str, Callable[[], Estimator]] = {
    "softmax (`Marginals`)": Marginals,
    "sparsemax (`SparseMAP`)": SparseMAP,
    "entmax (`Entmax`, α = 1.5)": Entmax,
    "fusedmax (`Fusedmax`)": Fusedmax,
    "oscarmax (`Oscarmax`)": Oscarmax,
}


def milliseconds(estimator: Estimator, items: int, repeats: int) -> float:
    """Return the median processor time of a forward and backward pass, in milliseconds."""
    torch.manual_seed(items)
    scores = torch.randn(TEXTS, items).requires_grad_()
    weights = torch.randn(TEXTS, items)
    lengths = torch.full((TEXTS,), items)
    times = []
    # The first pass loads or compiles kernels.
    for _ in range(repeats + 1):
        scores.grad = None
        start = time.process_time()
        z = estimator(OneOfN(), scores, lengths, True).z[0]
        (z * weights).sum().backward()
        times.append(time.process_time() - start)
    return 1000 * median(times[1:])


def table(repeats: int) -> list[str]:
    lines = [
        f"| attention | {' | '.join(f'{items} items, ms' for items in SIZES)} |",
        f"|---|{'---:|' * len(SIZES)}",
    ]
    for name, make in ESTIMATORS.items():
        cells = [f"{milliseconds(make(), items, repeats):.2f}" for items in SIZES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=101)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = table(given.repeats)
    print("\n".join(lines))
    header = (
        f"{date.today()}, torch {torch.__version__}, one thread; {TEXTS} texts, forward and "
        f"backward, medians of {given.repeats} passes."
    )
    write_section("attention", TITLE, [header, "", *lines])


if __name__ == "__main__":
    main()
