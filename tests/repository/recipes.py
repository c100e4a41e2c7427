"""All recipes as files: the configs in ``configs/``, and variants in a folder of the tests."""

from __future__ import annotations

import atexit
import shutil
from pathlib import Path
from tempfile import mkdtemp

from benchmarks.recipes import names, path_of

_WRITTEN = Path(mkdtemp(prefix="recipes-"))
atexit.register(shutil.rmtree, _WRITTEN, ignore_errors=True)


def recipe(name: str) -> Path:
    """Return a file with the whole config of a recipe."""
    return path_of(name, _WRITTEN)


RECIPES = [recipe(name) for name in names()]
