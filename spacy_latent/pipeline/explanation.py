"""Why a trained pipeline said this of a text: the words that do for it, learned for that text.

Of any trained ``textcat``, ``textcat_multilabel``, ``ner``, spaCy's own or this package's.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from spacy.errors import Errors
from spacy.language import Language
from spacy.pipeline import EntityRecognizer, TextCategorizer
from spacy.pipeline.textcat_multilabel import MultiLabel_TextCategorizer
from spacy.tokens import Doc
from thinc.api import Model

from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.analysis.rationales import doc_of_words, mask_of
from spacy_latent.confidence import confidences
from spacy_latent.errors import LatentError
from spacy_latent.models.hidden_words import CLOSE, WordReaders, find_word_readers
from spacy_latent.models.learned_mask import (
    Scores,
    learn_mask,
    leave_one_out,
    shortest_prefix,
)
from spacy_latent.models.span_getters import PairSpans
from spacy_latent.pipeline.crf_ner import CrfEntityRecognizer

MASK, LEAVE_ONE_OUT, RANDOM = "mask", "leave-one-out", "random"
# Of a weight, as pages and the terminal print it.
SHOWN_DIGITS = 2
# Of weights and of falls: less is next to nothing.
LEAST = 0.05
RANDOM_DRAWS = 10
# Tokens that are read at a time; more take memory and no less time.
TOKENS = 20_000
ENTITY_FINDERS = (EntityRecognizer, CrfEntityRecognizer)


@dataclass(frozen=True)
class Faithfulness:
    """How far the probability falls without the chosen words (comprehensiveness, the more the
    better) and without all others (sufficiency, the less the better): DeYoung et al. 2020, section
    4.2."""

    comprehensiveness: float
    sufficiency: float


class NoSuchEntity(LatentError):
    """The text has no entity that its component found; another text may have one.

    doc: the text, as the component left it. component: its name.
    """

    def __init__(self, doc: Doc, component: str, message: str) -> None:
        self.doc = doc
        self.component = component
        super().__init__(message)

    def __reduce__(self) -> tuple[type[NoSuchEntity], tuple[Doc, str, str]]:
        # A process of a pool sends its errors; by itself an error has its message alone.
        return type(self), (self.doc, self.component, str(self))


@dataclass(frozen=True)
class Explanation:
    """Which words of a doc do for what a component says of it.

    label: the category, or that of the entity. entity: (start, end) in tokens, None for a category.
    probability: of it. Where the component gives none, as spaCy's ``ner``, 1.0: it is predicted.
    without: of it when all words are hidden.
    weights: ``(len(doc),)``, how probable it is that the learned mask keeps the word.
    falls: ``(len(doc),)``, what the probability falls by when this word alone is hidden.
    chosen: ``(len(doc),)`` bool, the words with the largest weights, as many as it takes for the
        probability to fall by at most the margin when all others are hidden. None of them where it
        stands without any word.
    hidden: "vectors" where the vector of no word in particular stands in the place of a word's (and
        its n-grams do not count), so that the word's place is still there; "text" where words are
        taken out of the text, since the model reads no word alone.
    faithfulness: of the chosen words under "mask"; of as many words with the largest falls under
        "leave-one-out"; the mean of ten draws of as many words under "random".
    erased: the same where words are taken out of the text, whatever ``hidden`` is.
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
        """What is explained, in words."""
        if self.entity is None:
            return self.label
        return f"{self.doc[self.entity[0] : self.entity[1]].text} ({self.label})"

    @property
    def from_falls(self) -> bool:
        """Whether leave-one-out alone put the chosen words in order, since the learned mask keeps
        none of them: without any word the probability falls by little more than the margin, and
        on average masks stay within it that keep hardly a word."""
        return bool(self.chosen.any() and self.weights[self.chosen].max() < LEAST)

    @property
    def words(self) -> list[str]:
        """The chosen words, in the order of the text."""
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
    """Learn which words of a text do for what a trained component says of it. Nothing of the
    pipeline is changed; but while this runs its models read hidden words, so that no other thread
    may use it.

    text: or a doc, whose tokens are taken as they are. The components up to the one that is
        explained are run on it. No entities may be on it that the component is to find: they stay,
        whatever the words are.
    component: its name; may be None where there is one that can be explained.
    label: the category to explain; None for the one with the highest score. Of entities: only those
        with this label count.
    entity: which of the entities that are found, from 0, where the component finds entities.
    steps: of learning. Each reads the text about twice for each of its words, 48 words at most.
    margin: by how much the probability may fall when all but the chosen words are hidden.
    seed: of the masks that are drawn and of the random words.
    progress: see :class:`spacy_latent.analysis.progress.Progress`; of steps.

    Raises LatentError for a pipeline without such a component, a label that it does not have,
    regression, and pairs of texts; NoSuchEntity, a LatentError, for a text without the entity, and
    for an entity that was on the doc before the component.
    """
    name, pipe = _choose(nlp, component)
    doc, before = _read(nlp, name, text)
    target: _Category | _Entity
    if isinstance(pipe, ENTITY_FINDERS):
        target = _Entity.found(pipe, name, doc, before, label, entity)
    else:
        target = _Category.found(pipe, name, doc, label)
    from_text = _FromText(nlp, name, doc, target)
    count = len(doc)
    if not count:
        nothing = np.zeros(0)
        return Explanation(
            doc=doc,
            component=name,
            label=target.label,
            entity=None,
            probability=target.probability,
            without=target.probability,
            weights=nothing,
            falls=nothing,
            chosen=nothing.astype(bool),
            hidden="text",
            faithfulness={},
            erased={},
        )
    from_vectors = _vector_scores(nlp, name, pipe, before, doc, target)
    scores: Scores = from_text if from_vectors is None else from_vectors
    weights = learn_mask(
        scores, count, steps, margin, seed, lambda each: progress(each, "Hiding words", steps)
    )
    falls = leave_one_out(scores, count)
    # Where weights differ by less than is shown, as those that learning has left alone or driven to
    # 0, the greater fall goes first: their last digits are noise.
    order = np.lexsort((-falls, -weights.round(SHOWN_DIGITS)))
    kept = shortest_prefix(scores, order, margin)
    chosen = mask_of(count, order[:kept])
    alone = mask_of(count, np.argsort(-falls, kind="stable")[:kept])
    rng = random.Random(seed)
    draws = [mask_of(count, rng.sample(range(count), kept)) for _ in range(RANDOM_DRAWS)]
    rivals = {MASK: [chosen], LEAVE_ONE_OUT: [alone], RANDOM: draws}
    return Explanation(
        doc=doc,
        component=name,
        label=target.label,
        entity=target.place,
        probability=target.probability,
        without=float(scores(np.zeros((1, count)))[0]),
        weights=weights,
        falls=falls,
        chosen=chosen,
        hidden="text" if from_vectors is None else "vectors",
        faithfulness={key: faithfulness(scores, masks) for key, masks in rivals.items()},
        erased={key: faithfulness(from_text, masks) for key, masks in rivals.items()},
    )


