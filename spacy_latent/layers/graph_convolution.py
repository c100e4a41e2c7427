"""Graph convolution over arcs (Kipf and Welling 2017; Marcheggiani and Titov 2017)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spacy_latent.errors import check_whole
from spacy_latent.layers.base import Composer, ComposerBuilder, check_output_width


class GraphConvolution(Composer):
    """Composition v_i ← relu(W v_i + Σ_h z[h, i] H v_h + Σ_m z[i, m] M v_m).

    Each layer has its own weights.

    Arcs from the root carry nothing.
    """

    parts = "arcs"

    def __init__(self, width: int, output_width: int | None, layers: int) -> None:
        super().__init__()
        self.output_width = output_width or width
        sizes = list(zip([width] + [self.output_width] * layers, [self.output_width] * layers))
        self.self_loop = nn.ModuleList(nn.Linear(a, b) for a, b in sizes)
        self.from_head = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in sizes)
        self.from_modifier = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in sizes)

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        arcs = z[:, 1:, 1:].to(vectors.dtype)
        for own, head, modifier in zip(self.self_loop, self.from_head, self.from_modifier):
            vectors = torch.relu(
                own(vectors) + arcs.transpose(1, 2) @ head(vectors) + arcs @ modifier(vectors)
            )
        return vectors


def build_graph_convolution_v1(output_width: int | None = None, layers: int = 1) -> ComposerBuilder:
    """Return a builder of :class:`GraphConvolution`.

    Args:
        output_width: width of the result; None for the input's width.
        layers: number of arcs over which information may travel.
    """
    check_whole("GraphConvolution", layers=layers)
    check_output_width("GraphConvolution", output_width)
    return partial(GraphConvolution, output_width=output_width, layers=layers)
