"""Conventions that all commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spacy
from typer.main import get_command
from typer.testing import CliRunner

from spacy_latent.cli import compare, listops, pairs, pipelines
from spacy_latent.cli.app import latent_cli
from spacy_latent.cli.messages import fail
from tests.cli.commands import latent, said


def commands(group: Any, path: str = "latent") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = {
    **dict(commands(get_command(latent_cli))),
    **dict(commands(get_command(listops.app), "listops")),
}


def test_the_short_options_mean_the_same_everywhere() -> None:
    assert len(COMMANDS) > 10
    meant: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for parameter in command.params:
            for option in parameter.opts:
                if option in ("-c", "-g"):
                    meant.setdefault(option, set()).add(parameter.name)
    assert meant == {"-c": {"component"}, "-g": {"gpu_id"}}


# Commands that load no pipeline of the user.
WITHOUT_CODE = {
    "latent demo",
    "latent generate listops",
    "latent incomplete",
    "listops generate",
    "listops report",
}


@pytest.mark.parametrize("path", COMMANDS)
def test_who_loads_a_pipeline_can_import_what_it_is_made_of(path: str) -> None:
    opts = [option for parameter in COMMANDS[path].params for option in parameter.opts]
    assert ("--code" in opts) != (path in WITHOUT_CODE)


def test_evaluations_are_in_one_group_and_under_their_old_names() -> None:
    group: Any = get_command(latent_cli)
    for name, command in group.commands["evaluate"].commands.items():
        before = group.commands[name]
        assert before.hidden and before.callback is not None
        assert [each.opts for each in before.params] == [each.opts for each in command.params]
    shown = CliRunner().invoke(latent_cli, ["--help"]).output
    assert "evaluate" in shown and "attachment" not in shown
    # The old name also writes errors to standard error, so that standard output is only JSON.
    old = CliRunner().invoke(latent_cli, ["compare", "none.json"])
    assert old.exit_code == 1 and old.stdout == "" and "none.json" in old.stderr


@pytest.mark.parametrize("path", COMMANDS)
def test_every_component_has_the_short_option(path: str) -> None:
    for parameter in COMMANDS[path].params:
        assert parameter.name != "component" or "-c" in parameter.opts


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "attachment", "model", ""],
        ["evaluate", "attachment", "", "dev.spacy"],
        ["report", "model", "dev.spacy", ""],
        ["show", "model", "text", "--code", ""],
        ["show", "model", "text", "--html="],
        ["generate", "listops", ""],
        ["annotate", "model", "texts.txt", ""],
        ["annotate", "model", "", "annotated"],
    ],
)
def test_an_empty_path_is_refused(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Path takes it for the current folder, which would be read or written."""
    monkeypatch.chdir(tmp_path)
    assert "path is empty" in said(*arguments, code=2)
    assert not list(tmp_path.iterdir())


def test_an_empty_name_is_no_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spacy.blank("en").to_disk(tmp_path)
    monkeypatch.chdir(tmp_path)
    shown = latent("show", "", "text", code=1)
    assert "no name" in shown.stderr


def test_an_empty_text_is_no_path() -> None:
    shown = latent("show", "none", "", code=1)
    assert "none" in shown.stderr


def test_why_a_command_failed_stands_on_standard_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    """Messages go to standard error, so that JSON or a drawing can be piped on."""
    with pytest.raises(SystemExit) as ended:
        fail("This cannot be", "Do that.")
    printed = capsys.readouterr()
    assert ended.value.code == 1 and printed.out == ""
    assert "This cannot be" in printed.err and "Do that." in printed.err
    for attempt in (
        lambda: pipelines.load(str(tmp_path / "none")),
        lambda: pipelines.import_code(tmp_path / "none.py"),
        lambda: compare.main([tmp_path / "none"], None, 0, True, None, -1),
        lambda: pairs.main([], tmp_path / "none.spacy", None, code=None, gpu_id=-1),
    ):
        with pytest.raises(SystemExit):
            attempt()
        printed = capsys.readouterr()
        assert printed.out == "" and "none" in printed.err


def test_what_is_no_pipeline_is_told_with_those_below_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(path: Path) -> str:
        with pytest.raises(SystemExit):
            pipelines.load(str(path))
        return " ".join(capsys.readouterr().err.split())

    assert "It has no meta.json. Give a directory that" in said(tmp_path)
    for name in ("model-last", "model-best", "seed-1/model-best", "seed-2/model-best"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "meta.json").write_text("{}")
    shown = said(tmp_path)
    assert f"Give one of those below it: {tmp_path / 'model-best'}, " in shown
    assert shown.endswith("seed-2/model-best and 1 more.")
    assert "It is a file. Give the directory" in said(tmp_path / "model-best" / "meta.json")
    # The advice follows spaCy's own message, which ends with a full stop.
    assert ". Give a directory that 'spacy train' wrote" in said(tmp_path / "none")
