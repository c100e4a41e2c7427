"""A report is drawn, searched, sorted and zoomed in a browser without console messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_latent.evaluation.assessment import assess
from spacy_latent.visualize.report import render_report
from tests.models import pair_pipelines as aligned_pairs
from tests.pipeline.keyword_pipelines import CHOICE, TREE, keyword_examples, keyword_pipeline
from tests.visualize.browser import requests, script, texts_of, wait_for
from tests.visualize.test_report import LOG, NASTY

DOCS = 60


@pytest.fixture(scope="module")
def nlp() -> Language:
    return keyword_pipeline(TREE, steps=12)


@pytest.fixture(scope="module")
def opened(
    driver: Any, nlp: Language, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    folder = tmp_path_factory.mktemp("pages")

    def open_page(examples: list[Example], pipeline: Language | None = None, **options: Any) -> Any:
        assessment = assess(pipeline or nlp, examples, random=False, **options)
        page = folder / f"{len(list(folder.iterdir()))}.html"
        page.write_text(
            render_report(assessment, model="m", corpus="c", training=LOG), encoding="utf8"
        )
        requests(driver)
        driver.get(page.as_uri())
        return page

    return open_page


def choose(driver: Any, name: str, value: str, event: str = "change") -> None:
    driver.execute_script(
        "const node = document.getElementById(arguments[0]); node.value = arguments[1];"
        "node.dispatchEvent(new Event(arguments[2]));",
        name,
        value,
        event,
    )


# A selector of the words of a drawing, without its labels and weights.
WORDS = "text:not(.small, .percent)"


def cards(driver: Any) -> list[str]:
    return texts_of(driver, ".card header span:first-child")


def test_the_gallery(
    driver: Any, opened: Callable[..., Any], nlp: Language, tmp_path: Path
) -> None:
    examples = keyword_examples(nlp, DOCS)
    page = opened(examples)
    assert script(driver, "document.getElementById('status').textContent") == "60 of 60 docs"
    assert len(cards(driver)) < DOCS, "what is far below is not drawn"
    first = texts_of(driver, f".card:first-child svg {WORDS}")
    assert first == [token.text for token in examples[0].reference]
    percents = texts_of(driver, ".card:first-child :is(g:not(.gold) > .small, .percent)")
    assert len(percents) == len(first)
    assert all(re.fullmatch(r"(root )?\d+ %", percent) for percent in percents)
    driver.execute_script("document.getElementById('end').scrollIntoView()")
    wait_for(lambda: len(cards(driver)) > 20)

    word = examples[7].reference[0].text
    wanted = [i for i, e in enumerate(examples) if word in e.reference.text]
    choose(driver, "query", word.upper(), "input")
    wait_for(
        lambda: (
            script(driver, "document.getElementById('status').textContent")
            == f"{len(wanted)} of 60 docs"
        )
    )
    assert cards(driver)[:5] == [f"doc {i + 1}" for i in wanted[:5]]
    choose(driver, "query", "no such words", "input")
    wait_for(lambda: not cards(driver))
    assert script(driver, "document.querySelector('.empty') !== null")
    choose(driver, "query", "", "input")
    wait_for(lambda: cards(driver))

    choose(driver, "sort", "length")
    lengths = [len(e.reference) for e in examples]
    assert cards(driver)[0] == f"doc {lengths.index(min(lengths)) + 1}"
    driver.find_element("id", "down").click()
    assert cards(driver)[0] == f"doc {lengths.index(max(lengths)) + 1}"
    assert driver.find_element("id", "down").get_attribute("aria-pressed") == "true"

    choose(driver, "show", "wrong")
    shown = script(driver, "document.querySelectorAll('.card .right').length")
    assert shown == 0
    choose(driver, "show", "all")

    width = "document.querySelector('.card svg').getBoundingClientRect().width"
    before = script(driver, width)
    choose(driver, "zoom", "200", "input")
    assert script(driver, width) == pytest.approx(2 * before, rel=0.01)
    assert script(driver, "document.getElementById('percent').textContent") == "200 %"

    gold = "document.querySelectorAll('.card .gold').length"
    assert script(driver, gold) > 0
    driver.find_element("id", "gold").click()
    assert script(driver, gold) == 0

    assert driver.get_log("browser") == []
    assert requests(driver) == [page.as_uri()]
    driver.save_screenshot(str(tmp_path / "page.png"))
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_tables_are_sorted(driver: Any, opened: Callable[..., Any], nlp: Language) -> None:
    opened(keyword_examples(nlp, 20))
    cells = (
        "[...document.querySelectorAll('th button')[1].closest('table').tBodies[0].rows]"
        ".map(row => Number(row.cells[1].dataset.value))"
    )
    button = driver.find_elements("css selector", "th button")[1]
    button.click()
    assert script(driver, cells) == sorted(script(driver, cells), reverse=True)
    button.click()
    assert script(driver, cells) == sorted(script(driver, cells))
    assert button.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"


def test_trap_16_markup_is_inert(driver: Any, opened: Callable[..., Any], nlp: Language) -> None:
    driver.execute_script("window.alert = () => {}")
    doc, reference = Doc(nlp.vocab, words=NASTY), Doc(nlp.vocab, words=NASTY)
    for token in reference:
        token.head, token.dep_ = reference[0], "<img src=x onerror=document.title='hit'>"
    reference.cats = {"<script>document.title='hit'</script>": 1.0, "good": 0.0}
    page = opened([Example(doc, reference)] * 2)
    assert script(driver, "document.title") == "Latent structures of m"
    assert (
        script(driver, "document.querySelectorAll('img, iframe, .card script, .card b b').length")
        == 0
    )
    texts = texts_of(driver, f".card:first-child svg {WORDS}")
    # The page shows a replacement character for characters that change the direction of text.
    shown = [word.replace("\u202e", "\ufffd") if word.strip() else "␣" for word in NASTY]
    assert texts == shown
    assert driver.get_log("browser") == [] and requests(driver) == [page.as_uri()]


def test_other_kinds_are_drawn(driver: Any, opened: Callable[..., Any]) -> None:
    chosen = keyword_pipeline(CHOICE, steps=2)
    opened(keyword_examples(chosen, 6), chosen)
    assert script(driver, "document.querySelectorAll('.card mark').length") == 6
    blocks = {
        "tags": {"LinearChain": ("TransitionScorer", "TagEmbedding")},
        "segments": {"SemiMarkov": ("SegmentScorer", "SegmentAttention")},
        "spans": {"ConstituencyTree": ("SpanScorer", "SpanAttention")},
    }
    for kind, block in blocks.items():
        ((structure, (scorer, composer)),) = block.items()
        names = {"structure": structure, "scorer": scorer, "composer": composer}
        parts = {name: {"@misc": f"spacy-latent.{value}.v1"} for name, value in names.items()}
        other = keyword_pipeline({"tok2vec": CHOICE["tok2vec"], **parts}, steps=0)
        opened(keyword_examples(other, 2), other)
        where = ".card svg .arc" if kind == "spans" else ".card .block"
        assert script(driver, f"document.querySelectorAll('{where}').length") > 1, kind
        assert driver.get_log("browser") == []


def test_alignments_are_drawn_between_two_texts(driver: Any, opened: Callable[..., Any]) -> None:
    pairs = aligned_pairs.trained(aligned_pairs.pipeline(), steps=2)
    examples = aligned_pairs.examples(pairs)
    opened(examples, pairs)
    (first,) = pairs(examples[0].predicted)._.latent[aligned_pairs.NAME].spans
    assert script(
        driver, "document.querySelector('.card svg').querySelectorAll('.cell').length"
    ) == len(first.decoded)
    texts = texts_of(driver, ".card:first-child svg text")
    assert texts == [token.text for token in examples[0].reference]
    assert driver.get_log("browser") == []


def test_long_sentences_are_drawn_in_rows(
    driver: Any, opened: Callable[..., Any], nlp: Language
) -> None:
    words = [f"word{i}" for i in range(90)]
    opened([Example(Doc(nlp.vocab, words=words), Doc(nlp.vocab, words=words))])
    boxes = script(
        driver,
        "[...document.querySelectorAll('.card .rows svg')].map(n => n.getAttribute('viewBox'))",
    )
    pieces = [tuple(map(float, box.split())) for box in boxes]
    assert len(pieces) > 3 and all(piece[2] <= 900 for piece in pieces)
    assert all(a[0] + a[2] == pytest.approx(b[0]) for a, b in zip(pieces, pieces[1:]))
    assert driver.get_log("browser") == []


def places(driver: Any, selector: str) -> list[float]:
    """Return the middles of the nodes that a selector matches."""
    nodes = f"[...document.querySelectorAll({selector!r})]"
    middle = "box => (box.left + box.right) / 2"
    found: list[float] = script(
        driver, f"{nodes}.map(node => node.getBoundingClientRect()).map({middle})"
    )
    return found


@pytest.mark.parametrize("settings", [TREE, CHOICE])
def test_words_run_in_the_direction_of_their_language(
    driver: Any, opened: Callable[..., Any], settings: dict[str, Any]
) -> None:
    pipeline = keyword_pipeline(settings, steps=1)
    shown = f".card:first-child :is(svg {WORDS}, .words > bdi)"
    hebrew, english = "הילד הלך לבית הספר אתמול".split(), "it is good fun today".split()
    for words, to_left in ((english, False), (hebrew, True)):
        given = [Doc(pipeline.vocab, words=words, heads=[0] * 5, deps=["dep"] * 5) for _ in "12"]
        opened([Example(*given)], pipeline)
        found = places(driver, shown)
        assert texts_of(driver, shown) == words and found == sorted(found, reverse=to_left)
        # Each arc stays at its words, and no label leaves the drawing.
        box = script(driver, "document.querySelector('.drawing').getBoundingClientRect().toJSON()")
        labels = places(driver, ".card:first-child svg :is(.small, .percent)")
        assert all(box["left"] < x < box["right"] for x in labels)
        heads = places(driver, ".card:first-child svg g:not(.gold) > .head")
        assert all(min(abs(x - word) for word in found) < 6 for x in heads)
        assert len(heads) == (len(words) if settings is TREE else 0)
        assert driver.get_log("browser") == []


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_sticks_out(
    driver: Any, opened: Callable[..., Any], nlp: Language, width: int
) -> None:
    # A verdict names the long settings of the control.
    opened(keyword_examples(nlp, 30), controls={"control": [keyword_pipeline(CHOICE, steps=1)]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert script(driver, "document.documentElement.scrollWidth") <= width
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
