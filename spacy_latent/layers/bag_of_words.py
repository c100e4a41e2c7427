"""Decoder of words without order (compare Mnih and Gregor 2014, section 4.3)."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from spacy_latent.layers.generative import Decoder, DecoderBuilder
from spacy_latent.layers.hashed_words import HashedWordDecoder, check_size


class BagOfWords(HashedWordDecoder, Decoder):
    """Decoder that draws each word independently.

    A word that the text's vector v contains is drawn from softmax(b). Any other word is drawn from
    softmax(W v + b).

    A word is a row of the table W, by its hash. Words that share a row are one word here, so memory
    is bounded and there is no vocabulary to store. Each probability belongs to a row. Initially,
    softmax(b) is the frequency of each row in the training texts, with one added to each count.
    """

    def __init__(self, width: int, size: int = 2000, attr: str = "NORM") -> None:
        super().__init__(size, attr)
        self.output = self.make_output(width)

    def forward(
        self, vectors: Tensor, shown: Tensor, words: Tensor, inside: Tensor, item: Tensor
    ) -> Tensor:
        rows = words.remainder(self.size)
        alone = self.output.bias.log_softmax(0)[rows]

        def log_probs(vectors: Tensor, shown: Tensor, item: Tensor) -> Tensor:
            scores = self.output(vectors)
            own = scores.gather(1, rows[item]) - scores.logsumexp(1, keepdim=True)
            each = (1 - shown) * own + shown * alone[item]
            return (each * inside[item]).sum(1)

        return self.in_parts(log_probs, vectors, shown, item)


def build_bag_of_words_v1(size: int = 2000, attr: str = "NORM") -> DecoderBuilder:
    """Return a builder of :class:`BagOfWords`.

    Args:
        size: number of rows of the table of words.
        attr: attribute of a token that identifies the word, such as "NORM", "LOWER" or "ORTH".
    """
    check_size("BagOfWords", size)
    return partial(BagOfWords, size=size, attr=attr)
