"""``spacy latent calibrate``, and what other commands make of what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from spacy.cli._util import app
from spacy.tokens import DocBin
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401
from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized
from tests.pipeline.test_entity_calibration import TEXT, doubtful


def run(*arguments: Any, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["latent", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A pipeline, annotated texts, and where to write."""
    path = tmp_path_factory.mktemp("calibrate")
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy-latent.CrfTagger.v1", "tok2vec": TOK2VEC}
    nlp.add_pipe("crf_ner", config={"model": model})
    optimizer = initialized(nlp)
    for _ in range(20):
        nlp.update(examples(nlp), sgd=optimizer)
    nlp.to_disk(path / "model")
    DocBin(docs=[example.reference for example in doubtful(nlp)]).to_disk(path / "dev.spacy")
    return path / "model", path / "dev.spacy", path / "out"


def test_what_it_writes_and_prints(made: Any, tmp_path: Path) -> None:
    model, dev, output = made
    arguments = ("calibrate", model, dev, output, "--coverage", 0.8, "--precision", 0.4)
    shown = run(*arguments, "--test", dev)
    for said in ("temperature", "48 texts with 24 entities", "sets with coverage 0.8", "100.0 %"):
        assert said in " ".join(shown.split())
    # That of the fixture stores none.
    assert "annotate is 'map'" in shown and "precision" in shown and "min_confidence" in shown
    nlp = spacy.load(output)
    pipe: Any = nlp.get_pipe("crf_ner")
    assert pipe.calibration.temperature > 1 and pipe.cfg["min_confidence"] > 0
    assert nlp.config["components"]["crf_ner"]["min_confidence"] == pipe.cfg["min_confidence"]
    # It is a setting of the config again: editing that counts.
    again = spacy.load(output, config={"components.crf_ner.min_confidence": 0.99})
    assert not again(TEXT).ents and nlp(TEXT).ents
    found = srsly.json_loads(run("calibrate", model, dev, tmp_path, "--json", "--test", dev))
    assert found["calibration"]["temperature"] > 1 and found["after"]["gold"] == 24
    assert found["test"] == found["after"] and "min_confidence" not in found
    (entry,) = srsly.json_loads(run("show", output, TEXT, "--json"))["latent"].values()
    assert entry["entities"][0] in entry["possible"]


def test_the_report_draws_it(made: Any, tmp_path: Path) -> None:
    model, dev, _ = made
    shown = run("report", model, dev, tmp_path / "report.html")
    assert "expected calibration error" in shown
    page = (tmp_path / "report.html").read_text(encoding="utf8")
    assert page.count("reliability diagram: 48 said") == 1 and "They are not to be taken" in page
    assert "<script" not in page and 'href="#confidence-crf_ner"' in page
    figures = srsly.json_loads(run("report", model, dev, tmp_path / "report.html", "--json"))
    found = figures["entities"]["crf_ner"]
    assert found["found"] == 48 and found["error"] > found["chance_high"]
    assert sum(one["count"] for one in found["bins"]) == 48
    # These commands tell of latent structures alone.
    for arguments in (("stats", model, dev), ("compare", model, model, "--corpus", dev)):
        assert "not latent" in run(*arguments, code=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--coverage", 1.5), "--coverage is 1.5"),
        (("--coverage", 0.999), "takes at least 999 texts"),
        (("--precision", 0.99), "At no confidence the precision is 0.99"),
        (("-c", "ner"), "'ner' is none of them: crf_ner"),
    ],
)
def test_what_it_refuses(made: Any, tmp_path: Path, options: Any, said: str) -> None:
    model, dev, _ = made
    shown = run("calibrate", model, dev, tmp_path / "out", *options, code=1)
    assert said in " ".join(shown.split())
    assert not (tmp_path / "out").exists()
