"""Reading of CoNLL-U and CoNLL-2003, whose marks of unknown values are no annotation."""

from __future__ import annotations

from typing import Any

import pytest
import spacy
from spacy.training import Example
from spacy.training.converters import conllu_to_docs

from spacy_latent.corpora.conllu import read_conllu
from spacy_latent.corpora.iob import read_iob
from spacy_latent.errors import LatentError
from spacy_latent.models.gold_trees import read_gold
from tests.pipeline.small_pipelines import TOK2VEC

ROWS = [
    ("I", "PRON", "2", "nsubj"),
    ("saw", "VERB", "0", "root"),
    ("it", "PRON", "2", "_"),
    ("all", "_", "_", "_"),
]
TEXT = "\n".join(
    f"{i}\t{word}\t_\t{tag}\t_\t_\t{head}\t{label}\t_\t_"
    for i, (word, tag, head, label) in enumerate(ROWS, 1)
)
WITHOUT_TREES = "1\tNo\t_\t_\t_\t_\t_\t_\t_\t_\n2\ttrees\t_\t_\t_\t_\t_\t_\t_\t_\n"


def test_placeholders_are_left_out() -> None:
    (doc,) = read_conllu(TEXT)
    assert [token.tag_ for token in doc] == ["PRON", "VERB", "PRON", ""]
    assert not any(token.lemma_ for token in doc)
    assert [token.has_head() for token in doc] == [True, True, True, False]
    (words,) = read_conllu(WITHOUT_TREES)
    assert not words.has_annotation("DEP") and len(list(words.sents)) == 1
    assert len(list(read_conllu(f"{TEXT}\n\n{WITHOUT_TREES}", sentences=2))) == 1


def test_sentences_name_their_document_where_all_have_a_name() -> None:
    named = [f"# newdoc id = {name}\n# text = x\n{TEXT}\n\n{TEXT}\n\n" for name in "ab"]
    docs = list(read_conllu("".join(named)))
    assert [doc.user_data["document"] for doc in docs] == ["a", "a", "b", "b"]
    # A doc of several sentences may have several documents, so it names none.
    assert not any(doc.user_data for doc in read_conllu("".join(named), sentences=3))
    assert not any(doc.user_data for doc in read_conllu(f"{TEXT}\n\n{named[0]}"))
    assert not any(doc.user_data for doc in read_conllu(named[0].replace(" id = a", "")))


def test_documents_begin_at_sentences() -> None:
    named = f"# newdoc id = a\n# sent_id = 1\n{TEXT}\n\n# sent_id = 2\n# newdoc id = b\n{TEXT}\n"
    for header in ("", "# global.columns = ID FORM\n", "# global.columns = ID FORM\n\n"):
        # Several blank lines, and a comment at the end of the file.
        for end in ("", "\n\n\n# the end\n"):
            docs = list(read_conllu(f"{header}{named}{end}"))
            assert [doc.user_data["document"] for doc in docs] == ["a", "b"]
    assert not any(doc.user_data for doc in read_conllu(f"{named}\n# newdoc\n{TEXT}\n"))
    assert not list(read_conllu("# newdoc id = a\n"))


def test_entities_are_read_in_all_documents_alike() -> None:
    named = TEXT.replace("nsubj\t_\t_", "nsubj\t_\tU-PER", 1)
    documents = f"# newdoc id = a\n{named}\n\n# newdoc id = b\n{TEXT}\n"
    first, second = read_conllu(documents)
    assert [one.text for one in first.ents] == ["I"] and not second.ents
    assert second.has_annotation("ENT_IOB")


def gold(doc: Any) -> Any:
    label = doc.vocab.strings.add("nsubj")
    return read_gold(Example(doc.copy(), doc), {label: 0}, "latent_parser", 128)


def test_what_spacy_made_of_them_is_not_learned() -> None:
    (doc,) = conllu_to_docs(TEXT, n_sents=1, no_print=True)
    found = gold(doc)
    assert found.heads.tolist() == [1, 1, 1, -1] and found.labels.tolist() == [0, -1, -1, -1]
    (words,) = conllu_to_docs(WITHOUT_TREES, n_sents=1, no_print=True)
    found = gold(words)
    # spaCy makes each word without a head a sentence, which is not learned either.
    assert (found.heads == -1).all() and (found.starts == -1).all()


def test_a_parser_has_no_label_of_them() -> None:
    nlp = spacy.blank("xx")
    (doc,) = conllu_to_docs(TEXT, n_sents=1, no_print=True)
    parser: Any = nlp.add_pipe("latent_parser", config={"model": {"tok2vec": TOK2VEC}})
    nlp.initialize(lambda: [Example(nlp.make_doc("I saw it all"), doc)])
    assert parser.labels == ("ROOT", "nsubj")


def test_what_parts_documents_is_no_token() -> None:
    text = "-DOCSTART-\tO\n\nAnna\tB-PER\nran\tO\n-DOCSTART-\tO\nBob\tB-PER\n"
    assert list(read_iob(text)) == [(["Anna", "ran"], ["B-PER", "O"]), (["Bob"], ["B-PER"])]


def row(number: object, word: str, head: object, columns: int = 10) -> str:
    return "\t".join([str(number), word, *["_"] * 4, str(head), "x", "_", "_"][:columns])


def test_comments_stand_anywhere_in_a_sentence() -> None:
    lines = ["# first", row(1, "a", 2), "# between", row(2, "b", 0), "# last"]
    (doc,) = read_conllu("\r\n".join(lines))
    assert [token.text for token in doc] == ["a", "b"] and doc[0].head.i == 1


@pytest.mark.parametrize(
    "wrong",
    [
        row(2, "b", 1, columns=9),
        row(2, "b", 1) + "\t_",
        row(2, "b", "one"),
        row(2, "b", -1),
        row(2, "b", 3),
        # Without a blank line between them, the words of two sentences would share heads.
        row(1, "b", 0),
        row("x", "b", 1),
    ],
)
def test_lines_that_are_no_words_of_their_sentence_are_named(wrong: str) -> None:
    with pytest.raises(LatentError, match="Line 4"):
        list(read_conllu("\n".join([row(1, "a", 0), "", row(1, "a", 0), wrong])))
    right = [row("1-2", "ab", "_"), row(1, "a", 0), row("1.1", "E", "_"), row(2, "b", 1)]
    (doc,) = read_conllu("\n".join(right))
    assert doc.text.strip() == "ab"
