"""Standard input and output of commands, independent of the encoding of terminal or pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

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


def refuse_empty_paths(command: Any) -> None:
    """Make an empty path an error of the arguments of a command.

    As a Path, the empty text is the current folder. A shell gives it for a variable that is not
    set.
    """
    hints = get_type_hints(command.callback)
    for parameter in command.params:
        hint = hints.get(parameter.name)
        # Path, Path | None, list[Path] and list[Path] | None.
        kinds = [kind for each in get_args(hint) for kind in (each, *get_args(each))]
        if Path in (hint, *kinds):
            parameter.process_value = partial(_process_path, parameter, parameter.process_value)


def _process_path(
    parameter: Any, process_value: Callable[[Any, Any], Any], context: Any, value: Any
) -> Any:
    if "" in (value if isinstance(value, (list, tuple)) else (value,)):
        raise typer.BadParameter(
            "The path is empty. Give a file or a folder; the current folder is '.'.",
            ctx=context,
            param=parameter,
        )
    return process_value(context, value)


class CommandGroup(TyperGroup):
    """Commands that print escape sequences for characters that their streams cannot encode.

    This includes their help and the errors in their arguments. Empty paths are such errors.
    """

    def make_context(self, *args: Any, **extra: Any) -> Any:
        prepare_streams()
        return super().make_context(*args, **extra)

    def get_command(self, *args: Any) -> Any:
        command = super().get_command(*args)
        if command is not None and not isinstance(command, TyperGroup):
            refuse_empty_paths(command)
        return command


def run(main: Callable[..., Any]) -> None:
    """Run a function as the main program, with parameters from the command line.

    The message of a LatentError is printed without a traceback.
    """
    prepare_streams()
    try:
        typer.run(main)
    except LatentError as error:
        sys.exit(f"Error: {error}")
