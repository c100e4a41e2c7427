"""Structure of a span, and the types of its parts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

# Least probability of a part in a calibrated set. With a smaller one, sets would contain nearly all
# parts.
LEAST_IN_SETS = 1e-5


@dataclass
class SpanStructure:
    """Structure of one span of tokens.

    Attributes:
        start, end: Token offsets in the doc.
        structure: Name of the set that the structure was chosen from, such as "SpanningTree".
        kind: Format of ``decoded``; see :mod:`spacy_latent.kinds`. Tokens are counted from 0 within
            their span, except in "heads" and "arcs".

            - "heads": the head of each token of the span; 0 for the root and i for the i-th token
              of the span, counted from 1.
            - "tags": the tag of each token.
            - "items": the chosen tokens.
            - "spans": the first and the last token of each span.
            - "segments": the first token of each segment, the token after its last, and its label.
            - "phrases": as "segments", but phrases may contain others and need not cover the text.
            - "arcs": head and modifier of each arc, counted as for "heads".
            - "cells": a token of the span and a token of the other span.
            - "parts", and custom kinds that are like it: the indices of the chosen parts.
        decoded: The best structure, int32.
        parts: ``(P, axes)`` int32, the parts with a probability above the threshold, or None. A
            parser also stores all parts of ``decoded``. The format is the format of ``decoded``,
            except [token, tag] for "tags" and [head, modifier] for "heads".
        probabilities: ``(P,)`` float32, the probabilities of ``parts``, or None.
        alternatives: Other structures, decoded, with their weights; the largest weight first.
        labels: Names of the tags of "tags", or of the labels of arcs, or None. Tags of entities are
            "O", and B-, I-, L- and U- followed by a label.
        entity_probabilities: ``(E,)`` float32, the probabilities of the entities that the tags in
            ``decoded`` form, in order, or None.
        given: ``(E,)`` bool, true for the entities that were on the doc before, or None if no
            entity was.
        other_start, other_end: Token offsets in the doc of the text that this span is aligned with;
            None except for "cells".
        counters: ``(tokens, K)`` float32, the values of the scorer's counters after each token;
            None for a scorer without counters.
        arc_labels: ``(tokens,)`` int32, for labelled "heads": the index in ``labels`` of the label
            of each token's arc in ``decoded``. None for other structures.
        labelled_parts: ``(Q, 3)`` int32, [head, modifier, label], the labelled arcs of ``decoded``
            and those with a probability above the threshold, or None.
        labelled_probabilities: ``(Q,)`` float32, the probabilities of ``labelled_parts``, or None.
        alternative_labels: The ``arc_labels`` of each alternative.
        alternative_probabilities: The ``entity_probabilities`` of each alternative; empty if they
            are not known.
        possible: ``(C, 3)`` int32, the calibrated set for the coverage of the component, the most
            probable first. An entity is [first token, token after the last, number of the label's U
            tag]. A labelled span is [first token, token after the last, number of its label]. An
            arc is [head, modifier, its most probable label], and each modifier has a set of its
            own. None for a component without a coverage.
        possible_probabilities: ``(C,)`` float32, the probabilities of ``possible``, or None.
        min_confidence: Entities less probable than this were left out of ``doc.ents``; None without
            such a threshold.
        entities_calibrated: True if the probabilities of entities were calibrated one by one on
            held-out text. Weights of alternatives and probabilities of tags were not calibrated. An
            entity may then be less probable than an alternative that has it.
        whole_probability: Probability that ``decoded`` is right as a whole: for a parser, that the
            bounds of the sentence and every head are right. None if it is not stored.
        labelled_whole_probability: Probability that every label of ``arc_labels`` is right as well,
            or None.
    """

    start: int
    end: int
    structure: str
    kind: str
    decoded: np.ndarray
    parts: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    alternatives: list[tuple[np.ndarray, float]] = field(default_factory=list)
    labels: tuple[str, ...] | None = None
    entity_probabilities: np.ndarray | None = None
    other_start: int | None = None
    other_end: int | None = None
    given: np.ndarray | None = None
    counters: np.ndarray | None = None
    arc_labels: np.ndarray | None = None
    labelled_parts: np.ndarray | None = None
    labelled_probabilities: np.ndarray | None = None
    alternative_labels: list[np.ndarray] = field(default_factory=list)
    alternative_probabilities: list[np.ndarray] = field(default_factory=list)
    possible: np.ndarray | None = None
    possible_probabilities: np.ndarray | None = None
    min_confidence: float | None = None
    entities_calibrated: bool = False
    whole_probability: float | None = None
    labelled_whole_probability: float | None = None

    def __len__(self) -> int:
        return self.end - self.start


def probability_of_parts(
    parts: np.ndarray | None, probabilities: np.ndarray | None
) -> dict[tuple[int, ...], float] | None:
    """Return the probabilities by part, or None if the component stored no probabilities.

    The arguments are fields of a :class:`SpanStructure`, for labelled arcs ``labelled_parts`` and
    ``labelled_probabilities``.
    """
    if parts is None or probabilities is None:
        return None
    return {tuple(part): p for part, p in zip(parts.tolist(), probabilities.tolist())}


# In the following classes, tokens are indices in the doc, and the probability is None if none is
# stored.


@dataclass(frozen=True)
class Arc:
    """Arc between tokens of a doc; the head is None for the root."""

    head: int | None
    modifier: int
    probability: float | None


@dataclass(frozen=True)
class Dependency:
    """Labelled arc between tokens of a doc, with the probability of both; see :class:`Arc`."""

    head: int | None
    modifier: int
    label: str
    probability: float | None


@dataclass(frozen=True)
class Item:
    """Chosen token of a doc."""

    token: int
    probability: float | None


@dataclass(frozen=True)
class Bracket:
    """Span of a structure.

    Attributes:
        start, end: The tokens ``doc[start:end]``.
        label: Number of the label of a segment or phrase; None for other spans.
        name: Name of the label, if labels have names.
    """

    start: int
    end: int
    probability: float | None
    label: int | None = None
    name: str | None = None


@dataclass(frozen=True)
class Entity:
    """Entity of a structure.

    Attributes:
        start, end: The tokens ``doc[start:end]``.
        probability: Probability of exactly this span with this label.
        given: True if the entity was on the doc before, so that the component did not choose it.
        below_min_confidence: True if the entity is less probable than the component's
            ``min_confidence`` and was therefore left out of ``doc.ents``.
    """

    start: int
    end: int
    label: str
    probability: float | None
    given: bool = False
    below_min_confidence: bool = False


@dataclass(frozen=True)
class Cell:
    """Aligned pair of tokens of a doc, in the first text and in the second."""

    source: int
    target: int
    probability: float | None
