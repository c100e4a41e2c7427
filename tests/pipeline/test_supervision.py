"""Training on gold structures of the references."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import SGD, Adam, fix_random_seed

from spacy_latent.annotations import SpanStructure, write
from spacy_latent.errors import IncompatiblePair, LatentError, LatentWarning
from spacy_latent.estimators.base import Draw
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.noise import draw_noise
from spacy_latent.layers.biaffine_scorer import build_biaffine_scorer_v1
from spacy_latent.layers.given_structures import encode_given
from spacy_latent.layers.graph_convolution import build_graph_convolution_v1
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.models.latent_tok2vec import latent_layer, run
from spacy_latent.models.supervision import Supervision, gold_structures, supervise
from spacy_latent.structures.fenchel_young import structured_loss
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.enumeration import dependency_trees
from tests.pipeline.small_pipelines import (
    LISTENER,
    TOK2VEC,
    examples,
    initialized,
    latent_pipeline,
    learn,
    step,
    stock,
)

SHIFT_REDUCE: dict[str, Any] = {
    "tok2vec": TOK2VEC,
    "structure": {"@misc": "spacy-latent.ShiftReduce.v1"},
    "scorer": {"@misc": "spacy-latent.StackScorer.v1", "hidden_width": 16},
    "estimator": {"@misc": "spacy-latent.BestStraightThrough.v1"},
    "composer": {"@misc": "spacy-latent.BinaryTreeLstm.v1"},
}
MERGES = {
    **SHIFT_REDUCE,
    "structure": {"@misc": "spacy-latent.MergeSequence.v1"},
    "scorer": {"@misc": "spacy-latent.MergeScorer.v1"},
    "composer": {"@misc": "spacy-latent.MergeTreeLstm.v1"},
}
TREES = {
    "I like London a lot": [(1, 2), (3, 4), (1, 4), (0, 4)],
    "I hate Paris": [(1, 2), (0, 2)],
    "Berlin is very grey": [(2, 3), (1, 3), (0, 3)],
}


def with_brackets(sample: list[Example]) -> list[Example]:
    for example in sample:
        reference = example.reference
        spans = [(i, i) for i in range(len(reference))] + TREES[reference.text]
        decoded = np.array(sorted(spans), dtype="int32")
        gold = SpanStructure(0, len(reference), "ConstituencyTree", "spans", decoded)
        write(reference, "latent_encoder", [gold])
    return sample


def chains(sample: list[Example]) -> list[Example]:
    """Return the same texts, with the previous word as the head of each word."""
    made = []
    for example in sample:
        n = len(example.reference)
        annotation = {
            "heads": [max(0, i - 1) for i in range(n)],
            "deps": ["ROOT"] + ["d"] * (n - 1),
        }
        made.append(Example.from_dict(example.predicted.copy(), annotation))
    return made


def pipeline(model: dict[str, Any], *names: str, **options: Any) -> Any:
    nlp = spacy.blank("en")
    config = {"model": model, "supervision": 1.0, **options}
    nlp.add_pipe("latent_encoder", config=config)
    for name in names:
        nlp.add_pipe(name, config=stock(name, LISTENER))
    return nlp


@pytest.mark.parametrize("gold", ["brackets", "heads"])
def test_an_augmenter_that_drops_gold_structures_is_told(gold: str) -> None:
    """spaCy makes new docs, with heads and without ``doc.user_data``."""
    nlp = pipeline(SHIFT_REDUCE if gold == "brackets" else {"tok2vec": TOK2VEC})
    sample = with_brackets(examples(nlp)) if gold == "brackets" else examples(nlp)
    for augmenter in ({"@augmenters": "spacy.lower_case.v1", "level": 0.5}, None):
        nlp.config["corpora"]["train"]["augmenter"] = augmenter
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            nlp.initialize(lambda: sample)
        told = any("augmenter" in str(one.message) for one in found)
        assert told == (gold == "brackets" and augmenter is not None)


LOSSES: dict[str, dict[str, Any]] = {
    "crf": {},
    "sparsemap": {"supervision_loss": "sparsemap"},
    "perceptron": {"supervision_loss": "perceptron"},
    "margin": {"supervision_loss": "perceptron", "supervision_margin": 1.0},
}


@pytest.mark.parametrize("loss", LOSSES)
def test_heads_are_learned_without_any_listener(loss: str) -> None:
    nlp = pipeline({"tok2vec": TOK2VEC}, **LOSSES[loss])
    sample = examples(nlp)
    initialized(nlp, sample=sample)
    optimizer = Adam(0.01)
    losses = [step(nlp, sample, optimizer) for _ in range(60)]
    assert losses[-1]["latent_encoder_supervision"] < 0.1 * losses[0]["latent_encoder_supervision"]
    # spaCy's logger shows the loss with the component's name.
    assert losses[-1]["latent_encoder"] == losses[-1]["latent_encoder_supervision"]
    for example in sample:
        found = nlp(example.reference.text)._.latent["latent_encoder"].heads
        assert found.tolist() == [token.head.i for token in example.reference]


class OnlyBest(SpanningTree):
    """Spanning trees without any operation except MAP."""

    tractable = frozenset()


@spacy.registry.misc("tests.OnlyBest.v1")
def only_best(single_root: bool = True) -> OnlyBest:
    return OnlyBest(single_root)


def test_heads_are_learned_by_the_best_tree_under_noise() -> None:
    """The heads are learned although the perturbed loss stays above 0. Training is reproducible."""
    model = {
        "tok2vec": TOK2VEC,
        "structure": {"@misc": "tests.OnlyBest.v1"},
        "estimator": {"@misc": "spacy-latent.Spigot.v1"},
    }
    runs = []
    for _ in range(2):
        options = {"supervision_noise": 0.5, "supervision_samples": 4}
        nlp = pipeline(model, supervision_loss="perturbed", **options)
        sample = examples(nlp)
        initialized(nlp, sample=sample)
        fix_random_seed(0)
        optimizer = Adam(0.01)
        steps = 60 if not runs else 3
        runs.append([step(nlp, sample, optimizer)["latent_encoder"] for _ in range(steps)])
        if len(runs) == 1:
            for example in sample:
                found = nlp(example.reference.text)._.latent["latent_encoder"].heads
                assert found.tolist() == [token.head.i for token in example.reference]
    assert runs[0][:3] == runs[1] and runs[0][-1] < 0.5 * runs[0][0]


@pytest.mark.parametrize("model", [SHIFT_REDUCE, MERGES], ids=["shift-reduce", "merges"])
@pytest.mark.parametrize("teacher_forcing", [False, True])
def test_given_transitions_are_learned_beside_a_classifier(
    model: dict[str, Any], teacher_forcing: bool
) -> None:
    """The model of SPINN (Bowman et al. 2016) learns the gold transitions and the labels."""
    nlp = pipeline(model, "textcat", teacher_forcing=teacher_forcing)
    sample = with_brackets(examples(nlp))
    initialized(nlp, sample=sample)
    optimizer = Adam(0.01)
    for _ in range(60):
        losses = step(nlp, sample, optimizer)
    assert losses["latent_encoder_supervision"] < 0.15 and losses["textcat"] < 0.1
    again = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    for text, spans in TREES.items():
        found = again(text)._.latent["latent_encoder"].brackets()
        assert {(b.start, b.end - 1) for b in found if b.end - b.start > 1} == set(spans)


def test_beside_listeners_that_come_late_or_never() -> None:
    """Supervision works with late gradients of listeners, and with none.

    ``nlp.update`` finishes the update of the encoder before its listeners run.
    """
    nlp = pipeline({"tok2vec": TOK2VEC}, "textcat")
    sample = examples(nlp)
    optimizer = initialized(nlp, sample=sample)
    first = nlp.update(sample, sgd=optimizer)
    losses = learn(nlp, sample, 60, optimizer)
    for name in ("textcat", "latent_encoder_supervision"):
        assert losses[name] < 0.5 * first[name]
    # Other trees, so that much is left to learn without the listener.
    other = chains(sample)
    unlike = [
        step(nlp, other, optimizer, exclude=["textcat"])["latent_encoder_supervision"]
        for _ in range(60)
    ]
    assert unlike[-1] < 0.5 * unlike[0]
    for example in other:
        found = nlp(example.reference.text)._.latent["latent_encoder"].heads
        assert found.tolist() == [token.head.i for token in example.reference]


def test_structures_without_sums_are_learned_by_what_they_can() -> None:
    budget = {"@misc": "spacy-latent.BudgetTree.v1", "max_modifiers": 3}
    sparse = {
        "@misc": "spacy-latent.SparseMAP.v1",
        "marginalize": False,
        "prediction": "sparsemap",
    }
    model = {"tok2vec": TOK2VEC, "structure": budget, "estimator": sparse}
    with pytest.raises(IncompatiblePair, match=r"'crf'.*BudgetTree.*'sparsemap'"):
        initialized(pipeline(model))
    nlp = pipeline(model, supervision_loss="sparsemap")
    sample = examples(nlp)
    initialized(nlp, sample=sample)
    optimizer = Adam(0.01)
    losses = [step(nlp, sample, optimizer)["latent_encoder_supervision"] for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]


def test_heads_count_as_far_as_they_are_known() -> None:
    nlp = pipeline({"tok2vec": TOK2VEC}, "textcat")
    sample = examples(nlp)
    initialized(nlp, sample=sample)
    structure = latent_layer(nlp.get_pipe("latent_encoder").model).structure  # type: ignore[union-attr]

    def gold(example: Example, *spans: tuple[int, int]) -> list[Any]:
        (found,) = gold_structures([example], [list(spans)], "latent_encoder", structure)
        return [None if one is None else one.tolist() for one in found]

    known = {"heads": [1, 1, None, 1], "deps": ["s", "ROOT", "", "o"]}
    partly = Example.from_dict(nlp.make_doc("I like big trees"), known)
    assert gold(partly, (0, 4)) == [[2, 0, -1, 2]]
    assert gold(partly, (0, 2), (2, 4)) == [[2, 0], None]
    # "don't" is two tokens in the reference. The heads of its modifiers are unknown.
    heads, deps = [3, 3, 1, 3, 3], ["s", "a", "n", "ROOT", "o"]
    words, spaces = ["We", "do", "n't", "like", "trees"], [True, False, True, True, False]
    reference = Doc(nlp.vocab, words=words, spaces=spaces, heads=heads, deps=deps)
    other = Example(Doc(nlp.vocab, words=["We", "don't", "like", "trees"]), reference)
    assert gold(other, (0, 4), (2, 4)) == [[3, -1, 0, 3], [0, 1]]
    # Both docs have five tokens, with different boundaries.
    shifted = Example(
        Doc(nlp.vocab, words=["We", "don't", "like", "tre", "es"], spaces=[1, 1, 1, 0, 0]),
        reference,
    )
    assert gold(shifted, (0, 5), (2, 3)) == [[3, -1, 0, -1, -1], [0]]
    whole = Example(Doc(nlp.vocab, words=words, spaces=spaces), reference)
    assert gold(whole, (0, 5)) == [[4, 4, 2, 0, 4]]


def test_the_loss_has_to_fit_the_set_of_each_stage() -> None:
    few = {"@misc": "spacy-latent.BudgetTree.v1", "max_modifiers": 2}
    released = {
        "@misc": "spacy-latent.ReleasedStructure.v1",
        "restricted": few,
        "free": {"@misc": "spacy-latent.SpanningTree.v1"},
        "release_at": 1,
    }
    model = {
        "tok2vec": TOK2VEC,
        "structure": released,
        "estimator": {"@misc": "spacy-latent.SparseMAP.v1"},
    }
    with pytest.raises(IncompatiblePair, match=r"'crf'.*BudgetTree"):
        initialized(pipeline(model))
    initialized(pipeline(model, supervision_loss="sparsemap"))


@pytest.mark.parametrize("loss", ["crf", "sparsemap", "perceptron", "perturbed"])
def test_heads_that_are_known_in_part(loss: str) -> None:
    """The loss equals the value that a list of all trees with the known heads gives."""
    torch.manual_seed(0)
    structure = SpanningTree(single_root=True)
    builder = build_biaffine_scorer_v1(hidden_width=4)
    layer = LatentLayer(
        builder(6), structure, Marginals(), build_graph_convolution_v1()(6)
    ).double()
    vectors, lengths = torch.randn(4, 3, 6, dtype=torch.float64), torch.tensor([3, 3, 3, 2])
    draw, scores = layer.read(vectors, lengths)
    gold = [np.array(heads) for heads in ([2, 0, -1], [2, 0, 2], [2, 1, -1], [-1, -1])]
    supervision = Supervision([gold], 1.0, True, loss)
    members = [(0, b) for b in range(4)]
    torch.manual_seed(3)
    given, again, value, tokens = supervise(supervision, layer, members, vectors, lengths, None)
    assert torch.equal(again, scores)
    # One reference has a cycle, which is in no tree.
    assert supervision.left_out == 1 and tokens == 2 + 3
    trees = np.array(list(dependency_trees(3, single_root=True)))
    totals = [
        sum(scores[0, head, modifier] for modifier, head in enumerate(tree, 1)) for tree in trees
    ]
    agree = (trees[:, 0] == 2) & (trees[:, 1] == 0)
    assert 1 < agree.sum() < len(trees)
    every = torch.stack(totals)
    expected = {
        "crf": every.logsumexp(0) - every[agree].logsumexp(0),
        "perceptron": every.max() - every[agree].max(),
    }
    if loss == "perturbed":
        torch.manual_seed(3)
        noise = draw_noise("gaussian", scores.detach().expand(8, *scores.shape), 1.0)
        noisy = scores[0] + noise[:, 0]
        under = torch.stack(
            [
                sum(noisy[:, head, modifier] for modifier, head in enumerate(tree, 1))
                for tree in trees
            ]
        )
        expected[loss] = (under.max(0).values - under[agree].max(0).values).mean()
    if loss in expected:
        drawn = None if loss != "perturbed" else noise[:, 1:2]
        whole = torch.as_tensor(structure.encode(gold[1], 3))[None].double()
        other = structured_loss(structure, scores[1:2], whole, lengths[1:2], loss, noise=drawn)
        torch.testing.assert_close(value - other.sum(), expected[loss])
    assert value > 0 and value.requires_grad
    z = given.z[0].detach()
    assert structure.decode(z[0].numpy(), 3).tolist() in trees[agree].tolist()
    assert structure.decode(z[1].numpy(), 3).tolist() == [2, 0, 2]
    for b in (2, 3):
        torch.testing.assert_close(z[b], draw.z[0, b])


def test_trees_are_learned_from_some_of_their_heads() -> None:
    nlp = pipeline({"tok2vec": TOK2VEC})
    whole = examples(nlp)
    sample = []
    for example in whole:
        heads, deps = example.to_dict()["token_annotation"]["HEAD"], ["d"] * len(example.reference)
        known = [None if i == 2 else head for i, head in enumerate(heads)]
        annotation = {"heads": known, "deps": ["" if i == 2 else d for i, d in enumerate(deps)]}
        sample.append(Example.from_dict(nlp.make_doc(example.reference.text), annotation))
    initialized(nlp, sample=sample)
    optimizer = Adam(0.01)
    for _ in range(60):
        losses = step(nlp, sample, optimizer)
    assert losses["latent_encoder_supervision"] < 0.1
    for example in whole:
        found = nlp(example.reference.text)._.latent["latent_encoder"].heads.tolist()
        gold = [token.head.i for token in example.reference]
        assert found[:2] + found[3:] == gold[:2] + gold[3:]


def test_the_loss_and_what_is_composed() -> None:
    nlp = latent_pipeline(encoder={"model": SHIFT_REDUCE})
    initialized(nlp)
    model: Any = nlp.get_pipe("latent_encoder").model  # type: ignore[union-attr]
    layer = latent_layer(model)
    texts = ["I hate Paris", "Berlin is very grey"]
    docs = [nlp.make_doc(text) for text in texts]
    gold = np.array(sorted([(i, i) for i in range(4)] + TREES[texts[1]]))
    seen = []

    def supervision(spans: Any) -> Supervision:
        assert spans == [[(0, 3)], [(0, 4)]]
        seen.append(Supervision([[None], [gold]], 1.0, True))
        return seen[0]

    composed: list[torch.Tensor] = []
    compose = layer.composer.compose_range

    def recorded(vectors: Any, z: Any, lengths: Any, item: Any) -> Any:
        composed.extend(z[lengths[item] == 4])
        return compose(vectors, z, lengths, item)

    layer.composer.compose_range = recorded
    fix_random_seed(0)
    run(model, docs, is_train=True, supervision=supervision)
    z = torch.as_tensor(layer.structure.encode(gold, 4))
    # Each structure in the beam of the longer text is the gold tree.
    assert composed and all(torch.equal(one, z) for one in composed)
    rows = torch.as_tensor(model.get_ref("embedder").predict(docs)[1])[None]
    lengths = torch.tensor([4])
    structure = layer.scorer.bind(layer.structure, rows, lengths, layer.temperature)
    expected = structure.log_prob(z[None], layer.scorer(rows, lengths), lengths).item()
    assert seen[0].mean == pytest.approx(-expected / 4, rel=1e-4)


def of_tags(structure: str, scorer: str, composer: str, **settings: Any) -> dict[str, Any]:
    return {
        "tok2vec": TOK2VEC,
        "structure": {"@misc": f"spacy-latent.{structure}.v1"},
        "scorer": {"@misc": f"spacy-latent.{scorer}.v1", "num_tags": 3, **settings},
        "estimator": {"@misc": "spacy-latent.Marginals.v1"},
        "composer": {"@misc": f"spacy-latent.{composer}.v1", "num_tags": 3},
    }


TAGS, SEGMENTS = np.array([0, 2, 1, 1]), np.array([[0, 1, 2], [1, 3, 0], [3, 4, 1]])


@pytest.mark.parametrize(
    ("model", "decoded"),
    [
        (of_tags("TagSequence", "EmissionScorer", "TagSequenceEmbedding"), TAGS),
        (of_tags("LinearChain", "TransitionScorer", "TagEmbedding"), TAGS),
        (of_tags("SemiMarkov", "SegmentScorer", "SegmentAttention", max_length=3), SEGMENTS),
    ],
    ids=["tags", "transitions", "segments"],
)
@pytest.mark.filterwarnings("ignore:.*no gold structure")
def test_tags_and_segments_of_some_texts_are_learned(
    model: dict[str, Any], decoded: np.ndarray
) -> None:
    """The numbers of tags and the longest segment are those of the scores."""
    nlp = pipeline(model)
    sample = [Example(nlp.make_doc(t), nlp.make_doc(t)) for t in ("I hate Paris", "a b c d")]
    initialized(nlp, sample=sample)
    layer: Any = latent_layer(nlp.get_pipe("latent_encoder").model)
    kind = layer.structure.kind
    annotation = SpanStructure(0, 4, layer.structure.name, kind, decoded.astype("int32"))
    write(sample[1].reference, "latent_encoder", [annotation])
    rows = torch.as_tensor(
        nlp.get_pipe("latent_encoder").model.get_ref("embedder").predict([sample[1].predicted])[0]
    )[None]
    lengths = torch.tensor([4])
    structure = layer.scorer.bind(layer.structure, rows, lengths, layer.temperature)
    scores = layer.scorer(rows, lengths)
    z = torch.zeros_like(scores[0])
    for first, row in enumerate(decoded.tolist()):
        if kind == "segments":
            z[row[0], row[1] - row[0] - 1, row[2]] = 1
        elif z.dim() == 3:
            z[first, decoded[first - 1] if first else 0, row] = 1
        else:
            z[first, row] = 1
    expected = -structure.log_prob(z[None], scores, lengths).item() / 4
    loss = nlp.update(sample, sgd=SGD(0.0))["latent_encoder_supervision"]
    assert loss == pytest.approx(expected, rel=1e-4) and loss > 0.1
    optimizer = Adam(0.01)
    for _ in range(60):
        step(nlp, sample, optimizer)
    (found,) = nlp("a b c d")._.latent["latent_encoder"].spans
    assert found.decoded.tolist() == decoded.tolist()


@pytest.mark.parametrize("single_root", [True, False])
def test_roots_of_several_sentences_in_a_span(single_root: bool) -> None:
    """No tree with one root has two of them, and the other heads are learned all the same."""
    tree = {"@misc": "spacy-latent.SpanningTree.v1", "single_root": single_root}
    nlp = spacy.blank("en")
    model = {"tok2vec": TOK2VEC, "structure": tree}
    nlp.add_pipe("latent_encoder", config={"model": model, "supervision": 1.0})
    made = nlp.make_doc("He left She saw him")
    given = {"heads": [1, 1, 3, 3, 3], "deps": ["s", "ROOT", "s", "ROOT", "o"]}
    example = Example.from_dict(made, given)
    structure = latent_layer(nlp.get_pipe("latent_encoder").model).structure  # type: ignore[union-attr]
    ((gold,),) = gold_structures([example], [[(0, 5)]], "latent_encoder", structure)
    assert gold is not None
    assert gold.tolist() == ([2, -1, 4, -1, 4] if single_root else [2, 0, 4, 0, 4])
    optimizer = initialized(nlp, sample=[example])
    losses = [step(nlp, [example], optimizer)["latent_encoder_supervision"] for _ in range(30)]
    assert 0.0 < losses[-1] < 0.5 * losses[0]


def test_arcs_that_cross_are_unknown_to_trees_without_crossing_arcs() -> None:
    tree = {"@misc": "spacy-latent.ProjectiveTree.v1", "single_root": True}
    nlp = pipeline({"tok2vec": TOK2VEC, "structure": tree})
    # The arc of "on" crosses the arc of the root; the other words have heads all the same.
    given = {"heads": [1, 1, 1, 1, 0], "deps": ["s", "ROOT", "a", "o", "p"]}
    example = Example.from_dict(nlp.make_doc("hearing is scheduled today on"), given)
    structure = latent_layer(nlp.get_pipe("latent_encoder").model).structure
    ((gold,),) = gold_structures([example], [[(0, 5)]], "latent_encoder", structure)
    assert gold is not None and gold.tolist() == [2, -1, 2, 2, -1]
    ((free,),) = gold_structures([example], [[(0, 5)]], "latent_encoder", SpanningTree())
    assert free is not None and free.tolist() == [2, 0, 2, 2, 1]
    optimizer = initialized(nlp, sample=[example])
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        losses = [step(nlp, [example], optimizer)["latent_encoder_supervision"] for _ in range(30)]
    assert 0.0 < losses[-1] < 0.5 * losses[0]


def test_a_set_without_crossing_arcs_learns_the_other_heads_before_its_release() -> None:
    restricted, free = (
        {"@misc": f"spacy-latent.{name}.v1", "single_root": True}
        for name in ("ProjectiveTree", "SpanningTree")
    )
    released = {"restricted": restricted, "free": free, "release_at": 30}
    structure = {"@misc": "spacy-latent.ReleasedStructure.v1", **released}
    nlp = pipeline({"tok2vec": TOK2VEC, "structure": structure})
    given = {"heads": [1, 1, 1, 1, 0], "deps": ["s", "ROOT", "a", "o", "p"]}
    example = Example.from_dict(nlp.make_doc("hearing is scheduled today on"), given)
    optimizer = initialized(nlp, sample=[example])
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        losses = [step(nlp, [example], optimizer)["latent_encoder_supervision"] for _ in range(31)]
    assert 0.0 < losses[29] < 0.5 * losses[0]
    # The arc of "on" and the arc of the root count from the release on.
    assert losses[30] > losses[29]


@pytest.mark.parametrize("model", [{"tok2vec": TOK2VEC}, SHIFT_REDUCE], ids=["heads", "spans"])
@pytest.mark.parametrize("parsed", [True, False])
def test_supervision_without_gold_structures_is_warned_of(
    model: dict[str, Any], parsed: bool
) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_encoder", config={"model": model, "supervision": 1.0})
    given = {"heads": [1, 1, 1], "deps": ["s", "ROOT", "o"]} if parsed else {}
    sample = [Example.from_dict(nlp.make_doc("She saw him"), given)]
    if parsed and "structure" not in model:
        with warnings.catch_warnings():
            warnings.simplefilter("error", LatentWarning)
            initialized(nlp, sample=sample)
    else:
        with pytest.warns(LatentWarning, match="supervision"):
            initialized(nlp, sample=sample)


def test_references_that_say_nothing_or_what_cannot_be() -> None:
    earlier = {"@misc": "spacy-latent.SpanningTree.v1", "direction": "earlier"}
    nlp = pipeline({"tok2vec": TOK2VEC, "structure": earlier}, "textcat")
    sample = examples(nlp)
    bare = Example(nlp.make_doc("no heads"), nlp.make_doc("no heads"))
    bare.reference.cats = {"good": 1.0, "bad": 0.0}
    other = Example(nlp.make_doc("other words"), Doc(nlp.vocab, words=["other", "wor", "ds"]))
    other.reference.cats = {"good": 1.0, "bad": 0.0}
    optimizer = initialized(nlp, sample=sample)
    assert step(nlp, [bare, other], optimizer)["latent_encoder_supervision"] == 0.0
    # Each text of the sample has a head after its modifier, which this structure forbids.
    with pytest.warns(LatentWarning, match="SpanningTree"):
        losses = step(nlp, [*sample, bare, other], optimizer)
    assert losses["latent_encoder_supervision"] == 0.0 and losses["textcat"] > 0


def test_structures_over_other_tokens_do_not_count_where_there_are_as_many() -> None:
    nlp = spacy.blank("en")
    reference = Doc(nlp.vocab, words=["do", "n't", "stop-now"], spaces=[False, True, False])
    predicted = Doc(nlp.vocab, words=["don't", "stop", "-now"], spaces=[True, False, False])
    heads = SpanStructure(0, 3, "SpanningTree", "heads", np.array([3, 1, 0]))
    write(reference, "latent_encoder", [heads])
    for prediction, known in ((predicted, False), (reference.copy(), True)):
        ((gold,),) = gold_structures(
            [Example(prediction, reference)], [[(0, 3)]], "latent_encoder", SpanningTree()
        )
        assert (gold is not None) == known


@pytest.mark.parametrize("model", [SHIFT_REDUCE, MERGES], ids=["shift-reduce", "merges"])
def test_spans_that_are_no_binary_tree_do_not_count(model: dict[str, Any]) -> None:
    nlp = pipeline(model, "textcat", teacher_forcing=True)
    sample = with_brackets(examples(nlp))
    optimizer = initialized(nlp, sample=sample)
    spans = np.array([[0, 3], [1, 2]], dtype="int32")
    flat = SpanStructure(0, 4, "ConstituencyTree", "spans", spans)
    write(sample[2].reference, "latent_encoder", [flat])
    with pytest.warns(LatentWarning, match="are left out"):
        losses = step(nlp, sample[2:], optimizer)
    assert losses["latent_encoder_supervision"] == 0.0 and losses["textcat"] > 0


@pytest.mark.parametrize("known", [2, 1])
@pytest.mark.parametrize("teacher_forcing", [True, False])
def test_an_estimator_is_not_asked_where_nobody_composes_its_structures(
    known: int, teacher_forcing: bool
) -> None:
    asked = []

    class Counted(Marginals):
        def __call__(self, *arguments: Any) -> Draw:
            asked.append(arguments)
            return super().__call__(*arguments)

    torch.manual_seed(0)
    scorer, composer = build_biaffine_scorer_v1(hidden_width=4), build_graph_convolution_v1()
    layer = LatentLayer(scorer(6), SpanningTree(), Counted(), composer(6)).train()
    vectors, lengths = torch.randn(2, 3, 6), torch.tensor([3, 2])
    gold = [np.array([2, 0, 2]), np.array([0, 1]) if known == 2 else None]
    supervision = Supervision([gold], 1.0, teacher_forcing)
    members = [(0, 0), (0, 1)]
    draw, scores, loss, tokens = supervise(supervision, layer, members, vectors, lengths, None)
    assert len(asked) == (0 if teacher_forcing and known == 2 else 1)
    assert loss > 0 and tokens == (5 if known == 2 else 3)
    given, _ = encode_given(SpanningTree(), gold, vectors, lengths)
    expected = SpanningTree().marginals(scores, lengths)
    if teacher_forcing:
        expected[:known] = given[:known]
    assert torch.equal(draw.z[0], expected)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(LatentError, match="supervision"):
        pipeline({"tok2vec": TOK2VEC}, supervision=-1)
    with pytest.raises(LatentError, match=r"latent_encoder.*'hinge'"):
        pipeline({"tok2vec": TOK2VEC}, supervision_loss="hinge")
    with pytest.raises(LatentError, match=r"latent_encoder.*margin"):
        pipeline({"tok2vec": TOK2VEC}, supervision_margin=1.0)
    with pytest.raises(LatentError, match=r"latent_encoder.*noise"):
        pipeline({"tok2vec": TOK2VEC}, supervision_loss="perturbed", supervision_noise=0.0)
    with pytest.raises(LatentError, match="teacher_forcing"):
        pipeline({"tok2vec": TOK2VEC}, supervision=0, teacher_forcing=True)
    gumbel = {"@architectures": "spacy-latent.ParserTok2Vec.v1", "tok2vec": TOK2VEC}
    with pytest.raises(IncompatiblePair, match=r"'crf'.*ParserTree.*log_prob"):
        initialized(pipeline(gumbel))
    nlp = pipeline({"tok2vec": TOK2VEC})
    sample = with_brackets(examples(nlp))
    optimizer = initialized(nlp, sample=sample)
    with pytest.raises(LatentError, match=r"spans.*SpanningTree"):
        step(nlp, sample, optimizer)
