"""The plan of ``benchmarks gpu`` survives failing steps, and its dry run needs no GPU.

The figures that it measures are not tested.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gpu import answers, kernels, plan
from benchmarks.gpu.machine import Record
from benchmarks.gpu.plan import Step
from benchmarks.raw_results import read
from spacy_latent.structures.spanning_tree import SpanningTree

ROOT = Path(__file__).parents[2]
STEPS = {
    "finds": "def run(machine, record): record(found=1)",
    "fails": "def run(machine, record): record(found=2); raise SystemExit('it | was wrong')",
    "crashes": "import os\ndef run(machine, record): record(found=3); os.abort()",
    "waits": (
        "import subprocess, sys, time\n"
        "def run(machine, record):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "    record(child=child.pid)\n"
        "    time.sleep(600)"
    ),
}


@pytest.fixture()
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The output folder of a plan, whose steps are the ones of STEPS."""
    package = tmp_path / "benchmarks" / "gpu"
    package.mkdir(parents=True)
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (package / "__init__.py").touch()
    source = Path(plan.__file__).with_name("step.py").read_text(encoding="utf8")
    (package / "step.py").write_text(source, encoding="utf8")
    (package / "machine.py").write_text(
        textwrap.dedent(
            """
            import json
            class Machine:
                def __init__(self, folder): self.folder = folder
            def Record(path):
                def record(**found):
                    with path.open("a") as file:
                        file.write(json.dumps(found) + "\\n")
                return record
            """
        ),
        encoding="utf8",
    )
    for name, text in STEPS.items():
        (package / f"{name}.py").write_text(text, encoding="utf8")
    monkeypatch.setattr(plan, "ROOT", tmp_path)
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_how_a_step_ended_is_told_and_what_it_found_is_kept(steps: Path) -> None:
    ended = {name: plan.run_step(Step(name, 60, name), steps) for name in ("finds", "fails")}
    assert ended["finds"].startswith("done in ")
    # A bar would begin a new column of the table.
    assert ended["fails"].startswith("FAILED") and ended["fails"].endswith("it / was wrong")
    assert plan.run_step(Step("crashes", 60, "crashes"), steps).startswith("FAILED")
    found = [read(steps / f"{name}.jsonl") for name in ("finds", "fails", "crashes")]
    assert found == [[{"found": 1}], [{"found": 2}], [{"found": 3}]]


@pytest.mark.skipif(os.name != "posix", reason="process groups are POSIX's")
def test_a_step_over_its_limit_ends_with_all_that_it_started(steps: Path) -> None:
    start = time.monotonic()
    assert plan.run_step(Step("waits", 6, "waits"), steps) == "stopped after its 6 s"
    assert time.monotonic() - start < 60
    (found,) = read(steps / "waits.jsonl")
    for _ in range(100):
        try:
            os.kill(found["child"], 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
        if Path(f"/proc/{found['child']}/stat").exists():
            state = Path(f"/proc/{found['child']}/stat").read_text().rsplit(")", 1)[1].split()[0]
            if state == "Z":
                # A zombie has ended. Only its parent, which is not this process, can reap it.
                return
    raise AssertionError("a child goes on")


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    record = Record(tmp_path / "step.jsonl")
    record(one=1)
    with (tmp_path / "step.jsonl").open("a") as file:
        file.write('{"two": ')
    assert read(tmp_path / "step.jsonl") == [{"one": 1}]
    assert read(tmp_path / "none.jsonl") == []


def test_the_steps_fit_into_nine_minutes_and_the_first_must_succeed() -> None:
    chosen = [step for step in plan.STEPS if not step.extra]
    assert sum(step.seconds for step in chosen) <= 540
    assert [step.must for step in chosen] == [True] + [False] * (len(chosen) - 1)


def test_stored_answers_are_what_the_kernels_for_the_cpu_find() -> None:
    for name, stored in answers.load().items():
        structure = answers.STRUCTURES[name]
        scores, _, along = answers.given(structure)
        assert np.array_equal(stored["scores"], scores.numpy(), equal_nan=True)
        assert np.array_equal(stored["along"], along.numpy())
        for operation, found in answers.answers_of(structure).items():
            np.testing.assert_allclose(found, stored[operation], rtol=1e-9, atol=1e-12)
        # The padding is NaN. Finite answers show that no kernel has read it.
        assert np.isnan(stored["scores"]).any() and np.isfinite(stored["marginals"]).all()


def test_the_inverse_of_the_laplacian_gives_the_marginals() -> None:
    scores = torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(0))
    expected = SpanningTree().marginals(scores, torch.full((3,), 5))
    found = kernels.inverse_marginals(scores)
    torch.testing.assert_close(found, expected[:, :, 1:], rtol=1e-4, atol=1e-5)


def test_the_whole_plan_goes_through_on_a_pretended_gpu(tmp_path: Path) -> None:
    page = plan.FOLDER / "gpu.md"
    results = page.read_text(encoding="utf8")
    # The plan needs its own process, because Thinc looks for a GPU only when it is imported.
    command = [sys.executable, "-m", "benchmarks", "gpu", "--dry-run", "--output", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        # One training needs spacy-transformers itself: PYTHONPATH omits the tests' stand-in.
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = (tmp_path / "gpu.md").read_text(encoding="utf8")
    for step in plan.STEPS:
        if not step.extra:
            assert read(tmp_path / f"{step.name}.jsonl"), step.name
            assert f"| {step.title} | done in" in written
    # The page of results keeps its times, since times of a simulated GPU mean nothing.
    assert page.read_text(encoding="utf8") == results


def test_a_plan_whose_first_step_fails_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "pretended", nullcontext)
    monkeypatch.setattr(plan, "rehearse", lambda step, machine: "FAILED after 1 s: nothing there")
    with pytest.raises(SystemExit, match="Not all"):
        plan.main(["--dry-run", "--output", str(tmp_path)])
    assert capsys.readouterr().out.count("...") == 1
    assert "| eight kernels against stored answers | not run |" in (tmp_path / "gpu.md").read_text(
        encoding="utf8"
    )
