"""project.yml: every workflow's commands, inputs and configs fit together."""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
import srsly
from typer.testing import CliRunner
from weasel.cli.main import app

import spacy_latent.corpora

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
            assert needed in made or (ROOT / needed).exists(), f"{name} needs {needed}"
        made |= {filled(output) for output in command.get("outputs", [])}


def test_the_demo_runs_dry():
    result = CliRunner().invoke(app, ["run", "demo", str(ROOT), "--dry", "--force"])
    assert result.exit_code == 0, result.output
    assert "configs/demo.cfg" in result.output


def test_every_step_that_runs_a_pipeline_takes_the_gpu_of_the_project():
    """``spacy project run NAME --vars.gpu_id 0`` is all that a user with a GPU says."""
    running = 0
    for command in COMMANDS.values():
        for line in command["script"]:
            if "training/" not in line or "cli.compare" in line or "benchmarks recipes" in line:
                continue
            running += 1
            assert "--gpu-id ${vars.gpu_id}" in line, line
    assert running > 40


def test_assets_have_checksums_or_are_checked_when_read():
    checked = set()
    for found in iter_modules(spacy_latent.corpora.__path__):
        module = import_module(f"spacy_latent.corpora.{found.name}")
        sources = getattr(module, "SOURCES", {})
        checked |= {source.archive or source.name for source in sources.values()}
    assert {Path(asset["dest"]).name for asset in PROJECT["assets"]} == checked
