"""Predictions of text classifiers and entity recognizers that can be explained by words."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from spacy.errors import Errors
from spacy.language import Language
from spacy.pipeline import EntityRecognizer, TextCategorizer
from spacy.pipeline.textcat_multilabel import MultiLabel_TextCategorizer
from spacy.tokens import Doc
from thinc.api import Model

from spacy_latent.annotations.settings import cfg_of
from spacy_latent.confidence import confidences
from spacy_latent.errors import LatentError
from spacy_latent.models.span_getters import PairSpans
from spacy_latent.pipeline.crf_ner import CrfEntityRecognizer

ENTITY_FINDERS = (EntityRecognizer, CrfEntityRecognizer)


class NoSuchEntity(LatentError):
    """Error for a text in which the component found no such entity; another text may have one."""

    def __init__(self, doc: Doc, component: str, message: str) -> None:
        self.doc = doc
        self.component = component
        super().__init__(message)

    def __reduce__(self) -> tuple[type[NoSuchEntity], tuple[Doc, str, str]]:
        # For errors of pool processes: by default only the message of an error is pickled.
        return type(self), (self.doc, self.component, str(self))


def choose(nlp: Language, component: str | None) -> tuple[str, Any]:
    """Return the name and the component to explain."""
    kinds = (TextCategorizer, *ENTITY_FINDERS)
    found = {name: pipe for name, pipe in nlp.pipeline if isinstance(pipe, kinds)}
    there = ", ".join(nlp.pipe_names) or "none"
    if component is not None and component not in found:
        raise LatentError(
            f"{component!r} cannot be explained; expected a text classifier or entity recognizer "
            f"of this pipeline: {', '.join(found) or 'none'}. Components: {there}."
        )
    if not found:
        raise LatentError(
            "There is nothing to explain: the pipeline has no text classifier and no entity "
            f"recognizer. Its components: {there}. Give one with a trained textcat, "
            "textcat_multilabel, ner, or a latent_textcat or crf_ner of this package."
        )
    if component is None and len(found) > 1:
        raise LatentError(
            f"There are several components to explain: {', '.join(found)}. Name one of them "
            "(component, --component)."
        )
    name = component or next(iter(found))
    pipe = found[name]
    if cfg_of(pipe).get("score_range") is not None:
        raise LatentError(
            f"{name!r} predicts numbers in a range, and only probabilities of categories can be "
            "explained. Name a component with categories or entities."
        )
    if any(isinstance(node.attrs.get("span_getter"), PairSpans) for node in pipe.model.walk()):
        raise LatentError(
            f"{name!r} reads pairs of texts, and only predictions for single texts can be "
            "explained. Draw its structures with 'spacy latent render'."
        )
    return name, pipe


def read(nlp: Language, component: str, text: str | Doc) -> tuple[Doc, Doc]:
    """Return the doc after the component, and a copy of it from before."""
    doc = nlp.make_doc(text) if isinstance(text, str) else text
    for name, pipe in nlp.pipeline:
        before = _copy(doc) if name == component else None
        try:
            doc = pipe(doc)
        except (KeyError, ValueError) as error:
            if _is_initialized(pipe):
                raise
            # nlp() raises this error for missing parameters or widths.
            kind = type(error).__name__
            raise LatentError(f"{Errors.E109.format(name=name)} ({kind}: {error})") from error
        if before is not None:
            return doc, before
    raise AssertionError(f"{component} is a component of the pipeline")


def _is_initialized(pipe: Any) -> bool:
    """Return whether a component has all its parameters."""
    model = getattr(pipe, "model", None)
    if not isinstance(model, Model):
        return True
    return all(
        node.has_param(name) is not None for node in model.walk() for name in node.param_names
    )


def _copy(doc: Doc) -> Doc:
    """Copy a doc with its annotation, which entity recognizers read."""
    if not len(doc):
        return Doc(doc.vocab)
    with warnings.catch_warnings():
        # spaCy warns that attributes of whole docs, such as a transformer's output, are not copied.
        # They are computed again here.
        warnings.filterwarnings("ignore", r"\[W10[12]\]")
        copied = Doc.from_docs([doc])
    assert copied is not None
    return copied


def find_prediction(
    pipe: Any, name: str, doc: Doc, before: Doc, label: str | None, entity: int
) -> Category | Entity:
    """Return the prediction to explain; see :func:`~spacy_latent.evaluation.explanation.explain`.

    Args:
        doc, before: result of :func:`read`.
    """
    if isinstance(pipe, ENTITY_FINDERS):
        return Entity.found(pipe, name, doc, before, label, entity)
    return Category.found(pipe, name, doc, label)


class Category:
    """Prediction of a text classifier."""

    place = None

    def __init__(self, pipe: TextCategorizer, label: str, probability: float, guess: float) -> None:
        self.pipe = pipe
        self.label = label
        self.probability = probability
        # Probability without any word, as in spacy_latent.analysis.rationales.erasure.
        self.guess = guess

    @classmethod
    def found(cls, pipe: TextCategorizer, name: str, doc: Doc, label: str | None) -> Category:
        """Return the prediction of a label, or of the most probable one for None.

        Raises:
            LatentError: if the component does not have the label.
        """
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
        """Return the probabilities for ``count`` copies of a doc, whose words the caller hides."""
        found: Any = self.pipe.predict([doc] * count)
        # A latent_textcat also returns its structures.
        probabilities = found[0] if isinstance(found, tuple) else found
        ops: Any = self.pipe.model.ops
        return ops.to_numpy(probabilities)[:, list(self.pipe.labels).index(self.label)]

    def of_text(self, doc: Doc, kept: np.ndarray) -> float:
        """Return the probability of the label on a text of the kept words."""
        return doc.cats[self.label]


class Entity:
    """Prediction of an entity recognizer: a stored probability, else 1.0 if it is found."""

    guess = 0.0

    def __init__(self, pipe: Any, doc: Doc, start: int, end: int, label: str) -> None:
        self.pipe = pipe
        self.place = (start, end)
        self.label = label
        self.probability = self._of(doc, start, end)

    @classmethod
    def found(
        cls, pipe: Any, name: str, doc: Doc, before: Doc, label: str | None, entity: int
    ) -> Entity:
        """Return the entity of this number, from 0, among the entities of the label.

        Args:
            before: the doc before the component, whose entities cannot be explained.
            label: None for the entities of all labels.

        Raises:
            LatentError: if the component does not have the label.
            NoSuchEntity: if there is no such entity, or it was on the doc before.
        """
        known = list(pipe.labels)
        if label is not None and label not in known:
            raise LatentError(f"{name!r} has no label {label!r}. Its labels: {', '.join(known)}.")
        there = [span for span in doc.ents if label in (None, span.label_)]
        if not 0 <= entity < len(there):
            of = "" if label is None else f" with the label {label!r}"
            listed = ", ".join(f"{span.text} ({span.label_})" for span in there)
            found = f"Found: {listed}" if there else f"{name!r} finds none; give another text"
            reason = f"There is no entity number {entity}, from 0, in this text{of}. {found}."
            raise NoSuchEntity(doc, name, reason)
        span = there[entity]
        given = {(one.start, one.end, one.label_) for one in before.ents}
        if (span.start, span.end, span.label_) in given:
            raise NoSuchEntity(
                doc,
                name,
                f"{span.text} ({span.label_}) was on the doc before {name!r}, which keeps such "
                "entities whatever the words are, so there is nothing to explain. Give the text, "
                "or a doc that the pipeline has not processed yet. If an earlier component such "
                "as an entity_ruler found it, choose another entity.",
            )
        return cls(pipe, doc, span.start, span.end, span.label_)

    def of_copies(self, doc: Doc, count: int) -> np.ndarray:
        """Return its probability ``(count,)`` on copies of a doc, read at once."""
        docs = [_copy(doc) for _ in range(count)]
        self.pipe.set_annotations(docs, self.pipe.predict(docs))
        return np.array([self._of(each, *self.place) for each in docs])

    def of_text(self, doc: Doc, kept: np.ndarray) -> float:
        """Return its probability on a text of the kept words, 0 without its own words."""
        start, end = self.place
        if not kept[start:end].all():
            return 0.0
        before = int(kept[:start].sum())
        return self._of(doc, before, before + end - start)

    def _of(self, doc: Doc, start: int, end: int) -> float:
        place = start, end, self.label
        # Include entities below min_confidence: otherwise a small drop would count as a missing
        # entity.
        sure = confidences(doc, self.pipe.name).get(place)
        if sure is not None:
            return sure
        return float(any((span.start, span.end, span.label_) == place for span in doc.ents))
