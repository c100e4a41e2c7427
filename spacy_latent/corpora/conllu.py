"""Sentences of CoNLL-U, the format of Universal Dependencies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spacy.tokens import Doc

# For what is not known. spaCy's converter makes a tag, a lemma and a label of it, and a token
# without a head a root.
UNKNOWN = "_"


def read_conllu(text: str, sentences: int = 1) -> Iterator[Doc]:
    """Docs of so many sentences each. Tokens are the syntactic words; empty nodes are left out.
    What the text has no value of is left out as well: of a head without a label the label alone
    is, which then is "_"."""
    from spacy.tokens import Doc
    from spacy.training.converters import conllu_to_docs

    read = map(_known, conllu_to_docs(text, n_sents=1, no_print=True))
    while part := list(islice(read, sentences)):
        made = Doc.from_docs(part)
        assert made is not None
        yield made


def _known(doc: Doc) -> Doc:
    """The doc of a sentence, which is made anew where something in it is not known."""
    from spacy.tokens import Doc, Span

    tokens = list(doc)
    tags = ["" if token.tag_ == UNKNOWN else token.tag_ for token in tokens]
    lemmas = ["" if token.lemma_ == UNKNOWN != token.text else token.lemma_ for token in tokens]
    headless = [token.dep_ == UNKNOWN and token.head.i == token.i for token in tokens]
    same = [token.tag_ for token in tokens] == tags and [t.lemma_ for t in tokens] == lemmas
    if same and not any(headless):
        return doc
    # Heads tell where sentences begin, and so do none.
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


__all__ = ["read_conllu"]
