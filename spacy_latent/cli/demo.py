"""Command ``spacy latent demo``: a pipeline of this package, and the trees that it found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer
from wasabi import Printer

from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.options import GpuId, Html, Seed
from spacy_latent.cli.output import check_output, write_page

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

EXPRESSION = "[MAX 2 [MIN 9 4 ] 3 ]"
PIPELINE = "listops_pipeline"
OPERATORS = ["MIN", "MAX", "MED"]
# The training corpus of 'spacy project run demo', and its corpus of lists of about twice the depth.
AS_TRAINED: dict[str, Any] = {"max_depth": 4, "min_length": 8, "max_length": 25}
DEEPER: dict[str, Any] = {"min_depth": 6, "max_depth": 7, "min_length": 8, "max_length": 80}
SIZES = {"train": 30000, "dev": 1000}
JUDGED = 200
# A pipeline that 'spacy project run english' makes and packages.
ENGLISH = "en_latent_sm"
SENTENCE = "My friend John moved from Chicago to London ."
CONTROL = "nearest operator"
INTRODUCTION = (
    "This pipeline was trained on 30,000 expressions and their values, and never saw a tree. Its "
    "hidden layer is one: every token has a head, and the value is computed along them."
)
EXAMPLES = """
Examples:

  spacy latent demo

  spacy latent demo "[MED [MAX 1 8 ] 5 [MIN 3 [MAX 0 7 ] ] ]" --html demo.html

  spacy latent demo --train training/demo

  spacy latent demo "They saw Paris with a telescope."   # if en_latent_sm is installed
