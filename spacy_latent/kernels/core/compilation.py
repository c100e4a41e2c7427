"""Compilation of kernels, and the cache of their machine code.

The machine code of a function includes the code of the functions that it calls. numba's cache
compares only the file of the function itself. If a helper in another file changes, numba therefore
loads old machine code. numba also writes the index of its cache before the code. If a process is
killed, or two compile at once, the index may name the code of another function.

This module has one cache folder for each state of the sources. Its name is a digest of all files in
the folder of the function, and in the kernel folders that these import from, directly or through
others. An edit of one family of kernels thus compiles only this family and those that import from
it. The digest also covers the versions of numba and Python, and numba's settings.

A cache file holds the machine code of one function for one set of argument types and one processor.
It is written under a temporary name and then renamed. It begins with a hash of its content, so an
incomplete file is ignored.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import re
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
from numba.core import caching, event
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.extending import overload as overload_function
from numba.misc.appdirs import AppDirs

from spacy_latent.errors import LatentWarning

# Sums in any order, which vectorisation needs, and fused multiply-adds.
ANY_ORDER = {"reassoc", "contract", "nsz"}
FUSED = {"contract", "nsz"}

KERNELS = Path(os.path.abspath(__file__)).parents[1]
# Folders whose values no kernel reads: they run in Python, or are compiled by Triton.
NOT_READ = frozenset({"autograd", "gpu"})
PREFIX = "kernels-"
# Number of states of the sources whose machine code is kept, for several branches and versions of
# Python.
KEPT = 4

Function = Callable[..., Any]
# Its attributes are defined at import, so type checkers do not know them.
config: Any = numba.config


@overload
def kernel(function: Function) -> Any: ...


@overload
def kernel(*, fastmath: bool | set[str] = False, **options: Any) -> Callable[[Function], Any]: ...


def kernel(
    function: Function | None = None, *, fastmath: bool | set[str] = False, **options: Any
) -> Any:
    """Compile a function of a module when it is first called, and cache its machine code on disk.

    The function releases the interpreter's lock.

    Args:
        fastmath: floating-point transformations that the compiler may use: none, ``ANY_ORDER``, or
            ``FUSED``. It is always passed to numba, which otherwise takes the flags of the first
            caller.
        options: options of ``numba.njit``. Give forceinline to functions with fused operations that
            are called on SIMD lanes. Otherwise the process that compiles may run the function
            compiled alone, and later processes the function inlined in its caller. The last digits
            of the two differ, as happened with constituency trees.

    Raises:
        TypeError: the function is defined inside another function, since its closure is in no file.
    """
    if function is None:
        return partial(kernel, fastmath=fastmath, **options)
    if "<locals>" in function.__qualname__:
        raise TypeError(
            f"{function.__qualname__} is made by another function. Kernels are functions of a "
            "module: pass what varies as an argument."
        )
    dispatcher = njit(nogil=True, fastmath=fastmath, **options)(function)
    # With NUMBA_DISABLE_JIT, njit returns the function itself.
    if hasattr(dispatcher, "enable_caching"):
        _keep(dispatcher, function)
    return dispatcher


def implements(operation: Function, first: type, **options: Any) -> Callable[[Function], Function]:
    """Register the implementation of ``operation`` for one type of its first argument.

    The type is a NamedTuple class of a module. Kernels that call ``operation`` with an instance of
    it run the registered function. A loop is thus written once, and its variants are selected at
    compilation. Machine code of a function passed as an argument could not be cached. Options are
    those of ``numba.njit``, such as forceinline; fastmath flags are off by default.
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
    # The source of a function may be in no file: typed in, or passed to ``exec`` or ``python -c``.
    in_file = os.path.isfile(function.__code__.co_filename)
    if in_file and digest(_folder(function)) is not None:
        dispatcher._cache = _CodeCache(function)
        return
    # A frozen program or an archive: its sources do not change.
    try:
        dispatcher.enable_caching()
    except RuntimeError as error:
        _warn_once(str(error))


# ------------------------------------------------------------------------------------ digest


def _folder(function: Function) -> Path:
    return Path(os.path.abspath(function.__code__.co_filename)).parent


@cache
def digest(folder: Path) -> str | None:
    """Return a digest of everything that machine code of a folder's functions depends on.

    The digest is None if the folder has no sources. All digests of a process are of the sources at
    the time of the first one. Families are imported one after another, and imported code no longer
    changes.
    """
    return _digest(folder, lambda place: _first_read().get(place) or _sources(place))


@cache
def _first_read() -> dict[Path, dict[str, bytes]]:
    return {place: _sources(place) for place in KERNELS.glob("*") if place.is_dir()}


# An import from a folder of kernels, also inside a function.
_IMPORT = re.compile(rb"^[ \t]*(?:from|import)[ \t]+spacy_latent\.kernels\.(\w+)", re.MULTILINE)


def _digest(folder: Path, read: Callable[[Path], dict[str, bytes]] | None = None) -> str | None:
    """Return the digest of a folder, from its sources on the disk unless ``read`` is given."""
    folders = _folders_read(folder, read or _sources)
    if not folders[folder]:
        return None
    versions = numba.__version__, llvmlite.__version__, sys.implementation.cache_tag
    settings = int(config.OPT), config.BOUNDSCHECK
    hashed = hashlib.sha256(repr((versions, settings)).encode())
    for place in [folder, *sorted(folders.keys() - {folder})]:
        for name, code in folders[place].items():
            hashed.update(f"\n{place.name}/{name} {len(code)}\n".encode())
            hashed.update(code)
    return hashed.hexdigest()[:16]


