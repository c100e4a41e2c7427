"""The same config and seed give the same weights with any number of threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import spacy
from spacy.language import Language
from thinc.api import fix_random_seed

from spacy_latent.kernels.core import pool
from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized, latent_pipeline, learn

COUNTERS = {"@misc": "spacy-latent.CounterScorer.v1", "counters": 2, "hidden_width": 4}
RECURSIVE = {"@misc": "spacy-latent.RecursiveMessagePassing.v1"}


def text_classifier() -> Language:
    nlp = spacy.blank("en")
    model = {
        "tok2vec": TOK2VEC,
        "scorer": COUNTERS,
        "composer": RECURSIVE,
        "estimator": {"@misc": "spacy-latent.ScoreFunction.v1", "num_samples": 3},
    }
    nlp.add_pipe("latent_textcat", config={"model": model})
    return nlp


def encoder() -> Language:
    model = {"tok2vec": TOK2VEC, "scorer": COUNTERS, "composer": RECURSIVE}
    return latent_pipeline("textcat", "ner", encoder={"model": model})


def tagger() -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"tok2vec": TOK2VEC}})
    return nlp


@pytest.mark.parametrize("make", [text_classifier, encoder, tagger])
def test_weights_do_not_depend_on_threads(
    monkeypatch: pytest.MonkeyPatch,
    set_threads: Callable[[int], None],
    make: Callable[[], Language],
) -> None:
    monkeypatch.setattr(pool, "SERIAL_NANOSECONDS", 0)
    monkeypatch.setattr(pool, "RANGE_NANOSECONDS", 1)
    found = []
    for threads in (1, 3):
        set_threads(threads)
        fix_random_seed(0)
        nlp = make()
        optimizer = initialized(nlp)
        learn(nlp, examples(nlp), 3, optimizer)
        found.append(nlp.to_bytes(exclude=["vocab"]))
    assert found[0] == found[1]