"""


def demo_cli(
    expression: str = typer.Argument(
        EXPRESSION,
        help="Expression of MIN, MAX, MED and digits; or a sentence, if en_latent_sm is installed",
    ),
    html: Html = None,
    train: Path | None = typer.Option(
        None,
        "--train",
        file_okay=False,
        help="Train the pipeline again and save it in this directory; takes some minutes",
    ),
    seed: Seed = 0,
    gpu_id: GpuId = -1,
) -> None:
    """Parse an expression with a pipeline that learned trees from values alone, and evaluate it.

    The pipeline is a part of this package. It is evaluated on new expressions.
    """
    from spacy.util import is_package

    from spacy_latent.cli.pipelines import load, use_gpu
    from spacy_latent.listops.expressions import is_expression
    from spacy_latent.visualize.terminal import format_annotation

    english = is_package(ENGLISH)
    tokens = expression.split()
    opened = {f"[{operator}" for operator in OPERATORS}
    if not is_expression(tokens) or not set(tokens) <= {"]", *opened, *"0123456789"}:
        if english and tokens and train is None and not opened & set(tokens):
            check_output(html)
            use_gpu(gpu_id)
            show(load(ENGLISH)(expression), html)
            return
        fail(
            f"{expression!r} is no expression of {', '.join(OPERATORS)} and digits",
            f"Put spaces between its tokens, as in {EXPRESSION!r}. Sentences are for the pipeline "
            f"{ENGLISH}, which 'spacy project run english' makes, and without --train.",
        )
    check_output(html)
    with carried_pipeline() as path:
        if train is None:
            use_gpu(gpu_id)
            msg.text(INTRODUCTION, spaced=True)
            nlp = load(str(path))
        else:
            nlp = load(str(train_again(path, train, seed, gpu_id)))
    # It is None if the shell has closed it.
    printer = Printer(hide_animation=sys.stdout is None or not sys.stdout.isatty())
    with printer.loading("Loading the kernels, which are compiled the first time ..."):
        doc = nlp(" ".join(tokens))
    (annotation,) = doc._.latent.values()
    print(format_annotation(annotation))
    judge(nlp, doc, tokens, html, seed)
    if train is None:
        msg.info("Train it again with: spacy latent demo --train training/demo")
        if english:
            msg.info(f'See {ENGLISH} with: spacy latent demo "{SENTENCE}"')


def show(doc: Doc, html: Path | None = None) -> None:
    """Print the structures of a sentence, and write a page on request."""
    from spacy_latent.cli.show import print_structures
    from spacy_latent.visualize import render

    for name in doc._.latent:
        msg.divider(name)
        print_structures(doc, name, threshold=None)
    if html is not None:
        write_page(html, render([doc], page=True, jupyter=False))
        msg.good(f"Drawings saved to {html}")


@contextmanager
def carried_pipeline() -> Iterator[Path]:
    """Yield the directory of the pipeline in this package."""
    from importlib.resources import as_file, files

    with as_file(files("spacy_latent") / PIPELINE) as path:
        if not (path / "meta.json").is_file():
            fail(
                f"This installation lacks {path}",
                "Install spacy-latent again, or train the pipeline with 'make demo' in a checkout.",
            )
        yield path


def train_again(pipeline: Path, output: Path, seed: int, gpu_id: int) -> Path:
    """Train with the config of a pipeline, and return the directory of the best one."""
    from spacy.cli.train import train as spacy_train

    from spacy_latent import listops

    corpus = {name: output / "corpus" / f"{name}.tsv" for name in SIZES}
    made = listops.generate(list(SIZES.values()), OPERATORS, seed=seed, **AS_TRAINED)
    for path, expressions in zip(corpus.values(), made):
        listops.write(path, expressions)
    overrides: dict[str, Any] = {f"paths.{name}": str(path) for name, path in corpus.items()}
    overrides["system.seed"] = seed
    spacy_train(pipeline / "config.cfg", output, use_gpu=gpu_id, overrides=overrides)
    return output / "model-best"


def judge(nlp: Language, doc: Doc, tokens: list[str], html: Path | None, seed: int) -> None:
    """Print the value of an expression and scores on new ones; write a page of both on request."""
    from spacy.training import Example

    from spacy_latent import listops
    from spacy_latent.cli.listops import page_of
    from spacy_latent.cli.progress import progress
    from spacy_latent.listops.assessment import assess_listops
    from spacy_latent.listops.expressions import gold_doc

    right, value = listops.evaluate(tokens), max(doc.cats, key=lambda value: doc.cats[value])
    say = msg.good if int(value) == right else msg.warn
    say(f"Its value: {value}. Right is {right}.", spaced=True)
    with TemporaryDirectory() as folder:
        corpora = {}
        for name, shape in (("up to 3 deep", AS_TRAINED), ("6 deep", DEEPER)):
            corpora[name] = Path(folder) / f"{name}.tsv"
            # A seed that differs from the seed of the training expressions.
            (made,) = listops.generate([JUDGED], OPERATORS, seed=seed + 1_000_003, **shape)
            listops.write(corpora[name], made)
        with failing("The pipeline could not be evaluated"):
            found = assess_listops({"this pipeline": nlp}, corpora, seed=seed, progress=progress)
    msg.divider(f"{JUDGED} new expressions each, in percent")
    header = ("", "right values", "whole trees", f"by {CONTROL}")
    msg.table(rows(found.figures), header=header)
    msg.text("The heads of ] do not count, since they do not change the value.")
    if html is not None:
        found.examples.insert(0, Example(doc, gold_doc(nlp, str(right), tokens)))
        page, contents = page_of(found, nlp, INTRODUCTION)
        write_page(html, page)
        msg.good(f"{contents}: {html.resolve()}")


def rows(figures: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return for each corpus: correct values, whole trees, and the whole trees of a control."""
    found = []
    for name, corpus in figures["corpora"].items():
        measured = corpus["by_depth"]["all"]
        (own,) = measured["models"].values()
        control = measured["controls"][CONTROL]
        shares = (own["accuracy"], own["whole trees"], control["whole trees"])
        found.append((name, *(f"{100 * share[0]:.1f}" for share in shares)))
    return found
