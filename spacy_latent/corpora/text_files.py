"""Reading of text files that were written by any program."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from spacy_latent.errors import LatentError

# Byte order mark that some programs put at the start of a file in UTF-8.
MARK = "\ufeff"
# Byte order marks of UTF-16.
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# One or both halves of a surrogate pair in JSON.
ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def check_encoding(path: Path) -> None:
    """Raise LatentError for a file with a mark of UTF-16, much of which is also valid UTF-8."""
    if path.is_fifo():
        # A pipe can be read only once.
        return
    with path.open("rb") as file:
        if file.read(2) in UTF_16:
            raise LatentError(f"{path} is in UTF-16. Save it as UTF-8.")


@contextmanager
def opened(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a file in UTF-8, without the byte order mark at its start.

    Args:
        newline: as in ``open``.

    Raises:
        LatentError: if the encoding is another one. The message names the line.
    """
    check_encoding(path)
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError as error:
        # The error only has the position in a part of the file.
        raise LatentError(_not_utf_8(path) or f"{path} is not in UTF-8: {error}.") from None


def _not_utf_8(path: Path) -> str:
    """Describe the first line that is not UTF-8, in a sentence; empty for a pipe."""
    if path.is_fifo():
        return ""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf8")
            except UnicodeDecodeError as error:
                wrong = " ".join(f"{byte:02X}" for byte in line[error.start : error.end])
                return f"{path}, line {number}, is not in UTF-8 ({wrong}). Save it as UTF-8."
    return ""


def read_text(path: Path) -> str:
    r"""Return the text of a file in UTF-8, without byte order mark, with lines ending in ``\n``.

    Raises:
        LatentError: if the encoding is another one.
    """
    with opened(path) as file:
        return file.read()


def forgiving_lines(path: Path) -> list[str]:
    """Return the lines of a file, without their ends, with U+FFFD for invalid bytes.

    Use it for files in which not every character matters.

    Raises:
        LatentError: if the file is in UTF-16.
    """
    check_encoding(path)
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return [line.rstrip("\n") for line in file]


def lines_of(stream: Iterable[str]) -> Iterator[str]:
    """Yield the lines of standard input, without their ends and the byte order mark.

    Raises:
        LatentError: if the encoding is not UTF-8.
    """
    try:
        for number, line in enumerate(stream, 1):
            # With the error handler "surrogateescape" (set by prepare_streams, and by Python in the
            # locale C), bytes that are not UTF-8 become halves of surrogate pairs. This line fails
            # on them.
            line.encode("utf8")
            yield (line if number > 1 else line.removeprefix(MARK)).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise LatentError(f"Standard input is not in UTF-8: {error}. Give UTF-8.") from None
    except UnicodeEncodeError as error:
        raise LatentError(
            f"Standard input is not in UTF-8: line {number} has the byte "
            f"{ord(line[error.start]) & 0xFF:02X}. Give UTF-8."
        ) from None


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the number of each line of JSON, from 1, and its value, without empty lines.

    Raises:
        LatentError: if a line is not JSON.
    """
    with opened(path, newline="\n") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                value = json_value(line.rstrip("\r\n"), path, number)
                if ESCAPED_HALF.search(line):
                    check_pairs(value, f"{path}, line {number}")
                yield number, value


def json_value(text: str, path: Path, first: int = 1) -> Any:
    """Return the value of JSON.

    Args:
        first: number of the first line of the text in the file.

    Raises:
        LatentError: if it is not JSON. The message names the line and the column.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {first + error.lineno - 1}, column {error.colno}"
        raise LatentError(f"{path}, {place}: not a JSON value: {error.msg}.") from None
    except (ValueError, RecursionError) as error:
        raise LatentError(f"{path}, line {first}: not a JSON value: {error}.") from None


def check_pairs(value: Any, place: str) -> None:
    """Raise LatentError for half of a surrogate pair, on which spaCy fails."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise LatentError(
            f"{place}: {half} is half of a surrogate pair, not a character. Write both halves, "
            "or neither."
        ) from None
