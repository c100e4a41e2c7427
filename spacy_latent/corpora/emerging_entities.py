"""WNUT-17 emerging entities (Derczynski et al. 2017): NER on noisy text, six types.

python -m spacy_latent.corpora.emerging_entities corpus/ner
"""

from __future__ import annotations

from pathlib import Path

from spacy_latent.corpora.iob import convert
from spacy_latent.corpora.sources import published
from spacy_latent.corpora.standard_streams import run

SOURCES = published("""
ner-wnut17
train 731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5 wnut17train.conll
dev e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8 emerging.dev.conll
""")


def main(output: Path, downloads: Path = Path("corpus/downloads")) -> None:
    """Write train.spacy and dev.spacy to OUTPUT."""
    convert(SOURCES, output, downloads)


if __name__ == "__main__":
    run(main)
