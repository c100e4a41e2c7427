"""Annotation of corpora by actors of Ray Data. Most tests are skipped if Ray is not installed.

Tests that kill actors take minutes: SPACY_LATENT_ALL_FAULTS=1 python -m pytest THIS_FILE
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spacy_latent.cli.app import latent_cli
from spacy_latent.distributed.annotate import annotate
from spacy_latent.distributed.ray_cluster import connected, import_ray
from spacy_latent.distributed.ray_data import annotate_with_ray
from spacy_latent.errors import LatentError
from tests.distributed.annotating import (
    CODE,
    check_whole,
    prepare,
    rows_of,
    save_lines,
    save_model,
    texts,
)

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
ROOT = Path(__file__).parents[2]
with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
all_faults = pytest.mark.skipif(
    not os.environ.get("SPACY_LATENT_ALL_FAULTS"), reason="SPACY_LATENT_ALL_FAULTS is not set"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "pipeline")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster of three CPUs, whose processes can import the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        # By default, Ray's workers have a lower priority than other processes.
        patch.setenv("RAY_worker_niceness", "0")
        ray = import_ray(None, "")
        with connected(ray, None, cpus=3):
            yield ray


# ---------------------------------------------------------------- without Ray


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_it_says_what_to_install(model: Path, tmp_path: Path) -> None:
    corpus = save_lines(tmp_path / "corpus.jsonl", texts(2))
    with pytest.raises(LatentError, match=r"spacy-latent\[ray\]"):
        annotate_with_ray(model, corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers.*0"),
        ({"workers": 3, "most_workers": 2}, "workers.*2.*3"),
        ({"threads": 0}, "threads.*0"),
        ({"gpus": -0.5}, "GPUs.*-0.5"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    model: Path, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(LatentError, match=words):
        annotate_with_ray(model, tmp_path / "none.txt", tmp_path / "out", **options)


def test_standard_input_is_for_one_machine(model: Path, tmp_path: Path) -> None:
    with pytest.raises(LatentError, match="standard input"):
        annotate_with_ray(model, "-", tmp_path / "out")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "spark"], "--engine is 'spark'"),
        (["--engine", "ray", "--gpu-id", "0"], "--gpus"),
        (["--gpus", "0.5"], "--engine ray"),
        (["--max-workers", "2"], "--engine ray"),
        (["--address", "auto"], "--engine ray"),
    ],
)
def test_the_command_refuses_options_of_the_other_engine(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    said: str,
) -> None:
    arguments = ["annotate", str(model), str(CODE), str(tmp_path / "out"), *words]
    result = CliRunner().invoke(latent_cli, arguments)
    assert result.exit_code == 1 and not (tmp_path / "out").exists()
    assert said in result.output + capsys.readouterr().err


# ---------------------------------------------------------------- with Ray


@with_ray
@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "docbin"])
def test_actors_do_what_one_process_does(
    ray: Any, model: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [*texts(30), "bad", ""]
    save_lines(tmp_path / "corpus.jsonl", given)
    # Actors have another working directory, so relative paths must be resolved before.
    monkeypatch.chdir(tmp_path)
    seen = []
    done = annotate_with_ray(
        model,
        "corpus.jsonl",
        Path("several"),
        rows=8,
        workers=2,
        form=form,
        prepare=prepare,
        prepare_with=(tmp_path,),
        progress=seen.append,
    )
    assert done == annotate(model, "corpus.jsonl", Path("alone"), rows=8, form=form)
    assert (done.rows, done.failed, done.shards) == (32, 1, 4)
    assert len(seen) == 4 and seen[-1] == done
    files = sorted(path.name for path in (tmp_path / "alone").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "several").iterdir())
    if form == "parquet":
        check_whole(tmp_path / "several", given)
        for path in (tmp_path / "alone").glob("*.parquet"):
            assert pq.read_table(path).equals(pq.read_table(tmp_path / "several" / path.name))
    (tmp_path / "several" / files[1]).unlink()
    again = annotate_with_ray(
        model, "corpus.jsonl", Path("several"), rows=8, form=form, prepare=prepare
    )
    assert (again.shards, again.skipped) == (1, 3)


@with_ray
@pytest.mark.slow
def test_what_has_no_room_is_refused_with_the_reason(ray: Any, model: Path, tmp_path: Path) -> None:
    """A request for more resources than the cluster has would wait for ever."""
    corpus = save_lines(tmp_path / "corpus.jsonl", texts(2))
    for options, words in (
        ({"workers": 3}, "3 CPUs.*2 workers"),
        ({"workers": 1, "threads": 3}, "CPUs"),
        ({"workers": 2, "gpus": 0.5}, "0.*Ray"),
    ):
        with pytest.raises(LatentError, match=words):
            annotate_with_ray(model, corpus, tmp_path / "out", **options)  # type: ignore[arg-type]


@with_ray
@pytest.mark.slow
def test_an_error_of_an_actor_is_told_as_it_is(ray: Any, model: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"body": texts(4)}), corpus)
    with pytest.raises(LatentError, match=r"corpus.parquet.*'text'.*body"):
        annotate_with_ray(model, corpus, tmp_path / "out", rows=2, prepare=prepare)
    # Ray would take the exit of a process for a crash, and restart it for ever.
    lines = save_lines(tmp_path / "corpus.jsonl", texts(2))
    with pytest.raises(LatentError, match="--code"):
        annotate_with_ray(model, lines, tmp_path / "other", prepare=sys.exit, prepare_with=(1,))


@with_ray
@pytest.mark.slow
def test_a_cluster_that_is_begun_here_keeps_to_this_machine(ray: Any) -> None:
    (node,) = ray.nodes()
    assert node["NodeManagerAddress"] == "127.0.0.1"


@with_ray
@all_faults
@pytest.mark.parametrize("when", ["while it predicts", "while it writes", "before the name"])
def test_an_actor_that_is_killed_loses_nothing_and_doubles_nothing(
    ray: Any, model: Path, tmp_path: Path, when: str
) -> None:
    given = texts(30)
    if when == "while it predicts":
        given[13] = "This is where to kill."
    corpus = save_lines(tmp_path / "corpus.jsonl", given)
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    how: dict[str, Any] = {"prepare": prepare, "prepare_with": (deaths, when)}
    done = annotate_with_ray(model, corpus, tmp_path / "out", rows=10, workers=2, **how)
    assert [path.name for path in deaths.iterdir()] == [when]
    assert (done.rows, done.shards) == (30, 3)
    check_whole(tmp_path / "out", given)


@with_ray
@all_faults
def test_a_shard_of_which_actors_die_is_given_up_and_the_others_are_done(
    ray: Any, model: Path, tmp_path: Path
) -> None:
    given = [*texts(4), "kill", *texts(3)]
    corpus = save_lines(tmp_path / "corpus.jsonl", given)
    how: dict[str, Any] = {"prepare": prepare, "prepare_with": (None, "")}
    with pytest.raises(LatentError, match=r"3.*corpus\.jsonl-00001"):
        annotate_with_ray(model, corpus, tmp_path / "out", rows=4, workers=2, **how)
    assert [row.text for row in rows_of(tmp_path / "out")] == given[:4]
    # Only temporary files of the killed actors may be left, which readers skip.
    assert {path.suffix for path in (tmp_path / "out").glob(".*")} <= {".tmp"}


@with_ray
@all_faults
def test_more_actors_are_taken_up_to_a_bound(ray: Any, model: Path, tmp_path: Path) -> None:
    """A second actor starts while the first is busy, and no third one.

    Each actor leaves a note, and writes slowly.
    """
    corpus = save_lines(tmp_path / "corpus.jsonl", texts(60))
    notes = tmp_path / "notes"
    notes.mkdir()
    done = annotate_with_ray(
        model,
        corpus,
        tmp_path / "out",
        rows=1,
        workers=1,
        most_workers=2,
        prepare=_note_and_slow_down,
        prepare_with=(notes,),
    )
    assert done.rows == 60 and len(list(notes.iterdir())) == 2
    check_whole(tmp_path / "out", texts(60))


def _note_and_slow_down(notes: Path) -> None:
    import time

    from spacy_latent.distributed import annotate as module

    prepare(notes.parent)
    (notes / str(os.getpid())).touch()
    replace = os.replace

    def slowly(source: Any, target: Any) -> None:
        time.sleep(0.5)
        replace(source, target)

    module.os.replace = slowly  # type: ignore[attr-defined]
