"""Cost of a training step of ``crf_ner`` on partially annotated texts, by the kind of annotation.

    python -m benchmarks evidence
    python -m benchmarks evidence --labels 2 6 18 --tokens 1000

Texts are 5 to 50 random words, with an entity in every 8 tokens. A pipeline with the default
embedder is trained for each kind of annotation, on the same texts. The pipelines take steps in
turn. The least processor time of several steps counts, on one thread.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections.abc import Callable
from datetime import date
from typing import Any

import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example

from benchmarks.sections import write_section
from spacy_latent.errors import LatentWarning

Make = Callable[[Doc, list[str]], None]


def complete(doc: Doc, labels: list[str]) -> None:
    """Keep the complete annotation."""


def missing(doc: Doc, labels: list[str]) -> None:
    doc.set_ents(list(doc.ents)[:1], default="missing")


def one_label(doc: Doc, labels: list[str]) -> None:
    doc.ents = [span for span in doc.ents if span.label_ == labels[0]]
    doc._.annotated_labels = labels[:1]


def flags(count: int | None) -> Make:
    def flag(doc: Doc, labels: list[str]) -> None:
        there = {span.label_ for span in doc.ents}
        doc._.entity_flags = {label: int(label in there) for label in labels[:count]}
        doc.set_ents([], default="missing")

    return flag


def present(doc: Doc, labels: list[str]) -> None:
    """Flag the labels that the text has. The other labels get no flag."""
    doc._.entity_flags = dict.fromkeys((span.label_ for span in doc.ents), 1)
    doc.set_ents([], default="missing")


def sources(doc: Doc, labels: list[str]) -> None:
    """Give each source a random 70 % of the entities."""
    chance, seen = random.Random(len(doc)), list(doc.ents)
    doc.set_ents([], default="missing")
    for name in SOURCES:
        doc.spans[name] = [span for span in seen if chance.random() < 0.7]


SOURCES = [f"source_{number}" for number in range(1, 6)]
KINDS: dict[str, tuple[Make, dict[str, Any] | None]] = {
    "complete": (complete, None),
    "missing": (missing, None),
    "one label in each text": (one_label, None),
    "a flag": (flags(1), None),
    "two flags": (flags(2), None),
    "a flag for each label that the text has": (present, None),
    "a flag for every label": (flags(None), None),
    "two flags that may be wrong": (flags(2), {"flag_error": 0.05}),
    "a flag for every label, which may be wrong": (flags(None), {"flag_error": 0.05}),
    "missing, some as outside": (missing, {"negative_share": 0.15}),
    "five sources": (sources, {"sources": SOURCES}),
}


def texts(nlp: Language, labels: list[str], tokens: int) -> list[Doc]:
    chance, made, count = random.Random(0), [], 0
    while count < tokens:
        size = min(chance.randint(5, 50), tokens - count)
        doc = Doc(nlp.vocab, words=[f"w{chance.randrange(2000)}" for _ in range(size)])
        starts = range(chance.randrange(4), size - 2, 8)
        doc.ents = [Span(doc, i, i + 2, label=chance.choice(labels)) for i in starts]
        made.append(doc)
        count += size
    return made


def seconds(labels: list[str], tokens: int, steps: int) -> dict[str, float]:
    steppers = {}
    for kind, (make, evidence) in KINDS.items():
        nlp = spacy.blank("en")
        nlp.add_pipe("crf_ner", config={"evidence": evidence})
        whole = texts(nlp, labels, tokens)
        references = [doc.copy() for doc in whole]
        for doc in references:
            make(doc, labels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LatentWarning)
            optimizer = nlp.initialize(
                lambda whole=whole: [Example(doc.copy(), doc) for doc in whole]  # type: ignore[misc]
            )
        steppers[kind] = nlp, optimizer, references
    least = dict.fromkeys(KINDS, float("inf"))
    for _ in range(steps + 1):
        for kind, (nlp, optimizer, references) in steppers.items():
            batch = [
                Example(Doc(nlp.vocab, words=[t.text for t in doc]), doc) for doc in references
            ]
            start = time.process_time()
            nlp.update(batch, sgd=optimizer)
            least[kind] = min(least[kind], time.process_time() - start)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--labels", type=int, nargs="+", default=[2, 6, 18], help="how many")
    parser.add_argument("--tokens", type=int, default=1000, help="of a step")
    parser.add_argument("--steps", type=int, default=5, help="of which the least counts")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {
        count: seconds([f"L{i}" for i in range(count)], given.tokens, given.steps)
        for count in given.labels
    }
    lines = [
        f"{date.today()}, torch {torch.__version__}, spaCy {spacy.__version__}, one thread. "
        f"Processor time of a step on {given.tokens:,} tokens, in milliseconds, and beside "
        "complete annotation.",
        "",
        f"| annotation | {' | '.join(f'{count} labels' for count in found)} |",
        f"|---|{'---|' * len(found)}",
    ]
    for kind in KINDS:
        cells = [
            f"{1e3 * own[kind]:.0f} ({own[kind] / own['complete']:.2f})" for own in found.values()
        ]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    write_section("evidence", "Steps on incomplete annotation", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
