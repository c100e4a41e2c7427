from __future__ import annotations

import itertools
import pickle
import re
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, NotTractable
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.tag_sequence import TagSequence, allowed_transitions, scheme_tags
from tests.enumeration import tag_sequences
from tests.structures.listed_sequences import (
    Bound,
    check_against_all,
    check_gradients,
    check_infeasible,
    padded,
    random_bound,
)


@cache
def sequences_of(n: int, num_tags: int) -> Tensor:
    rows = list(tag_sequences(n, num_tags))
    return torch.tensor(rows, dtype=torch.int64).view(len(rows), n)


def totals_of(sequences: Tensor, emissions: Tensor, bound: Bound) -> Tensor:
    """Return the scores of the given sequences of one item."""
    n = len(emissions)
    transitions, start, end = bound
    totals = emissions.new_zeros(len(sequences))
    for i in range(n):
        totals = totals + emissions[i, sequences[:, i]]
        if i:
            totals = totals + transitions[sequences[:, i - 1], sequences[:, i]]
    if n:
        totals = totals + start[sequences[:, 0]] + end[sequences[:, -1]]
    return totals


# At scale 1000 underflow would change results, so the kernel uses logarithms.
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("num_tags", [1, 2, 3])
def test_everything_against_enumeration(num_tags: int, scale: float) -> None:
    torch.manual_seed(0)
    for n in range(6):
        emissions = (torch.randn(n, num_tags, dtype=torch.float64) * scale).requires_grad_()
        bound = tuple(given.requires_grad_() for given in random_bound(num_tags, scale))
        sequences = sequences_of(n, num_tags)
        z = torch.nn.functional.one_hot(sequences, num_tags).double()
        totals = totals_of(sequences, emissions, bound)
        check_against_all(TagSequence().bind(*bound), (emissions, *bound), z, totals)


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_gradients(scale: float) -> None:
    torch.manual_seed(1)
    scores = torch.randn(4, 4, 3, dtype=torch.float64)
    bound = transitions, start, _ = random_bound(3)
    # The best first tag has bad successors. Sums of weights underflow, so the kernel uses
    # logarithms.
    start[0] += scale
    transitions[0] -= 4 * scale
    check_gradients(TagSequence(), scores, bound, torch.tensor([4, 2, 1, 0]))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e3])
def test_long_sequences_are_those_of_the_chain_with_transitions_written_out(scale: float) -> None:
    torch.manual_seed(2)
    n, num_tags, lengths = 200, 6, torch.tensor([200])
    scores = torch.randn(1, n, num_tags, dtype=torch.float64) * scale
    transitions, start, end = random_bound(num_tags, scale)
    inputs = [given.requires_grad_() for given in (scores, transitions, start, end)]
    structure = TagSequence().bind(*inputs[1:])
    written_out = scores[:, :, None] + transitions
    written_out = torch.cat([written_out[:, :1] * 0, written_out[:, 1:]], 1)
    written_out[:, 0, 0] = scores[:, 0] + start
    written_out[:, -1] = written_out[:, -1] + end
    chain, vector = LinearChain(), torch.randn(1, n, num_tags, dtype=torch.float64)
    assert structure.log_partition(scores, lengths).item() == pytest.approx(
        chain.log_partition(written_out, lengths).item(), rel=1e-12
    )
    found = structure.marginals(scores, lengths)
    expected = chain.marginals(written_out, lengths).sum(2)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-300)
    for one, other in zip(
        torch.autograd.grad((found * vector).sum(), inputs),
        torch.autograd.grad((expected * vector).sum(), inputs),
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)
    best = chain.map(written_out, lengths).sum(2)
    assert torch.equal(structure.map(scores, lengths), best)


def test_partial_annotation_is_minus_infinity_elsewhere() -> None:
    torch.manual_seed(3)
    bound = random_bound(3)
    structure, lengths = TagSequence().bind(*bound), torch.tensor([4])
    scores = torch.randn(1, 4, 3, dtype=torch.float64)
    # Position 1 has tag 1 or 2, the last position has tag 0, and the others are not annotated.
    restricted = scores.clone()
    restricted[0, 1, 0] = restricted[0, 3, 1] = restricted[0, 3, 2] = -torch.inf
    sequences = sequences_of(4, 3)
    agrees = (sequences[:, 1] != 0) & (sequences[:, 3] == 0)
    totals = totals_of(sequences, scores[0], bound)
    found = structure.log_partition(restricted, lengths) - structure.log_partition(scores, lengths)
    expected = totals[agrees].logsumexp(0) - totals.logsumexp(0)
    torch.testing.assert_close(found[0], expected)
    marginals = structure.marginals(restricted, lengths)[0]
    assert marginals[1, 0] == 0 and marginals[3].tolist() == [1, 0, 0]


