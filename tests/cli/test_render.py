"""``spacy latent render``: inputs, outputs and exit codes."""

from __future__ import annotations

import os
import re
from io import StringIO
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import pytest
import spacy
import srsly
from click.testing import Result
from spacy.cli._util import app
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from typer.main import get_command

from spacy_latent.corpora.text_pairs import make_pair_doc
from spacy_latent.errors import LatentWarning
from tests.cli.commands import latent
from tests.cli.test_show import MODELS
from tests.pipeline.small_pipelines import TOK2VEC, initialized, latent_pipeline

TEXTS = ["I like London", "Berlin is <script>"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    paths = {}
    for name in ("heads", "items"):
        nlp = latent_pipeline("textcat", encoder={"model": MODELS[name]})
        initialized(nlp)
        paths[name] = tmp_path_factory.mktemp(name)
        nlp.to_disk(paths[name])
    return paths


@pytest.fixture(scope="module")
def inputs(models: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "texts.txt").write_text("\n\n".join(TEXTS) + "\n", encoding="utf8")
    srsly.write_jsonl(folder / "texts.jsonl", [{"text": text} for text in TEXTS])
    srsly.write_jsonl(folder / "bodies.jsonl", [{"body": text} for text in TEXTS])
    vocab = latent_pipeline().vocab
    tree = {"heads": [1, 1, 1], "deps": ["dep", "ROOT", "dep"]}
    docs = [Doc(vocab, words=text.split(), **tree) for text in TEXTS]  # type: ignore[arg-type]
    DocBin(docs=docs).to_disk(folder / "texts.spacy")
    DocBin(docs=[Doc(vocab, words=["no", "trees"])]).to_disk(folder / "plain.spacy")
    (folder / "broken.spacy").write_text("this is no DocBin")
    (folder / "empty.txt").write_text("\n")
    (folder / "marked.txt").write_bytes(f"\ufeff{TEXTS[0]}\r\n\r\n{TEXTS[1]}".encode())
    rows = "\n\n".join(srsly.json_dumps({"text": text}) for text in TEXTS)
    (folder / "marked.jsonl").write_bytes(f"\ufeff{rows}\n\n".encode())
    (folder / "wide.txt").write_bytes("\ufeffa\n".encode("utf-16-le"))
    (folder / "latin.jsonl").write_bytes('{"text": "é"}\n'.encode("latin1"))
    (folder / "table.csv").write_text("text,label\na,b\n")
    (folder / "table.TSV").write_text("text\tlabel\na\tb\n")
    return folder


def run(*arguments: Any, code: int = 0, stdin: str | None = None) -> Result:
    return latent("render", *arguments, code=code, text=stdin)


@pytest.mark.parametrize(
    "name", ["texts.txt", "texts.jsonl", "texts.spacy", "marked.txt", "marked.jsonl"]
)
def test_every_input_gives_a_page(models: Any, inputs: Any, tmp_path: Any, name: str) -> None:
    page = tmp_path / "deep" / "page.html"
    result = run(models["heads"], inputs / name, page)
    assert "Drawings of 2 texts saved" in result.output
    html = page.read_text(encoding="utf8")
    assert html.count("<svg") == 2 and "<script" not in html and "London" in html


@pytest.mark.parametrize("ending", ["spacy", "jsonl"])
def test_gold_labels_stand_beside_predicted_ones(models: Any, tmp_path: Any, ending: str) -> None:
    """Gold labels are always shown, and gold heads only on request."""
    vocab, cats = spacy.blank("en").vocab, {"good": 1.0, "bad": 0.0}
    tree = {"heads": [1, 1, 1], "deps": ["dep", "ROOT", "dep"]}
    docs = [Doc(vocab, words=text.split(), **tree) for text in TEXTS]  # type: ignore[arg-type]
    docs[0].cats = cats
    corpus, page = tmp_path / f"corpus.{ending}", tmp_path / "page.html"
    if ending == "spacy":
        DocBin(docs=docs).to_disk(corpus)
    else:
        # In the second line, "cats" has another meaning, and is ignored.
        lines = [{"text": TEXTS[0], "cats": cats}, {"text": TEXTS[1], "cats": ["cs.CL"]}]
        srsly.write_jsonl(corpus, lines)
    run(models["heads"], corpus, page)
    html = page.read_text(encoding="utf8")
    assert html.count("gold label good") == 1 and "as in gold" not in html
    first, second = re.findall("<figcaption>(.*?)</figcaption>", html)
    assert re.search(r"predicted \w+ \(.*\) · gold label good", first) and "gold" not in second
    if ending == "spacy":
        run(models["heads"], corpus, page, "--gold")
        html = page.read_text(encoding="utf8")
        assert html.count("gold label good") == 1 and html.count("as in gold") >= 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="without named pipes")
