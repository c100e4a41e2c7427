"""Command ``spacy latent debug``: checks whether a config can learn a structure."""

from __future__ import annotations

import math
import re
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spacy_latent.cli.config_blocks import LAYERS
from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.options import Code, FindingsAsJson, GpuId
from spacy_latent.cli.pipelines import is_installed, load, prepare
from spacy_latent.errors import LatentError, LatentWarning, NoLabels, number_of

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.training import Example

    from spacy_latent.pipeline.diagnostic import Diagnostic

EXAMPLES = """
Examples:

  spacy latent debug configs/demo.cfg --paths.train corpus/demo/train.tsv

  spacy latent debug training/model-best --corpus corpus/dev.spacy --json
"""


def debug_cli(
    context: typer.Context,
    source: Path = typer.Argument(..., help="Config file, or a trained pipeline or package"),
    corpus: str | None = typer.Option(
        None, "--corpus", help="Annotated texts to check. Default: the config's training corpus"
    ),
    count: int = typer.Option(
        8,
        "--examples",
        "-n",
        min=1,
        help="Number of texts to compute gradients on, spread over the corpus",
    ),
    steps: int = typer.Option(
        3, "--steps", min=1, help="Number of training steps; the last one's gradients are shown"
    ),
    as_json: FindingsAsJson = False,
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Check whether the latent layers of a config or pipeline can learn.

    Prints the parts of each layer, the norms of gradients, and mistakes in the config and corpus.
    Exits with code 1 if it finds an error. Override settings of a config as in 'spacy train':
    --paths.train FILE.
    """
    import srsly

    from spacy_latent.analysis.figures import plain
    from spacy_latent.cli.config_errors import config_overrides

    with failing("This config or pipeline cannot be trained"):
        prepare(code, gpu_id)
        overrides = config_overrides(context.args)
        layers, norms, diagnostics, read = examine(source, overrides, corpus, count, steps)
    if as_json:
        found = {"layers": layers, "gradients": norms, "findings": [vars(f) for f in diagnostics]}
        print(srsly.json_dumps(plain(found)))
    else:
        print_layers(layers)
        print_gradients(norms)
        print_diagnostics(diagnostics, read)
    if has_error(diagnostics):
        raise typer.Exit(1)


def examine(
    source: Path, overrides: dict[str, Any], corpus: str | None, count: int, steps: int
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, float]], list[Diagnostic], int]:
    """Return the parts of the latent layers, the norms of the gradients, and the findings.

    The last result is the number of texts that were read. See :func:`debug_cli` for the arguments.
    """
    from spacy_latent.cli.training_corpus import development_mistakes, training_examples
    from spacy_latent.evaluation.diagnosis import describe
    from spacy_latent.evaluation.mistakes import find_traps, spread
    from spacy_latent.pipeline.diagnostic import Diagnostic
    from spacy_latent.pipeline.inspection import choose_components

    of_settings: list[Diagnostic] = []
    sourced: list[str] = []
    is_new = source.is_file() or not (source.is_dir() or is_installed(source))
    if is_new:
        nlp, sourced, of_settings = read_config(source, overrides)
    else:
        nlp = load(str(source))
    choose_components(nlp, None, annotating=True)
    examples, why, level = training_examples(nlp, corpus)
    if is_new:
        initialize(nlp, sourced, examples, why)
    layers = describe(nlp)
    diagnostics = find_traps(nlp, examples) + of_settings
    norms: dict[str, dict[str, float]] = {}
    if not examples:
        # The training corpus of a trained pipeline may be missing.
        level = level if is_new else "note"
        diagnostics.append(Diagnostic(level, "no-gradients", f"Gradients were not checked: {why}"))
    elif not has_error(diagnostics):
        norms, more = gradients(nlp, spread(examples, count), steps)
        diagnostics = more + diagnostics
    if is_new and corpus is None:
        diagnostics += development_mistakes(nlp, examples)
    return layers, norms, diagnostics, len(examples)


def has_error(diagnostics: list[Diagnostic]) -> bool:
    """Return whether a finding is an error, which rules out a training step."""
    return any(diagnostic.level == "error" for diagnostic in diagnostics)


def read_config(
    source: Path, overrides: dict[str, Any]
) -> tuple[Language, list[str], list[Diagnostic]]:
    """Return the pipeline of a config, its sourced components, and findings on its settings."""
    from spacy.cli._util import show_validation_error
    from spacy.util import get_sourced_components, load_config, load_model_from_config

    from spacy_latent.cli.config_errors import errors_with_blocks, invalid_training, readable_config
    from spacy_latent.cli.config_settings import defaults_taken, unread_settings
    from spacy_latent.corpora.text_files import read_text
    from spacy_latent.pipeline.diagnostic import Diagnostic

    if not source.is_file():
        fail(f"{source} does not exist. Give a config or a trained pipeline.")
    # For a file with another encoding, this error names the invalid line.
    read_text(source)
    with show_validation_error(source), readable_config(source):
        config = load_config(source, overrides=overrides, interpolate=False)
        # The config of the loaded pipeline has factories in place of the sources.
        sourced = list(get_sourced_components(config))
        try:
            with errors_with_blocks(config):
                nlp = load_model_from_config(config, auto_fill=True)
        except (ValueError, ImportError, OSError) as error:
            # spaCy's own errors have a number and give advice.
            if re.match(r"\[E\d+\]", str(error)):
                raise LatentError(str(error)) from error
            raise
    if invalid := list(invalid_training(nlp)):
        raise LatentError(" ".join(invalid))
    found = [Diagnostic("warning", "unread-setting", text) for text in unread_settings(config)]
    found += [Diagnostic("note", "default-taken", text) for text in defaults_taken(config)]
    return nlp, sourced, found


def initialize(nlp: Language, sourced: list[str], examples: list[Example], why: str) -> None:
    """Initialize the pipeline as 'spacy train' does.

    Frozen components and components that continue from another pipeline are not initialized.

    Args:
        sourced: Names of the components that the config takes from other pipelines.
        examples: A text of three words is used if there are none.
        why: Reason why there are no examples.
    """
    from spacy.training import Example
    from thinc.api import ConfigValidationError, fix_random_seed

    from spacy_latent.evaluation.listening import listening_mistakes
    from spacy_latent.pipeline.evidence_survey import DoubtfulEvidence
    from spacy_latent.pipeline.scores_given import ScoreNotGiven
    from spacy_latent.pipeline.scores_of_range import JudgedAsLabels
    from spacy_latent.pipeline.training_settings import training_settings

    training = training_settings(nlp)
    fix_random_seed(training.get("seed") or 0)
    # Names that are no component are reported with the other mistakes.
    frozen = [one for one in training.get("frozen_components") or () if one in nlp.component_names]
    resumed = [one for one in sourced if one in nlp.component_names and one not in frozen]
    sample = examples or [Example.from_dict(nlp.make_doc("a b c"), {})]
    try:
        with warnings.catch_warnings():
            # The diagnostics have the same information. Warnings on the text of three words say
            # nothing about the corpus.
            known = (JudgedAsLabels, DoubtfulEvidence, ScoreNotGiven)
            for category in known if examples else (LatentWarning,):
                warnings.simplefilter("ignore", category)
            if resumed:
                with nlp.select_pipes(enable=resumed):
                    nlp.resume_training()
            nlp._link_components()
            with nlp.select_pipes(disable=[*frozen, *resumed]):
                nlp.initialize(lambda: sample)
    except LatentError as error:
        if examples or not isinstance(error, NoLabels):
            raise
        raise LatentError(f"There are no examples to initialize with: {why}") from error
    except ConfigValidationError as error:
        # The text of this error contains the whole input, such as a file of labels.
        first: Any = next(iter(error.errors or ()), {})
        place = ".".join(map(str, (*filter(None, [error.parent]), *first.get("loc", ()))))
        raise LatentError(f"{error.title}: {place}: {first.get('msg')}.") from error
    except Exception as error:
        # The error of a component often hides the cause. For example, a transformer's listener
        # without an upstream component has no width.
        listening = [one.text for one in listening_mistakes(nlp) if one.level == "error"]
        if mistakes := without_weights(nlp) + listening:
            raise LatentError(" ".join(mistakes)) from error
        if not examples:
            raise LatentError(f"There are no examples to initialize with: {why}") from error
        raise LatentError(f"The pipeline cannot be initialized: {error}") from error
    if empty := without_weights(nlp):
        raise LatentError(" ".join(empty))


def without_weights(nlp: Language) -> list[str]:
    """Return an error text for each frozen component that has no weights."""
    from spacy_latent.evaluation.mistakes import frozen_without_weights

    return [
        f"[training] frozen_components has {name}, which has no weights: 'spacy train' initializes "
        "nothing that is frozen. Give its block the source of a trained pipeline, or do not freeze "
        "it."
        for name in frozen_without_weights(nlp)
    ]


def gradients(
    nlp: Language, examples: list[Example], steps: int
) -> tuple[dict[str, dict[str, float]], list[Any]]:
    """Train some steps, and return the last norms by component and part, with findings.

    Raises:
        LatentError: if a step fails.
    """
    from spacy_latent.cli.progress import progress
    from spacy_latent.evaluation.diagnosis import judge_training

    try:
        return judge_training(nlp, examples, steps, partial(progress, unit="step"))
    except LatentError:
        raise
    except Exception as error:
        raise LatentError(
            "A training step on these examples failed, and 'spacy train' would fail with the "
            f"same error: {type(error).__name__}: {error}"
        ) from error


def print_layers(layers: dict[str, dict[str, Any]]) -> None:
    """Print the settings and sizes of each latent layer, under the name of its component."""
    for name, layer in layers.items():
        msg.divider(name)
        in_training, at_prediction = (
            "yes" if layer[f"hard {when}"] else "no" for when in ("in training", "at prediction")
        )
        rates = layer["learn rate"]
        shown_rates = f"scorer {rates['scorer']:g}, others {rates['others']:g}"
        counts = (f"{part} {n:,}" for part, n in layer["parameters"].items() if n)
        rows = {
            **{part: layer[part] for part in LAYERS},
            "tractable": ", ".join(layer["tractable"]),
            "the estimator needs": ", ".join(layer["needed"]) or "nothing",
            "hard": f"{in_training} in training, {at_prediction} at prediction",
            "temperature": f"{layer['temperature']:g}",
            "parameters": ", ".join(counts),
            "learn rate": shown_rates
            if math.isfinite(rates["others"])
            else "the config has no optimizer",
            "listeners": ", ".join(layer["listeners"]) or "none",
        }
        for label, text in rows.items():
            msg.text(f"{label + ':':<21}{text}")


def print_gradients(norms: dict[str, dict[str, float]]) -> None:
    """Print a table of the norms, with bars on a logarithmic scale."""
    rows = [
        (component, part, f"{norm:.2e}", bar(norm, parts.values()))
        for component, parts in norms.items()
        for part, norm in parts.items()
    ]
    if rows:
        msg.divider("Norms of the gradients")
        msg.table(rows, header=("component", "part", "norm", "log scale"), aligns="llrl")


def bar(norm: float, among: Any, width: int = 24) -> str:
    """Return a bar with four characters per factor of 10 above a millionth of the largest norm."""
    top = max((value for value in among if math.isfinite(value)), default=0.0)
    if not (norm > 0 and math.isfinite(norm)):
        return ""
    return "#" * max(1, round(width * (1 + math.log10(norm / top) / 6)))


def print_diagnostics(diagnostics: list[Any], read: int) -> None:
    """Print the findings. Notes alone count as no mistake."""
    msg.divider("Findings")
    show: dict[str, Any] = {"error": msg.fail, "warning": msg.warn, "note": msg.info}
    for diagnostic in diagnostics:
        show[diagnostic.level](diagnostic.text)
    if all(diagnostic.level == "note" for diagnostic in diagnostics):
        looked = f" in the settings and {number_of(read, 'text', ',')}" if read else ""
        msg.good(f"No mistake was found{looked}.")
