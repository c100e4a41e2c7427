"""What classifiers of text pairs reach, and how well they align words, beside controls.

python -m spacy_latent.cli.pairs corpus/alignment/dev.spacy training/one_to_one/model-best
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import srsly
import typer
from wasabi import msg

if TYPE_CHECKING:
    from spacy.tokens import Doc

Row = dict[str, Any]
COLUMNS = ("accuracy", "precision", "recall", "f1", "error_rate")


def model_row(path: Path, corpus: Path) -> Row:
    """What a pipeline reaches on a corpus: its accuracy with a 95 % interval, and where references
    have alignments under "sure", the scores of its best alignments."""
    import spacy

    from spacy_latent.alignment_analysis import alignment_scores, links_of
    from spacy_latent.analysis import confidence_interval
    from spacy_latent.corpora.text_pairs import read_text_pairs_v1

    nlp = spacy.load(path)
    own = [name for name in nlp.pipe_names if "latent_textcat" in nlp.get_pipe_meta(name).factory]
    examples = list(read_text_pairs_v1(corpus)(nlp))
    docs = list(nlp.pipe(example.predicted for example in examples))
    right = sum(_best(doc) == _best(each.reference) for doc, each in zip(docs, examples))
    row: Row = {
        "name": path.parent.name if path.name.startswith("model-") else path.name,
        "accuracy": right / max(len(docs), 1),
        "interval": confidence_interval(right, len(docs)),
    }
    gold = [_gold(example.reference) for example in examples]
    if any(gold):
        links = [links_of(doc, own[0]) or [] for doc, known in zip(docs, gold) if known]
        row |= vars(alignment_scores(links, *zip(*filter(None, gold))))
    return row


def control_rows(corpus: Path) -> list[Row]:
    """A row for each control, where references have alignments."""
    import spacy

    from spacy_latent.alignment_analysis import ALIGNMENT_CONTROLS, alignment_scores
    from spacy_latent.corpora.text_pairs import FIRST, SECOND, read_docs

    docs = [(doc, gold) for doc in read_docs(spacy.blank("xx"), corpus) if (gold := _gold(doc))]
    rows = []
    for name, control in ALIGNMENT_CONTROLS.items() if docs else ():
        found = []
        for doc, _ in docs:
            first, second = (doc.spans[key][0] for key in (FIRST, SECOND))
            links = control([t.text for t in first], [t.text for t in second])
            found.append([(first.start + i, second.start + j) for i, j in links])
        rows.append({"name": name, **vars(alignment_scores(found, *zip(*(g for _, g in docs))))})
    return rows


def _gold(doc: Doc) -> tuple[Any, Any] | None:
    """Sure and possible links, or None where none are sure."""
    from spacy_latent.alignment_analysis import links_of

    sure = links_of(doc, "sure")
    return (sure, links_of(doc, "possible") or sure) if sure else None


def _best(doc: Doc) -> str:
    return max(sorted(doc.cats), key=lambda label: doc.cats[label], default="")


def main(corpus: Path, models: list[Path], metrics: Path | None = None) -> None:
    """Print accuracy and alignment scores of pipelines on CORPUS (.jsonl, .tsv or .spacy), in
    percent; and write them to METRICS."""
    for path in (corpus, *models):
        if not path.exists():
            msg.fail(f"{path} does not exist.", exits=1)
    rows = [*(model_row(path, corpus) for path in models), *control_rows(corpus)]
    columns = [column for column in COLUMNS if any(column in row for row in rows)]
    table = []
    for row in rows:
        shown = [f"{100 * row[column]:.1f}" if column in row else "" for column in columns]
        interval = " to ".join(f"{100 * bound:.1f}" for bound in row.get("interval", ()))
        table.append((row["name"], *shown, interval))
    header = ("", *columns, "95 % interval of accuracy")
    msg.table(table, header=header, aligns=("l", *("r" for _ in header[1:])), divider=True)
    if metrics is not None:
        metrics.parent.mkdir(parents=True, exist_ok=True)
        srsly.write_json(metrics, {row.pop("name"): row for row in rows})


if __name__ == "__main__":
    typer.run(main)
