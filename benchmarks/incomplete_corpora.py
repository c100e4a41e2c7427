"""Write further corpora of incomplete annotation, which no file ``configs/ner_*.cfg`` names.

    python -m benchmarks.incomplete_corpora corpus/incomplete

For BC5CDR, these have other amounts of annotation, and flags of which a tenth is wrong. WNUT-17 and
Universal NER get the same kinds of annotation as BC5CDR, in ``FOLDER_wnut`` and ``FOLDER_uner``,
and the controls of flags and sources.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import spacy
from spacy.tokens import Doc, DocBin

from benchmarks.incomplete_controls import read, write_aggregates, write_controls
from benchmarks.learning_groups import BC5CDR, MORE_CORPORA
from spacy_latent.corpora.incomplete import (
    flag_all_but,
    keep_some,
    simulate_sources,
    split_by_labels,
)

# The share of entities that each source gives correctly, as in project.yml for BC5CDR.
SOURCES = (0.8, 0.6, 0.5, 0.4, 0.3)


def write(docs: Iterable[Doc], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    docs = list(docs)
    DocBin(docs=docs, store_user_data=any(doc.user_data for doc in docs)).to_disk(path)


def write_amounts(corpus: str, folder: Path) -> None:
    """Write corpora with other amounts of annotation of BC5CDR."""
    vocab = spacy.blank("en").vocab
    complete = partial(read, Path(corpus) / "train.spacy", vocab)
    for percent in (10, 60):
        write(keep_some(complete(), percent / 100), folder / f"sparse_{percent}.spacy")
    write(flag_all_but(complete(), 150, wrong=0.1), folder / "flags_wrong.spacy")
    for count in (50, 500):
        write(flag_all_but(complete(), count), folder / f"flags_{count}.spacy")
        own = flag_all_but(complete(), count, as_if_complete=True)
        write(own, folder / f"flags_{count}_as_if_complete.spacy")
        write_controls(folder, f"flags_{count}", f"{corpus}/dev.spacy")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder of the corpora of BC5CDR")
    folder = parser.parse_args().folder
    write_amounts(BC5CDR, folder)
    for name, corpus in MORE_CORPORA.items():
        own = folder.with_name(f"{folder.name}_{name}")
        vocab = spacy.blank("en").vocab
        for as_if_complete, ending in ((False, ""), (True, "_as_if_complete")):
            ways = {
                "sparse": partial(keep_some, share=0.3),
                "flags": partial(flag_all_but, complete=150),
                "label_sets": partial(split_by_labels, sets=corpus.label_sets),
                "sources": partial(simulate_sources, rights=SOURCES),
            }
            for kind, way in ways.items():
                docs = read(Path(corpus.folder) / "train.spacy", vocab)
                write(way(docs, as_if_complete=as_if_complete), own / f"{kind}{ending}.spacy")
        write_aggregates(own, vocab, hmm=False)
        write_controls(own, "flags", f"{corpus.folder}/dev.spacy")


if __name__ == "__main__":
    main()
