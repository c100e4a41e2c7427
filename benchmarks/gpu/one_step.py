"""Where one step of training goes: a BiLSTM tagger over trees, beside the same with a softmax for
each head in place of the trees, and the operations that take longest."""

from __future__ import annotations

import random
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
ROUNDS, LONGEST = 9, 12


def tagger(structure: str, width: int) -> Any:
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
    listener = {"@architectures": "spacy-latent.LatentListener.v1", "width": width}
    nlp.add_pipe(
        "tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": listener}}
    )
    return nlp


def examples(nlp: Any, sentences: int, words: int) -> list[Example]:
    chosen = random.Random(0)
    made = []
    for _ in range(sentences):
        text = [f"w{chosen.randrange(500)}" for _ in range(words)]
        doc = spacy.tokens.Doc(nlp.vocab, words=text)
        made.append(Example.from_dict(doc, {"tags": [f"t{int(word[1:]) % 9}" for word in text]}))
    return made


def run(machine: Machine, record: Record) -> None:
    sentences, words, width = (2, 4, 16) if machine.pretended else (SENTENCES, WORDS, WIDTH)
    require_gpu(0)
    for what, structure in STRUCTURES.items():
        nlp = tagger(structure, width)
        batch = examples(nlp, sentences, words)
        nlp.initialize(lambda batch=batch: batch)
        optimizer = Adam(0.001)

        def step(nlp: Any = nlp, batch: Any = batch, optimizer: Any = optimizer) -> None:
            nlp.update(batch, sgd=False)
            for _, pipe in nlp.pipeline:
                pipe.finish_update(optimizer)

        milliseconds = machine.milliseconds(step, 1 if machine.pretended else ROUNDS, 5.0)
        record(what=what, milliseconds=milliseconds)
        if what.startswith("projective") and not machine.pretended:
            record(what="operations", table=profiled(step))


def profiled(step: Any) -> list[list[Any]]:
    """Name, calls, milliseconds on the GPU and on the CPU of the longest."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    rows = sorted(profile.key_averages(), key=lambda row: -row.self_device_time_total)
    return [
        [row.key[:60], row.count, row.self_device_time_total / 1e3, row.self_cpu_time_total / 1e3]
        for row in rows[:LONGEST]
    ]


def report(records: list[dict[str, Any]]) -> list[str]:
    times = {line["what"]: line["milliseconds"] for line in records if "milliseconds" in line}
    without = times.get(INDEPENDENT)
    lines = [
        f"{SENTENCES} sentences of {WORDS} words, BiLSTM and tagger {WIDTH} wide; the share is "
        "what the trees add to the step with a softmax for each head.",
        "",
        "| heads | milliseconds a step | share of the trees |",
        "|---|---:|---:|",
    ]
    for what, milliseconds in times.items():
        apart = without is not None and what != INDEPENDENT
        share = 1 - without / milliseconds if apart else None
        lines.append(fill("{:.2f}", [what, milliseconds, share]))
    for line in records:
        if "table" in line:
            lines += ["", "| operation | calls | ms on the GPU | ms on the CPU |"]
            lines += ["|---|---:|---:|---:|", *(fill("{:.2f}", row) for row in line["table"])]
    return lines
