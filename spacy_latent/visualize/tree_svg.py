"""Trees and other arcs over a row of words."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf

import numpy as np

from spacy_latent.errors import number_of
from spacy_latent.visualize.arcs_svg import (
    CLEAR,
    LABEL,
    DrawnArc,
    clear_position,
    draw_arc,
    draw_label,
    ends_of,
    has_label,
    path_of_arc,
    root_label,
    said_of_arc,
    words_of_arc,
)
from spacy_latent.visualize.curves_svg import draw_curves, said_of_curves
from spacy_latent.visualize.drawing_options import DrawingOptions
from spacy_latent.visualize.legend import signs_of
from spacy_latent.visualize.markup import (
    element,
    listed,
    number,
    of_words,
    shortened,
    word_text,
)
from spacy_latent.visualize.nesting import crossing, levels
from spacy_latent.visualize.picture import Picture, folded, in_one_row, row_ends
from spacy_latent.visualize.text_size import text_width

WORD = 15
LINE = 22
# Trees grow with their depth up to the first height. Deeper trees have closer levels, up to the
# least distance that can be distinguished. No tree is higher than the second height.
HEIGHT = 330
HIGHEST = 4000
STEP = (4.0, 22.0)
# Below this distance, there is no space for labels between the levels.
STEP_WITH_LABELS = 13
# Distance between words, and between the ends of arcs at a word that has many arcs.
GAP = {False: 10.0, True: 6.0}
LEAST_SPACING = (6.0, 4.0)
# The CSS classes of words below arcs in displaCy.
TOKEN = "displacy-token displacy-word sl-ink"


def draw_tree(
    words: Sequence[str],
    arcs: Sequence[DrawnArc],
    options: DrawingOptions,
    title: str,
    below: Sequence[DrawnArc] = (),
    caption: str = "",
    weight: float | None = None,
    counters: np.ndarray | None = None,
) -> Picture:
    """Draw arcs from heads to modifiers above the words.

    The width and the darkness of an arc grow with its probability. An arc is higher than the arcs
    below it, and crossing arcs have different heights.

    Args:
        below: Arcs below the words, such as the arcs of a gold tree.
        counters: Counters to draw below the tree; see
            :func:`spacy_latent.visualize.curves_svg.draw_curves`.
    """
    above_words, below_words = _Side(arcs, -1, options), _Side(below, 1, options)
    columns = _Columns(words, [above_words, below_words], options)
    top = above_words.height + (options.word_spacing if arcs else 12)
    foot = top + LINE + (8 if not below else options.word_spacing + below_words.height)
    content = [
        *above_words.draw(columns, top - 3, words),
        *below_words.draw(columns, top + LINE, words),
        # Labels are drawn after all lines, so that they are on top.
        *above_words.labels(columns, top - 3),
        *below_words.labels(columns, top + LINE),
    ]
    for i, word in enumerate(words):
        attributes = {**options.word(), "class": TOKEN, "x": columns.centers[i], "y": top + WORD}
        if options.marked:
            attributes["data-word"] = i
        content.append(element("text", attributes, word_text(word)))
    curves, further = draw_curves(counters, columns.ends, columns.across, foot, options)
    content.append(curves)
    foot += further
    picture = Picture(
        "".join(content),
        title,
        _description(words, arcs, below) + said_of_curves(counters),
        (columns.across, foot),
        caption,
        weight,
        top,
        signs_of("arc", arcs, below) | ({"counters"} if further else set()),
    )
    return folded(picture, columns.ends, options)


class _Side:
    """Arcs on one side of the words, with the level of each.

    Args:
        up: −1 for arcs above the words, 1 for arcs below them.
    """

    def __init__(self, arcs: Sequence[DrawnArc], up: int, options: DrawingOptions) -> None:
        self.up, self.options = up, options
        self.arcs = [arc for arc in arcs if arc.head is not None and arc.head != arc.modifier]
        self.roots = [arc for arc in arcs if arc.head is None]
        intervals = [ends_of(arc) for arc in self.arcs]
        self.levels = levels(intervals)
        self.crossing = [*crossing(intervals), *(False for _ in self.roots)]
        self.highest = max(self.levels, default=0) + (1 if self.roots else 0)
        least, most = STEP
        count = max(self.highest, 1)
        self.step = min(most, max(min(least, HIGHEST / count), HEIGHT / count))
        # Order of the ends of arcs at each word, from left to right: arcs to the left, the lowest
        # first; arcs from the root; arcs to the right, the highest first. With this order no arcs
        # cross near the word.
        ports: dict[int, list[tuple[tuple[int, int], int]]] = defaultdict(list)
        for i, (arc, level) in enumerate(zip(self.arcs, self.levels)):
            start, end = ends_of(arc)
            ports[end].append(((0, level), i))
            ports[start].append(((2, -level), i))
        for i, arc in enumerate(self.roots):
            ports[arc.modifier].append(((1, 0), len(self.arcs) + i))
        self.ports = {word: [i for _, i in sorted(found)] for word, found in ports.items()}
        self.labelled = self.step >= STEP_WITH_LABELS
        # Arcs that need space for a label, by the word at their right end in reading order.
        self.ending: dict[int, list[int]] = defaultdict(list)
        for i, arc in enumerate(self.arcs if self.labelled else ()):
            if has_label(arc):
                self.ending[ends_of(arc)[1]].append(i)
        # Labels of several roots have the same height. By word: the arc and the width of its label.
        beside = self.roots if len(self.roots) > 1 else ()
        self.root_labels = {
            arc.modifier: (i, text_width(root_label(arc), LABEL))
            for i, arc in enumerate(beside, len(self.arcs))
        }

    @property
    def height(self) -> float:
        return self.highest * self.step + (LABEL if self.roots or self.labelled else 0)

    def turn(self, arc: int, base: float) -> float:
        """Return the height of the horizontal line of an arc, or of the start of a root's line."""
        level = self.levels[arc] if arc < len(self.arcs) else self.highest
        return base + self.up * (level * self.step + self.options.word_spacing - 14)

    def draw(self, columns: _Columns, base: float, words: Sequence[str]) -> list[str]:
        """Draw the arcs, whose ends are at the height ``base``."""
        up, options, drawn = self.up, self.options, []
        # The arcs that are drawn last are on top.
        order = sorted(
            range(len(self.arcs)), key=lambda i: (not self.arcs[i].faint, self.arcs[i].probability)
        )
        every = [*self.arcs, *self.roots]
        for i in [*order, *range(len(self.arcs), len(every))]:
            arc, turn = every[i], self.turn(i, base)
            tip = columns.port(self, arc.modifier, i)
            if arc.head is None:
                path = f"M{number(tip)},{number(turn)}V{number(base)}"
            else:
                path = path_of_arc(*self._sides(columns, i), base, turn, up)
            line = draw_arc(arc, path, tip, base, up, options, words, self.crossing[i])
            drawn.append(of_words(options.marked, words_of_arc(arc), line))
        return drawn

    def labels(self, columns: _Columns, base: float) -> list[str]:
        """Draw the labels, each on the outer side of its line.

        A label is at a place that no other line crosses, if there is such a place.
        """
        up, options = self.up, self.options
        # Vertical lines, with the height at which they turn.
        lines = [
            (x, self.turn(i, base)) for i in range(len(self.arcs)) for x in self._sides(columns, i)
        ]
        drawn = []
        for i, arc in enumerate(self.roots, len(self.arcs)):
            x, turn = columns.port(self, arc.modifier, i), self.turn(i, base)
            lines.append((x, turn))
            half = text_width(root_label(arc), LABEL) / 2 + 1
            x = max(half, min(columns.across - half, in_one_row(x, half + CLEAR, columns.breaks)))
            label = draw_label(root_label(arc), x, turn, up, arc.faint or arc.shared)
            drawn.append(of_words(options.marked, words_of_arc(arc), label))
        lines.sort()
        for i, arc in enumerate(self.arcs if self.labelled else ()):
            if has_label(arc):
                turn, (left, right) = self.turn(i, base), self._sides(columns, i)
                inside = lines[bisect_right(lines, (left, inf)) : bisect_left(lines, (right, -inf))]
                passing = [x for x, other in inside if up * other > up * turn]
                passing += [x for x in columns.breaks if left < x < right]
                half = text_width(arc.label, LABEL) / 2
                x = clear_position(left, right, half, passing)
                x = in_one_row(x, half + CLEAR, columns.breaks)
                label = draw_label(arc.label, x, turn, up, arc.faint)
                drawn.append(of_words(options.marked, words_of_arc(arc), label))
        return drawn

    def _sides(self, columns: _Columns, arc: int) -> tuple[float, float]:
        """Return the x coordinates of the ends of an arc, from left to right."""
        first, second = (columns.port(self, word, arc) for word in ends_of(self.arcs[arc]))
        return min(first, second), max(first, second)


