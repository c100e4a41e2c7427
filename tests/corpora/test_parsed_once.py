"""A reader of a corpus whose docs a frozen parser parses only once."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin

from spacy_latent.corpora.parsed_once import read_parsed_once_v1
from spacy_latent.errors import LatentError

TEXTS = ["He left", "She saw him. He left"]
NAME = "tests_last_word_heads"


class LastWordHeads:
    """A parser that makes the last token the head of all tokens, and counts the parsed docs."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.parsed = 0

    def __call__(self, doc: Doc) -> Doc:
        self.parsed += 1
        for token in doc:
            token.head, token.dep_ = doc[len(doc) - 1], self.label
        return doc

    def pipe(self, docs: Any, batch_size: int) -> Any:
        return map(self, docs)

    def to_bytes(self, exclude: Any = ()) -> bytes:
        return self.label.encode()


@Language.factory(NAME, default_config={"label": "dep"})
def make_last_word_heads(nlp: Language, name: str, label: str) -> LastWordHeads:
    return LastWordHeads(label)


def pipeline(label: str = "dep", frozen: bool = True) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe(NAME, name="latent_parser", config={"label": label})
    nlp.config["training"]["frozen_components"] = ["latent_parser"] if frozen else []
    return nlp


def corpus(folder: Path) -> Path:
    nlp = spacy.blank("en")
    docs = []
    for text in TEXTS:
        doc = nlp(text)
        doc.cats = {"good": 1.0}
        docs.append(doc)
    DocBin(docs=docs).to_disk(folder / "train.spacy")
    return folder / "train.spacy"


def parser(nlp: Language) -> LastWordHeads:
    found = nlp.get_pipe("latent_parser")
    assert isinstance(found, LastWordHeads)
    return found


def test_each_text_is_parsed_once_by_readers_of_the_same(tmp_path: Path) -> None:
    """Readers of the same corpus share the parses: initialization and training make one each."""
    nlp, path = pipeline(), corpus(tmp_path)
    for read in (read_parsed_once_v1(path), read_parsed_once_v1(path)):
        for _ in range(2):
            examples = list(read(nlp))
            assert [[t.head.i for t in e.predicted] for e in examples] == [[1] * 2, [5] * 6]
            assert {t.dep_ for e in examples for t in e.predicted} == {"dep"}
            assert [e.predicted.text for e in examples] == TEXTS
            assert all(e.reference.cats == {"good": 1.0} for e in examples)
            assert not any(e.reference.has_annotation("DEP") or e.predicted.cats for e in examples)
    assert parser(nlp).parsed == len(TEXTS)
    list(read_parsed_once_v1(path, limit=1)(nlp))
    assert parser(nlp).parsed == len(TEXTS) + 1


def test_what_gets_a_doc_may_change_it(tmp_path: Path) -> None:
    nlp, read = pipeline(), read_parsed_once_v1(corpus(tmp_path))
    (first, _), (again, _) = list(read(nlp)), list(read(nlp))
    first.predicted[0].head = first.predicted[0]
    assert [token.head.i for token in again.predicted] == [1, 1]
    assert [token.head.i for token in next(iter(read(nlp))).predicted] == [1, 1]


def test_another_pipeline_parses_for_itself(tmp_path: Path) -> None:
    read = read_parsed_once_v1(corpus(tmp_path))
    for label in ("dep", "other"):
        nlp = pipeline(label)
        assert {t.dep_ for e in read(nlp) for t in e.predicted} == {label}
        assert parser(nlp).parsed == len(TEXTS)


def test_kept_heads_serve_other_processes_until_parser_or_words_change(tmp_path: Path) -> None:
    path, keep = corpus(tmp_path), tmp_path / "kept" / "heads"
    for label, parses, files in (("dep", True, 1), ("dep", False, 1), ("other", True, 2)):
        nlp = pipeline(label)
        examples = list(read_parsed_once_v1(path, keep=str(keep))(nlp))
        assert [[t.head.i for t in e.predicted] for e in examples] == [[1] * 2, [5] * 6]
        assert {t.dep_ for e in examples for t in e.predicted} == {label}
        assert parser(nlp).parsed == (len(TEXTS) if parses else 0)
        assert len(os.listdir(keep)) == files
    DocBin(docs=[spacy.blank("en")("He left now")]).to_disk(path)
    nlp = pipeline()
    (example,) = read_parsed_once_v1(path, keep=str(keep))(nlp)
    assert [token.head.i for token in example.predicted] == [2, 2, 2]
    assert len(os.listdir(keep)) == 3


def test_two_writers_with_one_process_id_do_not_share_an_unfinished_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, keep = corpus(tmp_path), tmp_path / "kept"
    write = DocBin.to_disk

    def write_while_another_does(found: DocBin, place: Path) -> None:
        write(found, place)
        monkeypatch.setattr(DocBin, "to_disk", write)
        list(read_parsed_once_v1(path, keep=str(keep))(pipeline()))

    monkeypatch.setattr(DocBin, "to_disk", write_while_another_does)
    assert len(list(read_parsed_once_v1(path, keep=str(keep))(pipeline()))) == len(TEXTS)
    assert len(os.listdir(keep)) == 1


def test_unfinished_files_of_writers_that_died_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, keep = corpus(tmp_path), tmp_path / "kept"
    write = DocBin.to_disk

    def fail(found: DocBin, place: Path) -> None:
        write(found, place)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DocBin, "to_disk", fail)
    with pytest.raises(OSError):
        list(read_parsed_once_v1(path, keep=str(keep))(pipeline()))
    assert not os.listdir(keep)
    monkeypatch.setattr(DocBin, "to_disk", write)
    list(read_parsed_once_v1(path, keep=str(keep))(pipeline()))
    (kept,) = keep.iterdir()
    killed, running = (kept.with_suffix(f".{digit * 32}") for digit in "ab")
    for left in (killed, running, keep / f"other.{'c' * 32}"):
        left.write_bytes(b"")
    os.utime(killed, (0, 0))
    kept.unlink()
    list(read_parsed_once_v1(path, keep=str(keep))(pipeline()))
    assert not killed.exists() and running.exists() and len(os.listdir(keep)) == 3


def test_kept_heads_that_are_damaged_are_named(tmp_path: Path) -> None:
    path, keep = corpus(tmp_path), tmp_path / "kept"
    list(read_parsed_once_v1(path, keep=str(keep))(pipeline()))
    (kept,) = keep.iterdir()
    kept.write_bytes(kept.read_bytes()[:50])
    with pytest.raises(LatentError, match=kept.name):
        list(read_parsed_once_v1(path, keep=str(keep))(pipeline()))
    kept.unlink()
    assert len(list(read_parsed_once_v1(path, keep=str(keep))(pipeline()))) == len(TEXTS)


def test_a_parse_is_let_go_of_with_its_pipeline(tmp_path: Path) -> None:
    nlp, read = pipeline(), read_parsed_once_v1(corpus(tmp_path))
    list(read(nlp))
    known = ref(nlp)
    del nlp
    gc.collect()
    assert known() is None


def test_what_learns_or_is_not_there_does_not_parse_once(tmp_path: Path) -> None:
    path = corpus(tmp_path)
    with pytest.raises(LatentError, match="training"):
        list(read_parsed_once_v1(path)(pipeline(frozen=False)))
    with pytest.raises(LatentError, match="'parser'"):
        list(read_parsed_once_v1(path, ["parser"])(pipeline()))
    for missing in (None, tmp_path / "none.spacy"):
        with pytest.raises(LatentError, match="exist"):
            read_parsed_once_v1(missing)
