"""Variants of recipes: configs that are a base config and its changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from thinc.api import Config

from benchmarks import recipes

BASE = """
[paths]
train = "a"

[nlp]
lang = "en"
pipeline = ["tagger"]

[components]

[components.tagger]
factory = "tagger"
path = ${paths.train}

[components.tagger.model]
@architectures = "one"
width = 8
"""
VARIANTS = """
[second]
base = "first"
remove = ["components.tagger.path"]
paths.train = "b"
components.tagger.model = {
    "@architectures": "other",
    "depth": 2
  }
components.tagger.label = ${paths.train}

[third]
base = "second"
components.tagger.model.depth = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "variants").mkdir()
    (tmp_path / "first.cfg").write_text(BASE)
    (tmp_path / "variants" / "of_first.cfg").write_text(VARIANTS)
    return tmp_path


def test_a_variant_is_its_base_with_its_changes(folder: Path) -> None:
    assert recipes.names(folder) == ["first", "second", "third"]
    path = recipes.path_of("third", folder / "written", folder)
    made = Config().from_disk(path)
    assert made["paths"]["train"] == made["components"]["tagger"]["label"] == "b"
    assert "path" not in made["components"]["tagger"]
    assert made["components"]["tagger"]["model"] == {"@architectures": "other", "depth": 3}
    assert made["nlp"] == Config().from_str(BASE)["nlp"]
    assert recipes.path_of("first", folder / "written", folder) == folder / "first.cfg"
    # The changes do not modify the base configs.
    assert recipes.load("first", folder)["components"]["tagger"]["model"]["width"] == 8
    assert recipes.load("second", folder)["components"]["tagger"]["model"]["depth"] == 2


def test_what_is_no_recipe_is_refused(folder: Path) -> None:
    with pytest.raises(KeyError, match="'fourth'"):
        recipes.load("fourth", folder)
    (folder / "third.cfg").write_text(BASE)
    recipes.variants.cache_clear()
    with pytest.raises(ValueError, match="third"):
        recipes.names(folder)


def test_each_variant_changes_something(capsys: pytest.CaptureFixture[str]) -> None:
    for name, block in recipes.variants().items():
        assert recipes.load(name) != recipes.load(block[recipes.BASE]), name
        recipes.main([name])
        assert Config().from_str(capsys.readouterr().out, interpolate=False) == recipes.load(name)
