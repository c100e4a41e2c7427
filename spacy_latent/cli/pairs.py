"""Command ``spacy latent evaluate pairs``: accuracy and alignments of classifiers of pairs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spacy_latent.cli.messages import fail, msg, warn
from spacy_latent.cli.options import Code, GpuId, Metrics, Models
from spacy_latent.cli.output import check_output, write_json
from spacy_latent.cli.pipelines import check_arguments, load, prepare, trained_name
from spacy_latent.errors import LatentError, LatentWarning, number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spacy.language import Language
    from spacy.training import Example

Row = dict[str, Any]
# Names of the fields of the first text, the second text and the label; None for the names in the
# pipeline's config.
Fields = tuple[str | None, str | None, str | None]
EXAMPLES = """
Examples:

  spacy latent evaluate pairs training/model-best dev.jsonl

  spacy latent evaluate pairs training/one_to_one/model-best training/attention/model-best
dev.jsonl
"""
FIELD = "Field (.jsonl) or column (.tsv, .csv) of the"
# Scores of labels, of several labels, and of numbers; see spacy_latent.analysis.task.
SCORES = ("accuracy", "F1 of the labels", "1 − mean absolute error")
COLUMNS = (*SCORES, "precision", "recall", "f1", "error_rate")


def model_row(path: Path, corpus: Path, fields: Fields = (None, None, None)) -> Row:
    """Return the score of a pipeline on a corpus by its name, with a 95 % interval.

    If the references have alignments, the row also has the best alignments and their scores.
    """
    from spacy.training import Example

    from spacy_latent.analysis.alignments import alignment_scores, gold_links, links_of
    from spacy_latent.analysis.reference_check import in_words, unknown_labels
    from spacy_latent.cli.corpus import field_hint
    from spacy_latent.cli.progress import progress
    from spacy_latent.corpora.text_pairs import (
        NoSuchField,
        missing_labels,
        pair_fields,
        read_text_pairs_v1,
    )
    from spacy_latent.pipeline.latent_textcat import LatentTextCategorizer

    nlp = load(str(path))
    config = nlp.config.interpolate()
    own = [name for name, pipe in nlp.pipeline if isinstance(pipe, LatentTextCategorizer)]
    first, second, label = (given or known for given, known in zip(fields, pair_fields(config)))
    with warnings.catch_warnings():
        # Warnings about pairs without a label, which are counted below.
        warnings.simplefilter("ignore", LatentWarning)
        reader = read_text_pairs_v1(corpus, first, second, label, missing=missing_labels(config))
        examples = list(reader(nlp))
    if not examples:
        raise LatentError(f"The corpus {corpus} holds no pairs. Give one with at least one.")
    gold = [gold_links(example.reference) for example in examples]
    labelled = [bool(example.reference.cats) for example in examples]
    if not any(labelled) and not any(gold):
        raise NoSuchField(
            f"No pair of {corpus} has a label under {label!r}{field_hint(corpus)}, so "
            "predictions cannot be evaluated."
        )
    name = trained_name(path)
    stream = nlp.pipe(example.predicted for example in examples)
    docs = list(progress(stream, name, len(examples), unit="pair"))
    row: Row = {"name": name}
    if any(labelled):
        pairs = [Example(doc, each.reference) for doc, each in zip(docs, examples)]
        judged = [pair for pair in pairs if pair.reference.cats]
        count, score = _score(nlp, judged)
        row |= {"pairs": count, **score}
        if count < len(examples):
            missed = f"{len(examples) - count} of {number_of(len(examples), 'pair')}"
            warn(f"{missed} in {corpus} have no label, and are left out of the score")
        for said in in_words(unknown_labels(nlp, examples)):
            warn(said)
    # A classifier without a structure has no alignments.
    if any(gold) and own:
        links = [links_of(doc, own[0]) or [] for doc, known in zip(docs, gold) if known]
        row |= {**vars(alignment_scores(links, *zip(*filter(None, gold)))), "links": links}
    return row


def _score(nlp: Language, judged: Sequence[Example]) -> tuple[int, Row]:
    """Return the number of pairs that count, and their score by its name with a 95 % interval.

    It is the accuracy, or for several labels or numbers the score that fits these.

    Raises:
        LatentError: If the pipeline predicts no categories, or no pair has a label that holds.
    """
    import numpy as np

    from spacy_latent.analysis import confidence_interval
    from spacy_latent.analysis.resampling import interval
    from spacy_latent.analysis.task import measure_of_categories

    measure = measure_of_categories(nlp, judged)
    counts = np.zeros(0) if measure is None else measure.counts(judged)
    predicted = any(pair.predicted.cats for pair in judged)
    if measure is None or not predicted or not counts.any():
        raise LatentError(
            "The pipeline predicts none of the labels of these pairs. Give a pipeline with a "
            "classifier of these labels, such as latent_textcat, and pairs with labels."
        )
    score, *bounds = interval(measure.value, counts)
    if measure.name != "accuracy":
        return len(judged), {measure.name: score, "interval": tuple(bounds)}
    right, count = counts.sum(0).tolist()
    return int(count), {"accuracy": score, "interval": confidence_interval(right, int(count))}


def control_rows(corpus: Path) -> list[Row]:
    """Return a row for each control, if the references have alignments, as in .spacy files."""
    import spacy

    from spacy_latent.analysis.alignments import ALIGNMENT_CONTROLS, alignment_scores, gold_links
    from spacy_latent.corpora.text_pairs import FIRST, SECOND, read_docs

    if corpus.suffix != ".spacy":
        return []
    docs = [
        (doc, gold) for doc in read_docs(spacy.blank("xx"), corpus) if (gold := gold_links(doc))
    ]
    rows = []
    for name, control in ALIGNMENT_CONTROLS.items() if docs else ():
        found = []
        for doc, _ in docs:
            # The group of an empty text is empty.
            first, second = (
                [t for text in doc.spans[key] for t in text] for key in (FIRST, SECOND)
            )
            links = control([t.text for t in first], [t.text for t in second])
            found.append([(first[i].i, second[j].i) for i, j in links])
        scores = alignment_scores(found, *zip(*(gold for _, gold in docs)))
        rows.append({"name": name, **vars(scores), "links": found})
    return rows


def compare(rows: list[Row], beside: str, corpus: Path) -> None:
    """Add to rows with alignments the interval of the difference in F1 from the row ``beside``."""
    import spacy

    from spacy_latent.analysis.alignments import f1_difference, gold_links
    from spacy_latent.corpora.text_pairs import read_docs

    aligned = {row["name"]: row.pop("links") for row in rows if "links" in row}
    if not aligned:
        return
    if beside not in aligned:
        fail(f"--beside is {beside!r}; expected the name of a row: {', '.join(aligned)}.")
    gold = [gold_links(doc) for doc in read_docs(spacy.blank("xx"), corpus)]
    sure, possible = zip(*filter(None, gold))
    for row in rows:
        if row["name"] in aligned and row["name"] != beside:
            both = aligned[row["name"]], aligned[beside]
            row["difference"] = f1_difference(*both, sure, possible)


def main(
    models: Models,
    corpus: Path = typer.Argument(..., help="Pairs with labels: .jsonl, .tsv, .csv or .spacy"),
    metrics: Metrics = None,
    beside: str = typer.Option(
        "nearest same word", "--beside", help="Name of the row that F1 is compared with"
    ),
    first: str | None = typer.Option(None, "--first", help=f"{FIELD} first text"),
    second: str | None = typer.Option(None, "--second", help=f"{FIELD} second text"),
    label: str | None = typer.Option(None, "--label", help=f"{FIELD} label"),
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Print accuracy and alignment scores of classifiers of text pairs, in percent.

    Classifiers with several labels have the F1 of the labels in place of the accuracy. Classifiers
    of numbers have 1 − the mean absolute error as a share of the score_range. The last columns
    are 95 % intervals of this score, and of the difference in F1 from the row of --beside. Default
    fields are those of the reader in the pipeline's config, or else text_a, text_b and label.
    """
    from spacy_latent.corpora.text_pairs import NoSuchField

    check_output(metrics)
    prepare(code, gpu_id)
    check_arguments(models, corpus, "pairs")
    try:
        judged = [model_row(path, corpus, (first, second, label)) for path in models]
    except LatentError as error:
        of_fields = isinstance(error, NoSuchField)
        advice = " On the command line: --first, --second and --label." if of_fields else ""
        fail(f"The pairs of {corpus} cannot be scored", f"{error}{advice}")
    names = [row["name"] for row in judged]
    for row, path in zip(judged, models):
        if names.count(row["name"]) > 1:
            row["name"] = str(path)
    rows = [*judged, *control_rows(corpus)]
    compare(rows, beside, corpus)
    columns = [column for column in COLUMNS if any(column in row for row in rows)]
    scores = [column for column in columns if column in SCORES]
    judged_by = scores[0] if len(scores) == 1 else "score"
    titles = {"interval": f"{judged_by}, 95 %", "difference": f"f1 − f1 of {beside}, 95 %"}
    intervals = [key for key in titles if any(key in row for row in rows)]
    counts = ["pairs"] if any("pairs" in row for row in rows) else []
    table = []
    for row in rows:
        shown = [str(row.get(key, "")) for key in counts]
        shown += [f"{100 * row[column]:.1f}" if column in row else "" for column in columns]
        for key in intervals:
            shown.append(" to ".join(f"{100 * bound:.1f}" for bound in row.get(key, ())))
        table.append((row["name"], *shown))
    header = ("", *counts, *columns, *(titles[key] for key in intervals))
    msg.table(table, header=header)
    if metrics is not None:
        write_json(metrics, {row.pop("name"): row for row in rows})
