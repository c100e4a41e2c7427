"""Contracts of the two halves of a latent layer: scorers of parts, composers of vectors.

A config names a function that takes the options of a scorer or composer and returns a *builder*. A
builder is a picklable callable from the input width to the module, since the width is only known
when the model is built.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from spacy_latent.errors import check_whole
from spacy_latent.kernels.autograd.derivatives import is_transformed
from spacy_latent.kernels.core.pool import ranges
from spacy_latent.layers.parallel import call_in_parallel
from spacy_latent.layers.shared_structures import share_equals
from spacy_latent.structures.base import Structure


class PartScorer(nn.Module):
    """Module from token vectors ``(B, n, d)`` to scores of parts ``(B, *parts)``.

    For trees the parts are arcs: ``(B, n+1, n+1)``, ``[b, head, modifier]``, with node 0 the root.
    For cells, the tokens of a first text are directly followed by the tokens of a second, with
    lengths ``(B, 2)``. Values at padding may be anything.

    Attributes:
        parts: kind of the scored parts, see :class:`spacy_latent.structures.base.Structure`; empty:
            not checked.
        decides: name of the structure whose decisions it scores one after another; empty if it
            scores parts. The output of such a scorer is all zeros, and the structure of
            :meth:`bind` computes the scores.
        counts: whether it has :meth:`counters`.
    """

    parts: ClassVar[str] = ""
    decides: ClassVar[str] = ""
    counts: ClassVar[bool] = False

    @abstractmethod
    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor: ...

    def counters(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Return the counters ``(B, n, K)`` from which it computes scores, for inspection.

        Values at padding have no meaning.
        """
        raise NotImplementedError(f"{type(self).__name__} has no counters.")

    def cost(self, vectors: Tensor, lengths: Tensor) -> Tensor | None:
        """Return a cost ``(B,)`` in training, whose sum per token is in the objective, or None."""
        return None

    def bind(
        self, structure: Structure, vectors: Tensor, lengths: Tensor, temperature: float
    ) -> Structure:
        """Return the structure that estimators get with the scores of these vectors.

        Return a structure with scores of parts unchanged: its annotations and entropies are
        computed from these scores alone.
        """
        return structure


class Composer(nn.Module):
    """Module that composes token vectors ``(B, n, d)`` through structures ``(B, *parts)``.

    The structures may be hard or soft. The result is ``(B, n, output_width)``, with any finite
    values at padding. Two texts are given as to a scorer.

    Items must not depend on each other, and only torch's dropout modules may draw random numbers.
    Parts of a batch may be composed separately, and equal structures of an item only once.

    Attributes:
        requires_hard: whether the structures must be 0/1.
        parts: kind of the structures' parts, see :class:`spacy_latent.structures.base.Structure`;
            empty: not checked.
    """

    parts: ClassVar[str] = ""
    output_width: int
    requires_hard: bool = False

    @abstractmethod
    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor: ...

    def compose_several(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None = None
    ) -> Tensor:
        """Compose structures ``(S, *parts)`` over the tokens of B items.

        On a CPU the items may be split into ranges, each on a free thread, if this saves time. They
        are not split if the code is traced, or with dropout or autocast, which apply to one thread
        only. Neither ranges nor gradients depend on the number of threads.

        Args:
            item: ``(S,)`` int64, the item of each structure; None if there is one for each.

        Returns:
            ``(S, n, output_width)``.
        """
        return self._by_ranges(self.compose_range, vectors, z, lengths, item)

    def compose_roots(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None = None
    ) -> Tensor:
        """Return the sum of the composed vectors of each tree's roots, ``(S, output_width)``.

        Each vector is weighted by the degree to which its token is a root. For the arguments see
        :meth:`compose_several`; z are arcs.
        """
        return self._by_ranges(self.roots_of_range, vectors, z, lengths, item)

    def _by_ranges(
        self,
        compose: Callable[..., Tensor],
        vectors: Tensor,
        z: Tensor,
        lengths: Tensor,
        item: Tensor | None,
    ) -> Tensor:
        """Return ``compose`` of all items, split as :meth:`compose_several` says."""
        if torch.compiler.is_compiling() or is_transformed():
            return compose(vectors, z, lengths, item)
        parts = [(0, len(vectors))]
        if not drops(self) and not torch.is_autocast_enabled("cpu"):
            each = self._cost(vectors, z) / max(1, len(vectors))
            parts = ranges(np.full(len(vectors), each))
        if len(parts) == 1:
            return compose(vectors, z, lengths, item)
        if item is None:
            inputs = [(vectors[a:b], z[a:b], lengths[a:b]) for a, b in parts]
            alone = partial(compose, item=None)
            return torch.cat(call_in_parallel(alone, inputs, list(self.parameters())))
        members = [((item >= a) & (item < b)).nonzero()[:, 0] for a, b in parts]
        shared = [
            (vectors[a:b], z[which], lengths[a:b], item[which] - a)
            for (a, b), which in zip(parts, members)
        ]
        made = call_in_parallel(compose, shared, list(self.parameters()))
        # Back to the order of the structures.
        order = torch.empty_like(item)
        order[torch.cat(members)] = torch.arange(len(item), device=item.device)
        return torch.cat(made).index_select(0, order)

    def compose_range(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None
    ) -> Tensor:
        """Compose as :meth:`compose_several` on one thread, equal structures of an item once."""
        if item is None:
            return self(vectors, z, lengths)
        shared = None if drops(self) else share_equals(z, len(vectors), item)
        if shared is None:
            return self(vectors[item], z, lengths[item])
        first, kind = shared
        return self(vectors[item[first]], z[first], lengths[item[first]])[kind]

    def roots_of_range(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None
    ) -> Tensor:
        """Compose as :meth:`compose_roots`, on one thread."""
        composed = self.compose_range(vectors, z, lengths, item)
        return (z[:, 0, 1:, None] * composed).sum(1)

    def _cost(self, vectors: Tensor, z: Tensor) -> float:
        """Return the estimated nanoseconds on one CPU thread, by default for a few linear maps."""
        if vectors.device.type != "cpu":
            return 0.0
        return len(z) * vectors.shape[1] * vectors.shape[2] * self.output_width / 6


ScorerBuilder = Callable[[int], PartScorer]
ComposerBuilder = Callable[[int], Composer]


def drops(module: nn.Module) -> bool:
    """Return whether the module has active dropout, so that equal calls may differ."""
    return module.training and any(
        isinstance(child, _DropoutNd) and child.p > 0 for child in module.modules()
    )


def check_output_width(name: str, output_width: int | None) -> None:
    """Raise an error unless the width is a whole number above 0, or None."""
    check_whole(name, or_null=True, output_width=output_width)
