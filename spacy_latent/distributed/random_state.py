"""Random numbers that all ranks share, and random numbers of a single rank.

The data and their order are drawn identically on every rank. Dropout and samples of structures
differ between ranks: with the same noise everywhere, a batch would have less noise than on one
process. The noise of a step is seeded by training, rank and step, so that a resumed training has
the same noise.
"""

from __future__ import annotations

import contextlib
import io
import math
import random
import zlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from thinc.api import fix_random_seed


@dataclass
class RandomState:
    """States of the random number generators of Python, NumPy and torch on the CPU.

    A state that is None is not known.
    """

    python: Any = None
    numpy: Any = None
    torch: Any = None

    @classmethod
    def now(cls) -> RandomState:
        """Return the present states of the generators."""
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state())

    def set(self) -> None:
        """Set the generators of this process to these states, as far as they are known."""
        if self.python is not None:
            random.setstate(self.python)
        if self.numpy is not None:
            np.random.set_state(self.numpy)
        if self.torch is not None:
            torch.set_rng_state(self.torch)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RandomState) and not self.differing(other)

    def differing(self, other: RandomState) -> frozenset[str]:
        """Return the names of the generators whose states differ."""
        same_numpy = self.numpy[2:] == other.numpy[2:] and np.array_equal(
            self.numpy[1], other.numpy[1]
        )
        equal = {
            "python": self.python == other.python,
            "numpy": same_numpy,
            "torch": torch.equal(self.torch, other.torch),
        }
        return frozenset(name for name, same in equal.items() if not same)

    def arrays(self, names: Container[str] | None = None) -> dict[str, np.ndarray]:
        """Return the states as arrays, to be written to a file.

        Args:
            names: generators whose states are returned; None for all.
        """
        version, words, gauss = self.python
        kind, keys, position, has_gauss, cached = self.numpy
        assert kind == "MT19937"
        all_arrays = {
            "python": np.array([version, *words], dtype=np.uint32),
            # NaN if there is none.
            "python_gauss": np.array([math.nan if gauss is None else gauss]),
            "numpy": np.array([*keys, position, has_gauss], dtype=np.uint32),
            "numpy_gauss": np.array([cached]),
            "torch": self.torch.numpy(),
        }
        return {
            key: array
            for key, array in all_arrays.items()
            if names is None or key.partition("_")[0] in names
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> RandomState:
        """Return the states from the arrays of :meth:`arrays`."""
        made = cls()
        if "python" in arrays:
            version, *words = (int(word) for word in arrays["python"])
            gauss = float(arrays["python_gauss"][0])
            made.python = version, tuple(words), None if math.isnan(gauss) else gauss
        if "numpy" in arrays:
            *keys, position, has_gauss = (int(word) for word in arrays["numpy"])
            cached = float(arrays["numpy_gauss"][0])
            made.numpy = "MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, cached
        if "torch" in arrays:
            made.torch = torch.from_numpy(arrays["torch"].copy())
        return made


# States before steps, as the arrays of a RandomState.
StatesOfSteps = dict[int, dict[str, np.ndarray]]


def stacked(states: StatesOfSteps) -> dict[str, np.ndarray]:
    """Return states as a few arrays: of each key of a state the rows, and the steps of the rows.

    Most rows are nearly equal to the row before, so all are compressed into one array of bytes.
    """
    found: dict[str, list[tuple[int, np.ndarray]]] = {}
    for step, arrays in states.items():
        for key, array in arrays.items():
            found.setdefault(key, []).append((step, array))
    made = {}
    for key, rows in found.items():
        made[f"steps_{key}"] = np.array([step for step, _ in rows])
        made[key] = np.stack([array for _, array in rows])
    file = io.BytesIO()
    np.savez_compressed(file, **made)  # type: ignore[arg-type]
    return {"steps": np.frombuffer(file.getvalue(), dtype=np.uint8)}


def unstacked(arrays: Mapping[str, np.ndarray]) -> StatesOfSteps:
    """Return the states from the arrays of :func:`stacked`."""
    states: StatesOfSteps = {}
    with np.load(io.BytesIO(arrays["steps"].tobytes()), allow_pickle=False) as file:
        for key in file.files:
            if not key.startswith("steps_"):
                for step, row in zip(file[f"steps_{key}"].tolist(), file[key]):
                    states.setdefault(step, {})[key] = row
    return dict(sorted(states.items()))


GENERATORS = frozenset(each.name for each in fields(RandomState))


@contextlib.contextmanager
def left_alone() -> Iterator[None]:
    """Restore the states of the random number generators at the end of the context."""
    outer = RandomState.now()
    try:
        yield
    finally:
        outer.set()


@contextlib.contextmanager
def noise_of(*numbers: int) -> Iterator[None]:
    """Seed the random number generators with these numbers inside the context.

    The states are restored at the end, except for the GPU's, from which ranks share no numbers.
    """
    with left_alone():
        fix_random_seed(zlib.crc32(repr(numbers).encode()))
        yield
