"""The code of docs/drawing.md runs, and its pictures are those that are shipped."""

from xml.etree import ElementTree

from tests.drawings import PICTURES, pictures, run_page


def test_the_code_of_the_page_runs():
    scope = run_page()
    assert str(scope["html"]).count("<svg") == 3
    assert "<table" in str(scope["table"]) and str(scope["marked"]).count("<mark") == 2


def test_the_shipped_pictures_are_those_of_the_page():
    made = pictures()
    assert len(made) == len(PICTURES)
    for path, picture in made.items():
        ElementTree.fromstring(picture)
        assert path.read_text(encoding="utf8") == picture, "run python -m tests.drawings"
