"""Shapes and lengths of alignments of the words of two sentences."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from spacy_latent.structures.base import Structure


class Alignment(Structure):
    """Sets of cells.

    Scores are ``(B, N, M)``, ``[b, i, j]`` for word i of the first and word j of the second
    sentence. Lengths are ``(B, 2)``, or ``(B,)`` if both sentences have the same length.
    """

    part_axes: ClassVar[int] = 2
    parts: ClassVar[str] = "cells"
    annotation: ClassVar[str] = "parts"

    def check(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        scores, lengths = super().check(scores, lengths)
        lengths = self.check_lengths(lengths, *scores.shape[1:])
        if lengths.dim() == 1:
            lengths = lengths[:, None].expand(-1, 2)
        return scores, lengths