class _Columns:
    """Positions of the words, of the ends of arcs at each word, and of the ends of rows."""

    def __init__(
        self, words: Sequence[str], sides: Sequence[_Side], options: DrawingOptions
    ) -> None:
        gap = GAP[options.compact]
        self.options = options
        self.spacing: list[float] = []
        self.centers: list[float] = []
        self.ends: list[float] = []
        x = options.offset_x
        for i, word in enumerate(words):
            most = max(len(side.ports.get(i, ())) for side in sides)
            shown = text_width(shortened(word), WORD)
            fitting = max(LEAST_SPACING[most > 10], shown / max(most, 1))
            spacing = min(options.arrow_spacing, fitting)
            across = max(shown, most * spacing, 14) + gap
            if options.distance is not None:
                across = max(across, options.distance)
            self.spacing.append(spacing)
            begin, end = self._root_label(sides, i)
            center = max([x + max(across / 2, -begin), *self._clear_of_labels(sides, i)])
            self.centers.append(center)
            x = center + max(across / 2, end)
            self.ends.append(x)
        self.across = x + options.offset_x
        self.centers = [options.x(center, self.across) for center in self.centers]
        self.breaks = [options.x(end, self.across) for end in row_ends(self.ends, options)]

    def port(self, side: _Side, word: int, arc: int) -> float:
        shift = self._shift(side, word, arc)
        return self.centers[word] + (-shift if self.options.rtl else shift)

    def _shift(self, side: _Side, word: int, arc: int) -> float:
        found = side.ports[word]
        return (found.index(arc) - (len(found) - 1) / 2) * self.spacing[word]

    def _clear_of_labels(self, sides: Sequence[_Side], word: int) -> Iterator[float]:
        """Yield the least positions of a word that leave space for the labels of arcs there."""
        for side in sides:
            for i in side.ending[word]:
                arc = side.arcs[i]
                other = ends_of(arc)[0]
                begin = self.centers[other] + self._shift(side, other, i)
                width = text_width(arc.label, LABEL) + 2 * CLEAR
                yield begin + width - self._shift(side, word, i)

    def _root_label(self, sides: Sequence[_Side], word: int) -> tuple[float, float]:
        """Return the start and the end of the word's root label, relative to the word's middle.

        The label is above the line to the root, which is not at the middle if the word has other
        arcs.
        """
        begin = end = 0.0
        for side in sides:
            if word in side.root_labels:
                root, wide = side.root_labels[word]
                shift = self._shift(side, word, root)
                begin = min(begin, shift - wide / 2 - CLEAR)
                end = max(end, shift + wide / 2 + CLEAR)
        return begin, end


def _description(words: Sequence[str], arcs: Sequence[DrawnArc], below: Sequence[DrawnArc]) -> str:
    said = listed(arcs, lambda arc: said_of_arc(arc, words))
    size, drawn = number_of(len(words), "word"), number_of(len(arcs), "arc")
    gold = f" Below them {number_of(len(below), 'gold arc')}." if below else ""
    return f"{size}, {drawn} from head to modifier: {said}.{gold}"
