"""Layers inside of torch.compile and torch.func."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from spacy_latent.errors import NotTraceable
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.perturbed_mean import PerturbedMean
from spacy_latent.estimators.sampled_straight_through import SampledStraightThrough
from spacy_latent.estimators.straight_through import StraightThrough
from spacy_latent.layers.biaffine_scorer import build_biaffine_scorer_v1
from spacy_latent.layers.graph_convolution import build_graph_convolution_v1
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.torch_versions import compiles_all

WIDTH = 4


@pytest.fixture(autouse=True)
def _forget() -> None:
    torch._dynamo.reset()


def layer_with(estimator: Estimator) -> LatentLayer:
    torch.manual_seed(0)
    scorer = build_biaffine_scorer_v1(hidden_width=3)(WIDTH)
    composer = build_graph_convolution_v1()(WIDTH)
    return LatentLayer(scorer, SpanningTree(), estimator, composer).train()


def gradients(
    call: Callable[[Tensor, Tensor], Tensor], layer: LatentLayer, vectors: Tensor, lengths: Tensor
) -> dict[str, Tensor]:
    torch.manual_seed(1)
    total = call(vectors, lengths).square().sum()
    named = dict(layer.named_parameters())
    found = torch.autograd.grad(total, list(named.values()), materialize_grads=True)
    return dict(zip(named, found, strict=True))


@compiles_all
def test_layers_compile_whole() -> None:
    layer = layer_with(SampledStraightThrough(num_samples=2))

    def run(vectors: Tensor, lengths: Tensor) -> Tensor:
        return layer(vectors, lengths).vectors

    compiled = torch.compile(run, backend="eager", fullgraph=True, dynamic=True)
    for batch, n in ((3, 5), (4, 6)):
        vectors, lengths = torch.randn(batch, n, WIDTH), torch.full((batch,), n)
        lengths[0] -= 2
        expected = gradients(run, layer, vectors, lengths)
        torch.testing.assert_close(gradients(compiled, layer, vectors, lengths), expected)


@compiles_all
def test_layers_are_exported() -> None:
    layer = layer_with(StraightThrough())

    class Vectors(nn.Module):
        def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
            found: Tensor = layer(vectors, lengths).vectors
            return found

    batch, tokens = torch.export.Dim("batch", max=64), torch.export.Dim("tokens", max=64)
    shapes = {"vectors": {0: batch, 1: tokens}, "lengths": {0: batch}}
    given = torch.randn(3, 5, WIDTH), torch.tensor([5, 3, 4])
    with torch.no_grad():
        program = torch.export.export(Vectors(), given, dynamic_shapes=shapes).module()
        other = torch.randn(4, 7, WIDTH), torch.tensor([7, 0, 4, 1])
        torch.testing.assert_close(program(*other), layer(*other).vectors)


@pytest.mark.parametrize(
    "estimator",
    [StraightThrough(), StraightThrough("marginals"), SampledStraightThrough(num_samples=2)],
    ids=["identity", "marginals", "samples"],
)
def test_straight_through_is_part_of_torch_func(estimator: Estimator) -> None:
    layer = layer_with(estimator)
    vectors, lengths = torch.randn(3, 5, WIDTH), torch.tensor([5, 3, 4])

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(1)
        return functional_call(layer, parameters, (vectors, lengths)).vectors.square().sum()

    parameters = {name: each.detach() for name, each in layer.named_parameters()}
    expected = gradients(lambda *given: layer(*given).vectors, layer, vectors, lengths)
    torch.testing.assert_close(grad(loss)(parameters), expected)


def test_what_cannot_be_part_of_it_is_named() -> None:
    scores, lengths = torch.randn(1, 4, 4), torch.tensor([3])
    with pytest.raises(NotTraceable, match="PerturbedMean"):
        grad(lambda given: PerturbedMean()(SpanningTree(), given, lengths, True).z.sum())(scores)
