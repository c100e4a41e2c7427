"""Gallery of the docs of a report, which the script of the report draws, searches and sorts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from spacy.tokens import Doc
from spacy.training import Example

from spacy_latent.analysis import structures
from spacy_latent.analysis.task import best_category, gold_label
from spacy_latent.annotations import SpanStructure, probability_of_parts
from spacy_latent.errors import number_of
from spacy_latent.evaluation.assessment import Assessment
from spacy_latent.kinds import find_kind
from spacy_latent.visualize.drawing_options import settings_of
from spacy_latent.visualize.elements import Markup, data_block, inert_json, tag

# Greatest size of the gallery in bytes, so that the page stays below 5 MB.
GALLERY_BYTES = 4_300_000


def render_gallery(assessment: Assessment, max_bytes: int = GALLERY_BYTES) -> Markup:
    """Return the gallery section of the report.

    The gallery of a corpus of more than ``max_bytes`` holds docs at equal distances.
    """
    parts = assessment.figures.components
    layers = [{"name": name, "kind": find_kind(parts[name].kind).gallery} for name in parts]
    count = len(assessment.examples)
    entries = [_entry(assessment, d, list(parts)) for d in range(count)]
    # 8 bytes for the number of the doc and the commas.
    sizes = [len(inert_json(entry).encode("utf8")) + 8 for entry in entries]
    kept = list(range(count))
    while sum(sizes[d] for d in kept) > max_bytes and len(kept) > 1:
        fewer = max(1, min(len(kept) - 1, int(len(kept) * max_bytes / sum(sizes[d] for d in kept))))
        kept = [int(d) for d in np.linspace(0, count - 1, fewer)]
    note = None
    if len(kept) < count:
        note = tag(
            "p",
            f"The gallery holds {len(kept):,} of the {number_of(count, 'doc', ',')}, at equal "
            "distances in the corpus, to keep the page small. All figures above are of all docs.",
            class_="soft",
        )
    data = {
        "layers": layers,
        "numbers": [d + 1 for d in kept],
        "docs": [entries[d] for d in kept],
        "rtl": [place for place, d in enumerate(kept) if _from_right(assessment.examples[d])],
    }
    has_gold = any(heads is not None for heads in assessment.heads)
    has_score = any(math.isfinite(score) for score in assessment.scores)
    return tag(
        "section",
        tag("h2", "Gallery"),
        note,
        tag("noscript", tag("p", "Drawings need JavaScript. Everything above does not.")),
        _controls(assessment, layers, has_gold, has_score),
        _legend(layers, has_gold),
        tag("div", id="docs"),
        tag("p", id="end", class_="soft"),
        data_block("gallery-data", data),
        id="gallery",
    )


def _from_right(example: Example) -> bool:
    """Return whether a doc is written from right to left."""
    return settings_of(example.predicted)["direction"] == "rtl"


def _orders(
    assessment: Assessment, layers: list[dict[str, str]], has_gold: bool, has_score: bool
) -> list[tuple[str, str]]:
    """Return the names and labels of the orders of docs."""
    sorts = [("corpus", "order of the corpus"), ("length", "length")]
    if has_score:
        sorts.append(("score", "score"))
    if any(example.predicted.cats for example in assessment.examples):
        sorts.append(("confidence", "probability of the label"))
    if any(
        math.isfinite(sure.nats)
        for known in assessment.uncertainties
        for values in known.values()
        for sure in values
    ):
        sorts.append(("entropy", "entropy"))
    if any("depth" in find_kind(layer["kind"]).columns for layer in layers):
        sorts.append(("depth", "depth"))
    if has_gold and any(_has_heads(layer["kind"]) for layer in layers):
        sorts.append(("agreement", "agreement with the reference"))
    return sorts


def _controls(
    assessment: Assessment, layers: list[dict[str, str]], has_gold: bool, has_score: bool
) -> Markup:
    sorts = _orders(assessment, layers, has_gold, has_score)
    shows = [("all", "all docs"), ("right", "right ones"), ("wrong", "wrong ones")]
    names = [(i, layer["name"]) for i, layer in enumerate(layers)]
    return tag(
        "div",
        tag("label", "Search", tag("input", id="query", type="search", placeholder="words")),
        _choice("Show", "show", shows) if has_score else None,
        _choice("Sort by", "sort", sorts),
        tag("button", "↑ rising", id="down", type="button", aria_pressed="false"),
        _choice("Layer", "layer", names) if len(layers) > 1 else None,
        tag(
            "label",
            tag("span", "Zoom ", tag("span", "100 %", id="percent")),
            tag("input", id="zoom", type="range", min=50, max=250, step=10, value=100),
        ),
        tag(
            "label",
            tag("input", id="gold", type="checkbox", checked=True),
            "reference below",
            class_="inline",
        )
        if has_gold
        else None,
        tag("span", id="status", role="status", class_="soft"),
        class_="controls",
        role="search",
    )


def _choice(label: str, name: str, options: Sequence[tuple[object, str]]) -> Markup:
    chosen = [tag("option", text, value=value) for value, text in options]
    return tag("label", label, tag("select", chosen, id=name))


def _legend(layers: list[dict[str, str]], has_gold: bool) -> Markup | None:
    if not any(_has_heads(layer["kind"]) for layer in layers):
        return None
    leads = (
        "Arrows lead from a head to a word that depends on it; above them, how probable they are."
    )
    if not has_gold:
        return tag("p", leads, class_="legend")
    return tag(
        "p",
        leads,
        tag("span", class_="key"),
        "head as in the reference",
        tag("span", class_="key differs"),
        "another head",
        tag("span", class_="key gold"),
        "reference, below the words",
        class_="legend",
    )


def _entry(assessment: Assessment, d: int, layers: Sequence[str]) -> list[Any]:
    """Return the data of a doc that report.js reads."""
    example, score = assessment.examples[d], assessment.scores[d]
    doc, gold = example.predicted, assessment.heads[d]
    words = [token.text for token in doc]
    apart = any(" " in word or not word for word in words)
    # Only of the first classifier: the best label over several classifiers would mean nothing.
    predicted, annotated = (
        {key: value for key, value in cats.items() if key not in assessment.further_categories}
        for cats in (doc.cats, example.reference.cats)
    )
    label = best_category(predicted) if predicted else None
    value = math.nan if label is None else predicted[label]
    if label is not None and (assessment.are_numbers or value < 0 or value > 1):
        # A number is no probability, not even one between 0 and 1.
        label, value = f"{label} {value:.4g}", math.nan
    return [
        words if apart else " ".join(words),
        gold_label(annotated) if annotated else None,
        label,
        _whole_percent(value) if math.isfinite(value) else None,
        round(score, 3) if math.isfinite(score) else None,
        None if gold is None else gold.tolist(),
        [_entry_of_layer(assessment, d, doc, name) for name in layers],
    ]


def _entry_of_layer(assessment: Assessment, d: int, doc: Doc, name: str) -> list[Any]:
    annotation = doc._.latent.get(name)
    if annotation is None:
        return [[], None, None, None]
    drawn = [[s.start, s.end, _decoded(s), _percents(s), *_other(s)] for s in annotation.spans]
    sure = assessment.uncertainties[d].get(name) or ()
    nats = sum(one.nats for one in sure) / len(doc) if len(doc) and sure else math.nan
    rows = [structures.structure_statistics(span) for span in annotation.spans]
    depth = max((row["depth"] for row in rows if "depth" in row), default=None)
    gold, agreement = assessment.heads[d], None
    if gold is not None and annotation.spans and _has_heads(annotation.spans[0].kind):
        known = (gold >= 0) & [token.text not in assessment.ignore for token in doc]
        if known.any():
            agreement = _whole_percent(float((annotation.heads == gold)[known].mean()))
    return [
        drawn,
        round(nats, 3) if math.isfinite(nats) else None,
        None if depth is None else int(depth),
        agreement,
    ]


def _decoded(span: SpanStructure) -> list[Any]:
    """Return the decoded structure as nested lists, with rows of one number as that number."""
    decoded = np.asarray(span.decoded)
    return (decoded[:, 0] if decoded.ndim == 2 and decoded.shape[1] == 1 else decoded).tolist()


def _other(span: SpanStructure) -> list[int]:
    """Return the bounds of the text that this one is aligned with."""
    if span.other_start is None or span.other_end is None:
        return []
    return [span.other_start, span.other_end]


def _percents(span: SpanStructure) -> list[int] | None:
    """Return the probabilities of the parts of the best structure, in percent."""
    known = probability_of_parts(span.parts, span.probabilities)
    if known is None:
        return None
    parts = find_kind(span.kind).parts(span.decoded)
    return [_whole_percent(known.get(part, 0.0)) for part in parts]


def _has_heads(kind: str) -> bool:
    """Return whether structures of this kind can be compared with the heads of references."""
    return "heads" in find_kind(kind).accessors


def _whole_percent(share: float) -> int:
    return round(100 * share) if math.isfinite(share) else 0
