"""Time of one training step of a BiLSTM and a text classifier over latent trees.

It is compared with the time of independent heads in place of trees. The operations that take
longest are listed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import spacy
import torch
from spacy.training import Example
from thinc.api import Adam, require_gpu

from benchmarks.gpu.machine import Machine, Record, fill

SENTENCES, WORDS, WIDTH = 256, 32, 128
INDEPENDENT = "a softmax for each head"
STRUCTURES = {
    "projective trees": "spacy-latent.ProjectiveTree.v1",
    "spanning trees": "spacy-latent.SpanningTree.v1",
    INDEPENDENT: "spacy-latent.IndependentHeads.v1",
}
WARM_UP, ROUNDS, LONGEST = 4, 10, 8
# Prefix of the names of the kernels for trees.
KERNELS = "sum_over_"


def classifier(structure: str, width: int) -> Any:
    """Return a pipeline of a latent_encoder and a text classifier.

    A tagger would not do: the loss of spaCy's tagger, computed text by text, takes longer than all
    other operations together.
    """
    nlp = spacy.blank("en")
    embedder = {
        "@architectures": "spacy.Tok2Vec.v2",
        "embed": {
            "@architectures": "spacy.MultiHashEmbed.v2",
            "width": width,
            "attrs": ["NORM", "SHAPE"],
            "rows": [2000, 500],
            "include_static_vectors": False,
        },
        "encode": {
            "@architectures": "spacy.TorchBiLSTMEncoder.v1",
            "width": width,
            "depth": 1,
            "dropout": 0.0,
        },
    }
    model = {"tok2vec": embedder, "structure": {"@misc": structure}}
    nlp.add_pipe("latent_encoder", config={"model": model})
    reduced = {f"use_reduce_{kind}": kind == "mean" for kind in ("first", "last", "max", "mean")}
    classified = {
        "@architectures": "spacy-latent.TextCatReduce.v1",
        "tok2vec": {"@architectures": "spacy-latent.LatentListener.v1", "width": width},
        "exclusive_classes": True,
        **reduced,
    }
    nlp.add_pipe("textcat", config={"model": classified})
    return nlp


def examples(nlp: Any, sentences: int, words: int) -> list[Example]:
    chosen = random.Random(0)
    made = []
    for number in range(sentences):
        text = [f"w{chosen.randrange(500)}" for _ in range(words)]
        doc = spacy.tokens.Doc(nlp.vocab, words=text)
        cats = {"even": float(number % 2 == 0), "odd": float(number % 2)}
        made.append(Example.from_dict(doc, {"cats": cats}))
    return made


def step_of(structure: str, sentences: int, words: int, width: int) -> Callable[[], None]:
    nlp = classifier(structure, width)
    batch = examples(nlp, sentences, words)
    nlp.initialize(lambda: batch)
    optimizer = Adam(0.001)

    def step() -> None:
        nlp.update(batch, sgd=False)
        for _, pipe in nlp.pipeline:
            pipe.finish_update(optimizer)

    return step


def run(machine: Machine, record: Record) -> None:
    small = machine.pretended
    sizes = (2, 4, 16) if small else (SENTENCES, WORDS, WIDTH)
    warm_up, rounds = (1, 1) if small else (WARM_UP, ROUNDS)
    require_gpu(0)
    steps = {what: step_of(structure, *sizes) for what, structure in STRUCTURES.items()}
    times: dict[str, list[float]] = {what: [] for what in steps}
    # The structures take turns, because the speed of a shared machine varies over time.
    for _ in range(warm_up + rounds):
        for what, step in steps.items():
            machine.wait()
            start = time.perf_counter()
            step()
            machine.wait()
            times[what].append(1e3 * (time.perf_counter() - start))
    for what, step in steps.items():
        record(what=what, milliseconds=median(times[what][warm_up:]))
        if not small:
            record(what=what, operations=profiled(step))


def profiled(step: Callable[[], None]) -> list[list[Any]]:
    """Return name, calls and milliseconds on the GPU of the operations that take longest."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    rows = sorted(profile.key_averages(), key=lambda row: -row.self_device_time_total)
    return [[row.key[:50], row.count, row.self_device_time_total / 1e3] for row in rows[:LONGEST]]


def report(records: list[dict[str, Any]]) -> list[str]:
    times = {line["what"]: line["milliseconds"] for line in records if "milliseconds" in line}
    longest = {line["what"]: line["operations"] for line in records if "operations" in line}
    lines = [
        f"{SENTENCES} sentences of {WORDS} words, BiLSTM and classifier {WIDTH} wide; the median "
        f"of {ROUNDS} steps, taken in turn.",
        "",
        "| heads | milliseconds a step | of them in the GPU's kernels for trees |",
        "|---|---:|---:|",
    ]
    for what, milliseconds in times.items():
        kernels = sum((row[2] for row in longest.get(what, []) if row[0].startswith(KERNELS)), 0.0)
        lines.append(fill("{:.1f}", [what, milliseconds, kernels or None]))
    if longest:
        what, rows = next(iter(longest.items()))
        lines += ["", f"What takes longest on the GPU with {what}:", ""]
        lines += ["| operation | calls | milliseconds |", "|---|---:|---:|"]
        lines += [fill("{:.2f}", row) for row in rows]
    return lines
