"""Explanation of a prediction by the words that suffice for it, learned for each text.

It works with any trained ``textcat``, ``textcat_multilabel`` or ``ner`` of spaCy or this package.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import Model

from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.analysis.rationales import doc_of_words, mask_of
from spacy_latent.evaluation.explained_predictions import (
    Category,
    Entity,
    choose,
    find_prediction,
    read,
)
from spacy_latent.evaluation.explained_predictions import NoSuchEntity as NoSuchEntity
from spacy_latent.models.hidden_words import CLOSE, WordReaders, find_word_readers
from spacy_latent.models.learned_mask import Scores, learn_mask, leave_one_out, shortest_prefix

MASK, LEAVE_ONE_OUT, RANDOM = "mask", "leave-one-out", "random"
# Digits of a weight on pages and in the terminal.
SHOWN_DIGITS = 2
# Smaller weights and falls are ignored.
LEAST = 0.05
RANDOM_DRAWS = 10
# Number of tokens per batch; larger batches take more memory and no less time.
TOKENS = 20_000


@dataclass(frozen=True)
class Faithfulness:
    """Drops of the probability that measure a rationale (DeYoung et al. 2020, section 4.2).

    Attributes:
        comprehensiveness: drop of the probability without the chosen words; higher is better.
        sufficiency: drop without all other words; lower is better.
    """

    comprehensiveness: float
    sufficiency: float


@dataclass(frozen=True)
class Explanation:
    """Words of a doc that suffice for a prediction of a component.

    Attributes:
        label: the category, or the label of the entity.
        entity: (start, end) of the entity in tokens, None for a category.
        probability: probability of the prediction; 1.0 if the component has no probabilities, like
            spaCy's ``ner``.
        without: probability with all words hidden.
        weights: ``(len(doc),)``, probability that the learned mask keeps the word.
        falls: ``(len(doc),)``, drop of the probability if only this word is hidden.
        chosen: ``(len(doc),)`` bool, the words of largest weight, as few as suffice: with all other
            words hidden, the probability drops by at most the margin. The set is empty if no word
            is needed.
        hidden: "vectors" if a hidden word keeps its place and gets a mean vector of words, and its
            n-grams do not count. "text" if words are removed from the text, since some layer of the
            model reads several words at once.
        faithfulness: measures by the way to choose words. "mask" is for the chosen words,
            "leave-one-out" for as many words with the largest falls, and "random" is the mean over
            ten draws of as many words.
        erased: the same measures with words removed from the text, whatever ``hidden`` is.
    """

    doc: Doc
    component: str
    label: str
    entity: tuple[int, int] | None
    probability: float
    without: float
    weights: np.ndarray
    falls: np.ndarray
    chosen: np.ndarray
    hidden: str
    faithfulness: dict[str, Faithfulness]
    erased: dict[str, Faithfulness]

    @property
    def what(self) -> str:
        """Name of the explained category, or text and label of the entity."""
        if self.entity is None:
            return self.label
        return f"{self.doc[self.entity[0] : self.entity[1]].text} ({self.label})"

    @property
    def from_falls(self) -> bool:
        """True if only leave-one-out ordered the chosen words, since the mask keeps no word.

        This happens if the probability without any word drops by little more than the margin. Masks
        that keep hardly any word then stay within the margin on average.
        """
        return bool(self.chosen.any() and self.weights[self.chosen].max() < LEAST)

    @property
    def numbers(self) -> list[str]:
        """Number of each word, as pages and the terminal show it.

        It is the weight, or the fall if only leave-one-out ordered the words. It is empty if it
        would be 0.00. This may be a chosen word, which was chosen by its fall among words of equal
        weight.
        """
        shown = self.falls if self.from_falls else self.weights
        return [
            f"{number:.{SHOWN_DIGITS}f}" if number.round(SHOWN_DIGITS) else "" for number in shown
        ]

    @property
    def advice(self) -> str | None:
        """Advice for a text of which no word is needed, else None."""
        if self.chosen.any() or not len(self.doc):
            return None
        return (
            f"No word is needed: with all words hidden, {self.label} still has {self.without:.2f}, "
            f"and {self.probability:.2f} with the text. A classifier that says nearly the same of "
            "every text rests on no words: look at its accuracy and train it longer. Otherwise try "
            "a smaller margin, such as --margin 0.02, or another category with --label."
        )

    @property
    def words(self) -> list[str]:
        """Chosen words, in the order of the text."""
        return [self.doc[int(i)].text for i in np.flatnonzero(self.chosen)]


def explain(
    nlp: Language,
    text: str | Doc,
    component: str | None = None,
    *,
    label: str | None = None,
    entity: int = 0,
    steps: int = 80,
    margin: float = 0.1,
    seed: int = 0,
    progress: Progress = silent,
) -> Explanation:
    """Learn which words of a text suffice for a prediction of a trained component.

    The pipeline is not changed. But its models read hidden words during the call, so no other
    thread may use it.

    Args:
        text: a text, or a doc whose tokens are kept. The components up to the explained one run on
            it. The doc must not have the entities that the component is to find, since they would
            stay with any words.
        component: name of the component; may be None if the pipeline has one such component.
        label: category to explain, None for the category with the highest score. For entities, only
            those with this label count.
        entity: index of the entity among those that are found, from 0.
        steps: number of learning steps. Each step reads the text about twice for each of its words,
            for at most 48 words.
        margin: allowed drop of the probability with all words except the chosen ones hidden.
        seed: seed of the drawn masks and of the random words.
        progress: see :class:`spacy_latent.analysis.progress.Progress`; it counts steps.

    Raises:
        LatentError: if the pipeline has no such component, if the label is unknown, for regression,
            and for pairs of texts.
        NoSuchEntity: a LatentError, if the text lacks the entity, or if the entity was on the doc
            before the component.
    """
    name, pipe = choose(nlp, component)
    doc, before = read(nlp, name, text)
    target = find_prediction(pipe, name, doc, before, label, entity)
    of = partial(Explanation, doc, name, target.label, target.place, target.probability)
    if not len(doc):
        none = np.zeros(0)
        return of(target.probability, none, none, none.astype(bool), "text", {}, {})
    from_text = _FromText(nlp, name, doc, target)
    from_vectors = _vector_scores(nlp, name, pipe, before, target)
    scores: Scores = from_text if from_vectors is None else from_vectors
    count, hidden = len(doc), "text" if from_vectors is None else "vectors"
    weights = learn_mask(
        scores, count, steps, margin, seed, lambda each: progress(each, "Hiding words", steps)
    )
    falls = leave_one_out(scores, count)
    chosen, rivals = _choose_words(scores, weights, falls, margin, seed)
    without = float(scores(np.zeros((1, count)))[0])
    measured, erased = (
        {key: faithfulness(each, masks) for key, masks in rivals.items()}
        for each in (scores, from_text)
    )
    return of(without, weights, falls, chosen, hidden, measured, erased)


def _choose_words(
    scores: Scores, weights: np.ndarray, falls: np.ndarray, margin: float, seed: int
) -> tuple[np.ndarray, dict[str, list[np.ndarray]]]:
    """Choose the words that suffice, and equally many by leave-one-out and by chance.

    Args:
        weights, falls: weight of each word in the mask, and fall of the probability if only this
            word is hidden, ``(n,)``.

    Returns:
        The chosen words, ``(n,)`` bool, and sets of words for each way to choose them.
    """
    count = len(weights)
    # The last digits of weights are noise. If weights are equal in the shown digits, the word with
    # the larger fall comes first.
    order = np.lexsort((-falls, -weights.round(SHOWN_DIGITS)))
    kept = shortest_prefix(scores, order, margin)
    chosen = mask_of(count, order[:kept])
    alone = mask_of(count, np.argsort(-falls, kind="stable")[:kept])
    rng = random.Random(seed)
    draws = [mask_of(count, rng.sample(range(count), kept)) for _ in range(RANDOM_DRAWS)]
    return chosen, {MASK: [chosen], LEAVE_ONE_OUT: [alone], RANDOM: draws}


def faithfulness(scores: Scores, chosen: Sequence[np.ndarray]) -> Faithfulness:
    """Return the mean measures over sets of words, each ``(n,)`` bool."""
    masks = np.stack(chosen).astype(float)
    found = scores(np.concatenate([np.ones((1, masks.shape[1])), 1 - masks, masks]))
    whole, without, only = found[0], found[1 : len(masks) + 1], found[len(masks) + 1 :]
    return Faithfulness(float(whole - without.mean()), float(whole - only.mean()))


class _FromText:
    """Scores of masks, by removing words with a mask below 0.5 from the text."""

    def __init__(self, nlp: Language, component: str, doc: Doc, target: Category | Entity) -> None:
        self.nlp = nlp
        self.enabled = nlp.pipe_names[: nlp.pipe_names.index(component) + 1]
        self.doc = doc
        self.target = target
        self.known: dict[bytes, float] = {}

    def __call__(self, masks: np.ndarray) -> np.ndarray:
        kept = masks >= 0.5
        new = {row.tobytes(): row for row in kept if row.tobytes() not in self.known}
        docs = [doc_of_words(self.doc, row) for row in new.values()]
        with self.nlp.select_pipes(enable=self.enabled):
            for (key, row), doc in zip(new.items(), docs):
                self.known[key] = self._score(doc, row)
        return np.array([self.known[row.tobytes()] for row in kept])

    def _score(self, doc: Doc, kept: np.ndarray) -> float:
        if not len(doc):
            return self.target.guess
        try:
            for _, pipe in self.nlp.pipeline:
                doc = pipe(doc)
        except Exception:
            # spaCy's bag of bigrams fails on a text of one word. Such a text gets the score of an
            # empty text. Any other cause of an error would have raised it on the whole text, too.
            return self.target.guess
        return float(self.target.of_text(doc, kept))


def _vector_scores(
    nlp: Language, name: str, pipe: Any, before: Doc, target: Category | Entity
) -> Scores | None:
    """Return the scores of masks with words hidden from the model.

    Return None if some layer reads several words at once, or if the output depends on hidden words.
    """
    listeners = _upstream(nlp, name)
    readers = find_word_readers(pipe.model, listeners, before, lambda docs: pipe.predict(docs))
    if readers is None:
        return None
    scores = _hidden_scores(readers, before, target)
    count = len(before)
    whole = scores(np.ones((1, count)))[0]
    if abs(whole - target.probability) > CLOSE:
        return None
    nothing = np.zeros((1, count))
    others = _hidden_scores(readers, _other_words(before), target)
    return scores if abs(scores(nothing)[0] - others(nothing)[0]) <= CLOSE else None


def _hidden_scores(readers: WordReaders, doc: Doc, target: Category | Entity) -> Scores:
    def scores(masks: np.ndarray) -> np.ndarray:
        size = max(1, TOKENS // len(doc))
        found = []
        for start in range(0, len(masks), size):
            part = masks[start : start + size]
            with readers.hiding(part):
                found.append(target.of_copies(doc, len(part)))
        return np.concatenate(found).astype(float)

    return scores


def _other_words(doc: Doc) -> Doc:
    """Return a doc with the same number of tokens, all a word that the text does not have.

    If the vocabulary has no other word, reverse the text's own words. No string is added to the
    vocabulary.
    """
    own = [token.text for token in doc]
    there = set(own)
    other = next((word.text for word in doc.vocab if word.text and word.text not in there), None)
    words = own[::-1] if other is None else [other] * len(doc)
    starts: list[Any] = [token.is_sent_start for token in doc]
    made = Doc(doc.vocab, words=words, sent_starts=starts)
    # Listeners get their vectors in another way, but their component warns if a doc has none.
    made.tensor = doc.tensor
    return made


def _upstream(nlp: Language, component: str) -> dict[Model, Model]:
    """Return the listeners of the component, and of the components that it listens to.

    Each listener is mapped to the model that gives each token a vector.
    """
    found: dict[Model, Model] = {}
    for name, pipe in nlp.pipeline:
        source: Any = getattr(pipe, "model", None)
        for listener in getattr(pipe, "listeners", []) if isinstance(source, Model) else []:
            found[listener] = source
        if name == component:
            break
    return found
