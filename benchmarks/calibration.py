"""Gain from ``spacy latent calibrate`` on each half of a corpus, calibrated on the other half.

    python -m benchmarks calibration BC5CDR training/bc5cdr_crf/model-best corpus/bc5cdr/dev.spacy

With ``--test TEST``, all texts of the corpus are for calibration, and the texts of TEST are
measured. Arcs and labelled arcs are measured if the pipeline has a latent_parser, and spans if it
has a tree_spancat. Otherwise entities are measured. Halves are alternating blocks of ten texts, so
that most abstracts or threads are in a single half. The results are a line of PATH, a file of the
repository.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import spacy
import torch
from spacy.language import Language
from spacy.training import Example

from benchmarks.entities import examples_for
from benchmarks.raw_results import RAW, add
from benchmarks.sections import write_section
from spacy_latent.analysis.arc_calibration import ARC
from spacy_latent.analysis.calibration import (
    error_by_chance,
    expected_calibration_error,
    reliability,
)
from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.thresholds import apply_threshold
from spacy_latent.evaluation import entity_calibration, parse_calibration, span_calibration
from spacy_latent.pipeline.calibrated_components import parse_components, span_components

PATH = RAW / "calibration.jsonl"
HALVES = ("first half on second", "second half on first")
BLOCK = 10
SURE = 0.95


def halves(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    found: tuple[list[Example], list[Example]] = ([], [])
    for i, example in enumerate(examples):
        found[i // BLOCK % 2].append(example)
    return found


@dataclass(frozen=True)
class Trial:
    """Texts to calibrate on and texts to measure.

    They are read again for each use, because docs with predictions cannot be predicted again.

    Attributes:
        title: name of the row.
        corpora: files of the texts to calibrate on, and of the texts to measure.
        parts: number of the half of each corpus that is used, or None for the whole corpus.
    """

    title: str
    corpora: tuple[Path, Path]
    parts: tuple[int | None, int | None] = (None, None)

    def fitted(self, nlp: Language) -> list[Example]:
        return self._read(nlp, 0)

    def measured(self, nlp: Language) -> list[Example]:
        return self._read(nlp, 1)

    def _read(self, nlp: Language, place: int) -> list[Example]:
        examples, half = examples_for(nlp, self.corpora[place]), self.parts[place]
        return examples if half is None else halves(examples)[half]


def trials(corpus: Path, test: Path | None = None) -> list[Trial]:
    """Return a trial for each half of a corpus, or one for the whole corpus and a test corpus."""
    if test is not None:
        return [Trial("all on the test set", (corpus, test))]
    return [Trial(title, (corpus, corpus), (i, 1 - i)) for i, title in enumerate(HALVES)]


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def known(value: float) -> float | None:
    """Return a rounded value, or None for NaN, which JSON does not have."""
    return None if value != value else round(value, 6)


def figures(before: JudgedEntities, after: JudgedEntities) -> dict[str, Any]:
    """Return the figures of the same predictions before and after calibration, as shares."""
    errors = [
        expected_calibration_error(each.probabilities, each.correct) for each in (before, after)
    ]
    chance, high = error_by_chance(after.probabilities)
    sure = apply_threshold(after, SURE)
    return {
        "found": len(after.probabilities),
        "gold": after.gold,
        "before": known(errors[0]),
        "after": known(errors[1]),
        "chance": known(chance),
        "chance_high": known(high),
        "sure": sure.kept,
        "precision": known(sure.precision),
        "recall": known(sure.recall),
        "bins": [
            [known(each.said), known(each.right), each.count]
            for each in reliability(after.probabilities, after.correct)
        ],
    }


def measured(
    nlp: Language, of: Sequence[Trial], coverage: float, biases: bool
) -> dict[str, dict[str, Any]]:
    """Return :func:`figures` and the calibration of each trial, and figures of all together."""
    spans = span_components(nlp)
    component: Any = nlp.get_pipe(spans[0] if spans else "crf_ner")
    own: Any = span_calibration if spans else entity_calibration
    options: dict[str, Any] = {} if spans else {"biases": biases}
    rows: dict[str, Any] = {}
    both = JudgedEntities(), JudgedEntities()
    for trial in of:
        component.calibration = None
        before = own.measure(nlp, trial.measured(nlp)).entities
        made = own.calibrate(nlp, trial.fitted(nlp), coverage=coverage, **options)
        after = own.measure(nlp, trial.measured(nlp))
        share, size = after.covered[0] if after.covered else None, after.set_size
        if after.sets is not None:
            share, size = after.sets.share, after.sets.size
        for whole, part in zip(both, (before, after.entities)):
            whole.probabilities += part.probabilities
            whole.correct += part.correct
            whole.labels += part.labels
            whole.gold += part.gold
        rows[trial.title] = {
            **figures(before, after.entities),
            "covered": None if share is None else known(share),
            "set_size": known(size),
            "calibration": made.calibration.to_dict(),
        }
    if len(of) > 1:
        rows["both"] = figures(*both)
    return rows


def measured_parses(nlp: Language, of: Sequence[Trial], coverage: float) -> dict[str, Any]:
    """Return the result of :func:`measured` for the arcs and the labelled arcs of a parser."""
    (name,) = parse_components(nlp)
    component: Any = nlp.get_pipe(name)
    rows: dict[str, Any] = {}
    for trial in of:
        component.calibration = None
        before = parse_calibration.measure(nlp, trial.measured(nlp))
        made = parse_calibration.calibrate(nlp, trial.fitted(nlp), coverage=coverage).calibration
        after = parse_calibration.measure(nlp, trial.measured(nlp))
        sets = parse_calibration.measure_sets(nlp, trial.measured(nlp))
        for noun, judged in after.items():
            row = {**figures(before[noun], judged), "calibration": made.to_dict()}
            if noun == ARC and sets is not None:
                row |= {"covered": known(sets.share), "set_size": known(sets.size)}
            rows[f"{trial.title}: {noun}s"] = row
    return rows


def table(found: dict[str, Any]) -> list[str]:
    """Return the lines of the section of results.

    Args:
        found: one line of PATH.
    """
    lines = [
        f"{found['date']}, torch {found['torch']}, `{found['model']}`. Error by chance: "
        "the mean of it were all probabilities right, and what it then stays below 19 times of 20. "
        f"Sets are for a coverage of {found['coverage']}: the share of texts whose entities are "
        "all in their set, or the share of a text's heads or spans that are in theirs.",
        "",
        f"| calibrated on, measured on | found | error before | after | by chance | at a "
        f"confidence of {SURE} | precision | recall | covered | size of a set |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for title, row in found["rows"].items():
        cells = [
            title,
            str(row["found"]),
            percent(row["before"]),
            percent(row["after"]),
            f"{percent(row['chance'])}, {percent(row['chance_high'])}",
            str(row["sure"]),
            percent(row["precision"]),
            percent(row["recall"]),
            percent(row["covered"]) if "covered" in row else "",
            f"{row['set_size']:.1f}" if row.get("set_size") else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("title")
    parser.add_argument("model", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--coverage", type=float, default=0.9)
    parser.add_argument("--biases", action="store_true")
    parser.add_argument("--test", type=Path, help="corpus to measure; CORPUS then calibrates")
    given = parser.parse_args()
    torch.set_num_threads(1)
    nlp = spacy.load(given.model)
    parsers = parse_components(nlp)
    spans = span_components(nlp)
    name = (parsers + spans + ["crf_ner"])[0]
    if parsers:
        rows = measured_parses(nlp, trials(given.corpus, given.test), given.coverage)
    else:
        rows = measured(nlp, trials(given.corpus, given.test), given.coverage, given.biases)
    found = {
        "corpus": given.title,
        "model": nlp.config["components"][name]["model"]["@architectures"],
        "coverage": given.coverage,
        "biases": given.biases,
        "rows": rows,
        "date": str(date.today()),
        "torch": torch.__version__,
        "spacy": spacy.__version__,
    }
    add(PATH, found)
    lines = table(found)
    key = re.sub(r"\W+", "_", given.title.lower())
    of = "parses" if parsers else "spans" if spans else "entities"
    write_section(f"calibration_{key}", f"Calibration of {of}: {given.title}", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
