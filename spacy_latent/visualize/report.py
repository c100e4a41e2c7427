"""Self-contained HTML page about a pipeline's structures: no other files, no network."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from spacy_latent import __version__
from spacy_latent.analysis.calibration import EntityFigures
from spacy_latent.analysis.figures import (
    ControlScore,
    Figures,
    OtherScore,
    TaskFigures,
    TrainedScore,
)
from spacy_latent.analysis.remarks import remarks
from spacy_latent.analysis.training_log import Evaluation
from spacy_latent.analysis.verdicts import Verdict, answer, headline, percent, points, trivial
from spacy_latent.errors import number_of, plural
from spacy_latent.evaluation.assessment import Assessment
from spacy_latent.kinds import find_kind
from spacy_latent.visualize.charts import bar, curves, reliability_diagram
from spacy_latent.visualize.elements import Markup, script_page, tag
from spacy_latent.visualize.gallery import GALLERY_BYTES, render_gallery
from spacy_latent.visualize.layer_section import bar_row, layer_section, percent_or_dash, table
from spacy_latent.visualize.page import packaged

# A smaller calibration error does not change any decision.
SMALL_ERROR = 0.03
# By the kind of prediction: its name in reports on confidences, and the name of a single
# prediction.
SUBJECTS = {"entity": ("entities", "entity"), "span": ("spans", "span")}
# The same for all predictions of a parser.
PARSES = ("parses", "arc")


def render_report(
    assessment: Assessment,
    *,
    model: str,
    corpus: str,
    training: Sequence[Evaluation] = (),
    gallery_bytes: int = GALLERY_BYTES,
) -> str:
    """Return the HTML page of the report.

    Args:
        model, corpus: Names of the pipeline and of the corpus, for the title.
        training: Rows of :func:`spacy_latent.analysis.training_log.read_training_log`.
        gallery_bytes: Greatest size of the gallery. The gallery of a larger corpus holds docs at
            equal distances.
    """
    figures = assessment.figures
    sections = [
        _head(assessment, model, corpus),
        [layer_section(name, part) for name, part in figures.components.items()],
        [_confidence(name, found) for name, found in figures.entities.items()],
        _task(figures.task, figures.others),
        _training(training),
        render_gallery(assessment, gallery_bytes) if figures.components else None,
        _foot({part.kind for part in figures.components.values()}),
    ]
    # The script draws the gallery.
    script = packaged("report.js") if figures.components else ""
    title = f"{_subject(figures)} of {model}"
    return script_page(title, packaged("report.css"), script, sections)


# ---------------------------------------------------------------- results


def _head(assessment: Assessment, model: str, corpus: str) -> Markup:
    figures = assessment.figures
    notes = remarks(figures)
    return tag(
        "header",
        tag("h1", f"{_subject(figures)} of ", tag("code", model)),
        tag("p", _seen(figures)),
        tag(
            "p",
            f"{number_of(figures.docs, 'doc', ',')}, {number_of(figures.tokens, 'token', ',')} of ",
            tag("code", corpus),
            f"; pipeline: {', '.join(figures.pipeline)}",
            class_="soft",
        ),
        _remarks(notes) if notes else None,
        _answer(assessment) if figures.components else None,
        [_verdict(name, found, assessment) for name, found in assessment.verdicts.items()],
        tag(
            "nav",
            [tag("a", label, href=f"#{place}") for place, label in _places(figures)],
            aria_label="Sections",
        ),
    )


def _remarks(notes: Sequence[str]) -> Markup:
    listed = tag("ul", [tag("li", each, class_="note") for each in notes])
    return tag("section", tag("strong", "Read first"), listed, class_="verdict note", id="first")


def _subject(figures: Figures) -> str:
    if figures.components:
        return "Latent structures"
    subjects = [SUBJECTS.get(noun, PARSES)[0] for noun in _nouns(figures)]
    return " and ".join(dict.fromkeys(subjects)).capitalize() or "Scores"


def _nouns(figures: Figures) -> list[str]:
    """Return names of the predictions whose confidences the report is about."""
    return [found.noun for found in figures.entities.values()] + [*figures.unjudged.values()]


def _seen(figures: Figures) -> str:
    """Return a description of the page for new readers."""
    if not figures.components:
        subjects = dict.fromkeys(SUBJECTS.get(noun, PARSES)[1] for noun in _nouns(figures))
        if not subjects:
            return "The scores of this pipeline, compared with the scores of others."
        each = " and ".join(subjects)
        return f"The reliability of the confidence of each {each} that the pipeline finds."
    plurals = " and ".join(dict.fromkeys(part.plural for part in figures.components.values()))
    return (
        f"The pipeline predicts with latent {plurals}. This page shows whether they help, "
        "compares them with patterns that need no learning, and draws them text by text."
    )


def _places(figures: Figures) -> list[tuple[str, str]]:
    """Return the identifiers and the titles of the sections."""
    confidences = [(_place(name), f"Confidence of {name}") for name in figures.entities]
    gallery = [("gallery", "Gallery")] if figures.components else []
    return [*confidences, ("task", "Scores"), *gallery, ("about", "About")]


def _answer(assessment: Assessment) -> Markup:
    """Return the answer to the question whether the structures help.

    Trained controls determine the answer. Without them it is the command that trains a control.
    """
    name, part = next(iter(assessment.figures.components.items()))
    said = answer(assessment.verdicts[name])
    lines: list[Markup | None] = []
    for measure, row in part.trained.measures.items():
        rows = [_answer_row("this model", row)]
        for control, theirs in row.controls.items():
            what = part.trained.controls[control].what
            rows.append(_answer_row(f"{control}: {what}", theirs))
        header = ["", (measure, "number"), "with 95 % interval", "this model minus the other"]
        lines.append(tag("div", table(header, rows), class_="wide"))
    if not lines:
        lines.append(tag("p", *_untested(part.plural, part.kind)))
    return tag(
        "section",
        tag("strong", f"Do the {part.plural} help? {said}."),
        lines,
        class_=f"answer {'good' if said == 'Yes' else 'warning' if said == 'No' else 'note'}",
        id="help",
    )


def _answer_row(label: str, row: TrainedScore | ControlScore) -> Markup:
    seeds = row.seeds
    trainings = None
    if len(seeds) > 1:
        each = ", ".join(percent(value) for value in seeds)
        trainings = tag("div", f"mean of {len(seeds)} trainings: {each}", class_="soft")
    ahead, own = "", isinstance(row, TrainedScore)
    if isinstance(row, ControlScore):
        difference, low, high = (points(value) for value in row.difference)
        ahead = f"{difference} points ({low} to {high})"
        if math.isfinite(row.spread):
            ahead += f"; trainings differ by {points(row.spread)} (two standard deviations)"
    return tag(
        "tr",
        tag("td", label, trainings),
        tag("td", percent_or_dash(row.value), class_="number"),
        tag("td", bar(row.value, row.low, row.high, not own)),
        tag("td", ahead),
        class_="own" if own else None,
    )


def _untested(structures: str, kind: str) -> list[Any]:
    if not find_kind(kind).trees:
        return [
            "A comparison with a pipeline for the same task that was trained without them, such "
            "as one that reads all words, shows whether they help. Give its directory with ",
            tag("code", "--control DIRECTORY"),
            ".",
        ]
    return [
        f"A comparison with the same model, trained with {structures} that are not learned, "
        "shows whether they help. ",
        tag("code", "spacy latent control CONFIG --trees random --output DIRECTORY"),
        " trains such a control. Then give this report ",
        tag("code", "--control DIRECTORY"),
        ".",
    ]


def _verdict(name: str, found: list[Verdict], assessment: Assessment) -> Markup:
    level = "warning" if trivial(found) else found[0].level
    several = len(assessment.verdicts) > 1
    said = headline(found, assessment.figures.components[name])
    return tag(
        "section",
        tag("strong", said, f" ({name})" if several else None),
        tag("ul", [tag("li", verdict.text, class_=verdict.level) for verdict in found]),
        class_=f"verdict {level}",
        data_layer=name,
    )


def _place(name: str) -> str:
    """Return the identifier of the section on the confidences of a component."""
    return f"confidence-{re.sub(r'[: ]+', '-', name)}"


def _confidence(name: str, found: EntityFigures) -> Markup:
    """Return the section on the reliability of the probabilities of entities or arcs."""
    several = plural(found.noun)
    component = name.split(":", maxsplit=1)[0]
    heading = tag("h2", f"Confidence of the {several} of ", tag("code", component))
    if not found.found:
        said = f"No {several} found, {found.gold:,} in the references."
        return tag("section", heading, tag("p", said), id=_place(name))
    rows = [
        tag(
            "tr",
            tag("td", f"{row.threshold:g}", class_="number"),
            tag("td", f"{row.kept:,}", class_="number"),
            tag("td", percent_or_dash(row.precision), class_="number"),
            tag("td", bar(row.precision, row.low, row.high)),
            tag("td", percent_or_dash(row.recall), class_="number"),
        )
        for row in found.cuts
    ]
    numbers = [(title, "number") for title in ("confidence", several, "precision", "recall")]
    header = [*numbers[:3], "with 95 % interval", numbers[3]]
    diagram = tag(
        "figure",
        tag("figcaption", f"Share of correct {several} in each range of predicted probabilities"),
        reliability_diagram(found.bins),
        tag(
            "p",
            "If the probabilities are right, bars end at the points. The numbers below are "
            f"those of {several}.",
            class_="soft",
        ),
        style="margin:0",
    )
    dropped = tag("p", f"Remaining {several} if all below a confidence are dropped:")
    return tag(
        "section",
        heading,
        tag(
            "p",
            f"{number_of(found.found, found.noun, ',')} found, {found.gold:,} in the references. ",
            tag("b", f"Expected calibration error: {_exact(found.error)}. "),
            f"If all probabilities of so many {several} were right, it would be "
            f"{_exact(found.chance)} on average by chance alone, and below "
            f"{_exact(found.chance_high)} in 19 of 20 cases. ",
            _judged(found),
        ),
        tag("div", diagram, tag("div", dropped, table(header, rows)), class_="columns wide"),
        id=_place(name),
    )


def _judged(found: EntityFigures) -> list[Any]:
    if found.error <= found.chance_high:
        return ["These texts show no error of the probabilities."]
    if found.error <= SMALL_ERROR:
        return ["The probabilities have a small error."]
    said = "Calibrate the probabilities before you use them: "
    return [said, tag("code", "spacy latent calibrate"), " fits them to held-out text."]


def _exact(share: float) -> str:
    """Return a share in percent with one decimal."""
    return f"{100 * share:.1f}\u00a0%"


def _task(task: TaskFigures, others: Mapping[str, Mapping[str, OtherScore]]) -> Markup:
    rows = [bar_row(name, row.value, row.low, row.high) for name, row in task.measures.items()]
    rows += [
        bar_row(f"{name} of {model}", row.value, row.low, row.high, other=True)
        for model, found in others.items()
        for name, row in found.items()
    ]
    scores = [
        tag("tr", tag("td", tag("code", name)), tag("td", f"{value:.4g}", class_="number"))
        for name, value in task.scores.items()
    ]
    none = tag("p", "The corpus has no references for what the pipeline predicts.")
    return tag(
        "section",
        tag("h2", "Scores"),
        table(["", ("value", "number"), "with 95 % interval"], rows) if rows else none,
        tag("details", tag("summary", "All scores of the pipeline"), table(["", ""], scores))
        if scores
        else None,
        id="task",
    )


def _training(rows: Sequence[Evaluation]) -> Markup | None:
    if not rows:
        return None
    steps = [row["step"] for row in rows]
    scores = _lines([row["scores"] for row in rows])
    if len(scores) > 1:
        # The weighted score is a share of 1; the other scores are percentages.
        scores = {name: line for name, line in scores.items() if name not in ("score", "speed")}
    drawn = [curves("Scores on the development set", steps, scores)] if scores else []
    losses = _lines([row["losses"] for row in rows])
    drawn += [curves(f"Loss of {name}", steps, {name: line}) for name, line in losses.items()]
    return tag("section", tag("h2", "Training"), tag("div", drawn, class_="columns wide"))


def _lines(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the values of all rows by name, NaN for a row without one."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, math.nan) for row in rows] for name in names}


ABOUT = (
    "“Random structures” are the best ones under random scores. Random items and tags are those "
    "of the pipeline, moved to random places. They replace its own structures at prediction "
    "only; the rest of the pipeline is not changed. Intervals come from 1,000 resamples of the "
    "docs. If nearly all docs give the same result, intervals have at least the width of the "
    "rule of three: a result that occurs in none of n docs may occur in up to 3 / n of all. The "
    "entropy is that of the distribution p(z) of structures."
)
ABOUT_TREES = (
    "Random trees for comparison are drawn uniformly from the set of the pipeline's structure. "
    "The head of each token in a control is: “left-branching”, the next token; "
    "“right-branching”, the token before; “flat”, the first token; “balanced”, the middle token "
    "for the middles of both halves; “nearest”, the nearest earlier token whose word mostly is "
    "a head."
)
ABOUT_ALIGNMENTS = (
    "The controls align words: “same word”, every two equal words; “nearest same word”, equal "
    "words, each at most once; “diagonal”, words at the same relative position in their texts."
)


def _foot(kinds: set[str]) -> Markup:
    """Return the explanations at the end of the page."""
    paragraphs = [ABOUT] if kinds else []
    paragraphs += [ABOUT_TREES] if any(find_kind(kind).trees for kind in kinds) else []
    paragraphs += [ABOUT_ALIGNMENTS] if "cells" in kinds else []
    return tag(
        "section",
        tag("h2", "About"),
        [tag("p", text) for text in paragraphs],
        tag("p", "Docs are sorted and drawn by this page itself; it sends no data.")
        if kinds
        else None,
        tag("p", f"spacy-latent {__version__}", class_="soft"),
        id="about",
    )
