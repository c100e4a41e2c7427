"""Ranges of items, for threads and for sums."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spacy_latent.kernels.core import pool

COSTS = st.lists(st.floats(0.0, 1e9), max_size=30).map(np.array)


@given(COSTS)
def test_ranges_are_all_items_in_order(costs: np.ndarray) -> None:
    ranges = pool.ranges(costs)
    assert len(ranges) <= pool.MOST_RANGES
    assert [i for start, stop in ranges for i in range(start, stop)] == list(range(len(costs)))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_ranges_do_not_depend_on_threads(threads: int, set_threads: Callable[[int], None]) -> None:
    """Sums over other ranges would round differently, and training would take another course."""
    costs = np.full(40, pool.RANGE_NANOSECONDS / 10.0)
    set_threads(threads)
    assert pool.ranges(costs) == [(0, 10), (10, 20), (20, 30), (30, 40)]


def test_small_work_is_one_range() -> None:
    assert pool.ranges(np.full(40, 1.0)) == [(0, 40)]


def test_nothing_is_no_work() -> None:
    assert [stop - start for start, stop in pool.ranges(np.empty(0))] == [0]


@pytest.mark.parametrize("most", [0, 1])
def test_work_is_done_where_few_threads_may_start(
    monkeypatch: pytest.MonkeyPatch, set_threads: Callable[[int], None], most: int
) -> None:
    """All work is done in this call and in a later one, without a wait for threads that did not
    start.
    """
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def start_few(thread: threading.Thread) -> None:
        if len(started) == most:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(pool, "_tasks", None)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(threading.Thread, "start", start_few)
    set_threads(3)
    for _ in range(2):
        done = np.zeros(30, dtype=int)
        pool.spread(_count, np.full(30, pool.SERIAL_NANOSECONDS), (done,))
        assert (done == 1).all()
    assert torch.get_num_threads() == 3


def _count(start: int, stop: int, done: np.ndarray) -> None:
    done[start:stop] += 1
