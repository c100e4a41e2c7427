"""Latent structures as text for the terminal."""

from __future__ import annotations

from collections import Counter, defaultdict

from spacy.tokens import Doc

from spacy_latent.annotations import (
    Arc,
    Dependency,
    Entity,
    LatentAnnotation,
    SpanStructure,
    names_entities,
)
from spacy_latent.annotations.span_parts import chosen_parts, labelled_parts
from spacy_latent.characters import columns, on_one_line
from spacy_latent.corpora.standard_streams import prints_unicode
from spacy_latent.kinds import PARTS, Part, complete_kind, find_kind
from spacy_latent.visualize.picture import weight_caption

UNICODE = ("├─ ", "└─ ", "│  ", "   ")
LINE = 80
# Note on entities that a component found and left out of doc.ents.
BELOW = "below min_confidence"
# Note on the weight of an alternative if the probabilities of entities are calibrated.
UNCALIBRATED = "not calibrated; its entities are"
ASCII = ("|- ", "`- ", "|  ", "   ")


def format_annotation(annotation: LatentAnnotation, threshold: float | None = None) -> str:
    """Return a text drawing of each span's structure and of its stored alternatives.

    - Trees: one line per token with its index, its position in the tree, the label of its arc if
      arcs have labels, and the probability of the arc with that label.
    - Items and entities: the text, with the chosen words in square brackets. Further alternatives
      show only the entities that differ from the first one.
    - Tags: rows of tags below their words.
    - Spans: the text with round brackets, except for spans of one word.
    - Other kinds, such as segments and pairs of words: a line for each part.

    Args:
        threshold: Also list the parts outside of each structure with at least this probability.
    """
    blocks = []
    for span in annotation.spans:
        alone = LatentAnnotation(annotation.doc, annotation.component, [span])
        weights: list[float | None] = [weight for _, weight in span.alternatives]
        for i, weight in enumerate(weights or [None]):
            lines = find_kind(span.kind).text(alone, span, None if weight is None else i)
            if weight is not None:
                note = f" ({UNCALIBRATED})" if span.entities_calibrated else ""
                lines.insert(0, f"{weight_caption(weight)}{note}")
            blocks.append("\n".join(lines))
        if threshold is not None:
            blocks.append("\n".join(_others(alone, span, threshold)))
    return "\n\n".join(block for block in blocks if block)


ENTITIES = "entities in brackets, with their labels"


def format_heading(annotation: LatentAnnotation) -> str:
    """Return a line that says what the columns of :func:`format_annotation` are.

    It is empty for kinds without a fixed form, and without structures.
    """
    if not annotation.spans:
        return ""
    span = annotation.spans[0]
    columns_before, probability = find_kind(span.kind).heading
    if names_entities(span.labels):
        columns_before, probability = ENTITIES, "probability of each"
    elif span.arc_labels is not None:
        columns_before += ", label of the arc"
    if not columns_before:
        return ""
    known = span.probabilities is not None or span.entity_probabilities is not None
    return f"{columns_before}, {probability}:" if known else f"{columns_before}:"


def _tree(annotation: LatentAnnotation, span: SpanStructure, alternative: int | None) -> list[str]:
    fork, last, pass_by, nothing = UNICODE if prints_unicode() else ASCII
    arcs = annotation._arcs_with_labels(span, None, alternative)
    modifiers: dict[int | None, list[Arc | Dependency]] = defaultdict(list)
    for arc in arcs:
        modifiers[arc.head].append(arc)
    width = len(str(span.end - 1))
    lines = []
    # Use a stack instead of recursion, since a tree may be as deep as its sentence is long.
    todo = [(arc, "", "") for arc in reversed(modifiers[None])]
    while todo:
        arc, before, below = todo.pop()
        label = f"  {on_one_line(arc.label)}" if isinstance(arc, Dependency) else ""
        probability = "" if arc.probability is None else f"  {arc.probability:.2f}"
        word = _printable(annotation.doc, arc.modifier)
        lines.append(f"{arc.modifier:>{width}}  {before}{word}{label}{probability}")
        branch, under = last, nothing
        for child in reversed(modifiers[arc.modifier]):
            todo.append((child, below + branch, below + under))
            branch, under = fork, pass_by
    return lines


