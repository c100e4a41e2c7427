"""Tests that need a GPU. ``python -m benchmarks gpu`` runs them on one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.cases import scores_for, structures
from spacy_latent.kernels.gpu import dispatch
from spacy_latent.structures.base import Structure
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.device.batches import STRUCTURES, batch, everything

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
OPERATIONS = ("map", "log_partition", "marginals", "entropy", "sparsemap", "sample", "top_k")


@pytest.fixture(autouse=True)
def any_batch_goes_to_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "LEAST_ITEMS", 1)


@pytest.fixture(scope="module")
def gpu() -> Any:
    pytest.importorskip("cupy")
    from thinc.api import require_cpu, require_gpu

    require_gpu(0)
    yield
    require_cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("structure", structures(), ids=lambda structure: structure.name)
def test_each_operation_stays_on_its_device_and_agrees_with_the_cpu(
    structure: Structure, dtype: torch.dtype
) -> None:
    scores, lengths = scores_for(structure, 7, 3, "cuda")
    scores = scores.to(dtype)
    for operation in OPERATIONS:
        if {operation} - structure.tractable - {"map", "sparsemap", "top_k"}:
            continue
        options = {"k": 2} if operation == "top_k" else {}
        results = []
        for device in ("cuda", "cpu"):
            torch.manual_seed(0)
            found = getattr(structure, operation)(scores.to(device), lengths.to(device), **options)
            results.append(getattr(found, "mean" if operation == "sparsemap" else "z", found))
        own, reference = results
        assert own.device.type == "cuda" and own.dtype == dtype
        torch.testing.assert_close(own.cpu(), reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_kernels_of_its_own_agree_with_those_for_the_cpu(
    structure: Structure, dtype: torch.dtype
) -> None:
    if not dispatch.usable():
        pytest.skip("kernels cannot be launched here")
    scores, lengths = batch(structure, dtype)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    found = everything(structure, scores.cuda(), lengths.cuda())
    again = everything(structure, scores.cuda(), lengths)
    assert not dispatch._failed
    for own, same, reference in zip(found, again, everything(structure, scores, lengths)):
        assert own.is_cuda and own.dtype == dtype and torch.equal(own, same)
        torch.testing.assert_close(own.cpu(), reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("single_root", [False, True])
def test_sums_over_the_trees_of_long_sentences_agree_with_the_cpu(
    single_root: bool, dtype: torch.dtype
) -> None:
    """The sums also agree if the arcs of the root have almost no weight."""
    structure = SpanningTree(single_root=single_root)
    scores, lengths = scores_for(structure, 80, 20, "cuda")
    scores = scores.to(dtype)
    scores[3, 0] -= 60.0
    tolerance = 1e-9 if dtype == torch.float64 else 1e-5
    found = everything(structure, scores, lengths)
    assert not dispatch._failed
    for own, reference in zip(found, everything(structure, scores.cpu(), lengths.cpu())):
        assert own.is_cuda and own.dtype == dtype
        torch.testing.assert_close(own.cpu(), reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_equal_scores_give_the_best_of_the_cpu(structure: Structure) -> None:
    scores, lengths = batch(structure, torch.float32)
    found = structure.map(scores.round().cuda(), lengths.cuda())
    assert torch.equal(found.cpu(), structure.map(scores.round(), lengths))


@pytest.mark.parametrize("structure", STRUCTURES, ids=repr)
def test_the_same_comes_of_the_same(structure: Structure) -> None:
    """Results would differ now and then if a thread read too early."""
    scores, lengths = scores_for(structure, 60, 64, "cuda")
    first = everything(structure, scores, lengths)
    for _ in range(10):
        assert all(map(torch.equal, everything(structure, scores, lengths), first))


def test_a_batch_is_solved_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    structure = SpanningTree()
    scores, lengths = scores_for(structure, 20, 20, "cuda")
    expected = structure.marginals(scores, lengths)
    monkeypatch.setattr(dispatch, "LARGEST_WORKSPACE", 8 * 20000)
    assert torch.equal(structure.marginals(scores, lengths), expected)


def test_sums_can_be_captured_in_a_graph() -> None:
    structure = SpanningTree()
    scores, lengths = scores_for(structure, 20, 20, "cuda")
    expected = structure.marginals(scores, lengths)
    graph = torch.cuda.CUDAGraph()
    with dispatch.checks_skipped(), torch.cuda.graph(graph):
        found = structure.marginals(scores, lengths)
    graph.replay()
    assert torch.equal(found, expected)


def test_kernels_can_be_launched() -> None:
    assert dispatch.trouble() is None


def test_kernels_take_streams_as_they_come() -> None:
    """Kernels wait for scores that the same stream is still writing."""
    structure = structures()[0]
    scores, lengths = scores_for(structure, 20, 8, "cuda")
    expected = structure.map(2.0 * scores, lengths)
    torch.testing.assert_close(structure.map(scores + scores, lengths), expected)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = structure.map(scores + scores, lengths)
    stream.synchronize()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("mixed_precision", [False, True])
@pytest.mark.parametrize("estimator", ["Marginals", "SparseMAP", "StraightThrough"])
def test_a_latent_pipeline_trains_and_predicts(
    gpu: Any, estimator: str, mixed_precision: bool
) -> None:
    from tests.pipeline.small_pipelines import (
        TOK2VEC,
        examples,
        initialized,
        latent_pipeline,
        step,
    )

    settings = {
        "model": {
            "tok2vec": TOK2VEC,
            "estimator": {"@misc": f"spacy-latent.{estimator}.v1"},
            "mixed_precision": mixed_precision,
        }
    }
    nlp = latent_pipeline("textcat", "ner", encoder=settings)
    optimizer = initialized(nlp)
    for _ in range(3):
        losses = step(nlp, examples(nlp), optimizer)
    assert all(np.isfinite(value) for value in losses.values())
    doc = nlp("I like London a lot")
    assert len(doc._.latent["latent_encoder"].heads) == 5
    assert all(isinstance(score, float) for score in doc.cats.values())


def test_components_with_losses_of_their_own_train(gpu: Any) -> None:
    import spacy

    from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized

    nlp = spacy.blank("en")
    nlp.add_pipe("latent_textcat", config={"model": {"tok2vec": TOK2VEC}})
    for name in ("crf_ner", "tree_spancat"):
        nlp.add_pipe(name, config={"model": {"tok2vec": TOK2VEC}, "annotate": "probabilities"})
    optimizer = initialized(nlp)
    for _ in range(30):
        losses = nlp.update(examples(nlp), sgd=optimizer)
    assert all(np.isfinite(value) for value in losses.values())
    doc = nlp("I like London a lot")
    assert [ent.text for ent in doc.ents] == ["London"]
    assert isinstance(doc.spans["sc"].attrs["scores"], np.ndarray)
    assert all(isinstance(value, np.ndarray) for value in _arrays(doc.user_data))


def _arrays(value: Any) -> list[Any]:
    """Return everything in ``value`` that has a shape. No array of a GPU may stay on a doc."""
    if isinstance(value, dict):
        return [found for part in value.values() for found in _arrays(part)]
    if isinstance(value, (list, tuple)):
        return [found for part in value for found in _arrays(part)]
    return [value] if hasattr(value, "shape") else []
