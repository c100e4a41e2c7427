"""What alignments of the words of two sentences share: shapes and lengths."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores
from spacy_latent.structures.base import Structure


class Alignment(Structure):
    """Sets of cells. Scores ``(B, N, M)``, ``[b, i, j]`` for word i of the first and word j of the
    second sentence; lengths ``(B, 2)``, or ``(B,)`` where both sentences are as long."""

    part_axes: ClassVar[int] = 2
    parts: ClassVar[str] = "cells"
    annotation: ClassVar[str] = "parts"

    def prepare(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        # The kernels read lengths themselves, and check what they read.
        scores, lengths = self.check_types(scores, lengths)
        if lengths.dim() == 1:
            lengths = lengths[:, None].expand(-1, 2)
        if lengths.shape != (scores.shape[0], 2):
            raise InvalidScores(
                f"{self.name}: lengths have shape {tuple(lengths.shape)}; expected (B, 2), the "
                "numbers of rows and columns of each item."
            )
        room = torch.tensor(scores.shape[1:], device=lengths.device)
        if bool(((lengths < 0) | (lengths > room)).any()):
            raise InvalidScores(
                f"{self.name}: lengths lie between {lengths.min(0).values.tolist()} and "
                f"{lengths.max(0).values.tolist()}, but scores of shape {tuple(scores.shape)} have "
                f"room for 0 to {list(scores.shape[1:])} words."
            )
        return scores, lengths
