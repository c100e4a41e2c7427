"""Spans that are made from gold trees and from entities."""

from __future__ import annotations

from pathlib import Path

import pytest
import spacy
import typer
from spacy.tokens import Doc, DocBin, Span
from typer.testing import CliRunner

from spacy_latent.corpora import entity_spans, noun_phrases
from spacy_latent.errors import LatentError

# Word, part of speech, head and relation. The head of the root is 0, and the first word is 1.
WORDS = [
    ("Anna", "PROPN", 2, "nsubj"),
    ("saw", "VERB", 0, "root"),
    ("the", "DET", 4, "det"),
    ("man", "NOUN", 2, "obj"),
    ("of", "ADP", 6, "case"),
    ("Rome", "PROPN", 4, "nmod"),
    ("yesterday", "NOUN", 2, "obl:tmod"),
    ("who", "PRON", 9, "nsubj"),
    ("ran", "VERB", 4, "acl:relcl"),
    ("that", "PRON", 12, "nsubj"),
    ("is", "AUX", 12, "cop"),
    ("it", "PRON", 2, "obj"),
]
# The subtree of "man" has a gap at "yesterday", and the subtree of "it" is a clause.
PHRASES = [
    (0, 1, "subject"),
    (4, 6, "modifier"),
    (6, 7, "oblique"),
    (7, 8, "subject"),
    (9, 10, "subject"),
]


def spans(doc: Doc) -> list[tuple[int, int, str]]:
    return [(span.start, span.end, span.label_) for span in doc.spans["sc"]]


def test_phrases_are_contiguous_subtrees_with_their_role(tmp_path: Path) -> None:
    lines = [
        f"{i}\t{word}\t_\t{pos}\t_\t_\t{head}\t{relation}\t_\t_"
        for i, (word, pos, head, relation) in enumerate(WORDS, 1)
    ]
    path = tmp_path / "phrases.spacy"
    text = "\n".join(lines) + "\n\n"
    assert noun_phrases.write_phrases(path, text * 2) == (2, 2 * len(PHRASES))
    for doc in DocBin().from_disk(path).get_docs(spacy.blank("en").vocab):
        assert spans(doc) == PHRASES
    treebank = tmp_path / "other-ud-test.conllu"
    treebank.write_text(text, encoding="utf8")
    noun_phrases.main(tmp_path / "phrases", treebank=treebank)
    (doc,) = DocBin().from_disk(tmp_path / "phrases/other-ud-test.spacy").get_docs(doc.vocab)
    assert spans(doc) == PHRASES


def test_phrases_hold_others() -> None:
    rows = WORDS[:6]
    doc = Doc(
        spacy.blank("en").vocab,
        words=[row[0] for row in rows],
        pos=[row[1] for row in rows],
        heads=[head - 1 if head else i for i, (_, _, head, _) in enumerate(rows)],
        deps=[row[3] for row in rows],
    )
    found = [(span.text, span.label_) for span in noun_phrases.noun_phrases(doc)]
    assert found == [
        ("Anna", "subject"),
        ("the man of Rome", "object"),
        ("of Rome", "modifier"),
    ]


def test_entities_become_spans(tmp_path: Path) -> None:
    doc = Doc(spacy.blank("en").vocab, words=["Anna", "saw", "New", "York"])
    doc.ents = [Span(doc, 0, 1, "PER"), Span(doc, 2, 4, "GPE")]
    source = tmp_path / "ents" / "dev.spacy"
    source.parent.mkdir()
    DocBin(docs=[doc]).to_disk(source)
    app = typer.Typer()
    app.command()(entity_spans.main)
    done = CliRunner().invoke(app, [str(source.parent), str(tmp_path / "spans")])
    assert "dev.spacy: 2 spans" in done.stdout, done.output
    (made,) = DocBin().from_disk(tmp_path / "spans" / "dev.spacy").get_docs(doc.vocab)
    assert spans(made) == [(0, 1, "PER"), (2, 4, "GPE")]
    with pytest.raises(LatentError, match=r"\.spacy"):
        entity_spans.main(tmp_path, tmp_path)
