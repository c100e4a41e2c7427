"""Drawings run no code of the text, have a bounded size, and agree with the structure."""

import re
import warnings
from xml.etree import ElementTree

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc

from spacy_latent.annotations import SpanStructure, write
from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.kinds import Kind, find_kind, register_kind
from spacy_latent.visualize import make_drawings, render, render_svg
from spacy_latent.visualize.terminal import format_annotation
from tests.visualize import structures

NASTY = [
    "<script>alert(1)</script>",
    "\"'&<b>",
    "\x00\x1b[31m",
    "\u202eabc",
    "   ",
    "&amp;",
    "日本",
]


def make_doc(words, heads, **options):
    doc = Doc(spacy.blank("xx").vocab, words=words)
    span = SpanStructure(
        0, len(words), "SpanningTree", "heads", np.array(heads, dtype="int32"), **options
    )
    write(doc, "latent_encoder", [span])
    return doc


def test_trap_16_markup_in_the_text_is_inert():
    doc = make_doc(NASTY, [0, 1, 2, 3, 4, 5, 6])
    for page in (False, True):
        html = render(doc, page=page, jupyter=False)
        assert "<script" not in html and "<b>" not in html and "&lt;script&gt;" in html
    text = format_annotation(doc._.latent["latent_encoder"])
    assert "\x1b" not in text and "\x00" not in text and len(text.splitlines()) == len(NASTY)


def test_arcs_are_those_of_the_tree_and_point_to_modifiers():
    doc = make_doc(["a", "b", "c"], [2, 0, 2])
    (drawing,) = make_drawings(doc)
    arcs = {(arc["start"], arc["end"], arc["dir"]) for arc in drawing["arcs"]}
    assert arcs == {(0, 1, "left"), (1, 2, "right")}
    assert [word["tag"] for word in drawing["words"]] == ["", "root", ""]


def test_trap_16_a_threshold_never_draws_every_arc_of_a_long_sentence():
    n = 30
    parts = np.array([(h, m) for h in range(1, n + 1) for m in range(1, n + 1) if h != m])
    doc = make_doc(
        ["w"] * n,
        [0, *range(1, n)],
        parts=parts.astype("int32"),
        probabilities=np.full(len(parts), 0.03, dtype="float32"),
    )
    svg = render(doc, options={"threshold": 0.01}, jupyter=False)
    assert svg.count('class="displacy-arc"') <= 3 * n
    assert int(re.findall(r'height="([\d.]+)"', svg)[0].split(".")[0]) < 10_000


def test_white_space_is_seen_in_gold_trees_too():
    doc = make_doc(["a", " "], [0, 1])
    gold = Doc(doc.vocab, words=["a", " "], heads=[0, 0], deps=["ROOT", "x"])
    for drawing in make_drawings(doc, gold=gold):
        assert [word["text"] for word in drawing["words"]] == ["a", "␣"]


def test_alternatives_and_gold_are_drawn_below_each_other():
    alternatives = [
        (np.array([0, 1], dtype="int32"), 0.75),
        (np.array([2, 0], dtype="int32"), 0.25),
    ]
    doc = make_doc(["a", "b"], [0, 1], alternatives=alternatives)
    assert [d["title"] for d in make_drawings(doc, alternatives=2)] == [
        "weight of this structure 0.75",
        "weight of this structure 0.25",
    ]
    gold = Doc(doc.vocab, words=["a", "b"], heads=[1, 1], deps=["x", "ROOT"])
    assert [d["title"] for d in make_drawings(doc, gold=gold)] == ["latent_encoder", "gold"]
    with pytest.raises(LatentError, match="tokenised"):
        render(doc, gold=[Doc(doc.vocab, words=["a"])], jupyter=False)


def test_what_cannot_be_drawn_is_said():
    doc = make_doc(["a"], [0])
    with pytest.raises(LatentError, match="'ner'"):
        render(doc, "ner", jupyter=False)
    with pytest.raises(LatentError, match="style"):
        render(doc, style="ent", jupyter=False)
    assert render(Doc(doc.vocab, words=["a"]), jupyter=False) == ""


def test_trees_in_the_terminal():
    doc = make_doc(["a", "b", "c"], [2, 0, 2])
    lines = format_annotation(doc._.latent["latent_encoder"]).splitlines()
    assert len(lines) == 3 and lines[0].split()[:2] == ["1", "b"]


