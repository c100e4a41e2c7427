"""The bound on the evidence of words, against enumeration of texts and structures in float64."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import torch
from spacy.tokens import Doc
from spacy.vocab import Vocab
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair, LatentError, NotTractable
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.dense_marginalization import DenseMarginalization
from spacy_latent.estimators.gumbel_rao import GumbelRao
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.reinmax import ReinMax
from spacy_latent.estimators.relaxed_perturbation import RelaxedPerturbation
from spacy_latent.estimators.sampled_straight_through import SampledStraightThrough
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.estimators.straight_through import StraightThrough
from spacy_latent.estimators.top_k_sparsemax import TopKSparsemax
from spacy_latent.layers import parts_of_batch
from spacy_latent.layers.bag_of_words import BagOfWords, build_bag_of_words_v1
from spacy_latent.layers.base import PartScorer
from spacy_latent.layers.learned_prior import build_learned_prior_v1
from spacy_latent.layers.rationale_layer import RationaleLayer, RationaleSettings
from spacy_latent.layers.rationale_reader import RationaleReader
from spacy_latent.layers.uniform_prior import build_uniform_prior_v1
from spacy_latent.models.evidence_bound import (
    BoundTerms,
    build_evidence_bound_v1,
    is_exact,
    objective,
    words_of,
)
from spacy_latent.models.span_groups import group_spans
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.merge_sequence import MergeSequence
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from tests.models.evidence_terms import Noting, noting

WORDS, WIDTH, LENGTH = 3, 2, 4


class GivenScores(PartScorer):
    """A scorer that gives every text the same scores."""

    parts = "items"

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        return self.scores.expand(len(vectors), -1)


class Drawn(OneOfN):
    """A structure whose samples are all of its items, each once."""

    def sample(self, scores, lengths, num_samples=1, generator=None) -> Tensor:
        assert num_samples == scores.shape[1]
        return torch.eye(num_samples, dtype=scores.dtype)[:, None].expand(-1, len(scores), -1)


class DrawnWithoutMarginals(Drawn):
    tractable = OneOfN.tractable - {"marginals"}


def make(structure: Structure, estimator: Estimator, scores: Tensor) -> Noting:
    torch.manual_seed(0)
    reader = RationaleReader(WIDTH, structure.parts)
    scorer, choice = GivenScores(scores), RationaleSettings()
    layer = RationaleLayer(
        scorer, structure, estimator, reader, reader_width=WIDTH, settings=choice
    )
    module = noting(layer, "mean", WORDS, LENGTH)
    assert module.evidence is not None
    for parameter in module.evidence.parameters():
        nn.init.normal_(parameter)
    return module


def vectors_of(words: Tensor) -> Tensor:
    """Return the reader's vector of each word."""
    table = torch.linspace(-1.5, 2.0, WORDS * WIDTH, dtype=torch.float64).view(WORDS, WIDTH)
    return table[words]


def run(module: Noting, words: Tensor) -> BoundTerms:
    """Run the module on texts, and return the terms of the bound.

    Args:
        words: Int64 ``(D, LENGTH)``.
    """
    docs = len(words)
    rows = torch.cat(
        [torch.zeros(words.numel(), 1), vectors_of(words.flatten()), torch.ones(words.numel(), 1)],
        dim=1,
    )
    ranges = [(LENGTH * d, LENGTH * (d + 1)) for d in range(docs)]
    groups = group_spans([LENGTH] * docs, [[(0, LENGTH)]] * docs)
    module(rows.double(), groups, ranges, ranges, None, None, words.flatten())
    return module.terms


def joint(module: Noting, words: Tensor, z: Tensor) -> Tensor:
    """Return log p(words, z) of a text ``(n,)``, by its definition."""
    evidence = module.evidence
    assert evidence is not None
    decoder, prior = evidence.decoder, evidence.prior.scores
    every = all_structures(module.latent.structure)
    log_prior = (z * prior).sum() - torch.stack([(one * prior).sum() for one in every]).logsumexp(0)
    vectors = vectors_of(words)
    shown = (z[:, None] * vectors).sum(0) / max(1.0, float(z.sum()))
    seen = decoder.output.bias.log_softmax(0)
    told = (decoder.output.weight @ shown + decoder.output.bias).log_softmax(0)
    return log_prior + sum(
        (seen if chosen else told)[word] for word, chosen in zip(words.tolist(), z.tolist())
    )


