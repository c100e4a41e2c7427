"""Write RESULTS.md, a page of selected rows of the pages of results.

    python -m benchmarks headlines

All figures are looked up on these pages, and none is typed. Every program that writes a section of
results writes this page as well. Its rows are declared here, including rows in which another
library is better.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pages import FOLDER, PAGES, page_of, read_section

PATH = Path(__file__).with_name("RESULTS.md")
INTRODUCTION = """\
# Results

A program measured every figure: `python -m benchmarks NAME`. This page takes its rows from the
pages of the topics, where the day, the machine and the versions stand: `python -m benchmarks
headlines`. Raw results are in `benchmarks/runs`. [Choosing](../docs/choosing.md) and
[limits](../docs/limits.md) say what follows from them.

How to read them: figures of several seeds stand in the order of the seeds, then their mean, and in
brackets the least and the most. This page leaves out the single seeds. *±* is two standard
deviations of a run. A *control* is what a row is compared with, such as the same model without a
structure. In the tables of speed, *peer* is the library that is compared, and *target* how many
times as fast we wanted to be."""


@dataclass(frozen=True)
class Cell:
    """One figure of a section.

    Attributes:
        section: The name of the section.
        row: The beginning of the row, which no other row of the section has.
        column: The heading of its column.
    """

    section: str
    row: str
    column: str


@dataclass(frozen=True)
class Headline:
    """A row of the page.

    Attributes:
        what: The measured quantity.
        cells: The cells of the other columns, either figures to look up or texts.
    """

    what: str
    cells: tuple[Cell | str, ...]


@dataclass(frozen=True)
class Table:
    """A table of the page, with a sentence on what it shows."""

    title: str
    sentence: str
    columns: tuple[str, ...]
    headlines: tuple[Headline, ...]


def _speed(what: str, row: str) -> Headline:
    columns = ("ours, ms", "peer, ms", "peer / ours", "peer")
    return Headline(what, tuple(Cell("inference", f"| {row} |", column) for column in columns))


def _gpu(structure: str) -> Headline:
    columns = ("kernel", "torch-struct", "torch.linalg", "times")
    row = f"| {structure} | 256 | 32 | marginals |"
    return Headline(structure, tuple(Cell("gpu", row, column) for column in columns))


def _process(what: str, section: str, row: str, column: str, beside: str) -> Headline:
    return Headline(what, (Cell(section, f"| {row} |", column), beside))


def _learned(
    what: str, section: str, column: str, row: str, control_row: str, control: str
) -> Headline:
    ours, theirs = (Cell(section, f"| {start}", column) for start in (row, control_row))
    return Headline(what, (ours, theirs, control))


def _columns(what: str, section: str, row: str, ours: str, theirs: str, control: str) -> Headline:
    """Return a row whose section has the control's figure in another column of the same row."""
    cells = (Cell(section, f"| {row} |", column) for column in (ours, theirs))
    return Headline(what, (*cells, control))


