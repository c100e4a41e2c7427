"""Calibration of probabilities that a component has learnt, and its application.

Importing this module is cheap. spaCy imports it whenever a pipeline is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.language import Language
    from torch import Tensor

    from spacy_latent.annotations import SpanStructure
    from spacy_latent.layers.batch_interventions import BatchInterventions
    from spacy_latent.models.parses import ArcConfidences
    from spacy_latent.models.span_probabilities import SpanProbabilities
    from spacy_latent.structures.tag_sequence import TagSequence

# Distance from 0 and 1 to which probabilities are clipped.
NEAR = 1e-6
# Bound on the probabilities of whole trees, of which those of long sentences are far smaller.
LEAST_TREE = 1e-300
# Numbers of the calibration of a parser that divide scores or keep the order of probabilities.
POSITIVE = ("temperature", "label_temperature", "slope", "tree_slope", "labelled_tree_slope")


@dataclass(frozen=True, kw_only=True)
class ConfidenceMap:
    """Map from the probability of a prediction to its confidence.

    Attributes:
        slope, shift, shifts: the log-odds of a prediction's confidence are the log-odds of its
            probability times ``slope``, plus ``shift``, plus the shift of its label in ``shifts``.
    """

    slope: float = 1.0
    shift: float = 0.0
    shifts: dict[str, float] = field(default_factory=dict)

    @property
    def changes_odds(self) -> bool:
        """True if confidences differ from the probabilities of the model.

        The weights of whole structures do not change with them, since no model with just these
        confidences is known.
        """
        return self.slope != 1 or self.shift != 0 or any(self.shifts.values())

    def shifts_of(self, labels: Sequence[str]) -> tuple[float, ...]:
        """Return the shift of the log-odds of each label."""
        return tuple(self.shift + self.shifts.get(label, 0.0) for label in labels)

    def confidence(self, probability: float, label: str) -> float:
        """Return the confidence of a prediction from its probability under the model."""
        (shift,) = self.shifts_of([label])
        return confidence_of(probability, self.slope, shift)


@dataclass(frozen=True)
class EntityCalibration(ConfidenceMap):
    """Calibration of a component's probabilities of entities or spans, learnt from held-out text.

    Spans have neither biases nor a coverage.

    Attributes:
        temperature: divisor of the scores.
        biases: by label, the term that is added to the scores of the tags that begin an entity with
            it; empty for no biases.
        coverage: share of the texts with entities whose sets hold all of them; None without sets.
        least: least probability, before slope and shifts, of a span in the set.
        docs, entities: numbers of docs and entities of the fit.
    """

    temperature: float = 1.0
    biases: dict[str, float] = field(default_factory=dict)
    coverage: float | None = None
    least: float | None = None
    docs: int = 0
    entities: int = 0

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, found: object, name: str, labels: Sequence[str]) -> EntityCalibration:
        """Read the calibration that a component ``name`` has saved.

        Raises:
            LatentError: if a value is invalid.
        """

        def refuse(what: str) -> NoReturn:
            raise LatentError(
                f"{name}: its calibration {what}. The saved pipeline was changed by hand or cut "
                "short: run 'spacy latent calibrate' again."
            )

        if not isinstance(found, Mapping):
            refuse(f"is {found!r}; expected its fields by name")
        known = {each.name for each in fields(cls)}
        if set(found) - known:
            refuse(f"has {', '.join(sorted(map(str, set(found) - known)))}, which are not known")
        made = cls(**found)
        numbers = [made.temperature, made.slope, made.shift, made.docs, made.entities]
        numbers += [value for value in (made.coverage, made.least) if value is not None]
        for key in ("biases", "shifts"):
            of_labels = getattr(made, key)
            if not isinstance(of_labels, Mapping):
                refuse(f"has the {key} {of_labels!r}; expected numbers by label")
            unknown = set(of_labels) - set(labels)
            if unknown:
                refuse(f"has {key} of the labels {', '.join(map(str, unknown))}, which are not its")
            numbers += of_labels.values()
        if any(isinstance(n, bool) or not isinstance(n, (int, float)) for n in numbers):
            refuse("holds what is no number")
        if not all(math.isfinite(n) for n in numbers):
            refuse("holds a number that is not finite")
        if made.temperature <= 0 or made.slope <= 0:
            refuse(f"has temperature {made.temperature} and slope {made.slope}; expected above 0")
        if (made.coverage is None) != (made.least is None):
            refuse("has one of coverage and least without the other")
        for value in (made.coverage, made.least):
            if value is not None and not 0 < value < 1:
                refuse(f"has coverage {made.coverage} and least {made.least}; expected in (0, 1)")
        return made

    def of_scores(self, emissions: Any, transitions: Any, labels: Sequence[str]) -> tuple[Any, Any]:
        """Apply the calibration to emissions ``(N, K)`` and transitions ``(K + 2, K)``, arrays."""
        if self.temperature != 1:
            emissions, transitions = emissions / self.temperature, transitions / self.temperature
        if any(self.biases.values()):
            from thinc.api import get_array_module

            biases = tuple(self.biases.get(label, 0.0) for label in labels)
            array_module = get_array_module(emissions)
            emissions = emissions + array_module.asarray(bias_of_tags(biases), emissions.dtype)
        return emissions, transitions


def is_finite_number(value: object) -> bool:
    """Return whether a value is a finite number, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # An integer beyond the range of floats.
        return False


