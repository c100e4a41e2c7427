"""Files of a saved component that are truncated, or have a wrong bit or byte."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from spacy.language import Language

from spacy_latent.errors import LatentError
from spacy_latent.pipeline.learnt_calibration import EntityCalibration
from tests.pipeline.small_pipelines import TOK2VEC, initialized, latent_pipeline

DIGEST = "sha256_of_model"
PAIRS = {"@architectures": "spacy-latent.AlignedPairTextCat.v1", "exclusive_classes": True}
PIPELINES = (
    "crf_ner",
    "calibrated crf_ner",
    "latent_textcat",
    "latent_textcat of pairs",
    "latent_encoder with a listener",
    "latent_parser",
    "tree_spancat",
)
PLACES = 24


def pipeline(described: str) -> tuple[Language, Any]:
    """Return a pipeline and the component whose files are damaged.

    Args:
        described: One of PIPELINES.
    """
    if described.startswith("latent_encoder"):
        nlp = latent_pipeline("textcat")
        name = "latent_encoder"
    else:
        nlp = spacy.blank("en")
        name = next(word for word in described.split() if "_" in word)
        model = PAIRS if "pairs" in described else {}
        nlp.add_pipe(name, config={"model": {**model, "tok2vec": TOK2VEC}})
    initialized(nlp)
    component: Any = nlp.get_pipe(name)
    if described.startswith("calibrated"):
        component.calibration = EntityCalibration(temperature=1.5, biases={"GPE": 0.25})
    return nlp, component


def damaged(whole: bytes, count: int) -> Iterator[bytes]:
    """Yield damaged copies: truncated, with one bit changed, and with one byte changed, in turn."""
    places = random.Random(0)
    for i in range(count):
        at = places.randrange(len(whole))
        if i % 3 == 0:
            yield whole[:at]
        else:
            changed = bytearray(whole)
            changed[at] ^= 1 << places.randrange(8) if i % 3 == 1 else places.randrange(1, 256)
            yield bytes(changed)


@pytest.mark.parametrize("described", PIPELINES)
def test_damage_of_the_weights_is_found_and_that_of_the_rest_does_no_harm(
    described: str, tmp_path: Path
) -> None:
    nlp, component = pipeline(described)
    nlp.to_disk(tmp_path)
    directory = tmp_path / component.name
    assert sorted(file.name for file in directory.iterdir()) == ["cfg", "model"]
    weights = component.model.to_bytes()
    for file in ("model", "cfg"):
        whole = (directory / file).read_bytes()
        for changed in damaged(whole, PLACES):
            (directory / file).write_bytes(changed)
            before = dict(component.cfg)
            try:
                component.from_disk(directory, exclude=["vocab"])
            except LatentError as error:
                # If the digest itself is damaged, the message cannot say which file is.
                assert str(directory) in str(error) and f"'{file}'" in str(error)
                assert component.cfg == before
            else:
                assert file == "cfg"
            assert component.model.to_bytes() == weights
        (directory / file).write_bytes(whole)
        component.from_disk(directory, exclude=["vocab"])


@pytest.mark.parametrize("described", PIPELINES)
def test_without_a_digest_weights_load_or_are_refused_with_the_directory(
    described: str, tmp_path: Path
) -> None:
    # Pipelines were saved without a digest before it was introduced.
    nlp, component = pipeline(described)
    nlp.to_disk(tmp_path)
    directory = tmp_path / component.name
    saved = srsly.read_json(directory / "cfg")
    assert len(saved.pop(DIGEST)) == 64
    srsly.write_json(directory / "cfg", saved)
    whole = (directory / "model").read_bytes()
    for changed in (whole, whole[:-1], *damaged(whole, PLACES)):
        (directory / "model").write_bytes(changed)
        try:
            component.from_disk(directory, exclude=["vocab"])
        except LatentError as error:
            assert changed != whole and str(directory) in str(error)
        else:
            assert len(changed) == len(whole)


def test_bytes_are_checked_as_files_are() -> None:
    _, component = pipeline("crf_ner")
    message = srsly.msgpack_loads(component.to_bytes())
    weights = bytearray(message["model"])
    weights[len(weights) // 2] ^= 1
    message["model"] = bytes(weights)
    with pytest.raises(LatentError, match="saved"):
        component.from_bytes(srsly.msgpack_dumps(message))
    # Not even the labels can be read from these bytes.
    for rest in (b"", b"no message", component.to_bytes()[:100]):
        with pytest.raises(LatentError, match="cut short"):
            component.from_bytes(rest)
        # A service that continues with the old weights needs garbage collection.
        assert gc.isenabled()


def test_weights_that_were_replaced_on_purpose_load_where_the_digest_is_taken_out(
    tmp_path: Path,
) -> None:
    nlp, component = pipeline("crf_ner")
    nlp.to_disk(tmp_path)
    node = next(node for node in component.model.walk() if node.has_param("b"))
    node.set_param("b", node.get_param("b") + 1)
    component.model.to_disk(tmp_path / "crf_ner" / "model")
    with pytest.raises(LatentError, match=f"{DIGEST}"):
        spacy.load(tmp_path)
    saved = srsly.read_json(tmp_path / "crf_ner" / "cfg")
    del saved[DIGEST]
    srsly.write_json(tmp_path / "crf_ner" / "cfg", saved)
    again: Any = spacy.load(tmp_path).get_pipe("crf_ner")
    assert again.model.to_bytes() == component.model.to_bytes()


@pytest.mark.parametrize("exclude", [["model"], ["cfg"]])
def test_what_is_left_out_is_neither_written_nor_looked_for(
    exclude: list[str], tmp_path: Path
) -> None:
    _, component = pipeline("crf_ner")
    component.to_disk(tmp_path, exclude=(name for name in (*exclude, "vocab")))
    assert not (tmp_path / exclude[0]).exists()
    component.from_disk(tmp_path, exclude=(name for name in (*exclude, "vocab")))
    assert component.labels == ("GPE",)
