"""ListOps expressions are grouped by depth and by operator."""

from __future__ import annotations

from spacy_latent.listops.groups import groups_by_depth, groups_by_operator

EXPRESSIONS = [
    text.split()
    for text in (
        "[MAX 2 9 ]",
        "[SM 2 9 ]",
        "[MAX 2 [SM 4 7 ] 3 ]",
        "[MAX 2 [MIN 4 7 ] [MED 1 2 3 ] ]",
        "7",
    )
]


def chosen(groups):
    return {name: [*map(int, mask.nonzero()[0])] for name, mask in groups.items()}


def test_depth_is_ascending_and_each_expression_has_one():
    assert [*chosen(groups_by_depth(EXPRESSIONS)).items()] == [
        ("0", [4]),
        ("1", [0, 1]),
        ("2", [2, 3]),
    ]
    assert groups_by_depth([]) == {}


def test_a_sum_anywhere_counts_and_what_is_not_there_is_left_out():
    assert [*chosen(groups_by_operator(EXPRESSIONS)).items()] == [
        ("MAX", [0, 2, 3]),
        ("SM", [1]),
        ("with SM", [1, 2]),
        ("without SM", [0, 3, 4]),
    ]
    assert chosen(groups_by_operator(EXPRESSIONS[:1])) == {"MAX": [0], "without SM": [0]}
    assert groups_by_operator([]) == {}
