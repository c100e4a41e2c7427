"""A thread pool for kernels, created lazily in each process.

It is safe after a fork and under many threads. numba's own parallel threads are not, and torch's
cannot run numba code.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

# Below this many estimated nanoseconds of work, waking another thread gains little. It costs over
# 10 ms if the other cores are busy.
SERIAL_NANOSECONDS = 400_000
# Estimated nanoseconds of a range of items whose results are summed. Shorter ranges are no faster,
# since two Python threads that call many small torch operations wait for each other.
RANGE_NANOSECONDS = 10_000_000
MOST_RANGES = 16

Task = tuple[Callable[..., Any], int, int, tuple[Any, ...], "SimpleQueue[BaseException | None]"]

_lock = threading.Lock()
_tasks: SimpleQueue[Task] | None = None
_calm = threading.local()


def _after_fork() -> None:
    global _tasks, _lock
    _tasks = None
    _lock = threading.Lock()
    # The child inherits torch's OpenMP pool without its threads, and would wait for them forever.
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _work(tasks: SimpleQueue[Task], ready: threading.Event) -> None:
    # Nested work would deadlock.
    _calm.threads = 1
    # As in one_torch_thread. Also, sums by several torch threads round differently from sums by
    # one.
    torch.set_num_threads(1)
    # Otherwise the thread's first operation would set torch's global number of threads at that
    # time.
    torch.get_num_threads()
    ready.set()
    while True:
        kernel, start, stop, arguments, done = tasks.get()
        try:
            kernel(start, stop, *arguments)
            done.put(None)
        except BaseException as error:
            done.put(error)
        # A waiting thread must hold no references.
        del kernel, arguments, done


def _get_tasks() -> SimpleQueue[Task] | None:
    """Return the task queue, or None if no other thread is possible."""
    global _tasks
    with _lock:
        if _tasks is None:
            tasks: SimpleQueue[Task] = SimpleQueue()
            own, started = torch.get_num_threads(), 0
            try:
                for _ in range(max(1, (os.cpu_count() or 1) - 1)):
                    ready = threading.Event()
                    try:
                        threading.Thread(
                            target=_work, args=(tasks, ready), name="spacy-latent", daemon=True
                        ).start()
                    except RuntimeError:
                        # The system limits threads: those that exist do the work.
                        break
                    started += 1
                    ready.wait()
            finally:
                # The threads changed torch's number of threads, which new threads start with.
                torch.set_num_threads(own)
            if started:
                _tasks = tasks
        return _tasks


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """Keep torch's operations on the calling thread; :func:`spread` is not affected.

    torch's threads spin while they wait for each other. If another process occupies a core, each
    small operation then takes milliseconds instead of a fraction of one. The threads of this pool
    sleep. A Python thread that first uses torch in this context keeps to one thread afterwards,
    since new threads start with torch's current number.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    _calm.threads = threads
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _calm.threads = None


def spread(kernel: Callable[..., Any], costs: np.ndarray, arguments: tuple[Any, ...]) -> None:
    """Call ``kernel(start, stop, *arguments)`` over the items 0 .. len(costs)−1.

    Items are split into ranges of about equal cost. One range runs on the calling thread.

    Args:
        kernel: compiled with ``nogil``; items must be independent of each other.
        costs: estimated nanoseconds of each item.
    """
    count, total = len(costs), float(costs.sum())
    threads = min(getattr(_calm, "threads", None) or torch.get_num_threads(), count)
    tasks = None if threads <= 1 or total < SERIAL_NANOSECONDS else _get_tasks()
    if tasks is None:
        kernel(0, count, *arguments)
        return
    bounds, done = _bounds(costs, threads), SimpleQueue[BaseException | None]()
    for start, stop in zip(bounds[1:], bounds[2:]):
        tasks.put((kernel, start, stop, arguments, done))
    try:
        kernel(bounds[0], bounds[1], *arguments)
    finally:
        # The other threads write to the same memory, so they must finish.
        errors = [done.get() for _ in bounds[2:]]
    for error in errors:
        if error is not None:
            raise error


def ranges(costs: np.ndarray) -> list[tuple[int, int]]:
    """Return ranges of about equal cost over the items 0 .. len(costs)−1, for summed results.

    They depend on ``costs`` alone, so sums over ranges are the same for any number of threads. No
    range is empty, unless there are no items: the result is then one empty range.

    Args:
        costs: estimated nanoseconds of each item.
    """
    count = max(1, min(len(costs), MOST_RANGES, int(float(costs.sum()) / RANGE_NANOSECONDS)))
    bounds = _bounds(costs, count)
    found = [(start, stop) for start, stop in zip(bounds, bounds[1:]) if start < stop]
    return found or [(0, 0)]


def _bounds(costs: np.ndarray, parts: int) -> list[int]:
    """Return the starts of ``parts`` ranges of about equal cost, and the end of the last."""
    sums = np.cumsum(costs)
    goals = sums[-1] / parts * np.arange(1, parts) if parts > 1 else np.empty(0)
    return [0, *(np.searchsorted(sums, goals) + 1).tolist(), len(costs)]
