"""Trainings on real processes, each beside the same training on one.

All of them are run once, by :mod:`tests.distributed.processes`; the tests look at what came out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed.trainings import (
    ADAM,
    BATCH,
    SGD,
    encoder,
    save_corpus,
    shared,
    textcat,
    write_config,
)

AVERAGED = {**ADAM, "use_averages": True}
WHOLE, PART = 11, 5
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
# Names of the runs that all numbers of ranks have, and how many ranks others have.
RANKS = {"additive": (1, 2, 4), "noisy": (2, 3), "staged": (2, 3, 4), "few": (2, 4)}


class Runs:
    """What came out of each run, by its name and number of ranks, for each rank."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[tuple[str, int], list[dict[str, Any]]] = {}
        save_corpus(path / "train.spacy")
        data = path / "train.spacy"
        base = path / "additive.1" / "model-last"
        noise = {"estimator": {"@misc": "spacy-latent.PerturbAndMap.v1"}}
        noisy = {**encoder("tagger", **noise), "ner": shared("ner")["ner"]}
        learned = {"tok2vec": shared()["tok2vec"], "ner": shared("ner")["ner"]}
        slowly = {"optimizer": {**SGD, "learn_rate": 0.003}}
        supervised = encoder("tagger", "textcat", entropy_weight=0.5)
        supervised["latent_encoder"]["supervision"] = 0.5
        self.configs = {
            name: str(write_config(path / f"{name}.cfg", pipeline, data, **training))
            for name, pipeline, training in [
                ("additive", shared("tagger", "textcat", "spancat"), slowly),
                ("divided", textcat(entropy_weight=0.5), {**slowly, "accumulate_gradient": 3}),
                ("supervised", supervised, slowly),
                ("noisy", noisy, {"dropout": 0.1, "optimizer": AVERAGED, "max_steps": WHOLE}),
                ("staged", textcat(**STAGED), {"optimizer": AVERAGED, "max_steps": 7}),
                ("few", shared("tagger"), {"batcher": _batches_of(1), "max_steps": 3}),
                (
                    "sourced",
                    {
                        "tok2vec": {"source": str(base)},
                        "tagger": {"source": str(base), "replace_listeners": ["model.tok2vec"]},
                        **{"ner": shared("ner")["ner"]},
                    },
                    {"frozen_components": ["tagger"], "annotating_components": ["tagger"]},
                ),
                (
                    "learned",
                    learned,
                    {"max_steps": 60, "eval_frequency": 15, "patience": 30, "max_epochs": 20},
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

    def resumed(self, world: int) -> list[dict[str, Any]]:
        """The same training at one go, and stopped and resumed."""
        into = self.output(f"stopped.{world}")
        part = {"training.max_steps": PART}
        return [
            self.run("whole", world, "noisy", output=self.output(f"whole.{world}")),
            self.run(
                "part", world, "noisy", output=into, overrides=part, checkpoint_every=PART - 1
            ),
            self.run("resumed", world, "noisy", output=into, resume=True),
        ]

    def start(self) -> None:
        reference = self.output("spacy")
        groups = [
            [
                self.run("spacy", 1, "noisy", output=reference, program="spacy"),
                *self.resumed(1),
                self.run("additive", 1, output=self.output("additive.1")),
                *(self.run(name, 1) for name in ("divided", "supervised", "learned")),
            ],
            [
                *(self.run(name, 2) for name in ("additive", "divided", "supervised")),
                *self.resumed(2),
                *(self.run(name, 2) for name in ("staged", "few", "sourced", "learned")),
            ],
            [self.run(name, 3) for name in ("noisy", "staged")],
            [self.run(name, 4) for name in ("additive", "few")],
        ]
        jobs = [{"world": i + 1, "runs": runs} for i, runs in enumerate(groups)]
        file = self.path / "jobs.json"
        file.write_text(json.dumps(jobs))
        subprocess.run([sys.executable, "-m", "tests.distributed.processes", str(file)], check=True)
        for number, job in enumerate(jobs):
            for rank in range(job["world"]):
                results = json.loads(Path(f"{file}.{number}.{rank}.json").read_text())
                for run, result in zip(job["runs"], results):
                    self.found.setdefault((run["name"], job["world"]), []).append(result)

    def of(self, name: str, world: int) -> list[dict[str, Any]]:
        """What each rank has, which has to be without error."""
        found = self.found[name, world]
        assert [result["error"] for result in found] == [None] * world
        return found

    def weights(self, name: str, world: int, rank: int = 0) -> list[np.ndarray]:
        self.of(name, world)
        with np.load(self.path / f"{name}.{world}.weights.{rank}.npz") as file:
            return [file[str(i)] for i in range(len(file.files))]


def _batches_of(size: int) -> dict[str, Any]:
    return {"@batchers": "spacy.batch_by_sequence.v1", "size": size, "get_length": None}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    made = Runs(tmp_path_factory.mktemp("runs"))
    made.start()
    yield made


def files_under(path: Path) -> dict[str, bytes]:
    found = {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }
    assert found
    return found


@pytest.mark.parametrize("model", ["model-best", "model-last"])
def test_one_rank_trains_as_spacy_does_to_the_byte(runs: Runs, model: str) -> None:
    runs.of("whole", 1)
    assert files_under(runs.path / "whole.1" / model) == files_under(runs.path / "spacy" / model)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("model", ["model-best", "model-last"])
def test_a_resumed_training_is_the_one_that_never_stopped(
    runs: Runs, world: int, model: str
) -> None:
    for name in ("whole", "part", "resumed"):
        runs.of(name, world)
    assert f"Resuming after {PART - 1} steps" in runs.of("resumed", world)[0]["shown"]
    stopped = files_under(runs.path / f"stopped.{world}" / model)
    assert stopped == files_under(runs.path / f"whole.{world}" / model)


@pytest.mark.parametrize(
    ("name", "world"),
    [
        *(("additive", world) for world in (2, 4)),
        *((name, 2) for name in ("divided", "supervised", "whole", "sourced", "learned")),
        *((name, world) for name in ("noisy",) for world in (3,)),
        *(("staged", world) for world in (2, 3)),
        *(("few", world) for world in (2, 4)),
    ],
)
def test_all_ranks_end_with_the_same_weights(runs: Runs, name: str, world: int) -> None:
    """Also where a rank has no example of a batch, or no gold for a component."""
    found = runs.of(name, world)
    assert len({result["checksum"] for result in found}) == 1
    first, *others = [runs.weights(name, world, rank) for rank in range(world)]
    for other in others:
        assert all(np.array_equal(a, b) for a, b in zip(first, other))


@pytest.mark.parametrize(
    ("name", "world"),
    [("additive", 2), ("additive", 4), ("divided", 2), ("supervised", 2)],
)
def test_ranks_take_the_steps_of_one_process(runs: Runs, name: str, world: int) -> None:
    alone, together = runs.weights(name, 1), runs.weights(name, world)
    assert len(alone) == len(together) > 5
    for a, b in zip(alone, together):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_the_weights_of_the_comparison_have_moved(runs: Runs) -> None:
    """One that trained nothing would pass it."""
    short, long = runs.weights("whole", 1), runs.weights("part", 1)
    assert sum(float(np.abs(a - b).max()) > 1e-3 for a, b in zip(short, long)) > 5


@pytest.mark.parametrize("world", [2, 3])
def test_schedules_count_the_steps_of_all_ranks(runs: Runs, world: int) -> None:
    """Two steps of marginals, then six with two further ones each."""
    assert [result["updates"] for result in runs.of("staged", world)] == [[2 + 6 * 3]] * world


def test_a_stock_ner_learns_as_well_on_two_ranks(runs: Runs) -> None:
    """Its noise is part of its model, so that scores are compared and not weights."""
    for world in (1, 2):
        assert runs.of("learned", world)[0]["performance"]["ents_f"] > 0.9


def test_patience_ends_all_ranks_at_once(runs: Runs) -> None:
    shown = runs.of("learned", 2)[0]["shown"]
    assert runs.of("learned", 2)[1]["shown"] == ""
    assert "ENTS_F" in shown


def test_what_is_frozen_stays(runs: Runs) -> None:
    for found in (runs.of("sourced", 2), runs.of("additive", 1)):
        assert all("checksum" in result for result in found)


def test_there_are_as_many_docs_in_a_batch_as_one_process_has() -> None:
    """Parts of it are divided by 2 without a rest, so that the comparison above is of all docs."""
    assert BATCH % 4 == 0
