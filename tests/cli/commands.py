"""Helpers that run commands in this process."""

from __future__ import annotations

from typing import Any

import srsly
import typer
from click.testing import Result
from spacy.cli._util import app
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401 (adds the commands)


def invoked(app: typer.Typer, *arguments: object, code: int = 0, text: str | None = None) -> Result:
    """Run a command, check its exit code, and return the result.

    Args:
        text: Text on standard input.
    """
    result = CliRunner().invoke(app, list(map(str, arguments)), input=text)
    assert result.exit_code == code, result.output
    return result


def latent(*arguments: object, code: int = 0, text: str | None = None) -> Result:
    """Run a command of ``spacy latent``, check its exit code, and return the result."""
    return invoked(app, "latent", *arguments, code=code, text=text)


def said(*arguments: object, code: int = 0, text: str | None = None) -> str:
    """Return the output of a command on one line, since messages are wrapped at the terminal."""
    return " ".join(latent(*arguments, code=code, text=text).output.split())


def json_of(*arguments: object, code: int = 0, text: str | None = None) -> Any:
    """Return the JSON of a command with ``--json``, which is all of its standard output."""
    return srsly.json_loads(latent(*arguments, code=code, text=text).stdout)
