"""Contracts of a generative model of texts: a prior over structures, and a decoder of words.

A decoder is a distribution of the words of a text given its structure, or of a sentence given its
tree. The scorer and the estimator are then an approximate posterior over structures. The objective
is a lower bound on the log-probability of the text.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable

from torch import Tensor, nn

from spacy_latent.structures.base import Structure


class WordDecoder(nn.Module):
    """Base of all decoders.

    Attributes:
        attr: attribute of a token that identifies the word, by spaCy's name for it.
    """

    attr: str

    def begin(self, words: Iterable[Tensor]) -> None:
        """Initialise weights from the words of the training texts.

        It is called once before training, with several int64 arrays of hashes. By default it does
        nothing.
        """


class Decoder(WordDecoder):
    """Decoder that gives log p(words | structure) of S structures over D texts."""

    @abstractmethod
    def forward(
        self, vectors: Tensor, shown: Tensor, words: Tensor, inside: Tensor, item: Tensor
    ) -> Tensor:
        """Return log-probabilities ``(S,)`` in nats, differentiable in the first two arguments.

        Args:
            vectors: ``(S, width)``, the vector of the text composed with each structure.
            shown: ``(S, n)`` in [0, 1], the share of each word that the vector contains. This share
                must not be predicted from the vector.
            words: ``(D, n)`` int64, hashes of the attribute.
            inside: ``(D, n)`` bool, a mask of the words without padding.
            item: ``(S,)`` int64, the text of each structure.
        """


class ArcDecoder(WordDecoder):
    """Decoder that gives log p(word | its head) of each arc that a tree may have.

    So log p(words | tree) is the sum over the arcs of the tree, and sums over all trees are exact.

    This is a probability of the words under two conditions. The value of ``[h, m]`` depends only on
    the words h and m and on their places. Its exponentials sum to one over all words that may stand
    in the place of m. The vector of h must not come from an encoder of the sentence, which has read
    m: then m would be predicted from itself.
    """

    @abstractmethod
    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Return the log-probability in nats of each arc [head, modifier]; node 0 is the root.

        They are 0 at impossible arcs: at padding, in the column of the root and on the diagonal.

        Args:
            words: ``(B, n)`` int64, hashes of the attribute, any number at padding.
            lengths: ``(B,)`` int64.

        Returns:
            ``(B, n+1, n+1)``.
        """


class CellDecoder(WordDecoder):
    """Decoder that gives log p(word | its partner) of the words of a text aligned with another.

    If each word of the first text has at most one partner, log p(words | alignment) is the sum over
    the cells of the alignment. So sums over all such alignments are exact.

    The value of a cell depends only on its two words and their places. Its exponentials sum to one
    over all words that may stand in the place of the predicted word; see :class:`ArcDecoder`.
    """

    @abstractmethod
    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities in nats of the words of the first texts.

        Args:
            first, second: ``(B, n)`` and ``(B, m)`` int64, hashes of the words of both texts, any
                number at padding.

        Returns:
            Given each word of the second text, ``(B, n, m)``, and given no partner, ``(B, n)``.
            Values at padding have no meaning.
        """


class Prior(nn.Module):
    """Scores of parts that do not depend on the words, so that p(z) ∝ exp(z·s) is a prior."""

    @abstractmethod
    def forward(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return scores in the shape, dtype and device of the posterior's, ``(B, *parts)``.

        The values of the posterior's scores are not read. Values at padding have no meaning. A part
        that the scorer forbids is forbidden in the prior, too.
        """


# Builders take the width of the vectors from which words are predicted.
DecoderBuilder = Callable[[int], Decoder]
ArcDecoderBuilder = Callable[[int], ArcDecoder]
CellDecoderBuilder = Callable[[int], CellDecoder]
# A builder takes the set of structures, and may raise an error for it.
PriorBuilder = Callable[[Structure], Prior]
