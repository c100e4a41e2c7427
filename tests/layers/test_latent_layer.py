"""Combinations that are refused when a config is loaded, and the alternatives that errors name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from spacy.util import registry
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.estimators.straight_through import StraightThrough
from spacy_latent.layers.base import Composer, PartScorer
from spacy_latent.layers.biaffine_scorer import build_biaffine_scorer_v1
from spacy_latent.layers.child_sum_tree_lstm import build_child_sum_tree_lstm_v1
from spacy_latent.layers.compatibility import (
    AXES,
    KINDS,
    build_part,
    check_parts,
    registered_layers,
)
from spacy_latent.layers.emission_scorer import EmissionScorer
from spacy_latent.layers.graph_convolution import build_graph_convolution_v1
from spacy_latent.layers.item_scorer import ItemScorer, build_item_scorer_v1
from spacy_latent.layers.latent_layer import LatentLayer, without_traces
from spacy_latent.layers.selection import build_selection_v1
from spacy_latent.layers.tag_sequence_embedding import TagSequenceEmbedding
from spacy_latent.structures.base import Structure
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.structures.tag_sequence import TagSequence
from tests.structures.oracles import listed_subsets


def test_the_defaults_for_arcs_name_what_fits_other_parts() -> None:
    arcs = build_biaffine_scorer_v1(), build_graph_convolution_v1()
    with pytest.raises(IncompatiblePair, match=r"ItemScorer.*Selection"):
        check_parts(KOfN(), Marginals(), *arcs)
    with pytest.raises(IncompatiblePair, match=r"TransitionScorer.*TagEmbedding"):
        check_parts(LinearChain(), Marginals(), *arcs)
    # Only the composer is wrong.
    with pytest.raises(IncompatiblePair, match=r"^GraphConvolution.*KOfN.*Selection") as raised:
        check_parts(KOfN(), Marginals(), build_item_scorer_v1(), arcs[1])
    assert "scorer" not in str(raised.value)
    with pytest.raises(IncompatiblePair, match=r"^BiaffineScorer.*ItemScorer") as raised:
        check_parts(KOfN(), Marginals(), arcs[0], build_selection_v1())
    assert "composer" not in str(raised.value)


def test_trees_of_single_words_alone_are_refused_in_a_layer() -> None:
    arcs, scored = (build_biaffine_scorer_v1(), build_graph_convolution_v1()), SparseMAP()
    with pytest.raises(LatentError, match="max_modifiers"):
        check_parts(BudgetTree(0, single_root=True), scored, *arcs)
    for tree in (BudgetTree(0), BudgetTree(1, single_root=True)):
        check_parts(tree, scored, *arcs)


def test_builders_may_be_classes_or_functions() -> None:
    class ForItems(ItemScorer):
        pass

    check_parts(KOfN(), Marginals(), ForItems, build_selection_v1())
    with pytest.raises(IncompatiblePair, match=r"^ForItems.*SpanningTree.*BiaffineScorer"):
        check_parts(SpanningTree(), Marginals(), ForItems, build_graph_convolution_v1())
    # The class that a function will call is not known.
    for builder in (
        lambda width: ForItems(width),
        partial(lambda width, own: own(width), own=ForItems),
    ):
        check_parts(SpanningTree(), Marginals(), builder, build_graph_convolution_v1())


def test_parts_without_a_name_need_layers_for_as_many_axes() -> None:
    """The default composer is for arcs: a structure of tokens ended with an IndexError in it."""

    class Tokens(Structure):
        part_axes = 1

        def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
            return (scores > 0).to(scores.dtype)

    class Pairs(Tokens):
        part_axes = 2

    items, arcs = build_item_scorer_v1(), build_graph_convolution_v1()
    with pytest.raises(IncompatiblePair, match=r"^GraphConvolution.*Tokens"):
        LatentLayer(items(4), Tokens(), StraightThrough(), arcs(4))
    with pytest.raises(IncompatiblePair, match=r"^ItemScorer.*Pairs"):
        LatentLayer(items(4), Pairs(), StraightThrough(), arcs(4))
    LatentLayer(items(4), Tokens(), StraightThrough(), build_selection_v1()(4))
    LatentLayer(build_biaffine_scorer_v1()(4), Pairs(), StraightThrough(), arcs(4))


def test_the_number_of_axes_is_known_for_every_kind_that_layers_are_for() -> None:
    layers = [made for base in KINDS.values() for _, made in registered_layers(base)]
    assert {getattr(made, "func", made).parts for made in layers} - {""} <= AXES.keys()
    structures = [
        registry.misc.get(point.name)
        for point in entry_points(group="spacy_misc")
        if point.value.startswith("spacy_latent.structures.")
    ]
    named = {
        (made.parts, made.part_axes)
        for made in structures
        if isinstance(made, type) and isinstance(getattr(made, "part_axes", None), int)
    }
    assert len(named) > 5 and all(AXES.get(parts, axes) == axes for parts, axes in named)


@pytest.mark.parametrize(
    "structure, scorer, composer",
    [
        ("LinearChain", "TransitionScorer", "TagEmbedding"),
        ("TagSequence", "EmissionScorer", "TagSequenceEmbedding"),
        ("SemiMarkov", "SegmentScorer", "SegmentAttention"),
    ],
)
def test_scorer_and_composer_have_the_same_number_of_tags(
    structure: str, scorer: str, composer: str
) -> None:
    made, score, compose = (
        registry.get("misc", f"spacy-latent.{name}.v1") for name in (structure, scorer, composer)
    )
    check_parts(made(), Marginals(), score(num_tags=3), compose(num_tags=3))
    with pytest.raises(LatentError, match=rf"{scorer}.*3.*{composer}.*5"):
        check_parts(made(), Marginals(), score(num_tags=3), compose(num_tags=5))


def test_parts_of_ones_own_have_no_fitting_name() -> None:
    class Own(KOfN):
        parts = "morphemes"

    with pytest.raises(IncompatiblePair, match="morphemes"):
        check_parts(Own(), Marginals(), build_item_scorer_v1(), build_graph_convolution_v1())


def test_a_composer_of_hard_structures_names_those_of_soft_ones() -> None:
    composer = build_child_sum_tree_lstm_v1()
    with pytest.raises(IncompatiblePair, match=r"GraphConvolution.v1.*HeadAttention.v1") as raised:
        check_parts(SpanningTree(), Marginals(), build_biaffine_scorer_v1(), composer)
    assert "Selection" not in str(raised.value) and "ChildSumTreeLstm.v1" not in str(raised.value)


def test_unnamed_parts_are_not_checked() -> None:
    class Loose(Marginals):
        def needed(self) -> frozenset[str]:
            return frozenset()

    check_parts(listed_subsets(1, 2), Loose(), build_item_scorer_v1(), build_graph_convolution_v1())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_scores_without_normal_products_are_none(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    given = torch.tensor([1.0, -1e-20, 1e10 * tiny, 1e6 * tiny, -tiny / 8, 0.0], dtype=dtype)
    assert (given[4] != 0).all()
    expected = torch.where(torch.arange(6) < 3, given, 0.0)
    assert torch.equal(without_traces(given), expected)


class Unsqueezed(PartScorer):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, 1)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        return self.linear(vectors)


class Undeclared(Estimator):
    """An estimator that does not declare ``hard``. It returns ``give`` of the best structures."""

    def __init__(self, give: Callable[[Tensor], object]) -> None:
        self.give = give

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Any:
        return self.give(structure.map(scores, lengths))


def test_scores_of_a_wrong_shape_are_refused() -> None:
    vectors, lengths = torch.randn(3, 5, 4), torch.tensor([5, 4, 1])
    composer = build_selection_v1()(4)
    layer = LatentLayer(Unsqueezed(4), KOfN(2), Undeclared(Draw.single), composer)
    with pytest.raises(LatentError, match=r"Unsqueezed.*\(3, 5, 1\).*\(3, 5\)"):
        layer(vectors, lengths)


class Keep(Composer):
    """A composer that returns ``change`` of the chosen vectors."""

    def __init__(self, width: int | None, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        if width is not None:
            self.output_width = width
        self.change = change

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Any:
        return self.change(vectors * z[..., None])


@pytest.mark.parametrize(
    "width, change, message",
    [
        (None, Tensor.clone, "Keep.*output_width"),
        (5, Tensor.clone, r"Keep.*\(2, 3, 4\).*\(2, 3, 5\)"),
        (4, lambda v: v[:, :-1], r"Keep.*\(2, 2, 4\)"),
        (4, lambda v: v.sum(1), r"Keep.*\(2, 4\)"),
        (4, lambda v: None, "Keep.*NoneType"),
    ],
)
def test_what_a_composer_gives_is_looked_at(width, change, message: str) -> None:
    """A missing token would otherwise be ignored without an error."""
    with pytest.raises(LatentError, match=message):
        layer = LatentLayer(build_item_scorer_v1()(4), KOfN(1), Marginals(), Keep(width, change))
        layer(torch.zeros(2, 3, 4), torch.tensor([3, 2]))


@pytest.mark.parametrize("num_samples", [1, 2])
def test_a_layer_in_half_precision_gives_it(num_samples: int) -> None:
    parts = build_biaffine_scorer_v1()(6), build_graph_convolution_v1()(6)
    estimator = ScoreFunction(num_samples)
    layer = LatentLayer(parts[0], SpanningTree(), estimator, parts[1]).bfloat16()
    found = layer(torch.randn(2, 3, 6, dtype=torch.bfloat16), torch.tensor([3, 2]))
    assert found.vectors.dtype == torch.bfloat16
    found.vectors.sum().backward()


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_is_none_is_refused(temperature: float) -> None:
    parts = build_biaffine_scorer_v1()(6), build_graph_convolution_v1()(6)
    with pytest.raises(LatentError, match="temperature"):
        LatentLayer(parts[0], SpanningTree(), Marginals(), parts[1], temperature)


def test_a_scorer_that_gives_no_tensor_is_named() -> None:
    class Wrong(PartScorer):
        def forward(self, vectors: Tensor, lengths: Tensor) -> Any:
            return vectors[:, :, 0].detach().numpy()

    layer = LatentLayer(Wrong(), KOfN(1), Marginals(), build_selection_v1()(4))
    with pytest.raises(LatentError, match=r"Wrong.*ndarray"):
        layer(torch.zeros(2, 3, 4), torch.tensor([3, 2]))


class _Bound(EmissionScorer):
    """A scorer of tags that binds scores of transitions to the structure."""

    def bind(
        self, structure: Structure, vectors: Tensor, lengths: Tensor, temperature: float
    ) -> Structure:
        assert isinstance(structure, TagSequence)
        return structure.bind(torch.eye(2) / temperature, torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize("training", [True, False])
def test_scores_that_no_annotation_would_have_are_refused(training: bool) -> None:
    """Annotations, entropies and bounds on the evidence read only the scores of parts."""
    composer = TagSequenceEmbedding(3, 2)
    lengths = torch.tensor([4, 2])
    for scorer, fits in ((EmissionScorer(3, 2), True), (_Bound(3, 2), False)):
        layer = LatentLayer(scorer, TagSequence(), Marginals(), composer).train(training)
        if fits:
            assert layer(torch.randn(2, 4, 3), lengths).draw.z.shape == (1, 2, 4, 2)
            continue
        with pytest.raises(LatentError, match="_Bound"):
            layer(torch.randn(2, 4, 3), lengths)


def test_a_scorer_in_the_place_of_what_makes_it_is_refused() -> None:
    with pytest.raises(LatentError, match="ItemScorer"):
        build_part("scorer", build_item_scorer_v1()(4), 4)


def test_what_an_estimator_gives_is_looked_at() -> None:
    vectors, lengths = torch.randn(3, 5, 4), torch.tensor([5, 4, 1])
    scorer, composer = build_biaffine_scorer_v1()(4), build_graph_convolution_v1()(4)
    wrong: dict[str, Callable[[Tensor], object]] = {
        "Undeclared.*Tensor.*Draw": lambda z: z,
        r"\(1, 3, 6, 6\).*\(2, 3\)": lambda z: Draw(z[None], z.new_ones(2, len(z))),
        r"\(3, 6, 6\).*\(3,\)": lambda z: Draw(z, z.new_ones(len(z))),
    }
    for message, give in wrong.items():
        layer = LatentLayer(scorer, SpanningTree(), Undeclared(give), composer)
        with pytest.raises(LatentError, match=message):
            layer(vectors, lengths)


def test_an_estimator_is_soft_if_it_does_not_say_what_it_is() -> None:
    estimator = Undeclared(Draw.single)
    assert not estimator.hard and not estimator.hard_at_prediction
    with pytest.raises(IncompatiblePair, match="estimator"):
        check_parts(
            SpanningTree(), estimator, build_biaffine_scorer_v1(), build_child_sum_tree_lstm_v1()
        )


def test_the_scorer_gets_no_traces() -> None:
    torch.manual_seed(0)
    scorer, composer = build_biaffine_scorer_v1()(4), build_graph_convolution_v1()(4)
    layer = LatentLayer(scorer, SpanningTree(), Marginals(), composer)
    vectors, lengths = torch.randn(2, 3, 4), torch.tensor([3, 3])
    _, scores = layer.score(vectors, lengths)
    factor = torch.ones_like(scores)
    factor[1] = 1e-35
    (scores * factor).sum().backward()
    once = [p.grad.clone() for p in layer.scorer.parameters() if p.grad is not None]
    layer.zero_grad()
    _, scores = layer.score(vectors, lengths)
    scores[0].sum().backward()
    again = [p.grad for p in layer.scorer.parameters() if p.grad is not None]
    assert len(once) == len(again) > 0
    for one, other in zip(once, again):
        torch.testing.assert_close(one, other)


class Cast(PartScorer):
    """A scorer whose scores have a dtype other than the dtype of the vectors."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear, self.dtype = torch.nn.Linear(4, 1), dtype

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        return self.linear(vectors).squeeze(2).to(self.dtype)


def test_a_scorer_may_compute_in_double_precision_and_not_in_integers() -> None:
    vectors, lengths = torch.randn(2, 3, 4), torch.tensor([3, 2])
    composer = Keep(4, torch.nn.Linear(4, 4))
    layer = LatentLayer(Cast(torch.float64), KOfN(1), Marginals(), composer)
    assert layer(vectors, lengths).vectors.dtype == torch.float32
    with pytest.raises(LatentError, match=r"Cast.*torch\.int64"):
        LatentLayer(Cast(torch.int64), KOfN(1), Marginals(), composer)(vectors, lengths)
