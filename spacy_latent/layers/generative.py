"""Contracts of what a text is thought to come from: a prior over structures, and a decoder that
gives the words of a text where its structure is known, or those of a sentence by its tree.

With these, the distribution of structures that a scorer and an estimator give is an approximate
posterior, and what they lose is a lower bound on the logarithm of the probability of the text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable

from torch import Tensor, nn

from spacy_latent.structures.base import Structure


class WordDecoder(nn.Module):
    """What decoders of every kind share.

    attr: which attribute of a token says what word it is, by spaCy's name for it.
    """

    attr: str

    def begin(self, words: Iterable[Tensor]) -> None:
        """Called once before training with hashes of the words of the training texts, int64, in
        parts: for first values of weights. By default nothing."""


class Decoder(WordDecoder):
    """log p(words | structure) of S structures over D texts."""

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


class ArcDecoder(WordDecoder):
    """log p(word | its head) of each arc that a tree may have, so that log p(words | tree) is the
    sum over the arcs of the tree, and sums over all trees are exact.

    That this is a probability of the words rests on two things. Whatever stands in ``[h, m]`` may
    depend on the words h and m and on their places alone; over all words in the place of m its
    exponentials sum to one. A vector from an encoder of the sentence has seen the word m: with that
    of h it would be told from itself.
    """

    @abstractmethod
    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """``(B, n+1, n+1)``, [head, modifier] with the root as node 0, in nats; 0 where no arc can
        be: at padding, in the column of the root and on the diagonal.

        words: ``(B, n)`` int64, hashes of the attribute, anything at padding. lengths: ``(B,)``.
        """


class Prior(nn.Module):
    """Scores of parts that do not depend on the words, so that p(z) ∝ exp(z·s) is a prior."""

    @abstractmethod
    def forward(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """In the shape, dtype and device of those of the posterior, ``(B, *parts)``, whose values
        are not read; what stands at padding means nothing. A part that the scorer forbids is
        forbidden in the prior, too."""


# Of the width of the vectors that words are told from.
DecoderBuilder = Callable[[int], Decoder]
ArcDecoderBuilder = Callable[[int], ArcDecoder]
# For the set of structures, which it may refuse.
PriorBuilder = Callable[[Structure], Prior]
