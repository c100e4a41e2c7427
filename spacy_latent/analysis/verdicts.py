"""Whether a structure is trivial, in words.

The input are figures of one component as :func:`spacy_latent.pipeline.assessment.assess` makes them
(plain numbers), so that every sentence can be traced to a number of the report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["warning", "note", "good"]

# Shares from which on a structure counts as nearly the same as something that needs no learning.
NEARLY = 0.9
# Of tokens whose head is told by the text's length alone.
BY_LENGTH = 0.95
# Of the entropy of a uniform choice.
UNDECIDED = 0.9
# A drop of less than one point of a hundred is as good as none.
SMALL = 0.01
# With an interval that holds 0 and ends below this, there is no sign of a use.
NO_SIGN = 0.03
# Fewer texts than this tell little.
FEW = 50


@dataclass(frozen=True)
class Verdict:
    """level: "warning" of a trivial structure, "note" of what limits the report, "good" otherwise.
    code: a name for scripts. text: a sentence."""

    level: Level
    code: str
    text: str


def verdicts(figures: Mapping[str, Any]) -> list[Verdict]:
    """All that is to be said of one component, warnings first. Never empty: without any warning
    there is a sentence that says so, and what it rests on."""
    found: list[Verdict] = []
    for judge in (_of_shape, _of_controls, _of_length, _of_use, _of_entropy, _of_agreement):
        found += judge(figures)
    warnings = [verdict for verdict in found if verdict.level == "warning"]
    notes = [verdict for verdict in found if verdict.level == "note"]
    good = [verdict for verdict in found if verdict.level == "good"]
    if warnings:
        return warnings + notes + good
    text = f"the {figures['plural']} are no copy of a simple pattern"
    if any(verdict.code == "used" for verdict in good):
        text = f"No sign of triviality: {text}, and the task suffers without them."
        return [Verdict("good", "not-trivial", text), *good, *notes]
    text = f"{text[0].upper()}{text[1:]}"
    if any(verdict.code == "used-little" for verdict in notes):
        text += ", but the task hardly needs them."
    elif figures.get("random"):
        text += ". Whether the task needs them cannot be told."
    else:
        text += (
            ". Whether the task needs them was not tested: that takes references, and runs with "
            f"random {figures['plural']}."
        )
    return [Verdict("note", "not-trivial", text), *notes, *good]


def trivial(found: list[Verdict]) -> bool:
    return any(verdict.level == "warning" for verdict in found)


def percent(share: float) -> str:
    """0.937 is "94 %", 0.003 is "0.3 %"; never 0 or 100 for what is neither."""
    points = 100 * share
    if 0 < points < 0.05:
        return "under 0.1 %"
    if 99.95 <= points < 100:
        return "over 99.9 %"
    digits = 0 if 1 <= points <= 99 or points in (0.0, 100.0) else 1
    return f"{points:.{digits}f} %"


def points(share: float) -> str:
    """A difference of scores in points of a hundred, with a real minus."""
    return f"{100 * share:.1f}".replace("-", "−").replace("−0.0", "0.0")


def _mean(figures: Mapping[str, Any], name: str) -> float:
    return figures.get("statistics", {}).get(name, {}).get("mean", math.nan)


def _of_shape(figures: Mapping[str, Any]) -> list[Verdict]:
    kind, found = figures["kind"], []
    if kind == "heads" and figures.get("flat_share", math.nan) >= NEARLY:
        found.append(
            Verdict(
                "warning",
                "flat",
                f"Trees are nearly flat: {percent(figures['flat_share'])} of the tokens are roots "
                "or hang on one.",
            )
        )
    rate = _mean(figures, "rate")
    if kind == "items" and rate >= 0.98:
        found.append(
            Verdict("warning", "all-chosen", f"Nearly everything is chosen: {percent(rate)}.")
        )
    if kind == "items" and rate <= 0.02:
        found.append(
            Verdict("warning", "none-chosen", f"Nearly nothing is chosen: {percent(rate)}.")
        )
    shares = figures.get("tag_shares") or {}
    if shares and max(shares.values()) >= NEARLY:
        tag = max(shares, key=lambda name: (shares[name], name))
        found.append(
            Verdict(
                "warning",
                "one-tag",
                f"Tag {tag} covers {percent(shares[tag])} of the tokens: the tags tell nothing.",
            )
        )
    if kind == "segments":
        length, tokens = _mean(figures, "segment length"), _mean(figures, "tokens")
        if length <= 1.02:
            found.append(
                Verdict("warning", "single-tokens", "Nearly every segment is a single token.")
            )
        elif tokens >= 3 and length >= NEARLY * tokens:
            found.append(
                Verdict("warning", "one-segment", "Nearly every text is a single segment.")
            )
    if kind == "cells" and _mean(figures, "diagonal") >= NEARLY:
        found.append(
            Verdict(
                "warning",
                "diagonal",
                f"The alignment is the text order: {percent(_mean(figures, 'diagonal'))} of its "
                "cells are on the diagonal.",
            )
        )
    if kind == "cells" and _mean(figures, "coverage") <= 0.02:
        found.append(Verdict("warning", "none-aligned", "Nearly nothing is aligned."))
    if kind == "arcs" and _mean(figures, "arcs per token") <= 0.02:
        found.append(Verdict("warning", "no-arcs", "The graphs have nearly no arcs."))
    return found


_CONTROL_WORDS = {
    ("heads", "left-branching"): "Every tree is nearly a left-branching chain: {share} of the "
    "tokens hang on the token after them.",
    ("heads", "right-branching"): "Every tree is nearly a right-branching chain: {share} of the "
    "tokens hang on the token before them.",
    ("heads", "flat"): "Trees are nearly flat: {share} of the tokens hang on the first one.",
    ("heads", "balanced"): "Every tree is nearly the balanced one, which looks at no word: {share} "
    "of the heads are its.",
    ("heads", "nearest"): "The tree follows the text order, like the nearest-head control: {share} "
    "of the tokens hang on the nearest word before them that ever is a head.",
    ("spans", "left-branching"): "Every tree is (nearly) left-branching: {share} of its brackets "
    "begin with the text.",
    ("spans", "right-branching"): "Every tree is (nearly) right-branching: {share} of its brackets "
    "end with the text.",
    ("spans", "balanced"): "Every tree is nearly the balanced one, which looks at no word: {share} "
    "of its brackets are its.",
}


def _of_controls(figures: Mapping[str, Any]) -> list[Verdict]:
    found: list[Verdict] = []
    is_flat = figures.get("flat_share", 0.0) >= NEARLY
    for name, share in (figures.get("controls") or {}).items():
        words = _CONTROL_WORDS.get((figures["kind"], name))
        if words is None or not share >= NEARLY:
            continue
        # Said by the shape, or, where every word is a head, by the chain that the nearest make.
        if (name == "flat" and is_flat) or (name == "nearest" and (found or is_flat)):
            continue
        found.append(Verdict("warning", f"like-{name}", words.format(share=percent(share))))
    return found


def _of_length(figures: Mapping[str, Any]) -> list[Verdict]:
    share, tokens = figures.get("by_length") or (math.nan, 0)
    if share >= BY_LENGTH and tokens >= 100:
        return [
            Verdict(
                "warning",
                "by-length",
                f"The {figures['plural']} do not look at the words: {percent(share)} of the tokens "
                "are treated as in most other texts of the same length.",
            )
        ]
    return []


def _of_use(figures: Mapping[str, Any]) -> list[Verdict]:
    """From the runs with random structures in the place of the pipeline's."""
    found = []
    plural = figures["plural"]
    for measure, row in (figures.get("random") or {}).items():
        drop = row["drop"]
        if not math.isfinite(drop):
            continue
        span = f"95 % interval {points(row['low'])} to {points(row['high'])}"
        chance = row.get("chance")
        if chance is not None and row["before_low"] <= chance["share"]:
            found.append(
                Verdict(
                    "warning",
                    "chance",
                    f"The pipeline has not learned the task: its {measure} of "
                    f"{percent(row['before'])} is no better than always answering "
                    f"“{chance['label']}” ({percent(chance['share'])}).",
                )
            )
        text = f"Random {plural} cost {{}}{points(drop)} points of {measure} ({span})"
        if row["high"] < SMALL:
            found.append(
                Verdict(
                    "warning",
                    "ignored",
                    text.format("only ") + f": the task ignores the {plural}.",
                )
            )
        elif row["low"] > SMALL:
            found.append(
                Verdict("good", "used", text.format("") + f": the task uses the {plural}.")
            )
        elif row["low"] > 0:
            found.append(
                Verdict(
                    "note",
                    "used-little",
                    text.format("only ") + f": the task uses the {plural}, if little.",
                )
            )
        elif row["high"] < NO_SIGN:
            found.append(
                Verdict(
                    "warning",
                    "no-sign-of-use",
                    text.format("only ") + f": there is no sign that the task uses the {plural}.",
                )
            )
        else:
            found.append(
                Verdict(
                    "note",
                    "undecided",
                    text.format("") + f". Whether the task uses the {plural} cannot be told from "
                    f"{row['docs']} texts; take more.",
                )
            )
        if row["docs"] < FEW:
            found.append(
                Verdict("note", "few", f"There are only {row['docs']} texts to judge from.")
            )
        if row.get("mixture") is not None and row["mixture"] - row["before"] > 2 * SMALL:
            found.append(
                Verdict(
                    "note",
                    "mixture",
                    f"Predictions are composed of a mixture of {plural}: {percent(row['mixture'])} "
                    f"{measure} with it, {percent(row['before'])} with the single best one of "
                    "each text. What is drawn is not all that is used.",
                )
            )
    return found


