"""Attachment scores of three parsers after the same processor time of training.

The parsers are ``latent_parser``, spaCy's ``parser`` and spacy-experimental's biaffine parser.

    python -m benchmarks parsing english --seconds 120 --seeds 0 1
    python -m benchmarks parsing latin --seconds 120 --seeds 0 1
    python -m benchmarks parsing english_over_encoder --encoder path/to/encoder

Each parser is trained on one thread until it has taken the given processor seconds. It has the
corpora, batches, optimizer and dropout of its config, and is not evaluated in between. Its last
weights are judged on the development set by spaCy's own scorer. Sentences are predicted as well.
Speeds are the highest of several rounds of ``nlp.pipe`` over that set, in words per second of a
processor. The commands ``parser-ewt-data`` and ``parser-latin-data`` of project.yml make the
corpora. Over a pre-trained encoder, the learning rate is constant after the warm-up, because the
number of updates is not known beforehand.

Each run is a line of ``benchmarks/runs/parsing.jsonl``, and is not repeated while its config is the
same. A peer that is not installed is not run, and its earlier results stay in the table.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import spacy
import torch
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.tokens import Doc
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_train_batches
from spacy.util import load_config, registry, resolve_dot_names
from thinc.api import fix_random_seed

from benchmarks import config_digest
from benchmarks.learning import ENCODER, add_encoder_option
from benchmarks.raw_results import RAW, add, read
from benchmarks.recipes import path_of
from benchmarks.sections import write_section

ROOT = Path(__file__).parents[1]
KEPT = RAW / "parsing.jsonl"
ROUNDS = 3
LATIN = {
    "nlp.lang": "la",
    "paths.train": "corpus/latin/train.spacy",
    "paths.dev": "corpus/latin/dev.spacy",
}


# With so many steps, the learning rate is nearly constant. Batches fit into a processor's cache.
OVER_ENCODER: dict[str, Any] = {
    "training.optimizer.learn_rate.total_steps": 1_000_000,
    "nlp.batch_size": 16,
}


@dataclass(frozen=True)
class Side:
    """A parser that is compared.

    Attributes:
        config: name of a recipe, or a config file of ``benchmarks``.
        settings: changed settings of the config.
        needs: a module that it requires.
        gold_sentences: whether docs have the sentences of the references in training.
    """

    config: str
    settings: dict[str, Any] = field(default_factory=dict)
    needs: str = "spacy"
    gold_sentences: bool = False

    @property
    def path(self) -> Path:
        own = ROOT / self.config
        return own if own.suffix else path_of(self.config)

    @property
    def digest(self) -> str:
        return config_digest.digest_of(self.path, self.settings)


# The biaffine parser does not learn arcs across boundaries of sentences, which another component
# predicts. At first this component is untrained, so that most of the training would be lost.
PEER: dict[str, Any] = {"needs": "spacy_experimental", "gold_sentences": True}
SIDES: dict[str, dict[str, Side]] = {
    "english": {
        "latent_parser": Side("parser_ewt"),
        "parser": Side("parser_ewt_transition"),
        "biaffine parser of spacy-experimental": Side("benchmarks/parser_ewt_biaffine.cfg", **PEER),
    },
    "english_over_encoder": {
        "latent_parser": Side("parser_ewt_transformer", OVER_ENCODER),
        "parser": Side("parser_ewt_transformer_baseline", OVER_ENCODER),
        "biaffine parser of spacy-experimental": Side(
            "benchmarks/parser_ewt_biaffine_transformer.cfg", OVER_ENCODER, **PEER
        ),
    },
    "latin": {
        "latent_parser": Side("parser_latin"),
        "latent_parser, no arcs cross": Side(
            "parser_latin",
            {"components.latent_parser.model.structure.@misc": "spacy-latent.ProjectiveTree.v1"},
        ),
        "parser": Side("parser_ewt_transition", LATIN),
        "biaffine parser of spacy-experimental": Side(
            "benchmarks/parser_ewt_biaffine.cfg", LATIN, **PEER
        ),
    },
}
FIGURES = {"UAS": "dep_uas", "LAS": "dep_las", "sentences F1": "sents_f"}


def run(side: Side, seconds: float, seed: int, encoder: Path | None = None) -> dict[str, Any]:
    """Train a parser and return its steps, scores on the development set and words per second."""
    settings = {**side.settings, "system.seed": seed}
    if encoder is not None:
        settings[f"paths.{ENCODER}"] = str(encoder)
    nlp = init_nlp(load_config(side.path, overrides=settings))
    steps = train(nlp, side, seconds, seed)
    config = nlp.config.interpolate()
    (corpus,) = resolve_dot_names(config, [config["training"]["dev_corpus"]])
    examples = list(corpus(nlp))
    scores = nlp.evaluate(examples)
    words = [[token.text for token in example.x] for example in examples]
    speed = max(words_per_second(nlp, words) for _ in range(ROUNDS))
    return {
        "steps": steps,
        "scores": {what: round(scores[key], 5) for what, key in FIGURES.items()},
        "speed": round(speed),
    }


def train(nlp: Language, side: Side, seconds: float, seed: int) -> int:
    """Train for some processor seconds, and return the number of steps."""
    config = nlp.config.interpolate()
    training = registry.resolve(config["training"], schema=ConfigSchemaTraining)
    (train_corpus,) = resolve_dot_names(config, [training["train_corpus"]])
    fix_random_seed(seed)
    optimizer = training["optimizer"]
    steps, begin = 0, time.process_time()
    for _, batch in create_train_batches(nlp, train_corpus, training["batcher"], 0):
        if side.gold_sentences:
            for example in batch:
                for token, known in zip(example.x, example.get_aligned_sent_starts()):
                    token.is_sent_start = known
        nlp.update(
            batch,
            sgd=optimizer,
            drop=training["dropout"],
            annotates=training["annotating_components"],
        )
        optimizer.step_schedules()
        steps += 1
        if time.process_time() - begin > seconds:
            break
    return steps


def words_per_second(nlp: Language, words: list[list[str]]) -> float:
    """Return words per second of a processor, on docs with these words."""
    docs = [Doc(nlp.vocab, words=own) for own in words]
    begin = time.process_time()
    for _ in nlp.pipe(docs):
        pass
    return sum(map(len, words)) / (time.process_time() - begin)


def known(language: str, seconds: float) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the stored runs with the present configs, by component and seed."""
    found: dict[str, dict[int, dict[str, Any]]] = {what: {} for what in SIDES[language]}
    digests = {what: side.digest for what, side in SIDES[language].items()}
    for row in read(KEPT):
        if (row["language"], row["seconds"]) == (language, seconds):
            if row["digest"] == digests.get(row["component"]):
                found[row["component"]][row["seed"]] = row
    return found