def faithfulness(scores: Scores, chosen: Sequence[np.ndarray]) -> Faithfulness:
    """The mean over sets of words, each ``(n,)`` bool."""
    masks = np.stack(chosen).astype(float)
    found = scores(np.concatenate([np.ones((1, masks.shape[1])), 1 - masks, masks]))
    whole, without, only = found[0], found[1 : len(masks) + 1], found[len(masks) + 1 :]
    return Faithfulness(float(whole - without.mean()), float(whole - only.mean()))


# ---------------------------------------------------------------- what is explained


def _choose(nlp: Language, component: str | None) -> tuple[str, Any]:
    """The component to explain."""
    kinds = (TextCategorizer, *ENTITY_FINDERS)
    found = {name: pipe for name, pipe in nlp.pipeline if isinstance(pipe, kinds)}
    there = ", ".join(nlp.pipe_names) or "none"
    if component is not None and component not in found:
        raise LatentError(
            f"{component!r} cannot be explained: it is no text classifier or entity recognizer of "
            f"this pipeline. Those are: {', '.join(found) or 'none'}. Components: {there}."
        )
    if not found:
        raise LatentError(
            "There is nothing to explain: the pipeline has no text classifier and no entity "
            f"recognizer. Its components: {there}. Give one with a trained textcat, "
            "textcat_multilabel, ner, or a latent_textcat or crf_ner of this package."
        )
    if component is None and len(found) > 1:
        raise LatentError(
            f"There are several components to explain: {', '.join(found)}. Name one of them."
        )
    name = component or next(iter(found))
    pipe = found[name]
    if getattr(pipe, "cfg", {}).get("score_range") is not None:
        raise LatentError(
            f"{name!r} gives numbers in a range, not probabilities of categories, and there is no "
            "category to explain."
        )
    if any(isinstance(node.attrs.get("span_getter"), PairSpans) for node in pipe.model.walk()):
        raise LatentError(
            f"{name!r} reads pairs of texts, of which single words cannot be taken out. Look at "
            "its alignments with 'spacy latent render'."
        )
    return name, pipe


