"""Estimators that solve several copies of a batch. Their errors give the index in the batch."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch

from spacy_latent.errors import InfeasibleError, InvalidScores
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import solve_copies
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.matrix import registered

STRUCTURES: list[Structure] = [SpanningTree(), ProjectiveTree(), KOfN(2)]
SAMPLERS = [
    (name, structure)
    for name, kind in registered.estimators().items()
    for structure in STRUCTURES
    if "num_samples" in inspect.signature(kind).parameters
    and registered.fits(registered.make_estimator(name), structure)
]


def settings_of(name: str) -> dict[str, Any]:
    parameters = inspect.signature(registered.estimators()[name]).parameters
    settings = {**registered.ARGUMENTS.get(name, {}), "num_samples": 3}
    # Without noise the estimator would draw no sample.
    return settings | ({"noise": "gumbel"} if "noise" in parameters else {})


@pytest.mark.parametrize(
    "name, structure", SAMPLERS, ids=lambda value: getattr(value, "name", value)
)
@pytest.mark.parametrize(
    "value, error, told",
    [
        (torch.nan, InvalidScores, "[2]"),
        (-torch.inf, InfeasibleError, " 2 "),
    ],
)
def test_items_have_the_numbers_of_the_batch(
    name: str, structure: Structure, value: float, error: type[Exception], told: str
) -> None:
    torch.manual_seed(0)
    scores = torch.randn(4, *[5] * structure.part_axes)
    scores[2] = value
    lengths = torch.full((4,), 5 if isinstance(structure, KOfN) else 4)
    estimator = registered.estimators()[name](**settings_of(name))
    with pytest.raises(error, match=re.escape(told)):
        estimator(structure, scores.requires_grad_(), lengths, True)


@pytest.mark.parametrize("name", ["ImplicitMLE", "AdaptiveImplicitMLE", "Spigot"])
@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.name)
def test_so_they_have_where_a_gradient_is_no_number(name: str, structure: Structure) -> None:
    """Estimators that solve again in the backward pass give the index there, too."""
    torch.manual_seed(0)
    scores = torch.randn(4, *[5] * structure.part_axes).requires_grad_()
    lengths = torch.full((4,), 5 if isinstance(structure, KOfN) else 4)
    name = f"spacy-latent.{name}.v1"
    estimator = registered.estimators()[name](**settings_of(name))
    draw = estimator(structure, scores, lengths, True)
    upstream = torch.zeros_like(draw.z)
    upstream[2, 2] = torch.nan
    with pytest.raises(InvalidScores, match=r"\[2\]"):
        draw.z.backward(upstream)


def test_an_error_of_all_copies_together_is_raised_as_it_is() -> None:
    def solve(scores: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if len(scores) > 2:
            raise InvalidScores("too many")
        return scores

    with pytest.raises(InvalidScores, match="many"):
        solve_copies(solve, torch.zeros(4, 1), torch.ones(4), 2)
    assert solve_copies(solve, torch.zeros(2, 1), torch.ones(2), 1).shape == (2, 1)
