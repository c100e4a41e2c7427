"""F1 of ``tree_spancat`` and spaCy's ``spancat`` after the same processor time of training.

    python -m benchmarks spans "noun phrases" corpus/phrases --seconds 30 60 --seeds 0 1 2
    python -m benchmarks spans BC5CDR corpus/bc5cdr_spans --seconds 60 --seeds 0 1
    python -m benchmarks spans --labels 1 5 10 20 50

The folder has ``train.spacy`` and ``dev.spacy`` with spans in ``doc.spans["sc"]``. All systems are
trained on the same batches over an embedder of the same kind, until their updates have taken the
given processor time. They take steps in turn in one process, on one thread. ``spancat`` is judged
with its own suggester of one to three tokens, and with a suggester of up to ten. All systems
predict spans with a probability above one half. The table also has the F1 with the best of a few
lower thresholds, which is chosen on the same set.

With ``--labels``, the program measures the cost of labels: the sum over trees and its gradient,
compared with trees without labels.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from thinc.api import Adam, fix_random_seed
from torch import Tensor

from benchmarks.entities import shares
from benchmarks.pipeline import TOK2VEC
from benchmarks.sections import write_section
from spacy_latent.kernels.spans.labelled_spans import LabelledSpans, log_partition
from spacy_latent.layers.span_features import span_cells
from spacy_latent.models.compatible_spans import crosses
from spacy_latent.models.span_losses import fold_by_tensors
from spacy_latent.structures.constituency_tree import ConstituencyTree

KEY = "sc"
WORDS = 1000
THRESHOLDS = (0.5, 0.4, 0.3, 0.2)


def spancat(longest: int) -> dict[str, Any]:
    suggester = {"@misc": "spacy.ngram_range_suggester.v1", "min_size": 1, "max_size": longest}
    return {"factory": "spancat", "suggester": suggester, "model": {"tok2vec": TOK2VEC}}


SYSTEMS: dict[str, dict[str, Any]] = {
    "tree_spancat": {"factory": "tree_spancat", "model": {"tok2vec": TOK2VEC}},
    "spancat, up to 3 tokens": spancat(3),
    "spancat, up to 10 tokens": spancat(10),
}


@dataclass
class Figures:
    """Figures of one system after one processor time, with a number for each seed.

    Attributes:
        f, precision, recall: scores with the component's own threshold.
        best: F1 with the best of THRESHOLDS.
        steps: number of updates.
        crossing: share of predicted docs in which spans cross.
        words: speed of prediction, in thousands of words a second of the processor.
    """

    f: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    precision: list[float] = field(default_factory=list)
    recall: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    crossing: list[float] = field(default_factory=list)
    words: list[float] = field(default_factory=list)


def batches(docs: list[Doc], seed: int) -> Iterator[list[Doc]]:
    """Yield batches of about a thousand words without end, with another order in each round."""
    drawn = random.Random(seed)
    while True:
        order = list(docs)
        drawn.shuffle(order)
        batch: list[Doc] = []
        for doc in order:
            batch.append(doc)
            if sum(map(len, batch)) >= WORDS:
                yield batch
                batch = []


def example(nlp: Language, doc: Doc) -> Example:
    words, spaces = [token.text for token in doc], [bool(token.whitespace_) for token in doc]
    return Example(Doc(nlp.vocab, words=words, spaces=spaces), doc)


class Run:
    """The training of one system with one seed.

    Attributes:
        spent: processor time of its updates, except the first one, which loads modules.
    """

    def __init__(self, config: dict[str, Any], folder: Path, seed: int) -> None:
        fix_random_seed(seed)
        self.nlp = spacy.blank("en")
        settings = {name: value for name, value in config.items() if name != "factory"}
        self.nlp.add_pipe(config["factory"], name="spans", config=settings)
        docs, self.dev = (
            list(DocBin().from_disk(folder / f"{part}.spacy").get_docs(self.nlp.vocab))
            for part in ("train", "dev")
        )
        self.nlp.initialize(lambda: [example(self.nlp, doc) for doc in docs])
        self.stream, self.optimizer = batches(docs, seed), Adam(0.001, L2=0.01, grad_clip=1.0)
        self.spent, self.steps = 0.0, 0

    def step(self) -> None:
        batch = [example(self.nlp, doc) for doc in next(self.stream)]
        start = time.process_time()
        self.nlp.update(batch, drop=0.1, sgd=self.optimizer)
        if self.steps:
            self.spent += time.process_time() - start
        self.steps += 1


def judge(run: Run, figures: Figures) -> None:
    nlp, examples = run.nlp, [example(run.nlp, doc) for doc in run.dev]
    pipe: Any = nlp.get_pipe("spans")
    found = []
    for threshold in THRESHOLDS[::-1]:
        pipe.cfg["threshold"] = threshold
        start = time.process_time()
        docs = list(nlp.pipe([one.predicted for one in examples], batch_size=128))
        spent = time.process_time() - start
        for one, doc in zip(examples, docs):
            one.predicted = doc
        scores = pipe.score(examples)
        found.append(scores["spans_sc_f"])
    # The last threshold is the component's own, so that these predictions are the usual ones.
    places = [[(span.start, span.end) for span in doc.spans[KEY]] for doc in docs]
    figures.best.append(max(found))
    figures.f.append(scores["spans_sc_f"])
    figures.precision.append(scores["spans_sc_p"])
    figures.recall.append(scores["spans_sc_r"])
    figures.steps.append(run.steps)
    figures.crossing.append(mean(crosses(own) for own in places))
    figures.words.append(sum(map(len, docs)) / spent / 1000)


def measure(
    folder: Path, seconds: list[float], seeds: list[int]
) -> dict[tuple[float, str], Figures]:
    """Train all systems with each seed, and return their figures by processor time and system.

    The systems take steps in turn, so that other load on the machine slows all of them equally.
    """
    found = {(bound, name): Figures() for bound in sorted(seconds) for name in SYSTEMS}
    for seed in seeds:
        runs = {name: Run(config, folder, seed) for name, config in SYSTEMS.items()}
        for bound in sorted(seconds):
            while late := [run for run in runs.values() if run.spent < bound]:
                for run in late:
                    run.step()
            for name, run in runs.items():
                judge(run, found[bound, name])
                own = found[bound, name]
                scores = f"{own.f[-1]:.3f}, {own.best[-1]:.3f} at the best threshold"
                print(f"seed {seed}, {bound:g} s, {name}: {scores}", flush=True)
    return found


def with_gradient(total: Callable[[Tensor], Tensor], scores: Tensor) -> Callable[[], Any]:
    leaf = scores.requires_grad_()
    return lambda: torch.autograd.grad(total(leaf).sum(), leaf)


def milliseconds(calls: list[Callable[[], Any]], turns: int, repeats: int = 5) -> list[float]:
    """Return the median processor time of a call of each function, over turns of all functions.

    In each turn, the first call is not timed.
    """
    spent: list[list[float]] = [[] for _ in calls]
    for _ in range(turns):
        for call, own in zip(calls, spent):
            call()
            start = time.process_time()
            for _ in range(repeats):
                call()
            own.append((time.process_time() - start) / repeats)
    return [1000 * median(own) for own in spent]


def cost_of_labels(words: int, labels: int, turns: int, batch: int = 32) -> list[float]:
    """Return the milliseconds of the log-partition of trees and its gradient.

    There are five of them: without labels; with labels; with a sum over labels by tensors; and
    without and with labels from one pass, without autograd.
    """
    torch.manual_seed(0)
    trees, cells = ConstituencyTree(), span_cells(words)
    lengths = torch.full((batch,), words)
    chart = torch.randn(batch, words, words, dtype=torch.float64)
    scores = torch.randn(1 + labels, len(cells), batch)

    def without_labels() -> Any:
        return trees.log_partition_and_marginals(chart, lengths)

    def with_labels() -> Any:
        spans = LabelledSpans(scores.numpy(), lengths.numpy(), cells.starts)
        folded = np.empty(chart.shape)
        spans.fold(folded)
        total, marginals = trees.log_partition_and_marginals(torch.from_numpy(folded), lengths)
        return total, spans.gradient(marginals.numpy())

    def by_tensors() -> Any:
        folded, shares, total = fold_by_tensors(scores)
        leaf = cells.chart(folded).requires_grad_()
        (marginals,) = torch.autograd.grad(trees.log_partition(leaf, lengths).sum(), leaf)
        return shares.mul_(cells.of_chart(marginals).float() / total)

    calls = [
        with_gradient(lambda own: trees.log_partition(own, lengths), chart.clone()),
        with_gradient(lambda own: log_partition(own, lengths, cells.starts), scores.clone()),
        by_tensors,
        without_labels,
        with_labels,
    ]
    return milliseconds(calls, turns)


def tell_of_labels(numbers: list[int], turns: int) -> list[str]:
    lines = [
        f"{date.today()}, torch {torch.__version__}, one thread; sums over the trees of 32 "
        "sentences and their gradients, float32 scores of labelled spans. Milliseconds of the "
        f"processor, with a load of {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores, medians of "
        f"{turns} turns; in brackets as a multiple of the same without labels.",
        "",
        "| words | labels | without labels | with labels | summed by torch before the chart "
        "| one pass without autograd: without labels | with labels |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for words in (25, 50):
        for labels in numbers:
            plain, own, tensors, once, own_once = cost_of_labels(words, labels, turns)
            lines.append(
                f"| {words} | {labels} | {plain:.2f} | {own:.2f} ({own / plain:.2f}) "
                f"| {tensors:.2f} ({tensors / plain:.2f}) | {once:.2f} "
                f"| {own_once:.2f} ({own_once / once:.2f}) |"
            )
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("title", nargs="?")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--labels", type=int, nargs="+", help="tell what so many labels cost")
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--seconds", type=float, nargs="+", default=[30.0, 60.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.labels:
        lines = tell_of_labels(given.labels, given.turns)
        write_section("spans_labels", "Spans: what labels cost", lines)
        return
    if given.folder is None:
        parser.error("give a title and a folder, or --labels")
    found = measure(given.folder, given.seconds, given.seeds)
    lines = [
        f"{date.today()}, torch {torch.__version__}, one thread; the whole development set.",
        "",
        "| processor time, s | component | F1 of each seed, % | at the best threshold, % "
        "| precision, % | recall, % | steps | docs with crossing spans, % "
        "| thousand words a second |",
        "|---:|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for (bound, name), own in found.items():
        lines.append(
            f"| {bound:g} | {name} | {shares(own.f)} | {100 * mean(own.best):.1f} "
            f"| {100 * mean(own.precision):.1f} | {100 * mean(own.recall):.1f} "
            f"| {mean(own.steps):.0f} "
            f"| {100 * mean(own.crossing):.1f} | {mean(own.words):.1f} |"
        )
    key = re.sub(r"\W+", "_", given.title.lower())
    write_section(f"spans_{key}", f"Spans: {given.title}", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
