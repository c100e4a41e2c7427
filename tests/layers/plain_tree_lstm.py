"""The binary Tree-LSTM of parsers by its definition, one node at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


def leaf(lstm: nn.Module, vector: Tensor) -> State:
    i, o, u = lstm.leaf(vector).chunk(3)
    memory = torch.sigmoid(i) * torch.tanh(u)
    return torch.sigmoid(o) * torch.tanh(memory), memory


def merge(lstm: nn.Module, left: State, right: State) -> State:
    i, o, u, f, g = lstm.gates(torch.cat([left[0], right[0]])).chunk(5)
    memory = torch.sigmoid(i) * torch.tanh(u)
    memory = memory + torch.sigmoid(f) * left[1] + torch.sigmoid(g) * right[1]
    return torch.sigmoid(o) * torch.tanh(memory), memory
