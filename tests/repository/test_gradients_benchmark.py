"""The program that measures gradients does not change the training that it observes."""

from __future__ import annotations

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from thinc.api import Adam

from benchmarks.gradients import gradients, replaced
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.straight_through import StraightThrough
from spacy_latent.models.latent_text_classifier import latent_layer
from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized, learn


def trained() -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_textcat", config={"model": {"tok2vec": TOK2VEC}})
    initialized(nlp)
    optimizer = Adam(0.01)
    learn(nlp, examples(nlp), 3, optimizer)
    return nlp


@pytest.mark.parametrize("estimator", [Marginals(), StraightThrough("identity")])
def test_nothing_is_learned_from_the_batch(estimator: Estimator) -> None:
    measured, other = trained(), trained()
    before = measured.to_bytes(exclude=["vocab", "tokenizer"])
    first, second = gradients(measured, examples(measured), estimator, 2)
    assert first.any() and torch.equal(first, second)
    assert measured.to_bytes(exclude=["vocab", "tokenizer"]) == before
    # The next update is unchanged as well: the measurement leaves no accumulated gradient.
    for nlp in (measured, other):
        nlp.update(examples(nlp)[:1], sgd=Adam(0.01))
    rows = [
        [doc.cats["good"] for doc in nlp.pipe(["I like Paris", "grey"])]
        for nlp in (measured, other)
    ]
    assert np.allclose(*rows, atol=1e-6)


def test_the_estimator_comes_back() -> None:
    layer = latent_layer(trained().get_pipe("latent_textcat").model)  # type: ignore[attr-defined]
    own = layer.estimator
    with replaced(layer, Marginals()):
        assert layer.estimator is not own
    assert layer.estimator is own and "score" not in vars(layer)
