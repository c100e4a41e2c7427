"""Command ``spacy latent control``: training of the control model of a learned tree."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.options import Code, GpuId
from spacy_latent.cli.output import check_output
from spacy_latent.cli.pipelines import import_code
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from thinc.api import Config

EXAMPLES = """
Examples:

  spacy latent control configs/demo.cfg --trees random --output training/control_random

  spacy latent control configs/demo.cfg --trees nearest --word "[MAX" --word "[MIN" --output
training/control_nearest --training.seed 1

  spacy latent report training/demo/model-best corpus/demo/test.tsv report.html --control
training/control_random
"""

# Name of a file in the output directory, next to the pipelines.
CONFIG_NAME = "control.cfg"
# Settings of [training] that name a corpus.
CORPORA = ("train_corpus", "dev_corpus")


def control_cli(
    context: typer.Context,
    config: Path = typer.Argument(..., help="Config of the model with learned trees"),
    output: Path = typer.Option(
        ..., "--output", "-o", help="Directory for the trained control and its config"
    ),
    trees: str = typer.Option(
        "random",
        "--trees",
        "-t",
        help="Trees of the control: random (equal for equal texts), left, right, flat, balanced, "
        "root (the root is the head of every word), nearest (the nearest --word before it is the "
        "head), or heads (token.head of the docs, such as a parser's)",
    ),
    trees_seed: int = typer.Option(0, "--trees-seed", help="Seed of random trees"),
    word: list[str] | None = typer.Option(
        None, "--word", help="With nearest: a token that may be a head; may be repeated"
    ),
    component: list[str] | None = typer.Option(
        None,
        "--component",
        "-c",
        help="Component to change; may be repeated. Default: all with a latent layer",
    ),
    code: Code = None,
    verbose: bool = typer.Option(False, "--verbose", "-V", help="Log debugging messages"),
    gpu_id: GpuId = -1,
) -> None:
    """Train a config with given trees in place of learned ones, as a control.

    Only a comparison with a control shows whether learned trees help. Override settings of the
    config as in 'spacy train': --training.seed 1.
    """
    from spacy.cli._util import show_validation_error
    from spacy.util import load_config, logger

    from spacy_latent.cli.config_errors import config_overrides, readable_config
    from spacy_latent.corpora.text_files import read_text
    from spacy_latent.evaluation.controls import control_config

    if verbose:
        logger.setLevel(logging.DEBUG)
    if not config.is_file():
        fail(f"{config} does not exist. Give the config of a model with learned trees.")
    check_output(output / CONFIG_NAME, config)
    with failing("The control cannot be trained"):
        import_code(code)
        overrides = config_overrides(context.args)
        # For a file with another encoding, this error names the invalid line.
        read_text(config)
        with show_validation_error(config), readable_config(config):
            loaded = load_config(config, overrides=overrides, interpolate=False)
        changed, changes = control_config(
            loaded, trees, seed=trees_seed, words=word or (), components=component or ()
        )
        msg.divider("Control")
        for change in changes:
            msg.text(str(change))
        msg.text("Everything else is as in the config.")
        _train(changed, output, gpu_id)
    msg.info(f"Compare: spacy latent report MODEL CORPUS PAGE --control {output}")


def _train(config: Config, output: Path, gpu_id: int) -> None:
    """Write the config of a control, and train with it.

    If no model was saved, the config is removed, or an earlier one restored.

    Raises:
        LatentError: a corpus does not exist.
    """
    from spacy.cli.train import train

    from spacy_latent.cli.config_blocks import block_of
    from spacy_latent.cli.training_corpus import absent_path, missing_path

    output.mkdir(parents=True, exist_ok=True)
    written = output / CONFIG_NAME
    before = written.read_bytes() if written.exists() else None
    config.to_disk(written)
    # spaCy ends a training by SystemExit if the config is invalid.
    try:
        train(written, output, use_gpu=gpu_id)
    except BaseException as error:
        # A training that fails later has saved one.
        if not (output / "model-last").exists():
            if before is None:
                written.unlink()
            else:
                written.write_bytes(before)
        missing: list[str] = []
        if isinstance(error, (ValueError, OSError)):
            missing = [missing_path(config, name) for name in CORPORA]
            # spaCy's error does not say which path.
            if not str(error).startswith("[E913]"):
                filled = config.interpolate()
                # A config may lack settings of [training], which have defaults.
                corpora = [str(block_of(filled, f"training.{name}")) for name in CORPORA]
                missing = [absent_path(filled, corpus) for corpus in corpora]
        if any(missing):
            raise LatentError(" ".join(filter(None, missing))) from error
        raise
