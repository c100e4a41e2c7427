"""Encoders that share a tok2vec, a transformer or another encoder with other listeners."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.training import Example
from spacy.training.loop import subdivide_batch, train_while_improving
from thinc.api import Adam, Model, fix_random_seed

from spacy_latent.errors import LatentWarning
from spacy_latent.pipeline.shared_upstream import UpstreamListeners
from tests.pipeline.small_pipelines import (
    LISTENER,
    TO_TRANSFORMER,
    TOK2VEC,
    TRANSFORMER_WIDTH,
    WIDTH,
    add_transformer,
    examples,
    initialized,
    save_small_transformer,
    step,
    stock,
)

Gradients = dict[str, list[np.ndarray]]
TO_TOK2VEC = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "tok2vec"}
# Name, factory and upstream. Eight of the thirteen components listen to the shared one: three
# before the first encoder, both encoders, and three others. The second encoder also listens to the
# first. No component depends on the last one, so tests can freeze it.
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
    # spaCy's dropout rate does not apply inside of the transformer, so switch its own off.
    save_small_transformer(path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return path


def shared_pipeline(kind: str, path: Path | None = None, order: Iterable = ORDER) -> Language:
    nlp = spacy.blank("en")
    if kind == "tok2vec":
        nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
        shared, width = TO_TOK2VEC, WIDTH
    else:
        assert path is not None
        add_transformer(nlp, path)
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
    """Train some steps. The first gradients are zero below layers that start at zero."""
    optimizer = initialized(nlp)
    for _ in range(steps):
        step(nlp, examples(nlp), optimizer)
    return nlp


def copied(nlp: Language) -> Language:
    return spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())


class Recorder:
    """An optimizer that records the gradients and does not change the weights."""

    averages = None

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.found: list[np.ndarray] = []

    def __call__(self, key: Any, weights: Any, gradient: Any) -> tuple[Any, Any]:
        self.keys.append(key)
        self.found.append(np.array(gradient))
        gradient *= 0
        return weights, gradient

    def step_schedules(self) -> None:
        pass

    def taken(self) -> list[np.ndarray]:
        found, self.found, self.keys = self.found, [], []
        return found


def names_of_weights(nlp: Language) -> dict[Any, str]:
    """Return the name of the pipe of each weight. Keys are those that optimizers get."""
    found = {}
    for name, pipe in nlp.pipeline:
        for node in pipe.model.walk():  # type: ignore[attr-defined]
            found.update({(node.id, weight): name for weight in node.param_names})
            for shim in node.shims:
                weights = [weight for weight, _ in shim._model.named_parameters()]
                found.update({(shim.id, weight): name for weight in weights})
    return found


def gradients_of(nlp: Language, batches: list[list[Example]], **options: Any) -> Gradients:
    """Return the gradients that ``spacy train`` computes from parts of a batch.

    It updates with all parts, and then calls ``finish_update`` of each pipe.
    """
    recorder = Recorder()
    fix_random_seed(0)  # spaCy's parsers train on random cuts of a text.
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
    """Return reference gradients, from one forward and one backward pass over all components.

    The backward pass of an upstream component gets the sum of its listeners' gradients.
    """
    pipes: list[tuple[str, Any]] = [
        (name, pipe) for name, pipe in nlp.pipeline if name not in exclude
    ]
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
            # Another order of the summands changes the last digits, in proportion to their size.
            scale = float(np.abs(other).max())
            assert one == pytest.approx(other, rel=1e-3, abs=1e-4 * scale + 1e-6), name


Pair = tuple[Language, Language]


@pytest.fixture(scope="module", params=["tok2vec", "transformer"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """A pipeline, and its copy for the reference gradients."""
    path = None
    if request.param == "transformer":
        path = request.getfixturevalue("transformer")
    nlp = after_some_steps(shared_pipeline(request.param, path))
    return nlp, copied(nlp)


def parts_of(nlp: Language, count: int) -> list[list[Example]]:
    """Return the parts into which spaCy divides a batch to accumulate gradients."""
    return [part for part in subdivide_batch(examples(nlp), count) if part]


@pytest.mark.parametrize(
    ("parts", "exclude"),
    [
        (1, []),
        (3, []),
        (1, ["last_tagger"]),
        (3, ["tagger", "last_tagger", "topics"]),
        (3, ["second_textcat", "ner"]),
        (3, ["ner", "parser", "first_reader"]),
        (1, ["second_encoder", "second_reader", "second_textcat"]),
    ],
    ids=str,
)
def test_gradients_are_those_of_one_graph(pair: Pair, parts: int, exclude: list[str]) -> None:
    nlp, other = pair
    upstream: Any = nlp.pipeline[0][1]
    assert upstream.listening_components == SHARED_LISTENERS and len(SHARED_LISTENERS) == 8
    batches = parts_of(nlp, parts)
    expected = gradients_in_one_graph(other, batches, exclude)
    assert_the_same(gradients_of(nlp, batches, exclude=exclude), expected)


def test_gradients_of_an_earlier_listener_arrive_when_all_later_ones_are_frozen(
    pair: Pair,
) -> None:
    nlp, other = pair
    exclude = [name for name, _, _ in ORDER if name not in ("tagger", "latent_encoder")]
    batches = parts_of(nlp, 1)
    expected = gradients_in_one_graph(other, batches, [*exclude, "latent_encoder"])
    found = gradients_of(nlp, batches, exclude=exclude)
    assert_the_same({name: found[name] for name in expected}, expected)


def test_spacy_train_gets_them_in_the_step_that_they_are_of(pair: Pair) -> None:
    nlp, other = pair
    sample, recorder = examples(nlp), Recorder()
    exclude = ["ner", "parser"]
    expected = gradients_in_one_graph(other, parts_of(nlp, 2), exclude)
    training = train_while_improving(
        nlp,
        recorder,  # type: ignore[arg-type]
        ((0, sample) for _ in range(2)),
        lambda: (0.0, {}),
        dropout=0.0,
        eval_frequency=1,
        accumulate_gradient=2,
        patience=0,
        max_steps=0,
        exclude=exclude,
        annotating_components=[],
        before_update=None,
    )
    wanted = [one for gradients in expected.values() for one in gradients]
    for _ in training:
        assert_the_same({"all": recorder.taken()}, {"all": wanted})


def test_nlp_update_with_an_optimizer_is_one_step_late_and_complete(pair: Pair) -> None:
    nlp, other = pair
    exclude, recorder, pipes = ["ner", "parser"], Recorder(), names_of_weights(nlp)
    expected = gradients_in_one_graph(other, parts_of(nlp, 1), exclude)
    for past in (False, True, True):
        nlp.update(examples(nlp), sgd=recorder, exclude=exclude)  # type: ignore[arg-type]
        keys, gradients = recorder.keys, recorder.taken()
        for name in (nlp.pipe_names[0], "latent_encoder", "second_encoder"):
            found = [one for key, one in zip(keys, gradients, strict=True) if pipes[key] == name]
            if past:
                assert_the_same({name: found}, {name: expected[name]})
            else:
                assert all(not one.any() for one in found)
    # Clear the gradients of the last update for later tests with the same pipeline.
    gradients_of(nlp, [])


def test_an_encoder_over_an_encoder_learns_with_nlp_update() -> None:
    order = [
        ("latent_encoder", "latent_encoder", "shared"),
        ("second_encoder", "latent_encoder", "both"),
        ("tagger", "tagger", "second_encoder"),
        ("textcat", "textcat", "latent_encoder"),
    ]
    nlp = shared_pipeline("tok2vec", order=order)
    initialized(nlp)
    optimizer, losses = Adam(0.005), []
    for _ in range(30):
        losses.append(nlp.update(examples(nlp), sgd=optimizer))
    for name in ("tagger", "textcat"):
        assert losses[-1][name] < losses[0][name] / 2


@pytest.mark.parametrize("kind", ["tok2vec", "transformer"])
def test_a_copy_of_an_encoder_listens_as_the_encoder_does(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = request.getfixturevalue("transformer") if kind == "transformer" else None
    order = [("latent_encoder", "latent_encoder", "shared"), ("tagger", "tagger", "latent_encoder")]
    nlp = after_some_steps(shared_pipeline(kind, path, order))

    def scores(one: Language) -> np.ndarray:
        tagger: Any = one.get_pipe("tagger")
        (found,) = tagger.model.predict([one("I like London a lot")])
        return found

    expected = scores(nlp)
    nlp.to_disk(tmp_path)
    config = copy.deepcopy(spacy.blank("en").config)
    config["nlp"]["pipeline"] = list(nlp.pipe_names)
    config["components"] = {name: {"source": str(tmp_path)} for name in nlp.pipe_names}
    config["components"]["tagger"]["replace_listeners"] = ["model.tok2vec"]
    other = spacy.util.load_model_from_config(config, auto_fill=True)
    assert scores(other) == pytest.approx(expected)
    # The tagger trains the shared component without the encoder.
    upstream: Any = other.pipeline[0][1]
    assert upstream.listening_components == ["latent_encoder", "tagger"]
    found = gradients_of(other, parts_of(other, 1), exclude=["latent_encoder"])
    assert all(any(one.any() for one in found[name]) for name in (kind, "tagger"))


def test_the_shared_component_gets_its_method_back(pair: Pair) -> None:
    nlp, _ = pair
    upstream: Any = nlp.pipeline[0][1]
    own = upstream.finish_update

    def same() -> bool:
        return bool(upstream.finish_update == own)

    assert same()
    nlp.update(examples(nlp), sgd=False)  # type: ignore[arg-type]
    assert not same()
    upstream.finish_update(Recorder())
    assert same()
    # Loading replaces the weights, so the pending batch is dropped.
    nlp.update(examples(nlp), sgd=False)  # type: ignore[arg-type]
    for name in ("latent_encoder", "second_encoder"):
        encoder: Any = nlp.get_pipe(name)
        encoder.from_bytes(encoder.to_bytes())
    assert same()
    gradients_of(nlp, [])


def test_a_pipeline_is_pickled_between_update_and_finish_update() -> None:
    order = [("latent_encoder", "latent_encoder", "shared"), ("tagger", "tagger", "latent_encoder")]
    nlp = after_some_steps(shared_pipeline("tok2vec", order=order))
    nlp.update(examples(nlp), sgd=False)  # type: ignore[arg-type]
    other = pickle.loads(pickle.dumps(nlp))
    assert other("I like London")[0].tag_ == nlp("I like London")[0].tag_
    for one in (nlp, other):
        step(one, examples(one), Adam(0.001))


def test_a_component_of_another_kind_is_named_in_a_warning() -> None:
    """The warning names a component whose backward pass cannot be deferred."""
    order = [("latent_encoder", "latent_encoder", "shared"), ("tagger", "tagger", "latent_encoder")]
    nlp = after_some_steps(shared_pipeline("tok2vec", order=order))
    upstream: Any = nlp.get_pipe("tok2vec")
    stock_update = upstream.update

    def update(*arguments: Any, **options: Any) -> Any:
        losses = stock_update(*arguments, **options)
        for listener in upstream.listeners:
            listener._backprop = partial(listener._backprop)
        return losses

    upstream.update = update
    with pytest.warns(LatentWarning, match=r"'latent_encoder'.*'tok2vec'"):
        nlp.update(examples(nlp), sgd=False)  # type: ignore[arg-type]


def test_so_is_one_whose_listeners_are_of_another_kind() -> None:
    """Listeners of curated transformers store the name of their upstream in their attributes."""
    nlp = shared_pipeline("tok2vec", order=[("latent_encoder", "latent_encoder", "shared")])
    initialized(nlp)
    encoder: Any = nlp.get_pipe("latent_encoder")
    encoder.model.layers[0].attrs["_upstream_name"] = "curated"
    with pytest.warns(LatentWarning, match=r"'latent_encoder'.*'curated'"):
        nlp.update(examples(nlp), sgd=False)  # type: ignore[arg-type]


def test_their_next_batch_survives_a_late_gradient_of_the_previous_one() -> None:
    """They forget their batch at each gradient, as in the first of several parts of a step."""
    state = SimpleNamespace(batch_id=1, outputs=["first"], backprop=None)
    attributes = {"_upstream_name": "curated", "_state": state}
    listener: Model = Model("listener", lambda model, docs, is_train: None, attrs=attributes)

    def backprop(gradients: object) -> object:
        assert state.outputs == ["first"]
        state.batch_id = state.outputs = None
        return gradients

    late = UpstreamListeners(listener).backprop_by(backprop)
    state.batch_id, state.outputs = 2, ["second"]
    assert late("gradients") == "gradients"
    assert (state.batch_id, state.outputs) == (2, ["second"])
    state.batch_id, state.outputs = 1, ["first"]
    UpstreamListeners(listener).backprop_by(backprop)("gradients")
    assert state.outputs is None
