"""Categories in lines of JSON."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from spacy_latent.errors import LatentError


def read_categories(row: dict[str, Any], place: str) -> dict[str, float] | None:
    """Return the object of labels and numbers under "cats", or None if it is missing or empty.

    Raises:
        LatentError: if "cats" is anything else.
    """
    cats = row.get("cats")
    if cats is None or cats == {}:
        return None
    example = 'as {"yes": 1.0, "no": 0.0}'
    if not isinstance(cats, dict):
        raise LatentError(
            f"{place}: 'cats' is {cats!r}; expected an object of labels and numbers, {example}."
        )
    for label, value in cats.items():
        if not isinstance(value, (int, float)) or not isfinite(value):
            shown = repr(value)
            if isinstance(value, float):
                # Show the value as it is written in the file.
                shown = f"{json.dumps(value)}, which is not JSON"
            raise LatentError(
                f"{place}: 'cats' has {label!r}: {shown}; expected a number, {example}."
            )
    return {label: float(value) for label, value in cats.items()}