def all_structures(structure: Structure) -> list[Tensor]:
    every = [torch.tensor(bits, dtype=torch.float64) for bits in product((0, 1), repeat=LENGTH)]
    if isinstance(structure, OneOfN):
        return [z for z in every if z.sum() == 1]
    if isinstance(structure, KOfN):
        return [z for z in every if z.sum() == structure.k]
    return every


TEXT = torch.tensor([[0, 2, 1, 1]])
STRUCTURES = [OneOfN(), KOfN(2), Bits()]


def scores_of(seed: int = 1) -> Tensor:
    return torch.randn(LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.name)
def test_what_the_decoder_gives_are_probabilities_of_texts(structure) -> None:
    """The probabilities of all texts sum to one for each structure.

    They would not if the decoder read the word that it predicts.
    """
    module = make(structure, DenseMarginalization(), scores_of())
    texts = torch.tensor(list(product(range(WORDS), repeat=LENGTH)))
    with torch.no_grad():
        fit = run(module, texts).fit
    assert len(fit) == len(all_structures(structure))
    assert torch.allclose(fit.exp().sum(1), torch.ones(len(fit)).double(), atol=1e-10)


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.name)
@pytest.mark.parametrize(
    "estimator",
    [DenseMarginalization(), SparseMAP(marginalize=True), TopKSparsemax(k=2)],
    ids=lambda estimator: estimator.name,
)
def test_the_bound_is_below_the_evidence(structure, estimator) -> None:
    module = make(structure, estimator, scores_of())
    terms = run(module, TEXT)
    evidence = torch.stack([joint(module, TEXT[0], z) for z in all_structures(structure)])
    bound = terms.bound(module.weights)
    assert bound.shape == (1,)
    assert bound[0] < evidence.logsumexp(0)
    # The definition of the bound, as a sum over the structures with a positive weight.
    draws = module.latent.read(torch.zeros(1, LENGTH, WIDTH + 2).double() + 1, torch.tensor([4]))[0]
    used = [(w, z) for w, z in zip(draws.weights[:, 0], draws.z[:, 0]) if w > 0]
    own = torch.stack([w * (joint(module, TEXT[0], z) - w.log()) for w, z in used]).sum()
    assert bound[0].item() == pytest.approx(own.item(), abs=1e-9)


def test_the_exact_posterior_reaches_the_evidence() -> None:
    first = make(OneOfN(), DenseMarginalization(), scores_of())
    with torch.no_grad():
        exact = torch.stack([joint(first, TEXT[0], z) for z in all_structures(OneOfN())])
    # all_structures begins with the choice of the last word.
    module = make(OneOfN(), DenseMarginalization(), exact.flip(0))
    assert run(module, TEXT).bound(module.weights)[0].item() == pytest.approx(
        exact.logsumexp(0).item(), abs=1e-9
    )


def test_other_texts_of_the_batch_change_nothing() -> None:
    module = make(OneOfN(), DenseMarginalization(), scores_of())
    alone = run(module, TEXT).bound(module.weights)
    words = torch.cat([TEXT, torch.tensor([[2, 2, 0, 1]])])
    together = run(module, words).bound(module.weights)
    assert torch.allclose(together[0], alone[0])


def gradients(module: Noting, total: Tensor) -> list[Tensor]:
    parameters = [*module.latent.scorer.parameters(), *module.evidence.parameters()]
    return [
        torch.zeros_like(p) if g is None else g
        for p, g in zip(parameters, torch.autograd.grad(total, parameters, allow_unused=True))
    ]


def loss_through(module: Noting, share: float = 0.3, kl_weight: float = 1.0) -> Tensor:
    """Return the component's objective for a text.

    The loss of the task is twice the sum of the chosen positions.
    """
    terms, estimator = run(module, TEXT), module.latent.present_estimator
    draw, _ = module.latent.read(torch.ones(1, LENGTH, WIDTH + 2).double(), torch.tensor([LENGTH]))
    losses = 2 * (draw.z[:, 0] * torch.arange(LENGTH)).sum(1, keepdim=True)
    log_probs = torch.zeros_like(draw.weights) if draw.log_probs is None else draw.log_probs
    exact = is_exact(module.latent.structure, estimator)
    others = draw.weights, log_probs, torch.zeros(1, 1).double()
    return objective(
        estimator, losses, terms, exact, torch.tensor([share]), kl_weight, *others
    ).sum()


