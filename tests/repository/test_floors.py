"""A package imports only from the packages in its row of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "spacy_latent"
# The first packages do not import spaCy and Thinc. The second ones import only their types.
NUMBERS, TYPED = ("kernels", "structures"), ("estimators", "layers")


def table() -> dict[str, set[str]]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf8")
    rows = text.split("## Packages")[1].split("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \|.*\| ([^|]*)\|$", rows, re.M)
    return {name: set(re.findall(r"`(\w+)`", allowed)) for name, allowed in found}


FLOORS = table()


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the full names of all imports, including imports inside of functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def without_types(tree: ast.Module) -> ast.Module:
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    return tree


def sources(floor: str) -> list[Path]:
    alone = PACKAGE / f"{floor}.py"
    return [alone] if alone.exists() else sorted((PACKAGE / floor).rglob("*.py"))


def read(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf8"))


def test_every_floor_has_a_row() -> None:
    there = {path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")}
    there |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert there == set(FLOORS), "every package needs a row in the table of CONTRIBUTING.md"


def test_the_table_has_no_circles() -> None:
    def below(floor: str, above: tuple[str, ...]) -> None:
        assert floor not in above, " > ".join([*above, floor])
        for lower in FLOORS[floor]:
            below(lower, (*above, floor))

    for floor in FLOORS:
        below(floor, ())


@pytest.mark.parametrize("floor", FLOORS)
def test_a_floor_imports_from_below(floor: str) -> None:
    allowed = FLOORS[floor] | {floor, "errors", "__version__"}
    files = sources(floor)
    assert files
    for path in files:
        own = [name.split(".") for name in imports(read(path)) if name.startswith("spacy_latent.")]
        wrong = {".".join(name) for name in own if name[1] not in allowed}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}; allowed are {sorted(allowed)}"


@pytest.mark.parametrize("floor", [*NUMBERS, *TYPED])
def test_numbers_know_no_spacy(floor: str) -> None:
    for path in sources(floor):
        tree = read(path) if floor in NUMBERS else without_types(read(path))
        wrong = {name for name in imports(tree) if name.split(".")[0] in ("spacy", "thinc")}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("floor", ["structures", "estimators", "testing"])
def test_modules_of_a_floor_import_each_other_in_no_circle(floor: str) -> None:
    """Imports inside of functions and imports for type checkers alone count as well."""
    prefix = f"spacy_latent.{floor}."
    names = {path.stem for path in sources(floor)}
    found = {
        path.stem: {
            name.removeprefix(prefix).split(".")[0]
            for name in imports(read(path))
            if name.startswith(prefix)
        }
        & names
        for path in sources(floor)
    }

    def follow(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " > ".join([*above, name])
        for other in found[name]:
            follow(other, (*above, name))

    for name in found:
        follow(name, ())
