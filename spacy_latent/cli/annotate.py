"""Command ``spacy latent annotate``: annotation of a corpus of any size by several processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.options import Code, Model
from spacy_latent.cli.pipelines import prepare
from spacy_latent.corpora.standard_streams import EMPTY_PATH
from spacy_latent.errors import number_of

if TYPE_CHECKING:
    from spacy_latent.distributed.shard_annotation import Done

ENGINES = ("local", "ray")
EXAMPLES = """
Examples:

  spacy latent annotate training/model-best texts.jsonl annotated --workers 4

  spacy latent annotate training/model-best shards annotated --format docbin

  cat texts.txt | spacy latent annotate training/model-best - annotated

  spacy latent annotate training/model-best shards annotated --engine ray --workers 8 --address auto
"""


def annotate_cli(
    model: Model,
    corpus: str = typer.Argument(
        ...,
        help="Texts: .parquet, .jsonl, .csv, .tsv, .spacy, .txt, a directory of these, or - for "
        "standard input",
    ),
    output: Path = typer.Argument(..., help="Directory for the annotated texts", file_okay=False),
    engine: str = typer.Option(
        "local", "--engine", "-e", help="How to start the processes: local, or ray"
    ),
    workers: int = typer.Option(1, "--workers", "-w", min=1, help="Number of processes"),
    form: str = typer.Option(
        "parquet", "--format", "-f", help="Format of the files to write: parquet or docbin"
    ),
    rows: int = typer.Option(10_000, "--rows", min=1, help="Texts in each written file"),
    batch_size: int = typer.Option(256, "--batch-size", min=1, help="Texts in a batch"),
    threads: int | None = typer.Option(
        None,
        "--threads",
        min=1,
        help="Threads of each process. Default: its share of the cores, or 1 with ray",
    ),
    text_field: str | None = typer.Option(
        None,
        "--text-field",
        help="Column or field of the texts; for pairs of texts two, as text_a,text_b. Default: "
        "'text'; for pairs the fields in the pipeline's config, else 'text_a,text_b'",
    ),
    id_field: str = typer.Option(
        "id", "--id-field", help="Column or field of the texts' ids, if they have any"
    ),
    code: Code = None,
    gpu_id: int = typer.Option(-1, "--gpu-id", "-g", help="GPU ID, or -1 for CPU; not with ray"),
    most_workers: int | None = typer.Option(
        None,
        "--max-workers",
        min=1,
        help="With ray: most processes if the cluster has capacity; --workers is the fewest",
    ),
    gpus: float = typer.Option(
        0.0, "--gpus", min=0.0, help="With ray: GPUs of each process; 0.5 if two share one"
    ),
    address: str | None = typer.Option(
        None,
        "--address",
        help="With ray: address of a running cluster, or auto for the one of this machine. "
        "Default: start a cluster on this machine",
    ),
) -> None:
    """Annotate a corpus with a pipeline, and write Parquet files or .spacy files.

    To resume an interrupted annotation, start the command again. It skips complete files.
    """
    from spacy_latent.distributed.annotate import annotate
    from spacy_latent.distributed.ray_data import annotate_with_ray

    has_ray_options = bool(most_workers is not None or gpus or address is not None)
    check_engine(engine, has_ray_options, gpu_id)
    common: dict[str, Any] = {
        "workers": workers,
        "form": form,
        "rows": rows,
        "batch_size": batch_size,
        "text_field": text_field,
        "id_field": id_field,
        "progress": show,
    }
    if not corpus:
        raise typer.BadParameter(EMPTY_PATH, param_hint="'corpus'")
    # Also in this process, so that a missing file or GPU causes one error and not one per process.
    prepare(code, gpu_id)
    with failing("The corpus could not be annotated"):
        if engine == "ray":
            done = annotate_with_ray(
                model,
                corpus,
                output,
                most_workers=most_workers,
                threads=threads or 1,
                gpus=gpus,
                address=address,
                prepare=prepare,
                # An actor of Ray sees only its own GPU.
                prepare_with=(code and code.absolute(), 0 if gpus else -1),
                **common,
            )
        else:
            done = annotate(
                model,
                corpus,
                output,
                threads=threads,
                # With one worker, this process does the work, and it is prepared already.
                prepare=prepare if workers > 1 else None,
                prepare_with=(code, gpu_id) if workers > 1 else (),
                **common,
            )
    report(done, output)


def check_engine(engine: str, has_ray_options: bool, gpu_id: int) -> None:
    """Exit with an error for an unknown engine, or options of the other one."""
    if engine not in ENGINES:
        fail(f"--engine is {engine!r}", f"Give one of {', '.join(ENGINES)}.")
    if engine == "ray" and gpu_id >= 0:
        fail("--gpu-id is for --engine local", "Give --gpus, the share of a GPU of each process.")
    if engine == "local" and has_ray_options:
        fail("--max-workers, --gpus and --address are for --engine ray", "Add --engine ray.")


def report(done: Done, output: Path) -> None:
    """Print what was annotated; exit with an error if every text failed."""
    why = f"One of them: {done.reason}. They are in the files with the reason, as 'error'."
    if done.failed and done.failed == done.rows and not done.skipped:
        fail(
            f"Not one of {number_of(done.rows, 'text')} could be annotated",
            f"{why} Delete {output} before you start again, or name another directory.",
        )
    if done.failed:
        msg.warn(f"{done.failed} of {number_of(done.rows, 'text')} failed", why)
    before = f"; {number_of(done.skipped, 'file')} done before" if done.skipped else ""
    texts, files = number_of(done.rows, "text"), number_of(done.shards, "file")
    msg.good(f"{texts} in {files} in {output}{before}")


def show(done: Done) -> None:
    """Print the numbers of texts and files over the line before, if a terminal shows it."""
    if sys.stderr.isatty():
        texts, files = number_of(done.rows, "text"), number_of(done.shards, "file")
        print(f"\r{texts}, {files}", end="", file=sys.stderr, flush=True)
