"""Many faults of trainings on several processes, which take too long for every change.

SPACY_LATENT_ALL_FAULTS=1 python -m pytest tests/distributed/test_faults.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thinc.api import Config

from tests.distributed.runs import Runs, files_under
from tests.distributed.trainings import (
    ADAM,
    SHARED,
    TOK2VEC,
    encoder,
    save_corpus,
    stock,
    textcat,
    write_config,
)

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not os.environ.get("SPACY_LATENT_ALL_FAULTS") or not hasattr(os, "fork"),
    reason="SPACY_LATENT_ALL_FAULTS is not set, or ranks cannot be forks of a process",
)
OFTEN = {"checkpoint_every": 2}
# The kind of fault, its rank and step, and the number of steps after which training resumes.
KILLED = [
    ("killed", 0, 0, 0),
    ("killed", 1, 1, 0),
    ("killed", 2, 2, 2),
    ("killed", 0, 5, 4),
    ("saving", 0, 0, 2),
    ("saving model", 0, 0, 2),
    ("between renames", 0, 0, 2),
    ("evaluating", 0, 0, 2),
]
SPOILT = [("not finite", rank) for rank in range(3)] + [("raises", rank) for rank in range(3)]
FULL = ["full disk", "full disk of the model", "file too large"]


def name_of(*words: Any) -> str:
    return " ".join(map(str, words))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    made = Runs(tmp_path_factory.mktemp("runs"))
    world = 3
    groups: list[dict[str, Any]] = [
        {"world": 1, "runs": [made.run("warm", 1, "small")]},
        {"world": world, "runs": [made.run("small", world, output=made.output("whole"))]},
    ]
    for kind, rank, step, _ in KILLED:
        name = name_of(kind, rank, step)
        fault = {"kind": kind, "rank": rank, "step": step}
        run = made.run(name, world, "small", output=made.output(name), fault=fault, **OFTEN)
        groups.append({"world": world, "runs": [run]})
    again = [
        made.run(f"resumed {name_of(*words[:3])}", world, "small", resume=True, **OFTEN)
        | {"output": made.output(name_of(*words[:3]))}
        for words in KILLED
    ]
    groups.append({"world": world, "runs": again})
    spoilt = [
        made.run(
            name_of(kind, rank),
            world,
            "small",
            fault={"kind": kind, "rank": rank, "step": 3, "component": "tagger"},
        )
        for kind, rank in SPOILT
    ]
    full = [
        made.run(
            kind, world, "small", output=made.output(kind), fault={"kind": kind, "rank": 0}, **OFTEN
        )
        for kind in FULL
    ]
    groups.append({"world": world, "runs": [*spoilt, *full]})
    other = made.output("other world")
    groups += [
        {
            "world": 3,
            "runs": [
                made.run(
                    "three",
                    3,
                    "small",
                    output=other,
                    overrides={"training.max_steps": 3},
                    **OFTEN,
                )
            ],
        },
        {"world": 2, "runs": [made.run("then two", 2, "small", output=other, resume=True)]},
    ]
    for rank in range(2):
        fault = {"kind": "hangs", "rank": rank, "step": 2}
        run = made.run(name_of("hangs", rank), 2, "small", fault=fault)
        groups.append({"world": 2, "runs": [run], "timeout": 8.0, "hangs": True})
    made.start(groups)
    return made


@pytest.mark.parametrize(("kind", "rank", "step", "steps"), KILLED)
def test_killed_and_resumed(runs: Runs, kind: str, rank: int, step: int, steps: int) -> None:
    name = name_of(kind, rank, step)
    kinds = [result["kind"] for result in runs.found[name, 3]]
    assert kinds == ["" if i == rank else "RanksLost" for i in range(3)]
    shown = runs.of(f"resumed {name}", 3)[0]["shown"]
    assert (f"Resuming after {steps} steps" if steps else "There is no checkpoint yet") in shown
    for model in ("model-best", "model-last"):
        whole = files_under(runs.path / "whole" / model)
        assert files_under(runs.path / name / model) == whole
    left = sorted(path.name for path in (runs.path / name).rglob(".*"))
    assert left == []


@pytest.mark.parametrize(("kind", "rank"), SPOILT)
def test_spoilt_on_one_rank(runs: Runs, kind: str, rank: int) -> None:
    found = runs.found[name_of(kind, rank), 3]
    assert {result["kind"] for result in found} == {"RanksFailed"}
    (message,) = {result["error"] for result in found}
    assert "Step 3" in message and "tagger" in message and str(rank) in message


@pytest.mark.parametrize("kind", FULL)
def test_no_room(runs: Runs, kind: str) -> None:
    found = runs.found[kind, 3]
    assert {result["kind"] for result in found} == {"RanksFailed"}
    (message,) = {result["error"] for result in found}
    assert "rank 0: OSError" in message
    assert not list((runs.path / kind).rglob(".*"))


def test_another_number_of_ranks_goes_on(runs: Runs) -> None:
    found = runs.of("then two", 2)
    assert "is of 3 rank(s) and this training of 2" in found[0]["shown"]
    assert len({result["checksum"] for result in found}) == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_hanging(runs: Runs, rank: int) -> None:
    found = runs.found[name_of("hangs", rank), 2]
    assert found[1 - rank]["kind"] == "RanksLost" and found[rank]["error"] == "killed"


def test_a_stream_with_draws_of_its_own_is_resumed(tmp_path: Path) -> None:
    """The states of the reader, the batcher's schedule and dropout are restored."""
    runs = Runs(tmp_path)
    growing = {"@schedules": "compounding.v1", "start": 3, "stop": 9, "compound": 1.2}
    config = write_config(
        tmp_path / "stream.cfg",
        # An ner draws from the same generator as the augmenter.
        {**encoder("tagger"), **textcat(), "ner": stock("ner", SHARED)},
        tmp_path / "train.spacy",
        max_epochs=-1,
        max_steps=11,
        dropout=0.2,
        batcher={"@batchers": "spacy.batch_by_sequence.v1", "size": growing, "get_length": None},
    )
    draws = Config().from_disk(config)
    draws["corpora"]["train"]["augmenter"] = {"@augmenters": "spacy.lower_case.v1", "level": 0.5}
    draws.to_disk(config)
    runs.configs["stream"] = str(config)
    groups = []
    for world in (1, 2):
        into = runs.output(f"stopped {world}")
        part = {"overrides": {"training.max_steps": 6}, "checkpoint_every": 3}
        groups.append(
            {
                "world": world,
                "runs": [
                    runs.run("stream", world, output=runs.output(f"whole {world}")),
                    runs.run("part", world, "stream", output=into, **part),
                    runs.run("resumed", world, "stream", output=into, resume=True),
                ],
            }
        )
    runs.start(groups)
    for world in (1, 2):
        assert "Resuming after 6 steps" in runs.of("resumed", world)[0]["shown"]
        for model in ("model-best", "model-last"):
            whole = files_under(tmp_path / f"whole {world}" / model)
            assert files_under(tmp_path / f"stopped {world}" / model) == whole


