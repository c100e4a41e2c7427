"""Scores of a component on its label and on a second label that is added after training.

    python -m spacy project run bc5cdr-data
    python -m benchmarks added_label corpus/bc5cdr
    python -m benchmarks added_label corpus/bc5cdr --seeds    # no run, the table alone

A component is trained on texts that are annotated for Chemical alone. Then Disease is added from
other texts, which are annotated for Disease alone. Every way of adding it starts from the same
trained component. ``crf_ner`` and ``ner`` have the same embedder, optimizer, dropout and batches.
Steps of rehearsal follow steps of training, and are not counted.

The scores of each seed and component are a line of PATH, a file of the repository. A run that has a
line with the same settings is not repeated.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import fix_random_seed, registry

from benchmarks.entity_curves import (
    DROPOUT,
    OPTIMIZER,
    TOK2VEC,
    batches,
    digest_of_settings,
    docs_of,
    held_out,
    spread,
)
from benchmarks.raw_results import RAW, add, read
from benchmarks.sections import write_section

PATH = RAW / "added_label.jsonl"
OLD, NEW = "Chemical", "Disease"
BOTH, BEFORE = "both", "before"
COMPONENTS = ("ner", "crf_ner")


@dataclass(frozen=True)
class Size:
    """Numbers of texts and steps.

    Attributes:
        texts: number of texts with the old label, and of other texts with the new one.
        reminders: old texts that are learned again together with the new ones.
        steps_before: steps of training with the old label.
        steps_after: steps of training with the new one.
    """

    texts: int = 1500
    reminders: int = 150
    steps_before: int = 150
    steps_after: int = 100


@dataclass(frozen=True)
class Texts:
    """Texts for the training with the new label.

    Attributes:
        old: texts with the old label.
        reminders: some of the old texts.
        new: other texts, with the new label.
        guessed: the new texts, with entities of the old label added by the trained component.
        complete: old and new texts with both labels.
    """

    old: list[Doc]
    reminders: list[Doc]
    new: list[Doc]
    guessed: list[Doc]
    complete: list[Doc]


@dataclass(frozen=True)
class Way:
    """A way of adding a label.

    Attributes:
        title: name of the texts in the table.
        choose: function that selects the texts of the training.
        rehearse_every: number of steps of training between calls of ``nlp.rehearse`` with old
            texts. 0 stands for no rehearsal.
    """

    component: str
    title: str
    choose: Callable[[Texts], list[Doc]]
    rehearse_every: int = 0


def said(docs: Iterable[Doc], label: str) -> list[Doc]:
    """Return copies that are marked as annotated for one label alone."""
    copies = [doc.copy() for doc in docs]
    for doc in copies:
        doc._.annotated_labels = [label]
    return copies


WAYS = (
    Way("ner", "new texts", lambda t: t.new),
    Way("ner", "new texts and 150 old ones", lambda t: t.new + t.reminders),
    Way("ner", "new texts, rehearsal after every fifth step", lambda t: t.new, 5),
    Way("ner", "new texts, rehearsal", lambda t: t.new, 1),
    Way("ner", "new texts with pseudo-labels", lambda t: t.guessed),
    Way("ner", "old and new texts with both labels", lambda t: t.complete),
    Way("crf_ner", "new texts", lambda t: t.new),
    Way("crf_ner", "new texts with pseudo-labels", lambda t: t.guessed),
    Way("crf_ner", "new texts with pseudo-labels, rehearsal", lambda t: t.guessed, 1),
    Way("crf_ner", "new texts with their label set", lambda t: said(t.new, NEW)),
    Way(
        "crf_ner",
        "new texts and 150 old ones with their label sets",
        lambda t: said(t.new, NEW) + said(t.reminders, OLD),
    ),
    Way("crf_ner", "new texts with their label set, rehearsal", lambda t: said(t.new, NEW), 1),
    Way("crf_ner", "old and new texts with both labels", lambda t: t.complete),
)


def with_label(docs: Iterable[Doc], label: str) -> list[Doc]:
    """Return copies with the entities of one label alone."""
    copies = [doc.copy() for doc in docs]
    for doc in copies:
        doc.ents = [span for span in doc.ents if span.label_ == label]
    return copies


def unread(nlp: Language, docs: Iterable[Doc]) -> list[Doc]:
    """Return docs with the same words and no annotation."""
    return [Doc(nlp.vocab, words=[token.text for token in doc]) for doc in docs]


def examples(nlp: Language, docs: Sequence[Doc]) -> list[Example]:
    return [Example(*pair) for pair in zip(unread(nlp, docs), docs)]


def optimizer() -> Any:
    create: Any = registry.optimizers.get("Adam.v1")
    return create(**OPTIMIZER)


def blank(component: str, config: dict[str, Any] | None = None) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe(component, config={"model": {"tok2vec": TOK2VEC}, **(config or {})})
    return nlp


def learn(
    nlp: Language,
    docs: Sequence[Doc],
    steps: int,
    seed: int,
    rehearsed: Sequence[Doc] = (),
    rehearse_every: int = 0,
) -> None:
    """Train for a number of steps, with rehearsal after every ``rehearse_every`` of them."""
    fix_random_seed(seed)
    sgd = nlp.resume_training(sgd=optimizer())
    others: Iterator[list[Doc]] = batches(rehearsed, seed)
    for step, batch in zip(range(1, steps + 1), batches(docs, seed)):
        nlp.update(examples(nlp, batch), drop=DROPOUT, sgd=sgd)
        if rehearse_every and step % rehearse_every == 0:
            nlp.rehearse([Example(doc, doc) for doc in unread(nlp, next(others))], sgd=sgd)


def trained(
    component: str,
    docs: Sequence[Doc],
    steps: int,
    seed: int,
    config: dict[str, Any] | None = None,
) -> Language:
    """Return a new pipeline after a number of steps of training."""
    fix_random_seed(seed)
    nlp = blank(component, config)
    made = examples(nlp, docs)
    nlp.initialize(lambda: made)
    learn(nlp, docs, steps, seed)
    return nlp


def with_guesses(nlp: Language, docs: Sequence[Doc]) -> list[Doc]:
    """Return copies with their own entities, and predicted ones that do not overlap with them."""
    copies = [doc.copy() for doc in docs]
    for doc, found in zip(copies, nlp.pipe(unread(nlp, docs))):
        own = {token.i for span in doc.ents for token in span}
        more = [
            Span(doc, span.start, span.end, label=span.label_)
            for span in found.ents
            if own.isdisjoint(range(span.start, span.end))
        ]
        doc.ents = [*doc.ents, *more]
    return copies


def scores(nlp: Language, dev: Sequence[Doc]) -> dict[str, float]:
    """Return F1 of each label, and of both together."""
    found = nlp.evaluate(examples(nlp, dev))
    of_label = found["ents_per_type"] or {}
    each = {label: of_label.get(label, {"f": 0.0})["f"] for label in (OLD, NEW)}
    return {**each, BOTH: found["ents_f"] or 0.0}


def measured(component: str, folder: Path, seed: int, size: Size) -> dict[str, Any]:
    """Return the scores before the new label is added, and after each way of adding it."""
    train, dev = docs_of(folder / "train.spacy"), held_out(docs_of(folder / "dev.spacy"))
    random.Random(seed).shuffle(train)
    first, second = train[: size.texts], train[size.texts : 2 * size.texts]
    old, new = with_label(first, OLD), with_label(second, NEW)
    before = trained(component, old, size.steps_before, seed)
    kept = before.to_bytes()
    texts = Texts(old, old[: size.reminders], new, with_guesses(before, new), first + second)
    found = {BEFORE: scores(before, dev)}
    for way in WAYS:
        if way.component != component:
            continue
        nlp = blank(component).from_bytes(kept)
        pipe: Any = nlp.get_pipe(component)
        pipe.add_label(NEW)
        learn(nlp, way.choose(texts), size.steps_after, seed, old, way.rehearse_every)
        found[way.title] = scores(nlp, dev)
    return {
        "component": component,
        "seed": seed,
        "size": asdict(size),
        "scores": found,
        "held_out": len(dev),
        "digest": digest_of_settings(),
        "date": str(date.today()),
        "torch": torch.__version__,
        "spacy": spacy.__version__,
    }


def kept_rows(path: Path, size: Any) -> list[dict[str, Any]]:
    """Return the lines of a file with the present settings and this size, a dataclass."""
    digest = digest_of_settings()
    return [row for row in read(path) if (row["digest"], row["size"]) == (digest, asdict(size))]


def head(rows: Sequence[dict[str, Any]]) -> str:
    """Return the line above a table, with dates, versions and the meaning of the figures."""
    days = sorted({row["date"] for row in rows})
    versions = [", ".join(sorted({row[key] for row in rows})) for key in ("torch", "spacy")]
    return (
        f"{' to '.join(sorted({days[0], days[-1]}))}, torch {versions[0]}, spaCy {versions[1]}, "
        f"one thread. F1 on {rows[0]['held_out']:,} texts of the development set in percent; of "
        "several seeds the mean, ± two standard deviations of a run."
    )


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the section of results.

    Args:
        rows: at least one line of PATH, all of the same size. The last line of a seed and component
            counts.
    """
    size = Size(**rows[0]["size"])
    found = {
        component: {row["seed"]: row["scores"] for row in rows if row["component"] == component}
        for component in COMPONENTS
    }
    lines = [
        f"{head(rows)} {OLD}: {size.steps_before} steps on {size.texts:,} texts. {NEW}: "
        f"{size.steps_after} more steps, from {size.texts:,} other texts. Rehearsal is "
        "`nlp.rehearse` with old texts without annotation, which is one more step after every step "
        "unless it says otherwise.",
        "",
        f"| component | learns the new label from | seeds | {OLD} | {NEW} | both |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for component, by_seed in found.items():
        own = [way.title for way in WAYS if way.component == component]
        for title in [BEFORE, *own] if by_seed else []:
            runs = [each[title] for each in by_seed.values()]
            reached = ([100 * run[what] for run in runs] for what in (OLD, NEW, BOTH))
            named = f"({BEFORE} it)" if title == BEFORE else title
            cells = [f"`{component}`", named, str(len(runs)), *(spread(f, ".1f") for f in reached)]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="that of train.spacy and dev.spacy")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(3)))
    parser.add_argument("--components", nargs="+", choices=COMPONENTS, default=COMPONENTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    size = Size()
    for seed in given.seeds:
        for component in given.components:
            done = {(row["component"], row["seed"]) for row in kept_rows(PATH, size)}
            if (component, seed) not in done:
                add(PATH, measured(component, given.folder, seed, size))
    lines = table(kept_rows(PATH, size))
    write_section("added_label", "Entities: a label that is added to a trained component", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
