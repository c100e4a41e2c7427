"""RELAX over traces, against the expected loss summed over all traces."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.relax import Relax
from spacy_latent.estimators.trace_relax import TraceRelax
from spacy_latent.estimators.trace_score_function import TraceScoreFunction
from spacy_latent.structures.base import Structure
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.estimators.test_expected_loss import gradients, loss_of, objective_of, problem
from tests.structures.test_traces import expected_loss, random_scores, subset_traces


class Steep(nn.Module):
    """A steep surrogate in place of the network.

    Its weights have both signs and its mean is near the loss, so all terms of the estimator exceed
    its noise.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(9)
        table = 3 * torch.randn(shape, generator=generator, dtype=torch.float64)
        self.table = nn.Parameter(table)
        self.shift = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(
        self, structure: Structure, noisy: Tensor, scores: Tensor, lengths: Tensor
    ) -> Tensor:
        inside = ~noisy.isneginf()
        each = self.table * (noisy.masked_fill(~inside, 0.0) - 0.5).tanh()
        return each.masked_fill(~inside, 0.0).flatten(1).sum(1) - self.shift


def with_steep(
    scores: Tensor, structure: Structure, n: int, num_samples: int, leave_one_out: bool
) -> TraceRelax:
    estimator = TraceRelax(num_samples, leave_one_out=leave_one_out)
    estimator.surrogate = Steep(tuple(scores.shape))
    torch.manual_seed(4)
    sizes = torch.full((2000,), n)
    drawn = structure.reparameterize_trace(scores.repeat(2000, *[1] * scores.dim()), sizes)
    with torch.no_grad():
        estimator.surrogate.shift += estimator.surrogate(
            structure, drawn.redrawn, scores, sizes
        ).mean()
    return estimator


def test_one_sample_has_no_others_to_be_compared_with() -> None:
    with pytest.raises(LatentError, match=r"TraceRelax.*leave_one_out.*num_samples"):
        TraceRelax(leave_one_out=True)


@pytest.mark.parametrize("structure", [SpanningTree(), KOfN(2)], ids=repr)
def test_the_mean_of_the_others_stands_for_a_network_that_knows_nothing(
    structure: Structure,
) -> None:
    """Losses differ more between texts than among the samples of a text.

    A network that does not see the text cannot subtract this difference, and the mean of the other
    samples can.
    """
    torch.manual_seed(0)
    plain, others = (
        gradients(TraceRelax(3, leave_one_out=given).double(), structure, 3000, shift=20.0)
        for given in (False, True)
    )
    assert others.var(0).sum() < 0.05 * plain.var(0).sum()


def trained(structure: Structure, updates: int) -> TraceRelax:
    torch.manual_seed(0)
    estimator = TraceRelax().double()
    optimizer = torch.optim.Adam(estimator.parameters(), lr=0.02)
    for _ in range(updates):
        optimizer.zero_grad()
        objective_of(estimator, structure, 100)[0].backward()
        optimizer.step()
    return estimator


def test_trees_are_refused_by_relax_itself() -> None:
    with pytest.raises(IncompatiblePair):
        Relax().check(SpanningTree())


def test_it_says_nothing_of_how_probable_a_structure_is_and_needs_its_loss() -> None:
    assert TraceRelax.posterior == "" and TraceRelax.needs_loss and TraceRelax.hard


@pytest.mark.parametrize("setting", ["num_samples", "hidden_width"])
def test_bad_settings_are_refused_under_its_own_name(setting: str) -> None:
    with pytest.raises(LatentError, match=rf"TraceRelax.*{setting}"):
        TraceRelax(**{setting: 0})


@pytest.mark.parametrize(
    ("num_samples", "leave_one_out"), [(1, False), (2, False), (2, True), (3, True)]
)
@pytest.mark.parametrize("single_root", [False, True])
def test_its_gradient_is_that_of_the_loss_expected_over_traces(
    single_root: bool, num_samples: int, leave_one_out: bool
) -> None:
    n, count = 3, 8000
    structure = SpanningTree(single_root=single_root)
    leaf, weights = random_scores(n, 21).requires_grad_(), random_scores(n, 22)
    expected = expected_loss(leaf, single_root, weights, (0, 2), 3.0)
    (exact,) = torch.autograd.grad(expected, leaf)

    def losses_of(z: Tensor) -> Tensor:
        return (z * weights).sum((2, 3)) + 3.0 * z[:, :, 0, 2]

    compare(structure, leaf.detach(), n, losses_of, exact, count, num_samples, leave_one_out)


def test_its_gradient_is_unbiased_for_trees_of_four_tokens() -> None:
    """Four tokens are enough for cycles within cycles."""
    n, structure = 4, SpanningTree()
    leaf, weights = random_scores(n, 23).requires_grad_(), random_scores(n, 24)
    expected = expected_loss(leaf, False, weights, (0, 3), 2.0)
    (exact,) = torch.autograd.grad(expected, leaf)

    def losses_of(z: Tensor) -> Tensor:
        return (z * weights).sum((2, 3)) + 2.0 * z[:, :, 0, 3]

    compare(structure, leaf.detach(), n, losses_of, exact, 8000)


