"""Monotone alignments of the words of two sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, check_one_of, check_whole
from spacy_latent.kernels.autograd.tracing import not_traced
from spacy_latent.structures.alignment import Alignment
from spacy_latent.structures.base import Structure
from spacy_latent.structures.compiled import CompiledStructure
from spacy_latent.structures.results import TopK

MOVES = {"dtw": 0, "needleman_wunsch": 1}


class MonotoneAlignment(Alignment, CompiledStructure):
    """Alignments that keep the order of the words.

    For scores and lengths see :class:`Alignment`. If one sentence is empty, there is one alignment,
    the empty one.

    MAP, sums and samples are O(N·M), the k best O(N·M·k log k).

    Args:
        moves: "dtw" or "needleman_wunsch". "dtw" are paths of cells from the first pair of words to
            the last, each step to the next word of one or of both (dynamic time warping; Sakoe and
            Chiba 1978). "needleman_wunsch" are sets of matched pairs, each word in at most one and
            later words with later ones (Needleman and Wunsch 1970). An unmatched word scores 0. To
            charge a cost g for each unmatched word, add 2g to all scores.
        window: largest distance of a cell from the line between the first and the last pair of
            words, in words of the shorter sentence; None for no bound.
    """

    family: ClassVar[str] = "spacy_latent.kernels.alignments.monotone_alignment:FAMILY"
    smoothed_family: ClassVar[str | None] = "spacy_latent.kernels.smoothed.smoothed:PATHS"
    tractable = CompiledStructure.tractable | {"smoothed"}

    def __init__(
        self, moves: Literal["dtw", "needleman_wunsch"] = "dtw", window: int | None = None
    ) -> None:
        check_one_of(self.name, MOVES, error=InvalidScores, moves=moves)
        check_whole(self.name, or_null=True, error=InvalidScores, window=window)
        self.moves = moves
        self.window = window
        if moves != "dtw":
            self.smoothed_family = None  # type: ignore[misc]

    def covers(self, other: Structure) -> bool | None:
        if not isinstance(other, MonotoneAlignment) or self.moves != other.moves:
            return super().covers(other)
        return self.window is None or (other.window is not None and self.window >= other.window)

    def _options(self, scores: Tensor) -> list[int]:
        return [MOVES[self.moves], -1 if self.window is None else self.window]

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        mask = super().part_mask(scores, lengths.to(scores.device))
        if lengths.dim() == 1:
            lengths = lengths[:, None].expand(-1, 2)
        sizes = lengths.to(scores.device)
        # If one sentence is empty, there is nothing to align.
        mask = mask & (sizes > 0).all(1)[:, None, None]
        if self.window is None:
            return mask
        row = torch.arange(scores.shape[1], device=scores.device)[:, None]
        column = torch.arange(scores.shape[2], device=scores.device)[None]
        rows, columns = (sizes - 1).unbind(1)
        off = (row[None] * columns[:, None, None] - column[None] * rows[:, None, None]).abs()
        longest = torch.maximum(rows, columns).clamp_min(1)
        return mask & (off <= self.window * longest[:, None, None])

    @not_traced
    def top_k(self, scores: Tensor, lengths: Tensor, k: int) -> TopK:
        """Return the k best alignments by score, exact.

        The recursion of the best one keeps k at each cell. The general search would compute a best
        alignment with each cell in turn.
        """
        from spacy_latent.structures.k_best_alignments import MATCHING, WARPING, k_best_alignments

        check_whole(f"{self.name}.top_k", error=InvalidScores, k=k)
        self.check_tensors(scores, lengths)
        own, given, sizes = self.at_hand(scores.detach(), lengths)
        prepared, sizes = own._read(given, sizes)
        # Refuses an item without an alignment.
        own._map(prepared, sizes)
        allowed = prepared.double().masked_fill(~own.part_mask(prepared, sizes), -torch.inf)
        z = torch.zeros(k, *prepared.shape, device="cpu")
        values = torch.full((k, prepared.shape[0]), -torch.inf, dtype=torch.float64, device="cpu")
        for b, (rows, columns) in enumerate(sizes.tolist()):
            item = allowed[b, :rows, :columns].numpy()
            moves = WARPING if self.moves == "dtw" else MATCHING
            found, totals = k_best_alignments(item, k, moves)
            values[: len(found), b] = torch.from_numpy(totals)
            for rank, cells in enumerate(found):
                z[rank, b, cells[:, 0], cells[:, 1]] = 1.0
        return TopK(z, values).to(scores.dtype).sent(scores.device)

    def smoothed_maximum(
        self, scores: Tensor, lengths: Tensor, maximum: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Run the recursion over cells, a diagonal at a time.

        With the moves "needleman_wunsch", H(i, j) is over the matches of rows up to i and columns
        up to j, and R(i, j) over those that match row i. H(i, j) = max(H(i − 1, j), R(i, j)) and
        R(i, j) = max(R(i, j − 1), s(i, j) + H(i − 1, j − 1)), so each set of matches has one
        derivation. See :func:`spacy_latent.structures.smoothed.smoothed_value`.
        """
        batch, rows, columns = scores.shape
        if not batch or not rows or not columns:
            # A sum of no scores, which has a gradient as other values do.
            return scores.sum((1, 2))
        # Diagonal d holds the cells (i, d − i) by i: row i, begun i places later.
        place = torch.arange(rows + columns - 1, device=scores.device)[None]
        place = place - torch.arange(rows, device=scores.device)[:, None]
        outside = (place < 0) | (place >= columns)
        index = place.clamp(0, columns - 1)[None].expand(batch, -1, -1)
        skewed = scores.gather(2, index).masked_fill(outside, -torch.inf)
        lengths = lengths.to(scores.device)
        ends, last_row = lengths.sum(1) - 2, (lengths[:, 0] - 1).clamp_min(0)
        warps = self.moves == "dtw"
        # The values above the first row: no path, or no match.
        edge = scores.new_full((batch, 1), -torch.inf if warps else 0.0)
        before = current = edge.expand(-1, rows)
        start = torch.cat([scores.new_zeros(batch, 1), edge.expand(-1, rows - 1)], 1)
        matched = scores.new_full((batch, rows), -torch.inf)
        value = scores.new_zeros(batch)
        # Indexing would create a gradient as large as the scores for each diagonal.
        for d, cells in enumerate(skewed.unbind(2)):
            down = torch.cat([edge, current[:, :-1]], 1)
            diagonal = torch.cat([edge, before[:, :-1]], 1)
            if warps:
                reach = start if d == 0 else maximum(torch.stack([current, down, diagonal], -1))
                before, current = current, reach + cells
            else:
                matched = maximum(torch.stack([matched, diagonal + cells], -1))
                before, current = current, maximum(torch.stack([down, matched], -1))
            found = current.gather(1, last_row[:, None])[:, 0]
            value = torch.where(ends == d, found, value)
        return torch.where((lengths > 0).all(1), value, 0.0)
