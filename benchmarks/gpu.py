"""Every check and measurement that needs a GPU; without one it says so and ends well."""

from __future__ import annotations

import time

import torch

from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree


def main() -> None:
    if not torch.cuda.is_available():
        print("No GPU here: nothing to run.")
        return
    print(torch.cuda.get_device_name())
    torch.manual_seed(0)
    scores = torch.randn(32, 51, 51, device="cuda")
    lengths = torch.full((32,), 50, device="cuda")
    for structure in (SpanningTree(), ProjectiveTree()):
        for operation in ("map", "log_partition", "marginals"):
            run = getattr(structure, operation)
            result = run(scores, lengths)
            assert result.device == scores.device and result.dtype == scores.dtype
            expected = run(scores.cpu(), lengths.cpu())
            torch.testing.assert_close(result.cpu(), expected)
            times = []
            for _ in range(20):
                torch.cuda.synchronize()
                start = time.perf_counter()
                run(scores, lengths)
                torch.cuda.synchronize()
                times.append(1e3 * (time.perf_counter() - start))
            print(f"{structure.name}.{operation}: {sorted(times)[10]:.2f} ms")
