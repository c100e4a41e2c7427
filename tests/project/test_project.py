"""The commands, inputs and configs of each workflow in project.yml fit together."""

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import srsly
from typer.testing import CliRunner
from weasel.cli.main import app

import spacy_latent.corpora
from benchmarks import compare_recipes, train_recipes

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
    """``spacy project run NAME --vars.gpu_id 0`` suffices to run all steps on a GPU."""
    running = 0
    for command in COMMANDS.values():
        for line in command["script"]:
            if re.search("evaluate compare|benchmarks recipes|spacy package", line):
                continue
            if "training/" in line or "_recipes" in line:
                running += 1
                assert "--gpu-id ${vars.gpu_id}" in line, line
    assert running > 40


def lines_of(program: str) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield each command that calls a benchmark program, with the arguments of the call."""
    for command in COMMANDS.values():
        for line in command["script"]:
            if f"benchmarks {program} " in line:
                yield command, shlex.split(filled(line))[4:]


def test_each_recipe_is_trained_into_an_output_of_its_command():
    found = 0
    for command, arguments in lines_of("train_recipes"):
        outputs = [filled(output) for output in command["outputs"]]
        for trained in train_recipes.commands(arguments):
            found += 1
            folder = trained[trained.index("--output") + 1]
            assert f"{folder}/model-best" in outputs
            assert trained[trained.index("--system.seed") + 1] == str(PROJECT["vars"]["seed"])
    assert found > 30


def test_what_is_compared_was_trained_and_has_its_metrics():
    found = list(lines_of("compare_recipes"))
    for command, arguments in found:
        *evaluations, compared = compare_recipes.commands(arguments)
        assert compared[3:] and set(compared[3:]) <= set(command["outputs"])
        assert {line[2] for line in evaluations} <= set(command["deps"])
    assert len(found) > 5


def test_a_recipe_is_trained_under_a_name_of_its_own_with_settings():
    settings = ["--paths.train", "corpus/a.spacy", "--training.max_epochs", "4"]
    first, second = train_recipes.commands(["a=ner_crf", "ner_baseline", "--seed", "2", *settings])
    options = ["--gpu-id", "-1", "--system.seed", "2", *settings]
    assert first == ["train", str(ROOT / "configs/ner_crf.cfg"), "--output", "training/a", *options]
    assert second[3:] == ["training/ner_baseline", *options]


@pytest.mark.parametrize(
    "arguments",
    [["ner_nothing"], ["a=ner_nothing"], ["--paths.train", "a", "ner_crf"], ["ner_crf", "--a"]],
)
def test_what_is_no_recipe_and_no_setting_is_refused(arguments):
    with pytest.raises(SystemExit) as refused:
        train_recipes.commands(arguments)
    assert refused.value.code == 2


def test_assets_have_checksums_or_are_checked_when_read():
    checked = set()
    for found in iter_modules(spacy_latent.corpora.__path__):
        module = import_module(f"spacy_latent.corpora.{found.name}")
        sources = getattr(module, "SOURCES", {})
        checked |= {source.archive or source.name for source in sources.values()}
    assert {Path(asset["dest"]).name for asset in PROJECT["assets"]} == checked
