"""Every structure computes half precision in single, and gives it back."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cases import scores_for, structures
from spacy_latent.structures.base import Structure

OPERATIONS = ("map", "log_partition", "marginals", "entropy", "sparsemap", "top_k")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("structure", structures(), ids=lambda structure: structure.name)
def test_half_precision_comes_back_as_it_was(structure: Structure, dtype: torch.dtype) -> None:
    scores, lengths = scores_for(structure, 6, 2)
    half = scores.to(dtype)
    for operation in OPERATIONS:
        if {operation} - structure.tractable - {"map", "sparsemap", "top_k"}:
            continue
        options = {"k": 2} if operation == "top_k" else {}
        own, single = (
            getattr(structure, operation)(given, lengths, **options)
            for given in (half, half.float())
        )
        if operation == "sparsemap":
            assert own.weights.dtype == own.atoms.dtype == dtype
        kind = {"sparsemap": "mean", "top_k": "z"}.get(operation, "")
        own, single = getattr(own, kind, own), getattr(single, kind, single)
        assert own.dtype == dtype
        # Entropies are differences of numbers that were rounded already.
        torch.testing.assert_close(own, single.to(dtype), rtol=1e-2, atol=1e-2)
