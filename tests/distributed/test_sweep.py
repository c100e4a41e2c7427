"""Sweeps: each cell of a grid is trained once, even if workers die."""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spacy_latent.cli.app import latent_cli
from spacy_latent.distributed import trial
from spacy_latent.distributed.sweep import (
    Cell,
    cells_of,
    markdown,
    read_grid,
    sweep,
    table,
)
from spacy_latent.distributed.sweep_study import open_study
from spacy_latent.errors import LatentError
from tests.distributed.trainings import save_corpus, write_config
from tests.pipeline.small_pipelines import TOK2VEC, stock

pytest.importorskip("optuna")
GRID = {"training.dropout": [0.1, 0.5], "size": {"small": {"a.width": 8}, "large": {"a.width": 9}}}
can_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


@pytest.fixture
def cells(tmp_path: Path) -> list[Cell]:
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(GRID))
    return cells_of(read_grid(path), 2)


def noting(path: Path, *, seconds: float = 0.0) -> Callable[[Cell, int], dict[str, float]]:
    """Return a training that only writes the name of its cell to a file."""

    def train(cell: Cell, number: int) -> dict[str, float]:
        with path.open("a") as file:
            file.write(f"{cell.name}\n")
        time.sleep(seconds)
        return {"score": cell.overrides["a.width"] + cell.seed, "other": 1.0}

    return train


def test_a_grid_has_all_combinations_with_their_overrides(cells: list[Cell]) -> None:
    assert len(cells) == len({cell.name for cell in cells}) == 8
    assert [cell.seed for cell in cells] == [0] * 4 + [1] * 4
    assert cells[3].settings == {"training.dropout": "0.5", "size": "large"}
    assert cells[3].overrides == {"training.seed": 0, "training.dropout": 0.5, "a.width": 9}


def test_a_sweep_trains_each_cell_once_and_makes_a_table(cells: list[Cell], tmp_path: Path) -> None:
    study, notes = tmp_path / "sweep.log", tmp_path / "notes"
    sweep(cells, study, noting(notes))
    sweep(cells, study, noting(notes))
    assert notes.read_text().splitlines() == [cell.name for cell in cells]
    rows = table(open_study(study, "", cells), cells)
    assert [row["seeds"] for row in rows] == [2] * 4
    assert rows[1]["settings"] == {"training.dropout": "0.1", "size": "large"}
    assert rows[1]["scores"]["score"] == {"mean": 9.5, "deviation": statistics.stdev([9, 10])}
    lines = markdown(rows).splitlines()
    assert lines[0] == "| training.dropout | size | seeds | score | other |"
    assert lines[3] == "| 0.1 | large | 2 | 9.5000 ± 0.7071 | 1.0000 ± 0.0000 |"


def test_a_training_that_fails_is_told_and_not_tried_again(
    cells: list[Cell], tmp_path: Path
) -> None:
    study, tried = tmp_path / "sweep.log", []

    def failing(cell: Cell, number: int) -> dict[str, float]:
        tried.append(cell.name)
        if cell.settings["size"] == "large":
            raise ValueError("too large")
        return {"score": 1.0}

    sweep(cells, study, failing)
    sweep(cells, study, failing)
    assert tried == [cell.name for cell in cells]
    rows = table(open_study(study, "", cells), cells)
    assert [(row["seeds"], row["failed"], row["left"]) for row in rows] == [
        (2, 0, 0),
        (0, 2, 0),
    ] * 2
    assert "0, 2 failed" in markdown(rows)


def test_a_study_of_something_else_is_refused(cells: list[Cell], tmp_path: Path) -> None:
    open_study(tmp_path / "sweep.log", "a", cells)
    for identity, others in (("b", cells), ("a", cells[:-1])):
        with pytest.raises(LatentError, match="config"):
            open_study(tmp_path / "sweep.log", identity, others)


