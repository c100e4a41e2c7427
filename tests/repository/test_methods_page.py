"""docs/methods.md names every registered method, and nothing that does not exist."""

from __future__ import annotations

import inspect
import pkgutil
import re
import unicodedata
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import srsly

from benchmarks import recipes
from spacy_latent.estimators.control_variates import ControlVariate
from spacy_latent.pipeline.entity_evidence import EvidenceSettings
from tests.matrix import registered
from tests.repository import pages
from tests.repository.pages import ROOT
from tests.repository.reference import _group, _short

DOCS = ROOT / "docs"
PAGE = (DOCS / "methods.md").read_text(encoding="utf8")
MISSING = "## Not here, and why"
LISTED_IN_LIMITS = "## Methods of the literature that are not here"
GROUPS = ("architectures", "callbacks", "factories", "loggers", "misc", "readers", "scorers")
CODE = re.compile(r"`([^`]+)`")
SETTING = re.compile(r"([a-z_.]+) = (.+)")
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of all rows of all tables, without the rows of headings."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in cells if row[0] not in ("method", "pitfall")]


ROWS, ABSENT = (rows_of(text) for text in PAGE.split(MISSING))


@cache
def named() -> dict[str, Any]:
    """Return all registered functions and classes, by their short names without versions."""
    loaded = [_group(f"spacy_{group}") for group in GROUPS]
    return {_short(name).split(".")[0]: made for group in loaded for name, made in group.items()}


def unknown(cell: str) -> list[str]:
    """Return the code spans of a cell that name nothing that exists.

    A span may name a registered function, a setting, a recipe, a Python object or a command.
    """
    codes = CODE.findall(cell)
    settings: dict[str, set[Any]] = {}
    for code in codes:
        if code in named():
            settings |= settings_of(named()[code])
    if "crf_ner" in codes:
        settings |= {f"evidence.{each.name}": set() for each in fields(EvidenceSettings)}
    return [code for code in codes if not is_known(code, settings)]


def settings_of(maker: Any) -> dict[str, set[Any]]:
    """Return the settings of a registered function or class.

    Each has the values that its type allows, or an empty set if its type does not list any.
    """
    try:
        hints = get_type_hints(maker.__init__ if inspect.isclass(maker) else maker)
    except NameError:
        # Some types are imported for type checkers alone. This is so for corpus readers, whose
        # settings have no Literal.
        hints = {}
    return {name: literals(hints.get(name)) for name in inspect.signature(maker).parameters}


def literals(hint: Any) -> set[Any]:
    """Return the values of all ``Literal`` in a type."""
    parts = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
    return {value for part in parts for value in get_args(part)}


def is_known(code: str, settings: dict[str, set[Any]]) -> bool:
    """Return whether a code span names something that exists.

    Args:
        code: the span.
        settings: the values of each setting that the cell may mention, see :func:`settings_of`.
    """
    setting = SETTING.fullmatch(code)
    if setting:
        values = settings.get(setting[1])
        return values is not None and (not values or srsly.json_loads(setting[2]) in values)
    if code.startswith(("spacy ", "python -m ")):
        pages.check_command([*code.split(), "--help"])
        return True
    if "." in code:
        return pkgutil.resolve_name(code) is not None
    return code in named() or code in recipes.names()


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 100 and len(ABSENT) > 10
    assert {len(row) for row in ROWS} == {4} and {len(row) for row in ABSENT} == {3}


@pytest.mark.parametrize("row", [*ROWS, *ABSENT], ids=lambda row: row[0])
def test_what_a_row_names_exists(row: list[str]) -> None:
    assert [code for cell in row for code in unknown(cell)] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_last_cell_of_a_method_has_recipes_and_links_alone(row: list[str]) -> None:
    shown = CODE.findall(row[-1])
    assert shown or LINK.search(row[-1])
    assert set(shown) <= set(recipes.names())


@pytest.mark.parametrize(
    "cell",
    [
        "`SparseMapp`",
        "`SparseMAP`, `margin = 1`",
        '`MonotoneAlignment`, `moves = "waltz"`',
        "`crf_ner`, `evidence.flagged = 1`",
        "`Marginals`, `evidence.flags = 1`",
        "`demo_x`",
    ],
)
def test_what_does_not_exist_is_found(cell: str) -> None:
    assert len(unknown(cell)) == 1


def slug(heading: str) -> str:
    """Return the anchor that the site gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def test_links_lead_to_sections() -> None:
    for target, anchor in LINK.findall(PAGE):
        path = DOCS / target if target else DOCS / "methods.md"
        assert path.is_file(), target
        # The sections of reference.md do not exist before the site is built.
        if anchor and target != "reference.md":
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf8"), re.M)
            assert anchor in {slug(heading) for heading in headings}, f"{target}#{anchor}"


KINDS: tuple[Callable[[], dict[str, Any]], ...] = (
    registered.structures,
    registered.graphs,
    registered.constraints,
    registered.estimators,
    registered.stages,
    registered.composers,
    registered.scorers,
    registered.bounds,
    registered.decoders,
    registered.priors,
)


def test_every_registered_method_has_a_row() -> None:
    """A row has the method's name in the literature, its source, and a recipe or a page."""
    variates = registered._registered(
        lambda made: inspect.isclass(made) and issubclass(made, ControlVariate)
    )
    wanted = {_short(name) for found in (variates, *(kind() for kind in KINDS)) for name in found}
    given = {code for row in ROWS for code in CODE.findall(row[2])}
    assert wanted - given == set()


def test_methods_that_limits_lists_are_in_the_last_table() -> None:
    limits = (DOCS / "limits.md").read_text(encoding="utf8").split(f"{LISTED_IN_LIMITS}\n")[1]
    listed = {name.rstrip(".,") for name in re.findall(r"^- \*\*(.+?)\*\*(?!\*)", limits, re.M)}
    assert listed and listed <= {row[0] for row in ABSENT}
