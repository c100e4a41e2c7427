"""ListOps from the command line: make a corpus, and judge a trained pipeline on it.

python -m spacy_latent.cli.listops generate corpus/demo --sizes 30000,1000,2000
python -m spacy_latent.cli.listops report training/demo/model-best corpus/demo/test.tsv
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from wasabi import msg

if TYPE_CHECKING:
    from spacy.training import Example

SPLITS = ("train", "dev", "test")
DRAWN = 12

app = typer.Typer(name="listops", help="Make and judge ListOps corpora.", no_args_is_help=True)


@app.command("generate")
def generate_cli(
    output: Path = typer.Argument(..., help="Directory for train.tsv, dev.tsv and test.tsv"),
    sizes: str = typer.Option("30000,1000,2000", "--sizes", help="Expressions of train,dev,test"),
    operators: str = typer.Option(
        "MIN,MAX,MED,SM", "--operators", help="Some of MIN, MAX, MED, SM"
    ),
    max_depth: int = typer.Option(
        20, "--max-depth", help="Depth at which all nodes are digits, the root's being 1"
    ),
    max_arguments: int = typer.Option(5, "--max-arguments", help="Most arguments of an operator"),
    expansion: float = typer.Option(0.25, "--expansion", help="Probability that a node is a list"),
    min_length: int = typer.Option(4, "--min-length", help="Fewest tokens"),
    max_length: int = typer.Option(100, "--max-length", help="Most tokens"),
    seed: int = typer.Option(0, "--seed", help="Seed of the generator"),
) -> None:
    """Generate ListOps expressions; none occurs twice, within or across the files."""
    from tqdm import tqdm

    from spacy_latent.corpora import listops
    from spacy_latent.errors import LatentError

    try:
        counts = [int(size) for size in sizes.split(",")]
    except ValueError:
        counts = []
    if len(counts) != len(SPLITS) or min(counts) < 0:
        msg.fail(f"--sizes is {sizes!r}; expected three numbers such as 30000,1000,2000", exits=1)
    with tqdm(total=sum(counts), desc="Generating ListOps", unit="expression") as bar:
        try:
            splits = listops.generate(
                counts,
                [name.strip() for name in operators.split(",")],
                max_depth=max_depth,
                max_arguments=max_arguments,
                expansion=expansion,
                min_length=min_length,
                max_length=max_length,
                seed=seed,
                progress=bar.update,
            )
        except LatentError as error:
            msg.fail(str(error), exits=1)
    for name, expressions in zip(SPLITS, splits):
        listops.write(output / f"{name}.tsv", expressions)
    msg.good(f"{output}: {', '.join(f'{n} {name}' for name, n in zip(SPLITS, counts))}")


@app.command("report")
def report_cli(
    model: Path = typer.Argument(..., help="Trained pipeline"),
    corpus: Path = typer.Argument(..., help="Expressions to judge it on"),
    component: str | None = typer.Option(
        None, "--component", help="Component with the trees; the only one, if there is one"
    ),
    html: Path | None = typer.Option(
        None, "--html", help="Draw the first expressions to this page"
    ),
    metrics: Path | None = typer.Option(
        None, "--metrics", help="Write the figures to this JSON file"
    ),
    gpu_id: int = typer.Option(-1, "--gpu-id", help="GPU, or -1 for the CPU"),
) -> None:
    """Accuracy, and attachment or bracketing of the best trees beside that of controls."""
    import spacy
    import srsly
    from spacy.cli._util import setup_gpu

    from spacy_latent.cli.attachment import for_json, print_table
    from spacy_latent.corpora.listops import read_listops_v1
    from spacy_latent.visualize import render

    setup_gpu(gpu_id)
    nlp = spacy.load(model)
    examples = list(read_listops_v1(corpus, heads=True)(nlp))
    for example, doc in zip(examples, nlp.pipe((e.predicted for e in examples), batch_size=256)):
        example.predicted = doc
    component = component or only_component(examples)
    figures = measure(examples, component)
    msg.divider("Accuracy")
    low, high = figures["accuracy_interval"]
    msg.text(
        f"{100 * figures['accuracy']:.1f} % of {len(examples)} expressions have the right value "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f})"
    )
    if "brackets" in figures:
        msg.divider("F1 of the spans of the best trees, in percent")
        found = [(name, f"{100 * value:.1f}") for name, value in figures["brackets"].items()]
        msg.table(found, aligns=("l", "r"))
    else:
        msg.divider("Attachment of the best trees to the gold trees, in percent")
        print_table(figures["attachment"])
    if metrics is not None:
        metrics.parent.mkdir(parents=True, exist_ok=True)
        if "attachment" in figures:
            figures = {**figures, "attachment": for_json(figures["attachment"])}
        srsly.write_json(metrics, figures)
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        docs = [example.predicted for example in examples[:DRAWN]]
        gold = None if "brackets" in figures else [e.reference for e in examples[:DRAWN]]
        options = {"distance": 120}
        page = render(docs, component, page=True, jupyter=False, options=options, gold=gold)
        html.write_text(page, encoding="utf8")
        beside = "" if gold is None else ", each above its gold tree"
        msg.good(f"Trees of {len(docs)} expressions{beside}: {html.resolve()}")


def only_component(examples: Sequence[Example]) -> str:
    """Name of the component that put trees on the docs."""
    from spacy_latent.errors import LatentError

    names = sorted({name for example in examples for name in example.predicted._.latent})
    if len(names) != 1:
        raise LatentError(
            f"{', '.join(names) or 'No component'} put trees on the docs. Name the one to report "
            "with --component, and set its annotate to other than 'none'."
        )
    return names[0]


def measure(examples: Sequence[Example], component: str) -> dict[str, Any]:
    """Accuracy of the category, and attachment of the trees, or F1 of their spans where they are
    binary trees, with those of the controls."""
    from spacy_latent.analysis import confidence_interval
    from spacy_latent.errors import LatentError

    right = 0
    for example in examples:
        if component not in example.predicted._.latent:
            raise LatentError(
                f"The pipeline put no tree of {component!r} on the docs. Name the component that "
                "has one, and set its annotate to other than 'none'."
            )
        predicted, reference = example.predicted.cats, example.reference.cats
        right += max(predicted, key=predicted.__getitem__) == max(
            reference, key=reference.__getitem__
        )
    binary = any(
        span.kind == "spans"
        for example in examples
        for span in example.predicted._.latent[component].spans
    )
    return {
        "accuracy": right / len(examples),
        "accuracy_interval": confidence_interval(right, len(examples)),
        **(_brackets(examples, component) if binary else _attachment(examples, component)),
    }


def _brackets(examples: Sequence[Example], component: str) -> dict[str, Any]:
    from spacy_latent.analysis import BINARY_CONTROLS, bracketing_f1
    from spacy_latent.corpora.listops import gold_brackets

    words = [[token.text for token in example.reference] for example in examples]
    gold = [gold_brackets(sentence) for sentence in words]
    trees = [example.predicted._.latent[component].brackets() for example in examples]
    rows = {component: bracketing_f1([[(b.start, b.end) for b in tree] for tree in trees], gold)}
    for name, control in BINARY_CONTROLS.items():
        rng = random.Random(0)
        rows[name] = bracketing_f1([control(sentence, rng) for sentence in words], gold)
    return {"brackets": rows}


def _attachment(examples: Sequence[Example], component: str) -> dict[str, Any]:
    from spacy_latent.analysis import (
        CONTROLS,
        attachment_table,
        control_trees,
        nearest_operator,
        reference_tree,
        without_words,
    )
    from spacy_latent.corpora.listops import CLOSE

    references = [tree for example in examples if (tree := reference_tree(example))]
    controls = {"nearest operator": nearest_operator, **CONTROLS}
    trees = {
        component: [example.predicted._.latent[component].heads for example in examples],
        **control_trees([tree.words for tree in references], controls),
    }
    ways = {
        "without ]": without_words(references, [CLOSE]),
        "all tokens": without_words(references, ()),
    }
    return {"attachment": attachment_table(references, trees, ways)}


if __name__ == "__main__":
    app()
