"""Tables can include recorded figures of earlier trainings, which are marked as recorded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from spacy_latent.errors import LatentError
from spacy_latent.listops.assessment import MEANINGS
from spacy_latent.listops.record import add_recorded, recorded_runs
from spacy_latent.listops.tables import by_depth, overview


def figures() -> dict[str, Any]:
    def part(depth: int) -> dict[str, Any]:
        shares = {"accuracy": [0.9, 0.8, 1.0], "whole trees": [0.5, 0.4, 0.6]}
        group = {"expressions": 100, "models": {"it": shares}, "controls": {}}
        return {
            "expressions": 100,
            "tokens": [3, 9],
            "depths": [depth],
            "by_depth": {"all": group},
            "by_operator": {},
        }

    return {"meanings": MEANINGS, "corpora": {"test": part(1), "depth6": part(6)}}


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf8")
    return path


def run(seed: int, digest: str = "now", **scores: float) -> dict[str, Any]:
    named = {key.replace("_depth6", " depth6"): value for key, value in scores.items()}
    return {"seed": seed, "digest": digest, "scores": named}


def test_means_over_seeds_stand_below_the_model(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "runs.jsonl",
        run(0, "before", cats_micro_f=0.0),
        run(0, cats_micro_f=0.2),
        run(0, cats_micro_f=0.4, whole=0.1, whole_depth6=0.0, accuracy_depth6=0.3),
        {**run(2, cats_micro_f=0.0), "settings": {"training.max_steps": 1}},
        run(1, cats_micro_f=0.6, whole=0.3, whole_depth6=0.5),
    )
    found = figures()
    add_recorded(found, "heads", recorded_runs(path))
    rows = {row.name: row.shares for row in overview(found, "test").rows}
    assert list(rows) == ["it", "heads (recorded, 2 seeds)"]
    (accuracy, whole) = rows["heads (recorded, 2 seeds)"]
    assert accuracy and accuracy[0] == pytest.approx(0.5) and math.isnan(accuracy[1])
    assert whole and whole[0] == pytest.approx(0.2)
    deep = {
        table.caption: {row.name: row.shares for row in table.rows} for table in by_depth(found)
    }
    first, other = deep["whole trees, by depth"]["heads (recorded, 2 seeds)"]
    assert first and other and other[0] == pytest.approx(0.25)
    # Only one of the two runs has an accuracy on deep lists.
    assert deep["accuracy, by depth"]["heads (recorded, 2 seeds)"][1] is None


def test_what_has_no_name_is_of_the_test_set_wherever_that_stands(tmp_path: Path) -> None:
    path = lines(tmp_path / "runs.jsonl", run(0, cats_micro_f=0.4, accuracy_depth6=0.3))
    found = figures()
    found["corpora"] = dict(reversed(found["corpora"].items()))
    add_recorded(found, "heads", recorded_runs(path))
    for corpus, expected in (("depth6", 0.3), ("test", 0.4)):
        shares = found["corpora"][corpus]["by_depth"]["all"]["recorded"]["heads (recorded, 1 seed)"]
        assert shares["accuracy"][0] == expected
    # Recorded figures are refused if they belong to none of the corpora.
    found = figures()
    found["corpora"] = {"demo": found["corpora"]["test"]}
    with pytest.raises(LatentError, match="demo"):
        add_recorded(found, "heads", recorded_runs(path))


@pytest.mark.parametrize(
    "scores, told", [(None, "scores.*None"), ([1], "scores"), ({"whole": None}, "'whole'")]
)
def test_scores_that_are_no_numbers_are_refused(tmp_path: Path, scores: Any, told: str) -> None:
    path = lines(tmp_path / "runs.jsonl", run(0, whole=1.0), run(1) | {"scores": scores})
    with pytest.raises(LatentError, match=rf"line 2.*{told}"):
        recorded_runs(path)


def test_a_directory_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(LatentError, match="directory"):
        recorded_runs(tmp_path)


def test_what_says_nothing_of_the_corpora_is_refused(tmp_path: Path) -> None:
    runs = recorded_runs(lines(tmp_path / "runs.jsonl", run(0, ents_f=0.5)))
    with pytest.raises(LatentError, match=r"heads.*test, depth6"):
        add_recorded(figures(), "heads", runs)
    with pytest.raises(LatentError, match=r"line 1.*KeyError"):
        recorded_runs(lines(tmp_path / "other.jsonl", {"seed": 0, "digest": ""}))
    with pytest.raises(LatentError, match=r"line 1.*JSONDecodeError"):
        (tmp_path / "text.jsonl").write_text("seed 0\n", encoding="utf8")
        recorded_runs(tmp_path / "text.jsonl")
    with pytest.raises(LatentError, match="recorded"):
        (tmp_path / "empty.jsonl").touch()
        recorded_runs(tmp_path / "empty.jsonl")
