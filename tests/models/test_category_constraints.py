"""Sums over allowed sets of labels, against enumeration of all sets."""

from itertools import product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from spacy_latent.errors import LatentError
from spacy_latent.models.category_constraints import CategoryConstraints
from spacy_latent.models.text_losses import multilabel_loss

LABELS = ["a", "b", "c", "d", "e", "f"]
groups = st.lists(
    st.lists(st.sampled_from(LABELS), min_size=2, max_size=4, unique=True), max_size=2
)


LEAVES = [["c", "a"], ["d", "a"], ["e", "b"], ["f", "b"]]


def allowed_by(constraints: CategoryConstraints) -> torch.Tensor:
    """Return all sets of labels that break no constraint, one in each row."""
    bits = product((0.0, 1.0), repeat=len(LABELS))
    kept = [own for own in bits if constraints.broken_by(dict(zip(LABELS, own))) is None]
    return torch.tensor(kept, dtype=torch.float64)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(shape, generator=generator, dtype=torch.float64)


@given(groups, groups, groups, st.integers(0, 5))
@example([["c", "d", "e", "f"]], [], LEAVES, 0)
@example([], [["c", "d", "e", "f"]], LEAVES, 1)
@example([["c", "d", "e", "f"]], [["c", "d", "b"]], LEAVES[:3], 2)
@example([["c", "d", "e", "f"]] * 2, [], LEAVES, 3)
@settings(deadline=None, max_examples=60)
def test_sums_probabilities_and_losses_are_those_of_all_sets(exclusive, one_of, implied, seed):
    constraints = CategoryConstraints(exclusive, one_of, implied)
    sets = allowed_by(constraints)
    if not len(sets):
        with pytest.raises(LatentError, match="set"):
            constraints.over(LABELS)
        return
    field = constraints.over(LABELS)
    logits = numbers(2, 3, len(LABELS), seed=seed)
    totals = logits @ sets.T
    torch.testing.assert_close(
        field.log_partition(logits, torch.zeros_like(logits)), totals.logsumexp(-1)
    )
    torch.testing.assert_close(field.probabilities(logits), totals.softmax(-1) @ sets)
    gold = sets[seed % len(sets)].expand(3, -1)
    known = (numbers(3, len(LABELS), seed=seed + 1) > 0).double()
    agree = ((sets[None] == gold[:, None]) | (known[:, None] == 0)).all(-1)
    kept = totals.masked_fill(~agree, -torch.inf).logsumexp(-1)
    torch.testing.assert_close(field.loss(logits, gold, known), totals.logsumexp(-1) - kept)


def test_without_constraints_the_loss_is_the_usual_one():
    field = CategoryConstraints().over(LABELS)
    logits, known = numbers(2, 3, 6), torch.ones(3, 6, dtype=torch.float64)
    truths = (numbers(3, 6, seed=1) > 0).double()
    torch.testing.assert_close(
        field.loss(logits, truths, known), multilabel_loss(logits, truths, known)
    )
    torch.testing.assert_close(field.probabilities(logits), logits.sigmoid())


def test_gradients_of_the_loss_are_right_and_finite_where_labels_must_not_be():
    field = CategoryConstraints([["a", "b", "c"]], [["d", "e"]], [["a", "f"]]).over(LABELS)
    truths = torch.tensor([[1.0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 1, 0]], dtype=torch.float64)
    known = torch.tensor([[1.0, 1, 1, 1, 1, 1], [0, 1, 0, 1, 0, 1]], dtype=torch.float64)
    logits = numbers(1, 2, 6).requires_grad_()
    assert gradcheck(lambda given: field.loss(given, truths, known), (logits,))


def test_a_hundred_labels_cost_as_many_states_and_not_two_to_that():
    labels = [f"label{i}" for i in range(150)]
    kinds, rest = labels[:100], labels[100:]
    field = CategoryConstraints([kinds], implied=[[kind, labels[149]] for kind in rest[:-1]]).over(
        labels
    )
    found = field.probabilities(numbers(4, 150))
    assert (found[:, :100].sum(-1) <= 1 + 1e-9).all()
    assert (found[:, 100:149] <= found[:, 149:] + 1e-9).all()
    assert max(field.rows) <= 2 * len(labels)


