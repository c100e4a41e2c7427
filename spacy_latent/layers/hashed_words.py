"""Decoders that draw a word as a row of a softmax, by its hash."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from spacy_latent.errors import check_whole
from spacy_latent.layers.generative import WordDecoder
from spacy_latent.layers.parts_of_batch import in_parts


class HashedWordDecoder(WordDecoder):
    """Base of decoders whose words are rows of a table.

    Words that share a row are one word here, so memory is bounded and there is no vocabulary to
    store. Initially, the softmax of the bias is the frequency of each row in the training texts,
    with one added to each count.

    Attributes:
        size: number of rows of the table.
        output: layer from vectors to scores of the rows; subclasses set it to :meth:`make_output`.
    """

    output: nn.Linear

    def __init__(self, size: int, attr: str) -> None:
        super().__init__()
        self.size = size
        self.attr = attr

    def make_output(self, width: int) -> nn.Linear:
        """Return a layer with random weights and a bias of 0."""
        output = nn.Linear(width, self.size)
        nn.init.zeros_(output.bias)
        return output

    def begin(self, words: Iterable[Tensor]) -> None:
        with torch.no_grad():
            self.output.bias.copy_(log_frequencies(words, self.size))

    def in_parts(self, call: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        """Return :func:`in_parts` of a function that scores all words for each row."""
        return in_parts(call, *rows, numbers=self.size)


def log_frequencies(words: Iterable[Tensor], size: int) -> Tensor:
    """Return log-frequencies of hashes of words in each of ``size`` rows, ``(size,)`` float64.

    One is added to the count of each row. The hashes come in several int64 arrays.
    """
    counts = torch.ones(size, dtype=torch.float64)
    for part in words:
        counts += part.remainder(size).bincount(minlength=size)
    return (counts / counts.sum()).log()


def check_size(name: str, size: int) -> None:
    """Raise an error for a table with fewer than two rows."""
    check_whole(name, least=2, size=size)
