"""Time by length for every structure, with fitted exponents, as a table and a plot.

    python -m benchmarks scaling

Times are medians for a batch of 4 on one thread. Longer items are left out if a length takes over a
quarter of a second. The exponent is the slope of log time over log length, by least squares over
the three largest lengths. Structures that are not linear in their scores, or have no exact MAP, are
left out. The plot needs matplotlib.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median

import torch

from benchmarks.cases import scores_for, structures
from benchmarks.sections import write_section
from spacy_latent.structures.base import Structure

SIZES = (16, 32, 64, 128, 256, 512)
BATCH, LONGEST = 4, 0.25
IMAGES = Path(__file__).parents[1] / "docs" / "images"
# Okabe and Ito's colours without yellow. Readers with colour blindness can distinguish them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "osD^vPX*<>"
Operation = Callable[[Structure, torch.Tensor, torch.Tensor], None]


def best(structure: Structure, scores: torch.Tensor, lengths: torch.Tensor) -> None:
    structure.map(scores, lengths)


def marginals(structure: Structure, scores: torch.Tensor, lengths: torch.Tensor) -> None:
    given = scores.detach().requires_grad_()
    result = structure.marginals(given, lengths)
    torch.autograd.grad(result, given, scores)


def sparsemap(structure: Structure, scores: torch.Tensor, lengths: torch.Tensor) -> None:
    given = scores.detach().requires_grad_()
    mean = structure.sparsemap(given, lengths).mean
    torch.autograd.grad(mean, given, scores)


OPERATIONS: dict[str, Operation] = {
    "MAP": best,
    "marginals, forward + backward": marginals,
    "SparseMAP, forward + backward": sparsemap,
}


def curve(structure: Structure, operation: Operation) -> list[tuple[int, float]]:
    """Return pairs of a length and its median seconds."""
    found = []
    for n in SIZES:
        scores, lengths = scores_for(structure, n, BATCH)
        operation(structure, scores, lengths)
        times: list[float] = []
        begin = time.perf_counter()
        while len(times) < 3 or (len(times) < 15 and time.perf_counter() - begin < 0.15):
            start = time.perf_counter()
            operation(structure, scores, lengths)
            times.append(time.perf_counter() - start)
        found.append((n, median(times)))
        if found[-1][1] > LONGEST:
            break
    return found


def exponent(points: list[tuple[int, float]]) -> float:
    """Return the fitted exponent, or NaN if there are fewer than two points."""
    last = points[-3:]
    if len(last) < 2:
        return math.nan
    x = [math.log(n) for n, _ in last]
    y = [math.log(seconds) for _, seconds in last]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - middle_x) ** 2 for a in x)
    return sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y)) / spread


def plot(curves: dict[str, dict[str, list[tuple[int, float]]]]) -> None:
    """Write docs/images/scaling.svg as a single line, because diffs would show 4,000 lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(15, 7.5), sharey=True)
    names = sorted({name for lines in curves.values() for name in lines})
    for axis, (title, lines) in zip(axes, curves.items()):
        for name, points in lines.items():
            i = names.index(name)
            axis.plot(
                [n for n, _ in points],
                [1e3 * seconds for _, seconds in points],
                color=COLOURS[i % len(COLOURS)],
                marker=MARKERS[i % len(MARKERS)],
                linestyle="-" if i < len(COLOURS) else "--",
                label=f"{name}  n^{exponent(points):.1f}",
            )
        axis.set(title=title, xlabel="words", xscale="log", yscale="log")
        axis.set_xticks(SIZES, [str(n) for n in SIZES])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    axes[0].set_ylabel(f"milliseconds for a batch of {BATCH}, one thread")
    figure.tight_layout()
    path = IMAGES / "scaling.svg"
    # Without a date and with a fixed salt of names, equal figures give equal files.
    with pyplot.rc_context({"svg.hashsalt": "spacy-latent"}):
        figure.savefig(path, metadata={"Date": None})
    path.write_text(on_one_line(path.read_text(encoding="utf8")), encoding="utf8")


def on_one_line(svg: str) -> str:
    return " ".join(line.strip() for line in svg.splitlines())


def main() -> None:
    torch.set_num_threads(1)
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {name: {} for name in OPERATIONS}
    heads = " | ".join(f"n = {n}" for n in SIZES)
    lines = [
        f"{date.today()}, torch {torch.__version__}; milliseconds, batch of {BATCH}, one thread.",
        "",
        f"| structure | operation | {heads} | exponent |",
        f"|---|---|{'---:|' * (len(SIZES) + 1)}",
    ]
    print("\n".join(lines))
    for structure in structures():
        for name, operation in OPERATIONS.items():
            if name.startswith("marginals") and "marginals" not in structure.tractable:
                continue
            points = curve(structure, operation)
            curves[name][structure.name] = points
            cells = [f"{1e3 * seconds:.2f}" for _, seconds in points]
            cells += [""] * (len(SIZES) - len(cells))
            fitted = f"{exponent(points):.1f}"
            lines.append(f"| {structure.name} | {name} | {' | '.join(cells)} | {fitted} |")
            print(lines[-1], flush=True)
    try:
        plot(curves)
        lines += ["", "![Time against length](../../docs/images/scaling.svg)"]
    except ImportError:
        print("matplotlib is not installed: no plot.")
    write_section("scaling", "Time against length", lines)


if __name__ == "__main__":
    main()
