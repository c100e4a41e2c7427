"""Evidence of words on trees, compared with enumeration of trees and of sentences in float64."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.layers import parts_of_batch
from spacy_latent.layers.bag_of_words import build_bag_of_words_v1
from spacy_latent.layers.learned_arc_prior import LearnedArcPrior, build_learned_arc_prior_v1
from spacy_latent.layers.learned_prior import build_learned_prior_v1
from spacy_latent.layers.uniform_prior import build_uniform_prior_v1
from spacy_latent.layers.words_by_heads import WordsByHeads, build_words_by_heads_v1
from spacy_latent.models.evidence_bound import build_evidence_bound_v1
from spacy_latent.models.tree_evidence import (
    Shares,
    TreeWordObjective,
    autoencoded,
    bound,
    build_crf_autoencoder_v1,
)
from spacy_latent.structures.dependency import DependencyTree
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.projective_tree import ProjectiveTree
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.enumeration import arcs, dependency_trees

WORDS = 3
STRUCTURES = [SpanningTree(single_root=True), ProjectiveTree(single_root=True)]
each_structure = pytest.mark.parametrize(
    "structure", STRUCTURES, ids=lambda structure: structure.name
)
each_length = pytest.mark.parametrize("length", [1, 2, 3, 4])


def decoder(size: int = WORDS, width: int = 2) -> WordsByHeads:
    torch.manual_seed(0)
    made = WordsByHeads(width, size).double()
    nn.init.normal_(made.output.bias)
    return made


def trees(structure: DependencyTree, length: int, heads: tuple[int, ...] = ()) -> list[Tensor]:
    """Return the 0/1 arcs of all trees of the structure.

    Args:
        heads: Keep only trees with these heads; −1 allows any head.
    """
    every = dependency_trees(length, projective=not structure.crosses, single_root=True)
    return [
        torch.from_numpy(arcs(tree)).double()
        for tree in every
        if all(known in (-1, head) for known, head in zip(heads, tree))
    ]


def case(length: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return random scores, log p(word | head) and scores of a prior, and the length."""
    generator = torch.Generator().manual_seed(seed)
    shape = 1, length + 1, length + 1
    scores, word_log_probs, prior = (
        torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(3)
    )
    return scores, word_log_probs, prior, torch.tensor([length])


def total(z: Tensor, scores: Tensor) -> Tensor:
    return torch.where(z > 0, scores[0], 0.0).sum()


def log_sum(every: list[Tensor], scores: Tensor) -> Tensor:
    return torch.stack([total(z, scores) for z in every]).logsumexp(0)


@each_structure
@each_length
def test_the_autoencoder_sums_over_all_trees(structure: DependencyTree, length: int) -> None:
    scores, word_log_probs, _, lengths = case(length)
    every = trees(structure, length)
    q = [(total(z, scores) - log_sum(every, scores)).exp() for z in every]
    wanted = torch.stack([p * total(z, word_log_probs).exp() for p, z in zip(q, every)]).sum().log()
    found = autoencoded(structure, scores, word_log_probs, lengths)
    assert found.shape == (1,)
    assert found.item() == pytest.approx(wanted.item(), abs=1e-10)


@each_structure
@each_length
@pytest.mark.parametrize("kl_weight", [1.0, 0.3])
def test_the_bound_is_the_mean_over_all_trees(
    structure: DependencyTree, length: int, kl_weight: float
) -> None:
    scores, word_log_probs, prior, lengths = case(length)
    every = trees(structure, length)
    wanted = torch.zeros((), dtype=torch.float64)
    for z in every:
        log_q = total(z, scores) - log_sum(every, scores)
        log_p = total(z, prior) - log_sum(every, prior)
        wanted += log_q.exp() * (total(z, word_log_probs) - kl_weight * (log_q - log_p))
    found = bound(structure, scores, word_log_probs, prior, lengths, kl_weight)
    assert found.item() == pytest.approx(wanted.item(), abs=1e-10)


@each_structure
def test_the_bound_is_below_the_evidence_and_reaches_it(structure: DependencyTree) -> None:
    scores, word_log_probs, prior, lengths = case(4)
    every = trees(structure, 4)
    evidence = (log_sum(every, prior + word_log_probs) - log_sum(every, prior)).item()
    assert bound(structure, scores, word_log_probs, prior, lengths).item() < evidence - 1e-3
    exact = bound(structure, prior + word_log_probs, word_log_probs, prior, lengths)
    assert exact.item() == pytest.approx(evidence, abs=1e-10)


