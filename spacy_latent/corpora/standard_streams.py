"""Standard input and output of commands, independent of the encoding of terminal or pipe."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


def prints_unicode() -> bool:
    """Return whether standard output encodes all characters."""
    # It is None if the shell has closed it.
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return encoding.lower().replace("-", "").startswith("utf")


@contextmanager
def written_out() -> Iterator[None]:
    """Exit with an error if standard output cannot be written, as on a full disk."""
    try:
        try:
            yield
        finally:
            # Otherwise Python writes the rest after the command, where its errors are ignored.
            _flush()
    except OSError as error:
        # typer ends a command whose reader has gone, such as head, without a message. Errors of
        # other files have their name.
        if error.errno == errno.EPIPE or error.filename is not None or _can_write():
            raise
        # What is left in the buffer would be an error again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"Error: standard output cannot be written: {error.strerror}")


def _flush() -> None:
    # It is None if the shell has closed it.
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def _can_write() -> bool:
    """Return whether standard output takes a further line; an error does not name its stream."""
    try:
        print(flush=True)
    except OSError:
        return False
    return True


EMPTY_PATH = "The path is empty. Give a file or a folder; the current folder is '.'."


def refuse_empty_paths(command: Any) -> None:
    """Make an empty path an error of the arguments of a command.

    Path takes the empty text for the current folder. A shell gives it for a variable that is not
    set.
    """
    hints = get_type_hints(command.callback)
    for parameter in command.params:
        hint = hints.get(parameter.name)
        # Path, Path | None, list[Path] and list[Path] | None.
        kinds = [kind for each in get_args(hint) for kind in (each, *get_args(each))]
        # A group may give the same command again.
        if Path in (hint, *kinds) and "process_value" not in vars(parameter):
            parameter.process_value = partial(_process_path, parameter, parameter.process_value)


def _process_path(
    parameter: Any, process_value: Callable[[Any, Any], Any], context: Any, value: Any
) -> Any:
    if "" in (value if isinstance(value, (list, tuple)) else (value,)):
        raise typer.BadParameter(EMPTY_PATH, ctx=context, param=parameter)
    return process_value(context, value)


class CommandGroup(TyperGroup):
    """Commands that print escape sequences for characters that their streams cannot encode.

    This includes their help and the errors in their arguments. Empty paths are such errors.
    """

    def make_context(self, *args: Any, **extra: Any) -> Any:
        prepare_streams()
        # Help is printed here.
        with written_out():
            return super().make_context(*args, **extra)

    def invoke(self, *args: Any) -> Any:
        with written_out():
            return super().invoke(*args)

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
        with written_out():
            typer.run(main)
    except LatentError as error:
        sys.exit(f"Error: {error}")
