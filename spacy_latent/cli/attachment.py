"""``spacy latent attachment``: how many heads of reference trees a pipeline's trees have.

python -m spacy_latent.cli.attachment corpus/ewt/dev.spacy training/tree_ewt_supervised/model-best
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import typer
from wasabi import msg

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc
    from spacy.training import Example

    from spacy_latent.analysis import Heads


def main(
    corpus: Path = typer.Argument(..., help="Docs with heads, in spaCy's binary format"),
    models: list[Path] = typer.Argument(..., help="Trained pipelines"),
    gold_preproc: bool = typer.Option(
        False, "--gold-preproc", help="Give the pipelines the sentences and tokens of the corpus"
    ),
    metrics: Optional[Path] = typer.Option(  # noqa: UP045 (typer < 0.12 on Python 3.10)
        None, "--metrics", help="Write the figures to this file, as JSON"
    ),
    gpu_id: int = typer.Option(-1, "--gpu-id", "-g", help="GPU ID, or -1 for CPU"),
) -> None:
    """Report unlabelled attachment of the best trees, beside a parser's and trees of no model."""
    import spacy
    import srsly
    from spacy.cli._util import setup_gpu
    from spacy.training import Corpus

    for path in (corpus, *models):
        if not path.exists():
            msg.fail(f"{path} does not exist.", exits=1)
    setup_gpu(gpu_id)
    figures: dict[str, dict[str, float]] = {}
    examples: list[Example] = []
    for path in models:
        nlp = spacy.load(path)
        examples = list(Corpus(corpus, gold_preproc=gold_preproc)(nlp))
        name = path.parent.name if path.name in ("model-best", "model-last") else path.name
        for source, trees in predicted_trees(nlp, examples, gold_preproc).items():
            figures[f"{name}: {source}"] = measure(examples, trees)
        if not any(row.startswith(f"{name}: ") for row in figures):
            msg.fail(f"{path} puts no trees on docs: it has neither a parse nor latent heads.")
            raise SystemExit(1)
    figures.update(control_figures(examples))
    rows = [(row, *(f"{100 * value:.1f}" for value in of.values())) for row, of in figures.items()]
    msg.table(rows, header=("", *COUNTED), aligns=("l", "r", "r"), divider=True)
    if metrics is not None:
        metrics.parent.mkdir(parents=True, exist_ok=True)
        srsly.write_json(metrics, figures)


# What counts: as in spaCy's dep_uas, and everything.
COUNTED = ("without punctuation", "all tokens")


def predicted_trees(
    nlp: Language, examples: Sequence[Example], one_sentence: bool = False
) -> dict[str, list[Heads]]:
    """Heads of every doc, by the component that put them there: those of latent structures, and
    "parse" for ``token.head``.

    one_sentence: tell the pipelines that each doc is one, which a parser would split otherwise.
    """
    if one_sentence:
        for example in examples:
            for token in example.predicted:
                token.is_sent_start = token.i == 0
    found: dict[str, list[Heads]] = {}
    docs = list(nlp.pipe(example.predicted for example in examples))
    if any(doc.has_annotation("DEP") for doc in docs):
        found["parse"] = [[token.head.i for token in doc] for doc in docs]
    for name in sorted({name for doc in docs for name in doc._.latent}):
        if all(_has_heads(doc, name) for doc in docs):
            found[name] = [doc._.latent[name].heads for doc in docs]
    return found


def _has_heads(doc: Doc, component: str) -> bool:
    annotation = doc._.latent.get(component)
    return annotation is not None and all(span.kind == "heads" for span in annotation.spans)


def measure(examples: Sequence[Example], trees: Sequence[Heads]) -> dict[str, float]:
    """Share of the tokens of the references that have their head, 0 to 1, by what counts."""
    from spacy_latent.analysis import PUNCTUATION, attached

    shares = {}
    for name, ignored in zip(COUNTED, (PUNCTUATION, ())):
        pairs = [attached(example, tree, ignored) for example, tree in zip(examples, trees)]
        shares[name] = sum(right for right, _ in pairs) / max(1, sum(total for _, total in pairs))
    return shares


def control_figures(examples: Sequence[Example]) -> dict[str, dict[str, float]]:
    """The same of trees that look at no more than the words; the random ones of one seed."""
    from spacy_latent.analysis import CONTROLS

    figures: dict[str, dict[str, Any]] = {}
    for name, control in CONTROLS.items():
        rng = random.Random(0)
        trees = [control([token.text for token in e.predicted], rng) for e in examples]
        figures[name] = measure(examples, trees)
    return figures


if __name__ == "__main__":
    typer.run(main)