def test_infeasible_items_are_named() -> None:
    structure = TagSequence().bind(*allowed_transitions(["O", "B-X", "I-X", "L-X"], "biluo"))
    scores = torch.zeros(3, 2, 4)
    # Without U there is no span of one token.
    scores[1, 0, 0] = -torch.inf
    check_infeasible(structure, scores, torch.tensor([2, 1, 2]), 1)


def test_without_transitions_positions_are_independent() -> None:
    torch.manual_seed(5)
    structure, lengths = TagSequence(), torch.tensor([5, 2])
    scores = torch.randn(2, 5, 4, dtype=torch.float64)
    inside = structure.part_mask(scores, lengths)
    expected = torch.where(inside, scores.softmax(2), 0.0)
    torch.testing.assert_close(structure.marginals(scores, lengths), expected)
    solution = structure.sparsemap(scores, lengths)
    projected = scores[0, 0].numpy()
    rest = np.sort(projected)[::-1]
    kept = np.flatnonzero(1 + np.arange(1, 5) * rest > np.cumsum(rest))[-1] + 1
    threshold = (rest[:kept].sum() - 1) / kept
    np.testing.assert_allclose(
        solution.mean[0, 0].numpy(), np.maximum(projected - threshold, 0), atol=1e-6
    )


def test_sparsemap_takes_constraints_but_no_other_transitions() -> None:
    tags = scheme_tags(["X"], "iob2")
    structure = TagSequence().bind(*allowed_transitions(tags, "iob2"))
    scores, lengths = torch.randn(1, 4, 3), torch.tensor([4])
    atoms = structure.sparsemap(scores, lengths).atoms
    assert torch.isfinite(structure.log_prob(atoms[:1], scores, lengths)).all()
    with pytest.raises(NotTractable, match="LinearChain"):
        TagSequence().bind(*random_bound(3)).sparsemap(scores, lengths)


@pytest.mark.parametrize("scheme", ["biluo", "iob2"])
def test_schemes_allow_what_spells_spans(scheme: str) -> None:
    tags = scheme_tags(["X", "Y"], scheme)  # type: ignore[arg-type]
    structure = TagSequence().bind(*allowed_transitions(tags, scheme))  # type: ignore[arg-type]
    span = {"biluo": "(U{0}|B{0}(I{0})*L{0})", "iob2": "(B{0}(I{0})*)"}[scheme]
    spelled = re.compile("(O|" + "|".join(span.format(label) for label in "XY") + ")*")
    for n in range(1, 5):
        sequences = sequences_of(n, len(tags))
        z = torch.nn.functional.one_hot(sequences, len(tags)).double()
        scores = torch.zeros(1, n, len(tags), dtype=torch.float64)
        allowed = structure.log_prob(z[:, None], scores, torch.tensor([n]))[:, 0] > -torch.inf
        expected = [
            spelled.fullmatch("".join(tags[t].replace("-", "") for t in row)) is not None
            for row in sequences.tolist()
        ]
        assert allowed.tolist() == expected
        count = structure.log_count(scores, torch.tensor([n])).exp().item()
        assert count == pytest.approx(sum(expected))


def test_tags_of_another_scheme_are_refused() -> None:
    for tags in (["O", "S-PER"], ["O", "B"], ["O", "B-"], ["O", "-"]):
        with pytest.raises(InvalidScores, match="'biluo'"):
            allowed_transitions(tags, "biluo")
    with pytest.raises(InvalidScores, match="'iob2'"):
        allowed_transitions(["O", "U-PER"], "iob2")
    with pytest.raises(InvalidScores, match="bio"):
        scheme_tags(["PER"], "bio")  # type: ignore[arg-type]
    transitions, _, _ = allowed_transitions(["O", "B-a-b", "L-a-b", "L-a"], "biluo")
    assert transitions[1].tolist() == [-torch.inf, -torch.inf, 0.0, -torch.inf]


# Prints the kilobytes by which a long sequence raises the peak of a process, and its log-partition.
PEAK = """
import resource, torch
from spacy_latent.structures.tag_sequence import TagSequence

def log_partition(n, tags=64):
    bound = torch.zeros(tags, tags), torch.zeros(tags), torch.zeros(tags)
    structure = TagSequence().bind(*bound)
    return structure.log_partition(torch.zeros(1, n, tags), torch.tensor([n])).item()

log_partition(10)  # Compiles the kernel, which takes memory.
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
value = log_partition(50_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, value)
"""


