"""Training and prediction do not depend on torch's gradient mode.

Training works as usual inside of a mode without gradients. Predictions record no graph inside of a
mode with gradients. Layers that would silently learn nothing are refused. Nor does training depend
on torch's default type of numbers, or on autocast.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.training import Example
from thinc.api import Adam, Model, fix_random_seed

from spacy_latent.errors import LatentError
from spacy_latent.models.latent_shim import LatentShim, TrainingSettings
from spacy_latent.models.scheduled_value import Temperature
from spacy_latent.structures.base import Structure
from tests.pipeline.small_pipelines import INLINE, LISTENER, TOK2VEC, examples, stock

MARGINALS = {"@misc": "spacy-latent.Marginals.v1"}
ARCS = {"@misc": "spacy-latent.BiaffineScorer.v1", "hidden_width": 8}
LAYER = {"tok2vec": TOK2VEC, "scorer": ARCS}
CLIPPED = {
    "@misc": "spacy-latent.ScoreFunction.v1",
    "num_samples": 2,
    "inner_steps": 2,
    "control_variate": {"@misc": "spacy-latent.NetworkBaseline.v1"},
}
BOUND = {"@misc": "spacy-latent.EvidenceBound.v1"}
CODE = {
    "@architectures": "spacy-latent.DocumentCode.v1",
    "exclusive_classes": True,
    "size": 4,
    "evidence": BOUND,
    "tok2vec": TOK2VEC,
}
PIPELINES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "latent_parser": [("latent_parser", {"model": {"tok2vec": TOK2VEC, "scorer": ARCS}})],
    "latent_encoder": [
        ("latent_encoder", {"supervision": 1.0, "model": LAYER}),
        ("tagger", stock("tagger", LISTENER)),
    ],
    "inline": [("ner", stock("ner", {**INLINE, "scorer": ARCS}))],
    "latent_textcat": [("latent_textcat", {"model": {**LAYER, "estimator": CLIPPED}})],
    "latent_textcat_multilabel": [
        ("latent_textcat_multilabel", {"model": {**LAYER, "estimator": MARGINALS}})
    ],
    "code": [("latent_textcat", {"annotate": "none", "model": CODE})],
    "crf_ner": [("crf_ner", {"loss": "quadratic", "model": {"tok2vec": TOK2VEC}})],
    "tree_spancat": [("tree_spancat", {"model": {"tok2vec": TOK2VEC, "hidden_width": 8}})],
}


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    torch.set_grad_enabled(False)
    try:
        yield
    finally:
        torch.set_grad_enabled(True)


@contextlib.contextmanager
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


Mode = Callable[[], contextlib.AbstractContextManager[Any]]
MODES: dict[str, Mode] = {
    "no_grad": torch.no_grad,
    "set_grad_enabled": switched_off,
    "inference_mode": torch.inference_mode,
    "float64": float64,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def made(name: str) -> tuple[Language, list[Example]]:
    nlp = spacy.blank("xx")
    fix_random_seed(0)
    for factory, config in PIPELINES[name]:
        nlp.add_pipe(factory, config=copy.deepcopy(config))
    return nlp, examples(nlp)


def run(name: str, mode: Mode) -> list[dict[str, float]]:
    """Return the losses of all updates and rehearsals. The last update is outside of the mode."""
    losses = []
    with mode():
        nlp, batch = made(name)
        nlp.initialize(lambda: batch)
        optimizer = Adam(0.01)
        for _ in range(3):
            losses.append(dict(nlp.update(batch, sgd=optimizer)))
        if name == "latent_textcat":
            nlp.resume_training()
            nlp.update(batch, sgd=optimizer)
            losses.append(dict(nlp.rehearse(batch, sgd=optimizer)))
        with nlp.use_params(optimizer.averages or {}):
            list(nlp.pipe(example.text for example in batch))
        nlp.from_bytes(nlp.to_bytes())
        losses.append(dict(nlp.update(batch, sgd=optimizer)))
    return [*losses, dict(nlp.update(batch, sgd=optimizer))]


@pytest.mark.parametrize("name", PIPELINES)
def test_training_goes_as_always(name: str) -> None:
    expected = run(name, contextlib.nullcontext)
    factory = PIPELINES[name][0][0]
    assert expected[-1][factory] != pytest.approx(expected[0][factory], rel=1e-3)
    for mode in MODES.values():
        for found, wanted in zip(run(name, mode), expected, strict=True):
            assert found == pytest.approx(wanted, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", PIPELINES)
def test_predictions_record_nothing(name: str) -> None:
    nlp, batch = made(name)
    nlp.initialize(lambda: batch)
    docs = [example.predicted for example in batch]
    with torch.enable_grad():
        found = [nlp.get_pipe(nlp.pipe_names[0]).predict(docs)]  # type: ignore[attr-defined]
        if "textcat" in nlp.pipe_names[0]:
            from spacy_latent.models.latent_text_classifier import run

            found.append(run(nlp.get_pipe(nlp.pipe_names[0]).model, docs, False)[0])  # type: ignore[attr-defined]
    assert not any(tensor.requires_grad for tensor in _tensors(found, set()))


def _tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one, seen)
    elif hasattr(value, "__dict__"):
        yield from _tensors(vars(value), seen)


def test_what_inference_mode_predicted_can_be_trained() -> None:
    """A tensor that a prediction made and cached, such as a table, can be used in training."""
    for name in ("tree_spancat", "crf_ner", "latent_textcat"):
        nlp, batch = made(name)
        nlp.initialize(lambda batch=batch: batch)
        with torch.inference_mode():
            list(nlp.pipe(example.text for example in batch))
        assert np.isfinite(list(nlp.update(batch, sgd=Adam(0.01)).values())).all()


# ---------------------------------------------------------------- layers that would not learn


class Halved(torch.nn.Module):
    """A layer whose output is detached from its input, and from its weight if asked for."""

    def __init__(self, width: int, unseen: str) -> None:
        super().__init__()
        self.unseen = unseen
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, rows: torch.Tensor) -> tuple[tuple[torch.Tensor], None, None]:
        if self.unseen == "everything":
            return ((rows * self.weight).detach() / 2,), None, None
        return (rows.detach() * self.weight / 2,), None, None


@pytest.mark.parametrize("unseen, told", [("everything", "trained"), ("input", "embedder")])
def test_a_layer_that_would_learn_nothing_is_refused(unseen: str, told: str) -> None:
    training = TrainingSettings(1.0, Temperature(1.0), None)
    shim = LatentShim(lambda width: Halved(width, unseen), training, learn_rates={})
    shim.build(3)
    rows = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(LatentError, match=told):
        _, backprop = shim.begin_update((rows,))
        backprop([torch.ones(2, 3)])


@pytest.mark.parametrize("name", ["latent_encoder", "latent_textcat"])
def test_a_composer_of_numpy_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from spacy_latent.layers.graph_convolution import GraphConvolution

    own = GraphConvolution.forward
    monkeypatch.setattr(GraphConvolution, "forward", lambda *given: own(*given).detach())
    nlp = spacy.blank("xx")
    model = {**LAYER, "residual": False} if name == "latent_encoder" else dict(LAYER)
    if name == "latent_textcat":
        model["estimator"] = MARGINALS
    nlp.add_pipe(name, config={"model": model})
    if name == "latent_encoder":
        nlp.add_pipe("tagger", config=stock("tagger", LISTENER))
    batch = examples(nlp)
    nlp.initialize(lambda: batch)
    with pytest.raises(LatentError, match="learn"):
        nlp.update(batch, sgd=Adam(0.01))
        nlp.update(batch, sgd=Adam(0.01))


class Unseen(Structure):
    """All subsets of the items, with a log-partition that is detached from the scores."""

    part_axes, parts = 1, "items"
    tractable = frozenset({"log_partition", "marginals"})

    def _map(self, scores: Any, lengths: Any) -> Any:
        return (scores > 0).to(scores)

    def _log_partition(self, scores: Any, lengths: Any) -> Any:
        return scores.detach().exp().log1p().sum(1)


def test_a_structure_without_a_derivative_is_refused() -> None:
    scores, lengths = torch.zeros(1, 3), torch.tensor([3])
    with pytest.raises(LatentError, match="_log_partition"):
        Unseen().marginals(scores, lengths)


def test_where_nothing_is_composed_there_is_a_gradient_of_zero() -> None:
    nlp = spacy.blank("xx")
    nlp.add_pipe("latent_encoder", config={"model": {**LAYER, "residual": False}})
    nlp.initialize(lambda: examples(nlp))
    model: Model = nlp.get_pipe("latent_encoder").model  # type: ignore[attr-defined]
    model.attrs["span_getter"] = lambda docs: [[] for _ in docs]
    docs = [example.predicted for example in examples(nlp)]
    vectors, backprop = model.begin_update(docs)
    assert not any(array.any() for array in vectors)
    backprop([array + 1 for array in vectors])
    embedder = model.get_ref("embedder")
    for node in embedder.walk():
        assert not any(node.get_grad(name).any() for name in node.grad_names)
