"""A sequence of structures or estimators works if each of its stages works.

Otherwise the refusal names the stage that does not work.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.training import Example
from thinc.api import SGD, Optimizer, fix_random_seed
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.sequence import build_estimator_sequence_v1
from spacy_latent.layers.biaffine_scorer import BiaffineScorer
from spacy_latent.layers.child_sum_tree_lstm import ChildSumTreeLstm
from spacy_latent.layers.graph_convolution import build_graph_convolution_v1
from spacy_latent.layers.latent_layer import LatentLayer, check_parts
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.independent_heads import IndependentHeads
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.released import release
from spacy_latent.structures.runs import Runs
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.matrix import registered
from tests.pipeline.small_pipelines import LISTENER, REDUCE, TOK2VEC

ESTIMATORS = registered.estimators()
STRUCTURES = registered.structures()
EARLIER, FREE = ProjectiveTree(direction="earlier"), ProjectiveTree()
TEXTS = [("a good film of it", 1.0), ("it is a bad one", 0.0), ("so good it is", 1.0)]


@pytest.mark.parametrize("first, then", itertools.product(ESTIMATORS, repeat=2))
def test_each_estimator_of_a_sequence_is_checked(first: str, then: str) -> None:
    parts = registered.make_estimator(first), registered.make_estimator(then)
    sequence = build_estimator_sequence_v1(*parts, 2)
    assert sequence.at(1).name == parts[0].name and sequence.at(2).name == parts[1].name
    scorer, composer = BiaffineScorer(6, 6), build_graph_convolution_v1()(6)
    for structure in (SpanningTree(), BudgetTree()):
        refused = [part for part in parts if not registered.fits(part, structure)]
        if not refused:
            check_parts(structure, sequence, scorer, composer)
            continue
        pair = rf"^{refused[0].name} .*{structure.name}"
        with pytest.raises(IncompatiblePair, match=pair):
            check_parts(structure, sequence, scorer, composer)


def test_a_message_tells_estimators_apart() -> None:
    soft, hard = (Marginals(prediction=prediction) for prediction in ("marginals", "map"))
    message = r"switch_at.*'map'.*'marginals'"
    with pytest.raises(LatentError, match=message):
        build_estimator_sequence_v1(soft, hard, 0)
    sparse = registered.make_estimator("spacy-latent.SparseMAP.v1")
    with pytest.raises(LatentError, match=r"SparseMAP.*Marginals"):
        build_estimator_sequence_v1(soft, sparse, 0)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_each_set_of_a_release_is_checked(estimator: str) -> None:
    made = registered.make_estimator(estimator)
    scorer, composer = BiaffineScorer(6, 6), build_graph_convolution_v1()(6)
    for first, then in ((BudgetTree(2), SpanningTree()), (FREE, SpanningTree())):
        released = release(first, then, 2)
        refused = [part for part in (first, then) if not registered.fits(made, part)]
        if refused:
            with pytest.raises(IncompatiblePair, match=refused[0].name):
                check_parts(released, made, scorer, composer)
        else:
            check_parts(released, made, scorer, composer)


def test_only_what_meets_is_checked() -> None:
    # Marginals of BudgetTree are intractable, but the estimator needs marginals only from update 5
    # on, when the structure has been replaced.
    estimator = build_estimator_sequence_v1(
        registered.make_estimator("spacy-latent.SparseMAP.v1"),
        registered.make_estimator("spacy-latent.Marginals.v1"),
        5,
    )
    scorer, composer = BiaffineScorer(6, 6), build_graph_convolution_v1()(6)
    check_parts(release(BudgetTree(2), SpanningTree(), 5), estimator, scorer, composer)
    with pytest.raises(IncompatiblePair, match=r"Marginals.*BudgetTree"):
        check_parts(release(BudgetTree(2), SpanningTree(), 6), estimator, scorer, composer)


def test_a_composer_of_hard_trees_needs_them_all_along() -> None:
    sequence = build_estimator_sequence_v1(
        registered.make_estimator("spacy-latent.Marginals.v1"),
        registered.make_estimator("spacy-latent.StraightThrough.v1"),
        2,
    )
    with pytest.raises(IncompatiblePair, match=r"ChildSumTreeLstm.*Marginals"):
        check_parts(FREE, sequence, BiaffineScorer(6, 6), ChildSumTreeLstm(6, None))


def test_a_layer_draws_by_the_stage_and_predicts_by_the_last() -> None:
    torch.manual_seed(0)
    sequence = build_estimator_sequence_v1(
        registered.make_estimator("spacy-latent.Marginals.v1"),
        registered.make_estimator("spacy-latent.StraightThrough.v1"),
        4,
    )
    layer = LatentLayer(
        BiaffineScorer(6, 6),
        release(EARLIER, FREE, 2),
        sequence,
        build_graph_convolution_v1()(6),
    )
    vectors, lengths = 5 * torch.randn(8, 6, 6), torch.full((8,), 6)
    found = []
    for update in (0, 2, 4, None):
        layer.train(update is not None)
        layer.update = update
        z = layer(vectors, lengths).draw.z[0].detach()
        later = torch.tril(z[:, 1:, 1:]).sum() > 0
        found.append((bool(later), bool(((z == 0) | (z == 1)).all())))
    assert found == [(False, False), (True, False), (True, True), (True, True)]


# ---------------------------------------------------------------- all kinds of parts


# By the short name of a structure: a restricted set, and a larger set that replaces it. A structure
# that is not named here is replaced by itself.
RESTRICTED: dict[str, tuple[Structure, Structure]] = {
    "Bits": (Bits(budget=1), Bits()),
    "BudgetTree": (BudgetTree(1), BudgetTree(2)),
    "IndependentHeads": (IndependentHeads(), IndependentHeads()),
    "KOfN": (KOfN(1), KOfN(2, exactly=False)),
    "ManyToOneAlignment": (ManyToOneAlignment(), ManyToOneAlignment(unaligned=True)),
    "MonotoneAlignment": (MonotoneAlignment(window=1), MonotoneAlignment()),
    "OneToOneAlignment": (OneToOneAlignment(), OneToOneAlignment(unaligned=True)),
    "ProjectiveTree": (EARLIER, FREE),
    "Runs": (Runs(2, 1), Runs(2, 2)),
    "SpanningTree": (EARLIER, SpanningTree()),
}
SCORERS = [build() for build in registered.scorers().values()]
COMPOSERS = [build() for build in registered.composers().values()]
WIDTH = 6
# PAIRS has the lengths of both texts, for structures that align them.
LENGTHS, PAIRS = torch.tensor([4, 3, 1]), torch.tensor([[2, 2], [2, 1], [1, 1]])
TOKENS = PAIRS.sum(1).maximum(LENGTHS)


def layers_for(structure: Structure) -> tuple[Any, Any]:
    """Return a scorer and a composer of the structure's parts.

    The composer accepts soft structures if there is such a composer.
    """
    scorers = [s for s in SCORERS if s.func.parts == structure.parts]
    composers = [c for c in COMPOSERS if c.func.parts == structure.parts]
    scorer = next(s for s in scorers if s.func.decides in ("", structure.name))
    return scorer, min(composers, key=lambda composer: composer.func.requires_hard)


def works(structure: Structure, estimator: Estimator, scorer: Any, composer: Any) -> bool:
    try:
        check_parts(structure, estimator, scorer, composer)
    except IncompatiblePair:
        return False
    return True


def update(layer: LatentLayer, number: int, vectors: Tensor, lengths: Tensor) -> Draw:
    """Take one training step with the estimator of this update, and return its draw."""
    layer.train()
    layer.update = number
    for weights in layer.parameters():
        weights.grad = None
    draw, _ = layer.read(vectors, lengths)
    each = layer.compose_each(vectors, draw, lengths).square().sum((2, 3))
    log_probs = torch.zeros_like(each) if draw.log_probs is None else draw.log_probs
    features, rewards = vectors.detach().mean(1), draw.extras
    if layer.present_estimator.reward is not None:
        rewards = torch.ones_like(each)
    told = (draw.weights, log_probs, features, rewards)
    layer.present_estimator.objective(each, *told).sum().backward()
    gradients = [weights.grad for weights in layer.parameters() if weights.grad is not None]
    assert gradients and all(torch.isfinite(gradient).all() for gradient in gradients)
    with torch.no_grad():
        for weights in layer.parameters():
            if weights.grad is not None:
                weights -= 1e-3 * weights.grad
    return draw


def test_every_set_that_knows_a_smaller_one_is_released_from_it() -> None:
    for name, kind in STRUCTURES.items():
        if kind.covers is not Structure.covers:
            restricted, free = RESTRICTED[name.split(".")[1]]
            assert isinstance(free, kind) and free.covers(restricted)
            assert issubclass(kind, IndependentHeads) or repr(free) != repr(restricted)


@pytest.mark.parametrize("name", STRUCTURES)
def test_stages_take_updates_with_parts_of_each_kind(name: str) -> None:
    """Estimators that work with a structure are tried in a circle of pairs, first and second."""
    torch.manual_seed(0)
    restricted, free = RESTRICTED.get(name.split(".")[1], (STRUCTURES[name](),) * 2)
    released = release(restricted, free, 1)
    scorer, composer = layers_for(free)
    able = [
        estimator
        for estimator in map(registered.make_estimator, ESTIMATORS)
        if registered.fits(estimator, restricted) and registered.fits(estimator, free)
        if works(restricted, estimator, scorer, composer)
        if works(free, estimator, scorer, composer)
    ]
    assert able
    lengths = PAIRS if free.parts == "cells" else LENGTHS
    vectors = torch.randn(3, int(TOKENS.max()), WIDTH, requires_grad=True)
    for first, then in zip(able, able[1:] + able[:1]):
        sequence = build_estimator_sequence_v1(first, then, 2)
        layer = LatentLayer(
            scorer(WIDTH),
            released,
            sequence.each(lambda stage: stage.for_width(WIDTH)),
            composer(WIDTH),
            temperature=10.0,
        )
        draw = update(layer, 0, vectors, lengths)
        if first.hard and first.uses_scores and restricted.linear:
            for z, weights in zip(draw.z.detach(), draw.weights):
                assert restricted.contains(z, lengths)[weights > 0].all()
        for number in (1, 2):
            update(layer, number, vectors, lengths)
        assert layer.present_estimator.name == then.name
        layer.eval()
        layer.update = None
        with torch.no_grad():
            assert torch.isfinite(layer(vectors, lengths).vectors).all()


# ---------------------------------------------------------------- in pipelines


RELEASED = {
    "@misc": "spacy-latent.ReleasedStructure.v1",
    "release_at": 2,
    "restricted": {"@misc": "spacy-latent.ProjectiveTree.v1", "direction": "earlier"},
    "free": {"@misc": "spacy-latent.ProjectiveTree.v1"},
}
NETWORK = {"@misc": "spacy-latent.NetworkBaseline.v1", "hidden_width": 3}
SCORE_FUNCTION = {"@misc": "spacy-latent.ScoreFunction.v1", "control_variate": NETWORK}


def sequence(first: dict[str, Any], then: dict[str, Any]) -> dict[str, Any]:
    return {
        "@misc": "spacy-latent.EstimatorSequence.v1",
        "switch_at": 4,
        "first": first,
        "then": then,
    }


MARGINALS = {"@misc": "spacy-latent.Marginals.v1"}
SPARSEMAP = {"@misc": "spacy-latent.SparseMAP.v1"}


def pipeline(component: str, estimator: dict[str, Any]) -> Language:
    fix_random_seed(0)
    nlp = spacy.blank("en")
    model: dict[str, Any] = {"tok2vec": TOK2VEC, "structure": RELEASED, "estimator": estimator}
    if component == "latent_textcat":
        nlp.add_pipe(component, config={"model": {**model, "exclusive_classes": True}})
        return nlp
    nlp.add_pipe("latent_encoder", config={"model": model})
    listener = {**LISTENER, "upstream": "latent_encoder"}
    nlp.add_pipe("textcat", config={"model": {**REDUCE, "tok2vec": listener}})
    return nlp


def examples(nlp: Language) -> list[Example]:
    return [
        Example.from_dict(nlp.make_doc(text), {"cats": {"A": good, "B": 1 - good}})
        for text, good in TEXTS
    ]


@pytest.mark.parametrize(
    "component, estimator",
    [
        ("latent_textcat", sequence(MARGINALS, SCORE_FUNCTION)),
        ("latent_textcat", sequence(SCORE_FUNCTION, SPARSEMAP)),
        ("latent_encoder", sequence(MARGINALS, SPARSEMAP)),
        ("latent_encoder", sequence(MARGINALS, {"@misc": "spacy-latent.StraightThrough.v1"})),
    ],
)
def test_training_goes_on_where_it_was(component: str, estimator: dict[str, Any]) -> None:
    """A pipeline that is saved and loaded between two changes of stage ends with equal weights."""

    def train(nlp: Language, optimizer: Optimizer, updates: range) -> list[str]:
        stages = []
        for update in updates:
            torch.manual_seed(update)
            # Like spacy train, finish all gradients, including the listener's, in the same update.
            nlp.update(examples(nlp), sgd=False)  # type: ignore[arg-type]
            layer = nlp.get_pipe(component).model.get_ref("latent").shims[0].module.latent
            stages.append((layer.present_structure.direction, layer.present_estimator.name))
            for _, pipe in nlp.pipeline:
                pipe.finish_update(optimizer)
            optimizer.step_schedules()
        return stages

    def final(nlp: Language) -> list[np.ndarray]:
        shim = nlp.get_pipe(component).model.get_ref("latent").shims[0]
        return [value.numpy().copy() for value in shim.module.state_dict().values()]

    nlp = pipeline(component, estimator)
    nlp.initialize(lambda: examples(nlp))
    start = nlp.to_bytes()
    kinds = [estimator["first"]["@misc"], estimator["then"]["@misc"]]
    names = [name.removeprefix("spacy-latent.").removesuffix(".v1") for name in kinds]
    expected = [("earlier", names[0])] * 2 + [("any", names[0])] * 2 + [("any", names[1])] * 2
    # SGD has no state that would have to be saved.
    plain = SGD(0.1)
    assert train(nlp, plain, range(6)) == expected
    other = pipeline(component, estimator).from_bytes(start)
    stages = train(other, SGD(0.1), range(3))
    resumed = pipeline(component, estimator).from_bytes(other.to_bytes())
    stages += train(resumed, SGD(0.1), range(3, 6))
    assert stages == expected
    for ours, theirs in zip(final(nlp), final(resumed)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_prediction_uses_the_free_set_from_the_start() -> None:
    nlp = pipeline("latent_textcat", sequence(MARGINALS, SCORE_FUNCTION))
    nlp.initialize(lambda: examples(nlp))
    model = nlp.get_pipe("latent_textcat").model
    layer = model.get_ref("latent").shims[0].module.latent
    nlp.update(examples(nlp), sgd=nlp.create_optimizer())
    assert layer.present_structure.direction == "earlier"
    docs = list(nlp.pipe(text for text, _ in TEXTS))
    assert layer.present_structure.direction == "any"
    heads = [doc._.latent["latent_textcat"].heads for doc in docs]
    assert any((own > np.arange(len(own))).any() for own in heads)


def test_an_estimator_that_needs_the_loss_is_refused_with_both_names() -> None:
    with pytest.raises(IncompatiblePair, match=r"ScoreFunction.*Marginals.*LatentTok2Vec"):
        pipeline("latent_encoder", sequence(MARGINALS, SCORE_FUNCTION))
    with pytest.raises(IncompatiblePair, match=r"^ScoreFunction.*LatentTok2Vec"):
        pipeline("latent_encoder", sequence(SCORE_FUNCTION, MARGINALS))


def test_weights_of_earlier_estimators_are_stored() -> None:
    nlp = pipeline("latent_textcat", sequence(SCORE_FUNCTION, MARGINALS))
    nlp.initialize(lambda: examples(nlp))
    shim = nlp.get_pipe("latent_textcat").model.get_ref("latent").shims[0]
    names = [name for name, _ in shim.module.named_parameters()]
    assert any("earlier_estimators.0.control_variate.network" in name for name in names)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_structure_covers_itself(structure: str) -> None:
    made = STRUCTURES[structure]()
    assert release(made, STRUCTURES[structure](), 2).at(0).name == made.name


def test_entropy_is_asked_of_each_set() -> None:
    model = {
        "tok2vec": TOK2VEC,
        "entropy_weight": 0.1,
        "estimator": SPARSEMAP,
        "structure": {
            **RELEASED,
            "restricted": {"@misc": "spacy-latent.BudgetTree.v1"},
            "free": {"@misc": "spacy-latent.SpanningTree.v1"},
        },
    }
    with pytest.raises(LatentError, match=r"BudgetTree.*entropy"):
        spacy.blank("en").add_pipe("latent_encoder", config={"model": model})


def test_messages_name_pairs() -> None:
    sequence_of = build_estimator_sequence_v1(
        registered.make_estimator("spacy-latent.Marginals.v1"),
        registered.make_estimator("spacy-latent.SparseMAP.v1"),
        2,
    )
    with pytest.raises(LatentError, match="switch_at") as error:
        build_estimator_sequence_v1(sequence_of, sequence_of, 0)
    assert "SparseMAP" in str(error.value)
