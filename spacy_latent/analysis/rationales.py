"""Scores of rationales: agreement with words that people marked, and effect on the classifier.

A rationale is a set of tokens of a doc, here an array ``(len(doc),)`` bool.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.analysis.scores import ExampleScorer, Scores
from spacy_latent.analysis.task import labels_of_others, only_label
from spacy_latent.annotations import runs
from spacy_latent.annotations.settings import cfg_of, check_group
from spacy_latent.errors import LatentError, number_of

KEY = "rationale"
# An overlap of spans that counts as a match (DeYoung et al. 2020, section 4.1).
MATCH = 0.5


# ---------------------------------------------------------------- words of a doc


def rationale_words(doc: Doc, spans_key: str = KEY) -> np.ndarray:
    """Return a mask of the tokens in ``doc.spans[spans_key]``, ``(len(doc),)`` bool."""
    spans = doc.spans.get(spans_key, ())
    return mask_of(len(doc), (i for span in spans for i in range(span.start, span.end)))


# ---------------------------------------------------------------- agreement with people


@dataclass(frozen=True)
class Agreement:
    """Means over docs, 0 to 1.

    Attributes:
        token_f: F1 of tokens.
        iou_f: F1 of spans. A span is right if its intersection with a span of the other rationale
            is at least half of their union.
    """

    precision: float
    recall: float
    token_f: float
    iou_f: float


def agreement(predicted: Iterable[np.ndarray], reference: Iterable[np.ndarray]) -> Agreement | None:
    """Return token F1 and IOU F1 (DeYoung et al. 2020, section 4.1), as means over docs.

    Docs without a word in the reference rationale are left out. Spans are runs of adjacent words.

    Returns:
        The scores, None if no doc counts.
    """
    rows = []
    for own, gold in zip(predicted, reference, strict=True):
        if len(own) != len(gold):
            raise LatentError(
                f"A rationale over {number_of(len(own), 'token')} is compared with one over "
                f"{len(gold)}; expected the same tokens in both."
            )
        if not gold.any():
            continue
        right = float((own & gold).sum())
        ours, theirs = runs(own), runs(gold)
        found = sum(_matches(span, theirs) for span in ours)
        matched = sum(_matches(span, ours) for span in theirs)
        precision, recall = _ratio(right, own.sum()), _ratio(right, gold.sum())
        iou = _f1(_ratio(found, len(ours)), _ratio(matched, len(theirs)))
        rows.append((precision, recall, _f1(precision, recall), iou))
    return Agreement(*np.mean(rows, 0).tolist()) if rows else None


def _matches(span: tuple[int, int], others: list[tuple[int, int]]) -> bool:
    for start, end in others:
        shared = min(span[1], end) - max(span[0], start)
        if shared > 0 and shared / (max(span[1], end) - min(span[0], start)) >= MATCH:
            return True
    return False


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else 0.0


def _f1(precision: float, recall: float) -> float:
    return _ratio(2 * precision * recall, precision + recall)


# ---------------------------------------------------------------- the classifier without words


@dataclass(frozen=True)
class Erasure:
    """Means over docs (DeYoung et al. 2020, section 4.2).

    Attributes:
        comprehensiveness: decrease of the probability of the predicted label if the rationale is
            erased; higher is better. NaN if every rationale is its whole doc. For numbers in a
            score_range it is the mean absolute change, as a share of the range.
        sufficiency: the same decrease if everything except the rationale is erased; lower is
            better.
        accuracy: share of docs whose text gets the label of the reference, None without references.
        alone: share of docs whose rationale, read as a text, gets that label, None without
            references.
    """

    comprehensiveness: float
    sufficiency: float
    accuracy: float | None
    alone: float | None


def erasure(
    nlp: Language,
    docs: Sequence[Doc],
    rationales: Sequence[np.ndarray],
    labels: Sequence[str | None] | None = None,
    others: Collection[str] = (),
) -> Erasure:
    """Measure the effect of erasing rationales on the predictions of a pipeline.

    The pipeline reads the remaining words as a new text. A pipeline that chooses words chooses them
    anew. Any pipeline that sets ``doc.cats`` can be used.

    If no word of a doc remains, the pipeline is not run. The doc then does not count for
    comprehensiveness. For sufficiency its probability is 1 / number of labels, and its numbers are
    the middle of their range.

    Args:
        docs: docs whose tokens are used unchanged. Empty docs do not count.
        labels: label of the reference for each doc, or None.
        others: categories of other components, which are ignored.

    Raises:
        LatentError: if no doc has words, or the pipeline sets no ``doc.cats``.
    """
    references = [None] * len(docs) if labels is None else labels
    score_range = _score_range(nlp, others)
    fall = _fall_of_label if score_range is None else partial(_change_of_numbers, *score_range)
    given = [one for one in zip(docs, rationales, references, strict=True) if len(one[0])]
    kept = [(doc, np.asarray(rationale)) for doc, rationale, _ in given]
    if not kept:
        raise LatentError("erasure: no doc has words. Give docs with words.")
    whole = _cats(nlp, [(doc, np.ones(len(doc), dtype=bool)) for doc, _ in kept], others)
    alone = _cats(nlp, kept, others)
    without = _cats(nlp, [(doc, ~words) for doc, words in kept], others)
    falls: tuple[list[float], list[float]] = ([], [])
    right: tuple[list[bool], list[bool]] = ([], [])
    for (_, _, reference), own, rest, only in zip(given, whole, without, alone):
        if not own:
            raise LatentError(
                "erasure: the pipeline wrote no doc.cats. Give one with a trained text classifier."
            )
        label = _best(own)
        if rest is not None:
            falls[0].append(fall(own, rest))
        falls[1].append(fall(own, only))
        # With one label, the best label is always the same.
        if reference is not None and len(own) > 1:
            right[0].append(label == reference)
            right[1].append(only is not None and _best(only) == reference)
    comprehensiveness = float(np.mean(falls[0])) if falls[0] else float("nan")
    accuracies = [float(np.mean(each)) if each else None for each in right]
    return Erasure(comprehensiveness, float(np.mean(falls[1])), *accuracies)


def _cats(
    nlp: Language, parts: Sequence[tuple[Doc, np.ndarray]], others: Collection[str]
) -> list[dict[str, float] | None]:
    """Return the predictions for these words of each doc, None if there are no words."""
    made = [doc_of_words(doc, words) if words.any() else None for doc, words in parts]
    said = iter(nlp.pipe([doc for doc in made if doc is not None]))
    return [None if doc is None else _without(next(said).cats, others) for doc in made]


def _without(cats: dict[str, float], others: Collection[str]) -> dict[str, float]:
    return {label: value for label, value in cats.items() if label not in others}


def _categories(nlp: Language, spans_key: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the categories that only components without these rationales predict.

    Also return the categories that a reference needs to have, so that one of them is known to be
    the only label.
    """
    for name, pipe in nlp.pipeline:
        own = cfg_of(pipe).get("spans_key") == spans_key
        if own and "doc.cats" in nlp.get_pipe_meta(name).assigns:
            attrs = getattr(getattr(pipe, "model", None), "attrs", {})
            needed = getattr(pipe, "labels", ()) if attrs.get("multi_label") else ()
            return labels_of_others(nlp, name), frozenset(needed)
    return frozenset(), frozenset()