LEARNED = ("", "with the structure", "control", "the control is")
TABLES = (
    Table(
        "Speed of inference on a CPU",
        "A batch of 32 items of 50 words at scores of scale 1, or what the row says. Where "
        "*peer / ours* is below 1, the peer is faster.",
        ("", "ours, ms", "peer, ms", "peer / ours", "peer"),
        (
            _speed(
                "marginals of projective trees, with gradient",
                "projective marginals, forward + backward | torch-struct | 32 | 50 | 1",
            ),
            _speed(
                "marginals of non-projective trees, with gradient",
                "non-projective marginals, forward + backward | torch-struct | 32 | 50 | 1",
            ),
            _speed(
                "marginals of binary constituency trees, with gradient",
                "binary constituency marginals, forward + backward | torch-struct | 32 | 50 | 1",
            ),
            _speed(
                "marginals of a chain of 20 tags, with gradient",
                "linear chain, 20 tags, marginals, forward + backward | torch-struct | 32 | 50 | 1",
            ),
            _speed(
                "best chain of 20 tags",
                "linear chain, 20 tags, MAP | torch-struct | 32 | 50 | 1",
            ),
            _speed(
                "SparseMAP of projective trees, with gradient",
                "SparseMAP, projective tree, forward + backward | lp-sparsemap | 32 | 50 | 1",
            ),
            _speed(
                "SparseMAP of non-projective trees, with gradient",
                "SparseMAP, non-projective tree, forward + backward | lp-sparsemap | 32 | 50 | 1",
            ),
            _speed(
                "best non-projective tree",
                "non-projective MAP | ufal.chu_liu_edmonds | 32 | 50 | 1",
            ),
            _speed(
                "best non-projective tree of a single sentence of 25 words",
                "non-projective MAP | ufal.chu_liu_edmonds | 1 | 25 | 1",
            ),
            _speed(
                "sparsemax, 50 rows of 50 for each item, with gradient",
                "sparsemax, n rows of n for each item, forward + backward | entmax | 32 | 50 | 1",
            ),
        ),
    ),
    Table(
        "Speed of inference on a GPU",
        "Milliseconds for marginals of 256 items of 32 words. *Times* is the faster peer's time "
        "divided by ours: below 1, the peer is faster. "
        "Measured before the kernels were written in Triton.",
        ("", "kernel", "torch-struct", "torch.linalg", "times"),
        tuple(map(_gpu, ("linear chain", "projective tree", "constituency tree", "spanning tree"))),
    ),
    Table(
        "Pipelines",
        "What a structure costs in a pipeline of spaCy's.",
        ("", "measured", "beside"),
        (
            _process(
                "time of prediction with `latent_encoder`, marginals",
                "pipeline",
                "component, marginals",
                "prediction",
                "without it, 1.00",
            ),
            _process(
                "time of training with it",
                "pipeline",
                "component, marginals",
                "training",
                "without it, 1.00",
            ),
            _process(
                "time of training `crf_ner` for 20 labels",
                "entity_labels",
                "20",
                "ratio",
                "spaCy's `ner`, 1.00",
            ),
            _process(
                "first call of a tree, compiled code on disk, seconds",
                "footprint",
                "first call of a tree, compiled code on disk, s",
                "measured",
                "bound, 2",
            ),
            _process(
                "efficiency of two processes, 4,800 words in a batch",
                "ranks",
                "4,800",
                "efficiency",
                "twice the speed of one, 100%",
            ),
        ),
    ),
    Table(
        "Entities, spans and parsing",
        "F1, attachment or calibration error in percent, beside spaCy's components, on the same "
        "texts.",
        LEARNED,
        (
            _columns(
                "entities of BC5CDR after 100 steps, F1",
                "entity_curves",
                "BC5CDR | 5 | 100",
                "crf_ner",
                "ner",
                "spaCy's `ner`",
            ),
            _columns(
                "entities of BC5CDR after 400 steps, F1",
                "entity_curves",
                "BC5CDR | 5 | 400",
                "crf_ner",
                "ner",
                "spaCy's `ner`",
            ),
            _columns(
                "entities of WNUT-17 after 400 steps, F1",
                "entity_curves",
                "WNUT-17 | 5 | 400",
                "crf_ner",
                "ner",
                "spaCy's `ner`",
            ),
            _learned(
                "entities of BC5CDR over a pre-trained encoder, F1",
                "learning_transformers",
                "entity F1",
                "`ner_transformer_crf`: BC5CDR",
                "`ner_transformer_baseline`: BC5CDR",
                "spaCy's `ner`",
            ),
            _columns(
                "calibration error of entities of BC5CDR by `spacy latent calibrate`",
                "calibration_bc5cdr",
                "both",
                "after",
                "error before",
                "not calibrated",
            ),
            _learned(
                "noun phrases that nest, UD English EWT, F1",
                "learning_spans",
                "F1",
                "`nested_ewt` |",
                "`nested_ewt_spancat`",
                "spaCy's `spancat`",
            ),
            _learned(
                "labelled attachment, UD English EWT",
                "learning_parsers",
                "with labels",
                "`parser_ewt`: UD English EWT |",
                "`parser_ewt_transition`: UD English EWT, control",
                "spaCy's `parser`",
            ),
            _learned(
                "labelled attachment over a pre-trained encoder",
                "learning_transformers",
                "with labels",
                "`parser_ewt_transformer`: latent_parser",
                "`parser_ewt_transformer_baseline`",
                "spaCy's `parser`",
            ),
            _learned(
                "labelled attachment, UD Latin CIRCSE, 90 seconds",
                "parsing_latin",
                "LAS, %",
                "latent_parser |",
                "parser |",
                "spaCy's `parser`",
            ),
        ),
    ),
    Table(
        "Entities from incomplete annotation",
        "F1 in percent, on BC5CDR unless a corpus is named, beside a control that reads the same.",
        LEARNED,
        (
            _learned(
                "flags beside 150 complete sentences",
                "learning_incomplete",
                "entity F1",
                "`ner_flags`: flags beside 150 sentences",
                "`ner_crf`: control: flags, self-training filtered by the flags",
                "self-training, filtered by the flags",
            ),
            _learned(
                "one label in each half",
                "learning_incomplete",
                "entity F1",
                "`ner_label_sets`: one label in each half",
                "`ner_crf`: control: label_sets, as if it were complete",
                "read as if it were complete",
            ),
            _learned(
                "one label in each half, 600 steps",
                "label_models",
                "both",
                "one for both labels, 600 steps",
                "one for each label, 300 steps each",
                "a model for each label",
            ),
            _learned(
                "30 % of the entities",
                "learning_incomplete",
                "entity F1",
                "`ner_sparse`: 30 % of the entities, 15 % of other tokens as negatives |",
                "`ner_baseline`: control: sparse, spaCy's ner, 15 % of other tokens",
                "spaCy's `ner`, as many negatives",
            ),
            _learned(
                "five sources that disagree",
                "learning_incomplete",
                "entity F1",
                "`ner_sources`: five sources",
                "`ner_crf`: control: sources, the source alone",
                "the best source alone",
            ),
            _learned(
                "Universal NER: flags beside 150 complete sentences",
                "learning_incomplete_uner",
                "entity F1",
                "`ner_flags`: flags beside 150 sentences",
                "`ner_crf`: control: flags, self-training filtered by the flags",
                "self-training, filtered by the flags",
            ),
            _learned(
                "Universal NER: some labels in each half",
                "learning_incomplete_uner",
                "entity F1",
                "`ner_label_sets`: label sets",
                "`ner_crf`: control: label_sets, as if it were complete",
                "read as if it were complete",
            ),
            _learned(
                "Universal NER: five sources that disagree",
                "learning_incomplete_uner",
                "entity F1",
                "`ner_sources`: five sources",
                "`ner_crf`: control: sources, the tag of each token with most votes",
                "votes for each token",
            ),
            _learned(
                "WNUT-17: flags beside 150 complete sentences",
                "learning_incomplete_wnut",
                "entity F1",
                "`ner_flags`: flags beside 150 sentences",
                "`ner_crf`: control: flags, self-training filtered by the flags",
                "self-training, filtered by the flags",
            ),
            _learned(
                "WNUT-17: some labels in each half",
                "learning_incomplete_wnut",
                "entity F1",
                "`ner_label_sets`: label sets",
                "`ner_crf`: control: label_sets, as if it were complete",
                "read as if it were complete",
            ),
            _learned(
                "all annotation, for comparison",
                "learning_incomplete",
                "entity F1",
                "`ner_crf`: all annotation",
                "`ner_baseline`: all annotation, spaCy's ner",
                "spaCy's `ner`",
            ),
        ),
    ),
    Table(
        "Latent structures",
        "Accuracy or agreement with gold structures in percent, beside the same without the "
        "structure or with another.",
        LEARNED,
        (
            _learned(
                "the demo: trees of ListOps from the value alone, attachment",
                "learning_demo",
                "attachment",
                "`demo`: score function |",
                "`demo_independent`",
                "heads without a tree",
            ),
            _learned(
                "ListOps with four operators, accuracy: SparseMAP",
                "learning_listops",
                "accuracy",
                "`listops_sparsemap`: ",
                "`listops_lstm`",
                "an LSTM, no structure",
            ),
            _learned(
                "ListOps with four operators, accuracy: straight-through",
                "learning_listops",
                "accuracy",
                "`listops_straight_through`",
                "`listops_lstm`",
                "an LSTM, no structure",
            ),
            _learned(
                "arguments of an operator, F1: projective SparseMAP",
                "learning_arguments",
                "F1",
                "`arguments_projective`",
                "`arguments_chain`",
                "each word on the one before",
            ),
            _learned(
                "paraphrases, F1 of alignments: monotone",
                "learning_alignments",
                "alignment F1",
                "`pairs_alignment_monotone`",
                "`pairs_alignment_attention`: control: attention",
                "attention",
            ),
            _learned(
                "paraphrases, accuracy: monotone",
                "learning_alignments",
                "accuracy",
                "`pairs_alignment_monotone`",
                "`pairs_alignment_attention`: control: attention",
                "attention",
            ),
            _learned(
                "sentence polarity, accuracy: projective trees",
                "learning_sentiment",
                "accuracy",
                "`sentiment_projective`",
                "`sentiment_baseline`",
                "no structure",
            ),
            _learned(
                "sentence polarity, accuracy over a parser's trees",
                "learning_given_trees",
                "accuracy",
                "`sentiment_given_trees`: the parser's trees",
                "`sentiment_given_trees`: control: random",
                "random trees",
            ),
            _learned(
                "sentence polarity from four words of a text, accuracy",
                "learning_rationales",
                "accuracy",
                "`rationale_learning_to_explain`",
                "`rationale_full_text`",
                "all words",
            ),
            _learned(
                "scores of four aspects from ten words, R²",
                "learning_aspects",
                "R²",
                "`aspects_implicit_mle`",
                "`aspects_attention`",
                "attention to all words",
            ),
            _learned(
                "sentence polarity with one label in twenty, accuracy: ten codes",
                "learning_few_labels",
                "accuracy",
                "`few_labels_category`:",
                "`few_labels_category_control`",
                "the labelled sentences alone",
            ),
            _learned(
                "labelled attachment with one tree in ten",
                "learning_few_heads",
                "with labels",
                "`parser_ewt_few`:",
                "`parser_ewt_few_control`",
                "the sentences with trees alone",
            ),
        ),
    ),
)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def look_up(cell: Cell, folder: Path = FOLDER) -> str:
    """Return a figure as its section has it. Figures of single seeds before a mean are left out.

    Raises:
        LookupError: If the section lacks the row or the column, or several rows begin like it.
    """
    lines = read_section(cell.section, folder).splitlines()
    rows = [i for i, line in enumerate(lines) if line.startswith(cell.row)]
    if len(rows) != 1:
        raise LookupError(
            f"{len(rows)} rows of section {cell.section!r} begin with {cell.row!r}; a headline "
            "needs one: change it in benchmarks/headlines.py."
        )
    (row,) = rows
    head = next((i - 1 for i in range(row, 0, -1) if lines[i].startswith("|---")), None)
    columns = [] if head is None else _cells(lines[head])
    if cell.column not in columns:
        raise LookupError(
            f"The table of section {cell.section!r} has no column {cell.column!r}, but {columns}: "
            "change it in benchmarks/headlines.py."
        )
    return _cells(lines[row])[columns.index(cell.column)].rpartition("; mean ")[2]


