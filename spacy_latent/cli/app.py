"""Entry point of ``spacy latent``, which spaCy loads before each of its commands.

If the import of this module failed, every ``spacy`` command would fail. This module therefore needs
only the imports of spaCy's own command line. The commands import everything else when they run.
"""

from __future__ import annotations

from spacy.cli._util import app

from spacy_latent.cli.commands import latent_cli

__all__ = ["latent_cli"]

app.add_typer(latent_cli)
