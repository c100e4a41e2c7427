"""Pages follow displaCy: page, minify, jupyter, wrapper, serving, options. Colours are legible."""

from __future__ import annotations

import itertools
import re
import sys
import threading
import types
import urllib.request

import numpy as np
import pytest
from spacy import displacy
from spacy.tokens import Doc

from spacy_latent.errors import LatentError
from spacy_latent.visualize import drawing, palette, render, render_svg, serve
from spacy_latent.visualize.page import heading
from spacy_latent.visualize.picture import HOSTS
from tests.visualize.structures import annotated, every_kind

TREE = annotated("heads", [2, 0], words=["a", "b"])
ITEMS = annotated("items", [1], words=["a", "b"])


def test_one_picture_is_an_svg_and_more_are_a_page():
    assert render(TREE, jupyter=False).startswith("<svg xmlns")
    assert render([TREE, TREE], jupyter=False).startswith("<div")
    page = render([TREE, ITEMS, TREE], page=True, jupyter=False)
    assert page.startswith("<!DOCTYPE html>") and page.count("<style>") == 1
    assert page.count("<svg") == 2 and page.count("<mark") == 1 and page.count("<figure") == 3
    assert "http" not in page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert render([], jupyter=False) == "" and "<body" in render([], page=True, jupyter=False)


def test_minified_is_the_same_on_one_line():
    for doc in every_kind(["a", "b    c", "\n", "d"]).values():
        page, small = (render(doc, page=True, minify=m, jupyter=False) for m in (False, True))
        assert "\n" in page and "\n" not in small
        assert page.replace("\n", "") == small


def test_a_page_says_what_is_seen_and_explains_its_lines():
    doc = annotated("heads", [2, 0], {(2, 1): 0.75, (0, 2): 0.75, (0, 1): 0.25}, words=["a", "<b>"])
    plain, more = (
        render(doc, page=True, jupyter=False, options={"threshold": least}) for least in (None, 0.2)
    )
    title = "What encoder found in “a &lt;b&gt;”"
    assert f"<title>{title}</title>" in plain and f"<h1>{title}</h1>" in plain
    assert "What encoder found in 2 texts</h1>" in render([doc, doc], page=True, jupyter=False)
    assert plain.index("<h1") < plain.index("arrows lead from a word") < plain.index("<figure")
    for sign in ("from a head to a word", "probability; lines"):
        assert plain.count(sign) == 1
    assert "not in the best structure" in more and "not in the best structure" not in plain
    assert "as in the first" not in more
    # Tags have no arrows, so their page needs no legend.
    tags = render(annotated("tags", [0, 1], words=["a", "b"]), page=True, jupyter=False)
    assert 'sl-legend"' not in tags
    own = render(doc, page=True, jupyter=False, title="Mine", opening=heading("Mine", "Seen."))
    assert "<title>Mine</title>" in own and own.count("<h1") == 1 and "arrows lead" not in own


@pytest.mark.parametrize("light, dark", HOSTS)
def test_drawings_take_the_scheme_of_the_notebook_around_them(light, dark):
    """The scheme of a notebook may differ from the system's."""
    rules = render(TREE, jupyter=False)
    for host, ink in ((light, palette.COLORS["ink"][0]), (dark, palette.COLORS["ink"][1])):
        (rule,) = re.findall(re.escape(f"{host} .spacy-latent") + r"[^{]*\{([^}]*)\}", rules)
        assert f"--sl-ink:{ink}" in rule


def test_pages_print_as_dark_on_light_and_nothing_is_cut():
    page = render(TREE, page=True, jupyter=False)
    printed = "".join(re.findall(r"@media print\{((?:[^{}]*\{[^{}]*\})*[^{}]*)\}", page))
    assert f"--sl-ink:{palette.COLORS['ink'][0]}" in printed and "overflow:visible" in printed
    assert "min-width:0" in printed and "break-inside:avoid" in printed


