"""Draw the picture of the page about incomplete annotation, from the raw results on BC5CDR.

    python -m benchmarks incomplete_picture

It has a row for `crf_ner` with each kind of evidence, and rows for the best simple baselines and
for common practice. ``python -m benchmarks learning incomplete`` measures them.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.label_models import kept
from benchmarks.learning import rows_of
from benchmarks.learning_groups import AGGREGATES, INCOMPLETE_ENTRIES
from benchmarks.learning_plot import DRAWINGS, drawing

PATH = DRAWINGS / "incomplete_annotation.svg"
EVIDENCE = "crf_ner with evidence"
SHARE = "15 % of other tokens as negatives"
# The rows of each kind of annotation: the name of each row, and the name of its entry.
ROWS: dict[str, dict[str, str]] = {
    "all annotation": {"crf_ner": "all annotation", "spaCy's ner": "all annotation, spaCy's ner"},
    "flags beside 150 sentences": {
        EVIDENCE: "flags beside 150 sentences",
        "self-training, filtered by the flags": (
            "control: flags, self-training filtered by the flags"
        ),
        "spaCy's ner on the 150": "control: flags, spaCy's ner, as if it were complete",
    },
    "one label in each half": {
        EVIDENCE: "one label in each half",
        "spaCy's ner, as if complete": "control: label_sets, spaCy's ner, as if it were complete",
    },
    "30 % of the entities": {
        EVIDENCE: f"30 % of the entities, {SHARE}",
        "spaCy's ner, 15 % as outside": f"control: sparse, spaCy's ner, {SHARE}, drawn once",
        "spaCy's ner, as if complete": "control: sparse, spaCy's ner, as if it were complete",
    },
    "five sources": {
        EVIDENCE: "five sources, confusions learned",
        "the best source alone": f"control: sources, {AGGREGATES['best']}",
        "votes of tokens": f"control: sources, {AGGREGATES['plurality']}",
        "majority of each span": "control: sources, the majority of each span",
    },
}
TWO_MODELS = "one label in each half: a model for each label"


def scores() -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the F1 of each seed for each row, and the kind of annotation of each row."""
    entries = {entry.what: entry for entry in INCOMPLETE_ENTRIES}
    found: dict[str, list[float]] = {}
    kinds: dict[str, str] = {}
    for kind, rows in ROWS.items():
        for name, what in rows.items():
            runs = rows_of(entries[what])
            if runs:
                found[f"{kind}: {name}"] = [run["scores"]["ents_f"] for run in runs.values()]
        if TWO_MODELS.startswith(kind) and kept():
            found[TWO_MODELS] = [row["scores"]["both"] for row in kept().values()]
        kinds |= {row: kind for row in found if row not in kinds}
    return found, kinds


def write_picture(path: Path = PATH) -> None:
    found, kinds = scores()
    ours = {f"{kind}: {EVIDENCE}" for kind in ROWS} | {"all annotation: crf_ner"}
    controls = {row for row in found if row not in ours}
    title = "Entities of BC5CDR from incomplete annotation"
    path.write_text(drawing(title, "entity F1", found, controls, kinds), encoding="utf8")


def main() -> None:
    write_picture()
    print(f"Written: {PATH}")


if __name__ == "__main__":
    main()
