"""Docs of two texts each, and a reader of such pairs for ``spacy train``."""

from __future__ import annotations

import csv
import inspect
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacy_latent.corpora.categories import read_categories
from spacy_latent.corpora.doc_files import stored_docs
from spacy_latent.corpora.text_files import json_lines, opened
from spacy_latent.errors import LatentError, LatentWarning, number_of

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc
    from spacy.training import Example

FIRST, SECOND = "a", "b"
# Prefixes of the names, in any version, of models and span getters for docs of two texts.
PAIRS, PAIR_SPANS = "spacy-latent.AlignedPairTextCat.", "spacy-latent.PairSpans."
COMPOSED_PAIRS = "spacy-latent.ComposedPairTextCat."
READER = "spacy-latent.TextPairs.v1"
# Files whose pairs have named fields.
WITH_FIELDS = (".jsonl", ".tsv", ".csv")
# Greatest number of characters of a text in a table; more would not fit an integer of Windows.
LONGEST = 2**31 - 1
# Message of commands that were given lines of text.
NO_PAIRS = "The pipeline reads pairs of texts, and lines of text are none"
# Number that is not whole, as a label in a table.
DECIMAL = re.compile(r"[+-]?\d*\.\d+")
# SNLI (Bowman et al. 2015) and MultiNLI have this label if annotators did not agree, and otherwise
# one of these three.
NO_LABEL, ITS_FIELD = "-", "gold_label"
ITS_LABELS = frozenset({"contradiction", "entailment", "neutral"})


class NoSuchField(LatentError):
    """Error for a pair without text, or without label, under the given field."""


def make_pair_doc(nlp: Language, first: str | Sequence[str], second: str | Sequence[str]) -> Doc:
    """Make one Doc of two texts: ``doc.spans["a"]`` is the first, ``doc.spans["b"]`` the second.

    Each text is tokenised on its own. A text without words gets an empty span group. The second
    text begins a sentence, so that a parser's tree does not span both.

    Args:
        first, second: a text, or the words of a text that is already tokenised.
    """
    from spacy.tokens import Doc

    texts = [
        nlp.make_doc(text) if isinstance(text, str) else Doc(nlp.vocab, words=list(text))
        for text in (first, second)
    ]
    some = [text for text in texts if len(text)]
    # from_docs copies its docs, so it is only called if there are two.
    doc = Doc.from_docs(some) if len(some) == 2 else (some or [Doc(nlp.vocab)])[0]
    assert doc is not None
    size = len(texts[0])
    doc.spans[FIRST] = [doc[:size]] if size else []
    doc.spans[SECOND] = [doc[size:]] if len(doc) > size else []
    _part(doc)
    return doc


def read_text_pairs_v1(
    path: Path | None,
    first: str = "text_a",
    second: str = "text_b",
    label: str = "label",
    limit: int = 0,
    missing: Sequence[str | int] | None = None,
) -> Callable[[Language], Iterable[Example]]:
    """Read pairs of texts for ``spacy train``, as docs of :func:`make_pair_doc`.

    Warn with LatentWarning of pairs without label and "cats" if other pairs have them.

    Args:
        path: file of JSON lines (.jsonl), of values under a header, separated by tabs (.tsv) or by
            commas (.csv, with quotation marks), or of docs that have both spans (.spacy). Unlike
            ``spacy.Corpus.v1``, this reader also gives the spans to the docs of the training.
        first, second: fields, or columns, of the texts. In JSON lines a text may be a list of words
            that are already tokenised.
        label: field of the label. The labels are all values in the file. Lists, and numbers that
            are not whole, raise an error. JSON lines may have "cats" instead, an object of labels
            and numbers.
        limit: number of pairs to read; 0, or a negative number, for all.
        missing: values under ``label`` for a pair without label, such as ["-1"], in addition to an
            empty value and null. [] for no further values. None for "-" in files like SNLI, whose
            field is called "gold_label" or whose other labels are SNLI's.
    """

    def read_corpus(nlp: Language) -> Iterator[Example]:
        from spacy.training import Example

        for number, doc in enumerate(read_docs(nlp, path, first, second, label, missing)):
            if 0 < limit <= number:
                return
            yield Example(_without_annotations(doc), doc)

    return read_corpus


