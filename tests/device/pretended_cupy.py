"""A simulated CuPy for Thinc: arrays in the memory of :mod:`tests.device.pretended_gpu`.

An array holds a NumPy array, but cannot be used as one. An operation with a plain NumPy array
raises an error, and so does a conversion by NumPy. ``array`` and ``get`` transfer up and down and
are logged, and so are the waits of ``if`` and ``float``. Torch and this module share memory through
a capsule, which can be opened once. Thinc keeps its own classes and checks. Each of its kernels is
looked up by its name, as a function of NumPy or of Thinc's operations for the CPU.

The kernels themselves are not simulated, nor are the allocators, and types that CuPy promotes
otherwise than NumPy.

Thinc asks for CuPy when it is imported, so enter :func:`pretended_cupy` first, in a process of its
own.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

from tests.device.pretended_gpu import CudaTensor, DeviceError, note

# Functions that accept plain arrays. The first ones send them up, and the others read them on the
# CPU.
_SENDS_UP = {"array", "asarray", "ascontiguousarray"}
_READS_ON_THE_CPU = {"split", "array_split"}


class Array(NDArrayOperatorsMixin):
    """A stand-in for ``cupy.ndarray``. ``held`` has the numbers."""

    def __init__(self, shape: Any, dtype: Any = np.float64, order: Any = "C") -> None:
        self.held = np.empty(shape, dtype, order)

    @classmethod
    def over(cls, held: np.ndarray) -> Array:
        made = cls.__new__(cls)
        made.held = held
        return made

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Use get().")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _call(getattr(ufunc, method), inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _call(func, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "held":
            raise AttributeError(name)
        value = getattr(self.held, name)
        if callable(value):
            return lambda *args, **kwargs: _call(value, args, kwargs)
        return _wrap(value) if isinstance(value, np.ndarray) else value

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "held":
            super().__setattr__(name, value)
        else:
            setattr(self.held, name, _open(value))

    @property
    def data(self) -> Any:
        return _Pointer(self.held.ctypes.data)

    @property
    def device(self) -> Device:
        return Device(0)

    def get(self, stream: Any = None, **options: Any) -> np.ndarray:
        note("down", "get", self.held.nbytes, stream is None)
        return self.held.copy()

    def set(self, values: np.ndarray, stream: Any = None) -> None:
        if values.dtype != self.dtype or values.shape != self.shape:
            raise ValueError("An array is set to one of its own type and shape.")
        note("up", "set", values.nbytes, stream is None)
        self.held[...] = values

    def item(self) -> Any:
        note("wait", "item", self.held.nbytes)
        return self.held.item()

    def tolist(self) -> Any:
        note("wait", "tolist", self.held.nbytes)
        return self.held.tolist()

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self.held)))

    def __getitem__(self, index: Any) -> Array:
        return _wrap(self.held[_index(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.held[_index(index)] = _open(value)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        return self.held.__index__()

    def __reduce__(self) -> Any:
        return _sent_up, (self.get(),)

    def __deepcopy__(self, memo: Any) -> Array:
        return Array.over(self.held.copy())

    def __repr__(self) -> str:
        return f"Array({self.held!r})"

    def toDlpack(self) -> Capsule:
        return Capsule(self.held)


class Capsule:
    """Memory on its way to another library, which may take it once."""

    def __init__(self, held: np.ndarray) -> None:
        if any(stride < 0 for stride in held.strides):
            raise DeviceError("dlpack: an array that is read backwards ends the process.")
        self._held: np.ndarray | None = held

    def open(self) -> np.ndarray:
        held, self._held = self._held, None
        if held is None:
            raise RuntimeError("dlpack: this capsule has been opened before.")
        return held


class _Pointer:
    def __init__(self, address: int) -> None:
        self.ptr = address


def _open(value: Any) -> Any:
    if isinstance(value, Array):
        return value.held
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}: an array of the CPU on a GPU.")
    if isinstance(value, (list, tuple)):
        return type(value)(_open(part) for part in value)
    return value


def _index(value: Any) -> Any:
    """Return an index for NumPy. CuPy sends an index on the CPU up without a warning."""
    if isinstance(value, tuple):
        return tuple(_index(part) for part in value)
    if isinstance(value, (list, np.ndarray)):
        # An empty list is an index, too.
        places = np.asarray(value if len(value) else np.zeros(0, dtype=np.int64))
        note("up", "index", places.nbytes)
        return places
    return value.held if isinstance(value, Array) else value


def _wrap(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        # An array without axes stays on the GPU, too.
        return Array.over(np.asarray(value))
    if isinstance(value, (list, tuple)):
        return type(value)(_wrap(part) for part in value)
    return value


def _call(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    found = function(*_open(args), **{key: _open(value) for key, value in kwargs.items()})
    out = kwargs.get("out")
    if out is not None:
        return out[0] if isinstance(out, tuple) else out
    return _wrap(found)


def _sent_up(data: Any, *args: Any, **kwargs: Any) -> Array:
    if isinstance(data, CudaTensor):
        return Array.over(np.array(data.held.numpy(), *args, **kwargs))
    if isinstance(data, (list, tuple)) and any(isinstance(part, Array) for part in data):
        return Array.over(np.array([part.held for part in data], *args, **kwargs))
    if not isinstance(data, Array):
        note("up", "array", np.asarray(data).nbytes)
        data = Array.over(np.array(data))
        kwargs.pop("copy", None)
        return Array.over(np.asarray(data.held, *args, **kwargs))
    if kwargs.pop("copy", True):
        return Array.over(np.array(data.held, *args, **kwargs))
    return Array.over(np.asarray(data.held, *args, **kwargs))


def _as_array(data: Any, dtype: Any = None, **kwargs: Any) -> Array:
    return _sent_up(data, dtype=dtype, copy=False)


class _OfNumPy(ModuleType):
    """A module with the functions of one of NumPy's modules, for arrays of the GPU."""

    def __init__(self, name: str, source: Any) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._source = source

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._source, name)
        if isinstance(value, type) or not callable(value):
            return value
        if name in _READS_ON_THE_CPU:
            return lambda array, places: _wrap(value(array.held, places))
        return lambda *args, **kwargs: _call(value, args, kwargs)


