"""Words per second of a textcat pipeline with and without a latent tree below it.

``python -m benchmarks pipeline`` prints and writes a row for each pipeline. It has the words per
second of ``nlp.pipe``, and the times of prediction and of training steps relative to the pipeline
without a tree. Times are medians over batches, for which the pipelines take turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from datetime import date
from typing import Any

import spacy
import torch
from spacy.language import Language
from spacy.training import Example
from thinc.api import Adam, fix_random_seed

from benchmarks.sections import write_section
from spacy_latent.pipeline.factories import EMBEDDER

BATCH = 64
TOK2VEC = EMBEDDER

REDUCED_TEXTCAT = {
    "@architectures": "spacy.TextCatReduce.v1",
    "exclusive_classes": True,
    "use_reduce_mean": True,
    "use_reduce_first": False,
    "use_reduce_last": False,
    "use_reduce_max": False,
}


def build(kind: str, options: dict[str, Any]) -> Language:
    """Return a pipeline with a textcat.

    Args:
        kind: place of the latent tree: "none", "inline" in the textcat, or "component".
        options: settings of the layer with the tree.
    """
    fix_random_seed(0)
    nlp = spacy.blank("en")
    tok2vec: dict[str, Any] = TOK2VEC
    if kind == "inline":
        tok2vec = {
            "@architectures": "spacy-latent.LatentTok2Vec.v1",
            "tok2vec": TOK2VEC,
            **options,
        }
    elif kind == "component":
        model = {
            "@architectures": "spacy-latent.LatentTok2Vec.v1",
            "tok2vec": TOK2VEC,
            **options,
        }
        nlp.add_pipe("latent_encoder", config={"model": model})
        tok2vec = {"@architectures": "spacy-latent.LatentListener.v1", "width": 96}
    nlp.add_pipe("textcat", config={"model": {**REDUCED_TEXTCAT, "tok2vec": tok2vec}})
    return nlp


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rng = random.Random(0)
    words = [f"word{i}" for i in range(2000)]
    texts = [
        " ".join(rng.choice(words) for _ in range(rng.randint(10, 35)))
        for _ in range(arguments.docs)
    ]
    gold = [{"cats": {"a": float(i % 2), "b": float(1 - i % 2)}} for i in range(len(texts))]
    map_only = {"estimator": {"@misc": "spacy-latent.Marginals.v1", "prediction": "map"}}
    pipelines = {
        "without": build("none", {}),
        "inline, marginals": build("inline", {}),
        "inline, map at prediction": build("inline", map_only),
        "component, marginals": build("component", {}),
        "component, map at prediction": build("component", map_only),
    }
    predict: dict[str, list[float]] = {name: [] for name in pipelines}
    train: dict[str, list[float]] = {name: [] for name in pipelines}
    examples, optimizers = {}, {}
    for name, nlp in pipelines.items():
        examples[name] = [Example.from_dict(nlp.make_doc(t), g) for t, g in zip(texts, gold)]
        nlp.initialize(lambda made=examples[name]: made[:20])  # type: ignore[misc]
        optimizers[name] = Adam(0.001)
        list(nlp.pipe(texts[:BATCH]))
    for _ in range(arguments.rounds):
        for begin in range(0, len(texts), BATCH):
            part = slice(begin, begin + BATCH)
            for name, nlp in pipelines.items():
                start = time.perf_counter()
                for _ in nlp.pipe(texts[part], batch_size=BATCH):
                    pass
                predict[name].append(time.perf_counter() - start)
        for begin in range(0, len(texts), 4 * BATCH):
            for name, nlp in pipelines.items():
                start = time.perf_counter()
                nlp.update(examples[name][begin : begin + BATCH], sgd=optimizers[name])
                train[name].append(time.perf_counter() - start)
    count = sum(len(text.split()) for text in texts) * BATCH / len(texts)
    base = statistics.median(predict["without"]), statistics.median(train["without"])
    lines = [
        f"{date.today()}, torch {torch.__version__}; batches of {BATCH} docs. Ratios of times to "
        "the pipeline without the tree; bounds 1.25 and 1.60.",
        "",
        "| pipeline | words/s | prediction | training |",
        "|---|---:|---:|---:|",
    ]
    for name in pipelines:
        p, t = statistics.median(predict[name]), statistics.median(train[name])
        lines.append(f"| {name} | {count / p:.0f} | {p / base[0]:.2f} | {t / base[1]:.2f} |")
    print("\n".join(lines))
    write_section("pipeline", "In the pipeline", lines)


if __name__ == "__main__":
    main()
