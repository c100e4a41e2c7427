"""What classifiers of text pairs reach, and how well they align words, beside controls.

python -m spacy_latent.cli.pairs corpus/alignment/dev.spacy training/one_to_one/model-best
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import srsly
import typer
from wasabi import msg

Row = dict[str, Any]
COLUMNS = ("accuracy", "precision", "recall", "f1", "error_rate")


def report(corpus: Path, models: list[Path]) -> list[Row]:
    """A row for each pipeline: its accuracy, and where the corpus has gold alignments, the scores
    of its best alignments; and one for each control."""
    import spacy

    from spacy_latent.alignment_analysis import ALIGNMENT_CONTROLS, alignment_scores, links_of
    from spacy_latent.analysis import confidence_interval
    from spacy_latent.corpora.text_pairs import FIRST, SECOND, read_text_pairs_v1

    rows: list[Row] = []
    for path in models:
        nlp = spacy.load(path)
        (name,) = [name for name in nlp.pipe_names if name.startswith("latent_textcat")]
        examples = list(read_text_pairs_v1(corpus)(nlp))
        docs = list(nlp.pipe(example.predicted for example in examples))
        right = [_best(doc.cats) == _best(e.y.cats) for doc, e in zip(docs, examples)]
        accuracy = sum(right) / max(len(right), 1)
        row: Row = {"name": path.parent.name if path.name.startswith("model-") else path.name}
        row |= {"accuracy": accuracy, "interval": confidence_interval(sum(right), len(right))}
        gold = [
            (links_of(e.reference, "sure"), links_of(e.reference, "possible")) for e in examples
        ]
        chosen = [k for k, (sure, _) in enumerate(gold) if sure]
        if chosen:
            sure, possible = ([pair[k] or [] for pair in (gold[c] for c in chosen)] for k in (0, 1))
            found = [links_of(docs[k], name) or [] for k in chosen]
            row |= vars(alignment_scores(found, sure, possible))
        rows.append(row)
    if models and chosen:
        texts = []
        for k in chosen:
            doc = examples[k].reference
            texts.append([[t.text for t in doc.spans[key][0]] for key in (FIRST, SECOND)])
        starts = [
            [examples[k].reference.spans[key][0].start for key in (FIRST, SECOND)] for k in chosen
        ]
        for name, control in ALIGNMENT_CONTROLS.items():
            links = [
                [(i + first, j + second) for i, j in control(*words)]
                for words, (first, second) in zip(texts, starts)
            ]
            rows.append({"name": name, **vars(alignment_scores(links, sure, possible))})
    return rows


def _best(cats: dict[str, float]) -> str:
    return max(sorted(cats), key=lambda label: cats[label], default="")


def main(corpus: Path, models: list[Path], metrics: Path | None = None) -> None:
    """Print accuracy and alignment scores of pipelines on CORPUS (.jsonl, .tsv or .spacy), in
    percent; and write them to METRICS."""
    for path in (corpus, *models):
        if not path.exists():
            msg.fail(f"{path} does not exist.", exits=1)
    rows = report(corpus, models)
    columns = [column for column in COLUMNS if any(column in row for row in rows)]
    table = []
    for row in rows:
        shown = [f"{100 * row[column]:.1f}" if column in row else "" for column in columns]
        low, high = row.get("interval", (None, None))
        interval = "" if low is None else f"{100 * low:.1f} to {100 * high:.1f}"
        table.append((row["name"], *shown, interval))
    header = ("", *columns, "95 % interval of accuracy")
    msg.table(table, header=header, aligns=("l", *("r" for _ in header[1:])), divider=True)
    if metrics is not None:
        metrics.parent.mkdir(parents=True, exist_ok=True)
        srsly.write_json(metrics, {row.pop("name"): row for row in rows})


if __name__ == "__main__":
    typer.run(main)
