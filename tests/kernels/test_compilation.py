"""What numba must be told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import spacy_latent

KERNELS = Path(spacy_latent.__file__).parent / "kernels"


def test_every_kernel_says_how_it_treats_floats() -> None:
    """Else it is compiled, and stored, with the flags of whichever caller came first."""
    found = [
        (path.name, options)
        for path in KERNELS.glob("*.py")
        for options in re.findall(r"@njit(\(.*?\))?\n", path.read_text(encoding="utf8"))
    ]
    assert len(found) > 100
    assert [entry for entry in found if "fastmath=" not in entry[1]] == []


def test_a_kernel_that_is_compiled_first_is_right(tmp_path: Path) -> None:
    """The exponential's rounding does not survive being reassociated as its callers may be."""
    program = (
        "import torch\n"
        "from spacy_latent.structures.constituency_tree import ConstituencyTree\n"
        "scores = torch.zeros(1, 4, 4, dtype=torch.float64)\n"
        "print(ConstituencyTree().log_partition(scores, torch.tensor([4])).exp().item())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert abs(float(ran.stdout) - 5.0) < 1e-12
