"""Corpora of texts in shards, each of which one process can read separately."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from spacy.tokens import Doc
from spacy.vocab import Vocab

from spacy_latent.corpora.annotated_lines import words_of
from spacy_latent.corpora.doc_files import stored_docs
from spacy_latent.corpora.text_files import MARK, check_encoding, lines_of
from spacy_latent.corpora.text_pairs import table_rows
from spacy_latent.distributed.parquet import pyarrow
from spacy_latent.errors import LatentError

STDIN = "-"
FORMS = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".csv": "table",
    ".tsv": "table",
    ".spacy": "docbin",
    ".txt": "text",
}
ACCEPTED = (
    "a .parquet file with a column of texts, .csv or .tsv whose first line names the columns, "
    ".jsonl with a field of texts, .spacy, .txt with a text per line, or a directory of such files"
)
# Number of lines of JSON that are checked for the requested fields.
LOOKED_AT = 100


@dataclass(frozen=True)
class Shard:
    """Some rows of a file.

    Attributes:
        name: Name of the output file, without an ending.
        path: The file, as a string, so that other processes and machines can use it.
        first, count: First row and number of rows; a count of None for all remaining rows.
        offset: Start of the first row in bytes; only for files of lines.
        id_field, text_field: Names of columns, or of fields of JSON.
        second_field: Field of the second text of each pair; empty if each row is one text.
        lines: The texts themselves, instead of a file.
    """

    name: str
    path: str
    first: int = 0
    count: int | None = None
    offset: int = 0
    id_field: str = "id"
    text_field: str = "text"
    lines: tuple[str, ...] | None = None
    second_field: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """Name of the field of the text, or of both texts of a pair."""
        return (self.text_field, self.second_field) if self.second_field else (self.text_field,)


@dataclass(frozen=True)
class Source:
    """Text or pair of texts to annotate, with its id and the reason if it cannot be read."""

    id: str
    text: str | tuple[str, str] | Doc
    error: str | None = None


def shards_of(
    source: Path, rows: int, id_field: str = "id", text_field: str = "text", second_field: str = ""
) -> list[Shard]:
    """Return the shards of a file, or of all files below a directory.

    A .spacy file is one shard.

    Args:
        rows: Greatest number of rows of a shard.
        second_field: Field of the second texts of pairs.

    Raises:
        LatentError: If a file cannot be read or lacks the fields. For JSON, only the first lines of
            the first file are checked.
    """
    if not source.exists():
        raise LatentError(f"The corpus {source} does not exist. Give {ACCEPTED}.")
    files = [source]
    if source.is_dir():
        below = sorted(path for path in source.rglob("*") if path.suffix.lower() in FORMS)
        files = [path for path in below if not path.name.startswith((".", "_"))]
    if not files:
        raise LatentError(f"The corpus {source} holds no files to read. Give {ACCEPTED}.")
    found: list[Shard] = []
    for path in files:
        form = form_of(path)
        relative = path.relative_to(source) if source.is_dir() else Path(path.name)
        name = "--".join(relative.parts)
        if form == "docbin":
            found.append(Shard(f"{name}-00000", str(path)))
            continue
        whole = Shard(
            name, str(path), id_field=id_field, text_field=text_field, second_field=second_field
        )
        if form == "parquet":
            places = _parts(_rows_of_parquet(whole), rows)
        elif form == "table":
            places = _parts(_rows_of_table(whole), rows)
        else:
            check_encoding(path)
            places = _rows_of_lines(path, rows, form)
        for number, (first, count, offset) in enumerate(places):
            own = f"{name}-{number:05d}"
            found.append(replace(whole, name=own, first=first, count=count, offset=offset))
    twice = [name for name, count in Counter(shard.name for shard in found).items() if count > 1]
    if twice:
        raise LatentError(
            f"Two files would be written as {min(twice)}. Give one of them another name."
        )
    _check_fields(found)
    return found


def shards_of_lines(lines: Iterable[str], rows: int) -> Iterator[Shard]:
    """Yield the shards of standard input as its lines arrive."""
    waiting, first = lines_of(lines), 0
    while some := tuple(islice(waiting, rows)):
        yield Shard(f"stdin-{first // rows:05d}", "stdin", first, len(some), lines=some)
        first += len(some)


def form_of(path: Path) -> str:
    """Return the format of a file by its ending, such as "jsonl".

    Raises:
        LatentError: if the ending is not known.
    """
    if path.suffix.lower() not in FORMS:
        raise LatentError(f"{path} has no known ending. Give {ACCEPTED}.")
    return FORMS[path.suffix.lower()]


def _rows_of_parquet(shard: Shard) -> int:
    """Return the number of rows, and check the names of the columns."""
    with _opened_parquet(shard) as file:
        return int(file.metadata.num_rows)


def _rows_of_table(shard: Shard) -> int:
    """Return the number of rows, and check the names of the columns."""
    total = 0
    for _, row in table_rows(Path(shard.path)):
        if not total:
            _check_names(shard, list(row))
        total += 1
    if not total:
        raise LatentError(
            f"{shard.path} has no rows; expected rows below a first line that names the columns."
        )
    return total


def _parts(total: int, rows: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first row, the number of rows, and 0 as offset, of each shard."""
    for first in range(0, total, rows):
        yield first, min(rows, total - first), 0


