"""Copy a pipeline of the demo project into the package, where ``spacy latent demo`` loads it.

make demo && python -m tests.carried_pipeline training/demo/model-best
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import srsly

import spacy_latent

CARRIED = Path(spacy_latent.__file__).parent / "listops_pipeline"
SUMS = Path(__file__).with_name("carried_pipeline.json")
META = {
    "name": "listops_demo",
    "version": "1.0.0",
    "spacy_version": ">=3.8.2,<3.9.0",
    "description": "Trees over ListOps expressions, learned from their values alone.",
    "license": "MIT",
}
# Scores of training are left out, because 'spacy latent demo' measures its own.
UNUSED = ("performance", "spacy_git_version")


def sums() -> dict[str, str]:
    """Return the sha256 digest of each file, by its path in the pipeline."""
    files = sorted(path for path in CARRIED.rglob("*") if path.is_file())
    return {
        path.relative_to(CARRIED).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def carry(pipeline: Path) -> None:
    shutil.rmtree(CARRIED, ignore_errors=True)
    shutil.copytree(pipeline, CARRIED)
    meta = srsly.read_json(CARRIED / "meta.json")
    kept = {key: value for key, value in meta.items() if key not in UNUSED}
    srsly.write_json(CARRIED / "meta.json", kept | META)
    srsly.write_json(SUMS, sums())


if __name__ == "__main__":
    carry(Path(sys.argv[1]))
