"""Annotation of a text by several sources, given its latent tags.

A source is a person, a list of names, a pattern or another model. Its reliability differs between
labels. At each token it writes a class, "O" or a label, and for a label a place, such as the first
or last token of an entity. The model draws both from distributions of the source, given the tag of
the token (Dawid and Skene 1979; for sequences as in Nguyen et al. 2017). These distributions are
learned together with the tagger, from expected counts over the last batches (Cappé and Moulines
2009) and a Dirichlet prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from thinc.api import Model

from spacy_latent.errors import LatentError, number_of

# Prefixes of tags, in the order of scheme_tags.
PLACES = "BILU"
# Means of the prior: probabilities that a source gives the label at an entity, that it gives
# nothing there, that it gives nothing outside of entities, and that it gives the right place.
RIGHT, NOTHING, RIGHT_OUTSIDE, RIGHT_PLACE = 0.7, 0.2, 0.97, 0.8
# Weight of the prior in tokens, for each label, for tokens outside, and for places. With a tenth of
# these weights, on texts with few entities, expectation maximization drifts away from the majority
# of the sources.
STRENGTH, STRENGTH_OUTSIDE, STRENGTH_PLACE = 200.0, 2_000.0, 200.0
# Number of remembered batches.
MEMORY = 50


@dataclass(frozen=True)
class Written:
    """Annotation of one text by one source.

    Attributes:
        classes: ``(n,)``, 0 for "O", −1 if the source's annotation is unknown, otherwise the number
            of the label plus one.
        places: ``(n,)``, index in PLACES, −1 without a label.
    """

    number: int
    classes: np.ndarray
    places: np.ndarray


@dataclass(frozen=True)
class SourceReliability:
    """Reliability of a source for a label, in tokens, under the tagger's posterior.

    Attributes:
        precision: share of tokens with the label, among the tokens to which the source gave it; NaN
            without any.
        recall: share of the tokens with the label to which the source gave it; NaN without any.
        tokens: number of tokens to which the source gave the label, in the remembered batches.
        confusions: for each label, and for "O", the share of the tokens with the label to which the
            source gave it; NaN without any.
        expected_tokens: expected number of tokens with the label in the texts of the source.
    """

    source: str
    label: str
    precision: float
    recall: float
    tokens: float
    confusions: dict[str, float]
    expected_tokens: float


@dataclass(frozen=True)
class SourceTotal:
    """Reliability of a source over all labels, in tokens, under the tagger's posterior.

    Attributes:
        precision: share of the tokens to which the source gave a label that have this label; NaN
            without any.
        recall: share of the tokens with a label to which the source gave this label; NaN without
            any.
        tokens: number of tokens to which the source gave a label, in the remembered batches.
    """

    source: str
    precision: float
    recall: float
    tokens: float


class TagSources:
    """Expected counts of the annotation of sources.

    Attributes:
        labels: ``(S, L + 1, L + 1)``: [source, class of the tag, class that was written].
        places: ``(S, 5, 4)``: [source, "O" or place of the tag, place that was written].
    """

    def __init__(self, labels: np.ndarray, places: np.ndarray) -> None:
        self.labels, self.places = labels, places

    @classmethod
    def empty(cls, sources: int, labels: int) -> TagSources:
        """Return counts of 0.

        Args:
            sources: number S of sources.
            labels: number L of labels.
        """
        return cls(np.zeros((sources, labels + 1, labels + 1)), np.zeros((sources, 5, 4)))

    def with_labels(self, count: int) -> TagSources:
        """Return a copy with zero counts for labels that were added."""
        wide = TagSources.empty(len(self.labels), count)
        known = self.labels.shape[1]
        wide.labels[:, :known, :known] = self.labels
        wide.places[:] = self.places
        return wide

    def log_likelihood(self, written: Written) -> np.ndarray:
        """Return the log-probability of the annotation given each tag, ``(n, K)``.

        Tags are "O" and four for each label.
        """
        count = self.labels.shape[1] - 1
        seen = self.labels[written.number] + _prior_of_labels(count)
        by_class = np.log(seen / seen.sum(1, keepdims=True))
        seen = self.places[written.number] + _prior_of_places()
        by_place = np.log(seen / seen.sum(1, keepdims=True))
        classes, places = _parts_of_tags(count)
        found = by_class[classes][:, written.classes].T
        found[written.classes < 0] = 0.0
        inside = written.classes > 0
        found[inside] += by_place[places][:, written.places[inside]].T
        return found

    def counted(self, written: Sequence[Written], posteriors: Sequence[np.ndarray]) -> TagSources:
        """Return the expected counts of a batch alone.

        Args:
            posteriors: for each annotation the probabilities of the text's tags, ``(n, K)``.
        """
        count = self.labels.shape[1] - 1
        own = TagSources.empty(len(self.labels), count)
        classes, places = _parts_of_tags(count)
        of_class, of_place = np.eye(count + 1)[classes], np.eye(5)[places]
        for one, shares in zip(written, posteriors):
            known = one.classes >= 0
            np.add.at(own.labels[one.number].T, one.classes[known], shares[known] @ of_class)
            inside = one.classes > 0
            np.add.at(own.places[one.number].T, one.places[inside], shares[inside] @ of_place)
        return own

    def learn(self, batch: TagSources) -> None:
        """Add the counts of a batch after decaying the earlier ones by 1 / MEMORY."""
        for own, more in ((self.labels, batch.labels), (self.places, batch.places)):
            own *= 1.0 - 1.0 / MEMORY
            own += more

    def reliability(self, sources: Sequence[str], labels: Sequence[str]) -> list[SourceReliability]:
        """Return a record for each source and label, with NaN for shares without tokens."""
        found = []
        for number, source in enumerate(sources):
            counts = self.labels[number]
            for place, label in enumerate(labels, 1):
                given, there = float(counts[:, place].sum()), float(counts[place].sum())
                precision = float(counts[place, place]) / given if given else float("nan")
                shares = counts[place] / there if there else np.full(len(counts), np.nan)
                confusions = dict(zip(["O", *labels], shares.tolist()))
                values = precision, confusions[label], given, confusions, there
                found.append(SourceReliability(source, label, *values))
        return found


def source_totals(found: Sequence[SourceReliability]) -> list[SourceTotal]:
    """Sum the reliability of each source over labels.

    Returns:
        A total for each source, in ascending order of its F1 of tokens. Sources without annotation
        in the remembered batches are last.
    """
    totals, scores = [], []
    for source in dict.fromkeys(one.source for one in found):
        own = [one for one in found if one.source == source]
        given, there = sum(one.tokens for one in own), sum(one.expected_tokens for one in own)
        # Precision is NaN if the source never gave the label.
        right = sum(one.precision * one.tokens for one in own if one.tokens)
        precision, recall = (right / of if of else float("nan") for of in (given, there))
        totals.append(SourceTotal(source, precision, recall, given))
        scores.append(2 * right / (given + there) if given + there else float("inf"))
    return [totals[i] for i in sorted(range(len(totals)), key=scores.__getitem__)]


def _prior_of_labels(count: int) -> np.ndarray:
    """Return the Dirichlet prior of the classes as counts, ``(L + 1, L + 1)``."""
    others = 1.0 - RIGHT - NOTHING
    mean = np.full((count + 1, count + 1), others / max(count - 1, 1))
    mean[0] = (1.0 - RIGHT_OUTSIDE) / max(count, 1)
    mean[:, 0] = NOTHING
    np.fill_diagonal(mean, RIGHT)
    mean[0, 0] = RIGHT_OUTSIDE
    mean /= mean.sum(1, keepdims=True)
    strength = np.full((count + 1, 1), STRENGTH)
    strength[0] = STRENGTH_OUTSIDE
    return strength * mean


def _prior_of_places() -> np.ndarray:
    """Return the Dirichlet prior of the places as counts, ``(5, 4)``."""
    mean = np.full((5, 4), (1.0 - RIGHT_PLACE) / 3)
    mean[0] = 0.25
    np.fill_diagonal(mean[1:], RIGHT_PLACE)
    return STRENGTH_PLACE * mean


def _parts_of_tags(labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the class and the place of each tag, ``(K,)`` each.

    The place is 0 for "O", otherwise the index in PLACES plus one.
    """
    classes = np.repeat(np.arange(1, labels + 1), 4)
    return np.append(0, classes), np.append(0, np.tile(np.arange(1, 5), labels))


