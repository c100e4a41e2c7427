"""Shared compositions, whose values and gradients must equal those of separate compositions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError
from spacy_latent.kernels.core import pool
from spacy_latent.layers.base import Composer
from spacy_latent.layers.binary_tree_lstm import (
    BinaryTreeComposer,
    Output,
    State,
    build_binary_tree_lstm_v1,
)
from spacy_latent.layers.chart_tree_lstm import build_chart_tree_lstm_v1
from spacy_latent.layers.gated_recursive_heads import build_gated_recursive_heads_v1
from spacy_latent.layers.gated_recursive_tree import (
    build_gated_recursive_tree_v1,
    build_merge_gated_recursive_tree_v1,
)
from spacy_latent.layers.graph_convolution import build_graph_convolution_v1
from spacy_latent.layers.merge_tree_lstm import build_merge_tree_lstm_v1
from spacy_latent.layers.recursive_message_passing import (
    MAX_ROUNDS,
    RecursiveMessagePassing,
    depth,
)
from spacy_latent.layers.shared_structures import share_equals, share_subtrees
from spacy_latent.structures.base import Structure
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.independent_heads import IndependentHeads
from spacy_latent.structures.merge_sequence import MergeSequence
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree

LENGTHS = torch.tensor([9, 7, 4, 1, 0])
ITEMS, SIZE, WIDTH = len(LENGTHS), 9, 6
COUNT = 6


def drawn(scale: float) -> tuple[Tensor, Tensor]:
    """Return trees ``(S, 10, 10)``, and the item of each. A larger scale gives more equal trees."""
    torch.manual_seed(3)
    scores = scale * torch.randn(ITEMS, SIZE + 1, SIZE + 1)
    z = ProjectiveTree(single_root=True).sample(scores, LENGTHS, COUNT).flatten(0, 1)
    return z, torch.arange(ITEMS).repeat(COUNT)


def as_written(composer: RecursiveMessagePassing, vectors: Tensor, z: Tensor) -> Tensor:
    """Run RecursiveMessagePassing by its formula, round by round over all arcs."""
    arcs = z[:, 1:, 1:].to(vectors.dtype)
    below = state = composer.input(vectors)
    levels = depth(z)
    for done in range(composer.rounds or int(levels.max())):
        received = arcs @ composer.message(state)
        new = composer.norm(composer.update(torch.cat([below, received], -1)))
        going_on = (levels > done)[:, None, None]
        state = new if composer.rounds else torch.where(going_on, new, state)
    return state


def compare(
    composer: Composer, wanted: Tensor, found: Tensor, vectors: Tensor, item: Tensor
) -> None:
    """Compare the values at the tokens, and the gradients of a weighted sum of them."""
    inside = (torch.arange(SIZE) < LENGTHS[:, None])[item]
    torch.testing.assert_close(found[inside], wanted[inside])
    weight = torch.randn_like(wanted) * inside[..., None]
    leaves = [vectors, *composer.parameters()]
    slopes = [
        torch.autograd.grad((weight * made).sum(), leaves, allow_unused=True)
        for made in (wanted, found)
    ]
    for one, other in zip(*slopes):
        if one is None or other is None:
            assert one is None or not one.any()
            assert other is None or not other.any()
        else:
            torch.testing.assert_close(other, one)


@pytest.mark.parametrize("rounds", [1, 2, 4, None])
@pytest.mark.parametrize("scale", [0.1, 4.0, 100.0])
def test_shared_subtrees_are_composed_as_each_alone(rounds: int | None, scale: float) -> None:
    torch.manual_seed(0)
    composer = RecursiveMessagePassing(WIDTH, 5, rounds).double()
    vectors = torch.randn(ITEMS, SIZE, WIDTH, dtype=torch.float64, requires_grad=True)
    z, item = drawn(scale)
    wanted = as_written(composer, vectors[item], z)
    found = composer.compose_several(vectors, z, LENGTHS, item)
    compare(composer, wanted, found, vectors, item)


@pytest.mark.parametrize("rounds", [1, 2])
def test_one_long_text_among_short_ones(rounds: int) -> None:
    """Most positions are padding, so there are fewer states than positions."""
    composer = RecursiveMessagePassing(WIDTH, 5, rounds).double()
    lengths = torch.tensor([1, 1, 1, SIZE])
    vectors = torch.randn(len(lengths), SIZE, WIDTH, dtype=torch.float64)
    scores = torch.randn(len(lengths), SIZE + 1, SIZE + 1)
    z = ProjectiveTree().map(scores, lengths)
    inside = torch.arange(SIZE) < lengths[:, None]
    found, wanted = composer(vectors, z, lengths), as_written(composer, vectors, z)
    torch.testing.assert_close(found[inside], wanted[inside])


@pytest.mark.parametrize("rounds", [1, 3, None])
def test_soft_trees_are_composed_as_written(rounds: int | None) -> None:
    torch.manual_seed(0)
    composer = RecursiveMessagePassing(WIDTH, None, rounds).double()
    vectors = torch.randn(ITEMS, SIZE, WIDTH, dtype=torch.float64, requires_grad=True)
    scores = 2 * torch.randn(ITEMS, SIZE + 1, SIZE + 1, dtype=torch.float64)
    z = SpanningTree().marginals(scores, LENGTHS).requires_grad_()
    wanted, found = as_written(composer, vectors, z), composer(vectors, z, LENGTHS)
    inside = torch.arange(SIZE) < LENGTHS[:, None]
    slopes = [
        torch.autograd.grad(made[inside].square().sum(), z, retain_graph=True)[0]
        for made in (wanted, found)
    ]
    torch.testing.assert_close(*slopes)
    compare(composer, wanted, found, vectors, torch.arange(ITEMS))


def test_every_subtree_is_one_state() -> None:
    heads = torch.tensor([[2, 0, 2, 3], [2, 0, 2, 3], [0, 1, 2, 3]])
    z = torch.zeros(3, 5, 5).scatter_(1, nn.functional.pad(heads, (1, 0))[:, None], 1.0)
    z[:, :, 0] = 0.0
    lengths = torch.tensor([4, 4, 4])
    shared = share_subtrees(z, lengths, 1, torch.tensor([0, 0, 0]), MAX_ROUNDS, False)
    assert shared is not None and not shared.own
    # The first two trees have the leaves 1 and 4, then 3 over 4, and 2 over both. The third has
    # another order above 3 over 4.
    assert [len(round_.place) for round_ in shared.rounds] == [2, 1, 2, 1]
    assert torch.equal(shared.result[0], shared.result[1])
    assert shared.result[0, 2] == shared.result[2, 2]
    apart = share_subtrees(z, lengths, 3, None, MAX_ROUNDS, False)
    assert apart is not None
    assert sum(len(round_.place) for round_ in apart.rounds) == 12
    # With one round each token receives only the initial states of its modifiers.
    once = share_subtrees(z, lengths, 1, torch.tensor([0, 0, 0]), 1, True)
    assert once is not None and once.own and len(once.rounds) == 1


BINARY = {
    "BinaryTreeLstm": build_binary_tree_lstm_v1,
    "GatedRecursiveTree": build_gated_recursive_tree_v1,
    "MergeTreeLstm": build_merge_tree_lstm_v1,
    "MergeGatedRecursiveTree": build_merge_gated_recursive_tree_v1,
}


@pytest.mark.parametrize("output", ["root", "constituents"])
@pytest.mark.parametrize("scale", [0.1, 4.0, 100.0])
@pytest.mark.parametrize("name", BINARY)
def test_binary_trees_of_an_item_are_composed_as_each_alone(
    name: str, scale: float, output: Output
) -> None:
    torch.manual_seed(0)
    composer = BINARY[name](output_width=5, output=output)(WIDTH).double()
    vectors = torch.randn(ITEMS, SIZE, WIDTH, dtype=torch.float64, requires_grad=True)
    steps = SIZE - 1 if name.startswith("Merge") else SIZE
    structure = MergeSequence() if name.startswith("Merge") else ConstituencyTree()
    z = structure.sample(scale * torch.randn(ITEMS, steps, steps), LENGTHS, COUNT).flatten(0, 1)
    item = torch.arange(ITEMS).repeat(COUNT)
    with counted(composer) as composed:
        found = composer.compose_several(vectors, z, LENGTHS, item)
    once = sum(composed)
    with counted(composer) as composed:
        wanted = composer(vectors[item], z, LENGTHS[item])
    assert once < sum(composed) == int((LENGTHS - 1).clamp_min(0).sum()) * COUNT
    compare(composer, wanted, found, vectors, item)


@contextmanager
def counted(composer: Composer) -> Iterator[list[int]]:
    """Count the pairs that each call of the cell merges."""
    assert isinstance(composer, BinaryTreeComposer)
    merge, counts = composer.merge, []

    def counting(left: State, right: State) -> State:
        counts.append(len(left[0]))
        return merge(left, right)

    composer.__dict__["merge"] = counting
    yield counts
    del composer.__dict__["merge"]


def test_soft_charts_and_spans_with_a_gradient_are_not_shared() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(ITEMS, SIZE, WIDTH, dtype=torch.float64)
    scores = torch.randn(ITEMS, SIZE, SIZE, dtype=torch.float64)
    item = torch.arange(ITEMS).repeat(2)
    marginals = ConstituencyTree().marginals(scores, LENGTHS).repeat(2, 1, 1)
    chart = build_chart_tree_lstm_v1()(WIDTH).double()
    inside = (torch.arange(SIZE) < LENGTHS[:, None])[item]
    found = chart.compose_several(vectors, marginals, LENGTHS, item)
    torch.testing.assert_close(
        found[inside], chart(vectors[item], marginals, LENGTHS[item])[inside]
    )
    z = ConstituencyTree().map(scores, LENGTHS).repeat(2, 1, 1).requires_grad_()
    composer = build_binary_tree_lstm_v1()(WIDTH).double()
    composer.compose_several(vectors, z, LENGTHS, item)[inside].sum().backward()
    assert z.grad is not None and bool(z.grad.any())


@pytest.mark.parametrize("rounds", [1, 4, None])
def test_cycles_are_composed_as_written(rounds: int | None) -> None:
    """The part under the root determines the number of rounds unless the composer fixes it."""
    torch.manual_seed(0)
    composer = RecursiveMessagePassing(WIDTH, 5, rounds).double()
    vectors = torch.randn(ITEMS, SIZE, WIDTH, dtype=torch.float64, requires_grad=True)
    scores = torch.randn(ITEMS, SIZE + 1, SIZE + 1)
    scores[:, 0] += 2.0
    z = IndependentHeads().sample(scores, LENGTHS, COUNT).flatten(0, 1)
    item = torch.arange(ITEMS).repeat(COUNT)
    levels = torch.tensor([levels_by_walking(one, int(LENGTHS[i])) for one, i in zip(z, item)])
    assert torch.equal(depth(z), levels.clamp_min(1)) and len(levels.unique()) > 3
    shared = share_subtrees(z, LENGTHS[item], ITEMS, item, rounds or MAX_ROUNDS, rounds is not None)
    assert shared is not None
    wanted = as_written(composer, vectors[item], z)
    compare(composer, wanted, composer.compose_several(vectors, z, LENGTHS, item), vectors, item)
    hard = z.double().requires_grad_()
    wanted = as_written(composer, vectors[item], z)
    compare(composer, wanted, composer(vectors[item], hard, LENGTHS[item]), vectors, item)


def levels_by_walking(z: Tensor, length: int) -> int:
    heads = z.argmax(0).tolist()
    longest = 0
    for token in range(1, length + 1):
        steps = 0
        while token and steps <= length:
            token, steps = heads[token], steps + 1
        longest = max(longest, steps if token == 0 else 0)
    return longest


def test_only_hard_structures_of_one_head_are_shared() -> None:
    lengths = torch.tensor([2])
    two_heads, soft = torch.zeros(2, 1, 3, 3)
    two_heads[0, 0, 1] = two_heads[0, 2, 1] = two_heads[0, 0, 2] = 1.0
    soft[0, 0, 1], soft[0, 2, 1], soft[0, 0, 2] = 0.5, 0.5, 1.0
    for z in (two_heads, soft):
        assert share_subtrees(z, lengths, 1, None, 4, True) is None
    forest = torch.zeros(1, 3, 3)
    forest[0, 1, 2] = 1.0
    assert share_subtrees(forest, lengths, 1, None, 4, True) is not None
    assert share_subtrees(forest.requires_grad_(), lengths, 1, None, 4, True) is None


def test_padding_is_not_read() -> None:
    z, item = drawn(1.0)
    composer = RecursiveMessagePassing(WIDTH, None, 3)
    vectors = torch.randn(ITEMS, SIZE, WIDTH)
    outside = torch.arange(SIZE + 1) > LENGTHS[item][:, None]
    dirty = z.masked_fill(outside[:, :, None] | outside[:, None, :], torch.nan)
    inside = (torch.arange(SIZE) < LENGTHS[:, None])[item]
    clean = composer.compose_several(vectors, z, LENGTHS, item)[inside]
    assert torch.equal(composer.compose_several(vectors, dirty, LENGTHS, item)[inside], clean)


def test_equal_structures_are_composed_once() -> None:
    composer = build_graph_convolution_v1()(WIDTH).double()
    vectors = torch.randn(ITEMS, SIZE, WIDTH, dtype=torch.float64, requires_grad=True)
    z, item = drawn(100.0)
    shared = share_equals(z, ITEMS, item)
    assert shared is not None
    first, kind = shared
    assert len(first) == len({(int(i), tuple(one.flatten().tolist())) for i, one in zip(item, z)})
    assert torch.equal(z[first][kind], z) and torch.equal(item[first][kind], item)
    assert torch.equal(first, first.sort().values)
    wanted = composer(vectors[item], z, LENGTHS[item])
    found = composer.compose_several(vectors, z, LENGTHS, item)
    compare(composer, wanted, found, vectors, item)
    # Different items share nothing, and neither do rows with separate gradients.
    assert share_equals(z[:ITEMS], ITEMS, item[:ITEMS]) is None
    assert share_equals(z.requires_grad_(), ITEMS, item) is None


def test_dropout_is_drawn_for_each_structure() -> None:
    class Dropping(Composer):
        output_width = WIDTH

        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
            return self.dropout(vectors)

    composer, (z, item) = Dropping(), drawn(100.0)
    vectors = torch.ones(ITEMS, SIZE, WIDTH)
    made = composer.compose_several(vectors, z, LENGTHS, item)
    assert len({tuple(one.flatten().tolist()) for one in made[item == 0]}) > 1
    composer.eval()
    assert torch.equal(composer.compose_several(vectors, z, LENGTHS, item), vectors[item])


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_threads_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
    set_threads: Callable[[int], None],
    several: bool,
    soft: bool,
) -> None:
    """Three ranges of items on three threads give the results of one range.

    A second run, and a run on one thread, change no bit.
    """
    torch.manual_seed(0)
    composer = RecursiveMessagePassing(WIDTH, None, 3).double()
    vectors = torch.randn(ITEMS, SIZE, WIDTH, dtype=torch.float64, requires_grad=True)
    z, item = drawn(1.0)
    if soft:
        z = 0.5 * z
    if not several:
        z, item = z[:ITEMS], item[:ITEMS]
    arguments = (vectors, z, LENGTHS, item if several else None)
    alone = composer.compose_range(*arguments)
    monkeypatch.setattr(pool, "RANGE_NANOSECONDS", 1)
    monkeypatch.setattr(pool, "MOST_RANGES", 3)
    set_threads(3)
    monkeypatch.setattr(pool, "SERIAL_NANOSECONDS", 1)
    together = composer.compose_several(*arguments)
    assert "_ParallelFunction" in str(_history(together))
    compare(composer, alone, together, vectors, item)
    slopes = []
    for threads in (3, 3, 1):
        set_threads(threads)
        with pool.one_torch_thread():
            made = composer.compose_several(*arguments)
            slopes.append(torch.autograd.grad(made.square().sum(), [*composer.parameters()]))
    # The ranges are the same on one thread, and so is the order in which they are summed.
    assert all(torch.equal(*pair) for pair in zip(slopes[0], slopes[1]))
    assert all(torch.equal(*pair) for pair in zip(slopes[0], slopes[2]))
    inside = (torch.arange(SIZE) < LENGTHS[:, None])[item]
    with torch.no_grad():
        predicted = composer.compose_several(*arguments)
    torch.testing.assert_close(predicted[inside], alone[inside])


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch, set_threads: Callable[[int], None]) -> None:
    """Use three threads for any amount of work."""
    monkeypatch.setattr(pool, "RANGE_NANOSECONDS", 1)
    monkeypatch.setattr(pool, "MOST_RANGES", 3)
    monkeypatch.setattr(pool, "SERIAL_NANOSECONDS", 1)
    set_threads(3)


def test_autocast_holds_for_all_items(three_threads: None) -> None:
    composer = build_graph_convolution_v1()(WIDTH)
    z = torch.zeros(ITEMS, SIZE + 1, SIZE + 1)
    arguments = (torch.randn(ITEMS, SIZE, WIDTH), z, LENGTHS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(composer.compose_several(*arguments), composer(*arguments))


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize(
    "composer, structure, room",
    [
        (build_binary_tree_lstm_v1()(WIDTH), ConstituencyTree(), SIZE),
        (build_gated_recursive_heads_v1()(WIDTH), ProjectiveTree(), SIZE + 1),
    ],
    ids=["BinaryTreeLstm", "GatedRecursiveHeads"],
)
def test_gradients_of_shared_trees_under_autocast(
    composer: Composer, structure: Structure, room: int, inside: bool
) -> None:
    """The backward pass repeats rounds under the autocast state of the forward pass.

    torch may ask for gradients outside of autocast.
    """
    torch.manual_seed(0)
    z = structure.sample(torch.randn(ITEMS, room, room), LENGTHS, COUNT).flatten(0, 1)
    item = torch.arange(ITEMS).repeat(COUNT)
    vectors = torch.randn(ITEMS, SIZE, WIDTH, requires_grad=True)
    wanted, up = [vectors, *composer.parameters()], torch.randn(len(item), SIZE, WIDTH)

    def gradients(half: bool) -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            total = (composer.compose_several(vectors, z, LENGTHS, item) * up).sum()
            if inside:
                return list(torch.autograd.grad(total, wanted))
        return list(torch.autograd.grad(total, wanted))

    for found, expected in zip(gradients(True), gradients(False)):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=0.0, atol=0.05 * float(expected.norm()))


def test_gradients_of_several_threads_are_there_once(three_threads: None) -> None:
    composer = build_graph_convolution_v1()(WIDTH)
    vectors = torch.randn(ITEMS, SIZE, WIDTH, requires_grad=True)
    made = composer.compose_several(vectors, torch.zeros(ITEMS, SIZE + 1, SIZE + 1), LENGTHS).sum()
    torch.autograd.grad(made, vectors, retain_graph=True)
    with pytest.raises(LatentError, match="Compose"):
        torch.autograd.grad(made, vectors)


@pytest.mark.parametrize("failing", [0, ITEMS - 1])
def test_errors_of_any_thread_are_raised(three_threads: None, failing: int) -> None:
    class Failing(Composer):
        output_width = WIDTH

        def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
            if bool((lengths == LENGTHS[failing]).any()):
                raise ValueError("of one item")
            return vectors

    vectors, z = torch.zeros(ITEMS, SIZE, WIDTH), torch.zeros(ITEMS, SIZE + 1, SIZE + 1)
    for _ in range(3):
        with pytest.raises(ValueError, match="item"):
            Failing().compose_several(vectors, z, LENGTHS)
    made = build_graph_convolution_v1()(WIDTH).compose_several(vectors, z, LENGTHS)
    assert made.shape == vectors.shape


def _history(tensor: Tensor) -> list[str]:
    """Return the names of the operations that computed a tensor."""
    seen, left = [], [tensor.grad_fn]
    while left:
        node = left.pop()
        if node is not None:
            seen.append(type(node).__name__)
            left += [function for function, _ in node.next_functions]
    return seen
