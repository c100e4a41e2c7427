"""Training on a Ray cluster, which starts and restarts the processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from spacy_latent.distributed.checkpoint import checkpoints_in, folder_of
from spacy_latent.distributed.ranks import TIMEOUT, RanksFailed
from spacy_latent.distributed.ray_cluster import connected, import_ray, part_of_ray
from spacy_latent.errors import LatentError

INSTEAD = "Without Ray, torchrun starts the same training."


def ray_train(
    config_path: str | Path,
    output: str | Path,
    *,
    workers: int,
    address: str | None = None,
    use_gpu: bool = False,
    overrides: Mapping[str, object] | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    timeout: float = TIMEOUT,
    max_failures: int = 0,
) -> Path:
    """Train the pipeline of a config on workers of Ray Train, one rank each.

    See :func:`spacy_latent.distributed.train.train` for the other arguments.

    Args:
        output: Directory on a disk that all machines see. They must also see the config and the
            data.
        workers: Number of ranks. Each rank has a GPU with ``use_gpu``, otherwise a CPU.
        address: See :func:`spacy_latent.distributed.ray_data.annotate_with_ray`.
        max_failures: Number of times that a training is resumed from its last checkpoint after a
            worker was lost.

    Returns:
        The directory of the model that was saved last.

    Raises:
        RanksFailed: If the training fails, with Ray's description of the failure.
    """
    ray = import_ray(address, INSTEAD)
    part_of_ray("ray.train.torch", INSTEAD)
    from ray.train.torch import TorchTrainer

    output = Path(output).resolve()
    _check(workers, output, resume)
    # More workers than cores are slow, but correct.
    with connected(ray, address, cpus=max(workers + 1, os.cpu_count() or 1), log=True):
        try:
            trainer = TorchTrainer(
                _be_rank,
                train_loop_config={
                    "folder": os.getcwd(),
                    "config_path": str(Path(config_path).resolve()),
                    "output": str(output),
                    "overrides": dict(overrides or {}),
                    "resume": resume or max_failures > 0,
                    "checkpoint_every": checkpoint_every,
                    "timeout": timeout,
                    "use_gpu": use_gpu,
                },
                **_configs_of_ranks(output, workers, use_gpu, timeout, max_failures),
            )
            trainer.fit()
        except Exception as error:
            raise RanksFailed(f"The training on Ray failed: {error}") from error
    return output / "model-last"


def _check(workers: int, output: Path, resume: bool) -> None:
    """Refuse too few workers, and an output with the checkpoints of another training."""
    if workers < 1:
        raise LatentError(f"workers is {workers}; expected a number of processes, at least 1.")
    if not resume and checkpoints_in(output):
        # A worker would resume from this checkpoint as if its own previous attempt had written it.
        raise LatentError(
            f"{folder_of(output)} has checkpoints of an earlier training. Continue it with "
            "resume=True, remove that directory, or give another output."
        )


def _configs_of_ranks(
    output: Path, workers: int, use_gpu: bool, timeout: float, max_failures: int
) -> dict[str, Any]:
    """Return Ray's settings of the process group, of the ranks, and of their restarts."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig

    backend = "cpu:gloo,cuda:nccl" if use_gpu else "gloo"
    failures = FailureConfig(max_failures=max_failures)
    return {
        "torch_config": TorchConfig(backend=backend, timeout_s=int(timeout)),
        "scaling_config": ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        "run_config": RunConfig(name="ray", storage_path=str(output), failure_config=failures),
    }


def _be_rank(settings: dict[str, Any]) -> None:
    """Train on a worker, for which Ray has created the process group."""
    from spacy_latent.distributed.train import train

    # Ray gives each worker a directory of its own, where relative paths of the config lead nowhere.
    with suppress(FileNotFoundError):
        os.chdir(settings.pop("folder"))
    train(settings.pop("config_path"), settings.pop("output"), **settings)