def loss_by_enumeration(module: Noting, share: float = 0.3) -> Tensor:
    every = [torch.eye(LENGTH, dtype=torch.float64)[i] for i in range(LENGTH)]
    log_q = module.latent.scorer.scores.log_softmax(0)
    task = sum(log_q[i].exp() * 2 * i for i in range(LENGTH))
    bound = sum(
        log_q[i].exp() * (joint(module, TEXT[0], z) - log_q[i]) for i, z in enumerate(every)
    )
    return task - share * bound


def test_the_gradient_of_the_sum_over_all_is_that_of_enumeration() -> None:
    module = make(OneOfN(), DenseMarginalization(), scores_of())
    found = gradients(module, loss_through(module))
    expected = gradients(module, loss_by_enumeration(module))
    assert len(found) == 4
    for mine, theirs in zip(found, expected):
        assert theirs.abs().max() > 1e-3
        assert torch.allclose(mine, theirs, atol=1e-9)


@pytest.mark.parametrize("structure", [Drawn(), DrawnWithoutMarginals()], ids=["summed", "drawn"])
def test_the_score_functions_gradient_is_that_of_enumeration_in_the_mean(structure) -> None:
    """The mean over the samples equals the expectation.

    All scores are equal, and each structure is drawn once.
    """
    estimator = ScoreFunction(num_samples=LENGTH)
    module = make(structure, estimator, torch.zeros(LENGTH, dtype=torch.float64))
    assert is_exact(structure, estimator) is ("marginals" in structure.tractable)
    found = gradients(module, loss_through(module))
    for mine, theirs in zip(found, gradients(module, loss_by_enumeration(module)), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-9)


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.name)
@pytest.mark.parametrize("make_estimator", [SampledStraightThrough, ReinMax, GumbelRao])
def test_bounds_of_straight_through_samples_are_right_in_the_mean(
    structure, make_estimator
) -> None:
    """The bound and the gradients of decoder and prior are unbiased. The scorer's is biased."""
    estimator = make_estimator(num_samples=4000)
    if isinstance(structure, KOfN) and make_estimator is not SampledStraightThrough:
        pytest.skip("for independent choices alone")
    module = make(structure, estimator, scores_of())
    torch.manual_seed(3)
    terms = run(module, TEXT)
    every = torch.stack(all_structures(structure))
    log_q = (every @ module.latent.scorer.scores).log_softmax(0)
    each = torch.stack([joint(module, TEXT[0], z) for z in every])
    expected = log_q.exp() @ (each - log_q)
    error = terms.fit.detach().std() / 4000**0.5
    found = terms.bound(module.weights)[0]
    assert abs(found.item() - expected.item()) < 4 * error.item()
    for mine, theirs in zip(gradients(module, found)[1:], gradients(module, expected)[1:]):
        assert theirs.abs().max() > 1e-3
        assert torch.allclose(mine, theirs, atol=0.03)


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.name)
def test_the_gradient_of_sparse_marginalization_is_that_of_differences(structure) -> None:
    scores = 0.3 * scores_of() + 0.4
    module = make(structure, SparseMAP(marginalize=True), scores)

    def total() -> Tensor:
        run(module, TEXT)
        return module.terms.bound(module.weights).sum()

    leaf = module.latent.scorer.scores
    (found,) = torch.autograd.grad(total(), leaf)
    for i in range(LENGTH):
        ends = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                leaf[i] += step
                ends.append(total().item())
                leaf[i] -= step
        assert found[i].item() == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-5)


def test_the_kl_can_be_left_out() -> None:
    terms = BoundTerms(torch.tensor([[-2.0], [-4.0]]), torch.tensor([[0.5]]))
    weights = torch.tensor([[0.25], [0.75]])
    assert terms.bound(weights).item() == -4.0
    assert terms.bound(weights, kl_weight=0.0).item() == -3.5
    drawn = BoundTerms(terms.fit, torch.tensor([[1.0], [2.0]]))
    assert drawn.bound(weights).item() == -5.25


