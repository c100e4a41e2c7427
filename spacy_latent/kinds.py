"""Kinds of parts, such as arcs, items and cells, and a record of functions and names for each.

A structure names its kind by :attr:`spacy_latent.structures.base.Structure.parts`. All code that
writes, draws, prints, counts or compares structures, or reads them from gold annotations, asks the
record of that name only. The records of this package are here. The modules for drawings, statistics
and references add their fields by :func:`complete_kind`. A user's own kind is given as a whole, in
the file of its structure::

    register_kind(Kind("windows", like="items", plural="windows"))

A name without a record is like "parts". Its structures can be stored, supervised, listed, counted
and compared. They can be drawn if each part is one token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.training import Example


class _Inherited(Enum):
    INHERITED = "inherited"


# The value of a field that is taken from the kind that this one is like. It is not None, since None
# is a valid value of some fields.
INHERITED: Any = _Inherited.INHERITED
# The kind that all others are like in the end.
PARTS = "parts"
# Attributes of LatentAnnotation that read structures.
ACCESSORS = ("heads", "arcs", "items", "tags", "entities", "brackets", "cells")

Part = tuple[int, ...]
Answer = TypeVar("Answer")


def _always(span: object) -> bool:
    return True


@dataclass(frozen=True)
class Drawing:
    """A style of drawings of structures.

    Attributes:
        draw: function from a :class:`spacy_latent.visualize.structure_view.StructureView` to its
            pictures and their caption. The pictures are a list of
            :class:`spacy_latent.visualize.picture.Picture`.
        fits: whether a :class:`spacy_latent.annotations.SpanStructure` may be drawn in this style
            if no style is given.
        seen: a sentence for newcomers that describes the picture; pages begin with it.
    """

    draw: Callable[[Any], tuple[list[Any], str]]
    fits: Callable[[Any], bool] = _always
    seen: str = ""


@dataclass(frozen=True)
class Kind:
    """Functions and names for structures of one kind of part.

    Decoded structures are the results of ``Structure.decode``, which annotations store.

    Attributes:
        name: the same as ``Structure.kind`` and ``SpanStructure.kind``.
        like: name of the kind that gives all fields not set here. If it is a kind of this package,
            the decoded structures must have its form: see
            :class:`spacy_latent.annotations.SpanStructure`.
        plural: noun for several structures: "trees".
        accessors: attributes of :class:`spacy_latent.annotations.LatentAnnotation` that read the
            structures. They are among "heads", "arcs", "items", "tags", "entities", "brackets" and
            "cells"; the most informative comes first. displaCy draws arcs, items, tags and
            brackets.
        parts: function from a decoded structure to its parts, in the form of
            ``SpanStructure.parts``.
        stored: function from places in the structure's array, ``(P, axes)``, to rows of
            ``SpanStructure.parts``.
        place: inverse of ``stored`` and ``soft``: function from a part, in the form of
            ``SpanStructure.parts``, and the number of axes of the structure's array to an index of
            the array. The index has a number for each axis, or a slice if the part is any of
            several.
        axes: the numbers of a part, each by a name to show and its meaning. "nodes" are the root
            and then the tokens, "words" tokens from 0, and "from one" tokens from 1. "ends" is the
            token after, "others" are tokens of the other text, and "labels" are tags or labels.
            Empty if unknown.
        soft: function from probabilities ``(B, *parts)`` of the structure's array to probabilities
            for annotations, which may have fewer axes.
        moved: function from a decoded structure and an order of its tokens, ``(n,)``, to the same
            number of parts at other places. None if a structure cannot be moved; then one is drawn
            by random scores.
        gold: function from an example of spaCy and the bounds of its spans to decoded structures
            that the reference has without an annotation of the component. There is one for each
            span, or None.
        partly: function from a gold structure of which only some is known, its length and the shape
            of its array. It gives the number of tokens that are known and a bool array of the parts
            that agree. It gives None if all is known.
        trees: available values of ``trees`` in
            :class:`spacy_latent.estimators.given_trees.GivenTrees`.
        statistics: function from a decoded structure and the number of its tokens to numbers that
            describe it, by name. The value is None for a number that this structure does not have.
        meanings: descriptions of the statistics that
            :data:`spacy_latent.analysis.structures.MEANINGS` does not name.
        shares: names of the statistics that are shares of 1.
        columns: names of the statistics that the console shows in training.
        numbers: function from a decoded structure and the number of its tokens to a number for each
            token, ``(n,)``. Together the numbers determine the structure. None if no such numbers
            exist.
        controls: function to structures that depend on no model, by name, in the form of
            ``comparable``. Its arguments are the words of a span, the words that mostly have
            modifiers, and the words of the text that the span is aligned with.
        comparable: function from a decoded structure to the form of controls.
        common: function from two structures of one span, decoded or comparable, to twice the number
            of their common parts and the number of the parts of both.
        agreement: function from decoded structures of many spans, ours and theirs, to their
            agreement, 0 to 1. None for the share of their common parts.
        judge: function from the figures of a report,
            :class:`spacy_latent.analysis.figures.LayerFigures`, to remarks on the shape of the
            structures, a list of :class:`spacy_latent.analysis.verdicts.Verdict`.
        control_words: by name of a control, the sentence for a report in which nearly all
            structures equal it, with ``{share}`` in it.
        reference: function from a :class:`spacy_latent.evaluation.references.ComparedLayer` to the
            :class:`spacy_latent.analysis.figures.ReferenceFigures` of a report, or None. The
            default is the agreement with annotations of references under the component's name.
        drawings: drawings by name of the style. If no style is given, the first suitable one is
            used.
        text: function from a :class:`spacy_latent.annotations.LatentAnnotation` of one span, the
            span, and the number of an alternative or None, to lines of text.
        heading: what the columns of that text are, and what its probabilities are of. Both are
            empty for a text without a fixed form.
        part_text: function from such an annotation, the span and one of its parts to one line.
        gallery: name of the kind as which the gallery of a report draws the decoded structures.
            Structures of the gallery "parts" are listed.
    """

    name: str
    like: str = PARTS
    plural: str = INHERITED
    accessors: tuple[str, ...] = INHERITED
    parts: Callable[[np.ndarray], list[Part]] = INHERITED
    stored: Callable[[np.ndarray], np.ndarray] = INHERITED
    place: Callable[[Part, int], tuple[int | slice, ...]] = INHERITED
    axes: tuple[tuple[str, str], ...] = INHERITED
    soft: Callable[[np.ndarray], np.ndarray] = INHERITED
    moved: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = INHERITED
    gold: Callable[[Example, Sequence[Part]], list[np.ndarray | None]] = INHERITED
    partly: Callable[[np.ndarray, int, Part], tuple[int, np.ndarray] | None] = INHERITED
    trees: tuple[str, ...] = INHERITED
    statistics: Callable[[np.ndarray, int], Mapping[str, float | None]] = INHERITED
    meanings: Mapping[str, str] = INHERITED
    shares: frozenset[str] = INHERITED
    columns: tuple[str, ...] = INHERITED
    numbers: Callable[[np.ndarray, int], np.ndarray | None] = INHERITED
    controls: Callable[[Sequence[str], frozenset[str], Sequence[str]], dict[str, np.ndarray]] = (
        INHERITED
    )
    comparable: Callable[[np.ndarray], np.ndarray] = INHERITED
    common: Callable[[np.ndarray, np.ndarray], tuple[float, float]] = INHERITED
    agreement: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], float] | None = INHERITED
    judge: Callable[[Any], list[Any]] = INHERITED
    control_words: Mapping[str, str] = INHERITED
    reference: Callable[..., Any] = INHERITED
    drawings: Mapping[str, Drawing] = INHERITED
    text: Callable[[Any, Any, int | None], list[str]] = INHERITED
    heading: tuple[str, str] = INHERITED
    part_text: Callable[[Any, Any, Part], str] = INHERITED
    gallery: str = INHERITED

    def said(self, field: str, answer: Answer | None) -> Answer:
        """Return the result of a field's function; a user's own function may lack a return."""
        if answer is None:
            raise LatentError(
                f"{field} of the kind {self.name!r} gives None; expected an empty list or dict if "
                "there is nothing to say."
            )
        return answer


_KINDS: dict[str, Kind] = {}


def register_kind(kind: Kind) -> Kind:
    """Make a kind known to all code that reads structures whose ``parts`` are its name.

    Call it in the file of the structure. A second call with the same name replaces the first
    record, as when a cell of a notebook is run again.

    Raises:
        LatentError: The name belongs to this package, the kind is like an unknown one, or a field
            is invalid.
    """
    if not isinstance(kind, Kind) or not (isinstance(kind.name, str) and kind.name):
        raise LatentError(
            f"register_kind: given is {kind!r}; expected a Kind with a name, such as "
            'Kind("windows", like="items").'
        )
    if kind.name in BUILT_IN:
        raise LatentError(
            f"{kind.name!r} is a kind of this package. Give your kind another name, and set like = "
            f"{kind.name!r} to inherit its fields."
        )
    accessors = kind.accessors
    if accessors is not INHERITED and (
        isinstance(accessors, str) or not set(accessors) <= set(ACCESSORS)
    ):
        raise LatentError(
            f"The kind {kind.name!r} has the accessors {accessors!r}; expected a tuple of some of "
            f"{', '.join(ACCESSORS)}."
        )
    drawings = {} if kind.drawings is INHERITED else kind.drawings
    wrong = [style for style, each in drawings.items() if not isinstance(each, Drawing)]
    if wrong:
        raise LatentError(
            f"The kind {kind.name!r} has drawings {wrong} that are no Drawing; give Drawing(draw), "
            "with the function that draws."
        )
    above = kind.like
    while above != PARTS:
        if above == kind.name:
            raise LatentError(
                f"The kind {kind.name!r} is like {kind.like!r}, which is like {kind.name!r} in "
                "turn. Let one of them be like another kind."
            )
        if above not in _KINDS:
            raise LatentError(
                f"The kind {kind.name!r} is like {above!r}; expected one of {', '.join(_KINDS)}."
            )
        above = _KINDS[above].like
    return _put(kind)


def complete_kind(name: str, **given: Any) -> None:
    """Add fields to the record of one of the package's kinds.

    Raises:
        LatentError: The record has one of these fields already.
    """
    known = _KINDS[name]
    twice = [field for field in given if getattr(known, field) is not INHERITED]
    if twice:
        raise LatentError(f"The kind {name!r} has {', '.join(twice)} already.")
    _put(replace(known, **given))


def _put(kind: Kind) -> Kind:
    _KINDS[kind.name] = kind
    find_kind.cache_clear()
    return kind


@cache
def find_kind(name: str) -> Kind:
    """Return the record of a kind, with the fields that it takes from others.

    A name without a record has the fields of "parts".
    """
    own = _KINDS.get(name)
    if own is None:
        return replace(find_kind(PARTS), name=name)
    if name == PARTS:
        return own
    given = {field.name: getattr(own, field.name) for field in fields(own)}
    return replace(
        find_kind(own.like),
        **{field: value for field, value in given.items() if value is not INHERITED},
    )


def known_kinds() -> list[Kind]:
    """Return all kinds with a record, first the kinds of this package."""
    return [find_kind(name) for name in _KINDS]


def without_record(name: str) -> str:
    """Return a sentence for errors about a kind that nothing has registered, empty for others."""
    if name in _KINDS:
        return ""
    return (
        f" Nothing has registered a kind {name!r} here. If a package or a file does "
        "(spacy_latent.kinds.register_kind), import it first."
    )


# ---------------------------------------------------------------- decoded structures


def rows_of(decoded: np.ndarray) -> list[Part]:
    """Return the rows of a decoded structure as parts; with one axis, each number is a part."""
    rows = np.asarray(decoded)
    if not rows.size:
        return []
    return [tuple(part) for part in rows.reshape(len(rows), -1).tolist()]


def _arcs_of_heads(heads: np.ndarray) -> list[Part]:
    return [(head, modifier) for modifier, head in enumerate(np.asarray(heads).tolist(), 1)]


def _places_of_tags(tags: np.ndarray) -> list[Part]:
    return list(enumerate(np.asarray(tags).tolist()))


def _items(decoded: np.ndarray) -> list[Part]:
    return [(int(item),) for item in np.ravel(decoded)]


def _as_it_is(array: np.ndarray) -> np.ndarray:
    return array


def _of_tags(probabilities: np.ndarray) -> np.ndarray:
    """Return the probabilities of tags, summed over the previous tags of transitions."""
    return probabilities.sum(2) if probabilities.ndim == 4 else probabilities


def _ends_of_segments(places: np.ndarray) -> np.ndarray:
    """Replace the length less 1, in the second column, by the end."""
    stored = places.copy()
    stored[:, 1] += stored[:, 0] + 1
    return stored


def _index(part: Part, axes: int) -> tuple[int | slice, ...]:
    return part


def _after_any(part: Part, axes: int) -> tuple[int | slice, ...]:
    """Return the slice of all transitions to a tag."""
    token, tag = part
    return (token, slice(None), tag) if axes == 3 else part


def _length_of_segment(part: Part, axes: int) -> tuple[int | slice, ...]:
    start, end, label = part
    return start, end - start - 1, label


def _nothing_known(example: Example, spans: Sequence[Part]) -> list[np.ndarray | None]:
    return [None for _ in spans]


def _wholly_known(gold: np.ndarray, length: int, shape: Part) -> None:
    return None


def _tags_in_order(tags: np.ndarray, order: np.ndarray) -> np.ndarray:
    return tags[order]


def _items_in_order(items: np.ndarray, order: np.ndarray) -> np.ndarray:
    return np.sort(order[items])


for own_kind in (
    Kind(
        PARTS,
        plural="structures",
        accessors=(),
        parts=rows_of,
        stored=_as_it_is,
        place=_index,
        axes=(),
        soft=_as_it_is,
        moved=None,
        agreement=None,
        gold=_nothing_known,
        partly=_wholly_known,
        trees=(),
        meanings={},
        shares=frozenset(),
        columns=("parts",),
        control_words={},
        gallery=PARTS,
    ),
    Kind(
        "heads",
        plural="trees",
        accessors=("heads", "arcs"),
        axes=(("head", "nodes"), ("word", "from one")),
        parts=_arcs_of_heads,
        trees=("random", "left", "right", "flat", "balanced", "root", "nearest", "heads"),
        columns=("depth", "left-branching"),
        gallery="heads",
    ),
    Kind(
        "arcs",
        plural="graphs",
        accessors=("arcs",),
        axes=(("head", "nodes"), ("word", "from one")),
        columns=("arcs per token", "left-branching"),
        gallery="arcs",
    ),
    Kind(
        "items",
        plural="selections",
        accessors=("items",),
        axes=(("word", "words"),),
        parts=_items,
        moved=_items_in_order,
        columns=("rate", "runs"),
        gallery="items",
    ),
    Kind(
        "tags",
        plural="tag sequences",
        accessors=("tags", "entities"),
        parts=_places_of_tags,
        place=_after_any,
        axes=(("word", "words"), ("tag", "labels")),
        soft=_of_tags,
        moved=_tags_in_order,
        columns=("switches", "commonest tag"),
        gallery="tags",
    ),
    Kind(
        "spans",
        plural="trees",
        accessors=("brackets",),
        axes=(("first word", "words"), ("last word", "words")),
        trees=("random", "left", "right", "balanced"),
        columns=("depth", "left splits"),
        gallery="spans",
    ),
    Kind(
        "segments",
        plural="segmentations",
        accessors=("brackets",),
        stored=_ends_of_segments,
        place=_length_of_segment,
        axes=(("first word", "words"), ("last word", "ends"), ("label", "labels")),
        columns=("segment length",),
        gallery="segments",
    ),
    Kind(
        "phrases",
        like="segments",
        plural="sets of phrases",
        stored=_as_it_is,
        place=_index,
        columns=("phrases", "depth"),
    ),
    Kind(
        "cells",
        plural="alignments",
        accessors=("cells",),
        axes=(("word of the first text", "words"), ("word of the second", "others")),
        columns=("coverage", "monotonicity"),
        gallery="cells",
    ),
):
    _put(own_kind)
BUILT_IN = frozenset(_KINDS)
