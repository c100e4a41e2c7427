"""Annotation of the shards of a corpus by actors of Ray Data, on one machine or on a cluster.

Each actor loads the pipeline once and receives shards. It annotates a shard with
:func:`spacy_latent.distributed.shard_annotation.annotate_shard`, so that each file is complete and
is made only once. All machines must have the corpus, the pipeline and the output at the same paths.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from spacy_latent.distributed.annotate import ROWS, jobs_of
from spacy_latent.distributed.annotation_workers import ATTEMPTS, not_done
from spacy_latent.distributed.directories import locked
from spacy_latent.distributed.ray_cluster import connected, import_ray, part_of_ray
from spacy_latent.distributed.shard_annotation import (
    BATCH,
    Done,
    annotate_rows,
    annotate_shard,
    error_text,
    load,
)
from spacy_latent.distributed.shards import STDIN, Shard, read_shard
from spacy_latent.errors import LatentError, number_of

INSTEAD = "Without Ray, --engine local annotates with processes of this machine."
# Number of texts that make an actor compile or load all kernels that it needs.
WARMING = 32
DONE = ("rows", "failed", "shards", "skipped")
# Endings of the files by which actors communicate.
NOTES = ("attempts", "warm")


def annotate_with_ray(
    model: str | Path,
    source: str | Path,
    output: Path,
    *,
    workers: int = 1,
    most_workers: int | None = None,
    form: str = "parquet",
    rows: int = ROWS,
    batch_size: int = BATCH,
    threads: int = 1,
    gpus: float = 0.0,
    address: str | None = None,
    id_field: str = "id",
    text_field: str | None = None,
    prepare: Callable[..., object] | None = None,
    prepare_with: tuple[object, ...] = (),
    progress: Callable[[Done], object] = lambda done: None,
) -> Done:
    """Annotate a corpus with actors of Ray Data.

    See :func:`spacy_latent.distributed.annotate.annotate` for the other arguments.

    Args:
        model, source, output: Paths on a disk that all machines have at the same path.
        workers: Number of actors; the least number if ``most_workers`` is given.
        most_workers: Ray starts up to this many actors if there is work and capacity for them.
        threads: Number of threads of each actor, which occupies as many of Ray's CPUs.
        gpus: Number of GPUs of each actor. With 0.5, two actors share a GPU. An actor sees its GPU
            as number 0.
        address: Address of a running cluster, "auto" for the cluster of this machine. None starts a
            cluster on this machine and stops it at the end, unless this process is connected to a
            cluster.

    Raises:
        LatentError: If Ray is not installed or has no capacity for the actors. Also, after all
            other shards are done, if every actor of a shard died.
    """
    if str(source) == STDIN:
        raise LatentError(
            "Actors of Ray cannot read the standard input of this process. Give a file, or use "
            "--engine local."
        )
    actors = _Actors(workers, workers if most_workers is None else most_workers, threads, gpus)
    ray = import_ray(address, INSTEAD)
    data = part_of_ray("ray.data", INSTEAD)
    # Absolute paths, because an actor has its own working directory.
    model = str(Path(model).absolute()) if Path(model).exists() else str(model)
    source, output = Path(source).absolute(), Path(output).absolute()
    jobs = list(jobs_of(model, source, output, form, rows, id_field, text_field))
    waiting = [job for job in jobs if not job[1].exists()]
    before = Done(skipped=len(jobs) - len(waiting))
    if not waiting:
        return before
    with _forgetting(output), connected(ray, address), _without_bars(data):
        actors.check_capacity(ray)
        made_with = (model, batch_size, threads, prepare, prepare_with)
        return _added_up(actors.results(data, waiting, made_with), before, progress)


def _added_up(
    results: Iterable[dict[str, Any]], total: Done, progress: Callable[[Done], object]
) -> Done:
    """Add the results of all shards to a total, and raise LatentError if some are not done."""
    lost: list[str] = []
    for result in results:
        if result["error"]:
            raise LatentError(result["error"])
        if result["lost"]:
            lost.append(result["name"])
        counts = {name: int(result[name]) for name in DONE}
        total += Done(**counts, reason=result["reason"])
        progress(total)
    if lost:
        raise not_done(lost, "actors")
    return total


@contextmanager
def _forgetting(output: Path) -> Iterator[None]:
    """Remove the files by which actors communicate, at the start and at the end."""

    def forget() -> None:
        for ending in NOTES:
            for path in output.glob(f".*.{ending}"):
                path.unlink(missing_ok=True)

    forget()
    try:
        yield
    finally:
        forget()


@contextmanager
def _without_bars(data: Any) -> Iterator[None]:
    context = data.DataContext.get_current()
    before = context.enable_progress_bars
    context.enable_progress_bars = False
    try:
        yield
    finally:
        context.enable_progress_bars = before


@dataclass(frozen=True)
class _Actors:
    """Numbers of actors, and what each of them occupies."""

    least: int
    most: int
    threads: int
    gpus: float

    def __post_init__(self) -> None:
        for what, number, least in (
            ("number of workers", self.least, 1),
            ("largest number of workers", self.most, self.least),
            ("number of threads", self.threads, 1),
            ("number of GPUs", self.gpus, 0),
        ):
            if number < least:
                raise LatentError(f"The {what} is {number}; expected a number >= {least}.")

    def check_capacity(self, ray: Any) -> None:
        """Raise LatentError if the cluster lacks the capacity for the least number of actors.

        They would wait forever. For more actors, a cluster may add machines later.
        """
        there = ray.cluster_resources()
        cpus = int(there.get("CPU", 0))
        if self.least * self.threads >= cpus:
            capacity = max(0, cpus - 1) // self.threads
            fewer = f"at most {number_of(capacity, 'worker')}"
            raise LatentError(
                f"{self.least} actor(s) with {self.threads} thread(s) each would use all of the "
                f"{number_of(cpus, 'CPU')} of Ray, which needs one to read the corpus. Give "
                f"{fewer if capacity else 'a cluster with more CPUs'}, or --engine local, which "
                "needs none."
            )
        if self.least * self.gpus > there.get("GPU", 0):
            raise LatentError(
                f"{self.least} actor(s) with {self.gpus} of a GPU each need more than the "
                f"{there.get('GPU', 0):g} that Ray has. Give fewer workers, or a smaller share."
            )

    def results(
        self, data: Any, jobs: list[tuple[Shard, Path]], made_with: tuple[object, ...]
    ) -> Iterator[dict[str, Any]]:
        """Yield the result of each job, in the order in which the actors finish.

        Args:
            made_with: Arguments of :class:`_Annotator`.
        """
        pool = data.ActorPoolStrategy(
            min_size=self.least,
            max_size=self.most,
            # A shard that is queued at one actor cannot be taken by another. But Ray adds actors
            # according to the number of queued shards, so a growing pool needs queues.
            max_tasks_in_flight_per_actor=1 if self.most == self.least else None,
        )
        packed = [{"job": json.dumps([asdict(shard), str(target)])} for shard, target in jobs]
        # There are as many blocks as shards, so that each shard is a separate task.
        results: Iterator[dict[str, Any]] = (
            data.from_items(packed, override_num_blocks=len(packed))
            .map_batches(
                _Annotator,
                fn_constructor_args=made_with,
                batch_size=1,
                compute=pool,
                num_cpus=self.threads,
                num_gpus=self.gpus,
                max_restarts=-1,
                max_task_retries=-1,
            )
            .iter_rows()
        )
        return results


class _Annotator:
    """Actor that annotates shards and never raises.

    Ray would show an error with a page of its own code, or treat it as the actor's death and retry
    forever.
    """

    def __init__(
        self,
        model: str,
        batch_size: int,
        threads: int,
        prepare: Callable[..., object] | None,
        prepare_with: tuple[object, ...],
    ) -> None:
        self.model, self.batch_size, self.threads = model, batch_size, threads
        self.prepare, self.prepare_with = prepare, prepare_with
        self.is_ready = False

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        (packed,) = batch["job"]
        fields, place = json.loads(packed)
        shard, target = Shard(**fields), Path(place)
        done, may_try, error = Done(), True, ""
        try:
            with _attempt(target) as may_try:
                if may_try:
                    self._be_ready(shard, target.parent)
                    done = annotate_shard(self.model, shard, target, batch_size=self.batch_size)
        except SystemExit:
            error = (
                f"An actor on {platform.node()} ended while it was prepared; Ray's log of it says "
                "why. All machines need the file of --code, at the same path."
            )
        except Exception as raised:
            error = str(raised) if isinstance(raised, LatentError) else error_text(raised)
        return {
            "name": [shard.name],
            "lost": [not may_try],
            "error": [error],
            "reason": [done.reason],
            **{name: [getattr(done, name)] for name in DONE},
        }

    def _be_ready(self, shard: Shard, output: Path) -> None:
        """Prepare the actor at its first shard.

        Ray calls the constructor in another thread, and a GPU belongs to a thread.
        """
        if self.is_ready:
            return
        import torch

        # This is also the limit of the thread pool of the kernels.
        torch.set_num_threads(self.threads)
        if self.prepare is not None:
            self.prepare(*self.prepare_with)
        pipeline = load(self.model)
        with _first_on_this_machine(output) as is_first:
            if is_first:
                some = islice(read_shard(shard, pipeline.nlp.vocab), WARMING)
                with pipeline.nlp.memory_zone():
                    annotate_rows(pipeline.nlp, some, self.batch_size)
        self.is_ready = True


@contextmanager
def _attempt(target: Path) -> Iterator[bool]:
    """Record this attempt at a shard until its end, and yield whether enough actors survived.

    Ray would give a shard that kills its actors to one actor after another, forever.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    notes = target.with_name(f".{target.name}.attempts")
    if notes.exists() and os.path.getsize(notes) >= ATTEMPTS:
        yield False
        return
    with notes.open("ab") as file:
        file.write(b".")
    try:
        yield True
    finally:
        notes.unlink(missing_ok=True)


@contextmanager
def _first_on_this_machine(output: Path) -> Iterator[bool]:
    """Yield whether this actor is the first one on this machine; all others wait for the first.

    It compiles kernels, which takes seconds to minutes. The others find them in the cache.
    """
    path = output / f".{platform.node()}.warm"
    with locked(path):
        is_first = path.stat().st_size == 0
        yield is_first
        if is_first:
            path.write_bytes(b".")