def test_memory_does_not_grow_with_the_square_of_the_tags() -> None:
    pytest.importorskip("resource")
    # The peak is the one of a whole process, so that other tests would hide it.
    printed = subprocess.run(
        [sys.executable, "-c", PEAK], capture_output=True, text=True, check=True
    ).stdout.split()
    used, value = int(printed[0]), float(printed[1])
    assert value == pytest.approx(50_000 * np.log(64), rel=1e-5)
    # An array of transitions for each position would take 0.8 GB, and in float64 twice that.
    assert used < 400_000


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_bound_scores_that_are_no_numbers_are_refused(value: float) -> None:
    bound, lengths = random_bound(2), torch.tensor([3, 3, 3])
    bound[0][1, 0] = value
    with pytest.raises(InvalidScores, match=r"\[0, 1, 2\]"):
        TagSequence().bind(*bound).map(torch.zeros(3, 3, 2), lengths)


def test_wrong_input_is_refused() -> None:
    scores, lengths = torch.zeros(2, 4, 3), torch.tensor([4, 3])
    structure = TagSequence().bind(*random_bound(3))
    for bad, match in (
        ((scores, torch.tensor([3])), "shape"),
        ((scores[..., :2], lengths), "bound"),
        ((scores[..., :0], lengths), "bound"),
    ):
        with pytest.raises(InvalidScores, match=match):
            structure.map(*bad)
    transitions, start, end = random_bound(3)
    for wrong in ((transitions[:2], start, end), (transitions, start[:2], end)):
        with pytest.raises(InvalidScores, match=r"\(K, K\)"):
            TagSequence().bind(*wrong)
    with pytest.raises(InvalidScores, match="int64"):
        TagSequence().bind(transitions.long(), start, end)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_bound_may_be_in_half_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    scores, lengths = torch.randn(2, 4, 3).to(dtype), torch.tensor([4, 2])
    half = [torch.randn(shape).to(dtype).requires_grad_() for shape in ((3, 3), (3,), (3,))]
    own = TagSequence().bind(half[0], half[1], half[2])
    whole = TagSequence().bind(half[0].float(), half[1].float(), half[2].float())
    found = own.marginals(scores, lengths)
    assert found.dtype == dtype and torch.equal(found, whole.marginals(scores, lengths))
    slopes = torch.autograd.grad(own.log_partition(scores, lengths).sum(), half)
    assert all(slope.dtype == dtype and slope.any() for slope in slopes)


def test_what_is_bound_can_be_pickled_and_does_not_fill_the_screen() -> None:
    structure = TagSequence().bind(*random_bound(3))
    again = pickle.loads(pickle.dumps(structure))
    scores, lengths = torch.randn(1, 4, 3), torch.tensor([4])
    assert torch.equal(again.marginals(scores, lengths), structure.marginals(scores, lengths))
    assert repr(structure) == "TagSequence(3 tags)" and repr(TagSequence()) == "TagSequence()"


def test_codes_go_both_ways() -> None:
    structure = TagSequence().bind(*random_bound(4))
    tags = np.array([2, 0, 3], dtype="int32")
    z = structure.encode(tags, 3)
    assert z.shape == (3, 4)
    assert structure.decode(z, 3).tolist() == tags.tolist()
    with pytest.raises(InvalidScores, match="num_tags"):
        TagSequence().encode(tags, 3)
    assert TagSequence().encode(tags, 3, num_tags=5).shape == (3, 5)


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_steps_along_a_sequence_against_enumeration(scale: float) -> None:
    """The kernel uses logarithms at scale 1000."""
    torch.manual_seed(1)
    num_tags, n = 3, 4
    emissions, bound = torch.randn(n, num_tags).double() * scale, random_bound(num_tags, scale)
    chain = TagSequence().bind(*bound)
    every = sequences_of(n, num_tags)
    weights = totals_of(every, emissions, bound).softmax(0)
    scores, lengths = padded(emissions), torch.tensor([n])
    for tags in [chain.best_tags(scores, lengths)[0, :n], torch.tensor([0, 2, 1, 1])]:
        given = torch.full((1, n + 2), -1)
        given[0, :n] = tags
        marginals, steps = chain.follow(given, scores, lengths)
        torch.testing.assert_close(marginals, chain.marginals(scores, lengths))
        assert not steps[0, n:].any()
        for start in range(n):
            for end in range(start + 1, n + 1):
                agrees = (every[:, start:end] == tags[start:end]).all(1)
                found = marginals[0, start, tags[start]] * steps[0, start + 1 : end].prod()
                torch.testing.assert_close(found, (weights * agrees).sum(), atol=1e-12, rtol=1e-9)


