"""Checkpoints of a training, which resume it exactly.

A resumed training ends with the same weights, bit by bit, as an uninterrupted one. A checkpoint
holds the pipeline, the state of the optimizer, the states of the random number generators, and the
scores so far. The optimizer's state for an array is stored by the position of the array in the
pipeline, since the optimizer's own ids are valid in one process only. Schedules, patience and the
order of the data are not stored, but restored by a replay of the earlier batches.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import srsly
import torch
from spacy.language import Language
from spacy.pipeline import AttributeRuler, EditTreeLemmatizer
from spacy.pipeline._edit_tree_internals.edit_trees import EditTrees
from thinc.api import Optimizer, get_current_ops, to_numpy
from thinc.backends import get_array_ops

from spacy_latent.distributed.directories import finish_replacing, replace_directory
from spacy_latent.distributed.random_state import RandomState, StatesOfSteps, stacked, unstacked
from spacy_latent.distributed.trained_arrays import models_of, shims_of, weights_of
from spacy_latent.errors import LatentError
from spacy_latent.pipeline.unreached_stages import CALLBACK

FORMAT = 2
# Number of checkpoints that are kept.
KEPT = 2
MOMENTS = ("mom1", "mom2", "averages")
COUNTS = ("nr_update", "last_seen")
# Settings that may change in the config of a resumed training.
FREE = ("max_steps", "max_epochs", "patience", "logger", "before_to_disk", "score_weights")


@dataclass
class Progress:
    """Progress of a training.

    Attributes:
        losses: Sums of the losses since the last evaluation, one dict per rank.
        data: Checksum of all batches.
        world: Number of ranks.
        seed: Seed of the noise.
        random: States of the random number generators after the last step.
        epochs: States of generators before the steps in which the reader of the data drew from
            them. A state is stored only if other code has drawn from the same generator since the
            previous one.
    """

    steps: int = 0
    scores: list[float] = field(default_factory=list)
    losses: list[dict[str, float]] = field(default_factory=list)
    data: int = 0
    world: int = 1
    seed: int = 0
    random: RandomState | None = None
    epochs: StatesOfSteps = field(default_factory=dict)


# Fields of a Progress that are written to JSON unchanged.
RECORDED = ("steps", "scores", "losses", "data", "world", "seed")


def folder_of(output: Path) -> Path:
    """Return the folder of all checkpoints in the output directory of a training."""
    return output / "checkpoints"


def checkpoints_in(output: Path) -> list[tuple[int, Path]]:
    """Return the number of steps and the directory of each complete checkpoint, in order."""
    folder = folder_of(output)
    if folder.is_dir():
        # The process may have been killed while it replaced a checkpoint.
        for rest in folder.glob(".step-*"):
            finish_replacing(folder / re.sub(r"^\.(step-\d+)\.\w+$", r"\1", rest.name))
    found = [
        (int(match[1]), path)
        for path in folder.glob("step-*")
        if (match := re.fullmatch(r"step-(\d+)", path.name))
    ]
    return sorted(found)


def save_checkpoint(
    output: Path, nlp: Language, optimizer: Optimizer, frozen: Collection[str], progress: Progress
) -> Path:
    """Write a checkpoint under the output directory, and keep only the last :data:`KEPT`."""
    path = folder_of(output) / f"step-{progress.steps}"

    def write(folder: Path) -> None:
        folder.mkdir()
        # The vectors of the vocabulary are left out: they do not change and may be large.
        nlp.to_disk(folder / "pipeline", exclude=["vocab"])
        nlp.vocab.strings.to_disk(folder / "strings.json")
        arrays, counts = _optimizer_state(nlp, optimizer, frozen)
        assert progress.random is not None
        for name, state in (
            ("random", progress.random.arrays()),
            ("random_before", stacked(progress.epochs)),
        ):
            arrays.update({f"{name}.{key}": array for key, array in state.items()})
        with open(folder / "training.npz", "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        record = {
            "format": FORMAT,
            **{name: getattr(progress, name) for name in RECORDED},
            "config": settings_of(nlp),
            **counts,
        }
        # The json of the standard library, because srsly rounds numbers. Losses may be NumPy's.
        text = json.dumps(record, default=float)
        (folder / "training.json").write_text(text, encoding="utf8")

    replace_directory(path, write)
    for _, old in checkpoints_in(output)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return path


def load_checkpoint(
    path: Path, nlp: Language, optimizer: Optimizer, frozen: Collection[str]
) -> Progress:
    """Restore a pipeline that was initialized from the same config, and its optimizer.

    Raises:
        LatentError: If the training has another config, if another version wrote the checkpoint, or
            if it is damaged.
    """
    if not (path / "training.json").exists():
        raise LatentError(
            f"{path} is missing, or is no checkpoint. Give an --output directory on a disk that "
            "all ranks share."
        )
    try:
        return _load(path, nlp, optimizer, frozen)
    except LatentError:
        raise
    except Exception as error:
        raise LatentError(
            f"{path} cannot be read ({type(error).__name__}: {error}). If it is damaged, delete "
            "it. Then --resume continues from the checkpoint before it, if there is one."
        ) from error


def _load(path: Path, nlp: Language, optimizer: Optimizer, frozen: Collection[str]) -> Progress:
    record = json.loads((path / "training.json").read_text(encoding="utf8"))
    if record.get("format") != FORMAT:
        raise LatentError(
            f"{path} was written in format {record.get('format')}; expected {FORMAT}. Continue "
            "with the version of spacy-latent that wrote it, or start a new training in another "
            "directory."
        )
    _refuse_other_settings(path, record["config"], settings_of(nlp))
    for string in srsly.read_json(path / "strings.json"):
        nlp.vocab.strings.add(string)
    _empty_lists(nlp)
    # The given config is kept, because it may train for longer.
    nlp.from_disk(path / "pipeline", exclude=["vocab", "config"])
    with np.load(path / "training.npz", allow_pickle=False) as file:
        arrays = dict(file)
    _restore_optimizer(path, nlp, optimizer, frozen, arrays, record)

    def stored(name: str) -> dict[str, np.ndarray]:
        return {k.rpartition(".")[2]: v for k, v in arrays.items() if k.startswith(f"{name}.")}

    return Progress(
        **{name: record[name] for name in RECORDED},
        random=RandomState.of_arrays(stored("random")),
        epochs=unstacked(stored("random_before")),
    )


def _empty_lists(nlp: Language) -> None:
    """Empty the lists of spaCy's components to which ``from_disk`` only appends.

    They would grow with each resumption.
    """
    for _, pipe in nlp.components:
        if isinstance(pipe, AttributeRuler):
            pipe.clear()
        elif isinstance(pipe, EditTreeLemmatizer):
            pipe.trees = EditTrees(pipe.vocab.strings)


def settings_of(nlp: Language) -> dict[str, Any]:
    """Return the settings that must not change during a training."""
    config = nlp.config.interpolate()
    if config["nlp"].get("after_pipeline_creation") == CALLBACK:
        # This callback only refuses trainings. It does not change a training that it accepts.
        config["nlp"]["after_pipeline_creation"] = None
    training = {key: value for key, value in config["training"].items() if key not in FREE}
    sections = {"nlp": config["nlp"], "components": config["components"], "training": training}
    return json.loads(json.dumps(sections))


def _refuse_other_settings(path: Path, saved: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    before, now = _flat(saved), _flat(given)
    other = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    if other:
        key = other[0]
        raise LatentError(
            f"{path} belongs to a training with other settings: "
            f"{', '.join(other[:5])}{', ...' if len(other) > 5 else ''} ({key} was "
            f"{before.get(key)!r} and is {now.get(key)!r}). Resume with the config and the "
            "overrides of that training, or start a new training in another directory. Only "
            f"training.{', training.'.join(FREE)} may change."
        )


def _flat(settings: Any, place: str = "") -> dict[str, Any]:
    if not isinstance(settings, Mapping) or not settings:
        return {place: settings}
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found.update(_flat(value, f"{place}.{key}" if place else str(key)))
    return found


def _optimizer_state(
    nlp: Language, optimizer: Optimizer, frozen: Collection[str]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    arrays: dict[str, np.ndarray] = {}
    counts = []
    models = models_of(nlp, frozen)
    for place, weights in enumerate(weights_of(models)):
        for name in MOMENTS:
            kept = (getattr(optimizer, name) or {}).get(weights.key)
            if kept is not None:
                arrays[f"{name}.{place}"] = to_numpy(kept)
        own = [getattr(optimizer, name).get(weights.key) for name in COUNTS]
        # Thinc changes weights by momentum once they have had a gradient, even a gradient of 0.
        counts.append([*own, weights.gradient is not None])
    scalers: list[Any] = []
    for shim in (shim for _, model in models for shim in shims_of(model)):
        scaler: Any = getattr(shim, "_grad_scaler", None)
        enabled = getattr(scaler, "_enabled", False)
        scalers.append([float(scaler._scale), int(scaler._growth_tracker)] if enabled else None)
    return arrays, {"counts": counts, "scalers": scalers, "radam": optimizer._radam_buffer}


def _restore_optimizer(
    path: Path,
    nlp: Language,
    optimizer: Optimizer,
    frozen: Collection[str],
    arrays: Mapping[str, np.ndarray],
    record: Mapping[str, Any],
) -> None:
    models = models_of(nlp, frozen)
    found = weights_of(models)
    if len(found) != len(record["counts"]):
        raise LatentError(
            f"{path} holds {len(record['counts'])} arrays of weights, and the pipeline has "
            f"{len(found)}. Resume with the versions of spaCy and its plugins that wrote it."
        )
    for place, weights in enumerate(found):
        for name in MOMENTS:
            kept, stored = getattr(optimizer, name), arrays.get(f"{name}.{place}")
            if stored is not None and kept is not None:
                ops = get_current_ops() if weights.values.is_cuda else get_array_ops(stored)
                kept[weights.key] = ops.asarray(stored.copy())
        for name, count in zip(COUNTS, record["counts"][place]):
            if count is not None:
                getattr(optimizer, name)[weights.key] = count
        if record["counts"][place][-1]:
            weights.gradient = torch.zeros_like(weights.values)
    shims = [shim for _, model in models for shim in shims_of(model)]
    for shim, state in zip(shims, record["scalers"]):
        if state is not None and getattr(shim._grad_scaler, "_enabled", False):
            shim._grad_scaler._scale.fill_(state[0])
            shim._grad_scaler._growth_tracker.fill_(state[1])
    optimizer._radam_buffer = record["radam"]


def check_optimizer(optimizer: Any) -> None:
    """Raise LatentError unless the state of the optimizer can be stored."""
    if not isinstance(optimizer, Optimizer):
        raise LatentError(
            f"training.optimizer is a {type(optimizer).__name__}; expected one of Thinc's "
            "optimizers, Adam.v1, RAdam.v1 or SGD.v1, for checkpoints. Use one, or train "
            "without checkpoints (--checkpoint-every 0)."
        )
