"""Scorer and composer of pairs of texts: their results, and that padding has no effect."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.layers.aligned_comparison import build_aligned_comparison_v1
from spacy_latent.layers.arc_scorer import ArcScorer
from spacy_latent.layers.bilstm import build_bilstm_v1
from spacy_latent.layers.cell_scorer import CellScorer, build_cell_scorer_v1
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.layers.two_texts import join_texts, split_texts
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment

WIDTH = 6
LENGTHS = torch.tensor([[3, 2], [1, 4], [2, 0], [0, 3]])
OPTIONS = [
    {},
    {"hidden_width": None, "similarity": "cosine"},
    {"similarity": "cosine", "shared": False, "neighbours": 2, "distance": True},
    {"neighbours": 1, "encoder": build_bilstm_v1(hidden_width=4)},
]
SCORERS = pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options))


def texts(padding: float = 0.0) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return a batch with this value as padding, and the two texts of each item."""
    torch.manual_seed(0)
    vectors = torch.full((len(LENGTHS), 7, WIDTH), padding)
    pairs = []
    for item, (n, m) in zip(vectors, LENGTHS.tolist()):
        first, second = torch.randn(n, WIDTH), torch.randn(m, WIDTH)
        item[: n + m] = torch.cat([first, second])
        pairs.append((first, second))
    return vectors, pairs


def make(options: dict) -> CellScorer:
    torch.manual_seed(1)
    scorer = build_cell_scorer_v1(**options)(WIDTH)
    if scorer.distance is not None:
        torch.nn.init.constant_(scorer.distance, 0.7)
    return scorer


def test_texts_are_taken_apart_and_put_together() -> None:
    vectors, pairs = texts(padding=3.0)
    first, second = split_texts(vectors, LENGTHS, "test")
    assert first.shape == (4, 3, WIDTH) and second.shape == (4, 4, WIDTH)
    for b, (one, other) in enumerate(pairs):
        assert torch.equal(first[b, : len(one)], one) and not first[b, len(one) :].any()
        assert torch.equal(second[b, : len(other)], other) and not second[b, len(other) :].any()
    again = join_texts(first, second, LENGTHS, 7)
    inside = torch.arange(7)[None] < LENGTHS.sum(1)[:, None]
    assert torch.equal(again, torch.where(inside[..., None], vectors, 0.0))


@SCORERS
def test_scores_of_a_batch_are_those_of_each_item_alone(options: dict) -> None:
    scorer, (vectors, pairs) = make(options), texts(padding=5.0)
    scores = scorer(vectors, LENGTHS)
    assert scores.shape == (4, 3, 4)
    for b, (first, second) in enumerate(pairs[:2]):
        n, m = LENGTHS[b].tolist()
        alone = scorer(torch.cat([first, second])[None], LENGTHS[b : b + 1])[0]
        torch.testing.assert_close(scores[b, :n, :m], alone)


def test_what_the_scores_are() -> None:
    vectors, pairs = texts()
    first, second = pairs[0]
    scorer = make({"shared": False})
    expected = scorer.first(first) @ scorer.second(second).T / 64**0.5
    torch.testing.assert_close(scorer(vectors, LENGTHS)[0, :3, :2], expected)
    scorer = make({"similarity": "cosine", "neighbours": 2, "distance": True, "hidden_width": None})
    cosine = torch.nn.functional.cosine_similarity(first[:, None], second[None], dim=-1)
    alone = 4.0 * (cosine - 0.5)
    expected = alone.clone()
    for i in range(3):
        for j in range(2):
            for k, weight in ((1, 0.4), (2, 0.2)):
                for x, y in ((i - k, j - k), (i + k, j + k)):
                    if 0 <= x < 3 and 0 <= y < 2:
                        expected[i, j] += weight * alone[x, y]
            expected[i, j] -= 0.7 * abs(i / 2 - j)
    torch.testing.assert_close(scorer(vectors, LENGTHS)[0, :3, :2], expected)


def test_copies_of_a_word_have_the_largest_cosine() -> None:
    torch.manual_seed(0)
    words = torch.randn(5, WIDTH)
    scorer = make({"similarity": "cosine"})
    scores = scorer(torch.cat([words, words.flip(0)])[None], torch.tensor([[5, 5]]))[0]
    assert torch.equal(scores.argmax(1), torch.arange(5).flip(0))


def test_words_are_compared_with_those_that_they_are_aligned_with() -> None:
    vectors, pairs = texts(padding=2.0)
    composer = build_aligned_comparison_v1(5)(WIDTH)
    rows, columns = (torch.arange(size) for size in (3, 4))
    inside = (rows < LENGTHS[:, :1])[:, :, None] & (columns < LENGTHS[:, 1:])[:, None]
    z = torch.rand(4, 3, 4) * inside
    out = composer(vectors, z, LENGTHS)
    assert out.shape == (4, 7, 5)
    first, second = pairs[0]
    cells = z[0, :3, :2]
    of_first = cells @ second / cells.sum(1, keepdim=True).clamp_min(1)
    of_second = cells.T @ first / cells.sum(0)[:, None].clamp_min(1)
    words, others = torch.cat([first, second]), torch.cat([of_first, of_second])
    expected = composer.compare(torch.cat([words, others, words - others, words * others], 1))
    torch.testing.assert_close(out[0, :5], expected)
    # The words of a text beside an empty text are compared with zeros.
    alone = pairs[2][0]
    nothing = torch.zeros_like(alone)
    expected = composer.compare(torch.cat([alone, nothing, alone, nothing], 1))
    torch.testing.assert_close(out[2, :2], expected)


def test_the_order_of_words_does_not_matter_where_no_place_is_scored() -> None:
    torch.manual_seed(0)
    scorer, composer = make({}), build_aligned_comparison_v1()(WIDTH)
    layer = LatentLayer(scorer, ManyToOneAlignment(), Marginals(), composer)
    lengths, vectors = torch.tensor([[4, 3]]), torch.randn(1, 7, WIDTH)
    order = torch.tensor([2, 0, 3, 1, 6, 4, 5])
    output, moved = layer(vectors, lengths), layer(vectors[:, order], lengths)
    torch.testing.assert_close(moved.vectors, output.vectors[:, order])
    torch.testing.assert_close(moved.draw.z, output.draw.z[:, :, order[:4]][..., order[4:] - 4])


def test_one_text_is_refused_with_advice() -> None:
    with pytest.raises(LatentError, match=r"CellScorer.*PairSpans"):
        make({})(torch.randn(1, 3, WIDTH), torch.tensor([3]))


def test_layers_of_other_parts_are_refused() -> None:
    class Dot(ArcScorer):
        pass

    with pytest.raises(IncompatiblePair, match="Dot"):
        LatentLayer(
            Dot(WIDTH, None, False, False),
            ManyToOneAlignment(),
            Marginals(),
            build_aligned_comparison_v1()(WIDTH),
        )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"similarity": "euclidean"}, "similarity"),
        ({"neighbours": -1}, "neighbours"),
        ({"similarity": "cosine", "scale": 0.0}, "scale"),
        ({"hidden_width": 0}, "hidden_width"),
        ({"hidden_width": None}, "learn"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict, message: str) -> None:
    with pytest.raises(LatentError, match=message):
        build_cell_scorer_v1(**options)
