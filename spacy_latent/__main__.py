"""``python -m spacy_latent``: as the script ``spacy-latent``, where scripts are not on the path."""

from __future__ import annotations

from spacy_latent.cli.commands import latent_cli

if __name__ == "__main__":
    latent_cli(prog_name="python -m spacy_latent")
