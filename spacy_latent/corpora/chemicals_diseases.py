"""BC5CDR (Li et al. 2016): chemicals and diseases in abstracts.

The split is the one of Crichton et al. (2017).

    python -m spacy_latent.corpora.chemicals_diseases corpus/bc5cdr
"""

from __future__ import annotations

from pathlib import Path

from spacy_latent.corpora.iob import convert
from spacy_latent.corpora.sources import published
from spacy_latent.corpora.standard_streams import run

SOURCES = published("""
ner-bc5cdr
train b731361c0ed73afd04cc5fdad39afcdfd8f325d6e46c282339185a91d1af4c14 train.tsv
dev b909de65c4f7e3c23bb09ad52d654cdc92e96db941abe1a5dcf6f6010c03cff5 devel.tsv
""")


def main(output: Path, downloads: Path = Path("corpus/downloads/bc5cdr")) -> None:
    """Write train.spacy and dev.spacy to OUTPUT."""
    convert(SOURCES, output, downloads)


if __name__ == "__main__":
    run(main)