def in_percent(values: list[float]) -> str:
    """Format a value, or the mean of several with two standard deviations and each value."""
    parts = [100 * value for value in values]
    if len(parts) == 1:
        return f"{parts[0]:.1f}"
    each = ", ".join(f"{part:.1f}" for part in parts)
    return f"{mean(parts):.1f} ± {2 * stdev(parts):.1f} ({each})"


def table(language: str, seconds: float) -> list[str]:
    found = known(language, seconds)
    rows = [row for by_seed in found.values() for row in by_seed.values()]
    days, versions = (
        sorted({row[key] for row in rows} or {"nothing was run"}) for key in ("date", "torch")
    )
    lines = [
        f"{' to '.join(sorted({days[0], days[-1]}))}, torch {', '.join(versions)}, one thread; "
        f"{seconds:.0f} seconds of a processor for each training. Means over seeds, ± two standard "
        "deviations of a run. Speed is that of the fastest run, in words per second of a "
        "processor.",
        "",
        f"| component | seeds | steps | {', % | '.join(FIGURES)}, % | speed |",
        f"|---|---|---|{'---|' * len(FIGURES)}---:|",
    ]
    for what, by_seed in found.items():
        own = [by_seed[seed] for seed in sorted(by_seed)]
        if own:
            figures = [in_percent([row["scores"][name] for row in own]) for name in FIGURES]
            seeds = ", ".join(map(str, sorted(by_seed)))
            steps = f"{mean(row['steps'] for row in own):.0f}"
            speed = max(row["speed"] for row in own)
            lines.append(f"| {what} | {seeds} | {steps} | {' | '.join(figures)} | {speed:,} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("language", choices=list(SIDES))
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    add_encoder_option(parser)
    parser.add_argument("--only", nargs="+", help="of the components, all if not given")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for seed in given.seeds:
        for what, side in SIDES[given.language].items():
            if given.only and what not in given.only:
                continue
            if seed in known(given.language, given.seconds)[what]:
                continue
            if find_spec(side.needs) is None:
                print(f"{what}: left out, as {side.needs} is not installed.", flush=True)
                continue
            row = {
                "language": given.language,
                "component": what,
                "seconds": given.seconds,
                "seed": seed,
                "digest": side.digest,
                "date": str(date.today()),
                "torch": torch.__version__,
                "spacy": spacy.__version__,
                **run(side, given.seconds, seed, given.encoder),
            }
            add(KEPT, row)
            print(what, seed, row["steps"], row["scores"], flush=True)
    lines = table(given.language, given.seconds)
    title = "Parsing: " + given.language.replace("_", " ")
    write_section(f"parsing_{given.language}", title, lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
