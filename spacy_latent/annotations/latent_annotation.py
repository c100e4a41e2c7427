"""Structures that one component stored on a doc, with accessors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import numpy as np
from spacy.tokens import Doc

from spacy_latent.annotations.displacy import (
    DisplacyInput,
    draw_arcs,
    draw_brackets,
    draw_items,
    draw_tags,
    style_of,
)
from spacy_latent.annotations.entities import entities_of
from spacy_latent.annotations.span_parts import (
    chosen_parts,
    doc_heads,
    is_below,
    labelled_parts,
    no_counters_message,
    possible_parts,
)
from spacy_latent.annotations.span_structure import (
    Arc,
    Bracket,
    Cell,
    Dependency,
    Entity,
    Item,
    SpanStructure,
)
from spacy_latent.errors import LatentError, number_of
from spacy_latent.kinds import find_kind, without_record


class LatentAnnotation:
    """Structures that one component stored on a doc.

    Attributes:
        spans: One :class:`SpanStructure` per span, in text order.
    """

    def __init__(self, doc: Doc, component: str, spans: Sequence[SpanStructure]) -> None:
        self.doc = doc
        self.component = component
        self.spans = list(spans)

    def __repr__(self) -> str:
        return f"LatentAnnotation(component={self.component!r}, spans={len(self.spans)})"

    @property
    def heads(self) -> np.ndarray:
        """Index in the doc of each token's head, ``(len(doc),)`` int32.

        A root is its own head, as in ``token.head``. A token that no structure covers has −1.
        """
        heads = np.full(len(self.doc), -1, dtype="int32")
        for span in self.spans:
            _check_kind(span, "heads")
            heads[span.start : span.end] = doc_heads(span, span.decoded)
        return heads

    @property
    def tags(self) -> np.ndarray:
        """Tag of each token, ``(len(doc),)`` int32; −1 for a token that no structure covers."""
        tags = np.full(len(self.doc), -1, dtype="int32")
        for span in self.spans:
            _check_kind(span, "tags")
            tags[span.start : span.end] = span.decoded
        return tags

    @property
    def counters(self) -> np.ndarray:
        """Values of the scorer's counters after each token, ``(len(doc), K)`` float32.

        Tokens that no structure covers have NaN.

        Raises:
            LatentError: If no counters are stored.
        """
        stored = [span.counters for span in self.spans if span.counters is not None]
        if len(stored) < len(self.spans) or not stored:
            raise LatentError(no_counters_message(self.component))
        counters = np.full((len(self.doc), stored[0].shape[1]), np.nan, dtype="float32")
        for span in self.spans:
            counters[span.start : span.end] = span.counters
        return counters

    def arcs(self, threshold: float | None = None, alternative: int | None = None) -> list[Arc]:
        """Return the arcs of the best trees, or all arcs with at least the given probability.

        The probability of an arc is None if the component stored no probabilities (``annotate =
        "map"``).

        Args:
            threshold: Return all arcs with at least this probability. Needs stored probabilities
                (``annotate = "probabilities"``).
            alternative: Return the arcs of the alternative with this index instead. Spans with
                fewer alternatives than others contribute no arcs.

        Raises:
            LatentError: If the threshold is outside of [0, 1] or no probabilities are stored for
                it, or if no span has the alternative.
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
            for (h, m), p in chosen_parts(span, threshold, alternative, self.component)
        ]

    def _check(self, threshold: float | None, alternative: int | None) -> None:
        """Raise LatentError for a threshold outside of [0, 1], or a missing alternative."""
        if threshold is not None and not 0 <= threshold <= 1:
            raise LatentError(f"threshold is {threshold}; expected a probability, from 0 to 1.")
        if alternative is None or not self.spans:
            return
        count = max(len(span.alternatives) for span in self.spans)
        if not 0 <= alternative < count:
            numbers = f" (0 to {count - 1})" if count else ""
            raise LatentError(
                f"alternative is {alternative}, and {self.component!r} stored "
                f"{number_of(count, 'alternative')}{numbers}. To store more, raise `alternatives` "
                "in the component's config or in inspect_docs. A short text may have fewer "
                "structures than that."
            )

    def dependencies(
        self, threshold: float | None = None, alternative: int | None = None
    ) -> list[Dependency]:
        """Return the labelled arcs of the best trees, or all with at least the given probability.

        The arguments are the arguments of :meth:`arcs`. With ``alternative``, the probability is
        the probability of the labelled arc under the distribution over all trees.

        Raises:
            LatentError: If the arcs have no labels.
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
                f"The arcs of {self.component!r} have no labels: only a latent_parser gives "
                "labels. Read arcs without labels from doc._.latent[...].arcs()."
            )
        shift, names = span.start - 1, span.labels
        return [
            Dependency(None if h == 0 else h + shift, m + shift, names[label], p)
            for (h, m, label), p in labelled_parts(span, threshold, alternative, self.component)
        ]

    def _arcs_with_labels(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> Sequence[Arc | Dependency]:
        """Return the arcs, with their labels if the structure is labelled."""
        read = self._arcs if span.arc_labels is None else self._dependencies
        return read(span, threshold, alternative)

    def items(self, threshold: float | None = None, alternative: int | None = None) -> list[Item]:
        """Return the chosen tokens, or all tokens with at least the given probability.

        See :meth:`arcs` for the arguments.
        """
        self._check(threshold, alternative)
        return [item for span in self.spans for item in self._items(span, threshold, alternative)]

    def _items(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> list[Item]:
        _check_kind(span, "items")
        chosen = chosen_parts(span, threshold, alternative, self.component)
        return [Item(span.start + i, p) for (i,), p in chosen]

    def entities(self, alternative: int | None = None) -> list[Entity]:
        """Return the entities that the named tags of the best sequences form.

        Args:
            alternative: Return the entities of the alternative with this index instead.

        Raises:
            LatentError: If no span has the alternative.
        """
        self._check(None, alternative)
        found = []
        for span in self.spans:
            _check_kind(span, "entities")
            if span.labels is None:
                raise LatentError(
                    f"The tags of {self.component!r} have no names, so they do not encode "
                    "entities. Read them from doc._.latent[...].tags."
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
                found.append(Entity(*place, p, here, not here and is_below(span, p)))
        return found

    def differences(self, alternative: int) -> tuple[list[Entity], list[Entity]]:
        """Return the entities by which an alternative of named tags differs from the first one.

        Returns:
            The entities that only the first alternative has, and the entities that only this one
            has.

        Raises:
            LatentError: If no span has the alternative.
        """
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
        """Return the calibrated set of possible entities, the most probable first in each span.

        For a share of the texts with entities, the set contains all entities of the text. This
        share is the coverage given to ``spacy latent calibrate --coverage``. Entities of the set
        may overlap.

        Raises:
            LatentError: If no such set is stored.
        """
        given = {(e.start, e.end, e.label) for e in self.entities() if e.given}
        found = []
        for span in self.spans:
            for (first, last, tag), p in possible_parts(span, "entities", self.component):
                place = span.start + first, span.start + last, (span.labels or ())[tag][2:]
                here = place in given
                found.append(Entity(*place, p, here, not here and is_below(span, p)))
        return found

    def possible_arcs(self) -> list[Arc]:
        """Return the calibrated sets of possible arcs of each word, the most probable first.

        The sets contain a share of the heads of a text, as in :meth:`possible_brackets`.
        """
        for span in self.spans:
            _check_kind(span, "arcs")
        return [
            Arc(None if head == 0 else head + span.start - 1, modifier + span.start - 1, p)
            for span in self.spans
            for (head, modifier, _), p in possible_parts(span, "arcs", self.component)
        ]

    def possible_brackets(self) -> list[Bracket]:
        """Return the calibrated set of possible labelled spans, the most probable first.

        The set contains a share of the spans of a text, on average over texts. This share is the
        coverage given to ``spacy latent calibrate --coverage``. Spans of the set may cross each
        other.

        Raises:
            LatentError: If no such set is stored.
        """
        for span in self.spans:
            _check_kind(span, "brackets", "spans")
        return [
            Bracket(span.start + first, span.start + end, p, number, (span.labels or ())[number])
            for span in self.spans
            for (first, end, number), p in possible_parts(span, "spans", self.component)
        ]

    def brackets(
        self, threshold: float | None = None, alternative: int | None = None
    ) -> list[Bracket]:
        """Return the spans or segments of the structures, by the arguments of :meth:`arcs`."""
        self._check(threshold, alternative)
        return [b for span in self.spans for b in self._brackets(span, threshold, alternative)]

    def _brackets(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> list[Bracket]:
        _check_kind(span, "brackets", "spans")
        found = []
        for (first, last, *label), p in chosen_parts(span, threshold, alternative, self.component):
            end = last if label else last + 1
            number = label[0] if label else None
            name = None if span.labels is None or number is None else span.labels[number]
            found.append(Bracket(span.start + first, span.start + end, p, number, name))
        return found

    def cells(self, threshold: float | None = None, alternative: int | None = None) -> list[Cell]:
        """Return the aligned pairs of words, or all pairs with at least the given probability.

        See :meth:`arcs` for the arguments.
        """
        self._check(threshold, alternative)
        found = []
        for span in self.spans:
            _check_kind(span, "cells")
            if span.other_start is None:
                raise LatentError(
                    f"{span.structure} aligns tokens {span.start} to {span.end} with a text that "
                    "is not known. Set other_start and other_end when writing the structure."
                )
            for (i, j), p in chosen_parts(span, threshold, alternative, self.component):
                found.append(Cell(span.start + i, span.other_start + j, p))
        return found

    @property
    def displacy_style(self) -> str:
        """Name of the displaCy style for :meth:`to_displacy`: "dep", "ent" or "span".

        Raises:
            LatentError: If displaCy cannot draw the structure.
        """
        styles = [style_of(span) for span in self.spans]
        return styles[0] if styles else "dep"

    def to_displacy(
        self, threshold: float | None = None, alternative: int | None = None
    ) -> list[dict[str, object]]:
        """Return one drawing per span, for ``displacy.render(..., style=..., manual=True)``.

        The style is :attr:`displacy_style`: "dep" for trees, "ent" for items, "span" for tags,
        spans and segments. Spans of one token are left out, because trees have one over every
        token.

        The root of a tree has the tag "root". The labels of the parts are their probabilities, if
        probabilities are stored. See :meth:`arcs` for the arguments.
        """
        self._check(threshold, alternative)
        drawings: list[DisplacyInput] = []
        for span in self.spans:
            style = style_of(span)
            if style == "dep":
                arcs = self._arcs_with_labels(span, threshold, alternative)
                drawings.append(draw_arcs(self.doc, span, arcs))
            elif style == "ent":
                items = self._items(span, threshold, alternative)
                drawings.append(draw_items(self.doc, span, items))
            elif "brackets" in find_kind(span.kind).accessors:
                brackets = self._brackets(span, threshold, alternative)
                drawings.append(draw_brackets(self.doc, span, brackets))
            else:
                tags = chosen_parts(span, threshold, alternative, self.component)
                drawings.append(draw_tags(self.doc, span, tags))
        return drawings


def _check_kind(span: SpanStructure, accessor: str, wanted: str = "") -> None:
    """Raise LatentError if structures of the kind of the span do not have this accessor.

    Args:
        wanted: Name of the values that the accessor returns, if it differs from ``accessor``.
    """
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
        f"{span.structure} {tree}has no {wanted}: its kind is {span.kind!r}. Read it from {there}."
        f"{without_record(span.kind)}"
    )
