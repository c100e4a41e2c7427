"""Marks of tests that need a newer torch than the oldest one that setup.cfg admits."""

from __future__ import annotations

import pytest
import torch
from packaging.version import Version

# docs/python_api.md names what the older versions cannot compile.
compiles_all = pytest.mark.skipif(
    Version(torch.__version__) < Version("2.7"), reason="torch before 2.7 cannot compile this"
)
