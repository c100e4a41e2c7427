"""Reading of corpora and of their code on the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacy_latent.cli.messages import fail, msg, warn
from spacy_latent.corpora.text_files import lines_of, opened
from spacy_latent.errors import LatentError, number_of

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc
    from spacy.training import Example

STDIN = "-"
# Common formats of files with texts.
ENDINGS = (".txt", ".jsonl", ".json", ".spacy", ".tsv", ".csv")
ACCEPTED = (
    "a .spacy file or a directory of these, .jsonl with 'text' or 'tokens' and any annotations of "
    "spaCy's training format, or as Prodigy and doccano write it, .json with a list of such "
    "objects or as Label Studio writes it, .txt with a text per line, - for "
    "such lines of standard input, or what the reader of the config's [corpora.dev] takes; for a "
    "pipeline of pairs of texts what spacy-latent.TextPairs.v1 takes"
)
FROM_TOKENS = "'spacy convert' makes .spacy of annotated tokens (.conllu, .conll, .iob)."
FROM_A_TABLE = (
    "The page 'Quick start' of the documentation has the lines that make .spacy of a table (.csv), "
    "under 'On your own task'."
)
HINTS = {
    **dict.fromkeys((".csv", ".tsv"), FROM_A_TABLE),
    **dict.fromkeys((".conllu", ".conll", ".iob", ".iob2", ".bio", ".ner"), FROM_TOKENS),
}


def lines_of_stdin() -> Iterator[str]:
    """Yield the lines of standard input, with a message if it is a terminal."""
    if sys.stdin.isatty():
        with redirect_stdout(sys.stderr):
            msg.info("Type texts, one per line. End with Ctrl+D (Windows: Ctrl+Z).")
    yield from lines_of(sys.stdin)


def typed_texts(text: str) -> Iterator[str]:
    """Yield the text of an argument, or the lines of standard input if it is "-"."""
    if text != STDIN:
        yield typed_text(text)
        return
    lines = lines_of_stdin()
    first = next(lines, None)
    if first is None:
        warn("Standard input has no text", "Give texts there, one per line.")
        return
    yield first
    yield from lines


def typed_text(text: str) -> str:
    """Return the text of an argument; exit if it is invalid UTF-8, or the name of a file."""
    try:
        text.encode("utf8")
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        fail(f"The text is not in UTF-8: it has the byte {byte:02X}", "Convert it to UTF-8.")
    is_file = os.path.isfile(text)
    if is_file or (len(text.split()) == 1 and text.endswith(ENDINGS)):
        fail(
            f"{text!r} is {'a file' if is_file else 'the name of a file'}; expected a text",
            f"To read texts from the file, one per line, give - < {text}",
        )
    return text


def read_examples(nlp: Language, corpus: str, limit: int = 0) -> list[Example]:
    """Return the examples of :func:`read_counted`."""
    return read_counted(nlp, corpus, limit)[0]


def read_counted(nlp: Language, corpus: str, limit: int = 0) -> tuple[list[Example], int]:
    """Return examples, not processed yet, and the number of examples without tokens among them.

    Args:
        corpus: See :data:`ACCEPTED`.
        limit: Greatest number of examples, 0 for all.
    """
    from spacy_latent.annotations import DOCUMENT

    found, _, left_out = _read_placed(nlp, corpus, limit, DOCUMENT)
    return found, left_out


def read_grouped(
    nlp: Language,
    corpus: str,
    limit: int = 0,
    group_by: str | None = None,
    docs_per_document: int | None = None,
) -> list[Example]:
    """Return the examples of :func:`read_counted`, with references that name their documents.

    Args:
        group_by: Name of the document that a doc is a piece of: a key of ``doc.user_data``, a
            custom attribute, or a key of lines of JSON or of their "meta". None for "document".
        docs_per_document: Number of neighbouring docs of a document; None for no such option. Docs
            of the corpus that are left out count, too.

    Raises:
        LatentError: If both options are given, if a doc lacks the named value, or if docs name
            their documents already and ``docs_per_document`` is given.
    """
    from spacy_latent.annotations import DOCUMENT

    found, places, _ = _read_placed(nlp, corpus, limit, group_by or DOCUMENT)
    _group_docs(found, places, group_by, docs_per_document)
    return found


def _read_placed(
    nlp: Language, corpus: str, limit: int, group_by: str
) -> tuple[list[Example], list[int], int]:
    """Return examples, their places in the corpus, and the number of those without tokens."""
    if not corpus:
        # Path("") is the present directory.
        raise LatentError(f"The name of the corpus is empty. Give {ACCEPTED}.")
    path = Path(corpus)
    if corpus != STDIN and not path.exists():
        raise LatentError(f"The corpus {corpus} does not exist. Give {ACCEPTED}.")
    found: list[Example] = []
    places: list[int] = []
    left_out = skipped = 0
    try:
        for place, example in enumerate(_read(nlp, corpus, path, group_by)):
            if example is None:
                skipped += 1
            elif len(example.predicted):
                found.append(example)
                places.append(place)
                if len(found) == limit:
                    break
            else:
                left_out += 1
    except LatentError:
        raise
    except Exception as error:
        # For every error of a reader, the user needs the name of the file and the reason.
        known = path.is_file() and path.suffix in (".spacy", ".jsonl", ".txt")
        raise LatentError(
            f"The corpus {corpus} cannot be read ({type(error).__name__}: {error})."
            f"{'' if known else f' Give {ACCEPTED}.'}"
        ) from error
    if not found and skipped and not left_out:
        raise LatentError(
            f"The corpus {corpus} holds no completely annotated text: all its lines ({skipped}) "
            "are left out. Give some."
        )
    if not found:
        empty = " with tokens" if left_out else ""
        raise LatentError(f"The corpus {corpus} holds no texts{empty}. Give one with at least one.")
    return found, places, left_out


def _read(nlp: Language, corpus: str, path: Path, group_by: str) -> Iterator[Example | None]:
    """Yield the examples of a corpus, and None for a rejected line."""
    from spacy_latent.pipeline.inspection import reads_pairs

    if reads_pairs(nlp):
        yield from _of_pairs(nlp, corpus, path)
    elif corpus == STDIN:
        yield from _of_texts(nlp, lines_of_stdin())
    elif path.suffix == ".txt" or path.is_fifo():
        with opened(path) as lines:
            yield from _of_texts(nlp, lines)
    elif path.suffix == ".spacy" or (path.is_dir() and any(path.rglob("*.spacy"))):
        yield from _of_docs(nlp, path)
    elif path.suffix == ".jsonl":
        yield from _of_json(nlp, path, group_by)
    else:
        yield from _by_config(nlp, path, group_by)


def _group_docs(
    examples: Sequence[Example],
    places: Sequence[int],
    group_by: str | None,
    docs_per_document: int | None,
) -> None:
    """Name the document of each reference, see :func:`read_grouped`."""
    from spacy_latent.annotations import document_of, is_document_name, name_document

    references = [example.reference for example in examples]
    if docs_per_document is not None:
        if group_by is not None or any(document_of(doc) is not None for doc in references):
            raise LatentError(
                "--docs-per-document needs docs that do not name their document, and "
                f"{'--group-by is given' if group_by else 'these do'}. Leave it out."
            )
        for place, doc in zip(places, references):
            name_document(doc, place // docs_per_document)
    elif group_by is not None:
        named = [_value_of(doc, group_by) for doc in references]
        missing = [doc for doc, name in zip(references, named) if not is_document_name(name)]
        if missing:
            keys = sorted({key for doc in references for key in _keys_of(doc)})
            raise LatentError(
                f"--group-by {group_by}: {number_of(len(missing), 'doc')} of {len(references)} "
                "have no string and no whole number there, first "
                f"{missing[0].text[:60]!r}. The docs have {', '.join(keys) or 'nothing'} in "
                "doc.user_data, which DocBin keeps with store_user_data=True."
            )
        for doc, name in zip(references, named):
            name_document(doc, name)


def _value_of(doc: Doc, name: str) -> Any:
    """Return the value of a key of ``doc.user_data``, or of a custom attribute."""
    user_data: dict[Any, Any] = doc.user_data
    # A stored attribute needs no registration here, and one with a getter is not stored.
    for key in (name, ("._.", name, None, None)):
        if key in user_data:
            return user_data[key]
    return doc._.get(name) if doc.has_extension(name) else None


def _keys_of(doc: Doc) -> list[str]:
    """Return the keys of ``doc.user_data`` and the custom attributes that are stored there."""
    found = []
    for key in doc.user_data:
        if isinstance(key, str):
            found.append(key)
        # The places of attributes of tokens and spans are not None.
        elif isinstance(key, tuple) and len(key) == 4 and key[0] == "._." and key[2] is None:
            found.append(key[1])
    return found


def field_hint(corpus: Path) -> str:
    """Return the end of a clause with the keys of .jsonl or the columns of a table, or ""."""
    from spacy_latent.corpora.text_pairs import WITH_FIELDS, field_names

    names = field_names(corpus) if corpus.suffix in WITH_FIELDS else []
    return f" (there is {', '.join(map(repr, names))})" if names else ""


def _of_pairs(nlp: Language, corpus: str, path: Path) -> Iterator[Example]:
    """Yield examples of pairs, with the field names of the config's reader."""
    from spacy_latent.corpora.text_pairs import (
        NO_PAIRS,
        missing_labels,
        pair_fields,
        read_text_pairs_v1,
    )

    if corpus == STDIN or path.suffix == ".txt":
        raise LatentError(
            f"{NO_PAIRS}. Give .jsonl, .tsv or .csv with a field for each text, as "
            "spacy-latent.TextPairs.v1 reads them, or .spacy."
        )
    config = nlp.config.interpolate()
    first, second, label = pair_fields(config)
    missing = missing_labels(config)
    for file in sorted(path.rglob("*.spacy")) if path.is_dir() else [path]:
        yield from read_text_pairs_v1(file, first, second, label, missing=missing)(nlp)


