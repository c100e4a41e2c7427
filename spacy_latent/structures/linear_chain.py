"""Linear chains: one tag for each position, with scores of adjacent pairs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from spacy_latent.errors import InvalidScores
from spacy_latent.kernels.autograd import families
from spacy_latent.kernels.autograd.tracing import is_traced, not_traced
from spacy_latent.structures.base import TopK
from spacy_latent.structures.compiled import CompiledStructure


class ChainOfTags(CompiledStructure):
    """Sequences of tags or labelled segments, with Viterbi's algorithm for the k best."""

    annotation: ClassVar[str] = "tags"
    smoothed_family: ClassVar[str | None] = "spacy_latent.kernels.smoothed.smoothed:CHAINS"
    tractable = CompiledStructure.tractable | {"smoothed"}

    @abstractmethod
    def _k_best_kernel(self) -> Callable[..., None]:
        """Return the kernel of the k best, as kernels.chains.best_chains.k_best takes it."""

    @not_traced
    def top_k(self, scores: Tensor, lengths: Tensor, k: int) -> TopK:
        """Return the k best by score, exact: Viterbi's algorithm that keeps k for each tag."""
        tags, totals = self.top_k_tags(scores, lengths, k)
        prepared, sizes = self._read(scores, lengths)
        z = self._indicate(tags.flatten(0, 1), prepared, sizes.repeat(len(tags)))
        return TopK(z.unflatten(0, tags.shape[:2]), totals).to(scores.dtype)

    @not_traced
    def top_k_tags(self, scores: Tensor, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return :meth:`top_k` as tags, with the scores of the sequences.

        Returns:
            Tags ``(K, B, N)`` int32, −1 at padding and for missing sequences; and scores ``(K, B)``
            float64, −inf for missing sequences.
        """
        from spacy_latent.kernels.chains.best_chains import k_best

        self.check_tensors(scores, lengths)
        prepared, lengths = self._read(scores.detach(), lengths)
        family, kernel = families.family_of(self.family), self._k_best_kernel()
        options = self._options(prepared)
        return k_best(self._kernel_input(prepared), lengths, k, family, kernel, options)


class LinearChain(ChainOfTags):
    """Sequences of tags.

    Scores are ``(B, N, K, K)``, ``[b, position, previous tag, tag]``. Lengths are ``(B,)``, each at
    most N.

    Position 0 has no previous tag: ``scores[:, 0, 0, t]`` is the score of t as the first tag, and
    ``scores[:, 0, 1:]`` is never read. So every sequence holds one part of each position. An item
    of length 0 has one sequence, the empty one.

    MAP is Viterbi's algorithm (1967), sums are forward-backward (Rabiner 1989), samples are drawn
    backward from the forward sums. All take O(N·K²). If transitions are the same at all positions,
    :class:`~spacy_latent.structures.tag_sequence.TagSequence` needs only O(N·K) memory.
    """

    part_axes: ClassVar[int] = 3
    parts: ClassVar[str] = "transitions"
    exclusive_axes: ClassVar[tuple[int, ...]] = (1, 2)
    family: ClassVar[str] = "spacy_latent.kernels.chains.linear_chain:FAMILY"

    def check(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        scores, lengths = super().check(scores, lengths)
        if scores.shape[2] != scores.shape[3] or scores.shape[2] < 1:
            raise InvalidScores(
                f"{self.name}: scores have shape {tuple(scores.shape)}; expected (B, N, K, K), "
                "[item, position, previous tag, tag], with at least one tag."
            )
        lengths = self.check_lengths(lengths, scores.shape[1])
        return scores, lengths

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        position = torch.arange(scores.shape[1], device=scores.device)
        first_row = torch.arange(scores.shape[2], device=scores.device) == 0
        mask = (position > 0)[:, None] | first_row
        inside = position < lengths.to(scores.device)[:, None]
        return mask[None, :, :, None] & inside[:, :, None, None]

    def smoothed_maximum(
        self, scores: Tensor, lengths: Tensor, maximum: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Run the recursion over positions with a smoothed maximum.

        See :func:`spacy_latent.structures.smoothed.smoothed_value`.
        """
        if not scores.shape[1]:
            return scores.new_zeros(scores.shape[0])
        lengths = lengths.to(scores.device)
        reach = scores[:, 0, 0]
        # Indexing would create a gradient as large as the scores for each position.
        for position, block in enumerate(scores[:, 1:].transpose(2, 3).unbind(1), 1):
            wider = maximum(reach[:, None] + block)
            reach = torch.where((position < lengths)[:, None], wider, reach)
        return torch.where(lengths > 0, maximum(reach), 0.0)

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        from spacy_latent.kernels.chains.linear_chain import best_transitions

        if is_traced(scores):
            return super()._map(scores, lengths)
        return best_transitions(scores, lengths)

    def _best_parts(self, scores: Tensor, lengths: Tensor) -> list[np.ndarray]:
        tags, count = self._best(scores, lengths).cpu().numpy(), scores.shape[-1]
        place = count * count * np.arange(tags.shape[1], dtype="int32") + tags
        place[:, 1:] += count * tags[:, :-1]
        return [row[:n] for row, n in zip(place, lengths.tolist())]

    def _indicate(self, found: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        return transitions_of(found, scores)

    def _k_best_kernel(self) -> Callable[..., None]:
        from spacy_latent.kernels.chains.best_chains import k_best_chains

        return k_best_chains

    def decode(self, z: np.ndarray, length: int) -> np.ndarray:
        """Return the tags of the positions, ``(n,)`` int32."""
        return z[:length].max(1).argmax(1).astype("int32")

    def encode(self, gold: np.ndarray, length: int, num_tags: int | None = None) -> np.ndarray:
        """Return transitions ``(n, K, K)`` from tags as in :meth:`decode`.

        Args:
            num_tags: K; it cannot be determined from tags alone.
        """
        check_tags(self.name, gold, length, num_tags)
        tags = np.asarray(gold, dtype="int64")
        z = np.zeros((length, num_tags or 0, num_tags or 0), dtype="float32")
        z[np.arange(length), np.concatenate([[0], tags[:-1]])[:length], tags] = 1.0
        return z

    def encode_for(
        self, gold: np.ndarray, length: int | Sequence[int], parts: Sequence[int]
    ) -> np.ndarray:
        return self.encode(gold, int(np.sum(length)), num_tags=parts[-1])


def check_tags(name: str, gold: np.ndarray, length: int, num_tags: int | None) -> None:
    """Raise an error unless these are ``length`` tags from 0 to ``num_tags`` − 1."""
    tags = np.asarray(gold)
    if num_tags is None:
        raise InvalidScores(f"{name}.encode: num_tags is None; expected the number of tags.")
    if tags.shape != (length,) or (length and not 0 <= tags.min() <= tags.max() < num_tags):
        raise InvalidScores(
            f"{name}.encode: tags are {tags.tolist()[:10]}; expected {length} of them, each from 0 "
            f"to {num_tags - 1}."
        )


def transitions_of(tags: Tensor, scores: Tensor) -> Tensor:
    """Return 0/1 transitions ``(B, N, K, K)`` in the dtype of ``scores``.

    They are made from tags ``(B, N)``, −1 at padding.
    """
    count = scores.shape[-1]
    if tags.device.type != "cpu" or is_traced(tags):
        own, tag = tags[:, :, None, None], torch.arange(count, device=tags.device)
        return ((pad(own, (0, 0, 0, 0, 1, -1)) == tag[:, None]) & (own == tag)).to(scores.dtype)
    z = scores.new_zeros((*tags.shape, count, count))
    chosen = tags.cpu().numpy().astype("int64")
    place = count * count * np.arange(chosen.size).reshape(chosen.shape) + chosen
    place[:, 1:] += count * chosen[:, :-1]
    index = torch.from_numpy(place[chosen >= 0]).to(z.device)
    z.view(-1)[index] = 1.0
    return z
