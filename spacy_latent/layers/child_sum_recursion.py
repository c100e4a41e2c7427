"""States of child-sum Tree-LSTMs over shared subtrees, from the leaves up, with their gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from spacy_latent.kernels.autograd.derivatives import last_derivative
from spacy_latent.layers.shared_structures import SharedSubtrees


class ChildSumRecursion(torch.autograd.Function):
    """Hidden states ``(R, d)`` of distinct subtrees, one batched step for each height.

    A forward step sums the messages of the children of each state. A backward step sums the
    messages of its parents, so that no step adds to rows in an arbitrary order.

    Args:
        shared: subtrees whose tokens have no state of their own before the first round.
        gates: ``(T, 3d)``, the terms of the input, output and update gates that depend on tokens.
        forget: ``(T, d)``, the terms of the forget gates that depend on tokens.
        from_children: ``(3d, d)``, applied to the sum of the children's hidden states.
        forget_from_child: ``(d, d)``, applied to the hidden state of each child.
    """

    @staticmethod
    def forward(
        ctx: Any,
        shared: SharedSubtrees,
        gates: Tensor,
        forget: Tensor,
        from_children: Tensor,
        forget_from_child: Tensor,
    ) -> Tensor:
        rounds, size = shared.rounds, forget.shape[1]
        states = sum(len(round_.place) for round_ in rounds)
        arcs = sum(len(round_.source) for round_ in rounds)
        hidden, cell, tanh_of_cell, summed, forget_input = (
            forget.new_empty(states, size) for _ in range(5)
        )
        # Derivative of each memory with respect to the terms of its forget gates from its token.
        forget_slope = forget.new_zeros(states, size)
        active, kept = gates.new_empty(states, 3 * size), forget.new_empty(arcs, size)
        begin = first = 0
        for round_ in rounds:
            end, last = begin + len(round_.place), first + len(round_.source)
            here, own = slice(begin, end), gates.index_select(0, round_.place)
            if last > first:
                sums = _Sums(round_.count)
                summed[here] = sums.of_rows(hidden, round_.source)
                torch.addmm(own, summed[here], from_children.t(), out=active[here])
                open_gate = forget.index_select(0, round_.place.index_select(0, round_.target))
                open_gate += forget_input.index_select(0, round_.source)
                kept[first:last] = open_gate.sigmoid_()
                passed = cell.index_select(0, round_.source).mul_(open_gate)
                cell[here] = sums.of_messages(passed)
                forget_slope[here] = sums.of_messages(passed.mul_(open_gate.neg_().add_(1.0)))
            else:
                summed[here], active[here], cell[here] = 0.0, own, 0.0
            i_and_o, u = active[here].split((2 * size, size), 1)
            i, o = i_and_o.sigmoid_().chunk(2, 1)
            cell[here].addcmul_(i, u.tanh_())
            torch.tanh(cell[here], out=tanh_of_cell[here])
            torch.mul(o, tanh_of_cell[here], out=hidden[here])
            torch.mm(hidden[here], forget_from_child.t(), out=forget_input[here])
            begin, first = end, last
        ctx.shared, ctx.tokens = shared, len(forget)
        saved = hidden, cell, tanh_of_cell, summed, forget_slope, active, kept
        ctx.save_for_backward(gates, forget, from_children, forget_from_child, *saved)
        return hidden

    @staticmethod
    @last_derivative("a child-sum Tree-LSTM over shared subtrees can be differentiated once")
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        _, _, from_children, forget_from_child, *saved = ctx.saved_tensors
        hidden, cell, tanh_of_cell, summed, forget_slope, active, kept = saved
        rounds, size = ctx.shared.rounds, hidden.shape[1]
        sizes = [len(round_.place) for round_ in rounds]
        source = torch.cat([round_.source for round_ in rounds])
        starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
        parent = torch.cat([round_.target + at for round_, at in zip(rounds, starts)])
        # Sort messages by their source, so that those of a state are adjacent.
        order = source.argsort(stable=True)
        parent = parent.index_select(0, order)
        sent = torch.bincount(source, minlength=len(hidden))
        ends = torch.cat([sent.new_zeros(1), sent.cumsum(0)])[starts].tolist()
        of_cell, of_summed, of_forget_input = (torch.empty_like(hidden) for _ in range(3))
        # Gradients for the inputs of the gates, in the order of ``gates``, and of the forget gates.
        of_sums = hidden.new_empty(len(hidden), 4 * size)
        for number in range(len(rounds) - 1, -1, -1):
            here = slice(starts[number], starts[number + 1])
            first, last = ends[number], ends[number + 1]
            of_hidden, slope = gradient[here], of_cell[here]
            if last > first:
                sums, above = _Sums(sent[here]), parent[first:last]
                open_gate = kept.index_select(0, order[first:last])
                passed = of_cell.index_select(0, above).mul_(open_gate)
                slope.copy_(sums.of_messages(passed))
                of_gates = sums.of_messages(passed.mul_(open_gate.neg_().add_(1.0)))
                torch.mul(of_gates, cell[here], out=of_forget_input[here])
                of_hidden = of_hidden + sums.of_rows(of_summed, above)
                of_hidden.addmm_(of_forget_input[here], forget_from_child)
            else:
                slope.zero_()
                of_forget_input[here] = 0.0
            i, o, u = active[here].chunk(3, 1)
            tanh_here = tanh_of_cell[here]
            of_i, of_o, of_u, of_forget = of_sums[here].chunk(4, 1)
            of_cell_here = of_hidden * o
            slope.add_(of_cell_here).addcmul_(of_cell_here.mul_(tanh_here), tanh_here, value=-1.0)
            torch.mul(slope, u, out=of_i).mul_(i).addcmul_(of_i, i, value=-1.0)
            torch.mul(of_hidden, tanh_here, out=of_o).mul_(o).addcmul_(of_o, o, value=-1.0)
            torch.mul(slope, i, out=of_u)
            of_u.addcmul_(of_u * u, u, value=-1.0)
            torch.mul(slope, forget_slope[here], out=of_forget)
            torch.mm(of_sums[here, : 3 * size], from_children, out=of_summed[here])
        place = torch.cat([round_.place for round_ in rounds])
        of_places = _Sums(torch.bincount(place, minlength=ctx.tokens))
        of_tokens = of_places.of_rows(of_sums, place.argsort(stable=True))
        return (
            None,
            *of_tokens.split((3 * size, size), 1),
            of_sums[:, : 3 * size].t() @ summed,
            of_forget_input.t() @ hidden,
        )


class _Sums:
    """Sums over N runs of rows, of ``count`` rows each."""

    def __init__(self, count: Tensor) -> None:
        self.starts = count.cumsum(0) - count
        self.every: Tensor | None = None

    def of_rows(self, values: Tensor, rows: Tensor) -> Tensor:
        """Return ``(N, d)`` from the values ``(R, d)`` at rows, one run after the other."""
        return embedding_bag(rows, values, self.starts, mode="sum")

    def of_messages(self, values: Tensor) -> Tensor:
        """Return ``(N, d)`` from values that are adjacent."""
        if self.every is None:
            self.every = torch.arange(len(values))
        return self.of_rows(values, self.every)
