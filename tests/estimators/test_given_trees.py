"""Trees that are given: their heads and spans, and their composers in every kind of component."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.vocab import Vocab

from spacy_latent.annotations import Stored
from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.given_trees import GivenTrees, Trees, doc_heads, random_tree
from spacy_latent.models.inspection import (
    latent_models,
    latent_module,
    read_batch,
    read_uncertainty,
)
from spacy_latent.models.random_structure import substitute_structures
from spacy_latent.models.structure_reader import read_structures
from spacy_latent.structures.base import Structure
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.merge_sequence import MergeSequence
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.shift_reduce import ShiftReduce
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.pipeline.small_pipelines import INLINE, TOK2VEC, initialized, latent_pipeline, stock

WORDS = "[MAX 3 [MIN 4 2 ] 1 ]".split()
DEEP = [0, 0, 0, 2, 2, 2, 0, 0]


def doc_of(words: list[str], heads: list[int] | None = None) -> Doc:
    if heads is None:
        return Doc(Vocab(), words=words)
    return Doc(Vocab(), words=words, heads=heads, deps=["dep"] * len(words))


def trees_of(
    estimator: GivenTrees, structure: Structure, *docs: Doc
) -> list[list[np.ndarray | None]]:
    estimator.check(structure)
    return estimator.given(structure, docs, [[(0, len(doc))] for doc in docs])


@pytest.mark.parametrize(
    "trees, words, heads",
    [
        ("left", None, [2, 3, 4, 5, 6, 7, 8, 0]),
        ("right", None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("flat", None, [0, 1, 1, 1, 1, 1, 1, 1]),
        ("balanced", None, [2, 3, 5, 3, 0, 7, 5, 7]),
        ("root", None, [0, 0, 0, 0, 0, 0, 0, 0]),
        ("nearest", ["[MAX", "[MIN"], [0, 1, 1, 3, 3, 3, 3, 3]),
    ],
)
def test_trees_of_no_model(trees: Trees, words: list[str] | None, heads: list[int]) -> None:
    ((tree,),) = trees_of(GivenTrees(trees, words=words), SpanningTree(), doc_of(WORDS))
    assert tree is not None and tree.tolist() == heads


def test_heads_that_a_treebank_does_not_know() -> None:
    """CoNLL-U writes "_" for an unknown head, of which spaCy's converter makes a root."""
    doc = Doc(Vocab(), words=["a", "b", "c", "d"], heads=[1, 1, 2, 0], deps=["x", "", "_", "_"])
    heads = doc_heads(doc)
    assert heads is not None and heads.tolist() == [1, -1, -1, 0]


def test_heads_of_the_doc() -> None:
    estimator, doc = GivenTrees("heads"), doc_of(WORDS, DEEP)
    ((tree,),) = trees_of(estimator, ProjectiveTree(), doc)
    assert tree is not None and tree.tolist() == [0, 1, 1, 3, 3, 3, 1, 1]
    ((first, second),) = estimator.given(SpanningTree(), [doc], [[(0, 4), (4, 8)]])
    assert first is not None and first.tolist() == [0, 1, 1, 3]
    # A token whose head is outside of the span becomes a root of the span.
    assert second is not None and second.tolist() == [0, 0, 0, 0]
    with pytest.raises(LatentError, match="annotating_components"):
        trees_of(estimator, SpanningTree(), doc_of(WORDS))


@pytest.mark.parametrize("trees", ["heads", "right"])
def test_a_tree_is_over_one_text(trees: Trees) -> None:
    with pytest.raises(LatentError, match="pairs"):
        GivenTrees(trees).given(SpanningTree(), [doc_of(WORDS, DEEP)], [[(0, 4, 4, 8)]])


SETS = [
    SpanningTree(),
    SpanningTree(single_root=True, direction="earlier"),
    ProjectiveTree(single_root=True, max_arc_length=3),
    BudgetTree(max_modifiers=2, projective=True),
    ConstituencyTree(),
    ShiftReduce(),
    MergeSequence(),
]


@pytest.mark.parametrize("structure", SETS, ids=repr)
def test_random_trees_are_of_the_set_and_of_the_words(structure: Structure) -> None:
    docs = [doc_of(WORDS), doc_of(WORDS[::-1]), doc_of(WORDS), doc_of(["one"])]
    own, other, again, single = (tree for (tree,) in trees_of(GivenTrees(), structure, *docs))
    assert own is not None and other is not None and again is not None and single is not None
    assert np.array_equal(own, again) and not np.array_equal(own, other)
    ((more,),) = trees_of(GivenTrees(seed=1), structure, docs[0])
    assert not np.array_equal(own, more)
    for tree, length in ((own, 8), (other, 8), (single, 1)):
        z = torch.as_tensor(structure.encode(tree, length))[None]
        assert np.array_equal(structure.decode(z[0].numpy(), length), tree)
        if structure.linear:
            # If exactly the parts of a tree have positive scores, the tree is the best of the set.
            assert torch.equal(structure.map(2 * z - 1, torch.tensor([length])), z)


