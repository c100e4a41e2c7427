"""Entry point of ``python -m spacy_latent``, for machines on which scripts are not on the path.

It is the same as the script ``spacy-latent``.
"""

from __future__ import annotations

from spacy_latent.cli.commands import latent_cli

if __name__ == "__main__":
    latent_cli(prog_name="python -m spacy_latent")
