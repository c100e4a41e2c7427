"""Texts from all parts of a corpus."""

from __future__ import annotations

import pytest
import spacy
from spacy.training import Example

from spacy_latent.evaluation.mistakes import spread


@pytest.mark.parametrize("size", [0, 1, 7, 8, 15, 23, 100])
def test_examples_come_from_all_parts(size: int) -> None:
    nlp = spacy.blank("en")
    examples = [Example.from_dict(nlp.make_doc(f"text {n}"), {}) for n in range(size)]
    places = [examples.index(one) for one in spread(examples, 8)]
    assert len(places) == min(size, 8) and places == sorted(set(places))
    gaps = [after - before for before, after in zip(places, [*places[1:], size])]
    assert not gaps or max(gaps) - min(gaps) <= 1
