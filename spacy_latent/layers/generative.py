"""Contracts of what a text is thought to come from: a prior over structures, and a decoder that
gives the words of a text where its structure is known.

With these, the distribution of structures that a scorer and an estimator give is an approximate
posterior, and what they lose is a lower bound on the logarithm of the probability of the text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable

from torch import Tensor, nn

from spacy_latent.structures.base import Structure


class Decoder(nn.Module):
    """log p(words | structure) of S structures over D texts.

    attr: which attribute of a token says what word it is, by spaCy's name for it.
    """

    attr: str

    def begin(self, words: Iterable[Tensor]) -> None:
        """Called once before training with hashes of the words of the training texts, int64, in
        parts: for first values of weights. By default nothing."""

    @abstractmethod
    def forward(
        self, vectors: Tensor, shown: Tensor, words: Tensor, inside: Tensor, item: Tensor
    ) -> Tensor:
        """``(S,)``, in nats; differentiable in the first two.

        vectors: ``(S, width)``, the text as its structure shows it. shown: ``(S, n)`` in [0, 1],
            how far the vector is made of each word: such a word is not to be told from it. words:
            ``(D, n)`` int64, hashes of the attribute. inside: ``(D, n)`` bool, which of these are
            words, and not padding. item: ``(S,)`` int64, the text of each structure.
        """


class Prior(nn.Module):
    """Scores of parts that do not depend on the words, so that p(z) ∝ exp(z·s) is a prior."""

    @abstractmethod
    def forward(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """In the shape, dtype and device of those of the posterior, ``(B, *parts)``, whose values
        are not read; what stands at padding means nothing. A part that the scorer forbids is
        forbidden in the prior, too."""


DecoderBuilder = Callable[[int], Decoder]
# For the set of structures, which it may refuse.
PriorBuilder = Callable[[Structure], Prior]