@pytest.mark.parametrize("estimator", ["PerturbAndMap", "ScoreFunction"])
def test_sampled_structures_learn_as_well_on_two_ranks(tmp_path: Path, estimator: str) -> None:
    """Scores are compared and not weights, since each rank draws its own noise.

    The learning rate falls, because scores vary with the noise in the middle of a training.
    """
    runs = Runs(tmp_path)
    rate = {"warmup_steps": 10, "total_steps": 200, "initial_rate": 0.01}
    falling = {"@schedules": "warmup_linear.v1", **rate}
    runs.configs["sampled"] = str(
        write_config(
            tmp_path / "sampled.cfg",
            textcat(estimator={"@misc": f"spacy-latent.{estimator}.v1"}),
            tmp_path / "train.spacy",
            max_steps=200,
            eval_frequency=200,
            optimizer={**ADAM, "learn_rate": falling},
        )
    )
    # Evaluate on all docs, since the score of a few is too uncertain.
    everything = {"corpora.dev.limit": 0}
    worlds = (1, 2)
    runs.start(
        [
            {"world": world, "runs": [runs.run("sampled", world, overrides=everything)]}
            for world in worlds
        ]
    )
    for world in worlds:
        assert runs.of("sampled", world)[0]["performance"]["cats_score"] > 0.8
    assert len({result["checksum"] for result in runs.of("sampled", 2)}) == 1


