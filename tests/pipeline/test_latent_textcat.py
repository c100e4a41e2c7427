"""latent_textcat and latent_textcat_multilabel: spaCy's text classifiers over latent structures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import fix_random_seed

from spacy_latent.errors import IncompatiblePair, LatentError, LatentWarning, NoLabels
from spacy_latent.estimators.control_variates import ControlVariate
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.models.latent_text_classifier import further_step, run, run_and_keep
from tests.pipeline.rationale_pipelines import rationale_examples, rationale_pipeline
from tests.pipeline.small_pipelines import REDUCE, TOK2VEC, learn

DATA = [
    ("this is good stuff", "A"),
    ("this is bad stuff", "B"),
    ("good good film of it", "A"),
    ("bad", "B"),
]
SCORE_FUNCTION = {
    "@misc": "spacy-latent.ScoreFunction.v1",
    "control_variate": {"@misc": "spacy-latent.SelfCritical.v1"},
}


def pipeline(
    name: str = "latent_textcat", estimator=SCORE_FUNCTION, config=None, **model
) -> Language:
    fix_random_seed(0)
    nlp = spacy.blank("en")
    multi = name == "latent_textcat_multilabel"
    settings = {"exclusive_classes": not multi, "tok2vec": TOK2VEC, "estimator": estimator}
    nlp.add_pipe(name, config={"model": {**settings, **model}, **(config or {})})
    return nlp


def examples(nlp: Language) -> list[Example]:
    return [
        Example.from_dict(nlp.make_doc(text), {"cats": {"A": label == "A", "B": label == "B"}})
        for text, label in DATA
    ]


def trained(nlp: Language, steps: int = 40, **options) -> Language:
    made = examples(nlp)
    optimizer = nlp.initialize(lambda: made)
    optimizer.learn_rate = 0.01
    for _ in range(steps):
        nlp.update(made, sgd=optimizer, **options)
    return nlp


@pytest.mark.parametrize("name", ["latent_textcat", "latent_textcat_multilabel"])
def test_it_learns_and_scores_as_stock_components(name: str) -> None:
    nlp = trained(pipeline(name))
    for text, label in DATA:
        doc = nlp(text)
        assert max(doc.cats, key=doc.cats.get) == label
        assert len(doc._.latent[name].heads) == len(doc)
    found = nlp.evaluate(examples(nlp))
    assert found["cats_score"] == 1.0 and set(found) >= {"cats_macro_f", "cats_f_per_type"}
    if name == "latent_textcat":
        assert sum(nlp("this is good").cats.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["latent_textcat", "latent_textcat_multilabel"])
def test_texts_of_unknown_categories_do_not_count_in_scores(name: str) -> None:
    nlp = trained(pipeline(name))

    def scores(*others: dict[str, float], known: bool = True) -> dict[str, Any]:
        unknown = [Example.from_dict(nlp.make_doc("good stuff"), {"cats": one}) for one in others]
        found = nlp.evaluate([*unknown, *(examples(nlp) if known else [])])
        return {key: value for key, value in found.items() if key.startswith("cats_")}

    wanted = scores()
    assert wanted["cats_score"] == wanted["cats_micro_f"] == 1.0
    assert scores({}, {}) == wanted
    nothing = scores({}, {}, known=False)
    assert {nothing[key] for key in nothing if key != "cats_score_desc"} == {None}
    if name == "latent_textcat":
        assert scores({"A": 0.0}, {"B": 0.0}) == wanted
    # A label that the component lacks is a known category.
    others = scores({"C": 1.0})
    assert (others == wanted) == (name == "latent_textcat_multilabel")


def test_texts_with_categories_of_another_component_do_not_count_in_scores() -> None:
    nlp = trained(pipeline())
    component: Any = nlp.get_pipe("latent_textcat")

    @Language.component("set_topic")
    def set_topic(doc: Doc) -> Doc:
        doc.cats["topic"] = 0.9
        return doc

    nlp.add_pipe("set_topic")

    def scores(*others: dict[str, float]) -> dict[str, Any]:
        of_topics = [Example.from_dict(nlp.make_doc("good"), {"cats": one}) for one in others]
        made = [*of_topics, *examples(nlp)]
        for example in made:
            example.predicted = nlp(example.predicted)
        found: dict[str, Any] = component.score(made)
        return found

    assert scores({"topic": 1.0}, {"topic": 0.0}) == scores()
    assert scores()["cats_score"] == 1.0


def test_the_loss_falls_from_that_of_a_guess() -> None:
    nlp = pipeline()
    made = examples(nlp)
    optimizer = nlp.initialize(lambda: made)
    first = nlp.update(made, sgd=optimizer)["latent_textcat"]
    for _ in range(40):
        last = nlp.update(made, sgd=optimizer)["latent_textcat"]
    assert first == pytest.approx(np.log(2), abs=1e-5) and last < 0.6 * first


def test_the_embedder_runs_once_for_any_number_of_structures() -> None:
    many = {**SCORE_FUNCTION, "num_samples": 7}
    nlp = pipeline(estimator=many)
    made = examples(nlp)
    nlp.initialize(lambda: made)
    model = nlp.get_pipe("latent_textcat").model
    embedder, calls = model.get_ref("tok2vec"), []
    original = embedder._func
    embedder._func = lambda *given, **named: calls.append(1) or original(*given, **named)
    nlp.update(made)
    assert len(calls) == 1


def test_an_added_label_keeps_what_is_known() -> None:
    nlp = trained(pipeline("latent_textcat_multilabel"), steps=5)
    before = nlp("this is good").cats
    nlp.get_pipe("latent_textcat_multilabel").add_label("C")
    after = nlp("this is good").cats
    assert {label: after[label] for label in before} == pytest.approx(before)
    assert after["C"] < 0.5
    nlp.update(examples(nlp), sgd=nlp.resume_training())


def test_missing_labels_of_the_multilabel_component_have_no_loss() -> None:
    nlp = pipeline("latent_textcat_multilabel")
    made = examples(nlp)
    nlp.initialize(lambda: made)
    pipe = nlp.get_pipe("latent_textcat_multilabel")
    partial = [Example.from_dict(nlp.make_doc("good"), {"cats": {"A": 1.0}})]
    found, _ = run(pipe.model, [partial[0].predicted], is_train=True)
    loss, (d_logits, *_) = pipe.get_loss(partial, found)
    assert loss == pytest.approx(np.log(2)) and d_logits.shape == (2, 1, 2)
    # The sample has a gradient. The greedy structure serves the control variate only, so it has
    # none.
    assert d_logits[0, 0, 0] == -0.5 and d_logits[0, 0, 1] == 0 and not d_logits[1].any()


def test_regression_gives_scores_in_its_range() -> None:
    nlp = pipeline(
        "latent_textcat_multilabel",
        estimator={"@misc": "spacy-latent.Marginals.v1"},
        config={
            "score_range": [-1.0, 3.0],
            "scorer": {"@scorers": "spacy-latent.regression_scorer.v1"},
        },
    )
    made = [
        Example.from_dict(nlp.make_doc(text), {"cats": {"stars": score}})
        for text, score in [("good stuff", 2.5), ("bad stuff", -0.5), ("so so stuff", 1.0)]
    ]
    optimizer = nlp.initialize(lambda: made)
    optimizer.learn_rate = 0.02
    learn(nlp, made, 80, optimizer)
    for example in made:
        doc = nlp(example.text)
        assert doc.cats["stars"] == pytest.approx(example.reference.cats["stars"], abs=0.3)
    # An empty text gets the lowest score of the range, alone and in a batch.
    assert nlp("").cats["stars"] == next(nlp.pipe(["", "good stuff"])).cats["stars"] == -1.0
    beyond = Example.from_dict(nlp.make_doc("good"), {"cats": {"stars": 4.0}})
    with pytest.raises(LatentError, match=r"4\.0.*score_range"):
        nlp.update([beyond])
    unknown = Example.from_dict(nlp.make_doc("good"), {"cats": {"stars": float("nan")}})
    with pytest.raises(LatentError, match=r"'good'.*'stars'.*nan"):
        nlp.update([unknown])


@pytest.mark.parametrize("name", ["latent_textcat", "latent_textcat_multilabel"])
@pytest.mark.parametrize("value", [3.5, float("nan"), "1.0"])
def test_values_of_labels_are_refused_with_text_and_label(name: str, value: Any) -> None:
    nlp = pipeline(name)
    made = examples(nlp)
    nlp.initialize(lambda: made)
    made[2].reference.cats["A"] = value
    for refuse in (lambda: nlp.update(made), lambda: nlp.initialize(lambda: made)):
        with pytest.raises(LatentError) as raised:
            refuse()
        said = str(raised.value)
        assert f"{name}: the text 'good good film of it' has the label 'A': {value!r}" in said
        # The message names score_range only if the value is a number outside of it.
        assert ("score_range" in said) == (value == 3.5)


def test_several_labels_of_a_text_are_for_the_other_component() -> None:
    nlp = trained(pipeline(), steps=0)
    both = Example.from_dict(nlp.make_doc("so so"), {"cats": {"A": 1.0, "B": 1.0}})
    with pytest.raises(LatentError, match=r"'so so'.*'A', 'B'"):
        nlp.update([both])


def test_structures_of_several_spans_of_a_doc_are_taken_together() -> None:
    spans = {"@misc": "spacy-latent.DocSpans.v1", "max_length": 2}
    nlp = pipeline(estimator={**SCORE_FUNCTION, "num_samples": 3}, span_getter=spans)
    trained(nlp, steps=3)
    doc = nlp("this is good stuff")
    assert len(doc._.latent["latent_textcat"].spans) == 2
    weighted = pipeline(
        estimator={"@misc": "spacy-latent.DenseMarginalization.v1"}, span_getter=spans
    )
    with pytest.raises(LatentError, match="structure"):
        trained(weighted, steps=1)


def test_inner_steps_move_the_scorer_alone() -> None:
    after = {}
    for steps in (1, 4):
        settings = {"num_samples": 4, "clip": 10.0}
        nlp = trained(pipeline(estimator={**SCORE_FUNCTION, **settings}, temperature=5.0), 1)
        # The output layer starts at zero, so all structures have the same loss before one update.
        fix_random_seed(1)
        model = nlp.get_pipe("latent_textcat").model
        latent = model.layers[1].shims[0].module.latent
        latent.estimator.inner_steps = steps
        nlp.update(examples(nlp), sgd=nlp.resume_training())
        after[steps] = (
            torch.cat([p.detach().flatten() for p in latent.scorer.parameters()]),
            torch.cat([p.detach().flatten() for p in latent.composer.parameters()]),
            torch.from_numpy(model.get_ref("output_layer").get_param("W").copy()),
        )
    assert not torch.equal(after[1][0], after[4][0])
    # The tolerance is small: an update moves a weight by about the learning rate, 0.001.
    torch.testing.assert_close(after[1][1:], after[4][1:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("clip, moves", [(10.0, True), (1e-6, False)])
def test_clipping_stops_an_inner_step(clip: float, moves: bool) -> None:
    nlp = pipeline(estimator={**SCORE_FUNCTION, "num_samples": 4})
    made = examples(nlp)
    nlp.initialize(lambda: made)
    model = nlp.get_pipe("latent_textcat").model
    found, _, keep = run_and_keep(model, [example.predicted for example in made], is_train=True)
    kept, before = keep(), found.made.log_probs
    torch.testing.assert_close(before[:-1], again(model, kept)[:-1], atol=1e-4, rtol=1e-4)
    # Pretend that each probability has already moved in the direction of its advantage.
    advantage = torch.randn_like(before)
    further_step(model, kept, advantage, before + 0.1 * advantage.sign(), clip)
    scorer = model.layers[1].shims[0].module.latent.scorer
    gradient = sum(float(p.grad.abs().sum()) for p in scorer.parameters() if p.grad is not None)
    assert (gradient > 0) == moves


def again(model, kept):
    with torch.no_grad():
        return model.layers[1].shims[0].module.again(kept)


def test_estimators_that_need_the_loss_are_refused_elsewhere() -> None:
    nlp = spacy.blank("en")
    model = {"tok2vec": TOK2VEC, "estimator": SCORE_FUNCTION}
    with pytest.raises(IncompatiblePair, match=r"ScoreFunction.*LatentTok2Vec.*latent_textcat"):
        nlp.add_pipe("latent_encoder", config={"model": model})


def test_bad_settings_say_what_to_do() -> None:
    with pytest.raises(LatentError, match="exclusive_classes = true"):
        nlp = spacy.blank("en")
        model = {"exclusive_classes": False, "tok2vec": TOK2VEC}
        nlp.add_pipe("latent_textcat", config={"model": model})
    with pytest.raises(LatentError, match="reduction"):
        pipeline(use_reduce_mean=False)
    with pytest.raises(LatentError, match="empty"):
        pipeline().get_pipe("latent_textcat").add_label("")
    with pytest.raises(LatentError, match="score_range"):
        pipeline("latent_textcat_multilabel", config={"score_range": [1.0, 0.0]})
    for threshold in (-1.0, 2.0):
        with pytest.raises(LatentError, match="threshold"):
            pipeline("latent_textcat_multilabel", config={"threshold": threshold})
    with pytest.raises(LatentError, match="structures"):
        stock = {**REDUCE, "tok2vec": TOK2VEC}
        spacy.blank("en").add_pipe("latent_textcat", config={"model": stock})


@pytest.mark.parametrize("name", ["latent_textcat", "latent_textcat_multilabel"])
def test_texts_without_labels_are_refused_by_name(name: str) -> None:
    def begun(cats: dict[str, float], labels: list[str] | None = None) -> Language:
        nlp = pipeline(name)
        given = {} if labels is None else {"labels": labels}
        nlp.config["initialize"]["components"] = {name: given}
        made = [Example.from_dict(nlp.make_doc("some text"), {"cats": cats})]
        nlp.initialize(lambda: made)
        return nlp

    needed = 2 if name == "latent_textcat" else 1
    with pytest.raises(NoLabels) as raised:
        begun({})
    said = str(raised.value)
    assert f"{name}: no label was found; expected at least {needed}." in said
    assert "doc.cats" in said and f"initialize.components.{name}.labels" in said
    assert begun({}, ["B", "A"]).get_pipe(name).labels == ("B", "A")
    if needed == 1:
        assert begun({"A": 1.0}).get_pipe(name).labels == ("A",)
        return
    with pytest.raises(NoLabels, match=r"A.*latent_textcat_multilabel"):
        begun({"A": 1.0})


@pytest.mark.parametrize("name", ["MovingAverage", "LearnedConstant", "NetworkBaseline"])
def test_control_variates_with_a_state_learn_and_are_stored(name: str) -> None:
    variate = {"@misc": f"spacy-latent.{name}.v1"}
    nlp = pipeline(estimator={"@misc": "spacy-latent.ScoreFunction.v1", "control_variate": variate})

    def state(nlp: Language) -> dict[str, torch.Tensor]:
        module = nlp.get_pipe("latent_textcat").model.layers[1].shims[0].module
        return module.latent.estimator.control_variate.state_dict()

    made = examples(nlp)
    optimizer = nlp.initialize(lambda: made)
    before = {key: value.clone() for key, value in state(nlp).items()}
    learn(nlp, made, 3, optimizer)
    after = state(nlp)
    assert all(not torch.equal(before[key], after[key]) for key in before)
    other = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert all(torch.equal(after[key], value) for key, value in state(other).items())


def test_gradients_add_up_with_inner_steps_to_follow() -> None:
    nlp = pipeline(estimator={**SCORE_FUNCTION, "num_samples": 2, "inner_steps": 3})
    made = examples(nlp)
    optimizer = nlp.initialize(lambda: made)
    pipe = nlp.get_pipe("latent_textcat")
    for _ in range(2):
        nlp.update(made[:2], sgd=False)
        nlp.update(made[2:], sgd=False)
        assert len(pipe._further) == 4
        pipe.finish_update(optimizer)
        assert not pipe._further
    assert nlp("good").cats == nlp("good").cats


def test_no_docs_no_tokens_and_rehearsal() -> None:
    nlp = trained(pipeline(), steps=2)
    assert list(nlp.pipe([])) == [] and nlp("").cats == {"A": 0.0, "B": 0.0}
    empty = [Example.from_dict(nlp.make_doc(""), {"cats": {"A": 1.0, "B": 0.0}})]
    assert nlp.update(empty, sgd=nlp.resume_training())["latent_textcat"] == 0.0
    losses: dict[str, float] = {}
    nlp.rehearse(examples(nlp), sgd=nlp.resume_training(), losses=losses)
    # Samples of structures make the loss slightly larger than zero.
    assert 0.0 <= losses["latent_textcat"] < 0.1


def test_predictions_of_several_structures_are_their_weighted_mean() -> None:
    sparse = {"@misc": "spacy-latent.SparseMAP.v1", "marginalize": True}
    nlp = trained(pipeline(estimator=sparse, temperature=10.0), steps=2)
    docs = [nlp.make_doc("this is good stuff")]
    found, _ = run(nlp.get_pipe("latent_textcat").model, docs, is_train=False)
    assert found.made.weights.shape[0] > 1
    expected = (found.made.weights[:, :, None] * found.logits.softmax(-1)).sum(0)
    np.testing.assert_allclose(found.scores, expected.numpy(), rtol=1e-5)


LIKELIHOODS: list[dict[str, Any]] = [
    {"@misc": "spacy-latent.DenseMarginalization.v1", "prediction": "marginal"},
    {"@misc": "spacy-latent.TopKSparsemax.v1", "prediction": "marginal"},
    {"@misc": "spacy-latent.SparseMAP.v1", "marginalize": True},
]
OVER_WORDS = {
    "structure": {"@misc": "spacy-latent.KOfN.v1", "k": 1},
    "scorer": {"@misc": "spacy-latent.ItemScorer.v1"},
    "composer": {"@misc": "spacy-latent.Selection.v1"},
}


@pytest.mark.parametrize("estimator", LIKELIHOODS, ids=lambda block: block["@misc"])
@pytest.mark.parametrize("name", ["latent_textcat", "latent_textcat_multilabel"])
def test_the_marginal_likelihood_is_the_loss_of_what_is_predicted(
    name: str, estimator: dict[str, Any]
) -> None:
    """The loss equals a sum over the structures, also with empty texts and missing labels."""
    nlp = trained(
        pipeline(name, {**estimator, "criterion": "marginal_likelihood"}, **OVER_WORDS), steps=5
    )
    pipe: Any = nlp.get_pipe(name)
    several = name == "latent_textcat_multilabel"
    made = examples(nlp)
    made.append(Example.from_dict(nlp.make_doc(""), {"cats": {"A": 1.0, "B": 0.0}}))
    if several:
        made.append(Example.from_dict(nlp.make_doc("good bad film"), {"cats": {"A": 1.0}}))
    with_words = [example for example in made if len(example.predicted)]
    found, _ = run(pipe.model, [example.predicted for example in made], is_train=True)
    loss, gradients = pipe.get_loss(made, found)
    expected = []
    for example in with_words:
        one, _ = run(pipe.model, [example.predicted], is_train=False)
        chances = one.logits.sigmoid() if several else one.logits.softmax(-1)
        of_text = torch.ones(len(chances))
        for label, truth in example.reference.cats.items():
            p = chances[:, 0, pipe.labels.index(label)]
            if several:
                of_text = of_text * (p if truth else 1 - p)
            elif truth:
                of_text = p
            if not several:
                # The sum over structures gives the predicted probability of the label.
                index = pipe.labels.index(label)
                assert float((one.made.weights[:, 0] * p).sum()) == pytest.approx(
                    float(one.scores[0, index]), rel=1e-5
                )
        expected.append(-float((one.made.weights[:, 0] * of_text).sum().log()))
    assert loss == pytest.approx(np.mean(expected), rel=1e-5)
    assert all(gradient.isfinite().all() for gradient in gradients)
    # The empty text has no gradient.
    assert not gradients[0][:, len(DATA)].any()


@pytest.mark.parametrize("name", ["latent_textcat", "latent_textcat_multilabel"])
def test_the_marginal_likelihood_learns(name: str) -> None:
    estimator = {**LIKELIHOODS[2], "criterion": "marginal_likelihood"}
    nlp = trained(pipeline(name, estimator))
    assert all(nlp(text).cats[label] > 0.5 for text, label in DATA)


ROOT = {
    "@architectures": "spacy-latent.LatentTextClassifier.v1",
    "use_reduce_root": True,
    "use_reduce_mean": False,
}


@pytest.mark.parametrize("single_root", [True, False])
def test_the_root_is_what_is_read(single_root: bool) -> None:
    structure = {"@misc": "spacy-latent.SpanningTree.v1", "single_root": single_root}
    nlp = pipeline(structure=structure, **ROOT)
    nlp.initialize(lambda: examples(nlp))
    model = nlp.get_pipe("latent_textcat").model
    docs = [nlp.make_doc(text) for text, _ in DATA]
    found, _ = run(model, docs, is_train=False)
    tok2vec, texts, _ = model.layers
    layer = texts.shims[0].module.latent
    arrays = tok2vec.predict(docs)
    made = texts.predict((arrays, model.attrs["span_getter"](docs)))
    for d, (doc, array) in enumerate(zip(docs, arrays)):
        vectors, length = torch.tensor(array)[None], torch.tensor([len(doc)])
        with torch.no_grad():
            draw, _ = layer.read(vectors, length)
            composed = layer.compose(vectors, draw, length)[0]
        on_root = draw.z[0, 0, 0, 1:].bool()
        assert int(on_root.sum()) == 1 if single_root else int(on_root.sum()) >= 1
        expected = composed[on_root].sum(0).numpy()
        np.testing.assert_allclose(made.vectors[d], expected, atol=1e-5)
    assert found.logits.shape[:2] == (1, len(docs))


@pytest.mark.parametrize("composer", ["ChildSumTreeLstm", "GraphConvolution"])
def test_the_root_alone_is_what_it_is_beside_other_reductions(composer: str) -> None:
    """The vector of the root is the same if only the root is composed."""
    settings = {
        "composer": {"@misc": f"spacy-latent.{composer}.v1"},
        "estimator": {"@misc": "spacy-latent.SparseMAP.v1", "marginalize": True},
        "structure": {"@misc": "spacy-latent.SpanningTree.v1", "single_root": False},
    }
    texts = ("good good good day", "", "good", "a bad day , a bad day")
    vectors = []
    for mean in (False, True):
        nlp = pipeline(**settings, **{**ROOT, "use_reduce_mean": mean})
        nlp.initialize(lambda nlp=nlp: examples(nlp))
        docs = [nlp.make_doc(text) for text in texts]
        found, backprop = run(nlp.get_pipe("latent_textcat").model, docs, is_train=True)
        assert not found.made.vectors[1 :: len(texts)].any()
        vectors.append(found.made.vectors[:, : found.made.vectors.shape[1] // (1 + mean)])
        nothing = torch.zeros_like(found.made.weights)
        gradients = torch.ones_like(found.logits), nothing, nothing
        backprop((*gradients, torch.zeros_like(found.made.extras)))
    np.testing.assert_allclose(*vectors, atol=1e-6)


def test_the_root_gets_a_gradient_through_soft_trees() -> None:
    nlp = pipeline(estimator={"@misc": "spacy-latent.Marginals.v1"}, **ROOT)
    made = examples(nlp)
    nlp.initialize(lambda: made)
    shim = nlp.get_pipe("latent_textcat").model.layers[1].shims[0]
    start = shim.module.latent.scorer.root.detach().clone()
    optimizer = nlp.create_optimizer()
    learn(nlp, made, 2, optimizer)
    assert not torch.equal(start, shim.module.latent.scorer.root)


def test_several_trees_of_a_text_are_averaged_and_an_empty_text_is_zero() -> None:
    spans = {"@misc": "spacy-latent.DocSpans.v1", "max_length": 2}
    estimator = {"@misc": "spacy-latent.StraightThrough.v1"}
    nlp = pipeline(estimator=estimator, span_getter=spans, **ROOT)
    nlp.initialize(lambda: examples(nlp))
    _, texts, _ = nlp.get_pipe("latent_textcat").model.layers
    width = texts.get_dim("nI")
    rows = np.random.default_rng(0).normal(size=(4, width)).astype("float32")
    whole = texts.predict(([rows, rows[:0]], [[(0, 2), (2, 4)], []])).vectors
    halves = texts.predict(([rows[:2], rows[2:]], [[(0, 2)], [(0, 2)]])).vectors
    np.testing.assert_allclose(whole[0], halves.mean(0), atol=1e-5)
    assert not whole[1].any()


def test_only_arcs_have_a_root() -> None:
    with pytest.raises(IncompatiblePair, match=r"use_reduce_root.*ConstituencyTree"):
        pipeline(
            structure={"@misc": "spacy-latent.ConstituencyTree.v1"},
            scorer={"@misc": "spacy-latent.SpanScorer.v1"},
            composer={"@misc": "spacy-latent.SpanAttention.v1"},
            **ROOT,
        )


class OwnObjective(ScoreFunction):
    """An estimator of an extension whose ``objective`` takes no extras, as in older versions."""

    def objective(self, losses, weights, log_probs, features):  # type: ignore[no-untyped-def,override]
        return super().objective(losses, weights, log_probs, features)


class OwnVariate(ControlVariate):
    """A control variate that creates its weights when the width is known."""

    min_samples = 1

    def __init__(self, linear: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.linear = linear

    def for_width(self, width: int) -> OwnVariate:  # type: ignore[override]
        return OwnVariate(torch.nn.Linear(width, 1))

    def forward(self, losses, greedy, features):  # type: ignore[no-untyped-def]
        assert self.linear is not None
        return self.linear(features).squeeze(-1).detach()


def test_estimators_and_control_variates_of_ones_own() -> None:
    spacy.registry.misc("test_textcat.OwnObjective.v1")(lambda: OwnObjective(2, OwnVariate()))
    nlp = spacy.blank("en")
    model = {"estimator": {"@misc": "test_textcat.OwnObjective.v1"}}
    nlp.add_pipe("latent_textcat", config={"model": model})
    examples = [
        Example.from_dict(nlp.make_doc(text), {"cats": {"A": text[0] == "a", "B": text[0] == "b"}})
        for text in ("a c d", "b c d")
    ]
    optimizer = nlp.initialize(lambda: examples)
    assert nlp.update(examples, sgd=optimizer)["latent_textcat"] > 0


@pytest.mark.parametrize("words", ["a b a b", "a c d b"])
def test_weighted_structures_of_several_sentences_are_refused(words: str) -> None:
    """They are refused even if all sentences, and so the weights of their structures, are equal."""
    nlp = spacy.blank("en")
    model = {
        "@architectures": "spacy-latent.LatentTextClassifier.v1",
        "exclusive_classes": True,
        "tok2vec": {
            "@architectures": "spacy.MultiHashEmbed.v2",
            "width": 8,
            "attrs": ["NORM"],
            "rows": [100],
            "include_static_vectors": False,
        },
        "structure": {"@misc": "spacy-latent.OneOfN.v1"},
        "scorer": {"@misc": "spacy-latent.ItemScorer.v1"},
        "estimator": {"@misc": "spacy-latent.DenseMarginalization.v1"},
        "composer": {"@misc": "spacy-latent.Selection.v1"},
        "span_getter": {"@misc": "spacy-latent.SentenceSpans.v1"},
    }
    nlp.add_pipe("latent_textcat", config={"model": model})

    def example(starts: list[bool]) -> Example:
        doc = Doc(nlp.vocab, words=words.split(), sent_starts=starts)
        return Example.from_dict(doc, {"cats": {"X": 1.0, "Y": 0.0}})

    one, two = example([True, False, False, False]), example([True, False, True, False])
    nlp.initialize(lambda: [one])
    nlp.update([one])
    with pytest.raises(LatentError, match="several spans"):
        nlp.update([two])


def test_a_long_text_is_predicted_by_the_best_structure_of_each_window() -> None:
    """It was an error, as in training, so one text above max_length stopped nlp.pipe."""
    parts = {
        "structure": {"@misc": "spacy-latent.OneOfN.v1"},
        "scorer": {"@misc": "spacy-latent.ItemScorer.v1"},
        "composer": {"@misc": "spacy-latent.Selection.v1"},
        "span_getter": {"@misc": "spacy-latent.DocSpans.v1", "max_length": 5},
    }
    sparse = {"@misc": "spacy-latent.SparseMAP.v1", "marginalize": True}
    nlp = trained(pipeline(estimator=sparse, **parts), steps=8)
    # Its predictions are those of single best structures.
    single = trained(pipeline(estimator=SCORE_FUNCTION, **parts), steps=0)
    name = "latent_textcat"
    single.get_pipe(name).from_bytes(nlp.get_pipe(name).to_bytes())
    long = "good film of it and a very bad one it is"
    texts = ["bad", long, "this is good stuff", "good film of it and a", long]
    with pytest.warns(LatentWarning, match="split into windows"):
        found, best = ([doc.cats for doc in each.pipe(texts)] for each in (nlp, single))
        alone = nlp(long).cats
    for i in (1, 3, 4):
        assert found[i] == pytest.approx(best[i], abs=1e-6)
    assert alone == pytest.approx(found[1], abs=1e-6)
    # A text of one window keeps the mean over its structures.
    assert found[2] != pytest.approx(best[2], abs=1e-5)


def test_the_rationale_of_a_long_text_has_the_words_that_were_read() -> None:
    """It had the words of all structures, of which prediction takes the best of each window."""
    sparse = {"@misc": "spacy-latent.SparseMAP.v1", "marginalize": True}
    spans = {"@misc": "spacy-latent.DocSpans.v1", "max_length": 5}
    nlp = rationale_pipeline(estimator=sparse, span_getter=spans)
    # Nearly equal scores, of which SparseMAP weights several structures.
    component: Any = nlp.get_pipe("latent_textcat")
    nlp.initialize(lambda: rationale_examples(nlp))
    long, short = (
        nlp.make_doc("good film of it and a very bad one it"),
        nlp.make_doc("it is a film"),
    )
    with pytest.warns(LatentWarning, match="split into windows"):
        chosen = component.predict([long, short])[2]
    assert sorted(chosen[0].tolist()) == [0.0] * 6 + [1.0] * 4
    assert any(0 < weight < 1 for weight in chosen[1])


def test_a_label_that_is_wrong_teaches_the_others() -> None:
    """Rejected answers of Prodigy are such labels; their texts had a loss of 0."""
    nlp = pipeline()
    made = examples(nlp)
    for one in made:
        cats = one.reference.cats
        one.reference.cats = {label: value for label, value in cats.items() if not value}
    optimizer = nlp.initialize(lambda: made)
    optimizer.learn_rate = 0.01
    for _ in range(40):
        nlp.update(made, sgd=optimizer)
    for text, label in DATA:
        cats = nlp(text).cats
        assert max(cats, key=cats.__getitem__) == label


def test_a_text_of_an_unknown_label_teaches_none_of_those_that_it_leaves_open() -> None:
    nlp = pipeline()
    made = examples(nlp)
    nlp.initialize(lambda: made)
    component = nlp.get_pipe("latent_textcat")
    first = component.labels[0]
    losses = []
    for cats in ({first: 0.0}, {first: 0.0, "another": 1.0}, {first: 0.0, "another": 0.0}):
        made[0].reference.cats = cats
        found, _ = run(component.model, [made[0].predicted], is_train=True)
        losses.append(component.get_loss(made[:1], found)[0])
    assert losses[1] == 0.0 and losses[0] > 0.0 and losses[2] > 0.0


@pytest.mark.parametrize(
    "settings",
    [
        {"control_variate": "MovingAverage"},
        {"control_variate": "NetworkBaseline"},
        {"control_variate": "OptimalCoefficient", "num_samples": 2},
        {"control_variate": "SelfCritical", "normalize_advantage": True},
        {"@misc": "spacy-latent.SumAndSample.v1", "control_variate": "MovingAverage"},
        {"@misc": "spacy-latent.Relax.v1"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["latent_textcat", "latent_textcat_multilabel"])
def test_texts_without_labels_do_not_change_the_gradients_of_others(
    settings: dict[str, Any], name: str
) -> None:
    """With a loss of 0 they had part in baselines, so that these were too low for the others."""
    estimator = {"@misc": "spacy-latent.ScoreFunction.v1", **settings}
    if "control_variate" in settings:
        estimator["control_variate"] = {"@misc": f"spacy-latent.{settings['control_variate']}.v1"}
    words = {
        "structure": {"@misc": "spacy-latent.OneOfN.v1"},
        "scorer": {"@misc": "spacy-latent.ItemScorer.v1"},
        "composer": {"@misc": "spacy-latent.Selection.v1"},
    }
    nlp = pipeline(name, estimator, **words)
    labelled = examples(nlp)
    nlp.initialize(lambda: labelled)
    bare = [Example.from_dict(nlp.make_doc("stuff of it"), {}) for _ in labelled]
    component = nlp.get_pipe(name)
    layer = component.model.layers[1].shims[0].module.latent
    batch = [one for pair in zip(labelled, bare) for one in pair]
    found, _ = run(component.model, [one.predicted for one in batch], is_train=True)
    # Before the first step, all structures have the same loss.
    found = replace(found, logits=torch.randn_like(found.logits))
    made, known = found.made, slice(0, None, 2)
    alone = replace(
        found,
        logits=found.logits[:, known],
        made=replace(
            made,
            weights=made.weights[:, known],
            log_probs=made.log_probs[:, known],
            extras=made.extras[:, known],
            features=made.features[known],
        ),
    )
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    results = []
    for texts, predictions in ((labelled, alone), (batch, found)):
        layer.load_state_dict(before)
        component.get_loss(labelled, alone)
        layer.zero_grad()
        loss, gradients = component.get_loss(texts, predictions)
        state = {key: value.clone() for key, value in layer.state_dict().items()}
        learned = [part.grad.clone() for part in layer.parameters() if part.grad is not None]
        results.append((loss, gradients, state, learned))
    (one, own, state, learned), (joint, of_batch, other, of_others) = results
    assert joint == pytest.approx(one / 2)
    for mine, theirs in zip(own, of_batch):
        assert torch.allclose(mine, theirs[:, known], atol=1e-6)
        assert not theirs[:, 1::2].any()
    assert all(torch.equal(state[key], other[key]) for key in state)
    for mine, theirs in zip(learned, of_others, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)

    nothing, gradients = component.get_loss(bare, alone)
    assert nothing == 0.0 and not any(part.any() for part in gradients)