def _score_range(nlp: Language, others: Collection[str]) -> tuple[float, float] | None:
    """Return the range of the numbers that the pipeline predicts, None if it predicts labels.

    Args:
        others: categories whose components do not count.
    """
    for _, pipe in nlp.pipeline:
        found = cfg_of(pipe).get("score_range")
        if found is not None and not set(getattr(pipe, "labels", ())) & set(others):
            return found[0], found[1]
    return None


def _fall_of_label(own: dict[str, float], other: dict[str, float] | None) -> float:
    """Return the decrease of the probability of the best label; ``other`` is None without words."""
    label = _best(own)
    return own[label] - (1 / len(own) if other is None else other[label])


def _change_of_numbers(
    low: float, high: float, own: dict[str, float], other: dict[str, float] | None
) -> float:
    """Return the mean absolute change of all numbers; ``other`` is None without words."""
    theirs = dict.fromkeys(own, (low + high) / 2) if other is None else other
    return float(np.mean([abs(own[name] - theirs[name]) for name in own])) / (high - low)


def _best(cats: dict[str, float]) -> str:
    return max(cats, key=cats.__getitem__)


def doc_of_words(doc: Doc, words: np.ndarray) -> Doc:
    """Return a new doc of the words in a mask, ``(len(doc),)`` bool."""
    kept = [token for token in doc if words[token.i]]
    spaces = [bool(token.whitespace_) for token in kept]
    return Doc(doc.vocab, words=[token.text for token in kept], spaces=spaces)


