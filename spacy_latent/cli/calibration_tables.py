"""Output of ``spacy latent calibrate``: fits and errors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacy_latent.cli.calibration_thresholds import (
    CALIBRATION_TEXTS,
    FURTHER_TEXTS,
    print_groups,
    print_least,
    print_thresholds,
)
from spacy_latent.cli.config_blocks import block_of
from spacy_latent.cli.messages import fail, msg
from spacy_latent.errors import number_of, plural

if TYPE_CHECKING:
    from spacy.language import Language

    from spacy_latent.analysis.judged_entities import JudgedEntities
    from spacy_latent.cli.calibration_results import EntityResult, ParseResult, Request
    from spacy_latent.evaluation.calibration_fit import Gain
    from spacy_latent.evaluation.covering_sets import Coverage
    from spacy_latent.evaluation.entity_calibration import Calibrated, Measured
    from spacy_latent.evaluation.parse_calibration import CalibratedParses
    from spacy_latent.pipeline.learnt_calibration import ConfidenceMap, EntityCalibration
    from spacy_latent.pipeline.learnt_parse_calibration import ParseCalibration

SENTENCES_OF_DOCS = (
    "All sentences of a doc count as one text, since they are often right or wrong together. If "
    "docs have many, 'spacy convert --n-sents 1' makes a doc of each."
)
# With a slope below this value, different entities have almost the same confidence.
FLAT = 0.5


def print_parses(nlp: Language, name: str, asked: Request, found: ParseResult) -> None:
    """Print the calibration of a parser; exit with an error if no threshold has the precision."""
    fitted, further, chosen = found.fitted, found.further, found.chosen
    print_parse_fits(nlp, asked.dev, fitted)
    for judged in further.values():
        print_error("On the further texts", judged)
    print_coverage("heads", "of a word", fitted.covered, found.covered, fitted.calibration)
    shown = further.values() if further else [fit.after for fit in fitted.fits]
    texts = FURTHER_TEXTS if further else CALIBRATION_TEXTS
    for judged in shown:
        msg.divider(f"{judged.noun.capitalize()}s of {texts} at or above a confidence")
        print_thresholds(judged, chosen.get(judged.noun))
        print_groups(judged, texts)
    if found.refused:
        fail("Nothing is saved: no threshold has this precision", found.refused)
    for fit in fitted.fits if chosen else ():
        if fit.after.noun in chosen:
            print_least(chosen[fit.after.noun], fit.after, further.get(fit.after.noun))
        else:
            msg.warn(f"The texts do not support this precision for {plural(fit.after.noun)}.")
    if chosen:
        msg.info(
            "A parser drops no arc, so no threshold is set. Select arcs by their probability: "
            "it is in latent.arcs(), and for labelled arcs in latent.dependencies(). For whole "
            "trees it is whole_probability or labelled_whole_probability of each of latent.spans"
        )
    warn_without_annotation(nlp, name, "no probabilities", asked.output)
    msg.good(f"Saved to {asked.output}")


def warn_without_annotation(nlp: Language, name: str, lacking: str, output: Path) -> None:
    """Warn if a component does not write its probabilities on docs."""
    pipe: Any = nlp.get_pipe(name)
    level = pipe.cfg["annotate"]
    if level != "probabilities":
        msg.warn(
            f"annotate is {level!r}, so that docs hold {lacking}: set annotate = "
            f'"probabilities" in {output / "config.cfg"}'
        )


def print_parse_fits(nlp: Language, dev: str, found: CalibratedParses) -> None:
    """Print the temperatures of a parser, and the slopes and shifts of its odds, with errors."""
    made = found.calibration
    texts, arcs = number_of(made.docs, "text"), number_of(made.arcs, "arc")
    msg.divider(f"Calibration on {texts} with {arcs}")
    print_source(nlp, dev)
    if missing := found.arcs.before.unannotated:
        msg.text(f"{number_of(missing, 'further word')} left out: their head is not annotated")
    if missing := found.trees.before.unannotated:
        msg.text(f"{number_of(missing, 'tree')} of sentences with such words left out")
    maps = [
        f"slope {fit.slope:.3g} and shift {fit.shift:+.2f} of the odds of {plural(fit.after.noun)}"
        for fit in (found.trees, found.labelled_trees)
    ]
    lines = (
        f"temperature of trees {found.arcs.temperature:.3g}",
        f"temperature of labels {found.labelled.temperature:.3g}",
        *maps,
    )
    for said, fit in zip(lines, found.fits):
        msg.text(said)
        print_gain(fit.gain, fit.kept, made.docs)
        if fit is found.arcs:
            print_map_of_arcs(found)
        print_error("Before", fit.before)
        print_error("On texts left out of the fit, in five folds", fit.crossed)


def print_map_of_arcs(found: CalibratedParses) -> None:
    """Print the slope and the shifts of the odds of arcs, with their gain."""
    fit = found.confidences
    print_odds(found.calibration, found.arcs.after.noun)
    for name, loss in fit.losses.items():
        msg.text(f"mean loss of arcs left out of the fit, {name}: {loss:.4f}")
    if fit.kept:
        print_gain(fit.gain, fit.kept, found.calibration.docs)
        msg.text(
            "confidences of the heads of a word may add up to more or less than 1; weights of "
            "alternatives are not changed with the odds of arcs"
        )
    elif fit.losses:
        msg.text(
            "no slope and shifts of the odds of arcs: texts left out of the fit do not gain more "
            "than the error of the gain"
        )


def print_odds(made: ConfidenceMap, noun: str) -> None:
    """Print the slope and the shifts of odds, with a warning for a small slope.

    Args:
        noun: Name of the predictions, see JudgedEntities.
    """
    from spacy_latent.analysis.arc_calibration import ARC

    of_arcs = noun == ARC
    if (made.slope, made.shift) != (1.0, 0.0):
        whose = " of arcs" if of_arcs else ""
        msg.text(f"slope {made.slope:.3g} and shift {made.shift:+.2f} of the odds{whose}")
    if any(f"{abs(shift):.2f}" != "0.00" for shift in made.shifts.values()):
        each = ", ".join(f"{label} {value:+.2f}" for label, value in made.shifts.items())
        msg.text(f"shifts of labels: {each}")
    if made.slope < FLAT:
        others = (
            "other heads, as in arcs from a threshold on."
            if of_arcs
            else "other spans and labels, as in sets and alternatives: those of several labels of "
            "one span may add up to more than 1."
        )
        msg.warn(
            f"The slope is below {FLAT}: a ratio of 100 between two odds becomes "
            f"{100**made.slope:.1f}. Confidences say how often {plural(noun)} that are found are "
            f"right, and little about which. They are not fitted to {others} With --no-slope "
            "they stay the probabilities of the model."
        )


def print_entities(nlp: Language, name: str, asked: Request, found: EntityResult) -> None:
    """Print the calibration of entities or spans; exit if no threshold has the precision."""
    from spacy_latent.analysis.span_calibration import SPAN

    fitted, held_out = found.fitted, found.held_out
    print_calibration(fitted)
    print_source(nlp, asked.dev)
    print_left_out(CALIBRATION_TEXTS, fitted.after)
    print_error("Before", fitted.before)
    print_error("On texts left out of the fit, in five folds", fitted.crossed)
    print_gain(fitted.gain, fitted.kept, fitted.calibration.docs)
    if fitted.sets is not None:
        print_error("All spans of a text together, before", fitted.sets[0])
        print_error("All spans of a text together, with the temperature", fitted.sets[1])
    texts, shown, sets = CALIBRATION_TEXTS, fitted.after, None
    if held_out is not None:
        print_held_out(held_out)
        texts, shown, sets = FURTHER_TEXTS, held_out.entities, held_out.sets
    print_coverage("spans", "in a doc", fitted.covered, sets, fitted.calibration)
    if shown.probabilities:
        msg.divider(f"Dropping {plural(shown.noun)} of {texts} below a confidence")
        print_thresholds(shown, found.least)
        print_groups(shown, texts)
    if found.refused:
        fail(
            f"Nothing is saved: there is no threshold for a precision of {asked.precision}",
            f"{found.refused} Without --precision the calibration is saved.",
        )
    if shown.noun != SPAN:
        warn_without_annotation(nlp, name, "neither confidences nor sets", asked.output)
    elif fitted.covered is not None:
        # The confidences of spans are also in doc.spans.
        warn_without_annotation(nlp, name, "no sets", asked.output)
    if found.least is not None:
        print_least(found.least, fitted.after, None if held_out is None else held_out.entities)
    msg.good(f"Saved to {asked.output}")


def print_held_out(found: Measured) -> None:
    """Print the errors and the coverage of sets on further texts."""
    print_left_out(FURTHER_TEXTS, found.entities)
    print_error("On the further texts", found.entities)
    if found.covered is not None:
        share, count = found.covered
        msg.text(
            f"{100 * share:.1f} % of {number_of(count, 'further text')} with entities have all "
            f"in their set, which holds {found.set_size:.1f} spans on average"
        )


def print_coverage(
    several: str,
    place: str,
    fitted: Coverage | None,
    further: Coverage | None,
    made: EntityCalibration | ParseCalibration,
) -> None:
    """Print the sets of heads or spans, and what they cover on further texts.

    Args:
        several: Members of the sets, in words.
        place: Place with one set, in words.
        fitted: Coverage on the texts of the calibration; None for no sets.
    """
    from spacy_latent.analysis.thresholds import in_digits

    if fitted is None or made.least is None:
        return
    msg.text(
        f"sets with coverage {made.coverage}: all {several} with a confidence of at least "
        f"{in_digits(made.least)}; {fitted.size:.1f} {place} on average"
    )
    if further is not None and not further.texts:
        msg.warn(f"The further texts have no annotated {several}, so no coverage can be measured.")
    elif further is not None:
        msg.text(
            f"{100 * further.share:.1f} % of the {several} of a further text are in their set, "
            f"averaged over {number_of(further.texts, 'text')}; {further.size:.1f} {place}"
        )


def print_calibration(found: Calibrated) -> None:
    """Print the fitted values and their losses, and warn if the entities are few."""
    from spacy_latent.analysis.thresholds import ENOUGH, in_digits

    made, noun = found.calibration, found.after.noun
    several = plural(noun)
    texts, entities = number_of(made.docs, "text"), number_of(made.entities, noun)
    msg.divider(f"Calibration on {texts} with {entities}")
    known = len(found.before.probabilities)
    if not known:
        judged = "can be judged" if found.before.unannotated else "is found"
        msg.warn(
            f"The texts have {entities}, and no {noun} {judged}: the temperature is fitted to the "
            f"annotation alone, and no confidence of a found {noun} is checked. Train the "
            "component before it is calibrated, or give texts in which it finds some."
        )
    elif min(made.entities, known) < ENOUGH:
        msg.warn(
            f"There {'is' if made.entities == 1 else 'are'} only {entities} in the annotation, and "
            f"{number_of(known, noun)} found. What is fitted to fewer than {ENOUGH} may be "
            "worse than nothing on other text. Calibrate on more annotated text."
        )
    msg.text(f"temperature {made.temperature:.3g}")
    if made.biases:
        each = ", ".join(f"{label} {value:+.2f}" for label, value in made.biases.items())
        msg.text(f"biases of labels: {each}")
    # Without biases, no texts are left out of the fit.
    fitted = "calibrated" in found.losses
    for name, loss in found.losses.items():
        of = "the texts" if fitted or name == "as trained" else "texts left out of the fit"
        same = ", on the texts that it was fitted to" if name == "calibrated" else ""
        msg.text(f"mean loss of {of}, {name}: {loss:.4f}{same}")
    print_odds(made, noun)
    if made.changes_odds and noun == "entity":
        msg.text(
            "weights of alternatives are not changed with the odds of entities: an entity may be "
            "less probable than an alternative that has it"
        )
    for name, loss in found.confidence_losses.items():
        msg.text(f"mean loss of {several} left out of the fit, {name}: {loss:.4f}")
    if made.least is not None and found.set_sizes:
        mean = sum(found.set_sizes) / len(found.set_sizes)
        msg.text(
            f"sets with coverage {made.coverage}: all spans with a probability of at least "
            f"{in_digits(made.least)}; {mean:.1f} in a text on average"
        )
    print_misfits(found, several)


def print_misfits(found: Calibrated, several: str) -> None:
    """Warn of labels that the component lacks, and of texts that the fit could not use."""
    if found.unknown:
        label = "a label" if len(found.unknown) == 1 else "labels"
        msg.warn(
            f"{several.capitalize()} of the texts have {label} that the component was not trained "
            f"on: {', '.join(found.unknown)}. It cannot find them, so they count as missed. Call "
            "the labels as in training, or train with them."
        )
    if found.left_out:
        such = "has such a label, " if found.unknown else ""
        msg.warn(
            f"{number_of(found.left_out, 'text')} left out of the fit of temperature and biases: "
            f"no sequence of tags can be as annotated, because an entity {such}crosses the start "
            "of a sentence, begins or ends with white space, or overlaps an entity that an earlier "
            "component wrote."
        )


def print_gain(gain: Gain, kept: bool, docs: int) -> None:
    """Print the gain on texts left out of the fit, and whether the fit was kept."""
    from spacy_latent.evaluation.calibration_fit import FOLDS

    # Fewer docs do not fill the folds with two each.
    few = f" {SENTENCES_OF_DOCS}" if docs < 2 * FOLDS else ""
    if not kept and not math.isfinite(gain.error):
        msg.warn(
            f"No gain can be seen in {number_of(docs, 'text')}: the fit is not kept, and changes "
            f"no probability.{few}"
        )
        return
    said = (
        f"Texts left out of the fit gain {gain.mean:.4f} of the mean loss, with a standard error "
        f"of {gain.error:.4f}"
    )
    if kept and gain.is_sure:
        msg.text(said)
    elif kept:
        msg.warn(f"{said}. That is not more than the error; the fit is kept, as --slope asks.")
    else:
        msg.warn(
            f"{said}. That is not more than the error: the fit is not kept, and changes no "
            f"probability. More annotated text may show a gain.{few}"
        )


def print_source(nlp: Language, dev: str) -> None:
    """Print what the calibration texts were used for before, as far as the config tells it."""
    used = used_as(nlp, dev)
    page = "See 'Which texts' on the page 'Named entities by a sequence of tags'."
    if used == "train_corpus":
        msg.warn(
            f"The pipeline was trained on {dev}, as its config says. On these texts it is much "
            f"better than on others, and nothing that is fitted to them holds elsewhere. {page}"
        )
    elif used == "dev_corpus":
        msg.warn(
            f"{dev} chose the checkpoint of the pipeline, as its config says. So the texts are not "
            f"independent of it: on other text, probabilities and precisions will be lower. {page}"
        )
    else:
        msg.text(
            "If these texts chose the checkpoint of the pipeline, they are not independent of it. "
            f"{page}"
        )


def used_as(nlp: Language, corpus: str) -> str:
    """Return the setting of training that names a corpus, empty if none does.

    A pipeline in a folder "model-last" is the one at the end, which no corpus chose.
    """
    config = nlp.config.interpolate()
    chosen = nlp.path is None or Path(nlp.path).name != "model-last"
    for setting in ("train_corpus", "dev_corpus") if chosen else ("train_corpus",):
        path = block_of(config, f"{block_of(config, f'training.{setting}')}.path")
        if isinstance(path, str) and Path(path).resolve() == Path(corpus).resolve():
            return setting
    return ""


def print_left_out(texts: str, found: JudgedEntities) -> None:
    """Print the number of entities on tokens without annotation, if there are any."""
    from spacy_latent.analysis.calibration import left_out_in_words

    if said := left_out_in_words("the component", found):
        msg.warn(f"{texts[0].upper()}{texts[1:]}: {said}")
    elif found.unannotated:
        were = "was" if found.unannotated == 1 else "were"
        opening = f"{number_of(found.unannotated, found.noun)} found in {texts} {were} left out"
        msg.text(f"{opening}: the annotation of their tokens is missing")


def print_error(title: str, found: JudgedEntities) -> None:
    """Print the expected calibration error, and the error that chance alone causes."""
    from spacy_latent.analysis.calibration import error_by_chance, expected_calibration_error

    if not found.probabilities:
        msg.text(f"{title}: none can be judged" if found.unannotated else f"{title}: none found")
        return
    error = expected_calibration_error(found.probabilities, found.correct)
    chance, _ = error_by_chance(found.probabilities)
    msg.text(
        f"{title}: {number_of(len(found.probabilities), found.noun)}, expected calibration error "
        f"{100 * error:.1f} % ({100 * chance:.1f} % by chance alone)"
    )
