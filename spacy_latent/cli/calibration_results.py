"""Request and results of ``spacy latent calibrate``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacy_latent.errors import LatentError, PartlyAnnotated

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.training import Example

    from spacy_latent.analysis.judged_entities import JudgedEntities
    from spacy_latent.analysis.thresholds import ThresholdResult
    from spacy_latent.evaluation.covering_sets import Coverage
    from spacy_latent.evaluation.entity_calibration import Calibrated, Measured
    from spacy_latent.evaluation.parse_calibration import CalibratedParses


@dataclass(frozen=True)
class Request:
    """The options of the command that say what to fit and which precision to reach."""

    dev: str
    output: Path
    component: str | None
    coverage: float | None
    precision: float | None
    sure: float | None
    point_estimate: bool
    few: bool
    biases: bool
    slope: bool | None

    @property
    def confidence(self) -> float | None:
        """Confidence of the promised precision, None for a point estimate."""
        if self.point_estimate:
            return None
        return 0.9 if self.sure is None else self.sure

    def check_numbers(self) -> None:
        """Raise LatentError for shares that are not between 0 and 1."""
        from spacy_latent.evaluation.precise_threshold import check_precision

        for option, value in (("--coverage", self.coverage), ("--confidence", self.sure)):
            if value is not None and not 0 < value < 1:
                raise LatentError(f"{option} is {value}; expected a number between 0 and 1.")
        if self.precision is not None:
            check_precision("--precision", self.precision, self.point_estimate)


@dataclass
class ParseResult:
    """Calibration of a parser.

    Attributes:
        further: Judged arcs and trees of further texts, by noun.
        covered: Coverage of the sets of heads on further texts, or None.
        chosen: Thresholds for the requested precision, by noun.
        refused: Reason why no threshold has the precision, or "".
    """

    fitted: CalibratedParses
    further: dict[str, JudgedEntities]
    chosen: dict[str, ThresholdResult]
    refused: str
    covered: Coverage | None = None


@dataclass
class EntityResult:
    """Calibration of entities or nested spans; see :class:`ParseResult` for ``refused``."""

    fitted: Calibrated
    held_out: Measured | None
    least: ThresholdResult | None
    refused: str


def calibrate_parses(
    nlp: Language, name: str, asked: Request, examples: list[Example], further: list[Example]
) -> ParseResult:
    """Calibrate a parser, judge it on further texts and find thresholds for a precision."""
    from spacy_latent.cli.progress import progress
    from spacy_latent.evaluation import parse_calibration

    fitted = parse_calibration.calibrate(
        nlp, examples, name, confidence=asked.slope, coverage=asked.coverage, progress=progress
    )
    found = ParseResult(fitted, {}, {}, "")
    if further:
        found.covered = parse_calibration.measure_sets(nlp, further, name, progress)
        found.further = parse_calibration.measure(nlp, further, name, progress)
    if asked.precision is not None:
        try:
            found.chosen = parse_calibration.precise_arcs(
                fitted, asked.precision, confidence=asked.confidence, few=asked.few
            )
        except LatentError as error:
            # The figures show which precision to ask for.
            found.refused = str(error)
    return found


def calibrate_entities(
    nlp: Language, kind: str, asked: Request, examples: list[Example], further: list[Example]
) -> EntityResult:
    """Calibrate entities or spans, judge them on further texts and set a threshold."""
    from spacy_latent.cli.progress import progress
    from spacy_latent.evaluation import entity_calibration, span_calibration
    from spacy_latent.evaluation.calibration_examples import SPANS

    component = asked.component
    common: dict[str, Any] = {
        "confidence": asked.slope,
        "coverage": asked.coverage,
        "progress": progress,
    }
    with warnings.catch_warnings():
        # This warning is printed with the figures.
        warnings.simplefilter("ignore", PartlyAnnotated)
        if kind == SPANS:
            measure = span_calibration.measure
            fitted = span_calibration.calibrate(nlp, examples, component, **common)
        else:
            measure = entity_calibration.measure
            fitted = entity_calibration.calibrate(
                nlp, examples, component, biases=asked.biases, **common
            )
        found = EntityResult(fitted, None, None, "")
        if further:
            found.held_out = measure(nlp, further, component, progress)
        if asked.precision is not None:
            try:
                promise: dict[str, Any] = {"confidence": asked.confidence, "few": asked.few}
                found.least = entity_calibration.set_precision(
                    nlp, fitted, asked.precision, component, **promise
                )
            except LatentError as error:
                # The figures show which precision to ask for.
                found.refused = str(error)
    return found
