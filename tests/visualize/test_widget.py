"""The widget is one page with the precomputed predictions after an edit of each part."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from spacy.language import Language

from spacy_latent.errors import LatentError
from spacy_latent.evaluation.counterfactuals import counterfactual
from spacy_latent.interventions import Intervention
from spacy_latent.visualize import explore
from spacy_latent.visualize.explorer import Limits, TooMuch
from tests.models import pair_pipelines as pairs
from tests.pipeline import test_crf_ner as crf
from tests.pipeline.keyword_pipelines import TREE, keyword_pipeline
from tests.visualize.browser import chromium, requests
from tests.visualize.structures import INJECTIONS

KEY, TEXT = "latent_encoder", "good filler1 filler2 bad"


@pytest.fixture(scope="module")
def nlp() -> Language:
    # Few steps of training leave several trees probable.
    return keyword_pipeline({**TREE, "estimator": {"@misc": "spacy-latent.Marginals.v1"}}, steps=4)


def lines(page: str) -> list[str]:
    """Return the texts of all summaries."""
    found = re.findall(r"<summary>(.*?)</summary>", page)
    return [unescape(re.sub(r"<[^>]*>", "", one)) for one in found]


def test_each_line_is_what_the_pipeline_would_predict(nlp: Language) -> None:
    widget = explore(nlp, TEXT)
    doc = nlp(TEXT)
    (span,) = doc._.latent[KEY].spans
    words = ["root", *TEXT.split()]
    found = lines(widget.page)
    for word, head in enumerate(span.decoded.tolist(), 1):
        with counterfactual(nlp, {KEY: Intervention(forbidden=((0, (head, word)),))}):
            cats = nlp(TEXT).cats
        best = max(cats, key=lambda label: cats[label])
        points = f"{100 * (cats[best] - doc.cats[best]):+.1f}".replace("-", "−")
        (line,) = [one for one in found if one.startswith(f"{words[word]} <- {words[head]} ")]
        assert line.endswith(f"forbidden: {best} {100 * cats[best]:.1f} % ({points})")
    # Other probable parts have an entry in which they are forced.
    assert len([line for line in found if ", forced: " in line]) > 2
    assert nlp(TEXT).cats == doc.cats


def test_no_more_parts_than_asked_for(nlp: Language) -> None:
    assert len(lines(explore(nlp, TEXT, most=3).page)) == 3
    assert "3 of " in explore(nlp, TEXT, most=3).page
    assert not lines(explore(nlp, TEXT, most=0).page)


def test_entities_and_pairs() -> None:
    entities = explore(crf.trained(), "I like London a lot", most=6).page
    assert any("no category and no entity" in line for line in lines(entities))
    nlp = pairs.trained(pairs.pipeline(), steps=2)
    page = explore(nlp, ["the dog runs", "the dog runs fast"], most=4).page
    assert any(line.startswith("dog ~ dog") for line in lines(page))
    with pytest.raises(LatentError, match=r"two.*1"):
        explore(nlp, "the dog runs")


def test_sentences_about_a_text_from_right_to_left_keep_their_order(nlp: Language) -> None:
    page = explore(nlp, "ذهب الولد إلى المدرسة", most=2).page
    assert "rtl" not in page[page.index("<html") : page.index("<head")]
    figures = re.findall("<figure ([^>]*)>", page)
    assert figures and all('dir="rtl"' in figure for figure in figures)


def test_what_cannot_be_explored_says_so(nlp: Language) -> None:
    with pytest.raises(LatentError, match=r"'ner'.*latent_encoder"):
        explore(nlp, TEXT, "ner")
    with pytest.raises(TooMuch, match="tokens"):
        explore(nlp, "a " * 400)
    with pytest.raises(TooMuch):
        explore(nlp, TEXT, limits=Limits(tokens=2))
    with pytest.raises(LatentError, match=r"one.*2"):
        explore(nlp, [TEXT, TEXT])
    assert "Predicted" in explore(nlp, "").page


def test_a_hostile_text_cannot_leave_its_place(nlp: Language) -> None:
    text = " ".join(word for word in INJECTIONS if word != "\ud800")
    widget = explore(nlp, text, most=2)
    assert widget.page.count("<script") == 1 and "<img" not in widget.page
    frame = widget._repr_html_()
    assert frame.count("<") == 2 and 'sandbox="allow-scripts"' in frame


def test_in_a_browser(nlp: Language, tmp_path: Path) -> None:
    with chromium(tmp_path / "profile") as driver:
        (tmp_path / "notebook.html").write_text(
            f"<!DOCTYPE html><body>{explore(nlp, TEXT)._repr_html_()}", encoding="utf8"
        )
        requests(driver)
        address = (tmp_path / "notebook.html").as_uri()
        driver.get(address)
        driver.switch_to.frame(0)
        word = driver.find_element("css selector", '.drawing [data-word="0"]')
        run: Any = driver.execute_script
        # A script cannot move the focus into a frame before the user clicks on it.
        driver.find_element("css selector", "body").click()
        run("arguments[0].focus()", word)
        standing = run(
            "return [...document.querySelectorAll('.isolating [data-words].of-word')]"
            ".map(part => part.dataset.words)"
        )
        assert standing and all("0" in one.split() for one in standing)
        # The keyboard opens the details without a script.
        summary = driver.find_element("css selector", "summary")
        summary.send_keys("\ue007")
        assert driver.find_element("css selector", "details[open] svg").is_displayed()
        assert run("return document.documentElement.scrollWidth <= window.innerWidth")
        assert set(requests(driver)) <= {address, "about:srcdoc"}
        assert driver.get_log("browser") == []


@pytest.mark.parametrize(
    ("text", "arrow"), [("good fun today", "\ue014"), ("הילד הלך אתמול", "\ue012")]
)
def test_arrow_keys_go_where_they_point(
    nlp: Language, tmp_path: Path, text: str, arrow: str
) -> None:
    """The next word is to the right, or to the left where writing runs to the left."""
    page = explore(nlp, text, most=0).save(tmp_path / "page.html")
    with chromium(tmp_path / "profile") as driver:
        driver.get(Path(page).as_uri())
        driver.find_element("css selector", "body").click()
        first = driver.find_element("css selector", '[data-word="0"]')
        driver.execute_script("arguments[0].focus()", first)
        first.send_keys(arrow)
        assert driver.execute_script("return document.activeElement.dataset.word") == "1"
