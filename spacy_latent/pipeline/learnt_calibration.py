"""Calibration of the probabilities of entities or spans that a component has learnt."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from spacy_latent.errors import LatentError, LatentWarning

if TYPE_CHECKING:
    from torch import Tensor

Map = TypeVar("Map", bound="ConfidenceMap")
# Distance from 0 and 1 to which probabilities are clipped.
NEAR = 1e-6


def is_finite_number(value: object) -> bool:
    """Return whether a value is a finite number; booleans are not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # An integer beyond the range of floats.
        return False


def _are_of_sets(coverage: object, least: object) -> bool:
    """Return whether the values are valid settings of sets: both None, or both in (0, 1)."""
    if coverage is None or least is None:
        return coverage is least
    return all(is_finite_number(n) and 0 < n < 1 for n in (coverage, least))  # type: ignore[operator]


@dataclass(frozen=True, kw_only=True)
class ConfidenceMap:
    """Map from the probability of a prediction to its confidence.

    Attributes:
        slope, shift, shifts: logit(confidence) = slope · logit(probability) + shift +
            shifts[label]. A label that is not in ``shifts`` has no shift of its own.
    """

    slope: float = 1.0
    shift: float = 0.0
    shifts: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return the fields as ``cfg`` stores them."""
        return asdict(self)

    @classmethod
    def from_dict(cls: type[Map], found: object, name: str, labels: Sequence[str]) -> Map:
        """Read the calibration of a component ``name`` with these labels; refuse invalid values."""
        known = [each.name for each in fields(cls)]
        by_label = [key for key in known if key in ("biases", "shifts")]
        positive = [key for key in known if key.endswith(("temperature", "slope"))]

        def is_valid(found: Mapping[str, Any]) -> bool:
            maps = [found.get(key, {}) for key in by_label]
            if not all(isinstance(own, Mapping) and set(own) <= set(labels) for own in maps):
                return False
            others = [*by_label, "coverage", "least"]
            numbers = [number for key, number in found.items() if key not in others]
            numbers += [number for own in maps for number in own.values()]
            return (
                set(found) <= set(known)
                and all(map(is_finite_number, numbers))
                and all(found.get(key, 1.0) > 0 for key in positive)
                and _are_of_sets(found.get("coverage"), found.get("least"))
            )

        if not isinstance(found, Mapping) or not is_valid(found):
            raise LatentError(
                f"{name}: its calibration is {found!r}; expected the fields {', '.join(known)}. "
                f"They are finite numbers; {', '.join(positive)} are above 0; "
                f"{', '.join(by_label)} have a number for each of some of its labels "
                f"({', '.join(labels)}); coverage and least are between 0 and 1, neither "
                "without the other. The saved pipeline was changed by hand or cut short: run "
                "'spacy latent calibrate' again."
            )
        return cls(**found)

    @property
    def changes_odds(self) -> bool:
        """True if confidences differ from the probabilities of the model.

        The map does not apply to the weights of whole structures, since no model has exactly these
        confidences.
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

    Spans have no biases.

    Attributes:
        temperature: divisor of the scores.
        biases: by label, the term that is added to the scores of the tags that begin an entity with
            it; empty for no biases.
        coverage: target of the sets; None without sets. For entities, share of the texts with
            entities whose set holds all of them. For spans, share of a text's spans in its set,
            averaged over texts.
        least: least probability, before slope and shifts, of an entity in the set, or least
            confidence of a span.
        docs, entities: numbers of docs and entities of the fit.
    """

    temperature: float = 1.0
    biases: dict[str, float] = field(default_factory=dict)
    coverage: float | None = None
    least: float | None = None
    docs: int = 0
    entities: int = 0

    def of_scores(self, emissions: Any, transitions: Any, labels: Sequence[str]) -> tuple[Any, Any]:
        """Apply the calibration to arrays: emissions ``(N, K)``, transitions ``(K + 2, K)``."""
        if self.temperature != 1:
            emissions, transitions = emissions / self.temperature, transitions / self.temperature
        if any(self.biases.values()):
            from thinc.api import get_array_module

            biases = tuple(self.biases.get(label, 0.0) for label in labels)
            array_module = get_array_module(emissions)
            emissions = emissions + array_module.asarray(bias_of_tags(biases), emissions.dtype)
        return emissions, transitions


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


class CalibratedComponent(Generic[Map]):
    """Base class of components that store the calibration of their predictions in ``cfg``."""

    name: str
    cfg: dict[str, Any]
    _calibration_type: type[Map]
    # The saved calibration and the labels that were read last, and the result.
    _calibration_read: tuple[Any, tuple[str, ...], Map] | None = None

    @property
    def _calibrated_labels(self) -> tuple[str, ...]:
        """Labels that may have shifts of their own."""
        raise NotImplementedError

    def _checked(self, found: object) -> Map:
        return self._calibration_type.from_dict(found, self.name, self._calibrated_labels)

    @property
    def calibration(self) -> Map | None:
        """Calibration that ``spacy latent calibrate`` fitted, or None.

        It determines confidences, and in ``crf_ner`` and ``latent_parser`` all probabilities,
        alternatives and sets. It is None before calibration, and after further training.
        """
        found = self.cfg["calibration"]
        if found is None:
            return None
        # For a short text, checking the calibration takes as long as finding the entities.
        kept = self._calibration_read
        if kept is None or kept[:2] != (found, self._calibrated_labels):
            kept = deepcopy(found), self._calibrated_labels, self._checked(found)
            self._calibration_read = kept
        return kept[2]

    @calibration.setter
    def calibration(self, found: Map | None) -> None:
        made = None if found is None else found.to_dict()
        if made is not None:
            self._checked(made)
        self.cfg["calibration"] = made

    def check_learnt(self) -> None:
        """Raise an error if the stored calibration is not valid."""
        if self.cfg.get("calibration") is not None:
            self._checked(self.cfg["calibration"])

    def forget_calibration(self, stacklevel: int) -> None:
        """Drop the calibration with a warning, since it belongs to the weights before training."""
        if self.cfg["calibration"] is None:
            return
        self.cfg["calibration"] = None
        least = self.cfg.get("min_confidence")
        kept = f" min_confidence stays {least:.3g}, which was set for them." if least else ""
        warnings.warn(
            f"{self.name}: its calibration was fitted to the confidences before this training, "
            f"and is removed.{kept} Run 'spacy latent calibrate' again after training.",
            LatentWarning,
            stacklevel=stacklevel,
        )


@lru_cache(maxsize=8)
def bias_of_tags(biases: tuple[float, ...]) -> np.ndarray:
    """Return the term that the biases of labels add to the score of each tag, ``(K,)`` float64."""
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
