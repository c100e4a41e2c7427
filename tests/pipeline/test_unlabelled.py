"""Training of latent_textcat and latent_textcat_multilabel on texts without labels."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.training import Example
from thinc.api import SGD

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.models.evidence_of_docs import evidence_bounds
from spacy_latent.models.latent_text_classifier import latent_layer, word_objective_of
from tests.pipeline.rationale_pipelines import rationale_examples, rationale_pipeline

ONE = {"@misc": "spacy-latent.OneOfN.v1"}
DENSE = {"@misc": "spacy-latent.DenseMarginalization.v1"}
EVIDENCE = {
    "@misc": "spacy-latent.EvidenceBound.v1",
    "decoder": {"@misc": "spacy-latent.BagOfWords.v1", "size": 40},
    "prior": {"@misc": "spacy-latent.LearnedPrior.v1", "places": 5},
    "unlabelled_weight": 0.5,
    "labelled_weight": 0.1,
}
ESTIMATORS = {
    "dense": DENSE,
    "sparse": {"@misc": "spacy-latent.SparseMAP.v1", "marginalize": True},
    "top k": {"@misc": "spacy-latent.TopKSparsemax.v1", "k": 3},
    "score function": {
        "@misc": "spacy-latent.ScoreFunction.v1",
        "control_variate": {"@misc": "spacy-latent.SelfCritical.v1"},
    },
    "sum and sample": {"@misc": "spacy-latent.SumAndSample.v1", "k": 2},
    "sampled straight-through": {"@misc": "spacy-latent.SampledStraightThrough.v1"},
    "ReinMax": {"@misc": "spacy-latent.ReinMax.v1"},
    "REBAR": {"@misc": "spacy-latent.Rebar.v1"},
    "RELAX": {"@misc": "spacy-latent.Relax.v1"},
    "REBAR, learned": {
        "@misc": "spacy-latent.Rebar.v1",
        "learn_strength": True,
        "learn_relaxation": True,
    },
    "RELAX with the relaxed loss": {"@misc": "spacy-latent.Relax.v1", "relaxed_loss": True},
    "score function, then dense": {
        "@misc": "spacy-latent.EstimatorSequence.v1",
        "first": {"@misc": "spacy-latent.ScoreFunction.v1", "num_samples": 2},
        "then": DENSE,
        "switch_at": 1,
    },
}


def pipeline(component: str = "latent_textcat", **model: Any) -> Language:
    settings = {
        "@architectures": "spacy-latent.RationaleTextCat.v1",
        "structure": ONE,
        "estimator": DENSE,
        "evidence": EVIDENCE,
    }
    return rationale_pipeline(component, **{**settings, **model})


def unlabelled(nlp: Language) -> list[Example]:
    texts = ["the film was so very long", "", "oh", "it is all of it"]
    return [Example.from_dict(nlp.make_doc(text), {}) for text in texts]


def weights(nlp: Language) -> dict[str, np.ndarray]:
    """Return the weights of the component's torch module, and of its linear layer."""
    model: Any = nlp.get_pipe("latent_textcat").model  # type: ignore[attr-defined]
    state = model.layers[1].shims[0].module.state_dict()
    found = {name: value.numpy().copy() for name, value in state.items()}
    return {**found, "output": model.layers[2].get_param("W").copy()}


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_labelled_and_unlabelled_docs_train_together(estimator) -> None:
    nlp = pipeline(estimator=estimator)
    labelled = rationale_examples(nlp)
    optimizer = nlp.initialize(lambda: labelled)
    before = weights(nlp)
    for _ in range(2):
        losses = nlp.update([*labelled, *unlabelled(nlp)], sgd=optimizer)
    assert set(losses) == {"latent_textcat", "latent_textcat_bound"}
    assert 0 < losses["latent_textcat"] < losses["latent_textcat_bound"] < 50
    after = weights(nlp)
    for part in ("scorer", "decoder", "prior", "output"):
        names = [name for name in after if part in name]
        assert names
        assert any(not np.array_equal(before[name], after[name]) for name in names), part
    # Weights of the control variate, if it has any.
    assert all(before[name] != after[name] for name in after if "._learned." in name)
    assert all(np.isfinite(value).all() for value in after.values())


def test_docs_without_labels_teach_the_bound_and_nothing_of_labels() -> None:
    nlp = pipeline()
    labelled = rationale_examples(nlp)
    optimizer = nlp.initialize(lambda: labelled)
    before, bounds = weights(nlp), []
    for _ in range(30):
        losses = nlp.update(unlabelled(nlp), sgd=optimizer)
        bounds.append(losses["latent_textcat_bound"])
    after = weights(nlp)
    assert bounds[-1] < 0.9 * bounds[0]
    # The initial biases follow the frequencies of the words in the labelled texts.
    assert np.ptp(before["evidence.decoder.output.bias"]) > 1.0
    assert losses["latent_textcat"] == pytest.approx(0.5 * bounds[-1])
    assert np.array_equal(before["output"], after["output"])
    assert not np.array_equal(
        before["latent.scorer.output.weight"], after["latent.scorer.output.weight"]
    )


def test_the_weights_say_how_much_the_bound_counts() -> None:
    """Weights of 0 give the same training as without a decoder, except for rounding."""
    made = []
    for evidence in (None, {**EVIDENCE, "unlabelled_weight": 0.0, "labelled_weight": 0.0}):
        nlp = pipeline(evidence=evidence)
        labelled = rationale_examples(nlp)
        nlp.initialize(lambda given=labelled: given)
        for _ in range(3):
            losses = nlp.update([*labelled, *unlabelled(nlp)], sgd=SGD(0.1))
        made.append((losses["latent_textcat"], weights(nlp)))
    (loss, without), (other, with_none) = made
    assert loss == pytest.approx(other)
    assert all(np.allclose(value, with_none[name], atol=1e-6) for name, value in without.items())


