"""Progress of a command."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from spacy_latent.characters import escaped
from spacy_latent.errors import number_of


def progress(docs: Iterable[Any], stage: str, total: int, unit: str = "doc") -> Iterable[Any]:
    """Return the docs with a progress bar, which is shown only on a terminal."""
    from tqdm import tqdm

    # On standard error, and only if it is a terminal.
    return tqdm(docs, desc=escaped(stage), total=total, unit=unit, disable=None, leave=False)


class Stages:
    """Progress of a long command that always shows what it does.

    A line on standard error names each stage as it begins. A terminal also gets a bar.
    """

    def __init__(self) -> None:
        self._last = ""

    def begin(self, stage: str) -> None:
        """Name a stage without items, or without the number of them."""
        if stage != self._last:
            self._last = stage
            print(f"{escaped(stage)} ...", file=sys.stderr, flush=True)

    def __call__(
        self, docs: Iterable[Any], stage: str, total: int, unit: str = "doc"
    ) -> Iterable[Any]:
        """Begin a stage, and return its docs with a progress bar."""
        self.begin(f"{stage}, {number_of(total, unit, ',')}")
        return progress(docs, stage, total, unit)