class Device:
    def __init__(self, number: int = 0) -> None:
        self.id = number

    def use(self) -> None:
        pass

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: Any) -> None:
        pass


class Stream:
    def __init__(self, **options: Any) -> None:
        self.ptr = 0

    def synchronize(self) -> None:
        note("wait", "synchronize")


class _Nothing:
    """An object that accepts any call, as the pools of memory do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class CudaRuntimeError(RuntimeError):
    pass


def _segments(lengths: np.ndarray) -> list[slice]:
    ends = np.cumsum(lengths)
    return [slice(end - length, end) for end, length in zip(ends, lengths)]


def _on_the_cpu() -> Any:
    from thinc.api import NumpyOps

    return NumpyOps()


def _pad(out: np.ndarray, addresses: np.ndarray, lengths: np.ndarray, stride: int, *_: int) -> None:
    kind = np.ctypeslib.as_ctypes_type(out.dtype)
    out[...] = 0
    for row, address, length in zip(out, addresses, lengths):
        memory = ctypes.cast(int(address), ctypes.POINTER(kind))
        values = np.ctypeslib.as_array(memory, (int(length) * stride,))
        row.reshape(-1)[: len(values)] = values


def _maxout(best: np.ndarray, which: np.ndarray, given: np.ndarray, *_: int) -> None:
    which[...] = given.argmax(2)
    best[...] = given.max(2)


def _backprop_maxout(out: np.ndarray, change: np.ndarray, which: np.ndarray, *_: int) -> None:
    np.put_along_axis(out, which[..., None].astype(np.int64), change[..., None], 2)


def _seq2col(out: np.ndarray, given: np.ndarray, lengths: np.ndarray, window: int, *_: int) -> None:
    out[...] = _on_the_cpu().seq2col(given, window, lengths=lengths)


def _backprop_seq2col(
    out: np.ndarray, change: np.ndarray, lengths: np.ndarray, window: int, *_: int
) -> None:
    out[...] = _on_the_cpu().backprop_seq2col(change, window, lengths=lengths)


def _gather_add(out: np.ndarray, table: np.ndarray, indices: np.ndarray, *_: int) -> None:
    out[...] = table[indices].sum(1)


def _reduce_sum(out: np.ndarray, given: np.ndarray, lengths: np.ndarray, *_: int) -> None:
    for row, segment in zip(out, _segments(lengths)):
        row[...] = given[segment].sum(0)


def _backprop_reduce_sum(out: np.ndarray, change: np.ndarray, lengths: np.ndarray, *_: int) -> None:
    out[...] = np.repeat(change, lengths, 0)


def _backprop_reduce_mean(
    out: np.ndarray, change: np.ndarray, lengths: np.ndarray, *_: int
) -> None:
    out[...] = np.repeat(change / np.maximum(lengths, 1)[:, None], lengths, 0)


def _reduce_max(out: np.ndarray, which: np.ndarray, *given: Any) -> None:
    out[...], which[...] = _on_the_cpu().reduce_max(*given[:2])


def _backprop_reduce_max(
    out: np.ndarray, change: np.ndarray, which: np.ndarray, lengths: np.ndarray, *_: int
) -> None:
    out[...] = _on_the_cpu().backprop_reduce_max(change, which, lengths)


def _hash(out: np.ndarray, ids: np.ndarray, *sizes: int) -> None:
    out[...] = _on_the_cpu().hash(ids, sizes[-1])


KERNELS: dict[str, Callable[..., None]] = {
    "backprop_maxout": _backprop_maxout,
    "backprop_reduce_max": _backprop_reduce_max,
    "backprop_reduce_mean": _backprop_reduce_mean,
    "backprop_reduce_sum": _backprop_reduce_sum,
    "backprop_seq2col": _backprop_seq2col,
    "gather_add": _gather_add,
    "hash_data": _hash,
    "maxout": _maxout,
    "pad": _pad,
    "reduce_max": _reduce_max,
    "reduce_sum": _reduce_sum,
    "seq2col": _seq2col,
}


def _adam(*values: np.ndarray) -> None:
    gradient, rate, first, second, epsilon, weights, mean, variance = values
    mean += first * (gradient - mean)
    variance += second * (gradient * gradient - variance)
    weights -= rate * mean / (np.sqrt(variance) + epsilon)


def _within_range(values: np.ndarray, lower: int, upper: int) -> np.ndarray:
    return ((values >= lower) & (values < upper)).all()


class RawModule:
    def __init__(self, **options: Any) -> None:
        pass

    def get_function(self, name: str) -> Callable[..., None]:
        return RawKernel("", name)


class RawKernel:
    """One of Thinc's kernels, by its name. It takes only arrays on the GPU, and numbers."""

    def __init__(self, code: str, name: str) -> None:
        self.run = KERNELS[name.split("<")[0]]

    def __call__(self, blocks: Any, threads: Any, arguments: tuple[Any, ...]) -> None:
        for argument in arguments:
            if isinstance(argument, Array) and not argument.held.flags["C_CONTIGUOUS"]:
                raise DeviceError("A kernel of Thinc's reads numbers that lie side by side.")
        self.run(*_open(arguments))


