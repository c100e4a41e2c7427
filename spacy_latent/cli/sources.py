"""Command ``spacy latent sources``: learned reliability of each source of annotation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

import typer
from wasabi import msg

from spacy_latent.cli.failure import fail
from spacy_latent.cli.pipelines import load

EXAMPLES = """
Examples:

  spacy latent sources training/model-last
"""


def sources_cli(
    model: str = typer.Argument(..., help="Trained pipeline: a directory or an installed package"),
    as_json: bool = typer.Option(False, "--json", help="Print what is found as JSON, nothing else"),
    code: Optional[Path] = typer.Option(None, "--code", help="Python file to import"),  # noqa: UP045
) -> None:
    """Show how reliable each source of annotation is for each label, as a crf_ner has learned it.

    A source is a group of doc.spans, and the crf_ner is trained with evidence.sources. The result
    is not a measurement.
    """
    import srsly

    from spacy_latent.analysis.figures import plain
    from spacy_latent.cli.corpus import import_code
    from spacy_latent.pipeline.crf_ner import CrfEntityRecognizer

    import_code(code)
    nlp = load(model)
    found: dict[str, list[Any]] = {
        name: pipe.source_reliability()
        for name, pipe in nlp.pipeline
        if isinstance(pipe, CrfEntityRecognizer)
    }
    if not any(found.values()):
        fail(
            f"{model} was trained on no sources of annotation",
            "Name groups of doc.spans under evidence.sources of a crf_ner, and train it.",
        )
    if as_json:
        rows = {name: [asdict(one) for one in own] for name, own in found.items()}
        print(srsly.json_dumps(plain(rows)))
        return
    for name, own in found.items():
        msg.divider(name)
        shares = [map(_percent, (one.precision, one.recall)) for one in own]
        table = [
            (one.source, one.label, *pair, f"{one.tokens:,.0f}") for one, pair in zip(own, shares)
        ]
        header = ("source", "label", "precision", "recall", "tokens")
        msg.table(table, header=header, divider=True, aligns=("l", "l", "r", "r", "r"))


def _percent(share: float) -> str:
    return "" if share != share else f"{100 * share:.1f} %"
