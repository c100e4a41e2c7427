"""Compilation of kernels, and the cache of their machine code.

The machine code of a function includes that of the functions it calls. numba's cache only checks
the file of the function itself. After a change of a helper in another file, it still loads the old
code. It also writes its index before the code that the index names. If a process is killed, or two
compile at once, code of one function may be stored under the name of another.

Here each state of the sources has its own cache folder. The name of the folder has a digest of all
files next to the function's own and of all files of spacy_latent/kernels. The digest also covers
the versions of numba and Python, and numba's settings. A file holds the machine code of one
function for one set of argument types on one processor. It is written under a temporary name and
then renamed. It begins with a hash of its content, so an incomplete file is ignored.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, overload
from uuid import uuid4
from warnings import warn

import llvmlite
import numba
from numba import njit
from numba.core import caching
from numba.core.serialize import dumps
from numba.extending import overload as overload_function
from numba.misc.appdirs import AppDirs

from spacy_latent.errors import LatentWarning

# Floating point. In a sum in any order, which vectors need; a product and a sum in one instruction.
ANY_ORDER = {"reassoc", "contract", "nsz"}
FUSED = {"contract", "nsz"}

FLOOR = Path(os.path.abspath(__file__)).parent
PREFIX = "kernels-"
# Machine code of as many states of the sources is kept: of branches, and of versions of Python.
KEPT = 4

Function = Callable[..., Any]
# Its names are made when it is imported.
config: Any = numba.config


@overload
def kernel(function: Function) -> Any: ...


@overload
def kernel(*, fastmath: bool | set[str] = False, **options: Any) -> Callable[[Function], Any]: ...


def kernel(
    function: Function | None = None, *, fastmath: bool | set[str] = False, **options: Any
) -> Any:
    """Compile a function of a module when it is first called, and keep its machine code on disk.

    It runs without the interpreter's lock.

    fastmath: what may be done to floats beyond what is written: nothing, ``ANY_ORDER``, ``FUSED``.
        numba gets it in any case: it would give a function for which nothing is said the flags of
        whoever compiled it first.
    options: of ``numba.njit``, as forceinline. Where operations may be fused, as in lanes, and a
        function is not inlined, the process that compiles it may call it as it is alone, and later
        ones as it became beside its caller: last digits differ then. So it was with constituency
        trees, whose recurrences are under forceinline for this reason.

    Raises TypeError for a function inside of another: what it closes over is in no file.
    """
    if function is None:
        return partial(kernel, fastmath=fastmath, **options)
    if "<locals>" in function.__qualname__:
        raise TypeError(
            f"{function.__qualname__} is made by another function. Kernels are functions of a "
            "module: pass what varies as an argument."
        )
    dispatcher = njit(nogil=True, fastmath=fastmath, **options)(function)
    # With NUMBA_DISABLE_JIT it is the function itself.
    if hasattr(dispatcher, "enable_caching"):
        _keep(dispatcher, function)
    return dispatcher


def implements(operation: Function, first: type, **options: Any) -> Callable[[Function], Function]:
    """Let a function be what kernels run where they call ``operation`` with this kind of first
    argument: an instance of a NamedTuple class of a module. So a loop stands once, and what differs
    is chosen when it is compiled. A function as an argument would do the same, but machine code for
    it could not be kept.

    options: of ``numba.njit``, as forceinline. Floats are treated as written.
    """

    def register(function: Function) -> Function:
        def choose(argument: Any, *others: Any) -> Function | None:
            return function if getattr(argument, "instance_class", None) is first else None

        _implementing.setdefault(first, set()).add(_folder(function))
        flags: Any = {"fastmath": False, **options}
        overload_function(operation, jit_options=flags, strict=False)(choose)
        return function

    return register


def _keep(dispatcher: Any, function: Function) -> None:
    if _is_in_a_file(function) and digest(_folder(function)) is not None:
        dispatcher._cache = _CodeCache(function)
        return
    # A frozen program, or an archive: its sources do not change.
    try:
        dispatcher.enable_caching()
    except RuntimeError as error:
        _warn_once(str(error))


# ------------------------------------------------------------------------------------ digest


def _is_in_a_file(function: Function) -> bool:
    """Not typed in, nor given to ``exec`` or ``python -c``: the folder then says nothing of it."""
    return os.path.isfile(function.__code__.co_filename)


def _folder(function: Function) -> Path:
    return Path(os.path.abspath(function.__code__.co_filename)).parent


@cache
def digest(folder: Path) -> str | None:
    """Of what machine code of a folder's functions depends on; the same throughout a process. None
    where there are no sources."""
    return _digest(folder)


def _digest(folder: Path) -> str | None:
    # An editor's lock may be a link to nothing.
    sources = [
        source
        for part in (FLOOR, folder)
        for source in sorted(part.glob("*.py"))
        if source.is_file()
    ]
    if not any(source.parent == folder for source in sources):
        return None
    versions = numba.__version__, llvmlite.__version__, sys.implementation.cache_tag
    settings = int(config.OPT), config.BOUNDSCHECK
    hashed = hashlib.sha256(repr((versions, settings)).encode())
    for source in dict.fromkeys(sources):
        try:
            code = source.read_bytes()
        except OSError:
            # A neighbour that is not ours to read.
            code = b"unreadable"
        hashed.update(f"\n{source.name} {len(code)}\n".encode())
        hashed.update(code)
    return hashed.hexdigest()[:16]


# ------------------------------------------------------------------------------------ places


class _Place:
    """What numba asks of a place for one function. It is found once for all of a folder."""

    def __init__(self, function: Function) -> None:
        self.function = function
        # numba names it where it says that machine code cannot be kept.
        self._py_file = function.__code__.co_filename

    @classmethod
    def from_function(cls, function: Function, file: str) -> _Place:
        return cls(function)

    def get_cache_path(self) -> str:
        return str(_folder(self.function))

    def get_source_stamp(self) -> str | None:
        return digest(_folder(self.function))

    def get_disambiguator(self) -> str:
        return str(self.function.__code__.co_firstlineno)

    def ensure_cache_path(self) -> None:
        pass


class _CodeImplementation(caching.CompileResultCacheImpl):
    _locator_classes: Any = (_Place,)


@cache
def _places(folder: Path) -> tuple[list[Path], Path | None]:
    """Where machine code of a folder's functions is read, in turn, and where it is written; None
    where nothing can be. These are numba's places: NUMBA_CACHE_DIR, beside the functions, and the
    user's. One that cannot be written is read, and the next is tried.
    """
    name = f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()}"
    user = AppDirs(appname="numba", appauthor=False).user_cache_dir
    candidates = [folder / "__pycache__", Path(user, name)]
    if config.CACHE_DIR:
        candidates.insert(0, Path(config.CACHE_DIR, name))
    readable = []
    for candidate in candidates:
        place = candidate / f"{PREFIX}{digest(folder)}"
        readable.append(place)
        try:
            place.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=place).close()
            # That it is in use, see _remove_superseded.
            os.utime(place)
        except OSError:
            continue
        return readable, place
    return readable, None


@cache
def _remove_superseded(place: Path) -> None:
    """Remove all but the last states of the sources. A process that still uses one of them compiles
    what it needs once more."""

    def age(other: Path) -> float:
        try:
            return -other.stat().st_mtime
        except OSError:
            return 0.0

    others = sorted(set(place.parent.glob(f"{PREFIX}*")) - {place}, key=age)
    for other in others[KEPT - 1 :]:
        shutil.rmtree(other, ignore_errors=True)


@cache
def _warn_once(message: str) -> None:
    warn(
        f"Kernels are compiled in each process, which takes seconds to minutes: {message}. Set "
        "NUMBA_CACHE_DIR to a folder that can be written.",
        LatentWarning,
        stacklevel=2,
    )


# ------------------------------------------------------------------------------------ files


class _Files:
    """Machine code of one function. name: of the function, its line and the version of Python."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name

    def _file(self, place: Path, key: Any) -> Path:
        # Names of types are not always different: the key is in the file as well.
        return place / f"{self.name}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"

    def load(self, key: Any) -> Any:
        """What was saved for argument types, processor and byte code; None where nothing was."""
        for place in _places(self.folder)[0]:
            try:
                content = self._file(place, key).read_bytes()
            except OSError:
                continue
            if hashlib.sha256(content[32:]).digest() != content[:32]:
                continue
            try:
                saved_key, data = pickle.loads(content[32:])
            except (ImportError, AttributeError):
                # A class of another extension with the name of this one's, which is gone.
                continue
            if saved_key == key:
                return data
        return None

    def save(self, key: Any, data: Any) -> None:
        """Write, if that is possible."""
        place = _places(self.folder)[1]
        if place is None:
            _warn_once(f"no place to keep machine code of {self.folder} can be written")
            return
        content = dumps((key, data))
        file = self._file(place, key)
        unfinished = file.with_suffix(f".{uuid4().hex[:16]}")
        try:
            # Modules that are imported after a change do not belong to the digest that was taken.
            if _digest(self.folder) != digest(self.folder):
                return
            place.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(hashlib.sha256(content).digest() + content)
            os.replace(unfinished, file)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            _warn_once(str(error))
        else:
            _remove_superseded(place)

    def flush(self) -> None:
        """Remove what was kept."""
        place = _places(self.folder)[1]
        for file in place.glob(f"{self.name}.*") if place else ():
            file.unlink(missing_ok=True)


# The folders of the functions that were registered for a class.
_implementing: dict[type, set[Path]] = {}


def _implementations(kind: Any) -> set[str]:
    """Digests of what is compiled into a function because it has arguments of this type."""
    own = _implementing.get(getattr(kind, "instance_class", type(None)), set())
    found = {digest(folder) or "" for folder in own}
    members = kind if isinstance(kind, tuple) else getattr(kind, "types", ())
    return found.union(*map(_implementations, members))


class _CodeCache(caching.FunctionCache):
    _impl_class = _CodeImplementation

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return super()._index_key(sig, codegen), tuple(sorted(_implementations(sig)))

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        self._cache_file = _Files(_folder(function), self._impl.filename_base)
