"""The public interface has ``Any`` only if no type can be named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

from spacy_latent.structures.logic_factors import LogicFactor
from tests.repository.pages import PAGES, blocks

ROOT = Path(__file__).parents[2]
# Modules of components that docs/stability.md does not name. Their methods are public as well.
COMPONENTS = (
    "latent_parser",
    "latent_textcat",
    "latent_textcat_multilabel",
    "tree_spancat",
)
A_FLOOR_ABOVE = "of a floor above, which kinds may not name"
LENGTH = "an int, or one for each axis: each set takes its own, which mypy lets a subclass narrow"
# Names that may have Any, with the reason.
LEFT = {
    "spacy_latent.kinds.INHERITED": "stands where a field of any type does",
    "spacy_latent.kinds.complete_kind": "the fields of Kind by name",
    "spacy_latent.kinds.Drawing.draw": A_FLOOR_ABOVE,
    "spacy_latent.kinds.Drawing.fits": A_FLOOR_ABOVE,
    "spacy_latent.kinds.Kind.judge": A_FLOOR_ABOVE,
    "spacy_latent.kinds.Kind.reference": A_FLOOR_ABOVE,
    "spacy_latent.kinds.Kind.text": A_FLOOR_ABOVE,
    "spacy_latent.kinds.Kind.part_text": A_FLOOR_ABOVE,
    "spacy_latent.structures.contract.StructureContract.decode": LENGTH,
    "spacy_latent.structures.contract.StructureContract.encode": LENGTH,
    "spacy_latent.testing.listing.Length": LENGTH,
    "spacy_latent.structures.factor_graph.build_factor_graph_v1": "while a config is filled in, "
    "blocks in a dict are dicts still",
    "spacy_latent.annotations.settings.cfg_of": "the settings of any component",
    "spacy_latent.pipeline.factories.default_config": "the settings of any component",
    "spacy_latent.pipeline.latent_encoder.LatentEncoder.find_listeners": "whatever spaCy has in a "
    "pipeline; it names no type",
}


def public_modules() -> list[Path]:
    """Return the files of all public modules.

    These are the modules that docs/stability.md names, all modules of the packages that it names,
    and the modules of structures, estimators and components.
    """
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf8").split("## Not public")[0]
    places = {ROOT / name.replace(".", "/") for name in re.findall(r"`(spacy_latent[\w.]+)`", page)}
    places |= {ROOT / "spacy_latent" / floor for floor in ("structures", "estimators")}
    places |= {ROOT / "spacy_latent" / "pipeline" / name for name in COMPONENTS}
    found = {
        path
        for place in places
        for path in (place.glob("*.py") if place.is_dir() else [place.with_suffix(".py")])
    }
    missing = sorted(str(path) for path in found if not path.exists())
    assert not missing, f"docs/stability.md names what is not there: {missing}"
    return sorted(found)


def _public(name: str) -> bool:
    return not name.startswith("_") or name in ("__init__", "__call__")


def _has_any(nodes: Iterable[ast.expr | None]) -> bool:
    """Return whether an annotation has ``Any``, also inside of a string."""
    return any(node is not None and re.search(r"\bAny\b", ast.unparse(node)) for node in nodes)


def with_any(node: ast.Module | ast.ClassDef, above: str) -> Iterator[str]:
    """Yield the names of functions, methods, attributes and aliases whose types have ``Any``."""
    for each in node.body:
        if isinstance(each, ast.ClassDef) and _public(each.name):
            yield from with_any(each, f"{above}.{each.name}")
        elif isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) and _public(each.name):
            given = each.args
            arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            arguments += [more for more in (given.vararg, given.kwarg) if more]
            if _has_any([*(one.annotation for one in arguments), each.returns]):
                yield f"{above}.{each.name}"
        elif isinstance(each, ast.AnnAssign) and _public(ast.unparse(each.target)):
            if _has_any([each.annotation]):
                yield f"{above}.{ast.unparse(each.target)}"
        elif isinstance(each, ast.Assign) and _public(ast.unparse(each.targets[0])):
            if _has_any([each.value]):
                yield f"{above}.{ast.unparse(each.targets[0])}"


def test_what_is_public_holds_any_only_where_no_type_can_be_named() -> None:
    modules = public_modules()
    assert len(modules) > 100
    found = {
        name
        for path in modules
        for name in with_any(
            ast.parse(path.read_text(encoding="utf8")),
            ".".join(path.relative_to(ROOT).with_suffix("").parts),
        )
    }
    new = sorted(found - LEFT.keys())
    assert not new, f"say the types of {new}: an object, a Protocol, a TypedDict or an alias"
    assert found >= LEFT.keys(), f"these have types by now: {sorted(LEFT.keys() - found)}"


def exports(path: Path) -> set[str]:
    """Return the names that type checkers let others import from a module.

    These are its own definitions, its modules, ``__all__``, and imports of the form ``x as x``.
    """
    found = {each.stem for each in path.parent.iterdir()} if path.name == "__init__.py" else set()
    for node in ast.parse(path.read_text(encoding="utf8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {one.name for one in node.names if one.asname == one.name}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [ast.unparse(target) for target in targets]
            found |= set(ast.literal_eval(node.value)) if names == ["__all__"] else set(names)
    return found


def imports_on_pages() -> set[tuple[str, str]]:
    """Return the modules of ours and the names that Python blocks of the pages import."""
    found = set()
    for page in PAGES:
        for block in blocks(page):
            for node in ast.walk(ast.parse(block.code if block.language == "python" else "")):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                    "spacy_latent"
                ):
                    found |= {(str(node.module), one.name) for one in node.names}
    return found


def names_of_the_table() -> set[tuple[str, str]]:
    """Return the modules and the names in the second table of docs/stability.md.

    A row of several modules does not say which of them has a name, so it is left out.
    """
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf8").split("## Not public")[0]
    lines = [line for line in page.splitlines() if line.startswith("| `spacy_latent")]
    rows = [line.split("|")[1:3] for line in lines]
    return {
        (module, name)
        for modules, names in rows
        for module in re.findall(r"`(spacy_latent[\w.]*)`", modules)
        for name in re.findall(r"`(\w+)`", names)
        if modules.count("`") == 2
    }


def test_type_checkers_find_every_public_name_where_the_pages_import_it() -> None:
    asked = imports_on_pages() | names_of_the_table()
    assert len(asked) > 90
    asked -= {("spacy_latent.analysis.figures", "assess")}  # It fills in the records of the module.
    hidden = []
    for module, name in sorted(asked):
        place = ROOT / module.replace(".", "/")
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        if name not in exports(file):
            hidden.append(f"{module}.{name}")
    assert not hidden, f"import these as themselves, or name them in __all__: {hidden}"


@pytest.mark.parametrize("factor", LogicFactor.__subclasses__(), ids=lambda one: one.__name__)
def test_logic_factors_take_arrays_by_their_types(factor: type[LogicFactor]) -> None:
    types = get_type_hints(factor)
    assert np.ndarray in get_args(types.get("parts") or types["premises"])


def test_any_is_found_wherever_it_stands() -> None:
    text = """
Alias = dict[str, Any]
def given(value: Any): ...
def returned() -> "list[Any]": ...
def more(*values: Any): ...
async def by_name(*, key: Any = 1, **options: object): ...
def _own(value: Any): ...
def inside() -> None:
    value: Any = 1
class Record:
    field: Any
    _hidden: Any
    def __init__(self, value: Any) -> None: ...
    def __repr__(self) -> Any: ...
"""
    assert set(with_any(ast.parse(text), "m")) == {
        *("m.Alias", "m.given", "m.returned", "m.more", "m.by_name"),
        *("m.Record.field", "m.Record.__init__"),
    }
