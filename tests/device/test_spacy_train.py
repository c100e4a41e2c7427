"""``spacy train -g 0`` from beginning to end, on a simulated GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
from spacy.language import Language
from spacy.tokens import DocBin

from spacy_latent import listops
from tests.device.train_on_gpu import KINDS, MODELS, RECIPES
from tests.pipeline.small_pipelines import examples, save_small_transformer, weights_of

# The most transfers up, transfers down and other waits that a training step may have. Only calls by
# the package itself count. Lower a number if the code improves.
BUDGETS = {
    "spanning trees, marginals, attention to heads": (3, 2, 1),
    "spanning trees, SparseMAP marginalized, Tree-LSTM": (6, 3, 1),
    "entities by chains": (1, 1, 0),
    # One transfer up is the noise of the counters.
    "the demo, first stage": (6, 3, 1),
    "the demo, last stage": (7, 3, 1),
    "rationales of k words": (5, 2, 1),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained")
    (expressions,) = listops.generate([40], ["MAX", "MIN", "MED"], max_length=16)
    listops.write(path / "listops.tsv", expressions)
    docs = [example.reference for example in examples(spacy.blank("en"))]
    DocBin(docs=docs).to_disk(path / "docs.spacy")
    (path / "encoder").mkdir()
    save_small_transformer(path / "encoder")
    root = Path(__file__).parents[2]
    # Use the real spacy-transformers, and no stand-in.
    environment = {**os.environ, "PYTHONPATH": str(root)}
    result = subprocess.run(
        [sys.executable, "-m", "tests.device.train_on_gpu", str(path)],
        capture_output=True,
        text=True,
        cwd=root,
        env={**environment, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-6000:]
    return path


@cache
def pipeline(trained: Path, name: str) -> Language:
    return spacy.load(trained / name / "model-last")


def weights(nlp: Language) -> dict[str, np.ndarray]:
    return {
        f"{name} {key}": value
        for name, pipe in nlp.pipeline
        for key, value in weights_of(pipe.model).items()  # type: ignore[attr-defined]
    }


@pytest.mark.parametrize("name", RECIPES)
def test_training_on_a_gpu_gives_what_the_cpu_gives(trained: Path, name: str) -> None:
    """The pipeline is saved after training on the GPU, and read without one."""
    on_cpu, on_gpu = (weights(pipeline(trained, f"{name}-{device}")) for device in ("cpu", "gpu"))
    assert on_cpu.keys() == on_gpu.keys() and on_cpu
    for key, reference in on_cpu.items():
        np.testing.assert_allclose(on_gpu[key], reference, rtol=1e-3, atol=1e-4, err_msg=key)


@pytest.mark.parametrize("name", RECIPES)
def test_it_annotates_there_as_on_the_cpu(trained: Path, name: str) -> None:
    nlp = pipeline(trained, f"{name}-gpu")
    made = list(DocBin().from_disk(trained / f"{name}.spacy").get_docs(nlp.vocab))
    assert [doc.text for doc in made] == RECIPES[name][1]
    for doc in made:
        own = nlp(doc.text)
        assert own.cats == pytest.approx(doc.cats, abs=1e-4)
        assert [(e.text, e.label_) for e in own.ents] == [(e.text, e.label_) for e in doc.ents]
        assert_same(dict(own.user_data), dict(doc.user_data))


def assert_same(found: Any, reference: Any) -> None:
    if isinstance(found, dict):
        assert found.keys() == reference.keys()
        for key in found:
            assert_same(found[key], reference[key])
    elif isinstance(found, (list, tuple)):
        assert len(found) == len(reference)
        for one, other in zip(found, reference):
            assert_same(one, other)
    elif isinstance(found, (float, np.ndarray)):
        np.testing.assert_allclose(found, reference, atol=1e-4)
    else:
        assert found == reference


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_lies_on_the_wrong_side(trained: Path, name: str) -> None:
    found = srsly.read_json(trained / "found.json")[name]
    assert found["left on the CPU"] == [] and found["left on docs"] == []
    assert found["up"] and found["down"]


@pytest.mark.parametrize("name", RECIPES)
def test_its_bytes_are_those_of_the_cpu(trained: Path, name: str) -> None:
    nlp = pipeline(trained, f"{name}-gpu")
    saved = {key: value.copy() for key, value in weights(nlp).items()}
    for value in weights(nlp).values():
        value[...] = 0.0
    nlp.from_bytes((trained / f"{name}.bytes").read_bytes())
    for key, value in weights(nlp).items():
        np.testing.assert_array_equal(value, saved[key], err_msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_training_stays_within_its_budget(trained: Path, name: str) -> None:
    found = srsly.read_json(trained / "found.json")["steps"][name]
    over = [
        f"{moved} {kind}, allowed are {allowed}"
        for kind, moved, allowed in zip(KINDS, found["moved"], BUDGETS[name], strict=True)
        if moved > allowed
    ]
    assert not over, "; ".join(over) + "\n" + found["lines"]
