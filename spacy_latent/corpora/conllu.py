"""Sentences of CoNLL-U, the format of Universal Dependencies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from spacy.tokens import Doc, Span
from spacy.training.converters import conllu_to_docs

from spacy_latent.annotations import name_document
from spacy_latent.errors import LatentError, number_of

# Value of unknown fields. spaCy's converter reads it as a tag, a lemma or a label, and makes a
# token without a head a root.
UNKNOWN = "_"
BLANK_LINES = re.compile(r"\n\s*\n")
COLUMNS = 10
HEAD = re.compile(r"_|[0-9]+")
DOCUMENT = re.compile(r"^# newdoc\b(?:[ \t]+id[ \t]*=(.*))?", re.MULTILINE)


def split_documents(text: str) -> Iterator[tuple[str | None, list[str]]]:
    """Yield the name of each document of CoNLL-U, None without one, and its sentences.

    A document begins at the sentence with "# newdoc" among its comments. Comments without a
    sentence belong to the next sentence.
    """
    name: str | None = None
    sentences: list[str] = []
    for block in BLANK_LINES.split(text.replace("\r\n", "\n")):
        begins = DOCUMENT.search(block)
        if begins:
            if sentences:
                yield name, sentences
            name, sentences = (begins[1] or "").strip() or None, []
        if any(line.strip() and not line.startswith("#") for line in block.split("\n")):
            sentences.append(block.strip("\n"))
    if sentences:
        yield name, sentences


def read_conllu(text: str, sentences: int = 1) -> Iterator[Doc]:
    """Yield docs of so many sentences each.

    Tokens are the syntactic words. Empty nodes are left out, and so are missing values. A head
    without a label only loses its label, which becomes "_". Docs of one sentence name their
    document in ``doc.user_data["document"]`` if every document has a name. Docs of several
    sentences do not, since they may cover several documents.

    Raises:
        LatentError: if a line has other columns, or a number or head that its sentence does not
            have.
    """
    _check(text)
    documents = list(split_documents(text))
    # Convert the sentences as one text, since spaCy reads entities in all sentences or in none.
    whole = "\n\n".join(_without_comments(one) for _, own in documents for one in own)
    if not whole:
        return
    read = map(_known, conllu_to_docs(whole, n_sents=1, no_print=True))
    if sentences == 1 and all(name for name, _ in documents):
        for name in (str(name) for name, own in documents for _ in own):
            doc = next(read)
            name_document(doc, name)
            yield doc
        return
    while part := list(islice(read, sentences)):
        made = Doc.from_docs(part)
        assert made is not None
        yield made


def _check(text: str) -> None:
    """Raise an error for lines that spaCy's converter fails on, or reads as other trees."""
    heads: list[tuple[int, str]] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        cells = line.rstrip("\r").split("\t")
        if not line.strip():
            for place, head in heads:
                if head != UNKNOWN and int(head) > len(heads):
                    raise LatentError(
                        f"Line {place}: the head is {head}, and the sentence has "
                        f"{number_of(len(heads), 'word')}."
                    )
            heads = []
        elif line.startswith("#"):
            continue
        elif len(cells) != COLUMNS or not HEAD.fullmatch(cells[6]):
            raise LatentError(
                f"Line {number}: {line!r}; expected {COLUMNS} columns separated by TABs, with a "
                "number or _ as head in the seventh."
            )
        elif not re.search("[-.]", cells[0]):
            heads.append((number, cells[6]))
            if cells[0] != str(len(heads)):
                raise LatentError(
                    f"Line {number}: the number is {cells[0]!r}; expected {len(heads)}, the "
                    "place of the word in its sentence. Sentences end at blank lines."
                )


def _without_comments(sentence: str) -> str:
    """Return the lines of tokens, since spaCy only accepts comments at the beginning."""
    return "\n".join(line for line in sentence.split("\n") if not line.startswith("#"))


def _known(doc: Doc) -> Doc:
    """Return a new doc of a sentence, without unknown values."""
    tokens = list(doc)
    tags = ["" if token.tag_ == UNKNOWN else token.tag_ for token in tokens]
    lemmas = ["" if token.lemma_ == UNKNOWN != token.text else token.lemma_ for token in tokens]
    headless = [token.dep_ == UNKNOWN and token.head.i == token.i for token in tokens]
    same = [token.tag_ for token in tokens] == tags and [t.lemma_ for t in tokens] == lemmas
    if same and not any(headless):
        return doc
    # Doc derives sentence starts from heads. Without any heads they are given.
    trees: dict[str, Any] = {"sent_starts": [not token.i for token in tokens]}
    if not all(headless):
        trees = {
            "heads": [token.head.i for token in tokens],
            "deps": ["" if lost else token.dep_ for token, lost in zip(tokens, headless)],
        }
    made = Doc(
        doc.vocab,
        words=[token.text for token in tokens],
        spaces=[bool(token.whitespace_) for token in tokens],
        tags=tags,
        pos=[token.pos_ for token in tokens],
        morphs=[str(token.morph) for token in tokens],
        lemmas=lemmas,
        **trees,
    )
    if doc.has_annotation("ENT_IOB"):
        made.set_ents([Span(made, one.start, one.end, label=one.label) for one in doc.ents])
    return made
