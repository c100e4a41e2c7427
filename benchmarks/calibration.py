"""What ``spacy latent calibrate`` brings: a development set in two halves, calibrated on one and
measured on the other, and the other way round.

    python -m benchmarks calibration BC5CDR training/bc5cdr_crf/model-best corpus/bc5cdr/dev.spacy

Halves are alternating blocks of ten texts, so that most sentences of an abstract or a thread are in
one of them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import spacy
import torch
from spacy.training import Example

from benchmarks.entities import examples_for
from benchmarks.sections import write_section
from spacy_latent.analysis.calibration import (
    JudgedEntities,
    cut,
    error_by_chance,
    expected_calibration_error,
)
from spacy_latent.pipeline.entity_calibration import calibrate, measure

BLOCK = 10
SURE = 0.95


def halves(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    found: tuple[list[Example], list[Example]] = ([], [])
    for i, example in enumerate(examples):
        found[i // BLOCK % 2].append(example)
    return found


def percent(share: float) -> str:
    return "–" if share != share else f"{100 * share:.1f} %"


def row(title: str, before: JudgedEntities, after: JudgedEntities, sets: Sequence[str]) -> str:
    errors = [
        expected_calibration_error(each.probabilities, each.correct) for each in (before, after)
    ]
    chance, _ = error_by_chance(after.probabilities)
    sure = cut(after, SURE)
    cells = [
        title,
        str(len(after.probabilities)),
        *map(percent, errors),
        percent(chance),
        str(sure.kept),
        percent(sure.precision),
        percent(sure.recall),
        *sets,
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("title")
    parser.add_argument("model", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--coverage", type=float, default=0.9)
    parser.add_argument("--biases", action="store_true")
    given = parser.parse_args()
    nlp, rows = spacy.load(given.model), []
    both = JudgedEntities(), JudgedEntities()
    for number, title in enumerate(("first half on second", "second half on first")):
        # Made anew: what was processed is none to predict on.
        fitted, raw, further = (
            halves(examples_for(nlp, given.corpus))[place]
            for place in (number, 1 - number, 1 - number)
        )
        nlp.get_pipe("crf_ner").calibration = None  # type: ignore[union-attr]
        before = measure(nlp, raw).entities
        calibrate(nlp, fitted, coverage=given.coverage, biases=given.biases)
        after = measure(nlp, further)
        for whole, part in zip(both, (before, after.entities)):
            whole.probabilities += part.probabilities
            whole.correct += part.correct
            whole.labels += part.labels
            whole.gold += part.gold
        covered = percent(after.covered[0]) if after.covered else "–"
        rows.append(row(title, before, after.entities, [covered, f"{after.set_size:.1f}"]))
    rows.append(row("both", *both, ["", ""]))
    lines = [
        f"{date.today()}, torch {torch.__version__}. Error by chance: the mean of it were all "
        f"probabilities right. Sets for a coverage of {given.coverage}.",
        "",
        f"| calibrated on, measured on | entities found | error before | after | by chance | at a "
        f"confidence of {SURE} | precision | recall | covered | spans in a set |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        *rows,
    ]
    key = re.sub(r"\W+", "_", given.title.lower())
    write_section(f"calibration_{key}", f"Calibration of entities: {given.title}", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
