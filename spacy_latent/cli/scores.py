"""Command ``spacy latent evaluate scores``: all scores of a pipeline's scorers.

``spacy evaluate`` leaves out scores that it does not know.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spacy_latent.cli.messages import fail, failing, msg, warn
from spacy_latent.cli.options import Code, FiguresAsJson, GpuId, Limit, Metrics, Model
from spacy_latent.cli.output import check_output, write_json
from spacy_latent.cli.pipelines import load, prepare
from spacy_latent.errors import LatentError, number_of

if TYPE_CHECKING:
    from spacy.language import Language

EXAMPLES = """
Examples:

  spacy latent evaluate scores training/model-best corpus/dev.spacy

  spacy latent evaluate scores training/model-best corpus/test.spacy corpus/depth6.spacy
--metrics metrics.json
"""
SPEED = "speed"


def scores_cli(
    model: Model,
    corpora: list[str] = typer.Argument(
        ..., help="Annotated texts: .spacy, .jsonl, or the format of the config's reader"
    ),
    limit: Limit = 0,
    metrics: Metrics = None,
    as_json: FiguresAsJson = False,
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Print every score of a pipeline on one or several corpora.

    Scores of single labels are only in the output of --json and --metrics. There, names of scores
    on the second and later corpora begin with the name of the file, such as "depth6 tag_acc".
    """
    import srsly

    check_output(metrics)
    names = [Path(corpus).stem for corpus in corpora]
    if len(set(names)) < len(names):
        fail(
            f"Two corpora have one name: {', '.join(corpora)}.",
            "Evaluate them one by one, or rename one file.",
        )
    with failing("The pipeline could not be evaluated"):
        prepare(code, gpu_id)
        nlp = load(model)
        found = [evaluated(nlp, corpus, limit) for corpus in corpora]
    if metrics is not None:
        write_json(metrics, joined(names, found))
    if as_json:
        print(srsly.json_dumps(joined(names, found)))
        return
    shown = [
        {key: f"{value:.4g}" for key, value in each.items() if isinstance(value, float)}
        for each in found
    ]
    keys = dict.fromkeys(key for each in shown for key in each)
    rows = [(key, *(each.get(key, "") for each in shown)) for key in keys]
    msg.table(rows, header=("", *names))


def evaluated(nlp: Language, corpus: str, limit: int = 0) -> dict[str, object]:
    """Return the result of ``nlp.evaluate`` without the speed, and warn about missing references.

    Raises:
        LatentError: If all references are missing.
    """
    from spacy_latent.analysis.reference_check import in_words, unknown_labels, without_references
    from spacy_latent.cli.corpus import field_hint, read_counted

    examples, left_out = read_counted(nlp, corpus, limit)
    if left_out:
        warn(f"Left out of {corpus}: {number_of(left_out, 'text')} without tokens")
    lacking, nothing = without_references(nlp, examples)
    if nothing:
        wanted = "; ".join(f"{name} needs {what}" for name, what in lacking.items())
        raise LatentError(
            f"The texts of {corpus} have no annotation of what the pipeline "
            f"predicts{field_hint(Path(corpus))}, so it cannot be "
            f"evaluated{': ' if wanted else ''}{wanted}. Give annotated texts: .spacy, .jsonl "
            "with 'cats' (an object, as {\"good\": 1.0, \"bad\": 0.0}), 'entities', 'tags', "
            "'heads' and 'deps' or 'spans', or what the reader of the config's [corpora.dev] "
            "takes."
        )
    for name, what in lacking.items():
        warn(
            f"No text of {corpus} has {what}, so {name} cannot be evaluated",
            "Ignore its scores below, which may be 0.",
        )
    for said in in_words(unknown_labels(nlp, examples)):
        warn(said)
    scores: dict[str, object] = nlp.evaluate(examples)
    return {key: value for key, value in scores.items() if key != SPEED}


def joined(names: list[str], found: list[dict[str, object]]) -> dict[str, object]:
    """Return all scores in one dict; scores on the first corpus have no prefix."""
    scores = dict(found[0])
    for name, each in zip(names[1:], found[1:]):
        scores.update({f"{name} {key}": value for key, value in each.items()})
    return scores
