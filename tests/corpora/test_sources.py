"""Example data: only published files are read, and without loss."""

import hashlib
import os
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc, DocBin

from spacy_latent.corpora import (
    emerging_entities,
    english_web_treebank,
    sentence_polarity,
    universal_entities,
)
from spacy_latent.corpora.conllu import read_conllu
from spacy_latent.corpora.doc_files import write_docs
from spacy_latent.corpora.iob import read_iob, write_sentences
from spacy_latent.corpora.sources import DATA_VARIABLE, Source, read_source
from spacy_latent.errors import LatentError

DATA = Path(os.environ.get(DATA_VARIABLE, Path(__file__).parents[3] / "shared" / "data"))


def make_source(content: bytes, archive: str = "") -> Source:
    return Source("folder", "file.txt", hashlib.sha256(content).hexdigest(), archive)


def test_trap_18_a_changed_download_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    (tmp_path / "file.txt").write_bytes(b"changed")
    with pytest.raises(LatentError, match="sha256"):
        read_source(make_source(b"published"), tmp_path)
    (tmp_path / "file.txt").write_bytes(b"published")
    assert read_source(make_source(b"published"), tmp_path) == "published"


def test_a_missing_download_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    with pytest.raises(LatentError, match="spacy project assets"):
        read_source(make_source(b"x"), tmp_path)


