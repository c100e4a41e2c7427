"""Time and size of a report over many docs.

``python -m benchmarks report`` makes 10,000 random texts of about 20 words with heads and
categories, and a pipeline with a latent encoder below a textcat. It prints and writes the time of
prediction and of the report, and the size of the page. The bounds are 2 minutes beyond prediction,
and 5 MB.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import spacy
import torch
from spacy.language import Language
from spacy.training import Example
from thinc.api import fix_random_seed

from benchmarks.pipeline import build
from benchmarks.sections import write_section
from spacy_latent.evaluation.assessment import assess
from spacy_latent.visualize.report import render_report

ESTIMATORS = {
    "Marginals, map at prediction": {"@misc": "spacy-latent.Marginals.v1", "prediction": "map"},
    "SparseMAP": {"@misc": "spacy-latent.SparseMAP.v1"},
}


def make_examples(nlp: Language, count: int) -> list[Example]:
    rng = random.Random(0)
    words = [f"word{i}" for i in range(5000)]
    made = []
    for i in range(count):
        text = " ".join(rng.choice(words) for _ in range(rng.randint(10, 30)))
        doc = nlp.make_doc(text)
        heads = [max(0, j - rng.randint(1, 4)) for j in range(len(doc))]
        deps = [rng.choice(("nsubj", "obj", "mod")) if j else "ROOT" for j in range(len(doc))]
        cats = {"a": float(i % 2), "b": float(1 - i % 2)}
        made.append(Example.from_dict(doc, {"heads": heads, "deps": deps, "cats": cats}))
    return made


def measure(name: str, estimator: dict[str, Any], count: int, page: Path | None) -> str:
    fix_random_seed(0)
    nlp = build("component", {"estimator": estimator})
    sample = make_examples(nlp, 20)
    nlp.initialize(lambda: sample)
    assess(nlp, sample)
    examples = make_examples(nlp, count)
    start = clocks()
    for _ in nlp.pipe((example.predicted.copy() for example in examples), batch_size=256):
        pass
    predicted = clocks() - start
    start = clocks()
    assessment = assess(nlp, examples, batch_size=256)
    assessed = clocks() - start
    html = render_report(assessment, model=name, corpus="random")
    total = clocks() - start
    if page is not None:
        page.write_text(html, encoding="utf8")
    size = len(html.encode("utf8")) / 1e6
    spans = (predicted, assessed, total - assessed, total - predicted)
    cells = " | ".join(f"{wall:.0f} ({used:.0f})" for wall, used in spans)
    return f"| {name} | {cells} | {size:.1f} |"


def clocks() -> np.ndarray:
    """Return the seconds of the clock, and of the processor over all threads."""
    return np.array([time.perf_counter(), time.process_time()])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", type=int, default=10_000)
    parser.add_argument("--page", type=Path, help="write the last page to this file")
    arguments = parser.parse_args()
    lines = [
        f"{date.today()}, torch {torch.__version__}, spaCy {spacy.__version__}, "
        f"{torch.get_num_threads()} thread, a load of {os.getloadavg()[0]:.0f} on {os.cpu_count()} "
        f"cores; {arguments.docs:,} docs of 10 to 30 words with heads "
        "and categories, one latent encoder. Seconds on the wall and, in brackets, of the "
        "processor, which other programs on the machine do not lengthen. Bounds: 120 s beyond "
        "prediction, 5 MB.",
        "",
        "| estimator | `nlp.pipe` | figures | page | both, beyond one `nlp.pipe` | MB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, estimator in ESTIMATORS.items():
        lines.append(measure(name, estimator, arguments.docs, arguments.page))
        print(lines[-1], flush=True)
    write_section("report", "Reports", lines)


if __name__ == "__main__":
    main()
