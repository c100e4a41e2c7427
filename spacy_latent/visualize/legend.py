"""Legend of the lines and colours of drawings: one legend for all drawings of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from spacy_latent.visualize.elements import Markup, tag
from spacy_latent.visualize.palette import ORANGE, tinted

RULES = f"""
.sl-legend{{display:flex;flex-wrap:wrap;gap:.15rem 1.4rem;margin:.2rem 0 1rem;padding:0;
list-style:none;color:var(--sl-muted);font-size:13px}}
.sl-legend li{{display:flex;align-items:center;gap:.5em;margin:0}}
.sl-key-number{{color:var(--sl-ink)}}
.sl-key{{flex:none;box-sizing:border-box;width:30px;height:10px;border:0 solid var(--sl-accent)}}
.sl-key-arc{{border-width:2px 2px 0;border-radius:4px 4px 0 0}}
.sl-key-bracket{{border-width:0 2px 2px}}
.sl-key-pair{{height:3px;background:var(--sl-accent)}}
.sl-key-cell{{width:10px;background:var(--sl-accent);border:1.5px solid var(--sl-ink)}}
.sl-key-mark{{background:{tinted(ORANGE, 0.55)};border-bottom:2px solid {ORANGE}}}
.sl-key-line{{height:0;border-top-width:1.5px}}
.sl-key-dashed{{border-style:dashed}}
.sl-key-tag{{border:1.5px dashed var(--sl-ink);border-radius:3px}}
.sl-key-muted{{border-color:var(--sl-muted);border-top-width:1px}}
.sl-key-contrast{{border-color:var(--sl-contrast)}}
@media print{{.sl-key{{print-color-adjust:exact}}}}
"""
# By name: the CSS classes of a sample, or a text in quotation marks as the sample, and the meaning.
# Legends keep this order.
SIGNS: Mapping[str, tuple[str, str]] = {
    "arc": ("arc", "from a head to a word that depends on it"),
    "bracket": ("bracket", "words that belong together"),
    "pair": ("pair", "words that correspond"),
    "cell": ("cell", "the stronger the colour, the more probable; framed: in the best structure"),
    "mark": ("mark", "chosen words; the stronger the colour, the more probable"),
    "other mark": ("line dashed", "words that were not chosen, but are probable"),
    "explaining mark": ("mark", "marked words; the stronger the colour, the greater the number"),
    "kept mark": ("line dashed", "words that some draws of the mask keep, but that are not needed"),
    "shared mark": ("line dashed", "words that are chosen in the first drawing, too"),
    "other tag": ("tag", "a tag other than that of the best sequence"),
    "number": ("'0.62'", "probability; lines of more probable parts are wider and stronger"),
    "faint": ("line dashed", "probable, but not in the best structure"),
    "shared": ("line muted", "as in the first drawing"),
    "differs": ("line dashed contrast", "not in the first drawing"),
    "below": ("", "above the words: the latent tree; below them: the gold tree"),
    "unlike gold": ("line dashed contrast", "only one of the two trees has it"),
    "rows": (
        "",
        "lines that end at the side of a row continue in the next row, at the same height",
    ),
    "counters": ("", "curves: the counters of the scorer, after each word"),
}


class Part(Protocol):
    """Drawn part of a structure: an arc, a bracket or similar."""

    @property
    def label(self) -> str:
        """Text at the part, such as its probability; "" for none."""

    @property
    def name(self) -> str:
        """The text without the probability."""

    @property
    def probability(self) -> float:
        """Probability, by which lines are wider and stronger; 1 if it is unknown."""

    @property
    def faint(self) -> bool:
        """True if the part is probable, but not in the best structure."""

    @property
    def set_apart(self) -> bool:
        """True if the structure that is drawn for comparison lacks the part."""

    @property
    def shared(self) -> bool:
        """True if the drawing next to it has the same part."""


def signs_of(name: str, parts: Iterable[Part], below: Iterable[Part] = ()) -> frozenset[str]:
    """Return the names in :data:`SIGNS` that a drawing of these parts needs.

    Args:
        name: Name of the sign for a plain part.
        below: Parts of a gold structure, below the words.
    """
    above, gold = list(parts), list(below)
    found = {
        name: bool(above),
        "number": any(part.label != part.name for part in above if not part.shared),
        "faint": any(part.faint for part in above),
        "shared": any(part.shared for part in above),
        "differs": not gold and any(part.set_apart for part in above),
        "below": bool(gold),
        "unlike gold": bool(gold) and any(part.set_apart for part in (*above, *gold)),
    }
    return frozenset(sign for sign, there in found.items() if there)


def legend(signs: Iterable[str]) -> Markup:
    """Return an HTML list of these signs, empty without signs."""
    asked = set(signs)
    items = [
        tag("li", _sample(sample), meaning)
        for name, (sample, meaning) in SIGNS.items()
        if name in asked
    ]
    return tag("ul", items, class_="sl-legend", aria_label="Legend") if items else Markup("")


def _sample(sample: str) -> Markup | None:
    if not sample:
        return None
    if sample.startswith("'"):
        return tag("span", sample.strip("'"), class_="sl-key-number")
    names = " ".join(f"sl-key-{name}" for name in sample.split())
    return tag("span", class_=f"sl-key {names}", aria_hidden="true")
