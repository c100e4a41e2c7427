"""Command ``spacy latent init``: adds a structure to a config of spaCy."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer
from wasabi import color

from spacy_latent.characters import escaped, escaped_lines
from spacy_latent.cli.added_structures import filled, loaded, with_refusal, with_structure
from spacy_latent.cli.config_blocks import OWNERS, TEXTCATS, latent_block, owner_of
from spacy_latent.cli.larger_batches import with_larger_batches
from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.options import Code
from spacy_latent.cli.output import check_output, print_document, write_page
from spacy_latent.cli.pair_components import with_pairs
from spacy_latent.cli.pipelines import import_code
from spacy_latent.cli.replaced_components import (
    REPLACEMENTS,
    hints,
    with_rationale,
    with_replacement,
)
from spacy_latent.corpora.text_files import lines_of, read_text

if TYPE_CHECKING:
    from spacy.language import Language
    from thinc.api import Config


STREAM = "-"
# What a config can be made for, by name, with what it becomes.
PURPOSES = {
    "entities": "crf_ner in place of ner: confidences of entities, and incomplete annotation",
    "pairs": "a classifier of two texts, which aligns their words",
    "rationale": "a text classifier that chooses a few words and reads only these",
    "parse": "latent_parser in place of parser: a probability for each arc",
    "spans": "tree_spancat in place of spancat: spans that nest",
    "research": "a latent structure in any component, set by --structure and --estimator",
}
LISTED = "; ".join(f"{name} ({purpose})" for name, purpose in PURPOSES.items())
# The replacements by purpose.
FACTORIES = {"entities": "crf_ner", "parse": "latent_parser", "spans": "tree_spancat"}
STRUCTURES = (
    "spanning-tree, projective-tree, budget-tree, independent-heads, constituency-tree, "
    "shift-reduce, merge-sequence, linear-chain, tag-sequence, semi-markov, one-of-n, k-of-n, "
    "runs, bits, one-to-one-alignment, many-to-one-alignment, monotone-alignment"
)
ESTIMATORS = (
    "marginals, sparsemap, best-mixture, smoothed-dp, sinkhorn, entmax, constrained-sparsemax, "
    "fusedmax, oscarmax, straight-through, sampled-straight-through, best-straight-through, "
    "rein-max, gumbel-rao, spigot, spigot-marginals, black-box, perturb-and-map, "
    "relaxed-perturbation, perturbed-mean, implicit-mle, adaptive-implicit-mle, hard-concrete, "
    "hard-kuma, rectified-gaussian, mixed-dirichlet, score-function, trace-score-function, "
    "rewarded-score-function, trace-relax, rebar, relax, sum-and-sample, dense-marginalization, "
    "top-k-sparsemax, given-trees"
)
EXAMPLES = f"""
Examples:

  spacy init config base.cfg --pipeline textcat

  spacy latent init base.cfg config.cfg --for rationale

  spacy latent init base.cfg config.cfg --structure projective-tree --estimator sparsemap

  spacy latent init base.cfg config.cfg -c ner -c textcat --shared

  spacy latent init config.cfg config.cfg --force --estimator implicit-mle

Structures: {STRUCTURES}.

