"""Mask over words, learned for one text, that keeps few words and the prediction of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

from spacy_latent.errors import LatentError
from spacy_latent.estimators.hard_concrete import HardConcrete
from spacy_latent.structures.derivatives import recording

# Function from masks ``(M, n)`` in [0, 1] to the probability of the explained prediction, ``(M,)``.
Scores = Callable[[np.ndarray], np.ndarray]

LEARN_RATE = 0.3
# Largest number of words that a step tries.
TRIED = 48
# Rate of the multiplier, and damping against its oscillation, as in StochasticMask.
MULTIPLIER_RATE, DAMPING = 0.1, 1.0
# All words are kept with a probability of 0.9 when learning begins.
START = 1.0


@recording()
def learn_mask(
    scores: Scores,
    count: int,
    steps: int,
    margin: float,
    seed: int,
    progress: Callable[[Sequence[int]], Iterable[int]] = iter,
) -> np.ndarray:
    """Return P(z ≠ 0) of each word, ``(count,)``, of hard concrete masks z (Louizos et al. 2018).

    The masks keep few words in expectation, under the constraint E[decrease of the score] ≤ margin.
    This is DiffMask's objective (De Cao et al. 2020, section 3.1), whose constraint a Lagrange
    multiplier enforces. The masks are learned for one text. No model is trained to output them for
    all texts. The result is the mean over the last half of the steps, as the multiplier oscillates.

    The algorithm needs only scores of the model, no gradients. Each step draws one mask and tries
    words in it. For each of these, it computes the decrease of the score when z of the word changes
    from 1 to 0, with the other words as drawn. The gradient for the word is this decrease times the
    gradient of the mean of z. It is unbiased if the score is linear in each z. So the algorithm
    works for models without a derivative, and changes no weight or state of the model. A step reads
    the text about ``2 · min(count, 48)`` times.

    Args:
        scores: function that returns the score of each mask.
        margin: largest decrease of the score, above 0.
        seed: seed of the draws. No other draws affect them.
        progress: function that iterates over the steps, and may report them.
    """
    if steps < 1:
        raise LatentError(f"steps is {steps}; expected at least 1.")
    if not 0 < margin < 1:
        raise LatentError(f"margin is {margin}; expected a number between 0 and 1.")
    masks = HardConcrete()
    generator = torch.Generator().manual_seed(seed)
    logits = torch.full((count,), START, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=LEARN_RATE, betas=(0.9, 0.9))
    whole = float(scores(np.ones((1, count)))[0])
    multiplier = 1.0
    kept = torch.zeros(count, dtype=torch.float64)
    tried = min(count, TRIED)
    for step in progress(range(steps)):
        uniform = torch.rand(count, dtype=torch.float64, generator=generator).clamp(1e-9, 1 - 1e-9)
        with torch.no_grad():
            drawn = masks.mask(logits, uniform).numpy()
        places = torch.randperm(count, generator=generator)[:tried].numpy()
        # The drawn mask, then the mask without each of the words, then with each of them.
        rows = np.repeat(drawn[None], 1 + 2 * tried, axis=0)
        rows[np.arange(1, tried + 1), places] = 0.0
        rows[np.arange(tried + 1, 2 * tried + 1), places] = 1.0
        found = scores(rows)
        without, within = found[1 : tried + 1], found[tried + 1 :]
        excess = (whole - float(found[0])) / margin - 1
        # The constraint is an inequality: a mask that keeps more than needed is not pushed back.
        force = max(0.0, multiplier + DAMPING * excess)
        multiplier = max(0.0, multiplier + MULTIPLIER_RATE * excess)
        gains = torch.zeros(count, dtype=torch.float64)
        # Words that were not tried count like the average tried word.
        gained = torch.from_numpy(within - without)
        gains[torch.from_numpy(places)] = gained / margin * count / tried
        objective = masks.nonzero(logits).sum() - force * (gains * masks.mean(logits)).sum()
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
        if step >= steps // 2:
            kept += masks.nonzero(logits.detach()) / (steps - steps // 2)
    return kept.numpy()


def leave_one_out(scores: Scores, count: int) -> np.ndarray:
    """Return the decrease of the score without each word, ``(count,)``."""
    found = scores(np.concatenate([np.ones((1, count)), 1 - np.eye(count)]))
    return found[0] - found[1:]


def shortest_prefix(scores: Scores, order: np.ndarray, margin: float) -> int:
    """Return the number of words, in this order, that keep the score within the margin.

    All other words are hidden.
    """
    count = len(order)
    masks = np.zeros((count + 1, count))
    masks[:, order] = np.tri(count + 1, count, -1)
    found = scores(masks)
    return int(np.argmax(found[count] - found <= margin))