# ---------------------------------------------------------------- controls

# Function from a doc and the number of words of its rationale to a control rationale.
Control = Callable[[Doc, int, random.Random], np.ndarray]


def random_words(doc: Doc, count: int, rng: random.Random) -> np.ndarray:
    """Choose ``count`` words, all sets equally likely."""
    return mask_of(len(doc), rng.sample(range(len(doc)), count))


def first_words(doc: Doc, count: int, rng: random.Random) -> np.ndarray:
    """Choose the first ``count`` words."""
    return mask_of(len(doc), range(count))


def listed_words(doc: Doc, count: int, rng: random.Random, words: Collection[str]) -> np.ndarray:
    """Choose the words whose lower-case form is in a list, regardless of ``count``."""
    return mask_of(len(doc), [token.i for token in doc if token.lower_ in words])


def mask_of(count: int, words: Iterable[int]) -> np.ndarray:
    """Return a mask of the positions in ``words``, ``(count,)`` bool."""
    mask = np.zeros(count, dtype=bool)
    mask[list(words)] = True
    return mask


CONTROLS: dict[str, Control] = {"random words": random_words, "first words": first_words}


@dataclass(frozen=True)
class RationaleReport:
    """Scores of the rationales of many docs.

    Attributes:
        rate: share of words that are chosen.
        spans: mean number of runs of chosen words per doc.
        token_f, iou_f: see :class:`Agreement`; None without a reference.
        comprehensiveness, sufficiency, accuracy, alone: see :class:`Erasure`.
    """

    rate: float
    spans: float
    token_f: float | None
    iou_f: float | None
    comprehensiveness: float
    sufficiency: float
    accuracy: float | None
    alone: float | None


def report(
    nlp: Language,
    references: Sequence[Doc],
    spans_key: str = KEY,
    words: Collection[str] = (),
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, RationaleReport]:
    """Score the pipeline's rationales, and controls at the same rate.

    Args:
        references: docs with ``cats`` and, if people marked words, ``spans[spans_key]``. Their
            texts go through the pipeline's tokenizer as in ``spacy train``, unless they were made
            of words without spaces.
        words: words of a further control, such as an opinion lexicon.

    Raises:
        LatentError: if the pipeline writes no ``doc.spans[spans_key]``.
    """
    kept = [doc for doc in references if len(doc)]
    stream = nlp.pipe([_unread(nlp, doc) for doc in kept])
    predicted = list(progress(stream, "Rationales", len(kept)))
    if predicted and not any(spans_key in doc.spans for doc in predicted):
        raise LatentError(
            f"The pipeline wrote no doc.spans[{spans_key!r}]. Set spans_key = {spans_key!r} in "
            "the config of its latent_textcat, or give the spans_key that it has."
        )
    own = [rationale_words(doc, spans_key) for doc in predicted]
    rng = random.Random(seed)
    controls = dict(CONTROLS)
    if words:
        controls["listed words"] = partial(listed_words, words=words)
    found = {"rationale": own}
    for name, control in controls.items():
        found[name] = [control(doc, int(r.sum()), rng) for doc, r in zip(predicted, own)]
    gold = [_aligned(Example(*pair), spans_key) for pair in zip(predicted, kept)]
    # There is no accuracy for numbers, nor for texts that may have several labels.
    others, needed = _categories(nlp, spans_key)
    judged = _score_range(nlp, others) is None
    labels = [
        only_label(_without(doc.cats, others)) if judged and needed <= doc.cats.keys() else None
        for doc in kept
    ]
    rows = progress(found.items(), "With and without them", len(found))
    return {name: _report(nlp, predicted, r, gold, labels, others) for name, r in rows}


