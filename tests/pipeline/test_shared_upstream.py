"""Encoders that listen: to a tok2vec, to a transformer, to another encoder, beside others."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.training import Example
from spacy.training.loop import train_while_improving
from spacy.util import registry
from thinc.api import Adam, fix_random_seed

from spacy_latent.errors import LatentWarning
from tests.pipeline.small_pipelines import (
    LISTENER,
    TOK2VEC,
    TRANSFORMER_WIDTH,
    WIDTH,
    examples,
    initialized,
    save_small_transformer,
    step,
    stock,
)

Gradients = dict[str, list[np.ndarray]]
TO_TOK2VEC = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "tok2vec"}
TO_TRANSFORMER = {
    "@architectures": "spacy-transformers.TransformerListener.v1",
    "grad_factor": 1.0,
    "upstream": "transformer",
    "pooling": {"@layers": "reduce_mean.v1"},
}
# Of twelve components eight listen to the one that all share: three before the first encoder, the
# two encoders, and three among and after them. The second encoder listens to the first as well,
# and the last component is one that may be frozen without harm to the others.
ORDER = [
    ("tagger", "tagger", "shared"),
    ("textcat", "textcat", "shared"),
    ("spancat", "spancat", "shared"),
    ("latent_encoder", "latent_encoder", "shared"),
    ("ner", "ner", "latent_encoder"),
    ("fine_tagger", "tagger", "shared"),
    ("parser", "parser", "latent_encoder"),
    ("second_encoder", "latent_encoder", "both"),
    ("first_reader", "tagger", "latent_encoder"),
    ("second_reader", "tagger", "second_encoder"),
    ("second_textcat", "textcat", "second_encoder"),
    ("topics", "textcat_multilabel", "shared"),
    ("last_tagger", "tagger", "shared"),
]
SHARED_LISTENERS = [name for name, _, upstream in ORDER if upstream in ("shared", "both")]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("transformer")
    save_small_transformer(path)
    return path


def shared_pipeline(kind: str, path: Path | None = None, order: Iterable = ORDER) -> Language:
    nlp = spacy.blank("en")
    if kind == "tok2vec":
        nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
        shared, width = TO_TOK2VEC, WIDTH
    else:
        model = {
            "@architectures": "spacy-transformers.TransformerModel.v3",
            "name": str(path),
            "tokenizer_config": {"use_fast": True},
            "get_spans": {"@span_getters": "spacy-transformers.doc_spans.v1"},
        }
        nlp.add_pipe("transformer", config={"model": model})
        shared, width = TO_TRANSFORMER, TRANSFORMER_WIDTH
    listener = {**LISTENER, "width": width}
    upstreams = {
        "shared": shared,
        "latent_encoder": listener,
        "second_encoder": {**listener, "upstream": "second_encoder"},
        "both": {
            "@architectures": "spacy-latent.SeparateTok2Vec.v1",
            "composer": listener,
            "scorer": shared,
        },
    }
    for name, factory, upstream in order:
        tok2vec = copy.deepcopy(upstreams[upstream])
        if factory != "latent_encoder":
            nlp.add_pipe(factory, name=name, config=stock(factory, tok2vec))
            continue
        model = {"tok2vec": tok2vec, "width": width, "residual": False}
        nlp.add_pipe(factory, name=name, config={"model": model})
    return nlp


def after_some_steps(nlp: Language, steps: int = 3) -> Language:
    """The first gradients below layers that start at zero are zero."""
    optimizer = initialized(nlp)
    for _ in range(steps):
        step(nlp, examples(nlp), optimizer)
    return nlp


def copied(nlp: Language) -> Language:
    return spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())


class Recorder:
    """An optimizer that notes the gradients and leaves the weights alone."""

    averages = None

    def __init__(self) -> None:
        self.found: list[np.ndarray] = []

    def __call__(self, key: Any, weights: Any, gradient: Any) -> tuple[Any, Any]:
        self.found.append(np.array(gradient))
        gradient *= 0
        return weights, gradient

    def step_schedules(self) -> None:
        pass

    def taken(self) -> list[np.ndarray]:
        found, self.found = self.found, []
        return found


def gradients_of(nlp: Language, batches: list[list[Example]], **options: Any) -> Gradients:
    """As ``spacy train`` makes them: updates of all parts, then ``finish_update`` of each pipe."""
    recorder = Recorder()
    fix_random_seed(0)  # Parsers learn from cuts of the text.
    for batch in batches:
        nlp.update(batch, sgd=False, **options)  # type: ignore[arg-type]
    found = {}
    for name, pipe in nlp.pipeline:
        if name not in options.get("exclude", ()):
            pipe.finish_update(recorder)  # type: ignore[union-attr]
            found[name] = recorder.taken()
    return found


def gradients_in_one_graph(
    nlp: Language, batches: list[list[Example]], exclude: Iterable[str] = ()
) -> Gradients:
    """Forward once through all components, then backward once, with the sum of what arrived."""
    pipes: list[tuple[str, Any]] = [(name, pipe) for name, pipe in nlp.pipeline if name not in exclude]
    fix_random_seed(0)
    for batch in batches:
        docs = [example.x.copy() for example in batch]
        parts = [Example(doc, example.y) for doc, example in zip(docs, batch)]
        graph = []
        for _, pipe in pipes:
            if not hasattr(pipe, "listeners"):
                pipe.update(parts, sgd=None)
                continue
            outputs, backprop = pipe.model.begin_update(docs)
            total: list[list[np.ndarray]] = []
            handed = getattr(outputs, "doc_data", outputs)
            for listener in pipe.listeners:
                batch_id = listener.get_batch_id(docs)
                listener.receive(batch_id, handed, adder(total))
            graph.append((outputs, backprop, total))
        for outputs, backprop, total in reversed(graph):
            if hasattr(outputs, "unsplit_by_doc"):
                backprop(outputs.unsplit_by_doc(total))
            else:
                backprop([array for (array,) in total])
    recorder = Recorder()
    found = {}
    for name, pipe in pipes:
        pipe.model.finish_update(recorder)
        found[name] = recorder.taken()
    return found


def adder(total: list[list[np.ndarray]]) -> Callable:
    def add(gradients: Any) -> list:
        arrays = [list(one.tensors) if hasattr(one, "tensors") else [one] for one in gradients]
        if not total:
            total.extend([array * 0 for array in doc] for doc in arrays)
        for sums, doc in zip(total, arrays):
            for array, one in zip(sums, doc):
                array += one
        return []

    return add


def assert_the_same(found: Gradients, expected: Gradients) -> None:
    assert found.keys() == expected.keys()
    for name in found:
        assert len(found[name]) == len(expected[name]) > 0
        assert any(np.abs(one).max() > 1e-6 for one in expected[name]), name
        for one, other in zip(found[name], expected[name]):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-6), name


@pytest.fixture(scope="module", params=["tok2vec", "transformer"])
def pipeline(request: pytest.FixtureRequest) -> Language:
    path = None
    if request.param == "transformer":
        path = request.getfixturevalue("transformer")
    return after_some_steps(shared_pipeline(request.param, path))


FROZEN: list[list[str]] = [
    [],
    ["last_tagger"],
    ["tagger", "last_tagger", "topics"],
    ["second_textcat", "ner"],
    ["first_reader", "ner", "parser"],
]


@pytest.mark.parametrize("exclude", FROZEN, ids="-".join)
@pytest.mark.parametrize("parts", [1, 3])
def test_gradients_are_those_of_one_graph(
    pipeline: Language, parts: int, exclude: list[str]
) -> None:
    upstream: Any = pipeline.pipeline[0][1]
    assert upstream.listening_components == SHARED_LISTENERS and len(SHARED_LISTENERS) == 8
    sample = examples(pipeline)
    batches = [sample] if parts == 1 else [[one] for one in sample]
    expected = gradients_in_one_graph(copied(pipeline), batches, exclude)
    found = gradients_of(copied(pipeline), batches, exclude=exclude)
    assert_the_same(found, expected)
