"""Verdicts from comparisons with controls, references, random structures and other trainings."""

from __future__ import annotations

import math
from collections.abc import Iterator

from spacy_latent.analysis.agreement import RANDOM
from spacy_latent.analysis.few_texts import FEW, FEWEST, size_in_words, too_few, why_undecided
from spacy_latent.analysis.figures import (
    Interval,
    LayerFigures,
    RandomStructures,
    TrainedControl,
    TrainedScore,
)
from spacy_latent.analysis.verdict import Verdict, percent, points
from spacy_latent.errors import number_of

# A drop of less than 0.01 counts as no drop.
SMALL = 0.01
# A difference whose interval contains 0 and ends below this shows no use of the structures.
NO_SIGN = 0.03
# Least share of the best control's errors that structures must correct to be called much better.
FAR = 0.5
# An agreement of trainings below this is a warning. Random structures have 0, equal ones 1.
NEAR_RANDOM = 0.1
# Largest number of settings that a verdict names. Another pipeline may differ in a hundred.
MOST_SETTINGS = 8


def of_training(figures: LayerFigures) -> Iterator[Verdict]:
    """Yield verdicts from models that were trained with structures that are not learned."""
    controls = figures.trained.controls
    for number, (measure, row) in enumerate(figures.trained.measures.items()):
        made = [
            _control_verdict(figures, measure, row, name, controls[name])
            for name, theirs in row.controls.items()
            if math.isfinite(theirs.difference[0])
        ]
        # Structures that are better than one control only are not better.
        is_better = all(verdict.code == "helps" for verdict in made)
        for verdict in made:
            if verdict.code == "helps" and not is_better:
                yield Verdict("note", "helps-more", verdict.text)
            # The first of several tasks is the main one.
            elif verdict.level == "warning" and number:
                yield Verdict("note", verdict.code, verdict.text)
            else:
                yield verdict
    if controls and all(one.trees == "random trees" for one in controls.values()):
        yield Verdict(
            "note",
            "only-random",
            "Random trees are the weakest control. Controls with flat or right-branching trees, "
            "or with the trees of a parser, may score higher.",
        )
    for name, control in controls.items():
        if control.unlike:
            text = (
                f"The control {name} differs from this model in more than its {figures.plural}: "
                f"{_listed(control.unlike)}."
            )
            yield Verdict("note", "control-unlike", text)


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
        f"{measure[0].upper()}{measure[1:]} is {percent(row.value)}{own}, and "
        f"{percent(theirs.value)}{other} for the control {name}, {control.what}: {more} (95 % "
        f"interval of the difference: {points(low)} to {points(high)})"
    )
    if math.isfinite(spread):
        text += f", and two standard deviations between trainings are {points(spread)}"
    else:
        text += ", from one training of each"
    uncertain = math.isfinite(spread) and difference <= spread
    reason = why_undecided(row.value, theirs.value, theirs.docs, theirs.differ)
    no_better = high < SMALL or (low <= 0 and high < NO_SIGN)
    if no_better and (not reason or (high < 0 and theirs.docs >= FEWEST)):
        # Keep the capital letter of a measure such as F1.
        said = f"{measure}{text[len(measure) :]}"
        text = f"No better than a control: {said}. The {plural} do not help."
        return Verdict("warning", "no-better-than-trained", text)
    if low <= 0 or uncertain or theirs.docs < FEWEST:
        if low > 0 and theirs.docs >= FEWEST:
            reason = "trainings with different seeds differ by as much"
        reason = reason or f"the interval from {texts} includes 0. Give more texts"
        text = f"{text}. It is undecided whether the {plural} help: {reason}."
        return Verdict("note", "trained-undecided", text)
    if control.unfair:
        unfair = f"since the control was trained with other settings: {_listed(control.unfair)}."
        text = f"{text}. This does not prove that the {plural} help, {unfair}"
        return Verdict("note", "trained-unlike", text)
    if difference < SMALL:
        return Verdict("note", "helps-little", f"{text}. The {plural} help a little.")
    return Verdict("good", "helps", f"{text}. The {plural} help.")


def _listed(settings: list[str]) -> str:
    """Write the first settings, and the number of the others. The figures contain all."""
    shown = "; ".join(settings[:MOST_SETTINGS])
    left = len(settings) - MOST_SETTINGS
    return f"{shown}; and {number_of(left, 'setting')} more" if left > 0 else shown


def _mean_of(trainings: int) -> str:
    return f" (mean of {trainings} trainings)" if trainings > 1 else ""


def of_task(figures: LayerFigures) -> Iterator[Verdict]:
    """Yield a verdict for each measure that is not significantly better than a constant answer."""
    for measure, row in figures.random.items():
        chance, (own, low) = row.chance, row.own
        if chance is None or not low <= chance.share:
            continue
        opening = f"its {measure} of {percent(own)} is"
        always = f"always answering “{chance.label}” ({percent(chance.share)})"
        # With few texts, only a much lower score counts.
        below = 2 * own - low < chance.share and row.docs >= FEWEST
        if chance.share < 1 and (row.docs >= FEW or below):
            text = f"The pipeline has not learned the task: {opening} no better than {always}."
            yield Verdict("warning", "chance", text)
            continue
        reason = f"{opening}, in {number_of(row.docs, 'text')}, not reliably better than {always}"
        if chance.share >= 1:
            reason = f"all evaluated texts have the label “{chance.label}”"
        text = f"It is undecided whether the pipeline has learned the task: {reason}."
        yield Verdict("note", "chance-undecided", text)