def test_a_weight_may_follow_a_schedule() -> None:
    schedule = {"@schedules": "warmup_linear.v1", "initial_rate": 1.0, "warmup_steps": 4}
    schedule["total_steps"] = 100
    nlp = pipeline(evidence={**EVIDENCE, "unlabelled_weight": schedule, "kl_weight": schedule})
    labelled = rationale_examples(nlp)
    optimizer = nlp.initialize(lambda: labelled)
    shares = []
    for _ in range(4):
        losses = nlp.update(unlabelled(nlp), sgd=optimizer)
        shares.append(losses["latent_textcat"] / losses["latent_textcat_bound"])
    # kl_weight is below 1 in these steps, so each share is below unlabelled_weight.
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert 0.6 < shares[3] < 0.76


def test_predictions_read_no_decoder_and_what_is_saved_has_one(tmp_path) -> None:
    nlp = pipeline()
    labelled = rationale_examples(nlp)
    optimizer = nlp.initialize(lambda: labelled)
    for _ in range(5):
        nlp.update([*labelled, *unlabelled(nlp)], sgd=optimizer)
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    kept, found = weights(nlp), weights(loaded)
    assert "evidence.decoder.output.weight" in kept
    assert all(np.array_equal(value, found[name]) for name, value in kept.items())
    text = "so it is a good film"
    cats = nlp(text).cats
    assert loaded(text).cats == cats
    for parameter in word_objective_of(loaded.get_pipe("latent_textcat").model).parameters():
        parameter.data.zero_()
    assert loaded(text).cats == cats
    assert pickle.loads(pickle.dumps(nlp))(text).cats == cats
    # The loaded pipeline can be trained further.
    losses = loaded.update([*labelled, *unlabelled(nlp)], sgd=optimizer)
    assert losses["latent_textcat_bound"] > 0


def test_any_number_of_labels_and_spans() -> None:
    nlp = pipeline(
        "latent_textcat_multilabel",
        span_getter={"@misc": "spacy-latent.DocSpans.v1", "max_length": 4},
        estimator=ESTIMATORS["score function"],
    )
    labelled = rationale_examples(nlp)
    optimizer = nlp.initialize(lambda: labelled)
    for _ in range(2):
        losses = nlp.update([*labelled, *unlabelled(nlp)], sgd=optimizer)
    assert 0 < losses["latent_textcat_multilabel_bound"] < 60


@pytest.mark.parametrize("component", ["latent_textcat", "latent_textcat_multilabel"])
def test_categories_of_another_component_are_no_labels(component: str) -> None:
    """Texts with such categories alone have the loss, and the weight, of texts without any."""
    nlp = pipeline(component)
    nlp.initialize(lambda: rationale_examples(nlp))
    losses = []
    for cats in ({}, {"topic": 1.0, "other topic": 0.0}):
        examples = unlabelled(nlp)
        for example in examples:
            example.reference.cats = cats
        losses.append(nlp.update(examples, sgd=SGD(0.0)))
    bound = losses[0][f"{component}_bound"]
    assert losses[0][component] == pytest.approx(EVIDENCE["unlabelled_weight"] * bound, rel=1e-5)
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


# MixedDirichlet is a subclass of ScoreFunction, but has another posterior.
@pytest.mark.parametrize(
    "name", ["StraightThrough", "Marginals", "SparseMAP", "PerturbAndMap", "MixedDirichlet"]
)
def test_estimators_without_a_posterior_are_refused_when_the_config_is_loaded(name) -> None:
    with pytest.raises(IncompatiblePair, match=rf"EvidenceBound.*{name}"):
        pipeline(estimator={"@misc": f"spacy-latent.{name}.v1"})


def test_bounds_of_docs_are_what_training_reports() -> None:
    nlp = pipeline()
    labelled = rationale_examples(nlp)
    nlp.initialize(lambda: labelled)
    model = nlp.get_pipe("latent_textcat").model  # type: ignore[attr-defined]
    before = weights(nlp)
    examples = [*labelled, *unlabelled(nlp)]
    bounds = evidence_bounds(model, [example.predicted for example in examples])
    assert bounds.shape == (len(examples),) and (bounds <= 0).all() and bounds[6] == 0
    again = evidence_bounds(model, (example.predicted for example in examples))
    assert np.array_equal(bounds, again)
    after = weights(nlp)
    assert all(np.array_equal(value, after[name]) for name, value in before.items())
    losses = nlp.update(examples, sgd=SGD(0.0))
    # Docs without tokens are left out of a batch.
    of_texts = [bound for bound, one in zip(bounds, examples) if len(one.predicted)]
    assert losses["latent_textcat_bound"] == pytest.approx(-np.mean(of_texts), rel=1e-5)
    without = pipeline(evidence=None)
    without.initialize(lambda: labelled)
    with pytest.raises(LatentError, match="bound"):
        evidence_bounds(without.get_pipe("latent_textcat").model, [])  # type: ignore[attr-defined]


def test_something_else_in_its_place_is_refused() -> None:
    with pytest.raises(LatentError, match=r"evidence.*EvidenceBound"):
        pipeline(evidence=ONE)


def test_rehearsal_asks_for_no_words() -> None:
    nlp = pipeline()
    labelled = rationale_examples(nlp)
    nlp.initialize(lambda: labelled)
    optimizer = nlp.resume_training()
    losses = nlp.rehearse(unlabelled(nlp), sgd=optimizer)
    assert np.isfinite(losses["latent_textcat"])
    assert latent_layer(nlp.get_pipe("latent_textcat").model).estimator.posterior == "weights"
