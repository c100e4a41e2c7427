"""Effect of a single setting: a config is trained with several values, and all else unchanged.

    python -m benchmarks ablations --seeds 0 1 2
    python -m benchmarks ablations samples temperature
    python -m benchmarks ablations --seeds      # no run, the tables alone

Trainings run as in ``benchmarks learning``, and resume in the same way. Trainings of the demo are
half as long as the demo itself. They are judged on deeper expressions than they were trained on,
since nearly every value finds all trees at the depths of training. The tables, each with a small
drawing, go to the page of estimators. docs/choosing.md draws the conclusions for users.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.learning import add_options, heading, measured, trained, values_of
from benchmarks.learning_groups import ACCURACY, DEMO, GROUPS, Entry, Figures, Group, Setting
from benchmarks.learning_plot import write_drawing
from benchmarks.sections import write_section

MODEL = "components.latent_textcat.model"
HALF_OF_THE_DEMO: dict[str, Setting] = {
    "training.max_steps": 1100,
    "training.optimizer.learn_rate.total_steps": 1100,
}


@dataclass(frozen=True)
class Ablation:
    """A setting, or a group of settings, and the values that it is trained with.

    Attributes:
        title: the title of the table.
        config: the recipe that is trained.
        values: the settings of each value, by the text that the table shows.
        corpora, figures: see :class:`Group`.
        listops: see :class:`Entry`.
    """

    title: str
    config: str
    values: Mapping[str, Mapping[str, Setting]]
    corpora: tuple[str, ...]
    figures: Figures
    listops: str | None = None

    def group(self) -> Group:
        entries = (
            Entry(self.config, value, self.listops, settings=tuple(settings.items()))
            for value, settings in self.values.items()
        )
        return Group(self.title, self.corpora, self.figures, tuple(entries))


def _of_demo(title: str, values: Mapping[str, Mapping[str, Setting]]) -> Ablation:
    figures = {
        key: GROUPS["demo"].figures[key]
        for key in ("at depth 6", "whole trees", "accuracy", "attachment")
    }
    shortened = {value: {**HALF_OF_THE_DEMO, **settings} for value, settings in values.items()}
    return Ablation(title, "demo", shortened, GROUPS["demo"].corpora, figures, DEMO)


def _each(setting: str, values: Sequence[Setting], usual: Setting) -> dict[str, dict[str, Setting]]:
    """Return settings for each value of one setting.

    The usual value of the config has no settings, so that all ablations share its runs.
    """
    return {str(value): {} if value == usual else {setting: value} for value in values}


STRUCTURE, ESTIMATOR = f"{MODEL}.structure", f"{MODEL}.estimator"
ABLATIONS = {
    "scorer_rate": _of_demo(
        "the scorer's learning rate, as a multiple (scorer_learn_rate)",
        _each(f"{MODEL}.scorer_learn_rate", (0.1, 0.3, 1.0, 3.0), 1.0),
    ),
    "temperature": _of_demo(
        "temperature", _each(f"{MODEL}.temperature", (0.25, 0.5, 1.0, 2.0, 4.0), 1.0)
    ),
    "entropy_weight": _of_demo(
        "entropy_weight, what a nat of entropy costs",
        _each(f"{MODEL}.entropy_weight", (-0.1, -0.01, 0.0, 0.01, 0.1), 0.0),
    ),
    "release": _of_demo(
        "updates until heads are free (release_at; samples from 150 updates later on)",
        {
            str(step): {}
            if step == 300
            else {f"{STRUCTURE}.release_at": step, f"{ESTIMATOR}.switch_at": step + 150}
            for step in (20, 100, 300, 600)
        },
    ),
    "samples": _of_demo(
        "samples of a text (num_samples)",
        _each(f"{ESTIMATOR}.then.num_samples", (2, 4, 8, 16), 8),
    ),
    "target_step": Ablation(
        "I-MLE's λ (target_step), rationales of four words",
        "rationale_learning_to_explain",
        _each(f"{ESTIMATOR}.target_step", (0.1, 0.3, 1.0, 3.0, 10.0), 1.0),
        GROUPS["rationales"].corpora,
        ACCURACY,
    ),
    "scorer_rate_of_rationales": Ablation(
        "the scorer's learning rate on text, rationales of four words by I-MLE",
        "rationale_learning_to_explain",
        _each(f"{MODEL}.scorer_learn_rate", (0.3, 1.0, 3.0, 10.0), 3.0),
        GROUPS["rationales"].corpora,
        ACCURACY,
    ),
}


def table(group: Group, found: Mapping[Entry, dict[int, dict[str, Any]]]) -> list[str]:
    columns = list(group.figures)
    lines = [f"| value | seeds | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for entry, runs in found.items():
        if runs:
            seeds = ", ".join(map(str, runs))
            lines.append(f"| {entry.what} | {seeds} | {' | '.join(values_of(group, runs))} |")
    return lines


def section_of(name: str, group: Group, raw: Path) -> list[str]:
    found = measured(group, raw)
    # There is nothing to compare as long as only one value was measured.
    if sum(map(bool, found.values())) < 2:
        return []
    figure, key = next(iter(group.figures.items()))
    rows = {
        entry.what: [run["scores"][key] for run in runs.values()]
        for entry, runs in found.items()
        if runs
    }
    config = group.entries[0].config
    lines = [f"### {group.title}", "", f"`{config}.cfg`. {heading(found)}", ""]
    lines += [write_drawing(f"ablation_{name}", group.title, figure, rows, set()), ""]
    return [*lines, *table(group, found), ""]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ABLATIONS))
    add_options(parser)
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in ABLATIONS]
    if unknown:
        parser.error(
            f"no ablation is called {', '.join(unknown)}; there are {', '.join(ABLATIONS)}"
        )
    groups = {name: ablation.group() for name, ablation in ABLATIONS.items()}
    wanted = [groups[name] for name in given.names or ABLATIONS]
    ended = trained([(group, group.entries) for group in wanted], given)
    lines = [line for name in ABLATIONS for line in section_of(name, groups[name], given.raw)]
    write_section("ablations", "What one setting changes", lines)
    print("\n".join(lines))
    sys.exit(ended)


if __name__ == "__main__":
    main()
