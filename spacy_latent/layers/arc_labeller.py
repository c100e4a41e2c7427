"""Labels of given arcs, by a biaffine map (Dozat and Manning 2017, equations 2 and 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spacy_latent.layers.encoded_scorer import (
    DISTANCE_BUCKETS,
    check_hidden_width,
    distance_buckets,
)
from spacy_latent.layers.parts_of_batch import predict_in_parts


class ArcLabeller(nn.Module):
    """Scores l[k] = U(h)ᵀ W_k V(m) + U(h)ᵀ b_k + V(m)ᵀ c_k + d_k of label k for an arc from h to m.

    There is one hidden layer for each role, and a bias for the direction and the distance between
    head and modifier. Only requested arcs are labelled: for a sentence of n words the n arcs of one
    tree, and not all n².

    An arc needs O(hidden_width²) numbers. Prediction processes some arcs at a time to bound memory.
    """

    def __init__(self, width: int, hidden_width: int, labels: int) -> None:
        super().__init__()
        check_hidden_width("ArcLabeller", hidden_width)
        self.head = nn.Linear(width, hidden_width)
        self.modifier = nn.Linear(width, hidden_width)
        # Weights of the products of all pairs of features. Each role also has a constant feature.
        self.weight = nn.Parameter(torch.empty(labels, (hidden_width + 1) ** 2))
        nn.init.xavier_uniform_(self.weight)
        self.position = nn.Parameter(torch.zeros(2 * DISTANCE_BUCKETS, labels))

    def forward(self, heads: Tensor, modifiers: Tensor, offsets: Tensor) -> Tensor:
        """Return scores ``(T, labels)`` of T arcs.

        Args:
            heads, modifiers: vectors ``(T, width)`` of both ends.
            offsets: ``(T,)`` int64, position of the modifier less position of the head.
        """
        rows = heads, modifiers, offsets
        return predict_in_parts(self._score, *rows, numbers=self.weight.shape[1])

    def _score(self, heads: Tensor, modifiers: Tensor, offsets: Tensor) -> Tensor:
        of_heads = _with_one(torch.relu(self.head(heads)))
        of_modifiers = _with_one(torch.relu(self.modifier(modifiers)))
        pairs = (of_heads[:, :, None] * of_modifiers[:, None, :]).flatten(1)
        place = distance_buckets(offsets.abs()) + DISTANCE_BUCKETS * (offsets < 0)
        return pairs @ self.weight.to(pairs.dtype).T + self.position[place]

    @property
    def learned(self) -> bool:
        """True after training. Before it, the weights of positions are 0."""
        return bool(self.position.any())

    def grow(self, labels: int, behind: float) -> None:
        """Extend the module to this number of labels.

        The scores of the present labels do not change. The score of a new label is their mean minus
        ``behind``.
        """
        known, width = self.weight.shape
        weight = self.weight.new_zeros(labels, width)
        position = self.position.new_zeros(len(self.position), labels)
        with torch.no_grad():
            weight[:known], position[:, :known] = self.weight, self.position
            if known:
                weight[known:] = self.weight.mean(0)
                position[:, known:] = self.position.mean(1, keepdim=True) - behind
        self.weight, self.position = nn.Parameter(weight), nn.Parameter(position)


def _with_one(vectors: Tensor) -> Tensor:
    return torch.cat([vectors, vectors.new_ones(len(vectors), 1)], 1)
