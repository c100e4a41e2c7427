"""``spacy latent show`` on each kind of structure."""

from __future__ import annotations

import re
from typing import Any

import pytest
import spacy
import srsly

from spacy_latent.pipeline.learnt_calibration import EntityCalibration
from spacy_latent.pipeline.learnt_parse_calibration import ParseCalibration
from tests.cli.commands import latent, said
from tests.pipeline.small_pipelines import TOK2VEC, initialized, latent_pipeline

TEXT = "I like London"


def layer(structure: str, scorer: str, composer: str, **options: Any) -> dict[str, Any]:
    named = {"structure": structure, "scorer": scorer, "composer": composer}
    blocks = {key: {"@misc": f"spacy-latent.{name}.v1"} for key, name in named.items()}
    blocks["structure"].update(options)
    return {"tok2vec": TOK2VEC, **blocks}


MODELS = {
    "heads": {"tok2vec": TOK2VEC},
    "items": layer("KOfN", "ItemScorer", "Selection", k=2),
    "spans": layer("ConstituencyTree", "SpanScorer", "SpanAttention"),
    "tags": layer("LinearChain", "TransitionScorer", "TagEmbedding"),
}
CALIBRATIONS = {
    "crf_ner": EntityCalibration(temperature=2.0),
    "latent_parser": ParseCalibration(temperature=2.0),
    "tree_spancat": EntityCalibration(temperature=2.0),
}


@pytest.fixture(scope="module", params=MODELS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    nlp = latent_pipeline("textcat", encoder={"model": MODELS[request.param]})
    initialized(nlp)
    path = tmp_path_factory.mktemp(request.param)
    nlp.to_disk(path)
    return request.param, path, nlp(TEXT)._.latent["latent_encoder"]


def show(*arguments: Any, lines: str | None = None) -> str:
    return latent("show", *arguments, text=lines).output


def test_json_is_the_annotation(saved: Any) -> None:
    kind, path, latent = saved
    shown = srsly.json_loads(show(path, TEXT, "--json", "-k", 2))
    assert shown["tokens"] == TEXT.split()
    entry = shown["latent"]["latent_encoder"]
    (span,) = entry["spans"]
    assert span["kind"] == kind and span["decoded"] == latent.spans[0].decoded.tolist()
    assert len(span["alternatives"]) == 2 and span["alternatives"][0][kind] == span["decoded"]
    if kind == "heads":
        assert entry["heads"] == latent.heads.tolist()
    elif kind == "tags":
        assert entry["tags"] == latent.tags.tolist()
    elif kind == "spans":
        brackets = [(b.start, b.end) for b in latent.brackets()]
        assert [(start, end) for start, end, _ in entry["brackets"]] == brackets
        assert len(brackets) == 5
    else:
        assert [token for token, _ in entry["items"]] == [item.token for item in latent.items()]


def test_an_empty_line_has_the_keys_of_others(saved: Any) -> None:
    _, path, _ = saved
    shown = show(path, "--json", lines=f"{TEXT}\n\n")
    other, empty = (srsly.json_loads(line)["latent"] for line in shown.splitlines())
    entry = empty["latent_encoder"]
    assert entry.keys() == other["latent_encoder"].keys()
    assert all(value == [] for value in entry.values())


def test_json_lists_all_parts_above_a_threshold(saved: Any) -> None:
    kind, path, _ = saved
    entry = srsly.json_loads(show(path, TEXT, "--json", "-t", 0.2))["latent"]["latent_encoder"]
    form = {"heads": "arcs", "items": "items", "spans": "brackets"}
    assert all(part[-1] >= 0.2 for part in entry["probable"])
    if kind == "tags":
        assert all(len(part) == 3 and part[0] < 3 for part in entry["probable"])
    else:
        likely = [part for part in entry[form[kind]] if part[-1] >= 0.2]
        assert likely and all(part in entry["probable"] for part in likely)
    certain, every = (
        srsly.json_loads(show(path, TEXT, "--json", "-t", least))["latent"]["latent_encoder"]
        for least in (0.999, 0.0)
    )
    assert len(certain["probable"]) < len(entry["probable"]) <= len(every["probable"])


def test_a_text_without_words_is_said_to_have_none(saved: Any) -> None:
    assert "no words in this text" in show(saved[1], "")


def test_no_text_makes_no_page(saved: Any, tmp_path: Any) -> None:
    page = tmp_path / "page.html"
    page.write_text("earlier", encoding="utf8")
    show(saved[1], "-", "--html", page, lines="")
    assert page.read_text(encoding="utf8") == "earlier"


def test_the_name_of_a_file_is_no_text(saved: Any, tmp_path: Any) -> None:
    path = tmp_path / "texts.txt"
    path.write_text(TEXT, encoding="utf8")
    told = said("show", saved[1], path, code=1)
    assert "- <" in told and "is a file; expected a text" in told


def test_alternatives_of_what_has_none_are_refused(tmp_path: Any) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("tree_spancat", config={"model": {"tok2vec": TOK2VEC}}).add_label("NP")
    initialized(nlp)
    nlp.to_disk(tmp_path)
    told = said("show", tmp_path, TEXT, "-k", 2, code=1)
    assert "tree_spancat has no alternative structures" in told
    assert "tree_spancat" in show(tmp_path, TEXT)


def test_terminal_and_page(saved: Any, tmp_path: Any) -> None:
    kind, path, _ = saved
    page = tmp_path / "page.html"
    shown = show(path, TEXT, "--threshold", 0.05, "--html", page)
    for word in TEXT.split():
        assert word in shown
    if kind == "items":
        assert len(re.findall(r"\[\w+ \d\.\d\d\]", shown)) == 2
    marks = {"heads": "displacy-arc", "items": "<mark", "tags": "sl-tag", "spans": "sl-bracket"}
    assert marks[kind] in page.read_text(encoding="utf8")


def test_components_that_write_themselves(tmp_path: Any) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"annotate": "none"})
    nlp.add_pipe("latent_textcat", config={"model": {"tok2vec": TOK2VEC}})
    initialized(nlp)
    nlp.to_disk(tmp_path)
    shown = show(tmp_path, TEXT, "--threshold", 0.01, "--html", tmp_path / "page.html")
    assert "crf_ner" in shown and "latent_textcat" in shown
    entry = srsly.json_loads(show(tmp_path, TEXT, "--json", "-k", 2))["latent"]
    for name in ("crf_ner", "latent_textcat"):
        assert len(entry[name]["spans"][0]["alternatives"]) == 2
    assert all(len(entity) == 4 for entity in entry["crf_ner"]["entities"])
    empty = srsly.json_loads(show(tmp_path, "", "--json"))["latent"]
    assert empty["crf_ner"] == {"tags": [], "entities": [], "labels": [], "spans": []}
    assert empty["latent_textcat"] == {"heads": [], "arcs": [], "spans": []}
    html = (tmp_path / "page.html").read_text(encoding="utf8")
    assert "crf_ner · TagSequence" in html and "displacy-arc" in html


