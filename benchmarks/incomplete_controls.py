"""Corpora for the controls of incomplete annotation that people would try first.

    python -m benchmarks.incomplete_controls corpus/incomplete

Of the texts of ``flags.spacy``, which has 150 annotated completely and flags of the others:

- ``flags_negatives.spacy``: the complete texts, and those others that are flagged to have no
  entity, which are complete thereby.
- ``flags_self_trained.spacy``: the complete texts, and the others as a ``crf_ner`` that was trained
  on the complete ones annotates them, without entities of labels that are flagged to be absent.
  Texts in which it finds none of a label that is flagged are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import spacy
from spacy.cli.train import train
from spacy.language import Language
from spacy.tokens import Doc, DocBin

from benchmarks.learning_groups import BC5CDR
from spacy_latent.corpora.incomplete import PREFIX

TEACHER = "configs/ner_crf.cfg"
STEPS = 300


def flags_of(doc: Doc) -> dict[str, bool]:
    """Labels by whether the text is flagged to have them; none where it is annotated completely."""
    cats = doc.cats.items()
    return {name.removeprefix(PREFIX): value > 0.5 for name, value in cats}


def negatives(docs: list[Doc]) -> Iterator[Doc]:
    for doc in docs:
        flags = flags_of(doc)
        if any(flags.values()):
            continue
        if flags:
            doc.set_ents([], default="outside")
        yield doc


def self_trained(docs: list[Doc], nlp: Language) -> Iterator[Doc]:
    for doc in docs:
        flags = flags_of(doc)
        if flags:
            found = nlp(
                Doc(
                    nlp.vocab,
                    words=[t.text for t in doc],
                    spaces=[bool(t.whitespace_) for t in doc],
                )
            )
            kept = [span for span in found.ents if flags.get(span.label_, True)]
            if {label for label, there in flags.items() if there} - {span.label_ for span in kept}:
                continue
            doc.set_ents(
                [doc.char_span(s.start_char, s.end_char, s.label_) for s in kept], default="outside"
            )
        yield doc


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="that of flags.spacy")
    folder = parser.parse_args().folder
    teacher = folder / "teacher"
    settings = {
        "paths.train": str(folder / "flags_as_if_complete.spacy"),
        "paths.dev": f"{BC5CDR}/dev.spacy",
        "training.max_epochs": 0,
        "training.max_steps": STEPS,
    }
    train(TEACHER, teacher, overrides=settings)
    nlp = spacy.load(teacher / "model-best")
    for name, kept in (
        ("flags_negatives", negatives),
        ("flags_self_trained", lambda docs: self_trained(docs, nlp)),
    ):
        docs = list(DocBin().from_disk(folder / "flags.spacy").get_docs(nlp.vocab))
        DocBin(docs=kept(docs)).to_disk(folder / f"{name}.spacy")


if __name__ == "__main__":
    main()
