"""Docstrings and pages follow the rules of CONTRIBUTING.md on openings and length of sentences."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "spacy_latent"
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


# Openings that no sentence of a docstring may have. "Whether ..." may open an entry of Returns.
INNER = re.compile(r"[*(\"“`]*(Of|What|Where|Which|As|Those)\b")
# Two pronouns without a noun between them ("that of those of"), and "but" as a preposition.
UNCLEAR = re.compile(r"\b(that|those) of (that|those)\b|\b(but|save) for\b", re.I)
# The name of an entry under Args, Attributes or Raises.
NAMED = re.compile(r"^ +\*{0,2}\w[\w, *]*: ", re.M)
SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):\n", re.M)


def sentences_of_docstring(said: str) -> list[str]:
    """Return the sentences of a docstring. An entry of a section begins a new sentence."""
    text = NAMED.sub("\n\n", SECTION.sub("\n\n", said))
    return sentences(text)


@cache
def unclear() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for said in docstrings(path):
            found.setdefault(folder_of(path), []).extend(
                f"{path.relative_to(ROOT)}: {one}"
                for one in sentences_of_docstring(said)
                if INNER.match(one) or UNCLEAR.search(one)
            )
    return found


def test_sentences_of_a_docstring() -> None:
    said = (
        "Return one. Of all, two.\n\nArgs:\n    a, b: Those which. A third\n        line.\n"
        "    *rest: four.\n\nReturns:\n    Five."
    )
    found = sentences_of_docstring(said)
    assert found == [
        "Return one.",
        "Of all, two.",
        "Those which.",
        "A third line.",
        "four.",
        "Five.",
    ]
    assert [bool(INNER.match(one)) for one in found] == [False, True, True, False, False, False]
    assert UNCLEAR.search("The length of those of that.")
    assert not UNCLEAR.search("The length is the length of that word, but forever.")


@pytest.mark.parametrize("folder", sorted({folder_of(path) for path in PACKAGE.rglob("*.py")}))
def test_no_sentence_of_a_docstring_opens_with_a_clause(folder: str) -> None:
    assert not unclear()[folder]


def undocumented_methods(source: str) -> dict[str, list[str]]:
    """Return the public methods without a docstring of their own, by public class of a module.

    A setter has the docstring of its property, and an overload of its function.
    """
    found: dict[str, list[str]] = {}
    for kind in ast.parse(source).body:
        if isinstance(kind, ast.ClassDef) and not kind.name.startswith("_"):
            said: dict[str, bool] = {}
            for method in kind.body:
                if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    has_own = ast.get_docstring(method) is not None
                    said[method.name] = said.get(method.name, False) or has_own
            found[kind.name] = [
                name
                for name, has_own in said.items()
                if not has_own and (name == "__call__" or not name.startswith("_"))
            ]
    return found


def inherits_docstring(kind: type, name: str) -> bool:
    """Return whether a base has a docstring for the method, or is a class of another package."""
    return any(
        bool(vars(base)[name].__doc__) or base.__module__.split(".")[0] != PACKAGE.name
        for base in kind.__mro__[1:]
        if name in vars(base)
    )


def test_undocumented_methods() -> None:
    source = (
        "class A:\n    def a(self): 'Told.'\n    def b(self): pass\n    def _c(self): pass\n"
        "    def __call__(self): pass\n    @property\n    def d(self): 'Told.'\n"
        "    @d.setter\n    def d(self, value): pass\n"
        "class _B:\n    def a(self): pass\n"
    )
    assert undocumented_methods(source) == {"A": ["b", "__call__"]}


def test_inherits_docstring() -> None:
    class Base:
        __module__ = f"{PACKAGE.name}.base"

        def told(self) -> None:
            """Told."""

        def untold(self) -> None:
            pass

    class Child(Base):
        __module__ = f"{PACKAGE.name}.child"

        def told(self) -> None:
            pass

        def untold(self) -> None:
            pass

        def __call__(self) -> None:
            pass

    names = ("told", "untold", "__call__")
    assert [inherits_docstring(Child, name) for name in names] == [True, False, False]
    # A method of a class of another package is documented there.
    foreign = type("Foreign", (Base,), {"__module__": "another", "untold": Base.untold})
    child = type("Own", (foreign,), {"__module__": f"{PACKAGE.name}.own"})
    assert inherits_docstring(child, "untold")


@pytest.mark.parametrize("folder", sorted({folder_of(path) for path in PACKAGE.rglob("*.py")}))
def test_public_methods_have_a_docstring(folder: str) -> None:
    """Each has its own or inherits one. Ruff checks functions, classes and modules."""
    lacking = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if folder_of(path) != folder:
            continue
        found = undocumented_methods(path.read_text(encoding="utf8"))
        if not any(found.values()):
            continue
        place = path.relative_to(ROOT).with_suffix("")
        module = import_module(".".join(place.parts).removesuffix(".__init__"))
        lacking += [
            f"{place}: {kind}.{name}"
            for kind, names in found.items()
            for name in names
            if not inherits_docstring(getattr(module, kind), name)
        ]
    assert not lacking


# ---------------------------------------------------------------- pages

PAGES = {
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/*.md", "configs/*.md", "spacy_latent/kernels/*/*.md")
    for path in ROOT.glob(pattern)
}
# Greatest allowed average number of words in a sentence.
LONGEST = 18.0
# Pages that are still to be rewritten, with their allowed average until then. Never add one.
UNFINISHED: dict[str, float] = {}
FENCED = re.compile(r"^( *)(```+|~~~+)[^\n]*\n.*?^\1\2 *$", re.M | re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
# Rows of tables, headings, pictures and horizontal rules.
NO_PROSE = re.compile(r"^ *(\||#|!\[|---).*$", re.M)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`]+`")
ITEM = re.compile(r"^ *(?:[-*+]|\d+\.) ", re.M)
END = re.compile(r"(?<=[.!?])[)\"”*]*\s+(?=\S)")
FRONTED = re.compile(r"[*(\"“]*(Of|What|Where|Which|As)\b")


def sentences(page: str) -> list[str]:
    """Return the sentences of a page in Markdown. A code span counts as one word."""
    text = COMMENT.sub("", FENCED.sub("\n\n", page))
    text = CODE.sub("`x`", LINK.sub(r"\1", NO_PROSE.sub("\n", text)))
    paragraphs = (" ".join(one.split()) for one in re.split(r"\n\s*\n", ITEM.sub("\n\n", text)))
    return [one for joined in paragraphs for one in END.split(joined) if re.search(r"\w", one)]


def average_length(found: list[str]) -> float:
    return sum(len(one.split()) for one in found) / max(len(found), 1)


def test_sentences_of_a_page() -> None:
    page = (
        "# A title\n\nOne two `three four` [five](six.md). Six\nseven! As eight:\n\n"
        "```text\nno. no.\n```\n<!-- no -->\n\n"
        "| no | no. |\n|---|---|\n\n- Nine ten\n- eleven (twelve.) Thirteen\n"
    )
    found = sentences(page)
    assert found[:3] == ["One two `x` five.", "Six seven!", "As eight:"]
    assert found[3:] == ["Nine ten", "eleven (twelve.", "Thirteen"]
    assert average_length(found) == 13 / 6
    assert [bool(FRONTED.match(one)) for one in found] == [False, False, True, False, False, False]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_pages_have_short_sentences(page: str) -> None:
    found = sentences((ROOT / page).read_text(encoding="utf8"))
    assert average_length(found) <= UNFINISHED.get(page, LONGEST), max(found, key=len)


@pytest.mark.parametrize("page", sorted(PAGES - set(UNFINISHED)))
def test_no_sentence_of_a_page_opens_with_a_clause(page: str) -> None:
    """A question may open with such a word."""
    found = sentences((ROOT / page).read_text(encoding="utf8"))
    wrong = [one for one in found if FRONTED.match(one) and not one.endswith("?")]
    assert not wrong, "Begin with the subject or the verb (CONTRIBUTING.md, Language)."


def test_unfinished_pages_are_there() -> None:
    assert set(UNFINISHED) <= PAGES
