"""Recorded figures of earlier trainings, for a report on ListOps."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from spacy_latent.corpora.text_files import read_text
from spacy_latent.errors import LatentError
from spacy_latent.listops.assessment import ALL, MEASURES

Scores = dict[str, float]
# The corpus whose name raw results leave out, since `benchmarks learning` assesses it first. Then
# other names of measures in raw results, for all corpora and for this corpus alone.
UNNAMED = "test"
CALLED = {"whole trees": "whole"}
CALLED_FIRST = {"accuracy": "cats_micro_f", "spans": "brackets"}


def key_of(measure: str, corpus: str | None) -> str:
    """Return the name of a measure in the raw results of ``benchmarks learning``.

    Args:
        corpus: name of the corpus, None for the first one.
    """
    name = CALLED.get(measure, measure)
    return CALLED_FIRST.get(measure, name) if corpus is None else f"{name} {corpus}"


def add_recorded(figures: dict[str, Any], name: str, runs: Mapping[int, Scores]) -> None:
    """Add the means of recorded runs, by seed, to figures of ``assess_listops``.

    See :func:`~spacy_latent.listops.assessment.assess_listops`. The means are under
    "recorded" in "all" of each corpus. They belong to the corpora that had these names at the time.
    Measures without the name of a corpus in the raw results belong to "test".

    Raises:
        LatentError: if there are no recorded measures for any corpus.
    """
    found = False
    for corpus, part in figures["corpora"].items():
        shares = {}
        for measure in MEASURES:
            key = key_of(measure, None if corpus == UNNAMED else corpus)
            values = [scores[key] for scores in runs.values() if key in scores]
            # A measure of only some runs must not share a name with a measure of all runs.
            if len(values) == len(runs):
                # The interval of one pipeline does not describe the spread between seeds.
                shares[measure] = [mean(values), math.nan, math.nan]
        found |= bool(shares)
        seeds = f"{len(runs)} seed{'s' * (len(runs) > 1)}"
        recorded = part["by_depth"][ALL].setdefault("recorded", {})
        recorded[f"{name} (recorded, {seeds})"] = shares
    if not found:
        raise LatentError(
            f"The recorded runs of {name} have no scores on the corpora "
            f"{', '.join(figures['corpora'])}. Give stored runs of a ListOps config of 'python "
            "-m benchmarks learning'."
        )


def recorded_runs(path: Path) -> dict[int, Scores]:
    """Read scores by seed from the lines of JSON of ``benchmarks learning``, one for each run.

    Only runs with the config of the last line and without changed settings count. The last run of
    each seed counts.

    Raises:
        LatentError: if the file is missing or has other lines.
    """
    if not path.exists():
        raise LatentError(f"{path} does not exist; expected a file of recorded runs.")
    if path.is_dir():
        raise LatentError(f"{path} is a directory; expected a file of recorded runs in it.")
    rows = []
    # Not splitlines(): it would also break at the odd separators inside names.
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            if not row.get("settings"):
                rows.append((row["digest"], row["seed"], _checked(row["scores"])))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LatentError(
                f"{path}, line {number}, is no recorded run: {type(error).__name__}: {error}. "
                "Expected JSON with seed, digest and scores, as in benchmarks/runs."
            ) from None
    if not rows:
        raise LatentError(f"{path} holds no recorded run.")
    return {seed: scores for digest, seed, scores in rows if digest == rows[-1][0]}


def _checked(scores: Any) -> Scores:
    if not isinstance(scores, dict):
        raise TypeError(f"scores is {scores!r}, and not numbers by their names")
    for key, value in scores.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"the score {key!r} is {value!r}, and no number")
    return scores
