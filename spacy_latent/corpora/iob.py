"""Entities in lines of a token and its tag."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from spacy_latent.corpora.doc_files import write_docs, write_parts
from spacy_latent.corpora.sources import Source, read_source
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.tokens import Doc

Sentence = tuple[list[str], list[str]]
DOCUMENT = "-DOCSTART-"
OUTSIDE, UNKNOWN = "O", "-"
# Prefixes of tags that always begin an entity, and of tags that always end one.
FIRST, LAST = ("B", "S", "U"), ("E", "L", "S", "U")
PREFIXES = {*FIRST, *LAST, "I", "M"}


def is_tag(tag: str) -> bool:
    """Return whether a tag is O, or a type after B-, I- or another prefix of :func:`to_iob2`."""
    return tag == OUTSIDE or (tag[:1] in PREFIXES and tag[1:2] == "-" and len(tag) > 2)


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Convert tags to O, B- and I-, with B- at the beginning of every entity.

    Args:
        tags: tags that :func:`is_tag` accepts, of any scheme: IOB1, in which B- only separates
            adjacent entities of a type; IOB2; BILUO; BIOES; or BMES with M- inside and S- for
            single tokens. "-" for unknown tags.
    """
    made: list[str] = []
    before = OUTSIDE
    for tag in tags:
        opens = tag[:1] in FIRST or before[:1] in LAST or before[2:] != tag[2:]
        made.append(tag if tag in (OUTSIDE, UNKNOWN) else f"{'B' if opens else 'I'}-{tag[2:]}")
        before = tag
    return made


def to_biluo(tags: Sequence[str]) -> list[str]:
    """Convert tags to the scheme that spaCy reads.

    Args:
        tags: tags as in :func:`to_iob2`.
    """
    found = to_iob2(tags)
    made = []
    for tag, after in zip(found, [*found[1:], OUTSIDE]):
        ends = not after.startswith("I-")
        named = {"B": "U" if ends else "B", "I": "L" if ends else "I"}
        made.append(f"{named[tag[0]]}{tag[1:]}" if tag[0] in named else tag)
    return made


def read_iob(
    text: str,
    *,
    columns: tuple[int, int] = (0, 1),
    comments: bool = False,
    left_out: Collection[str] = (),
) -> Iterator[Sentence]:
    """Yield (tokens, tags) of each sentence, from lines with columns separated by tabs.

    Sentences end at a line that is blank after stripping, since some files have a TAB there. A byte
    order mark is removed. Tags of other schemes are converted by :func:`to_iob2`. "-DOCSTART-",
    which separates documents in CoNLL-2003, is not a token.

    Args:
        columns: columns of the token and of its tag.
        comments: whether lines that begin with "#" are comments.
        left_out: types of entities whose tags are read as O.

    Raises:
        LatentError: if a line lacks the columns, or if its tag is not of entities.
    """
    tokens: list[str] = []
    tags: list[str] = []
    # Not splitlines(): it would also break at the odd Unicode separators inside tokens.
    for number, line in enumerate(text.split("\n"), 1):
        if comments and line.startswith("#"):
            continue
        cells = line.rstrip("\r\n").split("\t")
        if not line.strip() or DOCUMENT in cells:
            if tokens:
                yield tokens, to_iob2(tags)
                tokens, tags = [], []
            continue
        found = [cells[place].strip() for place in columns if place < len(cells)]
        token, tag = found if len(found) == 2 else ("", "")
        if not is_tag(tag):
            raise LatentError(
                f"Line {number}: {line!r}; expected a token and an IOB tag in columns "
                f"{columns[0] + 1}, {columns[1] + 1}, separated by TABs."
            )
        token = token.replace("\ufeff", "").strip()
        if not token:
            continue
        if tag[2:] in left_out:
            tag = OUTSIDE
        tokens.append(token)
        tags.append(tag)
    if tokens:
        yield tokens, to_iob2(tags)


def sentence_docs(
    sentences: Iterable[Sentence], documents: Iterable[int] | None = None
) -> Iterator[Doc]:
    """Yield a doc of each sentence.

    Args:
        documents: number of the document of each sentence, which the docs name; None if unknown.
    """
    import spacy
    from spacy.tokens import Doc

    from spacy_latent.annotations import name_document

    vocab = spacy.blank("en").vocab
    named = repeat(None) if documents is None else documents
    for (tokens, tags), document in zip(sentences, named, strict=documents is not None):
        doc = Doc(vocab, words=tokens, ents=tags)
        if document is not None:
            name_document(doc, document)
        yield doc


def write_sentences(
    path: str | Path, sentences: Iterable[Sentence], documents: Iterable[int] | None = None
) -> None:
    """Write a doc of each sentence; for ``documents`` see :func:`sentence_docs`."""
    write_docs(Path(path), sentence_docs(sentences, documents))


def convert(sources: dict[str, Source], output: Path, downloads: Path) -> None:
    """Write ``NAME.spacy`` to ``output`` for each source."""
    read = {name: read_iob(read_source(source, downloads)) for name, source in sources.items()}
    parts = {name: sentence_docs(sentences) for name, sentences in read.items()}
    write_parts(output, parts, "sentence")
