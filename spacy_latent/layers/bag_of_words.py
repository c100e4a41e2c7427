"""Decoder of words without order (compare Mnih and Gregor 2014, section 4.3)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spacy_latent.errors import LatentError
from spacy_latent.layers.generative import Decoder, DecoderBuilder

# Number of scores of words that are kept at once, 64 MB. The scores for one structure are always
# kept.
MAX_SCORES = 1 << 24


class BagOfWords(Decoder):
    """Decoder that draws each word independently.

    A word that the structure shows is drawn from softmax(b). Any other word is drawn from softmax(W
    v + b), with v the text as the structure shows it.

    A word is a row of the table W, by its hash. Words that share a row are one word here, so memory
    is bounded and there is no vocabulary to store. Each probability belongs to a row. Initially,
    softmax(b) is the frequency of each row in the training texts, with one more of each.
    """

    def __init__(self, width: int, size: int = 2000, attr: str = "NORM") -> None:
        super().__init__()
        self.size = size
        self.attr = attr
        self.output = nn.Linear(width, size)
        nn.init.zeros_(self.output.bias)

    def begin(self, words: Iterable[Tensor]) -> None:
        with torch.no_grad():
            self.output.bias.copy_(log_frequencies(words, self.size))

    def forward(
        self, vectors: Tensor, shown: Tensor, words: Tensor, inside: Tensor, item: Tensor
    ) -> Tensor:
        rows = words.remainder(self.size)
        alone = self.output.bias.log_softmax(0)[rows]

        def told(vectors: Tensor, shown: Tensor, item: Tensor) -> Tensor:
            scores = self.output(vectors)
            own = scores.gather(1, rows[item]) - scores.logsumexp(1, keepdim=True)
            each = (1 - shown) * own + shown * alone[item]
            return (each * inside[item]).sum(1)

        most = max(1, MAX_SCORES // self.size)
        if len(vectors) <= most:
            return told(vectors, shown, item)
        # Scores are computed part by part, and computed again for the gradient.
        parts = zip(vectors.split(most), shown.split(most), item.split(most))
        return torch.cat([checkpoint(told, *part, use_reentrant=False) for part in parts])


def log_frequencies(words: Iterable[Tensor], size: int) -> Tensor:
    """Return log-frequencies of hashes of words in each of ``size`` rows, ``(size,)`` float64.

    One is added to the count of each row. The hashes come in several int64 arrays.
    """
    counts = torch.ones(size, dtype=torch.float64)
    for part in words:
        counts += part.remainder(size).bincount(minlength=size)
    return (counts / counts.sum()).log()


def build_bag_of_words_v1(size: int = 2000, attr: str = "NORM") -> DecoderBuilder:
    """Return a builder of :class:`BagOfWords`.

    Args:
        size: number of rows of the table of words.
        attr: attribute of a token that identifies the word, such as "NORM", "LOWER" or "ORTH".
    """
    if size < 2:
        raise LatentError(f"BagOfWords: size is {size}; expected at least 2.")
    return partial(BagOfWords, size=size, attr=attr)
