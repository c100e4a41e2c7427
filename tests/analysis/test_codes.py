"""Agreement of labels between docs with similar codes."""

from __future__ import annotations

import numpy as np
import pytest

from spacy_latent.analysis.codes import neighbour_agreement
from spacy_latent.errors import LatentError


def test_neighbours_have_the_same_label_where_the_code_tells_it() -> None:
    codes = np.array([[0, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1], [1, 0, 1], [1, 1, 0]])
    labels = ["a", "a", "a", "b", "b", "b"]
    assert neighbour_agreement(codes[:, :1], labels, 2) == 1.0
    # [0, 0, 1] has the same distance from [0, 0, 0] and from [1, 0, 1].
    assert neighbour_agreement(codes, ["a", "a", "a", "b", "b", "b"], 1) == pytest.approx(
        np.mean([1 / 2, 1 / 2, 1, 1, 1 / 2, 1 / 2])
    )


def test_codes_that_tell_nothing_agree_as_pairs_do() -> None:
    assert neighbour_agreement(np.zeros((4, 2)), ["a", "a", "b", "b"], 2) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("codes", "neighbours", "message"),
    [
        (np.zeros((2, 1)), 2, "neighbours"),
        (np.zeros((3, 1)), 1, "3.*2"),
        (np.full((2, 1), 0.5), 1, "0 and 1"),
        (np.full((2, 1), np.nan), 1, "0 and 1"),
    ],
)
def test_what_cannot_be_counted_is_refused(codes, neighbours, message) -> None:
    with pytest.raises(LatentError, match=message):
        neighbour_agreement(codes, ["a", "b"], neighbours)
