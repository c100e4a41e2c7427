"""Results that are computed as derivatives, under torch's inference mode."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.relax import Relax
from spacy_latent.estimators.smoothed_dp import SmoothedDP
from spacy_latent.estimators.trace_relax import TraceRelax
from spacy_latent.models.category_constraints import LabelField, Table
from spacy_latent.structures.base import Structure
from spacy_latent.structures.derivatives import recordable
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.tag_sequence import TagSequence


class Choice(Structure):
    """A choice with a log-partition alone, which depends on the scores and on a bias."""

    part_axes = 1
    tractable = frozenset({"log_partition", "marginals"})

    def __init__(self, bias: Tensor) -> None:
        self.bias = bias

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return torch.zeros_like(scores).scatter(1, scores.argmax(1, keepdim=True), 1.0)

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return (scores * self.bias).logsumexp(1)


def test_marginals_of_a_log_partition_alone() -> None:
    torch.manual_seed(0)
    scores, bias, lengths = torch.randn(2, 3), torch.rand(3), torch.tensor([3, 3])
    expected = Choice(bias).marginals(scores, lengths)
    with torch.inference_mode():
        assert torch.equal(Choice(bias).marginals(scores, lengths), expected)
        own = Choice(bias.clone())
        assert torch.equal(own.marginals(scores.clone(), lengths.clone()), expected)


@pytest.mark.parametrize("regularizer", ["entropic", "quadratic"])
def test_smoothed_structures_of_what_a_scorer_bound(regularizer: str) -> None:
    torch.manual_seed(0)
    scores, lengths = torch.randn(2, 4, 3), torch.tensor([4, 2])
    bound = torch.randn(3, 3), torch.randn(3), torch.randn(3)
    estimator = SmoothedDP(regularizer)  # type: ignore[arg-type]
    expected = estimator(TagSequence().bind(*bound), scores, lengths, False).z
    with torch.inference_mode():
        own = TagSequence().bind(*(each.clone() for each in bound))
        found = estimator(own, scores.clone(), lengths.clone(), False).z
    assert expected.any() and torch.equal(found, expected)


@pytest.mark.parametrize("estimator", [Relax(2), TraceRelax(2)], ids=lambda one: one.name)
@pytest.mark.parametrize("structure", [OneOfN(), KOfN(2)], ids=lambda one: one.name)
def test_samples_of_relax_in_training(estimator: Estimator, structure: Structure) -> None:
    if structure.lacks(estimator.needed()):
        return
    torch.manual_seed(0)
    scores, lengths = torch.randn(2, 4), torch.tensor([4, 2])
    expected = estimator(structure, scores, lengths, True)
    torch.manual_seed(0)
    torch.randn(2, 4)
    with torch.inference_mode():
        found = estimator(structure, scores.clone(), lengths.clone(), True)
    assert torch.equal(found.z, expected.z)
    assert found.extras is not None and expected.extras is not None
    torch.testing.assert_close(found.extras, expected.extras.detach())


def test_probabilities_of_constrained_categories() -> None:
    states = (frozenset[int](), frozenset([0]), frozenset([1]))
    field = LabelField(3, [Table((0, 1), states)])
    logits = torch.tensor([[0.5, -1.0, 2.0]])
    expected = field.probabilities(logits)
    with torch.inference_mode():
        assert torch.equal(field.probabilities(logits.clone()), expected)


def test_what_may_be_recorded_is_not_copied() -> None:
    chain, scores = LinearChain(), torch.randn(2)
    assert recordable(chain) is chain and recordable(scores) is scores
