from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.kernels.autograd import batches
from spacy_latent.structures.projective_tree import ProjectiveTree
from tests.structures.logarithms import projective_inside, projective_outside


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("single_root", [False, True])
def test_gradients(single_root: bool, scale: float) -> None:
    structure = ProjectiveTree(single_root)
    torch.manual_seed(1)
    scores = torch.randn(2, 5, 5, dtype=torch.float64)
    if scale > 1:
        # Two trees of nearly the same score, far above the others.
        scores *= 1e3
        scores[:, 0, 1:] = scores[:, 0, 1:] * 1e-3 + 1e4
    scores[0, 2, 1] = -torch.inf
    lengths = torch.tensor([4, 3])
    free = torch.isfinite(scores)
    leaf = scores[free].requires_grad_()

    def full(values: Tensor) -> Tensor:
        return scores.masked_scatter(free, values)

    def of_marginals(values: Tensor) -> Tensor:
        return structure.marginals(full(values), lengths)

    def of_log_partition(values: Tensor) -> Tensor:
        return structure.log_partition(full(values), lengths)

    # Sums of 1e4 leave finite differences fewer digits.
    tolerance = 1e-5 if scale == 1 else 1e-3
    assert torch.autograd.gradcheck(of_marginals, leaf, atol=tolerance)
    assert torch.autograd.gradgradcheck(of_log_partition, leaf, atol=tolerance)


