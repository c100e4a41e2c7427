"""Files that commands are to write are checked before the work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spacy_latent.cli.commands import latent_cli
from spacy_latent.cli.output import check_output, write_page


@pytest.mark.parametrize(
    ("name", "said"),
    [("folder", "folder is a folder"), ("file/page.html", "cannot be written: .*file is a file")],
)
def test_a_place_that_cannot_be_written_to_ends_the_command(
    tmp_path: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        check_output(tmp_path / name)
    shown = " ".join(capsys.readouterr().err.split())
    assert re.search(said, shown)
    # An error that was not foreseen gives no traceback either.
    with pytest.raises(SystemExit):
        write_page(tmp_path / name, "page")
    assert "cannot be written" in capsys.readouterr().err


def test_what_can_be_written_is(tmp_path: Path) -> None:
    for path in (tmp_path / "new" / "deep" / "page.html", tmp_path / "page.html"):
        for text in ("first", "second"):
            check_output(path)
            write_page(path, text)
            assert path.read_text() == text
    check_output(None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "nowhere", "a text", "--html"],
        ["explain", "nowhere", "a text", "--html"],
        ["render", "nowhere", "-", "--format", "html"],
        ["report", "nowhere", "nothing.spacy"],
        ["scores", "nowhere", "nothing.spacy", "--metrics"],
        ["demo", "--html"],
        ["init", "nowhere.cfg", "--force"],
    ],
)
def test_commands_look_before_they_load_anything(arguments: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(latent_cli, [*arguments, str(tmp_path)])
    assert done.exit_code == 1 and "is a folder" in " ".join(done.output.split())
