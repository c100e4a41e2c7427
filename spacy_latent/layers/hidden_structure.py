"""Classes with a hidden structure, p(y, z) ∝ exp(z·(s + t_y)): hidden conditional random fields.

The scores t_y of the parts depend on the class y, the scores s do not. The structure is summed out:
p(y) is proportional to the partition function of the scores s + t_y (Quattoni et al. 2007).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError
from spacy_latent.estimators.base import Draw
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.layers.base import Composer, PartScorer, ScorerBuilder
from spacy_latent.layers.batch_interventions import (
    BatchInterventions,
    check_forced,
    constrained_scores,
    naming_interventions,
)
from spacy_latent.layers.compatibility import build_part
from spacy_latent.layers.given_structures import encode_given
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.structures.base import Structure


class ClassScores(Composer):
    """Scores of each class for the parts of a structure, and for structures.

    The composed vector of each token holds the scores z·t_y of the classes, the same for all
    tokens.
    """

    def __init__(self, width: int, classes: int, scorer: ScorerBuilder) -> None:
        super().__init__()
        self.output_width = classes
        made = [build_part("class_scorer", scorer, width) for _ in range(classes)]
        self.scorers = nn.ModuleList(made)
        self.bias = nn.Parameter(torch.zeros(classes))

    def of_parts(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores t of the parts, ``(C, B, *parts)``."""
        return torch.stack([scorer(vectors, lengths) for scorer in self.scorers])

    def of_structures(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores z·t_y of structures ``(B, *parts)``, ``(B, C)``."""
        scores = self.of_parts(vectors, lengths)
        return (z * torch.where(z != 0, scores, 0.0)).flatten(2).sum(2).t()

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        totals = self.of_structures(vectors, z, lengths)
        return totals[:, None].expand(-1, vectors.shape[1], -1)


@dataclass
class HiddenDraw(Draw):
    """Marginals given the likeliest class of each item.

    Attributes:
        logits: ``(B, C)``, without the bias of the classes.
        every: ``(1 + C, B, *parts)``, the scores s and s + t_y; None if structures were given.
        structure: the set of structures with the bindings of the scorer.
        likeliest: ``(B,)`` int64, index in ``every``.
    """

    logits: Tensor | None = None
    every: Tensor | None = None
    structure: Structure | None = None
    likeliest: Tensor | None = None


class HiddenStructureLayer(LatentLayer):
    """Layer that sums over the structures of each class.

    Args:
        structure: set of structures with a log-partition.
        scorer, class_scorer: builders of the scorer of s, and of the scorers of t.
        exclusive: whether an item has one class. If not, each class is a binary decision, and its
            absence has the scores s.
    """

    composer: ClassScores

    def __init__(
        self,
        width: int,
        structure: Structure,
        scorer: ScorerBuilder,
        class_scorer: ScorerBuilder,
        classes: int,
        exclusive: bool,
    ) -> None:
        shared: PartScorer = build_part("scorer", scorer, width)
        own = ClassScores(width, classes, class_scorer)
        super().__init__(shared, structure, Marginals(), own)
        self.exclusive = exclusive

    def read(
        self,
        vectors: Tensor,
        lengths: Tensor,
        given: Sequence[np.ndarray | None] | None = None,
        interventions: BatchInterventions | None = None,
    ) -> tuple[Draw, Tensor]:
        """Return the marginals given the likeliest class, and the scores of their distribution.

        In training there are no marginals, and the structure of the draw is 0.
        """
        if given is not None:
            return self._read_given(vectors, lengths, given)
        temperature = self.temperature * (interventions.temperature if interventions else 1.0)
        structure, shared = self.score(vectors, lengths, temperature)
        own = self.composer.of_parts(vectors, lengths) / temperature
        if own.shape[1:] != shared.shape:
            raise LatentError(
                f"HiddenStructureClassifier: scores of shape {tuple(shared.shape)} by scorer, and "
                f"{tuple(own.shape[1:])} by class_scorer; expected the same. Give both the same "
                "settings, such as num_tags."
            )
        every = torch.cat([shared[None], shared + own])
        if interventions is not None and interventions.of_parts:
            every = constrained_alike(structure, every, lengths, interventions)
        with naming_interventions(structure.name, interventions):
            logits = self._logits(structure, every, lengths)
            draw = HiddenDraw(
                torch.zeros_like(shared)[None],
                shared.new_ones(1, len(shared)),
                logits=logits,
                every=every,
                structure=structure,
                likeliest=self.likeliest(logits),
                cost=self._cost(vectors, lengths),
            )
            if self.training:
                return draw, shared
            result, scores = self.given_class(draw, lengths, draw.likeliest)
        if interventions is not None and interventions.of_parts:
            check_forced(structure.map(scores, lengths), interventions, structure.name)
        return result, scores

    def given_class(
        self, draw: HiddenDraw, lengths: Tensor, likeliest: Tensor | None
    ) -> tuple[HiddenDraw, Tensor]:
        """Return the marginals given a class of each item, and the scores of their distribution.

        Args:
            likeliest: ``(B,)`` int64, index in ``draw.every``.
        """
        assert draw.every is not None and draw.structure is not None and likeliest is not None
        item = torch.arange(len(likeliest), device=likeliest.device)
        scores = draw.every[likeliest, item]
        z = draw.structure.marginals(scores, lengths)
        return replace(draw, z=z[None], likeliest=likeliest), scores

    def likeliest(self, logits: Tensor) -> Tensor:
        """Return the index in ``every`` of the likeliest class of each row of logits.

        It is 0 if classes are not exclusive and no class is likelier than its absence.
        """
        value, index = logits.max(1)
        return index + 1 if self.exclusive else torch.where(value > 0, index + 1, 0)

    def _logits(self, structure: Structure, every: Tensor, lengths: Tensor) -> Tensor:
        read = every[1:] if self.exclusive else every
        sizes = lengths.repeat(len(read), *[1] * (lengths.dim() - 1))
        totals = structure.log_partition(read.flatten(0, 1), sizes).view(len(read), -1)
        return (totals if self.exclusive else totals[1:] - totals[0]).t()

    def _cost(self, vectors: Tensor, lengths: Tensor) -> Tensor | None:
        if not self.training:
            return None
        scorers = self.scorer, *self.composer.scorers
        costs = (scorer.cost(vectors, lengths) for scorer in scorers)
        known = [cost for cost in costs if cost is not None]
        return torch.stack(known).sum(0) if known else None

    def _read_given(
        self, vectors: Tensor, lengths: Tensor, given: Sequence[np.ndarray | None]
    ) -> tuple[Draw, Tensor]:
        draw, scores = self.read(vectors, lengths)
        if all(one is None for one in given):
            return draw, scores
        assert isinstance(draw, HiddenDraw) and draw.logits is not None
        z, known = encode_given(self.present_structure, given, vectors, lengths)
        here = known.view(-1, *[1] * (z.dim() - 1))
        totals = self.composer.of_structures(vectors, z, lengths)
        logits = torch.where(known[:, None], totals, draw.logits)
        mixed = torch.where(here, z.to(scores), draw.z[0])[None]
        other = torch.where(here, (2 * z - 1).to(scores), scores)
        return replace(draw, z=mixed, logits=logits, every=None), other


def constrained_alike(
    structure: Structure, every: Tensor, lengths: Tensor, interventions: BatchInterventions
) -> Tensor:
    """Return scores ``(C, B, *parts)`` of several classes under the same interventions.

    The increase of a forced part's score is the same for all classes, so it does not change their
    probabilities.
    """
    known = every.detach()
    finite = torch.where(known.isfinite(), known.abs(), 0.0).amax(0)
    change = constrained_scores(structure, finite, lengths, interventions) - finite
    mask = structure.part_mask(finite, lengths.to(finite.device)).expand(finite.shape)
    return every.double() + torch.where(mask, change, 0.0)
