"""``spacy latent render``: inputs, outputs and exit codes."""

from __future__ import annotations

import re
from io import StringIO
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
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401
from spacy_latent.corpora.text_pairs import make_pair_doc
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
    return folder


def run(*arguments: Any, code: int = 0, stdin: str | None = None) -> Result:
    command = ["latent", "render", *map(str, arguments)]
    result = CliRunner().invoke(app, command, input=stdin)
    assert result.exit_code == code, result.output
    return result


@pytest.mark.parametrize("name", ["texts.txt", "texts.jsonl", "texts.spacy"])
def test_every_input_gives_a_page(models: Any, inputs: Any, tmp_path: Any, name: str) -> None:
    page = tmp_path / "deep" / "page.html"
    result = run(models["heads"], inputs / name, page)
    assert "Drawings of 2 texts saved" in result.output
    html = page.read_text(encoding="utf8")
    assert html.count("<svg") == 2 and "<script" not in html and "London" in html


def test_a_page_beside_gold_has_a_table_with_controls(
    models: Any, inputs: Any, tmp_path: Any
) -> None:
    page = tmp_path / "page.html"
    run(models["heads"], inputs / "texts.spacy", page, "--gold")
    html = page.read_text(encoding="utf8")
    assert html.index("<h1") < html.index("<svg") < html.index("<table")
    rows = dict(re.findall(r'<th scope="row">([^<]+)</th><td>([\d.]+)%', html))
    # "flat" hangs all words on the first; of these trees, all hang on the second.
    assert rows["flat"] == "0.0" and {"latent_encoder", "random tree"} <= rows.keys()
    run(models["heads"], inputs / "texts.spacy", page)
    assert "<table" not in page.read_text(encoding="utf8")


def test_svg_with_gold_and_weights(models: Any, inputs: Any, tmp_path: Any) -> None:
    picture = tmp_path / "trees.svg"
    run(models["heads"], inputs / "texts.spacy", picture, "--gold", "-k", 2, "-t", 0.05)
    svg = picture.read_text(encoding="utf8")
    ElementTree.fromstring(svg)
    assert svg.count("of 3 arcs as in gold") == 4 and svg.count("weight ") == 4


def test_limit_style_and_key(models: Any, inputs: Any, tmp_path: Any) -> None:
    page = tmp_path / "page.html"
    options = ["--limit", 1, "--style", "heatmap", "--text-key", "body", "--minify"]
    result = run(models["heads"], inputs / "bodies.jsonl", page, *options)
    html = page.read_text(encoding="utf8")
    assert html.count("<svg") == 1 and "sl-cell" in html and "\n" not in html
    assert "give a higher --limit" in " ".join(result.output.split())


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


def test_pairs_of_texts(tmp_path: Any) -> None:
    nlp = spacy.blank("en")
    model = {"@architectures": "spacy-latent.AlignedPairTextCat.v1", "tok2vec": TOK2VEC}
    nlp.add_pipe("latent_textcat", config={"model": {**model, "exclusive_classes": True}})
    pairs = [make_pair_doc(nlp, "I like it", "it is liked"), make_pair_doc(nlp, "no", "yes")]
    for doc in pairs:
        doc.cats = {"same": float(len(doc) > 2), "other": float(len(doc) < 3)}
    initialized(nlp, sample=[Example(doc.copy(), doc) for doc in pairs])
    nlp.to_disk(tmp_path / "model")
    DocBin(docs=pairs).to_disk(tmp_path / "pairs.spacy")
    rows = [{"text_a": "I like it", "text_b": "it is liked"}, {"text_a": "no", "text_b": "yes"}]
    srsly.write_jsonl(tmp_path / "pairs.jsonl", rows)
    for name, options in (("pairs.spacy", []), ("pairs.jsonl", ["-tk", "text_a,text_b"])):
        out = tmp_path / f"{name}.svg"
        run(tmp_path / "model", tmp_path / name, out, *options)
        svg = out.read_text(encoding="utf8")
        assert svg.count("displacy-word") == 8 and ("same" in svg or "other" in svg)
    result = run(tmp_path / "model", tmp_path / "pairs.jsonl", "-", "-tk", "text_a", code=1)
    assert "one span" in result.output


def test_code_is_imported_first(models: Any, inputs: Any, tmp_path: Any) -> None:
    code = tmp_path / "code.py"
    code.write_text(f"open({str(tmp_path / 'seen')!r}, 'w').close()\n")
    run(models["items"], inputs / "texts.txt", tmp_path / "a.html", "--code", code)
    assert (tmp_path / "seen").exists()


@pytest.mark.parametrize(
    "model, name, out, options, said",
    [
        ("heads", "missing.txt", "a.html", [], "does not exist"),
        ("heads", "texts.txt", "a.pdf", [], ".html or .svg"),
        ("heads", "texts.txt", "a.html", ["--gold"], ".spacy file"),
        ("heads", "plain.spacy", "a.html", ["--gold"], "no dependency trees"),
        ("heads", "broken.spacy", "a.html", [], "cannot be read"),
        ("heads", "bodies.jsonl", "a.html", [], "--text-key"),
        ("heads", "empty.txt", "a.html", [], "no texts"),
        ("heads", "texts.txt", "a.html", ["--component", "ner"], "no latent component"),
        ("heads", "texts.txt", "a.html", ["--style", "tags"], "style is 'tags'"),
        ("items", "texts.txt", "a.svg", ["--style", "ent"], "one by one"),
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
    assert not (tmp_path / out).exists()


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
