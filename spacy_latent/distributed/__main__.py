"""Command ``python -m spacy_latent.distributed train CONFIG``, alone or under ``torchrun``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch.distributed as dist
import typer
from wasabi import msg

from spacy_latent.corpora.standard_streams import CommandGroup
from spacy_latent.distributed.ranks import TIMEOUT
from spacy_latent.errors import LatentError

app = typer.Typer(
    name="python -m spacy_latent.distributed",
    cls=CommandGroup,
    help="Training on several processes.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

# Unknown options are settings of the config.
OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
ConfigPath = Annotated[Path, typer.Argument(help="Training config.", exists=True)]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the last checkpoint, if any.")]
CheckpointEvery = Annotated[
    int | None,
    typer.Option(
        "--checkpoint-every",
        help="Steps between checkpoints; 0 for none. Default: training.eval_frequency.",
        min=0,
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait for other processes.")]


@app.callback()
def main() -> None:
    """Train on several processes. Each process runs this command: start them with torchrun."""


@app.command("train", context_settings=OVERRIDES)
def train_cli(
    context: typer.Context,
    config_path: ConfigPath,
    output: Path | None = typer.Option(
        None, "--output", "--output-path", "-o", help="Directory for models and checkpoints."
    ),
    resume: Resume = False,
    checkpoint_every: CheckpointEvery = None,
    timeout: Timeout = TIMEOUT,
    use_gpu: bool = typer.Option(False, "--gpu", help="Give each process a GPU of its own."),
    code: Path | None = typer.Option(
        None, "--code", help="Python file with functions that the config names.", exists=True
    ),
) -> None:
    """Train the pipeline of CONFIG. Override settings as in spacy train: --training.max_steps 100.

    The batch in the config is the batch of all processes together. Each process learns from its
    share of the batch, and the gradients of all processes are added up. Under torchrun: torchrun
    --nproc-per-node 8 -m spacy_latent.distributed train config.cfg --output training
    """
    from spacy.cli._util import import_code, parse_config_overrides

    from spacy_latent.distributed.train import train

    import_code(code)
    with _telling(config_path):
        train(
            config_path,
            output,
            overrides=parse_config_overrides(context.args),
            resume=resume,
            checkpoint_every=checkpoint_every,
            timeout=timeout,
            use_gpu=use_gpu,
        )
    if dist.is_initialized():
        dist.destroy_process_group()


@app.command("ray-train", context_settings=OVERRIDES)
def ray_train_cli(
    context: typer.Context,
    config_path: ConfigPath,
    output: Path = typer.Option(
        ..., "--output", "-o", help="Directory for models and checkpoints, shared by all machines."
    ),
    workers: int = typer.Option(..., "--workers", help="Number of processes.", min=1),
    address: str | None = typer.Option(
        None, "--address", help="Address of a running cluster. Default: start one on this machine."
    ),
    resume: Resume = False,
    checkpoint_every: CheckpointEvery = None,
    timeout: Timeout = TIMEOUT,
    max_failures: int = typer.Option(
        0, "--max-failures", help="Number of resumptions after a worker was lost.", min=0
    ),
    use_gpu: bool = typer.Option(False, "--gpu", help="Give each worker a GPU of its own."),
) -> None:
    """Train the pipeline of CONFIG on workers of a Ray cluster, which this command starts.

    Needs the extra ray.
    """
    from spacy.cli._util import parse_config_overrides

    from spacy_latent.distributed.ray_train import ray_train

    with _telling(config_path):
        saved = ray_train(
            config_path,
            output,
            workers=workers,
            address=address,
            use_gpu=use_gpu,
            overrides=parse_config_overrides(context.args),
            resume=resume,
            checkpoint_every=checkpoint_every,
            timeout=timeout,
            max_failures=max_failures,
        )
    msg.good("Saved pipeline to output directory", saved)


@contextlib.contextmanager
def _telling(config_path: Path) -> Iterator[None]:
    """Print errors that users can cause as messages, and exit."""
    from click import NoSuchOption
    from spacy.cli._util import show_validation_error

    try:
        with show_validation_error(config_path, hint_fill=False):
            yield
    except NoSuchOption as error:
        # spaCy raises the class of a different copy of click than typer's.
        msg.fail(error.format_message(), exits=1)
    except LatentError as error:
        # The error has a cause only on the rank where it occurred.
        if error.__cause__ is not None:
            sys.excepthook(type(error), error, error.__traceback__)
        msg.fail(str(error), exits=1)


if __name__ == "__main__":
    app()