@pytest.mark.parametrize("content", ["a,b\n1,2\n", '{"rows": 1}\n', "", b"\xff\xfe"])
def test_a_file_that_is_no_study_is_left_as_it_is(
    cells: list[Cell], tmp_path: Path, content: str | bytes
) -> None:
    path = tmp_path / "sv.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if not content:
        open_study(path, "", cells)
        return
    before = path.read_bytes()
    with pytest.raises(LatentError, match=r"sv.csv"):
        open_study(path, "", cells)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("name", "given"), [("grid.json", "grid.json"), ("notes.md", "g.yaml")])
def test_the_table_replaces_no_other_file(name: str, given: str, tmp_path: Path) -> None:
    (tmp_path / given).write_text('{"training.dropout": [0.1]}')
    (tmp_path / "config.cfg").write_text("[training]\n")
    (tmp_path / name).touch()
    before = (tmp_path / name).read_bytes()
    study = tmp_path / f"{Path(name).stem}.log"
    arguments = ["sweep", tmp_path / "config.cfg", "--grid", tmp_path / given, "--study", study]
    for _ in range(2):
        done = CliRunner().invoke(latent_cli, list(map(str, arguments)))
        assert done.exit_code == 1 and name in "".join(done.output.split())
        assert (tmp_path / name).read_bytes() == before
        if name == given:
            # The study exists already, as if it had begun with another name of the grid.
            study.touch()


def test_a_study_that_cannot_be_written_is_told(cells: list[Cell], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "sweep.log"):
        with pytest.raises(LatentError, match="written"):
            open_study(path, "", cells)


@can_fork
def test_workers_at_once_share_the_cells(cells: list[Cell], tmp_path: Path) -> None:
    study, notes = tmp_path / "sweep.log", tmp_path / "notes"
    children = []
    for _ in range(3):
        children.append(os.fork())
        if not children[-1]:
            try:
                sweep(cells, study, noting(notes, seconds=0.05), beat=5.0)
            finally:
                os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    assert sorted(notes.read_text().splitlines()) == sorted(cell.name for cell in cells)
    assert all(row["seeds"] == 2 for row in table(open_study(study, "", cells), cells))


@can_fork
def test_the_cell_of_a_worker_that_is_killed_is_run_again(
    cells: list[Cell], tmp_path: Path
) -> None:
    study, notes = tmp_path / "sweep.log", tmp_path / "notes"
    train = noting(notes)

    def killed(cell: Cell, number: int) -> dict[str, float]:
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return train(cell, number)

    child = os.fork()
    if not child:
        sweep(cells, study, killed, beat=0.05)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    # No other worker takes its cell as long as it may be alive.
    sweep(cells, study, train, beat=1000.0, wait=False)
    assert len(notes.read_text().splitlines()) == 7
    time.sleep(0.4)
    sweep(cells, study, train, beat=0.05)
    assert sorted(notes.read_text().splitlines()) == sorted(cell.name for cell in cells)