class ElementwiseKernel:
    def __init__(self, *code: str) -> None:
        assert code[-1] == "adam"

    def __call__(self, *arguments: Any) -> None:
        _adam(*_open(arguments))


class ReductionKernel:
    def __init__(self, *code: str) -> None:
        assert code[-1] == "within_range"

    def __call__(self, *arguments: Any) -> Array:
        return _wrap(_within_range(*_open(arguments)))


def _scatter_add(table: Array, indices: Any, values: Any) -> None:
    np.add.at(table.held, _index(indices), _open(values))


def _to_dlpack(tensor: torch.Tensor) -> Capsule:
    # Unlike the method of tensors, the function of torch accepts tensors with a gradient.
    return Capsule((tensor.held if isinstance(tensor, CudaTensor) else tensor.detach()).numpy())


def _torch_from_dlpack(given: Any) -> torch.Tensor:
    if not isinstance(given, (Capsule, Array)):
        return torch.from_numpy(given)
    held = (given if isinstance(given, Capsule) else given.toDlpack()).open()
    return CudaTensor(torch.from_numpy(held))


def _as_numpy(data: Any) -> np.ndarray:
    return data.get() if isinstance(data, Array) else np.asarray(data)


def _array_module(*values: Any) -> Any:
    return sys.modules["cupy"] if any(isinstance(v, Array) for v in values) else np


