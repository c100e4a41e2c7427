"""Temperature that is a number or follows a schedule."""

from collections.abc import Iterable

from spacy_latent.models.scheduled_value import ScheduledValue


class Temperature(ScheduledValue):
    """Schedule of values above 0, see :class:`ScheduledValue`."""

    expected = "a finite number above 0"

    def __init__(self, values: float | Iterable[float]) -> None:
        super().__init__(values, "temperature")

    def allows(self, value: float) -> bool:
        return 0 < value < float("inf")
