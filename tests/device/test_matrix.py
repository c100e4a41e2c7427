"""Every combination of structure, estimator and composer on a simulated GPU, against the CPU.

Results must stay on the GPU.
"""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import Tensor

from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.device.pretended_gpu import CUDA, CudaTensor, DeviceError, pretended_gpu
from tests.matrix import test_matrix as matrix

MARGINALS = "spacy-latent.Marginals.v1"
ATTENTION = "spacy-latent.HeadAttention.v1"


def step(layer: LatentLayer, vectors: Tensor, lengths: Tensor) -> dict[str, Tensor | None]:
    """Return a loss, all gradients, and the prediction. Noise is drawn from a fixed seed."""
    torch.manual_seed(5)
    layer.train()
    loss = matrix.total_loss(layer, vectors, lengths)
    loss.backward()
    layer.eval()
    with torch.no_grad():
        predicted = layer(vectors, lengths).vectors
    inside = matrix.tokens_inside(lengths)[..., None]
    return {
        "loss": loss.detach(),
        "gradient of the input": vectors.grad,
        # Values at padding have no meaning.
        "prediction": torch.where(inside, predicted, 0.0),
        **{f"gradient of {name}": p.grad for name, p in layer.named_parameters()},
    }


def differences(layer: LatentLayer, lengths: Tensor) -> list[str]:
    """Return the results of the GPU that differ from the CPU's, or are not on the GPU."""
    vectors = torch.randn(3, 7, matrix.WIDTH)
    twin = copy.deepcopy(layer)
    expected = step(twin, vectors.clone().requires_grad_(), lengths)
    with pretended_gpu():
        found = step(layer.to(CUDA), vectors.to(CUDA).requires_grad_(), lengths.to(CUDA))
    wrong = []
    for name, value in found.items():
        reference = expected[name]
        if value is None or reference is None:
            if value is not reference:
                wrong.append(f"{name} is there on one device only")
        elif not isinstance(value, CudaTensor):
            wrong.append(f"{name} is left on the CPU")
        elif not torch.allclose(value.held, reference, rtol=1e-4, atol=1e-5):
            wrong.append(f"{name} is another")
    return wrong


@cache
def composers_of(structure: str) -> list[tuple[str, str]]:
    """Return pairs of estimators and composers that a structure fits.

    Each estimator is in at least one pair, with composers that alternate, and so is each composer.
    :mod:`tests.matrix.test_matrix` tests all pairs on the CPU.
    """
    fitting: dict[str, list[str]] = {}
    for triple in matrix.TRIPLES:
        if triple[0] == structure and matrix.refused(*triple) is None:
            fitting.setdefault(triple[1], []).append(triple[2])
    pairs = {
        (estimator, composers[place % len(composers)])
        for place, (estimator, composers) in enumerate(fitting.items())
    }
    used = {composer for _, composer in pairs}
    for estimator, composers in fitting.items():
        pairs |= {(estimator, composer) for composer in composers if composer not in used}
        used.update(composers)
    return sorted(pairs)


@pytest.mark.parametrize("structure", matrix.STRUCTURES)
def test_a_gpu_gives_what_the_cpu_gives(structure: str) -> None:
    failures = []
    for estimator, composer in composers_of(structure):
        layer = matrix.build(structure, estimator, composer, matrix.scorer_for(structure))
        try:
            wrong = differences(layer, matrix.lengths_for(structure, estimator))
        except (RuntimeError, TypeError, ValueError) as error:
            wrong = [f"{type(error).__name__}: {error}"]
        failures += [f"{estimator} with {composer}: {what}" for what in wrong]
    assert not failures, "\n".join(failures)


def test_no_row_of_the_matrix_is_empty() -> None:
    fitting = {structure: composers_of(structure) for structure in matrix.STRUCTURES}
    reached = {name for pairs in fitting.values() for pair in pairs for name in pair}
    assert all(fitting.values()) and reached == {*matrix.ESTIMATORS, *matrix.COMPOSERS}


class LeavesThemOnTheCpu(SpanningTree):
    def marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super().marginals(scores, lengths).cpu()


class DrawsOnTheCpu(SpanningTree):
    def marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        noise = torch.zeros_like(scores).normal_(generator=torch.Generator())
        return super().marginals(scores + noise, lengths)


@pytest.mark.parametrize("structure", [LeavesThemOnTheCpu, DrawsOnTheCpu])
def test_what_is_on_the_wrong_device_is_found(structure: type[SpanningTree]) -> None:
    name = "spacy-latent.SpanningTree.v1"
    layer = matrix.build(name, MARGINALS, ATTENTION, matrix.scorer_for(name))
    assert not differences(copy.deepcopy(layer), matrix.LENGTHS)
    layer.structure = structure()
    with pytest.raises(DeviceError):
        differences(layer, matrix.LENGTHS)
