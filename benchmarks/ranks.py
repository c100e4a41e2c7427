"""Speed of training with two processes and with one, and the cost of adding up gradients.

    python -m benchmarks ranks
    python -m benchmarks ranks --steps 10 --rounds 1

The pipeline has a tok2vec, a latent_encoder with marginals of projective trees over it, a tagger
and an ner. Sentences have 20 random words. Each run is a training by ``spacy_latent.distributed``
in new processes of one thread. Runs of one process and of two take turns, with the same global
batch. The first steps and the evaluation are left out.

A process that waits for another one uses no processor. Words per second of the processor, of the
slower process, are therefore the speed on two free cores, with any other load on the machine. Words
per second of the clock are the speed on this machine. The cost model is arithmetic, and the table
names its figures.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import spacy
import torch
from spacy.tokens import Doc, DocBin
from thinc.api import Config

from benchmarks.pipeline import TOK2VEC
from benchmarks.sections import write_section

BATCHES = (1200, 4800, 19200)
WARM_UP, LENGTH, WORDS = 3, 20, 120_000
WIDTH = TOK2VEC["width"]
SHARED = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "tok2vec"}
LATENT = {"@architectures": "spacy-latent.LatentListener.v1", "width": WIDTH}
# Assumptions of the cost model: bytes per second (10 Gb/s), and seconds for each message.
BANDWIDTH, LATENCY = 1.25e9, 0.65e-3
PARAMETERS = {"this pipeline": 0, "an encoder of 125M": 125_000_000}
WORKERS = (2, 8, 64, 1000)


def write_corpus(path: Path) -> None:
    draw = random.Random(0)
    vocab = spacy.blank("en").vocab
    made = DocBin()
    for _ in range(WORDS // LENGTH):
        words = [f"word{draw.randrange(2000)}" for _ in range(LENGTH)]
        made.add(
            Doc(
                vocab,
                words=words,
                tags=[f"T{hash_of(word) % 12}" for word in words],
                ents=[f"B-E{hash_of(w) % 4}" if hash_of(w) % 9 == 0 else "O" for w in words],
            )
        )
    made.to_disk(path)


def hash_of(word: str) -> int:
    return int(word.removeprefix("word"))


def write_config(path: Path, corpus: Path, size: int, steps: int) -> None:
    encoder = {
        "@architectures": "spacy-latent.LatentTok2Vec.v1",
        "tok2vec": SHARED,
        "structure": {"@misc": "spacy-latent.ProjectiveTree.v1"},
    }
    ner = {
        "@architectures": "spacy.TransitionBasedParser.v2",
        "state_type": "ner",
        "extra_state_tokens": False,
        "hidden_width": 64,
        "maxout_pieces": 2,
        "use_upper": True,
        "tok2vec": SHARED,
    }
    components = {
        "tok2vec": {"factory": "tok2vec", "model": TOK2VEC},
        "latent_encoder": {"factory": "latent_encoder", "model": encoder},
        "tagger": {
            "factory": "tagger",
            "model": {"@architectures": "spacy.Tagger.v2", "tok2vec": LATENT},
        },
        "ner": {"factory": "ner", "model": ner},
    }
    reader = {"@readers": "spacy.Corpus.v1", "path": str(corpus), "augmenter": None}
    Config(
        {
            "nlp": {"lang": "en", "pipeline": list(components)},
            "components": components,
            "corpora": {"train": reader, "dev": {**reader, "limit": 1}},
            "training": {
                "seed": 0,
                "gpu_allocator": None,
                "max_steps": WARM_UP + steps,
                "eval_frequency": 100 * steps,
                "batcher": {"@batchers": "spacy.batch_by_words.v1", "size": size},
            },
        }
    ).to_disk(path)


def run(config: Path, world: int) -> list[dict[str, float]]:
    """Train with a number of processes, and return the measurements of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ranks", "--one-rank", str(config)],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"A training of {world} process(es) failed.")
    return [json.loads(text.splitlines()[-1]) for text in outputs]


