"""Sets of structures with which training begins: their order, and when each is replaced."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
from thinc.schedules import compounding

from spacy_latent.errors import LatentError
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.dependency import DependencyTree
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.released import build_growing_arcs_v1, release
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from tests.enumeration import dependency_trees

EARLIER = ProjectiveTree(direction="earlier")
SHORT = ProjectiveTree(direction="earlier", max_arc_length=2)
FREE = ProjectiveTree()


def test_the_restricted_set_comes_first_and_the_free_one_is_what_predicts() -> None:
    structure = release(EARLIER, FREE, 3)
    assert [structure.at(update).direction for update in (0, 2, 3, 100)] == [
        "earlier",
        "earlier",
        "any",
        "any",
    ]
    assert structure.at(None) is structure
    assert repr(structure) == repr(FREE) and isinstance(structure, ProjectiveTree)
    assert FREE.stages == () and EARLIER.stages == ()


def test_releases_one_after_another_however_they_are_nested() -> None:
    left = release(release(SHORT, EARLIER, 2), FREE, 5)
    right = release(SHORT, release(EARLIER, FREE, 5), 2)
    for structure in (left, right):
        found = [(s.direction, s.max_arc_length) for s in map(structure.at, (1, 2, 4, 5, None))]
        assert found == [("earlier", 2), *[("earlier", None)] * 2, *[("any", None)] * 2]


@pytest.mark.parametrize("end", [4, 5])
def test_stages_without_an_update_are_refused(end: int) -> None:
    """A stage is refused if it ends before it begins, or begins when the next has already begun."""
    over = r"ProjectiveTree.*no update"
    with pytest.raises(LatentError, match=over):
        release(SHORT, release(EARLIER, FREE, 4), end)
    with pytest.raises(LatentError, match=over):
        release(release(SHORT, EARLIER, end), FREE, 4)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_keep_their_stages(again: Any) -> None:
    assert again(release(EARLIER, FREE, 3)).at(2).direction == "earlier"


@pytest.mark.parametrize(
    "restricted, free",
    [
        (FREE, EARLIER),
        (SpanningTree(), FREE),
        (FREE, ProjectiveTree(single_root=True)),
        (FREE, ProjectiveTree(max_arc_length=3)),
        (KOfN(5), KOfN(3)),
        (KOfN(2, exactly=False), KOfN(2)),
        (KOfN(2), KOfN(3)),
        (Bits(), Bits(budget=2)),
        (release(EARLIER, FREE, 2), EARLIER),
    ],
)
def test_a_release_to_a_smaller_set_is_refused_with_both(restricted: Any, free: Any) -> None:
    with pytest.raises(LatentError, match="release") as refused:
        release(restricted, free, 3)
    assert repr(restricted) in str(refused.value) or repr(FREE) in str(refused.value)
    assert repr(free) in str(refused.value)


def test_other_parts_are_refused_with_both() -> None:
    with pytest.raises(LatentError, match=r"arcs.*spans"):
        release(FREE, ConstituencyTree(), 3)


@pytest.mark.parametrize("release_at", [0, -1, 1.5, True, float("inf"), None])
def test_a_release_that_never_comes_or_was_before_training_is_refused(release_at: Any) -> None:
    with pytest.raises(LatentError, match="release_at"):
        release(EARLIER, FREE, release_at)
    with pytest.raises(LatentError, match="release_at"):
        build_growing_arcs_v1(FREE, [2], release_at)


def test_a_message_tells_the_sets_apart() -> None:
    with pytest.raises(
        LatentError, match=r"follows ProjectiveTree\(direction='earlier'"
    ) as refused:
        release(EARLIER, FREE, 0)
    assert "which ProjectiveTree(direction='any'" in str(refused.value)
    with pytest.raises(LatentError, match=r"SpanningTree.*ProjectiveTree"):
        release(EARLIER, SpanningTree(), 0)


def _trees() -> list[tuple[DependencyTree, set[tuple[int, ...]]]]:
    made = []
    for projective, single, direction, longest in itertools.product(
        (False, True), (False, True), ("any", "earlier", "later"), (None, 1, 2)
    ):
        kind = ProjectiveTree if projective else SpanningTree
        members = set(dependency_trees(4, projective, single, direction, longest))
        made.append((kind(single, direction, longest), members))  # type: ignore[arg-type]
    return made


def test_a_set_of_trees_covers_another_only_where_enumeration_says_so() -> None:
    told = 0
    for (larger, all_members), (smaller, members) in itertools.product(_trees(), repeat=2):
        if larger.covers(smaller):
            told += 1
            assert members <= all_members, (larger, smaller)
    # Two settings of three kinds have three pairs each, directions have five, and lengths have six.
    assert told == 3 * 3 * 5 * 6


@pytest.mark.parametrize(
    "larger, smaller, expected",
    [
        (SpanningTree(), FREE, True),
        (BudgetTree(3), BudgetTree(2), True),
        (BudgetTree(2), BudgetTree(3), False),
        (SpanningTree(), BudgetTree(2), True),
        (BudgetTree(2), SpanningTree(), False),
        (BudgetTree(2, projective=True), BudgetTree(2), False),
        (KOfN(3, exactly=False), KOfN(2), True),
        (KOfN(3), KOfN(3), True),
        (Bits(), Bits(budget=2), True),
        (Bits("arcs"), Bits(), None),
        (MonotoneAlignment(), MonotoneAlignment(window=2), True),
        (MonotoneAlignment(window=2), MonotoneAlignment(), False),
        (OneToOneAlignment(unaligned=True), OneToOneAlignment(), True),
        (ManyToOneAlignment(), ManyToOneAlignment(unaligned=True), False),
        (LinearChain(), LinearChain(), True),
        (TagSequence(), TagSequence(), True),
        (TagSequence(), LinearChain(), None),
        (FREE, ConstituencyTree(), None),
    ],
)
def test_which_sets_cover_which(larger: Any, smaller: Any, expected: bool | None) -> None:
    assert larger.covers(smaller) is expected


def test_arcs_grow_by_a_list_or_a_schedule() -> None:
    grown = build_growing_arcs_v1(FREE, [1, 1, 2, 4], 6)
    found = [grown.at(update).max_arc_length for update in (0, 1, 2, 3, 5, 6, None)]
    assert found == [1, 1, 2, 4, 4, None, None]
    scheduled = build_growing_arcs_v1(FREE, compounding(1.0, 8.0, 2.0), 5)
    assert [scheduled.at(update).max_arc_length for update in range(6)] == [1, 2, 4, 8, 8, None]
    assert pickle.loads(pickle.dumps(scheduled)).at(2).max_arc_length == 4


@pytest.mark.parametrize(
    "structure, bounds, message",
    [
        (FREE, [4, 2], "smaller"),
        (FREE, [0, 1], "1"),
        (FREE, [float("nan")], "1"),
        (FREE, [], "1"),
        (ProjectiveTree(max_arc_length=3), [2, 5], "smaller"),
        (KOfN(2), [1], "dependency trees"),
        (release(EARLIER, FREE, 2), [1], "release"),
    ],
)
def test_bounds_that_do_not_grow_are_refused(structure: Any, bounds: Any, message: str) -> None:
    with pytest.raises(LatentError, match=message):
        build_growing_arcs_v1(structure, bounds, 5)


def test_a_schedule_of_more_updates_than_memory_holds_is_refused() -> None:
    with pytest.raises(LatentError, match="release_at"):
        build_growing_arcs_v1(FREE, itertools.repeat(2.0), 10**9)
    assert build_growing_arcs_v1(FREE, [1, 2], 10**9).stages[-1][0] == 10**9
    with pytest.raises(LatentError, match="max_arc_length"):
        build_growing_arcs_v1(FREE, [1, 1e30], 5)
