"""Codes of docs: predictions depend on the code alone, and bounds agree with enumeration."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.training import Example
from thinc.api import fix_random_seed
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.dense_marginalization import DenseMarginalization
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.layers.document_code import DocumentCodeLayer
from spacy_latent.models.document_code import codes
from spacy_latent.models.evidence_bound import BoundTerms
from spacy_latent.models.span_groups import group_spans
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.one_of_n import OneOfN
from tests.models.evidence_terms import Noting, noting
from tests.pipeline.rationale_pipelines import rationale_examples
from tests.pipeline.small_pipelines import TOK2VEC, learn

SIZE, WIDTH, WORDS = 3, 2, 4
TEXTS = [[0, 1, 3], [2, 2], []]


@pytest.fixture(params=[OneOfN(), Bits()], ids=lambda structure: structure.name)
def structure(request) -> Any:
    return request.param


def make(structure, estimator) -> Noting:
    torch.manual_seed(0)
    layer = DocumentCodeLayer(
        WIDTH, structure, estimator, size=SIZE, code_width=5, hidden_width=None
    )
    module = noting(layer, "first", WORDS, SIZE)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


def run(module: Noting, rows: Tensor) -> BoundTerms:
    sizes = [len(text) for text in TEXTS]
    ends = np.cumsum(sizes).tolist()
    ranges = list(zip([0, *ends], ends))
    groups = group_spans(sizes, [[(0, size)] if size else [] for size in sizes])
    words = torch.tensor([word for text in TEXTS for word in text])
    module(rows, groups, ranges, ranges, None, None, words)
    return module.terms


def all_codes(structure) -> Tensor:
    every = torch.tensor(list(product((0.0, 1.0), repeat=SIZE)), dtype=torch.float64)
    return every[every.sum(1) == 1] if isinstance(structure, OneOfN) else every


def log_joint(module: Noting, words: list[int], structure) -> Tensor:
    """Return log p(words, z) of every code z, by its definition."""
    every = all_codes(structure)
    prior = (every @ module.evidence.prior.scores).log_softmax(0)
    decoder = module.evidence.decoder.output
    told = decoder(module.latent.composer.embedding(every)).log_softmax(1)
    return prior + told[:, words].sum(1)


def test_bounds_and_gradients_are_those_of_enumeration(structure) -> None:
    module = make(structure, DenseMarginalization())
    rows = torch.randn(5, WIDTH, dtype=torch.float64)
    terms = run(module, rows)
    bounds = terms.bound(module.weights)
    every = all_codes(structure)
    expected = []
    for text, read in zip(TEXTS, (rows[:3], rows[3:])):
        scores = module.latent.scorer.output(torch.cat([read.mean(0), read.amax(0)]))
        log_q = (every @ scores).log_softmax(0)
        joint = log_joint(module, text, structure)
        expected.append((log_q.exp() * (joint - log_q)).sum())
        assert expected[-1] < joint.logsumexp(0)
    assert bounds[2] == 0.0
    assert torch.allclose(bounds[:2], torch.stack(expected))
    parameters = list(module.parameters())
    found = torch.autograd.grad(bounds.sum(), parameters)
    for mine, theirs in zip(found, torch.autograd.grad(sum(expected), parameters), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-9)


def test_sparse_bounds_are_below_the_evidence(structure) -> None:
    module = make(structure, SparseMAP(marginalize=True))
    bounds = run(module, torch.randn(5, WIDTH, dtype=torch.float64)).bound(module.weights)
    for text, bound in zip(TEXTS[:2], bounds.tolist()):
        assert bound < log_joint(module, text, structure).logsumexp(0).item()


# ---------------------------------------------------------------- in the component


def pipeline(component: str = "latent_textcat", annotate: str = "none", **model: Any) -> Language:
    fix_random_seed(0)
    nlp = spacy.blank("en")
    settings = {
        "@architectures": "spacy-latent.DocumentCode.v1",
        "exclusive_classes": component == "latent_textcat",
        "tok2vec": TOK2VEC,
        "size": 4,
        "evidence": {
            "@misc": "spacy-latent.EvidenceBound.v1",
            "decoder": {"@misc": "spacy-latent.BagOfWords.v1", "size": 40},
        },
        **model,
    }
    nlp.add_pipe(component, config={"annotate": annotate, "model": settings})
    return nlp


MODELS = {
    "category": {},
    "bits": {
        "structure": {"@misc": "spacy-latent.Bits.v1"},
        "estimator": {"@misc": "spacy-latent.ScoreFunction.v1", "num_samples": 2},
        "hidden_width": 6,
    },
    "two bits, sparse": {
        "structure": {"@misc": "spacy-latent.KOfN.v1", "k": 2},
        "estimator": {"@misc": "spacy-latent.SparseMAP.v1", "marginalize": True},
    },
    "bits, PPO, from labels alone": {
        "structure": {"@misc": "spacy-latent.Bits.v1"},
        "estimator": {"@misc": "spacy-latent.ScoreFunction.v1", "inner_steps": 2},
        "evidence": None,
    },
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_docs_with_one_code_have_one_prediction(model, tmp_path) -> None:
    nlp = pipeline(**model)
    labelled = rationale_examples(nlp)
    optimizer = nlp.initialize(lambda: labelled)
    optimizer.learn_rate = 0.01
    more = [Example.from_dict(nlp.make_doc(text), {}) for text in ("a bad film", "", "good")]
    losses = learn(nlp, [*labelled, *more], 20, optimizer)
    assert all(np.isfinite(loss) for loss in losses.values())
    assert ("latent_textcat_bound" in losses) is (model.get("evidence", True) is not None)
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    texts = ["", *(example.text for example in labelled)]
    docs = list(loaded.pipe(texts))
    found = codes(loaded.get_pipe("latent_textcat").model, docs)  # type: ignore[attr-defined]
    assert found.shape == (len(docs), 4) and np.isnan(found[0]).all()
    told: dict[bytes, float] = {}
    for code, doc in zip(found[1:], docs[1:]):
        assert told.setdefault(code.tobytes(), doc.cats["A"]) == pytest.approx(doc.cats["A"])
    assert [doc.cats for doc in nlp.pipe(texts)] == [doc.cats for doc in docs]
    assert not any(list(doc._.latent) for doc in docs)


def test_any_number_of_labels() -> None:
    nlp = pipeline("latent_textcat_multilabel")
    labelled = rationale_examples(nlp)
    optimizer = nlp.initialize(lambda: labelled)
    losses = nlp.update(labelled, sgd=optimizer)
    assert losses["latent_textcat_multilabel_bound"] > 0


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"annotate": "map"}, LatentError, "annotate"),
        ({"size": 1}, LatentError, "size"),
        (
            {"structure": {"@misc": "spacy-latent.SpanningTree.v1"}},
            IncompatiblePair,
            "DocumentCode.*SpanningTree",
        ),
        (
            {"estimator": {"@misc": "spacy-latent.Marginals.v1"}},
            IncompatiblePair,
            "EvidenceBound.*Marginals",
        ),
        ({"size": 100, "estimator": None}, LatentError, "size.*100 codes"),
        (
            {"structure": {"@misc": "spacy-latent.Bits.v1"}, "size": 16, "estimator": None},
            LatentError,
            r"6.55e\+04 codes.*DenseMarginalization.*64",
        ),
        (
            {
                "evidence": None,
                "estimator": {
                    "@misc": "spacy-latent.RewardedScoreFunction.v1",
                    "reward": {"@misc": "spacy-latent.GoldAgreement.v1"},
                },
            },
            IncompatiblePair,
            "DocumentCode.*GoldAgreement",
        ),
    ],
)
def test_what_is_no_code_is_refused(settings, error, message) -> None:
    with pytest.raises(error, match=message):
        pipeline(**settings)


def test_a_model_without_codes_gives_none() -> None:
    nlp = spacy.blank("en")
    component: Any = nlp.add_pipe("latent_textcat")
    with pytest.raises(LatentError, match="codes"):
        codes(component.model, [nlp.make_doc("a")])