def test_the_same_structure_gives_the_same_picture():
    assert render(TREE, jupyter=False) == render(TREE, jupyter=False)


def test_notebooks(monkeypatch):
    shown = []
    module = types.ModuleType("IPython.display")
    module.HTML = str
    module.display = shown.append
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    assert render(TREE, jupyter=True) is None
    assert shown[0].startswith('<span class="tex2jax_ignore"><div') and "sl-scroll" in shown[0]
    monkeypatch.setattr("spacy_latent.visualize.page.is_in_jupyter", lambda: True)
    assert render(ITEMS) is None and len(shown) == 2
    assert render(ITEMS, jupyter=False) and len(shown) == 2


@pytest.mark.parametrize("style", [None, "dep"])
def test_the_wrapper_of_displacy(monkeypatch, style):
    monkeypatch.setattr(displacy, "RENDER_WRAPPER", None)
    displacy.set_render_wrapper(lambda html: f"WRAPPED{html}DONE")
    html = render(TREE, style=style, jupyter=False)
    assert html.startswith("WRAPPED") and html.endswith("DONE") and html.count("WRAPPED") == 1


def test_serve(monkeypatch):
    from wsgiref import simple_server

    seen = {}
    make_server = simple_server.make_server

    def once(host, port, app):
        server = make_server(host, port, app)
        seen["host"], stop = host, server.server_close

        def read():
            with urllib.request.urlopen(f"http://{host}:{server.server_port}") as answer:
                seen["page"] = answer.read().decode("utf8")

        def serve_one():
            reader = threading.Thread(target=read)
            reader.start()
            server.handle_request()
            reader.join()
            raise KeyboardInterrupt

        server.serve_forever, server.server_close = serve_one, stop
        return server

    monkeypatch.setattr(simple_server, "make_server", once)
    serve([TREE, ITEMS], port=5765, auto_select_port=True)
    assert seen["host"] == "127.0.0.1"
    assert seen["page"] == render([TREE, ITEMS], page=True, jupyter=False)


@pytest.mark.parametrize(
    "style, mark", [("dep", "displacy-arc"), ("ent", "<mark"), ("span", "spans")]
)
def test_styles_of_displacy_itself(style, mark):
    doc = {"dep": TREE, "ent": ITEMS, "span": annotated("tags", [0, 1], words=["a", "b"])}[style]
    html = render(doc, style=style, jupyter=False, options={"threshold": None, "fold": 10})
    assert mark in html and "sl-" not in html
    with pytest.raises(LatentError, match="one"):
        render_svg(doc, style=style)


def test_spans_and_generators_are_drawn_and_others_refused():
    doc = Doc.from_docs([TREE, ITEMS])
    assert render(doc[0:2], jupyter=False).count("displacy-word") == 2
    assert render((one for one in [TREE, TREE]), jupyter=False).count("<svg") == 2
    with pytest.raises(LatentError, match=r"Doc.*Span"):
        render(["text"], jupyter=False)


def test_the_caption_says_what_the_text_was_classified_as():
    doc = annotated("items", [1], words=["a", "b"])
    doc.cats = {"<good>": 0.75, "bad": 0.25}
    html = render(doc, jupyter=False)
    assert "encoder · Some · predicted &lt;good&gt; (75\u202f%)<" in html and "bad" not in html


def test_the_caption_of_a_regression_is_no_probability():
    doc = annotated("items", [1], words=["a", "b"])
    doc.cats = {"similarity": 3.5}
    html = render(doc, jupyter=False)
    assert "predicted similarity (3.5)<" in html and "350" not in html


