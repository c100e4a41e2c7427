"""A model for each label, as the control of one model that learns from texts of each label alone.

    python -m spacy project run incomplete-data
    python -m benchmarks label_models corpus/incomplete --seeds 0 1 2
    python -m benchmarks label_models corpus/incomplete --encoder path/to/encoder

Each half of the texts of ``label_sets.spacy`` trains a ``crf_ner`` with its label alone, as long as
configs/ner_label_sets.cfg trains one model on both halves. Entities of both models count, also if
they overlap. With ``--encoder`` the models are over this pre-trained encoder, and trained and
scored as the rows of benchmarks.learning over an encoder are. The scores of each seed are a line of
PATH, which is in the repository; what is there is not trained again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import spacy
import torch
from spacy.tokens import Doc, DocBin

from benchmarks.config_digest import digest_of
from benchmarks.entity_curves import spread
from benchmarks.incomplete_controls import (
    ENCODER_TEACHER,
    STEPS,
    TEACHER,
    Entities,
    agreement,
    read,
    trained,
)
from benchmarks.learning import add_encoder_option, rows_of
from benchmarks.learning_groups import (
    AMOUNTS,
    BC5CDR,
    ENCODER_SCORED,
    ENCODER_STEPS,
    INCOMPLETE_ENTRIES,
    INCOMPLETE_OVER_ENCODER,
)
from benchmarks.raw_results import RAW, add
from benchmarks.raw_results import read as read_rows
from benchmarks.recipes import ROOT
from benchmarks.sections import write_section
from spacy_latent.annotations import annotated_labels

PATH = RAW / "label_models.jsonl"
# Steps of one model for both labels, its entries, and the end of their name; by whether there is an
# encoder.
ONE_MODEL = {
    False: ((STEPS, INCOMPLETE_ENTRIES, ""), (2 * STEPS, AMOUNTS, f", {2 * STEPS} steps")),
    True: ((ENCODER_STEPS, INCOMPLETE_OVER_ENCODER, ""),),
}


def size(over_encoder: bool = False) -> dict[str, Any]:
    """Return the settings of a row."""
    config, steps = (ENCODER_TEACHER, ENCODER_STEPS) if over_encoder else (TEACHER, STEPS)
    return {"config": digest_of(ROOT / config), "steps": steps, "corpus": BC5CDR}


def of_label(docs: Iterable[Doc], label: str) -> Iterator[Doc]:
    """Yield the texts that were annotated for the label, or for all labels, with its entities."""
    for doc in docs:
        asked = annotated_labels(doc)
        if asked is None or label in asked:
            doc._.annotated_labels = None
            doc.ents = [span for span in doc.ents if span.label_ == label]
            yield doc


def entities(docs: Iterable[Doc]) -> list[Entities]:
    return [{(span.start, span.end, span.label_) for span in doc.ents} for doc in docs]


def measured(folder: Path, seed: int, encoder: Path | None = None) -> dict[str, Any]:
    """Train a model for each label, and return the F1 of each and of all together."""
    vocab = spacy.blank("en").vocab
    halves = read(folder / "label_sets.spacy", vocab)
    dev = read(Path(BC5CDR) / "dev.spacy", vocab)
    if encoder is not None:
        dev = dev[:ENCODER_SCORED]
    judged, words = entities(dev), [[token.text for token in doc] for doc in dev]
    labels = sorted({label for doc in halves for label in annotated_labels(doc) or ()})
    scores: dict[str, float] = {}
    together: list[Entities] = [set() for _ in judged]
    for label in labels:
        with TemporaryDirectory() as made:
            for name, path in (
                ("train", folder / "label_sets.spacy"),
                ("dev", f"{BC5CDR}/dev.spacy"),
            ):
                own = of_label(read(Path(path), vocab), label)
                DocBin(docs=own).to_disk(Path(made) / f"{name}.spacy")
            texts = (f"{made}/train.spacy", f"{made}/dev.spacy")
            nlp = trained(Path(made) / "model", *texts, encoder, seed)
            found = entities(nlp.pipe(Doc(nlp.vocab, words=own) for own in words))
        gold = [{one for one in text if one[2] == label} for text in judged]
        scores[label] = agreement(found, gold)
        together = [before | own for before, own in zip(together, found)]
    scores["both"] = agreement(together, judged)
    versions = {"torch": torch.__version__, "spacy": spacy.__version__}
    return {
        "seed": seed,
        "size": size(encoder is not None),
        "scores": scores,
        "date": str(date.today()),
        **versions,
    }


def kept(over_encoder: bool = False) -> dict[int, dict[str, Any]]:
    """Return the results with the settings of today, by seed."""
    return {row["seed"]: row for row in read_rows(PATH) if row["size"] == size(over_encoder)}


def _line(name: str, seeds: Iterable[int], shares: Iterable[list[float]]) -> str:
    cells = [spread([100 * one for one in own], ".1f") if own else "" for own in shares]
    return f"| {' | '.join([name, ', '.join(map(str, sorted(seeds))), *cells])} |"


def _lines(names: list[str], over_encoder: bool) -> Iterator[str]:
    """Yield the lines of a model for each label, and of one model for both."""
    where = ", over an encoder" if over_encoder else ""
    if rows := kept(over_encoder):
        shares = [[row["scores"][name] for row in rows.values()] for name in names]
        steps = size(over_encoder)["steps"]
        yield _line(f"one for each label, {steps} steps each{where}", rows, shares)
    for steps, group, what in ONE_MODEL[over_encoder]:
        (entry,) = (one for one in group if one.what == f"one label in each half{what}")
        if runs := rows_of(entry):
            both = [run["scores"]["ents_f"] for run in runs.values()]
            yield _line(f"one for both labels, {steps} steps{where}", runs, [[], [], both])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="that of label_sets.spacy")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(3)))
    add_encoder_option(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for seed in given.seeds:
        if seed not in kept(given.encoder is not None):
            add(PATH, measured(given.folder, seed, given.encoder))
    names = list(next(iter(kept().values()))["scores"])
    lines = [
        f"torch {torch.__version__}, spaCy {spacy.__version__}, one thread. F1 on the development "
        "set in percent, over an encoder on its first 1,000 sentences, with two standard "
        "deviations. A `crf_ner` for each label learns from the half of the texts with this "
        "label; one for both labels from both halves, with evidence.",
        "",
        f"| models | seeds | {' | '.join(names)} |",
        f"|---|---|{'---|' * len(names)}",
        *_lines(names, over_encoder=False),
        *_lines(names, over_encoder=True),
    ]
    write_section("label_models", "Entities of BC5CDR: a model for each label", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
