"""A temperature that is a number or follows a schedule."""

from collections.abc import Iterable

from spacy_latent.models.scheduled import Scheduled


class Temperature(Scheduled):
    """See :class:`Scheduled`; above 0."""

    expected = "a finite number above 0"

    def __init__(self, values: float | Iterable[float]) -> None:
        super().__init__(values, "temperature")

    def allows(self, value: float) -> bool:
        return 0 < value < float("inf")
