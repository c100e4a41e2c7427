"""Annotation of a corpus of texts with any number of processes.

:func:`annotate` distributes the shards of a corpus over processes of this machine, which call
:func:`~spacy_latent.distributed.shard_annotation.annotate_shard`. It gives the shard of a process
that died to another process. An interrupted annotation is resumed by starting it again, and only
unfinished shards are repeated.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from spacy_latent.corpora.text_pairs import NO_PAIRS
from spacy_latent.distributed.directories import replace_file
from spacy_latent.distributed.parquet import pyarrow
from spacy_latent.distributed.shard_annotation import (
    BATCH,
    ENDINGS,
    Done,
    annotate_shard,
    error_text,
    forget_others,
    model_hash,
    text_fields,
)
from spacy_latent.distributed.shards import STDIN, Shard, form_of, shards_of, shards_of_lines
from spacy_latent.errors import LatentError, check_whole

ROWS = 10_000
# Number of processes that may die while annotating a shard before the shard is abandoned.
ATTEMPTS = 3
# Readers of a directory of Parquet skip this name.
MANIFEST = "_annotation.json"
# Errors of a connection to a process that has ended.
CLOSED = (EOFError, BrokenPipeError, ConnectionResetError)


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
    how = _How(str(model), batch_size, share, prepare, prepare_with)
    if workers == 1:
        import torch

        before = torch.get_num_threads()
        how.prepare()
        total = Done()
        try:
            for shard, target in jobs:
                total += annotate_shard(model, shard, target, batch_size=batch_size)
                progress(total)
        finally:
            torch.set_num_threads(before)
        return total
    return _Workers(how, workers, progress).run(jobs)


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
        raise LatentError(f"The format is {form!r}; expected one of {', '.join(ENDINGS)}.")
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
            f"{NO_PAIRS}. Give .jsonl, .csv or .parquet with a field for each text, named by "
            "--text-field text_a,text_b, or so; or .spacy."
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
                f"{output} was begun already, and standard input cannot be resumed. Give another "
                "directory, or a file instead of standard input."
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
            "to begin anew, or name another directory."
        ) from error
    if other := list(_differences(theirs, ours)):
        raise LatentError(
            f"{output} was begun with other settings: {'; '.join(other)}. Give the same to go on; "
            "else delete it, or name another directory."
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


@dataclass(frozen=True)
class _How:
    """Settings that each process needs."""

    model: str
    batch_size: int
    threads: int
    prepare_first: Callable[..., object] | None
    prepare_with: tuple[object, ...]

    def prepare(self) -> None:
        import torch

        # This is also the limit of the thread pool of the kernels.
        torch.set_num_threads(self.threads)
        if self.prepare_first is not None:
            self.prepare_first(*self.prepare_with)


def _work(how: _How, connection: Connection) -> None:
    """Annotate shards in a worker process until the connection is closed."""
    with suppress(*CLOSED, KeyboardInterrupt):
        try:
            how.prepare()
            while True:
                job = connection.recv()
                done = annotate_shard(
                    how.model,
                    *job,
                    batch_size=how.batch_size,
                    after_chunk=lambda: connection.send("warm"),
                )
                connection.send(done)
        except CLOSED:
            raise
        except Exception as error:
            # Send a message instead of the error, because not every error can be pickled.
            said = str(error) if isinstance(error, LatentError) else error_text(error)
            connection.send(LatentError(said))


Job = tuple[Shard, Path]


class _Worker:
    """Process with its current shard."""

    def __init__(self, how: _How) -> None:
        self.connection, theirs = _context().Pipe()
        self.process = _context().Process(target=_work, args=(how, theirs), daemon=True)
        with _threads_in_environment(how.threads):
            self.process.start()
        # Otherwise this process would not see the end of the connection.
        theirs.close()
        self.job: Job | None = None

    def begin(self, job: Job) -> None:
        self.job = job
        # Reading from the connection of a dead process shows its end, too.
        with suppress(*CLOSED):
            self.connection.send(job)


class _Workers:
    """Processes that receive shards, each through a connection of its own.

    A process that is killed would leave a shared connection locked.
    """

    def __init__(self, how: _How, count: int, progress: Callable[[Done], object]) -> None:
        self.how, self.count, self.progress = how, count, progress
        self.workers: list[_Worker] = []
        self.again: list[Job] = []
        self.deaths: dict[str, int] = {}
        self.lost: list[str] = []
        self.total = Done()
        # The first process fills the cache of compiled kernels, which all others then use.
        self.is_warm = False

    def run(self, jobs: Iterator[Job]) -> Done:
        try:
            while self._give(jobs) or self.workers:
                busy = {worker.connection: worker for worker in self.workers}
                for connection in wait(list(busy)):
                    self._hear(busy[connection])
        finally:
            for worker in self.workers:
                worker.process.kill()
        if self.lost:
            raise not_done(self.lost, "processes")
        return self.total

    def _next(self, jobs: Iterator[Job]) -> Job | None:
        while True:
            job = self.again.pop() if self.again else next(jobs, None)
            if job is None or not job[1].exists():
                return job
            self._add(Done(skipped=1))

    def _give(self, jobs: Iterator[Job]) -> bool:
        """Give shards to all idle and new processes; return False if there are no more shards."""
        for worker in [worker for worker in self.workers if worker.job is None]:
            if job := self._next(jobs):
                worker.begin(job)
            else:
                self._remove(worker)
        while len(self.workers) < (self.count if self.is_warm else 1):
            job = self._next(jobs)
            if job is None:
                return False
            self.workers.append(_Worker(self.how))
            self.workers[-1].begin(job)
        return True

    def _remove(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.connection.close()
        worker.process.join()

    def _hear(self, worker: _Worker) -> None:
        assert worker.job is not None
        shard, _ = worker.job
        try:
            said = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self._remove(worker)
            if not self.is_warm and worker.process.exitcode == 1:
                # It was not killed: an exception ended it, as would happen to all others.
                raise LatentError(
                    "The first process ended with an error before it had annotated texts; the "
                    "error is printed above. Each process imports the script that calls annotate: "
                    "let it do so under \"if __name__ == '__main__':\"."
                ) from None
            self.deaths[shard.name] = self.deaths.get(shard.name, 0) + 1
            if self.deaths[shard.name] < ATTEMPTS:
                self.again.append(worker.job)
            else:
                self.lost.append(shard.name)
            return
        self.is_warm = True
        if isinstance(said, LatentError):
            raise said
        if isinstance(said, Done):
            worker.job = None
            self._add(said)

    def _add(self, done: Done) -> None:
        self.total += done
        self.progress(self.total)


def not_done(names: list[str], what: str) -> LatentError:
    """Return the error for shards that killed too many processes or actors."""
    return LatentError(
        f"{len(names)} shard(s) are not done, because {ATTEMPTS} {what} died of each: "
        f"{', '.join(sorted(names)[:5])}. All others are. Often memory ran out: take fewer workers "
        "or a smaller --batch-size, and start again to do the rest."
    )


def _context() -> Any:
    """Return a multiprocessing context whose processes share no state with this one.

    If possible, they are forks of a process that has imported the modules that all of them need.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spacy_latent.distributed.preloaded"])
    return context


@contextmanager
def _threads_in_environment(threads: int) -> Iterator[None]:
    """Set the environment variables of libraries that count cores when they are imported."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, str(threads)))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)


__all__ = ["Done", "annotate", "annotate_shard", "jobs_of", "model_hash"]
