"""Errors and warnings of commands, whose standard output may be read by a program."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import NoReturn

from spacy_latent.cli.messages import msg


def fail(title: str, text: str = "") -> NoReturn:
    """Print an error on standard error, and exit with code 1.

    Args:
        text: Advice for the user.
    """
    with redirect_stdout(sys.stderr):
        msg.fail(title, text, spaced=True)
    raise SystemExit(1)


def warn(title: str, text: str = "") -> None:
    """Print a warning on standard error.

    Args:
        text: Advice for the user.
    """
    with redirect_stdout(sys.stderr):
        msg.warn(title, text)
