"""What a component may be told to write."""

from __future__ import annotations

from spacy_latent.errors import LatentError

# What components may be asked to write; see LatentEncoder.
LEVELS = ("none", "map", "probabilities")


def check_settings(
    name: str, annotate: str, threshold: float, alternatives: int, setting: str = "threshold"
) -> None:
    """Refuse what a component of this name cannot write.

    setting: what the component calls ``threshold``; where that is another number, an error about
        "threshold" would be looked for in the wrong line of a config.
    """
    if annotate not in LEVELS:
        raise LatentError(f"{name}: annotate is {annotate!r}; expected one of {', '.join(LEVELS)}.")
    if not 0 <= threshold <= 1:
        raise LatentError(f"{name}: {setting} is {threshold}; expected a number in [0, 1].")
    if alternatives < 0:
        raise LatentError(f"{name}: alternatives is {alternatives}; expected a number >= 0.")