def test_words_in_parts_are_as_at_once(monkeypatch) -> None:
    torch.manual_seed(0)
    decoder = BagOfWords(3, size=5).double()
    vectors = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    shown, words = torch.rand(7, 4).double(), torch.tensor([[3, -8, 2**60, 11], [1, 2, 0, 0]])
    inside = torch.tensor([[True] * 4, [True, True, False, False]])
    item = torch.tensor([0, 1, 1, 0, 0, 1, 0])
    results = []
    for most in (1 << 24, 10):
        monkeypatch.setattr(parts_of_batch, "MAX_NUMBERS", most)
        made = decoder(vectors, shown, words, inside, item)
        (gradient,) = torch.autograd.grad(made.sum(), vectors)
        results.append((made.detach(), gradient))
    for whole, parts in zip(*results):
        assert torch.allclose(whole, parts)


def test_at_first_words_are_as_frequent_as_in_training_texts() -> None:
    decoder = BagOfWords(3, size=4)
    decoder.begin(iter([torch.tensor([0, 4, -4, 1]), torch.tensor([2], dtype=torch.int64)]))
    expected = torch.tensor([4, 2, 2, 1]) / 9
    assert torch.allclose(decoder.output.bias.softmax(0), expected)


def test_words_are_hashes_of_an_attribute() -> None:
    vocab = Vocab()
    docs = [Doc(vocab, words=words) for words in (["good", "film"], [], ["good"])]
    found = words_of(docs, "ORTH")
    assert found.dtype == "int64"
    assert found[0] == found[2] != found[1]
    assert len(words_of([], "ORTH")) == 0
    # These docs have no lemmas, so all words would be the same.
    with pytest.raises(LatentError, match="LEMMA"):
        words_of(docs, "LEMMA")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prior": build_bag_of_words_v1()}, "prior.*Prior"),
        ({"decoder": build_uniform_prior_v1()}, "decoder.*Decoder"),
    ],
)
def test_one_part_in_the_place_of_another_is_refused(settings, message) -> None:
    with pytest.raises(LatentError, match=message):
        build_evidence_bound_v1(**settings).check(OneOfN(), DenseMarginalization())


@pytest.mark.parametrize(
    ("structure", "estimator", "error", "names"),
    [
        (OneOfN(), StraightThrough(), IncompatiblePair, "EvidenceBound.*StraightThrough"),
        (OneOfN(), Marginals(), IncompatiblePair, "EvidenceBound.*Marginals"),
        (OneOfN(), SparseMAP(), IncompatiblePair, "EvidenceBound.*SparseMAP"),
        (OneOfN(), RelaxedPerturbation(), IncompatiblePair, "EvidenceBound.*RelaxedPerturbation"),
        (
            OneOfN(),
            SampledStraightThrough(2, average=True),
            IncompatiblePair,
            "EvidenceBound.*SampledStraightThrough",
        ),
        (OneOfN(), ScoreFunction(inner_steps=2), IncompatiblePair, "ScoreFunction.*inner_steps"),
        (MergeSequence(), ScoreFunction(), IncompatiblePair, "EvidenceBound.*MergeSequence"),
        (OneToOneAlignment(), SparseMAP(marginalize=True), NotTractable, "OneToOne.*log_partition"),
        (LinearChain(), DenseMarginalization(), IncompatiblePair, "LearnedPrior.*LinearChain"),
    ],
    ids=lambda given: getattr(given, "name", ""),
)
def test_what_has_no_bound_is_refused_by_name(structure, estimator, error, names) -> None:
    settings = build_evidence_bound_v1(prior=build_learned_prior_v1())
    with pytest.raises(error, match=names):
        settings.check(structure, estimator)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(build_bag_of_words_v1, size=1), "size"),
        (partial(build_learned_prior_v1, places=0), "places"),
        (partial(build_evidence_bound_v1, learn_rate=-1.0), "learn_rate"),
        (partial(build_evidence_bound_v1, kl_weight=-1.0), "kl_weight"),
        (partial(build_evidence_bound_v1, build_bag_of_words_v1(attr="WORD")), "attr.*'WORD'"),
        (partial(build_evidence_bound_v1, build_bag_of_words_v1(attr="")), "attr.*''"),
    ],
)
def test_settings_out_of_range_are_refused(make, message) -> None:
    with pytest.raises(LatentError, match=message):
        make()


def test_a_uniform_prior_is_one() -> None:
    prior = build_uniform_prior_v1()(OneOfN())
    assert not prior(torch.randn(2, 3), torch.tensor([3, 2])).any()
