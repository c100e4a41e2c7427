"""Probabilities of a text given another one by IBM models, against sums over all alignments."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import fix_random_seed
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.layers.position_prior import build_position_prior_v1
from spacy_latent.layers.uniform_prior import build_uniform_prior_v1
from spacy_latent.layers.words_by_words import build_words_by_words_v1
from spacy_latent.models.alignment_evidence import AlignmentWordObjective, build_aligned_words_v1
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment

WORDS = 4
LENGTHS = torch.tensor([[2, 3], [3, 1]])
# The words of both texts, one after the other; the last of the second pair is padding.
HASHES = torch.tensor([[0, 3, 1, 3, 2], [2, 2, 1, 0, 7]])
PRIORS = {
    "model 1": build_uniform_prior_v1(),
    "model 2": build_position_prior_v1(),
    "autoencoder": None,
}
STRUCTURES = [ManyToOneAlignment(), ManyToOneAlignment(unaligned=True)]


@pytest.fixture(params=PRIORS)
def prior(request: pytest.FixtureRequest) -> Any:
    return PRIORS[request.param]


@pytest.fixture(params=STRUCTURES, ids=repr)
def structure(request: pytest.FixtureRequest) -> Any:
    return request.param


def make(structure: ManyToOneAlignment, prior: Any) -> AlignmentWordObjective:
    torch.manual_seed(0)
    settings = build_aligned_words_v1(build_words_by_words_v1(size=WORDS), prior)
    module = AlignmentWordObjective(settings, structure, 3).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


def scores() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    # Fill the padding with values that would change any result that reads it.
    drawn[0, 2] = torch.nan
    drawn[1, :, 1:] = torch.inf
    return drawn


def by_definition(
    module: AlignmentWordObjective, structure: ManyToOneAlignment, q: Tensor, b: int
) -> tuple[Tensor, Tensor]:
    """Return log q(z) and log p(words, z) of every alignment z of pair ``b``.

    Without a prior, log p(words, z) is the logarithm of q(z) p(words | z).
    """
    rows, columns = LENGTHS[b].tolist()
    first, second = HASHES[b, :rows] % WORDS, HASHES[b, rows : rows + columns] % WORDS
    decoder: Any = module.decoder
    vectors = torch.cat([decoder.none[None], decoder.partners(second)])
    told = decoder.output(decoder.hidden(vectors).tanh()).log_softmax(1)[:, first]
    prior = q.new_zeros(rows, columns)
    if module.prior is not None:
        prior = module.prior(torch.zeros(2, 3, 3).double(), LENGTHS)[b, :rows, :columns]
    own = q[b, :rows, :columns]
    choices = range(-1 if structure.unaligned else 0, columns)
    log_q, log_prior, log_words = [], [], []
    for partners in product(choices, repeat=rows):
        log_q.append(sum((own[i, j] for i, j in enumerate(partners) if j >= 0), own.new_zeros(())))
        chosen = (prior[i, j] for i, j in enumerate(partners) if j >= 0)
        log_prior.append(sum(chosen, own.new_zeros(())))
        log_words.append(sum(told[j + 1, i] for i, j in enumerate(partners)))
    posterior = torch.stack(log_q).log_softmax(0)
    before = torch.stack(log_prior).log_softmax(0)
    return posterior, (posterior if module.prior is None else before) + torch.stack(log_words)


def test_objectives_are_those_of_enumeration(structure: Any, prior: Any) -> None:
    module, q = make(structure, prior), scores()
    found = module(structure, q, HASHES, LENGTHS)
    for b in range(2):
        log_q, joint = by_definition(module, structure, q, b)
        expected = joint.logsumexp(0)
        if prior is not None:
            expected = (log_q.exp() * (joint - log_q)).sum()
            assert expected <= joint.logsumexp(0) + 1e-9
        torch.testing.assert_close(found[b], expected)


def test_gradients_by_differences(structure: Any, prior: Any) -> None:
    """The gradient of the scores equals finite differences of the objective."""
    module = make(structure, prior)
    inside = torch.tensor([[[True] * 3] * 2 + [[False] * 3], [[True, False, False]] * 3])

    def of(own: Tensor) -> Tensor:
        return module(structure, torch.where(inside, own, 0.0), HASHES, LENGTHS)

    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(of, drawn.requires_grad_())


def test_decoder_and_prior_learn_by_the_marginal_likelihood(structure: Any, prior: Any) -> None:
    """The scores do not matter: the gradients are those of the exact marginal likelihood."""
    module = make(structure, prior)
    parameters = list(module.parameters())
    q = scores()
    found = module(structure, q, HASHES, LENGTHS).sum()
    sums = [by_definition(module, structure, q, b)[1].logsumexp(0) for b in range(2)]
    expected = torch.autograd.grad(sum(sums), parameters, allow_unused=True)
    for mine, theirs in zip(
        torch.autograd.grad(found, parameters, allow_unused=True), expected, strict=True
    ):
        if mine is None or theirs is None:
            assert all(one is None or not one.any() for one in (mine, theirs))
        else:
            torch.testing.assert_close(mine, theirs)


def test_model_1_is_a_log_sum_exp_for_each_word() -> None:
    structure = ManyToOneAlignment()
    module = make(structure, PRIORS["model 1"])
    cells, _ = module.decoder(HASHES[:1, :2], HASHES[:1, 2:])
    expected = (cells[0].logsumexp(1) - np.log(3)).sum()
    # The bound is tight if q is the posterior.
    q = torch.zeros(1, 2, 3, dtype=torch.float64) + cells
    found = module(structure, q, HASHES[:1], LENGTHS[:1])
    torch.testing.assert_close(found[0], expected)


def test_words_are_drawn_with_probabilities(structure: Any) -> None:
    decoder = make(structure, None).decoder
    every = torch.arange(WORDS)[None]
    cells, alone = decoder(every, every)
    torch.testing.assert_close(cells.exp().sum(1), torch.ones(1, WORDS, dtype=torch.float64))
    torch.testing.assert_close(alone.exp().sum(1), torch.ones(1, dtype=torch.float64))


# ---------------------------------------------------------------- in the component

LEXICON = dict(zip("abcdefgh", "ABCDEFGH"))


def pair(nlp: Language, first: str, second: str) -> Doc:
    words = [*first, *second]
    doc = Doc(nlp.vocab, words=words)
    doc.spans["a"], doc.spans["b"] = [doc[: len(first)]], [doc[len(first) :]]
    return doc


def pairs(nlp: Language, labels: bool) -> list[Example]:
    generator = np.random.default_rng(0)
    made = []
    for _ in range(60):
        chosen = generator.permutation(list(LEXICON))[:4]
        second = "".join(chosen)
        first = "".join(LEXICON[word] for word in generator.permutation(chosen))
        reference = pair(nlp, first, second)
        if labels:
            reference.cats = {"yes": float("a" in second), "no": float("a" not in second)}
        made.append(Example(pair(nlp, first, second), reference))
    return made


def pipeline(
    structure: str = "ManyToOneAlignment", estimator: str = "Marginals", **options: Any
) -> Language:
    fix_random_seed(0)
    nlp = spacy.blank("en")
    model = {
        "@architectures": "spacy-latent.AlignedPairTextCat.v1",
        "tok2vec": {
            "@architectures": "spacy.MultiHashEmbed.v2",
            "width": 32,
            "attrs": ["ORTH"],
            "rows": [200],
            "include_static_vectors": False,
        },
        "exclusive_classes": True,
        "structure": {"@misc": f"spacy-latent.{structure}.v1"},
        "scorer": {"@misc": "spacy-latent.CellScorer.v1", "hidden_width": 32, "shared": False},
        "estimator": {"@misc": f"spacy-latent.{estimator}.v1"},
        "evidence": {
            "@misc": "spacy-latent.AlignedWords.v1",
            "decoder": {"@misc": "spacy-latent.WordsByWords.v1", "size": 50, "attr": "ORTH"},
            "prior": {"@misc": "spacy-latent.PositionPrior.v1"},
            **options,
        },
    }
    nlp.add_pipe("latent_textcat", config={"model": model})
    return nlp


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("prior", [{"@misc": "spacy-latent.UniformPrior.v1"}, None])
def test_alignments_are_learnt_from_the_words(prior: Any, labels: bool, tmp_path: Any) -> None:
    """Words are translated and reordered. The embedder sees no common features of their forms."""
    nlp = pipeline(prior=prior, labelled_weight=0.1)
    first = pairs(nlp, True)[:4]
    optimizer = nlp.initialize(lambda: first + pairs(nlp, labels))
    optimizer.learn_rate = 0.01
    bounds = []
    for _ in range(60):
        losses = nlp.update(pairs(nlp, labels), sgd=optimizer)
        bounds.append(losses["latent_textcat_bound"])
    assert bounds[-1] < bounds[0]
    if prior is None:
        # Without a prior the scorer may learn another pairing of words.
        return
    nlp.to_disk(tmp_path)
    docs = [pair(nlp, "DACB", "abcd"), pair(nlp, "HEGF", "efgh")]
    right = total = 0
    for doc in spacy.load(tmp_path).pipe(docs):
        for cell in doc._.latent["latent_textcat"].cells():
            right += LEXICON[doc[cell.target].text] == doc[cell.source].text
            total += 1
    assert total == 8 and right >= 7


def test_other_structures_are_refused() -> None:
    with pytest.raises(IncompatiblePair):
        pipeline("OneToOneAlignment", "SparseMAP")
    with pytest.raises(LatentError):
        pipeline(decoder={"@misc": "spacy-latent.BagOfWords.v1"})
    with pytest.raises(LatentError):
        pipeline(prior={"@misc": "spacy-latent.WordsByWords.v1"})


def test_further_steps_on_the_same_samples_are_refused() -> None:
    structure, evidence = ManyToOneAlignment(), build_aligned_words_v1()
    evidence.check(structure, ScoreFunction())
    with pytest.raises(IncompatiblePair):
        evidence.check(structure, ScoreFunction(inner_steps=3))
