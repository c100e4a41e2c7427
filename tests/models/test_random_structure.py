"""Random structures that temporarily replace the structures of a pipeline, in every layer."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language

from spacy_latent.errors import LatentError
from spacy_latent.models.inspection import (
    latent_models,
    latent_module,
    read_batch,
    read_uncertainty,
)
from spacy_latent.models.random_structure import substitute_structures
from spacy_latent.models.structure_reader import read_structures
from tests.pipeline.small_pipelines import (
    INLINE,
    TOK2VEC,
    examples,
    initialized,
    latent_pipeline,
    learn,
    stock,
)

LONG = "I like London a lot and Paris is very grey but Berlin I hate".split()


def block(structure: str, scorer: str, composer: str, **options: Any) -> dict[str, Any]:
    names = {"structure": structure, "scorer": scorer, "composer": composer}
    made: dict[str, Any] = {k: {"@misc": f"spacy-latent.{v}.v1"} for k, v in names.items()}
    made["structure"].update(options)
    return made


BLOCKS = {
    "tree": {},
    "sparsemap": {"estimator": {"@misc": "spacy-latent.SparseMAP.v1"}},
    "items": block("KOfN", "ItemScorer", "Selection", k=3),
    "bits": block("Bits", "ItemScorer", "Selection"),
    "graph": block("Bits", "BiaffineScorer", "GraphConvolution", parts="arcs"),
    "tags": block("LinearChain", "TransitionScorer", "TagEmbedding"),
    "tag sequence": block("TagSequence", "EmissionScorer", "TagSequenceEmbedding"),
    "segments": block("SemiMarkov", "SegmentScorer", "SegmentAttention"),
    "spans": block("ConstituencyTree", "SpanScorer", "SpanAttention"),
    "no map": {
        "structure": {"@misc": "spacy-latent.BudgetTree.v1"},
        "estimator": {"@misc": "spacy-latent.SparseMAP.v1"},
    },
}


def pipeline(kind: str) -> tuple[Language, str]:
    if kind in BLOCKS:
        return latent_pipeline(
            "textcat", encoder={"model": {"tok2vec": TOK2VEC, **BLOCKS[kind]}}
        ), ("latent_encoder")
    nlp = spacy.blank("en")
    if kind == "inline":
        nlp.add_pipe("tagger", config=stock("tagger", INLINE))
        return nlp, "tagger"
    if kind == "gumbel":
        parser = {"@architectures": "spacy-latent.ParserTok2Vec.v1", "tok2vec": TOK2VEC}
        nlp.add_pipe("tagger", config=stock("tagger", parser))
        return nlp, "tagger"
    options: dict[str, Any] = {}
    if kind == "shift-reduce":
        options = block("ShiftReduce", "StackScorer", "SpanAttention")
    elif kind == "merges":
        options = block("MergeSequence", "MergeScorer", "MergeTreeLstm")
    nlp.add_pipe("latent_textcat", config={"model": {"tok2vec": TOK2VEC, **options}})
    return nlp, "latent_textcat"


KINDS = [*BLOCKS, "inline", "gumbel", "latent_textcat", "shift-reduce", "merges"]


def decoded(nlp: Language, name: str) -> list[np.ndarray]:
    (node,) = latent_models(nlp.get_pipe(name).model)  # type: ignore[attr-defined]
    docs = [nlp.make_doc(" ".join(LONG[i:])) for i in range(3)]
    layer = latent_module(node).latent
    batch = read_batch(node, docs)
    sure = read_uncertainty(batch, layer)
    assert [len(known) for known in sure] == [1] * 3
    return [spans[0].decoded for spans in read_structures(batch, layer)]


def same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_random_structures_in_every_kind_of_layer(kind: str) -> None:
    nlp, name = pipeline(kind)
    initialized(nlp)
    model = nlp.get_pipe(name).model  # type: ignore[attr-defined]
    own = decoded(nlp, name)
    with substitute_structures([model], "random", seed=1) as layers:
        assert layers == 1
        first = decoded(nlp, name)
    with substitute_structures([model], "random", seed=1):
        assert same(decoded(nlp, name), first), "the same seed gives the same"
    with substitute_structures([model], "random", seed=2):
        assert not same(decoded(nlp, name), first)
    assert not same(own, first) and same(decoded(nlp, name), own)
    if kind in ("bits", "items", "graph"):
        assert [len(items) for items in first] == [len(items) for items in own]
    if kind in ("tags", "tag sequence"):
        assert [sorted(tags) for tags in first] == [sorted(tags) for tags in own]
    copy.deepcopy(model.copy())
    nlp.to_bytes()


def test_the_task_sees_them() -> None:
    nlp, _ = pipeline("tree")
    optimizer = initialized(nlp)
    learn(nlp, examples(nlp), 3, optimizer)
    text = " ".join(LONG)
    own = nlp(text).cats
    with substitute_structures([nlp.get_pipe("latent_encoder").model]):  # type: ignore[attr-defined]
        assert nlp(text).cats != own
    assert nlp(text).cats == own


def test_the_best_structures_stand_for_a_mixture() -> None:
    nlp, name = pipeline("sparsemap")
    initialized(nlp)
    (node,) = latent_models(nlp.get_pipe(name).model)  # type: ignore[attr-defined]
    docs, layer = [nlp.make_doc(" ".join(LONG))], latent_module(node).latent
    soft = read_batch(node, docs).outputs[0].draw.z
    (((sure,),),) = [read_uncertainty(read_batch(node, docs), layer)]
    assert not ((soft == 0) | (soft == 1)).all() and sure.support > 1
    with substitute_structures([nlp.get_pipe(name).model], "best"):  # type: ignore[attr-defined]
        output = read_batch(node, docs).outputs[0]
        assert ((output.draw.z == 0) | (output.draw.z == 1)).all()
        assert (
            output.draw.z[0]
            == layer.structure.map(output.scores, output.draw.z.new_tensor([len(LONG)]).long())
        ).all()


def test_an_error_inside_leaves_nothing_behind() -> None:
    nlp, name = pipeline("tree")
    initialized(nlp)
    model = nlp.get_pipe(name).model  # type: ignore[attr-defined]
    own = decoded(nlp, name)
    with pytest.raises(ZeroDivisionError), substitute_structures([model]):
        raise ZeroDivisionError
    with (
        pytest.raises(LatentError, match="already"),
        substitute_structures([model]),
        substitute_structures([model]),
    ):
        pass
    assert same(decoded(nlp, name), own)
    with pytest.raises(LatentError, match="'worst'"), substitute_structures([model], "worst"):  # type: ignore[arg-type]
        pass
    with substitute_structures([]) as layers:
        assert layers == 0


def test_uncertainty_of_known_scores() -> None:
    nlp, name = pipeline("items")
    initialized(nlp)
    (node,) = latent_models(nlp.get_pipe(name).model)  # type: ignore[attr-defined]
    layer = latent_module(node).latent
    for parameter in layer.scorer.parameters():
        parameter.data.zero_()
    (((sure,),),) = [read_uncertainty(read_batch(node, [nlp.make_doc("a b c d e")]), layer)]
    # All choices of three of the five tokens have the same score.
    assert sure.nats == pytest.approx(np.log(10)) == pytest.approx(sure.log_count)
    assert read_batch(node, [nlp.make_doc("")]).groups == []
