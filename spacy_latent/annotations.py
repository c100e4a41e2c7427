"""What a latent component writes on a Doc, and how it is read: ``doc._.latent``.

``doc._.latent`` maps the name of each latent component to a :class:`LatentAnnotation`. The data are
plain Python and NumPy in ``doc.user_data``, one entry per span, under the keys that spaCy uses for
span attributes. They therefore survive ``Doc.to_bytes``, ``DocBin(store_user_data=True)``,
``nlp.pipe(n_process=2)`` and ``Doc.from_docs``, and ``Span.as_doc(copy_user_data=True)`` for the
structures that lie wholly inside the span. Without ``copy_user_data`` or ``store_user_data`` spaCy
drops them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import compress
from typing import Any

import numpy as np
import srsly
from spacy.attrs import IDX, LENGTH
from spacy.tokens import Doc, Span, SpanGroup

from spacy_latent.errors import LatentError
from spacy_latent.kinds import find_kind, known_kinds

EXTENSION = "latent"
# Of the keys in doc.user_data. Another than that of the extension: that is the name of whatever a
# user registers for spans, and what Doc.to_json(underscore=["latent"]) writes of spans.
STORED = "spacy_latent"
# Where a component has put no structure: the span from character 0 to 0.
EMPTY = ("._.", STORED, 0, 0)
# What components say that write tags which make entities.
ENTITIES = "entities"


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

    def __len__(self) -> int:
        return self.end - self.start


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


# What components may be asked to write; see LatentEncoder.
LEVELS = ("none", "map", "probabilities")

# How displaCy draws what an accessor gives; it draws nothing else.
DISPLACY_STYLES = {"arcs": "dep", "items": "ent", "tags": "span", "brackets": "span"}


class LatentAnnotation:
    """The structures that one component put on a doc.

    spans: one :class:`SpanStructure` per span, in the order of the text.
    """

    def __init__(self, doc: Doc, component: str, spans: Sequence[SpanStructure]) -> None:
        self.doc = doc
        self.component = component
        self.spans = list(spans)

    def __repr__(self) -> str:
        return f"LatentAnnotation(component={self.component!r}, spans={len(self.spans)})"

    @property
    def heads(self) -> np.ndarray:
        """Index in the doc of each token's head, ``(len(doc),)`` int32. A root is its own head, as
        ``token.head`` has it; −1 where no structure covers the token."""
        heads = np.full(len(self.doc), -1, dtype="int32")
        for span in self.spans:
            _check_kind(span, "heads")
            heads[span.start : span.end] = _doc_heads(span, span.decoded)
        return heads

    @property
    def tags(self) -> np.ndarray:
        """The tag of each token, ``(len(doc),)`` int32; −1 where no structure covers the token."""
        tags = np.full(len(self.doc), -1, dtype="int32")
        for span in self.spans:
            _check_kind(span, "tags")
            tags[span.start : span.end] = span.decoded
        return tags

    @property
    def counters(self) -> np.ndarray:
        """Where the scorer's counters are after each token, ``(len(doc), K)`` float32; NaN where no
        structure covers the token. Raises LatentError if none are stored."""
        stored = [span.counters for span in self.spans if span.counters is not None]
        if len(stored) < len(self.spans) or not stored:
            raise LatentError(no_counters_message(self.component))
        counters = np.full((len(self.doc), stored[0].shape[1]), np.nan, dtype="float32")
        for span in self.spans:
            counters[span.start : span.end] = span.counters
        return counters

    def arcs(self, threshold: float | None = None, alternative: int | None = None) -> list[Arc]:
        """Arcs of the best trees, or of all arcs at least ``threshold`` probable. Their probability
        is None where the component stored none (``annotate = "map"``).

        threshold: needs probabilities (``annotate = "probabilities"``).
        alternative: take this one of the alternatives instead; spans that have fewer than others
            have no arcs in it.

        Raises LatentError for a threshold outside of [0, 1] or without stored probabilities, and
        for an alternative that no span has.
        """
        self._check(threshold, alternative)
        return [arc for span in self.spans for arc in self._arcs(span, threshold, alternative)]

    def _arcs(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> list[Arc]:
        _check_kind(span, "arcs")
        shift = span.start - 1
        return [
            Arc(None if h == 0 else h + shift, m + shift, p)
            for (h, m), p in self._chosen(span, threshold, alternative)
        ]

    def _check(self, threshold: float | None, alternative: int | None) -> None:
        """Refuse what would read as if nothing were so probable, or all alternatives agreed."""
        if threshold is not None and not 0 <= threshold <= 1:
            raise LatentError(f"threshold is {threshold}; expected a probability, from 0 to 1.")
        if alternative is None or not self.spans:
            return
        count = max(len(span.alternatives) for span in self.spans)
        if 0 <= alternative < count:
            return
        numbers = f" (0 to {count - 1})" if count > 1 else " (0)" if count else ""
        are = "alternative is" if count == 1 else "alternatives are"
        raise LatentError(
            f"alternative is {alternative}, and of {self.component!r} {count or 'no'} {are} stored"
            f"{numbers}. Give one that is there, or set `alternatives` in the component's config "
            "or in inspect_docs to more; of a short text there may be no more structures."
        )

    def dependencies(
        self, threshold: float | None = None, alternative: int | None = None
    ) -> list[Dependency]:
        """The labelled arcs of the best trees, or all at least ``threshold`` probable; as
        :meth:`arcs`. With ``alternative`` the probability is that of the arc with its label under
        all trees.

        Raises LatentError where arcs have no labels.
        """
        self._check(threshold, alternative)
        return [
            arc for span in self.spans for arc in self._dependencies(span, threshold, alternative)
        ]

    def _dependencies(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> list[Dependency]:
        _check_kind(span, "arcs", "dependencies")
        if span.arc_labels is None or span.labels is None:
            raise LatentError(
                f"The arcs of {self.component!r} have no labels. A latent_parser gives labels; "
                "without them arcs are in doc._.latent[...].arcs()."
            )
        shift, names = span.start - 1, span.labels
        return [
            Dependency(None if h == 0 else h + shift, m + shift, names[label], p)
            for (h, m, label), p in self._labelled(span, threshold, alternative)
        ]

    def _labelled(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> list[tuple[tuple[int, ...], float | None]]:
        """Places (head, modifier, label) within the span, with their probabilities."""
        known = {}
        if span.labelled_parts is not None and span.labelled_probabilities is not None:
            pairs = zip(span.labelled_parts.tolist(), span.labelled_probabilities.tolist())
            known = {tuple(part): p for part, p in pairs}
        if threshold is not None and alternative is None:
            if span.labelled_parts is None:
                raise LatentError(no_probabilities_message(self.component))
            return [(part, p) for part, p in known.items() if p >= threshold]
        heads, labels = span.decoded, span.arc_labels
        if alternative is not None:
            if alternative >= len(span.alternative_labels):
                return []
            heads = span.alternatives[alternative][0]
            labels = span.alternative_labels[alternative]
        assert labels is not None
        otherwise = None if span.labelled_parts is None else 0.0
        places = zip(heads.tolist(), range(1, len(heads) + 1), labels.tolist())
        return [(place, known.get(place, otherwise)) for place in places]

    def items(self, threshold: float | None = None, alternative: int | None = None) -> list[Item]:
        """The chosen tokens, or all tokens at least ``threshold`` probable; as :meth:`arcs`."""
        self._check(threshold, alternative)
        return [item for span in self.spans for item in self._items(span, threshold, alternative)]

    def _items(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> list[Item]:
        _check_kind(span, "items")
        chosen = self._chosen(span, threshold, alternative)
        return [Item(span.start + i, p) for (i,), p in chosen]

    def entities(self, alternative: int | None = None) -> list[Entity]:
        """The entities that named tags make: of the best sequences, or of this alternative.
        Raises LatentError for an alternative that no span has."""
        self._check(None, alternative)
        found = []
        for span in self.spans:
            _check_kind(span, "entities")
            if span.labels is None:
                raise LatentError(
                    f"The tags of {self.component!r} have no names, so they make no entities. They "
                    "are in doc._.latent[...].tags."
                )
            tags, probabilities = span.decoded, span.entity_probabilities
            if alternative is not None:
                if alternative >= len(span.alternatives):
                    continue
                tags, _ = span.alternatives[alternative]
                known = span.alternative_probabilities
                probabilities = known[alternative] if known else None
            given = set()
            if span.given is not None:
                given = set(compress(entities_of(span.decoded, span.labels), span.given))
            for i, (start, end, label) in enumerate(entities_of(tags, span.labels)):
                p = None if probabilities is None else float(probabilities[i])
                here = (start, end, label) in given
                place = span.start + start, span.start + end, label
                found.append(Entity(*place, p, here, not here and _is_below(span, p)))
        return found

    def differences(self, alternative: int) -> tuple[list[Entity], list[Entity]]:
        """What an alternative of named tags says other than the first one: the entities that only
        the first one has, and those that only this one has. Raises LatentError for an alternative
        that no span has."""
        self._check(None, alternative)
        gone: list[Entity] = []
        new: list[Entity] = []
        for span in self.spans:
            _check_kind(span, "entities")
            if alternative >= len(span.alternatives):
                continue
            alone = LatentAnnotation(self.doc, self.component, [span])
            first, other = (
                {(e.start, e.end, e.label): e for e in alone.entities(number)}
                for number in (0, alternative)
            )
            gone += [entity for place, entity in first.items() if place not in other]
            new += [entity for place, entity in other.items() if place not in first]
        return gone, new

    def possible_entities(self) -> list[Entity]:
        """The set of entities that holds all of a text's, in as many texts with entities as the
        coverage says that ``spacy latent calibrate --coverage`` was given; most probable first in
        each span. They may overlap. Raises LatentError where none is stored."""
        found = []
        for span in self.spans:
            _check_kind(span, "entities")
            if span.possible is None or span.possible_probabilities is None or not span.labels:
                raise LatentError(
                    f"{self.component!r} stored no set of possible entities. Calibrate it with "
                    "'spacy latent calibrate MODEL DEV OUT --coverage 0.9', and set annotate = "
                    '"probabilities".'
                )
            given = {(e.start, e.end, e.label) for e in self.entities() if e.given}
            rows = zip(span.possible.tolist(), span.possible_probabilities.tolist())
            for (first, last, tag), p in rows:
                place = span.start + first, span.start + last, span.labels[tag][2:]
                here = place in given
                found.append(Entity(*place, p, here, not here and _is_below(span, p)))
        return found

    def brackets(
        self, threshold: float | None = None, alternative: int | None = None
    ) -> list[Bracket]:
        """The spans or segments of the best structures, or all at least ``threshold`` probable; as
        :meth:`arcs`."""
        self._check(threshold, alternative)
        return [b for span in self.spans for b in self._brackets(span, threshold, alternative)]

    def _brackets(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> list[Bracket]:
        _check_kind(span, "brackets", "spans")
        found = []
        for (first, last, *label), p in self._chosen(span, threshold, alternative):
            end = last if label else last + 1
            number = label[0] if label else None
            name = None if span.labels is None or number is None else span.labels[number]
            found.append(Bracket(span.start + first, span.start + end, p, number, name))
        return found

    def cells(self, threshold: float | None = None, alternative: int | None = None) -> list[Cell]:
        """The aligned pairs of words, or all pairs at least ``threshold`` probable; as
        :meth:`arcs`."""
        self._check(threshold, alternative)
        found = []
        for span in self.spans:
            _check_kind(span, "cells")
            if span.other_start is None:
                raise LatentError(
                    f"{span.structure} aligns tokens {span.start} to {span.end} with a text that "
                    "is not known. Set other_start and other_end when writing the structure."
                )
            for (i, j), p in self._chosen(span, threshold, alternative):
                found.append(Cell(span.start + i, span.other_start + j, p))
        return found

    @property
    def displacy_style(self) -> str:
        """Which style of displaCy :meth:`to_displacy` is for: "dep", "ent" or "span".

        Raises LatentError where displaCy has no drawing of the structure.
        """
        styles = [_displacy_style(span) for span in self.spans]
        return styles[0] if styles else "dep"

    def to_displacy(
        self, threshold: float | None = None, alternative: int | None = None
    ) -> list[dict[str, object]]:
        """One drawing per span, for ``displacy.render(..., style=..., manual=True)`` with
        :attr:`displacy_style`: "dep" for trees, "ent" for items, "span" for tags, spans and
        segments. Spans of one token are left out, which trees have over every token.

        The root of a tree is marked by the tag "root"; probabilities, where there are any, label
        the parts. For the arguments see :meth:`arcs`.
        """
        self._check(threshold, alternative)
        drawings: list[dict[str, object]] = []
        for span in self.spans:
            style = _displacy_style(span)
            if style == "dep":
                drawings.append(self._draw_arcs(span, threshold, alternative))
            elif style == "ent":
                drawings.append(self._draw_items(span, threshold, alternative))
            else:
                drawings.append(self._draw_spans(span, threshold, alternative))
        return drawings

    # displaCy escapes the text of a word, and nothing else; what is not text below is made of
    # numbers and of names of tags.

    def _draw_arcs(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> dict[str, object]:
        arcs: Sequence[Arc | Dependency] = self._arcs(span, threshold, alternative)
        if span.arc_labels is not None:
            arcs = self._dependencies(span, threshold, alternative)
        roots = {arc.modifier for arc in arcs if arc.head is None}
        words = [
            {"text": _visible(token.text), "tag": "root" if token.i in roots else ""}
            for token in self.doc[span.start : span.end]
        ]
        drawn = [
            {
                "start": min(arc.head, arc.modifier) - span.start,
                "end": max(arc.head, arc.modifier) - span.start,
                "label": _arc_label(arc),
                "dir": "left" if arc.modifier < arc.head else "right",
            }
            for arc in arcs
            if arc.head is not None and arc.head != arc.modifier
        ]
        return {"words": words, "arcs": drawn}

    def _draw_items(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> dict[str, object]:
        tokens = self.doc[span.start : span.end]
        begin = tokens.start_char
        entities = []
        for item in self._items(span, threshold, alternative):
            token = self.doc[item.token]
            place = {"start": token.idx - begin, "end": token.idx + len(token) - begin}
            entities.append({**place, "label": _label(span, item.probability)})
        return {"text": tokens.text, "ents": entities}

    def _draw_spans(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> dict[str, object]:
        if "brackets" in find_kind(span.kind).accessors:
            drawn = [
                (b.start - span.start, b.end - span.start, _label(span, b.probability, b.label))
                for b in self._brackets(span, threshold, alternative)
                if b.label is not None or b.end > b.start + 1
            ]
        else:
            drawn = [
                (i, i + 1, _label(span, p, tag))
                for (i, tag), p in self._chosen(span, threshold, alternative)
            ]
        return {
            "tokens": [_visible(token.text) for token in self.doc[span.start : span.end]],
            "spans": [
                {"start_token": start, "end_token": end, "label": label}
                for start, end, label in drawn
            ],
        }

    def _chosen(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> list[tuple[tuple[int, ...], float | None]]:
        """Indices of parts within the span, with their probabilities: 0 where that is below the
        threshold that the component stores them from, None where it stored none."""
        known = {}
        if span.parts is not None and span.probabilities is not None:
            pairs = zip(span.parts.tolist(), span.probabilities.tolist())
            known = {tuple(part): p for part, p in pairs}
        if threshold is not None and alternative is None:
            if span.probabilities is None:
                raise LatentError(no_probabilities_message(self.component))
            return [(part, p) for part, p in known.items() if p >= threshold]
        decoded = span.decoded
        if alternative is not None:
            if alternative >= len(span.alternatives):
                return []
            decoded = span.alternatives[alternative][0]
        otherwise = None if span.probabilities is None else 0.0
        chosen = find_kind(span.kind).parts(decoded)
        return [(part, known.get(part, otherwise)) for part in chosen]


def no_probabilities_message(component: str) -> str:
    return (
        f"A threshold needs probabilities, and {component!r} stored none. Ask a trained pipeline "
        "for them by inspect_docs(nlp, docs) of spacy_latent.pipeline.latent_encoder, set "
        'annotate = "probabilities" in the component\'s config, or leave the threshold out.'
    )


def no_counters_message(component: str) -> str:
    return (
        f"No counters of {component!r} are stored. They need a scorer that counts, such as "
        'spacy-latent.CounterScorer.v1, and annotate = "probabilities" in the component\'s config.'
    )


def names_entities(labels: Sequence[str] | None) -> bool:
    """Whether tags of these names make entities, by the BILUO scheme."""
    if labels is None or "O" not in labels:
        return False
    return all(
        name == "O" or (name[:2] in ("B-", "I-", "L-", "U-") and name[2:]) for name in labels
    )


def entities_of(tags: np.ndarray, labels: Sequence[str]) -> list[tuple[int, int, str]]:
    """(start, end, label) of the entities in a sequence of tags with BILUO names. Raises
    LatentError for other names."""
    if not names_entities(labels):
        raise LatentError(
            f"Tags named {', '.join(labels[:5])} make no entities; expected 'O', and labels with "
            "B-, I-, L- and U- before them."
        )
    found, start = [], 0
    for i in np.flatnonzero(np.asarray(tags) != labels.index("O")).tolist():
        prefix, label = labels[int(tags[i])].split("-", 1)
        if prefix in "BU":
            start = i
        if prefix in "LU":
            found.append((start, i + 1, label))
    return found


def _check_kind(span: SpanStructure, accessor: str, wanted: str = "") -> None:
    """wanted: what the accessor gives, if it is not called so."""
    accessors = find_kind(span.kind).accessors
    if accessor in accessors:
        return
    there = "doc._.latent[...].spans[i].decoded"
    if accessors:
        is_property = isinstance(getattr(LatentAnnotation, accessors[0]), property)
        there = f"doc._.latent[...].{accessors[0]}{'' if is_property else '()'}"
    wanted = wanted or accessor
    tree = "is not a dependency tree, so it " if wanted == "heads" else ""
    raise LatentError(
        f"{span.structure} {tree}has no {wanted}: its kind is {span.kind!r}. It is in {there}."
    )


def _is_below(span: SpanStructure, probability: float | None) -> bool:
    least = span.min_confidence
    return least is not None and probability is not None and probability < least


def _displacy_style(span: SpanStructure) -> str:
    style = _style_of(find_kind(span.kind).accessors)
    if not style:
        drawn = [kind.name for kind in known_kinds() if _style_of(kind.accessors)]
        raise LatentError(
            f"displaCy has no drawing of {span.structure}: its kind is {span.kind!r}, and drawings "
            f"are of {', '.join(drawn)}. It is in doc._.latent[...].spans[i].decoded."
        )
    return style


def _style_of(accessors: Sequence[str]) -> str:
    """Empty where displaCy draws nothing that these give."""
    return next((DISPLACY_STYLES[name] for name in accessors if name in DISPLACY_STYLES), "")


def _label(span: SpanStructure, probability: float | None, label: int | None = None) -> str:
    shown = []
    if label is not None:
        # displaCy does not escape it.
        shown.append(str(label) if span.labels is None else escape(span.labels[label]))
    if probability is not None:
        shown.append(f"{probability:.2f}")
    return " ".join(shown)


def _arc_label(arc: Arc | Dependency) -> str:
    shown = [escape(arc.label)] if isinstance(arc, Dependency) else []
    if arc.probability is not None:
        shown.append(f"{arc.probability:.2f}")
    return " ".join(shown)


def _doc_heads(span: SpanStructure, heads: np.ndarray) -> np.ndarray:
    own = np.arange(span.start, span.end)
    return np.where(heads == 0, own, heads - 1 + span.start)


def _visible(text: str) -> str:
    """displaCy draws nothing for white space; show that there is a token."""
    return text if text.strip() else "␣"


class DocAnnotations(Mapping[str, LatentAnnotation]):
    """``doc._.latent``: annotations by the name of the component."""

    def __init__(self, doc: Doc) -> None:
        self.doc = doc
        self._spans = _read(doc)

    def __getitem__(self, component: str) -> LatentAnnotation:
        if component not in self._spans:
            there = ", ".join(repr(name) for name in sorted(self._spans)) or "nothing"
            raise KeyError(f"No latent structure of {component!r} on this doc; it has {there}.")
        return LatentAnnotation(self.doc, component, self._spans[component])

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __json__(self) -> str:
        """For srsly, and so for ``doc.to_json(underscore=["latent"])`` and what writes that: as
        :func:`to_json`."""
        return srsly.json_dumps(to_json(self.doc, self))

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: {value!r}' for name, value in self.items())}}}"


def check_settings(
    name: str, annotate: str, threshold: float, alternatives: int, setting: str = "threshold"
) -> None:
    """Refuse what a component of this name cannot write.

    setting: what the component calls ``threshold``; where that is another number, an error about
        "threshold" would be looked for in the wrong line of a config.
    """
    if annotate not in LEVELS:
        raise LatentError(f"{name}: annotate is {annotate!r}; expected one of {', '.join(LEVELS)}.")
    if not 0 <= threshold <= 1:
        raise LatentError(f"{name}: {setting} is {threshold}; expected a number in [0, 1].")
    if alternatives < 0:
        raise LatentError(f"{name}: alternatives is {alternatives}; expected a number >= 0.")


def write(doc: Doc, component: str, spans: Sequence[SpanStructure]) -> None:
    """Replace what ``component`` has written on ``doc``."""
    user_data: dict[Any, Any] = doc.user_data
    idx, length = doc.to_array([IDX, LENGTH]).astype("int64").T
    for key, value in list(user_data.items()):
        if _is_ours(key) and component in value:
            rest = {name: record for name, record in value.items() if name != component}
            if rest:
                user_data[key] = rest
            else:
                del user_data[key]
    if not spans:
        # So that a loop over docs finds an annotation on those with nothing to choose from, too.
        user_data[EMPTY] = {**user_data.get(EMPTY, {}), component: {}}
    for span in spans:
        first, last = doc[span.start], doc[span.end - 1]
        key = ("._.", STORED, first.idx, last.idx + len(last))
        record = _record_of(span, doc, idx, length)
        user_data[key] = {**user_data.get(key, {}), component: record}


def _record_of(
    span: SpanStructure, doc: Doc, idx: np.ndarray, length: np.ndarray
) -> dict[str, Any]:
    """What is stored of a structure; :func:`_structure_of` reads it. idx, length: of each token of
    the doc where it begins, and how many characters it has."""
    tokens = slice(span.start, span.end)
    record: dict[str, Any] = {
        "structure": span.structure,
        "kind": span.kind,
        "tokens": len(span),
        "places": _places(idx[tokens], length[tokens]),
        "decoded": np.array(span.decoded, dtype="int32"),
    }
    if span.parts is not None and span.probabilities is not None:
        record["parts"] = np.array(span.parts, dtype="int32")
        record["probabilities"] = np.array(span.probabilities, dtype="float32")
    if span.counters is not None:
        record["counters"] = np.array(span.counters, dtype="float32")
    if span.labels is not None:
        record["labels"] = list(span.labels)
    if span.entity_probabilities is not None:
        record["entity_probabilities"] = np.array(span.entity_probabilities, dtype="float32")
    if span.arc_labels is not None:
        record["arc_labels"] = np.array(span.arc_labels, dtype="int32")
    if span.labelled_parts is not None and span.labelled_probabilities is not None:
        record["labelled_parts"] = np.array(span.labelled_parts, dtype="int32")
        own = np.array(span.labelled_probabilities, dtype="float32")
        record["labelled_probabilities"] = own
    if span.alternative_labels:
        record["alternative_labels"] = [
            np.array(labels, dtype="int32") for labels in span.alternative_labels
        ]
    if span.given is not None and span.given.any():
        record["given"] = np.array(span.given, dtype="bool")
    if span.alternatives:
        record["alternatives"] = [
            [np.array(decoded, dtype="int32"), float(weight)]
            for decoded, weight in span.alternatives
        ]
    if span.alternative_probabilities:
        record["alternative_probabilities"] = [
            np.array(part, dtype="float32") for part in span.alternative_probabilities
        ]
    if span.possible is not None and span.possible_probabilities is not None:
        record["possible"] = np.array(span.possible, dtype="int32")
        record["possible_probabilities"] = np.array(span.possible_probabilities, "float32")
    if span.min_confidence is not None:
        record["min_confidence"] = float(span.min_confidence)
    if span.other_start is not None and span.other_end is not None:
        # Relative to the span: the keys of user_data are what spaCy moves with the tokens.
        other = doc[span.other_start : span.other_end]
        start = doc[span.start].idx
        bounds = [other.start_char - start, other.end_char - start]
        its = slice(other.start, other.end)
        record["other"] = [*bounds, len(other), _places(idx[its], length[its])]
    return record


def _structure_of(
    record: dict[str, Any], start: int, end: int, other_start: int | None, other_end: int | None
) -> SpanStructure:
    """What :func:`_record_of` has stored, for the tokens that it is of now."""
    return SpanStructure(
        start,
        end,
        record["structure"],
        record["kind"],
        record["decoded"],
        parts=record.get("parts"),
        probabilities=record.get("probabilities"),
        alternatives=[(decoded, weight) for decoded, weight in record.get("alternatives", [])],
        labels=tuple(record["labels"]) if "labels" in record else None,
        entity_probabilities=record.get("entity_probabilities"),
        other_start=other_start,
        other_end=other_end,
        given=record.get("given"),
        counters=record.get("counters"),
        arc_labels=record.get("arc_labels"),
        labelled_parts=record.get("labelled_parts"),
        labelled_probabilities=record.get("labelled_probabilities"),
        alternative_labels=list(record.get("alternative_labels", [])),
        alternative_probabilities=list(record.get("alternative_probabilities", [])),
        possible=record.get("possible"),
        possible_probabilities=record.get("possible_probabilities"),
        min_confidence=record.get("min_confidence"),
    )


def write_spans(doc: Doc, key: str, weights: Sequence[float] | np.ndarray) -> None:
    """Replace ``doc.spans[key]`` by the runs of tokens whose weight is not 0, ``(len(doc),)``, with
    the key as their label, and their mean weights as ``attrs["scores"]``, float32."""
    weights = np.asarray(weights, dtype="float32")
    found = runs(weights)
    scores = np.array([weights[start:end].mean() for start, end in found], dtype="float32")
    spans = [Span(doc, start, end, key) for start, end in found]
    doc.spans[key] = SpanGroup(doc, name=key, attrs={"scores": scores}, spans=spans)


def runs(chosen: Sequence[float] | np.ndarray) -> list[tuple[int, int]]:
    """(start, end) of each longest run of entries that are not 0."""
    edges = np.diff(np.concatenate([[0], np.asarray(chosen) != 0, [0]]).astype("int8"))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return list(zip(starts.tolist(), ends.tolist()))


def _is_ours(key: Any) -> bool:
    return (
        isinstance(key, tuple)
        and len(key) == 4
        and key[:2] == ("._.", STORED)
        and key[2] is not None
        and key[3] is not None
    )


def _places(idx: np.ndarray, length: np.ndarray) -> int:
    """A number that is another one where tokens begin and end elsewhere, counted from the first."""
    places = np.empty((2, len(idx)), dtype="<i4")
    np.subtract(idx, idx[:1], out=places[0], casting="unsafe")
    places[1] = length
    return zlib.crc32(places.tobytes())


def _read(doc: Doc) -> dict[str, list[SpanStructure]]:
    user_data: dict[Any, Any] = doc.user_data
    keys = sorted(key for key in user_data if _is_ours(key))
    if not keys:
        return {}
    # Not over the tokens: it would make an object of each.
    idx, length = doc.to_array([IDX, LENGTH]).astype("int64").T
    starts = {place: i for i, place in enumerate(idx.tolist())}
    ends = {place: i for i, place in enumerate((idx + length).tolist(), 1)}
    found: dict[str, list[SpanStructure]] = {}
    for key in keys:
        if key[2] == key[3]:
            found.update({component: found.get(component, []) for component in user_data[key]})
            continue
        start, end = starts.get(key[2]), ends.get(key[3])
        if start is None or end is None or start >= end:
            continue
        for component, record in user_data[key].items():
            # Tokens merged or split since then: the structure is of other tokens, even where there
            # are as many.
            if record["tokens"] != end - start:
                continue
            if record["places"] != _places(idx[start:end], length[start:end]):
                continue
            other_start = other_end = None
            if "other" in record:
                first, last, tokens, places = record["other"]
                other_start, other_end = starts.get(key[2] + first), ends.get(key[2] + last)
                if other_start is None or other_end is None or other_end - other_start != tokens:
                    continue
                its = slice(other_start, other_end)
                if places != _places(idx[its], length[its]):
                    continue
            structure = _structure_of(record, start, end, other_start, other_end)
            found.setdefault(component, []).append(structure)
    return found


def register_extension() -> None:
    """Make ``doc._.latent`` available. Importing this module does it."""
    Doc.set_extension(EXTENSION, getter=DocAnnotations, force=True)


register_extension()


def to_json(
    doc: Doc, components: Iterable[str], kinds: Mapping[str, str] | None = None
) -> dict[str, dict[str, object]]:
    """The structures of a doc by component; indices of tokens are those of the doc.

    Trees have heads, the index of each token's head, its own for a root, and arcs, [head, modifier,
    probability], where the head of a root is null, and dependencies, [head, modifier, label,
    probability], where arcs are labelled; tags have tags, and entities, [start, end,
    label, probability], where their names make some, with possible ones where the component was
    calibrated for a coverage, and in each alternative those that it has not of the first one
    ("without") and those that only it has ("with"), and each span has the
    min_confidence of the component, where that leaves less probable ones out of ``doc.ents``;
    items have items, [token, probability]; pairs of words have cells, [token of the first text,
    token of the second, probability]; spans have brackets, [start, end, probability], and segments
    and phrases their label at the end of these. Probabilities that are not stored are null. All
    have the decoded structure and alternatives of
    each span, as in :class:`spacy_latent.annotations.SpanStructure`. A text without tokens has the
    same keys, with nothing in their lists.

    kinds: of what components write, by the names that it is stored under; for texts without
        tokens.
    """
    found: dict[str, dict[str, object]] = {}
    for name in components:
        if name not in doc._.latent:
            continue
        annotation = doc._.latent[name]
        stored = (kinds or {}).get(name, "parts")
        here = {span.kind for span in annotation.spans} or {
            "tags" if stored == ENTITIES else stored
        }
        given = set.intersection(*(set(find_kind(kind).accessors) for kind in here))
        entry: dict[str, object] = {}
        if "heads" in given:
            entry["heads"] = annotation.heads.tolist()
        if "arcs" in given:
            arcs = annotation.arcs()
            entry["arcs"] = [[arc.head, arc.modifier, _rounded(arc.probability)] for arc in arcs]
            if annotation.spans and all(s.arc_labels is not None for s in annotation.spans):
                entry["dependencies"] = [
                    [arc.head, arc.modifier, arc.label, _rounded(arc.probability)]
                    for arc in annotation.dependencies()
                ]
        if "tags" in given:
            entry["tags"] = annotation.tags.tolist()
            named = [names_entities(span.labels) for span in annotation.spans]
            if all(named or [stored == ENTITIES]):
                entry["entities"] = [_entity(e) for e in annotation.entities()]
                if annotation.spans and all(s.possible is not None for s in annotation.spans):
                    entry["possible"] = [_entity(e) for e in annotation.possible_entities()]
        if "cells" in given:
            cells = annotation.cells()
            entry["cells"] = [[c.source, c.target, _rounded(c.probability)] for c in cells]
        if "items" in given:
            items = annotation.items()
            entry["items"] = [[item.token, _rounded(item.probability)] for item in items]
        if "brackets" in given:
            entry["brackets"] = [
                [b.start, b.end, _rounded(b.probability)]
                + ([] if b.label is None else [b.name or b.label])
                for b in annotation.brackets()
            ]
        entry["spans"] = [
            {
                "start": span.start,
                "end": span.end,
                "structure": span.structure,
                "kind": span.kind,
                "decoded": span.decoded.tolist(),
                **({} if span.min_confidence is None else {"min_confidence": span.min_confidence}),
                "alternatives": [
                    {
                        span.kind: decoded.tolist(),
                        "weight": round(weight, 4),
                        **_differences(doc, name, span, number),
                    }
                    for number, (decoded, weight) in enumerate(span.alternatives)
                ],
            }
            for span in annotation.spans
        ]
        found[name] = entry
    return found


def _rounded(probability: float | None) -> float | None:
    return None if probability is None else round(probability, 4)


def _entity(entity: Entity) -> list[Any]:
    return [entity.start, entity.end, entity.label, _rounded(entity.probability)]


def _differences(doc: Doc, name: str, span: SpanStructure, number: int) -> dict[str, Any]:
    if span.kind != "tags" or not names_entities(span.labels):
        return {}
    gone, new = LatentAnnotation(doc, name, [span]).differences(number)
    return {"without": [_entity(e) for e in gone], "with": [_entity(e) for e in new]}


def set_heads(doc: Doc, spans: Sequence[SpanStructure], component: str) -> None:
    """Write trees to ``token.head`` and ``token.dep_`` of a doc that has no parse.

    The dependency label is "latent", and "ROOT" at the root of a span. Further roots of a span are
    attached to the first with the label "latent-root", because spaCy would start a sentence at each
    root. Each span becomes a sentence.

    Raises LatentError if the doc has been parsed by something else.
    """
    if not spans:
        return
    if doc.has_annotation("DEP") and not {token.dep_ for token in doc} <= {"", *_OUR_LABELS}:
        raise LatentError(
            f"{component}: set_heads would overwrite the dependency parse that is on the doc. "
            "Set set_heads = false, or remove the parser from the pipeline."
        )
    heads, labels = list(range(len(doc))), [""] * len(doc)
    for span in spans:
        if "heads" not in find_kind(span.kind).accessors:
            raise LatentError(f"{component}: set_heads needs trees, not {span.structure}.")
        first_root = None
        for modifier, head in enumerate(span.decoded.tolist()):
            if head:
                heads[span.start + modifier] = span.start + head - 1
                labels[span.start + modifier] = "latent"
            elif first_root is None:
                first_root = span.start + modifier
                labels[first_root] = "ROOT"
            else:
                heads[span.start + modifier] = first_root
                labels[span.start + modifier] = "latent-root"
    strings = [doc.vocab.strings.add(label) if label else 0 for label in labels]
    offsets = np.array(heads, dtype="int64") - np.arange(len(doc))
    values: Any = np.stack([offsets.astype("uint64"), np.array(strings, dtype="uint64")], 1)
    doc.from_array(["HEAD", "DEP"], values)


_OUR_LABELS = ("latent", "latent-root", "ROOT")
