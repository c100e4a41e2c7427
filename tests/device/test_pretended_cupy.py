"""The simulated CuPy refuses plain arrays as CuPy does, and shares memory with torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from tests.device.pretended_cupy import Array, _modules, _to_dlpack, _torch_from_dlpack
from tests.device.pretended_gpu import CUDA, CudaTensor, DeviceError, Log, pretended_gpu

cupy = _modules()["cupy"]


@pytest.fixture
def log() -> Iterator[Log]:
    with pretended_gpu() as log:
        yield log


def vector() -> Array:
    return cupy.arange(3.0)


REFUSED: dict[str, Callable[[], object]] = {
    "a sum": lambda: vector() + np.ones(3),
    "a sum with NumPy first": lambda: np.ones(3) + vector(),
    "in place": lambda: np.add(vector(), 1.0, out=np.ones(3)),
    "a function": lambda: cupy.concatenate([vector(), np.ones(3)]),
    "a function of NumPy": lambda: np.concatenate([vector(), np.ones(3)]),
    "a method": lambda: vector().dot(np.ones(3)),
    "an assignment": lambda: vector().__setitem__(slice(2), np.ones(2)),
    "NumPy's array": lambda: np.asarray(vector()),
    "an array of NumPy filled": lambda: np.zeros(3).__setitem__(slice(3), vector()),
}


@pytest.mark.parametrize("what", REFUSED)
def test_plain_arrays_are_refused(log: Log, what: str) -> None:
    with pytest.raises(TypeError):
        REFUSED[what]()


def test_what_cupy_takes_passes(log: Log) -> None:
    first = vector()
    first += 1.0
    assert isinstance(first.sum(), Array) and first.sum().ndim == 0
    assert cupy.asarray(first) is not first and cupy.asarray(first).data.ptr == first.data.ptr
    assert not len(log)
    assert float(first.max()) == 3.0 and bool((first > 0).all())
    assert first[np.array([0, 2])].get().tolist() == [1.0, 3.0]
    assert [part.get().tolist() for part in cupy.split(first, np.array([1]))] == [[1.0], [2.0, 3.0]]
    assert cupy.array(np.ones(2)).dtype == np.float64
    kinds = [event.kind for event in log]
    assert kinds == ["wait", "wait", "up", "down", "down", "down", "up"]


def test_memory_goes_between_it_and_torch_once(log: Log) -> None:
    array = vector()
    capsule = array.toDlpack()
    tensor = _torch_from_dlpack(capsule)
    assert isinstance(tensor, CudaTensor) and tensor.device == CUDA
    with pytest.raises(RuntimeError, match="opened"):
        _torch_from_dlpack(capsule)
    tensor.mul_(2.0)
    back = cupy.from_dlpack(_to_dlpack(tensor))
    assert back.data.ptr == array.data.ptr and not len(log)
    assert array.get().tolist() == [0.0, 2.0, 4.0] and torch.equal(tensor, _torch_from_dlpack(back))
    with pytest.raises(DeviceError, match="backwards"):
        array[::-1].toDlpack()