def confidence_of(probability: float, slope: float, shift: float, least: float = NEAR) -> float:
    """Return the confidence with the log-odds of a probability, times a slope plus a shift.

    Args:
        least: probability to which smaller ones are raised.
    """
    if slope == 1 and shift == 0:
        return min(1.0, probability)
    near = min(max(probability, least), 1 - NEAR)
    odds = math.log(near) - math.log1p(-near)
    return 1 / (1 + math.exp(-max(-700.0, slope * odds + shift)))


def confidences_of(probabilities: np.ndarray, slope: float, shifts: np.ndarray) -> np.ndarray:
    """Return :func:`confidence_of` of each probability with its own shift, ``(S,)`` float64."""
    near = np.minimum(np.maximum(probabilities, NEAR), 1 - NEAR)
    odds = np.log(near) - np.log1p(-near)
    found = 1 / (1 + np.exp(-np.maximum(slope * odds + shifts, -700.0)))
    if slope != 1:
        return found
    return np.where(shifts == 0, np.minimum(probabilities, 1.0), found)


class CalibratedEntities:
    """Base class of components that store the calibration of their entities or spans in ``cfg``."""

    name: str
    cfg: dict[str, Any]
    # The saved calibration and the labels that were read last, and the result.
    _calibration_read: tuple[Any, tuple[str, ...], EntityCalibration] | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of entities or spans."""
        raise NotImplementedError

    @property
    def calibration(self) -> EntityCalibration | None:
        """Calibration that ``spacy latent calibrate`` fitted, or None.

        Confidences, and in ``crf_ner`` all probabilities, alternatives and sets of entities, are
        computed with it. It is None before calibration, and after further training.
        """
        found = self.cfg["calibration"]
        if found is None:
            return None
        # For a short text, checking it takes as long as finding its entities.
        kept = self._calibration_read
        if kept is None or kept[:2] != (found, self.labels):
            made = EntityCalibration.from_dict(found, self.name, self.labels)
            kept = self._calibration_read = deepcopy(found), self.labels, made
        return kept[2]

    @calibration.setter
    def calibration(self, found: EntityCalibration | None) -> None:
        made = None if found is None else found.to_dict()
        if made is not None:
            EntityCalibration.from_dict(made, self.name, self.labels)
        self.cfg["calibration"] = made

    def check_learnt(self) -> None:
        if self.cfg.get("calibration") is not None:
            EntityCalibration.from_dict(self.cfg["calibration"], self.name, self.labels)


@dataclass(frozen=True)
class ParseCalibration(ConfidenceMap):
    """Calibration of a parser's probabilities, learnt from held-out text.

    The slope, the shift and the shifts are those of arcs, by the most probable label of each. A
    labelled arc has the confidence of its arc times the probability of the label given the arc.

    Attributes:
        temperature: divisor of the scores of arcs.
        label_temperature: divisor of the scores of labels.
        tree_slope, tree_shift: the log-odds that a whole tree is right are those of its probability
            times the slope, plus the shift.
        labelled_tree_slope, labelled_tree_shift: likewise of a tree with its labels.
        docs, arcs: numbers of docs and arcs of the fit.
    """

    temperature: float = 1.0
    label_temperature: float = 1.0
    tree_slope: float = 1.0
    tree_shift: float = 0.0
    labelled_tree_slope: float = 1.0
    labelled_tree_shift: float = 0.0
    docs: int = 0
    arcs: int = 0

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, found: object, name: str, labels: Sequence[str]) -> ParseCalibration:
        """Read the calibration that a component ``name`` has saved.

        Args:
            labels: labels of its arcs.

        Raises:
            LatentError: if a value is invalid.
        """
        known = [each.name for each in fields(cls)]
        shifts = found.get("shifts", {}) if isinstance(found, Mapping) else None
        if (
            not isinstance(found, Mapping)
            or not isinstance(shifts, Mapping)
            or not set(found) <= set(known)
            or not set(shifts) <= set(labels)
            or not all(
                is_finite_number(n)
                for n in (*shifts.values(), *(n for key, n in found.items() if key != "shifts"))
            )
            or min(found.get(key, 1.0) for key in POSITIVE) <= 0
        ):
            raise LatentError(
                f"{name}: its calibration is {found!r}; expected finite numbers under "
                f"{', '.join(known)}, by its labels under shifts, and {', '.join(POSITIVE)} above "
                "0. The saved pipeline was changed by hand or cut short: run 'spacy latent "
                "calibrate' again."
            )
        return cls(**found)

    def confidences(self, labels: Sequence[str]) -> ArcConfidences | None:
        """Return the map of arcs for a parser with these labels, None if it changes nothing."""
        if not self.changes_odds:
            return None
        shifts = np.array(self.shifts_of(labels))
        return lambda said, places: confidences_of(said, self.slope, shifts[places])

    def tree_confidences(self, whole: float, labelled: float) -> tuple[float, float]:
        """Return the confidences that a whole tree is right, without and with its labels.

        The second is at most the first. The maps of the two are fitted apart, and could disagree.

        Args:
            whole: probability of the tree.
            labelled: its probability with labels.
        """
        tree = confidence_of(whole, self.tree_slope, self.tree_shift, LEAST_TREE)
        slope, shift = self.labelled_tree_slope, self.labelled_tree_shift
        return tree, min(tree, confidence_of(labelled, slope, shift, LEAST_TREE))


def parse_components(nlp: Language) -> list[str]:
    """Return the names of the components whose probabilities of arcs can be calibrated."""
    return [name for name, pipe in nlp.pipeline if hasattr(pipe, "all_labels")]


@lru_cache(maxsize=8)
def bias_of_tags(biases: tuple[float, ...]) -> np.ndarray:
    """Return what is added to the score of each tag, ``(K,)`` float64, by the biases of labels."""
    return np.array(biases) @ beginning_tags(len(biases)).double().numpy()


def beginning_tags(count: int) -> Tensor:
    """Return a mask of the tags that begin an entity of each label, ``(L, K)``.

    These are the tags B and U. The order of the tags is "O" and B, I, L, U of each label.
    """
    import torch

    own = torch.zeros(count, 1 + 4 * count)
    label = torch.arange(count)
    own[label, 1 + 4 * label] = 1.0
    own[label, 4 + 4 * label] = 1.0
    return own


@dataclass
class ScoredGroup:
    """Scores of docs with similar length.

    Attributes:
        transitions: learned transitions, ``(K + 2, K)``.
        scores: ``(B, N, K)``.
        lengths: ``(B,)``.
        interventions: interventions on the scores, or None.
    """

    docs: list[int]
    chain: TagSequence
    transitions: Tensor
    scores: Tensor
    lengths: Tensor
    interventions: BatchInterventions | None = None


def add_spans(
    structures: Sequence[SpanStructure],
    likely: SpanProbabilities,
    labels: Sequence[str],
    calibration: EntityCalibration,
) -> None:
    """Add the confidences of entities in the alternatives, and the set of entities.

    The set is the one for the coverage of the calibration.

    Args:
        likely: probabilities of all spans in the docs of the structures.
    """
    from spacy_latent.models.span_probabilities import spans_of_tags

    for b, structure in enumerate(structures):
        structure.alternative_probabilities = [
            np.array(
                [
                    calibration.confidence(likely.of(b, place), labels[place[2]])
                    for place in spans_of_tags(tags)
                ],
                dtype="float32",
            )
            for tags, _ in structure.alternatives
        ]
    if calibration.least is None:
        return
    found = likely.above(calibration.least)
    # Ends and labels are in order already, and the sort is stable.
    keys = [found.starts, -found.probabilities]
    if calibration.changes_odds:
        shifts = np.array(calibration.shifts_of(labels))[found.labels]
        sure = confidences_of(found.probabilities, calibration.slope, shifts)
        keys.append(-sure)
    else:
        sure = np.minimum(found.probabilities, 1.0)
    # For a short text, each operation on arrays counts.
    if len(structures) > 1:
        keys.append(found.docs)
    order = np.lexsort(keys)
    # The tag U represents the label.
    rows = np.array([found.starts, found.ends, 4 + 4 * found.labels], dtype="int32").T[order]
    sure = sure[order].astype("float32")
    bounds = [0, len(order)]
    if len(structures) > 1:
        bounds = np.searchsorted(found.docs[order], np.arange(len(structures) + 1)).tolist()
    for structure, start, end in zip(structures, bounds, bounds[1:]):
        structure.possible, structure.possible_probabilities = rows[start:end], sure[start:end]


def span_components(nlp: Language) -> list[str]:
    """Return the names of the components whose probabilities of spans can be calibrated."""
    return [name for name, pipe in nlp.pipeline if hasattr(pipe, "numbered_sets")]


def entity_components(nlp: Language) -> list[str]:
    """Return the names of the components whose probabilities of entities can be calibrated."""
    return [name for name, pipe in nlp.pipeline if hasattr(pipe, "scored")]


def uncalibrated_components(nlp: Language) -> list[str]:
    """Return the names of the components that can be calibrated and are not."""
    found = {*parse_components(nlp), *span_components(nlp), *entity_components(nlp)}
    named = [(name, nlp.get_pipe(name)) for name in nlp.pipe_names if name in found]
    return [name for name, pipe in named if getattr(pipe, "calibration", None) is None]
