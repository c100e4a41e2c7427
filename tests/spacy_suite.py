"""Run spaCy's own tests with and without a latent structure over the default tok2vec.

``python -m tests.spacy_suite`` exits with 0 if all tests that pass without it also pass with it.
``make spacy-suite`` calls this program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MODULES = [
    "spacy.tests.pipeline",
    "spacy.tests.parser",
    "spacy.tests.training",
    "spacy.tests.test_language",
    "spacy.tests.test_models",
    "spacy.tests.serialize.test_serialize_pipeline",
    "spacy.tests.serialize.test_serialize_config",
    "spacy.tests.serialize.test_serialize_language",
]
# Tests that may fail, because their premise does not hold for every tok2vec, with the reason.
EXPECTED: dict[str, str] = {}


def run(variant: str) -> dict[str, Any]:
    """Run spaCy's tests and return the results.

    Args:
        variant: "with" or "without" the latent structure.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        environment = {
            **os.environ,
            "SPACY_LATENT_SUITE": variant,
            "SPACY_LATENT_SUITE_RESULT": str(result),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
        command += ["-p", "tests.spacy_suite_plugin", "--no-header", "--tb=short", "--pyargs"]
        process = subprocess.run([*command, *MODULES], env=environment, check=False)
        if not result.exists():
            raise SystemExit(f"pytest stopped with {process.returncode} before it had a result.")
        return json.loads(result.read_text())


def main() -> int:
    without, latent = run("without"), run("with")
    broken = [
        name
        for name, outcome in without["outcomes"].items()
        if outcome == "passed" and latent["outcomes"].get(name) != "passed"
    ]
    unexpected = [name for name in broken if name.split("::")[-1] not in EXPECTED]
    for label, results in (("without", without), ("with", latent)):
        passed = sum(outcome == "passed" for outcome in results["outcomes"].values())
        print(f"{label} the latent structure: {passed} of {len(results['outcomes'])} tests pass")
    print(f"latent models built: {latent['built']}")
    for name in broken:
        print(f"only without: {name} {EXPECTED.get(name.split('::')[-1], '(UNEXPECTED)')}")
    return 1 if unexpected or not latent["built"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
