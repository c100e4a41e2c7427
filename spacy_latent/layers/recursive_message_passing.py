"""Repeated messages from modifiers to heads, until the leaves have reached the root.

This extends the bottom-up recursion of a recursive network (Socher et al. 2011) to soft trees, as
message passing along arcs (compare Gilmer et al. 2017). On a hard tree of d levels, d rounds give
the recursion exactly, and further rounds change nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from spacy_latent.errors import check_whole
from spacy_latent.kernels.core.gpu_transfers import fetch_together, send_together
from spacy_latent.layers.base import Composer, ComposerBuilder, check_output_width
from spacy_latent.layers.shared_structures import SharedSubtrees, share_subtrees

# Deep soft trees are mostly undecided, and more rounds would only add cost.
MAX_ROUNDS = 32


class RecursiveMessagePassing(Composer):
    """Composition v_i ← LayerNorm(U [x_i; Σ_m z[i, m] M(v_m)]), with x the input vectors.

    Initially v = x.

    The last linear map of M and the first one of U are applied as one product, and the part of x is
    computed once for all rounds. If trees are hard without a gradient at z (samples, atoms of
    SparseMAP, prediction), each different subtree of an item is composed once on a CPU.

    Args:
        rounds: number of rounds; None for the number of levels of the item's most probable heads,
            at most 32 (see :func:`depth`).
    """

    parts = "arcs"

    def __init__(self, width: int, output_width: int | None, rounds: int | None) -> None:
        super().__init__()
        self.output_width = output_width or width
        self.rounds = rounds
        size = self.output_width
        self.input = nn.Linear(width, size) if size != width else nn.Identity()
        self.message = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))
        self.update = nn.Sequential(
            nn.Linear(2 * size, 2 * size), nn.ReLU(), nn.Linear(2 * size, size)
        )
        self.norm = nn.LayerNorm(size)

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        return self.compose_range(vectors, z, lengths, None)

    def compose_range(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None
    ) -> Tensor:
        of_each = lengths if item is None else lengths[item]
        fixed = self.rounds is not None
        shared = share_subtrees(z, of_each, len(vectors), item, self.rounds or MAX_ROUNDS, fixed)
        if shared is not None:
            return self._over_subtrees(vectors, shared)
        return self._over_arcs(vectors if item is None else vectors[item], z)

    def _joined(self, below: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the first linear map of U on x, and the map after the last one of M.

        The second consists of its weight, and the contribution of each message by its bias.
        """
        first: Any = self.update[0]
        last: Any = self.message[2]
        own, received = first.weight.split(self.output_width, 1)
        return linear(below, own, first.bias), received @ last.weight, received @ last.bias

    def _over_arcs(self, vectors: Tensor, z: Tensor) -> Tensor:
        rounds = (
            depth(z) if self.rounds is None else torch.full((len(z),), self.rounds, device="cpu")
        )
        # Sort items by descending number of rounds, so that finished items can be left out. The
        # rounds of a soft tree must not depend on deeper trees in the batch.
        rounds, order = rounds.sort(descending=True, stable=True)
        order, back = send_together([order, order.argsort()], z.device)
        arcs = z[:, 1:, 1:].to(vectors.dtype)
        if self.rounds is None:
            vectors, arcs = vectors.index_select(0, order), arcs.index_select(0, order)
        state = self.input(vectors)
        start, weight, bias = self._joined(state)
        start = start + arcs.sum(-1, keepdim=True) * bias
        done: list[Tensor] = []
        for round_ in range(int(rounds[0]) if len(rounds) else 0):
            left = int((rounds > round_).sum())
            if left < len(state):
                done.append(state[left:])
                state, start, arcs = state[:left], start[:left], arcs[:left]
            received = arcs @ torch.relu(self.message[0](state))
            state = self._after(start + linear(received, weight))
        result = torch.cat([state, *done[::-1]]) if done else state
        if self.rounds is not None:
            return result
        return result.index_select(0, back)

    def _over_subtrees(self, vectors: Tensor, shared: SharedSubtrees) -> Tensor:
        below = self.input(vectors).flatten(0, 1)
        start, weight, bias = self._joined(below)
        known = torch.relu(self.message[0](below)) if shared.own else below[:0]
        own = start.index_select(0, torch.cat([round_.place for round_ in shared.rounds]))
        own = own + torch.cat([round_.count for round_ in shared.rounds])[:, None].to(bias) * bias
        states: list[Tensor] = []
        for round_, sums in zip(shared.rounds, own.split([len(r.place) for r in shared.rounds])):
            if len(round_.target):
                received = known.new_zeros(len(sums), self.output_width)
                sent = known.index_select(0, round_.source)
                sums = sums + linear(received.index_add(0, round_.target, sent), weight)
            states.append(self._after(sums))
            if len(states) < len(shared.rounds):
                known = torch.cat([known, torch.relu(self.message[0](states[-1]))])
        result = torch.cat(states).index_select(0, shared.result.flatten())
        return result.view(*shared.result.shape, -1)

    def _after(self, sums: Tensor) -> Tensor:
        """Apply the rest of U, and the norm."""
        return self.norm(self.update[2](torch.relu(sums)))


def most_probable_heads(z: Tensor) -> Tensor:
    """Return the most probable heads of ``(B, n+1)`` nodes, with the root its own head.

    They may form cycles if z is soft.
    """
    heads = z.detach().argmax(1)
    heads[:, 0] = 0
    return heads


def depth(z: Tensor) -> Tensor:
    """Return the levels of each tree, ``(B,)`` int64 on the CPU, 1 to MAX_ROUNDS.

    These are the tokens on the longest path from the root, following the most probable heads.

    In a soft structure, a cycle of most probable heads counts as infinitely deep, since other arcs
    lead from it to the root. In a hard structure nothing on a cycle reaches the root, so cycles do
    not count.
    """
    heads = most_probable_heads(z)
    hard = ((z == 0) | (z == 1)).flatten(1).all(1)
    if z.device.type != "cpu":
        small, whole = fetch_together([heads.int(), hard.int()])
        heads, hard = small.long(), whole > 0
    node = heads.where(~_apart(heads, hard), 0)
    levels = torch.ones(len(z), dtype=torch.int64, device="cpu")
    for _ in range(MAX_ROUNDS - 1):
        below = (node > 0).any(1)
        if not bool(below.any()):
            break
        levels += below
        node = heads.gather(1, node)
    return levels


def _apart(heads: Tensor, hard: Tensor) -> Tensor:
    """Return a mask ``(B, n+1)`` of the nodes of hard structures that do not lead to the root."""
    far = heads
    for _ in range(heads.shape[1].bit_length()):
        far = far.gather(1, far)
    return (far > 0) & hard[:, None]


def build_recursive_message_passing_v1(
    output_width: int | None = None, rounds: int | None = None
) -> ComposerBuilder:
    """Return a builder of :class:`RecursiveMessagePassing`, which describes ``rounds``.

    Args:
        output_width: width of the result; None for the input's width.
    """
    check_whole("RecursiveMessagePassing", or_null=True, rounds=rounds)
    check_output_width("RecursiveMessagePassing", output_width)
    return partial(RecursiveMessagePassing, output_width=output_width, rounds=rounds)
