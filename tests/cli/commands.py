"""Commands, run in this process."""

from __future__ import annotations

from typing import Any

import srsly
import typer
from click.testing import Result
from spacy.cli._util import app
from typer.testing import CliRunner

import spacy_latent.cli.app  # noqa: F401 (adds the commands)


def invoked(app: typer.Typer, *arguments: object, code: int = 0, text: str | None = None) -> Result:
    """Of a command that ends with this code. text: on standard input."""
    result = CliRunner().invoke(app, list(map(str, arguments)), input=text)
    assert result.exit_code == code, result.output
    return result


def latent(*arguments: object, code: int = 0, text: str | None = None) -> Result:
    """Of a command of ``spacy latent``."""
    return invoked(app, "latent", *arguments, code=code, text=text)


def said(*arguments: object, code: int = 0, text: str | None = None) -> str:
    """All that a command prints, on one line: messages are wrapped to the terminal's width."""
    return " ".join(latent(*arguments, code=code, text=text).output.split())


def json_of(*arguments: object, code: int = 0, text: str | None = None) -> Any:
    """What a command with ``--json`` prints on standard output, where nothing else may be."""
    return srsly.json_loads(latent(*arguments, code=code, text=text).stdout)