@pytest.mark.parametrize("factory", ["crf_ner", "latent_parser", "tree_spancat"])
def test_probabilities_that_are_not_calibrated_are_said_to_be(factory: str, tmp_path: Any) -> None:
    """The terminal and the pages of show and render say so, but not for other components."""
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_textcat", config={"model": {"tok2vec": TOK2VEC}})
    pipe: Any = nlp.add_pipe(factory)
    if factory == "tree_spancat":
        pipe.add_label("NP")
    initialized(nlp)
    for calibration in (None, CALIBRATIONS[factory]):
        pipe.calibration = calibration
        nlp.to_disk(tmp_path / "model")
        shown = show(tmp_path / "model", TEXT, "--html", tmp_path / "shown.html")
        (tmp_path / "texts.txt").write_text(TEXT, encoding="utf8")
        render = ["render", tmp_path / "model", tmp_path / "texts.txt", tmp_path / "drawn.html"]
        latent(*render)
        pages = [(tmp_path / f"{name}.html").read_text("utf8") for name in ("shown", "drawn")]
        for text in (" ".join(shown.split()), *pages):
            assert (f"{factory} are as trained" in text) == (calibration is None)
            assert text.count("as trained") == (calibration is None)
        # The output for one component has no message on the others.
        alone = show(tmp_path / "model", TEXT, "--component", "latent_textcat")
        assert "as trained" not in alone


@pytest.mark.parametrize("command", ["show", "explain"])
def test_empty_standard_input_is_told(command: str, saved: Any) -> None:
    result = latent(command, saved[1], "--json", text="")
    assert not result.stdout and "no text" in result.stderr
