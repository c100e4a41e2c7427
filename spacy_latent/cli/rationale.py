"""Command ``spacy latent evaluate rationale``: a pipeline's rationales, with controls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spacy_latent.cli.messages import fail, failing, msg, warn
from spacy_latent.cli.options import Code, GpuId, Limit, Metrics, Model, Seed
from spacy_latent.cli.output import check_output, write_json
from spacy_latent.cli.pipelines import load, prepare
from spacy_latent.corpora.text_files import forgiving_lines

if TYPE_CHECKING:
    from spacy_latent.analysis.rationales import RationaleReport

EXAMPLES = """
Examples:

  spacy latent evaluate rationale training/model-best corpus/dev.spacy

  spacy latent evaluate rationale training/model-best corpus/dev.spacy --words positive.txt
"""

COLUMNS = {
    "rate": "words %",
    "spans": "spans/doc",
    "token_f": "token F1 %",
    "iou_f": "IOU F1 %",
    "comprehensiveness": "compr. %",
    "sufficiency": "suff. %",
    "accuracy": "accuracy %",
    "alone": "alone %",
}


def main(
    model: Model,
    corpus: Path = typer.Argument(
        ..., help="Docs with cats, and with annotated rationales if there are any: .spacy, .jsonl"
    ),
    spans_key: str = typer.Option(
        "rationale", "--spans-key", help="Key of doc.spans with the annotated rationales"
    ),
    words: list[Path] | None = typer.Option(
        None,
        "--words",
        help="File of words to use as a control rationale, one in each line; ';' starts a "
        "comment. May be repeated",
    ),
    limit: Limit = 0,
    metrics: Metrics = None,
    seed: Seed = 0,
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Print figures on the rationales of a trained pipeline, with controls.

    The figures are the number of words, the agreement with the rationales of the corpus, and the
    predictions without the words and for the words alone. The controls are random, first and listed
    words.
    """
    from dataclasses import asdict

    from spacy_latent.analysis.rationales import report
    from spacy_latent.analysis.reference_check import in_words, unknown_labels
    from spacy_latent.cli.corpus import read_examples
    from spacy_latent.cli.progress import progress

    check_output(metrics)
    for path in words or []:
        if not path.is_file():
            fail(f"{path} does not exist. Give a text file with one word in each line.")
    if not corpus.exists():
        fail(f"{corpus} does not exist. Give a .spacy file, or .jsonl.")
    prepare(code, gpu_id)
    nlp = load(model)
    with failing("The rationales could not be measured"):
        listed = {word for path in words or [] for word in read_words(path)}
        examples = read_examples(nlp, str(corpus), limit)
        for said in in_words(unknown_labels(nlp, examples)):
            warn(said)
        docs = [example.reference for example in examples]
        found = report(nlp, docs, spans_key, listed, seed, progress)
    msg.table(table_rows(found), header=("", *COLUMNS.values()))
    if metrics is not None:
        write_json(metrics, {name: asdict(row) for name, row in found.items()})


def read_words(path: Path) -> list[str]:
    """Return the words of a list in lower case."""
    lines = forgiving_lines(path)
    return [line.strip().lower() for line in lines if line.strip() and not line.startswith(";")]


def table_rows(found: dict[str, RationaleReport]) -> list[tuple[str, ...]]:
    """Return a row for each kind of rationale, with shares in percent."""
    return [
        (name, *(_shown(getattr(row, column), column) for column in COLUMNS))
        for name, row in found.items()
    ]


def _shown(value: float | None, column: str) -> str:
    if value is None or value != value:
        return "-"
    # Adding 0 turns −0 into 0.
    return f"{value:.2f}" if column == "spans" else f"{round(100 * value, 1) + 0:.1f}"
