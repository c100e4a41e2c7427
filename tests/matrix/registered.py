"""What the package registers, found through its entry points: a new line there adds a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from spacy_latent.estimators.base import Estimator
from spacy_latent.structures.base import Structure


def _registered(wanted: Callable[[Any], bool]) -> dict[str, Any]:
    found = {}
    for point in sorted(entry_points(group="spacy_misc"), key=lambda point: point.name):
        if point.name.startswith("spacy-latent."):
            loaded = point.load()
            if wanted(loaded):
                found[point.name] = loaded
    return found


def structures() -> dict[str, type[Structure]]:
    """Classes by registered name; each can be made without arguments."""
    return _registered(lambda loaded: inspect.isclass(loaded) and issubclass(loaded, Structure))


def estimators() -> dict[str, type[Estimator]]:
    return _registered(lambda loaded: inspect.isclass(loaded) and issubclass(loaded, Estimator))


def make_estimator(name: str) -> Estimator:
    """With its defaults, but for a bound that these tests exceed."""
    more = {"max_structures": 4096} if "DenseMarginalization" in name else {}
    return estimators()[name](**more)


def fits(estimator: Estimator, structure: Structure) -> bool:
    """Whether the structure has what the estimator needs."""
    linear = structure.linear or not estimator.linear_only
    return linear and not structure.lacks(estimator.needed())


def composers() -> dict[str, Callable[..., Any]]:
    return _registered(lambda loaded: _returns(loaded) == "ComposerBuilder")


def scorers() -> dict[str, Callable[..., Any]]:
    return _registered(lambda loaded: _returns(loaded) == "ScorerBuilder")


def _returns(loaded: Any) -> str | None:
    """Name of the annotated result of a function."""
    return getattr(loaded, "__annotations__", {}).get("return") if callable(loaded) else None