def read_docs(
    nlp: Language,
    path: Path | None,
    first: str = "text_a",
    second: str = "text_b",
    label: str = "label",
    missing: Sequence[str | int] | None = None,
) -> Iterator[Doc]:
    """Yield docs of the pairs of a file, with their categories; see :func:`read_text_pairs_v1`."""
    if isinstance(missing, str):
        raise LatentError(f"TextPairs: missing is {missing!r}; expected a list, as [{missing!r}].")
    if path is None or not Path(path).is_file():
        raise LatentError(
            f"The file of text pairs {path} does not exist. Give the right one, for example with "
            "--paths.train."
        )
    path = Path(path)
    if _ending(path) == ".spacy":
        yield from stored_docs(path, nlp.vocab)
        return
    if _ending(path) not in WITH_FIELDS:
        raise LatentError(
            f"{path}: the file of text pairs must be a .jsonl, .tsv, .csv or .spacy file."
        )
    read = _json_lines if _ending(path) == ".jsonl" else table_rows
    if missing is None:
        missing = _missing_of_snli(read(path), label)
    lacking = {str(one) for one in missing}
    labels = _labels(path, read(path), label, lacking)
    for number, row in read(path):
        texts = [_text(path, number, row, field) for field in (first, second)]
        doc = make_pair_doc(nlp, *texts)
        cats = read_categories(row, f"{path}, line {number}")
        if cats is not None:
            doc.cats = cats
        elif (own := _label(path, number, row, label, lacking)) is not None:
            doc.cats = {name: float(name == own) for name in labels}
        yield doc


def _missing_of_snli(rows: Iterable[tuple[int, dict[str, Any]]], label: str) -> Sequence[str]:
    """Return the values for a missing label in a file like SNLI."""
    if label == ITS_FIELD:
        return [NO_LABEL]
    found: set[str] = set()
    for _, row in rows:
        found.add(str(row.get(label)).strip())
        if not found <= {"", "None", NO_LABEL, *ITS_LABELS}:
            return []
    return [NO_LABEL] if found & ITS_LABELS else []


def _labels(
    path: Path, rows: Iterable[tuple[int, dict[str, Any]]], label: str, lacking: set[str]
) -> list[str]:
    """Return all labels of a file, sorted.

    Warn of pairs without a label if others have one, since training ignores them silently.
    """
    labels: set[str] = set()
    count, without, decimal = 0, [], None
    for number, row in rows:
        count += 1
        cats = read_categories(row, f"{path}, line {number}")
        # If there is "cats", the label is not read.
        own = None
        if cats is None or _is_single(row.get(label)):
            own = _label(path, number, row, label, lacking)
        if own is not None:
            labels.add(own)
            if decimal is None and _ending(path) != ".jsonl" and DECIMAL.fullmatch(own):
                decimal = f"{own} in line {number}"
        elif cats is None:
            without.append(number)
    if decimal is not None:
        warnings.warn(
            f"{path}: labels under {label!r} are numbers, such as {decimal}, and each becomes a "
            "category of its own. To predict numbers, write the pairs as JSON lines, with "
            '"cats" as {"score": 3.5}.',
            LatentWarning,
            stacklevel=2,
        )
    if 0 < len(without) < count:
        warnings.warn(
            f"{path}: {len(without)} of {number_of(count, 'pair')} have no label under "
            f"{label!r}, first in line {without[0]}. Only a model with evidence learns from "
            "them. Scores of latent_textcat leave them out; spaCy's textcat counts each as wrong.",
            LatentWarning,
            stacklevel=2,
        )
    return sorted(labels)


def _label(
    path: Path, number: int, row: dict[str, Any], field: str, lacking: set[str]
) -> str | None:
    """Return the label of a pair, or None."""
    value = row.get(field)
    value = value.strip() if isinstance(value, str) else value
    if value is None or value == "":
        return None
    if isinstance(value, float) and not _is_single(value):
        raise LatentError(
            f"{path}, line {number}: the label under {field!r} is {value!r}; expected a text, or a "
            "whole number, each of which is a category of its own. For a score that is to be "
            'predicted as a number give "cats" in its place, as {"cats": {"score": 3.5}}.'
        )
    if not _is_single(value):
        raise LatentError(
            f"{path}, line {number}: the label under {field!r} is {value!r}; expected one text or "
            'number. For several labels of a pair, or none, give "cats" in its place, as '
            '{"cats": {"yes": 1.0, "no": 0.0}}, with all labels in every line.'
        )
    # Tables with missing values have 1.0 for 1.
    if isinstance(value, str) and _ending(path) != ".jsonl":
        value = re.sub(r"^(-?\d+)\.0$", r"\1", value)
    own = str(int(value) if isinstance(value, float) else value)
    return None if own in lacking else own


def _is_single(value: object) -> bool:
    """Return whether a value can be the label of a pair."""
    return isinstance(value, (str, int)) or (isinstance(value, float) and value.is_integer())


def is_of_pairs(config: Mapping[str, object]) -> bool:
    """Return whether a component of this config reads docs of two texts."""

    def reads_two(block: object) -> bool:
        if not isinstance(block, Mapping):
            return False
        named = (block.get("@architectures"), block.get("@misc"))
        return any(
            str(name).startswith((PAIRS, COMPOSED_PAIRS, PAIR_SPANS)) for name in named
        ) or any(map(reads_two, block.values()))

    return reads_two(config.get("components"))


def pair_fields(config: Mapping[str, object]) -> tuple[str, str, str]:
    """Return the fields of the first text, the second text and the label.

    They are taken from the reader of pairs in an interpolated config, else from its defaults.
    """
    first, second, label = (_setting(config, key) for key in ("first", "second", "label"))
    return first, second, label


