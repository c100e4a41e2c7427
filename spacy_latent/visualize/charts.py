"""Small charts as SVG, without scripts: histograms, bars with intervals, curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from spacy_latent.analysis.calibration import Bin
from spacy_latent.errors import number_of
from spacy_latent.visualize.elements import Markup, tag
from spacy_latent.visualize.text_size import text_width

# Colours of Okabe and Ito that colour-blind readers can distinguish. Black and yellow are left
# out, because the dark or the light theme hides them.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
# Font size of the text next to a line, as in report.css.
SMALL = 12
DASHES = (None, "6 3", "2 3", "8 3 2 3")


def histogram(counts: Sequence[int], low: str, high: str) -> Markup:
    """Return a histogram of the counts, with ``low`` and ``high`` at the ends of the axis."""
    top, width, height = max(counts, default=0) or 1, 8, 26
    bars = [
        tag(
            "rect",
            class_="bar",
            x=i * width,
            y=f"{height - height * count / top:.1f}",
            width=width - 1,
            height=f"{height * count / top:.1f}",
        )
        for i, count in enumerate(counts)
    ]
    full = len(counts) * width
    axis = [
        tag("path", class_="frame", d=f"M0,{height + 0.5}H{full}"),
        _text(low, 0, height + 13),
        _text(high, full, height + 13, "end"),
    ]
    description = f"histogram from {low} to {high}: {', '.join(map(str, counts))}"
    return tag(
        "svg", bars, axis, role="img", aria_label=description, width=full, height=height + 16
    )


def bar(share: float, low: float = math.nan, high: float = math.nan, other: bool = False) -> Markup:
    """Return a bar for a share of 1, with its interval."""
    width, height = 180, 16
    parts = [tag("rect", class_="frame", x=0.5, y=0.5, width=width, height=height - 1)]
    if math.isfinite(share):
        kind = "bar other" if other else "bar"
        length = width * min(1.0, max(0.0, share))
        parts.append(tag("rect", class_=kind, x=0.5, y=3, width=f"{length:.1f}", height=10))
    if math.isfinite(low) and math.isfinite(high) and high > low:
        a, b = (0.5 + width * min(1.0, max(0.0, end)) for end in (low, high))
        path = f"M{a:.1f},8H{b:.1f}M{a:.1f},4v8M{b:.1f},4v8"
        parts.append(tag("path", class_="whisker", d=path))
    return tag(
        "svg", parts, viewBox=f"0 0 {width + 1} {height}", class_="share", aria_hidden="true"
    )


def reliability_diagram(bins: Sequence[Bin]) -> Markup:
    """Return a diagram of the accuracy of predictions against their predicted probabilities.

    Each range of probabilities has a bar with its interval, and a point at the height that a
    calibrated model would reach.
    """
    size, left, below = 320, 44, 34
    parts = [
        tag("path", class_="frame", d=f"M{left},0V{size}H{left + size}"),
        tag("path", class_="frame", d=f"M{left},{size}L{left + size},0", stroke_dasharray="4 3"),
    ]
    for one in bins:
        if one.count:
            parts += _reliability_bar(one, size, left)
    for share in (0.0, 0.5, 1.0):
        across, up = left + size * share, size * (1 - share)
        shown = f"{100 * share:.0f} %"
        # The labels at the ends stay clear of the other axis and of the edge.
        anchor = "start" if share == 0.0 else "end" if share == 1.0 else "middle"
        parts.append(_text(shown, f"{across:.0f}", size + 14, anchor))
        parts.append(_text(shown, left - 6, f"{up + 4:.0f}", "end"))
    points = "; ".join(
        f"{one.count} said {one.said:.2f}, right {one.right:.2f}" for one in bins if one.count
    )
    wide, full = left + size + 24, size + below + 8
    return tag(
        "svg",
        parts,
        role="img",
        aria_label=f"reliability diagram: {points}",
        viewBox=f"0 -8 {wide} {full}",
        width=wide,
        height=full,
    )


def _reliability_bar(one: Bin, size: int, left: int) -> list[Markup]:
    x, width = left + size * one.low, size * (one.high - one.low)
    middle, top = x + width / 2, size * (1 - one.right)
    said = f"{one.count} said to be {one.said:.3f} probable, {one.right:.3f} of them right"
    low, high = (size * (1 - end) for end in (one.right_low, one.right_high))
    return [
        tag(
            "rect",
            tag("title", said),
            class_="bar",
            x=f"{x + 1:.1f}",
            y=f"{top:.1f}",
            width=f"{width - 2:.1f}",
            height=f"{size - top:.1f}",
        ),
        tag("path", class_="whisker", d=f"M{middle:.1f},{low:.1f}V{high:.1f}"),
        tag(
            "circle",
            class_="point",
            r=3.5,
            cx=f"{left + size * one.said:.1f}",
            cy=f"{size * (1 - one.said):.1f}",
        ),
        _text(str(one.count), f"{middle:.1f}", size + 28, "middle"),
    ]


def curves(title: str, steps: Sequence[float], lines: Mapping[str, Sequence[float]]) -> Markup:
    """Return lines over training steps, each with its name at its end; NaN leaves a point out."""
    width, height, left, below = 370, 190, 48, 30
    values = [value for line in lines.values() for value in line if math.isfinite(value)]
    low, high = min([0.0, *values]), max(values, default=1.0)
    high = high if high > low else low + 1.0
    last = max(steps, default=1.0) or 1.0

    def x(step: float) -> float:
        return left + (width - left) * step / last

    def y(value: float) -> float:
        return 8 + (height - 8) * (high - value) / (high - low)

    end = number_of(last, "step", "g")
    parts = [
        tag("path", class_="frame", d=f"M{left},8V{height}H{width}"),
        _text(_short(high), left - 6, 16, "end"),
        _text(_short(low), left - 6, height, "end"),
        _text("0", left, height + 16, "middle"),
        _text(end, width, height + 16, "end"),
    ]
    ends = []
    for i, (name, line) in enumerate(lines.items()):
        found = [(step, value) for step, value in zip(steps, line) if math.isfinite(value)]
        if not found:
            continue
        points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in found)
        parts.append(
            tag(
                "polyline",
                tag("title", name),
                class_="curve",
                points=points,
                stroke=COLOURS[i % len(COLOURS)],
                stroke_dasharray=DASHES[i // 2 % len(DASHES)] if i else None,
            )
        )
        ends.append((y(found[-1][1]), name, found[-1][1], COLOURS[i % len(COLOURS)]))
    names, at, margin = _names_of_curves(ends, width)
    parts += names
    full = max(height + below, at + 8)
    drawn = tag(
        "svg",
        parts,
        role="img",
        aria_label=f"{title}: "
        + "; ".join(f"{name} ends at {_short(v)}" for _, name, v, _ in ends),
        viewBox=f"0 0 {width + margin:.0f} {full:.0f}",
        width=f"{width + margin:.0f}",
        height=f"{full:.0f}",
    )
    return tag("figure", tag("figcaption", title), drawn, style="margin:0")


def _names_of_curves(
    ends: Sequence[tuple[float, str, float, str]], width: int
) -> tuple[list[Markup], float, float]:
    """Return the names at the ends of curves, the lowest position, and the margin on the right."""
    parts = []
    at, margin = -math.inf, 150.0
    for place, name, value, colour in sorted(ends):
        said = f"{name} {_short(value)}"
        margin = max(margin, 20 + text_width(said, SMALL))
        # Keep a distance between the names.
        at = max(place + 4, at + 16)
        line = f"M{width + 2},{place:.1f}L{width + 12},{at - 4:.1f}"
        parts.append(tag("path", d=line, stroke=colour))
        parts.append(_text(said, width + 16, f"{at:.1f}"))
    return parts, at, margin


def _text(shown: str, x: float | str, y: float | str, anchor: str | None = None) -> Markup:
    return tag("text", shown, class_="small", x=x, y=y, text_anchor=anchor)


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
