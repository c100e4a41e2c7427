r"""F1, calibration and speed of ``crf_ner`` and spaCy's ``ner`` on a development set.

    python -m benchmarks entities WNUT-17 corpus/ner/dev.spacy \
        --crf training/crf_seed0/model-best --ner training/ner_seed0/model-best

The pipelines have been trained with the same settings except the component. There may be several of
each, for several seeds. Speeds are measured with the first pipeline of each, which take turns. They
are words per second in batches of whole texts and of their first eight words, and the time of calls
on single docs of 8 to 15 words. "With sets" is the same ``crf_ner``, calibrated on the development
set so that the sets of 90 % of its texts contain all entities. With --limit, that calibration and
the speeds use fewer texts. F1 and the calibration error are always of the whole development set.
"""

from __future__ import annotations

import argparse
import re
import time
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.util import dict_to_dot

from benchmarks.sections import write_section
from spacy_latent.analysis.calibration import entity_calibration_error
from spacy_latent.evaluation.entity_calibration import calibrate

ROUNDS = 7
SINGLE = 300
SHORT = 8
BATCHES, SHORT_BATCHES, ALONE = "batches", "short batches", "alone"
COVERAGE = 0.9


def examples_for(nlp: Language, corpus: Path) -> list[Example]:
    docs = DocBin().from_disk(corpus).get_docs(nlp.vocab)
    return [Example(Doc(nlp.vocab, words=[token.text for token in doc]), doc) for doc in docs]


def evaluate(path: Path, corpus: Path) -> tuple[float, float | None]:
    """Return F1 and the calibration error, which is None for pipelines without probabilities."""
    nlp = spacy.load(path)
    examples = examples_for(nlp, corpus)
    scores = nlp.evaluate(examples)
    if "crf_ner" not in nlp.pipe_names:
        return scores["ents_f"], None
    for example, doc in zip(examples, nlp.pipe(example.x for example in examples)):
        example.predicted = doc
    return scores["ents_f"], entity_calibration_error(examples)


def pipeline(path: Path, **settings: Any) -> Language:
    """Load a trained pipeline, and change settings of its ``crf_ner``."""
    nlp = spacy.load(path)
    if settings:
        nlp.get_pipe("crf_ner").cfg.update(settings)  # type: ignore[union-attr]
    return nlp


def with_sets(path: Path, corpus: Path, limit: int | None) -> Language:
    nlp = pipeline(path, annotate="probabilities")
    calibrate(nlp, examples_for(nlp, corpus)[:limit], coverage=COVERAGE)
    return nlp


def seconds(nlp: Language, words: list[list[str]], alone: bool) -> float:
    """Return the processor time on docs with these words, in batches or one doc in each call."""
    docs = [Doc(nlp.vocab, words=own) for own in words]
    start = time.process_time()
    if alone:
        for doc in docs:
            nlp(doc)
    else:
        for _ in nlp.pipe(docs, batch_size=256):
            pass
    return time.process_time() - start


def embedder(nlp: Language) -> str:
    """Format the settings of the embedder of the last component."""
    components = nlp.config["components"]
    found = components[nlp.pipe_names[-1]]["model"]["tok2vec"]
    if "upstream" in found:
        found = components["tok2vec"]["model"]
    return ", ".join(f"{name} = {value}" for name, value in dict_to_dot(found).items())


def shares(values: list[float]) -> str:
    """Format each value in percent, and their mean if there are several."""
    each = ", ".join(f"{100 * value:.1f}" for value in values)
    mean = f"; mean {100 * sum(values) / len(values):.1f}" if len(values) > 1 else ""
    return each + mean


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("title")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--crf", type=Path, nargs="+", required=True)
    parser.add_argument("--ner", type=Path, nargs="+", required=True)
    parser.add_argument("--limit", type=int, help="number of texts for sets and speeds")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--note", default="", help="what else to say below the title")
    given = parser.parse_args()
    found = {
        name: [evaluate(path, given.corpus) for path in paths]
        for name, paths in (("crf_ner", given.crf), ("ner", given.ner))
    }
    pipelines = {
        "crf_ner, with sets": with_sets(given.crf[0], given.corpus, given.limit),
        "crf_ner, with probabilities": pipeline(given.crf[0], annotate="probabilities"),
        "crf_ner": pipeline(given.crf[0], annotate="map"),
        "ner": pipeline(given.ner[0]),
    }
    examples = examples_for(pipelines["ner"], given.corpus)[: given.limit]
    words = [[token.text for token in example.x] for example in examples]
    corpora = {
        BATCHES: words,
        SHORT_BATCHES: [own[:SHORT] for own in words if len(own) >= SHORT],
        ALONE: [own for own in words if SHORT <= len(own) <= 15][:SINGLE],
    }
    times: dict[tuple[str, str], list[float]] = {}
    for nlp in pipelines.values():
        seconds(nlp, words, False)
    for _ in range(given.rounds):
        for name, nlp in pipelines.items():
            for way, own in corpora.items():
                times.setdefault((name, way), []).append(seconds(nlp, own, way == ALONE))
    errors = [error for _, error in found["crf_ner"] if error is not None]
    embedders = dict.fromkeys(embedder(pipelines[name]) for name in found)
    lines = [
        f"{date.today()}, torch {torch.__version__}, {torch.get_num_threads()} threads. Speeds are "
        f"medians of {given.rounds} rounds in turns, on {len(words):,} texts; sets are for a "
        f"coverage of {COVERAGE}. Embedder: `{'`; `'.join(embedders)}`. {given.note}".rstrip(),
        "",
        "| component | F1 of each seed, % | calibration error, % | words per second, ner = 1 "
        f"| in docs of {SHORT} words, ner = 1 | time of a call on one doc, ner = 1 |",
        "|---|---|---|---:|---:|---:|",
    ]
    for name in pipelines:
        f1 = shares([score for score, _ in found[name]]) if name in found else ""
        error = shares(errors) if name == "crf_ner" and errors else ""
        batches, short = (
            median(times["ner", way]) / median(times[name, way]) for way in (BATCHES, SHORT_BATCHES)
        )
        single = median(times[name, ALONE]) / median(times["ner", ALONE])
        lines.append(f"| {name} | {f1} | {error} | {batches:.2f} | {short:.2f} | {single:.2f} |")
    key = re.sub(r"\W+", "_", given.title.lower())
    write_section(f"entities_{key}", f"Entities: {given.title}", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
