"""A temperature that is a number or follows a schedule."""

from collections.abc import Iterable, Iterator
from typing import Any

from spacy_latent.errors import LatentError


class Temperature:
    """The value at each training update of a number or a Thinc schedule.

    Thinc's schedules are generators, which can be neither copied nor pickled. The values drawn so
    far are kept, so copies share them; a pickled copy stays at the last value drawn.
    """

    def __init__(self, values: float | Iterable[float]) -> None:
        self._source: Iterator[float] | None = None
        if isinstance(values, (int, float)):
            self._drawn = [_checked(values)]
        else:
            self._source = iter(values)
            self._drawn = []
            self.at(0)
            if not self._drawn:
                raise LatentError("The temperature's schedule is empty: give at least one value.")

    def at(self, update: int) -> float:
        while len(self._drawn) <= update and self._source is not None:
            try:
                self._drawn.append(_checked(next(self._source)))
            except StopIteration:
                self._source = None
        return self._drawn[min(update, len(self._drawn) - 1)] if self._drawn else 1.0

    def __deepcopy__(self, memo: Any) -> "Temperature":
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"_drawn": list(self._drawn), "_source": None}


def _checked(value: float) -> float:
    if not 0 < value < float("inf"):
        raise LatentError(f"The temperature is {value}; it must be a finite number above 0.")
    return float(value)