def test_texts_come_from_a_pipe(models: Any, tmp_path: Any) -> None:
    """A named pipe, such as a shell makes for <(command), is read only once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    texts = "\n".join(TEXTS)
    for command in ("render", "report"):
        writer = Thread(target=pipe.write_text, args=(texts,), kwargs={"encoding": "utf8"})
        writer.start()
        output = tmp_path / f"{command}.html"
        latent(command, models["heads"], pipe, output)
        writer.join()
        page = output.read_text(encoding="utf8")
        assert "Berlin" in page and "London" in page


def test_a_page_beside_gold_has_a_table_with_controls(
    models: Any, inputs: Any, tmp_path: Any
) -> None:
    page = tmp_path / "page.html"
    run(models["heads"], inputs / "texts.spacy", page, "--gold")
    html = page.read_text(encoding="utf8")
    assert html.index("<h1") < html.index("<svg") < html.index("<table")
    rows = dict(re.findall(r'<th scope="row">([^<]+)</th><td[^>]*>([\d.]+)%', html))
    # The control "flat" attaches all words to the first, and the gold trees to the second.
    assert rows["flat"] == "0.0" and {"latent_encoder", "random tree"} <= rows.keys()
    run(models["heads"], inputs / "texts.spacy", page)
    assert "<table" not in page.read_text(encoding="utf8")


def test_svg_with_gold_and_weights(models: Any, inputs: Any, tmp_path: Any) -> None:
    picture = tmp_path / "trees.svg"
    run(models["heads"], inputs / "texts.spacy", picture, "--gold", "-k", 2, "-t", 0.05)
    svg = picture.read_text(encoding="utf8")
    ElementTree.fromstring(svg)
    assert svg.count("of 3 arcs as in gold") == 4 and svg.count("weight of this structure ") == 4


def test_limit_style_and_key(models: Any, inputs: Any, tmp_path: Any) -> None:
    page = tmp_path / "page.html"
    options = ["--limit", 1, "--style", "heatmap", "--text-key", "body", "--minify"]
    result = run(models["heads"], inputs / "bodies.jsonl", page, *options)
    html = page.read_text(encoding="utf8")
    assert html.count("<svg") == 1 and "sl-cell" in html and "\n" not in html
    assert "give a higher --limit" in " ".join(result.output.split())


def test_a_value_that_is_no_text_is_told_with_its_line(models: Any, tmp_path: Any) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "a b"}\n{"text": 5}\n', encoding="utf8")
    result = run(models["heads"], tmp_path / "texts.jsonl", tmp_path / "page.html", code=1)
    said = " ".join(result.stderr.split())
    # Another key would not help.
    assert "Line 2" in said and " 5 " in said and "--text-key" not in said


def test_a_pipe_carries_nothing_but_the_drawing(
    models: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def piped(*arguments: str) -> str:
        monkeypatch.setattr("sys.stdin", StringIO("I like London\n"))
        get_command(app).main(["latent", "render", *arguments], standalone_mode=False)
        return capsys.readouterr().out

    ElementTree.fromstring(piped(str(models["heads"]), "-", "-", "--format", "svg"))
    page = piped(str(models["items"]))
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A directory with a pipeline for pairs, and files of pairs."""
    folder = tmp_path_factory.mktemp("pairs")
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy-latent.AlignedPairTextCat.v1", "tok2vec": TOK2VEC}
    nlp.add_pipe("latent_textcat", config={"model": {**model, "exclusive_classes": True}})
    docs = [make_pair_doc(nlp, "I like it", "it is liked"), make_pair_doc(nlp, "no", "yes")]
    for doc in docs:
        doc.cats = {"same": float(len(doc) > 2), "other": float(len(doc) < 3)}
    initialized(nlp, sample=[Example(doc.copy(), doc) for doc in docs])
    nlp.to_disk(folder / "model")
    DocBin(docs=docs).to_disk(folder / "pairs.spacy")
    rows = [{"text_a": "I like it", "text_b": "it is liked"}, {"text_a": ["no"], "text_b": "yes"}]
    srsly.write_jsonl(folder / "pairs.jsonl", rows)
    srsly.write_jsonl(
        folder / "other.jsonl", [{"premise": a["text_a"], "claim": a["text_b"]} for a in rows]
    )
    (folder / "other.tsv").write_text("premise\tclaim\nI like it\tit is liked\nno\tyes\n")
    return folder


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pairs.spacy", []),
        ("pairs.jsonl", []),
        ("pairs.jsonl", ["-tk", "text_a,text_b"]),
        ("other.jsonl", ["-tk", "premise", "-tk", "claim"]),
        ("other.tsv", ["-tk", "premise,claim"]),
    ],
)
def test_pairs_of_texts(pairs: Any, tmp_path: Any, name: str, options: list[str]) -> None:
    run(pairs / "model", pairs / name, tmp_path / "drawn.svg", *options)
    svg = (tmp_path / "drawn.svg").read_text(encoding="utf8")
    assert svg.count("displacy-word") == 8 and ("same" in svg or "other" in svg)


