"""Command ``spacy latent sources``: learned reliability of each source of annotation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spacy_latent.cli.figures import as_percent
from spacy_latent.cli.messages import fail, msg
from spacy_latent.cli.options import Code, FindingsAsJson, Model
from spacy_latent.cli.output import check_output, write_page
from spacy_latent.cli.pipelines import import_code, load

if TYPE_CHECKING:
    from spacy_latent.models.tag_sources import SourceReliability

TITLE = "What each source writes at a token with a label"
EXAMPLES = """
Examples:

  spacy latent sources training/model-last

  spacy latent sources training/model-last --totals

  spacy latent sources training/model-last --picture sources.svg
"""


def sources_cli(
    model: Model,
    totals: bool = typer.Option(
        False,
        "--totals",
        help="Print one row for each source, over all labels, the least reliable first",
    ),
    picture: Path | None = typer.Option(
        None, "--picture", help="SVG file to write with the confusions of each source and label"
    ),
    as_json: FindingsAsJson = False,
    code: Code = None,
) -> None:
    """Show the precision and recall of each source of annotation, as a crf_ner has learned them.

    A source is a group of doc.spans that evidence.sources of the crf_ner names. The figures are
    estimates of the trained model, not measurements on gold annotation.
    """
    import srsly

    from spacy_latent.analysis.figures import plain
    from spacy_latent.models.tag_sources import source_totals
    from spacy_latent.pipeline.crf_ner import CrfEntityRecognizer

    if picture is not None and picture.suffix != ".svg":
        fail(
            f"--picture is {picture}; expected the name of an .svg file",
            "Give a name that ends in .svg.",
        )
    check_output(picture)
    import_code(code)
    nlp = load(model)
    found: dict[str, list[SourceReliability]] = {
        name: pipe.source_reliability()
        for name, pipe in nlp.pipeline
        if isinstance(pipe, CrfEntityRecognizer)
    }
    if not any(found.values()):
        fail(
            f"{model} was not trained on sources of annotation",
            "Name groups of doc.spans under evidence.sources of a crf_ner, and train it.",
        )
    if picture is not None:
        write_page(picture, _drawn(found))
    rows = {
        name: [asdict(one) for one in (source_totals(own) if totals else own)]
        for name, own in found.items()
    }
    if as_json:
        print(srsly.json_dumps(plain(rows)))
        return
    for name, each in rows.items():
        # Another crf_ner of the pipeline may have no sources.
        if each:
            msg.divider(name)
            print_table(each, ("source",) if totals else ("source", "label"))
    if picture is not None:
        msg.good(f"Picture saved to {picture}")


def print_table(rows: list[dict[str, Any]], named: tuple[str, ...]) -> None:
    """Print a row for each source, or for each of its labels, with their names first."""
    table = []
    for row in rows:
        shares = as_percent(row["precision"]), as_percent(row["recall"])
        table.append((*(row[key] for key in named), *shares, f"{row['tokens']:,.0f}"))
    header = (*named, "precision", "recall", "tokens")
    msg.table(table, header=header, aligns="l" * len(named) + "rrr")


def _drawn(found: dict[str, list[SourceReliability]]) -> str:
    """Draw the confusions of all sources as an SVG: a row for each source and label."""
    from spacy_latent.visualize.alignment_svg import DrawnCell
    from spacy_latent.visualize.drawing_options import DrawingOptions
    from spacy_latent.visualize.heat_map_svg import draw_heat_map
    from spacy_latent.visualize.picture import svg

    several = sum(map(bool, found.values())) > 1
    named = [
        (f"{name}: {one.source}" if several else one.source, one)
        for name, own in found.items()
        for one in own
    ]
    rows = [f"{source}, {one.label}" for source, one in named]
    columns = list(dict.fromkeys(label for _, one in named for label in one.confusions))
    cells = [
        DrawnCell(i, columns.index(label), share, label == one.label)
        for i, (_, one) in enumerate(named)
        for label, share in one.confusions.items()
        if share == share
    ]
    drawn = draw_heat_map(rows, columns, cells, DrawingOptions(as_svg=True), TITLE)
    return svg(drawn, DrawingOptions(as_svg=True), standalone=True) + "\n"
