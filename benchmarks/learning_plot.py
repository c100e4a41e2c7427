"""Draw the scores of a group of configs, with a row for each config and a dot for each seed.

If there are controls, a band over the rows of the same task spans the scores of all their seeds. A
score inside of the band is no gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean

from spacy_latent.visualize.markup import element, text
from spacy_latent.visualize.palette import light, variables
from spacy_latent.visualize.text_size import text_width

DRAWINGS = Path(__file__).parents[1] / "docs" / "images"
SIZE, ROW, MARGIN, PLOT, RADIUS = 13, 22, 12, 420, 4
# Largest range of scores and the distance of its ticks, both in percent.
TICKS = ((8, 1), (20, 2), (50, 5), (101, 10), (math.inf, 100))
# color-scheme also sets the background if a browser shows the picture alone.
STYLE = (
    f"svg{{color-scheme:light dark;{variables(False)}}}"
    f"@media (prefers-color-scheme:dark){{svg{{{variables(True)}}}}}"
)


def color(name: str) -> str:
    return f"var(--sl-{name},{light(name)})"


def drawing(
    title: str,
    figure: str,
    rows: Mapping[str, Sequence[float]],
    controls: set[str],
    tasks: Mapping[str, str] | None = None,
) -> str:
    """Return a drawing as SVG.

    Args:
        title: title of the drawing.
        figure: name of the score.
        rows: scores of each seed, at least one, by the name of the row.
        controls: names of rows that are controls.
        tasks: task of each row. Rows of a task must be neighbours. Without it, all rows have the
            same task.
    """
    shares = {name: [100 * value for value in values] for name, values in rows.items()}
    everything = [share for values in shares.values() for share in values]
    least, most = min(everything), max(everything)
    step = next(size for spread, size in TICKS if most - least <= spread)
    last = step * max(math.ceil(most / step), 1)
    first = min(step * math.floor(least / step), last - step)
    left = MARGIN + max(text_width(name, SIZE) for name in shares) + MARGIN
    bottom = MARGIN + ROW * len(shares)

    def x(share: float) -> float:
        return left + PLOT * (share - first) / (last - first)

    parts = []
    above = 0
    for _, names in groupby(shares, key=lambda name: (tasks or {}).get(name)):
        own = list(names)
        known = [share for name in own if name in controls for share in shares[name]]
        if known:
            # With a single score, the band is as wide as a dot.
            start, end = x(min(known)) - RADIUS, x(max(known)) + RADIUS
            band = {"x": start, "y": MARGIN + ROW * above}
            band |= {"width": end - start, "height": ROW * len(own)}
            parts.append(element("rect", {**band, "fill": color("line"), "fill-opacity": 0.6}))
        above += len(own)
    for tick in range(int(first), int(last) + 1, step):
        place = {"x1": x(tick), "x2": x(tick), "y1": MARGIN, "y2": bottom}
        parts.append(element("line", {**place, "stroke": color("line")}))
        parts.append(_text(x(tick), bottom + ROW - 6, str(tick), "middle"))
    for row, (name, values) in enumerate(shares.items()):
        y = MARGIN + ROW * (row + 0.5)
        ink = color("contrast" if name in controls else "accent")
        parts.append(_text(left - MARGIN, y + SIZE / 3, name, "end"))
        if len(values) > 1:
            place = {"x1": x(mean(values)), "x2": x(mean(values)), "y1": y - 8, "y2": y + 8}
            parts.append(element("line", {**place, "stroke": ink, "stroke-width": 2}))
        for share in values:
            dot = {"cx": x(share), "cy": y, "r": RADIUS, "fill": ink, "fill-opacity": 0.7}
            parts.append(element("circle", dot))
    parts.append(_text(left + PLOT / 2, bottom + 2 * ROW - 8, f"{figure}, %", "middle"))
    width, height = round(left + PLOT + 2 * MARGIN), round(bottom + 2 * ROW)
    size = {"width": width, "height": height, "viewBox": f"0 0 {width} {height}"}
    given = {"xmlns": "http://www.w3.org/2000/svg", "role": "img", **size}
    font = {"font-family": "system-ui, sans-serif", "font-size": SIZE}
    head = [element("title", None, text(f"{title}: {figure}")), element("style", None, STYLE)]
    return element("svg", {**given, **font}, *head, *parts) + "\n"


def _text(x: float, y: float, content: str, anchor: str) -> str:
    place = {"x": x, "y": y, "text-anchor": anchor, "fill": color("ink")}
    return element("text", place, text(content))


def write_drawing(
    name: str,
    title: str,
    figure: str,
    rows: Mapping[str, Sequence[float]],
    controls: set[str],
    tasks: Mapping[str, str] | None = None,
    folder: Path = DRAWINGS,
) -> str:
    """Write a drawing, and return the line with which the page of results shows it."""
    band = "; the band is what controls of the same task reach"
    said = "a dot for each seed" + (band if controls else "")
    path = folder / f"{name}.svg"
    path.write_text(drawing(title, figure, rows, controls, tasks), encoding="utf8")
    return f"![{figure} of each config, {said}](../../docs/images/{path.name})"
