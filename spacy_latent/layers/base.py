"""Contracts of the two halves of a latent layer: scorers of parts, composers of vectors.

A config names a scorer or composer by a function that takes its options and returns a *builder*: a
picklable callable from the input width to the module, because the width is known only when the
model is put together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from spacy_latent.errors import check_whole
from spacy_latent.kernels.derivatives import is_transformed
from spacy_latent.kernels.pool import ranges
from spacy_latent.layers.concurrently import concurrently
from spacy_latent.layers.shared_structures import share_equals
from spacy_latent.structures.base import Structure


class PartScorer(nn.Module):
    """Token vectors ``(B, n, d)`` and lengths ``(B,)`` to scores of parts ``(B, *parts)``.

    For trees the parts are arcs: ``(B, n+1, n+1)``, ``[b, head, modifier]``, with node 0 the root.
    For cells the tokens are those of a first text and then at once those of a second, lengths
    ``(B, 2)``. Values at padding may be anything.

    parts: what is scored, see :class:`spacy_latent.structures.base.Structure`; empty: not checked.
    decides: name of the structure whose decisions it scores while they are taken, so that the
        scores are empty and :meth:`bind` is what matters; empty if it scores parts.
    counts: whether it has :meth:`counters`.
    """

    parts: ClassVar[str] = ""
    decides: ClassVar[str] = ""
    counts: ClassVar[bool] = False

    @abstractmethod
    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor: ...

    def counters(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Numbers by which it scores that run on from token to token, ``(B, n, K)``: worth to be
        seen. What stands at padding means nothing."""
        raise NotImplementedError(f"{type(self).__name__} has no counters.")

    def cost(self, vectors: Tensor, lengths: Tensor) -> Tensor | None:
        """What it adds to the objective of a batch in training over the number of its tokens,
        ``(B,)``, or None."""
        return None

    def bind(
        self, structure: Structure, vectors: Tensor, lengths: Tensor, temperature: float
    ) -> Structure:
        """The structure that estimators get with the scores of these vectors."""
        return structure


class Composer(nn.Module):
    """Token vectors ``(B, n, d)`` through structures ``(B, *parts)``, hard or soft, to vectors
    ``(B, n, output_width)``. Rows at padding may be anything finite. Of two texts as a scorer has
    them.

    output_width: width of the result.
    requires_hard: whether the structures must be 0/1.
    parts: what the structures are made of, see :class:`spacy_latent.structures.base.Structure`;
        empty: not checked.

    Items must not depend on each other, and nothing but modules of torch's dropout may draw random
    numbers: parts of a batch may be composed apart, and equal structures of an item once.
    """

    parts: ClassVar[str] = ""
    output_width: int
    requires_hard: bool = False

    @abstractmethod
    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor: ...

    def compose_several(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None = None
    ) -> Tensor:
        """Of structures ``(S, *parts)`` over the tokens of B items: ``(S, n, output_width)``. On a
        CPU in ranges of the items, each on a thread that is free, where that is worth it, nothing
        traces what is done, and there is neither dropout nor autocast, which other threads would
        not have. What the ranges are does not depend on how many threads there are, so gradients do
        not, either.

        item: ``(S,)`` int64, which of the items each is of; None for each of its own.
        """
        if torch.compiler.is_compiling() or is_transformed():
            return self.compose_range(vectors, z, lengths, item)
        parts = [(0, len(vectors))]
        if not drops(self) and not torch.is_autocast_enabled("cpu"):
            each = self._cost(vectors, z) / max(1, len(vectors))
            parts = ranges(np.full(len(vectors), each))
        if len(parts) == 1:
            return self.compose_range(vectors, z, lengths, item)
        if item is None:
            inputs = [(vectors[a:b], z[a:b], lengths[a:b]) for a, b in parts]
            return torch.cat(concurrently(self.__call__, inputs, list(self.parameters())))
        members = [((item >= a) & (item < b)).nonzero()[:, 0] for a, b in parts]
        shared = [
            (vectors[a:b], z[which], lengths[a:b], item[which] - a)
            for (a, b), which in zip(parts, members)
        ]
        made = concurrently(self.compose_range, shared, list(self.parameters()))
        # Back in the order of the structures.
        order = torch.empty_like(item)
        order[torch.cat(members)] = torch.arange(len(item), device=item.device)
        return torch.cat(made).index_select(0, order)

    def compose_range(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None
    ) -> Tensor:
        """As :meth:`compose_several`, on one thread. Structures of an item that are the same are
        composed once."""
        if item is None:
            return self(vectors, z, lengths)
        shared = None if drops(self) else share_equals(z, len(vectors), item)
        if shared is None:
            return self(vectors[item], z, lengths[item])
        first, kind = shared
        return self(vectors[item[first]], z[first], lengths[item[first]])[kind]

    def _cost(self, vectors: Tensor, z: Tensor) -> float:
        """Estimated nanoseconds on one thread of a CPU: a few linear maps of each token."""
        if vectors.device.type != "cpu":
            return 0.0
        return len(z) * vectors.shape[1] * vectors.shape[2] * self.output_width / 6


ScorerBuilder = Callable[[int], PartScorer]
ComposerBuilder = Callable[[int], Composer]


def drops(module: nn.Module) -> bool:
    """Whether the same call may give something else."""
    return module.training and any(
        isinstance(child, _DropoutNd) and child.p > 0 for child in module.modules()
    )


def check_output_width(name: str, output_width: int | None) -> None:
    check_whole(name, or_null=True, output_width=output_width)
