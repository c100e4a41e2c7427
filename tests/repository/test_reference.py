"""The reference has an entry for each registered name. Building the site checks its links."""

from __future__ import annotations

import re

import pytest

from tests.matrix import registered
from tests.repository.pages import PAGES
from tests.repository.reference import _group, _short, _text, entries


@pytest.fixture(scope="module")
def reference() -> str:
    return entries()


def test_every_registered_name_has_one_entry(reference: str) -> None:
    factories = _group("spacy_factories")
    for name in (*registered._all(), *factories):
        assert reference.count(f"\n### {_short(name)}\n") == 1, name


def test_other_pages_link_to_sections_that_it_has(reference: str) -> None:
    """The section after the # of each link to the reference exists."""
    sections = {
        title.lower().replace(" ", "-") for title in re.findall(r"^## (.*)$", reference, re.M)
    }
    linked = {
        section
        for page in PAGES
        for section in re.findall(r"reference\.md#([\w-]+)", page.read_text(encoding="utf8"))
    }
    assert linked and linked <= sections


def test_experimental_names_have_a_section_of_their_own(reference: str) -> None:
    section = reference.split("\n## Experimental\n")[1].split("\n## ")[0]
    table = {line.split(" | ")[0].strip("| ") for line in section.splitlines() if "| " in line}
    named = {line.removeprefix("### ") for line in section.splitlines() if line[:4] == "### "}
    assert named and named <= table


def test_what_a_line_of_prose_begins_with_is_no_setting() -> None:
    def called(width: int) -> None:
        """Of random choices
        t: one after another.

        width: of each.
        RETURNS: nothing.
        """

    lines = _text(called, called).splitlines()
    assert lines[1] == "t: one after another."
    assert lines[3:] == ["- `width`: of each.", "- `RETURNS`: nothing."]


def test_every_setting_has_a_word_about_it(reference: str) -> None:
    """The text of an entry mentions each argument in its signature, except the model."""
    missing = []
    for section in reference.split("\n### ")[1:]:
        lines = section.splitlines()
        if len(lines) < 3 or not lines[2].startswith("`"):
            continue
        text = "\n".join(lines[3:])
        for setting in lines[2].split("`")[1::2]:
            name = setting.split(" = ")[0]
            if name != "model" and not re.search(rf"\b{name}\b", text):
                missing.append(f"{lines[0]}: {name}")
    assert missing == []
