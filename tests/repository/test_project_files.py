"""The files for releases, citations and contributors agree with the package."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import srsly

from tests.repository import release
from tests.repository.pages import PAGES, check_command, commands

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf8")


def setup() -> ConfigParser:
    found = ConfigParser()
    found.read(ROOT / "setup.cfg", encoding="utf8")
    return found


def pythons() -> list[str]:
    return re.findall(r"Python :: (3\.\d+)$", setup()["metadata"]["classifiers"], re.M)


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = srsly.read_yaml(workflow)["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


# ---------------------------------------------------------------- the version


def test_the_version_stands_in_one_place() -> None:
    assert setup()["metadata"]["version"] == "attr: spacy_latent.__version__"
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", release.version())
    assert "version" not in srsly.read_yaml(ROOT / "CITATION.cff")
    listed = list(release.releases())
    assert not listed or listed[0] == release.version()


def test_setuptools_reads_the_version_without_importing() -> None:
    from setuptools.config.setupcfg import read_configuration

    assert read_configuration(ROOT / "setup.cfg")["metadata"]["version"] == release.version()


def test_a_release_that_is_none_is_told() -> None:
    assert any("The tag is 'v9.9.9'" in problem for problem in release.problems("v9.9.9"))


def test_a_release_that_is_whole_has_no_problems(tmp_path: Path) -> None:
    (tmp_path / "spacy_latent").mkdir()
    (tmp_path / "spacy_latent" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "dist").mkdir()
    for name in ("spacy_latent-1.2.3-py3-none-any.whl", "spacy_latent-1.2.3.tar.gz"):
        (tmp_path / "dist" / name).touch()
    changes = tmp_path / "CHANGELOG.md"
    changes.write_text("# Changes\n\n## [Unreleased]\n\n## [1.2.3] - 2030-02-01\n\n- It.\n")
    assert release.problems("v1.2.3", tmp_path) == []
    changes.write_text("# Changes\n\n## [Unreleased]\n\n- It.\n")
    (problem,) = release.problems("v1.2.3", tmp_path)
    assert "CHANGELOG.md is None; expected 1.2.3" in problem


# ---------------------------------------------------------------- supported versions


def test_pages_and_workflows_name_the_pythons_of_the_setup() -> None:
    supported = pythons()
    assert setup()["options"]["python_requires"] == f">={supported[0]}"
    assert f"Python {supported[0]} to {supported[-1]}." in text("docs/limits.md")
    assert f"Python {supported[0]} or newer" in text("CONTRIBUTING.md")
    assert supported[0].replace(".", ", ") in text("Makefile")
    for job in ("unix", "windows"):
        matrix = srsly.read_yaml(ROOT / ".github/workflows/tests.yml")["jobs"][job]["strategy"]
        assert set(supported) <= set(matrix["matrix"]["python"])


def test_the_oldest_versions_are_those_of_the_setup() -> None:
    required = re.findall(r"^(\w+)>=([\d.]+)", setup()["options"]["install_requires"], re.M)
    pinned = dict(re.findall(r"^(\w+)==([\d.]+)$", text("oldest.txt"), re.M))
    assert pinned == {name: version for name, version in required if name in pinned}
    assert {"spacy", "thinc", "torch", "numba", "numpy", "typer"} == set(pinned)
    wanted = f"make test CONSTRAINTS=oldest.txt TORCH={pinned['torch']}"
    for name in ("CONTRIBUTING.md", "oldest.txt", ".github/workflows/tests.yml"):
        assert wanted in text(name), name


# ---------------------------------------------------------------- workflows, citation, changelog


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_the_pages_say(workflow: Path) -> None:
    """Each command of a workflow stands on a page, so that contributors can run it by hand."""
    known = [
        words
        for page in PAGES
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf8"), re.S)
        for words in commands(block)
    ]
    run = [step["run"] for step in steps(workflow) if "run" in step]
    assert run
    for line in run:
        for words in commands(line):
            if words[0] == "make":
                check_command(words)
                assert words[1] in text(".ci/run") + text("CONTRIBUTING.md"), line
                continue
            as_written = ["python" if word == ".venv/bin/python" else word for word in words]
            as_written = ["v0.1.0" if word == "$TAG" else word for word in as_written]
            assert as_written in known, f"{line!r} stands on no page"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_workflows(workflow: Path) -> None:
    found = srsly.read_yaml(workflow)
    # YAML 1.1 reads the key "on" as true.
    assert set(found) - {True, "on"} == {"name", "permissions", "jobs"}
    assert found["permissions"] == {"contents": "read"}
    for name, job in found["jobs"].items():
        assert {"runs-on", "steps"} <= set(job), name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            # An expression in a shell command could insert text of strangers: titles, branches.
            assert "${{" not in step.get("run", ""), step


def test_the_table_of_workflows_has_those_of_the_project() -> None:
    """Commands that no workflow has, such as few-labels-data, are not in the table."""
    _, table = text("docs/training.md").split("| workflow | task |\n|---|---|\n", 1)
    rows = [line.split("|")[1] for line in table.split("\n\n", 1)[0].splitlines()]
    listed = [name for row in rows for name in re.findall(r"`([\w-]+)`", row)]
    assert sorted(listed) == sorted(srsly.read_yaml(ROOT / "project.yml")["workflows"])


def test_hooks_are_those_of_the_makefile() -> None:
    (repository,) = srsly.read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    assert {hook["id"] for hook in repository["hooks"]} == {"ruff", "ruff-format", "mypy"}
    for hook in repository["hooks"]:
        tool = hook["entry"].removesuffix(" --force-exclude").removeprefix(".venv/bin/python ")
        assert tool.removeprefix("-m ").split()[0] in text("Makefile")


def test_the_citation_is_whole() -> None:
    citation = srsly.read_yaml(ROOT / "CITATION.cff")
    # Version 1.2.0 of the format requires these.
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    own = setup()["metadata"]
    assert citation["authors"] == [{"name": own["author"]}]
    assert citation["license"] == own["license"]


def test_the_changelog_has_its_form() -> None:
    changes = text("CHANGELOG.md")
    assert re.findall(r"^## (.*)$", changes, re.M)[0] == "[Unreleased]"
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", changes, re.M)) <= kinds
    # The changelog mentions each registered name that has a version above 1.
    later = set(re.findall(r"spacy-latent\.(\w+\.v(?!1\b)\d+) =", text("setup.cfg")))
    assert later and all(f"`{name}`" in changes for name in later)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text(name)):
        assert (ROOT / target).exists(), target


def test_files_that_contributing_names_are_there() -> None:
    page = text("CONTRIBUTING.md")
    named = set(re.findall(r"`((?:spacy_latent|tests|docs|\.ci|\.github)/[\w./]*)`", page))
    named |= {
        f"spacy_latent/{place}"
        for place in re.findall(
            r"`((?:kernels|visualize|analysis|pipeline|corpora|cli|training)/[\w./]*)`", page
        )
    }
    assert len(named) > 15
    for place in named:
        assert (ROOT / place).exists(), place


def test_what_pages_import_is_public() -> None:
    listed = set(re.findall(r"`(spacy_latent[\w.]*)`", text("docs/stability.md")))
    registered = set(re.findall(r"= (spacy_latent[\w.]+):", text("setup.cfg")))
    for page in (ROOT / "docs").glob("*.md"):
        for module in re.findall(
            r"^(?:from|import) (spacy_latent[\w.]*)", page.read_text(encoding="utf8"), re.M
        ):
            assert module in listed | registered, f"{page.name}: {module}"


def test_the_order_of_the_tests_names_files_that_are_there() -> None:
    from tests.conftest import PLACES

    assert not [path for path in PLACES if not path.is_file()]