def of_size(figures: LayerFigures) -> list[Verdict]:
    """Return a note if the texts, or those with references, are few."""
    every = figures.spans if figures.docs is None else figures.docs
    judged = [row.docs for row in figures.random.values()]
    for measure in figures.trained.measures.values():
        judged += [theirs.docs for theirs in measure.controls.values()]
    said = size_in_words(every, judged)
    return [Verdict("note", "few", said)] if said else []


def of_random_ones(figures: LayerFigures) -> Iterator[Verdict]:
    """Yield verdicts from runs with random structures in place of the pipeline's.

    They only show whether predictions depend on the structures. They cannot show that structures
    help: a composer that is trained with random structures adapts to these.
    """
    plural = figures.plural
    for measure, row in figures.random.items():
        if not math.isfinite(row.drop):
            continue
        yield _dependence(plural, measure, row)
        if row.mixture is not None and row.mixture - row.before > 2 * SMALL:
            text = (
                f"Predictions use a mixture of {plural}: {measure} is {percent(row.mixture)} "
                f"with it, and {percent(row.before)} with only the best one of each text. "
                "Drawings show only the best one."
            )
            yield Verdict("note", "mixture", text)


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
            f"{begin} score higher, by {points(-row.drop)} points of {measure} (95 % interval "
            f"{points(-row.high)} to {points(-row.low)})"
        )
    undecided = f"{cost}. It is undecided whether predictions depend on the {plural}"
    reason = why_undecided(row.before, row.after, row.docs, row.differ)
    if row.docs < FEWEST or (reason and row.low <= 0):
        return Verdict("note", "dependence-undecided", f"{undecided}: {reason}.")
    if row.high < SMALL:
        # A score that is certainly better is not equal.
        worse = row.high < 0
        why = (
            f"nothing is lost without the {plural}" if worse else f"predictions ignore the {plural}"
        )
        return Verdict("warning", "ignored", f"{little}: {why}.")
    if row.low > 0:
        code, said, hardly = "co-adapted", cost, ""
        if row.low <= SMALL:
            code, said, hardly = "hardly-co-adapted", little, "hardly "
        used = f"{said}: the composer is {hardly}adapted to its own {plural} (co-adaptation)."
        text = f"{used} This shows neither that they are right nor that they help."
        return Verdict("note", code, text)
    if row.high < NO_SIGN:
        text = f"{little}: there is no sign that predictions depend on the {plural}."
        return Verdict("warning", "no-sign-of-use", text)
    more = f"from {number_of(row.docs, 'text')}. Give more texts."
    return Verdict("note", "dependence-undecided", f"{undecided} {more}")


def of_references(figures: LayerFigures) -> list[Verdict]:
    """Return verdicts from comparing the agreement with references to the controls' agreement."""
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
        text = f"No better than random {plural} of the same set: {text}."
        return [Verdict("warning", "no-better-than-random", text)]
    if behind:
        word = "Worse than" if own < rows[best] else "No better than"
        text = f"{word} a control without a model: {text}."
        return [Verdict("warning", "no-better-than-controls", text)]
    if any(ahead[name][1] <= 0 for name in rows):
        untold = f"is undecided with {number_of(reference.docs, 'text')}: {text}."
        text = f"Whether the {plural} are better than the controls {untold}"
        return [Verdict("note", "controls-undecided", text)]
    if own - rows[best] >= FAR * (1 - rows[best]):
        return [Verdict("good", "far-beyond-controls", f"Far better than the controls: {text}.")]
    return [Verdict("good", "beyond-controls", f"Better than the controls: {text}.")]


def _is_behind(difference: Interval, docs: int) -> bool:
    """Return whether a difference with its interval counts as no lead.

    With many texts it does unless the interval is above 0. With few texts it does only if the
    interval excludes a lead.
    """
    _, low, high = difference
    return low <= 0 and (docs >= FEW or high < NO_SIGN)


def _constraint(figures: LayerFigures) -> str:
    return f" ({figures.constraint})" if figures.constraint else ""


def of_seeds(figures: LayerFigures) -> list[Verdict]:
    """Compare the agreement of several trainings with the agreement of random structures."""
    seeds = figures.others
    if seeds is None or not math.isfinite(seeds.mean):
        return []
    mean, chance = seeds.mean, seeds.chance
    if not math.isfinite(chance):
        return []
    text = (
        f"The models of {len(seeds.names) + 1} trainings agree on {percent(mean)} of the parts "
        f"of their {figures.plural}; random ones agree on {percent(chance)}"
    )
    # On a scale from 0 for random structures to 1 for equal ones.
    way = (mean - chance) / (1 - chance) if chance < 1 else 1.0
    if way < NEAR_RANDOM and seeds.alike:
        return [
            Verdict(
                "warning",
                "seeds-random",
                f"{text}: which {figures.plural} are learned depends on chance.",
            )
        ]
    return [Verdict("note", "seeds-agree" if way >= 0.5 else "seeds-differ", f"{text}.")]
