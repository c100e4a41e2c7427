"""Conformal sets of heads and of labelled spans, and the share of the annotation that they hold.

The sets contain a given share of the annotated heads, or spans, of a text, on average over texts.
Coverage is defined over texts because only texts are exchangeable, and not heads of different texts
(Lee, Barber and Willett 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from spacy.training import Example
from spacy.util import minibatch

from spacy_latent.analysis.arc_calibration import gold_arcs
from spacy_latent.analysis.independent_texts import IndependentTexts
from spacy_latent.analysis.progress import Progress
from spacy_latent.analysis.span_calibration import gold_spans
from spacy_latent.analysis.thresholds import conformal_threshold
from spacy_latent.annotations.span_structure import LEAST_IN_SETS
from spacy_latent.errors import LatentError, plural
from spacy_latent.pipeline.learnt_calibration import EntityCalibration
from spacy_latent.pipeline.learnt_parse_calibration import ParseCalibration
from spacy_latent.pipeline.stored_component import changed

BATCH = 16


@dataclass(frozen=True)
class Coverage:
    """Share of the annotation of texts that sets hold.

    Attributes:
        share: share of the annotated heads or spans of a text, on average over texts.
        texts: number of texts with such annotation.
        size: mean number of heads in the set of a word, or of spans in the set of a text.
    """

    share: float
    texts: int
    size: float


@dataclass(frozen=True)
class SetScores:
    """Annotated arcs or spans, and the members of the largest sets.

    Attributes:
        noun: "head" or "span".
        scores: confidence of each annotated one, 0 if not in the largest sets, ``(G,)`` float64.
        texts: text of each, ``(G,)`` int64.
        members: confidences of all members of the largest sets, ``(C,)`` float64.
        sets: number of sets: of words, or of texts.
    """

    noun: str
    scores: np.ndarray
    texts: np.ndarray
    members: np.ndarray
    sets: int

    def least(self, coverage: float) -> float:
        """Return the least confidence of members of sets with this coverage.

        Raises:
            LatentError: if there are too few texts, or if even the largest sets cover less.
        """
        lacking = (
            f"more than {1 - coverage:.2g} of the {plural(self.noun)} of a text are less probable "
            f"than {LEAST_IN_SETS}, or are not possible, such as heads in another sentence"
        )
        return useful_threshold(self.scores, coverage, self.texts, self.noun, lacking)

    def covered(self, least: float) -> Coverage:
        """Return the coverage of sets with this least confidence; NaN without annotation."""
        shares = _shares(self.scores >= least, self.texts)
        size = float((self.members >= least).sum() / self.sets) if self.sets else math.nan
        return Coverage(float(shares.mean()) if len(shares) else math.nan, len(shares), size)


def useful_threshold(
    scores: Sequence[float] | np.ndarray,
    coverage: float,
    texts: Sequence[int] | np.ndarray,
    noun: str,
    lacking: str,
) -> float:
    """Return the threshold of :func:`conformal_threshold` with a margin for rounding.

    Args:
        lacking: reason why sets of useful size cover less, for an error.

    Raises:
        LatentError: if there are too few texts, or if the threshold is below LEAST_IN_SETS.
    """
    found = conformal_threshold(scores, coverage, texts, noun)
    if found < LEAST_IN_SETS:
        shares = _shares(np.asarray(scores) >= LEAST_IN_SETS, texts)
        most = math.floor(100 * float(shares.sum()) / (len(shares) + 1)) / 100
        raise LatentError(
            f"No set of useful size has a coverage of {coverage}: {lacking}. The most that sets "
            f"can cover is {most}."
        )
    # The last digits of a confidence depend on the batch. A small tolerance keeps members with such
    # differences.
    return min(found, 1.0) * (1 - 1e-6)


def _shares(inside: np.ndarray, texts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the share of each text that is inside, ``(K,)`` float64."""
    place = np.unique(texts, return_inverse=True)[1]
    return np.bincount(place, inside) / np.bincount(place)


def arc_scores(
    pipe: Any, examples: Sequence[Example], documents: IndependentTexts, progress: Progress
) -> SetScores:
    """Return the confidences of the annotated heads of a ``latent_parser``."""
    scores, texts, members, words = list[float](), list[int](), list[np.ndarray](), 0
    with _largest_sets(pipe, ParseCalibration(), threshold=1.0, alternatives=0):
        numbered = zip(documents.numbers, progress(examples, "Sets of heads", len(examples)))
        for batch in minibatch(numbered, BATCH):
            parses = pipe.predict([example.predicted for _, example in batch])
            for (text, example), parse in zip(batch, parses):
                gold, _ = gold_arcs(example)
                known = {}
                for span in parse.spans if parse is not None else ():
                    rows = span.possible[:, :2].tolist()
                    for (head, modifier), said in zip(rows, span.possible_probabilities.tolist()):
                        word = span.start + modifier - 1
                        if gold[word] >= 0:
                            known[word if head == 0 else span.start + head - 1, word] = said
                annotated = np.flatnonzero(gold >= 0).tolist()
                scores += [known.get((int(gold[word]), word), 0.0) for word in annotated]
                texts += [text] * len(annotated)
                members.append(np.array(list(known.values()), dtype="float64"))
                words += len(annotated)
    return _joined("head", scores, texts, members, words)


def span_scores(
    pipe: Any, examples: Sequence[Example], documents: IndependentTexts, progress: Progress
) -> SetScores:
    """Return the confidences of the annotated spans of a ``tree_spancat``."""
    scores, texts, members, sets = list[float](), list[int](), list[np.ndarray](), 0
    with _largest_sets(pipe, EntityCalibration()):
        numbered = zip(documents.numbers, progress(examples, "Sets of spans", len(examples)))
        for batch in minibatch(numbered, BATCH):
            found = pipe.predict([example.predicted for _, example in batch])
            for (text, example), pieces in zip(batch, found):
                gold = gold_spans(example, pipe.key)
                if gold is None:
                    continue
                known = {
                    (one.start, one.end, pipe.labels[one.label]): one.probability
                    for piece in pieces
                    for one in piece.possible or ()
                }
                if gold.asked is not None:
                    known = {place: said for place, said in known.items() if place[2] in gold.asked}
                own = [known.get(place, 0.0) for place in sorted(gold.aligned)]
                # Spans that do not align with tokens of the predicted doc are in no set.
                scores += own + [0.0] * (gold.count - len(own))
                texts += [text] * max(gold.count, len(own))
                members.append(np.array(list(known.values()), dtype="float64"))
                sets += 1
    return _joined("span", scores, texts, members, sets)


def _joined(
    noun: str, scores: list[float], texts: list[int], members: list[np.ndarray], sets: int
) -> SetScores:
    every = np.concatenate([np.zeros(0), *members])
    return SetScores(noun, np.array(scores, "float64"), np.array(texts, "int64"), every, sets)


@contextmanager
def _largest_sets(
    pipe: Any, unchanged: ParseCalibration | EntityCalibration, **settings: Any
) -> Iterator[None]:
    """Let a component store the largest sets, until the context ends.

    Args:
        unchanged: calibration that is taken if the component has none.
        settings: further settings of the component.
    """
    calibration = pipe.calibration or unchanged
    with changed(pipe.cfg, annotate="probabilities", **settings):
        pipe.calibration = replace(calibration, coverage=0.5, least=LEAST_IN_SETS)
        yield
