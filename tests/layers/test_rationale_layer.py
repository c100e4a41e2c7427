"""The layer that chooses words by some features and reads their other features."""

from __future__ import annotations

import itertools

import pytest
import torch

from spacy_latent.errors import LatentError
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.estimators.straight_through import StraightThrough
from spacy_latent.layers.bilstm import build_bilstm_v1
from spacy_latent.layers.emission_scorer import EmissionScorer
from spacy_latent.layers.item_scorer import ItemScorer
from spacy_latent.layers.rationale_layer import RationaleLayer, RationaleSettings
from spacy_latent.layers.rationale_reader import RationaleReader
from spacy_latent.layers.transition_scorer import TransitionScorer
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.tag_sequence import TagSequence

SELECTOR, READER = 4, 3


def rows(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vectors of words that may all be chosen, with 0 as padding, and lengths."""
    torch.manual_seed(0)
    size = max(lengths)
    inside = torch.arange(size) < torch.tensor(lengths)[:, None]
    vectors = torch.randn(len(lengths), size, SELECTOR + READER)
    column = torch.ones(len(lengths), size, 1)
    return torch.cat([vectors, column], -1) * inside[..., None], torch.tensor(lengths)


def layer(structure=None, estimator=None, scorer=None, **options) -> RationaleLayer:
    torch.manual_seed(1)
    structure = structure or KOfN(2)
    reader = RationaleReader(READER, structure.parts)
    return RationaleLayer(
        scorer or ItemScorer(SELECTOR),
        structure,
        estimator or StraightThrough(),
        reader,
        reader_width=READER,
        settings=RationaleSettings(**options),
    ).eval()


class Short(ItemScorer):
    """A scorer that omits the last word."""

    def forward(self, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return super().forward(vectors, lengths)[:, :-1]


def test_scores_of_fewer_words_are_refused() -> None:
    with pytest.raises(LatentError, match=r"Short.*\(2, 3\).*\(2, 4\)"):
        layer(scorer=Short(SELECTOR))(*rows([4, 3]))


@pytest.mark.parametrize("choice", ["items", "tags", "transitions"])
def test_the_mean_over_words_is_that_over_the_chosen(choice: str) -> None:
    chosen = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    z = chosen
    if choice != "items":
        z = torch.stack([1 - chosen, chosen], -1)
    if choice == "transitions":
        z = torch.stack([z, torch.zeros_like(z)], 2)
    vectors = torch.randn(2, 4, READER)
    read = RationaleReader(READER, choice)(vectors, z, torch.tensor([4, 3]))
    torch.testing.assert_close(read[0].mean(0), vectors[0, [0, 2]].mean(0))
    assert not read[0, 1].any() and not read[1].any()


def test_soft_choices_are_weights() -> None:
    vectors, z = torch.randn(1, 3, READER), torch.tensor([[0.2, 0.0, 0.8]])
    read = RationaleReader(READER, "items")(vectors, z, torch.tensor([3]))
    expected = 0.2 * vectors[0, 0] + 0.8 * vectors[0, 2]
    torch.testing.assert_close(read[0].mean(0), expected)
    faint = RationaleReader(READER, "items")(vectors, 1e-9 * z, torch.tensor([3]))
    assert faint.abs().max() < 1e-6


def test_a_reader_with_context_hears_nothing_of_other_words() -> None:
    torch.manual_seed(0)
    reader = RationaleReader(READER, "items", build_bilstm_v1(hidden_width=2))
    z, lengths = torch.tensor([[0.0, 1.0, 0.0, 1.0]]), torch.tensor([4])
    vectors = torch.randn(1, 4, READER)
    changed = vectors.clone()
    changed[:, [0, 2]] = torch.randn(1, 2, READER)
    assert torch.equal(reader(vectors, z, lengths), reader(changed, z, lengths))
    # The positions of the gaps do change the result.
    moved = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    gone = vectors[:, [1, 0, 2, 3]]
    assert not torch.allclose(reader(vectors, z, lengths)[0, 1], reader(gone, moved, lengths)[0, 0])


def test_selector_and_reader_are_apart() -> None:
    made = layer()
    vectors, lengths = rows([5, 3])
    draw, scores = made.read(vectors, lengths)
    other = vectors.clone()
    other[..., SELECTOR:-1] = torch.randn(2, 5, READER)
    again, same = made.read(other, lengths)
    assert torch.equal(scores, same) and torch.equal(draw.z, again.z)
    other = vectors.clone()
    other[..., :SELECTOR] = torch.randn(2, 5, SELECTOR)
    assert torch.equal(
        made.compose_each(vectors, draw, lengths), made.compose_each(other, draw, lengths)
    )
    assert torch.equal(made.compose(vectors, draw, lengths), made.compose(other, draw, lengths))


@pytest.mark.parametrize("structure", [LinearChain(), TagSequence()], ids=lambda s: s.name)
def test_the_transition_cost_is_paid_at_each_change(structure) -> None:
    """The reference is a list of all sequences, scored by hand."""
    chain = structure.parts == "transitions"
    scorer = TransitionScorer(SELECTOR, 2) if chain else EmissionScorer(SELECTOR, 2)
    made = layer(structure, Marginals(), scorer, transition_cost=0.7)
    vectors, lengths = rows([4])
    plain = scorer(vectors[..., :SELECTOR], lengths)[0].detach()
    totals = {}
    for tags in itertools.product((0, 1), repeat=4):
        before = (0, *tags[:-1])
        if chain:
            own = sum(
                float(plain[i, 0 if i == 0 else p, t]) for i, (p, t) in enumerate(zip(before, tags))
            )
        else:
            own = sum(float(plain[i, t]) for i, t in enumerate(tags))
        totals[tags] = own - 0.7 * sum(p != t for p, t in zip(before, tags))
    bound, scores = made.score(vectors, lengths)
    expected = torch.tensor(list(totals.values())).logsumexp(0)
    torch.testing.assert_close(bound.log_partition(scores, lengths)[0], expected)
    best = made.composer.chosen(bound.map(scores, lengths))[0]
    assert tuple(best.int().tolist()) == max(totals, key=totals.__getitem__)


def test_a_large_transition_cost_leaves_at_most_one_run() -> None:
    vectors, lengths = rows([12])
    runs = []
    for cost in (0.0, 1.0):
        made = layer(TagSequence(), scorer=EmissionScorer(SELECTOR, 2), transition_cost=cost)
        draw, _ = made.read(vectors * 3.0, lengths)
        chosen = made.chosen(draw)[0]
        runs.append(int((chosen.diff(prepend=torch.zeros(1)) == 1).sum()))
    assert runs[0] > runs[1]


@pytest.mark.parametrize("estimator", [Marginals(), StraightThrough(), ScoreFunction()])
def test_the_rate_is_held(estimator) -> None:
    """Only the penalty trains the scorer, so the share of chosen words reaches the rate."""
    made = layer(Bits(), estimator, rate=0.25, multiplier_rate=0.05)
    vectors, lengths = rows([8, 20, 5])
    optimizer = torch.optim.Adam(made.scorer.parameters(), 0.05)
    made.train()
    shares = []
    for step in range(300):
        optimizer.zero_grad()
        draw, scores = made.read(vectors, lengths)
        draw.penalty.sum().backward()
        optimizer.step()
        if step >= 200:
            mean = draw.z[0] if estimator.hard and draw.z.requires_grad else scores.sigmoid()
            inside = torch.arange(20) < lengths[:, None]
            shares.append(float(((mean * inside).sum(1) / lengths).mean().detach()))
    assert sum(shares) / len(shares) == pytest.approx(0.25, abs=0.06)


@pytest.mark.parametrize("wanted", [0.15, 0.6])
def test_transitions_are_held_beside_the_rate(wanted: float) -> None:
    """The same vectors lead to half of the words in few runs, or in many."""
    scorer = TransitionScorer(SELECTOR, 2)
    made = layer(LinearChain(), Marginals(), scorer, rate=0.5, transitions=wanted)
    vectors, lengths = rows([12, 9])
    optimizer = torch.optim.Adam(made.scorer.parameters(), 0.05)
    made.train()
    for _ in range(200):
        optimizer.zero_grad()
        draw, _ = made.read(vectors, lengths)
        draw.penalty.sum().backward()
        optimizer.step()
    mean = draw.z[0].detach()
    changes = (mean[:, 1:, 0, 1] + mean[:, 1:, 1, 0]).sum() / (11 + 8)
    assert float(made.composer.chosen(mean).sum()) / 21 == pytest.approx(0.5, abs=0.1)
    assert float(changes) == pytest.approx(wanted, abs=0.1)


def test_words_that_may_not_be_chosen_are_not_seen() -> None:
    made = layer(KOfN(3))
    vectors, lengths = rows([5])
    vectors[0, :3, -1] = 0.0
    draw, _ = made.read(vectors, lengths)
    assert made.chosen(draw)[0].tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]
    # In training the structure may have such words, but they are not read.
    made.train()
    draw, _ = made.read(vectors, lengths)
    assert draw.z[0, 0].sum() == 3
    read = made.compose(vectors, draw, lengths)
    torch.testing.assert_close(read[0].mean(0), vectors[0, 3:, SELECTOR:-1].mean(0))


def test_more_than_two_tags_are_refused() -> None:
    with pytest.raises(LatentError, match="num_tags"):
        RationaleReader(READER, "tags").chosen(torch.zeros(1, 4, 3))