def _rows_of_lines(path: Path, rows: int, form: str) -> Iterator[tuple[int, int, int]]:
    offset = here = first = count = 0
    with path.open("rb") as file:
        for line in _lines_in(file, form):
            if count == rows:
                yield first, count, offset
                first, count, offset = first + count, 0, here
            count += 1
            here += len(line)
    if count:
        yield first, count, offset


def _lines_in(file: BinaryIO, form: str) -> Iterator[bytes]:
    """Yield the lines of a file with their ends.

    A line of text may end with a carriage return alone, as in Python's text mode. A line of JSON
    ends with a line feed.
    """
    for line in file:
        if form == "text":
            yield from line.splitlines(keepends=True)
        else:
            yield line


def read_shard(shard: Shard, vocab: Vocab) -> Iterator[Source]:
    """Yield the texts of a shard, or the docs of a .spacy file.

    The id of a text without an id is the name of the file and the number of the row, from 0.
    """
    name = shard.name.rsplit("-", 1)[0]
    form = form_of(Path(shard.path)) if shard.lines is None else "stdin"
    if form in ("jsonl", "text"):
        rows = _read_lines(shard, form, vocab)
    elif form == "parquet":
        rows = enumerate(_read_parquet(shard), shard.first)
    elif form == "docbin":
        rows = enumerate(_read_docs(shard, vocab), shard.first)
    elif form == "table":
        rows = enumerate(_read_table(shard), shard.first)
    else:
        rows = enumerate((Source("", line) for line in shard.lines or ()), shard.first)
    for number, row in rows:
        yield row if row.id else replace(row, id=f"{name}:{number}")


@contextmanager
def _opened_parquet(shard: Shard) -> Iterator[Any]:
    """Open a file that has the columns of the shard."""
    pa = pyarrow()
    try:
        with pa.parquet.ParquetFile(shard.path) as file:
            _check_names(shard, file.schema_arrow.names)
            yield file
    except (pa.ArrowException, OSError) as error:
        raise LatentError(
            f"{shard.path} cannot be read: {error}. Write it again, or remove it from the corpus."
        ) from error


def _check_names(shard: Shard, names: Sequence[str]) -> None:
    if missing := [name for name in shard.fields if name not in names]:
        raise LatentError(
            f"{shard.path} has no column {missing[0]!r}; it has {', '.join(map(repr, names))}. "
            "Name the column of texts with --text-field."
        )


def _check_fields(shards: Sequence[Shard]) -> None:
    """Raise LatentError if no checked line of the first file has the fields of the arguments."""
    if not shards or form_of(Path(shards[0].path)) != "jsonl":
        return
    rows = []
    for _, line, _ in _lines(replace(shards[0], count=LOOKED_AT)):
        with suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    rows = [row for row in rows if isinstance(row, dict)]
    fields = shards[0].fields
    if rows and not any(set(fields) <= row.keys() or _words(shards[0], row) for row in rows):
        missing = next(name for name in fields if not all(name in row for row in rows))
        raise LatentError(
            f"None of the first lines of {shards[0].path} has a field {missing!r}; there is "
            f"{', '.join(map(repr, rows[0])) or 'nothing'}. Name the field of texts with "
            "--text-field."
        )


