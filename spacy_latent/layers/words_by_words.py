"""Decoder of the words of a text from the words of another: the lexicon of the IBM models."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.generative import CellDecoder, CellDecoderBuilder
from spacy_latent.layers.hashed_words import HashedWordDecoder, check_size


class WordsByWords(HashedWordDecoder, CellDecoder):
    """Decoder that draws each word from softmax(W tanh(A v + a) + b), with v of its partner.

    v is the decoder's own embedding of the word of the second text with which the word is aligned.
    It reads no other word. For words without a partner, v is a learned vector.

    A word is a row of both tables, by its hash. Words that share a row are one word here, as in
    BagOfWords. Initially, softmax(b) is the frequency of each row in the training texts, with one
    added to each count.
    """

    def __init__(self, width: int, size: int = 2000, attr: str = "NORM") -> None:
        super().__init__(size, attr)
        self.partners = nn.Embedding(size, width)
        self.none = nn.Parameter(torch.randn(width))
        self.hidden = nn.Linear(width, width)
        self.output = self.make_output(width)

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        # Compute each different partner of the batch once.
        used, own = second.remainder(self.size).unique(return_inverse=True)
        wanted, drawn = first.remainder(self.size).unique(return_inverse=True)
        vectors = torch.cat([self.none[None], self.partners(used)])
        scores = self.output(self.hidden(vectors).tanh())
        table = scores[:, wanted] - scores.logsumexp(1, keepdim=True)
        return table[own[:, None] + 1, drawn[:, :, None]], table[0][drawn]


def build_words_by_words_v1(size: int = 2000, attr: str = "NORM") -> CellDecoderBuilder:
    """Return a builder of :class:`WordsByWords`.

    Args:
        size: number of rows of the tables of words.
        attr: attribute of a token that identifies the word, such as "NORM", "LOWER" or "ORTH".
    """
    check_size("WordsByWords", size)
    return partial(WordsByWords, size=size, attr=attr)