def _of_docs(nlp: Language, path: Path) -> Iterator[Example]:
    """Yield examples as spaCy's reader does, and docs without tokens, which that reader skips."""
    from spacy.training import Corpus, Example
    from spacy.training.corpus import walk_corpus

    from spacy_latent.corpora.doc_files import stored_docs

    corpus = Corpus(path)
    for file in walk_corpus(path, ".spacy"):
        for reference in stored_docs(file, nlp.vocab):
            if len(reference):
                yield from corpus.make_examples(nlp, [reference])
            else:
                yield Example(nlp.make_doc(""), reference)


def _of_texts(nlp: Language, lines: Iterable[str]) -> Iterator[Example]:
    from spacy.training import Example

    for line in lines:
        text = line.rstrip("\r\n")
        yield Example(nlp.make_doc(text), nlp.make_doc(text))


def _of_json(nlp: Language, path: Path, group_by: str) -> Iterator[Example | None]:
    """Yield the examples of lines of JSON, and None for lines that are left out, with warnings."""
    from spacy_latent.corpora.annotated_lines import annotated_rows, read_line, span_keys

    keys = span_keys(nlp)
    rejected: list[str] = []
    partial: list[str] = []
    misaligned: list[str] = []
    try:
        for where, row in annotated_rows(path):
            line = read_line(nlp, row, f"{path}, {where}", keys)
            if line.example is None or line.is_partial:
                (partial if line.is_partial else rejected).append(where)
                yield None
                continue
            misaligned += [f"in {where} {span}" for span in line.misaligned]
            meta = row.get("meta")
            name = row.get(group_by)
            if name is None and isinstance(meta, dict):
                name = meta.get(group_by)
            # A number that is no name, such as 1.0, is refused by what reads names.
            if isinstance(name, (str, float, int)) and name != "":
                user_data: dict[Any, Any] = line.example.reference.user_data
                user_data[group_by] = name
            yield line.example
    finally:
        _tell_left_out(path, rejected, partial, misaligned)