@each_structure
@pytest.mark.parametrize("heads", [(2, -1, -1), (-1, 0, -1), (2, 0, 2), (-1, -1, -1)])
def test_heads_that_are_known_leave_the_trees_that_agree(
    structure: DependencyTree, heads: tuple[int, ...]
) -> None:
    scores, word_log_probs, prior, lengths = case(3)
    agreeing = scores.clone()
    for m, head in enumerate(heads, 1):
        if head >= 0:
            agreeing[0, [h for h in range(4) if h != head], m] = -torch.inf
    every, own = trees(structure, 3), trees(structure, 3, heads)
    assert own
    found = autoencoded(structure, agreeing, word_log_probs, lengths)
    wanted = log_sum(own, scores + word_log_probs) - log_sum(own, scores)
    assert found.item() == pytest.approx(wanted.item(), abs=1e-10)
    # The prior is normalized over all trees, so it also gives the known heads a probability.
    q = [(total(z, scores) - log_sum(own, scores)).exp() for z in own]
    wanted = sum(
        p * (total(z, word_log_probs) + total(z, prior) - log_sum(every, prior) - p.log())
        for p, z in zip(q, own)
    )
    found = bound(structure, agreeing, word_log_probs, prior, lengths)
    assert found.item() == pytest.approx(wanted.item(), abs=1e-10)


@each_structure
def test_gradients_are_those_of_differences(structure: DependencyTree) -> None:
    scores, word_log_probs, prior, lengths = case(3)
    closed = torch.zeros_like(scores, dtype=torch.bool)
    closed[0, 1, 2] = True
    inputs = [part.requires_grad_() for part in (scores, word_log_probs, prior)]

    def of_autoencoder(scores: Tensor, word_log_probs: Tensor) -> Tensor:
        return autoencoded(
            structure, scores.masked_fill(closed, -torch.inf), word_log_probs, lengths
        )

    def of_bound(scores: Tensor, word_log_probs: Tensor, prior: Tensor) -> Tensor:
        q, p = (part.masked_fill(closed, -torch.inf) for part in (scores, prior))
        return bound(structure, q, word_log_probs, p, lengths, 0.7)

    assert torch.autograd.gradcheck(of_autoencoder, inputs[:2])
    assert torch.autograd.gradcheck(of_bound, inputs)


# ---------------------------------------------------------------- the decoder


def test_words_of_each_head_sum_to_one() -> None:
    """The probabilities of a modifier sum to one for each head, on either side."""
    words_by_heads = decoder()
    sums = torch.stack(
        [
            words_by_heads(torch.tensor([[0, 1, word, 2]]), torch.tensor([4]))[
                0, [0, 1, 2, 4], 3
            ].exp()
            for word in range(WORDS)
        ]
    ).sum(0)
    assert torch.allclose(sums, torch.ones(4).double(), atol=1e-12)


@each_structure
def test_sentences_of_a_tree_sum_to_one(structure: DependencyTree) -> None:
    words_by_heads, length = decoder(), 3
    sentences = torch.tensor(list(product(range(WORDS), repeat=length)))
    with torch.no_grad():
        each = words_by_heads(sentences, torch.full((len(sentences),), length))
    for z in trees(structure, length):
        assert float((each * z).sum((1, 2)).exp().sum()) == pytest.approx(1.0, abs=1e-12)


def test_a_word_is_told_from_its_head_alone() -> None:
    """The probability of a word depends only on the word and its head.

    A decoder that reads vectors of the word in context could copy it.
    """
    words_by_heads, lengths = decoder(size=50), torch.tensor([5])
    words = torch.tensor([[7, 8, 9, 10, 11]])
    before = words_by_heads(words, lengths)[0]
    for m in range(1, 6):
        changed = words.clone()
        changed[0, m - 1] = 30
        moved = (words_by_heads(changed, lengths)[0] - before).abs() > 0
        wanted = torch.zeros(6, 6, dtype=torch.bool)
        # A word changes the arcs in which it is the modifier or the head.
        wanted[:, m] = wanted[m, :] = True
        wanted[:, 0] = wanted[m, m] = False
        assert torch.equal(moved, wanted)


def test_the_side_of_the_head_counts_and_its_distance_does_not() -> None:
    log_probs = decoder()(torch.tensor([[0, 1, 1, 0, 1]]), torch.tensor([5]))[0]
    assert log_probs[1, 2] == log_probs[1, 3] == log_probs[1, 5] == log_probs[4, 5]
    assert log_probs[4, 2] == log_probs[4, 3] != log_probs[1, 2]


def test_padding_is_not_told_and_neither_are_other_sentences() -> None:
    words_by_heads = decoder(size=20)
    alone = words_by_heads(torch.tensor([[3, 4]]), torch.tensor([2]))
    both = words_by_heads(torch.tensor([[3, 4, -5], [3, 11, 12]]), torch.tensor([2, 3]))
    assert torch.equal(both[0, :3, :3], alone[0])
    assert not both[0, 3].any() and not both[0, :, 3].any()
    assert not both[:, :, 0].any() and not both.diagonal(dim1=1, dim2=2).any()
    assert (both[1, :, 1:][~torch.eye(4, dtype=torch.bool)[:, 1:]] < 0).all()