def be_one_rank(config: Path) -> None:
    """Train in this process, and print the times of the steps and of a reduction without waiting.

    The reduction is measured after the training, when no process has to wait for another one.
    """
    from spacy_latent.distributed import rank_training, train
    from spacy_latent.distributed.all_reduce import AllReduce
    from spacy_latent.distributed.trained_arrays import models_of, weights_of

    loop = rank_training.train_while_improving
    marks: list[tuple[float, float, float, int]] = []
    reduces: list[AllReduce] = []

    def timed(view: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        reduces.append(view.reduce)
        for batch, *rest in loop(view, *arguments, **options):
            words = sum(len(example) for example in batch)
            marks.append((time.perf_counter(), time.process_time(), view.reduce.seconds, words))
            yield (batch, *rest)

    rank_training.train_while_improving = timed
    shown = io.StringIO()
    nlp, _ = train.train(config, stdout=shown, stderr=shown)
    first, last = marks[WARM_UP], marks[-1]
    words = sum(mark[3] for mark in marks[WARM_UP + 1 :])
    (reduce,) = reduces
    weights = weights_of(models_of(nlp, []))
    alone = []
    for _ in range(10 if not reduce.ranks.alone else 0):
        reduce.ranks.gather(0)
        begin = time.perf_counter()
        reduce.add_up(weights)
        alone.append(time.perf_counter() - begin)
    record = {
        "steps": len(marks) - 1 - WARM_UP,
        "words": words,
        "clock": last[0] - first[0],
        "processor": last[1] - first[1],
        "reducing": last[2] - first[2],
        "reduction": min(alone, default=0.0),
        "parameters": sum(w.values.numel() for w in weights),
    }
    print(json.dumps(record))


def ring(parameters: int, workers: int) -> float:
    """Return the modelled seconds of adding up float32 gradients by a ring of processes."""
    rounds = 2 * (workers - 1)
    return rounds / workers * 4 * parameters / BANDWIDTH + rounds * LATENCY


def measure(corpus: Path, folder: Path, size: int, steps: int, rounds: int) -> tuple[str, int]:
    """Return the row of a batch size, and the number of parameters of the pipeline."""
    config = folder / f"{size}.cfg"
    write_config(config, corpus, size, steps)
    one: list[list[dict[str, float]]] = []
    two: list[list[dict[str, float]]] = []
    for _ in range(rounds):
        one.append(run(config, 1))
        two.append(run(config, 2))

    def speed(runs: list[list[dict[str, float]]], clock: str) -> float:
        return statistics.median(
            ranks[0]["words"] / max(rank[clock] for rank in ranks) for ranks in runs
        )

    cells = []
    for clock in ("processor", "clock"):
        before, after = speed(one, clock), speed(two, clock)
        cells += [f"{before:,.0f}", f"{after:,.0f}", f"{after / before / 2:.0%}"]
    found = [rank for ranks in two for rank in ranks]
    waiting = statistics.median(1000 * r["reducing"] / r["steps"] for r in found)
    alone = min(1000 * r["reduction"] for r in found)
    parameters = int(found[0]["parameters"])
    cells += [f"{4 * parameters / 2**20:.1f}", f"{alone:.1f}", f"{waiting:.0f}"]
    return f"| {size:,} | {' | '.join(cells)} |", parameters


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, help="of each run; as many as one epoch has at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one-rank", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.one_rank is not None:
        be_one_rank(arguments.one_rank)
        return
    columns = [
        "words in a batch",
        *("words/s of the processor, one", "two", "efficiency"),
        *("words/s of the clock, one", "two", "efficiency"),
        *("MiB of gradients", "ms to add up", "with waiting"),
    ]
    lines = [
        f"{date.today()}, torch {torch.__version__}, gloo on one machine, a load of "
        f"{os.getloadavg()[0]:.0f} on {os.cpu_count()} cores before the runs; medians of "
        f"{arguments.rounds} runs. Efficiency: two processes, each for half of the batch, as a "
        "share of twice the speed of one.",
        "",
        f"| {' | '.join(columns)} |",
        "|" + "---:|" * len(columns),
    ]
    parameters = 0
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder / "corpus.spacy")
        for size in BATCHES:
            steps = arguments.steps or max(5, min(40, 80_000 // size))
            row, parameters = measure(
                folder / "corpus.spacy", folder, size, steps, arguments.rounds
            )
            lines.append(row)
            print(row, flush=True)
    lines += [
        "",
        f"A load of {os.getloadavg()[0]:.0f} after the runs. The model of costs, 2(N−1)/N · bytes "
        f"/ bandwidth + 2(N−1) · latency, at {BANDWIDTH * 8 / 1e9:.0f} Gb/s and "
        f"{1000 * LATENCY:.2f} ms, in seconds for each step:",
        "",
        f"| gradients | {' | '.join(f'{n:,} workers' for n in WORKERS)} |",
        "|---|" + "---:|" * len(WORKERS),
    ]
    for what, count in PARAMETERS.items():
        cells = [f"{ring(count or parameters, workers):.2f}" for workers in WORKERS]
        millions = f", {parameters / 1e6:.1f}M" if not count else ""
        lines.append(f"| {what}{millions} | {' | '.join(cells)} |")
    write_section("ranks", "Training on several processes", lines)


if __name__ == "__main__":
    main()