def missing_labels(config: Mapping[str, object]) -> Sequence[str | int] | None:
    """Return the setting ``missing`` of the reader of pairs in an interpolated config."""
    found: Sequence[str | int] | None = _setting(config, "missing")
    return found


def _setting(config: Mapping[str, object], key: str) -> Any:
    corpora = config.get("corpora")
    block: Any = corpora.get("dev") if isinstance(corpora, Mapping) else None
    if not block or block.get("@readers") != READER:
        block = {}
    return block.get(key, inspect.signature(read_text_pairs_v1).parameters[key].default)


def field_names(path: Path) -> list[str]:
    """Return the field names of the first pair of a file.

    The result is empty for a file of docs, and for a file without pairs.
    """
    if _ending(path) == ".spacy":
        return []
    read = _json_lines if _ending(path) == ".jsonl" else table_rows
    return next((list(row) for _, row in read(path)), [])


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the fields of each line."""
    for number, row in json_lines(path):
        if not isinstance(row, dict):
            raise LatentError(f"{path}, line {number}: expected an object, got {row!r}.")
        yield number, row


def table_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of the first line and the fields of each row under the header."""
    header: list[str] = []
    for number, row in (_comma_separated if _ending(path) == ".csv" else _tab_separated)(path):
        if not any(cell.strip() for cell in row):
            continue
        if not header:
            header = row
            if len(row) == 1 and ";" in row[0] and _ending(path) == ".csv":
                raise LatentError(
                    f"{path}, line {number}: the only column is called {row[0]!r}. Columns are "
                    "separated by commas, not by semicolons: save the table so, or as .tsv."
                )
            if twice := [name for name in header if header.count(name) > 1]:
                raise LatentError(
                    f"{path}, line {number}: two columns are called {twice[0]!r}. The first "
                    "line names the columns; give each a name of its own."
                )
            continue
        if len(row) != len(header):
            advice = (
                "Put texts with a comma between quotation marks."
                if _ending(path) == ".csv"
                else "Put a tab between columns, also beside an empty one, and none inside a text."
            )
            raise LatentError(
                f"{path}, line {number}: {number_of(len(row), 'column')}, and the first line, "
                f"which names them, has {len(header)}. {advice}"
            )
        yield number, dict(zip(header, row))


def _tab_separated(path: Path) -> Iterator[tuple[int, list[str]]]:
    with opened(path, newline="\n") as file:
        for number, line in enumerate(file, 1):
            # Quotation marks are part of the texts.
            yield number, line.rstrip("\r\n").split("\t")


def _comma_separated(path: Path) -> Iterator[tuple[int, list[str]]]:
    # By default the csv module refuses texts of more than 131,072 characters.
    csv.field_size_limit(max(LONGEST, csv.field_size_limit()))
    with opened(path, newline="") as file:
        rows = csv.reader(file, strict=True)
        number = 1
        try:
            for row in rows:
                yield number, row
                # A text between quotation marks may have several lines.
                number = rows.line_num + 1
        except csv.Error as error:
            raise LatentError(
                f"{path}, line {number}: {error}. Columns are separated by commas. A text with a "
                "comma, a quotation mark or several lines stands between quotation marks, and a "
                'quotation mark inside of it is written twice: "".'
            ) from error


def _ending(path: Path) -> str:
    """Return the lower-case ending of a file's name, which determines how it is read."""
    return path.suffix.lower()


def _text(path: Path, number: int, row: dict[str, Any], field: str) -> str | list[str]:
    text = row.get(field)
    if isinstance(text, str):
        return text.strip()
    if isinstance(text, list) and all(isinstance(word, str) for word in text):
        if "" in text:
            raise LatentError(
                f"{path}, line {number}: a word of {field!r} is empty: {text!r}. Leave it out."
            )
        return text
    header = "" if _ending(path) == ".jsonl" else " The first line of a table names its columns."
    raise NoSuchField(
        f"{path}, line {number}: {field!r} is {text!r}, not a text; there is "
        f"{', '.join(map(repr, row))}.{header} Name the fields of the two texts as the reader's "
        "first and second."
    )


def _without_annotations(doc: Doc) -> Doc:
    """Copy the tokens and spans of a doc."""
    from spacy.tokens import Doc

    words, spaces = [token.text for token in doc], [bool(token.whitespace_) for token in doc]
    bare = Doc(doc.vocab, words=words, spaces=spaces)
    for key in (FIRST, SECOND):
        if key in doc.spans:
            bare.spans[key] = [bare[span.start : span.end] for span in doc.spans[key]]
    _part(bare)
    return bare


def _part(doc: Doc) -> None:
    """Begin a sentence at the second text."""
    for key in (FIRST, SECOND):
        for span in doc.spans.get(key, ()):
            if span.start:
                doc[span.start].is_sent_start = True
