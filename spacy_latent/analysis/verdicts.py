"""Verdicts in words: whether a structure is trivial, and whether it helps.

Only a trained control tells whether a structure helps: the same model with structures that are not
learned. Only a reference tells whether it is right. All sentences come from the figures of one
layer, as :func:`spacy_latent.evaluation.assessment.assess` fills them in. Every sentence can be
traced to a number of the report.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from spacy_latent.analysis.agreement import RANDOM
from spacy_latent.analysis.few_texts import FEW, FEWEST, size_in_words, too_few, why_undecided
from spacy_latent.analysis.figures import (
    Interval,
    LayerFigures,
    RandomStructures,
    TrainedControl,
    TrainedScore,
)
from spacy_latent.errors import number_of
from spacy_latent.kinds import PARTS, complete_kind, find_kind

Level = Literal["warning", "note", "good"]

# Least share of parts in common with a pattern that needs no learning, to count as the same.
NEARLY = 0.9
# Least share of tokens whose head the text's length determines, for a warning.
BY_LENGTH = 0.95
# Least such share for a note.
LARGELY_BY_LENGTH = 0.8
# Least share of SparseMAP's mixtures with one structure, for a note.
NEARLY_ALL = 0.9
# Least share of the entropy of a uniform choice, for a warning.
UNDECIDED = 0.9
# A drop of less than one point of a hundred counts as none.
SMALL = 0.01
# An interval that contains 0 and ends below this shows no sign of a use.
NO_SIGN = 0.03
# Least share of the best control's errors that structures must correct to be called much better.
FAR = 0.5
# Agreement of trainings, on a scale from 0 for random structures to 1, below which is a warning.
NEAR_RANDOM = 0.1


@dataclass(frozen=True)
class Verdict:
    """One statement about the structures of a layer.

    Attributes:
        level: "warning" for a trivial structure, "note" for a limit of the report, otherwise
            "good".
        code: name for scripts.
    """

    level: Level
    code: str
    text: str


def verdicts(figures: LayerFigures) -> list[Verdict]:
    """Return all verdicts on one layer, warnings first.

    The headline is made from the first verdict. The list is never empty: without warnings, it has
    one sentence on the known facts.
    """
    found: list[Verdict] = []
    for judge in (
        _of_training,
        _of_references,
        _of_task,
        _of_shape,
        _of_controls,
        _of_length,
        _of_random_ones,
        _of_entropy,
        _of_mixtures,
        _of_seeds,
        _of_size,
    ):
        found += judge(figures)
    if figures.spans < FEWEST:
        return _of_too_few(figures, found)
    warnings = [verdict for verdict in found if verdict.level == "warning"]
    warnings.sort(key=lambda verdict: _rank(verdict.code))
    notes = [verdict for verdict in found if verdict.level == "note"]
    good = [verdict for verdict in found if verdict.level == "good"]
    untested = [] if any(v.code in TRAINED for v in found) else [_untested(figures)]
    if warnings:
        return warnings + untested + good + notes
    return [_without_warning(figures, good, untested), *good, *notes]


def _of_too_few(figures: LayerFigures, found: list[Verdict]) -> list[Verdict]:
    """Turn the verdicts on too few texts into notes, after the note that they are too few."""
    tested = any(verdict.code in TRAINED for verdict in found)
    found = sorted(found, key=lambda verdict: verdict.code != "few")
    notes = [Verdict("note", verdict.code, verdict.text) for verdict in found]
    return [*notes, *([] if tested else [_untested(figures)])]


def _without_warning(
    figures: LayerFigures, good: list[Verdict], untested: list[Verdict]
) -> Verdict:
    plural = figures.plural
    pattern = f"the {plural} are no copy of a simple pattern"
    known = {verdict.code for verdict in good}
    if "helps" in known:
        return Verdict(
            "good",
            "not-trivial",
            f"No sign of triviality: {pattern}, and the same model does worse when it is trained "
            f"with {plural} that are not learned.",
        )
    helps = untested[0].text if untested else f"Whether the {plural} help the task cannot be told."
    if "far-beyond-controls" in known:
        text = f"No sign of triviality: {pattern}, and they agree with the reference far better "
        return Verdict("good", "not-trivial", f"{text}than every control. {helps}")
    code = "untested" if untested else "undecided"
    return Verdict("note", code, f"{helps} {pattern[0].upper()}{pattern[1:]}.")


def _untested(figures: LayerFigures) -> Verdict:
    plural = figures.plural
    text = f"Whether the {plural} help the task was not tested: "
    if find_kind(figures.kind).trees:
        text += (
            f"train the same model with {plural} that are not learned, spacy latent control CONFIG "
            "--trees random --output DIRECTORY, and give it to the report, --control DIRECTORY."
        )
    else:
        text += (
            "train a pipeline for the same task without them, such as one that reads all words, "
            "and give it to the report, --control DIRECTORY."
        )
    return Verdict("note", "untested", text)


# Codes of verdicts from a control model.
TRAINED = ("helps", "helps-little", "no-better-than-trained", "trained-undecided", "trained-unlike")
# Order of warnings in a headline.
FIRST = (
    "no-better-than-trained",
    "no-better-than-random",
    "no-better-than-controls",
    "chance",
    "ignored",
    "no-sign-of-use",
)
HEADLINES = {
    "no-better-than-trained": "No better than a control: the {plural} do not help",
    "no-better-than-random": "No better than a control: {plural} like random ones",
    "no-better-than-controls": "No better than a control: the {plural} are not those of the "
    "reference",
    "chance": "The task is not learned",
    "ignored": "The task ignores the {plural}",
    "no-sign-of-use": "No sign that the task looks at the {plural}",
    "seeds-random": "Other seeds give other {plural}, as if they were random",
    "untested": "Whether the {plural} help was not tested",
    "undecided": "Whether the {plural} help cannot be told",
    "few": "Too few texts to tell anything from",
}


# Answers by code of a verdict; the first that applies is given.
ANSWERS = {
    "no-better-than-trained": "No",
    "trained-undecided": "That cannot be told",
    "trained-unlike": "Not shown: the control was trained otherwise",
    "helps-little": "A little",
    "helps": "Yes",
}


# Codes of verdicts from random structures at prediction that speak against a use.
UNUSED = ("ignored", "no-sign-of-use")


def answer(found: list[Verdict]) -> str:
    """Say in a word or two whether the structures help."""
    codes = {verdict.code for verdict in found}
    if "trained-undecided" in codes and codes & set(UNUSED):
        return "No sign of it: random ones at prediction do as well"
    return next((said for code, said in ANSWERS.items() if code in codes), "Not tested")


def _rank(code: str) -> int:
    return FIRST.index(code) if code in FIRST else len(FIRST)


def headline(found: list[Verdict], figures: LayerFigures) -> str:
    """Summarize the first of :func:`verdicts` in a few words."""
    plural, first = figures.plural, found[0]
    codes = {verdict.code for verdict in found}
    if first.code == "not-trivial":
        known = f"The {plural} help" if "helps" in codes else f"The {plural} are mostly right"
        if "helps" in codes:
            return known
        open_ = "cannot be told" if codes & set(TRAINED) else "was not tested"
        return f"{known}; whether they help {open_}"
    default = "The structure looks trivial" if first.level == "warning" else "Not decided"
    return HEADLINES.get(first.code, default).format(plural=plural)


def trivial(found: list[Verdict]) -> bool:
    return any(verdict.level == "warning" for verdict in found)


def percent(share: float) -> str:
    """Format a share in percent: 0.937 is "94 %", 0.003 is "0.3 %".

    The result is 0 or 100 only if the share is exactly 0 or 1.
    """
    points = 100 * share
    if 0 < points < 0.05:
        return "under 0.1 %"
    if 99.95 <= points < 100:
        return "over 99.9 %"
    digits = 0 if 1 <= points <= 99 or points in (0.0, 100.0) else 1
    return f"{points:.{digits}f} %"


def points(share: float) -> str:
    """Format a difference of scores in points of a hundred, with a proper minus sign."""
    return f"{100 * share:.1f}".replace("-", "−").replace("−0.0", "0.0")


def _of_shape(figures: LayerFigures) -> list[Verdict]:
    kind = find_kind(figures.kind)
    found = list(kind.said("judge", kind.judge(figures)))
    shares = figures.tag_shares or {}
    if shares and max(shares.values()) >= NEARLY:
        tag = max(shares, key=lambda name: (shares[name], name))
        found.append(
            Verdict(
                "warning",
                "one-tag",
                f"Tag {tag} covers {percent(shares[tag])} of the tokens: the tags tell nothing.",
            )
        )
    return found


def _no_judgement(figures: LayerFigures) -> list[Verdict]:
    return []


def _judge_heads(figures: LayerFigures) -> list[Verdict]:
    share = figures.flat_share
    if share is None or not share >= NEARLY:
        return []
    return [
        Verdict(
            "warning",
            "flat",
            f"Trees are nearly flat: {percent(share)} of the tokens are roots or hang on one.",
        )
    ]


def _judge_items(figures: LayerFigures) -> list[Verdict]:
    rate = figures.mean("rate")
    if rate >= 0.98:
        return [Verdict("warning", "all-chosen", f"Nearly everything is chosen: {percent(rate)}.")]
    if rate <= 0.02:
        return [Verdict("warning", "none-chosen", f"Nearly nothing is chosen: {percent(rate)}.")]
    return []


def _judge_segments(figures: LayerFigures) -> list[Verdict]:
    length, tokens = figures.mean("segment length"), figures.mean("tokens")
    if length <= 1.02:
        return [Verdict("warning", "single-tokens", "Nearly every segment is a single token.")]
    if tokens >= 3 and length >= NEARLY * tokens:
        return [Verdict("warning", "one-segment", "Nearly every text is a single segment.")]
    return []


def _judge_cells(figures: LayerFigures) -> list[Verdict]:
    found = []
    if figures.mean("diagonal") >= NEARLY:
        found.append(
            Verdict(
                "warning",
                "diagonal",
                f"The alignment is the text order: {percent(figures.mean('diagonal'))} of its "
                "cells are on the diagonal.",
            )
        )
    if figures.mean("coverage") <= 0.02:
        found.append(Verdict("warning", "none-aligned", "Nearly nothing is aligned."))
    return found


def _judge_arcs(figures: LayerFigures) -> list[Verdict]:
    if figures.mean("arcs per token") <= 0.02:
        return [Verdict("warning", "no-arcs", "The graphs have nearly no arcs.")]
    return []


CONTROLS_OF_HEADS = {
    "left-branching": "Every tree is nearly a left-branching chain: {share} of the "
    "tokens hang on the token after them.",
    "right-branching": "Every tree is nearly a right-branching chain: {share} of the "
    "tokens hang on the token before them.",
    "flat": "Trees are nearly flat: {share} of the tokens hang on the first one.",
    "balanced": "Every tree is nearly the balanced one, which looks at no word: {share} "
    "of the heads are its.",
    "nearest": "The tree follows the text order, like the nearest-head control: {share} "
    "of the tokens hang on the nearest word before them that ever is a head.",
}
CONTROLS_OF_BRACKETS = {
    "left-branching": "Every tree is (nearly) left-branching: {share} of its brackets "
    "begin with the text.",
    "right-branching": "Every tree is (nearly) right-branching: {share} of its brackets "
    "end with the text.",
    "balanced": "Every tree is nearly the balanced one, which looks at no word: {share} "
    "of its brackets are its.",
}
complete_kind(PARTS, judge=_no_judgement)
complete_kind("heads", judge=_judge_heads, control_words=CONTROLS_OF_HEADS)
complete_kind("items", judge=_judge_items)
complete_kind("segments", judge=_judge_segments)
complete_kind("phrases", judge=_no_judgement)
complete_kind("cells", judge=_judge_cells)
complete_kind("arcs", judge=_judge_arcs)
complete_kind("spans", control_words=CONTROLS_OF_BRACKETS)


def _of_controls(figures: LayerFigures) -> list[Verdict]:
    found: list[Verdict] = []
    is_flat = (figures.flat_share or 0.0) >= NEARLY
    for name, share in figures.controls.items():
        words = find_kind(figures.kind).control_words.get(name)
        if words is None or not share >= NEARLY:
            continue
        # Already said by the shape, or, if every word is a head, by the chain of nearest heads.
        if (name == "flat" and is_flat) or (name == "nearest" and (found or is_flat)):
            continue
        found.append(Verdict("warning", f"like-{name}", words.format(share=percent(share))))
    return found


def _of_length(figures: LayerFigures) -> list[Verdict]:
    share, tokens = figures.by_length
    if share >= BY_LENGTH and tokens >= 100:
        return [
            Verdict(
                "warning",
                "by-length",
                f"The {figures.plural} do not look at the words: {percent(share)} of the tokens "
                "are treated as in most other texts of the same length.",
            )
        ]
    if share >= LARGELY_BY_LENGTH and tokens >= 100:
        return [
            Verdict(
                "note",
                "largely-by-length",
                f"The length of the text says much of the {figures.plural}: {percent(share)} of "
                "the tokens are treated as in most other texts of the same length.",
            )
        ]
    return []


def _of_training(figures: LayerFigures) -> list[Verdict]:
    """Return verdicts from models that were trained with structures that are not learned."""
    found = []
    controls = figures.trained.controls
    for number, (measure, row) in enumerate(figures.trained.measures.items()):
        made = [
            _control_verdict(figures, measure, row, name, controls[name])
            for name, theirs in row.controls.items()
            if math.isfinite(theirs.difference[0])
        ]
        # Better than one control and not than another is not better.
        if any(verdict.code != "helps" for verdict in made):
            made = [
                Verdict("note", "helps-more", verdict.text) if verdict.code == "helps" else verdict
                for verdict in made
            ]
        # The first of several tasks is the main one.
        if number:
            made = [
                Verdict("note", verdict.code, verdict.text)
                if verdict.level == "warning"
                else verdict
                for verdict in made
            ]
        found += made
    if controls and all(one.trees == "random trees" for one in controls.values()):
        found.append(
            Verdict(
                "note",
                "only-random",
                "Random trees are the weakest of controls: one of flat or right-branching trees, "
                "or of a parser's, may do better.",
            )
        )
    for name, control in controls.items():
        if control.unlike:
            found.append(
                Verdict(
                    "note",
                    "control-unlike",
                    f"The control {name} differs from this model in more than its "
                    f"{figures.plural}: {'; '.join(control.unlike)}.",
                )
            )
    return found


def _control_verdict(
    figures: LayerFigures, measure: str, row: TrainedScore, name: str, control: TrainedControl
) -> Verdict:
    """Return the verdict from one control."""
    plural, theirs = figures.plural, row.controls[name]
    difference, low, high = theirs.difference
    texts = number_of(theirs.docs, "text")
    more = f"{points(abs(difference))} points {'more' if difference >= 0 else 'less'}"
    spread = theirs.spread
    own, other = (_mean_of(len(seeds)) for seeds in (row.seeds, theirs.seeds))
    text = (
        f"{measure[0].upper()}{measure[1:]} is {percent(row.value)}{own}; that of the control "
        f"{name}, {control.what}, is {percent(theirs.value)}{other}: {more} (95 % interval "
        f"of the difference {points(low)} to {points(high)})"
    )
    if math.isfinite(spread):
        text += f", and two standard deviations between trainings are {points(spread)}"
    else:
        text += ", from one training of each"
    uncertain = math.isfinite(spread) and difference <= spread
    reason = why_undecided(row.value, theirs.value, theirs.docs, theirs.differ)
    no_better = high < SMALL or (low <= 0 and high < NO_SIGN)
    if no_better and (not reason or (high < 0 and theirs.docs >= FEWEST)):
        return Verdict(
            "warning",
            "no-better-than-trained",
            f"No better than a control: {text[0].lower()}{text[1:]}. The {plural} do not help.",
        )
    if low <= 0 or uncertain or theirs.docs < FEWEST:
        if low > 0 and theirs.docs >= FEWEST:
            reason = "the difference is within what trainings differ by"
        reason = reason or f"the interval holds 0, and {texts} leave it so wide. Take more"
        return Verdict(
            "note",
            "trained-undecided",
            f"{text}. Whether the {plural} help cannot be told: {reason}.",
        )
    if control.unfair:
        return Verdict(
            "note",
            "trained-unlike",
            f"{text}. That is no proof that the {plural} help, since the control was trained "
            f"otherwise: {'; '.join(control.unfair)}.",
        )
    if difference < SMALL:
        return Verdict("note", "helps-little", f"{text}. The {plural} help, if little.")
    return Verdict("good", "helps", f"{text}. The {plural} help.")


def _mean_of(trainings: int) -> str:
    return f" (mean of {trainings} trainings)" if trainings > 1 else ""


def _of_task(figures: LayerFigures) -> list[Verdict]:
    found = []
    for measure, row in figures.random.items():
        chance, (own, low) = row.chance, row.own
        if chance is None or not low <= chance.share:
            continue
        told = f"its {measure} of {percent(own)} is"
        always = f"always answering “{chance.label}” ({percent(chance.share)})"
        # With few texts, only a much lower score counts.
        below = 2 * own - low < chance.share and row.docs >= FEWEST
        if chance.share < 1 and (row.docs >= FEW or below):
            text = f"The pipeline has not learned the task: {told} no better than {always}."
            found.append(Verdict("warning", "chance", text))
            continue
        reason = f"{told}, in {number_of(row.docs, 'text')}, not surely better than {always}"
        if chance.share >= 1:
            reason = f"all texts that are judged have the label “{chance.label}”"
        text = f"Whether the pipeline has learned the task cannot be told: {reason}."
        found.append(Verdict("note", "chance-undecided", text))
    return found


def _of_size(figures: LayerFigures) -> list[Verdict]:
    """Return a note if the texts, or those with references, are few."""
    every = figures.spans if figures.docs is None else figures.docs
    judged = [row.docs for row in figures.random.values()]
    for measure in figures.trained.measures.values():
        judged += [theirs.docs for theirs in measure.controls.values()]
    said = size_in_words(every, judged)
    return [Verdict("note", "few", said)] if said else []


def _of_random_ones(figures: LayerFigures) -> list[Verdict]:
    """Return verdicts from runs with random structures in place of the pipeline's.

    They only tell whether predictions depend on the structures. A composer that was trained with
    random structures is adapted to these.
    """
    found = []
    plural = figures.plural
    for measure, row in figures.random.items():
        if not math.isfinite(row.drop):
            continue
        found.append(_dependence(plural, measure, row))
        if row.mixture is not None and row.mixture - row.before > 2 * SMALL:
            found.append(
                Verdict(
                    "note",
                    "mixture",
                    f"Predictions are composed of a mixture of {plural}: {percent(row.mixture)} "
                    f"{measure} with it, {percent(row.before)} with the single best one of "
                    "each text. What is drawn is not all that is used.",
                )
            )
    return found


def _dependence(plural: str, measure: str, row: RandomStructures) -> Verdict:
    """Return the verdict from one measure on the dependence of the task on the structures."""
    place = "their place" if row.mixture is None else "the place of the single best ones"
    begin = f"Random {plural} in {place}, at prediction only,"
    lost = (
        f"{points(row.drop)} points of {measure} (95 % interval {points(row.low)} to "
        f"{points(row.high)})"
    )
    cost, little = f"{begin} cost {lost}", f"{begin} cost only {lost}"
    if points(row.drop).startswith("−"):
        cost = little = (
            f"{begin} do better, by {points(-row.drop)} points of {measure} (95 % interval "
            f"{points(-row.high)} to {points(-row.low)})"
        )
    undecided = f"{cost}. Whether the task looks at the {plural} cannot be told"
    reason = why_undecided(row.before, row.after, row.docs, row.differ)
    if row.docs < FEWEST or (reason and row.low <= 0):
        return Verdict("note", "dependence-undecided", f"{undecided}: {reason}.")
    if row.high < SMALL:
        # A score that is certainly better is not equal.
        worse = row.high < 0
        why = f"nothing is lost without the {plural}" if worse else f"the task ignores the {plural}"
        return Verdict("warning", "ignored", f"{little}: {why}.")
    if row.low > 0:
        code, said, hardly = "co-adapted", cost, ""
        if row.low <= SMALL:
            code, said, hardly = "hardly-co-adapted", little, "hardly "
        return Verdict(
            "note",
            code,
            f"{said}: the composer is {hardly}used to its {plural} (co-adaptation). "
            "That is no sign that they are right, nor that they help.",
        )
    if row.high < NO_SIGN:
        text = f"{little}: there is no sign that the task looks at the {plural}."
        return Verdict("warning", "no-sign-of-use", text)
    more = f"from {number_of(row.docs, 'text')}. Take more."
    return Verdict("note", "dependence-undecided", f"{undecided} {more}")


def _of_entropy(figures: LayerFigures) -> list[Verdict]:
    share = figures.mean("relative entropy")
    if share >= UNDECIDED:
        return [
            Verdict(
                "warning",
                "undecided-scores",
                f"The scores hardly prefer any of the {figures.plural}: the entropy is "
                f"{percent(share)} of that of a blind choice.",
            )
        ]
    return []


def _of_mixtures(figures: LayerFigures) -> list[Verdict]:
    alone = figures.alone
    if alone is None or alone.share < NEARLY_ALL:
        return []
    text = (
        f"SparseMAP's mixture has come down to one structure in {percent(alone.share)} of the "
        f"{figures.plural}. Its weight is 1 whatever the scores are, so that the scorer gets no "
        "gradient from these: they are learned no further. "
    )
    if math.isfinite(alone.higher):
        text += (
            f"With temperature = {alone.higher:g} half of them are mixtures of several again; here "
            f"it is {alone.temperature:g}. Train with that, or with a schedule that ends lower."
        )
    else:
        text += "No temperature that was tried changes that: the scores are very large."
    return [Verdict("note", "one-structure", text)]


def _of_references(figures: LayerFigures) -> list[Verdict]:
    """Return verdicts from the agreement with references, in comparison to the controls'."""
    reference = figures.reference
    if not reference:
        return []
    plural, key = figures.plural, reference.key
    rows = {name: row[key][0] for name, row in reference.rows.items()}
    own = rows.pop(figures.component)
    ahead = reference.ahead
    if not rows or not math.isfinite(own):
        return []
    best = max(rows, key=lambda name: (rows[name], name))
    named = {name: f"the {name} control has" for name in rows}
    named[RANDOM] = f"random {plural} of the same set{_constraint(figures)} have"
    shown = [best] if RANDOM not in rows or best == RANDOM else [best, RANDOM]
    beside = ", ".join(f"{named[name]} {percent(rows[name])}" for name in shown)
    text = f"{percent(own)} agreement with the reference; {beside}"
    if reference.docs < FEWEST:
        text = f"{too_few(reference.docs)} to tell whether the {plural} are right: {text}."
        return [Verdict("note", "controls-undecided", text)]
    behind = [name for name in rows if _is_behind(ahead[name], reference.docs)]
    if RANDOM in behind:
        return [
            Verdict(
                "warning",
                "no-better-than-random",
                f"No better than random {plural} of the same set: {text}.",
            )
        ]
    if behind:
        word = "Worse than" if own < rows[best] else "No better than"
        return [
            Verdict(
                "warning",
                "no-better-than-controls",
                f"{word} a control that looks at no model: {text}.",
            )
        ]
    if any(ahead[name][1] <= 0 for name in rows):
        return [
            Verdict(
                "note",
                "controls-undecided",
                f"Whether the {plural} are better than the controls cannot be told from "
                f"{number_of(reference.docs, 'text')}: {text}.",
            )
        ]
    if own - rows[best] >= FAR * (1 - rows[best]):
        return [Verdict("good", "far-beyond-controls", f"Far better than the controls: {text}.")]
    return [Verdict("good", "beyond-controls", f"Better than the controls: {text}.")]


