"""A corpus of texts in shards, each of which one process reads by itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacy_latent.distributed.parquet import pyarrow
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.tokens import Doc
    from spacy.vocab import Vocab

STDIN = "-"
FORMS = {".parquet": "parquet", ".jsonl": "jsonl", ".spacy": "docbin", ".txt": "text"}
ACCEPTED = (
    "a .parquet file with a column of texts, .jsonl with a field of texts, .spacy, .txt with a "
    "text per line, or a directory of such files"
)


@dataclass(frozen=True)
class Shard:
    """Some rows of a file.

    name: of what is made of them, without an ending.
    path: the file; as a string, so that other processes and machines can have it.
    first, count: the rows; None for all from there on.
    offset: where the first row begins, in bytes; of lines only.
    id_field, text_field: names of columns, or of fields of JSON.
    lines: the texts themselves, in the place of a file.
    """

    name: str
    path: str
    first: int = 0
    count: int | None = None
    offset: int = 0
    id_field: str = "id"
    text_field: str = "text"
    lines: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Source:
    """A text to annotate: its id, what it is, and why it cannot be read, or None."""

    id: str
    text: str | Doc
    error: str | None = None


def shards_of(
    source: Path, rows: int, id_field: str = "id", text_field: str = "text"
) -> list[Shard]:
    """The shards of a file, or of all files below a directory, of at most so many rows each. A
    .spacy file is one shard."""
    if not source.exists():
        raise LatentError(f"The corpus {source} does not exist. Give {ACCEPTED}.")
    files = [source]
    if source.is_dir():
        below = sorted(path for path in source.rglob("*") if path.suffix in FORMS)
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
        places = _rows_of_parquet(path, rows) if form == "parquet" else _rows_of_lines(path, rows)
        for number, (first, count, offset) in enumerate(places):
            place = str(path), first, count, offset
            found.append(Shard(f"{name}-{number:05d}", *place, id_field, text_field))
    names = [shard.name for shard in found]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise LatentError(
            f"Two files would be written as {twice[0]}. Give one of them another name."
        )
    return found


def shards_of_lines(lines: Iterable[str], rows: int) -> Iterator[Shard]:
    """The shards of standard input, as it comes."""
    waiting, first = iter(lines), 0
    while some := tuple(line.rstrip("\r\n") for line in islice(waiting, rows)):
        yield Shard(f"stdin-{first // rows:05d}", "stdin", first, len(some), lines=some)
        first += len(some)


def form_of(path: Path) -> str:
    if path.suffix not in FORMS:
        raise LatentError(f"It is not known how to read {path}. Give {ACCEPTED}.")
    return FORMS[path.suffix]


def _rows_of_parquet(path: Path, rows: int) -> Iterator[tuple[int, int, int]]:
    with pyarrow().parquet.ParquetFile(path) as file:
        total = file.metadata.num_rows
    for first in range(0, total, rows):
        yield first, min(rows, total - first), 0


def _rows_of_lines(path: Path, rows: int) -> Iterator[tuple[int, int, int]]:
    offset = here = first = count = 0
    with path.open("rb") as file:
        for line in file:
            if count == rows:
                yield first, count, offset
                first, count, offset = first + count, 0, here
            count += 1
            here += len(line)
    if count:
        yield first, count, offset


def read_shard(shard: Shard, vocab: Vocab) -> Iterator[Source]:
    """The texts of a shard, or the docs, for a .spacy file. A text without an id of its own has the
    file's name and the number of its row, from 0."""
    name = shard.name.rsplit("-", 1)[0]
    if shard.lines is not None:
        rows: Iterable[Source] = (Source("", line) for line in shard.lines)
    else:
        form = form_of(Path(shard.path))
        if form == "parquet":
            rows = _read_parquet(shard)
        elif form == "docbin":
            rows = _read_docs(shard, vocab)
        else:
            rows = _read_lines(shard, form)
    for number, row in enumerate(rows, shard.first):
        yield row if row.id else Source(f"{name}:{number}", row.text, row.error)


def _read_parquet(shard: Shard) -> Iterator[Source]:
    with pyarrow().parquet.ParquetFile(shard.path) as file:
        names = file.schema_arrow.names
        if shard.text_field not in names:
            raise LatentError(
                f"{shard.path} has no column {shard.text_field!r}; it has {', '.join(names)}. Name "
                "the column of texts with --text-field."
            )
        wanted = [name for name in (shard.id_field, shard.text_field) if name in names]
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
            texts = table[shard.text_field].to_pylist()
            ids = [None] * len(texts)
            if shard.id_field in names:
                ids = table[shard.id_field].to_pylist()
            for id_, text in zip(ids, texts):
                yield _source(id_, text)


def _read_lines(shard: Shard, form: str) -> Iterator[Source]:
    with open(shard.path, "rb") as file:
        file.seek(shard.offset)
        for line in islice(file, shard.count):
            try:
                text = line.decode("utf8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                shown = line.decode("utf8", "replace").rstrip("\r\n")
                yield Source("", shown, f"The line is no UTF-8: {error}")
                continue
            if form == "text":
                yield Source("", text)
                continue
            try:
                row = json.loads(text)
            except ValueError as error:
                yield Source("", text, f"The line is no JSON: {error}")
                continue
            if not isinstance(row, dict) or shard.text_field not in row:
                yield Source("", text, f"The line has no field {shard.text_field!r}")
                continue
            yield _source(row.get(shard.id_field), row[shard.text_field])


def _read_docs(shard: Shard, vocab: Vocab) -> Iterator[Source]:
    from spacy.tokens import DocBin

    for doc in DocBin().from_disk(shard.path).get_docs(vocab):
        own = doc.user_data.get("id")
        yield Source(own if isinstance(own, str) else "", doc)


def _source(id_: Any, text: Any) -> Source:
    known = _encodable("" if id_ is None else str(id_))
    if not isinstance(text, str):
        shown = _encodable("" if text is None else str(text))
        return Source(known, shown, _encodable(f"The text is {text!r}, no string"))
    shown = _encodable(text)
    if shown != text:
        return Source(known, shown, "The text has half of a surrogate pair, which no UTF-8 has")
    return Source(known, text)


def _encodable(text: str) -> str:
    """JSON may hold halves of surrogate pairs, which no file of ours can."""
    return text.encode("utf8", "replace").decode("utf8")


__all__ = ["Shard", "Source", "form_of", "read_shard", "shards_of", "shards_of_lines"]