@pytest.mark.parametrize(
    "options, said",
    [
        ({"treshold": 0.1}, "treshold"),
        ({"threshold": 2}, "threshold"),
        ({"fold": 0}, "fold"),
        ({"fold": "wide"}, "fold"),
        ({"alternatives": -1}, "alternatives"),
        ({"color": "red;}</style><script>"}, "'color'"),
        ({"bg": "url(x)"}, "'bg'"),
        ({"colors": {"1": "expression(1)"}}, "'1'"),
        ({"font": 'x";'}, "font"),
        ({"font": 3}, "font"),
        ({"color": 3}, "'color'"),
        ({"colors": ["red"]}, "colors"),
        ({"threshold": "0.5"}, "threshold"),
        ({"threshold": float("nan")}, "threshold"),
        ({"alternatives": "2"}, "alternatives"),
        ({"alternatives": 1.5}, "alternatives"),
        ({"distance": "wide"}, "distance"),
        ({"arrow_stroke": "thick"}, "arrow_stroke"),
        ({"compact": "no"}, "compact"),
        ({"probabilities": "no"}, "probabilities"),
    ],
)
def test_bad_options_are_said(options, said):
    with pytest.raises(LatentError, match=said):
        render(TREE, jupyter=False, options=options)


def test_an_identifier_occurs_once_in_a_page_of_equal_texts():
    long = annotated("heads", range(80), words=["word"] * 80)
    docs = [TREE, long, TREE, TREE, long]
    page = render(docs, page=True, jupyter=False)
    found = re.findall(' id="([^"]*)"', page)
    assert len(found) == len(set(found)) == 3 * 5 + 2
    for used in re.findall('labelledby="([^"]*)"', page):
        assert set(used.split()) <= set(found)
    assert set(re.findall('href="#([^"]*)"', page)) <= set(found)


def test_options_of_displacy_mean_the_same():
    svg = render(
        TREE,
        jupyter=False,
        options={"color": "#aa0000", "bg": "white", "font": "Georgia, serif", "collapse_punct": 1},
    )
    assert 'stroke="#aa0000"' in svg and 'fill="white"' in svg
    assert 'font-family="Georgia, serif"' in svg
    assert "--sl-ink:#aa0000" in svg and "--sl-ground:white" in svg

    def width(**options):
        pictures = drawing.make_figures(
            [TREE], None, None, drawing.DrawingOptions.from_options(options), None
        )
        return pictures[0].pictures[0].size[0]

    assert width(distance=200) > width() > width(compact=True)
    page = render(TREE, page=True, jupyter=False, options={"bg": "#fafafa"})
    assert "--sl-ground:#fafafa" in page


def test_both_schemes_are_there():
    for markup in (render(TREE, jupyter=False), render(TREE, page=True, jupyter=False)):
        assert "prefers-color-scheme:dark" in markup
        assert palette.COLORS["ground"][1] in markup


def linear(color: str) -> np.ndarray:
    """Convert a hexadecimal sRGB colour to linear light."""
    values = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours by WCAG 2."""
    a, b = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (first, second))
    return (b + 0.05) / (a + 0.05)


@pytest.mark.parametrize("dark", [0, 1])
def test_text_and_lines_stand_out_from_the_ground(dark):
    colors = {name: pair[dark] for name, pair in palette.COLORS.items()}
    assert contrast(colors["ink"], colors["ground"]) >= 7
    assert contrast(colors["muted"], colors["ground"]) >= 4.5
    for name in ("accent", "contrast"):
        assert contrast(colors[name], colors["ground"]) >= 3


# Matrices in linear light for complete protanopia, deuteranopia and tritanopia: Machado, Oliveira
# and Fernandes (2009), "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# table 1.
DEFICIENCIES = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_colours_stay_apart_for_colour_blind_readers(deficiency):
    def seen(color):
        light = np.clip(np.array(DEFICIENCIES[deficiency]) @ linear(color), 0, 1)
        return np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)

    for dark in (0, 1):
        accent, other = (palette.COLORS[name][dark] for name in ("accent", "contrast"))
        assert np.abs(seen(accent) - seen(other)).sum() > 0.5
    for first, second in itertools.combinations(palette.CATEGORIES, 2):
        assert np.abs(seen(first) - seen(second)).sum() > 0.14
