"""Trainings on several processes, compared with the same trainings on one process.

:mod:`tests.distributed.processes` runs all of them once, and the tests check the results.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from tests.distributed.runs import PART, Runs, files_under

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forks of a process")


def groups(runs: Runs) -> list[dict[str, Any]]:
    stopped = runs.output("stopped.1")
    part = {"training.max_steps": PART}
    alone = [
        runs.run("spacy", 1, "noisy", output=runs.output("spacy"), program="spacy"),
        runs.run("whole", 1, "noisy", output=runs.output("whole.1")),
        runs.run("part", 1, "noisy", output=stopped, overrides=part, checkpoint_every=PART - 1),
        runs.run(
            "too short",
            1,
            "noisy",
            output=stopped,
            resume=True,
            overrides={"training.max_steps": PART - 2},
        ),
        runs.run(
            "no patience left",
            1,
            "noisy",
            output=stopped,
            resume=True,
            overrides={"training.patience": 1},
        ),
        runs.run("resumed", 1, "noisy", output=stopped, resume=True),
        runs.run("additive", 1, output=runs.output("additive.1")),
        *(runs.run(name, 1) for name in ("divided", "supervised", "learned")),
    ]
    names = ("additive", "divided", "supervised", "noisy", "learned", "patient")
    two = [
        runs.run("sourced", 2, output=runs.output("sourced.2")),
        *(runs.run(name, 2) for name in names),
        runs.run("small", 2, output=runs.output("small.2")),
        # No process dies of these faults, so the next run is in the same processes.
        *(
            runs.run(kind, 2, "small", output=runs.output(kind), checkpoint_every=2, fault=fault)
            for kind, fault in FAILING.items()
        ),
    ]
    killed, saving = runs.output("killed"), runs.output("killed while saving")
    often = {"checkpoint_every": 2}
    lost = [
        runs.run("killed", 2, "small", output=killed, fault=_fault("killed", 1, 5), **often),
        runs.run(
            "killed while saving", 2, "small", output=saving, fault=_fault("saving", 0), **often
        ),
    ]
    again = [
        runs.run("resumed", 2, "small", output=killed, resume=True),
        runs.run("resumed after saving", 2, "small", output=saving, resume=True),
    ]
    hangs = runs.run("hangs", 2, "small", fault=_fault("hangs", 1, 2))
    return [
        {"world": 1, "runs": alone},
        {"world": 2, "runs": two},
        *({"world": 2, "runs": [run]} for run in lost),
        {"world": 2, "runs": again},
        {"world": 2, "runs": [hangs], "timeout": 8.0, "hangs": True},
        {"world": 3, "runs": [runs.run("additive", 3), runs.run("staged", 3)]},
        {"world": 4, "runs": [runs.run("few", 4)]},
    ]


def _fault(kind: str, rank: int, step: int = 0, component: str = "") -> dict[str, Any]:
    return {"kind": kind, "rank": rank, "step": step, "component": component}


FAILING = {
    "other batches": _fault("other batches", 1, 3),
    "other labels": _fault("other labels", 1, 3, "tagger"),
    "not finite": _fault("not finite", 1, 3, "tagger"),
    "raises": _fault("raises", 1, 3, "tagger"),
    "full disk": _fault("full disk", 0),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    made = Runs(tmp_path_factory.mktemp("runs"))
    made.start(groups(made))
    return made


@pytest.mark.parametrize("model", ["model-best", "model-last"])
def test_one_rank_trains_as_spacy_does_to_the_byte(runs: Runs, model: str) -> None:
    runs.of("whole", 1)
    assert files_under(runs.path / "whole.1" / model) == files_under(runs.path / "spacy" / model)


@pytest.mark.parametrize("model", ["model-best", "model-last"])
def test_a_resumed_training_is_the_one_that_never_stopped(runs: Runs, model: str) -> None:
    for name in ("whole", "part", "resumed"):
        runs.of(name, 1)
    assert f"Resuming after {PART - 1} steps" in runs.of("resumed", 1)[0]["shown"]
    stopped = files_under(runs.path / "stopped.1" / model)
    assert stopped == files_under(runs.path / "whole.1" / model)


def test_a_training_that_is_resumed_for_fewer_steps_says_that_it_trains_none(runs: Runs) -> None:
    for name, setting in (("too short", "max_steps"), ("no patience left", "patience")):
        assert setting in runs.of(name, 1)[0]["shown"]
        assert setting not in runs.of("resumed", 1)[0]["shown"]


@pytest.mark.parametrize("model", ["model-best", "model-last"])
@pytest.mark.parametrize(
    ("resumed", "killed", "steps"),
    [("resumed", "killed", 4), ("resumed after saving", "killed while saving", 2)],
)
def test_a_training_whose_rank_was_killed_goes_on_as_if_it_had_not(
    runs: Runs, resumed: str, killed: str, steps: int, model: str
) -> None:
    """The resumed training ends with the files of an uninterrupted one.

    One rank is killed while it writes the checkpoint of step 4, which must not be read.
    """
    results = runs.found[killed, 2]
    assert sorted(result["kind"] for result in results) == ["", "RanksLost"]
    assert "--resume" in " ".join(result["error"] for result in results)
    assert f"Resuming after {steps} steps" in runs.of(resumed, 2)[0]["shown"]
    now = files_under(runs.path / killed / model)
    assert now == files_under(runs.path / "small.2" / model)
    left = {path.name for path in (runs.path / killed / "checkpoints").iterdir()}
    assert all(name.startswith("step-") for name in left)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("other batches", ["Step 3", "do not read the same batches"]),
        ("other labels", ["Step 3", "'tagger' have other shapes"]),
        ("not finite", ["Step 3", "tagger", "not finite on rank(s) 1"]),
        ("raises", ["Step 3", "rank 1", "tagger", "No space left"]),
        ("full disk", ["checkpoint", "rank 0", "No space left"]),
    ],
)
def test_all_ranks_raise_what_failed_on_one(runs: Runs, kind: str, words: list[str]) -> None:
    first, second = runs.found[kind, 2]
    assert first["kind"] == second["kind"] == "RanksFailed"
    assert first["error"] == second["error"]
    assert all(word in first["error"] for word in words)


def test_a_full_disk_leaves_what_was_there(runs: Runs) -> None:
    assert not list((runs.path / "full disk" / "checkpoints").iterdir())
    assert files_under(runs.path / "full disk" / "model-last")


def test_a_rank_that_hangs_is_waited_for_no_longer_than_the_timeout(runs: Runs) -> None:
    waiting, hanging = runs.found["hangs", 2]
    assert waiting["kind"] == "RanksLost"
    # Its parent process killed it after the other rank had given up.
    assert hanging["error"] == "killed"


@pytest.mark.parametrize(
    ("name", "world"),
    [
        *(("additive", world) for world in (2, 3)),
        *((name, 2) for name in ("divided", "supervised", "noisy", "sourced", "learned")),
        ("staged", 3),
        ("few", 4),
    ],
)
def test_all_ranks_end_with_the_same_weights(runs: Runs, name: str, world: int) -> None:
    """The weights agree even if a rank has no example of a batch, or no gold for a component."""
    found = runs.of(name, world)
    assert len({result["checksum"] for result in found}) == 1
    first, *others = [runs.weights(name, world, rank) for rank in range(world)]
    for other in others:
        assert all(np.array_equal(a, b) for a, b in zip(first, other))


@pytest.mark.parametrize(
    ("name", "world"),
    [("additive", 2), ("additive", 3), ("divided", 2), ("supervised", 2)],
)
def test_ranks_take_the_steps_of_one_process(runs: Runs, name: str, world: int) -> None:
    alone, together = runs.weights(name, 1), runs.weights(name, world)
    assert len(alone) == len(together) > 5
    for a, b in zip(alone, together):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def test_the_weights_of_the_comparison_have_moved(runs: Runs) -> None:
    """Check that training moves the weights, since equal weights prove nothing otherwise."""
    short, long = runs.weights("part", 1), runs.weights("whole", 1)
    assert sum(float(np.abs(a - b).max()) > 1e-3 for a, b in zip(short, long)) > 5


@pytest.mark.parametrize(("name", "world", "steps"), [("staged", 3, 8), ("few", 4, 7)])
def test_schedules_count_the_steps_of_all_ranks(
    runs: Runs, name: str, world: int, steps: int
) -> None:
    """All ranks count the same updates, even ranks without an example of any batch.

    Two steps are with marginals. Each later step has two inner steps in addition.
    """
    updates = [result["updates"] for result in runs.of(name, world)]
    assert updates == [[2 + (steps - 2) * 3]] * world


@pytest.mark.parametrize("score", ["ents_f", "tag_acc"])
def test_a_pipeline_learns_as_well_on_two_ranks(runs: Runs, score: str) -> None:
    """Scores of spaCy's ner, and of a tagger over a structure with an entropy weight, are high.

    Scores are compared and not weights, since the model of ner is noisy.
    """
    for world in (1, 2):
        assert runs.of("learned", world)[0]["performance"][score] > 0.9


def test_patience_ends_all_ranks_at_once(runs: Runs) -> None:
    """Training ends long before its 60 steps. A rank that went on alone would wait for ever."""
    lines = runs.of("patient", 2)[0]["shown"].splitlines()
    steps = [int(line.split()[1]) for line in lines if line.strip()[:1].isdigit()]
    assert 12 <= steps[-1] < 30
    assert runs.of("patient", 2)[1]["shown"] == ""


def test_what_is_frozen_stays_and_the_rest_is_trained(runs: Runs) -> None:
    runs.of("sourced", 2)
    base = files_under(runs.path / "additive.1" / "model-last")
    made = files_under(runs.path / "sourced.2" / "model-last")
    for name in ("tok2vec", "tagger"):
        assert made[f"{name}/model"] == base[f"{name}/model"]
    best = files_under(runs.path / "sourced.2" / "model-best")
    assert best["ner/model"] != made["ner/model"]