Estimators: {ESTIMATORS}.
"""


def init_cli(
    config: str = typer.Argument(
        ..., help="Config, such as one of 'spacy init config'; - for standard input"
    ),
    output: str = typer.Argument(..., help="File of the new config; - for standard output"),
    purpose: str | None = typer.Option(
        None,
        "--for",
        help=f"Purpose of the config: {LISTED}. Without any option, the command asks for it",
    ),
    component: list[str] | None = typer.Option(
        None,
        "--component",
        "-c",
        help="Component to change; may be repeated. Needed only if several could be changed",
    ),
    structure: str | None = typer.Option(
        None,
        "--structure",
        "-s",
        help="Latent structure, from the list below. Default: the one of the config; if it has "
        "none, spanning-tree, or k-of-n for a rationale, or one-to-one-alignment for pairs",
    ),
    estimator: str | None = typer.Option(
        None,
        "--estimator",
        "-e",
        help="Estimator of the gradient through the structure, from the list below. Default: the "
        "one of the config; if it has none, marginals, or sparsemap for pairs, or implicit-mle for "
        "a rationale (sparsemap with --structure)",
    ),
    shared: bool = typer.Option(
        False,
        "--shared",
        help="Add one latent_encoder with the structure, to which all these components listen",
    ),
    crf_ner: bool = typer.Option(False, "--crf-ner", help="The same as --for entities"),
    latent_parser: bool = typer.Option(False, "--latent-parser", help="The same as --for parse"),
    tree_spancat: bool = typer.Option(False, "--tree-spancat", help="The same as --for spans"),
    rationale: bool = typer.Option(False, "--rationale", help="The same as --for rationale"),
    pairs: bool = typer.Option(False, "--pairs", help="The same as --for pairs"),
    gpu: bool = typer.Option(
        False,
        "--gpu",
        "-G",
        help="Set larger batches for a small embedder on a GPU: six times the words, a sixth of "
        "the steps, and 2.5 times the learning rate",
    ),
    force: bool = typer.Option(False, "--force", "-F", help="Overwrite OUTPUT"),
    code: Code = None,
) -> None:
    """Add a latent structure to components of a config, on top of their embedders.

    A component that already has a structure gets another structure or estimator. Prints all changes
    of the config.
    """
    from confection import ConfigValidationError
    from thinc.api import Config

    from spacy_latent.cli.config_errors import readable_config

    import_code(code)
    check_files(config, output, force)
    flags = {
        "entities": crf_ner,
        "parse": latent_parser,
        "spans": tree_spancat,
        "rationale": rationale,
        "pairs": pairs,
    }
    if purpose is None and not any((component, structure, estimator, shared, *flags.values())):
        purpose = asked_purpose(config, output)
    by_flags = [name for name, is_given in flags.items() if is_given]
    chosen = chosen_purpose(purpose, by_flags, shared, bool(structure or estimator))
    with failing("The config cannot be changed", ConfigValidationError, ValueError, OSError):
        given = "\n".join(lines_of(sys.stdin)) if config == STREAM else read_text(Path(config))
        with readable_config("standard input" if config == STREAM else config):
            before = filled(Config().from_str(given, interpolate=False))
        names = component or []
        if chosen in FACTORIES:
            made = with_replacement(before, names, REPLACEMENTS[FACTORIES[chosen]])
        elif chosen == "rationale":
            made = with_refusal(with_rationale(before, names, structure, estimator))
        elif chosen == "pairs":
            made = with_refusal(with_pairs(before, names, structure, estimator))
        else:
            made = with_refusal(with_structure(before, names, structure, estimator, shared))
        nlp = loaded(with_larger_batches(made) if gpu else made)
    if output == STREAM:
        print_document(f"{nlp.config.to_str()}\n")
    else:
        write_page(Path(output), nlp.config.to_str())
    print_changes(before, nlp, out=sys.stderr if output == STREAM else sys.stdout)
    if output != STREAM:
        ending = "jsonl" if chosen == "pairs" else "spacy"
        paths = f"--paths.train ./train.{ending} --paths.dev ./dev.{ending}"
        # Printed without wasabi, which would wrap lines that users want to copy.
        msg.good(f"Saved {output}", "Next, check the config and train:")
        shown = shlex.quote(output)
        print(f"spacy latent debug {shown} {paths}")
        print(f"spacy train {shown} --output ./training {paths}{' --gpu-id 0' if gpu else ''}")


def check_files(config: str, output: str, force: bool) -> None:
    """Exit with an error if the config cannot be read or the output cannot be written."""
    check_output(None if output == STREAM else Path(output))
    if output != STREAM and Path(output).exists() and not force:
        fail(f"{output} exists", "Give --force to overwrite it, or another name.")
    if config != STREAM and Path(config).is_dir():
        inside = Path(config) / "config.cfg"
        advice = f"Give {inside}." if inside.is_file() else "Give a config, which is a file."
        fail(f"{config} is a folder", advice)
    if config != STREAM and not Path(config).is_file():
        fail(f"{config} does not exist", "Make one with 'spacy init config'.")


def chosen_purpose(purpose: str | None, by_flags: list[str], shared: bool, has_parts: bool) -> str:
    """Return the purpose, or exit with an error if options contradict each other.

    Args:
        by_flags: The purposes of options other than --for, such as --crf-ner.
        has_parts: Whether --structure or --estimator is given.
    """
    if purpose is not None:
        if purpose not in PURPOSES:
            fail(f"--for is {purpose!r}", f"Expected one of {', '.join(PURPOSES)}.")
        if by_flags:
            fail("--for and another option both give the purpose", "Leave out one of them.")
    wanted = by_flags if purpose is None or purpose == "research" else [purpose]
    replacements = [REPLACEMENTS[FACTORIES[name]] for name in wanted if name in FACTORIES]
    if replacements and (len(wanted) + shared > 1 or has_parts):
        first = replacements[0]
        fail(
            f"{f'--for {purpose}' if purpose else first.option} can be combined only with "
            "--component",
            f"Its structure is {first.learns} and is learned from annotation. Leave out "
            "--structure, --estimator, --shared, --rationale and --pairs. Make several "
            "replacements one after another.",
        )
    if len(wanted) + shared > 1:
        fail(
            "--rationale, --pairs and --shared exclude each other",
            "A rationale or an alignment belongs to a single classifier. Give only one of them.",
        )
    return wanted[0] if wanted else "research"


def asked_purpose(config: str, output: str) -> str:
    """Ask the user what the config is for; exit with an error if there is no terminal."""
    if STREAM in (config, output) or not sys.stdin.isatty():
        listed = "; ".join(f"--for {name}, {purpose}" for name, purpose in PURPOSES.items())
        fail("What is the config for?", f"Give one of these options: {listed}.")
    for name, purpose in PURPOSES.items():
        print(f"{name:>9}: {purpose}")
    answer: str = typer.prompt("What is the config for?", default="research").strip()
    if answer not in PURPOSES:
        fail(f"The answer is {answer!r}", f"Expected one of {', '.join(PURPOSES)}.")
    return answer


def about_gain(before: Config, after: Config) -> Iterator[str]:
    """Yield a warning for each text classifier that is new over latent trees."""
    from spacy.util import registry

    from spacy_latent.kinds import find_kind

    components = after["components"]
    for name, component in components.items():
        if component.get("factory") not in (*TEXTCATS, *OWNERS[1:]):
            continue
        owner = owner_of(components, after["nlp"]["pipeline"], name)
        if owner is None or components[owner] == before["components"].get(owner):
            continue
        block = latent_block(components[owner]["model"])
        if block is None or not isinstance(block.get("structure"), dict):
            continue
        structure = registry.resolve({"made": block["structure"]})["made"]
        if find_kind(structure.kind).trees:
            yield (
                f"{name} classifies texts over latent trees. On sentence polarity this did not "
                "help: accuracy was 73.9 with projective trees and 74.1 without (the project's "
                "benchmarks/RESULTS.md). Also train the config that you began with, and compare."
            )


def print_changes(before: Config, nlp: Language, out: TextIO) -> None:
    """Print removed and new lines with the sections that they are in, and what to know of them."""
    from spacy_latent.evaluation.mistakes import about_score_ranges, about_sentences

    after = nlp.config
    colored = out.isatty() and msg.show_color
    lines = difflib.unified_diff(
        before.to_str().splitlines(), after.to_str().splitlines(), "before", "after", lineterm=""
    )
    for line in lines:
        shade = {"+": "green", "-": "red"}.get(line[:1]) if colored else None
        # Names and paths in a config may hold anything.
        line = escaped(line)
        print(color(line, fg=shade) if shade else line, file=out)
    for hint in [*hints(before, after), *about_gain(before, after)]:
        print(f"Note: {escaped_lines(hint)}", file=out)
    for diagnostic in [*about_sentences(nlp), *about_score_ranges(nlp)]:
        print(f"{diagnostic.level.capitalize()}: {escaped_lines(diagnostic.text)}", file=out)
