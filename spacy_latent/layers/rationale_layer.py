"""Latent layer that chooses words by one set of vectors, and reads their vectors of another set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.stochastic_mask import hold, share_changed, share_chosen
from spacy_latent.layers.base import PartScorer
from spacy_latent.layers.batch_interventions import BatchInterventions
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.layers.rationale_reader import RationaleReader, check_two_tags
from spacy_latent.structures.base import Structure

# Subtracted from the score of a word that may not be chosen. It is finite, since a structure with k
# words needs other words if fewer than k may be chosen. The reader does not read these.
FORBIDDEN = 1e4


@dataclass(frozen=True)
class RationaleSettings:
    """Settings of the choice of words.

    Args:
        transition_cost: for sequences of tags, subtracted from the score at each change of the tag,
            and if the first tag is 1.
        rate, transitions: targets for the expected share of chosen words, and for the expected
            share of adjacent pairs of which one word is chosen; None for no target. A Lagrangian
            with multiplier_rate and damping enforces them, as in
            :class:`~spacy_latent.estimators.stochastic_mask.StochasticMask`. The expectation is
            over the drawn structures if they have a gradient, else over the marginals. Adjacent
            words count as independent, except in a LinearChain.
    """

    transition_cost: float = 0.0
    rate: float | None = None
    transitions: float | None = None
    multiplier_rate: float = 0.1
    damping: float = 10.0


class RationaleLayer(LatentLayer):
    """Layer that chooses words and reads only these.

    A vector has the selector's features for the scorer, the reader's features for the composer,
    then 1 if the word may be chosen, else 0.
    """

    multipliers: Tensor

    def __init__(
        self,
        scorer: PartScorer,
        structure: Structure,
        estimator: Estimator,
        composer: RationaleReader,
        *,
        reader_width: int,
        settings: RationaleSettings,
    ) -> None:
        if settings.transition_cost and structure.parts == "tags":
            costs = _costs(settings.transition_cost)
            sequences: Any = structure
            structure = sequences.each(lambda stage: stage.bind(-costs, -costs[0], torch.zeros(2)))
        super().__init__(scorer, structure, estimator, composer)
        self.reader_width = reader_width
        self.settings = settings
        self.register_buffer("multipliers", torch.zeros(2, dtype=torch.float64))

    def read(
        self,
        vectors: Tensor,
        lengths: Tensor,
        given: Sequence[np.ndarray | None] | None = None,
        interventions: BatchInterventions | None = None,
    ) -> tuple[Draw, Tensor]:
        if interventions is not None:
            self._refuse_forced(vectors, interventions)
        draw, scores = super().read(vectors, lengths, given, interventions)
        return (draw if self.training else self._seen(vectors, draw)), scores

    def draw(self, structure: Structure, scores: Tensor, lengths: Tensor) -> Draw:
        draw = super().draw(structure, scores, lengths)
        targets = self.settings.rate, self.settings.transitions
        if not self.training or targets == (None, None):
            return draw
        mean = draw.mean()
        if not mean.requires_grad:
            mean = structure.marginals(scores, lengths)
        given = [] if draw.penalty is None else [draw.penalty]
        draw.penalty = torch.stack([*given, *self._penalties(mean, lengths)]).sum(0)
        return draw

    def score(
        self, vectors: Tensor, lengths: Tensor, temperature: float | None = None
    ) -> tuple[Structure, Tensor]:
        selecting = vectors[..., : -self.reader_width - 1]
        structure, scores = super().score(selecting, lengths, temperature)
        self._check_scores(scores, vectors, per_token=True)
        if structure.parts != "items":
            check_two_tags(scores)
        forbidden = self._forbidden_parts(vectors[..., -1] == 0, scores)
        scores = torch.where(forbidden, scores - FORBIDDEN, scores)
        if self.settings.transition_cost and structure.parts == "transitions":
            scores = scores - _costs(self.settings.transition_cost).to(scores)
        return structure, scores

    def compose(self, vectors: Tensor, draw: Draw, lengths: Tensor) -> Tensor:
        return super().compose(self._readable(vectors), self._seen(vectors, draw), lengths)

    def compose_each(self, vectors: Tensor, draw: Draw, lengths: Tensor) -> Tensor:
        return super().compose_each(self._readable(vectors), self._seen(vectors, draw), lengths)

    def chosen(self, draw: Draw) -> Tensor:
        """Return how much the reader sees of each word, ``(B, n)``.

        It is 0 for a word that is in no structure with a weight above 0.
        """
        assert isinstance(self.composer, RationaleReader)
        return self.composer.chosen(draw.mean())

    def shown(self, draw: Draw, tokens: int) -> Tensor:
        """Return how much each structure takes of each word.

        This includes words that were only chosen to reach the number k, which are not read.
        """
        assert isinstance(self.composer, RationaleReader)
        return self.composer.chosen(draw.z)

    def _readable(self, vectors: Tensor) -> Tensor:
        return vectors[..., -self.reader_width - 1 : -1]

    def _seen(self, vectors: Tensor, draw: Draw) -> Draw:
        """Return the draw without words that were chosen only to reach the number k."""
        forbidden = self._forbidden_parts(vectors[..., -1] == 0, draw.z)
        return replace(draw, z=draw.z.masked_fill(forbidden, 0.0))

    def _refuse_forced(self, vectors: Tensor, interventions: BatchInterventions) -> None:
        """Refuse to force words that are no candidates, since these are never read."""
        for allowed, forced in zip(vectors[..., -1] != 0, interventions.forced):
            for word, *tag in forced:
                chooses = not tag or tag[-1] == 1
                if chooses and isinstance(word, int) and word < len(allowed) and not allowed[word]:
                    raise LatentError(
                        f"Word {word + 1} of the text cannot be forced: it is not among the words "
                        "that the model's candidates setting allows. Force another word."
                    )

    def _forbidden_parts(self, words: Tensor, like: Tensor) -> Tensor:
        """Return a mask of the parts ``(..., B, *parts)`` that choose these words ``(B, n)``."""
        if self.structure.parts == "items":
            return words.expand_as(like)
        chooses = torch.arange(like.shape[-1], device=like.device) == 1
        if self.structure.parts == "transitions":
            return (words[..., None, None] & chooses).expand_as(like)
        return (words[..., None] & chooses).expand_as(like)

    def _penalties(self, mean: Tensor, lengths: Tensor) -> list[Tensor]:
        """Return penalties of expected structures, each ``(B,)``."""
        assert isinstance(self.composer, RationaleReader)
        chosen = self.composer.chosen(mean)
        position = torch.arange(chosen.shape[1], device=chosen.device)
        inside = position < lengths.to(chosen.device)[:, None]
        measured = [share_chosen(chosen, inside), share_changed(chosen, inside)]
        if self.structure.parts == "transitions":
            _, count = measured[1]
            changed = (mean[:, 1:, 0, 1] + mean[:, 1:, 1, 0]).sum(1)
            measured[1] = (changed / count.clamp_min(1), count)
        penalties = []
        targets = self.settings.rate, self.settings.transitions
        rates = self.settings.multiplier_rate, self.settings.damping
        for i, (wanted, (share, count)) in enumerate(zip(targets, measured)):
            if wanted is not None:
                excess = torch.where(count > 0, share - wanted, 0.0)
                penalties.append(hold(self.multipliers[i], excess, count > 0, *rates))
        return penalties


def _costs(transition_cost: float) -> Tensor:
    """Return the cost of each transition [previous tag, tag] of two tags."""
    return transition_cost * (1 - torch.eye(2))
