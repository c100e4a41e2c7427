"""Run one training of ``benchmarks learning``, which ends with the process that started it.

    python -m benchmarks.learning_trial PARENT CONFIG FOLDER SEED SETTINGS DEVICE

PARENT is the id of that process. SETTINGS are changed settings of the config, as JSON. DEVICE is
cpu or gpu.

If it is started again with the same folder, it resumes from its last checkpoint, and ends with the
weights of an uninterrupted training. In addition to the pipelines, the folder gets a file for each
start, with its processor time so far in seconds.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spacy_latent.distributed.directories import replace_file
from spacy_latent.distributed.train import train
from spacy_latent.distributed.trial import watch

# Seconds between notes of the processor time. A killed training has not noted the last ones.
BETWEEN_NOTES = 5.0
CLOCKS = "clock-*.txt"


@contextmanager
def noting_time(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"clock-{len(list(folder.glob(CLOCKS)))}.txt"
    ended = threading.Event()

    def note() -> None:
        replace_file(path, f"{time.process_time():.2f}\n")

    def go_on() -> None:
        while not ended.wait(BETWEEN_NOTES):
            note()

    note()
    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        note()


def time_noted(folder: Path) -> list[float]:
    """Return the noted processor seconds of each start of a training."""
    return [float(path.read_text()) for path in sorted(folder.glob(CLOCKS))]


def main() -> None:
    parent, config, folder, seed, settings, device = sys.argv[1:]
    if os.name == "posix":
        threading.Thread(target=watch, args=(int(parent),), daemon=True).start()
    with noting_time(Path(folder)):
        overrides = {**json.loads(settings), "system.seed": int(seed)}
        if device == "gpu":
            overrides["training.gpu_allocator"] = "pytorch"
        train(config, folder, overrides=overrides, resume=True, use_gpu=device == "gpu")


if __name__ == "__main__":
    main()
