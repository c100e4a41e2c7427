"""The installed wheel works without the source tree."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from spacy_latent.kernels.core.compilation import PREFIX, digest
from tests.conftest import STAND_INS

ROOT = Path(__file__).parents[2]

CHECK = """
import spacy, spacy_latent, sys
from importlib.metadata import distribution
from pathlib import Path
assert "site-packages" in spacy_latent.__file__, spacy_latent.__file__
for name in ("py.typed", "visualize/report.css", "visualize/report.js"):
    assert (Path(spacy_latent.__file__).parent / name).is_file(), name
from importlib.util import find_spec
for name in ("projective_tree", "spanning_tree", "constituency_tree", "linear_chain"):
    assert find_spec(f"spacy_latent.kernels.gpu.{name}"), name
assert "triton" not in sys.modules
for point in distribution("spacy-latent").entry_points:
    point.load()
from spacy.training import Example
nlp = spacy.blank("en")
nlp.add_pipe("latent_encoder")
nlp.add_pipe("textcat", config={"model": {
    "@architectures": "spacy.TextCatReduce.v1", "exclusive_classes": True,
    "use_reduce_first": False, "use_reduce_last": False, "use_reduce_max": False,
    "use_reduce_mean": True,
    "tok2vec": {"@architectures": "spacy-latent.LatentListener.v1", "width": 96}}})
gold = {"cats": {"A": 1.0, "B": 0.0}}
examples = [Example.from_dict(nlp.make_doc("a good film"), gold)]
nlp.initialize(lambda: examples)
nlp.update(examples)
assert len(nlp("a good film")._.latent["latent_encoder"].heads) == 3
"""


@pytest.mark.slow
def test_the_wheel_runs_without_the_source(tmp_path):
    # A copy is built, since a build leaves metadata that would hide the installed entry points.
    source = tmp_path / "source"
    compiled = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "spacy_latent", source / "spacy_latent", ignore=compiled)
    for name in ("setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    built = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", str(source), "-w", str(tmp_path)),
            *("--no-deps", "--no-build-isolation"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr[-2000:]
    (wheel,) = tmp_path.glob("spacy_latent-*.whl")
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    packages = next((home / "lib").glob("python*/site-packages"))
    # Dependencies come from this environment, after the packages of the new one.
    here = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(here) + "\n")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # The compiled kernels of the source tree are reused: they have the same sources.
    for family in {path.parent for path in (ROOT / "spacy_latent" / "kernels").glob("*/*.py")}:
        made = family / "__pycache__" / f"{PREFIX}{digest(family)}"
        if made.is_dir():
            shutil.copytree(made, packages / made.relative_to(ROOT))
    for command in (
        [str(home / "bin" / "python"), "-c", CHECK],
        [str(home / "bin" / "python"), "-m", "spacy", "latent", "--help"],
    ):
        done = subprocess.run(
            command,
            cwd=tmp_path,
            # The inherited PYTHONPATH may have the source tree.
            env={**os.environ, "PYTHONPATH": str(STAND_INS)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


def test_the_demo_installs_no_more_than_it_needs(tmp_path: Path) -> None:
    """The demo does not install the requirements of tests and pages, which would take minutes."""
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    for name in ("Makefile", "setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    said = {
        target: subprocess.run(
            ["make", "--dry-run", target], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for target in ("demo", "test", "lint", "types")
    }
    assert "project run demo" in said["demo"] and "install" in said["demo"]
    assert "dev" not in said["demo"].replace("/dev/null", "")
    for target in ("test", "lint", "types"):
        assert ".[dev,docs]" in said[target]
