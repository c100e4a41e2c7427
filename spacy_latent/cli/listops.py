"""ListOps on the command line: generation of a corpus, and evaluation of trained pipelines.

python -m spacy_latent.cli.listops generate corpus/demo --sizes 30000,1000,2000
python -m spacy_latent.cli.listops report training/demo/model-best corpus/demo/test.tsv
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.options import GpuId, Metrics, Seed
from spacy_latent.cli.output import check_output, finished_first, write_json, write_page
from spacy_latent.corpora.standard_streams import CommandGroup
from spacy_latent.errors import LatentError, number_of

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

    from spacy_latent.listops.assessment import ListOpsAssessment

SPLITS = ("train", "dev", "test")
DRAWN = 12
# Expected values of options that take NAME=PATH, for messages.
NAMED = {
    "--beside": "a name and a pipeline, such as independent=training/independent/model-best",
    "--recorded": "a name and a file, such as independent=benchmarks/runs/demo_independent.jsonl",
}
MAX_DEPTH = 20

app = typer.Typer(
    name="listops",
    cls=CommandGroup,
    help="Generate ListOps corpora, and evaluate pipelines on them.",
    no_args_is_help=True,
)


@app.command("generate")
def generate_cli(
    output: Path = typer.Argument(
        ..., help="Directory for train.tsv, dev.tsv and test.tsv, or one file that ends in .tsv"
    ),
    sizes: str = typer.Option(
        "30000,1000,2000", "--sizes", help="Expressions of train,dev,test, or of the one file"
    ),
    operators: str = typer.Option(
        "MIN,MAX,MED,SM", "--operators", help="Some of MIN, MAX, MED, SM"
    ),
    max_depth: int = typer.Option(
        MAX_DEPTH,
        "--max-depth",
        help="Most levels of nodes, as in the published generator: the root has depth 1 and a node "
        "at this depth is a digit. So there is one level of lists less",
    ),
    min_depth: int = typer.Option(
        0, "--min-depth", help="Fewest levels of nested lists; [MAX 2 9 ] has one"
    ),
    depth: int | None = typer.Option(
        None,
        "--depth",
        help="Exact number of levels of nested lists, instead of --min-depth and --max-depth",
    ),
    depths: str | None = typer.Option(
        None,
        "--depths",
        help="Several numbers of levels of nested lists, such as 1,2,3, each for equally many "
        "expressions. Levels with shorter expressions only ignore --min-length",
    ),
    max_arguments: int = typer.Option(5, "--max-arguments", help="Most arguments of an operator"),
    expansion: float = typer.Option(0.25, "--expansion", help="Probability that a node is a list"),
    min_length: int = typer.Option(4, "--min-length", help="Fewest tokens"),
    max_length: int = typer.Option(100, "--max-length", help="Most tokens"),
    without: list[Path] | None = typer.Option(
        None, "--without", help="File with expressions to leave out; may be repeated"
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of the generator"),
) -> None:
    """Generate ListOps expressions with their values. No expression occurs twice in all files.

    \b
    Examples:
      spacy latent generate listops corpus/demo
      spacy latent generate listops corpus/demo/depth5.tsv --sizes 500 --depth 5
        --min-length 8 --max-length 80 --without corpus/demo/train.tsv
    """
    from tqdm import tqdm

    from spacy_latent import listops

    files = [output] if output.suffix == ".tsv" else [output / f"{name}.tsv" for name in SPLITS]
    for path in files:
        check_output(path)
    counts = counts_in(sizes, len(files))
    is_bounded = bool(min_depth or max_depth != MAX_DEPTH)
    if depth is not None and is_bounded:
        fail("--depth replaces --min-depth and --max-depth; give it without them")
    if depths is not None and (depth is not None or is_bounded):
        fail("--depths replaces --depth, --min-depth and --max-depth; give it without them")
    levels = [] if depths is None else levels_in(depths)
    if depth is not None:
        min_depth, max_depth = depth, depth + 1
    try:
        known = {" ".join(tokens) for path in without or () for _, tokens in listops.read(path)}
    except (LatentError, OSError) as error:
        fail(str(error))
    total, unit = sum(counts), "expression"
    with tqdm(total=total, desc="Generating ListOps", unit=unit, disable=None) as bar:
        names = [name.strip() for name in operators.split(",")]
        shared: dict[str, Any] = {
            "max_arguments": max_arguments,
            "expansion": expansion,
            "min_length": min_length,
            "max_length": max_length,
            "seed": seed,
            "progress": bar.update,
            "without": known,
        }
        try:
            if levels:
                splits = listops.generate_depths(counts, levels, names, **shared)
            else:
                shared |= {"max_depth": max_depth, "min_depth": min_depth}
                splits = listops.generate(counts, names, **shared)
        except LatentError as error:
            fail(str(error))
    with failing("The expressions could not be written", OSError), finished_first():
        for path, expressions in zip(files, splits):
            listops.write(path, expressions)
    made = ", ".join(f"{count} {path.stem}" for path, count in zip(files, counts))
    msg.good(f"{output}: {number_of(total, unit) if files == [output] else made}")


def counts_in(sizes: str, files: int) -> list[int]:
    """Return the number of expressions of each file, or exit with an error."""
    try:
        counts = [int(size) for size in sizes.split(",")]
    except ValueError:
        counts = []
    if len(counts) != files or min(counts) < 0:
        one, three = "one number such as 500", "three numbers such as 30000,1000,2000"
        expected = f"{one}, for a file" if files == 1 else f"{three}, for a directory"
        fail(f"--sizes is {sizes!r}; expected {expected}")
    return counts


def levels_in(depths: str) -> list[int]:
    """Return the numbers of levels of lists, or exit with an error."""
    try:
        return [int(level) for level in depths.split(",")]
    except ValueError:
        fail(f"--depths is {depths!r}; expected numbers such as 1,2,3")


@app.command("report")
def report_cli(
    model: Path = typer.Argument(..., help="Trained pipeline"),
    corpora: list[Path] = typer.Argument(
        ...,
        metavar="CORPUS...",
        help="Expressions to evaluate on: files, or directories of .tsv files, without train.tsv "
        "and dev.tsv",
    ),
    beside: list[str] | None = typer.Option(
        None, "--beside", help="NAME=MODEL: add a pipeline to the tables; may be repeated"
    ),
    recorded: list[str] | None = typer.Option(
        None,
        "--recorded",
        help="NAME=FILE.jsonl: add the means of stored runs of 'benchmarks learning' to the "
        "tables; may be repeated",
    ),
    component: str | None = typer.Option(
        None, "--component", "-c", help="Component with the trees; needed if there are several"
    ),
    html: Path | None = typer.Option(
        None, "--html", help="HTML file to write with the tables and the first trees"
    ),
    metrics: Metrics = None,
    seed: Seed = 0,
    gpu_id: GpuId = -1,
) -> None:
    """Print the accuracy and several measures of the best trees, by depth, with controls.

    Also prints the accuracy if other trees replace those of the pipeline.
    """
    from spacy_latent.cli.listops_terminal import print_tables
    from spacy_latent.cli.pipelines import load, use_gpu
    from spacy_latent.cli.progress import progress
    from spacy_latent.listops.assessment import assess_listops
    from spacy_latent.listops.record import add_recorded, recorded_runs
    from spacy_latent.listops.tables import conclusion

    for path in (metrics, html):
        check_output(path)
    use_gpu(gpu_id)
    with failing("The report could not be made"):
        files = named_files(corpora)
        paths = named_models(model, beside or ())
        asked = named("--recorded", recorded or ())
        earlier = {name: recorded_runs(path) for name, path in asked.items()}
        models = {name: load(str(path)) for name, path in paths.items()}
        found = assess_listops(models, files, component, seed, progress)
        for name, runs in earlier.items():
            add_recorded(found.figures, name, runs)
    print_tables(found.figures)
    if metrics is not None:
        write_json(metrics, found.figures)
    if html is not None:
        page, contents = page_of(found, next(iter(models.values())))
        write_page(html, page)
        msg.good(f"{contents}: {html.resolve()}")
    for line in conclusion(found.figures):
        msg.info(line)


def page_of(found: ListOpsAssessment, nlp: Language, about: str = "") -> tuple[str, str]:
    """Return the page, which begins with a sentence on the pipeline, and its content in words."""
    from spacy_latent.listops.expressions import CLOSE
    from spacy_latent.listops.tables import make_closing, make_opening
    from spacy_latent.visualize import render

    drawn = found.examples[:DRAWN] if found.component else []
    docs = [example.predicted for example in drawn]
    gold = [example.reference for example in drawn] if found.kind == "heads" else None
    if found.component:
        add_probabilities(nlp, docs, found.component)
    page = render(
        docs,
        found.component,
        page=True,
        jupyter=False,
        options={"ignore": [CLOSE]},
        gold=gold,
        opening=make_opening(found.figures, about),
        title=f"ListOps: {', '.join(found.figures['models'])}",
        closing=make_closing(found.figures),
    )
    beside = "" if gold is None else ", each above its gold tree"
    of_docs = f", and trees of {number_of(len(docs), 'expression')}{beside}" if docs else ""
    return page, f"Tables{of_docs}"


def add_probabilities(nlp: Language, docs: Sequence[Doc], component: str) -> None:
    """Store the probabilities of all parts on the docs, if the component has a latent layer."""
    from dataclasses import replace

    from spacy.tokens import Doc

    from spacy_latent.annotations import write
    from spacy_latent.cli.pipelines import annotated
    from spacy_latent.pipeline.inspection import latent_components

    if component not in latent_components(nlp):
        return
    plain = [Doc(nlp.vocab, words=[token.text for token in doc]) for doc in docs]
    for doc, known in zip(docs, annotated(nlp, plain, component, None, 0)):
        spans = zip(doc._.latent[component].spans, known._.latent[component].spans)
        found = [replace(o, parts=k.parts, probabilities=k.probabilities) for o, k in spans]
        write(doc, component, found)


def named_files(given: Sequence[Path]) -> dict[str, Path]:
    """Return files of expressions by name, including files in directories, with test.tsv first."""
    files: list[Path] = []
    for path in given:
        if not path.is_dir():
            files.append(path)
            continue
        there = [one for one in path.glob("*.tsv") if one.stem not in SPLITS[:2]]
        if not there:
            raise LatentError(
                f"{path} holds no .tsv file other than train.tsv and dev.tsv. Make some with "
                "'spacy latent generate listops'."
            )
        files += sorted(there, key=lambda one: (one.stem != SPLITS[2], one.stem))
    stems = [path.stem for path in files]
    return {path.stem if stems.count(path.stem) == 1 else str(path): path for path in files}


def named_models(model: Path, beside: Sequence[str]) -> dict[str, Path]:
    """Return paths of pipelines by name."""
    from spacy_latent.cli.pipelines import trained_name

    found = {trained_name(model): model}
    for name, path in named("--beside", beside).items():
        if name in found:
            raise LatentError(f"Two pipelines are called {name!r}. Change the name in --beside.")
        found[name] = path
    return found


def named(option: str, given: Sequence[str]) -> dict[str, Path]:
    """Return the paths of an option that takes NAME=PATH, by name."""
    found: dict[str, Path] = {}
    for entry in given:
        name, equals, path = entry.partition("=")
        if not name or not equals or not path:
            raise LatentError(f"{option} is {entry!r}; expected {NAMED[option]}.")
        if name in found:
            raise LatentError(f"{option} names two {name!r}. Give one of them another name.")
        found[name] = Path(path)
    return found


if __name__ == "__main__":
    app()
