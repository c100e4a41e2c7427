"""Cost of K latent structures per text in training, for which the embedder runs only once.

    python -m benchmarks samples

One update of latent_textcat with a score function of K samples is measured. It is compared with K
times the forward and backward pass of the embedder alone. Times are medians over rounds, in which
the measured functions take turns. Batches have 64 texts of 15 words.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import date
from statistics import median

import spacy
import torch
from spacy.language import Language
from spacy.training import Example
from thinc.api import Adam, fix_random_seed

from benchmarks.pipeline import TOK2VEC
from benchmarks.sections import write_section

COUNTS = (1, 2, 4, 8, 16)
TEXTS, WORDS, ROUNDS = 64, 15, 15


def pipeline(count: int) -> tuple[Language, list[Example]]:
    fix_random_seed(0)
    nlp = spacy.blank("en")
    model = {
        "exclusive_classes": True,
        "tok2vec": TOK2VEC,
        "estimator": {"@misc": "spacy-latent.ScoreFunction.v1", "num_samples": count},
    }
    nlp.add_pipe("latent_textcat", config={"model": model})
    drawn = random.Random(0)
    examples = []
    for i in range(TEXTS):
        text = " ".join(f"word{drawn.randrange(500)}" for _ in range(WORDS))
        gold = {"cats": {"A": float(i % 2), "B": float(1 - i % 2)}}
        examples.append(Example.from_dict(nlp.make_doc(text), gold))
    nlp.initialize(lambda: examples)
    return nlp, examples


def embedder_alone(nlp: Language, examples: list[Example]) -> Callable[[], None]:
    embedder = nlp.get_pipe("latent_textcat").model.get_ref("tok2vec")  # type: ignore[attr-defined]

    def run() -> None:
        vectors, backprop = embedder.begin_update([example.predicted for example in examples])
        backprop(vectors)

    return run


def main() -> None:
    torch.set_num_threads(1)
    made = {count: pipeline(count) for count in COUNTS}
    runs: dict[str, Callable[[], object]] = {"embedder": embedder_alone(*made[1])}
    optimizer = Adam(0.001)
    for count, (nlp, examples) in made.items():
        runs[str(count)] = lambda nlp=nlp, examples=examples: nlp.update(  # type: ignore[misc]
            examples, sgd=optimizer
        )
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start))
    found = {name: median(own[1:]) for name, own in times.items()}
    lines = [
        f"{date.today()}, torch {torch.__version__}, one thread; the embedder alone, forward and "
        f"backward: {found['embedder']:.1f} ms.",
        "",
        "| K | update with K structures, ms | K times the embedder, ms |",
        "|---:|---:|---:|",
        *(f"| {k} | {found[str(k)]:.1f} | {k * found['embedder']:.1f} |" for k in COUNTS),
    ]
    print("\n".join(lines))
    write_section("samples", "K structures per text", lines)


if __name__ == "__main__":
    main()
