"""Annotation of a corpus of texts with any number of processes.

:func:`annotate` distributes the shards of a corpus over processes of this machine, which call
:func:`~spacy_latent.distributed.shard_annotation.annotate_shard`. It gives the shard of a process
that died to another process. An interrupted annotation is resumed by starting it again, and only
unfinished shards are repeated.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spacy_latent.corpora.text_pairs import NO_PAIRS
from spacy_latent.distributed.annotation_workers import ProcessSettings, Workers
from spacy_latent.distributed.directories import replace_file
from spacy_latent.distributed.parquet import pyarrow
from spacy_latent.distributed.shard_annotation import (
    BATCH,
    ENDINGS,
    Done,
    annotate_shard,
    forget_others,
    model_hash,
    text_fields,
)
from spacy_latent.distributed.shards import STDIN, Shard, form_of, shards_of, shards_of_lines
from spacy_latent.errors import LatentError, check_whole

ROWS = 10_000
# Readers of a directory of Parquet skip this name.
MANIFEST = "_annotation.json"


def annotate(
    model: str | Path,
    source: str | Path,
    output: Path,
    *,
    workers: int = 1,
    form: str = "parquet",
    rows: int = ROWS,
    batch_size: int = BATCH,
    threads: int | None = None,
    id_field: str = "id",
    text_field: str | None = None,
    prepare: Callable[..., object] | None = None,
    prepare_with: tuple[object, ...] = (),
    progress: Callable[[Done], object] = lambda done: None,
) -> Done:
    """Annotate a corpus with processes of this machine.

    Args:
        model: Directory of a pipeline, or name of an installed one.
        source: See :data:`spacy_latent.distributed.shards.ACCEPTED`; "-" for lines of standard
            input.
        output: Directory with one file per shard. Existing files are kept.
        workers: Number of processes; 1 uses this process. Others import the script that calls this
            function, which therefore has to stand under ``if __name__ == "__main__":``.
        form: "parquet" or "docbin".
        rows: Number of texts in each shard.
        batch_size: Batch size of ``nlp.pipe``.
        threads: Number of threads of each process; None divides the cores among the processes.
        id_field: Name of the column, or field of JSON, with the ids.
        text_field: Name of the column, or field of JSON, with the texts. For a pipeline that reads
            pairs of texts, two names with a comma between them. None: see :func:`text_fields`.
        prepare: Function of a module that each process calls before the pipeline is loaded.
        prepare_with: Arguments of ``prepare``.
        progress: Called after each shard with the sum of all results so far.

    Raises:
        LatentError: If the output belongs to another pipeline or corpus. Also, after all other
            shards are done, if every process of a shard died.
    """
    check_whole("annotate", workers=workers, batch_size=batch_size)
    jobs = jobs_of(model, source, output, form, rows, id_field, text_field)
    share = max(1, _cores() // workers) if threads is None else threads
    settings = ProcessSettings(str(model), batch_size, share, prepare, prepare_with)
    if workers == 1:
        import torch

        before = torch.get_num_threads()
        settings.prepare()
        total = Done()
        try:
            for shard, target in jobs:
                total += annotate_shard(model, shard, target, batch_size=batch_size)
                progress(total)
        finally:
            torch.set_num_threads(before)
        return total
    return Workers(settings, workers, progress).run(jobs)


def jobs_of(
    model: str | Path,
    source: str | Path,
    output: Path,
    form: str = "parquet",
    rows: int = ROWS,
    id_field: str = "id",
    text_field: str | None = None,
) -> Iterator[tuple[Shard, Path]]:
    """Yield the arguments of :func:`annotate_shard` for all shards of a corpus.

    See :func:`annotate` for the arguments.

    Raises:
        LatentError: If the corpus cannot be read, or the output belongs to something else.
    """
    if form not in ENDINGS:
        raise LatentError(f"--format is {form!r}; expected one of {', '.join(ENDINGS)}.")
    check_whole("annotate", rows=rows)
    if form == "parquet":
        pyarrow()
    # Started again, the annotation would read its own files as part of the corpus.
    if Path(source).is_dir() and output.resolve().is_relative_to(Path(source).resolve()):
        raise LatentError(f"{output} is in the corpus {source}. Give a directory outside of it.")
    fields = text_fields(model, text_field)
    listed = None
    if str(source) != STDIN:
        listed = shards_of(Path(source), rows, id_field, **fields)
    only_lines = listed is None or any(form_of(Path(one.path)) == "text" for one in listed)
    if "second_field" in fields and only_lines:
        raise LatentError(
            f"{NO_PAIRS}. Give .jsonl, .csv or .parquet with a field for each text, named by an "
            "option such as --text-field text_a,text_b; or .spacy."
        )
    shards = shards_of_lines(sys.stdin, rows) if listed is None else listed
    names = id_field, ",".join(fields.values())
    hash_ = model_hash(model)
    _check_output(output, hash_, form, rows, names, listed)
    forget_others(model, hash_)
    return ((shard, output / f"{shard.name}{ENDINGS[form]}") for shard in shards)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _check_output(
    output: Path,
    hash_: str,
    form: str,
    rows: int,
    fields: tuple[str, str],
    shards: list[Shard] | None,
) -> None:
    """Raise LatentError if the output belongs to another annotation or cannot be written."""
    ours: dict[str, Any] = {
        "model_hash": hash_,
        "format": form,
        "rows": rows,
        "fields": list(fields),
        "files": STDIN,
    }
    if shards is not None:
        # By the names of the shards and not by path, because a corpus may be moved.
        paths = {shard.name.rsplit("-", 1)[0]: shard.path for shard in shards}
        ours["files"] = {name: os.path.getsize(path) for name, path in paths.items()}
    path = output / MANIFEST
    try:
        output.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            if any(file.suffix in ENDINGS.values() for file in output.iterdir()):
                raise LatentError(
                    f"{output} holds other files. Give a directory for this annotation alone."
                )
            replace_file(path, json.dumps(ours, indent=2) + "\n")
            return
        if shards is None:
            raise LatentError(
                f"{output} was started before, and standard input cannot be resumed. Give "
                "another directory, or a file instead of standard input."
            )
        theirs = json.loads(path.read_text(encoding="utf8"))
    except OSError as error:
        raise LatentError(
            f"{output} cannot be written to: {error.strerror}. Give another directory."
        ) from error
    except LatentError:
        # It is a ValueError, too.
        raise
    except ValueError as error:
        raise LatentError(
            f"{path}, which holds the settings of {output}, is no JSON: {error}. Delete {output} "
            "to start again, or give another directory."
        ) from error
    if other := list(_differences(theirs, ours)):
        raise LatentError(
            f"{output} was started with other settings: {'; '.join(other)}. Give the same "
            "settings to resume, or delete it, or give another directory."
        )


def _differences(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    """Yield a clause for each difference, by the names of options."""
    if ours["model_hash"] != theirs.get("model_hash"):
        yield "another pipeline"
    if ours["files"] != theirs.get("files"):
        yield "another corpus, or files of another size"
    then, now = ([*each.get("fields", (None, None))] for each in (theirs, ours))
    then += [theirs.get("format"), theirs.get("rows")]
    now += [ours["format"], ours["rows"]]
    for option, old, new in zip(("--id-field", "--text-field", "--format", "--rows"), then, now):
        if old != new:
            yield f"{option} was {old}, and is {new}"


__all__ = ["Done", "annotate", "annotate_shard", "jobs_of", "model_hash"]
