"""Scores of pairs of words, one from each of two texts."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError, check_number, check_positive, check_whole
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.encoded_scorer import EncodedScorer, EncoderBuilder, check_hidden_width
from spacy_latent.layers.two_texts import split_texts

SIMILARITIES = ("dot", "cosine")
# Initial weight of adjacent pairs; it is halved for each step of distance.
NEIGHBOUR = 0.4
# Each neighbour has a weight, and a pass over all cells. The initial weights are powers of 2.
MOST_NEIGHBOURS = 1000


class CellScorer(EncodedScorer):
    """Scores ``(B, n, m)`` of cells, with n and m the longest of the first and the second texts.

    The inputs are token vectors ``(B, N, d)`` of two texts, one after the other, and lengths ``(B,
    2)``.

    With similarity "dot", c[i, j] = F a_i · G b_j / √hidden_width, bilinear in a and b; with
    ``shared`` G = F (Parikh et al. 2016, equation 1). With "cosine", c[i, j] = α (cos(F a_i, G b_j)
    − β) with α > 0 and β learned: two copies of a word have the largest score. Then

    s[i, j] = c[i, j] + Σ_k w_k (c[i−k, j−k] + c[i+k, j+k]) − w_0 |i/(n−1) − j/(m−1)|

    over the ``neighbours`` k = 1, 2, ..., since neighbours of aligned words are often aligned. The
    last term, the distance from the diagonal, is only there if ``distance`` is set. w_0 and w_k are
    learned.
    """

    parts = "cells"

    def __init__(
        self,
        width: int,
        hidden_width: int | None,
        similarity: str,
        shared: bool,
        neighbours: int,
        distance: bool,
        scale: float,
        margin: float,
        encoder: EncoderBuilder | None,
    ) -> None:
        super().__init__(width, encoder)
        size = self.width if hidden_width is None else hidden_width
        project = hidden_width is not None
        self.first = nn.Linear(self.width, size, bias=False) if project else nn.Identity()
        self.second = self.first
        if project and not shared:
            self.second = nn.Linear(self.width, size, bias=False)
        self.size, self.cosine = size, similarity == "cosine"
        if self.cosine:
            self.log_scale = nn.Parameter(torch.tensor(scale).log()[None])
            self.margin = nn.Parameter(torch.tensor([margin]))
        guess = [NEIGHBOUR / 2**k for k in range(neighbours)]
        self.neighbours = nn.Parameter(torch.tensor(guess)) if neighbours else None
        self.distance = nn.Parameter(torch.zeros(1)) if distance else None

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        first, second = split_texts(vectors, lengths, type(self).__name__)
        sizes = lengths.to(vectors.device)
        first = self.first(self.encode(first, sizes[:, 0]))
        second = self.second(self.encode(second, sizes[:, 1]))
        if self.cosine:
            first, second = (nn.functional.normalize(part, dim=-1) for part in (first, second))
            scores = self.log_scale.exp() * (first @ second.transpose(1, 2) - self.margin)
        else:
            scores = first @ second.transpose(1, 2) / self.size**0.5
        if self.neighbours is not None:
            scores = self._with_neighbours(scores, sizes)
        if self.distance is not None:
            row, column = (_share(sizes[:, k], scores.shape[1 + k]) for k in (0, 1))
            scores = scores - self.distance * (row[:, :, None] - column[:, None]).abs()
        return scores

    def _with_neighbours(self, scores: Tensor, sizes: Tensor) -> Tensor:
        row = torch.arange(scores.shape[1], device=scores.device)[None] < sizes[:, :1]
        column = torch.arange(scores.shape[2], device=scores.device)[None] < sizes[:, 1:]
        alone = torch.where(row[:, :, None] & column[:, None], scores, 0.0)
        total = scores
        for k, weight in enumerate(self.neighbours, 1):  # type: ignore[arg-type]
            before = nn.functional.pad(alone, (k, 0, k, 0))[:, : scores.shape[1], : scores.shape[2]]
            after = nn.functional.pad(alone, (0, k, 0, k))[:, k:, k:]
            total = total + weight * (before + after)
        return total


def _share(length: Tensor, size: int) -> Tensor:
    """Return the relative position of each word in its text, ``(B, size)``, 0 to 1."""
    place = torch.arange(size, device=length.device)[None]
    return place / (length - 1).clamp_min(1)[:, None]


def build_cell_scorer_v1(
    hidden_width: int | None = 64,
    similarity: Literal["dot", "cosine"] = "dot",
    shared: bool = True,
    neighbours: int = 0,
    distance: bool = False,
    scale: float = 4.0,
    margin: float = 0.5,
    encoder: EncoderBuilder | None = None,
) -> ScorerBuilder:
    """Return a builder of :class:`CellScorer`.

    Args:
        hidden_width: width of the projection of the words; None to compare the vectors themselves.
        similarity, shared, neighbours, distance: see :class:`CellScorer`.
        scale, margin: initial α and β of the cosine.
        encoder: module that gives the context of each word within its text to the scorer alone;
            None for the word vectors themselves.
    """
    check_hidden_width("CellScorer", hidden_width)
    if similarity not in SIMILARITIES:
        raise LatentError(
            f"CellScorer: similarity is {similarity!r}; expected one of {list(SIMILARITIES)}."
        )
    check_whole("CellScorer", 0, most=MOST_NEIGHBOURS, neighbours=neighbours)
    check_positive("CellScorer", scale=scale)
    check_number("CellScorer", margin=margin)
    if hidden_width is None and similarity == "dot" and not neighbours and encoder is None:
        if not distance:
            raise LatentError(
                "CellScorer: the dot product of the vectors themselves has nothing to learn. Set "
                "hidden_width, or similarity to 'cosine'."
            )
    return partial(
        CellScorer,
        hidden_width=hidden_width,
        similarity=similarity,
        shared=shared,
        neighbours=neighbours,
        distance=distance,
        scale=scale,
        margin=margin,
        encoder=encoder,
    )
