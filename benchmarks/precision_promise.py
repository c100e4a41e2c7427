r"""Share of draws that keep the precision promised by ``spacy latent calibrate --precision``.

    python -m benchmarks precision_promise BC5CDR training/bc5cdr_crf/model-last \
        corpus/bc5cdr/dev.spacy

Arcs and whole trees are measured if the pipeline has a latent_parser, both without and with labels.
Spans are measured if it has a tree_spancat. Otherwise, or with --entities, entities are measured.
The predictions in annotated texts are judged once. Then confidences and thresholds are fitted to a
draw of texts, and the precision is measured on others. Arcs and trees keep their probabilities as
trained, without the temperatures and maps of a calibration. There are two ways to draw:

- Halves: the texts are divided at random. One half is for the fit, and the other to measure.
- Draws: half as many texts are drawn with replacement, and the precision is measured on all texts.
  The texts are then the whole source of the draws, whose precision is known without error.

Texts are docs, or documents if docs name their document in doc.user_data["document"]. --texts sets
another number of texts to draw with replacement. With --test, the precision is always measured on
all texts of another corpus, and halves are for the fit alone.

The promise is for the source of the texts, as with draws. The precision of a half also varies by
chance, so that it is below the promise more often. Each line of PATH has the counts of one kind of
prediction in one corpus.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import spacy
import torch
from spacy.language import Language

from benchmarks.entities import examples_for
from benchmarks.raw_results import RAW, add
from benchmarks.sections import write_section
from spacy_latent.analysis.arc_calibration import OF_PARSES
from spacy_latent.analysis.independent_texts import independent_texts
from spacy_latent.analysis.judged_entities import JudgedEntities
from spacy_latent.analysis.precision_bound import promised_threshold
from spacy_latent.analysis.thresholds import apply_threshold, threshold_for
from spacy_latent.errors import plural
from spacy_latent.evaluation import entity_calibration, parse_calibration, span_calibration
from spacy_latent.evaluation.calibration_fit import FOLDS, choose_confidence
from spacy_latent.pipeline.calibrated_components import parse_components, span_components

PATH = RAW / "precision_promise.jsonl"
PRECISIONS = (0.8, 0.9, 0.95)
CONFIDENCES = (0.8, 0.9)
HALVES, DRAWS = "halves", "draws"
TIMES = 200


class Texts:
    """Judged predictions by text, from which texts can be drawn.

    Args:
        found: all predictions.
        count: number of texts, including texts without predictions.
    """

    def __init__(self, found: JudgedEntities, count: int) -> None:
        self.found = found
        self.own: list[list[int]] = [[] for _ in range(count)]
        for i, text in enumerate(found.texts):
            self.own[text].append(i)

    def of(self, texts: Sequence[int]) -> JudgedEntities:
        """Return the predictions of some texts. A text that occurs twice counts as two texts."""
        rows = [(place, i) for place, text in enumerate(texts) for i in self.own[text]]
        found, own = self.found, [i for _, i in rows]
        return JudgedEntities(
            probabilities=[found.probabilities[i] for i in own],
            correct=[found.correct[i] for i in own],
            labels=[found.labels[i] for i in own],
            gold=found.gold,
            texts=[place for place, _ in rows],
            noun=found.noun,
        )


def kept(
    fitted: JudgedEntities,
    folds: np.ndarray,
    other: JudgedEntities,
    precisions: Sequence[float],
    confidences: Sequence[float],
) -> dict[str, tuple[bool, float] | None]:
    """Fit thresholds to some texts, and return whether other texts keep each promised precision.

    Args:
        fitted: predictions in the texts of the fit.
        folds: fold of each text of the fit, ``(D,)``.
        other: predictions in the other texts.
        precisions: the promised precisions.
        confidences: probabilities with which a promise shall be kept.

    Returns:
        For each promise, whether it is kept, and the share of predictions above the threshold. The
        value is None if the texts support no threshold. A key has the precision and the confidence,
        or "point" for the point estimate.
    """
    sure, _ = choose_confidence(fitted, folds, False if fitted.noun in OF_PARSES else None)
    fitted, other = (
        replace(
            each,
            probabilities=[
                sure.confidence(said, label) for said, label in zip(each.probabilities, each.labels)
            ],
        )
        for each in (fitted, other)
    )
    by_rule: dict[str, tuple[bool, float] | None] = {}
    for precision in precisions:
        least = {
            f"{precision} {confidence}": promised_threshold(fitted, precision, confidence)
            for confidence in confidences
        }
        found = {**least, f"{precision} point": threshold_for(fitted, precision)}
        for name, one in found.items():
            reached = None if one is None else apply_threshold(other, one.threshold)
            by_rule[name] = None
            if reached is not None and reached.kept:
                share = reached.kept / len(other.probabilities)
                by_rule[name] = (reached.precision >= precision, share)
    return by_rule


def measured(
    found: JudgedEntities,
    count: int,
    times: int = TIMES,
    precisions: Sequence[float] = PRECISIONS,
    confidences: Sequence[float] = CONFIDENCES,
    drawn: int | None = None,
    test: JudgedEntities | None = None,
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the counts of promises that were made and kept, by way of drawing and by promise.

    Args:
        found: all predictions.
        count: number of texts, including texts without predictions.
        times: number of draws.
        precisions, confidences: see :func:`kept`.
        drawn: number of texts that are drawn with replacement, by default half of all.
        test: predictions in other texts, on which the precision is measured.
    """
    texts, generator = Texts(found, count), np.random.default_rng(0)
    every = texts.of(range(count))
    by_way: dict[str, dict[str, dict[str, float]]] = {}
    for way in (HALVES, DRAWS):
        rows: dict[str, dict[str, float]] = {}
        for _ in range(times):
            order = generator.permutation(count)
            chosen, other = order[: count // 2], texts.of(order[count // 2 :].tolist())
            if way == DRAWS:
                chosen = generator.integers(count, size=count // 2 if drawn is None else drawn)
                other = every
            other = other if test is None else test
            # Both copies of a text that is drawn twice are in the same fold.
            folds = chosen % FOLDS
            fitted = texts.of(chosen.tolist())
            for name, one in kept(fitted, folds, other, precisions, confidences).items():
                row = rows.setdefault(name, {"made": 0, "kept": 0, "share": 0.0})
                if one is not None:
                    row["made"] += 1
                    row["kept"] += one[0]
                    row["share"] += one[1]
        by_way[way] = rows
    return by_way


def table(found: dict[str, Any]) -> list[str]:
    """Return the lines of the section of results for one line of PATH."""
    drawn, tested = "", ""
    if found.get("drawn"):
        drawn = f" ({found['drawn']:,} for draws with replacement)"
    if found.get("test"):
        tested = f"; but here both on the {found['test']:,} texts of another corpus"
    lines = [
        f"{found['date']}, torch {found['torch']}, `{found['model']}`. {found['texts']:,} texts, "
        f"in which {found['entities']:,} {found.get('noun', 'entities')} are found with a "
        "precision of "
        f"{100 * found['precision']:.1f} %. A fit is to half as many texts, {found['times']} "
        f"times{drawn}. Made: thresholds that the texts support. Kept: the share of these whose "
        "precision is as promised, on the other half, and on all texts after draws with "
        f"replacement{tested}. "
        f"Left: on {'these texts' if tested else 'the other half'}. Broken: the share of all draws "
        "with a threshold whose precision is lower; it should be at most 100 % less the "
        "confidence.",
        "",
        "| precision | confidence | made | kept, other half | left | made of draws | "
        "kept, all texts | broken |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, half in found["rows"][HALVES].items():
        precision, confidence = name.split()
        drawn = found["rows"][DRAWS][name]
        named = "point estimate" if confidence == "point" else f"{100 * float(confidence):g} %"
        cells = [
            f"{100 * float(precision):g} %",
            named,
            f"{half['made']:.0f}",
            percent(half["kept"], half["made"]),
            percent(half["share"], half["made"]),
            f"{drawn['made']:.0f}",
            percent(drawn["kept"], drawn["made"]),
            percent(drawn["made"] - drawn["kept"], found["times"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def judged(
    nlp: Language, corpus: Path, entities: bool = False
) -> tuple[str, list[JudgedEntities], int]:
    """Judge the predictions of a component in annotated texts, without its calibration.

    Returns:
        The name of the component, its predictions of each kind, and the number of texts.
    """
    examples = [example for example in examples_for(nlp, corpus) if len(example.predicted)]
    parsers, spans = ([], []) if entities else (parse_components(nlp), span_components(nlp))
    name = (parsers + spans + ["crf_ner"])[0]
    pipe: Any = nlp.get_pipe(name)
    pipe.calibration = None
    texts = independent_texts(example.reference for example in examples)
    if parsers:
        kinds = list(parse_calibration.measure(nlp, examples).values())
    else:
        own: Any = span_calibration if spans else entity_calibration
        kinds = [own.measure(nlp, examples).entities]
    return name, [texts.group(found) for found in kinds], texts.count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("title")
    parser.add_argument("model", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--entities", action="store_true")
    parser.add_argument("--precisions", type=float, nargs="+", default=PRECISIONS)
    parser.add_argument("--texts", type=int, help="number of texts to draw with replacement")
    parser.add_argument("--test", type=Path, help="corpus on which the precision is measured")
    given = parser.parse_args()
    if given.texts is not None and given.texts < 1:
        parser.error(f"--texts is {given.texts}; expected at least 1")
    torch.set_num_threads(1)
    nlp = spacy.load(given.model)
    name, kinds, count = judged(nlp, given.corpus, given.entities)
    test_kinds, test_count = kinds, None
    if given.test:
        _, test_kinds, test_count = judged(nlp, given.test, given.entities)
    for one, test in zip(kinds, test_kinds, strict=True):
        noun = plural(one.noun)
        title = f"{given.title}, {noun}" if one.noun in OF_PARSES else given.title
        found = {
            "corpus": title,
            "model": nlp.config["components"][name]["model"]["@architectures"],
            "noun": noun,
            "texts": count,
            "entities": len(one.probabilities),
            "precision": apply_threshold(one, 0.0).precision,
            "times": given.times,
            "drawn": given.texts,
            "test": test_count,
            "rows": measured(
                one,
                count,
                given.times,
                given.precisions,
                drawn=given.texts,
                test=test if given.test else None,
            ),
            "date": str(date.today()),
            "torch": torch.__version__,
            "spacy": spacy.__version__,
        }
        add(PATH, found)
        lines = table(found)
        key = re.sub(r"\W+", "_", title.lower())
        write_section(f"precision_promise_{key}", f"Promised precision: {title}", lines)
        print("\n".join(lines))


if __name__ == "__main__":
    main()
