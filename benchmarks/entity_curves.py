"""Learning curves of ``crf_ner`` and of spaCy's ``ner``, and their cost with many labels.

    python -m benchmarks entity_curves WNUT-17=corpus/ner BC5CDR=corpus/bc5cdr UNER=corpus/uner
    python -m benchmarks entity_curves WNUT-17=corpus/ner --seeds    # no run, the table alone
    python -m benchmarks entity_curves --labels 5 20 50 150

Both have the same embedder, and the batches, optimizer and dropout of configs/ner_crf.cfg. A corpus
is a folder with train.spacy and dev.spacy. F1 is measured on dev.spacy, or on a fixed part of it if
it is long.

The curves of each seed are a line of PATH, a file of the repository, so that several runs can
measure them. A seed that has a line with the same settings is not trained again. The table has all
lines with the present settings. Times are processor times. The two components take steps in turn,
and the median of the ratios of their times counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.training.batchers import minibatch_by_words
from spacy.util import fix_random_seed, registry
from thinc.api import Optimizer

from benchmarks.entities import seconds
from benchmarks.raw_results import RAW, add, read
from benchmarks.sections import write_section
from spacy_latent.pipeline.factories import EMBEDDER

PATH = RAW / "entity_curves.jsonl"
COMPONENTS = ("crf_ner", "ner")
STEPS = (100, 200, 400)
HELD_OUT = 1000
WORDS_OF_A_BATCH = 1000
DROPOUT = 0.2
OPTIMIZER = {"learn_rate": 0.001, "L2": 0.01, "use_averages": False}
TOK2VEC = EMBEDDER


class Side:
    """A pipeline of one component in training.

    Attributes:
        seconds: processor time of each step.
    """

    def __init__(self, component: str, reference: Sequence[Doc], seed: int) -> None:
        fix_random_seed(seed)
        self.nlp: Language = spacy.blank("en")
        self.nlp.add_pipe(component, config={"model": {"tok2vec": TOK2VEC}})
        create: Any = registry.optimizers.get("Adam.v1")
        self.optimizer: Optimizer = create(**OPTIMIZER)
        examples = self.examples(reference)
        self.nlp.initialize(lambda: examples, sgd=self.optimizer)
        self.seconds: list[float] = []

    def examples(self, reference: Sequence[Doc]) -> list[Example]:
        """Return examples whose predicted docs have no annotation."""
        return [
            Example(Doc(self.nlp.vocab, words=[token.text for token in doc]), doc)
            for doc in reference
        ]

    def step(self, reference: Sequence[Doc]) -> None:
        batch = self.examples(reference)
        start = time.process_time()
        self.nlp.update(batch, drop=DROPOUT, sgd=self.optimizer)
        self.seconds.append(time.process_time() - start)

    def f1(self, reference: Sequence[Doc]) -> float:
        return float(self.nlp.evaluate(self.examples(reference))["ents_f"])


def docs_of(path: Path) -> list[Doc]:
    return list(DocBin().from_disk(path).get_docs(spacy.blank("en").vocab))


def held_out(docs: list[Doc]) -> list[Doc]:
    random.Random(0).shuffle(docs)
    return docs[:HELD_OUT]


def batches(docs: Sequence[Doc], seed: int) -> Iterator[list[Doc]]:
    """Yield batches without end, with another order of the docs in each round."""
    order = random.Random(seed)
    while True:
        shuffled = list(docs)
        order.shuffle(shuffled)
        for batch in minibatch_by_words(shuffled, WORDS_OF_A_BATCH, get_length=len):
            yield list(batch)


def ratio(sides: Sequence[Side]) -> float:
    """Return the median ratio of the processor times of the same step."""
    return median(own / other for own, other in zip(*(side.seconds for side in sides)))


def digest_of_settings() -> str:
    """Return a digest of all settings of both components and of their training."""
    record: dict[str, object] = {
        "tok2vec": TOK2VEC,
        "optimizer": OPTIMIZER,
        "held_out": HELD_OUT,
        "words": WORDS_OF_A_BATCH,
        "dropout": DROPOUT,
    }
    for component in COMPONENTS:
        nlp = spacy.blank("en")
        nlp.add_pipe(component, config={"model": {"tok2vec": TOK2VEC}})
        record[component] = nlp.config["components"][component]
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode("utf8")).hexdigest()[:16]


def kept(path: Path, steps: Sequence[int]) -> list[dict[str, Any]]:
    """Return the lines of a file with these steps and the present settings."""
    digest = digest_of_settings()
    return [row for row in read(path) if (row["digest"], row["steps"]) == (digest, list(steps))]


def curve(title: str, folder: Path, seed: int, steps: Sequence[int]) -> dict[str, Any]:
    """Train both components, and return F1 after each number of steps and the ratio of times."""
    train, dev = docs_of(folder / "train.spacy"), held_out(docs_of(folder / "dev.spacy"))
    sides = [Side(component, train, seed) for component in COMPONENTS]
    scores: dict[str, list[float]] = {component: [] for component in COMPONENTS}
    for step, batch in enumerate(batches(train, seed), 1):
        for side in sides:
            side.step(batch)
        if step in steps:
            for component, side in zip(COMPONENTS, sides):
                scores[component].append(side.f1(dev))
        if step >= max(steps):
            break
    return {
        "corpus": title,
        "seed": seed,
        "steps": list(steps),
        "scores": scores,
        "ratio": round(ratio(sides), 4),
        "processor_seconds": {
            component: round(sum(side.seconds), 1) for component, side in zip(COMPONENTS, sides)
        },
        "held_out": len(dev),
        "digest": digest_of_settings(),
        "date": str(date.today()),
        "torch": torch.__version__,
        "spacy": spacy.__version__,
    }


def many_labels(vocab: Any, labels: int, texts: int = 150) -> list[Doc]:
    """Make texts of 10 to 30 random words, with entities of one to three words.

    The words of entities occur nowhere else and contain the label, so that a few steps of training
    suffice to find some entities.
    """
    draw, docs = random.Random(0), []
    for _ in range(texts):
        size = draw.randint(10, 30)
        words = [f"w{draw.randint(0, 500)}" for _ in range(size)]
        start, entities = draw.randint(0, 3), []
        while start < size - 3:
            end = start + draw.randint(1, 3)
            label = f"L{draw.randrange(labels)}"
            words[start:end] = [f"{label}Name{draw.randrange(3)}" for _ in range(start, end)]
            entities.append((start, end, label))
            start = end + draw.randint(2, 6)
        doc = Doc(vocab, words=words)
        doc.ents = [Span(doc, start, end, label=label) for start, end, label in entities]
        docs.append(doc)
    return docs


@dataclass(frozen=True)
class CostOfLabels:
    """Costs of ``crf_ner`` and ``ner`` with the same labels.

    Attributes:
        updates: milliseconds of an update with 150 texts, of each component.
        ratio: median ratio of their times.
        found: number of entities that each component finds in these texts after the training.
        words: words a second of ``crf_ner`` in batches, as multiples of ``ner``, without and with
            probabilities.
        calls: time of a call of ``crf_ner`` on one text, as multiples of ``ner``, without and with
            probabilities.
    """

    updates: tuple[float, float]
    ratio: float
    found: tuple[int, int]
    words: tuple[float, float]
    calls: tuple[float, float]


def cost_of_labels(labels: int, steps: int = 100, rounds: int = 5) -> CostOfLabels:
    """Train both components on the same 150 texts, and measure their predictions on them."""
    docs = many_labels(spacy.blank("en").vocab, labels)
    sides = [Side(component, docs, 0) for component in COMPONENTS]
    for _ in range(steps):
        for side in sides:
            side.step(docs)
    for side in sides:
        # The first step compiles kernels, and allocates the state of the optimizer.
        del side.seconds[0]
    words = [[token.text for token in doc] for doc in docs]
    own, other = (side.nlp for side in sides)
    pipe: Any = own.get_pipe("crf_ner")
    times: dict[tuple[str, bool], list[float]] = {}
    # The first round compiles kernels, and is not counted.
    for turn in range(rounds + 1):
        for name, nlp in (("map", own), ("probabilities", own), ("ner", other)):
            if nlp is own:
                pipe.cfg["annotate"] = name
            for alone in (False, True):
                taken = seconds(nlp, words, alone)
                times.setdefault((name, alone), []).extend([taken] if turn else [])
    typical = {key: median(values) for key, values in times.items()}
    batches, calls = (
        [typical[name, alone] / typical["ner", alone] for name in ("map", "probabilities")]
        for alone in (False, True)
    )
    updates = [1000 * min(side.seconds) for side in sides]
    found = [
        sum(len(doc.ents) for doc in nlp.pipe(Doc(nlp.vocab, words=each) for each in words))
        for nlp in (own, other)
    ]
    return CostOfLabels(
        (updates[0], updates[1]),
        ratio(sides),
        (found[0], found[1]),
        (1 / batches[0], 1 / batches[1]),
        (calls[0], calls[1]),
    )


def spread(values: Sequence[float], unit: str) -> str:
    """Format the mean, and two standard deviations if there are several values."""
    around = f" ± {2 * stdev(values):{unit}}" if len(values) > 1 else ""
    return f"{mean(values):{unit}}{around}"


def table_of_curves(rows: Sequence[dict[str, Any]], steps: Sequence[int]) -> list[str]:
    """Return the lines of the table of curves.

    Args:
        rows: lines of PATH. The last line of a corpus and seed counts.
        steps: the numbers of steps at which F1 was measured.
    """
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["corpus"], {})[row["seed"]] = row
    versions = [", ".join(sorted({row[key] for row in rows})) for key in ("torch", "spacy")]
    days = sorted({row["date"] for row in rows})
    lines = [
        f"{' to '.join(sorted({days[0], days[-1]}))}, torch {versions[0]}, spaCy {versions[1]}, "
        "one thread. F1 on held-out text in percent, and the processor time of a step, `ner` = 1: "
        "means over seeds, ± two standard deviations of a run. Ahead: by how much `crf_ner` is "
        "with the same seed, ± two standard errors of that mean.",
        "",
        "| corpus | seeds | steps | crf_ner | ner | ahead | crf_ner, each seed | ner | time |",
        "|---|---:|---:|---:|---:|---:|---|---|---:|",
    ]
    for title, by_seed in found.items():
        runs = [by_seed[seed] for seed in sorted(by_seed)]
        for k, step in enumerate(steps):
            own, other = (
                [100 * run["scores"][component][k] for run in runs] for component in COMPONENTS
            )
            ahead = [a - b for a, b in zip(own, other)]
            error = f" ± {2 * stdev(ahead) / len(ahead) ** 0.5:.1f}" if len(ahead) > 1 else ""
            cells = [
                title,
                str(len(runs)),
                str(step),
                spread(own, ".1f"),
                spread(other, ".1f"),
                f"{mean(ahead):+.1f}{error}",
                *(", ".join(f"{value:.1f}" for value in values) for values in (own, other)),
                spread([run["ratio"] for run in runs], ".2f"),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def table_of_costs(labels: Sequence[int]) -> list[str]:
    costs = [cost_of_labels(count) for count in labels]
    lines = [
        f"{date.today()}, torch {torch.__version__}, spaCy {spacy.__version__}, one thread. "
        "Milliseconds of a processor for an update of 150 texts of 10 to 30 words, and the "
        "processor time of their prediction: words a second in batches, and the time of a call on "
        "one text, both with `ner` = 1, without and with probabilities.",
        "",
        "| labels | update, crf_ner | ner | ratio | words a second | with probabilities | "
        "time of a call | with probabilities | entities found, crf_ner | ner |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for count, cost in zip(labels, costs):
        (own, other), ratios = cost.updates, (cost.ratio, *cost.words, *cost.calls)
        cells = [str(count), f"{own:.0f}", f"{other:.0f}", *(f"{one:.2f}" for one in ratios)]
        cells += map(str, cost.found)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpora", nargs="*", metavar="TITLE=FOLDER")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(5)))
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS))
    parser.add_argument("--labels", type=int, nargs="*", default=[])
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.corpora:
        steps = sorted(given.steps)
        for seed in given.seeds:
            for title, folder in (corpus.split("=", 1) for corpus in given.corpora):
                done = {(row["corpus"], row["seed"]) for row in kept(PATH, steps)}
                if (title, seed) not in done:
                    add(PATH, curve(title, Path(folder), seed, steps))
        lines = table_of_curves(kept(PATH, steps), steps)
        write_section("entity_curves", "Entities: how fast they are learned", lines)
        print("\n".join(lines))
    if given.labels:
        lines = table_of_costs(given.labels)
        write_section("entity_labels", "Entities: what labels cost", lines)
        print("\n".join(lines))


if __name__ == "__main__":
    main()
