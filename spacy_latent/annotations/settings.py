"""What a component may be told to write."""

from __future__ import annotations

from numbers import Integral, Real

from spacy_latent.errors import LatentError

# What components may be asked to write; see LatentEncoder.
LEVELS = ("none", "map", "probabilities")


def check_share(name: str, setting: str, value: object) -> None:
    """Refuse what is no number in [0, 1]. name: of the component that has the setting."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not (number and 0 <= value <= 1):  # type: ignore[operator]
        raise LatentError(f"{name}: {setting} is {value!r}; expected a number in [0, 1].")


def check_settings(
    name: str, annotate: str, threshold: float, alternatives: int, setting: str = "threshold"
) -> None:
    """Refuse what a component of this name cannot write.

    setting: what the component calls ``threshold``; where that is another number, an error about
        "threshold" would be looked for in the wrong line of a config.
    """
    if annotate not in LEVELS:
        raise LatentError(f"{name}: annotate is {annotate!r}; expected one of {', '.join(LEVELS)}.")
    check_share(name, setting, threshold)
    whole = isinstance(alternatives, Integral) and not isinstance(alternatives, bool)
    if not whole or alternatives < 0:
        raise LatentError(
            f"{name}: alternatives is {alternatives!r}; expected a whole number >= 0."
        )
