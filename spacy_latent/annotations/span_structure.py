"""The structure of a span, and its parts as they are read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class SpanStructure:
    """The structure of one span of tokens.

    start, end: token offsets in the doc.
    structure: name of the set that it was chosen from, such as "SpanningTree".
    kind: how ``decoded`` is to be read. "heads": for each token of the span its head, 0 for the
        root and i for the i-th token of the span, counted from 1. "tags": for each token its tag.
        "items": the chosen tokens. "spans": the first and the last token of each.
        "segments": the first token of each, the token after its last, and its label. "phrases": as
        "segments", but these may hold others, and need not cover the text. "arcs": head and
        modifier of each, counted as for "heads". "cells": a token of the span and one of the
        other span. "parts", and a kind of one's own that is like it: the indices of the chosen
        parts. Tokens count from 0 within their span, but for "heads" and "arcs". See
        :mod:`spacy_latent.kinds`.
    decoded: the best structure, int32.
    parts: ``(P, axes)`` int32, the parts that have a probability above the threshold, or None.
        They are as in ``decoded``; those of "tags" are [token, tag], of "heads" [head, modifier].
    probabilities: ``(P,)`` float32, or None.
    alternatives: other structures, decoded, with their weights; heaviest first.
    labels: names of the tags of "tags", or of the labels of arcs, or None. Tags of entities are
        "O", and B-, I-, L- and U- with a label.
    entity_probabilities: of the entities that the tags in ``decoded`` make, in order, ``(E,)``
        float32, or None.
    given: which of these entities were on the doc before, ``(E,)`` bool, or None for none of them.
    other_start, other_end: token offsets in the doc of the text that this span is aligned with;
        None but for "cells".
    counters: where the counters of the scorer are after each token, ``(tokens, K)`` float32; None
        for a scorer without.
    arc_labels: of labelled "heads" the place in ``labels`` of the label of each token's arc in
        ``decoded``, ``(tokens,)`` int32, or None.
    labelled_parts, labelled_probabilities: ``(Q, 3)`` int32, [head, modifier, label], those arcs
        with their labels that are more probable than the threshold, and ``(Q,)`` float32; or None.
    alternative_labels: as ``arc_labels``, of each of the alternatives.
    alternative_probabilities: for each of the alternatives the probabilities of its entities, as
        ``entity_probabilities``; empty where they are not known.
    possible: the set of entities that holds all of the text's with the coverage that the component
        was calibrated for, ``(C, 3)`` int32: first token, token after the last, and the number of
        the label's U tag; most probable first. None for a component without such a coverage.
    possible_probabilities: of these, ``(C,)`` float32, or None.
    min_confidence: entities less probable than this were left out of ``doc.ents``; None without
        such a threshold.
    entities_calibrated: whether the probabilities of entities were fitted to held-out text each by
        itself, which weights of alternatives and probabilities of tags were not: an entity may then
        be less probable than an alternative that has it.
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

    def __len__(self) -> int:
        return self.end - self.start


def probability_of_parts(
    parts: np.ndarray | None, probabilities: np.ndarray | None
) -> dict[tuple[int, ...], float] | None:
    """By part. None where the component stored none.

    parts, probabilities: as ``parts`` and ``probabilities`` of a :class:`SpanStructure`, or its
        ``labelled_parts`` and ``labelled_probabilities``.
    """
    if parts is None or probabilities is None:
        return None
    return {tuple(part): p for part, p in zip(parts.tolist(), probabilities.tolist())}


@dataclass(frozen=True)
class Arc:
    """An arc between tokens of a doc. head: token index, or None for the root. probability: None
    where none is stored."""

    head: int | None
    modifier: int
    probability: float | None


@dataclass(frozen=True)
class Dependency:
    """A labelled arc between tokens of a doc. head: token index, or None for the root. probability:
    of the arc with this label; None where none is stored."""

    head: int | None
    modifier: int
    label: str
    probability: float | None


@dataclass(frozen=True)
class Item:
    """A chosen token. token: index in the doc. probability: None where none is stored."""

    token: int
    probability: float | None


@dataclass(frozen=True)
class Bracket:
    """A span of a structure. start, end: tokens ``doc[start:end]``. probability: None where none is
    stored. label: number of that of a segment or phrase. name: of that label, where labels have
    names."""

    start: int
    end: int
    probability: float | None
    label: int | None = None
    name: str | None = None


@dataclass(frozen=True)
class Entity:
    """An entity. start, end: tokens ``doc[start:end]``. probability: of exactly this span with this
    label; None where none is stored. given: whether it was on the doc before, and the component had
    no say in it. below_min_confidence: whether it is less probable than the component's
    ``min_confidence``, and so was left out of ``doc.ents``."""

    start: int
    end: int
    label: str
    probability: float | None
    given: bool = False
    below_min_confidence: bool = False


@dataclass(frozen=True)
class Cell:
    """An aligned pair of words. source, target: token indices in the doc, of the first and the
    second text. probability: None where none is stored."""

    source: int
    target: int
    probability: float | None
