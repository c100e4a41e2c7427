"""A simulated GPU for torch.

Its tensors hold their numbers on the CPU and say that they are on ``cuda:0``. An operation that a
real GPU refuses raises :class:`DeviceError`. Examples are tensors of two devices in one operation,
a generator of the CPU for numbers of the GPU, and NumPy. Some operations are slow on a real GPU
without a message: transfers, and waits until the GPU's queue is empty. They are logged with the
line of the package that called them.

Inside of torch the tensors are on the device "meta", for which torch has neither kernels nor
threads. Nothing else may use that device meanwhile. Random numbers come from torch's generator for
the CPU in the order of the calls. With the same seed they equal the CPU's. A real GPU draws others.

Not simulated are slow or wrong kernels, memory, mixed precision, results that are read before their
transfer ends, and operations that only the CPU has.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import spacy_latent
from spacy_latent.kernels.autograd import operators
from spacy_latent.kernels.core import gpu_transfers

CUDA = torch.device("cuda", 0)
# The device that the C++ code of torch sees.
_UNDER_TORCH = torch.device("meta")
_PACKAGE = str(Path(spacy_latent.__file__).parent)

OUTSIDE = "outside of the package"
# Modules that call operations for others.
_PASS_ON = (
    "numpy",
    "tests.device.pretended",
    "thinc.backends",
    "thinc.util",
    "torch",
    "contextlib",
)

Kind = Literal["up", "down", "wait"]

# The CPU needs the size of the result, or the result itself, so it waits.
_WAITS = {
    "_linalg_check_errors",
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "repeat_interleave",
    "unique_consecutive",
    "unique_dim",
}
_ON_THE_CPU = {"_local_scalar_dense", "equal", "is_nonzero"}
_INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
# Operations that move numbers between devices, or whose lengths are on the CPU.
_OF_TWO_DEVICES = {"_to_copy", "copy_", "_pack_padded_sequence"}
# Operations that accept numbers without axes from the CPU. Pointwise operations do so, too.
_TAKE_NUMBERS = {"fill_", "masked_fill", "masked_fill_", "where"}
# Operations that change the shape or the strides of a tensor in place.
_RESHAPE_IN_PLACE = {"squeeze_", "t_", "transpose_", "unsqueeze_"}


class DeviceError(RuntimeError):
    """An operation that a real GPU would refuse."""


class Event(NamedTuple):
    """An operation in the log.

    Attributes:
        kind: A transfer "up" to the GPU or "down" from it, or a "wait" for it.
        place: The lines of this package that led to it, the innermost first.
        asked: The package that called the operation. It may be another one that this package calls.
        size: The number of bytes.
        blocking: Whether the CPU waits for a transfer.
    """

    kind: Kind
    operation: str
    place: str
    asked: str
    size: int
    blocking: bool = True


class Log(list[Event]):
    """The operations in the log, in order."""

    def own(self) -> Log:
        """Return the operations that this package itself calls."""
        return Log(event for event in self if event.asked == spacy_latent.__name__)

    def count(self, kind: Any) -> int:
        return sum(event.kind == kind for event in self)

    def size(self, kind: Kind) -> int:
        """Return the number of bytes of all transfers of a kind."""
        return sum(event.size for event in self if event.kind == kind)

    def lines(self, kind: Kind) -> str:
        """Return one line for each place of a call, with the number of its calls."""
        places = Counter(f"{e.operation} at {e.place}" for e in self if e.kind == kind)
        return "\n".join(f"{count:4} {kind} {place}" for place, count in places.most_common())


class _Running:
    """The state of the simulated GPU."""

    def __init__(self) -> None:
        self.log = Log()
        # Pinned storages by their addresses. They are kept, so that no other storage gets their
        # address.
        self.pinned: dict[int, Any] = {}

    def pin(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.pinned[storage.data_ptr()] = storage

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.pinned


_running = _Running()


def note(kind: Kind, operation: str, size: int = 0, blocking: bool = True) -> None:
    """Log an operation, with the line of the package that is running."""
    asked, place = _place()
    _running.log.append(Event(kind, operation, place, asked, size, blocking))


def _place() -> tuple[str, str]:
    """Return the package that called an operation, and the lines of our package that led to it.

    Modules that call operations for others are skipped.
    """
    frame: Any = sys._getframe(2)
    asked, lines = "", []
    while frame is not None and len(lines) < 2:
        module, path = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        if not asked and not module.startswith(_PASS_ON):
            asked = module.split(".")[0]
        if path.startswith(_PACKAGE):
            lines.append(f"{path[len(_PACKAGE) + 1 :]}:{frame.f_lineno}")
        frame = frame.f_back
    return asked, " < ".join(lines) or OUTSIDE


def _refuse(operation: str, reason: str) -> DeviceError:
    return DeviceError(f"{operation}: {reason} Asked for at {_place()[1]}.")


class CudaTensor(torch.Tensor):
    """A tensor on the simulated GPU. ``held`` has its numbers on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, requires_grad: bool = False) -> CudaTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=_UNDER_TORCH,
            requires_grad=requires_grad,
        )
        made.held = held.detach() if held.requires_grad else held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _dispatch(func, args, kwargs or {})

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)

    def get_device(self) -> int:
        return 0

    def _set_data(self, value: Tensor) -> None:
        if not isinstance(value, CudaTensor) or value.shape != self.shape:
            raise _refuse("data", "this tensor of the GPU would become another kind of tensor.")
        self.held = value.held

    data = property(torch.Tensor.data.__get__, _set_data)  # type: ignore[attr-defined]

    def to(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = _with_device(args, kwargs)
        first = args[0] if args else kwargs.get("device", kwargs.get("other"))
        if isinstance(first, CudaTensor):
            args, first = (CUDA, first.dtype), CUDA
            kwargs.pop("other", None)
        if first == CUDA and not kwargs.get("copy"):
            # Inside of torch it is on another device, and would be copied.
            dtypes = [value for value in (*args, kwargs.get("dtype")) if _is_dtype(value)]
            return self if dtypes in ([], [self.dtype]) else super().to(dtypes[0])
        return super().to(*args, **kwargs)

    def cuda(self, *args: Any, **kwargs: Any) -> CudaTensor:
        return self

    def tolist(self) -> Any:
        note("wait", "tolist", self.nbytes)
        return self.held.tolist()

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_without_lists(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_without_lists(index), value)

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or CUDA, **kwargs)

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise _refuse("numpy", "NumPy reads nothing of a GPU. Use Tensor.cpu() first.")

    __array__ = numpy

    def __deepcopy__(self, memo: dict[int, Any]) -> CudaTensor:
        if id(self) not in memo:
            copied = CudaTensor(self.held.clone(), self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                copied._is_param = True
            if self.grad is not None:
                copied.grad = self.grad.__deepcopy__(memo)
            memo[id(self)] = copied
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        note("down", "pickle", self.nbytes)
        return self.held.__reduce_ex__(protocol)

    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        return f"CudaTensor({self.held})"


def _is_dtype(value: Any) -> bool:
    return isinstance(value, torch.dtype)


def _without_lists(index: Any) -> Any:
    """Replace lists by tensors. Torch would convert them internally, on the CPU."""
    if isinstance(index, tuple):
        return tuple(_without_lists(part) for part in index)
    if not isinstance(index, list):
        return index
    return torch.tensor(index, dtype=None if index else torch.int64)


def _is_gpu(device: Any) -> bool:
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return device is not None and torch.device(device).type in ("cuda", _UNDER_TORCH.type)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _open(value: Any) -> Any:
    if isinstance(value, CudaTensor):
        return value.held
    if isinstance(value, (list, tuple)):
        return type(value)(_open(part) for part in value)
    return value


def _wrap(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value if isinstance(value, CudaTensor) else CudaTensor(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_wrap(part) for part in value)
    return value


class _Known(NamedTuple):
    """Known facts about an operation.

    Attributes:
        takes_numbers: Whether it accepts numbers without axes from the CPU.
        parts: Whether it is composed of other operations.
    """

    name: str
    own: bool
    in_place: bool
    takes_numbers: bool
    draws: bool
    parts: bool


# The key of the bodies of the package's operators, which is the same for every device.
_BODY = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


@cache
def _know(func: Any) -> _Known:
    name, schema = func.overloadpacket.__name__, func._schema
    return _Known(
        name,
        func.namespace == "spacy_latent",
        schema.is_mutable and name.endswith("_") and bool(schema.returns),
        name in _TAKE_NUMBERS | _INDEXED or torch.Tag.pointwise in func.tags,
        any(argument.name == "generator" for argument in schema.arguments),
        func._can_decompose(),
    )


def _dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    known = _know(func)
    name = known.name
    if known.own:
        # The body runs in Python as on a real GPU, and makes the transfers that it needs.
        with _OnGpu():
            return func.redispatch(_BODY, *args, **kwargs)
    if known.parts:
        # In the body of an operator torch does not decompose these operations, and they may
        # transfer.
        with _OnGpu():
            return func.decompose(*args, **kwargs)
    tensors = list(_tensors((*args, *kwargs.values()) if kwargs else args))
    count = sum(isinstance(tensor, CudaTensor) for tensor in tensors)
    target = count > 0
    pins = False
    if kwargs:
        if kwargs.get("device") is not None:
            target = _is_gpu(kwargs["device"])
            kwargs = {**kwargs, "device": torch.device("cpu")}
        pins = bool(kwargs.get("pin_memory"))
        if pins:
            kwargs = {**kwargs, "pin_memory": False}
    if known.draws and (count or target):
        _check_generator(name, (*args, *kwargs.values()))
    if 0 < count < len(tensors) or (count and name in _INDEXED):
        _check_devices(known, args, tensors)
    if name in _OF_TWO_DEVICES:
        _note_move(name, args, kwargs, target)
    elif not count:
        if name == "is_pinned":
            return _running.is_pinned(args[0])
        pins = pins or name == "_pin_memory"
        found = torch.clone(args[0]) if name == "_pin_memory" else func(*args, **kwargs)
        if pins:
            _running.pin(found)
        return _wrap(found) if target else found
    elif name in _WAITS:
        note("wait", name)
    elif name in _RESHAPE_IN_PLACE:
        with torch._C._DisableTorchDispatch():
            func(*args, **kwargs)
    if kwargs:
        found = func(*_open(args), **{key: _open(value) for key, value in kwargs.items()})
    else:
        found = func(*_open(args))
    if known.in_place:
        # Torch expects the same object.
        return args[0]
    if not target or name in _ON_THE_CPU:
        return found
    if name == "_pack_padded_sequence":
        return _wrap(found[0]), found[1]
    return kwargs["out"] if "out" in kwargs else _wrap(found)


def _check_generator(name: str, values: Iterable[Any]) -> None:
    if any(isinstance(v, torch.Generator) and v.device.type == "cpu" for v in values):
        raise _refuse(name, "a generator of the CPU draws numbers of the GPU.")


def _check_devices(known: _Known, args: tuple[Any, ...], tensors: Sequence[Tensor]) -> None:
    name = known.name
    assert not any(tensor.is_meta for tensor in tensors), "torch made a tensor out of sight"
    if name in _OF_TWO_DEVICES:
        return
    if name in _INDEXED:
        if not isinstance(args[0], CudaTensor):
            raise _refuse(name, "a tensor of the CPU is indexed by one of the GPU.")
        for index in _tensors(args[1]):
            if not isinstance(index, CudaTensor):
                note("up", "index", index.nbytes)
            if index.dtype in (torch.bool, torch.uint8):
                note("wait", "index by a mask")
        tensors = list(_tensors(args[2:3]))
    foreign = [tensor for tensor in tensors if not isinstance(tensor, CudaTensor)]
    refused = [tuple(tensor.shape) for tensor in foreign if tensor.dim() or not known.takes_numbers]
    if refused:
        raise _refuse(name, f"tensors of the CPU of shape {refused} among those of the GPU.")


def _note_move(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], target: bool) -> None:
    if name == "_pack_padded_sequence":
        if isinstance(args[1], CudaTensor):
            raise _refuse(name, "lengths must be on the CPU.")
        return
    source = args[0] if name == "_to_copy" else args[1]
    if name == "copy_":
        target = isinstance(args[0], CudaTensor)
    asynchronous = bool(kwargs.get("non_blocking", name == "copy_" and args[2:3] == (True,)))
    if isinstance(source, CudaTensor) and not target:
        note("down", name, source.nbytes, not asynchronous)
    elif target and not isinstance(source, CudaTensor):
        note("up", name, source.nbytes, not (asynchronous and _running.is_pinned(source)))


class _OnGpu(TorchDispatchMode):
    """A mode for operations without a tensor of the GPU among their arguments: new ones, and
    uploads.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and its compiler takes seconds to import.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _dispatch(func, args, kwargs or {})


def _with_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """Add the number of the GPU, for which torch would otherwise ask CUDA."""
    if args and isinstance(args[0], (str, int, torch.device)) and _is_gpu(args[0]):
        args = (CUDA, *args[1:])
    if kwargs.get("device") is not None and _is_gpu(kwargs["device"]):
        kwargs = {**kwargs, "device": CUDA}
    return args, kwargs


def _sent_up(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function that makes tensors on the CPU, so that it sends them up."""

    def made(*args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Tensor:
        if device is None and isinstance(args[0], CudaTensor):
            device = CUDA
        if device is None or not _is_gpu(device):
            found = make(*args, device=device, **kwargs)
        elif isinstance(args[0], Tensor):
            found = args[0].to(CUDA, kwargs.get("dtype", args[0].dtype))
        else:
            found = make(*args, **kwargs).to(CUDA)
        return found.requires_grad_() if requires_grad else found

    return made


def _loaded(load: Callable[..., Any]) -> Callable[..., Any]:
    def loaded(*args: Any, map_location: Any = None, **kwargs: Any) -> Any:
        if isinstance(map_location, (str, torch.device)) and _is_gpu(map_location):
            values = load(*args, map_location="cpu", **kwargs)
            return {name: value.to(CUDA) for name, value in values.items()}
        return load(*args, map_location=map_location, **kwargs)

    return loaded


def _moved(this: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    args, kwargs = _with_device(args, kwargs)
    return torch._C.TensorBase.to(this, *args, **kwargs)


def _same_parameters(move: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that moves a module, so that the parameters stay the same objects.

    Moved parameters have another class, so torch has to swap their contents.
    """

    def moved(this: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return move(this, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    return moved


@contextmanager
def pretended_gpu() -> Iterator[Log]:
    """Simulate a GPU, ``CUDA``, and yield the log of its operations.

    Modules keep the same parameter objects when they are moved there and back.
    """
    global _running
    before, _running = _running, _Running()
    module = torch.nn.Module
    patches = [
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "set_device", lambda device: None),
        (torch.cuda, "manual_seed_all", lambda seed: None),
        (torch.cuda, "_lazy_init", lambda: None),
        (torch.cuda, "synchronize", lambda device=None: note("wait", "synchronize")),
        (torch.backends.cudnn, "is_acceptable", lambda tensor: False),
        (torch, "tensor", _sent_up(torch.tensor)),
        (torch, "as_tensor", _sent_up(torch.as_tensor)),
        (torch, "load", _loaded(torch.load)),
        (torch.Tensor, "to", _moved),
        (torch.Tensor, "cuda", lambda this, device=None: this.to(CUDA)),
        *(
            (module, name, _same_parameters(getattr(module, name)))
            for name in ("to", "cpu", "cuda")
        ),
        # On a real GPU the class of tensors is Tensor itself.
        (operators, "is_traced", lambda scores: torch.compiler.is_compiling()),
        # Code that another test compiled could change this.
        (gpu_transfers, "writes_are_counted", lambda: True),
    ]
    try:
        with ExitStack() as stack:
            for owner, name, value in patches:
                stack.enter_context(patch.object(owner, name, value))
            stack.enter_context(_OnGpu())
            yield _running.log
    finally:
        _running = before
