"""Graph convolution over arcs (Kipf and Welling 2017; Marcheggiani and Titov 2017)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.layers.base import Composer, ComposerBuilder


class GraphConvolution(Composer):
    def __init__(self, width: int, output_width: int | None, layers: int) -> None:
        super().__init__()
        self.output_width = output_width or width
        widths = [width] + [self.output_width] * layers
        self.self_loop = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:]))
        self.from_head = nn.ModuleList(
            nn.Linear(a, b, bias=False) for a, b in zip(widths, widths[1:])
        )
        self.from_modifier = nn.ModuleList(
            nn.Linear(a, b, bias=False) for a, b in zip(widths, widths[1:])
        )

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        arcs = z[:, 1:, 1:]
        for own, head, modifier in zip(self.self_loop, self.from_head, self.from_modifier):
            vectors = torch.relu(
                own(vectors) + arcs.transpose(1, 2) @ head(vectors) + arcs @ modifier(vectors)
            )
        return vectors


def build_graph_convolution_v1(output_width: int | None = None, layers: int = 1) -> ComposerBuilder:
    return partial(GraphConvolution, output_width=output_width, layers=layers)