def test_the_names_of_fields_are_those_of_the_pipelines_reader(pairs: Any, tmp_path: Any) -> None:
    nlp = spacy.load(pairs / "model")
    reader = {"@readers": "spacy-latent.TextPairs.v1", "path": None, "first": "premise"}
    nlp.config["corpora"]["dev"] = {**reader, "second": "claim", "label": "gold", "limit": 0}
    nlp.to_disk(tmp_path / "model")
    run(tmp_path / "model", pairs / "other.jsonl", tmp_path / "drawn.svg")
    assert "liked" in (tmp_path / "drawn.svg").read_text(encoding="utf8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-tk", "text_a"], "reads pairs of texts, and --text-key names one key: text_a"),
        (["-tk", "a,b", "-tk", "c"], "--text-key names 3 keys: a, b, c"),
        (["-tk", "text_a", "-tk", "claim"], "there is 'text_a', 'text_b'"),
    ],
)
def test_keys_that_are_no_pair_are_named(pairs: Any, options: list[str], said: str) -> None:
    result = run(pairs / "model", pairs / "pairs.jsonl", "-", *options, code=1)
    assert said in " ".join(result.output.split())


def test_pairs_that_are_not_drawn_are_counted_apart(pairs: Any, tmp_path: Any) -> None:
    rows = [("I like it", "it"), ("alone", ""), ("", "alone"), ("no", "yes"), ("", "")]
    page = tmp_path / "page.html"
    for name, chosen in (("some", rows), ("none", rows[1:3])):
        made = [{"text_a": first, "text_b": second} for first, second in chosen]
        srsly.write_jsonl(tmp_path / f"{name}.jsonl", made)
    said = " ".join(run(pairs / "model", tmp_path / "some.jsonl", page).output.split())
    assert "Drawings of 2 texts saved" in said and "Not drawn: 3 of 5 texts" in said
    assert "found in 2 texts" in page.read_text(encoding="utf8")
    said = run(pairs / "model", tmp_path / "none.jsonl", tmp_path / "none.html", code=1).output
    assert "has a structure to draw" in " ".join(said.split())
    assert not (tmp_path / "none.html").exists()


