"""UD English EWT joined with the entities of Universal NER."""

from __future__ import annotations

from spacy_latent.corpora import universal_entities
from spacy_latent.corpora.annotated_english import (
    SENTENCES,
    SHARES,
    parts_of,
    read_documents,
    read_posts,
)


def tree(document: str, words: list[str], number: int) -> str:
    lines = [f"# newdoc id = {document}"] if number == 0 else []
    lines.append(f"# sent_id = {document}-{number}")
    for i, word in enumerate(words, 1):
        head, label = (0, "root") if i == 1 else (1, "dep")
        row = [str(i), word, word.lower(), "NOUN", "NN", "Number=Sing", str(head), label]
        lines.append("\t".join([*row, "_", "_"]))
    return "\n".join(lines) + "\n\n"


def entities(document: str, words: list[str], tags: list[str], number: int) -> str:
    lines = [f"{i}\t{word}\t{tag}\t-\t-" for i, (word, tag) in enumerate(zip(words, tags), 1)]
    return "\n".join([f"# sent_id = {document}-{number}", *lines]) + "\n\n"


def test_trees_and_entities_are_joined_by_the_names_of_sentences() -> None:
    trees = tree("a", ["Ada", "lives"], 0) + tree("a", ["Bob", "cannot"], 1)
    trees += tree("b", ["Oslo", "#", "tag"], 0)
    # The sentences with entities are in another order. One has other tokens, and one is missing.
    named = entities("a", ["Bob", "can", "not"], ["B-PER", "O", "O"], 1)
    named += entities("a", ["Ada", "lives"], ["B-PER", "B-OTH"], 0)
    (first,), (second,) = read_documents(trees, named)
    assert [token.text for token in first] == ["Ada", "lives", "Bob", "cannot"]
    assert [(one.text, one.label_) for one in first.ents] == [("Ada", "PER")]
    assert [token.ent_iob_ for token in first] == ["B", "O", "", ""]
    assert [token.head.i for token in first] == [0, 0, 2, 2]
    assert (second[0].tag_, second[0].pos_, second[0].lemma_) == ("NN", "NOUN", "oslo")
    assert str(first[0].morph) == "Number=Sing" and len(list(first.sents)) == 2
    assert not second.has_annotation("ENT_IOB") and second[1].text == "#"


def test_documents_of_entities_begin_at_sentences() -> None:
    texts = [entities("a", ["Bob"], ["B-PER"], i) for i in range(3)]
    texts[2] = texts[2].replace("# sent_id = a-2\n", "# sent_id = a-2\n# newdoc id = b\n")
    found = list(universal_entities.read_documents("# newdoc id = a\n" + "".join(texts)))
    assert found == [[(["Bob"], ["B-PER"])] * 2, [(["Bob"], ["B-PER"])]]


def test_long_documents_are_several_docs() -> None:
    trees = "".join(tree("a", ["Word"], i) for i in range(SENTENCES + 1))
    (docs,) = read_documents(trees, "")
    assert [len(doc) for doc in docs] == [SENTENCES, 1]
    # Both docs are pieces of the document.
    assert [doc.user_data["document"] for doc in docs] == ["a", "a"]


def test_no_document_that_training_reads_chooses_or_calibrates() -> None:
    parts = [parts_of(place) for place in range(SHARES)]
    counts = [sum(name in one for one in parts) for name in ("train", "dev", "held_out")]
    assert counts == [18, 1, 2]
    assert all(one == ("train",) for one in parts if "train" in one)
    assert not any("test" in one for one in parts)


def test_posts_have_the_labels_that_both_corpora_have_and_no_trees() -> None:
    rows = ["Ada\tB-person", "of\tO", "The\tB-group", "Who\tI-group", "Ltd\tB-corporation"]
    rows += ["", "in\tO", "Oslo\tB-location", "Hamlet\tB-creative-work", "iPad\tB-product"]
    first, second = read_posts("\n".join(rows))
    found = [(one.text, one.label_) for doc in (first, second) for one in doc.ents]
    assert found == [("Ada", "PER"), ("The Who", "ORG"), ("Ltd", "ORG"), ("Oslo", "LOC")]
    assert [token.ent_iob_ for token in second] == ["O", "B", "O", "O"]
    assert not first.has_annotation("HEAD") and not first.has_annotation("TAG")
    assert first.user_data["document"] != second.user_data["document"]
