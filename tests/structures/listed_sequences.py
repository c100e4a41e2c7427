"""Checks of structures of tags and segments against the list of all sequences with their scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError
from spacy_latent.structures.semi_markov import SemiMarkov
from spacy_latent.structures.tag_sequence import TagSequence

Bound = tuple[Tensor, Tensor, Tensor]


def random_bound(num_tags: int, scale: float = 1.0) -> Bound:
    """Return random scores of transitions, of the first tag and of the last tag."""
    return (
        torch.randn(num_tags, num_tags, dtype=torch.float64) * scale,
        torch.randn(num_tags, dtype=torch.float64) * scale,
        torch.randn(num_tags, dtype=torch.float64) * scale,
    )


def padded(own: Tensor) -> Tensor:
    """Return a batch of one item, followed by two rows of NaN as padding."""
    return torch.cat([own, own.new_full((2, *own.shape[1:]), torch.nan)])[None]


def check_against_all(
    structure: TagSequence | SemiMarkov, inputs: tuple[Tensor, ...], z: Tensor, totals: Tensor
) -> None:
    """Compare all operations on one item with the list of its sequences.

    Args:
        inputs: Scores of the item ``(n, *parts)``, with NaN at parts outside of the item, and the
            scores that are bound to the structure.
        z: All sequences, ``(M, n, *parts)``.
        totals: Their scores, ``(M,)``, as a function of the inputs.
    """
    own, n = inputs[0], len(inputs[0])
    scores, lengths = padded(own), torch.tensor([n])

    def gradients(value: Tensor) -> tuple[Tensor, ...]:
        # If the item is empty, the value does not depend on its scores, and autograd would raise an
        # error.
        value = value + sum(0.0 * given.nan_to_num().sum() for given in inputs)
        return torch.autograd.grad(value, inputs, retain_graph=True)

    p = totals.softmax(0)
    mean = torch.einsum("z,z...->...", p, z)
    vector = torch.randn_like(own)
    marginals = structure.marginals(scores, lengths)[0]
    assert not marginals[n:].any()
    torch.testing.assert_close(marginals[:n], mean, rtol=1e-10, atol=1e-12)
    for found, expected in (
        (structure.log_partition(scores, lengths)[0], totals.logsumexp(0)),
        ((marginals[:n] * vector).sum(), (mean * vector).sum()),
        (structure.entropy(scores, lengths)[0], -(p * totals.log_softmax(0)).sum()),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-9)
        for one, other in zip(gradients(found), gradients(expected)):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-8)
    log_probs = structure.log_prob(z[:, None], own[None], lengths)[:, 0]
    torch.testing.assert_close(log_probs, totals.log_softmax(0), rtol=1e-10, atol=1e-9)
    assert torch.equal(structure.map(scores, lengths)[0, :n], z[totals.argmax()])
    assert structure.log_count(scores, lengths).exp().item() == pytest.approx(len(z))
    order = totals.argsort(descending=True)[:4]
    several = structure.top_k(scores, lengths, 4)
    assert torch.equal(several.z[: len(order), 0, :n], z[order])
    torch.testing.assert_close(several.scores[: len(order), 0], totals[order].detach())
    assert torch.isneginf(several.scores[len(order) :]).all()


def check_gradients(
    structure: TagSequence | SemiMarkov, scores: Tensor, bound: Bound, lengths: Tensor
) -> None:
    """Compare derivatives with finite differences: by the scores that are not −inf, and by the
    bound scores."""
    allowed = ~scores.isneginf()
    inputs = [given.requires_grad_() for given in (scores[allowed], *bound)]

    def full(values: Tensor) -> Tensor:
        return torch.full_like(scores, -torch.inf).masked_scatter(allowed, values)

    def marginals(values: Tensor, *bound: Tensor) -> Tensor:
        return structure.bind(*bound).marginals(full(values), lengths)

    def log_partition(values: Tensor, *bound: Tensor) -> Tensor:
        return structure.bind(*bound).log_partition(full(values), lengths)

    assert torch.autograd.gradcheck(marginals, inputs)
    assert torch.autograd.gradgradcheck(log_partition, inputs)


def check_infeasible(
    structure: TagSequence | SemiMarkov, scores: Tensor, lengths: Tensor, item: int
) -> None:
    """Check that each operation names the item that has no sequence."""
    for operation in ("map", "marginals", "log_partition", "sample", "top_k"):
        more = (2,) if operation == "top_k" else ()
        with pytest.raises(InfeasibleError) as error:
            getattr(structure, operation)(scores, lengths, *more)
        assert error.value.items == [item]
