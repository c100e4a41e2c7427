"""Corpora on the command line in the formats of other programs, and errors in them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import spacy
from spacy.tokens import DocBin

from spacy_latent.analysis.independent_texts import independent_texts
from spacy_latent.cli.corpus import lines_of_stdin, read_examples, read_grouped
from spacy_latent.errors import LatentError

GOOD = '{"text": "é", "cats": {"good": 1.0}}'


def read(path: Path, content: bytes) -> list[str]:
    path.write_bytes(content)
    return [example.reference.text for example in read_examples(spacy.blank("en"), str(path))]


def said(path: Path, content: bytes) -> str:
    with pytest.raises(LatentError) as raised:
        read(path, content)
    return str(raised.value)


def test_the_mark_of_an_encoding_and_empty_lines_are_no_part_of_texts(tmp_path: Path) -> None:
    marked = f"\ufeff\r\n{GOOD}\r\n\r\n{json.dumps({'text': 'a'})}\r\n".encode()
    assert read(tmp_path / "a.jsonl", marked) == ["é", "a"]
    assert read(tmp_path / "a.txt", "\ufeffé\n\na\n".encode()) == ["é", "a"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_another_encoding_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for encoding in ("utf-16-le", "utf-16-be"):
        wrong = said(path, f"\ufeff{GOOD}\n".encode(encoding))
        assert wrong == f"{path} is in UTF-16. Save it as UTF-8."
    wrong = said(path, b"{}\n" * (name == "a.txt") + f"{GOOD}\n".encode("latin1"))
    line = 2 if name == "a.txt" else 1
    assert wrong == f"{path}, line {line}, is not in UTF-8 (E9). Save it as UTF-8."


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"text": "a", "cats": {"good": NaN}}', "'cats' has 'good': NaN, which is not JSON"),
        ('{"text": "a", "cats": {"good": Infinity}}', "'good': Infinity, which is not JSON"),
        ('{"text": NaN}', "'text' is nan, not a text"),
        ('{"text": "a"', "not a JSON value"),
        ("[" * 100_000, "not a JSON value"),
        ('{"text": "a", "heads": 3}', "Annotations are those of spaCy's training format"),
    ],
)
def test_a_line_is_told_without_the_list_of_formats(tmp_path: Path, line: str, what: str) -> None:
    wrong = said(tmp_path / "a.jsonl", f"{GOOD}\n\n{line}\n".encode())
    assert "a.jsonl, line 3" in wrong and what in wrong
    assert ".spacy file or a directory" not in wrong


META = {"document": "other"}


@pytest.mark.parametrize("name", [1.0, True])
def test_a_value_that_names_no_document_is_refused_by_what_counts_them(
    tmp_path: Path, name: object
) -> None:
    rows = [{"text": "a", "document": name}, {"text": "b", "document": None, "meta": META}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf8")
    first, second = read_examples(spacy.blank("en"), str(tmp_path / "a.jsonl"))
    assert independent_texts([second.reference]).are_documents
    with pytest.raises(LatentError, match=repr(name)):
        independent_texts([first.reference])


def test_docs_that_are_left_out_count_in_the_runs_of_a_document(tmp_path: Path) -> None:
    nlp, path = spacy.blank("en"), tmp_path / "a.spacy"
    docs = [nlp.make_doc(text) for text in ("a", "", "b", "c", "d", "e")]
    DocBin(docs=docs).to_disk(path)

    def documents(corpus: Path) -> list[object]:
        read = read_grouped(nlp, str(corpus), docs_per_document=2)
        return [example.reference.user_data["document"] for example in read]

    assert documents(path) == [0, 1, 1, 2, 2]
    lines = [{"text": "a"}, {"text": "b", "answer": "reject"}, {"text": "c"}, {"text": "d"}]
    path = tmp_path / "a.jsonl"
    path.write_text("\n\n".join(map(json.dumps, lines)), encoding="utf8")
    assert documents(path) == [0, 1, 1]


def test_who_gives_a_table_is_told_how_it_is_converted(tmp_path: Path) -> None:
    assert "'Quick start'" in said(tmp_path / "a.csv", b"text,label\na,b\n")


def test_standard_input_is_read_as_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def given(content: bytes, errors: str = "strict") -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "utf8", errors))

    given("\ufeffé\na\n".encode())
    assert list(lines_of_stdin()) == ["é", "a"]
    given("é\n".encode("utf16"))
    with pytest.raises(LatentError, match="UTF-8"):
        list(lines_of_stdin())
    # Python decodes standard input like this in the locale C, which is common in containers.
    given("a\né\n".encode("latin1"), "surrogateescape")
    with pytest.raises(LatentError, match=r"line 2.*E9"):
        list(lines_of_stdin())
