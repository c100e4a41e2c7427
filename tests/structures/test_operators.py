"""The operators of each family of structures, against ``opcheck`` of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import library

from spacy_latent.kernels.autograd import operators


# The last parameter says whether sums save fully written arrays, which can be compared.
@pytest.mark.parametrize(
    ("family", "shape", "lengths", "settings", "saved"),
    [
        ("arborescences.matrix_tree", (4, 4), [3, 2], [0, -1, 0], False),
        ("chains.linear_chain", (3, 2, 2), [3, 2], [], True),
        ("chains.semi_markov", (3 * 2 + 2 + 2, 2), [3, 2], [2], True),
        ("chains.tag_sequence", (3 + 2 + 2, 2), [3, 2], [], True),
        ("spans.inside_outside", (4, 4), [3, 2], [0, -1, 0], False),
        ("spans.constituency", (4, 4), [4, 2], [], False),
        ("alignments.monotone_alignment", (3, 4), [[3, 4], [2, 1]], [0, -1], False),
    ],
)
def test_operators_follow_the_rules_of_torch(
    family: str, shape: tuple[int, ...], lengths: Any, settings: list[int], saved: bool
) -> None:
    scores = torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
    rest = torch.tensor(lengths), f"spacy_latent.kernels.{family}:FAMILY", settings
    library.opcheck(operators._log_partition.overload, (scores, *rest))
    library.opcheck(operators._marginals.overload, (scores, *rest, saved))
    library.opcheck(operators._best.overload, (scores.detach(), *rest))
