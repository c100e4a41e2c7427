"""The classifier of pairs of texts with an alignment: training, storage and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import spacy
import torch
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from thinc.api import fix_random_seed

from spacy_latent import annotations
from spacy_latent.annotations import SpanStructure
from spacy_latent.corpora.text_pairs import make_pair_doc
from spacy_latent.errors import InfeasibleError, LatentError, LatentWarning
from spacy_latent.layers.base import PartScorer
from spacy_latent.layers.two_texts import split_texts
from spacy_latent.models.span_getters import PairSpans
from tests.models.pair_pipelines import (
    NAME,
    PAIRS,
    TOK2VEC,
    docs,
    examples,
    misc,
    pipeline,
    trained,
)

ESTIMATORS = {
    "SparseMAP": misc("SparseMAP"),
    "marginalization": misc("SparseMAP", marginalize=True),
    "ScoreFunction": misc("ScoreFunction", num_samples=2, control_variate=misc("MovingAverage")),
    "PPO": misc("ScoreFunction", inner_steps=3),
    "PerturbAndMap": misc("PerturbAndMap"),
}


@pytest.mark.parametrize(
    "structure, estimator",
    [
        ("OneToOneAlignment", "SparseMAP"),
        ("OneToOneAlignment", "marginalization"),
        ("OneToOneAlignment", "PerturbAndMap"),
        ("ManyToOneAlignment", "marginalization"),
        ("ManyToOneAlignment", "ScoreFunction"),
        ("ManyToOneAlignment", "PPO"),
        ("MonotoneAlignment", "ScoreFunction"),
        ("MonotoneAlignment", "PPO"),
    ],
)
def test_it_learns_with_every_kind_of_estimator_and_is_stored(structure, estimator):
    nlp = trained(pipeline(structure=misc(structure), estimator=ESTIMATORS[estimator]))
    found = docs(nlp)
    for doc, (_, _, label) in zip(found, PAIRS):
        assert doc.cats[label] > 0.5
        assert doc._.latent[NAME].spans[0].structure == structure
        assert doc._.latent[NAME].cells()
    again = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    for doc, same in zip(found, docs(again)):
        assert doc.cats == same.cats
        assert doc._.latent[NAME].cells() == same._.latent[NAME].cells()


def test_two_steps_bring_finite_gradients_to_scorer_embedder_and_output():
    nlp = pipeline(scorer=misc("CellScorer", neighbours=1, distance=True))
    fix_random_seed(0)
    made = examples(nlp)
    nlp.initialize(lambda: made)
    model = nlp.get_pipe(NAME).model
    seen: dict[tuple[int, str], float] = {}

    def optimizer(key, weights, gradient, **_):
        assert np.isfinite(gradient).all()
        seen[key] = max(seen.get(key, 0.0), float(abs(gradient).max()))
        return weights - 0.1 * gradient, 0.0 * gradient

    for _ in range(2):
        nlp.update(made, sgd=optimizer)
    shim = model.get_ref("latent").shims[0]
    names = [name for name, _ in shim.module.named_parameters()]
    assert sum(name.startswith("latent.scorer") for name in names) == 3
    for name in names:
        assert seen[shim.id, name] > 0, name
    for part in (model.get_ref("tok2vec"), model.get_ref("output_layer")):
        ids = {node.id for node in part.walk()}
        assert any(value > 0 for (owner, _), value in seen.items() if owner in ids)


def test_regression():
    scores = {"same": 5.0, "other": 1.0}
    nlp = trained(pipeline(multilabel=True, component={"score_range": [0.0, 5.0]}), scores=scores)
    for doc, (_, _, label) in zip(docs(nlp), PAIRS):
        assert doc.cats["how"] == pytest.approx(scores[label], abs=1.5)


def test_each_prediction_is_that_of_the_pair_alone_wherever_its_texts_are():
    nlp = trained(pipeline(component={"annotate": "probabilities"}))
    for together, (first, second, _) in zip(docs(nlp), PAIRS):
        alone = nlp(make_pair_doc(nlp, first, second))
        assert alone.cats == pytest.approx(together.cats, abs=1e-5)
        one, other = first.split(), second.split()
        # The second text comes before the first, and other words surround them.
        doc = Doc(nlp.vocab, words=["so", *other, "and", *one, "end"])
        start = len(other) + 2
        doc.spans["b"] = [doc[1 : start - 1]]
        doc.spans["a"] = [doc[start : start + len(one)]]
        turned = nlp(doc)
        assert turned.cats == pytest.approx(together.cats, abs=1e-5)
        moved = [
            (cell.source + start, cell.target - len(one) + 1)
            for cell in alone._.latent[NAME].cells()
        ]
        found = [(cell.source, cell.target) for cell in turned._.latent[NAME].cells()]
        assert found == moved


def test_aligned_words_are_on_the_doc_with_probabilities_and_alternatives():
    options = {"annotate": "probabilities", "alternatives": 2, "probability_threshold": 0.0}
    parts = {"structure": misc("ManyToOneAlignment"), "estimator": misc("Marginals")}
    nlp = pipeline(component=options, **parts)
    for doc in docs(trained(nlp, steps=2)):
        latent = doc._.latent[NAME]
        (span,) = latent.spans
        first, second = doc.spans["a"][0], doc.spans["b"][0]
        assert (span.start, span.end) == (first.start, first.end)
        assert (span.other_start, span.other_end) == (second.start, second.end)
        assert span.decoded.dtype == "int32" and span.decoded.shape == (len(first), 2)
        assert [cell.source for cell in latent.cells()] == list(range(len(first)))
        total = np.zeros(len(first))
        for cell in latent.cells(threshold=0.0):
            assert second.start <= cell.target < second.end
            total[cell.source] += cell.probability
        assert total == pytest.approx(np.ones(len(first)), abs=1e-5)
        assert len(span.alternatives) == 2
    stored = DocBin(store_user_data=True, docs=[doc]).to_bytes()
    (copy,) = DocBin().from_bytes(stored).get_docs(nlp.vocab)
    assert copy._.latent[NAME].cells(threshold=0.0) == latent.cells(threshold=0.0)
    # 'spacy apply' also predicts on docs that were stored with annotations.
    assert nlp(copy).cats == pytest.approx(doc.cats, abs=1e-6)


class NoCell(PartScorer):
    """A scorer that forbids every pair of words."""

    parts = "cells"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, vectors, lengths):
        first, second = split_texts(vectors, lengths, "NoCell")
        return (first @ second.transpose(1, 2)).fill_(-torch.inf) + self.weight


@pytest.mark.parametrize("structure", ["OneToOneAlignment", "ManyToOneAlignment"])
@pytest.mark.parametrize("unaligned", [True, False])
def test_where_every_word_is_forbidden_words_stay_alone_or_it_is_an_error(structure, unaligned):
    nlp = pipeline(structure=misc(structure, unaligned=unaligned))
    made = examples(nlp)
    nlp.initialize(lambda: made)
    shim = nlp.get_pipe(NAME).model.get_ref("latent").shims[0]
    shim.module.latent.scorer = NoCell(16)
    doc = make_pair_doc(nlp, "a b", "c d")
    if not unaligned:
        with pytest.raises(InfeasibleError, match=structure):
            nlp(doc)
        return
    assert nlp(doc)._.latent[NAME].cells() == []
    assert math.isfinite(nlp.update(made)[NAME])


def test_a_long_pair_is_split_with_one_warning_and_no_word_is_lost():
    nlp = trained(pipeline(span_getter=misc("PairSpans", max_length=100)), steps=1)
    words = [f"w{i % 50}" for i in range(10_000)]
    doc = make_pair_doc(nlp, words, words[:9_950])
    with pytest.warns(LatentWarning, match=r"10000.*max_length=100"):
        doc = nlp(doc)
    spans = doc._.latent[NAME].spans
    assert len(spans) == 100 and sum(map(len, spans)) == 10_000
    assert all(len(span) == 100 and span.other_end - span.other_start <= 100 for span in spans)
    assert len(doc._.latent[NAME].cells()) == 9_950


def test_span_getters_that_cannot_work_are_refused():
    with pytest.raises(LatentError, match="'a'"):
        PairSpans("a", "a")
    with pytest.raises(LatentError, match="max_length"):
        PairSpans(max_length=0)
    nlp = pipeline(span_getter=misc("DocSpans"))
    made = examples(nlp)
    nlp.initialize(lambda: made)
    with pytest.raises(LatentError, match="PairSpans"):
        nlp(make_pair_doc(nlp, "a b", "c"))


def test_an_encoder_learns_gold_alignments():
    fix_random_seed(0)
    nlp = spacy.blank("en")
    parts = {
        "structure": misc("MonotoneAlignment", moves="needleman_wunsch"),
        "scorer": misc("CellScorer"),
        "composer": misc("AlignedComparison"),
        "span_getter": misc("PairSpans"),
    }
    nlp.add_pipe(
        "latent_encoder", config={"model": {"tok2vec": TOK2VEC, **parts}, "supervision": 1.0}
    )
    gold = [[0, 1], [1, 2]]
    reference, predicted = (make_pair_doc(nlp, "red house", "a red house") for _ in range(2))
    span = SpanStructure(0, 2, "gold", "cells", np.array(gold), other_start=2, other_end=5)
    annotations.write(reference, "latent_encoder", [span])
    unknown = [make_pair_doc(nlp, "so it is", "not") for _ in range(2)]
    made = [Example(predicted, reference), Example(*unknown)]
    nlp.initialize(lambda: made)
    optimizer = nlp.resume_training()
    optimizer.learn_rate = 0.02
    losses = [nlp.update(made, sgd=optimizer)["latent_encoder_supervision"] for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]
    (found,) = nlp(make_pair_doc(nlp, "red house", "a red house"))._.latent["latent_encoder"].spans
    assert found.decoded.tolist() == gold
    # A gold alignment with another text does not count for this pair.
    span.other_start = 3
    annotations.write(reference, "latent_encoder", [span])
    assert nlp.update(made)["latent_encoder_supervision"] == 0.0
