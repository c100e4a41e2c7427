"""``spacy latent explain`` on a classifier that depends on one word."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
from spacy.tokens import Doc
from spacy.vocab import Vocab

from spacy_latent.cli.explain import _figures, legend, marked, print_explanation, print_mean
from spacy_latent.evaluation.explanation import Explanation, Faithfulness
from spacy_latent.visualize.explanation import render_explanations
from tests.cli.commands import latent
from tests.evaluation.test_explanation import BAD, PIPES, trained
from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized, learn


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("explained")
    trained(PIPES["listener"]).to_disk(path)
    return path


explain = partial(latent, "explain")


def test_terminal_and_page(saved: Any, tmp_path: Any) -> None:
    page = tmp_path / "pages" / "page.html"
    result = explain(saved, BAD, "--html", page)
    for name in ("[bad ", "mask", "leave-one-out", "random", "compr. %", "suff. %"):
        assert name in result.output
    html = page.read_text(encoding="utf8")
    assert "<mark" in html and "textcat_multilabel · bad" in html and "leave-one-out" in html


def test_json_of_lines(saved: Any) -> None:
    result = explain(saved, "--json", "--steps", 20, text=f"{BAD}\n\n")
    full, empty = (srsly.json_loads(line) for line in result.stdout.splitlines())
    assert full.keys() == empty.keys()
    assert full["tokens"] == BAD.split() and full["label"] == "bad" and 2 in full["chosen"]
    assert len(full["weights"]) == len(full["leave_one_out"]) == len(full["tokens"])
    assert full["faithfulness"]["mask"]["sufficiency"] <= 0.1 + 1e-6
    assert empty["chosen"] == [] and empty["text"] == ""


def test_texts_without_an_entity_do_not_end_the_others(tmp_path: Any) -> None:
    nlp = spacy.blank("xx")
    own = {"annotate": "probabilities", "model": {"tok2vec": TOK2VEC}}
    nlp.add_pipe("crf_ner", config=own)
    text = "I like London a lot"
    optimizer = initialized(nlp)
    learn(nlp, examples(nlp), 20, optimizer)
    nlp.to_disk(tmp_path / "model")
    lines = f"{text}\n\nand so on\n{text}\n"
    asked = (tmp_path / "model", "--steps", 5, "--html", tmp_path / "page.html")
    result = explain(*asked, text=lines)
    assert result.output.count("There is no entity number 0") == 2
    assert result.output.count("crf_ner: London (GPE)") == 2
    assert "London (GPE)" in (tmp_path / "page.html").read_text(encoding="utf8")
    result = explain(*asked, "--json", text=lines)
    rows = [srsly.json_loads(line) for line in result.stdout.splitlines()]
    assert [row["label"] for row in rows] == ["GPE", None, None, "GPE"]
    assert rows[2].keys() == rows[0].keys() and rows[2]["text"] == "and so on"
    # A single text without an entity is an error.
    result = explain(tmp_path / "model", "and so on", code=1)
    assert "no entity number 0" in " ".join(result.output.split())


def test_why_it_cannot_be_explained(saved: Any, tmp_path: Any) -> None:
    assert "no label 'fine'" in explain(saved, BAD, "--label", "fine", code=1).output
    spacy.blank("xx").to_disk(tmp_path)
    assert "nothing to explain" in explain(tmp_path, BAD, code=1).output


def test_measures_are_in_percent_as_those_of_rationales_are() -> None:
    assert _figures([Faithfulness(0.634, -0.0001)]) == ("63.4", "0.0")


def explanation(words: list[str], weights: list[float], chosen: list[int]) -> Explanation:
    """Return an explanation with given words, weights and chosen words.

    The fall of the probability without a word is ten times its weight.
    """
    mask = np.zeros(len(words), dtype=bool)
    mask[chosen] = True
    judged = {"mask": Faithfulness(0.3, 0.1)}
    numbers = np.array(weights)
    doc = Doc(Vocab(), words=words)
    falls = 10 * numbers
    return Explanation(
        doc, "textcat", "bad", None, 0.9, 0.7, numbers, falls, mask, "vectors", judged, judged
    )


def test_words_that_the_mask_keeps_none_of_are_shown_with_what_the_probability_falls_by(
    capsys: pytest.CaptureFixture[str],
) -> None:
    closed = explanation(["so", "bad", "it"], [0.0, 0.04, 0.01], [1])
    assert closed.from_falls
    print_explanation(closed)
    shown = " ".join(capsys.readouterr().out.split())
    assert "so [bad 0.40] it" in shown and "keeps no single word reliably" in shown
    assert "probability of bad is 0.70" in shown and "1 word by" in shown
    page = render_explanations([closed])
    assert "0.40" in page and "0.04" not in page and "the mask keeps none" in page
    kept = explanation(["so", "bad", "it"], [0.0, 0.9, 0.0], [0, 1])
    print_explanation(kept)
    shown = capsys.readouterr().out
    assert not kept.from_falls and "[so] [bad 0.90] it" in shown and "2 words by" in shown
    page = render_explanations([kept])
    assert "the mask keeps none" not in page and "0.00" not in page
    # The legend explains the kinds of numbers that are shown, one or both.
    assert "draws" not in legend([closed]) and "if the word alone is left out" in legend([closed])
    assert "draws" in legend([kept]) and "if the word alone is left out" not in legend([kept])
    assert "draws" in legend([closed, kept]) and "if the word alone is left out" in legend(
        [closed, kept]
    )


def test_the_legend_of_a_page_calls_no_share_or_fall_a_probability() -> None:
    page = render_explanations([explanation(["so", "bad", "it"], [0.3, 0.9, 0.0], [1])])
    signs = page[page.index('<ul class="sl-legend"') : page.index("</ul>")]
    assert signs.count("<li>") == 2 and "probable" not in signs
    page = render_explanations([explanation(["so", "bad", "it"], [0.0, 0.9, 0.0], [1])])
    assert page[page.index('<ul class="sl-legend"') : page.index("</ul>")].count("<li>") == 1


def test_what_a_mask_has_not_settled_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_explanation(explanation(["so", "bad", "it"], [0.0, 0.2, 0.1], [1, 2]))
    shown = " ".join(capsys.readouterr().out.split())
    assert "[bad 0.20] [it 0.10]" in shown and "the best word in 20%" in shown
    nothing = explanation(["so", "bad"], [0.0, 0.0], [])
    print_explanation(nothing)
    print_mean([nothing, nothing])
    shown = " ".join(capsys.readouterr().out.split())
    assert "No word is needed" in shown and "--margin" in shown and "words by" not in shown
    assert "--margin" in render_explanations([nothing])
    assert "In all of them the probability falls by at most the margin" in shown


def test_of_long_texts_only_what_is_around_the_words_is_printed() -> None:
    words = [f"w{i}" for i in range(1000)]
    weights = [float(i in (3, 500, 505)) for i in range(1000)]
    shown = marked(explanation(words, weights, [3, 500, 505]))
    assert shown.startswith("w0 w1 w2 [w3 1.00] ") and shown.rstrip().endswith("w515 ...")
    assert shown.count("...") == 2 and len(shown.split()) == 14 + 26 + 3 + 2
    assert marked(explanation(words[:200], weights[:200], [3])).count("...") == 0


def test_several_texts_have_a_mean(saved: Any) -> None:
    result = explain(saved, "--steps", 5, text=f"{BAD}\n{BAD}\n\n")
    shown = " ".join(result.output.split())
    # A text without words does not count for the mean.
    assert result.exit_code == 0 and "2 texts" in shown and " of 6.0 words by" in shown
    assert "no words in this text" in shown and "at most the margin" not in shown
    # The columns are explained once for all tables.
    assert shown.count("compr. (comprehensiveness): fall") == 1
    assert "texts" not in explain(saved, BAD, "--steps", 5).output


def test_the_name_of_a_file_is_no_text(saved: Any, tmp_path: Any) -> None:
    path = tmp_path / "texts.txt"
    path.write_text(BAD, encoding="utf8")
    result = explain(saved, path, code=1)
    assert "is a file" in " ".join(result.output.split())
