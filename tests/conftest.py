"""The order of the files of tests: those that take longest first, so that at the end no core waits
for the other. ``make test`` keeps to it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from spacy.lang.en import English
from spacy.lang.tokenizer_exceptions import BASE_EXCEPTIONS

# Triton reads this once, when it is imported; torch imports it too, in whichever test comes first.
# On a machine with a GPU its kernels are compiled, and only tests/device sets this for itself.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# The 1,171 contractions of English take 50 ms each time that a pipeline is made, and tests make
# thousands. Programs that tests start have them, and tests of the pages.
CONTRACTIONS = English.Defaults.tokenizer_exceptions
English.Defaults.tokenizer_exceptions = BASE_EXCEPTIONS

# Collections of garbage walk all that is imported: a tenth of the time, if they come as often as
# they do by default.
gc.set_threshold(20_000, 10, 10)

HERE = Path(__file__).parent
# Packages in the place of others that programs would only import.
STAND_INS = HERE / "stand_ins"
# Above ten seconds of a processor.
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
    # The controller of pytest-xdist would pass it on to the processes that run tests.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        paths = [str(STAND_INS), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: PLACES.get(item.path, len(PLACES)))


def pytest_collection_finish() -> None:
    # What is there now stays, and is walked no more.
    gc.collect()
    gc.freeze()


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """A function that sets how many threads torch has until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
