"""The options in the table of docs/reports.md exist."""

import re
from pathlib import Path

import pytest
from spacy.cli._util import app
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401

PAGE = (Path(__file__).parents[2] / "docs" / "reports.md").read_text(encoding="utf8")


@pytest.mark.parametrize(
    "command",
    ["report", "evaluate stats", "evaluate scores", "evaluate compare", "control", "debug"],
)
def test_the_options_of_the_page_exist(command: str) -> None:
    known = CliRunner().invoke(app, ["latent", *command.split(), "--help"]).output
    for line in re.findall(rf"spacy latent {command} (.*)", PAGE):
        for option in re.findall(r"--[a-z][a-z-]*(?![.\w])", line):
            assert option in known, option
    if command == "report":
        for option in re.findall(r"^\| `(--[a-z-]+)", PAGE, re.M):
            assert option in known, option


def test_its_pictures_are_there() -> None:
    for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / name).is_file()