def _unread(nlp: Language, doc: Doc) -> Doc:
    if doc.has_unknown_spaces:
        return Doc(nlp.vocab, words=[token.text for token in doc])
    return nlp.make_doc(doc.text)


def _report(
    nlp: Language,
    docs: Sequence[Doc],
    chosen: Sequence[np.ndarray],
    gold: Sequence[np.ndarray],
    labels: Sequence[str | None],
    others: Collection[str],
) -> RationaleReport:
    against = agreement(chosen, gold)
    return RationaleReport(
        rate=_ratio(sum(int(r.sum()) for r in chosen), sum(map(len, chosen))),
        spans=_ratio(sum(len(runs(r)) for r in chosen), len(chosen)),
        token_f=None if against is None else against.token_f,
        iou_f=None if against is None else against.iou_f,
        **asdict(erasure(nlp, docs, chosen, labels, others)),
    )


# ---------------------------------------------------------------- spaCy's scorer


def score_rationales(
    examples: Iterable[Example],
    *,
    cats_scorer: ExampleScorer | None = None,
    rationale_key: str = KEY,
    **options: object,
) -> Scores:
    """Return scores of labels and rationales.

    Labels are scored by ``cats_scorer``. ``rationale_rate`` is the share of words chosen. If
    references have ``spans[rationale_key]``, ``rationale_p``, ``rationale_r``, ``rationale_f`` and
    ``rationale_iou_f`` are the scores of :class:`Agreement`. Otherwise they are None.
    """
    examples = list(examples)
    scores = cats_scorer(examples, **options) if cats_scorer else {}
    own = [rationale_words(example.predicted, rationale_key) for example in examples]
    gold = [_aligned(example, rationale_key) for example in examples]
    found = agreement(own, gold)
    return {
        **scores,
        "rationale_rate": _ratio(sum(int(r.sum()) for r in own), sum(map(len, own))),
        "rationale_p": None if found is None else found.precision,
        "rationale_r": None if found is None else found.recall,
        "rationale_f": None if found is None else found.token_f,
        "rationale_iou_f": None if found is None else found.iou_f,
    }


def _aligned(example: Example, key: str) -> np.ndarray:
    """Return the reference's rationale in the tokens of the prediction.

    A token that overlaps the rationale belongs to it. Otherwise a marked word could be lost, and
    with it the match of its whole span.
    """
    marked = rationale_words(example.reference, key)
    if not marked.any():
        return np.zeros(len(example.predicted), dtype=bool)
    place = example.alignment.x2y
    return mask_of(
        len(example.predicted),
        [token.i for token in example.predicted if marked[place[token.i]].any()],
    )


def build_rationale_scorer_v1(
    spans_key: str = KEY, cats_scorer: ExampleScorer | None = None
) -> ExampleScorer:
    """Build a scorer of rationales for spaCy's ``scorers`` registry, see :func:`score_rationales`.

    Args:
        spans_key: key of the rationales, the component's ``spans_key``.
        cats_scorer: scorer of the labels; None for no such scores. For ``latent_textcat`` give
            ``spacy.textcat_scorer.v2``, for its multilabel twin
            ``spacy.textcat_multilabel_scorer.v2``.
    """
    check_group("rationale_scorer", spans_key=spans_key)
    return partial(score_rationales, rationale_key=spans_key, cats_scorer=cats_scorer)
