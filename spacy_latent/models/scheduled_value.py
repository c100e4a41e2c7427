"""Settings that are a number or follow a schedule."""

from collections.abc import Iterable, Iterator
from typing import Any

from spacy_latent.errors import LatentError


class ScheduledValue:
    """Value at each training update of a number or a Thinc schedule.

    Thinc's schedules are generators, which can be neither copied nor pickled. The drawn values are
    kept, so copies share them. A pickled copy stays at the last value drawn.

    Args:
        setting: name of the setting in messages.
    """

    expected = "a finite number of at least 0"
    # Whether the value is a number rather than a schedule.
    constant = False

    def __init__(self, values: float | Iterable[float], setting: str) -> None:
        self.setting = setting
        self._source: Iterator[float] | None = None
        if isinstance(values, (int, float)):
            self.constant = True
            self._drawn = [self._checked(values)]
        else:
            self._source = iter(values)
            self._drawn = []
            self.at(0)
            if not self._drawn:
                raise LatentError(f"The {setting}'s schedule is empty: give at least one value.")

    def at(self, update: int) -> float:
        """Return the value at this update, from 0; after the end of a schedule, its last."""
        while len(self._drawn) <= update and self._source is not None:
            try:
                self._drawn.append(self._checked(next(self._source)))
            except StopIteration:
                self._source = None
        return self._drawn[min(update, len(self._drawn) - 1)] if self._drawn else 1.0

    def allows(self, value: float) -> bool:
        """Return whether a value is finite and at least 0."""
        return 0 <= value < float("inf")

    def _checked(self, value: float) -> float:
        if not self.allows(value):
            raise LatentError(f"The {self.setting} is {value}; expected {self.expected}.")
        return float(value)

    def __deepcopy__(self, memo: Any) -> "ScheduledValue":
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_drawn": list(self._drawn), "_source": None}


class Temperature(ScheduledValue):
    """Schedule of values above 0, see :class:`ScheduledValue`."""

    expected = "a finite number above 0"

    def __init__(self, values: float | Iterable[float]) -> None:
        super().__init__(values, "temperature")

    def allows(self, value: float) -> bool:
        """Return whether a value is finite and above 0."""
        return 0 < value < float("inf")
