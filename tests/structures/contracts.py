"""The structures of the package, each with the list of all its members, for the checks of the
contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.constraints import LineBudget, TotalBudget
from spacy_latent.structures.factor_graph import FactorGraph
from spacy_latent.structures.independent_heads import IndependentHeads
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment
from spacy_latent.structures.merge_sequence import MergeSequence
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.runs import Runs
from spacy_latent.structures.semi_markov import SemiMarkov
from spacy_latent.structures.shift_reduce import ShiftReduce
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence, allowed_transitions
from spacy_latent.testing import Check, structure_checks
from tests import enumeration

# The checks for settings that only change the set of members.
SETS = ("map", "log_partition", "marginals", "entropy", "log_count", "contains", "feasibility")
PAIRS = ((3, 3), (0, 2), (2, 3), (3, 1))


@dataclass
class Listed:
    """A structure, the function that lists its members, and further arguments of
    ``structure_checks``."""

    structure: Structure
    members: Callable[[Any], list[np.ndarray]]
    options: dict[str, Any] = field(default_factory=dict)
    # Names of the checks to run, if the others are not worth their time. If empty, all run.
    only: tuple[str, ...] = ()

    def checks(self) -> Iterator[Check]:
        for check in structure_checks(self.structure, self.members, **self.options):
            if not self.only or check.name in self.only:
                yield check

    def __str__(self) -> str:
        return repr(self.structure)


# ---------------------------------------------------------------- trees


def trees(projective: bool, *constraints: Any) -> Callable[[int], list[np.ndarray]]:
    def members(n: int) -> list[np.ndarray]:
        found = enumeration.dependency_trees(n, projective, *constraints)
        return [enumeration.arcs(heads) for heads in found]

    return members


def budget_trees(projective: bool, budget: int) -> Callable[[int], list[np.ndarray]]:
    return lambda n: [z for z in trees(projective)(n) if (z[1:].sum(1) <= budget).all()]


def near_budget_trees(n: int) -> list[np.ndarray]:
    return [z for z in trees(True, False, "any", 2)(n) if (z[1:].sum(1) <= 1).all()]


def few_cells(sizes: tuple[int, int]) -> list[np.ndarray]:
    return [z for z in enumeration.monotone_matchings(*sizes) if z.sum() <= 1]


def head_choices(direction: str, longest: int | None) -> Callable[[int], list[np.ndarray]]:
    def allowed(head: int, modifier: int) -> bool:
        if head == modifier or (direction == "earlier" and head > modifier):
            return False
        if head == 0:
            return True
        if direction == "later" and head < modifier:
            return False
        return longest is None or abs(head - modifier) <= longest

    def members(n: int) -> list[np.ndarray]:
        choices = [[h for h in range(n + 1) if allowed(h, m)] for m in range(1, n + 1)]
        return [enumeration.arcs(heads) for heads in product(*choices)]

    return members


def log_p_of_transitions(z: Tensor, scores: Tensor, n: int) -> Tensor:
    """Return the log-probability of the transitions of a shift-reduce parser, by running the
    parser."""
    totals = []
    for tree in z:
        total, stack, shifted = scores.new_zeros(()), [], 0
        while shifted < n or len(stack) > 1:
            new = (stack[-2][0], stack[-1][1]) if len(stack) > 1 else (0, 0)
            reduces = len(stack) > 1 and bool(tree[new])
            if len(stack) > 1 and shifted < n:
                logit = scores[new]
                total = total + torch.nn.functional.logsigmoid(logit if reduces else -logit)
            if reduces:
                stack[-2:] = [new]
            else:
                stack.append((shifted, shifted))
                shifted += 1
        totals.append(total)
    return torch.stack(totals)


def merges(n: int) -> list[np.ndarray]:
    found = []
    for places in product(*(range(n - 1 - step) for step in range(n - 1))):
        z = np.zeros((max(n - 1, 0), max(n - 1, 0)))
        z[list(range(len(places))), list(places)] = 1.0
        found.append(z)
    return found


def log_p_of_merges(z: Tensor, scores: Tensor, n: int) -> Tensor:
    total = scores.new_zeros(len(z))
    for step in range(n - 1):
        own = scores[step, : n - 1 - step]
        if own.isneginf().all():
            return total - torch.inf
        log_p = own.log_softmax(0)
        total = total + log_p[z[:, step, : n - 1 - step].argmax(1)]
    return total


# ---------------------------------------------------------------- items and cells


def subsets(low: int, high: int | None) -> Callable[[int], list[np.ndarray]]:
    def members(n: int) -> list[np.ndarray]:
        most = n if high is None else min(high, n)
        return [
            np.isin(np.arange(n), chosen).astype(float)
            for size in range(min(low, n), most + 1)
            for chosen in combinations(range(n), size)
        ]

    return members


def runs_of(
    members: Callable[[int], list[np.ndarray]], most: int
) -> Callable[[int], list[np.ndarray]]:
    """Keep the members with at most ``most`` runs of neighbouring items."""

    def kept(n: int) -> list[np.ndarray]:
        return [z for z in members(n) if (np.diff(z, prepend=0.0) == 1).sum() <= most]

    return kept


def graphs(budget: int | None) -> Callable[[int], list[np.ndarray]]:
    def members(n: int) -> list[np.ndarray]:
        places = [(h, m) for h in range(n + 1) for m in range(1, n + 1) if h != m]
        found = []
        for chosen in subsets(0, budget)(len(places)):
            z = np.zeros((n + 1, n + 1))
            for place in np.flatnonzero(chosen):
                z[places[place]] = 1.0
            found.append(z)
        return found

    return members


def monotone(moves: str, window: int | None) -> Callable[[Any], list[np.ndarray]]:
    every = {
        "dtw": enumeration.warping_paths,
        "needleman_wunsch": enumeration.monotone_matchings,
    }[moves]

    def near(i: int, j: int, rows: int, columns: int) -> bool:
        off = abs(i * (columns - 1) - j * (rows - 1))
        return window is None or off <= window * max(rows - 1, columns - 1, 1)

    def members(sizes: tuple[int, int]) -> list[np.ndarray]:
        return [z for z in every(*sizes) if all(near(i, j, *sizes) for i, j in np.argwhere(z))]

    return members


def many_to_one(unaligned: bool) -> Callable[[Any], list[np.ndarray]]:
    def members(sizes: tuple[int, int]) -> list[np.ndarray]:
        rows, columns = sizes
        choices = [*np.eye(columns), *([np.zeros(columns)] * unaligned)]
        if not rows or not columns:
            return [np.zeros(sizes)]
        return [np.stack(chosen) for chosen in product(choices, repeat=rows)]

    return members


def one_to_one(unaligned: bool) -> Callable[[Any], list[np.ndarray]]:
    def members(sizes: tuple[int, int]) -> list[np.ndarray]:
        rows, columns = sizes
        found = []
        for size in range(0 if unaligned else min(sizes), min(sizes) + 1):
            for chosen in combinations(range(rows), size):
                for places in permutations(range(columns), size):
                    z = np.zeros(sizes)
                    z[list(chosen), list(places)] = 1.0
                    found.append(z)
        return found

    return members


# ---------------------------------------------------------------- sequences


def chains(num_tags: int) -> Callable[[int], list[np.ndarray]]:
    return lambda n: [
        enumeration.transitions(tags, num_tags) for tags in enumeration.tag_sequences(n, num_tags)
    ]


def tag_rows(num_tags: int) -> Callable[[int], list[np.ndarray]]:
    def members(n: int) -> list[np.ndarray]:
        every = enumeration.tag_sequences(n, num_tags)
        return [np.eye(num_tags)[list(tags)].reshape(n, num_tags) for tags in every]

    return members


def segments(longest: int, num_labels: int) -> Callable[[int], list[np.ndarray]]:
    def members(n: int) -> list[np.ndarray]:
        found = []
        for pieces in enumeration.segmentations(n, longest, num_labels):
            z = np.zeros((n, longest, num_labels))
            for first, end, label in pieces:
                z[first, end - first - 1, label] = 1.0
            found.append(z)
        return found

    return members


def bound_score(
    transitions: Tensor, start: Tensor, end: Tensor
) -> Callable[[Tensor, Tensor, Any], Tensor]:
    """Return a function that scores tags or segments. It adds the scores of transitions, and of the
    first and last label."""

    def score(z: Tensor, scores: Tensor, n: int) -> Tensor:
        totals = []
        for own in z:
            total = torch.where(own != 0, scores, 0.0).sum()
            labels = [int(place[-1]) for place in own.nonzero()]
            if labels:
                total = total + start.double()[labels[0]] + end.double()[labels[-1]]
            for left, right in zip(labels, labels[1:]):
                total = total + transitions.double()[left, right]
            totals.append(total)
        return torch.stack(totals)

    return score


def _bound(num_tags: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return (
        torch.randn(num_tags, num_tags, generator=generator),
        torch.randn(num_tags, generator=generator),
        torch.randn(num_tags, generator=generator),
    )


def every_structure() -> Iterator[Listed]:
    constraints = [
        (False, "any", None),
        (True, "any", None),
        (False, "earlier", 2),
        (True, "later", 1),
    ]
    for own in constraints:
        yield Listed(SpanningTree(*own), trees(False, *own))
        yield Listed(ProjectiveTree(*own), trees(True, *own))
    every = product((False, True), ("any", "earlier", "later"), (None, 1, 2))
    for other in every:
        if other not in constraints:
            yield Listed(SpanningTree(*other), trees(False, *other), only=SETS)
            yield Listed(ProjectiveTree(*other), trees(True, *other), only=SETS)
    small = {"lengths": (3, 0, 2, 1)}
    for direction, longest in product(("any", "earlier", "later"), (None, 1)):
        heads = IndependentHeads(direction, longest)  # type: ignore[arg-type]
        whole = (direction, longest) in (("any", None), ("earlier", 1))
        only = () if whole else SETS
        yield Listed(heads, head_choices(direction, longest), dict(small), only)
    for projective in (False, True):
        for budget in (1, 2):
            structure = BudgetTree(budget, projective)
            yield Listed(structure, budget_trees(projective, budget), dict(small))
    # Members that two structures share, under a constraint.
    tree = {"tree": ProjectiveTree(), "near": SpanningTree(max_arc_length=2)}
    budget = {"modifiers": LineBudget(1, axis=0, but_first=True)}
    yield Listed(FactorGraph(tree, budget), near_budget_trees, dict(small))
    both = {"one": OneToOneAlignment(True), "order": MonotoneAlignment("needleman_wunsch")}
    few = FactorGraph(both, {"few": TotalBudget(1)})
    cells = {"lengths": ((2, 3), (0, 2), (2, 2), (3, 1))}
    yield Listed(few, few_cells, cells)
    words = {"lengths": (5, 0, 4, 1)}
    yield Listed(ConstituencyTree(), lambda n: [*enumeration.constituency_trees(n)], dict(words))
    of_transitions = {"log_potential": log_p_of_transitions, "scales": (1e-3, 1.0, 10.0)}
    yield Listed(
        ShiftReduce(), lambda n: [*enumeration.constituency_trees(n)], {**words, **of_transitions}
    )
    of_merges = {"log_potential": log_p_of_merges, "scales": (1e-3, 1.0, 10.0)}
    yield Listed(MergeSequence(), merges, {"lengths": (4, 0, 3, 2), **of_merges})
    yield Listed(OneOfN(), subsets(1, 1))
    yield Listed(KOfN(1), subsets(1, 1))
    yield Listed(KOfN(2), subsets(2, 2))
    yield Listed(KOfN(3), subsets(3, 3), only=SETS)
    yield Listed(KOfN(2, exactly=False), subsets(0, 2))
    yield Listed(KOfN(9, exactly=False), subsets(0, 9))
    yield Listed(Runs(3, 1), runs_of(subsets(3, 3), 1))
    yield Listed(Runs(3, 2), runs_of(subsets(3, 3), 2), only=SETS)
    yield Listed(Runs(4, 2, exactly=False), runs_of(subsets(0, 4), 2))
    yield Listed(Bits(), subsets(0, None))
    yield Listed(Bits(budget=2), subsets(0, 2))
    yield Listed(Bits("arcs"), graphs(None), {"lengths": (2, 0, 1)})
    yield Listed(Bits("arcs", 2), graphs(2), {"lengths": (2, 0, 1)})
    pairs = {"lengths": PAIRS}
    for moves in ("dtw", "needleman_wunsch"):
        for window in (None, 1, 2):
            alignment = MonotoneAlignment(moves, window)  # type: ignore[arg-type]
            only = SETS if window == 2 else ()
            wide = {"lengths": ((4, 3), (0, 2), (2, 5), (3, 1))} if window == 2 else dict(pairs)
            yield Listed(alignment, monotone(moves, window), wide, only)
    for unaligned in (False, True):
        yield Listed(ManyToOneAlignment(unaligned), many_to_one(unaligned), dict(pairs))
        yield Listed(OneToOneAlignment(unaligned), one_to_one(unaligned), dict(pairs))
    num_tags = {"encode_options": {"num_tags": 2}}
    yield Listed(LinearChain(), chains(2), dict(num_tags))
    for count in (1, 3):
        yield Listed(LinearChain(), chains(count), only=(*SETS, "top_k"))
    yield Listed(TagSequence(), tag_rows(2), dict(num_tags))
    learned = _bound(2)
    yield Listed(
        TagSequence().bind(*learned),
        tag_rows(2),
        {"log_potential": bound_score(*learned)},
    )
    scheme = allowed_transitions(("O", "B-X", "I-X"), "iob2")
    yield Listed(
        TagSequence().bind(*scheme),
        tag_rows(3),
        {"log_potential": bound_score(*scheme), "lengths": (3, 0, 2, 1)},
    )
    of_segments = {"encode_options": {"num_tags": 2, "max_length": 3}}
    yield Listed(SemiMarkov(), segments(3, 2), dict(of_segments))
    yield Listed(
        SemiMarkov().bind(*learned),
        segments(3, 2),
        {"log_potential": bound_score(*learned), "encode_options": {"max_length": 3}},
    )
