"""Larger batches in a config of spaCy, for ``spacy latent init --gpu``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from thinc.api import Config

# As many epochs with these teach as much (docs/training.md, "Larger batches").
WORDS, RATE = 6, 2.5


def with_larger_batches(config: Config) -> Config:
    """Return a copy of a filled config with six times the words in a batch and fewer steps.

    The learning rate is 2.5 times as high. All numbers of steps of the training are divided by
    six, so that it has as many epochs and evaluations as before.

    Raises:
        LatentError: If the config has a transformer, or if its batch size or learning rate is
            neither a number nor a schedule of ``spacy init config``.
    """
    lines = config.to_str().lower().splitlines()
    if any("transformer" in line for line in lines if line.startswith(("factory", "@arch"))):
        raise LatentError(
            "The config has a transformer, and --gpu sets larger batches for small embedders. "
            "Leave out --gpu: 'spacy init config --gpu' chose the batches for a transformer."
        )
    changed = config.copy()
    training = changed["training"]
    for name in ("max_steps", "eval_frequency", "patience"):
        change(training, name, fewer, A_NUMBER)
    sizes = multiply(training["batcher"], "size", WORDS, "start", "stop")
    if isinstance(sizes, dict):
        # The size grows with each step, and a step now reads more words.
        change(sizes, "compound", lambda growth: growth**WORDS, A_NUMBER)
    rates = multiply(training["optimizer"], "learn_rate", RATE, "initial_rate")
    if isinstance(rates, dict):
        for name in ("warmup_steps", "total_steps"):
            change(rates, name, fewer, A_NUMBER)
    return changed


def fewer(steps: int) -> int:
    """Return the number of larger steps that read as many words."""
    return -(-steps // WORDS)


def multiplied(block: dict[str, Any], name: str, factor: float, *rates: str) -> Any:
    """Multiply a number in place, or these numbers of its schedule; return its new value."""
    value = block[name]
    settings, names = (value, rates) if isinstance(value, dict) else (block, (name,))
    if not all(isinstance(settings.get(each), (int, float)) for each in names):
        raise LatentError(
            f"{name} is {value!r}. --gpu multiplies it by {factor:g} and expects a number or a "
            f"schedule with {' and '.join(rates)}. Leave out --gpu, and set it in the config."
        )
    for each in names:
        settings[each] *= factor
    return block[name]
