"""States of spans that parsers make step by step and never change."""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.layers.binary_tree_lstm import State


class StateStore:
    """Hidden states and memories, ``(..., size)`` each, by their places.

    Parsers hold places, so copies of a parser need no copies of states.
    """

    def __init__(self, states: State) -> None:
        hidden, cell = states
        self.hidden, self.cell = hidden.flatten(0, -2), cell.flatten(0, -2)
        self.count = len(self.hidden)

    def __getitem__(self, places: Tensor) -> State:
        return self.hidden[places], self.cell[places]

    def add(self, states: State) -> Tensor:
        """Return places ``(N,)`` of these states, ``(N, size)`` each."""
        begin, end = self.count, self.count + len(states[0])
        if end > len(self.hidden):
            # The size doubles, so that each state is copied only a few times.
            capacity = max(len(self.hidden), end - begin)
            self.hidden, self.cell = (
                torch.cat([kept, kept.new_zeros(capacity, kept.shape[1])])
                for kept in (self.hidden, self.cell)
            )
        self.hidden[begin:end], self.cell[begin:end] = states
        self.count = end
        return torch.arange(begin, end, device=self.hidden.device)
