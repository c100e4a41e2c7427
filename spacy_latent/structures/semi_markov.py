"""Sequences of labelled segments, scored as wholes: semi-Markov chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores
from spacy_latent.structures.compiled import CompiledStructure
from spacy_latent.structures.tag_sequence import TagSequence


class SemiMarkov(TagSequence):
    """Segmentations whose segments have labels (Sarawagi and Cohen 2004).

    Scores are ``(B, N, L, K)``, ``[b, first position, length − 1, label]``. Lengths are ``(B,)``,
    each at most N.

    Every position is in exactly one segment, of at most L positions. A segment that would end
    beyond the item is no part. :meth:`bind` adds scores of adjacent segments' labels, and of the
    first and the last, as in :class:`TagSequence`. Time is O(N·L·K + N·K²).
    """

    part_axes: ClassVar[int] = 3
    parts: ClassVar[str] = "segments"
    exclusive_axes: ClassVar[tuple[int, ...]] = ()
    incomparable = True
    annotation: ClassVar[str] = "parts"
    family: ClassVar[str] = "spacy_latent.kernels.chains.semi_markov:FAMILY"
    smoothed_family: ClassVar[str | None] = None

    def check(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        scores, lengths = super().check(scores, lengths)
        if scores.shape[2] < 1:
            raise InvalidScores(
                f"{self.name}: scores have shape {tuple(scores.shape)}; expected (B, N, L, K), "
                "and L, the length of the longest segment, at least 1."
            )
        return scores, lengths

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        first = torch.arange(scores.shape[1], device=scores.device)[:, None]
        extra = torch.arange(scores.shape[2], device=scores.device)
        return ((first + extra) < lengths.to(scores.device)[:, None, None])[..., None]

    def smoothed_maximum(
        self, scores: Tensor, lengths: Tensor, maximum: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Run the recursion over positions with a smoothed maximum.

        One maximum is over the label before a segment, and one over the lengths of segments that
        end at the same position. See :func:`spacy_latent.structures.smoothed.smoothed_value`.
        """
        batch, positions, longest, count = scores.shape
        lengths = lengths.to(scores.device)
        value = scores.new_zeros(batch)
        if not positions:
            return value
        transitions = scores.new_zeros(count, count)
        start, end = transitions[0], transitions[0]
        if self.bound is not None:
            transitions, start, end = (given.to(scores) for given in self.bound)
        # Segments by their last position: [b, last, length − 1, label].
        last = torch.arange(positions, device=scores.device)[:, None]
        first = last - torch.arange(longest, device=scores.device)
        index = first.clamp_min(0)[None, :, :, None].expand(batch, -1, -1, count)
        ending = scores.gather(1, index).masked_fill((first < 0)[None, :, :, None], -torch.inf)
        # Values before a segment of each label, latest first.
        begun = [start.expand(batch, -1)]
        # Indexing would create a gradient as large as the scores for each position.
        for position, segments in enumerate(ending.unbind(1), 1):
            before = torch.stack(begun, 1)
            reach = maximum((before + segments[:, : before.shape[1]]).transpose(1, 2))
            value = torch.where(lengths == position, maximum(reach + end), value)
            follow = maximum(reach[:, None] + transitions.T)
            begun = [follow, *begun[: longest - 1]]
        return value

    def smoothed_by_kernels(
        self, scores: Tensor, lengths: Tensor, regularizer: str, gamma: float
    ) -> Tensor:
        if self.bound is None or gamma == 1.0:
            return CompiledStructure.smoothed_by_kernels(self, scores, lengths, regularizer, gamma)
        cool = self.bind(*(given.to(scores) / gamma for given in self.bound))
        return gamma * cool.smoothed_by_kernels(scores / gamma, lengths, regularizer, 1.0)

    def decode(self, z: np.ndarray, length: int) -> np.ndarray:
        """Return the segments, ``(m, 3)`` int32: first position, position after the last, label."""
        first, extra, label = np.nonzero(z[:length] > 0.5)
        return np.stack([first, first + extra + 1, label], 1).astype("int32")

    def encode(
        self,
        gold: np.ndarray,
        length: int,
        num_tags: int | None = None,
        max_length: int | None = None,
    ) -> np.ndarray:
        """Return a 0/1 array ``(n, L, K)`` from segments as in :meth:`decode`.

        Args:
            num_tags: K, the number of labels; must be given unless transitions are bound.
            max_length: L, the length of the longest segment; None for the longest segment given.
        """
        if num_tags is None and self.bound is not None:
            num_tags = len(self.bound[0])
        if num_tags is None:
            raise InvalidScores(
                f"{self.name}.encode: num_tags is None; expected the number of labels."
            )
        segments = np.asarray(gold, dtype="int64").reshape(-1, 3)
        spans = segments[:, 1] - segments[:, 0]
        longest = max_length or int(max([1, *spans]))
        ordered = np.concatenate([[0], segments[:, 1]])
        whole = np.array_equal(ordered, np.concatenate([segments[:, 0], [length]]))
        known = ((segments[:, 2] >= 0) & (segments[:, 2] < num_tags)).all()
        if not whole or not known or ((spans < 1) | (spans > longest)).any():
            raise InvalidScores(
                f"{self.name}.encode: segments are {segments.tolist()[:10]}; expected them in "
                f"order, each from the end of the one before, from 0 to {length}, of at most "
                f"{longest} positions, with labels from 0 to {num_tags - 1}."
            )
        z = np.zeros((length, longest, num_tags), dtype="float32")
        z[segments[:, 0], spans - 1, segments[:, 2]] = 1.0
        return z

    def encode_for(
        self, gold: np.ndarray, length: int | Sequence[int], parts: Sequence[int]
    ) -> np.ndarray:
        _, longest, labels = parts
        return self.encode(gold, int(np.sum(length)), num_tags=labels, max_length=longest)

    def _options(self, scores: Tensor) -> list[int]:
        return [scores.shape[2]]

    def _k_best_kernel(self) -> Callable[..., None]:
        from spacy_latent.kernels.chains import semi_markov

        return semi_markov.k_best_segments

    def _covers_positions(self, chosen: Tensor, lengths: Tensor) -> Tensor:
        position = torch.arange(chosen.shape[1], device=chosen.device)
        extra = torch.arange(chosen.shape[2], device=chosen.device)[:, None]
        # [first, length − 1, position]
        first = position[:, None, None]
        covered = (position >= first) & (position <= first + extra)
        times = (chosen.sum(3)[..., None] * covered).sum((1, 2))
        return (times == (position < lengths[:, None])).all(1)

    def _border_tags(self, z: Tensor) -> tuple[Tensor, Tensor]:
        begins, ends = z.sum(-2), torch.zeros_like(z[..., 0, :])
        for extra in range(min(z.shape[-2], z.shape[-3])):
            ends[..., extra:, :] += z[..., : z.shape[-3] - extra, extra, :]
        return begins, ends