def reference(
    scores: np.ndarray, along: np.ndarray, single_root: bool
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the log-partition, the marginals and the Hessian times ``along``, from logarithms
    alone.
    """
    n = len(scores) - 1
    padded, change = np.full((n + 2, n + 2), -np.inf), np.zeros((n + 2, n + 2))
    padded[: n + 1, : n + 1] = scores
    np.fill_diagonal(padded, -np.inf)
    padded[:, 0] = -np.inf
    change[: n + 1, : n + 1] = np.where(np.isfinite(padded[:-1, :-1]), along, 0.0)
    # Logarithms lose no digits if the best tree has score 0.
    best = ProjectiveTree(single_root).best_heads(torch.from_numpy(scores)[None], torch.tensor([n]))
    arcs = padded[best[0, 1:], np.arange(1, n + 1)]
    padded[:, 1 : n + 1] -= arcs
    charts, d_charts, q, dq = (np.empty((5, n + 2, n + 2)) for _ in range(4))
    first = int(single_root)
    total, d_total = projective_inside(padded, change, n, first, charts, d_charts)
    out, products = np.zeros_like(padded), np.zeros_like(padded)
    projective_outside(
        *(padded, change, n, first, charts, d_charts, total, d_total, q, dq, out, products)
    )
    return arcs.sum() + total, out[: n + 1, : n + 1], products[: n + 1, : n + 1]


# Some of these sums fit into float64 with weights relative to the sums of their columns. Others fit
# with weights relative to the best tree, and some do not fit.
@pytest.mark.parametrize(
    "n, scale",
    [
        *((30, 1e-3), (50, 1.0), (50, 10.0), (120, 3.0), (200, 1e-3), (300, 1.0)),
        *((50, 100.0), (50, 1e3), (120, 30.0), (120, 300.0)),
    ],
)
@pytest.mark.parametrize("single_root", [False, True])
def test_long_sentences_agree_with_logarithms(n: int, scale: float, single_root: bool) -> None:
    random = np.random.default_rng(n)
    scores, along = random.normal(size=(2, n + 1, n + 1))
    scores *= scale
    expected, mean, products = reference(scores, along, single_root)
    structure, lengths = ProjectiveTree(single_root), torch.tensor([n])
    double = torch.from_numpy(scores)[None].requires_grad_()
    found = structure.log_partition(double, lengths)
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-10)
    marginals = structure.marginals(double, lengths)
    (product_,) = torch.autograd.grad(marginals, double, torch.from_numpy(along)[None])
    np.testing.assert_allclose(marginals[0].detach(), mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(marginals[0, :, 1:].detach().sum(0), 1.0, rtol=1e-10)
    tolerance = 1e-9 * np.abs(products).max() + 1e-12
    np.testing.assert_allclose(product_[0], products, rtol=1e-7, atol=tolerance)


def test_peaked_scores_that_fit_together_need_no_exponents() -> None:
    """Each token has one likely head, the token before it. The number of trees does not bound their
    sum.
    """
    scores = torch.zeros(1, 301, 301, dtype=torch.float64)
    scores[0, range(300), range(1, 301)] = 30.0
    lengths = torch.tensor([300])
    found = ProjectiveTree().log_partition(scores, lengths)
    torch.testing.assert_close(found, torch.tensor([9000.0]).double(), rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("single_root", [False, True])
def test_a_sum_that_float64_holds_with_few_digits_only(single_root: bool, batch: int) -> None:
    """The arcs of score 0, which make the others underflow, form no tree."""
    scores = torch.full((1, 4, 4), -torch.inf, dtype=torch.float64)
    scores[0, 0, 2] = scores[0, 2, 1] = scores[0, 2, 3] = -245.0
    scores[0, 3, 1] = scores[0, 1, 3] = scores[0, 1, 2] = 0.0
    structure, lengths = ProjectiveTree(single_root=single_root), torch.full((batch,), 3)
    found = structure.log_partition(scores.repeat(batch, 1, 1), lengths)
    assert found.tolist() == pytest.approx([-735.0] * batch, rel=1e-13)


def test_scores_of_a_thousand_over_200_tokens() -> None:
    scores = torch.randn(1, 201, 201, generator=torch.Generator().manual_seed(0)) * 1e3
    marginals = ProjectiveTree().marginals(scores.double(), torch.tensor([200]))
    sums = marginals[0, :, 1:].sum(0)
    torch.testing.assert_close(sums, torch.ones(200).double(), rtol=1e-10, atol=0)
    torch.testing.assert_close(
        ProjectiveTree().marginals(scores, torch.tensor([200])).double(),
        marginals,
        rtol=1e-5,
        atol=1e-7,
    )


@pytest.mark.parametrize("batch", [1, 8])
def test_the_change_of_a_sum_near_the_smallest_number(batch: int) -> None:
    """A sum over spans of about 1e-290 has a relative change that float64 cannot represent."""
    torch.manual_seed(3)
    for _ in range(109):
        scores = 300 * torch.randn(256, 13, 13, dtype=torch.float64)
    along = torch.arange(13).double().sin().expand(13, 13).contiguous()
    expected = reference(scores[37].numpy(), along.numpy(), True)[2]
    given = scores[37].repeat(batch, 1, 1).requires_grad_()
    marginals = ProjectiveTree(single_root=True).marginals(given, torch.full((batch,), 12))
    (product_,) = torch.autograd.grad(marginals, given, along.expand_as(given))
    for found in product_:
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("single_root", [False, True])
def test_samples_where_numbers_do_not_hold_the_charts(single_root: bool) -> None:
    """All tokens prefer heads that form no tree, and the charts underflow."""
    structure = ProjectiveTree(single_root=single_root)
    torch.manual_seed(0)
    scores, lengths = 3000 * torch.randn(4, 41, 41, dtype=torch.float64), torch.tensor([40] * 4)
    drawn = structure.sample(scores, lengths, 3)
    assert torch.equal(drawn, structure.map(scores, lengths).expand_as(drawn))


def test_no_warning_of_what_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of marginals needs no log-partition, so its uninitialized memory is not cast."""

    class Dirty:
        """A NumPy whose ``empty`` returns arrays full of numbers beyond the range of float32."""

        def __getattr__(self, name: str) -> object:
            return full if name == "empty" else getattr(np, name)

    def full(shape: object, dtype: object = float) -> np.ndarray:
        array = np.empty(shape, dtype=dtype)
        array[...] = 1e300 if array.dtype == np.float64 else 1
        return array

    monkeypatch.setattr(batches, "np", Dirty())
    scores, lengths = torch.randn(12, 18, 18), torch.tensor([17] * 9 + [16] * 3)
    scores.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        marginals = ProjectiveTree().marginals(scores, lengths)
        (gradient,) = torch.autograd.grad(marginals.square().sum(), scores)
    assert gradient.isfinite().all() and marginals.max() <= 1.0
