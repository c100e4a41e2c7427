"""Standard input and output of commands, whatever encoding a terminal or a redirect has."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import typer
import wasabi.util
from typer.core import TyperGroup


def prepare_streams() -> None:
    """Print characters that standard output or standard error cannot encode as escapes, such as
    ``\\u0141``, and read standard input as files are read: in UTF-8, however its lines end.

    On Windows the encoding of what is redirected is that of the locale, such as cp1252.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        # What has been read from cannot be changed.
        with suppress(io.UnsupportedOperation):
            # With these errors text_files.lines_of tells which byte of which line is wrong.
            sys.stdin.reconfigure(encoding="utf8", errors="surrogateescape", newline=None)
    # Else wasabi encodes messages itself, decodes the bytes as UTF-8, and fails.
    wasabi.util.ENCODING = "utf8"


class CommandGroup(TyperGroup):
    """Commands that print what their streams cannot encode as escapes, their help and errors in
    their arguments included."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        prepare_streams()
        return super().make_context(*args, **extra)


def run(main: Callable[..., Any]) -> None:
    """Run a function as the program that was started, its parameters from the command line."""
    prepare_streams()
    typer.run(main)


__all__ = ["CommandGroup", "prepare_streams", "run"]