def labelled_tree(probabilities=True):
    doc = Doc(spacy.blank("xx").vocab, words=["dogs", "bark", "<b>"])
    heads, labels = np.array([2, 0, 2], "int32"), np.array([1, 0, 2], "int32")
    span = SpanStructure(0, 3, "SpanningTree", "heads", heads)
    span.labels, span.arc_labels = ("ROOT", "nsubj", "<obj>"), labels
    if probabilities:
        span.parts = np.array([(2, 1), (0, 2), (2, 3), (1, 3)], "int32")
        span.probabilities = np.array([0.9, 1.0, 0.7, 0.3], "float32")
        rows = [(2, 1, 1), (2, 1, 2), (0, 2, 0), (2, 3, 2), (2, 3, 1), (1, 3, 1)]
        span.labelled_parts = np.array(rows, "int32")
        span.labelled_probabilities = np.array([0.6, 0.3, 1.0, 0.45, 0.25, 0.28], "float32")
        span.alternatives = [(heads, 0.7), (np.array([2, 0, 1], "int32"), 0.3)]
        span.alternative_labels = [labels, np.array([1, 0, 1], "int32")]
    write(doc, "parser", [span])
    return doc


def labels_of(drawn):
    return sorted(re.findall(r'<text class="displacy-label[^>]*>([^<]*)</text>', drawn))


def test_arcs_with_labels_are_drawn_with_them_and_the_probability_of_both():
    doc = labelled_tree()
    drawn = render(doc)
    assert labels_of(drawn) == ["&lt;obj&gt; 0.45", "nsubj 0.60", "root 1.00"]
    assert "<obj>" not in drawn and "bark → dogs (nsubj 0.60)" in drawn
    # Each arc is drawn once, with its most probable label.
    assert labels_of(render(doc, options={"threshold": 0.25})) == [
        "&lt;obj&gt; 0.45",
        "nsubj 0.28",
        "nsubj 0.60",
        "root 1.00",
    ]
    assert labels_of(render(doc, options={"threshold": 0.5})) == ["nsubj 0.60", "root 1.00"]
    assert "nsubj 0.28" in render(doc, options={"alternatives": 2})
    plain = render(labelled_tree(probabilities=False))
    assert ">nsubj<" in plain and "0." not in re.sub(r"<[^>]*>", "", plain)


def test_arcs_with_labels_in_the_terminal():
    annotation = labelled_tree()._.latent["parser"]
    tree, other = format_annotation(annotation, 0.25).split("\n\n")[::2]
    lines = [line.split() for line in tree.splitlines()]
    assert lines[1] == ["1", "bark", "ROOT", "1.00"]
    assert lines[2][-3:] == ["dogs", "nsubj", "0.60"] and lines[3][-2:] == ["<obj>", "0.45"]
    assert other.splitlines() == [
        "dogs <- bark  <obj>  0.30",
        "<b> <- dogs  nsubj  0.28",
        "<b> <- bark  nsubj  0.25",
    ]
    last = format_annotation(annotation).split("\n\n")[1]
    assert [line.split()[-2:] for line in last.splitlines()[1:]] == [
        ["ROOT", "1.00"],
        ["nsubj", "0.60"],
        ["nsubj", "0.28"],
    ]


def annotated(kind, decoded, parts=None, words=NASTY):
    doc = Doc(spacy.blank("xx").vocab, words=words)
    span = SpanStructure(0, len(words), "Some", kind, np.array(decoded, dtype="int32"))
    if parts is not None:
        span.parts = np.array(list(parts), dtype="int32")
        span.probabilities = np.array(list(parts.values()), dtype="float32")
    write(doc, "latent_encoder", [span])
    return doc


@pytest.mark.parametrize(
    "kind, decoded", [("items", [0, 1]), ("tags", range(7)), ("spans", [[0, 2], [0, 6]])]
)
def test_trap_16_markup_in_the_text_is_inert_in_every_style(kind, decoded):
    doc = annotated(kind, list(decoded))
    for page in (False, True):
        html = render(doc, page=page, jupyter=False)
        assert "<script" not in html and "<b>" not in html and "&lt;script&gt;" in html
    text = format_annotation(doc._.latent["latent_encoder"])
    assert "\x1b" not in text and "\x00" not in text


def test_structures_of_several_styles_share_a_page():
    items, tree = annotated("items", [1], words=["a", "b"]), make_doc(["a", "b"], [0, 1])
    html = render([items, tree, items], page=True, jupyter=False)
    assert html.count("<html") == html.count("<svg") == 1 and html.count("<mark") == 2
    with pytest.raises(LatentError, match="dep, ent"):
        render([items, tree], style="ent", jupyter=False)
    assert "<mark" in render(items, style="ent", jupyter=False)