def test_archives_are_read_and_broken_ones_refused(tmp_path, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    source = make_source(b"inside", "a.zip")
    (tmp_path / "a.zip").write_bytes(b"PK cut short")
    with pytest.raises(LatentError, match="zip"):
        read_source(source, tmp_path)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("sub/file.txt", "inside")
    assert read_source(source, tmp_path) == "inside"


def test_every_damage_of_an_archive_is_refused_or_does_no_harm(tmp_path, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    text = "".join(map(str, range(3000)))
    source, path = make_source(text.encode(), "a.zip"), tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sub/file.txt", text)
    whole, refused = path.read_bytes(), 0
    for at in range(0, len(whole), 19):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        try:
            assert read_source(source, tmp_path) == text
        except LatentError:
            refused += 1
    assert refused > len(whole) / 19 * 0.8


def test_the_data_variable_comes_first(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file.txt").write_bytes(b"local")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert read_source(make_source(b"local"), tmp_path / "nowhere") == "local"


def test_split_is_disjoint_stratified_and_seeded():
    texts = {
        "POSITIVE": "\n".join(f"good {i}" for i in range(100)) + "\ngood 1\n",
        "NEGATIVE": "\n".join(f"bad {i}" for i in range(100)),
    }
    parts = sentence_polarity.split_lines(texts, seed=3)
    assert parts == sentence_polarity.split_lines(texts, seed=3)
    assert parts != sentence_polarity.split_lines(texts, seed=4)
    assert [len(parts[name]) for name in sentence_polarity.SPLITS] == [160, 20, 20]
    everything = [text for examples in parts.values() for text, _ in examples]
    assert len(everything) == len(set(everything)) == 200
    assert sum(label == "POSITIVE" for _, label in parts["dev"]) == 10


def test_a_seeded_share_of_sentences_keeps_its_labels() -> None:
    examples = [(str(i), "AB"[i % 2]) for i in range(200)]
    labelled, others = sentence_polarity.keep_labels(examples, 0.05, seed=3)
    assert (labelled, others) == sentence_polarity.keep_labels(examples, 0.05, seed=3)
    assert labelled != sentence_polarity.keep_labels(examples, 0.05, seed=4)[0]
    # At least one label is kept.
    assert len(sentence_polarity.keep_labels(examples, 1e-9, seed=3)[0]) == 1
    assert len(labelled) == 10 and set(labelled) < set(examples)
    assert {label for _, label in others} == {None}
    assert sorted(text for text, _ in labelled + others) == sorted(text for text, _ in examples)


def test_sentences_without_labels_have_no_categories(tmp_path) -> None:
    examples = [("good film", sentence_polarity.POSITIVE), ("bad film", None)]
    write_docs(tmp_path / "a.spacy", sentence_polarity.polarity_docs(examples))
    found = list(DocBin().from_disk(tmp_path / "a.spacy").get_docs(spacy.blank("en").vocab))
    assert [doc.cats for doc in found] == [{"POSITIVE": 1.0, "NEGATIVE": 0.0}, {}]


def test_iob_reader_survives_the_quirks_of_the_files():
    text = "a\tB-x\nb\tI-x\n\t\n\ufeffc\tI-y\nd\u2028e\tO\n\n\n"
    assert list(read_iob(text)) == [
        (["a", "b"], ["B-x", "I-x"]),
        (["c", "d\u2028e"], ["B-y", "O"]),
    ]
    with pytest.raises(LatentError, match="Line 2"):
        list(read_iob("a\tO\nb no tag\n"))


def test_iob_reader_takes_other_columns_comments_and_kinds_that_are_left_out():
    text = "# text = a B\n1\ta\tB-OTH\t-\n2\tb\tI-OTH\t-\n3\t#\tI-x\n\n# text = c\n1\tc\tB-O\n"
    found = read_iob(text, columns=(1, 2), comments=True, left_out={"OTH", "O"})
    assert list(found) == [(["a", "b", "#"], ["O", "O", "B-x"]), (["c"], ["O"])]
    with pytest.raises(LatentError, match=r"Line 1.*2, 3"):
        list(read_iob(text, columns=(1, 2)))
    with pytest.raises(LatentError, match="Line 2"):
        list(read_iob("1\ta\tO\n2\tb\n", columns=(1, 2)))


@pytest.mark.parametrize("kind", [str, Path])
def test_sentences_are_written_to_a_path_of_either_kind(kind: type, tmp_path: Path):
    path = tmp_path / "new" / "own.spacy"
    write_sentences(kind(path), read_iob("Anna\tI-PER\n\nOslo\tB-LOC\n"))
    docs = DocBin().from_disk(path).get_docs(spacy.blank("en").vocab)
    found = [(ent.text, ent.label_) for doc in docs for ent in doc.ents]
    assert found == [("Anna", "PER"), ("Oslo", "LOC")]


def documents(count: int, others: bool) -> str:
    """Return documents of one sentence each, in the format of Universal NER.

    Args:
        others: Keep the entities of other kinds, as in the draft. If False, their tags are O.
    """
    tags = ["B-O", "B-OTH", "I-OTH"] if others else ["O"] * 3
    tags += ["B-PER", "I-PER", "O"]
    return "".join(
        f"# newdoc id = d{i}\n# sent_id = d{i}-0001\n# text = A B\n"
        + "".join(f"{k}\tw{i}\t{tag}\t-\tsomebody\n" for k, tag in enumerate(tags, 1))
        + "\n"
        for i in range(count)
    )


def put(folder: Path, name: str, text: str) -> Source:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf8")
    return Source(folder.name, name, hashlib.sha256(text.encode("utf8")).hexdigest())


def entities_in(path: Path) -> list[tuple[str, list[tuple[int, int, str]]]]:
    docs = DocBin().from_disk(path).get_docs(spacy.blank("en").vocab)
    return [(d[0].text, [(e.start, e.end, e.label_) for e in d.ents]) for d in docs]


def test_universal_entities_are_the_same_from_the_draft_and_without_other_kinds(
    tmp_path, monkeypatch
):
    folder = tmp_path / universal_entities.FOLDER
    sources = {
        "train": put(folder, "en_ewt-ud-train.iob2", documents(3, others=True)),
        "dev": put(folder, "en_ewt-ud-dev.iob2", documents(1, others=False)),
    }
    without = Source(folder.name, "en_ewt-ud-train.derived.iob2", "")
    monkeypatch.setattr(universal_entities, "SOURCES", sources)
    monkeypatch.setattr(universal_entities, "WITHOUT_OTHERS", without)
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    universal_entities.main(tmp_path / "downloaded", folder)
    found = entities_in(tmp_path / "downloaded" / "train.spacy")
    assert found == [(f"w{i}", [(3, 5, "PER")]) for i in range(3)]
    assert entities_in(tmp_path / "downloaded" / "dev.spacy") == found[:1]

    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert universal_entities.train_source() is sources["train"]
    without = put(folder, without.name, documents(3, others=False))
    monkeypatch.setattr(universal_entities, "WITHOUT_OTHERS", without)
    (folder / "en_ewt-ud-train.iob2").unlink()
    universal_entities.main(tmp_path / "local")
    assert entities_in(tmp_path / "local" / "train.spacy") == found


def test_documents_are_held_out_whole_and_none_is_lost(tmp_path, monkeypatch):
    folder = tmp_path / "downloads"
    sources = {
        name: put(folder, f"{name}.iob2", documents(7, others=False)) for name in ("train", "dev")
    }
    monkeypatch.setattr(universal_entities, "SOURCES", sources)
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    universal_entities.main(tmp_path, folder, held_out=2)
    train, held_out = (entities_in(tmp_path / f"{name}.spacy") for name in ("train", "held_out"))
    assert [first for first, _ in train] == ["w0", "w1", "w2", "w5", "w6"]
    assert [first for first, _ in held_out] == ["w3", "w4"]
    docs = DocBin().from_disk(tmp_path / "train.spacy").get_docs(spacy.blank("en").vocab)
    assert len({doc.user_data["document"] for doc in docs}) == 5
    with pytest.raises(LatentError, match="0 to 4"):
        universal_entities.main(tmp_path, folder, held_out=5)


@pytest.mark.skipif(not (DATA / "ner-uner-ewt").is_dir(), reason="the data are not here")
def test_the_published_universal_entities_convert(tmp_path, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    universal_entities.main(tmp_path)
    found = [entities_in(tmp_path / f"{name}.spacy") for name in ("train", "dev")]
    assert [len(sentences) for sentences in found] == [12_543, 2_001]
    counts = [Counter(e[2] for _, own in sentences for e in own) for sentences in found]
    assert counts == [
        {"PER": 2_873, "LOC": 2_698, "ORG": 1_434},
        {"PER": 343, "LOC": 399, "ORG": 224},
    ]


def test_trees_have_one_token_for_each_syntactic_word(tmp_path):
    lines = [
        "# text = We don't, ever.",
        *("1 We we PRON PRP _ 3 nsubj _ _", "2-3 don't _ _ _ _ _ _ _ SpaceAfter=No"),
        *("2 do do AUX VBP _ 0 root _ _", "3 n't not PART RB _ 2 advmod _ _"),
        *("3.1 go go VERB VB _ _ _ _ _", "4 , , PUNCT , _ 2 punct _ _"),
        *("5 ever ever ADV RB _ 2 advmod _ SpaceAfter=No", "6 . . PUNCT . _ 2 punct _ _"),
    ]
    text = "\n".join([lines[0], *("\t".join(line.split(" ")) for line in lines[1:])])
    count = write_docs(tmp_path / "x.spacy", read_conllu(f"{text}\n\n{text}\n\n"))
    docs = list(DocBin().from_disk(tmp_path / "x.spacy").get_docs(spacy.blank("en").vocab))
    assert count == len(docs) == 2
    assert docs[0].text.strip() == "We don't, ever."
    assert [token.text for token in docs[0]] == ["We", "do", "n't", ",", "ever", "."]
    assert [token.head.i for token in docs[0]] == [2, 1, 1, 1, 1, 1]
    assert [token.dep_ for token in docs[0]][:2] == ["nsubj", "ROOT"]


def test_a_seeded_share_of_docs_keeps_its_heads(tmp_path) -> None:
    vocab = spacy.blank("en").vocab
    docs = [
        Doc(vocab, words=["He", str(i)], spaces=[False, True], heads=[1, 1], deps=["nsubj", "ROOT"])
        for i in range(50)
    ]
    kept, others = english_web_treebank.keep_heads(docs, 0.1, seed=3)
    assert [doc.text for doc in kept] == [
        doc.text for doc in english_web_treebank.keep_heads(docs, 0.1, seed=3)[0]
    ]
    assert len(kept) == 5 and len(others) == 45
    assert {doc.text for doc in kept + others} == {doc.text for doc in docs}
    write_docs(tmp_path / "x.spacy", kept + others)
    found = list(DocBin().from_disk(tmp_path / "x.spacy").get_docs(vocab))
    for attr in ("DEP", "HEAD", "SENT_START", "TAG"):
        assert not any(doc.has_annotation(attr) for doc in found[5:]), attr
    assert all(doc.has_annotation("DEP") for doc in found[:5])
    assert [doc.text for doc in found] == [doc.text for doc in kept + others]


@pytest.mark.skipif(not (DATA / "ud-english-ewt").is_dir(), reason="the data are not here")
def test_the_published_development_trees_convert(tmp_path, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    text = read_source(english_web_treebank.SOURCES["dev"], tmp_path)
    assert write_docs(tmp_path / "dev.spacy", read_conllu(text)) == 2_001
    docs = list(DocBin().from_disk(tmp_path / "dev.spacy").get_docs(spacy.blank("en").vocab))
    assert sum(map(len, docs)) == 25_147
    assert all(sum(token.head.i == token.i for token in doc) == 1 for doc in docs)


@pytest.mark.skipif(not (DATA / "ner-wnut17").is_dir(), reason="the data are not here")
def test_the_published_files_convert(tmp_path, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, str(DATA))
    emerging_entities.main(tmp_path / "ner")
    sentence_polarity.main(tmp_path)
    vocab = spacy.blank("en").vocab
    dev = list(DocBin().from_disk(tmp_path / "dev.spacy").get_docs(vocab))
    assert len(dev) == 1066
    assert sum(doc.cats["POSITIVE"] for doc in dev) == 533
    train = list(DocBin().from_disk(tmp_path / "train.spacy").get_docs(vocab))
    assert len(train) == 8_530 and not {d.text for d in train} & {d.text for d in dev}
    entities = list(DocBin().from_disk(tmp_path / "ner" / "train.spacy").get_docs(vocab))
    assert len(entities) == 3_394 and sum(len(doc) for doc in entities) == 62_730
