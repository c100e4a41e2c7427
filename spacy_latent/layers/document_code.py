"""Latent layer whose structure is a code of a whole text: a category, or a vector of bits.

Its parts are categories or bits, not words. Later layers only read the code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.layers.base import Composer, PartScorer
from spacy_latent.layers.batch_interventions import BatchInterventions
from spacy_latent.layers.encoded_scorer import perceptron
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.structures.base import Structure


class CodeScorer(PartScorer):
    """Scores ``(B, size)`` of a text's code.

    They are computed from the mean and the maximum of its token vectors, by a linear layer, or with
    ``hidden_width`` by one hidden layer and a linear layer.
    """

    parts = "items"

    def __init__(self, width: int, size: int, hidden_width: int | None = None) -> None:
        super().__init__()
        self.size = size
        self.output = perceptron(2 * width, hidden_width, size)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        count = lengths.to(vectors.device)[:, None]
        inside = (torch.arange(vectors.shape[1], device=vectors.device) < count)[..., None]
        mean = torch.where(inside, vectors, 0.0).sum(1) / count.clamp_min(1)
        largest = torch.where(inside, vectors, -torch.inf).amax(1)
        return self.output(torch.cat([mean, torch.where(count > 0, largest, 0.0)], 1))


class CodeEmbedding(Composer):
    """Embedding E z for each token, ``(B, n, output_width)``, of codes ``(B, size)``.

    It is the same for all tokens of a text, and for all texts with the same code.
    """

    parts = "items"

    def __init__(self, size: int, output_width: int) -> None:
        super().__init__()
        self.output_width = output_width
        self.embedding = nn.Linear(size, output_width, bias=False)
        # Initial weights are large enough for structures in which only one of many parts is 1.
        nn.init.normal_(self.embedding.weight, std=output_width**-0.5)

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        return self.embedding(z)[:, None].expand(-1, vectors.shape[1], -1)


class DocumentCodeLayer(LatentLayer):
    """Layer that draws a code for each text; ``Draw.z`` is ``(K, B, size)``."""

    def __init__(
        self,
        width: int,
        structure: Structure,
        estimator: Estimator,
        *,
        size: int,
        code_width: int,
        hidden_width: int | None,
    ) -> None:
        scorer = CodeScorer(width, size, hidden_width)
        super().__init__(scorer, structure, estimator, CodeEmbedding(size, code_width))

    def sizes(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return torch.full_like(lengths, scores.shape[1])

    def draw(self, structure: Structure, scores: Tensor, lengths: Tensor) -> Draw:
        return super().draw(structure, scores, self.sizes(scores, lengths))

    def read(
        self,
        vectors: Tensor,
        lengths: Tensor,
        given: Sequence[np.ndarray | None] | None = None,
        interventions: BatchInterventions | None = None,
    ) -> tuple[Draw, Tensor]:
        if given is not None or (interventions is not None and interventions.of_parts):
            raise LatentError(
                "The code of a text has no words as parts, so none can be given, forbidden or "
                "forced. Leave out given structures and interventions for this layer."
            )
        return super().read(vectors, lengths, None, interventions)

    def compose_each(self, vectors: Tensor, draw: Draw, lengths: Tensor) -> Tensor:
        assert isinstance(self.composer, CodeEmbedding)
        embedded = self.composer.embedding(draw.z)
        return embedded[:, :, None].expand(-1, -1, vectors.shape[1], -1)

    def shown(self, draw: Draw, tokens: int) -> Tensor:
        return draw.z.new_zeros(*draw.z.shape[:2], tokens)
