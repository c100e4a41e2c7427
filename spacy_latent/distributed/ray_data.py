"""The shards of a corpus annotated by actors of Ray Data, on one machine or on a cluster.

Each actor loads the pipeline once and is given shards; what it does with one is
:func:`spacy_latent.distributed.annotate.annotate_shard`, so that here too a file is whole and made
once. All machines have to see the corpus, the pipeline and the output by the same paths.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from spacy_latent.distributed.annotate import (
    ATTEMPTS,
    BATCH,
    ROWS,
    Done,
    annotate_rows,
    annotate_shard,
    jobs_of,
    load,
)
from spacy_latent.distributed.directories import locked
from spacy_latent.distributed.ray_cluster import connected, import_ray, part_of_ray
from spacy_latent.distributed.shards import STDIN, Shard, read_shard
from spacy_latent.errors import LatentError, number_of

INSTEAD = "Without Ray, --engine local annotates with processes of this machine."
# Texts by which an actor comes to the machine code that it needs.
WARMING = 32
DONE = ("rows", "failed", "shards", "skipped")
# Of the files that actors leave for each other.
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
    """Annotate a corpus with actors of Ray Data. See
    :func:`spacy_latent.distributed.annotate.annotate` for what is not named here.

    model, source, output: on a disk that all machines see, by the same paths.
    workers: how many actors; the fewest of them, if most_workers is given.
    most_workers: Ray takes up to so many, where there is work and room for them.
    threads: of each actor, which takes as many of Ray's CPUs.
    gpus: of each actor; with 0.5 two of them share one. To an actor its GPU is number 0.
    address: of a running cluster, "auto" for the one of this machine. None begins one on this
        machine, and ends it after, unless this process is connected to one.

    Raises LatentError where Ray is not installed or has no room for the actors, and after all else
    is done for shards of which every actor died.
    """
    if str(source) == STDIN:
        raise LatentError(
            "Actors of Ray cannot read the standard input of this process. Give a file, or take "
            "--engine local."
        )
    most = workers if most_workers is None else most_workers
    for what, number, least in (
        ("number of workers", workers, 1),
        ("largest number of workers", most, workers),
        ("number of threads", threads, 1),
        ("number of GPUs", gpus, 0),
    ):
        if number < least:
            raise LatentError(f"The {what} is {number}; expected a number >= {least}.")
    ray = import_ray(address, INSTEAD)
    data = part_of_ray("ray.data", INSTEAD)
    # Actors work in a directory of their own.
    model = str(Path(model).absolute()) if Path(model).exists() else str(model)
    source, output = Path(source).absolute(), Path(output).absolute()
    jobs = list(jobs_of(model, source, output, form, rows, id_field, text_field))
    waiting = [job for job in jobs if not job[1].exists()]
    total = Done(skipped=len(jobs) - len(waiting))
    if not waiting:
        return total
    with _forgetting(output), connected(ray, address), _without_bars(data):
        _check_room(ray, workers, threads, gpus)
        actors = data.ActorPoolStrategy(
            min_size=workers,
            max_size=most,
            # A shard that waits for its actor is none that another one could take. Ray takes more
            # actors by how many of them wait.
            max_tasks_in_flight_per_actor=1 if most == workers else None,
        )
        results = (
            # As many blocks as shards, so that each is a task of its own.
            data.from_items([_packed(*job) for job in waiting], override_num_blocks=len(waiting))
            .map_batches(
                _Annotator,
                fn_constructor_args=(model, batch_size, threads, prepare, prepare_with),
                batch_size=1,
                compute=actors,
                num_cpus=threads,
                num_gpus=gpus,
                max_restarts=-1,
                max_task_retries=-1,
            )
            .iter_rows()
        )
        lost = []
        for result in results:
            if result["error"]:
                raise LatentError(result["error"])
            if result["lost"]:
                lost.append(result["name"])
            counts = {name: int(result[name]) for name in DONE}
            total += Done(**counts, reason=result["reason"])
            progress(total)
    if lost:
        raise LatentError(
            f"{len(lost)} shard(s) are not done, because {ATTEMPTS} actors died of each: "
            f"{', '.join(sorted(lost)[:5])}. All others are. Often memory ran out: take fewer "
            "workers or a smaller --batch-size, and start again to do the rest."
        )
    return total


def _packed(shard: Shard, target: Path) -> dict[str, str]:
    return {"job": json.dumps([asdict(shard), str(target)])}


@contextmanager
def _forgetting(output: Path) -> Iterator[None]:
    """Before and after, without what actors have noted for each other: an earlier command may have
    been killed."""

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


def _check_room(ray: Any, workers: int, threads: int, gpus: float) -> None:
    """Refuse what would wait for ever. A cluster may get more machines for more than the fewest
    actors, but these have to be there before anything is done."""
    there = ray.cluster_resources()
    cpus = int(there.get("CPU", 0))
    if workers * threads >= cpus:
        room = max(0, cpus - 1) // threads
        fewer = f"at most {number_of(room, 'worker')}"
        raise LatentError(
            f"{workers} actor(s) with {threads} thread(s) each would take all of the "
            f"{number_of(cpus, 'CPU')} that Ray has here, and Ray needs one to read what they are "
            f"to do. Take {fewer if room else 'a cluster with more CPUs'}, or --engine local, "
            "which needs none."
        )
    if workers * gpus > there.get("GPU", 0):
        raise LatentError(
            f"{workers} actor(s) with {gpus} of a GPU each need more than the "
            f"{there.get('GPU', 0):g} that Ray has. Take fewer workers, or a smaller share."
        )


class _Annotator:
    """An actor. It fails at no job: what it raised, Ray would tell with a page of its own code, or
    take for a death and try again for ever."""

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
        done, lost, error = Done(), False, ""
        try:
            with _attempt(target) as may_try:
                if may_try:
                    self._be_ready(shard, target.parent)
                    done = annotate_shard(self.model, shard, target, batch_size=self.batch_size)
                else:
                    lost = True
        except SystemExit:
            error = (
                f"An actor on {platform.node()} ended when it should prepare itself; why is in "
                "Ray's log of it. All machines need the file of --code, by the same path."
            )
        except Exception as raised:
            said = isinstance(raised, LatentError)
            error = str(raised) if said else f"{type(raised).__name__}: {raised}"
        return {
            "name": [shard.name],
            "lost": [lost],
            "error": [error],
            "reason": [done.reason],
            **{name: [getattr(done, name)] for name in DONE},
        }

    def _be_ready(self, shard: Shard, output: Path) -> None:
        """Not when it is made: Ray does that in another thread, and a GPU is of a thread."""
        if self.is_ready:
            return
        import torch

        # The limit of the kernels' pool, too.
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
    """Whether there have not been too many deaths of this shard. Ray would give one that kills its
    actors to one after another, for ever; so each notes that it is at it, and takes the note back
    when it is through."""
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
    """Whether no other actor of this machine has been here. All others wait for the first: it
    compiles kernels, for seconds to minutes, and they find the machine code in the cache."""
    path = output / f".{platform.node()}.warm"
    with locked(path):
        is_first = path.stat().st_size == 0
        yield is_first
        if is_first:
            path.write_bytes(b".")


__all__ = ["annotate_with_ray"]