def test_trap_16_a_threshold_never_draws_every_span_of_a_long_sentence():
    n = 30
    parts = {(i, j): 0.03 for j in range(n) for i in range(j)}
    doc = annotated("spans", [[0, n - 1]], parts, words=["w"] * n)
    (drawing,) = make_drawings(doc, threshold=0.01)
    assert len(drawing["spans"]) == 3 * n


def test_parts_that_nothing_is_known_of_have_a_row_each():
    parts = {(0, 1): 0.9, (2, 9): 0.4, (1, 2): 0.3}
    for kind in ("parts", "test_drawing.unregistered"):
        doc = annotated(kind, [[0, 1], [2, 9]], parts)
        drawn = render_svg(doc)
        root = ElementTree.fromstring(drawn)
        words = [n.text for n in root.iter() if "displacy-word" in n.get("class", "")]
        assert words == ["0 1", "2 9", "probability"]
        assert drawn == render_svg(doc, style="parts")
        more = render_svg(doc, options={"threshold": 0.2})
        assert "1 2 ~ probability (0.30)" in more and "1 2" not in drawn
    hard = render_svg(annotated("parts", [[0, 1]], words=["a", "b"]))
    assert ">chosen<" in hard and "0.9" not in hard
    # There is no token 99. Then parts are listed by their numbers, with the words of known tokens.
    html = render(annotated("parts", [[0], [99]]), jupyter=False)
    assert "<script" not in html and "0 &lt;script&gt;" in html and "<mark" not in html
    assert "<mark" in render(annotated("parts", [[0], [1]]), jupyter=False)


def test_alternatives_of_parts_have_the_same_rows():
    others = [(np.array([[0, 1]]), 0.6), (np.array([[1, 2]]), 0.3)]
    doc = structures.annotated("parts", [[0, 1]], alternatives=others)
    root = ElementTree.fromstring(render_svg(doc, options={"alternatives": 2}))
    words = [n.text for n in root.iter() if "displacy-word" in n.get("class", "")]
    assert words == ["0 1", "1 2", "chosen"] * 2


@pytest.mark.parametrize("style", [None, "tree", "rationale"])
def test_a_kind_without_the_drawing_is_told_how_to_register_it(style):
    asked = {"style": style} if style else {}
    register_kind(Kind("test_drawing.undrawn", drawings={}))
    for kind in ["test_drawing.undrawn", *(["test_drawing.x", "parts"] if style else [])]:
        doc = annotated(kind, [[0, 1]], words=["a", "b"])
        own = "windows" if kind == "parts" else kind
        named = rf"register_kind.*{own}.*{style or 'blocks'}"
        with pytest.raises(LatentError, match=named):
            render(doc, jupyter=False, **asked)
    for kind, decoded in (("heads", [0, 1]), ("items", [0])):
        if style and style not in find_kind(kind).drawings:
            with pytest.raises(LatentError, match="component"):
                render(annotated(kind, decoded, words=["a", "b"]), jupyter=False, **asked)
    with pytest.raises(LatentError, match=r"'rows'.*register_kind"):
        render(doc, jupyter=False, style="rows")


def test_what_has_no_drawing_is_said():
    doc = annotated("cells", [[0, 1]], words=["a", "b"])
    with pytest.raises(LatentError, match="other_start"):
        render(doc, jupyter=False)
    with pytest.raises(LatentError, match="displaCy"):
        render(doc, style="dep", jupyter=False)
    assert format_annotation(doc._.latent["latent_encoder"]) == "a ~ b"


def text_of(kind, decoded, parts=None, threshold=None):
    doc = annotated(kind, decoded, parts, words=["a", "bb", "c", "d"])
    return format_annotation(doc._.latent["latent_encoder"], threshold)


def test_other_structures_in_the_terminal():
    assert text_of("items", [1, 3]) == "a [bb] c [d]"
    assert text_of("items", [1], {(1,): 0.5, (2,): 0.25}, 0.2) == "a [bb 0.50] c d\n\nc  0.25"
    assert text_of("tags", [1, 0, 12, 3]) == "a  bb  c   d\n1  0   12  3"
    brackets = [[0, 0], [0, 1], [1, 1], [2, 3], [0, 3]]
    assert text_of("spans", brackets) == "((a bb) (c d))"
    assert text_of("spans", [[0, 1]], {(0, 1): 0.5}) == "(a bb) c d\n0.50  a bb"
    assert text_of("segments", [[0, 2, 7], [2, 4, 0]]) == "7  a bb\n0  c d"
    assert text_of("arcs", [[0, 1], [3, 1]]) == "a <- root\na <- c"
    assert text_of("parts", [[7, 8, 9]]) == "7 8 9"