def _read(nlp: Language, component: str, text: str | Doc) -> tuple[Doc, Doc]:
    """The doc after the component, and a copy of it from before."""
    doc = nlp.make_doc(text) if isinstance(text, str) else text
    for name, pipe in nlp.pipeline:
        before = _copy(doc) if name == component else None
        try:
            doc = pipe(doc)
        except (KeyError, ValueError) as error:
            if _is_initialized(pipe):
                raise
            # As nlp() has it: of parameters, or widths, that are not there yet.
            kind = type(error).__name__
            raise LatentError(f"{Errors.E109.format(name=name)} ({kind}: {error})") from error
        if before is not None:
            return doc, before
    raise AssertionError(f"{component} is a component of the pipeline")


def _is_initialized(pipe: Any) -> bool:
    """Whether all parameters are there."""
    model = getattr(pipe, "model", None)
    if not isinstance(model, Model):
        return True
    return all(
        node.has_param(name) is not None for node in model.walk() for name in node.param_names
    )


def _copy(doc: Doc) -> Doc:
    """With the annotation, which entity recognizers look at."""
    if not len(doc):
        return Doc(doc.vocab)
    with warnings.catch_warnings():
        # What is stored on a doc as a whole, such as a transformer's output, it leaves behind and
        # says so; here that is computed again.
        warnings.filterwarnings("ignore", r"\[W10[12]\]")
        copied = Doc.from_docs([doc])
    assert copied is not None
    return copied


class _Category:
    """Of a text classifier."""

    place = None

    def __init__(self, pipe: TextCategorizer, label: str, probability: float, guess: float) -> None:
        self.pipe = pipe
        self.label = label
        self.probability = probability
        # Where nothing is left to be read, as for spacy_latent.analysis.rationales.erasure.
        self.guess = guess

    @classmethod
    def found(cls, pipe: TextCategorizer, name: str, doc: Doc, label: str | None) -> _Category:
        labels = list(pipe.labels)
        if not labels:
            raise LatentError(f"{name!r} has no labels: it is not trained.")
        if label is not None and label not in labels:
            raise LatentError(f"{name!r} has no label {label!r}. Its labels: {', '.join(labels)}.")
        label = max(labels, key=doc.cats.__getitem__) if label is None else label
        several = isinstance(pipe, MultiLabel_TextCategorizer) or bool(
            pipe.model.attrs.get("multi_label")
        )
        return cls(pipe, label, doc.cats[label], 0.5 if several else 1 / len(labels))

    def of_copies(self, doc: Doc, count: int) -> np.ndarray:
        """Of the same doc so many times; what the model makes of each is up to who hides words."""
        found: Any = self.pipe.predict([doc] * count)
        # A latent_textcat gives its structures as well.
        probabilities = found[0] if isinstance(found, tuple) else found
        ops: Any = self.pipe.model.ops
        return ops.to_numpy(probabilities)[:, list(self.pipe.labels).index(self.label)]

    def of_text(self, doc: Doc, kept: np.ndarray) -> float:
        return doc.cats[self.label]


