"""Train a model for each set of labels, as the control of one model for all sets of labels.

    python -m spacy project run incomplete-data
    python -m benchmarks label_models corpus/incomplete --seeds 0 1 2
    python -m benchmarks label_models corpus/incomplete --encoder path/to/encoder
    python -m benchmarks label_models corpus/incomplete_uner --corpus uner

Each half of the texts of ``label_sets.spacy`` is annotated for one set of labels, and trains a
``crf_ner`` for it. The training takes as many steps as configs/ner_label_sets.cfg takes for one
model on both halves. Entities of both models count, even if they overlap. With ``--encoder``, the
models use this pre-trained encoder, and are trained and scored like the entries of
benchmarks.learning over an encoder. The scores of each seed are a line of PATH, a file of the
repository. A seed that has a line with the same settings is not trained again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Set
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
    MORE_CORPORA,
    TWICE_AS_LONG,
    Entry,
)
from benchmarks.raw_results import RAW, add
from benchmarks.raw_results import read as read_rows
from benchmarks.recipes import ROOT
from benchmarks.sections import write_section
from spacy_latent.annotations import annotated_labels

PATH = RAW / "label_models.jsonl"
TITLES = {"bc5cdr": "BC5CDR"} | {name: one.title for name, one in MORE_CORPORA.items()}
FOLDERS = {"bc5cdr": BC5CDR} | {name: one.folder for name, one in MORE_CORPORA.items()}
# The trainings of one model for both labels, by whether there is an encoder: their steps, the group
# with their entry, and the end of the entry's name.
ONE_MODEL = {
    False: ((STEPS, INCOMPLETE_ENTRIES, ""), (2 * STEPS, AMOUNTS, f", {2 * STEPS} steps")),
    True: (
        (ENCODER_STEPS, INCOMPLETE_OVER_ENCODER, ""),
        (2 * ENCODER_STEPS, INCOMPLETE_OVER_ENCODER, f", {2 * ENCODER_STEPS} steps"),
    ),
}


def size(over_encoder: bool = False, corpus: str = "bc5cdr") -> dict[str, Any]:
    """Return the settings that a line of PATH must have to be used."""
    config, steps = (ENCODER_TEACHER, ENCODER_STEPS) if over_encoder else (TEACHER, STEPS)
    return {"config": digest_of(ROOT / config), "steps": steps, "corpus": FOLDERS[corpus]}


def of_labels(docs: Iterable[Doc], labels: Set[str]) -> Iterator[Doc]:
    """Yield the texts that are annotated for the labels, with entities of these labels alone."""
    for doc in docs:
        asked = annotated_labels(doc)
        if asked is None or labels <= set(asked):
            doc._.annotated_labels = None
            doc.ents = [span for span in doc.ents if span.label_ in labels]
            yield doc


def entities(docs: Iterable[Doc]) -> list[Entities]:
    return [{(span.start, span.end, span.label_) for span in doc.ents} for doc in docs]


def measured(
    folder: Path, seed: int, encoder: Path | None = None, corpus: str = "bc5cdr"
) -> dict[str, Any]:
    """Train a model for each set of labels, and return the F1 of each model and of all together."""
    vocab = spacy.blank("en").vocab
    texts = {"train": folder / "label_sets.spacy", "dev": Path(FOLDERS[corpus]) / "dev.spacy"}
    dev = read(texts["dev"], vocab)
    if encoder is not None:
        dev = dev[:ENCODER_SCORED]
    judged, words = entities(dev), [[token.text for token in doc] for doc in dev]
    sets = {tuple(annotated_labels(doc) or ()) for doc in read(texts["train"], vocab)} - {()}
    scores: dict[str, float] = {}
    together: list[Entities] = [set() for _ in judged]
    for labels in sorted(sets):
        with TemporaryDirectory() as made:
            for name, path in texts.items():
                own = of_labels(read(path, vocab), set(labels))
                DocBin(docs=own).to_disk(Path(made) / f"{name}.spacy")
            paths = (f"{made}/train.spacy", f"{made}/dev.spacy")
            nlp = trained(Path(made) / "model", *paths, encoder, seed)
            found = entities(nlp.pipe(Doc(nlp.vocab, words=own) for own in words))
        gold = [{one for one in text if one[2] in labels} for text in judged]
        scores[", ".join(labels)] = agreement(found, gold)
        together = [before | own for before, own in zip(together, found)]
    scores["both"] = agreement(together, judged)
    versions = {"torch": torch.__version__, "spacy": spacy.__version__}
    return {
        "seed": seed,
        "size": size(encoder is not None, corpus),
        "scores": scores,
        "date": str(date.today()),
        **versions,
    }


def kept(over_encoder: bool = False, corpus: str = "bc5cdr") -> dict[int, dict[str, Any]]:
    """Return the results with the present settings, by seed."""
    return {
        row["seed"]: row for row in read_rows(PATH) if row["size"] == size(over_encoder, corpus)
    }


def _line(name: str, seeds: Iterable[int], shares: Iterable[list[float]]) -> str:
    cells = [spread([100 * one for one in own], ".1f") if own else "" for own in shares]
    return f"| {' | '.join([name, ', '.join(map(str, sorted(seeds))), *cells])} |"


def _entries(over_encoder: bool, corpus: str) -> Iterator[tuple[int, Entry]]:
    """Yield the number of steps and the entry of each training of one model for both sets."""
    if corpus != "bc5cdr":
        known = {one.what: one for one in MORE_CORPORA[corpus].entries(corpus)}
        yield from ((STEPS, known["label sets"]), (2 * STEPS, TWICE_AS_LONG[corpus]))
        return
    for steps, group, what in ONE_MODEL[over_encoder]:
        (entry,) = (one for one in group if one.what == f"one label in each half{what}")
        yield steps, entry


def _lines(names: list[str], over_encoder: bool, corpus: str) -> Iterator[str]:
    """Yield a line for the models of single sets, and a line for each training of one model."""
    where = ", over an encoder" if over_encoder else ""
    each, both = ("label", "labels") if corpus == "bc5cdr" else ("set", "sets")
    if rows := kept(over_encoder, corpus):
        shares = [[row["scores"][name] for row in rows.values()] for name in names]
        steps = size(over_encoder)["steps"]
        yield _line(f"one for each {each}, {steps} steps each{where}", rows, shares)
    for steps, entry in _entries(over_encoder, corpus):
        if runs := rows_of(entry):
            found = [run["scores"]["ents_f"] for run in runs.values()]
            cells: list[list[float]] = [*([] for _ in names[:-1]), found]
            yield _line(f"one for both {both}, {steps} steps{where}", runs, cells)


def _table(corpus: str) -> Iterator[str]:
    """Yield the lines of the table of a corpus, or nothing if no model has been trained."""
    if not (rows := kept(corpus=corpus)):
        return
    names = [*sorted(next(iter(rows.values()))["scores"].keys() - {"both"}), "both"]
    yield from ("", f"| {TITLES[corpus]}: models | seeds | {' | '.join(names)} |")
    yield f"|---|---|{'---|' * len(names)}"
    for over_encoder in (False, True) if corpus == "bc5cdr" else (False,):
        yield from _lines(names, over_encoder, corpus)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="that of label_sets.spacy")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(3)))
    parser.add_argument("--corpus", choices=FOLDERS, default="bc5cdr", help="of the folder's texts")
    add_encoder_option(parser)
    given = parser.parse_args()
    if given.encoder is not None and given.corpus != "bc5cdr":
        parser.error(f"--encoder is for BC5CDR alone, and --corpus {given.corpus} was given.")
    torch.set_num_threads(1)
    for seed in given.seeds:
        if seed not in kept(given.encoder is not None, given.corpus):
            add(PATH, measured(given.folder, seed, given.encoder, given.corpus))
    lines = [
        f"torch {torch.__version__}, spaCy {spacy.__version__}, one thread. F1 on the development "
        "set in percent, over an encoder on its first 1,000 sentences, with two standard "
        "deviations. A `crf_ner` for each label, or set of labels, learns from the half of the "
        "texts with it; one for both from both halves, with evidence.",
        *(line for corpus in FOLDERS for line in _table(corpus)),
    ]
    write_section("label_models", "Entities: a model for each label, or set of labels", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
