"""Command ``spacy latent sweep``: training of a config with each setting of a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from spacy_latent.characters import escaped_lines
from spacy_latent.cli.config_blocks import block_of
from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.options import Code, GpuId
from spacy_latent.cli.output import check_output
from spacy_latent.errors import LatentError, number_of

EXAMPLES = """
Examples:

  spacy latent sweep config.cfg --grid grid.json --seeds 5 --study sweep.log

To add a worker, run the same line in another terminal, or on another machine that shares the file.
"""


def sweep_cli(
    context: typer.Context,
    config: Path = typer.Argument(..., help="Training config", exists=True, dir_okay=False),
    grid: Path = typer.Option(
        ..., "--grid", help="JSON or YAML file that lists the values of each setting"
    ),
    seeds: int = typer.Option(
        5, "--seeds", min=1, help="Number of trainings for each combination of values"
    ),
    study: Path = typer.Option(
        ...,
        "--study",
        dir_okay=False,
        help="Journal of the trainings, shared by all workers. Created if missing",
    ),
    output: Path | None = typer.Option(
        None,
        "--output",
        "-o",
        help="Directory for the pipelines. Default: next to the study, its name with -models",
    ),
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Train a config for each combination of a grid with several seeds, and tabulate the scores.

    The table has means and standard deviations. Override settings for all trainings as in 'spacy
    train': --training.max_steps 100.
    """
    from confection import ConfigValidationError

    from spacy_latent.cli.config_errors import config_overrides
    from spacy_latent.corpora.text_files import read_text
    from spacy_latent.distributed.sweep import (
        SEED,
        cells_of,
        read_grid,
        spacy_train,
        sweep,
        table,
        write_table,
    )
    from spacy_latent.distributed.sweep_study import open_study

    if study.suffix in (".json", ".md"):
        fail(
            f"The study {study} would be overwritten by its table",
            "Use another ending, as in sweep.log.",
        )
    refuse_to_overwrite(study, [path for path in (config, grid, code) if path is not None])
    if code is not None and not code.is_file():
        fail(f"--code: {code} does not exist. Give a Python file.")
    with failing("The sweep could not be made"):
        overrides = config_overrides(context.args)
    if SEED in overrides:
        fail(
            f"--{SEED} is {overrides[SEED]}, but a sweep sets the seed of each training, from 0 on",
            "Leave it out, and give --seeds, the number of trainings for each combination "
            f"({seeds}).",
        )
    output = output or study.with_name(f"{study.stem}-models")
    # A training that fails is not tried again, so all of them would be lost.
    check_output(output / "log.txt")
    arguments = ["--gpu-id", str(gpu_id)] + ([] if code is None else ["--code", str(code)])
    with failing("The sweep could not be made", ConfigValidationError):
        text = read_text(config)
        values = read_grid(grid)
        cells = cells_of(values, seeds)
        refuse_unread(config, overrides, values)
        refuse_absent(config, [{**overrides, **cell.overrides} for cell in cells_of(values, 1)])
        identity = identity_of(text, values, overrides)
        train = spacy_train(config, output, overrides, arguments)
        sweep(cells, study, train, identity=identity, progress=msg.text)
        rows = table(open_study(study, identity, cells), cells)
    with failing("The table could not be written", OSError):
        as_json, as_markdown = write_table(rows, study)
        print(escaped_lines(as_markdown.read_text(encoding="utf8")))
    msg.good(f"The table is in {as_json} and {as_markdown}, the pipelines in {output}")
    if failed := sum(row["failed"] for row in rows):
        fail(
            f"{failed} of {number_of(len(cells), 'training')} failed. See their log.txt for the "
            "reason"
        )


def refuse_to_overwrite(study: Path, given: Sequence[Path]) -> None:
    """Exit with an error if the table of a study would replace a file of something else."""
    from spacy_latent.distributed.sweep import tables_of

    for path in tables_of(study):
        is_given = any(one.exists() and path.exists() and one.samefile(path) for one in given)
        # The table of a study that was begun is its own.
        if is_given or (path.exists() and not study.exists()):
            fail(
                f"The table of the study {study} would overwrite {path}",
                "Give the study another name, or move that file.",
            )


def identity_of(config: str, *settings: object) -> str:
    """Return a digest of a config and its settings, which tells one study from another."""
    import hashlib

    import srsly

    whole = config + srsly.json_dumps(settings)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def refuse_unread(config: Path, overrides: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Raise LatentError for an unread setting, which would be a column without any effect."""
    from spacy_latent.cli.config_settings import unread_overrides

    asked = [overrides, *(each for named in values.values() for each in named.values())]
    unread = [said for each in asked for said in unread_overrides(config, each)]
    if unread:
        raise LatentError(" ".join(dict.fromkeys(unread)))


def refuse_absent(config: Path, trainings: Sequence[Mapping[str, Any]]) -> None:
    """Raise LatentError for a corpus that does not exist, without which trainings would fail.

    Args:
        trainings: The overrides of each.
    """
    from spacy.language import DEFAULT_CONFIG
    from spacy.util import load_config

    from spacy_latent.cli.training_corpus import absent_path, missing_path

    for overrides in trainings:
        made = load_config(config, overrides=dict(overrides), interpolate=False)
        corpora = {key: DEFAULT_CONFIG["training"][key] for key in ("train_corpus", "dev_corpus")}
        made["training"] = {**corpora, **made.get("training", {})}
        whole = made.interpolate()
        for setting in corpora:
            name = str(whole["training"][setting])
            reader = str(block_of(whole, f"{name}.@readers"))
            # Readers of others may have a path of something else than a file.
            if not reader.startswith(("spacy.", "spacy-latent.")):
                continue
            if said := missing_path(made, setting) or absent_path(whole, name):
                raise LatentError(said)