@can_fork
def test_a_training_ends_with_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "SECONDS", 0.01)
    reader, writer = os.pipe()
    worker = os.fork()
    if not worker:
        me = os.getpid()
        if not os.fork():
            os.write(writer, b"begun")
            trial.watch(me)
        time.sleep(60)
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 5) == b"begun"
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    # The pipe ends, so the training that held it open has ended.
    assert os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.parametrize(
    "grid",
    ["[1]", "{}", '{"a": 1}', '{"a": []}', '{"a": {"b": 1}}', "{", '{"a": {}}', "1: [2]"],
)
def test_a_grid_that_is_none_is_refused(grid: str, tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text(grid)
    with pytest.raises(LatentError, match="object"):
        read_grid(tmp_path / "grid.json")


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"training.seed": [7, 8]}, "'training.seed'.*--seeds"),
        ({"a": {"b": {"training.seed": 7}}}, "'a'.*training.seed.*--seeds"),
        ({"x.y": [1, 2], "a": {"b": {"x.y": 3}}}, "'x.y'.*'a'"),
        # spaCy reads both as true, and one would take the place of the other.
        ({"x.y": [True, "true", False]}, "'x.y'.*equal"),
    ],
)
def test_a_grid_that_would_not_do_what_it_says_is_refused(
    grid: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    with pytest.raises(LatentError, match=said):
        read_grid(tmp_path / "grid.json")


@pytest.mark.parametrize("grid", ["x.y: [2024-01-01]", "a: {b: {x.y: 2024-01-01}}"])
def test_a_date_of_yaml_is_refused_before_the_first_training(grid: str, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(grid)
    with pytest.raises(LatentError, match="quotation marks"):
        read_grid(tmp_path / "grid.yaml")


@pytest.mark.parametrize("name", ["cell", "worker", "token", "scores", "error"])
def test_a_setting_may_be_called_as_what_the_journal_notes(name: str, tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text(json.dumps({name: {"a": {"x.y": 1}, "b": {"x.y": 2}}}))
    cells = cells_of(read_grid(tmp_path / "grid.json"), 1)
    study = tmp_path / "sweep.log"
    sweep(cells, study, lambda cell, number: {"score": float(cell.overrides["x.y"])}, wait=False)
    rows = table(open_study(study, "", cells), cells)
    assert [(row["settings"], row["seeds"], row["failed"]) for row in rows] == [
        ({name: "a"}, 1, 0),
        ({name: "b"}, 1, 0),
    ]
    assert [row["scores"]["score"]["mean"] for row in rows] == [1.0, 2.0]


def test_the_command_trains_a_config(tmp_path: Path) -> None:
    save_corpus(tmp_path / "corpus.spacy", count=6)
    config = write_config(
        tmp_path / "config.cfg",
        {"tagger": stock("tagger", TOK2VEC)},
        tmp_path / "corpus.spacy",
        max_steps=2,
        eval_frequency=1,
    )
    (tmp_path / "grid.json").write_text('{"training.dropout": [0.1], "wrong": {"a": {}}}')
    (tmp_path / "misspelt.json").write_text('{"training.droput": [0.1]}')
    study = tmp_path / "sweep.log"
    arguments: list[Any] = ["sweep", config, "--grid", tmp_path / "grid.json", "--study", study]
    arguments += ["--seeds", 1, "--training.max_steps", 1]
    for more in (["--grid", tmp_path / "misspelt.json"], ["--training.droput", 0.1]):
        refused = CliRunner().invoke(latent_cli, list(map(str, [*arguments, *more])))
        assert refused.exit_code == 1 and not study.exists()
        assert "Did you mean dropout?" in " ".join(refused.output.split())
    (tmp_path / "absent.json").write_text('{"corpora.train.path": ["none.spacy"]}')
    for more in (["--grid", tmp_path / "absent.json"], ["--corpora.dev.path", "none.spacy"]):
        refused = CliRunner().invoke(latent_cli, list(map(str, [*arguments, *more])))
        assert refused.exit_code == 1 and not study.exists()
        assert "none.spacy does not exist" in " ".join(refused.output.split())
    occupied = CliRunner().invoke(latent_cli, list(map(str, [*arguments, "--output", config])))
    assert occupied.exit_code == 1 and not study.exists()
    seeded = CliRunner().invoke(latent_cli, list(map(str, [*arguments, "--training.seed", 3])))
    assert seeded.exit_code == 1 and not study.exists()
    assert "give --seeds" in " ".join(seeded.output.split())
    done = CliRunner().invoke(latent_cli, list(map(str, arguments)))
    log = tmp_path / "sweep-models" / "0000" / "log.txt"
    assert done.exit_code == 0, done.output + (log.read_text() if log.exists() else "")
    (row,) = json.loads((tmp_path / "sweep.json").read_text())
    assert row["seeds"] == 1 and row["scores"]["score"]["deviation"] is None
    assert 0 <= row["scores"]["score"]["mean"] <= 1
    assert "| 0.1 | a | 1 |" in (tmp_path / "sweep.md").read_text() + done.output
    assert (tmp_path / "sweep-models" / "0000" / "model-best" / "meta.json").exists()