def _folders_read(
    folder: Path, read: Callable[[Path], dict[str, bytes]]
) -> dict[Path, dict[str, bytes]]:
    """Return the sources of all folders that a folder's machine code depends on, its own included.

    A folder outside the kernels counts as dependent on all of them, since it may import them
    through other files.
    """
    found: dict[Path, dict[str, bytes]] = {}
    waiting = {folder}
    if folder.parent != KERNELS:
        waiting.update(
            place for place in KERNELS.glob("*") if place.is_dir() and place.name not in NOT_READ
        )
    while waiting:
        place = waiting.pop()
        found[place] = read(place)
        imported = {
            name.decode() for code in found[place].values() for name in _IMPORT.findall(code)
        }
        waiting.update({KERNELS / name for name in imported - NOT_READ} - found.keys())
    return found


def _sources(folder: Path) -> dict[str, bytes]:
    sources = {}
    for source in sorted(folder.glob("*.py")):
        # An editor's lock file may be a dangling link.
        if source.is_file():
            try:
                sources[source.name] = source.read_bytes()
            except OSError:
                # A file of the folder that this user may not read.
                sources[source.name] = b"unreadable"
    return sources


# ------------------------------------------------------------------------------------ places


class _Place:
    """A cache locator of numba for one function; its paths are computed once for each folder."""

    def __init__(self, function: Function) -> None:
        self.function = function
        # numba uses this name in its error if machine code cannot be cached.
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
    """Return the folders from which machine code is read, in order, and the one for writing.

    The second is None if no folder can be written. The candidates are the same as numba's:
    NUMBA_CACHE_DIR, the folder of the functions, and the user's cache. A folder that cannot be
    written is still read, and the next one is tried.
    """
    name = f"{folder.name}_{hashlib.sha1(str(folder).encode()).hexdigest()}"
    user = Path(AppDirs(appname="numba", appauthor=False).user_cache_dir)
    candidates = [folder / "__pycache__"]
    # A user without a home has a folder named ~ in the working directory, where others may write.
    if user.is_absolute():
        candidates.append(user / name)
    if config.CACHE_DIR:
        candidates.insert(0, Path(config.CACHE_DIR, name))
    readable = []
    for candidate in candidates:
        place = candidate / f"{PREFIX}{digest(folder)}"
        readable.append(place)
        try:
            place.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=place).close()
            # Mark the folder as in use (see _remove_superseded).
            os.utime(place)
        except OSError:
            continue
        return readable, place
    return readable, None


@cache
def _remove_superseded(place: Path) -> None:
    """Remove the machine code of all but the most recent states of the sources.

    A process that still uses a removed state compiles again what it needs.
    """

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
    """Cache files of one function.

    Attributes:
        name: the name of the function, its line and the version of Python.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name

    def _file(self, place: Path, key: Any) -> Path:
        # Names of types are not always distinct, so the file also contains the key.
        return place / f"{self.name}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"

    def load(self, key: Any) -> Any:
        """Return the data saved for argument types, processor and byte code, or None."""
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
                # A class of another extension that had the same name and no longer exists.
                continue
            if saved_key == key:
                return data
        return None

    def save(self, key: Any, data: Any) -> None:
        """Write the data, if a folder can be written."""
        place = _places(self.folder)[1]
        if place is None:
            # One warning for all families.
            folder = KERNELS if self.folder.parent == KERNELS else self.folder
            _warn_once(f"no place to keep machine code of {folder} can be written")
            return
        content = dumps((key, data))
        file = self._file(place, key)
        unfinished = file.with_suffix(f".{uuid4().hex[:16]}")
        try:
            # Modules that were imported after a change of the sources do not match the digest.
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
        """Remove the cached files of the function."""
        place = _places(self.folder)[1]
        for file in place.glob(f"{self.name}.*") if place else ():
            file.unlink(missing_ok=True)


# The folders of the functions that are registered for each class.
_implementing: dict[type, set[Path]] = {}


def _implementations(kind: Any) -> set[str]:
    """Return digests of the functions that are compiled in because an argument has this type."""
    own = _implementing.get(getattr(kind, "instance_class", type(None)), set())
    found = {digest(folder) or "" for folder in own}
    members = kind if isinstance(kind, tuple) else getattr(kind, "types", ())
    return found.union(*map(_implementations, members))


class _CodeCache(caching.FunctionCache):
    _impl_class = _CodeImplementation

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load machine code without the registries of what numba can compile.

        numba imports them first, and SciPy with them. Machine code only calls the runtime. A later
        compilation loads the registries.
        """
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return super()._index_key(sig, codegen), tuple(sorted(_implementations(sig)))

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        self._cache_file = _Files(_folder(function), self._impl.filename_base)


# ------------------------------------------------------------------------------------ compilation


class _PausedCollector(event.Listener):
    """Pause the garbage collector while a kernel is compiled.

    A compilation makes so many objects that the collector goes over all those of spaCy and torch
    again and again, which took a tenth of the time. numba's lock allows one compilation at a time.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._was_enabled = False

    def on_start(self, event: event.Event) -> None:
        if _is_kernel(event):
            if not self._depth:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._depth += 1

    def on_end(self, event: event.Event) -> None:
        if _is_kernel(event):
            self._depth -= 1
            if not self._depth and self._was_enabled:
                gc.enable()


def _is_kernel(compilation: event.Event) -> bool:
    # The parts of a function that numba lifts out of it have no cache.
    return isinstance(getattr(compilation.data["dispatcher"], "_cache", None), _CodeCache)


event.register("numba:compile", _PausedCollector())