def _tell_left_out(
    path: Path, rejected: list[str], partial: list[str], misaligned: list[str]
) -> None:
    """Warn of lines without a complete annotation, and of spans with other bounds than tokens."""
    if rejected:
        warn(
            f"Left out of {path}: {number_of(len(rejected), 'line')} with the answer reject or "
            f"ignore, first {rejected[0]}"
        )
    if partial:
        warn(
            f"Left out of {path}: {number_of(len(partial), 'line')} where only a single span was "
            f"accepted or rejected, as in Prodigy's ner.teach (_is_binary), first {partial[0]}",
            "Such a text may have other entities that are not annotated, so it cannot be used "
            "for evaluation. Annotate whole texts, as with ner.correct. Training can use these "
            "lines: see 'Accepted and rejected' on the page 'Learn from incomplete annotation'.",
        )
    if misaligned:
        count = len(misaligned)
        warn(
            f"{number_of(count, 'span')} of {path} {'does' if count == 1 else 'do'} not begin "
            f"and end where tokens do, first {misaligned[0]}",
            "As entities, their tokens count as not annotated; in groups of spans they are "
            "missing.",
        )


def _by_config(nlp: Language, path: Path, group_by: str) -> Iterator[Example | None]:
    from spacy.util import registry

    block: dict[str, Any] = dict(nlp.config.interpolate().get("corpora", {}).get("dev") or {})
    hint = f" {HINTS[path.suffix.lower()]}" if path.suffix.lower() in HINTS else ""
    if "path" not in block or block.get("@readers") == "spacy.Corpus.v1":
        if path.suffix == ".json":
            yield from _of_json(nlp, path, group_by)
            return
        raise LatentError(
            f"The format of {path} is unknown, and the pipeline's config has no reader for it in "
            f"[corpora.dev]. Give {ACCEPTED}.{hint}"
        )
    block["path"] = str(path)
    reader = registry.resolve({"reader": block})["reader"]
    yield from reader(nlp)
