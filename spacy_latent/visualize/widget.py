"""Predictions for a text, and counterfactual predictions for each part of its structure.

The result is shown in a notebook or as a page. Everything is computed in advance, so that the page
can be stored and sent. The page loads nothing. Without scripts, everything works except for
pointing at words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spacy.language import Language

from spacy_latent.errors import LatentError, NothingLeft, number_of
from spacy_latent.interventions import Intervention
from spacy_latent.pipeline.inspection import reads_pairs
from spacy_latent.visualize.drawing_options import settings_of
from spacy_latent.visualize.elements import Markup, script_page, tag
from spacy_latent.visualize.explorer import (
    Explorer,
    Limits,
    PredictedPart,
    PredictedStructure,
    Prediction,
)
from spacy_latent.visualize.page import own_identifiers, packaged, rules

# Greatest height of a frame in a notebook in pixels. Longer content scrolls.
HIGHEST = 900
ROW = 34
# Number of characters of the text in the heading.
SHOWN = 300
MEANING = (
    "What if? Each line forbids one part, or forces one that the structure lacks. It shows the new "
    "prediction, and the change of its probability in points. Open it to see the structure."
)
SCRIPT = """
for (const node of document.querySelectorAll(".structure")) {
  const drawing = node.querySelector(".drawing");
  let word;
  const standing = standOut(node, drawing, () => (word === undefined ? [] : [word]), (other) => {
    word = other === word ? undefined : other;
    standing.show();
  });
}
"""
RULES = """
:root{color-scheme:light dark}html{background:Canvas}
body.spacy-latent{margin:0;min-height:100vh;box-sizing:border-box;padding:.6rem 1rem}
body{font:15px/1.45 system-ui,-apple-system,"Segoe UI","Noto Sans",
"DejaVu Sans",sans-serif}
h1{font-size:1.05rem;margin:.2rem 0}h2{font-size:1rem;margin:1rem 0 .2rem;overflow-wrap:anywhere}
p{margin:.3rem 0;overflow-wrap:anywhere}.soft{color:var(--sl-muted);font-size:.875rem}
summary{cursor:pointer;padding:.25rem 0;overflow-wrap:anywhere;
border-bottom:1px solid var(--sl-line)}
summary:focus-visible{outline:3px solid var(--sl-accent)}
details>div{padding-inline-start:1rem;border-inline-start:3px solid var(--sl-accent);margin:.3rem 0}
b.changed{color:var(--sl-contrast)}
"""


@dataclass(frozen=True)
class Widget:
    """Page that a notebook shows in an isolated frame, with the frame's height in pixels."""

    page: str
    height: int

    def _repr_html_(self) -> str:
        # The frame may only run its own script. Frame and notebook cannot access each other.
        return tag(
            "iframe",
            srcdoc=self.page,
            sandbox="allow-scripts",
            title="Latent structures",
            width="100%",
            height=self.height,
            style="border:0;resize:vertical",
        )

    def save(self, path: str | Path) -> Path:
        """Write the page to a file and return its path."""
        path = Path(path)
        path.write_text(self.page, encoding="utf8")
        return path


def explore(
    nlp: Language,
    text: str | Sequence[str],
    component: str | None = None,
    *,
    most: int = 60,
    limits: Limits | None = None,
) -> Widget:
    """Return the predictions of a pipeline for a text, and counterfactual predictions.

    Each counterfactual prediction forbids a part of the best structure, or forces another part.
    Pointing at a word highlights its parts.

    Args:
        text: A text, or two texts for a pipeline that reads pairs.
        component: Name that the structures are stored under; None for all structures.
        most: Greatest number of parts to try. Each part needs one prediction. Parts of the best
            structures come first.

    Raises:
        LatentError: If the text is too long, see :class:`~spacy_latent.visualize.explorer.Limits`;
            if the number of texts does not match the pipeline; or if the component has no
            structures.
    """
    texts = [text] if isinstance(text, str) else list(text)
    explorer = Explorer(nlp, pairs=reads_pairs(nlp), alternatives=0, limits=limits)
    seen = explorer.predict(texts)
    structures = [one for one in seen.structures() if component in (None, one.key)]
    if component is not None and not structures:
        there = ", ".join(dict.fromkeys(one.key for one in seen.structures())) or "nothing"
        raise LatentError(f"There is no structure of {component!r} on the text; it has {there}.")
    tried, shown = 0, []
    for one in structures:
        parts = one.parts()
        left = 0 if one.why_not else max(0, most - tried)
        shown.append(_structure(one, texts, parts[:left], len(parts)))
        tried += min(left, len(parts))
    return Widget(_page(seen, shown), min(HIGHEST, 150 + 260 * len(structures) + ROW * tried))


