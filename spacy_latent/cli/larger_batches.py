"""Larger batches in a config of spaCy, for ``spacy latent init --gpu``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from thinc.api import Config

# As many epochs with these teach as much (docs/training.md, "Larger batches").
WORDS, RATE = 6, 2.5


def with_larger_batches(config: Config) -> Config:
    """Return a copy of a filled config with six times the words in a batch and fewer steps.

    The learning rate is 2.5 times as high. All numbers of steps in ``[training]`` are divided by
    six, so that it has as many epochs and evaluations as before. Stages of a structure or estimator
    still begin after as many updates.

    Raises:
        LatentError: If the config has a transformer, if its batch size or learning rate is neither
            a number nor a schedule of ``spacy init config``, or if another number is a variable.
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
        change(training, name, fewer)
    sizes = multiplied(training["batcher"], "size", WORDS, "start", "stop")
    if isinstance(sizes, dict):
        # The size grows with each step, and a step now reads more words.
        change(sizes, "compound", lambda growth: growth**WORDS)
    rates = multiplied(training["optimizer"], "learn_rate", RATE, "initial_rate")
    if isinstance(rates, dict):
        for name in ("warmup_steps", "total_steps"):
            change(rates, name, fewer)
    return changed


def fewer(steps: float) -> int:
    """Return the number of larger steps that read as many words."""
    return math.ceil(steps / WORDS)


def multiplied(block: Any, name: str, factor: float, *rates: str) -> Any:
    """Multiply a number in place, or these numbers of its schedule; return its new value."""
    value = block.get(name) if isinstance(block, dict) else None
    is_schedule = isinstance(value, dict) and all(each in value for each in rates)
    expected = f"a number or a schedule with {' and '.join(rates)}"
    for each in rates if is_schedule else (name,):
        change(value if is_schedule else block, each, lambda old: old * factor, expected)
    return block[name]


def change(block: Any, name: str, to: Callable[[float], float], expected: str = "a number") -> None:
    """Change a number in place.

    Raises:
        LatentError: If it is something else, such as a variable of the config.
    """
    # The whole block may be a variable.
    value = block.get(name) if isinstance(block, dict) else block
    if not isinstance(value, (int, float)):
        raise LatentError(
            f"{name} is {value!r}. --gpu changes it, and expects {expected}. Leave out --gpu, and "
            "set it in the config."
        )
    block[name] = to(value)
