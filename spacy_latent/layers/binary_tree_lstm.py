"""Hard constituency trees composed from the leaves up.

The cell is a Tree-LSTM (Tai et al. 2015, section 3.2, with N = 2) or another one.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError
from spacy_latent.kernels.autograd.tracing import refuse_transforms
from spacy_latent.layers.base import Composer, ComposerBuilder, check_output_width, drops
from spacy_latent.layers.recursion import Recursion
from spacy_latent.layers.shared_structures import Merges, distinct_pairs

Output = Literal["constituents", "root"]


State = tuple[Tensor, Tensor]


class BinaryTreeComposer(Composer):
    """Composer of binary trees from the leaves up.

    The ``output`` determines the vector of each token. A subclass defines the states of leaves, and
    the composition of two halves. A state has a hidden part, which is part of the result, and a
    memory, of any width or none.

    One batched step handles each level of all trees, from the deepest, over the nodes of that
    level. Time and memory are O(n·output_width) for a tree, whatever its depth. A state is
    multiplied by its z before it enters the node above it. So surrogate estimators get a gradient
    at z for the spans of the tree. It is 0 for other spans, which have no state. Spans of one token
    in z have no effect. If z needs no gradient, equal subtrees of several trees of an item are
    composed once.

    Args:
        output: "constituents" for the state of the token's leaf, plus the mean of the states of the
            spans of two and more tokens that contain it, including the whole sentence. "root" for
            the state of the whole sentence: a text classifier then reads nothing else, whatever its
            reduction.
    """

    parts = "spans"
    requires_hard = True

    def __init__(
        self, width: int, output_width: int | None, output: Output = "constituents"
    ) -> None:
        super().__init__()
        self.output: Output = output
        self.output_width = output_width or width

    @abstractmethod
    def leaves(self, vectors: Tensor) -> State:
        """Return hidden state and memory of a leaf for each vector ``(..., width)``."""

    @abstractmethod
    def merge(self, left: State, right: State) -> State:
        """Return hidden state and memory of a node, each ``(..., size)``, from its halves."""

    def spans_of(self, z: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """Return the trees ``(S, n, n)`` [first, last] over n = ``longest`` places."""
        return z

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        trees = self.spans_of(z, lengths, vectors.shape[1])
        spans = read_spans(trees, lengths)
        leaf_hidden, leaf_cell = self.leaves(vectors)
        hidden, _ = self.states(spans, trees, leaf_hidden.flatten(0, 1), leaf_cell.flatten(0, 1))
        nodes = torch.arange(len(hidden), device=z.device)
        return self._of_tokens(spans, lengths, leaf_hidden, hidden, nodes)

    def compose_range(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None
    ) -> Tensor:
        alone = item is None or len(z) <= len(vectors)
        if alone or z.requires_grad or not self.requires_hard or drops(self):
            return super().compose_range(vectors, z, lengths, item)
        assert item is not None
        of_each = lengths[item]
        trees = self.spans_of(z, of_each, vectors.shape[1])
        spans = read_spans(trees, of_each)
        leaf_hidden, leaf_cell = self.leaves(vectors)
        (hidden, _), nodes = self.shared_states(spans, item, leaf_hidden, leaf_cell)
        return self._of_tokens(spans, of_each, leaf_hidden[item], hidden, nodes)

    def _of_tokens(
        self, spans: Spans, lengths: Tensor, leaves: Tensor, states: Tensor, nodes: Tensor
    ) -> Tensor:
        """Return the vectors of the tokens.

        Args:
            leaves: ``(S, n, output_width)``.
            nodes: ``(S · 2n,)`` int64, the state of each node; any number if there is no node.
        """
        batch, longest, _ = leaves.shape
        if self.output == "root" and longest:
            root = 2 * longest * torch.arange(batch, device=nodes.device)
            whole = spans.first + spans.last == lengths.to(nodes.device)[spans.item] - 1
            whole &= spans.first == 0
            root[spans.item[whole]] = spans.node[whole]
            return states[nodes[root]][:, None].expand(-1, longest, -1)
        token = torch.arange(longest, device=nodes.device)
        contains = leaves.new_zeros(batch * 2 * longest, longest)
        contains[spans.node] = (
            (spans.first[:, None] <= token) & (token <= spans.last[:, None])
        ).to(contains.dtype)
        shape = (batch, 2 * longest)
        above = states[nodes.unflatten(0, shape)[:, longest:]]
        return add_constituents(leaves, above, contains.unflatten(0, shape)[:, longest:])

    def shared_states(
        self, spans: Spans, item: Tensor, hidden: Tensor, cell: Tensor
    ) -> tuple[State, Tensor]:
        """Return the states of the different subtrees of S trees, and the state of each node.

        Trees get no gradient.

        Args:
            item: ``(S,)`` int64, the item whose leaves each tree has.

        Returns:
            Hidden states and cells, with the leaves ``(B, n, size)`` first; and the state's number
            for each of the ``(S · 2n)`` nodes.
        """
        merges, nodes = share_halves(spans, item, hidden.shape[1], len(hidden))
        size = hidden.shape[-1]
        leaves = torch.cat([hidden, cell], -1).flatten(0, 1)

        def merge(left: Tensor, right: Tensor) -> Tensor:
            made = self.merge((left[:, :size], left[:, size:]), (right[:, :size], right[:, size:]))
            return torch.cat(made, -1)

        refuse_transforms(type(self).__name__, leaves)
        states = Recursion.apply(merge, merges, leaves, None, *self.parameters())
        return (states[:, :size], states[:, size:]), nodes

    def states(self, spans: Spans, z: Tensor, hidden: Tensor, cell: Tensor) -> State:
        """Return hidden states and cells ``(B · 2n, size)`` of all nodes.

        They are composed from the leaves' ``(B · n, size)``, and zero if there is no node.
        """
        longest = z.shape[-1]
        weight = z[spans.item, spans.first, spans.last].to(hidden.dtype).unsqueeze(-1)
        leaves = _by_level(spans.leaf_depth, 1 + spans.levels)
        inner = _by_level(spans.depth, 1 + spans.levels)
        place = torch.zeros(2 * len(hidden), dtype=torch.int64, device=z.device)
        nodes: list[Tensor] = []
        states: list[Tensor] = []
        cells: list[Tensor] = []
        for level in range(spans.levels, -1, -1):
            # A level has first its leaves, then its spans. The halves of its spans are on the level
            # below.
            leaf, span = leaves[level], inner[level]
            row = spans.leaf_item[leaf] * longest + spans.leaf_token[leaf]
            state, memory = hidden[row], cell[row]
            if len(span):
                left, right = place[spans.left[span]], place[spans.right[span]]
                below, kept = states[-1], cells[-1]
                made = self.merge((below[left], kept[left]), (below[right], kept[right]))
                state = torch.cat([state, (weight[span] * made[0]).to(state.dtype)])
                memory = torch.cat([memory, (weight[span] * made[1]).to(memory.dtype)])
            node = torch.cat([row + spans.leaf_item[leaf] * longest, spans.node[span]])
            place[node] = torch.arange(len(node), device=z.device)
            nodes.append(node)
            states.append(state)
            cells.append(memory)
        node, (state, memory) = torch.cat(nodes), (torch.cat(states), torch.cat(cells))
        blank = hidden.new_zeros(2 * len(hidden), hidden.shape[1])
        blank_cell = cell.new_zeros(2 * len(cell), cell.shape[1])
        return blank.index_copy(0, node, state), blank_cell.index_copy(0, node, memory)


class BinaryTreeLstm(BinaryTreeComposer):
    """:class:`BinaryTreeComposer` with the cell of a Tree-LSTM."""

    def __init__(
        self, width: int, output_width: int | None, output: Output = "constituents"
    ) -> None:
        super().__init__(width, output_width, output)
        size = self.output_width
        self.leaf = nn.Linear(width, 3 * size)
        self.gates = nn.Linear(2 * size, 5 * size)

    def leaves(self, vectors: Tensor) -> State:
        i, o, u = self.leaf(vectors).chunk(3, -1)
        cell = torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(cell), cell

    def merge(self, left: State, right: State) -> State:
        i, o, u, f, g = self.gates(torch.cat([left[0], right[0]], -1)).chunk(5, -1)
        cell = (
            torch.sigmoid(i) * torch.tanh(u)
            + torch.sigmoid(f) * left[1]
            + torch.sigmoid(g) * right[1]
        )
        return torch.sigmoid(o) * torch.tanh(cell), cell


def add_constituents(leaves: Tensor, above: Tensor, contains: Tensor) -> Tensor:
    """Add to the state of each leaf the mean of the states of the spans around it.

    Args:
        leaves: ``(B, n, d)``, states of the leaves.
        above: ``(B, m, d)``, states of spans.
        contains: ``(B, m, n)``, 1 if the span has the token.

    Returns:
        ``(B, n, d)``.
    """
    return leaves + contains.transpose(1, 2) @ above / contains.sum(1).clamp_min(1).unsqueeze(2)


def _by_level(depth: Tensor, levels: int) -> list[Tensor]:
    """Return the indices of the entries of each depth."""
    return list(depth.argsort().split(torch.bincount(depth, minlength=levels).tolist()))


def node_places(spans: Spans, z: Tensor) -> Tensor:
    """Return the place of each span [first, last] among the ``(B, 2n)`` nodes.

    Places of single words are on the diagonal. Entries are 0 for spans that are not in the tree.

    Args:
        spans: the spans of two and more tokens of the trees.
        z: ``(B, n, n)``, trees.

    Returns:
        ``(B, n, n)`` int64.
    """
    longest = z.shape[-1]
    token = torch.arange(longest, device=z.device)
    base = 2 * longest * torch.arange(len(z), device=z.device)
    places = torch.diag_embed(base[:, None] + token)
    places[spans.item, spans.first, spans.last] = spans.node
    return places


@dataclass
class Spans:
    """The S spans of two and more tokens of a batch of trees.

    Attributes are tensors ``(S,)`` int64.

    Attributes:
        item, first, last: indices of the span in z.
        node, left, right: places of the span and of its halves in ``(B, 2n)`` nodes, flattened.
        depth: number of spans around it.
        leaf_item, leaf_token, leaf_depth: item, index and depth of each token.
        levels: the greatest depth of a token.
    """

    item: Tensor
    first: Tensor
    last: Tensor
    node: Tensor
    left: Tensor
    right: Tensor
    depth: Tensor
    leaf_item: Tensor
    leaf_token: Tensor
    leaf_depth: Tensor
    levels: int


def read_spans(z: Tensor, lengths: Tensor) -> Spans:
    """Return the spans of hard trees ``(B, n, n)``.

    The place of a span is the last token of its left half, which is different for all spans of a
    tree.

    Raises:
        LatentError: an item's spans do not make a binary tree.
    """
    longest = z.shape[-1]
    token, size = torch.arange(longest, device=z.device), lengths.to(z.device, torch.int64)
    inside = token < size[:, None, None]
    chosen = (z.detach() > 0.5) & (token[:, None] < token) & inside
    # [i, j]: the end of the longest span from i that ends at j or before; i if it is a leaf.
    ends = torch.where(chosen, token, token[:, None].expand_as(chosen))
    ends = ends.cummax(2).values if longest else ends
    item, first, last = chosen.nonzero(as_tuple=True)
    split = ends[item, first, last - 1]
    whole = chosen[item, split + 1, last] | (split + 1 == last)
    # A binary tree has n − 1 spans of two and more tokens: there must be no others.
    tree = chosen.flatten(1).sum(1) == (size - 1).clamp_min(0)
    if longest:
        root = chosen[:, 0].gather(1, (size - 1).clamp_min(0)[:, None]).squeeze(1)
        tree &= root | (size < 2)
    if not bool(whole.all()) or not bool(tree.all()):
        bad = {*item[~whole].tolist(), *(~tree).nonzero().flatten().tolist()}
        raise LatentError(
            f"BinaryTreeLstm: the spans of item(s) {sorted(bad)[:10]} of the batch are no binary "
            "tree: each span of two or more tokens must consist of two shorter spans. Use "
            "SpanAttention, which accepts any spans."
        )
    base = item * 2 * longest

    def place(begin: Tensor, end: Tensor) -> Tensor:
        inner = longest + ends[item, begin, (end - 1).clamp_min(0)]
        return base + torch.where(begin == end, begin, inner)

    node, left, right = base + longest + split, place(first, split), place(split + 1, last)
    depth = torch.zeros(len(z) * 2 * longest, dtype=torch.int64, device=z.device)
    while True:
        below = depth[node] + 1
        if torch.equal(depth[left], below):
            break
        depth[left] = below
        depth[right] = below
    leaf_item, leaf_token = (token < size[:, None]).nonzero(as_tuple=True)
    leaf_depth = depth[leaf_item * 2 * longest + leaf_token]
    levels = int(leaf_depth.max()) if len(leaf_depth) else 0
    own_depth = depth[node]
    return Spans(
        item, first, last, node, left, right, own_depth, leaf_item, leaf_token, leaf_depth, levels
    )


def share_halves(spans: Spans, item: Tensor, longest: int, items: int) -> tuple[Merges, Tensor]:
    """Return the different subtrees of S trees over the leaves of B items.

    Only subtrees of two and more words are included. The result also has the subtree of each of the
    ``(S · 2n)`` nodes, counted after the ``(B · n)`` leaves.

    Args:
        item: ``(S,)`` int64, the item whose leaves each tree has.
    """
    height = torch.zeros(len(item) * 2 * longest, dtype=torch.int64, device=item.device)
    while True:
        above = torch.maximum(height[spans.left], height[spans.right]) + 1
        if torch.equal(height[spans.node], above):
            break
        height[spans.node] = above
    nodes = torch.zeros_like(height)
    leaf = spans.leaf_item * 2 * longest + spans.leaf_token
    nodes[leaf] = item[spans.leaf_item] * longest + spans.leaf_token
    count = items * longest
    # Larger than the number of any subtree.
    most = count + len(spans.node) + 1
    left, right, sizes = [nodes[:0]], [nodes[:0]], []
    levels = _by_level(above, int(above.max()) + 1)[1:] if len(above) else []
    for level in levels:
        halves = nodes[spans.left[level]], nodes[spans.right[level]]
        first, second, which = distinct_pairs(*halves, most)
        nodes[spans.node[level]] = count + which
        left.append(first)
        right.append(second)
        sizes.append(len(first))
        count += len(first)
    return Merges(torch.cat(left), torch.cat(right), sizes), nodes


def build_binary_tree_lstm_v1(
    output_width: int | None = None, output: Output = "constituents"
) -> ComposerBuilder:
    """Return a builder of :class:`BinaryTreeLstm`, which describes ``output``.

    Args:
        output_width: width of the result; None for the input's width.
    """
    check_output_width("BinaryTreeLstm", output_width)
    check_output("BinaryTreeLstm", output)
    return partial(BinaryTreeLstm, output_width=output_width, output=output)


def check_output(name: str, output: str) -> None:
    """Raise an error unless ``output`` is "constituents" or "root"."""
    if output not in ("constituents", "root"):
        raise LatentError(f"{name}: output is {output!r}; expected 'constituents' or 'root'.")