def _items(annotation: LatentAnnotation, span: SpanStructure, alternative: int | None) -> list[str]:
    words = [_printable(annotation.doc, i) for i in range(span.start, span.end)]
    for item in annotation.items(alternative=alternative):
        known = "" if item.probability is None else f" {item.probability:.2f}"
        words[item.token - span.start] = f"[{words[item.token - span.start]}{known}]"
    return _wrapped(words)


def _brackets(
    annotation: LatentAnnotation, span: SpanStructure, alternative: int | None
) -> list[str]:
    found = [b for b in annotation.brackets(alternative=alternative) if b.end > b.start + 1]
    opened, closed = Counter(b.start for b in found), Counter(b.end - 1 for b in found)
    tokens = range(span.start, span.end)
    words = ["(" * opened[i] + _printable(annotation.doc, i) + ")" * closed[i] for i in tokens]
    lines = _wrapped(words)
    return lines + [
        f"{b.probability:.2f}  {_text(annotation.doc, b.start, b.end)}"
        for b in found
        if b.probability is not None
    ]


def _tags(annotation: LatentAnnotation, span: SpanStructure, alternative: int | None) -> list[str]:
    """Return rows of words, of their tags, and of the probabilities if they are known.

    Tags that form entities are shown as entities.
    """
    if names_entities(span.labels):
        return _entities(annotation, span, alternative)
    cells_of_words = []
    for (i, tag), p in chosen_parts(span, None, alternative, annotation.component):
        column = [_printable(annotation.doc, span.start + i), _name(span, tag)]
        cells_of_words.append(column if p is None else [*column, f"{p:.2f}"])
    lines: list[str] = []
    row: list[str] = []
    for column in cells_of_words:
        width = max(map(columns, column))
        if row and columns(row[0]) + width > LINE:
            lines += [text.rstrip() for text in row]
            row = []
        row = row or [""] * len(column)
        padded = [cell + " " * (width - columns(cell) + 2) for cell in column]
        row = [text + cell for text, cell in zip(row, padded)]
    return lines + [text.rstrip() for text in row]


def _entities(
    annotation: LatentAnnotation, span: SpanStructure, alternative: int | None
) -> list[str]:
    if alternative:
        return _differences(annotation, span, alternative)
    words = [_printable(annotation.doc, i) for i in range(span.start, span.end)]
    for entity in annotation.entities(alternative):
        first, last = entity.start - span.start, entity.end - 1 - span.start
        words[first] = f"[{words[first]}"
        words[last] += f" {' '.join(_description(entity))}]"
    return _wrapped(words)


def _differences(annotation: LatentAnnotation, span: SpanStructure, alternative: int) -> list[str]:
    """Return a line for each entity that differs between an alternative and the first one.

    The sign − marks entities that only the first one has; + marks entities that only the other has.
    """
    gone, new = annotation.differences(alternative)
    return [
        f"{sign} {entity_text(annotation.doc, entity)}"
        for sign, entities in (("-", gone), ("+", new))
        for entity in entities
    ]


def entity_text(doc: Doc, entity: Entity, probability: bool = True) -> str:
    """Return an entity as text.

    The text has the words, the label, and the probability if it is known and requested. It also has
    the position if these words occur more than once in the doc.
    """
    words = [token.text for token in doc]
    own, size = words[entity.start : entity.end], entity.end - entity.start
    twice = sum(words[i : i + size] == own for i in range(len(words))) > 1
    shown = [_text(doc, entity.start, entity.end), *_description(entity, probability)]
    return " ".join([*shown, *([f"(token {entity.start})"] if twice else [])])


def _description(entity: Entity, probability: bool = True) -> list[str]:
    known = entity.probability is not None and probability
    shown = [on_one_line(entity.label), *([f"{entity.probability:.2f}"] if known else [])]
    return [*shown, BELOW] if entity.below_min_confidence else shown


def _lines(annotation: LatentAnnotation, span: SpanStructure, alternative: int | None) -> list[str]:
    chosen = chosen_parts(span, None, alternative, annotation.component)
    return [_part(annotation, span, part, p) for part, p in chosen]