def test_words_in_parts_are_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    words_by_heads, results = decoder(size=9), []
    words, lengths = torch.tensor([[3, -8, 2**60, 11], [1, 2, 0, 0]]), torch.tensor([4, 2])
    for most in (1 << 24, 20):
        monkeypatch.setattr(parts_of_batch, "MAX_NUMBERS", most)
        made = words_by_heads(words, lengths)
        weights: list[Tensor] = list(words_by_heads.parameters())
        results.append([made.detach(), *torch.autograd.grad(made.sum(), weights)])
    for whole, parts in zip(*results):
        assert torch.allclose(whole, parts)


def test_at_first_words_are_as_frequent_as_in_training_texts() -> None:
    words_by_heads = WordsByHeads(3, size=4)
    words_by_heads.begin(iter([torch.tensor([0, 4, -4, 1]), torch.tensor([2], dtype=torch.int64)]))
    assert torch.allclose(words_by_heads.output.bias.softmax(0), torch.tensor([4, 2, 2, 1]) / 9)


# ---------------------------------------------------------------- the prior and the settings


def test_the_prior_knows_distance_and_side() -> None:
    prior = LearnedArcPrior(SpanningTree())
    scores, lengths = torch.randn(2, 8, 8), torch.tensor([7, 5])
    assert not prior(scores, lengths).any()
    nn.init.normal_(prior.scores)
    made = prior(scores, lengths)
    assert made.shape == scores.shape and torch.equal(made[0], made[1])
    assert not made[:, 0].any()
    own = made[0]
    assert own[1, 2] == own[5, 6] != own[2, 1]
    assert own[1, 4] == own[1, 5] != own[1, 3]


def test_a_prior_is_not_read_where_no_arc_can_be() -> None:
    settings = build_evidence_bound_v1(build_words_by_heads_v1(9), build_learned_arc_prior_v1())
    torch.manual_seed(0)
    evidence = TreeWordObjective(settings, STRUCTURES[0], 4).double()
    assert evidence.prior is not None
    nn.init.normal_(evidence.prior.scores)
    scores, _, _, lengths = case(3)
    scores[0, 1, 2] = -torch.inf
    words = torch.tensor([[1, 5, 3]])
    every = [z for z in trees(STRUCTURES[0], 3) if not z[1, 2]]
    word_log_probs, prior = evidence.decoder(words, lengths), evidence.prior(scores, lengths)
    wanted = torch.zeros((), dtype=torch.float64)
    for z in every:
        log_q = total(z, scores) - log_sum(every, scores)
        log_p = total(z, prior) - log_sum(every, prior)
        wanted += log_q.exp() * (total(z, word_log_probs) + log_p - log_q)
    found = evidence(scores, scores, lengths, words)
    assert found.item() == pytest.approx(wanted.item(), abs=1e-10)


def test_weights_may_be_schedules() -> None:
    settings = build_crf_autoencoder_v1(
        unlabelled_weight=iter([0.0, 0.5, 1.0]), labelled_weight=0.25
    )
    assert [Shares.at(i, settings) for i in (0, 1, 5)] == [
        Shares(0.25, 0.0),
        Shares(0.25, 0.5),
        Shares(0.25, 1.0),
    ]
    decoder = build_words_by_heads_v1(9)
    warming = build_evidence_bound_v1(decoder, kl_weight=iter([0.0, 1.0]))
    assert [Shares.at(i, warming).kl for i in (0, 1, 2)] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (build_evidence_bound_v1, LatentError, "decoder.*BagOfWords.*ArcDecoder"),
        (
            partial(build_crf_autoencoder_v1, build_bag_of_words_v1()),
            LatentError,
            "decoder.*BagOfWords.*ArcDecoder",
        ),
        (
            partial(build_evidence_bound_v1, build_words_by_heads_v1(), build_learned_prior_v1()),
            IncompatiblePair,
            "LearnedPrior.*SpanningTree",
        ),
        (
            partial(build_evidence_bound_v1, build_words_by_heads_v1(), build_words_by_heads_v1()),
            LatentError,
            "prior.*Prior",
        ),
    ],
)
def test_what_does_not_fit_trees_is_refused_by_name(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make().check_trees(STRUCTURES[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(build_words_by_heads_v1, size=1), "WordsByHeads.*size"),
        (partial(build_crf_autoencoder_v1, learn_rate=math.nan), "CrfAutoencoder.*learn_rate"),
        (partial(build_crf_autoencoder_v1, labelled_weight=-1.0), "labelled_weight"),
        (
            partial(build_crf_autoencoder_v1, build_words_by_heads_v1(attr="WORD")),
            "CrfAutoencoder.*attr.*'WORD'",
        ),
    ],
)
def test_settings_out_of_range_are_refused(make, message) -> None:
    with pytest.raises(LatentError, match=message):
        make()


def test_a_prior_of_arcs_is_none_of_items() -> None:
    with pytest.raises(IncompatiblePair, match=r"LearnedArcPrior.*OneOfN"):
        build_learned_arc_prior_v1()(OneOfN())
    assert not build_uniform_prior_v1()(SpanningTree())(
        torch.randn(1, 3, 3), torch.tensor([2])
    ).any()