def link(section: str, folder: Path = FOLDER) -> str:
    """Return a link to a section, with its title as the text."""
    title = read_section(section, folder).splitlines()[0].removeprefix("## ")
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    return f"[{title}]({FOLDER.name}/{page_of(section)}.md#{anchor})"


def page(folder: Path = FOLDER) -> str:
    """Return the text of RESULTS.md, with the figures of the pages in ``folder``.

    Raises:
        LookupError: If a declared row is missing on its page.
    """
    return "\n".join([INTRODUCTION, *_tables(folder), *_contents()]) + "\n"


def _tables(folder: Path) -> Iterator[str]:
    for table in TABLES:
        yield from ("", f"## {table.title}", "", table.sentence, "")
        yield f"| {' | '.join((*table.columns, 'from'))} |"
        yield f"|{'---|' * (len(table.columns) + 1)}"
        for headline in table.headlines:
            found = [
                cell if isinstance(cell, str) else look_up(cell, folder) for cell in headline.cells
            ]
            (section,) = {cell.section for cell in headline.cells if isinstance(cell, Cell)}
            yield f"| {' | '.join((headline.what, *found, link(section, folder)))} |"


def _contents() -> Iterator[str]:
    yield from ("", "## All results", "")
    for name, (title, _) in PAGES.items():
        yield f"- [{title}]({FOLDER.name}/{name}.md)"


def write_headlines(folder: Path = FOLDER, path: Path = PATH) -> None:
    """Write RESULTS.md, with the figures of the pages in ``folder``."""
    path.write_text(page(folder), encoding="utf8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    write_headlines()
    print(f"Written to {PATH}.")