def test_a_transformer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("spacy_transformers")
    # Use the real package, and not the stand-in of tests/stand_ins.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    from tests.pipeline.small_pipelines import TRANSFORMER_WIDTH, save_small_transformer

    (tmp_path / "encoder").mkdir()
    save_small_transformer(tmp_path / "encoder")
    runs = Runs(tmp_path)
    listener = {
        "@architectures": "spacy-transformers.TransformerListener.v1",
        "grad_factor": 1.0,
        "upstream": "transformer",
        "pooling": {"@layers": "reduce_mean.v1"},
    }
    latent = {
        "@architectures": "spacy-latent.LatentTok2Vec.v1",
        "tok2vec": listener,
        "width": TRANSFORMER_WIDTH,
    }
    pipeline = {
        "transformer": {
            "model": {
                "@architectures": "spacy-transformers.TransformerModel.v3",
                "name": str(tmp_path / "encoder"),
            }
        },
        "latent_encoder": {"model": latent},
        "tagger": stock(
            "tagger",
            {
                "@architectures": "spacy-latent.LatentListener.v1",
                "width": TRANSFORMER_WIDTH,
            },
        ),
        "ner": stock("ner", listener),
    }
    runs.configs["transformer"] = str(
        write_config(tmp_path / "transformer.cfg", pipeline, tmp_path / "train.spacy", max_steps=7)
    )
    into = runs.output("transformer.2")
    part = {"training.max_steps": 4}
    runs.start(
        [
            {
                "world": 2,
                "runs": [
                    runs.run("transformer", 2, output=runs.output("whole")),
                    runs.run(
                        "part", 2, "transformer", output=into, overrides=part, checkpoint_every=2
                    ),
                    runs.run("resumed", 2, "transformer", output=into, resume=True),
                ],
            }
        ]
    )
    whole = runs.of("transformer", 2)
    assert len({result["checksum"] for result in whole}) == 1
    assert runs.of("resumed", 2)[0]["checksum"] == whole[0]["checksum"]
    moved = zip(runs.weights("transformer", 2), runs.weights("part", 2))
    assert sum(float(np.abs(a - b).max()) > 1e-4 for a, b in moved) > 20


def test_torchrun_starts_all_ranks_again_when_one_is_killed(tmp_path: Path) -> None:
    save_corpus(tmp_path / "train.spacy")
    pipeline = {"tok2vec": {"model": TOK2VEC}, "tagger": stock("tagger", SHARED)}
    config = write_config(
        tmp_path / "small.cfg",
        pipeline,
        tmp_path / "train.spacy",
        max_steps=600,
        eval_frequency=50,
        dropout=0.1,
    )
    output = tmp_path / "output"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--max-restarts", "1", "-m", "spacy_latent.distributed", "train", str(config)),
        *("--output", str(output), "--resume", "--checkpoint-every", "20"),
    ]
    log = tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open(log, "w") as file:
        started = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    end = time.monotonic() + 120
    while time.monotonic() < end and not (output / "checkpoints" / "step-40").exists():
        time.sleep(0.05)
    ranks = [pid for pid in children_of(started.pid) if pid != started.pid]
    os.kill(ranks[-1], signal.SIGKILL)
    assert started.wait(timeout=200) == 0, log.read_text()
    assert "Resuming after" in log.read_text()
    assert (output / "checkpoints" / "step-600").exists()


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]
