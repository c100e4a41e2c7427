"""Recipes are the configs of ``configs/``: whole files, and variants of other recipes.

    python -m benchmarks recipes                       # their names
    python -m benchmarks recipes rationale_hard_kuma   # the whole config, to standard output
    python -m benchmarks recipes rationale_hard_kuma --output mine.cfg

A file of ``configs/variants`` has a block for each variant. ``base`` names the recipe that it
changes. Other entries are the changed values, by the dotted name of a setting or of a block.
``remove`` lists settings and blocks that the variant does not have. A changed block replaces the
whole block.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from spacy.util import load_config
from thinc.api import Config

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
# Folder of variants as whole files, for programs that need a file.
WRITTEN = ROOT / "training" / "recipes"
BASE, REMOVE = "base", "remove"


@cache
def variants(folder: Path = CONFIGS) -> dict[str, dict[str, Any]]:
    """Return the block of each variant by its name."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / "variants").glob("*.cfg")):
        for name, block in Config().from_disk(path, interpolate=False).items():
            if name in found or (folder / f"{name}.cfg").exists():
                raise ValueError(f"{path}: [{name}] is a recipe already. Give it another name.")
            found[name] = block
    return found


def names(folder: Path = CONFIGS) -> list[str]:
    """Return the names of all recipes, sorted."""
    return sorted([*(path.stem for path in folder.glob("*.cfg")), *variants(folder)])


@cache
def load(name: str, folder: Path = CONFIGS) -> Config:
    """Return the whole config of a recipe, with its variables. The caller must not change it.

    Raises:
        KeyError: There is no recipe of that name.
    """
    path = folder / f"{name}.cfg"
    if path.exists():
        return load_config(path, interpolate=False)
    if name not in variants(folder):
        raise KeyError(f"{name!r} is no recipe of {folder}: {', '.join(names(folder))}.")
    block = variants(folder)[name]
    return changed(load(block[BASE], folder), block)


def changed(base: Config, block: Mapping[str, Any]) -> Config:
    """Return a copy of ``base`` with the changes of a variant's block."""
    made = base.copy()
    for place in block.get(REMOVE, []):
        parent, key = _parent_of(made, place)
        del parent[key]
    for place, value in block.items():
        if place not in (BASE, REMOVE):
            parent, key = _parent_of(made, place)
            parent[key] = value
    return made


def _parent_of(config: Config, place: str) -> tuple[dict[str, Any], str]:
    *blocks, key = place.split(".")
    parent: Any = config
    for name in blocks:
        parent = parent[name]
    return parent, key


@cache
def path_of(name: str, written: Path = WRITTEN, configs: Path = CONFIGS) -> Path:
    """Return a file with the whole config of a recipe.

    The file of a variant is written into the folder ``written``.
    """
    path = configs / f"{name}.cfg"
    if path.exists():
        return path
    made = load(name, configs)
    written.mkdir(parents=True, exist_ok=True)
    path = written / f"{name}.cfg"
    # The file is replaced at once, since another process may read it.
    beside = written / f"{name}.cfg.{os.getpid()}"
    made.to_disk(beside, interpolate=False)
    beside.replace(path)
    return path


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=names(), metavar="NAME")
    parser.add_argument("--output", type=Path, help="a file to write the config to")
    given = parser.parse_args(arguments)
    if given.output is not None and (given.name is None or given.output.is_dir()):
        parser.error("--output is a file, for the recipe of a NAME")
    if given.name is None:
        print("\n".join(names()))
    elif given.output is None:
        print(load(given.name).to_str(interpolate=False))
    else:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        load(given.name).to_disk(given.output, interpolate=False)


if __name__ == "__main__":
    main()