def _of_entropy(figures: Mapping[str, Any]) -> list[Verdict]:
    share = _mean(figures, "relative entropy")
    if share >= UNDECIDED:
        return [
            Verdict(
                "warning",
                "undecided-scores",
                f"The scores hardly prefer any of the {figures['plural']}: the entropy is "
                f"{percent(share)} of that of a blind choice.",
            )
        ]
    return []


def _of_agreement(figures: Mapping[str, Any]) -> list[Verdict]:
    found = []
    reference = figures.get("reference")
    if reference:
        key = reference["key"]
        rows = {name: row[key] for name, row in reference["rows"].items()}
        own = rows.pop(figures["component"])
        best = max(rows, key=lambda name: (rows[name][0], name)) if rows else None
        if best is not None:
            with_reference = (
                f"{percent(own[0])} agreement with the reference; the {best} control has "
                f"{percent(rows[best][0])}"
            )
            # The intervals are of the same texts: apart means different.
            if own[1] > rows[best][2]:
                found.append(
                    Verdict(
                        "good", "beyond-controls", f"Better than the controls: {with_reference}."
                    )
                )
            else:
                found.append(
                    Verdict(
                        "note",
                        "no-better-than-controls",
                        f"No better than a control that looks at no model: {with_reference}.",
                    )
                )
    seeds = figures.get("others")
    if seeds and math.isfinite(seeds["mean"]):
        chance = seeds.get("chance", math.nan)
        text = (
            f"Models of {len(seeds['names']) + 1} trainings agree on {percent(seeds['mean'])} of "
            f"the {figures['plural']}' parts; random ones on {percent(chance)}"
        )
        close = seeds["mean"] < chance + 0.5 * (1 - chance)
        if math.isfinite(chance):
            found.append(Verdict("note", "seeds-differ" if close else "seeds-agree", text + "."))
    return found
