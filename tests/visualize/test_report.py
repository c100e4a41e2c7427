"""The page of a report is complete, runs no code of the texts, and has a bounded size."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import srsly
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_latent.analysis.calibration import entity_figures
from spacy_latent.analysis.figures import Figures, TaskFigures
from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.cli.stats import print_statistics
from spacy_latent.evaluation.assessment import Assessment, assess
from spacy_latent.visualize.charts import bar, curves, histogram
from spacy_latent.visualize.elements import Markup, data_block, tag, text
from spacy_latent.visualize.report import render_report
from tests.pipeline.keyword_pipelines import CHOICE, TREE, keyword_examples, keyword_pipeline

NASTY = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!--",
    "\"'&<b>",
    "\x00\x1b[31m",
    "\u202eabc\u2028x",
    "   ",
    "&amp;",
    "日本",
    "javascript:alert(1)",
]
LOG = [
    {"step": 0, "losses": {"textcat": 1.0}, "scores": {"cats_score": 10.0, "score": 0.1}},
    {"step": 500, "losses": {"textcat": 0.5}, "scores": {"cats_score": 90.0, "score": 0.9}},
]


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def names(self) -> set[str]:
        return {name for name, _ in self.found}


def gallery(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="gallery-data">(.*?)</script>', page)
    assert found
    return srsly.json_loads(found[1])


@pytest.fixture(scope="module")
def nlp() -> Language:
    return keyword_pipeline(TREE, steps=20)


@pytest.fixture(scope="module")
def page(nlp: Language) -> str:
    found = assess(nlp, keyword_examples(nlp, 40), others={"twin": nlp})
    return render_report(found, model="a/model", corpus="dev.spacy", training=LOG)


def test_numbers_of_structures_can_be_read(
    nlp: Language, capsys: pytest.CaptureFixture[str]
) -> None:
    found = assess(nlp, keyword_examples(nlp, 4), random=False)
    (part,) = found.figures.components.values()
    row = replace(part.statistics["effective number"], quartiles=[12.5, 7.9e249, 3e251], high=1e252)
    part.statistics["effective number"] = row
    page = render_report(found, model="a", corpus="b")
    assert ">10^250</td>" in page and "12.50 to 10^251" in page
    print_statistics(part)
    shown = capsys.readouterr().out
    assert "10^250" in shown and "to 10^252" in shown and "e+" not in page + shown


@pytest.mark.parametrize(("low", "told"), [(-0.13, False), (0.01, True)])
def test_a_drop_whose_interval_holds_0_is_not_told_as_one(
    nlp: Language, low: float, told: bool
) -> None:
    found = assess(nlp, keyword_examples(nlp, 4))
    (part,) = found.figures.components.values()
    (measure,) = part.random
    part.random[measure] = replace(part.random[measure], drop=0.02, low=low, high=0.14)
    page = render_report(found, model="a", corpus="b")
    assert ("Drop: 2.0 points" in page) == told
    assert ("No certain drop" in page) != told


def test_one_text_is_not_called_several(nlp: Language) -> None:
    found = assess(nlp, keyword_examples(nlp, 1), random=False)
    page = render_report(found, model="a", corpus="b")
    assert "1 doc, " in page and "; trees of 1 span" in page
    assert not re.search(r"\b1 (docs|spans|trees|texts)\b", page)


def test_the_page_says_it_all_in_one_file(page: str) -> None:
    for heading in (
        "Do predictions depend on them?",
        "How much of them follows a simple pattern?",
        "Statistics",
        "Agreement with the heads of the references",
        "By relation",
        "Agreement between models",
        "Scores",
        "Training",
        "Gallery",
    ):
        assert f">{heading}<" in page
    elements = Elements(page)
    assert page.startswith("<!DOCTYPE html>")
    for name, attributes in elements.found:
        assert "src" not in attributes, "nothing is loaded"
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(key.startswith("on") for key in attributes), "no inline handlers"
        if name == "svg":
            assert attributes.get("aria-label") or attributes.get("aria-hidden")
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert re.search(r"default-src &#x27;none&#x27;", page)


def test_the_verdict_comes_first(page: str) -> None:
    body = page[page.index("<body>") :]
    verdict = body.index('class="verdict')
    assert verdict < body.index("<h2>")
    assert "Random trees in the place of the single best ones" in body[verdict : verdict + 2000]
    answer = body.index("Do the trees help? Not tested.")
    assert answer < verdict and "spacy latent control CONFIG" in body[answer:verdict]


def test_the_answer_of_controls_stands_above_all(nlp: Language) -> None:
    examples = keyword_examples(nlp, 40)
    weak = keyword_pipeline(TREE, steps=0)
    found = assess(nlp, examples, controls={"<weak>": [weak, nlp]}, random=False)
    page = render_report(found, model="m", corpus="c")
    assert "<weak>" not in page and "&lt;weak&gt;: another pipeline" in page
    section = page[page.index('id="help"') - 200 : page.index('class="verdict')]
    assert "mean of 2 trainings" in section and "two standard deviations" in section
    assert "spacy latent control" not in section


def test_the_gallery_holds_the_structures(nlp: Language, page: str) -> None:
    data = gallery(page)
    assert data["layers"] == [{"name": "latent_encoder", "kind": "heads"}]
    assert data["numbers"] == list(range(1, 41))
    (example,) = keyword_examples(nlp, 1)
    doc = nlp(example.predicted)
    packed, gold, label, percent, score, heads, (layer,) = data["docs"][0]
    assert packed == " ".join(token.text for token in doc)
    assert gold == "good" and label == max(doc.cats, key=lambda name: doc.cats[name])
    assert percent == round(100 * doc.cats[label]) and score == float(label == "good")
    assert heads == [token.head.i for token in example.reference]
    (((start, end, decoded, percents),), entropy, depth, agreement) = layer
    annotation = doc._.latent["latent_encoder"]
    assert (start, end) == (0, len(doc)) and decoded == annotation.spans[0].decoded.tolist()
    assert len(percents) == len(doc) and entropy >= 0 and depth >= 0
    right = sum(own == ref for own, ref in zip(annotation.heads.tolist(), heads))
    assert agreement == round(100 * right / len(doc))


def test_the_agreement_of_a_text_leaves_out_ignored_tokens(nlp: Language) -> None:
    examples = keyword_examples(nlp, 1)
    words = [token.text for token in examples[0].reference]
    found = assess(nlp, examples, ignore=words[1:], random=False)
    ((_, _, _, agreement),) = gallery(render_report(found, model="m", corpus="c"))["docs"][0][6]
    doc, reference = found.examples[0].predicted, found.examples[0].reference
    counted = [token.i for token in doc if token.text not in words[1:]]
    heads = doc._.latent["latent_encoder"].heads
    right = [heads[i] == reference[i].head.i for i in counted]
    assert counted and agreement == round(100 * sum(right) / len(right))
    found = assess(nlp, keyword_examples(nlp, 1), ignore=words, random=False)
    data = gallery(render_report(found, model="m", corpus="c"))
    assert data["docs"][0][6][0][3] is None


def test_the_number_of_a_regression_is_no_percentage(nlp: Language) -> None:
    found = assess(nlp, keyword_examples(nlp, 2), random=False)
    for example in found.examples:
        example.predicted.cats = {"stars": 3.7}
        example.reference.cats = {"stars": 4.0}
    _, gold, label, percent, *_ = gallery(render_report(found, model="m", corpus="c"))["docs"][0]
    assert (gold, label, percent) == ("stars 4", "stars 3.7", None)


def test_a_number_below_1_of_a_regression_is_no_percentage_either(nlp: Language) -> None:
    @Language.component("stars", assigns=["doc.cats"])
    def stars(doc: Doc) -> Doc:
        doc.cats["stars"] = 0.7
        return doc

    example, unknown = keyword_examples(nlp, 2)
    example.reference.cats["stars"] = 0.8
    nlp.add_pipe("stars", first=True)
    try:
        pipe: Any = nlp.get_pipe("stars")
        pipe.labels, pipe.cfg = ("stars",), {"score_range": [0.0, 5.0]}
        found = assess(nlp, [example, unknown], random=False)
    finally:
        nlp.remove_pipe("stars")
    found.examples[1].predicted.cats = {}
    shown, empty = gallery(render_report(found, model="m", corpus="c"))["docs"]
    assert shown[1:4] == ["stars 0.8", "stars 0.7", None] and empty[2:4] == [None, None]


def test_the_gallery_has_labels_of_the_first_classifier(nlp: Language) -> None:
    @Language.component("sure", assigns=["doc.cats"])
    def sure(doc: Doc) -> Doc:
        doc.cats["long"] = 1.0
        return doc

    (example,) = keyword_examples(nlp, 1)
    example.reference.cats["long"] = 1.0
    nlp.add_pipe("sure", last=True)
    try:
        nlp.get_pipe("sure").labels = ("long",)  # type: ignore[attr-defined]
        found = assess(nlp, [example], random=False)
    finally:
        nlp.remove_pipe("sure")
    _, gold, label, percent, *_ = gallery(render_report(found, model="m", corpus="c"))["docs"][0]
    (whole,) = keyword_examples(nlp, 1)
    cats = nlp(whole.predicted).cats
    assert label == max(cats, key=cats.__getitem__) and percent == round(100 * cats[label])
    assert gold == "good"


def test_markup_in_texts_labels_and_names_is_inert(nlp: Language) -> None:
    doc = Doc(nlp.vocab, words=NASTY)
    reference = doc.copy()
    for token in reference:
        token.head, token.dep_ = reference[0], f"<i>{token.i}"
    reference.cats = {"<u>good": 1.0, "bad": 0.0}
    found = assess(nlp, [Example(doc, reference)] * 2)
    page = render_report(found, model="<script>m</script>", corpus="\x00<b>", training=LOG)
    assert page.count("<script") == 2 and page.count("</script>") == 2
    assert not Elements(page).names() & {"img", "b>", "i", "u", "iframe", "object"}
    assert "\x00" not in page and "\x1b" not in page and "<!--" not in page.split("</style>")[1]
    assert "\u2028" not in page
    assert gallery(page)["docs"][0][0] == NASTY, "and yet the texts are there as they are"


def test_other_kinds_and_texts_without_anything() -> None:
    chosen = keyword_pipeline(CHOICE, steps=2)
    page = render_report(assess(chosen, keyword_examples(chosen, 8)), model="m", corpus="c")
    data = gallery(page)
    assert data["layers"][0]["kind"] == "items"
    ((_, _, items, percents),) = data["docs"][0][6][0][0]
    assert len(items) == len(percents) == 1
    empty = [Example(chosen.make_doc(t), chosen.make_doc(t)) for t in ("", "one")]
    page = render_report(assess(chosen, empty), model="m", corpus="c")
    assert gallery(page)["docs"][0][0] == "" and "no references" in page
    # Controls for other kinds of parts are not mentioned.
    assert "1,000 resamples" in page and "left-branching" not in page and "same word" not in page


def test_a_large_gallery_is_thinned_and_says_so(nlp: Language) -> None:
    found = assess(nlp, keyword_examples(nlp, 60), random=False)
    whole = render_report(found, model="m", corpus="c")
    assert "at equal distances" not in whole
    small = render_report(found, model="m", corpus="c", gallery_bytes=4000)
    data = gallery(small)
    kept = len(data["docs"])
    assert 5 < kept < 60 and f"holds {kept} of the 60 docs" in small
    assert data["numbers"][0] == 1 and data["numbers"][-1] == 60
    assert len(srsly.json_dumps(data["docs"])) < 4100


@pytest.mark.parametrize(
    ("nouns", "title", "told"),
    [
        (["entity"], "Entities of", "each entity that"),
        (["span"], "Spans of", "each span that"),
        (["arc", "labelled arc", "tree"], "Parses of", "each arc that"),
        (["entity", "arc", "tree"], "Entities and parses of", "each entity and arc that"),
    ],
)
def test_a_report_on_confidences_names_what_it_is_about(
    nouns: list[str], title: str, told: str
) -> None:
    judged = {noun: JudgedEntities([0.9, 0.2], [True, False], gold=2, noun=noun) for noun in nouns}
    figures = Figures(1, 2, ["some"], TaskFigures())
    figures.entities = {noun: entity_figures(found) for noun, found in judged.items()}
    page = render_report(Assessment(figures, {}, [], [], [], []), model="a", corpus="b")
    assert f"<h1>{title} " in page and told in page
    # No doc is drawn in such a page.
    assert "drawn" not in page


def test_markup_escapes_what_is_not_markup() -> None:
    made = tag("p", "<b>", Markup("<i>x</i>"), None, ["&", 3], class_='a"b', hidden=True, id=None)
    assert made == '<p class="a&quot;b" hidden>&lt;b&gt;<i>x</i>&amp;3</p>'
    assert tag("meta", name="x") == '<meta name="x">' and text("\x00\x1b") == "\ufffd\ufffd"
    block = data_block("d", ["</script>", "<!--", "&", "\u2028"])
    assert not re.search(r"</script>.*</script>|<!--|&|\u2028", block)
    with pytest.raises(ValueError):
        data_block("d", float("nan"))


def test_charts() -> None:
    assert histogram([1, 2, 0], "0", "1").count("<rect") == 3 and "histogram from" in histogram(
        [], "0", "1"
    )
    assert bar(float("nan")).count("<rect") == 1 and "whisker" in bar(0.5, 0.4, 0.6)
    drawn = curves(
        "Scores", [0, 10], {"a": [0.0, 1.0], "<b>": [float("nan"), 2.0], "c": [float("nan")] * 2}
    )
    assert drawn.count("<polyline") == 2 and "&lt;b&gt;" in drawn
    # The drawing is wide enough for a long name.
    long = curves("Loss", [0, 1], {"latent_encoder_supervision": [1.0, 0.25]})
    (across,) = re.findall(r'viewBox="0 0 (\d+) ', long)
    (begin,) = re.findall(r'x="(\d+)"[^>]*>latent_encoder_supervision 0.25', long)
    assert int(across) - int(begin) >= 31 * 0.6 * 12
