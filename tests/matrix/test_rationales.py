"""Every estimator, and every structure that chooses words, trains a rationale model's selector.

The annotated words are the words that the reader sees. Other structures are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spacy_latent.analysis.rationales import rationale_words
from spacy_latent.errors import IncompatiblePair
from spacy_latent.layers.rationale_reader import READABLE
from tests.matrix import registered
from tests.pipeline.rationale_pipelines import rationale_examples, rationale_pipeline

STRUCTURES, ESTIMATORS = registered.structures(), registered.estimators()
READ = {name: kind() for name, kind in STRUCTURES.items() if kind().parts in READABLE}
SCORERS = {
    "items": {"@misc": "spacy-latent.ItemScorer.v1"},
    "tags": {"@misc": "spacy-latent.EmissionScorer.v1", "num_tags": 2},
    "transitions": {"@misc": "spacy-latent.TransitionScorer.v1", "num_tags": 2},
}
# One estimator of each kind, which is tried with every structure.
KINDS = ["Marginals", "SparseMAP", "ImplicitMLE", "ScoreFunction"]


def pairs() -> list[tuple[str, str]]:
    """Return pairs of a structure and an estimator.

    An estimator of KINDS has all structures that it supports, and any other one has the first.
    """
    found = []
    for estimator in ESTIMATORS:
        made = registered.make_estimator(estimator)
        fitting = [name for name, structure in READ.items() if registered.fits(made, structure)]
        found += [(name, estimator) for name in (fitting if made.name in KINDS else fitting[:1])]
    return found


@pytest.mark.parametrize("structure, estimator", pairs())
def test_rationales_train(structure: str, estimator: str) -> None:
    chosen = READ[structure]
    model: dict[str, Any] = {
        "structure": {"@misc": structure},
        "scorer": SCORERS[chosen.parts],
        "estimator": {"@misc": estimator, **registered.ARGUMENTS.get(estimator, {})},
        "temperature": 10.0,
    }
    nlp = rationale_pipeline(**model)
    made = rationale_examples(nlp)[:2]
    optimizer = nlp.initialize(lambda: made)
    shim = nlp.get_pipe("latent_textcat").model.get_ref("latent").shims[0]
    before = {name: value.clone() for name, value in shim.module.named_parameters()}
    for _ in range(2):
        nlp.update(made, sgd=optimizer)
    moved = [
        name for name, value in shim.module.named_parameters() if not value.equal(before[name])
    ]
    assert any(name.startswith("latent.scorer") for name in moved)
    doc = nlp("it is a very bad film")
    assert all(np.isfinite(list(doc.cats.values())))
    if shim.module.latent.estimator.hard_at_prediction and chosen.parts == "items":
        items = {item.token for item in doc._.latent["latent_textcat"].items()}
        # The annotated structure is the best one. The reader may see words of several structures.
        assert items <= set(np.flatnonzero(rationale_words(doc)).tolist())


@pytest.mark.parametrize("structure", [name for name in STRUCTURES if name not in READ])
def test_other_parts_are_refused(structure: str) -> None:
    with pytest.raises(IncompatiblePair, match="RationaleTextCat"):
        rationale_pipeline(structure={"@misc": structure})
