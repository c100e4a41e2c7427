"""Processes that annotate the shards of a corpus, and replace those that die."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from spacy_latent.distributed.shard_annotation import Done, annotate_shard, error_text
from spacy_latent.distributed.shards import Shard
from spacy_latent.errors import LatentError

# Number of processes that may die while annotating a shard before the shard is abandoned.
ATTEMPTS = 3
# Errors of a connection to a process that has ended.
CLOSED = (EOFError, BrokenPipeError, ConnectionResetError)


@dataclass(frozen=True)
class ProcessSettings:
    """Settings that each process needs."""

    model: str
    batch_size: int
    threads: int
    prepare_first: Callable[..., object] | None
    prepare_with: tuple[object, ...]

    def prepare(self) -> None:
        """Set the number of threads of this process, and call the user's function."""
        import torch

        # This is also the limit of the thread pool of the kernels.
        torch.set_num_threads(self.threads)
        if self.prepare_first is not None:
            self.prepare_first(*self.prepare_with)


def _work(settings: ProcessSettings, connection: Connection) -> None:
    """Annotate shards in a worker process until the connection is closed."""
    with suppress(*CLOSED, KeyboardInterrupt):
        try:
            settings.prepare()
            while True:
                job = connection.recv()
                done = annotate_shard(
                    settings.model,
                    *job,
                    batch_size=settings.batch_size,
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

    def __init__(self, settings: ProcessSettings) -> None:
        self.connection, theirs = _context().Pipe()
        self.process = _context().Process(target=_work, args=(settings, theirs), daemon=True)
        with _threads_in_environment(settings.threads):
            self.process.start()
        # Otherwise this process would not see the end of the connection.
        theirs.close()
        self.job: Job | None = None

    def begin(self, job: Job) -> None:
        self.job = job
        # Reading from the connection of a dead process shows its end, too.
        with suppress(*CLOSED):
            self.connection.send(job)


class Workers:
    """Processes that receive shards, each through a connection of its own.

    A process that is killed would leave a shared connection locked.
    """

    def __init__(
        self, settings: ProcessSettings, count: int, progress: Callable[[Done], object]
    ) -> None:
        self.settings, self.count, self.progress = settings, count, progress
        self.workers: list[_Worker] = []
        self.again: list[Job] = []
        self.deaths: dict[str, int] = {}
        self.lost: list[str] = []
        self.total = Done()
        # The first process fills the cache of compiled kernels, which all others then use.
        self.is_warm = False

    def run(self, jobs: Iterator[Job]) -> Done:
        """Annotate all shards, and return the sum of their results."""
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
            self.workers.append(_Worker(self.settings))
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
        f"{len(names)} shard(s) failed, because {ATTEMPTS} {what} died at each: "
        f"{', '.join(sorted(names)[:5])}. All others are complete. If memory ran out, give fewer "
        "workers or a smaller --batch-size. Start the command again to annotate the rest."
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
