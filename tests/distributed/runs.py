"""Runs of trainings on several processes, whose results the tests check."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.distributed.trainings import (
    ADAM,
    SGD,
    encoder,
    save_corpus,
    shared,
    textcat,
    write_config,
)

# The learning rate changes at each step.
AVERAGED = {
    **ADAM,
    "use_averages": True,
    "learn_rate": {
        "@schedules": "warmup_linear.v1",
        "warmup_steps": 3,
        "total_steps": 30,
        "initial_rate": 0.02,
    },
}
WHOLE, PART, SHORT = 11, 5, 7
TREES = {"@misc": "spacy-latent.ProjectiveTree.v1"}
STAGED = {
    "structure": {
        "@misc": "spacy-latent.ReleasedStructure.v1",
        "restricted": TREES,
        "free": {"@misc": "spacy-latent.SpanningTree.v1"},
        "release_at": 4,
    },
    "estimator": {
        "@misc": "spacy-latent.EstimatorSequence.v1",
        "first": {"@misc": "spacy-latent.Marginals.v1"},
        "then": {
            "@misc": "spacy-latent.ScoreFunction.v1",
            "control_variate": {"@misc": "spacy-latent.MovingAverage.v1"},
            "inner_steps": 3,
        },
        "switch_at": 2,
    },
}


class Runs:
    """Results of runs, by the name of the run and its number of ranks, for each rank."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[tuple[str, int], list[dict[str, Any]]] = {}
        save_corpus(path / "train.spacy")
        data = path / "train.spacy"
        base = path / "additive.1" / "model-last"
        noise = {"estimator": {"@misc": "spacy-latent.PerturbAndMap.v1"}}
        noisy = {**encoder("tagger", **noise), "ner": shared("ner")["ner"]}
        learned = {**encoder("tagger", entropy_weight=0.1), "ner": shared("ner")["ner"]}
        noise_and_averages = {"dropout": 0.1, "optimizer": AVERAGED}
        slowly = {"optimizer": {**SGD, "learn_rate": 0.003}}
        supervised = encoder("tagger", "textcat", entropy_weight=0.5)
        supervised["latent_encoder"]["supervision"] = 0.5
        self.configs = {
            name: str(write_config(path / f"{name}.cfg", pipeline, data, **training))
            for name, pipeline, training in [
                ("small", shared("tagger"), {**noise_and_averages, "max_steps": SHORT}),
                ("additive", shared("tagger", "textcat", "spancat"), slowly),
                (
                    "divided",
                    {**supervised, **textcat(entropy_weight=0.5)},
                    {**slowly, "accumulate_gradient": 3},
                ),
                ("supervised", supervised, slowly),
                ("noisy", noisy, {**noise_and_averages, "max_steps": WHOLE}),
                ("staged", textcat(**STAGED), {"optimizer": AVERAGED, "max_steps": 7}),
                ("few", textcat(**STAGED), {"batcher": _batches_of(1), "max_steps": 6}),
                (
                    "sourced",
                    {
                        "tok2vec": {"source": str(base)},
                        "tagger": {"source": str(base)},
                        "ner": shared("ner")["ner"],
                    },
                    {
                        "frozen_components": ["tok2vec", "tagger"],
                        "annotating_components": ["tok2vec"],
                    },
                ),
                (
                    "learned",
                    learned,
                    {"max_steps": 60, "eval_frequency": 15, "max_epochs": 20},
                ),
                (
                    "patient",
                    shared("tagger"),
                    # The score never rises.
                    {"max_steps": 60, "patience": 12, "score_weights": {"none_at_all": 1.0}},
                ),
            ]
        }

    def run(self, name: str, world: int, config: str = "", **options: Any) -> dict[str, Any]:
        return {
            "name": name,
            "config": self.configs[config or name],
            "weights": str(self.path / f"{name}.{world}.weights"),
            **options,
        }

    def output(self, name: str) -> str:
        return str(self.path / name)

    def start(self, groups: list[dict[str, Any]], file: str = "groups.json") -> None:
        """Start groups of processes, and read the results of all ranks.

        Args:
            groups: Each has its number of processes, "world", and its "runs".
        """
        path = self.path / file
        path.write_text(json.dumps(groups))
        subprocess.run([sys.executable, "-m", "tests.distributed.processes", str(path)], check=True)
        for number, group in enumerate(groups):
            for rank in range(group["world"]):
                told = Path(f"{path}.{number}.{rank}.json")
                # A rank that was killed wrote no results.
                results = json.loads(told.read_text()) if told.exists() else []
                for i, run in enumerate(group["runs"]):
                    result = results[i] if i < len(results) else {"error": "killed", "kind": ""}
                    self.found.setdefault((run["name"], group["world"]), []).append(result)

    def of(self, name: str, world: int) -> list[dict[str, Any]]:
        """Return the results of each rank, after a check that no rank has an error."""
        found = self.found[name, world]
        assert [result["error"] for result in found] == [None] * world
        return found

    def weights(self, name: str, world: int, rank: int = 0) -> list[np.ndarray]:
        self.of(name, world)
        with np.load(self.path / f"{name}.{world}.weights.{rank}.npz") as file:
            return [file[str(i)] for i in range(len(file.files))]


def files_under(path: Path) -> dict[str, bytes]:
    found = {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }
    assert found
    return found


def _batches_of(size: int) -> dict[str, Any]:
    return {"@batchers": "spacy.batch_by_sequence.v1", "size": size, "get_length": None}
