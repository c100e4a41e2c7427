"""A pipeline runs in a place like the container of the page on production."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import spacy

from benchmarks import container


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Beside the tests, since the container has a /tmp of its own.
    with TemporaryDirectory(dir=Path(__file__).parent, prefix="model-") as folder:
        path = Path(folder, "crf_ner")
        monkeypatch.setattr(sys, "argv", ["-c", str(path)])
        exec(container.SAVE, {})
        yield path


def test_a_warm_pipeline_needs_no_place_to_write(model: Path) -> None:
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
    path = f"PYTHONPATH={container.ROOT}"
    # It fails if a kernel is not loaded, or if the package or the model can be written.
    assert "first call" in container.contained(Path(sys.executable), model, path)
