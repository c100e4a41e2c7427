"""Triton kernels on a CPU, and a watch for errors that only a GPU would show.

Triton's interpreter runs the operations of a program one after the other, on whole tiles. Its
results are right even if a barrier is missing. :class:`Watch` therefore compares each load and
store with the accesses of other threads since the last barrier.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from packaging.version import Version

# Kernels that are defined while this is set are interpreted.
with patch.dict(os.environ, {"TRITON_INTERPRET": "1"}):
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    if Version(triton.__version__) < Version("3.6"):
        pytest.skip("its interpreter lacks what these tests need", allow_module_level=True)
    interpreter = import_module("triton.runtime.interpreter")
    with suppress(ImportError):
        # Triton imports it at the first launch, when the variable is no longer set.
        import_module("triton.experimental.gluon")
    NAMES = ("projective_tree", "spanning_tree", "constituency_tree", "linear_chain")
    MODULES = {
        name: import_module(f"spacy_latent.kernels.gpu.{name}")
        for name in (*NAMES, "best_arborescence")
    }


class _Nothing:
    def restore(self) -> None:
        pass


_patched: set[int] = set()
_patch_language = interpreter._patch_lang


def _patch_once(function: Any) -> Any:
    """Patch Triton's language only once. Triton does so at each call, for half of the time."""
    if id(function.__globals__) not in _patched:
        _patched.add(id(function.__globals__))
        _patch_language(function)
    return _Nothing()


def _reduce_by_halves(self: Any, given: Any) -> list[Any]:
    """Reduce by halves. Triton's loop over single numbers takes a hundred times as long."""
    parts = [value.handle.data for value in given]
    while parts[0].shape[self.axis] > 1:
        halves = [np.split(part, 2, self.axis) for part in parts]
        sides = [
            self.to_tensor(half[side], value.dtype)
            for side in range(2)
            for half, value in zip(halves, given)
        ]
        found = self.combine_fn.fn(*sides)
        parts = [value.handle.data for value in (found if isinstance(found, tuple) else (found,))]
    if not self.keep_dims:
        parts = [part.squeeze(self.axis) for part in parts]
    return [self.to_tensor(part, value.dtype) for part, value in zip(parts, given)]


def _splat(self: Any, block: Any, given: Any) -> Any:
    """Fill a block with a number.

    Triton's own function makes integers of conditions, which are no masks since Triton 3.9.
    """
    number = given.data[0] if given.data.ndim else given.data
    return interpreter.TensorHandle(np.full(block.shape, number), given.dtype.scalar)


interpreter._patch_lang = _patch_once
interpreter.InterpreterBuilder.create_splat = _splat
interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
interpreter.ReduceOps.generic_reduce = _reduce_by_halves


class Race(AssertionError):
    """An access with a result on a GPU that is wrong, or not always right."""


class Watch:
    """Raise :class:`Race` at an access that is unsafe on a GPU.

    An access is unsafe in three cases:

    - A program reads what it has written since its last barrier, perhaps by another thread.
    - It writes what it has read or written since then. The exception is a tile of two axes that it
      has read as the same tile, and in no other way: each thread then has its own numbers.
    - It reads or writes outside of the tensors that it was given.
    """

    def __init__(self) -> None:
        self.low = self.high = np.zeros(0, dtype=np.uint64)
        self.barriers = self.loads = self.stores = 0
        self.clear()

    def clear(self) -> None:
        # The load that has read each address since the barrier, or None after several loads.
        self.read: dict[int, list[int] | None] = {}
        self.written: set[int] = set()

    def enter(self, tensors: list[torch.Tensor]) -> None:
        low = [value.data_ptr() for value in tensors]
        high = [value.data_ptr() + value.numel() * value.element_size() for value in tensors]
        self.low, self.high = np.array(low, np.uint64), np.array(high, np.uint64)

    def look(self, pointers: Any, mask: Any, writes: bool) -> None:
        keep = mask.data.astype(bool)
        at = np.broadcast_to(pointers.data, keep.shape)[keep]
        if not ((at[:, None] >= self.low) & (at[:, None] < self.high)).any(1).all():
            raise Race("outside of all tensors")
        places = at.tolist()
        if not self.written.isdisjoint(places):
            raise Race(f"{'writes' if writes else 'reads'} what was written since the barrier")
        if not writes:
            self.loads += 1
            for place in places:
                self.read[place] = None if place in self.read else places
            return
        self.stores += 1
        readers = [self.read[place] for place in places if place in self.read]
        # Single numbers and rows are read by several threads.
        own = keep.ndim > 1 and min(keep.shape) > 1 and places == (readers or [None])[0]
        if any(reader is not readers[0] for reader in readers) or (readers and not own):
            raise Race("writes what was read since the barrier")
        if len(set(places)) < len(places):
            raise Race("two threads write to one place")
        self.written.update(places)


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch all kernels that are launched inside of the context."""
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    load, store = builder.create_masked_load, builder.create_masked_store
    set_index, read_arguments = builder.set_grid_idx, executor._init_args_hst
    watch = Watch()

    def watched_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        watch.look(pointers, mask, False)
        return load(self, pointers, mask, *rest)

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        watch.look(pointers, mask, True)
        return store(self, pointers, value, mask, *rest)

    def barrier(self: Any) -> None:
        watch.barriers += 1
        watch.clear()

    def begin(self: Any, *index: int) -> Any:
        watch.clear()
        return set_index(self, *index)

    def arguments(self: Any, given: Any, named: Any) -> Any:
        found = read_arguments(self, given, named)
        watch.enter([value for value in found[0] if isinstance(value, torch.Tensor)])
        return found

    with (
        patch.object(builder, "create_masked_load", watched_load),
        patch.object(builder, "create_masked_store", watched_store),
        patch.object(builder, "create_barrier", barrier),
        patch.object(builder, "set_grid_idx", begin),
        patch.object(executor, "_init_args_hst", arguments),
    ):
        yield watch
