"""Heads that merge their modifiers one by one, against the recursion as it is written."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.layers.gated_recursive_heads import (
    GatedRecursiveHeads,
    build_gated_recursive_heads_v1,
)
from spacy_latent.layers.shared_structures import share_merges
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree

LENGTHS = torch.tensor([7, 4, 1, 0])
ITEMS, SIZE, WIDTH = len(LENGTHS), 7, 5
COUNT = 6


def make(**options: int) -> GatedRecursiveHeads:
    torch.manual_seed(0)
    composer = build_gated_recursive_heads_v1(**options)(WIDTH).double()
    assert isinstance(composer, GatedRecursiveHeads)
    return composer


def drawn(scale: float = 1.0, crossing: bool = False) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    scores = scale * torch.randn(ITEMS, SIZE + 1, SIZE + 1, dtype=torch.float64)
    structure = SpanningTree() if crossing else ProjectiveTree()
    z = structure.sample(scores, LENGTHS, COUNT).flatten(0, 1)
    return z.double(), torch.arange(ITEMS).repeat(COUNT)


def tokens(requires_grad: bool = True) -> Tensor:
    torch.manual_seed(1)
    vectors = torch.randn(ITEMS, SIZE, WIDTH, dtype=torch.float64)
    return vectors.requires_grad_(requires_grad)


def as_written(composer: GatedRecursiveHeads, vectors: Tensor, z: Tensor, length: int) -> Tensor:
    """Compose one tree ``(n+1, n+1)`` over ``(n, width)``. Weights of arcs scale merges."""
    leaves = composer.cell.leaves(vectors)[0]

    def state(token: int) -> Tensor:
        own = leaves[token - 1]
        below = [m for m in range(1, length + 1) if z[token, m] > 0.5]
        right = [m for m in below if m > token]
        for m in right + [m for m in below if m < token][::-1]:
            halves = (own, state(m)) if m > token else (state(m), own)
            merged = composer.cell.merge(*((half, half[:0]) for half in halves))[0]
            own = own + z[token, m] * (merged - own)
        return own

    return torch.stack([state(token) for token in range(1, length + 1)])


@pytest.mark.parametrize("crossing", [False, True])
@pytest.mark.parametrize("scale", [0.1, 100.0])
def test_composed_as_written(scale: float, crossing: bool) -> None:
    composer, vectors, (z, item) = make(output_width=4), tokens(), drawn(scale, crossing)
    found = composer.compose_several(vectors, z, LENGTHS, item)
    assert found.shape == (len(z), SIZE, 4)
    wanted = [
        as_written(composer, vectors[i], one, int(LENGTHS[i])) if LENGTHS[i] else found[s, :0]
        for s, (one, i) in enumerate(zip(z, item))
    ]
    real = [part[: int(LENGTHS[i])] for part, i in zip(found, item)]
    for one, other in zip(real, wanted):
        torch.testing.assert_close(one, other)
    leaves = [vectors, *composer.parameters()]
    slopes = [
        torch.autograd.grad(torch.cat(parts).sin().sum(), leaves, retain_graph=True)
        for parts in (real, wanted)
    ]
    for one, other in zip(*slopes):
        torch.testing.assert_close(one, other)


def test_frozen_parameters_have_no_gradient_and_the_others_have_theirs() -> None:
    composer, vectors, (z, item) = make(), tokens(), drawn()
    learned = [vectors, *composer.cell.gates.parameters()]
    slopes = []
    for frozen in (False, True):
        for parameter in composer.parameters():
            parameter.requires_grad_(not frozen)
        composer.cell.gates.requires_grad_()
        made = composer.compose_several(vectors, z, LENGTHS, item)
        slopes.append(torch.autograd.grad(made.sin().sum(), learned))
    for one, other in zip(*slopes):
        torch.testing.assert_close(one, other)


def test_arcs_with_a_gradient_weigh() -> None:
    composer, vectors, (z, _) = make(), tokens(requires_grad=False), drawn()
    z = z[:ITEMS].requires_grad_()
    found = composer(vectors, z, LENGTHS)[0]
    wanted = as_written(composer, vectors[0], z[0], SIZE)
    torch.testing.assert_close(found, wanted)
    slopes = [torch.autograd.grad(made.sin().sum(), z)[0] for made in (found, wanted)]
    torch.testing.assert_close(*slopes)
    assert bool(slopes[0].any())


def test_what_trees_have_in_common_is_merged_once() -> None:
    heads = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 3], [0, 1, 1, 1]])
    z = torch.zeros(3, 5, 5).scatter_(1, torch.nn.functional.pad(heads, (1, 0))[:, None], 1.0)
    z[:, :, 0] = 0.0
    lengths, same = torch.tensor([4, 4, 4]), torch.zeros(3, dtype=torch.int64)
    shared = share_merges(z, lengths, 1, same)
    # Two trees have (1 2), ((1 2) 3) and (((1 2) 3) 4). The other has (1 2), (3 4) and ((1 2) (3
    # 4)).
    assert shared.sizes == [2, 2, 1] and torch.equal(shared.result[0], shared.result[2])
    assert shared.result[1, 0] != shared.result[0, 0]
    assert sum(share_merges(z, lengths, 3, None).sizes) == 9
    assert sum(share_merges(z.requires_grad_(), lengths, 1, same).sizes) == 9


def test_what_is_no_tree_is_refused() -> None:
    cyclic, soft = torch.zeros(2, 1, 3, 3)
    cyclic[0, 1, 2] = cyclic[0, 2, 1] = 1.0
    soft[0, 0, 1], soft[0, 2, 1], soft[0, 0, 2] = 0.5, 0.5, 1.0
    for z in (cyclic, soft):
        with pytest.raises(LatentError, match="dependency"):
            make()(torch.zeros(1, 2, WIDTH).double(), z.double(), torch.tensor([2]))
    with pytest.raises(LatentError, match="hidden_width"):
        build_gated_recursive_heads_v1(hidden_width=0)


def test_no_items() -> None:
    z = torch.zeros(0, SIZE + 1, SIZE + 1).double()
    assert make()(tokens()[:0], z, LENGTHS[:0]).shape == (0, SIZE, WIDTH)
