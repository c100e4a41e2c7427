"""Command ``spacy latent evaluate stats``: statistics of a pipeline's structures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import typer

from spacy_latent.cli.corpus import STDIN, read_counted
from spacy_latent.cli.figures import print_remarks, print_verdicts, to_json
from spacy_latent.cli.messages import failing, msg
from spacy_latent.cli.options import Code, Component, FiguresAsJson, GpuId, Ignore, Limit, Model
from spacy_latent.cli.pipelines import load, prepare
from spacy_latent.cli.progress import progress
from spacy_latent.errors import number_of

if TYPE_CHECKING:
    from spacy_latent.analysis.figures import LayerFigures

EXAMPLES = """
Examples:

  spacy latent evaluate stats training/model-best corpus/dev.spacy

  head -100 texts.txt | spacy latent evaluate stats training/model-best

  spacy latent evaluate stats training/model-best corpus/dev.spacy --json > stats.json
"""


def stats_cli(
    model: Model,
    corpus: str = typer.Argument(
        STDIN,
        help="Texts: .spacy, .jsonl, .txt, the format of the config's reader, or - for standard "
        "input",
    ),
    component: Component = None,
    ignore: Ignore = None,
    limit: Limit = 0,
    as_json: FiguresAsJson = False,
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Print statistics of a pipeline's structures on a corpus, with small histograms."""
    import srsly

    from spacy_latent.evaluation.assessment import assess
    from spacy_latent.pipeline.inspection import choose_components

    with failing("The statistics could not be computed"):
        prepare(code, gpu_id)
        nlp = load(model)
        # This command has only figures on structures.
        choose_components(nlp, component)
        examples, left_out = read_counted(nlp, corpus, limit)
        assessment = assess(
            nlp, examples, component=component, ignore=ignore or (), random=False, progress=progress
        )
        assessment.figures.left_out = left_out
    if as_json:
        print(srsly.json_dumps(to_json(assessment)))
        return
    print_remarks(assessment)
    for name, part in assessment.figures.components.items():
        msg.divider(f"{name}: {part.plural} of {number_of(part.spans, 'span')}")
        print_statistics(part)
    print_verdicts(assessment)


def print_statistics(part: LayerFigures) -> None:
    """Print the statistics of a layer, and its agreement with controls and references."""
    from spacy_latent.analysis import structures
    from spacy_latent.analysis.verdicts import percent
    from spacy_latent.corpora.standard_streams import prints_unicode

    unicode = prints_unicode()

    def shown(value: float, is_share: bool) -> str:
        if value >= structures.LARGE:
            return structures.power_of_ten(value)
        return percent(value) if is_share else f"{value:.4g}"

    rows = []
    for name, row in part.statistics.items():
        is_share = structures.is_share(name, part.kind)
        ends = f"{shown(row.low, is_share)} to {shown(row.high, is_share)}"
        line = structures.sparkline(row.histogram, unicode)
        middle = shown(row.quartiles[1], is_share)
        mean = shown(row.mean, is_share)
        if name in structures.SKEWED:
            mean = line = ""
        rows.append((name, middle, mean, line, ends))
    header = ("", "median", "mean", "all", "from, to")
    msg.table(rows, header=header, aligns="lrrll")
    shares = {f"{name} {part.plural}": value for name, value in part.controls.items()}
    shares.update({f"tag {tag}": value for tag, value in (part.tag_shares or {}).items()})
    if part.by_length[1]:
        shares["of the same length"] = part.by_length[0]
    print_bars("In common with", shares, unicode)
    reference = part.reference
    if reference is not None:
        found = {name: row[reference.key][0] for name, row in reference.rows.items()}
        print_bars(f"Agreement with reference {reference.of}", found, unicode)


def print_bars(title: str, shares: dict[str, float], unicode: bool) -> None:
    """Print a bar for each share of 1."""
    from spacy_latent.analysis.verdicts import percent

    finite = {name: share for name, share in shares.items() if math.isfinite(share)}
    if not finite:
        return
    full = "█" if unicode else "#"
    rows = [
        (name, percent(share), full * round(30 * share))
        for name, share in sorted(finite.items(), key=lambda entry: -entry[1])
    ]
    msg.table(rows, header=(title, "", ""), aligns="lrl")
