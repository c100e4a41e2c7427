"""Labels, names and words with markup or control characters, of great length or number."""

from __future__ import annotations

import io
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from thinc.api import Adam

from spacy_latent.cli.corpus import lines_of_stdin
from spacy_latent.cli.messages import Messages
from spacy_latent.cli.progress import Stages
from spacy_latent.cli.sources import print_table
from spacy_latent.visualize import render
from tests.cli.commands import latent
from tests.pipeline.small_pipelines import TOK2VEC, initialized, learn

HOSTILE = (
    "<script>alert(1)</script>",
    "x" * 10_000,
    "\x1b[31mred\x07\x00",
    "two\nlines\tand a tab",
    "\u202eto the left",
    "'\"&<>]]>-->",
    "</title></svg><h1>",
    "&#27;",
)
FURTHER = [f"label {i} of hundreds" for i in range(120)]
# Characters that HTML does not allow, and one that reverses the direction of the text.
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def docs(nlp: Language) -> list[Doc]:
    made = []
    for i, label in enumerate(HOSTILE):
        words = [f"word{i}", "<b>", "\x1b[2J", f"name{i}", "&amp;"]
        doc = Doc(nlp.vocab, words=words, sent_starts=[True, *[False] * 4])
        doc.ents = [Span(doc, 3, 4, label=label)]
        doc.spans["sc"] = [Span(doc, 3, 4, label=label)]
        made.append(doc)
    return made


@pytest.fixture(scope="module", params=["crf_ner", "tree_spancat"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The component's name, and a directory with a pipeline and texts."""
    nlp = spacy.blank("en")
    pipe: Any = nlp.add_pipe(request.param, config={"model": {"tok2vec": TOK2VEC}})
    for label in FURTHER:
        pipe.add_label(label)
    gold = docs(nlp)
    sample = [Example(Doc(nlp.vocab, words=[token.text for token in doc]), doc) for doc in gold]
    initialized(nlp, sample=sample)
    optimizer = Adam(0.03)
    learn(nlp, sample, 25, optimizer)
    found = pipe(Doc(nlp.vocab, words=[token.text for token in gold[0]]))
    spans = found.ents if request.param == "crf_ner" else found.spans["sc"]
    # Check that there is something to draw.
    assert HOSTILE[0] in [span.label_ for span in spans]
    path = tmp_path_factory.mktemp(request.param)
    nlp.to_disk(path / "model")
    DocBin(docs=gold).to_disk(path / "texts.spacy")
    return request.param, path


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.attributes: list[str] = []
        self.titles = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.titles += tag == "h1"
        self.attributes += [value for _, value in attrs if value]


def check_page(page: str) -> Elements:
    assert not FORBIDDEN.search(page)
    assert "alert(1)</script>" not in page and len(page) < 3_000_000
    elements = Elements()
    elements.feed(page)
    assert elements.titles <= 1
    assert not any(FORBIDDEN.search(value) for value in elements.attributes)
    return elements


def test_pages_are_well_formed(trained: Any) -> None:
    name, path = trained
    page = path / "page.html"
    latent("render", path / "model", path / "texts.spacy", page)
    drawn = page.read_text(encoding="utf8")
    check_page(drawn)
    assert "&lt;script&gt;" in drawn
    if name == "crf_ner":
        latent("report", path / "model", path / "texts.spacy", page)
        check_page(page.read_text(encoding="utf8"))


def test_the_terminal_is_not_steered(trained: Any) -> None:
    _, path = trained
    printed = latent("show", path / "model", "word2 <b> \x1b[2J name2 &amp;").output
    # Remove the colours of messages.
    printed = re.sub(r"\x1b\[(38;5;\d+|[01])m", "", printed)
    assert "name2" in printed and not FORBIDDEN.search(printed)


def test_names_of_sources_do_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"label": HOSTILE[2], "precision": 0.5, "recall": 0.5, "tokens": 3.0}
    print_table([{"source": source, **row} for source in HOSTILE], ("source", "label"))
    printed = capsys.readouterr().out
    assert "to the left" in printed and not FORBIDDEN.search(printed)


def test_values_of_a_config_do_not_steer_the_terminal(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("ner", name=f"ner{HOSTILE[2]}", config={"model": {"tok2vec": TOK2VEC}})
    nlp.config["paths"]["train"] = HOSTILE[4]
    nlp.config.to_disk(tmp_path / "a.cfg")
    printed = latent("init", tmp_path / "a.cfg", tmp_path / "a b's.cfg", "--for", "entities").output
    # Remove the colours of messages.
    printed = re.sub(r"\x1b\[(38;5;\d+|[01])m", "", printed)
    assert "red" in printed and not FORBIDDEN.search(printed)
    (command,) = (line for line in printed.splitlines() if line.startswith("spacy train"))
    assert shlex.split(command)[2] == str(tmp_path / "a b's.cfg")


def test_the_progress_of_a_pipeline_does_not_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages = Stages()
    stages.begin(f"Loading {HOSTILE[2]}")
    list(stages([1, 2], f"Predicting {HOSTILE[4]}", 2))
    printed = capsys.readouterr().err
    assert "red" in printed and "to the left" in printed and not FORBIDDEN.search(printed)


@pytest.mark.parametrize("value", ["", "1"])
def test_messages_have_no_colours_if_the_environment_says_so(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ANSI_COLORS_DISABLED", raising=False)
    monkeypatch.setenv("NO_COLOR", value)
    Messages().good("done")
    assert ("\x1b" in capsys.readouterr().out) == (not value)


def test_labels_for_screen_readers_have_no_control_characters() -> None:
    nlp = spacy.blank("en")
    name = 'of\x07\x85mine\u202e<b>"'
    config = {"model": {"tok2vec": TOK2VEC}, "annotate": "probabilities"}
    nlp.add_pipe("latent_textcat", name=name, config=config)
    initialized(nlp)
    page = render([nlp("I like \x00 London\n\nand\tParis")], page=True, jupyter=False)
    elements = check_page(page)
    assert any("mine" in value and "Paris" in value for value in elements.attributes)


@pytest.mark.parametrize("terminal", [True, False])
def test_who_sits_at_a_terminal_is_told_that_texts_are_waited_for(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message says that the command waits for texts, which would otherwise look like a hang."""
    given = io.StringIO("one\ntwo\n")
    monkeypatch.setattr(given, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr("sys.stdin", given)
    assert list(lines_of_stdin()) == ["one", "two"]
    printed = capsys.readouterr()
    assert printed.out == "" and ("one per line" in printed.err) == terminal
