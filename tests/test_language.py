"""How docstrings open; CONTRIBUTING.md says how they should."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "spacy_latent"
OPENING = re.compile(r"(What|Where|Which|Of|As|Those|That|How|Whether|With|For|If|In|By)\b")


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            said = ast.get_docstring(node)
            if said:
                yield said


def folder_of(path: Path) -> str:
    inside = path.relative_to(PACKAGE).parts
    return inside[0] if len(inside) > 1 else ""


@cache
def counted() -> Counter[str]:
    found: Counter[str] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        found[folder_of(path)] += sum(bool(OPENING.match(said)) for said in docstrings(path))
    return found


@pytest.mark.parametrize("folder", sorted({folder_of(path) for path in PACKAGE.rglob("*.py")}))
def test_no_docstring_opens_with_a_clause(folder: str) -> None:
    assert not counted()[folder]
