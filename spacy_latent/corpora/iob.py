"""Entities in lines of a token and its tag."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from spacy_latent.corpora.sources import Source, read_source
from spacy_latent.errors import LatentError, number_of

Sentence = tuple[list[str], list[str]]
DOCUMENT = "-DOCSTART-"
OUTSIDE, UNKNOWN = "O", "-"
# Prefixes of tags that always begin an entity, and of tags that always end one.
FIRST, LAST = ("B", "S", "U"), ("E", "L", "S", "U")
PREFIXES = {*FIRST, *LAST, "I", "M"}


def is_tag(tag: str) -> bool:
    """Return whether a tag is of entities.

    These are O, and a type after B-, I- or another prefix of :func:`to_iob2`.
    """
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
            expected = "'token TAB tag'"
            if columns != (0, 1):
                expected = (
                    f"a line with token and tag in columns {columns[0] + 1}, {columns[1] + 1}"
                )
            raise LatentError(f"Line {number}: {line!r} is not {expected} with an IOB tag.")
        token = token.replace("\ufeff", "").strip()
        if not token:
            continue
        if tag[2:] in left_out:
            tag = OUTSIDE
        tokens.append(token)
        tags.append(tag)
    if tokens:
        yield tokens, to_iob2(tags)


def write_sentences(
    path: str | Path, sentences: Sequence[Sentence], documents: Sequence[int] | None = None
) -> None:
    """Write a doc of each sentence.

    Args:
        documents: number of the document of each sentence, which the docs name; None if unknown.
    """
    import spacy
    from spacy.tokens import Doc, DocBin

    from spacy_latent.annotations import name_document

    vocab = spacy.blank("en").vocab
    docs = DocBin(store_user_data=documents is not None)
    for i, (tokens, tags) in enumerate(sentences):
        doc = Doc(vocab, words=tokens, ents=tags)
        if documents is not None:
            name_document(doc, documents[i])
        docs.add(doc)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    docs.to_disk(path)


def convert(sources: dict[str, Source], output: Path, downloads: Path) -> None:
    """Write ``NAME.spacy`` to ``output`` for each source."""
    for name, source in sources.items():
        sentences = list(read_iob(read_source(source, downloads)))
        write_sentences(output / f"{name}.spacy", sentences)
        print(f"{output / name}.spacy: {number_of(len(sentences), 'sentence')}")
