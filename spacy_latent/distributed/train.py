"""Training of a pipeline on several processes with spaCy's own loop.

Each rank reads the same batches, learns from its share of each, and takes the step that one process
with the whole batch would take. Rank 0 evaluates, logs and saves.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from spacy.language import Language
from thinc.api import require_gpu

from spacy_latent.distributed.rank_training import RankTraining
from spacy_latent.distributed.ranks import TIMEOUT, Ranks, gpu_of_this_rank
from spacy_latent.errors import LatentError


def train(
    config_path: str | Path,
    output: str | Path | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    timeout: float = TIMEOUT,
    use_gpu: bool = False,
    stdout: IO[str] = sys.stdout,
    stderr: IO[str] = sys.stderr,
) -> tuple[Language, Path | None]:
    """Train the pipeline of a config on all ranks; called on each of them.

    The ranks are the ranks of the process group of this process. Without a group, they are the
    ranks that the environment declares, as ``torchrun`` does. Otherwise this process is alone.

    Args:
        output: Directory for ``model-best`` and ``model-last``, as in ``spacy train``, and
            ``checkpoints``. None saves nothing.
        overrides: Settings that replace settings of the config, such as ``{"training.max_steps":
            100}``.
        resume: Continue from the last checkpoint under ``output``, if there is one.
        checkpoint_every: Steps between checkpoints; None for a checkpoint at each evaluation, 0 for
            no checkpoints.
        timeout: Seconds that a rank waits for the others before it gives up. An evaluation and a
            checkpoint must not take longer.
        use_gpu: Each rank uses the GPU with the rank's number on its machine.

    Returns:
        The trained pipeline, the same on every rank, and the directory where it was saved last.

    Raises:
        RanksFailed: On all ranks, if one of them failed.
        RanksLost: If a rank died or does not answer.
    """
    if checkpoint_every is not None and checkpoint_every < 0:
        raise LatentError(
            f"checkpoint_every is {checkpoint_every}; expected a number of steps, or 0 for none."
        )
    if resume and output is None:
        raise LatentError(
            "resume is true, and output is missing; expected the output directory of the "
            "training to continue."
        )
    gpu = gpu_of_this_rank().index if use_gpu else -1
    if use_gpu:
        require_gpu(gpu)
    ranks = Ranks.join(use_gpu=use_gpu, timeout=timeout)
    drawn = ranks.of_first(lambda: random.SystemRandom().randrange(2**31), "Drawing a seed")
    places = Path(config_path), None if output is None else Path(output)
    settings: dict[str, Any] = {"gpu": gpu, "drawn": drawn, "stdout": stdout, "stderr": stderr}
    training = ranks.together(
        lambda: RankTraining(ranks, *places, dict(overrides or {}), **settings),
        "Initializing the pipeline",
    )
    training.begin(resume=resume, checkpoint_every=checkpoint_every)
    return training.run()
