"""Strides, threads and other items of the batch change no bit of the results of kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spacy_latent.structures.base import Structure
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from tests.structures.listed_sequences import random_bound


@pytest.mark.parametrize(
    ("structure", "shape", "longest"),
    [
        (LinearChain(), (40, 6, 6), 40),
        (TagSequence().bind(*(bound.float() for bound in random_bound(5))), (20, 5), 20),
        (SpanningTree(), (31, 31), 30),
    ],
    ids=lambda given: given.name if isinstance(given, Structure) else "",
)
def test_layout_threads_and_other_items_do_not_matter(
    structure: Structure,
    shape: tuple[int, ...],
    longest: int,
    set_threads: Callable[[int], None],
) -> None:
    torch.manual_seed(7)
    scores = torch.randn(*shape[::-1], 30).permute(*range(len(shape), -1, -1))
    lengths, vector = torch.randint(0, longest + 1, (30,)), torch.randn(scores.shape)
    results = []
    for threads, given in ((1, scores), (3, scores.contiguous())):
        set_threads(threads)
        leaf = given.clone().requires_grad_()
        marginals = structure.marginals(leaf, lengths)
        (product,) = torch.autograd.grad((marginals * vector).sum(), leaf)
        drawn = structure.sample(given, lengths, 2, torch.Generator().manual_seed(1))
        results.append((marginals, product, drawn, structure.map(given, lengths)))
    for one, many in zip(*results):
        assert torch.equal(one, many)
    alone = structure.marginals(scores[7:8], lengths[7:8])
    assert torch.equal(alone[0], results[0][0][7])
