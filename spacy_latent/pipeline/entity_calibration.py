"""Probabilities of entities that mean what they say: fitted on held-out text, and put where the
component keeps what it has learnt.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import minibatch

from spacy_latent.analysis.calibration import (
    FEW,
    NOTHING_OUTSIDE,
    Cut,
    JudgedEntities,
    conformal_threshold,
    cut,
    in_digits,
    in_words,
    judged_entities,
    keeps_few,
    left_out_in_words,
    most_precise,
    precisions,
    threshold_for,
)
from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.annotations import check_share, write
from spacy_latent.errors import LatentError, PartlyAnnotated, number_of
from spacy_latent.models.span_probabilities import SpanProbabilities
from spacy_latent.pipeline.calibration_fit import (
    ScoredDocs,
    ScoreFit,
    choose_confidence,
    feasible,
)
from spacy_latent.pipeline.inspection import applied, refuse_lost
from spacy_latent.pipeline.learnt_calibration import EntityCalibration, entity_components
from spacy_latent.structures.derivatives import recording

# Sets of entities would be all spans.
LEAST = 1e-5
# Docs that are scored together.
BATCH = 256


@dataclass
class Calibrated:
    """What was found.

    losses: mean of the docs that are fitted to, by what was compared: as trained, and "calibrated",
        on the docs that it was fitted on; with biases as trained, and on docs left out of the fit
        with a temperature and with biases. confidence_losses: of entities left out of the fit.
    before, after: entities with their probabilities, as the component was and as it is, on the docs
        that it was calibrated on. Without biases they are the same entities. Those on tokens whose
        annotation is missing are left out; ``after.unannotated`` says how many.
    set_sizes: how many spans the set of each doc holds; empty without a coverage.
    left_out: docs whose annotation no sequence of tags agrees with, as where it has a label that
        the component does not have; scores are not fitted to them.
    unknown: those labels, sorted.
    """

    calibration: EntityCalibration
    losses: dict[str, float]
    confidence_losses: dict[str, float]
    before: JudgedEntities
    after: JudgedEntities
    set_sizes: list[int]
    left_out: int
    unknown: tuple[str, ...] = ()


# As nlp.initialize takes them, too.
Examples = Iterable[Example] | Callable[[], Iterable[Example]]


@recording()
def calibrate(
    nlp: Language,
    examples: Examples,
    component: str | None = None,
    *,
    biases: bool = False,
    confidence: bool | None = None,
    coverage: float | None = None,
    progress: Progress = silent,
) -> Calibrated:
    """Fit the calibration of a component and put it there.

    examples: with entities, and none that it was trained on; or what gives them when it is called.
        Predicted docs are not processed yet.
        Of texts that are annotated in part, what is found on tokens without annotation is left out,
        and a warning (PartlyAnnotated) says so where that is more than 5 %.
    component: name of a ``crf_ner``; may be left out where there is one.
    biases: whether each label may get one, where held-out docs ask for them, see
        :meth:`ScoreFit.choose`. With biases the component finds other entities than before.
    confidence: whether there are a slope and a shift; None for where held-out entities ask for
        them, see :func:`choose_confidence`.
    coverage: of texts with entities, the share whose set is to hold all of them; None for no sets.
    progress: see :class:`spacy_latent.analysis.progress.Progress`.
    """
    name = _choose(nlp, component)
    if coverage is not None and not (_is_number(coverage) and 0 < coverage < 1):
        raise LatentError(
            f"calibrate: coverage is {coverage!r}; expected a number between 0 and 1."
        )
    pipe: Any = nlp.get_pipe(name)
    if not pipe.labels:
        raise LatentError(f"{name!r} has no labels, so there is nothing to calibrate. Train it.")
    if pipe.untrained_labels:
        raise LatentError(
            f"{name!r} was not trained on {', '.join(pipe.untrained_labels)} since they were added "
            "to its labels, and finds none of them. Train it, and calibrate it then."
        )
    given = _examples("calibrate", examples)
    made = [example for example in _up_to(nlp, name, given, progress) if len(example.predicted)]
    if not any(example.reference.ents for example in made):
        raise LatentError(
            f"No text has an annotated entity, so {name!r} cannot be calibrated. Give annotated "
            "text that it was not trained on."
        )
    unknown = _unknown_labels(name, pipe, made)
    before = pipe.calibration
    try:
        found = _fit(pipe, made, biases, confidence, coverage, progress)
    except Exception:
        pipe.calibration = before
        raise
    _tell_what_is_left_out(name, found.after)
    return replace(found, unknown=unknown)


def _tell_what_is_left_out(name: str, found: JudgedEntities) -> None:
    said = left_out_in_words(name, found)
    if said:
        warnings.warn(said, PartlyAnnotated, stacklevel=3)


def _unknown_labels(name: str, pipe: Any, examples: Sequence[Example]) -> tuple[str, ...]:
    """Labels of the references that the component does not have. Raises LatentError where there is
    one in every text with entities: then all that it finds would count as wrong."""
    labels = [{span.label_ for span in example.reference.ents} for example in examples]
    unknown = sorted(set().union(*labels).difference(pipe.labels))
    if all(own.difference(pipe.labels) for own in labels if own):
        raise LatentError(
            f"{name!r} was trained on the labels {', '.join(pipe.labels)}, and every text with "
            f"entities has another one: {', '.join(unknown)}. It cannot find entities of a label "
            "that it was not trained on. Give texts that are annotated with its labels, or call "
            "the labels as in training."
        )
    return tuple(unknown)


def _fit(
    pipe: Any,
    made: Sequence[Example],
    biases: bool,
    confidence: bool | None,
    coverage: float | None,
    progress: Progress,
) -> Calibrated:
    pipe.calibration = None
    before = _judge(pipe, made, progress)
    fit, left_out = _score_fit(pipe, made, progress)
    point, losses = fit.choose(None if biases else False)
    found = EntityCalibration(
        temperature=float((-point[0]).exp()),
        biases=dict(zip(pipe.labels, point[1:].tolist())),
        docs=len(made),
        entities=sum(len(example.reference.ents) for example in made),
    )
    pipe.calibration = found
    after = _judge(pipe, made, progress)
    sure, told = choose_confidence(after, confidence)
    found = replace(found, slope=sure.slope, shift=sure.shift, shifts=sure.shifts)
    sizes: list[int] = []
    if coverage is not None:
        least = _least(pipe, made, found, coverage, progress)
        found = replace(found, coverage=coverage, least=least)
    pipe.calibration = found
    after = _judge(pipe, made, progress, sizes)
    return Calibrated(found, losses, told, before, after, sizes, left_out)


@dataclass
class Measured:
    """entities: with their probabilities, where annotation tells whether they are right; of others
        it has the number.
    covered: the share of texts with entities whose set holds all of them, and how many such texts
        there are; None without sets or such texts.
    set_size: how many spans a set holds on average, NaN without.
    """

    entities: JudgedEntities
    covered: tuple[float, int] | None
    set_size: float


def measure(
    nlp: Language,
    examples: Examples,
    component: str | None = None,
    progress: Progress = silent,
) -> Measured:
    """What a component says of texts, beside their annotation; arguments as of :func:`calibrate`.
    Nothing is fitted."""
    name = _choose(nlp, component)
    pipe: Any = nlp.get_pipe(name)
    given = _examples("measure", examples)
    made = [example for example in _up_to(nlp, name, given, progress) if len(example.predicted)]
    sizes: list[int] = []
    judged, covered = _judge(pipe, made, progress, sizes), None
    _tell_what_is_left_out(name, judged)
    found = pipe.calibration
    if found is not None and found.least is not None:
        scores = _least_of_texts(pipe, made, found, progress)
        if scores:
            covered = sum(score >= found.least for score in scores) / len(scores), len(scores)
    return Measured(judged, covered, sum(sizes) / len(sizes) if sizes else math.nan)


def set_precision(
    nlp: Language,
    found: Calibrated,
    precision: float,
    component: str | None = None,
    *,
    few: bool = False,
) -> Cut:
    """Set ``min_confidence`` of a component to the lowest value at which the entities that it was
    calibrated on have this precision, in its config as well: 0 where all of them together have it,
    else midway between the least confident entity that is kept and the next below. Raises
    LatentError where there is no such value, where one above 0 keeps fewer than 20 entities or than
    one in ten, and where the texts have annotated entities alone, so that none is known to be
    wrong.

    few: set it of few entities as well.
    """
    if not isinstance(found, Calibrated):
        raise LatentError(
            f"set_precision: it was given a {type(found).__name__}; expected what calibrate(nlp, "
            "examples) gives."
        )
    check_share("set_precision", "precision", precision)
    name = _choose(nlp, component)
    pipe: Any = nlp.get_pipe(name)
    if not found.after.outside_known:
        raise LatentError(f"There is no min_confidence for a precision. {NOTHING_OUTSIDE}")
    least = threshold_for(found.after, precision)
    if least is None:
        thresholds, reached = precisions(found.after)
        told = "There are no entities."
        if len(thresholds):
            best = cut(found.after, float(thresholds[reached.argmax()]))
            told = (
                f"The highest is {best.precision:.3f}, of the {number_of(best.kept, 'entity')} "
                f"with a confidence of {in_digits(best.threshold)} or more."
            )
        raise LatentError(
            f"At no confidence the precision is {precision}. {told} Ask for a lower precision, or "
            "calibrate on more annotated text."
        )
    if least.threshold and keeps_few(least, found.after) and not few:
        enough = most_precise(found.after)
        told = f"No threshold keeps {FEW} of them. "
        if enough is not None:
            told = (
                "The highest precision of a threshold that keeps more is "
                f"{enough.precision:.3f}, of {enough.kept} with a confidence of "
                f"{in_digits(enough.threshold)} or more. "
            )
        raise LatentError(
            f"A min_confidence of {in_digits(least.threshold)}, for a precision of "
            f"{precision}, would keep "
            f"{in_words(least, found.after, 'the calibration texts')}. Fewer than "
            f"{FEW}, or than one in ten, do not tell the precision, and the pipeline would "
            f"find next to nothing. {told}Ask for a lower precision or for none, or calibrate on "
            "more annotated text. To set it all the same, give --few, in Python few=True."
        )
    pipe.configure("min_confidence", least.threshold)
    nlp.get_pipe_config(name)["min_confidence"] = least.threshold
    return least


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _examples(asked: str, given: Examples) -> list[Example]:
    """asked: name of the function that they were given to."""
    found = list(given() if callable(given) else given)
    wrong = [example for example in found if not isinstance(example, Example)]
    if wrong:
        advice = ""
        if isinstance(wrong[0], Doc):
            advice = " Of an annotated doc: Example(nlp.make_doc(doc.text), doc)."
        raise LatentError(
            f"{asked}: the examples hold a {type(wrong[0]).__name__}; expected Examples, of a doc "
            f"that is not processed yet and an annotated one, as nlp.evaluate takes them.{advice}"
        )
    return found


def _choose(nlp: Language, component: str | None) -> str:
    known = entity_components(nlp)
    there = ", ".join(nlp.pipe_names) or "none"
    if component is None and len(known) == 1:
        return known[0]
    if component in known:
        return str(component)
    asked = "Several can be calibrated" if component is None else f"{component!r} is none of them"
    if not known:
        raise LatentError(
            "The pipeline has no component whose probabilities of entities can be calibrated. Its "
            f"components are {there}; expected a crf_ner."
        )
    raise LatentError(f"{asked}: {', '.join(known)}. Name one of these as component.")


def _up_to(nlp: Language, name: str, examples: list[Example], progress: Progress) -> list[Example]:
    """With docs that the components before ``name`` have processed."""
    docs = [example.predicted for example in examples]
    for before, pipe in nlp.pipeline:
        if before == name:
            break
        docs = list(progress(applied(pipe, docs, nlp.batch_size), before, len(docs)))
    advice = "Calibrate it without one, or leave these docs out."
    refuse_lost(len(examples), len(docs), "doc", advice)
    return [Example(doc, example.reference) for doc, example in zip(docs, examples)]


def _batches(
    examples: Sequence[Example], progress: Progress, stage: str
) -> Iterator[list[Example]]:
    return minibatch(progress(examples, stage, len(examples)), BATCH)


def _score_fit(pipe: Any, examples: Sequence[Example], progress: Progress) -> tuple[ScoreFit, int]:
    groups, done = [], 0
    for batch in _batches(examples, progress, "Scores"):
        # Weights stay as they are, so that a label that training did not have is nothing to mend
        # here: its entities cannot be found, and count as that.
        gold = [pipe._gold_tags(example, refuse_unknown=False) for example in batch]
        for group in pipe.scored([example.predicted for example in batch], EntityCalibration()):
            scores, lengths = group.scores.cpu().double(), group.lengths.cpu()
            allowed = torch.ones(scores.shape, dtype=torch.bool)
            for b, d in enumerate(group.docs):
                allowed[b, : len(gold[d])] = gold[d]
            transitions = group.transitions.cpu()
            chain = group.chain.bind(*(part.cpu().double() for part in group.chain.bound))
            allowed, counts = feasible(chain, scores, lengths, allowed)
            places = [done + d for d in group.docs]
            groups.append(ScoredDocs(places, scores, lengths, allowed, counts))
        done += len(batch)
    fit = ScoreFit(pipe.cfg["loss"], pipe.tags, transitions, groups)
    return fit, sum(int((group.counts == 0).sum()) for group in groups)


def _judge(
    pipe: Any, examples: Sequence[Example], progress: Progress, sizes: list[int] | None = None
) -> JudgedEntities:
    """What the component finds now. sizes: those of the sets are added."""
    before = dict(pipe.cfg)
    pipe.cfg.update(annotate="probabilities", alternatives=0, min_confidence=0.0)
    try:
        for batch in _batches(examples, progress, "Entities"):
            docs = [example.predicted for example in batch]
            for doc, found in zip(docs, pipe.predict(docs)):
                # Not set_annotations: entities on a doc would stay as they are from then on.
                write(doc, pipe.name, [found])
                if sizes is not None and found.possible is not None:
                    sizes.append(len(found.possible))
    finally:
        pipe.cfg.update(before)
    judged = judged_entities(examples, pipe.name)
    assert judged is not None
    return judged


def _least(
    pipe: Any,
    examples: Sequence[Example],
    calibration: EntityCalibration,
    coverage: float,
    progress: Progress,
) -> float:
    """The probability that all entities of a text reach, in so many of the texts with some."""
    scores = _least_of_texts(pipe, examples, calibration, progress)
    least = conformal_threshold(scores, coverage)
    if least < LEAST:
        reached = sum(score >= LEAST for score in scores) / (len(scores) + 1)
        raise LatentError(
            f"No set of useful size has a coverage of {coverage}: in more than "
            f"{1 - coverage:.2g} of {number_of(len(scores), 'text')} with entities one is less "
            f"probable than {LEAST}. The most that sets can cover is "
            f"{math.floor(100 * reached) / 100}."
        )
    # So that the last digits of a probability, which depend on the batch, leave none out.
    return least * (1 - 1e-6)


def _least_of_texts(
    pipe: Any, examples: Sequence[Example], calibration: EntityCalibration, progress: Progress
) -> list[float]:
    """Of each text with entities the probability of the least probable one."""
    number = {label: i for i, label in enumerate(pipe.labels)}
    scores: list[float] = []
    for batch in _batches(examples, progress, "Sets"):
        for group in pipe.scored([example.predicted for example in batch], calibration):
            likely = SpanProbabilities(pipe.cfg["loss"], group.chain, group.scores, group.lengths)
            for b, d in enumerate(group.docs):
                gold = batch[d].reference.ents
                if not gold:
                    continue
                aligned = batch[d].get_aligned_spans_y2x(list(gold))
                # What tokens or labels of the component cannot be is found by no set.
                own = [0.0] * (len(gold) - len(aligned))
                own += [
                    likely.of(b, (span.start, span.end, number[span.label_]))
                    if span.label_ in number
                    else 0.0
                    for span in aligned
                ]
                scores.append(min(own))
    return scores


__all__ = [
    "Calibrated",
    "EntityCalibration",
    "Measured",
    "calibrate",
    "entity_components",
    "measure",
    "set_precision",
]
