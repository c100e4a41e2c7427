"""Structures under torch.compile and torch.export: whole, for any batch size, and as without."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.structures.base import Structure
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree

STRUCTURES: list[Structure] = [
    SpanningTree(),
    ProjectiveTree(single_root=True),
    ConstituencyTree(),
    LinearChain(),
]
OPERATIONS = ("map", "log_partition", "marginals", "entropy")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def given(structure: Structure, batch: int, size: int) -> tuple[Tensor, Tensor]:
    side = size + int(structure.parts == "arcs")
    shape = (size, 3, 3) if structure.parts == "transitions" else (side, side)
    generator = torch.Generator().manual_seed(batch)
    scores = torch.randn((batch, *shape), generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, size + 1, (batch,), generator=generator)
    return scores, lengths


def everything(structure: Structure) -> Callable[[Tensor, Tensor], list[Tensor]]:
    def run(scores: Tensor, lengths: Tensor) -> list[Tensor]:
        return [getattr(structure, operation)(scores, lengths) for operation in OPERATIONS]

    return run


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.name)
def test_they_compile_whole(structure: Structure) -> None:
    run = everything(structure)
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for batch, size in ((2, 4), (5, 6)):
        scores, lengths = given(structure, batch, size)
        results = []
        for function in (run, compiled):
            leaf = scores.clone().requires_grad_()
            found = function(leaf, lengths)
            (gradient,) = torch.autograd.grad(found[1].sum() + found[2].square().sum(), leaf)
            results.append([*found, gradient])
        torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("structure", STRUCTURES[:2], ids=lambda structure: structure.name)
def test_samples_compile_for_any_batch(structure: Structure) -> None:
    def draw(scores: Tensor, lengths: Tensor) -> Tensor:
        return structure.sample(scores, lengths, 3)

    compiled = torch.compile(draw, backend="eager", fullgraph=True, dynamic=True)
    for batch in (2, 5):
        scores, lengths = given(structure, batch, 4)
        torch.manual_seed(1)
        expected = draw(scores, lengths)
        torch.manual_seed(1)
        torch.testing.assert_close(compiled(scores, lengths), expected)


@pytest.mark.parametrize("structure", STRUCTURES[1:3], ids=lambda structure: structure.name)
def test_they_export(structure: Structure) -> None:
    class Module(torch.nn.Module):
        def forward(self, scores: Tensor, lengths: Tensor) -> list[Tensor]:
            return everything(structure)(scores, lengths)

    scores, lengths = given(structure, 3, 5)
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"scores": {0: batch}, "lengths": {0: batch}}
    program = torch.export.export(Module(), (scores, lengths), dynamic_shapes=shapes)
    for count in (3, 6):
        scores, lengths = given(structure, count, 5)
        expected = everything(structure)(scores, lengths)
        torch.testing.assert_close(program.module()(scores, lengths), expected)


def test_what_is_wrong_is_told_when_it_runs() -> None:
    structure = SpanningTree()
    compiled = torch.compile(structure.marginals, backend="eager", fullgraph=True)
    scores, lengths = given(structure, 3, 4)
    compiled(scores, lengths)
    with pytest.raises(InvalidScores):
        compiled(scores, torch.tensor([4, 9, 4]))
    scores[1, :, 2] = -torch.inf
    with pytest.raises(InfeasibleError):
        compiled(scores, torch.tensor([4, 4, 4]))