def _read_parquet(shard: Shard) -> Iterator[Source]:
    with _opened_parquet(shard) as file:
        names = file.schema_arrow.names
        wanted = [name for name in (shard.id_field, *shard.fields) if name in names]
        first, left = shard.first, shard.count or 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if first >= size:
                first -= size
                continue
            if left <= 0:
                return
            table = file.read_row_group(group, columns=wanted).slice(first, left)
            first, left = 0, left - len(table)
            columns = [table[name].to_pylist() for name in shard.fields]
            ids = [None] * len(table)
            if shard.id_field in names:
                ids = table[shard.id_field].to_pylist()
            for id_, *texts in zip(ids, *columns):
                yield _source(id_, texts)


def _read_table(shard: Shard) -> Iterator[Source]:
    """Yield the texts of a table, after reading the rows before the first one."""
    end = None if shard.count is None else shard.first + shard.count
    for _, row in islice(table_rows(Path(shard.path)), shard.first, end):
        yield _source(row.get(shard.id_field), [row[name] for name in shard.fields])


def _read_lines(shard: Shard, form: str, vocab: Vocab) -> Iterator[tuple[int, Source]]:
    """Yield the texts with their line numbers. Empty lines are skipped in JSON, not in text."""
    for number, line, wrong in _lines(shard):
        if wrong:
            yield number, Source("", line, wrong)
        elif form == "text":
            yield number, Source("", line)
        elif line.strip():
            yield number, _row_of_json(shard, line, vocab)


def _row_of_json(shard: Shard, line: str, vocab: Vocab) -> Source:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Source("", line, f"The line is no JSON: {error}")
    if words := _words(shard, row):
        return Source(_encodable(row.get(shard.id_field)), Doc(vocab, words=words))
    missing = [name for name in shard.fields if not isinstance(row, dict) or name not in row]
    if missing:
        return Source("", line, f"The line has no field {missing[0]!r}")
    return _source(row.get(shard.id_field), [row[name] for name in shard.fields])


def _words(shard: Shard, row: Any) -> list[str] | None:
    """Return the words of a row without a text, or None; the text field has its default name."""
    if shard.fields != (Shard.text_field,) or not isinstance(row, dict):
        return None
    return words_of(row)


def _lines(shard: Shard) -> Iterator[tuple[int, str, str]]:
    """Yield the number of each line, its text, and the reason if it cannot be read, or ""."""
    with open(shard.path, "rb") as file:
        file.seek(shard.offset)
        lines = _lines_in(file, form_of(Path(shard.path)))
        for number, line in enumerate(islice(lines, shard.count), shard.first):
            try:
                text, wrong = line.decode("utf8"), ""
            except UnicodeDecodeError as error:
                text = line.decode("utf8", "replace")
                wrong = f"The line is no UTF-8: {error}. Save the file as UTF-8"
            yield number, (text if number else text.removeprefix(MARK)).rstrip("\r\n"), wrong


def _read_docs(shard: Shard, vocab: Vocab) -> Iterator[Source]:
    for doc in stored_docs(Path(shard.path), vocab):
        yield Source(_encodable(doc.user_data.get("id")), doc)


def _source(id_: Any, texts: Sequence[Any]) -> Source:
    """Return the source for the id and the text of a row, or for both texts of a pair."""
    known, shown = _encodable(id_), [_encodable(text) for text in texts]
    for text, own in zip(texts, shown):
        if not isinstance(text, str):
            error = _encodable(f"The text is {text!r}, no string")
            return Source(known, " ".join(shown), error)
        if own != text:
            error = "The text has half of a surrogate pair, which no UTF-8 has"
            return Source(known, " ".join(shown), error)
    if len(shown) == 1:
        return Source(known, shown[0])
    first, second = shown
    # The reader of pairs for training strips the texts as well.
    return Source(known, (first.strip(), second.strip()))


def _encodable(value: object) -> str:
    """Return a value as text, None as "", with lone surrogates replaced.

    JSON may contain them, and UTF-8 may not.
    """
    return "" if value is None else str(value).encode("utf8", "replace").decode("utf8")