@pytest.mark.parametrize("together", [True, False])
def test_a_hierarchy_costs_as_many_states_as_it_has_sets(together):
    """Joint tables of a parent and its twenty children had two to that many states."""
    parents = [f"p{i}" for i in range(3)]
    children = [[f"{parent}c{j}" for j in range(20)] for parent in parents]
    all_children = [child for own in children for child in own]
    constraints = CategoryConstraints(
        exclusive=[all_children] if together else children,
        one_of=[parents],
        implied=[[child, p] for p, own in zip(parents, children) for child in own],
    )
    labels = [*parents, *all_children]
    sets = [[p, *child] for p, own in zip(parents, children) for child in [[], *([c] for c in own)]]
    allowed = torch.tensor([[float(x in own) for x in labels] for own in sets]).double()
    logits = numbers(4, len(labels))
    found = constraints.over(labels).probabilities(logits)
    torch.testing.assert_close(found, (logits @ allowed.T).softmax(-1) @ allowed)


@pytest.mark.parametrize("name", ["exclusive", "one_of"])
def test_one_group_of_all_leaves_costs_no_more_than_groups_of_siblings(name):
    """Their table kept the states of all parents, two to the number of them, at once."""
    tops, parents = [f"t{i}" for i in range(4)], [f"p{i}" for i in range(24)]
    leaves = [f"{parent}c{j}" for parent in parents for j in range(10)]
    groups = {name: [leaves], "exclusive" if name == "one_of" else "one_of": [parents]}
    up = [[leaf, leaf.split("c")[0]] for leaf in leaves]
    up += [[parent, tops[i % 4]] for i, parent in enumerate(parents)]
    labels = [*tops, *parents, *leaves]
    field = CategoryConstraints(**groups, implied=up).over(labels)
    assert max(field.rows) <= 2**4 * len(parents) ** 2
    found = field.probabilities(numbers(4, len(labels)))
    children = found[:, len(tops) + len(parents) :].reshape(4, len(parents), 10).sum(-1)
    assert (children <= found[:, len(tops) : len(tops) + len(parents)] + 1e-9).all()


def test_labels_that_imply_the_same_ten_cost_two_to_ten_states():
    """Tables of two labels have three states, whose product is far above those that agree."""
    first, second = [f"a{i}" for i in range(10)], [f"b{i}" for i in range(10)]
    field = CategoryConstraints(implied=[[label, *second] for label in first]).over(first + second)
    assert max(len(step.values) for step in field.steps) == 2**10 + 1


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_large_scores_leave_probabilities(scale):
    field = CategoryConstraints([["a", "b"]], [["c", "d"]], [["e", "f"]]).over(LABELS)
    found = field.probabilities((scale * numbers(5, 6)).float())
    assert found.dtype == torch.float32 and found.isfinite().all()
    assert (found >= 0).all() and (found <= 1 + 1e-6).all()


@pytest.mark.parametrize(
    "given, said",
    [
        ({"exclusive": [["a"]]}, r"exclusive.*'a'"),
        ({"implied": [["a", "a"]]}, "different"),
    ],
)
def test_groups_that_say_nothing_are_refused(given, said):
    with pytest.raises(LatentError, match=said):
        CategoryConstraints(**given)


def test_names_that_are_no_labels_and_tied_labels_are_refused():
    with pytest.raises(LatentError, match="'z'"):
        CategoryConstraints([["a", "z"]]).over(LABELS)
    tied = [f"label{i}" for i in range(40)]
    ring = [[one, other] for one in tied[:20] for other in tied[20:]]
    with pytest.raises(LatentError, match="65,536"):
        CategoryConstraints(implied=ring, exclusive=[]).over(tied)


def test_what_only_unknown_labels_break_is_named():
    field = CategoryConstraints([["b", "c"]], implied=[["a", "b"]]).over(LABELS)
    truths = torch.zeros(2, 6)
    truths[1, 0] = truths[1, 2] = 1.0
    known = torch.zeros(2, 6)
    known[1, 0] = known[1, 2] = 1.0
    with pytest.raises(LatentError, match=r"\[1\]"):
        field.loss(torch.zeros(1, 2, 6), truths, known)
