"""Scores of alignments against reference alignments, and controls that read only the words."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from spacy.scorer import Scorer
from spacy.tokens import Doc
from spacy.training import Example

from spacy_latent.analysis.scores import ExampleScorer, Scores, warn_without_annotations

# Default names of reference alignments in ``doc._.latent``.
SURE, POSSIBLE = "sure", "possible"

# (word of the first text, word of the second) of each link.
Links = Iterable[tuple[int, int]]


@dataclass(frozen=True)
class AlignmentScores:
    """Shares, 0 to 1 (Och and Ney 2003, section 4), over the links of all pairs of texts together.

    Attributes:
        precision: share of the predicted links that are possible.
        recall: share of the sure links that are predicted.
        f1: harmonic mean of precision and recall.
        error_rate: 1 − (sure + possible links predicted) / (predicted + sure links).
    """

    precision: float
    recall: float
    f1: float
    error_rate: float


def alignment_scores(
    predicted: Iterable[Links], sure: Iterable[Links], possible: Iterable[Links] | None = None
) -> AlignmentScores:
    """Return the scores of predicted links against sure and possible ones.

    The precision is 0 if no link is predicted. The recall is 0 if no link is sure. The error rate
    is 0 if there are neither predicted nor sure links.

    Args:
        sure: sure links of each pair. They are also possible.
        possible: further possible links of each pair; without them only the sure links are
            possible.
    """
    rows = _counts(predicted, list(sure), possible)
    return _scores(tuple(map(sum, zip(*rows))) if rows else (0, 0, 0, 0))


# Counts over one or more pairs of texts: predicted links, sure links, predicted links that are
# sure, and predicted links that are possible.
_Counts = tuple[int, ...]


def _counts(
    predicted: Iterable[Links], sure: Sequence[Links], possible: Iterable[Links] | None
) -> list[_Counts]:
    others = sure if possible is None else possible
    found: list[_Counts] = []
    for links, certain, further in zip(predicted, sure, others, strict=True):
        own, gold = set(links), set(certain)
        found.append((len(own), len(gold), len(own & gold), len(own & {*gold, *further})))
    return found


def _scores(counts: _Counts) -> AlignmentScores:
    total, of_sure, right_sure, right_possible = counts
    precision = right_possible / total if total else 0.0
    recall = right_sure / of_sure if of_sure else 0.0
    both = precision + recall
    drawn = total + of_sure
    return AlignmentScores(
        precision,
        recall,
        2 * precision * recall / both if both else 0.0,
        1 - (right_sure + right_possible) / drawn if drawn else 0.0,
    )


def f1_difference(
    first: Sequence[Links],
    second: Sequence[Links],
    sure: Sequence[Links],
    possible: Sequence[Links],
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the 95 % interval of the F1 of ``first`` minus the F1 of ``second``.

    Both are scored on the same pairs of texts. The interval comes from drawing as many pairs with
    replacement (the bootstrap; Efron 1979).
    """
    rng = random.Random(seed)
    # Concatenate the counts of both, so that one sum serves both.
    counts = [_counts(part, sure, possible) for part in (first, second)]
    rows = np.hstack([np.reshape(each, (-1, 4)) for each in counts])
    found = []
    for _ in range(resamples):
        total = rows[rng.choices(range(len(rows)), k=len(rows))].sum(0).tolist()
        found.append(_scores(tuple(total[:4])).f1 - _scores(tuple(total[4:])).f1)
    found.sort()
    return found[resamples * 25 // 1000], found[resamples * 974 // 1000]


Words = Sequence[str]
Control = Callable[[Words, Words], list[tuple[int, int]]]


def same_word(first: Words, second: Words) -> list[tuple[int, int]]:
    """Link every two copies of a word, ignoring case."""
    return [
        (i, j)
        for i, word in enumerate(first)
        for j, other in enumerate(second)
        if word.lower() == other.lower()
    ]


def nearest_same_word(first: Words, second: Words) -> list[tuple[int, int]]:
    """Link copies of a word, each at most once, starting with the pairs nearest to the diagonal."""
    chosen: list[tuple[int, int]] = []
    rows, columns = set(), set()
    for i, j in sorted(same_word(first, second), key=lambda link: _off(link, first, second)):
        if i not in rows and j not in columns:
            chosen.append((i, j))
            rows.add(i)
            columns.add(j)
    return sorted(chosen)


def diagonal(first: Words, second: Words) -> list[tuple[int, int]]:
    """Link each word of the first text to the word at the same relative position in the second."""
    if not second:
        return []
    steps = max(len(first) - 1, 1)
    return [(i, round(i * (len(second) - 1) / steps)) for i in range(len(first))]


def _off(link: tuple[int, int], first: Words, second: Words) -> float:
    i, j = link
    return abs(i / max(len(first) - 1, 1) - j / max(len(second) - 1, 1))


ALIGNMENT_CONTROLS: dict[str, Control] = {
    "same word": same_word,
    "nearest same word": nearest_same_word,
    "diagonal": diagonal,
}


def links_of(doc: Doc, component: str) -> list[tuple[int, int]] | None:
    """Return the best alignment that ``component`` annotated, as token indices; None if absent."""
    annotation = doc._.latent.get(component)
    if annotation is None:
        return None
    return [(cell.source, cell.target) for cell in annotation.cells()]


def gold_links(
    doc: Doc, sure: str = SURE, possible: str = POSSIBLE
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]] | None:
    """Return the sure and the possible links of a reference; None if it has no alignment.

    A pair may have only possible links. If an alignment has no links, all predicted links are
    wrong.
    """
    certain, further = links_of(doc, sure), links_of(doc, possible)
    if certain is None and further is None:
        return None
    return certain or [], further or certain or []


