r"""Calibration error that remains with different rules for the calibration of entities.

    python -m benchmarks calibration_rules UNER training/uner_crf/model-best \
        corpus/uner/dev.spacy corpus/uner/test.spacy

A share of the documents of all corpora is drawn at random. A calibration is fitted to it, and its
error is measured on the other documents. Docs that name no document are documents of their own.
Gains are measured by cross-validation, on entities that are left out of the fit. The rules are

- a temperature, if its gain is significant;
- the same, followed by a slope and a shift with a prior of 1 if their further gain is significant;
- a temperature, followed by a slope and a shift with a prior of 0.3 if they reduce the mean loss.
  All of it is used only if its gain is significant. This is the rule of ``calibrate``, without
  shifts of labels.

Each line of PATH has the figures of one corpus.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import spacy
import torch

from benchmarks.entities import examples_for
from benchmarks.raw_results import RAW, add
from benchmarks.sections import write_section
from spacy_latent.analysis.calibration import error_by_chance, expected_calibration_error
from spacy_latent.analysis.independent_texts import independent_texts
from spacy_latent.analysis.progress import silent
from spacy_latent.evaluation import entity_calibration, entity_predictions
from spacy_latent.evaluation.calibration_examples import examples_up_to
from spacy_latent.evaluation.calibration_fit import (
    FOLDS,
    MAP_SPREAD,
    SPREAD,
    fit_confidence,
    folds_of,
    gain_of,
    surprise,
)
from spacy_latent.pipeline.learnt_calibration import confidences_of
from spacy_latent.structures.derivatives import recording

PATH = RAW / "calibration_rules.jsonl"
LOGARITHMS = np.arange(-0.3, 1.51, 0.15)
UNCHANGED = int(np.abs(LOGARITHMS).argmin())
SHARES = (0.1, 0.3)
TIMES = 40
RULES = ("as trained", "temperature, if it gains", "earlier rule", "least loss")


@dataclass
class Judged:
    """Entities of texts, with their probabilities at each temperature.

    Attributes:
        losses: losses of the docs at each temperature, ``(T, D)``.
        said: probabilities of the entities at each temperature, ``(T, N)``.
        right: whether each entity is correct, ``(N,)`` bool.
        docs: number of the doc of each entity, ``(N,)``.
        documents: number of the document of each doc, ``(D,)``.
    """

    losses: np.ndarray
    said: np.ndarray
    right: np.ndarray
    docs: np.ndarray
    documents: np.ndarray


@recording()
def judged(model: str, corpora: list[Path]) -> Judged:
    nlp = spacy.load(model)
    pipe: Any = nlp.get_pipe("crf_ner")
    pipe.calibration = None
    given = [one for path in corpora for one in examples_for(nlp, path) if len(one.predicted)]
    examples = examples_up_to("calibrate", nlp, "crf_ner", given, silent)
    documents = independent_texts(example.reference for example in examples)
    fit, _ = entity_predictions.fit_of_scores(pipe, examples, folds_of(documents), silent)
    losses, said = [], []
    for logarithm in LOGARITHMS.tolist():
        point = torch.tensor([-logarithm], dtype=torch.float64)
        losses.append(fit.losses(point).numpy())
        pipe.calibration = entity_calibration._of_point(
            pipe, point, entity_calibration.EntityCalibration()
        )
        found = entity_predictions.judge(pipe, examples, silent)
        said.append(found.probabilities)
    return Judged(
        np.stack(losses),
        np.array(said),
        np.array(found.correct, dtype=bool),
        np.array(found.texts),
        np.array(documents.numbers),
    )


def warm(found: Judged, docs: np.ndarray) -> np.ndarray:
    """Return the probabilities at the temperature with the least loss of some docs, ``(N,)``.

    Args:
        docs: mask of the docs whose loss counts, ``(D,)`` bool.
    """
    losses = found.losses[:, docs].sum(1) + 0.5 * (LOGARITHMS / SPREAD) ** 2
    return found.said[losses.argmin()]


def mapped(said: np.ndarray, right: np.ndarray, rows: np.ndarray, spread: float) -> np.ndarray:
    """Fit a slope and a shift to some rows, and return all mapped probabilities, ``(N,)``."""
    made = fit_confidence(said[rows], right[rows], spread=spread)
    return confidences_of(said, made.slope, np.full(len(said), made.shift))


def by_rule(found: Judged, fold: np.ndarray) -> dict[str, np.ndarray]:
    """Return the probabilities of all entities by each rule.

    Args:
        fold: fold of each doc in the cross-validation, ``(D,)``. It is -1 for docs that are
            measured.
    """
    of_entity = fold[found.docs]
    own = of_entity >= 0
    plain, heated = found.said[UNCHANGED], warm(found, fold >= 0)
    left_out = {"temperature": plain.copy(), SPREAD: plain.copy(), MAP_SPREAD: plain.copy()}
    for k in range(FOLDS):
        rest = warm(found, (fold >= 0) & (fold != k))
        left_out["temperature"][of_entity == k] = rest[of_entity == k]
    crossed = left_out["temperature"]
    for spread in (SPREAD, MAP_SPREAD):
        for k in range(FOLDS):
            values = mapped(crossed, found.right, own & (of_entity != k), spread)
            left_out[spread][of_entity == k] = values[of_entity == k]

    def gains(after: np.ndarray, before: np.ndarray) -> Any:
        losses = (surprise(each[own], found.right[own]) for each in (before, after))
        return gain_of(*losses, found.documents[found.docs[own]])

    def whole(spread: float) -> np.ndarray:
        made = fit_confidence(crossed[own], found.right[own], spread=spread)
        return confidences_of(heated, made.slope, np.full(len(heated), made.shift))

    rules = {"as trained": plain}
    kept = gains(crossed, plain).is_sure
    rules["temperature, if it gains"] = heated if kept else plain
    further = gains(left_out[SPREAD], crossed).is_sure
    kept = gains(left_out[SPREAD] if further else crossed, plain).is_sure
    rules["earlier rule"] = plain if not kept else whole(SPREAD) if further else heated
    further = gains(left_out[MAP_SPREAD], crossed).mean > 0
    kept = gains(left_out[MAP_SPREAD] if further else crossed, plain).is_sure
    rules["least loss"] = plain if not kept else whole(MAP_SPREAD) if further else heated
    return rules


def measured(found: Judged) -> Iterator[dict[str, Any]]:
    """Yield the mean figures over random draws, for each share of the documents."""
    generator = np.random.default_rng(0)
    count = int(found.documents.max()) + 1
    for share in SHARES:
        errors: dict[str, list[float]] = {rule: [] for rule in RULES}
        sizes, chances = [], []
        for _ in range(TIMES):
            fold_of = np.full(count, -1)
            drawn = generator.permutation(count)[: max(2 * FOLDS, int(share * count))]
            fold_of[drawn] = np.arange(len(drawn)) % FOLDS
            fold = fold_of[found.documents]
            other = fold[found.docs] < 0
            sizes.append(int((~other).sum()))
            for rule, said in by_rule(found, fold).items():
                errors[rule].append(expected_calibration_error(said[other], found.right[other]))
            chances.append(error_by_chance(said[other])[0])
        yield {
            "documents": len(drawn),
            "entities": float(np.mean(sizes)),
            "chance": float(np.mean(chances)),
            **{rule: float(np.mean(values)) for rule, values in errors.items()},
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("title")
    parser.add_argument("model")
    parser.add_argument("corpora", type=Path, nargs="+")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = list(measured(judged(given.model, given.corpora)))
    add(PATH, {"corpus": given.title, "date": str(date.today()), "times": TIMES, "rows": rows})
    lines = [
        f"{date.today()}. Means of {TIMES} draws of documents; the error is that of the other "
        "documents.",
        "",
        f"| documents drawn | entities | by chance | {' | '.join(RULES)} |",
        f"|---:|---:|---:|{'---:|' * len(RULES)}",
    ]
    for row in rows:
        cells = [f"{100 * row[name]:.1f} %" for name in ("chance", *RULES)]
        lines.append(f"| {row['documents']} | {row['entities']:.0f} | {' | '.join(cells)} |")
    key = re.sub(r"\W+", "_", given.title.lower())
    write_section(f"calibration_rules_{key}", f"Rules for slope and shift: {given.title}", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