def _is_behind(difference: Interval, docs: int) -> bool:
    """Return whether a difference with its interval counts as no lead.

    With many texts it does if the lead is not certain. With few texts it does only if the absence
    of a lead is certain.
    """
    _, low, high = difference
    return low <= 0 and (docs >= FEW or high < NO_SIGN)


def _constraint(figures: LayerFigures) -> str:
    return f" ({figures.constraint})" if figures.constraint else ""


def _of_seeds(figures: LayerFigures) -> list[Verdict]:
    seeds = figures.others
    if seeds is None or not math.isfinite(seeds.mean):
        return []
    mean, chance = seeds.mean, seeds.chance
    if not math.isfinite(chance):
        return []
    text = (
        f"Models of {len(seeds.names) + 1} trainings agree on {percent(mean)} of "
        f"the {figures.plural}' parts; random ones on {percent(chance)}"
    )
    # On a scale from 0 for random structures to 1 for equal ones.
    way = (mean - chance) / (1 - chance) if chance < 1 else 1.0
    if way < NEAR_RANDOM and seeds.alike:
        return [Verdict("warning", "seeds-random", f"{text}: what is learned is left to chance.")]
    return [Verdict("note", "seeds-agree" if way >= 0.5 else "seeds-differ", f"{text}.")]