def test_random_trees_are_the_same_in_every_process() -> None:
    code = (
        "from spacy_latent.estimators.given_trees import random_tree, text_seed;"
        "from spacy_latent.structures.spanning_tree import SpanningTree;"
        f"print(random_tree(SpanningTree(), 8, text_seed({WORDS!r}, 3)).tolist())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ((own,),) = trees_of(GivenTrees(seed=3), SpanningTree(), doc_of(WORDS))
    assert own is not None and run.stdout.strip() == str(own.tolist())


def test_all_trees_of_a_set_are_equally_likely() -> None:
    heads = [tuple(random_tree(SpanningTree(single_root=True), 3, seed)) for seed in range(1800)]
    counts = [heads.count(tree) for tree in set(heads)]
    # There are nine trees, each with 200 draws on average.
    assert len(counts) == 9 and 140 < min(counts) and max(counts) < 260


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(LatentError, match="'up'"):
        GivenTrees("up")  # type: ignore[arg-type]
    with pytest.raises(LatentError, match=r"'nearest'.*words"):
        GivenTrees("nearest")
    with pytest.raises(LatentError, match=r"'flat'.*words"):
        GivenTrees("flat", words=["a"])
    with pytest.raises(IncompatiblePair, match=r"GivenTrees.*KOfN"):
        GivenTrees().check(KOfN())
    with pytest.raises(IncompatiblePair, match=r"'flat'.*ConstituencyTree"):
        GivenTrees("flat").check(ConstituencyTree())
    scores, lengths = torch.zeros(1, 3, 3), torch.tensor([2])
    for structure, others in (
        (SpanningTree(), "left, right, flat, balanced, root"),
        (ConstituencyTree(), "left, right, balanced"),
    ):
        with pytest.raises(LatentError, match=rf"only scores.*{others}"):
            GivenTrees()(structure, scores, lengths, False)
    with pytest.raises(IncompatiblePair, match=r"'root'.*ConstituencyTree"):
        GivenTrees("root")(ConstituencyTree(), scores, lengths, False)
    nlp = latent_pipeline("textcat", encoder={"model": GIVEN, "supervision": 0.5})
    with pytest.raises(IncompatiblePair, match=r"supervision.*GivenTrees"):
        initialized(nlp)


# ---------------------------------------------------------------- in components

GIVEN: dict[str, Any] = {
    "tok2vec": TOK2VEC,
    "estimator": {"@misc": "spacy-latent.GivenTrees.v1", "trees": "flat"},
    "composer": {"@misc": "spacy-latent.ChildSumTreeLstm.v1"},
}
BRACKETS: dict[str, Any] = {
    "structure": {"@misc": "spacy-latent.ConstituencyTree.v1"},
    "scorer": {"@misc": "spacy-latent.SpanScorer.v1"},
    "composer": {"@misc": "spacy-latent.BinaryTreeLstm.v1"},
}
MERGES: dict[str, Any] = {
    "structure": {"@misc": "spacy-latent.MergeSequence.v1"},
    "scorer": {"@misc": "spacy-latent.MergeScorer.v1"},
    "composer": {"@misc": "spacy-latent.MergeTreeLstm.v1"},
}
TEXTS = ["a good film of it all", "a bad film", "so"]


def pipeline(kind: str, trees: str | dict[str, Any] | None) -> tuple[Language, str]:
    """Return a pipeline, and the name of its component with a latent structure.

    Args:
        trees: If None, trees are learned. A dict is the config of the estimator.
    """
    nlp = spacy.blank("en")
    model: dict[str, Any] = {"tok2vec": TOK2VEC}
    if isinstance(trees, dict):
        model["estimator"] = trees
    elif trees is not None:
        model["estimator"] = {"@misc": "spacy-latent.GivenTrees.v1", "trees": trees}
    if kind == "encoder":
        return latent_pipeline("textcat", encoder={"model": model}), "latent_encoder"
    if kind == "inline":
        nlp.add_pipe("tagger", config=stock("tagger", {**INLINE, **model}))
        return nlp, "tagger"
    if kind == "gumbel":
        parser = {"@architectures": "spacy-latent.ParserTok2Vec.v1", "tok2vec": TOK2VEC}
        nlp.add_pipe("tagger", config=stock("tagger", parser))
        return nlp, "tagger"
    model |= {"textcat": {}, "brackets": BRACKETS, "merges": MERGES}[kind]
    if trees is None:
        model["estimator"] = {"@misc": "spacy-latent.ScoreFunction.v1"}
    nlp.add_pipe("latent_textcat", config={"model": model})
    return nlp, "latent_textcat"


def used(nlp: Language, name: str, docs: list[Doc]) -> list[np.ndarray]:
    """Return the structures that would be annotated.

    If the composer got a single tree of a doc, check that it is the same.
    """
    (node,) = latent_models(nlp.get_pipe(name).model)  # type: ignore[attr-defined]
    layer, batch = latent_module(node).latent, read_batch(node, docs)
    assert [len(known) for known in read_uncertainty(batch, layer)] == [1] * len(docs)
    found = read_structures(batch, layer, Stored("probabilities", alternatives=2))
    trees = [spans[0].decoded for spans in found]
    for group, output in zip(batch.groups, batch.outputs):
        for b, (d, _) in enumerate(group.members):
            length = int(group.lengths[b])
            z = output.draw.z[0, b].numpy()
            if ((z == 0) | (z == 1)).all():
                assert np.array_equal(layer.structure.decode(z, length), trees[d])
    return trees


def expected(kind: str, trees: Trees, docs: list[Doc]) -> list[np.ndarray]:
    structure = SpanningTree() if kind in ("encoder", "inline", "textcat") else ConstituencyTree()
    return [tree for (tree,) in trees_of(GivenTrees(trees), structure, *docs) if tree is not None]


def same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("trees", ["left", "random"])
@pytest.mark.parametrize("kind", ["encoder", "inline", "textcat", "brackets", "merges"])
def test_composers_get_given_trees(kind: str, trees: Trees) -> None:
    nlp, name = pipeline(kind, trees)
    optimizer = initialized(nlp)
    layer = latent_module(latent_models(nlp.get_pipe(name).model)[0]).latent  # type: ignore[attr-defined]
    docs = [nlp.make_doc(text) for text in TEXTS]
    assert same(used(nlp, name, docs), expected(kind, trees, docs))
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    golds: dict[str, Any] = {"cats": {"good": 1.0, "bad": 0.0}}
    for _ in range(3):
        examples = [
            Example.from_dict(nlp.make_doc(text), {**golds, "tags": ["A"] * len(text.split())})
            for text in TEXTS
        ]
        nlp.update(examples, sgd=optimizer)
    moved = [key for key, value in layer.state_dict().items() if not value.equal(before[key])]
    assert any(key.startswith("composer.") for key in moved)
    assert not any(key.startswith("scorer.") for key in moved)
    assert same(used(nlp, name, docs), expected(kind, trees, docs))
    again = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert same(used(again, name, docs), expected(kind, trees, docs))


@pytest.mark.parametrize("kind", ["encoder", "inline", "textcat", "brackets", "merges", "gumbel"])
def test_trees_of_ones_own_under_a_trained_composer(kind: str) -> None:
    nlp, name = pipeline(kind, None)
    initialized(nlp)
    model = nlp.get_pipe(name).model  # type: ignore[attr-defined]
    docs = [nlp.make_doc(text) for text in TEXTS]
    own = used(nlp, name, docs)
    with substitute_structures([model], GivenTrees("right")) as layers:
        assert layers == 1 and same(used(nlp, name, docs), expected(kind, "right", docs))
    wanted = expected(kind, "balanced", docs)
    with substitute_structures([model], lambda docs: [as_of_docs(tree) for tree in wanted]):
        assert same(used(nlp, name, docs), wanted)
    # One doc keeps its tree.
    with substitute_structures([model], lambda docs: [as_of_docs(wanted[0]), None, None]):
        assert same(used(nlp, name, docs), [wanted[0], *own[1:]])
    assert same(used(nlp, name, docs), own)


def as_of_docs(tree: np.ndarray) -> np.ndarray:
    if tree.ndim == 2:
        return tree
    return np.where(tree == 0, np.arange(len(tree)), tree - 1)


@pytest.mark.parametrize(
    "kind, tree, message",
    [
        ("encoder", [0, 0], "3 tokens"),
        ("encoder", [0, 0, 3], "3 tokens"),
        ("encoder", [0, 2, 1], "cycle"),
        ("brackets", [[0, 1], [1, 2]], "0 to 2"),
        ("brackets", [], "0 to 2"),
    ],
)
def test_wrong_trees_of_ones_own(kind: str, tree: list[Any], message: str) -> None:
    nlp, name = pipeline(kind, None)
    initialized(nlp)
    model = nlp.get_pipe(name).model  # type: ignore[attr-defined]
    with (
        substitute_structures([model], lambda docs: [tree]),
        pytest.raises(LatentError, match=message),
    ):
        used(nlp, name, [nlp.make_doc("a bad film")])


def test_unknown_heads_leave_the_spans_tree() -> None:
    nlp, name = pipeline("encoder", None)
    initialized(nlp)
    model = nlp.get_pipe(name).model  # type: ignore[attr-defined]
    docs = [nlp.make_doc(text) for text in TEXTS]
    own = used(nlp, name, docs)
    with substitute_structures([model], lambda docs: [[-1] * len(doc) for doc in docs]):
        assert same(used(nlp, name, docs), own)


# ---------------------------------------------------------------- before and after other estimators

RANDOM = {"@misc": "spacy-latent.GivenTrees.v1", "trees": "random"}
MARGINALS = {"@misc": "spacy-latent.Marginals.v1"}
SWITCH = 2


def sequence(first: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    name = "spacy-latent.EstimatorSequence.v1"
    return {"@misc": name, "switch_at": SWITCH, "first": first, "then": then}


def composed_with(layer: Any, update: Callable[[], Any]) -> list[np.ndarray]:
    """Return the structures of one update, the longest text first."""
    read, kept = layer.read, []
    layer.read = lambda *given: kept.append((given[1], read(*given))) or kept[-1][1]
    try:
        update()
    finally:
        del layer.read
    ((lengths, (draw, _)),) = kept
    z = draw.z[0].detach().numpy()
    return [one[: n + 1, : n + 1] for one, n in zip(z, lengths.tolist())]


@pytest.mark.parametrize("kind", ["encoder", "inline", "textcat"])
@pytest.mark.parametrize("given_first", [True, False])
def test_trees_are_given_in_their_stage_alone(kind: str, given_first: bool) -> None:
    order = (RANDOM, MARGINALS) if given_first else (MARGINALS, RANDOM)
    nlp, name = pipeline(kind, sequence(*order))
    optimizer = initialized(nlp)
    model = nlp.get_pipe(name).model  # type: ignore[attr-defined]
    (node,) = latent_models(model)
    layer: Any = latent_module(node).latent
    docs = [nlp.make_doc(text) for text in TEXTS]
    trees = expected("encoder", "random", docs)
    wanted = [layer.structure.encode(tree, len(doc)) for tree, doc in zip(trees, docs)]
    golds: dict[str, Any] = {"cats": {"good": 1.0, "bad": 0.0}}
    for update in range(2 * SWITCH):
        examples = [
            Example.from_dict(nlp.make_doc(text), {**golds, "tags": ["A"] * len(text.split())})
            for text in TEXTS
        ]
        before = [weights.clone() for weights in layer.scorer.parameters()]
        got = composed_with(layer, lambda: nlp.update(examples, sgd=False))  # noqa: B023
        given = given_first == (update < SWITCH)
        assert same(got, wanted) is given, update
        for _, pipe in nlp.pipeline:
            pipe.finish_update(optimizer)  # type: ignore[attr-defined]
        moved = [not torch.equal(*pair) for pair in zip(before, layer.scorer.parameters())]
        # Output layers are zero at first, so the layers below them get no gradient.
        assert any(moved) is (not given and update > 0), update
        # Prediction uses the last estimator, even in the middle of training.
        predicted = composed_with(layer, lambda: read_batch(node, docs))
        assert same(predicted, wanted) is not given_first, update


def test_trees_that_are_given_first_are_of_the_first_set() -> None:
    nlp, name = pipeline("textcat", sequence(RANDOM, MARGINALS))
    config = nlp.config.copy()
    set_at = {"@misc": "spacy-latent.SpanningTree.v1"}
    config["components"][name]["model"]["structure"] = {
        "@misc": "spacy-latent.ReleasedStructure.v1",
        "release_at": 1,
        "restricted": {**set_at, "direction": "earlier"},
        "free": {**set_at, "direction": "any"},
    }
    nlp = spacy.blank("en").from_config(config)
    optimizer = initialized(nlp)
    layer = latent_module(latent_models(nlp.get_pipe(name).model)[0]).latent  # type: ignore[attr-defined]
    texts = ["a good film of it all so far as it goes"]
    later = []
    for _ in range(2):
        golds: dict[str, Any] = {"cats": {"good": 1.0, "bad": 0.0}}
        examples = [Example.from_dict(nlp.make_doc(text), golds) for text in texts]
        (z,) = composed_with(layer, lambda: nlp.update(examples, sgd=optimizer))  # noqa: B023
        later.append(bool(np.tril(z, -1)[:, 1:].any()))
    assert later == [False, True]


def test_supervision_needs_scores_in_every_stage() -> None:
    model = {**GIVEN, "composer": {"@misc": "spacy-latent.GraphConvolution.v1"}}
    for order in ((RANDOM, MARGINALS), (MARGINALS, RANDOM)):
        model["estimator"] = sequence(*order)
        nlp = latent_pipeline("textcat", encoder={"model": model, "supervision": 0.5})
        with pytest.raises(IncompatiblePair, match=r"supervision.*GivenTrees"):
            initialized(nlp)
