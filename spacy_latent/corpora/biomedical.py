"""Four corpora of abstracts and articles, each annotated for one kind of entities.

They are chemicals of BC5CDR (Li et al. 2016), diseases of NCBI (Dogan et al. 2014), genes of BC2GM
(Smith et al. 2008) and species of LINNAEUS (Gerner et al. 2010), in the splits of Crichton et al.
(2017).

    python -m spacy_latent.corpora.biomedical corpus/biomedical

Docs in label_sets.spacy say for which label they were annotated. Docs in as_if_complete.spacy do
not, so that a disease in a text annotated for chemicals counts as outside of entities. The
development set of BC5CDR has chemicals and diseases, in test.spacy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spacy_latent.corpora import chemicals_diseases
from spacy_latent.corpora.doc_files import write_parts
from spacy_latent.corpora.iob import Sentence, read_iob
from spacy_latent.corpora.sources import published, read_source
from spacy_latent.corpora.standard_streams import run

if TYPE_CHECKING:
    from spacy.tokens import Doc
    from spacy.vocab import Vocab

SOURCES = published("""
ner-biomedical
Chemical 165c4cd2efadd0caf1bb8f3c6bcd3acca199446bb3d55eb06d9137114c9a0b2d BC5CDR-chem.tsv
Disease 58379baf4614b8d757d93dd7a21b202849ca99f9b9d71b49185523ff5443300c NCBI-disease.tsv
GENE 46e17f4e1509483b82c03f27d6f0214020f738fb71704356fb3445eb824ab38d BC2GM.tsv
Species 74c8612944a4de87665680989a3d589c843562d3ec175e3b512295691b221d9a linnaeus.tsv
""")


def made_docs(vocab: Vocab, sentences: list[Sentence], labels: list[str] | None) -> list[Doc]:
    """Return docs of sentences, with the labels that they were annotated for if given."""
    from spacy.tokens import Doc

    from spacy_latent import annotations  # noqa: F401 (registers the extension)

    docs = [Doc(vocab, words=tokens, ents=tags) for tokens, tags in sentences]
    for doc in docs:
        if labels is not None:
            doc._.annotated_labels = labels
    return docs


def main(output: Path, downloads: Path = Path("corpus/downloads")) -> None:
    """Write label_sets.spacy, as_if_complete.spacy and test.spacy to OUTPUT."""
    import spacy

    vocab = spacy.blank("en").vocab
    read = {
        label: list(read_iob(read_source(source, downloads / "biomedical")))
        for label, source in SOURCES.items()
    }
    tested = read_source(chemicals_diseases.SOURCES["dev"], downloads / "bc5cdr")
    parts = {
        "label_sets": [
            doc for label, each in read.items() for doc in made_docs(vocab, each, [label])
        ],
        "as_if_complete": [doc for each in read.values() for doc in made_docs(vocab, each, None)],
        # Predicted genes and species are neither right nor wrong in it.
        "test": made_docs(vocab, list(read_iob(tested)), ["Chemical", "Disease"]),
    }
    write_parts(output, parts, "sentence")


if __name__ == "__main__":
    run(main)