def _modules() -> dict[str, ModuleType]:
    cupy, random = _OfNumPy("cupy", np), _OfNumPy("cupy.random", np.random)
    names = ("cupyx", "cupy.cublas", "cupy.cuda", "cupy.cuda.device", "cupy.cuda.nvtx")
    cupyx, cublas, cuda, device, nvtx = (ModuleType(name) for name in names)
    cupyx.scatter_add = _scatter_add  # type: ignore[attr-defined]
    cublas.nrm2 = lambda vector: _wrap(np.linalg.norm(vector.held))  # type: ignore[attr-defined]
    device.Device = Device  # type: ignore[attr-defined]
    nvtx.RangePush = nvtx.RangePop = lambda *_: None  # type: ignore[attr-defined]
    runtime = _Nothing()
    runtime.getDeviceCount = lambda: 1
    runtime.CUDARuntimeError = CudaRuntimeError
    vars(cuda).update(
        device=device,
        nvtx=nvtx,
        runtime=runtime,
        Device=Device,
        MemoryPool=_Nothing,
        set_allocator=lambda malloc: None,
        Stream=Stream,
    )
    vars(cupy).update(
        __version__="13.6.0",
        ndarray=Array,
        array=_sent_up,
        asarray=_as_array,
        ascontiguousarray=lambda data, dtype=None: _wrap(
            np.ascontiguousarray(_as_array(data).held, dtype)
        ),
        asnumpy=_as_numpy,
        save=lambda file, data, **options: np.save(file, _as_numpy(data), **options),
        load=lambda file, **options: _sent_up(np.load(file, **options)),
        copyto=lambda to, values: np.copyto(to.held, _open(values)),
        from_dlpack=lambda given: Array.over(given.open()),
        get_array_module=_array_module,
        get_default_memory_pool=_Nothing,
        RawModule=RawModule,
        RawKernel=RawKernel,
        ElementwiseKernel=ElementwiseKernel,
        ReductionKernel=ReductionKernel,
        cuda=cuda,
        cublas=cublas,
        random=random,
    )
    modules = (cupy, random, cupyx, cublas, cuda, device, nvtx)
    return {module.__name__: module for module in modules}


@contextmanager
def pretended_cupy() -> Iterator[None]:
    """Simulate CuPy for Thinc, within a simulated GPU and before Thinc is imported."""
    assert "thinc" not in sys.modules and torch.cuda.is_available()
    with ExitStack() as stack:
        stack.enter_context(patch.dict(sys.modules, _modules()))
        dlpack = torch.utils.dlpack
        stack.enter_context(patch.object(dlpack, "to_dlpack", _to_dlpack))
        stack.enter_context(patch.object(dlpack, "from_dlpack", _torch_from_dlpack))
        yield