def _others(annotation: LatentAnnotation, span: SpanStructure, threshold: float) -> list[str]:
    # An arc of the tree with another label counts as another part.
    read = chosen_parts if span.arc_labels is None else labelled_parts
    name = annotation.component
    drawn = {part for part, _ in read(span, None, None, name)}
    found = sorted(read(span, threshold, None, name), key=lambda other: -(other[1] or 0.0))
    return [_part(annotation, span, part, p) for part, p in found if part not in drawn]


def _part(
    annotation: LatentAnnotation, span: SpanStructure, part: Part, probability: float | None
) -> str:
    """Return one part as a line, in words if the meaning of the part is known."""
    text = find_kind(span.kind).part_text(annotation, span, part)
    return text if probability is None else f"{text}  {probability:.2f}"


def _arc_text(annotation: LatentAnnotation, span: SpanStructure, part: Part) -> str:
    head, modifier = (
        "root" if i == 0 else _printable(annotation.doc, span.start + i - 1) for i in part[:2]
    )
    label = f"  {_name(span, part[2])}" if part[2:] else ""
    return f"{modifier} <- {head}{label}"


def _item_text(annotation: LatentAnnotation, span: SpanStructure, part: Part) -> str:
    return _printable(annotation.doc, span.start + part[0])


def _tag_text(annotation: LatentAnnotation, span: SpanStructure, part: Part) -> str:
    return f"{_item_text(annotation, span, part)} {_name(span, part[1])}"


def _cell_text(annotation: LatentAnnotation, span: SpanStructure, part: Part) -> str:
    start = span.start if span.other_start is None else span.other_start
    other = _printable(annotation.doc, start + part[1])
    return f"{_item_text(annotation, span, part)} ~ {other}"


def _segment_text(annotation: LatentAnnotation, span: SpanStructure, part: Part) -> str:
    first, end, label = part
    words = _text(annotation.doc, span.start + first, span.start + end)
    return f"{_name(span, label)}  {words}"


def _bracket_text(annotation: LatentAnnotation, span: SpanStructure, part: Part) -> str:
    return _text(annotation.doc, span.start + part[0], span.start + part[1] + 1)


def _numbers(annotation: LatentAnnotation, span: SpanStructure, part: Part) -> str:
    """Return a part as its numbers, for parts without a known meaning.

    A single number that is a valid token index is shown with the word.
    """
    if len(part) == 1 and part[0] < len(span):
        return f"{part[0]} {_item_text(annotation, span, part)}"
    return " ".join(map(str, part))


complete_kind(PARTS, text=_lines, part_text=_numbers, heading=("", ""))
complete_kind(
    "heads",
    text=_tree,
    part_text=_arc_text,
    heading=("number of the token, token under its head", "probability of the arc"),
)
complete_kind("arcs", part_text=_arc_text, heading=("token <- its head", "probability of the arc"))
complete_kind(
    "items",
    text=_items,
    part_text=_item_text,
    heading=("chosen words in brackets", "probability of each"),
)
complete_kind(
    "tags",
    text=_tags,
    part_text=_tag_text,
    heading=("words, tag of each word", "probability of the tag"),
)
complete_kind(
    "cells",
    part_text=_cell_text,
    heading=("word ~ word of the other text", "probability of the pair"),
)
complete_kind(
    "segments",
    part_text=_segment_text,
    heading=("label, words of the segment", "probability of the segment"),
)
complete_kind(
    "spans",
    text=_brackets,
    part_text=_bracket_text,
    heading=("spans in round brackets", "probability of each span and its words"),
)


def _text(doc: Doc, start: int, end: int) -> str:
    return " ".join(_printable(doc, i) for i in range(start, end))


def _wrapped(words: list[str]) -> list[str]:
    if not words:
        return []
    lines: list[str] = []
    used = 0
    for word in " ".join(words).split(" "):
        width = columns(word)
        if lines and used + 1 + width <= LINE:
            lines[-1] += f" {word}"
            used += 1 + width
        else:
            lines.append(word)
            used = width
    return lines


def _name(span: SpanStructure, tag: int) -> str:
    labels = span.labels or ()
    return on_one_line(labels[tag]) if 0 <= tag < len(labels) else str(tag)


def _printable(doc: Doc, i: int) -> str:
    return on_one_line(doc[i].text)
