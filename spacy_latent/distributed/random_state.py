"""Random numbers that all ranks share, and random numbers of a single rank.

The data and their order are drawn identically on every rank. Dropout and samples of structures
differ between ranks: with the same noise everywhere, a batch would have less noise than on one
process. The noise of a step is seeded by training, rank and step, so that a resumed training has
the same noise.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from thinc.api import fix_random_seed


@dataclass
class RandomState:
    """States of the random number generators of Python, NumPy and torch on the CPU."""

    python: Any
    numpy: Any
    torch: torch.Tensor

    @classmethod
    def now(cls) -> RandomState:
        """Return the present states of the generators."""
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state())

    def set(self) -> None:
        """Set the generators of this process to these states."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
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

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the states as arrays, to be written to a file."""
        version, words, gauss = self.python
        kind, keys, position, has_gauss, cached = self.numpy
        assert kind == "MT19937"
        return {
            "python": np.array([version, *words], dtype=np.uint64),
            "python_gauss": np.array([] if gauss is None else [gauss], dtype=np.float64),
            "numpy": np.array([*keys, position, has_gauss], dtype=np.uint64),
            "numpy_gauss": np.array([cached], dtype=np.float64),
            "torch": self.torch.numpy(),
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> RandomState:
        """Return the states from the arrays of :meth:`arrays`."""
        version, *words = (int(word) for word in arrays["python"])
        gauss = [float(value) for value in arrays["python_gauss"]]
        *keys, position, has_gauss = (int(word) for word in arrays["numpy"])
        cached = float(arrays["numpy_gauss"][0])
        numpy = ("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, cached)
        python = (version, tuple(words), gauss[0] if gauss else None)
        return cls(python, numpy, torch.from_numpy(arrays["torch"].copy()))


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
