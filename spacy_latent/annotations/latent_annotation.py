"""Structures that one component stored on a doc, with accessors."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import compress

import numpy as np
from spacy.tokens import Doc

from spacy_latent.annotations.entities import entities_of
from spacy_latent.annotations.span_structure import (
    Arc,
    Bracket,
    Cell,
    Dependency,
    Entity,
    Item,
    SpanStructure,
    probability_of_parts,
)
from spacy_latent.errors import LatentError
from spacy_latent.kinds import find_kind, known_kinds

# The displaCy style for the parts of each accessor. displaCy cannot draw other parts.
DISPLACY_STYLES = {"arcs": "dep", "items": "ent", "tags": "span", "brackets": "span"}


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
            heads[span.start : span.end] = _doc_heads(span, span.decoded)
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
            for (h, m), p in self._chosen(span, threshold, alternative)
        ]

    def _check(self, threshold: float | None, alternative: int | None) -> None:
        """Raise LatentError for a threshold or an alternative that would wrongly give nothing."""
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
                f"The arcs of {self.component!r} have no labels. A latent_parser gives labels; "
                "without them arcs are in doc._.latent[...].arcs()."
            )
        shift, names = span.start - 1, span.labels
        return [
            Dependency(None if h == 0 else h + shift, m + shift, names[label], p)
            for (h, m, label), p in self._labelled(span, threshold, alternative)
        ]

    def _arcs_with_labels(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> Sequence[Arc | Dependency]:
        """Return the arcs, with their labels if the structure is labelled."""
        read = self._arcs if span.arc_labels is None else self._dependencies
        return read(span, threshold, alternative)

    def _labelled(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> list[tuple[tuple[int, ...], float | None]]:
        """Return the indices (head, modifier, label) within the span, with their probabilities."""
        known = probability_of_parts(span.labelled_parts, span.labelled_probabilities)
        if threshold is not None and alternative is None:
            return self._at_least(threshold, known)
        heads, labels = span.decoded, span.arc_labels
        if alternative is not None:
            if alternative >= len(span.alternative_labels):
                return []
            heads = span.alternatives[alternative][0]
            labels = span.alternative_labels[alternative]
        assert labels is not None
        places = zip(heads.tolist(), range(1, len(heads) + 1), labels.tolist())
        return [(place, None if known is None else known.get(place, 0.0)) for place in places]

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
        chosen = self._chosen(span, threshold, alternative)
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

        The set contains all entities of a text. This holds for a share of the texts with entities:
        the coverage that ``spacy latent calibrate --coverage`` was given. The entities may overlap.

        Raises:
            LatentError: If no such set is stored.
        """
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
        """Return the spans or segments of the best structures, or all that are probable enough.

        See :meth:`arcs` for the arguments.
        """
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
            for (i, j), p in self._chosen(span, threshold, alternative):
                found.append(Cell(span.start + i, span.other_start + j, p))
        return found

    @property
    def displacy_style(self) -> str:
        """Name of the displaCy style for :meth:`to_displacy`: "dep", "ent" or "span".

        Raises:
            LatentError: If displaCy cannot draw the structure.
        """
        styles = [_displacy_style(span) for span in self.spans]
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

    # displaCy escapes only the text of a word. The other strings below consist of numbers and of
    # names of tags.

    def _draw_arcs(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> dict[str, object]:
        arcs = self._arcs_with_labels(span, threshold, alternative)
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
        """Return the indices of the parts within the span, with their probabilities.

        Returns:
            The parts. A probability is 0 if it is below the threshold from which the component
            stores probabilities, and None if the component stored no probabilities.
        """
        known = probability_of_parts(span.parts, span.probabilities)
        if threshold is not None and alternative is None:
            return self._at_least(threshold, known)
        decoded = span.decoded
        if alternative is not None:
            if alternative >= len(span.alternatives):
                return []
            decoded = span.alternatives[alternative][0]
        chosen = find_kind(span.kind).parts(decoded)
        return [(part, None if known is None else known.get(part, 0.0)) for part in chosen]

    def _at_least(
        self, threshold: float, known: dict[tuple[int, ...], float] | None
    ) -> list[tuple[tuple[int, ...], float | None]]:
        if known is None:
            raise LatentError(no_probabilities_message(self.component))
        return [(part, p) for part, p in known.items() if p >= threshold]


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
    """Return the displaCy style for these accessors, or "" if displaCy can draw none of them."""
    return next((DISPLACY_STYLES[name] for name in accessors if name in DISPLACY_STYLES), "")


def _label(span: SpanStructure, probability: float | None, label: int | None = None) -> str:
    shown = []
    if label is not None:
        # displaCy does not escape labels.
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
    """Return the text, or a visible sign for white space, which displaCy would not draw."""
    return text if text.strip() else "␣"
