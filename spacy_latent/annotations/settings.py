"""Settings that control the annotation, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spacy_latent.errors import MANY, LatentError, check_number, check_whole

# Values of the setting "annotate" of components; see LatentEncoder.
LEVELS = ("none", "map", "probabilities")


@dataclass(frozen=True)
class Stored:
    """Choice of the results that are stored for each structure.

    Attributes:
        annotate: "map" for the best structure; "probabilities" also for the probabilities of the
            parts, and for the counters of a scorer that has them; "none" for nothing.
        threshold: least probability of parts.
        alternatives: largest number of further structures per span, with their weights.
    """

    annotate: str = "map"
    threshold: float = 0.01
    alternatives: int = 0


BEST, PROBABILITIES = Stored("map"), Stored("probabilities")


def cfg_of(pipe: object) -> Mapping[str, Any]:
    """Return the settings of a component; empty if a custom component's ``cfg`` is no mapping."""
    cfg = getattr(pipe, "cfg", None)
    return cfg if isinstance(cfg, Mapping) else {}


def check_share(name: str, setting: str, value: object) -> None:
    """Raise LatentError unless the value is a number in [0, 1]."""
    check_number(
        name, lambda share: 0 <= share <= 1, "a number in [0, 1]", False, **{setting: value}
    )


def check_group(name: str, or_null: bool = False, **settings: object) -> None:
    """Raise LatentError for the first setting that is not the name of a group in ``doc.spans``.

    Args:
        name: the object that has the settings, for the message.
        or_null: whether None is valid, too.
    """
    for setting, key in settings.items():
        if not (isinstance(key, str) and key) and not (or_null and key is None):
            raise LatentError(
                f"{name}: {setting} is {key!r}; expected the name of a group in doc.spans"
                f"{', or null' * or_null}."
            )


def check_settings(
    name: str, annotate: str, threshold: float, alternatives: int, setting: str = "threshold"
) -> None:
    """Raise LatentError for invalid values of the settings that control the annotation.

    ``setting`` is the component's own name for ``threshold``, which users find in their config.
    """
    if annotate not in LEVELS:
        raise LatentError(f"{name}: annotate is {annotate!r}; expected one of {', '.join(LEVELS)}.")
    check_share(name, setting, threshold)
    check_whole(name, 0, most=MANY, alternatives=alternatives)
