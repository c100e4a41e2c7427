"""The program that measures explanations runs. Measured figures are not tested."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.vocab import Vocab

from benchmarks import explain as program
from benchmarks.pages import read_section
from benchmarks.raw_results import read
from spacy_latent.evaluation.explanation import LEAVE_ONE_OUT, MASK, RANDOM
from tests.pipeline.keyword_pipelines import CHOICE, keyword_examples, keyword_pipeline

Called = Callable[[list[str], list[Example]], list[dict[str, Any]]]


def test_what_is_measured_of_texts_makes_the_table(tmp_path: Path) -> None:
    nlp = keyword_pipeline(CHOICE, steps=30)
    examples = keyword_examples(nlp, 9, heads=False)
    DocBin(docs=[example.reference for example in examples]).to_disk(tmp_path / "test.spacy")
    docs = program.texts(nlp, tmp_path / "test.spacy", 4)
    assert [doc.text for doc in docs] == [examples[place].text for place in (0, 3, 5, 8)]
    assert len(program.texts(nlp, tmp_path / "test.spacy", 20)) == 9
    rows = json.loads(json.dumps(program.measured(nlp, docs, steps=20), allow_nan=False))
    assert [row["words"] for row in rows] == [len(doc) for doc in docs]
    for row in rows:
        # The words that the mask chooses suffice within its margin of 0.1 if others are hidden.
        assert row[f"faithfulness {MASK}"][1] <= 0.1 + 1e-4
        assert len(row) == 3 + 2 * 3
    assert any(row["chosen"] for row in rows)
    lines = program.table(
        {
            "rows": rows,
            "date": "day",
            "torch": "2",
            "spacy": "3",
            "corpus": "a",
            "model": "b",
            "steps": 20,
            "processor_seconds": 4.0,
        }
    )
    assert "4 texts of `a`" in lines[0] and "1.0 s of a processor" in lines[0]
    assert f"the other {sum(row['chosen'] > 0 for row in rows)}," in lines[0]
    assert len(lines) == 4 + 2 * 3 and len({line.count("|") for line in lines[2:]}) == 1


def test_the_mask_is_ahead_where_it_explains_more_and_needs_less() -> None:
    rows = [
        {
            "words": 5,
            "chosen": 1,
            "hidden": "vectors",
            **{f"{way} {MASK}": [0.6, 0.1] for way in program.WAYS},
            **{f"{way} {LEAVE_ONE_OUT}": [0.7, 0.05] for way in program.WAYS},
            **{f"{way} {RANDOM}": [0.2, 0.4] for way in program.WAYS},
        }
    ] * 4
    # A text is not compared if its label is predicted without any word.
    none = {key: [-0.3, -0.3] for key in rows[0] if " " in key}
    rows.append({"words": 9, "chosen": 0, "hidden": "vectors", **none})
    made = {"date": "", "torch": "", "spacy": "", "corpus": "", "model": ""}
    lines = program.table({**made, "steps": 1, "processor_seconds": 1.0, "rows": rows})
    assert "In 1 of them the label stands" in lines[0] and "1.0 of 5.0 words" in lines[0]
    cells = [[cell.strip() for cell in line.split("|")[3:-1]] for line in lines[4:7]]
    # The intervals are wide, since they are estimated from only four texts.
    assert cells[0] == ["60.0 (0.0 to 100.0)", "", "10.0 (0.0 to 85.0)", ""]
    assert [cells[1][i].split()[0] for i in (1, 3)] == ["-10.0", "-5.0"]
    assert [cells[2][i].split()[0] for i in (1, 3)] == ["40.0", "30.0"]


def test_the_section_is_that_of_the_last_raw_row() -> None:
    kept = read(program.PATH)
    assert kept, "python -m benchmarks explain was never run"
    assert "\n".join(program.table(kept[-1])) in read_section("explain")


def test_where_no_word_is_chosen_there_is_no_table() -> None:
    row = {"words": 9, "chosen": 0, "hidden": "vectors"}
    made = {"date": "", "torch": "", "spacy": "", "corpus": "", "model": ""}
    (line,) = program.table({**made, "steps": 1, "processor_seconds": 1.0, "rows": [row] * 2})
    assert "In all of them the label stands without any word" in line and "nan" not in line


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Called:
    """A function that runs the program, and returns its stored rows.

    The name of the explained component differs from its factory's name.
    """
    nlp = keyword_pipeline(CHOICE, steps=2)
    nlp.rename_pipe("textcat", "sentiment")
    (tmp_path / "made").mkdir()
    nlp.to_disk(tmp_path / "made" / "model-best")
    monkeypatch.setattr(program, "PATH", tmp_path / "runs.jsonl")
    monkeypatch.setattr(program, "write_section", lambda *given: None)

    def call(options: list[str], examples: list[Example]) -> list[dict[str, Any]]:
        corpus = tmp_path / "test.spacy"
        DocBin(docs=[example.reference for example in examples]).to_disk(corpus)
        model = str(tmp_path / "made" / "model-best")
        monkeypatch.setattr("sys.argv", ["explain", model, str(corpus), "--steps", "2", *options])
        program.main()
        return read(program.PATH)

    return call


def test_whatever_the_component_is_called_its_texts_are_kept(called: Called) -> None:
    (kept,) = called(["--texts", "1"], keyword_examples(spacy.blank("en"), 2, heads=False))
    assert kept["model"] == "made" and len(kept["rows"]) == 1


def test_texts_without_words_leave_no_line(called: Called) -> None:
    empty = Doc(Vocab(), words=[])
    with pytest.raises(SystemExit, match="explain"):
        called([], [Example(empty, empty)])
    with pytest.raises(SystemExit, match="2"):
        called(["--texts", "0"], [])
    assert not program.PATH.exists()


def test_a_model_without_a_corpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["explain", "model"])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 2
