"""``spacy latent``: the entry point that spaCy loads before each of its commands.

If this module failed to import, every ``spacy`` command would fail. So it needs only what spaCy's
own command line needs, and the commands import the rest when they run.
"""

from __future__ import annotations

from spacy.cli._util import app

from spacy_latent.cli.commands import latent_cli

__all__ = ["latent_cli"]

app.add_typer(latent_cli)
