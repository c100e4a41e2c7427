"""Universal Dependencies Latin CIRCSE: tragedies of Seneca and the Germania of Tacitus.

Arcs cross in 64 % of the training sentences.

    python -m spacy_latent.corpora.latin_circse corpus/latin
"""

from __future__ import annotations

from pathlib import Path

from spacy_latent.corpora.english_web_treebank import write_sources
from spacy_latent.corpora.sources import published
from spacy_latent.corpora.standard_streams import run

SOURCES = published("""
ud-latin-circse
train 81ea247fbf7121844e487ec50600dcb20d2168f329f77f9c23ac970c61d23639 la_circse-ud-train.conllu
dev dd4898786f07c10aa5d4f517ec8f9325e42337b95011672eaf337ff66b9b45d8 la_circse-ud-dev.conllu
""")


def main(output: Path, downloads: Path = Path("corpus/downloads"), sentences: int = 10) -> None:
    """Write train.spacy and dev.spacy to OUTPUT, with SENTENCES sentences in each doc."""
    write_sources(SOURCES, output, downloads, sentences)


if __name__ == "__main__":
    run(main)
