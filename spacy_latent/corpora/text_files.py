"""Files of text that users give, whatever program wrote them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from spacy_latent.errors import LatentError

# That some programs put at the start of a file in UTF-8.
MARK = "\ufeff"
# Those that a file in UTF-16 begins with.
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# In JSON, of one or both halves of a surrogate pair.
ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def check_encoding(path: Path) -> None:
    """Raise LatentError for a file that says to be in UTF-16. Much of it would pass for UTF-8."""
    with path.open("rb") as file:
        if file.read(2) in UTF_16:
            raise LatentError(f"{path} is in UTF-16. Save it as UTF-8.")


@contextmanager
def opened(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """A file in UTF-8, without the mark that may stand at its start.

    newline: as of ``open``. Raises LatentError for another encoding, with the line.
    """
    check_encoding(path)
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            yield file
    except UnicodeDecodeError as error:
        # That tells the place in a part of the file alone.
        raise LatentError(_not_utf_8(path) or f"{path} is not in UTF-8: {error}.") from None


def _not_utf_8(path: Path) -> str:
    """Of the first line that is not, a sentence."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf8")
            except UnicodeDecodeError as error:
                wrong = " ".join(f"{byte:02X}" for byte in line[error.start : error.end])
                return f"{path}, line {number}, is not in UTF-8 ({wrong}). Save it as UTF-8."
    return ""


def read_text(path: Path) -> str:
    """All of a file in UTF-8, without the mark that may stand at its start, lines ending with
    ``\\n``. Raises LatentError for another encoding."""
    with opened(path) as file:
        return file.read()


def forgiving_lines(path: Path) -> list[str]:
    """The lines of a file, without their ends, in which not every character matters: what is no
    UTF-8 becomes U+FFFD. Raises LatentError for a file in UTF-16."""
    check_encoding(path)
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return [line.rstrip("\n") for line in file]


def lines_of(stream: Iterable[str]) -> Iterator[str]:
    """The lines of standard input, without their ends and the mark that may stand at its start.
    Raises LatentError for another encoding."""
    try:
        for number, line in enumerate(stream, 1):
            # Where its errors are "surrogateescape", as prepare_streams and Python in the locale C
            # set them, bytes that are no UTF-8 are halves of surrogate pairs.
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
    """The number of each line of JSON, from 1, and its value. Empty lines are passed over. Raises
    LatentError for a line that is none."""
    with opened(path, newline="\n") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise LatentError(
                        f"{path}, line {number}: not a JSON value: {error}."
                    ) from None
                if ESCAPED_HALF.search(line):
                    _check_pairs(value, f"{path}, line {number}")
                yield number, value


def _check_pairs(value: Any, place: str) -> None:
    """Raise LatentError for half of a surrogate pair, on which spaCy fails."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise LatentError(
            f"{place}: {half} is half of a surrogate pair, and no character. Write both halves, or "
            "neither."
        ) from None
