"""A pipeline runs in an environment like the container of docs/production.md."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import spacy

from benchmarks import container


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # The folder is beside the tests, since the container does not see this /tmp.
    with TemporaryDirectory(dir=Path(__file__).parent, prefix="model-") as folder:
        path = Path(folder, "crf_ner")
        monkeypatch.setattr(sys, "argv", ["-c", str(path)])
        exec(container.SAVE, {})
        yield path


@pytest.mark.parametrize("packaged", [False, True])
def test_a_warm_pipeline_needs_no_place_to_write(model: Path, packaged: bool) -> None:
    protected = "test ! -w $0 -a ! -w $1"
    try:
        probe = container.in_container(
            "/bin/sh", "-c", protected, str(model), str(container.ROOT / "spacy_latent")
        )
    except OSError:
        probe = None
    if probe is None or probe.returncode:
        pytest.skip("needs Linux with namespaces of one's own, in which mounts can be protected")
    spacy.load(model)("Ada Lovelace met Charles Babbage in London.")
    path, served = f"PYTHONPATH={container.ROOT}", str(model)
    if packaged:
        wheel = container.package(Path(sys.executable), model, model.with_name("packages"))
        installed = model.with_name("installed")
        pip = (sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet")
        subprocess.run([*pip, "--target", str(installed), str(wheel)], check=True)
        path, served = f"{path}:{installed}", container.NAME
    # This fails if a kernel has to be compiled, or if the package or the model is writable.
    told = container.contained(Path(sys.executable), served, path)
    assert told["memory"] > 0 and told["first call"] > 0