def test_a_chain_of_pairs_has_the_same_sequences_at_the_same_scores() -> None:
    torch.manual_seed(0)
    emissions = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([4, 2])
    bound = tuple(part.requires_grad_() for part in random_bound(3))
    for chain in (TagSequence(), TagSequence().bind(*bound)):
        pairs = chain.chain_scores(emissions, lengths)
        own, other = (
            chain.log_partition(emissions, lengths),
            LinearChain().log_partition(pairs, lengths),
        )
        torch.testing.assert_close(own, other)
        leaves = [emissions, *(bound if chain.bound is not None else ())]
        for a, b in zip(
            torch.autograd.grad(own.sum(), leaves), torch.autograd.grad(other.sum(), leaves)
        ):
            torch.testing.assert_close(a, b)


def test_best_tags_are_the_map() -> None:
    torch.manual_seed(0)
    chain = TagSequence().bind(*random_bound(3))
    scores, lengths = torch.randn(3, 5, 3).double(), torch.tensor([5, 0, 2])
    tags = chain.best_tags(scores, lengths)
    z = chain.map(scores, lengths)
    assert (tags[1] == -1).all() and (tags[2, 2:] == -1).all()
    torch.testing.assert_close(z.sum(-1), (tags >= 0).to(z))
    assert (z.argmax(-1)[tags >= 0] == tags[tags >= 0]).all()


def test_steps_along_tags_that_do_not_fit_are_refused() -> None:
    scores, lengths = torch.zeros(1, 30, 3), torch.tensor([30])
    for tags in (torch.zeros(1, 2), torch.full((1, 30), 3), torch.full((1, 30), -1)):
        with pytest.raises(InvalidScores, match=r"follow.*from 0 to 2"):
            TagSequence().follow(tags.int(), scores, lengths)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_best_sequence_is_followed_as_in_two_steps(scale: float, dtype: torch.dtype) -> None:
    """The kernel uses logarithms at scale 1000. At 1e7 scores are as large as masks, and reduced
    first.
    """
    torch.manual_seed(2)
    chain = TagSequence().bind(*(part.to(dtype) for part in random_bound(3, scale)))
    scores, lengths = (torch.randn(4, 5, 3) * scale).to(dtype), torch.tensor([5, 0, 2, 1])
    scores[0, 1, 2] = -torch.inf
    for items in (slice(None), slice(0, 1), slice(3, 4)):
        own, sizes = scores[items], lengths[items]
        path, marginals, steps, _ = chain.best_and_follow(own, sizes)
        tags = chain.best_tags(own, sizes)
        found = chain.follow(tags, own, sizes)
        assert (path == tags.numpy()).all() and (path == chain.best_path(own, sizes)).all()
        np.testing.assert_array_equal(marginals, found[0].numpy())
        np.testing.assert_array_equal(steps, found[1].numpy())


@pytest.mark.parametrize("scale", [0.0, 1.0, 300.0])
def test_given_steps_have_their_probability_after_their_first_tag(scale: float) -> None:
    """The kernel uses logarithms at scale 300."""
    torch.manual_seed(3)
    chain = TagSequence().bind(*(part.double() for part in random_bound(3, scale)))
    scores, lengths = torch.randn(3, 4, 3).double() * scale, torch.tensor([4, 0, 2])
    scores[0, 1, 2] = -torch.inf
    pairs = np.array([[0, 2, 1, 1], [1, 2, 0, 1]])
    *_, found = chain.best_and_follow(scores, lengths, pairs)
    expected = np.zeros((3, 4, 4))
    for b, i, k in np.ndindex(3, 4, 4):
        if not 0 < i < lengths[b]:
            continue
        weights = {}
        for tags in itertools.product(range(3), repeat=int(lengths[b])):
            z = torch.nn.functional.one_hot(torch.tensor([tags]), 3).double()
            own = scores[b : b + 1, : len(tags)]
            weights[tags] = chain.log_prob(z, own, lengths[b : b + 1]).exp().item()
        first = {tags: p for tags, p in weights.items() if tags[i - 1] == pairs[0, k]}
        both = sum(p for tags, p in first.items() if tags[i] == pairs[1, k])
        expected[b, i, k] = both / sum(first.values()) if sum(first.values()) > 0 else 0.0
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_text_without_a_sequence_is_named() -> None:
    scores = torch.full((1, 3, 2), -torch.inf)
    for find in (TagSequence().best_path, TagSequence().best_and_follow):
        with pytest.raises(InfeasibleError):
            find(scores, torch.tensor([3]))
