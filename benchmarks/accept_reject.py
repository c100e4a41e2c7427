"""Gain from accepting and rejecting predicted entities, by the choice of these entities.

    python -m spacy project run bc5cdr-data
    python -m benchmarks accept_reject corpus/bc5cdr
    python -m benchmarks accept_reject corpus/bc5cdr --seeds    # no run, the table alone

A ``crf_ner`` is trained on a few complete texts and predicts the entities of others. Some of these
entities are accepted or rejected, by the annotation of the corpus in place of a person. An accepted
entity is annotated, and the rest of its text is missing. A rejected entity is one of the incorrect
spans of its text. Training then continues on the complete texts and the texts with answers.

The scores of each seed are a line of PATH, a file of the repository. A seed that has a line with
the same settings is not trained again.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import spacy
import torch
from spacy.tokens import Doc, Span

from benchmarks.added_label import BOTH, blank, head, kept_rows, learn, scores, trained, unread
from benchmarks.entity_curves import digest_of_settings, docs_of, held_out, spread
from benchmarks.raw_results import RAW, add
from benchmarks.sections import write_section

PATH = RAW / "accept_reject.jsonl"
COMPONENT, REJECTED = "crf_ner", "rejected"
CONFIG = {"annotate": "probabilities", "incorrect_spans_key": REJECTED}
EVEN = 0.5
BEFORE, LONGER = "(before)", "the complete texts alone, as long"
LEAST, RANDOM = "least sure", "random"
COMPLETE = "those texts annotated completely"


@dataclass(frozen=True)
class Size:
    """Numbers of texts, answers and steps.

    Attributes:
        complete: texts that are annotated completely.
        others: texts without annotation.
        answers: entities that are accepted or rejected.
        steps_before: steps of training before the answers.
        steps_after: steps of training with the answers.
    """

    complete: int = 150
    others: int = 2000
    answers: int = 1000
    steps_before: int = 150
    steps_after: int = 150


@dataclass(frozen=True)
class Asked:
    """A predicted entity that a person is asked about.

    Attributes:
        text: number of its text.
        place: its first token, the token after its last one, and its label.
        confidence: its predicted probability.
    """

    text: int
    place: tuple[int, int, str]
    confidence: float


def predicted(docs: Sequence[Doc]) -> list[Asked]:
    """Return the entities of docs, with their confidences."""
    return [
        Asked(number, (span.start, span.end, span.label_), span._.confidence)
        for number, doc in enumerate(docs)
        for span in doc.ents
    ]


def least_sure(found: Sequence[Asked], count: int) -> list[Asked]:
    return sorted(found, key=lambda one: abs(one.confidence - EVEN))[:count]


def is_right(one: Asked, gold: Sequence[Doc]) -> bool:
    """Return whether the corpus has the entity, in place of the answer of a person."""
    return one.place in {(span.start, span.end, span.label_) for span in gold[one.text].ents}


def answered(asked: Sequence[Asked], gold: Sequence[Doc]) -> list[Doc]:
    """Return the texts with accepted and rejected entities as their only annotation."""
    by_text: dict[int, list[Asked]] = defaultdict(list)
    for one in asked:
        by_text[one.text].append(one)
    made = []
    for number, ones in by_text.items():
        doc = gold[number].copy()
        spans: dict[bool, list[Span]] = {True: [], False: []}
        for one in ones:
            start, end, label = one.place
            spans[is_right(one, gold)].append(Span(doc, start, end, label=label))
        doc.set_ents(spans[True], default="missing")
        doc.spans[REJECTED] = spans[False]
        made.append(doc)
    return made


def measured(folder: Path, seed: int, size: Size) -> dict[str, Any]:
    """Return the scores before and after the answers, and counts of the questions."""
    train, dev = docs_of(folder / "train.spacy"), held_out(docs_of(folder / "dev.spacy"))
    random.Random(seed).shuffle(train)
    complete = train[: size.complete]
    gold = train[size.complete : size.complete + size.others]
    before = trained(COMPONENT, complete, size.steps_before, seed, CONFIG)
    kept = before.to_bytes()
    found = predicted(list(before.pipe(unread(before, gold))))
    count = min(size.answers, len(found))
    asked = {
        RANDOM: random.Random(seed).sample(found, count),
        LEAST: least_sure(found, count),
    }
    given: dict[str, Sequence[Doc]] = {LONGER: []}
    for name, ones in asked.items():
        given[name] = answered(ones, gold)
        numbers = dict.fromkeys(one.text for one in ones)
        given[f"{name}, {COMPLETE}"] = [gold[number] for number in numbers]
    reached = {BEFORE: scores(before, dev)}
    for name, more in given.items():
        nlp = blank(COMPONENT, CONFIG).from_bytes(kept)
        learn(nlp, [*complete, *more], size.steps_after, seed)
        reached[name] = scores(nlp, dev)
    return {
        "seed": seed,
        "size": asdict(size),
        "scores": reached,
        "asked": {
            name: {
                "texts": len({one.text for one in ones}),
                "accepted": sum(is_right(one, gold) for one in ones),
                "answers": len(ones),
            }
            for name, ones in asked.items()
        },
        "held_out": len(dev),
        "digest": digest_of_settings(),
        "date": str(date.today()),
        "torch": torch.__version__,
        "spacy": spacy.__version__,
    }


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the section of results.

    Args:
        rows: at least one line of PATH, all of the same size. The last line of a seed counts.
    """
    size = Size(**rows[0]["size"])
    runs = list({row["seed"]: row for row in rows}.values())
    lines = [
        f"{head(rows)} {size.steps_before} steps on {size.complete} complete texts, then "
        f"{size.steps_after} more on these and on texts of {size.others:,} others, of whose "
        f"predicted entities {size.answers:,} were accepted or rejected. Seeds: {len(runs)}.",
        "",
        "| asked of | texts | accepted | F1 |",
        "|---|---:|---:|---:|",
    ]
    whole = [f"{name}, {COMPLETE}" for name in (RANDOM, LEAST)]
    for name in (BEFORE, LONGER, RANDOM, LEAST, *whole):
        asked = [run["asked"].get(name.partition(",")[0]) for run in runs]
        cells = ["", ""]
        if None not in asked:
            texts = [one["texts"] for one in asked]
            # There are no answers if the component finds no entity.
            shares = [100 * one["accepted"] / one["answers"] for one in asked if one["answers"]]
            shown = "" if name.endswith(COMPLETE) or not shares else f"{spread(shares, '.0f')} %"
            cells = [spread(texts, ".0f"), shown]
        reached = spread([100 * run["scores"][name][BOTH] for run in runs], ".1f")
        lines.append(f"| {' | '.join([name, *cells, reached])} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="that of train.spacy and dev.spacy")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(3)))
    given = parser.parse_args()
    torch.set_num_threads(1)
    size = Size()
    for seed in given.seeds:
        if seed not in {row["seed"] for row in kept_rows(PATH, size)}:
            add(PATH, measured(given.folder, seed, size))
    lines = table(kept_rows(PATH, size))
    write_section("accept_reject", "Entities: a round of accepting and rejecting", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
