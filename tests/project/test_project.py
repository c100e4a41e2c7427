"""project.yml: every workflow's commands, inputs and configs fit together."""

from pathlib import Path

import pytest
import srsly
from typer.testing import CliRunner
from weasel.cli.main import app

ROOT = Path(__file__).parents[2]
PROJECT = srsly.read_yaml(ROOT / "project.yml")
COMMANDS = {command["name"]: command for command in PROJECT["commands"]}


def filled(path: str) -> str:
    for name, value in PROJECT["vars"].items():
        path = path.replace(f"${{vars.{name}}}", str(value))
    return path


@pytest.mark.parametrize("workflow", PROJECT["workflows"])
def test_each_step_finds_what_it_needs(workflow):
    made: set[str] = set()
    for name in PROJECT["workflows"][workflow]:
        command = COMMANDS[name]
        for needed in command.get("deps", []):
            needed = filled(needed)
            assert needed in made or (ROOT / needed).is_file(), f"{name} needs {needed}"
        made |= {filled(output) for output in command.get("outputs", [])}


def test_the_demo_runs_dry():
    result = CliRunner().invoke(app, ["run", "demo", str(ROOT), "--dry", "--force"])
    assert result.exit_code == 0, result.output
    assert "configs/demo.cfg" in result.output


def test_assets_have_checksums_or_are_checked_when_read():
    from spacy_latent.corpora import (
        emerging_entities,
        english_web_treebank,
        sentence_polarity,
    )

    sources = [
        source
        for corpus in (sentence_polarity, emerging_entities, english_web_treebank)
        for source in corpus.SOURCES.values()
    ]
    checked = {source.archive or source.name for source in sources}
    assert {Path(asset["dest"]).name for asset in PROJECT["assets"]} == checked
