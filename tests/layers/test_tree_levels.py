"""Composition from the leaves up: the same as rounds over all tokens, for every tree."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_latent.layers.recursive_message_passing import MAX_ROUNDS, RecursiveMessagePassing
from spacy_latent.layers.tree_levels import tree_levels
from spacy_latent.structures.spanning_tree import SpanningTree

WIDTH = 5


def arcs(heads: list[list[int]]) -> torch.Tensor:
    """0/1 arcs ``(B, n+1, n+1)`` of trees of several lengths."""
    size = max(map(len, heads)) + 1
    z = torch.zeros(len(heads), size, size)
    for own, row in zip(z, heads):
        own[row, range(1, len(row) + 1)] = 1.0
    return z


def test_levels_of_two_trees() -> None:
    tree = tree_levels(arcs([[2, 0, 2, 3], [0, 1]]))
    assert tree is not None
    assert tree.sizes == [2, 3, 1]
    assert tree.order.tolist() == [1, 4, 0, 2, 5, 3]
    assert [parents.tolist() for parents in tree.parents[1:]] == [[0, 0, 1], [1]]


@pytest.mark.parametrize("heads", [[[2, 1, 0]], [[0, 3, 2]], [[1]]])
def test_cycles_are_no_trees(heads: list[list[int]]) -> None:
    assert tree_levels(arcs(heads)) is None


def test_two_heads_are_no_tree() -> None:
    z = arcs([[0, 1, 2]])
    z[0, 1, 3] = 1.0
    assert tree_levels(z) is None


@pytest.mark.parametrize("rounds", [None, 3])
@given(
    seed=st.integers(0, 10_000),
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=4).map(lambda own: [*own, 3]),
)
@settings(max_examples=40, deadline=None)
def test_bottom_up_is_what_rounds_give(rounds: int | None, seed: int, sizes: list[int]) -> None:
    torch.manual_seed(seed)
    sizes = [*sizes, 3]
    longest = max(sizes)
    lengths = torch.tensor(sizes)
    scores = torch.randn(len(sizes), longest + 1, longest + 1)
    z = SpanningTree().map(scores, lengths)
    composer = RecursiveMessagePassing(WIDTH, None, rounds).double()
    vectors = torch.randn(len(sizes), longest, WIDTH, dtype=torch.float64, requires_grad=True)
    inside = (torch.arange(longest) < lengths[:, None])[..., None]

    def run(z: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        made = torch.where(inside, composer(vectors, z, lengths), 0.0)
        leaves = [vectors, *composer.parameters()]
        found = torch.autograd.grad((made**3).sum(), leaves, allow_unused=True)
        return made, [torch.zeros(()) if each is None else each for each in found]

    made, gradients = run(z)
    # With a gradient for z there are rounds.
    expected, others = run(z.clone().requires_grad_())
    torch.testing.assert_close(made, expected)
    for one, other in zip(gradients, others):
        torch.testing.assert_close(one.expand_as(other), other)


def test_trees_of_more_levels_than_rounds_are_cut_as_before() -> None:
    chain = arcs([list(range(6))])
    composer = RecursiveMessagePassing(WIDTH, None, 2)
    vectors = torch.randn(1, 6, WIDTH)
    made = composer(vectors, chain, torch.tensor([6]))
    changed = vectors.clone()
    changed[0, 3:] += 1.0
    again = composer(changed, chain, torch.tensor([6]))
    # Two rounds bring a token what its child has, and no more.
    torch.testing.assert_close(made[0, 0], again[0, 0])
    assert not torch.allclose(made[0, 2], again[0, 2])


def test_soft_and_cyclic_graphs_go_round_by_round() -> None:
    composer = RecursiveMessagePassing(WIDTH, None, None)
    vectors = torch.randn(1, 3, WIDTH)
    for z in (0.5 * arcs([[0, 1, 2]]), arcs([[2, 1, 0]])):
        made = composer(vectors, z, torch.tensor([3]))
        assert torch.isfinite(made).all()


def test_a_chain_longer_than_the_most_rounds_stays_cut() -> None:
    size = MAX_ROUNDS + 3
    chain = arcs([list(range(size))])
    composer = RecursiveMessagePassing(WIDTH, None, None)
    vectors = torch.randn(1, size, WIDTH)
    made = composer(vectors, chain, torch.tensor([size]))
    changed = vectors.clone()
    changed[0, -1] += 1.0
    again = composer(changed, chain, torch.tensor([size]))
    torch.testing.assert_close(made[0, 0], again[0, 0])
