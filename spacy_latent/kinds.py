"""Kinds of part: arcs, items, cells, or one's own. All that is to be known of one, in one record.

A structure names its kind by :attr:`spacy_latent.structures.base.Structure.parts`. What is written
on a Doc, drawn, printed, counted, compared, reported and read from gold annotations asks the record
of that name and nothing else. The records of this package are here; what they say of drawings, of
statistics and of references is added by the floors that draw, count and refer. A kind of one's own
is given whole, beside its structure::

    register_kind(Kind("windows", like="items", plural="windows"))

A name without a record is like "parts": its structures can be stored, supervised, listed, counted
and compared, and where each part is one token, drawn.
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


# The value of a field that is taken from the kind that this one is like. Not None, which says of
# some fields that there is nothing.
INHERITED: Any = _Inherited.INHERITED
# That to which all others come down.
PARTS = "parts"
# Names that LatentAnnotation reads structures by.
ACCESSORS = ("heads", "arcs", "items", "tags", "entities", "brackets", "cells")

Part = tuple[int, ...]
Answer = TypeVar("Answer")


def _always(span: object) -> bool:
    return True


@dataclass(frozen=True)
class Drawing:
    """A style of drawings of structures.

    draw: from a :class:`spacy_latent.visualize.subject.Subject` to its pictures, a list of
        :class:`spacy_latent.visualize.picture.Picture`, and what their caption says of them.
    fits: whether a :class:`spacy_latent.annotations.SpanStructure` may be drawn so where no style
        is asked for.
    seen: a sentence that tells a newcomer what is seen, which pages begin with.
    """

    draw: Callable[[Any], tuple[list[Any], str]]
    fits: Callable[[Any], bool] = _always
    seen: str = ""


@dataclass(frozen=True)
class Kind:
    """Functions and names for structures of one kind of part. Decoded structures are what
    ``Structure.decode`` gives and annotations store.

    name: that of ``Structure.kind`` and ``SpanStructure.kind``.
    like: name of the kind from which all is taken that is not given here. The decoded structures
        have to be of its form where it is one of the package's: see
        :class:`spacy_latent.annotations.SpanStructure`.
    plural: how several structures are called: "trees".
    accessors: what of :class:`spacy_latent.annotations.LatentAnnotation` reads them, of "heads",
        "arcs", "items", "tags", "entities", "brackets" and "cells"; first that which tells most.
        Arcs, items, tags and brackets are also what displaCy draws.
    parts: a decoded structure to its parts, as ``SpanStructure.parts`` has them.
    stored: places in the structure's array, ``(P, axes)``, to rows of ``SpanStructure.parts``.
    place: a part as ``SpanStructure.parts`` has it, and the number of axes of the structure's
        array, to where it stands there: an index with a number for each axis, or a slice where the
        part is any of several. It turns back ``stored`` and ``soft``.
    axes: what the numbers of a part are, each by a name to show and one of "nodes", the root and
        then the tokens, "words", tokens from 0, "from one", tokens from 1, "ends", the token after,
        "others", tokens of the other text, and "labels", tags or labels; empty where that is not
        known.
    soft: probabilities ``(B, *parts)`` of the structure's array to those of annotations, which may
        have fewer axes.
    moved: a decoded structure and an order of its tokens, ``(n,)``, to the same number of parts at
        other places; None where a structure cannot be moved, which then is drawn at random by
        random scores.
    gold: an example of spaCy and the bounds of its spans to the decoded structure of each that the
        reference has without an annotation of the component, None where it has none.
    partly: of a gold structure of which only some is known, its length and the shape of its array,
        for how many tokens it is known and which parts agree with it, bool; None where all is
        known.
    trees: which of :class:`spacy_latent.estimators.given_trees.GivenTrees` there are.
    statistics: a decoded structure and the number of its tokens to numbers that describe it, by
        name; None for those that this one does not have.
    meanings: what each of these is, in words, where
        :data:`spacy_latent.analysis.structures.MEANINGS` has no such name.
    shares: names of those of them that are shares of 1.
    columns: names of statistics that the console shows in training.
    numbers: a decoded structure and the number of its tokens to a number for each token that
        together tell the structure, ``(n,)``; None where there are none.
    controls: the words of a span, those that mostly have modifiers, and the words of the text that
        it is aligned with, to structures that look at no model, by name, as ``comparable`` has
        them.
    comparable: a decoded structure as controls are.
    common: two structures of one span, decoded or comparable, to twice the number of their common
        parts and the number of the parts of both.
    agreement: decoded structures of many spans, ours and theirs, to their agreement, 0 to 1; None
        for the share of their common parts.
    judge: the figures of a report, :class:`spacy_latent.analysis.figures.LayerFigures`, to what is
        to be said of the shape of the structures, a list of
        :class:`spacy_latent.analysis.verdicts.Verdict`.
    control_words: by name of a control, what is said where nearly all structures are its, with
        ``{share}`` in it.
    reference: a :class:`spacy_latent.pipeline.references.Beside` to the
        :class:`spacy_latent.analysis.figures.ReferenceFigures` of a report, or None; by default
        the agreement with what references have under the component's name.
    drawings: by name of the style; the first that fits is taken where none is asked for.
    text: a :class:`spacy_latent.annotations.LatentAnnotation` of one span, the span, and the number
        of an alternative or None, to lines of text.
    part_text: such an annotation, the span and one of its parts, to one line.
    gallery: name of the kind as which the gallery of a report draws the decoded structures; those
        of "parts" are listed.
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
    part_text: Callable[[Any, Any, Part], str] = INHERITED
    gallery: str = INHERITED

    def said(self, field: str, answer: Answer | None) -> Answer:
        """Return the result of a field's function; a user's own function may lack a return."""
        if answer is None:
            raise LatentError(
                f"{field} of the kind {self.name!r} gives None; where there is nothing to say, it "
                "has to return an empty list, or an empty dict."
            )
        return answer


_KINDS: dict[str, Kind] = {}


def register_kind(kind: Kind) -> Kind:
    """Make a kind known, for everything that reads structures whose ``parts`` are its name.

    Call it in the file of the structure. A second call with the name puts another record in the
    place of the first, as when a cell of a notebook is run again. Raises LatentError for a name of
    this package, and for one that is like what is not known.
    """
    if not isinstance(kind, Kind) or not (isinstance(kind.name, str) and kind.name):
        raise LatentError(
            f"register_kind: given is {kind!r}; expected a Kind with a name, such as "
            'Kind("windows", like="items").'
        )
    if kind.name in BUILT_IN:
        raise LatentError(
            f"{kind.name!r} is a kind of this package. Give yours another name, and say like = "
            f"{kind.name!r} for all that it has in common with that."
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
    """Add what a floor of this package knows of one of the package's kinds."""
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
    """The record of a kind with what it takes from others; as "parts" where there is none."""
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
    """All with a record, those of this package first."""
    return [find_kind(name) for name in _KINDS]


# ---------------------------------------------------------------- decoded structures


def rows_of(decoded: np.ndarray) -> list[Part]:
    """Each row is a part; of one axis each number."""
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
    """From the length less 1 to the end."""
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


def _register_own() -> None:
    for kind in (
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
        _put(kind)


_register_own()
BUILT_IN = frozenset(_KINDS)

__all__ = ["Drawing", "Kind", "complete_kind", "find_kind", "known_kinds", "register_kind"]
