"""Verdicts in words: whether a structure is trivial, and whether it helps.

Only a trained control, the same model with structures that are not learned, shows whether a
structure helps. Only a reference shows whether it is right. All sentences are derived from the
figures of one layer, which :func:`spacy_latent.evaluation.assessment.assess` computes, and each can
be traced to a number of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spacy_latent.analysis.comparison_verdicts import (
    of_random_ones,
    of_references,
    of_seeds,
    of_size,
    of_task,
    of_training,
)
from spacy_latent.analysis.few_texts import FEWEST
from spacy_latent.analysis.figures import LayerFigures
from spacy_latent.analysis.pattern_verdicts import (
    of_controls,
    of_entropy,
    of_length,
    of_mixtures,
    of_shape,
)
from spacy_latent.analysis.verdict import Verdict, percent, points
from spacy_latent.kinds import find_kind

__all__ = ["Verdict", "answer", "headline", "percent", "points", "trivial", "verdicts"]


def verdicts(figures: LayerFigures) -> list[Verdict]:
    """Return all verdicts on one layer, warnings first.

    The first verdict becomes the headline. The list is never empty: without warnings, it has one
    sentence on what is known.
    """
    found: list[Verdict] = []
    judges: tuple[Callable[[LayerFigures], Iterable[Verdict]], ...] = (
        of_training,
        of_references,
        of_task,
        of_shape,
        of_controls,
        of_length,
        of_random_ones,
        of_entropy,
        of_mixtures,
        of_seeds,
        of_size,
    )
    for judge in judges:
        found += judge(figures)
    untested = [] if any(v.code in TRAINED for v in found) else [_untested(figures)]
    if figures.spans < FEWEST:
        # Too few texts prove nothing. The first note says so, and all other verdicts become notes.
        found.sort(key=lambda verdict: verdict.code != "few")
        return [*(Verdict("note", verdict.code, verdict.text) for verdict in found), *untested]
    warnings, notes, good = (
        [verdict for verdict in found if verdict.level == level]
        for level in ("warning", "note", "good")
    )
    if not warnings:
        return [_without_warning(figures, good, untested), *good, *notes]
    warnings.sort(key=lambda v: FIRST.index(v.code) if v.code in FIRST else len(FIRST))
    return warnings + untested + good + notes


def _without_warning(
    figures: LayerFigures, good: list[Verdict], untested: list[Verdict]
) -> Verdict:
    plural = figures.plural
    pattern = f"the {plural} do not follow a simple pattern"
    known = {verdict.code for verdict in good}
    if "helps" in known:
        worse = f"scores lower if it is trained with {plural} that are not learned."
        text = f"No sign of triviality: {pattern}, and the same model {worse}"
        return Verdict("good", "not-trivial", text)
    helps = untested[0].text if untested else f"It is undecided whether the {plural} help the task."
    if "far-beyond-controls" in known:
        text = f"No sign of triviality: {pattern}, and they agree with the reference far better "
        return Verdict("good", "not-trivial", f"{text}than every control. {helps}")
    code = "untested" if untested else "undecided"
    return Verdict("note", code, f"{helps} {pattern[0].upper()}{pattern[1:]}.")


def _untested(figures: LayerFigures) -> Verdict:
    plural = figures.plural
    if figures.trained.controls:
        text = (
            f"Whether the {plural} help the task was not tested: the texts have no annotation to "
            "score the model and its control on. Give annotated texts."
        )
        return Verdict("note", "untested", text)
    other = "a pipeline for the same task without them, such as one that reads all words"
    if find_kind(figures.kind).trees:
        other = (
            f"the same model with {plural} that are not learned, spacy latent control CONFIG "
            "--trees random --output DIRECTORY"
        )
    text = f"Whether the {plural} help the task was not tested: train {other}, and give it to the "
    return Verdict("note", "untested", f"{text}report, --control DIRECTORY.")


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
    "no-better-than-controls": "No better than a control: the {plural} differ from the reference",
    "chance": "The task is not learned",
    "ignored": "Predictions ignore the {plural}",
    "no-sign-of-use": "No sign that predictions depend on the {plural}",
    "seeds-random": "Other seeds learn other {plural}, as if they were random",
    "untested": "Whether the {plural} help was not tested",
    "undecided": "Undecided whether the {plural} help",
    "few": "Too few texts for any conclusion",
}
# Answers by code of a verdict; the first code that occurs determines the answer.
ANSWERS = {
    "no-better-than-trained": "No",
    "trained-undecided": "Undecided",
    "trained-unlike": "Not shown: the control was trained with other settings",
    "helps-little": "A little",
    "helps": "Yes",
}
# Codes of verdicts from random structures at prediction that speak against a use.
UNUSED = ("ignored", "no-sign-of-use")


def answer(found: list[Verdict]) -> str:
    """Say in a word or two whether the structures help."""
    codes = {verdict.code for verdict in found}
    if "trained-undecided" in codes and codes & set(UNUSED):
        return "No sign of it: random ones at prediction score as high"
    return next((said for code, said in ANSWERS.items() if code in codes), "Not tested")


def headline(found: list[Verdict], figures: LayerFigures) -> str:
    """Summarize the first of :func:`verdicts` in a few words."""
    plural, first = figures.plural, found[0]
    codes = {verdict.code for verdict in found}
    if first.code == "not-trivial":
        if "helps" in codes:
            return f"The {plural} help"
        open_ = "is undecided" if codes & set(TRAINED) else "was not tested"
        return f"The {plural} are mostly right; whether they help {open_}"
    default = "The structure looks trivial" if first.level == "warning" else "Not decided"
    return HEADLINES.get(first.code, default).format(plural=plural)


def trivial(found: list[Verdict]) -> bool:
    """Return whether one of the verdicts is a warning."""
    return any(verdict.level == "warning" for verdict in found)