def test_its_gradient_is_that_of_the_loss_expected_over_orders() -> None:
    n, structure = 5, KOfN(2)
    leaf = random_scores(n, 6)[0, :n].clone().requires_grad_()
    table = torch.arange(float(n * n), dtype=torch.float64).view(n, n).sin()
    expected = sum(
        float(table[min(s), max(s)]) * total.exp() for s, total in subset_traces(leaf, 2)
    )
    (exact,) = torch.autograd.grad(expected, leaf)
    upper = table.triu(1)

    def losses_of(z: Tensor) -> Tensor:
        return torch.einsum("kbi,ij,kbj->kb", z, upper, z)

    compare(structure, leaf.detach(), n, losses_of, exact, 8000)


def compare(
    structure: Structure,
    scores: Tensor,
    n: int,
    losses_of: Callable[[Tensor], Tensor],
    exact: Tensor,
    count: int,
    num_samples: int = 1,
    leave_one_out: bool = False,
) -> None:
    """Check that the mean of ``count`` gradients is exact, within five standard errors."""
    estimator = with_steep(scores, structure, n, num_samples, leave_one_out)
    copies = scores.repeat(count, *[1] * scores.dim()).requires_grad_()
    torch.manual_seed(5)
    draw = estimator(structure, copies, torch.full((count,), n), True)
    assert draw.extras is not None and draw.extras.shape == (5 * estimator.num_samples, count)
    features = copies.new_zeros((count, 1))
    objective = estimator.objective(
        losses_of(draw.z), draw.weights, draw.log_probs, features, draw.extras
    )
    (each,) = torch.autograd.grad(objective.sum(), copies)
    assert ((each.mean(0) - exact).abs() <= 5 * each.std(0) / count**0.5 + 1e-9).all()
    assert exact.abs().max() > 0.02
    # Without either term of the network, the mean would differ.
    for slope in slopes_of_the_network(estimator, structure, scores, n, count):
        assert (slope.mean(0).abs() > 8 * each.std(0) / count**0.5).any()


def slopes_of_the_network(
    estimator: TraceRelax, structure: Structure, scores: Tensor, n: int, count: int
) -> list[Tensor]:
    """Return ∇c(r) and ∇c(r̃)."""
    leaf = scores.repeat(count, *[1] * scores.dim()).requires_grad_()
    sizes = torch.full((count,), n)
    drawn = structure.reparameterize_trace(leaf, sizes)
    return [
        torch.autograd.grad(
            estimator.surrogate(structure, noisy, leaf.detach(), sizes).sum(),
            leaf,
            retain_graph=True,
        )[0]
        for noisy in (drawn.noisy, drawn.redrawn)
    ]


@pytest.mark.parametrize(
    "structure", [SpanningTree(), SpanningTree(single_root=True), KOfN(2)], ids=repr
)
def test_a_trained_network_lowers_the_variance(structure: Structure) -> None:
    """The variance falls to less than a tenth of the variance of the score function of traces.

    On these problems it is close to the variance after the mean loss is subtracted.
    """
    torch.manual_seed(0)
    plain = gradients(TraceScoreFunction(), structure, 4000)
    scores, length, table = problem(structure)
    drawn = structure.sample_trace(scores.expand(4000, *scores.shape[1:]), length.repeat(4000))
    mean = float(loss_of(drawn.z, table).mean())
    centred = gradients(TraceScoreFunction(), structure, 4000, shift=-mean).var(0).sum()
    found = gradients(trained(structure, 150), structure, 4000).var(0).sum()
    assert found < 0.1 * plain.var(0).sum()
    assert found < 1.2 * centred


def test_its_network_learns_from_the_objective_and_scores_do_not_from_its_norm() -> None:
    structure, scores = SpanningTree(), torch.randn(3, 5, 5).requires_grad_()
    torch.manual_seed(1)
    estimator = TraceRelax(2)
    draw = estimator(structure, scores, torch.tensor([4, 3, 4]), True)
    losses = torch.rand(2, 3)
    objective = estimator.objective(
        losses, draw.weights, draw.log_probs, torch.zeros(3, 1), draw.extras
    )
    weights = list(estimator.parameters())
    found = torch.autograd.grad(objective.sum(), [scores, *weights])
    assert all(each.isfinite().all() and each.any() for each in found)


def test_of_one_choice_it_is_relax() -> None:
    """The marginals of one choice are the softmax, so both estimators agree."""
    scores, lengths = torch.randn(5, 4, dtype=torch.float64), torch.tensor([4, 0, 3, 1, 4])
    drawn = []
    for make in (Relax, TraceRelax):
        torch.manual_seed(7)
        estimator = make(2, 4).double()
        torch.manual_seed(8)
        drawn.append(estimator(OneOfN(), scores, lengths, True))
    assert torch.equal(drawn[0].z, drawn[1].z)
    for name in ("log_probs", "extras"):
        torch.testing.assert_close(getattr(drawn[0], name), getattr(drawn[1], name))


@pytest.mark.parametrize(("n", "single_root"), product([0, 1], [False, True]))
def test_items_of_few_tokens_have_their_one_tree(n: int, single_root: bool) -> None:
    scores = torch.randn(2, n + 1, n + 1).requires_grad_()
    draw = TraceRelax()(SpanningTree(single_root=single_root), scores, torch.full((2,), n), True)
    assert draw.z.sum() == 2 * n and (draw.log_probs == 0).all()
