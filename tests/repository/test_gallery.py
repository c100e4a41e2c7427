"""The pictures of docs/gallery.md match assets/gallery.json, and the page shows all of them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from tests.repository import gallery
from tests.repository.pages import ROOT


def test_the_pictures_are_those_of_what_was_found() -> None:
    for path, picture in gallery.pictures().items():
        ElementTree.fromstring(picture)
        assert path.read_text(encoding="utf8") == picture, "run python -m tests.repository.drawings"


def test_the_page_shows_every_picture() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf8")
    shown = re.findall(r"images/(gallery_\w+\.svg)", page)
    assert sorted(shown) == sorted(path.name for path in gallery.pictures())
