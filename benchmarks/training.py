"""Words per second of ``spacy train``, with this checkout and with another one.

    python -m benchmarks training
    python -m benchmarks training --before ../spacy-latent-of-last-month

Each run is spaCy's own training loop with a config of this checkout, in a new process. The
checkouts take turns, so that other load on the machine affects both. The first steps, which read
kernels from numba's cache, and the evaluation are left out. Words per second of the processor count
the time of all threads, so that other programs hardly change them, and more threads do not increase
them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import spacy
import torch

from benchmarks.recipes import path_of
from benchmarks.sections import write_section
from spacy_latent import listops

ROOT = Path(__file__).parents[1]
WARM_UP = 10

Corpus = dict[str, Any]
DEMO: Corpus = {
    "operators": ("MIN", "MAX", "MED"),
    "max_depth": 4,
    "min_length": 8,
    "max_length": 25,
}
FOUR_OPERATORS: Corpus = {"max_length": 100}

# Code for a process of a checkout, which trains and prints words per second.
STEPS = """
import io, json, sys, time
begin = time.process_time()
from spacy.training import loop
from spacy.training.initialize import init_nlp
from spacy.util import load_config
config, overrides, warm_up = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
nlp = init_nlp(load_config(config, overrides=overrides))
train, marks = loop.train_while_improving, []
def timed(*arguments, **options):
    for batch, *rest in train(*arguments, **options):
        words = sum(len(example) for example in batch)
        marks.append((time.perf_counter(), time.process_time(), words))
        yield batch, *rest
loop.train_while_improving = timed
loop.train(nlp, None, stdout=io.StringIO())
first, last = marks[warm_up], marks[-1]
words = sum(words for _, _, words in marks[warm_up + 1 :])
print(json.dumps([words / (last[0] - first[0]), words / (last[1] - first[1])]))
"""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        what: its name.
        config: name of the recipe.
        corpus: settings of the generated ListOps expressions.
        overrides: changed settings of the recipe.
        both: whether older checkouts have everything that the recipe names.
    """

    what: str
    config: str
    corpus: Corpus
    overrides: dict[str, Any] = field(default_factory=dict)
    both: bool = True


PROJECTIVE = {
    "components.latent_textcat.model.structure.@misc": "spacy-latent.ProjectiveTree.v1",
    "components.latent_textcat.model.structure.direction": "any",
}
# The last stage begins sooner than in the config, so that it has most steps, as in a full training.
SOON = {
    "components.latent_textcat.model.structure.release_at": WARM_UP // 2,
    "components.latent_textcat.model.estimator.switch_at": WARM_UP,
}
SWITCHED = {"components.latent_textcat.model.estimator.switch_at": WARM_UP}
# The two stages of the curriculum have only one expression each, so that all depths are read at
# once. A curriculum needs epochs without an end.
ALL_DEPTHS = {"corpora.train.flat": 1, "corpora.train.growth": 1, "training.max_epochs": -1}
ROWS = (
    Row("demo: its last stage", "demo", DEMO, SOON, both=False),
    Row("demo by perturb-and-MAP: its last stage", "demo_perturb_and_map", DEMO, SOON, both=False),
    Row(
        "demo's trees by score function, BiLSTM", "demo_attention_score_function", DEMO, PROJECTIVE
    ),
    Row("attention over earlier words, marginals", "demo_attention", DEMO),
    Row(
        "SPINN, given transitions",
        "listops_spinn",
        FOUR_OPERATORS,
        ALL_DEPTHS,
    ),
    Row(
        "RL-SPINN: its last stage",
        "listops_reinforce_shift_reduce",
        FOUR_OPERATORS,
        ALL_DEPTHS | SWITCHED,
    ),
    Row(
        "merges by PPO: its last stage", "listops_ppo_merges", FOUR_OPERATORS, ALL_DEPTHS | SWITCHED
    ),
    Row("merges, mixture of a beam", "listops_beam_merges", FOUR_OPERATORS, ALL_DEPTHS),
)


def make_corpus(folder: Path, options: Corpus, size: int) -> None:
    train, dev = listops.generate([size, 50], **options)
    listops.write(folder / "train.tsv", train)
    listops.write(folder / "dev.tsv", dev)


def run(checkout: Path, row: Row, corpus: Path, steps: int) -> tuple[float, float]:
    """Train with a checkout, and return words per second of the clock and of the processor."""
    overrides = {
        "paths.train": str(corpus / "train.tsv"),
        "paths.dev": str(corpus / "dev.tsv"),
        "training.max_steps": WARM_UP + steps,
        "training.max_epochs": 0,
        "training.eval_frequency": 100 * (WARM_UP + steps),
        **row.overrides,
    }
    config = path_of(row.config)
    done = subprocess.run(
        [sys.executable, "-c", STEPS, str(config), json.dumps(overrides), str(WARM_UP)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    wall, used = json.loads(done.stdout.splitlines()[-1])
    return wall, used


def measure(row: Row, checkouts: dict[str, Path], corpus: Path, steps: int, rounds: int) -> str:
    """Return a row of the table, with medians over rounds."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in checkouts}
    for _ in range(rounds):
        for name, checkout in checkouts.items():
            if row.both or checkout == ROOT:
                found[name].append(run(checkout, row, corpus, steps))
    cells = []
    medians: list[list[float | None]] = []
    for clock in (0, 1):
        values = [
            statistics.median(run[clock] for run in runs) if runs else None
            for runs in found.values()
        ]
        medians.append(values)
        cells += ["" if value is None else f"{value:,.0f}" for value in values]
        if len(values) > 1:
            before, after = values
            cells.append("" if before is None or after is None else f"{after / before:.1f}")
    return f"| {row.what} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="another checkout of this repository")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    checkouts = {"now": ROOT}
    said = ""
    if arguments.before is not None:
        checkouts = {"before": arguments.before.resolve(), "now": ROOT}
        said = f" Before: {revision(checkouts['before'])}."
    columns = [*checkouts, *(["ratio"] if len(checkouts) > 1 else [])]
    header = [f"words/s {name}" if name in checkouts else name for name in columns]
    header += [
        f"words/s of the processor {name}" if name in checkouts else name for name in columns
    ]
    lines = [
        f"{date.today()}, torch {torch.__version__}, spaCy {spacy.__version__}, "
        f"{torch.get_num_threads()} threads, a load of {os.getloadavg()[0]:.0f} on "
        f"{os.cpu_count()} cores; medians of {arguments.rounds} runs of {arguments.steps} steps."
        f"{said}",
        "",
        f"| training | {' | '.join(header)} |",
        "|---|" + "---:|" * len(header),
    ]
    with TemporaryDirectory() as folder:
        for row in ROWS:
            corpus = Path(folder) / row.config
            corpus.mkdir()
            make_corpus(corpus, row.corpus, 100 * (WARM_UP + arguments.steps))
            lines.append(measure(row, checkouts, corpus, arguments.steps, arguments.rounds))
            print(lines[-1], flush=True)
    write_section("training", "Speed of training", lines)


def revision(checkout: Path) -> str:
    """Return the commit of a checkout, or its folder's name if it is no repository."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or checkout.name


if __name__ == "__main__":
    main()
