"""Output files of commands are checked before the work, and written as a whole."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import spacy
import srsly
from spacy.tokens import DocBin
from typer.testing import CliRunner

from spacy_latent.cli import calibrate
from spacy_latent.cli.commands import latent_cli
from spacy_latent.cli.output import check_output, write_json, write_page
from spacy_latent.corpora.standard_streams import prints_unicode, written_out


@contextmanager
def full_disk() -> Iterator[None]:
    """Limit the size of files to 1,000 bytes."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


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
    # An error that occurs later also ends without a traceback.
    with pytest.raises(SystemExit):
        write_page(tmp_path / name, "page")
    assert "cannot be written" in capsys.readouterr().err


def test_a_dash_and_a_file_that_is_read_are_no_places_to_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dev.spacy").touch()
    Path("link.spacy").symlink_to("dev.spacy")
    for output, read in [("-", "dev.spacy"), ("dev.spacy", tmp_path / "link.spacy")]:
        with pytest.raises(SystemExit):
            check_output(Path(output), read)
    # Others are: a file of that name in a folder, and one beside standard input.
    check_output(Path("new/-"), "dev.spacy")
    check_output(Path("page.html"), "-")


def test_figures_that_json_lacks_are_null(tmp_path: Path) -> None:
    write_json(tmp_path / "figures.json", {"a": [float("nan"), 1.0], "b": float("inf")})
    assert srsly.read_json(tmp_path / "figures.json") == {"a": [None, 1.0], "b": None}


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


def test_on_a_full_disk_the_file_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for before in (None, "of before"):
        if before is not None:
            path.write_text(before)
        for page in ("x" * 5000, b"x" * 5000):
            with full_disk(), pytest.raises(SystemExit):
                write_page(path, page)
        assert [one.name for one in tmp_path.iterdir()] == ["page.html"] * (before is not None)
    assert path.read_text() == "of before"


def test_on_a_full_disk_the_pipeline_stays_as_it_was(tmp_path: Path) -> None:
    first, second = spacy.blank("en"), spacy.blank("de")
    for nlp in (first, second):
        nlp.add_pipe("sentencizer")
        nlp.vocab.strings.add("x" * 2000)
    output = tmp_path / "model"
    calibrate.save(first, output)
    (output / "notes.txt").write_text("of the user")
    with full_disk(), pytest.raises(OSError):
        calibrate.save(second, output)
    assert spacy.load(output).lang == "en"
    calibrate.save(second, output)
    assert spacy.load(output).lang == "de"
    assert (output / "notes.txt").read_text() == "of the user"
    assert not [one for one in output.iterdir() if one.name.startswith(".")]


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions and links")
def test_links_permissions_and_pipes_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, link, pipe = (tmp_path / name for name in ("page.html", "link.html", "pipe.html"))
    page.write_text("of before")
    page.chmod(0o640)
    link.symlink_to(page.name)
    write_page(link, "new")
    assert link.is_symlink() and page.read_text() == "new"
    assert page.stat().st_mode & 0o777 == 0o640
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_page(pipe, "piped")
    reader.join(30)
    assert found == ["piped"] and pipe.is_fifo()

    def refuse(*_: object) -> None:
        raise PermissionError

    # The file is written in place if its directory is read-only.
    monkeypatch.setattr(os, "replace", refuse)
    write_page(page, "newer")
    assert page.read_text() == "newer" and len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "listops", "FILE/a.tsv", "--sizes", "3"],
        ["incomplete", "CORPUS", "FILE/a.spacy", "--keep", "0.5"],
        ["control", "CORPUS", "--output", "FILE/a"],
    ],
)
def test_a_file_in_the_place_of_a_folder_is_told(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nlp = spacy.blank("en")
    doc = nlp.make_doc("a b")
    doc.set_ents([])
    DocBin(docs=[doc]).to_disk(tmp_path / "c.spacy")
    places = {"FILE": str(tmp_path / "file"), "CORPUS": str(tmp_path / "c.spacy")}
    for name, place in places.items():
        arguments = [argument.replace(name, place) for argument in arguments]
    done = CliRunner().invoke(latent_cli, arguments)
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
    assert "is a file" in " ".join(done.output.split())


def test_what_does_not_fit_on_the_disk_is_told(tmp_path: Path) -> None:
    for name, option in (("a.tsv", "200"), ("folder", "200,1,1")):
        with full_disk():
            arguments = ["generate", "listops", str(tmp_path / name), "--sizes", option]
            done = CliRunner().invoke(latent_cli, arguments)
        assert done.exit_code == 1 and isinstance(done.exception, SystemExit)
        assert "could not be written" in " ".join(done.output.split())


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--help"], ["evaluate", "compare", "--help"]])
def test_a_full_standard_output_is_told(arguments: list[str], unbuffered: str) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs a device that is always full")
    command = [sys.executable, "-m", "spacy_latent", *arguments]
    with full.open("w") as output:
        done = subprocess.run(
            command,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: standard output") and "Traceback" not in done.stderr


def test_errors_of_other_files_and_of_closed_pipes_remain() -> None:
    for error in (
        OSError(errno.ENOSPC, "of another file"),
        OSError(errno.EPIPE, "of a pipe"),
        PermissionError(errno.EACCES, "of a named file", "page.html"),
    ):
        with pytest.raises(OSError) as caught, written_out():
            raise error
        assert caught.value is error


def test_the_error_of_a_named_file_remains_without_a_standard_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = PermissionError(errno.EACCES, "of a named file", "page.html")
    stream = (tmp_path / "closed").open("w")
    stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(OSError) as caught, written_out():
        raise error
    assert caught.value is error


def test_a_closed_standard_output_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with written_out():
        assert not prints_unicode()
