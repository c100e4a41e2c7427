"""The score function of traces, against the expected loss summed over all traces."""

from __future__ import annotations

import pytest
import torch

from spacy_latent.errors import IncompatiblePair
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.control_variates import LeaveOneOut, SelfCritical
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.estimators.trace_relax import TraceRelax
from spacy_latent.estimators.trace_score_function import TraceScoreFunction
from spacy_latent.structures.base import Structure
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.merge_sequence import MergeSequence
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.structures.test_traces import by_tree, expected_loss, random_scores, tree_traces

# Estimators that learn from traces, and the alternative that each of them names in its error.
OF_TRACES = [(TraceScoreFunction(), "ScoreFunction"), (TraceRelax(), "TraceScoreFunction")]


@pytest.mark.parametrize(
    "structure",
    [ProjectiveTree(), LinearChain(), MergeSequence(), KOfN(2, exactly=False)],
    ids=repr,
)
@pytest.mark.parametrize("estimator, instead", OF_TRACES)
def test_what_is_not_built_by_choices_is_refused_by_name(
    estimator: Estimator, instead: str, structure: Structure
) -> None:
    with pytest.raises(IncompatiblePair) as error:
        estimator.check(structure)
    said = str(error.value)
    assert estimator.name in said and repr(structure) in said and instead in said


@pytest.mark.parametrize(
    "structure",
    [SpanningTree(single_root=True, direction="earlier"), KOfN(2), OneOfN()],
    ids=repr,
)
@pytest.mark.parametrize("estimator", [estimator for estimator, _ in OF_TRACES])
def test_what_is_built_by_choices_is_taken(estimator: Estimator, structure: Structure) -> None:
    estimator.check(structure)


def test_it_says_nothing_of_how_probable_a_structure_is() -> None:
    assert ScoreFunction().posterior == "scores" and TraceScoreFunction().posterior == ""


@pytest.mark.parametrize(
    "estimator",
    [
        TraceScoreFunction(),
        TraceScoreFunction(3, LeaveOneOut()),
        TraceScoreFunction(2, SelfCritical()),
    ],
    ids=["plain", "leave one out", "self-critical"],
)
@pytest.mark.parametrize("single_root", [False, True])
def test_its_gradient_is_that_of_the_loss_expected_over_traces(
    estimator: TraceScoreFunction, single_root: bool
) -> None:
    n, count = 3, 6000
    structure = SpanningTree(single_root=single_root)
    leaf, weights = random_scores(n, 21).requires_grad_(), random_scores(n, 22)
    expected = expected_loss(leaf, single_root, weights, (0, 2), 3.0)
    (exact,) = torch.autograd.grad(expected, leaf)
    copies = leaf.detach().repeat(count, 1, 1).requires_grad_()
    torch.manual_seed(5)
    draw = estimator(structure, copies, torch.full((count,), n), True)
    losses = (draw.z * weights).sum((2, 3)) + 3.0 * draw.z[:, :, 0, 2]
    features = copies.new_zeros((count, 1))
    objective = estimator.objective(losses, draw.weights, draw.log_probs, features)
    (each,) = torch.autograd.grad(objective.sum(), copies)
    assert ((each.mean(0) - exact).abs() <= 5 * each.std(0) / count**0.5 + 1e-9).all()
    assert exact.abs().max() > 0.05


@pytest.mark.parametrize("estimator", [TraceScoreFunction(4), TraceRelax(4)])
def test_the_same_seed_draws_the_same_and_prediction_draws_nothing(estimator: Estimator) -> None:
    scores, lengths = torch.randn(4, 8, 8), torch.tensor([7, 0, 3, 5])
    structure, draws = SpanningTree(single_root=True), []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        draws.append(estimator(structure, scores, lengths, True))
    assert torch.equal(draws[0].z, draws[1].z)
    assert torch.equal(draws[0].log_probs, draws[1].log_probs)
    assert draws[0].extras is None or torch.equal(draws[0].extras, draws[1].extras)
    assert not torch.equal(draws[0].z, draws[2].z)
    before = torch.random.get_rng_state()
    best = estimator(structure, scores, lengths, False)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(best.z[0], structure.map(scores, lengths))


def test_the_most_probable_tree_of_the_traces_may_be_another_than_the_best_one() -> None:
    """An arc into a cycle is drawn by its own score, and the arc that it replaces has no effect."""
    scores = torch.zeros(3, 3, dtype=torch.float64)
    # Two tokens prefer each other, and the second one much more strongly.
    scores[2, 1], scores[1, 2] = 3.0, 6.0
    scores[0, 1], scores[0, 2] = 0.0, 1.0
    trees = by_tree(list(tree_traces(scores, False)))
    best = SpanningTree().map(scores[None], torch.tensor([2]))[0]
    arcs = frozenset((int(h), int(m)) for h, m in best.nonzero())
    assert arcs == {(0, 1), (1, 2)}
    assert max(trees, key=lambda tree: trees[tree]) == {(0, 2), (2, 1)}
