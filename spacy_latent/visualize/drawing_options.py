"""Options of a drawing: the options of displaCy, and others."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any
from unicodedata import bidirectional

from spacy.tokens import Doc

from spacy_latent.errors import LatentError
from spacy_latent.visualize.legend import Part
from spacy_latent.visualize.palette import color_name, light, width

# Options of displaCy that these drawings ignore. A config may have them for both.
DISPLACY_OPTIONS = (
    "add_lemma",
    "collapse_phrases",
    "collapse_punct",
    "ents",
    "fine_grained",
    "kb_url_template",
    "span_label_offset",
    "spans_key",
    "template",
    "top_offset",
    "top_offset_step",
)
FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', Arial, sans-serif"
# spaCy's code of the multi-language class.
ANY = "xx"
# Values that match are safe: they cannot end an attribute or a declaration, nor load anything.
COLOR_PATTERN = re.compile(r"#[0-9A-Fa-f]{3,8}|[A-Za-z]+|(rgb|hsl)a?\([0-9.,%/ ]+\)")
FONT_PATTERN = re.compile(r"[\w\s,'-]+")


def settings_of(doc: Doc) -> dict[str, str]:
    """Return the language and the direction of writing of a doc, as displaCy determines them.

    In a multi-language pipeline, the majority of the letters determines the direction.
    """
    from spacy.displacy import get_doc_settings

    settings: dict[str, str] = get_doc_settings(doc)
    if settings["lang"] == ANY:
        letters = Counter(map(bidirectional, doc.text))
        right_to_left = letters["R"] + letters["AL"] > letters["L"]
        settings["direction"] = "rtl" if right_to_left else "ltr"
    return settings


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, Real) and math.isfinite(value))


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


@dataclass(frozen=True)
class DrawingOptions:
    """Options of a drawing. Options of displaCy have the same meaning.

    Attributes:
        threshold: Draw all parts with at least this probability, in place of the best structure.
        alternatives: Draw up to this many of the stored alternative structures, side by side.
        probabilities: Write probabilities next to the parts, if there is enough space.
        counters: Draw the counters of the scorer below trees and brackets, one curve for each.
        fold: Width in pixels at which drawings continue in a new row: tags, highlights in an SVG,
            and trees and brackets over more than 60 words.
        compact: Place the words closer to each other.
        color, bg: Colour of the text and of the background; None for the reader's light or dark
            scheme.
        font: Font, as in CSS.
        distance: Distance between words in pixels; None for the least possible distance.
        word_spacing: Distance between the arcs and the words.
        arrow_spacing: Distance between arcs at one word.
        arrow_width: Width of the arrow heads.
        arrow_stroke: Stroke width of arcs with probability 1.
        offset_x: Margin at the sides.
        colors: Colours of tags and labels, by name.
        ignore: Texts of words whose heads do not count when trees are compared with gold ones.
        direction, lang: Direction of writing and language of the doc.
        as_svg: Draw as SVG instead of HTML.
        marked: Mark words and parts in the markup, for scripts that select them; see
            :func:`spacy_latent.visualize.markup.of_words`.
    """

    threshold: float | None = None
    alternatives: int = 0
    probabilities: bool = True
    counters: bool = False
    fold: float = 900
    compact: bool = False
    color: str | None = None
    bg: str | None = None
    font: str = FONT
    distance: float | None = None
    word_spacing: float = 24
    arrow_spacing: float = 9
    arrow_width: float = 7
    arrow_stroke: float = 2.6
    offset_x: float = 16
    colors: Mapping[str, str] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    direction: str = "ltr"
    lang: str = "en"
    as_svg: bool = False
    marked: bool = False

    @classmethod
    def from_options(cls, options: Mapping[str, object] | None) -> DrawingOptions:
        """Return the settings of a drawing for a dict of options.

        Raises:
            LatentError: If an option is unknown or has an invalid value.
        """
        known = {entry.name for entry in fields(cls)} - {"direction", "lang", "as_svg", "marked"}
        given: dict[str, Any] = {
            name: value for name, value in (options or {}).items() if value is not None
        }
        unknown = sorted(given.keys() - known - set(DISPLACY_OPTIONS))
        if unknown:
            raise LatentError(
                f"Unknown option(s) of a drawing: {', '.join(map(repr, unknown))}. Expected "
                f"{', '.join(sorted(known))}, or an option of displaCy."
            )
        made = cls(**{name: value for name, value in given.items() if name in known})
        made._check()
        return made

    def of(self, settings: Mapping[str, str]) -> DrawingOptions:
        """Return the settings with a doc's language and direction of writing."""
        return replace(
            self, direction=settings.get("direction", "ltr"), lang=settings.get("lang", "en")
        )

    @property
    def rtl(self) -> bool:
        """True if words are written from right to left."""
        return self.direction == "rtl"

    def x(self, value: float, across: float) -> float:
        """Return the x coordinate of a position counted from the side where writing begins."""
        return across - value if self.rtl else value

    def line(self, part: Part, path: str, widest: float) -> dict[str, object]:
        """Return the attributes of a part's line; ``widest`` is the width at probability 1."""
        name = color_name(part.set_apart, part.shared)
        return {
            "class": f"sl-{name}-stroke",
            "d": path,
            "fill": "none",
            "stroke": self.color if self.color and name == "accent" else light(name),
            "stroke-width": width(part.probability, widest, part.shared),
            "stroke-dasharray": "5 3" if part.faint or part.set_apart else None,
        }

    def word(self, anchor: str = "middle") -> dict[str, object]:
        """Return the attributes of the text of a word, without its position."""
        return {
            "class": "displacy-word sl-ink",
            "fill": self.color or light("ink"),
            "text-anchor": anchor,
            "direction": self.direction,
        }

    def _check(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.type == "bool" and value not in (True, False):
                raise LatentError(f"{entry.name} is {value!r}; expected True or False.")
            if entry.type in ("float", "float | None", "int") and not _is_number(value):
                raise LatentError(f"{entry.name} is {value!r}; expected a number.")
        if not isinstance(self.colors, Mapping):
            raise LatentError(f"colors is {self.colors!r}; expected a dict of colours by name.")
        colors = {"color": self.color, "bg": self.bg, **self.colors}
        for name, color in colors.items():
            if color is not None and not _matches(COLOR_PATTERN, color):
                raise LatentError(
                    f"The colour of {name!r} is {color!r}; expected a name, #RRGGBB, rgb(...) or "
                    "hsl(...)."
                )
        if not _matches(FONT_PATTERN, self.font):
            raise LatentError(f"font is {self.font!r}; expected names of fonts with commas.")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise LatentError(f"threshold is {self.threshold}; expected a number in [0, 1].")
        if not isinstance(self.ignore, (list, tuple)):
            raise LatentError(f"ignore is {self.ignore!r}; expected a list, as [{self.ignore!r}].")
        if not isinstance(self.alternatives, Integral) or self.alternatives < 0:
            raise LatentError(f"alternatives is {self.alternatives}; expected a number >= 0.")
        if not self.fold > 0:
            raise LatentError(f"fold is {self.fold!r}; expected a width in pixels above 0.")
