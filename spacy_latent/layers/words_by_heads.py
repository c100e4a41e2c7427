"""Decoder of words along the arcs of a tree (compare Zhang and Goldwasser 2020)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.generative import ArcDecoder, ArcDecoderBuilder
from spacy_latent.layers.hashed_words import HashedWordDecoder, check_size


class WordsByHeads(HashedWordDecoder, ArcDecoder):
    """Decoder that draws each word from softmax(W v + b), with v made of its head.

    v is computed from the decoder's own embedding of the head, which reads no other word. There is
    one layer for words before their head, and another for words after it. The root has an embedding
    of its own.

    A word is a row of both tables, by its hash. Words that share a row are one word here, as in
    BagOfWords. Initially, softmax(b) is the frequency of each row in the training texts, with one
    added to each count.
    """

    def __init__(self, width: int, size: int = 2000, attr: str = "NORM") -> None:
        super().__init__(size, attr)
        self.heads = nn.Embedding(size, width)
        self.root = nn.Parameter(torch.randn(width))
        self.before = nn.Linear(width, width)
        self.after = nn.Linear(width, width)
        self.output = self.make_output(width)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        place = torch.arange(words.shape[1], device=words.device)
        inside = place < lengths.to(words.device)[:, None]
        # Compute each different word of the batch once.
        used, own = words.remainder(self.size).unique(return_inverse=True)
        root = self.root.expand(1, -1)
        vectors = torch.cat([root, self.heads(used)])
        sides = torch.cat([self.before(vectors), self.after(vectors)]).tanh()

        def log_probs(sides: Tensor) -> Tensor:
            scores = self.output(sides)
            return scores[:, used] - scores.logsumexp(1, keepdim=True)

        table = self.in_parts(log_probs, sides)
        node = torch.arange(words.shape[1] + 1, device=words.device)
        heads = nn.functional.pad(own + 1, (1, 0))
        later = node[:, None] < node
        rows = heads[:, :, None] + torch.where(later, len(used) + 1, 0)
        columns = nn.functional.pad(own, (1, 0))
        each = table[rows, columns[:, None, :]]
        nodes = nn.functional.pad(inside, (1, 0), value=True)
        arcs = nodes[:, :, None] & nodes[:, None, :] & (node[:, None] != node) & (node > 0)
        return torch.where(arcs, each, 0.0)


def build_words_by_heads_v1(size: int = 2000, attr: str = "NORM") -> ArcDecoderBuilder:
    """Return a builder of :class:`WordsByHeads`.

    Args:
        size: number of rows of the tables of words.
        attr: attribute of a token that identifies the word, such as "NORM", "LOWER" or "SUFFIX".
    """
    check_size("WordsByHeads", size)
    return partial(WordsByHeads, size=size, attr=attr)