# ---------------------------------------------------------------- on a model

_NAMES = ("source_labels", "source_places")
# Attribute of the model with the names of the sources.
_SOURCES = "sources"


def sources_of(model: Model, sources: Sequence[str], labels: int) -> TagSources:
    """Return the expected counts of the sources that a ``CrfTagger`` stores with its transitions.

    They are zero before training.

    Raises:
        LatentError: if the model has learned from other sources, or from these in another order.
    """
    table = model.get_ref("transitions")
    if not all(map(table.has_param, _NAMES)):
        return TagSources.empty(len(sources), labels)
    known = model.attrs[_SOURCES]
    arrays = [table.ops.to_numpy(table.get_param(name)).astype(np.float64) for name in _NAMES]
    if list(known) != list(sources):
        raise LatentError(
            f"The model has learned from {number_of(len(known), 'source')} of annotation, "
            f"{', '.join(known)}, and the component's evidence.sources names {', '.join(sources)}. "
            "Name the same sources in the same order, or train the component again."
        )
    return TagSources(*arrays).with_labels(labels)


def keep_sources(model: Model, sources: Sequence[str], found: TagSources | None) -> None:
    """Write names and counts of sources to the model, which saves them; None removes them."""
    table = model.get_ref("transitions")
    ops: Any = table.ops
    arrays = (None, None) if found is None else (found.labels, found.places)
    model.attrs[_SOURCES] = list(sources)
    for name, array in zip(_NAMES, arrays):
        if array is None:
            if name in table.param_names:
                table.set_param(name, None)
            continue
        table.set_param(name, ops.asarray(array, dtype="float32"))
        table.set_grad(name, ops.alloc(array.shape, dtype="float32"))


def add_counts(model: Model, sources: Sequence[str], known: TagSources, batch: TagSources) -> None:
    """Store the counts of a batch in place of gradients, until :func:`learn_counts`.

    Several batches may be stored before that, and several processes add up their counts.

    Args:
        sources: names of the sources.
        known: present counts, which are written to the model if it has none yet.
    """
    table = model.get_ref("transitions")
    if not all(map(table.has_param, _NAMES)):
        keep_sources(model, sources, known)
    ops: Any = table.ops
    for name, array in zip(_NAMES, (batch.labels, batch.places)):
        table.inc_grad(name, ops.asarray(array, dtype="float32"))


def learn_counts(model: Model, sources: Sequence[str]) -> TagSources | None:
    """Add the stored counts, and leave no gradient of them to an optimizer.

    Returns:
        The new counts. They must be written again after an optimizer, whose weight decay must not
        change them.
    """
    table = model.get_ref("transitions")
    if not all(map(table.has_grad, _NAMES)):
        return None
    to_numpy = table.ops.to_numpy
    known, batch = (
        TagSources(*(to_numpy(get(name)).astype(np.float64) for name in _NAMES))
        for get in (table.get_param, table.get_grad)
    )
    if batch.labels.any():
        known.learn(batch)
        keep_sources(model, sources, known)
    return known
