"""Settings that shorten the run of all tests.

The files that take longest come first, so that no core of ``make test`` is idle at the end.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from spacy.lang.en import English
from spacy.lang.tokenizer_exceptions import BASE_EXCEPTIONS

# Triton reads this when it is imported, which any test that imports parts of torch may do first.
# On a machine with a GPU, Triton compiles its kernels, and only tests/device sets the variable.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# The 1,171 contractions of English take 50 ms for each new pipeline, and tests create thousands.
# Programs that tests start still have them, and so do the tests of pages.
CONTRACTIONS = English.Defaults.tokenizer_exceptions
English.Defaults.tokenizer_exceptions = BASE_EXCEPTIONS

# Garbage collection visits all imported objects. With default thresholds it takes a tenth of the
# time.
gc.set_threshold(20_000, 10, 10)

HERE = Path(__file__).parent
# Stand-ins for packages that programs import and do not use.
STAND_INS = HERE / "stand_ins"
# Files that take more than ten processor seconds.
FIRST = (
    "device/test_gpu_kernels.py",
    "repository/test_gpu_plan.py",
    "distributed/test_train.py",
    "device/test_matrix.py",
    "device/test_spacy_train.py",
    "matrix/test_components.py",
    "repository/test_pages.py",
    "kernels/test_compilation.py",
    "cli/test_spacy_commands.py",
    "repository/test_notebooks.py",
    "pipeline/test_processes.py",
    "pipeline/test_stored_component.py",
    "evaluation/test_verdicts_of_models.py",
    "models/test_span_losses.py",
    "distributed/test_annotate.py",
    "test_traps.py",
    "repository/test_packaging.py",
    "estimators/test_given_trees.py",
    "pipeline/test_damaged_files.py",
    "pipeline/test_memory.py",
)
PLACES = {HERE / name: place for place, name in enumerate(FIRST)}


def pytest_configure(config: pytest.Config) -> None:
    # The controller of pytest-xdist does not set it, since its workers would inherit it.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        paths = [str(STAND_INS), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: PLACES.get(item.path, len(PLACES)))


def pytest_collection_finish() -> None:
    # All objects of now are excluded from later collections, since they live until the end.
    gc.collect()
    gc.freeze()


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """A function that sets the number of torch's threads until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