def _structure(
    one: PredictedStructure, texts: Sequence[str], parts: Sequence[PredictedPart], count: int
) -> Markup:
    rows = [_counterfactual(one, texts, part) for part in parts]
    note = one.why_not and f"This structure cannot be edited: {one.why_not}."
    if not note and len(parts) < count:
        note = f"{len(parts)} of {number_of(count, 'part')} were tried."
    return tag(
        "section",
        tag("h2", f"{one.span.structure} of {one.key}"),
        tag("div", Markup(one.drawing()), class_="drawing"),
        tag("p", MEANING, class_="soft") if rows else None,
        rows,
        tag("p", note, class_="soft") if note else None,
        class_="structure",
    )


def _counterfactual(one: PredictedStructure, texts: Sequence[str], part: PredictedPart) -> Markup:
    seen = one.seen
    place = ((one.span.start, part.part),)
    asked = Intervention(forbidden=place) if part.chosen else Intervention(forced=place)
    known = "" if part.probability is None else f" ({_percent(part.probability)})"
    begun = [tag("bdi", part.description), f"{known}, {'forbidden' if part.chosen else 'forced'}: "]
    try:
        other = seen.pipeline.predict(texts, {one.key: asked})
    except NothingLeft:
        return tag("p", begun, "no structure is left")
    same = next((s for s in other.structures() if s.place == one.place), None)
    drawing = Markup("" if same is None else same.drawing())
    changed = _best(seen) != _best(other)
    outcome = _said(other, seen)
    return tag(
        "details",
        tag("summary", begun, tag("b", outcome, class_="changed") if changed else outcome),
        tag("div", drawing),
    )


def _best(seen: Prediction) -> object:
    """Return the prediction without its confidence."""
    best = seen.cats[0][0] if seen.cats else None
    return best, [(words, label) for words, label, _ in seen.entities]


def _said(seen: Prediction, before: Prediction | None = None) -> str:
    """Return the prediction in words, with the change of its score from another prediction."""
    outcomes = []
    if seen.cats:
        label, p = seen.cats[0]
        outcomes.append(f"{label} {_percent(p)}")
        if before is not None:
            change = p - before.doc.cats[label]
            shown = f"{100 * change:+.1f}" if 0 <= p <= 1 else f"{change:+.4g}"
            outcomes[-1] += f" ({shown.replace('-', '−')})"
    for words, label, sure in seen.entities:
        outcomes.append(f"{words} {label}" + ("" if sure is None else f" {_percent(sure)}"))
    return "; ".join(outcomes) or "no category and no entity"


def _percent(p: float) -> str:
    # A regression predicts no probability.
    return f"{100 * p:.1f} %" if 0 <= p <= 1 else f"{p:.4g}"


def _page(seen: Prediction, structures: Sequence[Markup]) -> str:
    drawn = Markup(own_identifiers("".join(structures)))
    script = packaged("isolate.js") + SCRIPT
    text = seen.doc.text
    return script_page(
        "Latent structures",
        rules() + packaged("isolate.css") + RULES,
        script,
        tag("h1", tag("bdi", text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")),
        tag("p", "Predicted: ", tag("b", _said(seen))),
        drawn,
        # The sentences are English. Drawings have the direction of the text.
        lang=settings_of(seen.doc)["lang"],
        class_="spacy-latent",
    )