def test_of_a_long_pair_the_first_pieces_are_drawn(pairs: Any, tmp_path: Any) -> None:
    long = " ".join(f"w{i}" for i in range(1100))
    srsly.write_jsonl(tmp_path / "long.jsonl", [{"text_a": long, "text_b": long}])
    with pytest.warns(LatentWarning, match="pieces"):
        run(pairs / "model", tmp_path / "long.jsonl", tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text(encoding="utf8")
    # Each text has 367 words, so the pair is drawn in three pieces.
    assert html.count("<svg") == 1 and "piece 1 of 3; the pair is long" in html


def test_code_is_imported_first(models: Any, inputs: Any, tmp_path: Any) -> None:
    code = tmp_path / "code.py"
    code.write_text(f"open({str(tmp_path / 'seen')!r}, 'w').close()\n")
    run(models["items"], inputs / "texts.txt", tmp_path / "a.html", "--code", code)
    assert (tmp_path / "seen").exists()


@pytest.mark.parametrize(
    "model, name, out, options, said",
    [
        ("heads", "missing.txt", "a.html", [], "does not exist"),
        ("heads", "", "a.html", [], "Give a file of texts"),
        ("heads", "wide.txt", "a.html", [], "is in UTF-16. Save it as UTF-8"),
        ("heads", "latin.jsonl", "a.html", [], "line 1, is not in UTF-8 (E9). Save it as UTF-8"),
        ("heads", "table.csv", "a.html", [], "table.csv is no list of texts"),
        ("heads", "table.TSV", "a.html", [], "table.TSV is no list of texts"),
        ("heads", "texts.txt", "a.pdf", [], ".html or .svg"),
        ("heads", "texts.txt", "a.html", ["--gold"], ".spacy file"),
        ("heads", "plain.spacy", "a.html", ["--gold"], "no dependency trees"),
        ("heads", "broken.spacy", "a.html", [], "cannot be read"),
        ("heads", "bodies.jsonl", "a.html", [], "--text-key"),
        ("heads", "empty.txt", "a.html", [], "no texts"),
        ("heads", "texts.txt", "a.html", ["--component", "ner"], "no latent component"),
        ("heads", "texts.txt", "a.html", ["--style", "tags"], "style is 'tags'"),
        ("items", "texts.txt", "a.svg", ["--style", "ent"], "separately"),
    ],
)
def test_what_cannot_be_drawn_is_said_and_ends_with_1(
    models: Any,
    inputs: Any,
    tmp_path: Any,
    model: str,
    name: str,
    out: str,
    options: Any,
    said: str,
) -> None:
    result = run(models[model], inputs / name, tmp_path / out, *options, code=1)
    assert said in " ".join(result.output.split())
    assert not (tmp_path / out).is_file()


def test_wrong_calls_end_with_2_and_help_has_examples(models: Any) -> None:
    run(models["heads"], "--threshold", "2", code=2)
    run(code=2)
    said = run("--help").output
    assert "spacy latent render training/model-best texts.txt page.html" in said
    for option in ("--gpu-id", "--code", "--gold", "--style", "--threshold", "--limit"):
        assert option in said


def test_counters_are_drawn(tmp_path: Any, inputs: Any, models: Any) -> None:
    scorer = {"@misc": "spacy-latent.CounterScorer.v1", "counters": 2, "hidden_width": 8}
    nlp = latent_pipeline("textcat", encoder={"model": {"tok2vec": TOK2VEC, "scorer": scorer}})
    initialized(nlp)
    nlp.to_disk(tmp_path / "model")
    run(tmp_path / "model", inputs / "texts.txt", tmp_path / "drawn.svg", "--counters")
    drawn = (tmp_path / "drawn.svg").read_text(encoding="utf8")
    assert drawn.count('class="sl-counter"') == 2 * len(TEXTS)
    refused = run(models["heads"], inputs / "texts.txt", "-", "--counters", code=1)
    assert "CounterScorer" in " ".join(refused.output.split())