def score_alignment(
    examples: Iterable[Example],
    component: str,
    sure: str = SURE,
    possible: str = POSSIBLE,
    **options: object,
) -> dict[str, float]:
    """Score the alignments of ``component`` against the reference annotations.

    The arguments ``sure`` and ``possible`` name the reference annotations.

    Returns:
        ``latent_align_p``, ``latent_align_r``, ``latent_align_f`` and ``latent_align_error``, see
        :class:`AlignmentScores`. The dict is empty if no reference has an alignment. A
        LatentWarning is given if no doc has an annotation of ``component``.
    """
    rows = []
    examples = list(examples)
    warn_without_annotations(
        "alignment_scorer",
        examples,
        component,
        "scores of alignments are",
        "Set component in the block of the scorer to the name of the component that aligns the "
        "texts. Its annotate may not be 'none'.",
    )
    for example in examples:
        found = links_of(example.predicted, component)
        gold = gold_links(example.reference, sure, possible)
        if found is not None and gold is not None:
            rows.append((found, *gold))
    if not rows:
        return {}
    scores = alignment_scores(*zip(*rows))
    return {
        "latent_align_p": scores.precision,
        "latent_align_r": scores.recall,
        "latent_align_f": scores.f1,
        "latent_align_error": scores.error_rate,
    }


def build_alignment_scorer_v1(
    component: str = "latent_textcat",
    sure: str = SURE,
    possible: str = POSSIBLE,
    multi_label: bool = False,
) -> ExampleScorer:
    """Build a scorer of categories and alignments for spaCy's ``scorers`` registry.

    It returns the scores of ``textcat``, or of ``textcat_multilabel`` with ``multi_label``, and the
    scores of :func:`score_alignment`. Reference and prediction must have the same tokens.

    Args:
        component: its name in the pipeline.
        sure: name of the references' sure links in ``doc._.latent``.
        possible: name of the references' possible links in ``doc._.latent``.
        multi_label: whether a text may have several categories.
    """
    align = partial(score_alignment, component=component, sure=sure, possible=possible)
    return partial(_score_pairs, align=align, multi_label=multi_label)


def _score_pairs(
    examples: Iterable[Example],
    *,
    align: Callable[..., dict[str, float]],
    multi_label: bool,
    **options: Any,
) -> Scores:
    examples = list(examples)
    scores = Scorer.score_cats(examples, "cats", multi_label=multi_label, **options)
    return {**scores, **align(examples)}