def test_long_rows_are_broken():
    doc = annotated("tags", [0] * 60, words=["word"] * 60)
    lines = format_annotation(doc._.latent["latent_encoder"]).splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) % 2 == 0
    assert " ".join(lines[::2]).split() == ["word"] * 60


def test_entities_and_pairs_in_the_terminal():
    found = {"entity_probabilities": np.array([0.75]), "labels": ("O", "B-PER", "L-PER", "U-x\x1b")}
    alternatives = [(np.array([0, 1, 2, 0]), 0.5)]
    words = ["a", "b", "c", "d"]
    doc = structures.annotated("tags", [1, 2, 0, 0], words=words, **found)
    assert format_annotation(doc._.latent["encoder"]) == "[a b PER 0.75] c d"
    doc = structures.annotated("tags", [1, 2, 0, 0], alternatives=alternatives, **found)
    assert format_annotation(doc._.latent["encoder"]) == (
        "weight of this structure 0.50\na [b c PER] d"
    )
    named = structures.annotated("tags", [0, 1, 0, 1], labels=("N", "\x1b"))
    assert format_annotation(named._.latent["encoder"]).split()[4:] == ["N", r"'\x1b'"] * 2
    pair = structures.annotated("cells", [[0, 1]], end=2, other_start=2, other_end=4)
    assert format_annotation(pair._.latent["encoder"]) == "a ~ d"


@pytest.mark.parametrize("style", [None, "dep"])
def test_a_page_of_docs_without_structures_is_refused(style):
    """Docs have no structures if another component, such as textcat, holds the latent layer."""
    doc = Doc(spacy.blank("en").vocab, words=["a", "b"])
    for draw in (
        lambda: render(doc, style=style, page=True, jupyter=False),
        lambda: render_svg(doc),
    ):
        with pytest.raises(LatentError, match=r"inspect_docs\(nlp, docs\)"):
            draw()
    with pytest.raises(LatentError, match=r"'x'.*inspect_docs\(nlp, docs\)"):
        render(doc, "x", style=style, jupyter=False)
    write(doc, "x", [])
    assert "<html" in render(doc, style=style, page=True, jupyter=False)


def test_a_drawing_without_structures_is_warned_of_as_displacy_does():
    doc = Doc(spacy.blank("en").vocab, words=["a", "b"])
    with pytest.warns(LatentWarning, match="no latent structure"):
        assert render(doc, jupyter=False) == ""
    # The structure of a whole text cannot be cut.
    whole = structures.annotated("tags", [0, 1, 0, 1], labels=("N", "V"))
    with pytest.warns(LatentWarning, match="slice"):
        render(whole[:2], jupyter=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert render(whole[:], jupyter=False)
        render(Doc(doc.vocab), jupyter=False)


def test_small_weights_are_not_told_as_nothing():
    doc = Doc(spacy.blank("en").vocab, words=["a", "b"])
    trees = [np.array([0, 1], dtype="int32"), np.array([2, 0], dtype="int32")]
    span = SpanStructure(0, 2, "SpanningTree", "heads", trees[0])
    span.alternatives = [(trees[0], 0.004), (trees[1], 0.00032)]
    write(doc, "x", [span])
    shown = format_annotation(doc._.latent["x"])
    html = render(doc, page=True, jupyter=False, options={"alternatives": 2})
    for drawn in (shown, html, render_svg(doc, options={"alternatives": 2})):
        assert "structure 0.004" in drawn and "structure 0.0003" in drawn


LONG_WORD = "Donaudampfschifffahrtsgesellschaftskapitän" * 2


@pytest.mark.parametrize("svg", [False, True])
@pytest.mark.parametrize("style", [None, "heatmap"])
def test_a_shortened_word_is_whole_in_its_tooltip(style, svg):
    texts = ["one", "two", LONG_WORD, LONG_WORD]
    for kind, doc in structures.every_kind(texts).items():
        # Running text has all of each word.
        if kind == "items" or (style and kind in ("spans", "segments", "phrases")):
            continue
        drawn = render_svg(doc, style=style) if svg else render(doc, style=style, jupyter=False)
        tooltips = re.findall(r'(?:<title>|title=")([^<"]*)', drawn)
        assert LONG_WORD in tooltips
