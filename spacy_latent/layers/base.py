"""Contracts of the two halves of a latent layer: scorers of parts, composers of vectors.

A config names a scorer or composer by a function that takes its options and returns a *builder*: a
picklable callable from the input width to the module, because the width is known only when the
model is put together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from spacy_latent.errors import LatentError
from spacy_latent.layers.shared_structures import share_equals
from spacy_latent.structures.base import Structure


class PartScorer(nn.Module):
    """Token vectors ``(B, n, d)`` and lengths ``(B,)`` to scores of parts ``(B, *parts)``.

    For trees the parts are arcs: ``(B, n+1, n+1)``, ``[b, head, modifier]``, with node 0 the root.
    For cells the tokens are those of a first text and then at once those of a second, lengths
    ``(B, 2)``. Values at padding may be anything.

    parts: what is scored, see :class:`spacy_latent.structures.base.Structure`.
    decides: name of the structure whose decisions it scores while they are taken, so that the
        scores are empty and :meth:`bind` is what matters; empty if it scores parts.
    counts: whether it has :meth:`counters`.
    """

    parts: ClassVar[str] = "arcs"
    decides: ClassVar[str] = ""
    counts: ClassVar[bool] = False

    @abstractmethod
    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor: ...

    def counters(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Numbers by which it scores that run on from token to token, ``(B, n, K)``: worth to be
        seen. What stands at padding means nothing."""
        raise NotImplementedError(f"{type(self).__name__} has no counters.")

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
    parts: what the structures are made of, see :class:`spacy_latent.structures.base.Structure`.
    """

    parts: ClassVar[str] = "arcs"
    output_width: int
    requires_hard: bool = False

    @abstractmethod
    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor: ...

    def compose_several(self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor) -> Tensor:
        """Of structures ``(S, *parts)`` over the tokens of B items: ``(S, n, output_width)``.

        item: ``(S,)`` int64, which of the items each is of. Structures of an item that are the same
            are composed once, unless there is dropout.
        """
        shared = None if _drops(self) else share_equals(z, len(vectors), item)
        if shared is None:
            return self(vectors[item], z, lengths[item])
        first, kind = shared
        return self(vectors[item[first]], z[first], lengths[item[first]])[kind]


def _drops(module: nn.Module) -> bool:
    """Whether the same call may give something else."""
    return module.training and any(
        isinstance(child, _DropoutNd) and child.p > 0 for child in module.modules()
    )


ScorerBuilder = Callable[[int], PartScorer]
ComposerBuilder = Callable[[int], Composer]


def check_output_width(name: str, output_width: int | None) -> None:
    if output_width is not None and output_width < 1:
        raise LatentError(
            f"{name}: output_width is {output_width}; expected at least 1, or null for the input's."
        )