class _Entity:
    """Of an entity recognizer: its probability where one is stored, else whether it is found."""

    guess = 0.0

    def __init__(self, pipe: Any, doc: Doc, start: int, end: int, label: str) -> None:
        self.pipe = pipe
        self.place = (start, end)
        self.label = label
        self.probability = self._of(doc, start, end)

    @classmethod
    def found(
        cls, pipe: Any, name: str, doc: Doc, before: Doc, label: str | None, entity: int
    ) -> _Entity:
        known = list(pipe.labels)
        if label is not None and label not in known:
            raise LatentError(f"{name!r} has no label {label!r}. Its labels: {', '.join(known)}.")
        there = [span for span in doc.ents if label in (None, span.label_)]
        if not 0 <= entity < len(there):
            listed = ", ".join(f"{span.text} ({span.label_})" for span in there) or "none"
            of = "" if label is None else f" with the label {label!r}"
            raise NoSuchEntity(
                doc,
                name,
                f"There is no entity number {entity}, from 0, in this text{of}. Found: {listed}.",
            )
        span = there[entity]
        given = {(one.start, one.end, one.label_) for one in before.ents}
        if (span.start, span.end, span.label_) in given:
            raise NoSuchEntity(
                doc,
                name,
                f"{span.text} ({span.label_}) was on the doc before {name!r}, which keeps what is "
                "there whatever the words are. Give the text, or a doc that the pipeline has not "
                "read yet; of what a component before it finds, such as an entity_ruler, there is "
                "nothing to explain.",
            )
        return cls(pipe, doc, span.start, span.end, span.label_)

    def of_copies(self, doc: Doc, count: int) -> np.ndarray:
        docs = [_copy(doc) for _ in range(count)]
        self.pipe.set_annotations(docs, self.pipe.predict(docs))
        return np.array([self._of(each, *self.place) for each in docs])

    def of_text(self, doc: Doc, kept: np.ndarray) -> float:
        start, end = self.place
        if not kept[start:end].all():
            return 0.0
        before = int(kept[:start].sum())
        return self._of(doc, before, before + end - start)

    def _of(self, doc: Doc, start: int, end: int) -> float:
        place = start, end, self.label
        # Below a min_confidence as well, or a probability that fell a little would count as none.
        sure = confidences(doc, self.pipe.name).get(place)
        if sure is not None:
            return sure
        return float(any((span.start, span.end, span.label_) == place for span in doc.ents))


# ---------------------------------------------------------------- scores of masks


class _FromText:
    """Scores of masks by taking words out of the text: those whose mask is below a half."""

    def __init__(
        self, nlp: Language, component: str, doc: Doc, target: _Category | _Entity
    ) -> None:
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
            # spaCy's bag of bigrams fails at a text of one word. Whatever cannot be read says as
            # much as nothing; what can be read was, when the whole text was.
            return self.target.guess
        return float(self.target.of_text(doc, kept))


def _vector_scores(
    nlp: Language,
    name: str,
    pipe: Any,
    before: Doc,
    doc: Doc,
    target: _Category | _Entity,
) -> Scores | None:
    """Scores of masks by hiding words from the model; None where it reads no word alone, or where
    something of the words still comes through when all are hidden."""
    readers = find_word_readers(
        pipe.model, _upstream(nlp, name, pipe.model), before, lambda docs: pipe.predict(docs)
    )
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


def _hidden_scores(readers: WordReaders, doc: Doc, target: _Category | _Entity) -> Scores:
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
    """As many tokens, all of a word that the text does not have, or where the vocabulary knows no
    other, of its own in the opposite order. No string is added to those that the vocabulary has."""
    own = [token.text for token in doc]
    there = set(own)
    other = next((word.text for word in doc.vocab if word.text and word.text not in there), None)
    words = own[::-1] if other is None else [other] * len(doc)
    starts: list[Any] = [token.is_sent_start for token in doc]
    return Doc(doc.vocab, words=words, sent_starts=starts)


def _upstream(nlp: Language, component: str, model: Model) -> dict[Model, Model]:
    """The listeners of the component, and of those that it listens to, with the models that give
    each token a vector."""
    found: dict[Model, Model] = {}
    for name, pipe in nlp.pipeline:
        source: Any = getattr(pipe, "model", None)
        for listener in getattr(pipe, "listeners", []) if isinstance(source, Model) else []:
            found[listener] = source
        if name == component:
            break
    return found
