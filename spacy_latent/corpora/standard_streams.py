"""Standard input and output of commands, independent of the encoding of terminal or pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import typer
import wasabi.util
from typer.core import TyperGroup

from spacy_latent.errors import LatentError


def prepare_streams() -> None:
    r"""Make the standard streams independent of their encoding.

    Characters that standard output or standard error cannot encode are printed as escape sequences,
    such as ``\u0141``. Standard input is read as files are: in UTF-8, with any line ends. On
    Windows, redirected streams have the encoding of the locale, such as cp1252.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # A stream that has been read from cannot be reconfigured.
        with suppress(io.UnsupportedOperation):
            # With this error handler text_files.lines_of reports byte and line of an error.
            sys.stdin.reconfigure(encoding="utf8", errors="surrogateescape", newline=None)
    # By default wasabi encodes messages itself, decodes the bytes as UTF-8, and fails.
    wasabi.util.ENCODING = "utf8"


class CommandGroup(TyperGroup):
    """Commands that print escape sequences for characters that their streams cannot encode.

    This includes their help and the errors in their arguments.
    """

    def make_context(self, *args: Any, **extra: Any) -> Any:
        prepare_streams()
        return super().make_context(*args, **extra)


def run(main: Callable[..., Any]) -> None:
    """Run a function as the main program, with parameters from the command line.

    The message of a LatentError is printed without a traceback.
    """
    prepare_streams()
    try:
        typer.run(main)
    except LatentError as error:
        sys.exit(f"Error: {error}")
