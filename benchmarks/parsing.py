"""``latent_parser`` beside spaCy's ``parser``: trained for the same time of a processor.

    python -m benchmarks parsing english --seconds 240 --seeds 0 1
    python -m benchmarks parsing latin --seconds 120 --seeds 0 1

Each trains on one thread, with the corpora, batches, optimizer and dropout of its config and
without evaluations, until it has taken the seconds of a processor; its last weights are judged on
the development set by spaCy's own scorer, sentences being found as well. Speeds are of ``nlp.pipe``
over that set, of the pipelines of the last seed in turn, the least time of several. The corpora are
those of project.yml, made by its commands ``parser-ewt-data`` and ``parser-latin-data``."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.tokens import Doc
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_train_batches
from spacy.util import load_config, registry, resolve_dot_names
from thinc.api import fix_random_seed

from benchmarks.sections import write_section

ROOT = Path(__file__).parents[1]
ROUNDS = 5
LATIN = {
    "nlp.lang": "la",
    "paths.train": "corpus/latin/train.spacy",
    "paths.dev": "corpus/latin/dev.spacy",
}
# What is compared, each a config and its settings.
SIDES: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "english": {
        "latent_parser": ("parser_ewt", {}),
        "parser": ("parser_ewt_transition", {}),
    },
    "latin": {
        "latent_parser": ("parser_latin", {}),
        "latent_parser, no arcs cross": (
            "parser_latin",
            {"components.latent_parser.model.structure.@misc": "spacy-latent.ProjectiveTree.v1"},
        ),
        "parser": ("parser_ewt_transition", LATIN),
    },
}
FIGURES = {"UAS": "dep_uas", "LAS": "dep_las", "sentences F1": "sents_f"}


@dataclass
class Run:
    """steps: of training. scores: on the development set, by :data:`FIGURES`."""

    nlp: Language
    steps: int
    scores: dict[str, float]


def train(name: str, settings: dict[str, Any], seconds: float, seed: int) -> Run:
    settings = {**settings, "system.seed": seed}
    nlp = init_nlp(load_config(ROOT / "configs" / f"{name}.cfg", overrides=settings))
    config = nlp.config.interpolate()
    training = registry.resolve(config["training"], schema=ConfigSchemaTraining)
    names = [training["train_corpus"], training["dev_corpus"]]
    train_corpus, dev_corpus = resolve_dot_names(config, names)
    fix_random_seed(seed)
    steps, begin = 0, time.process_time()
    for _, batch in create_train_batches(nlp, train_corpus, training["batcher"], 0):
        nlp.update(batch, sgd=training["optimizer"], drop=training["dropout"])
        steps += 1
        if time.process_time() - begin > seconds:
            break
    scores = nlp.evaluate(list(dev_corpus(nlp)))
    return Run(nlp, steps, {what: scores[key] for what, key in FIGURES.items()})


def seconds_to_parse(nlp: Language) -> tuple[float, int]:
    """Of a processor, over the development set, and how many words that has."""
    config = nlp.config.interpolate()
    (corpus,) = resolve_dot_names(config, [config["training"]["dev_corpus"]])
    words = [[token.text for token in example.x] for example in corpus(nlp)]
    docs = [Doc(nlp.vocab, words=own) for own in words]
    begin = time.process_time()
    for _ in nlp.pipe(docs, batch_size=256):
        pass
    return time.process_time() - begin, sum(map(len, words))


def in_percent(values: list[float]) -> str:
    """Each, and the mean where there are several."""
    each = ", ".join(f"{100 * value:.1f}" for value in values)
    return each if len(values) == 1 else f"{each}; mean {100 * mean(values):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("language", choices=list(SIDES))
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", help="of the components, all if not given")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sides = {
        what: side
        for what, side in SIDES[given.language].items()
        if not given.only or what in given.only
    }
    runs: dict[str, list[Run]] = {what: [] for what in sides}
    for seed in given.seeds:
        for what, (name, settings) in sides.items():
            runs[what].append(train(name, settings, given.seconds, seed))
            last = runs[what][-1]
            print(what, seed, last.steps, last.scores, flush=True)
    times: dict[str, list[float]] = {what: [] for what in runs}
    words = 0
    for _ in range(ROUNDS):
        for what, own in runs.items():
            taken, words = seconds_to_parse(own[-1].nlp)
            times[what].append(taken)
    seeds = ", ".join(str(seed) for seed in given.seeds)
    lines = [
        f"{date.today()}, torch {torch.__version__}, one thread; {given.seconds:.0f} seconds of a "
        f"processor for each training; seeds {seeds}.",
        "",
        f"| component | steps | {', % | '.join(FIGURES)}, % | words per second |",
        f"|---|---|{'---|' * len(FIGURES)}---:|",
    ]
    for what, own in runs.items():
        steps = ", ".join(str(run.steps) for run in own)
        figures = [in_percent([run.scores[name] for run in own]) for name in FIGURES]
        speed = words / min(times[what])
        lines.append(f"| {what} | {steps} | {' | '.join(figures)} | {speed:,.0f} |")
    write_section(f"parsing_{given.language}", f"Parsing: {given.language}", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
