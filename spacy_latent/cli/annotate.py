"""``spacy latent annotate``: a corpus of any size, by several processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import typer
from wasabi import msg

from spacy_latent.cli.failure import fail

if TYPE_CHECKING:
    from spacy_latent.distributed.annotate import Done

EXAMPLES = """
Examples:

  spacy latent annotate training/model-best texts.jsonl annotated --workers 4

  spacy latent annotate training/model-best shards annotated --format docbin

  cat texts.txt | spacy latent annotate training/model-best - annotated
"""


def annotate_cli(
    model: str = typer.Argument(..., help="Trained pipeline: a directory or an installed package"),
    corpus: str = typer.Argument(
        ..., help="Texts: .parquet, .jsonl, .spacy, .txt, a directory of these, or - (stdin)"
    ),
    output: Path = typer.Argument(..., help="Directory for the annotated texts", file_okay=False),
    workers: int = typer.Option(1, "--workers", "-w", min=1, help="Number of processes"),
    form: str = typer.Option("parquet", "--format", "-f", help="parquet or docbin"),
    rows: int = typer.Option(10_000, "--rows", min=1, help="Texts in each file that is written"),
    batch_size: int = typer.Option(256, "--batch-size", min=1, help="Texts in a batch"),
    threads: Optional[int] = typer.Option(  # noqa: UP045 (typer < 0.12 on Python 3.10)
        None, "--threads", min=1, help="Of each process; its share of the cores if not given"
    ),
    text_field: str = typer.Option("text", "--text-field", help="Column or field of the texts"),
    id_field: str = typer.Option("id", "--id-field", help="Column or field of their ids, if any"),
    code: Optional[Path] = typer.Option(None, "--code", help="Python file to import"),  # noqa: UP045
    gpu_id: int = typer.Option(-1, "--gpu-id", "-g", help="GPU ID, or -1 for CPU"),
) -> None:
    """Annotate a corpus with a pipeline, in files of Parquet or of spaCy's docs. What is done
    already is not done again: start it again after it was cut off."""
    from spacy_latent.distributed.annotate import annotate
    from spacy_latent.errors import LatentError

    # Here too: a file or a GPU that is not there is told once, not by each process.
    prepare(code, gpu_id)
    try:
        done = annotate(
            model,
            corpus,
            output,
            workers=workers,
            form=form,
            rows=rows,
            batch_size=batch_size,
            threads=threads,
            text_field=text_field,
            id_field=id_field,
            # With one worker that is this process, which is prepared.
            prepare=prepare if workers > 1 else None,
            prepare_with=(code, gpu_id) if workers > 1 else (),
            progress=show,
        )
    except LatentError as error:
        fail("The corpus could not be annotated", str(error))
    if done.failed:
        msg.warn(
            f"{done.failed} of {done.rows} texts failed",
            "They are in the files with the reason, as 'error'.",
        )
    before = f"; {done.skipped} were done before" if done.skipped else ""
    msg.good(f"{done.rows} texts in {done.shards} files in {output}{before}")


def prepare(code: Path | None, gpu_id: int) -> None:
    """What each process does before it loads the pipeline."""
    from spacy_latent.cli.corpus import import_code
    from spacy_latent.cli.show import use_gpu

    import_code(code)
    use_gpu(gpu_id)


def show(done: Done) -> None:
    if sys.stderr.isatty():
        print(f"\r{done.rows} texts, {done.shards} files", end="", file=sys.stderr, flush=True)
