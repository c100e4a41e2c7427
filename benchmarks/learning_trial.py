"""``python -m benchmarks.learning_trial PARENT CONFIG FOLDER SEED SETTINGS DEVICE``: one training
of ``benchmarks learning``, which ends with the process that started it. SETTINGS: what is not as in
the config, as JSON. DEVICE: cpu or gpu.

Started again with the same folder it goes on from its last checkpoint, to the weights that it would
have had. In addition to the pipelines, the folder gets a file for each start, with the processor
time so far in seconds.
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

# Seconds of the processor that a training which is killed may not have noted.
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
    """Seconds of the processor, for each time the training was started."""
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
