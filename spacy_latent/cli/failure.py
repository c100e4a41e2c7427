"""How a command of ``spacy latent`` ends that cannot do what it was asked for."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import NoReturn

from wasabi import msg


def fail(title: str, text: str = "") -> NoReturn:
    """Say why on standard error, which is not what somebody reads who pipes the result on, and exit
    with code 1. text: what to do."""
    with redirect_stdout(sys.stderr):
        msg.fail(title, text, spaced=True)
    raise SystemExit(1)
