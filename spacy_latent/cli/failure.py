"""How a command of ``spacy latent`` ends that cannot do what it was asked for, and how one warns
whose standard output may be read by a program."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import NoReturn

from spacy_latent.cli.messages import msg


def fail(title: str, text: str = "") -> NoReturn:
    """Say why on standard error, which is not what somebody reads who pipes the result on, and exit
    with code 1. text: what to do."""
    with redirect_stdout(sys.stderr):
        msg.fail(title, text, spaced=True)
    raise SystemExit(1)


def warn(title: str, text: str = "") -> None:
    """Say on standard error what the result does not tell, and go on. text: what to do."""
    with redirect_stdout(sys.stderr):
        msg.warn(title, text)
