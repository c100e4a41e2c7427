"""Rationale models in latent_textcat and latent_textcat_multilabel."""

from __future__ import annotations

import numpy as np
import pytest
import spacy
import torch
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry
from thinc.api import SGD, Adam, Linear, chain, fix_random_seed, list2array

from spacy_latent.analysis.rationales import rationale_words
from spacy_latent.errors import IncompatiblePair, LatentError, LatentWarning, NotTractable
from spacy_latent.models.latent_text_classifier import latent_layer
from tests.pipeline.rationale_pipelines import (
    BITS,
    CHAIN,
    DATA,
    EMBED,
    TAGS,
    rationale_examples,
    rationale_pipeline,
    trained_rationale,
)
from tests.pipeline.small_pipelines import TOK2VEC, learn, stored

LSTM = {"@misc": "spacy-latent.BiLSTM.v1", "hidden_width": 4}
MARGINALIZED = {"@misc": "spacy-latent.SparseMAP.v1", "marginalize": True}
KUMA = {"@misc": "spacy-latent.HardKuma.v1", "rate": 0.3}
FUSED = {"@misc": "spacy-latent.Fusedmax.v1"}
CONTIGUOUS = {**CHAIN, "rate": 0.3, "transition_cost": 0.5}
MODELS = {
    "k of n": {},
    "k of n, reader with context": {"encoder": LSTM},
    "k of n, maximum": {"use_reduce_max": True},
    "several subsets": {"estimator": MARGINALIZED, "temperature": 5.0},
    "budget": {"structure": {**BITS, "budget": 2}},
    "HardKuma": {"structure": BITS, "estimator": KUMA, "encoder": LSTM},
    "HardConcrete": {"structure": BITS, "estimator": {"@misc": "spacy-latent.HardConcrete.v1"}},
    "fused": {"structure": {"@misc": "spacy-latent.OneOfN.v1"}, "estimator": FUSED},
    "contiguous": {**CONTIGUOUS, "encoder": LSTM},
    "contiguous, sparse": {
        **CONTIGUOUS,
        "estimator": {"@misc": "spacy-latent.SparseMAP.v1", "marginalize": True},
    },
    "contiguous tags": {**TAGS, "rate": 0.3, "transition_cost": 0.5},
}
FEW = {"@misc": "spacy-latent.LineBudget.v1", "limit": 2, "but_first": True}
SPECTRA = {
    "structure": {
        "@misc": "spacy-latent.FactorGraph.v1",
        "structures": {"chain": {"@misc": "spacy-latent.LinearChain.v1"}},
        "constraints": {"length": {**FEW, "axis": 2}},
    },
    "scorer": CHAIN["scorer"],
    "estimator": {"@misc": "spacy-latent.SparseMAP.v1", "tolerance": 1e-6},
    "transition_cost": 0.5,
    "temperature": 0.1,
}


def held(nlp, words: list[str], others: list[str]) -> tuple[Doc, Doc]:
    """Return docs of both texts. The prediction for the second uses the first one's structure."""
    component = nlp.get_pipe("latent_textcat")
    layer = latent_layer(component.model)
    first = nlp(Doc(nlp.vocab, words=words))
    original, kept = layer.read, []
    try:
        layer.read = lambda *given: kept.append(original(*given)) or kept[0]
        for text in (words, others):
            second = nlp(Doc(nlp.vocab, words=text))
    finally:
        del layer.read
    assert len(kept) == 2
    return first, second


def test_a_factor_graph_chooses_few_contiguous_words() -> None:
    """SPECTRA, a chain of two tags with a budget, chooses at most two words."""
    nlp = trained_rationale(rationale_pipeline(config={"annotate": "none"}, **SPECTRA), steps=40)
    layer = latent_layer(nlp.get_pipe("latent_textcat").model)  # type: ignore[attr-defined]
    kept, read = [], layer.read
    layer.read = lambda *given: kept.append(read(*given)) or kept[-1]
    try:
        docs = list(nlp.pipe(text for text, _ in DATA))
    finally:
        del layer.read
    for draw, _ in kept:
        assert (layer.chosen(draw).sum(1) <= 2 + 1e-4).all()
    assert all(doc.cats[label] > 0.5 for doc, (_, label) in zip(docs, DATA))
    tags = {**SPECTRA, **TAGS, "structure": dict(SPECTRA["structure"])}  # type: ignore[call-overload]
    tags["structure"]["structures"] = {"tags": TAGS["structure"]}
    tags["structure"]["constraints"] = {"length": {**FEW, "axis": 1}}
    with pytest.raises(IncompatiblePair, match="SparseMAP"):
        rationale_pipeline(**tags)
    rationale_pipeline(**{**tags, "transition_cost": 0.0})


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_no_unchosen_word_changes_the_score(model) -> None:
    """The scores depend on the chosen words only, for a fixed choice.

    Changes of all other words leave them equal to the bit. A change of a chosen word does not.
    """
    nlp = trained_rationale(rationale_pipeline(**model), steps=40)
    # With some versions of torch nothing of the first text is chosen after so short a training.
    texts = ["it is a very bad film of all", *(text for text, _ in DATA if text != "good")]
    found = {text: rationale_words(nlp(Doc(nlp.vocab, words=text.split()))) for text in texts}
    text = next(text for text in texts if found[text].any())
    words, seen = text.split(), found[text]
    others = [word if chosen else "good" for word, chosen in zip(words, seen)]
    first, second = held(nlp, words, others)
    assert first.cats == second.cats
    other = "bad" if words[seen.argmax()] == "good" else "good"
    changed = [word if i != seen.argmax() else other for i, word in enumerate(words)]
    first, second = held(nlp, words, changed)
    assert first.cats != second.cats


def test_a_context_free_reader_is_demanded() -> None:
    with_tags = {**EMBED, "attrs": ["NORM", "TAG"], "rows": [50, 50]}
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "tok2vec"}
    for embed in (TOK2VEC, with_tags, listener):
        nlp = rationale_pipeline(embed=embed)
        with pytest.raises(LatentError, match="vector"):
            nlp.initialize(lambda: rationale_examples(nlp))  # noqa: B023


@pytest.mark.parametrize("component", ["latent_textcat", "latent_textcat_multilabel"])
def test_it_learns_and_writes_spans_that_displacy_draws(component: str) -> None:
    nlp = trained_rationale(rationale_pipeline(component))
    for text, label in DATA:
        doc = nlp(text)
        assert max(doc.cats, key=doc.cats.get) == label
        chosen = [item.token for item in doc._.latent[component].items()]
        assert np.flatnonzero(rationale_words(doc)).tolist() == chosen
        assert len(chosen) == min(2, len(doc))
        assert {span.label_ for span in doc.spans["rationale"]} == {"rationale"}
        assert doc.spans["rationale"].attrs["scores"].tolist() == [1.0] * len(
            doc.spans["rationale"]
        )
        html = spacy.displacy.render(
            doc, style="span", options={"spans_key": "rationale"}, jupyter=False
        )
        assert "rationale" in html
    # Adjacent chosen words are one span.
    assert len(nlp("bad bad")[:].doc.spans["rationale"]) == 1


def test_regression() -> None:
    nlp = rationale_pipeline("latent_textcat_multilabel", {"score_range": [0.0, 5.0]})
    made = [
        Example.from_dict(nlp.make_doc(text), {"cats": {"stars": score}})
        for text, score in [("a good film of it", 4.5), ("it is a bad film", 0.5)]
    ]
    optimizer = nlp.initialize(lambda: made)
    optimizer.learn_rate = 0.02
    learn(nlp, made, 60, optimizer)
    assert (
        nlp("a good film of it").cats["stars"] > 3.5 > 1.5 > nlp("it is a bad film").cats["stars"]
    )


@pytest.mark.parametrize("name", ["k of n, reader with context", "contiguous", "HardKuma"])
def test_disk_bytes_and_pickle_give_the_same(name: str, tmp_path) -> None:
    nlp = trained_rationale(rationale_pipeline(**MODELS[name]), steps=3)
    text = DATA[1][0]
    expected = nlp(text)
    for other in stored(nlp, tmp_path):
        doc = other(text)
        assert doc.cats == expected.cats
        np.testing.assert_array_equal(rationale_words(doc), rationale_words(expected))


def test_the_multiplier_of_the_rate_is_stored() -> None:
    nlp = trained_rationale(rationale_pipeline(**CONTIGUOUS), steps=3)
    expected = latent_layer(nlp.get_pipe("latent_textcat").model).multipliers
    again = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    found = latent_layer(again.get_pipe("latent_textcat").model).multipliers
    assert expected.any() and torch.equal(found, expected)


def test_batches_change_nothing() -> None:
    nlp = trained_rationale(rationale_pipeline(encoder=LSTM), steps=5)
    texts = [text for text, _ in DATA] + ["", " "]
    alone = [nlp(text) for text in texts]
    for size in (2, 7):
        for doc, expected in zip(nlp.pipe(texts, batch_size=size), alone):
            assert doc.cats == pytest.approx(expected.cats, abs=1e-6)
            assert [(s.start, s.end) for s in doc.spans["rationale"]] == [
                (s.start, s.end) for s in expected.spans["rationale"]
            ]


def test_the_same_seed_gives_the_same_pipeline() -> None:
    found = []
    for _ in range(2):
        fix_random_seed(3)
        found.append(trained_rationale(rationale_pipeline(**MODELS["HardKuma"]), steps=4))
    assert found[0](DATA[0][0]).cats == found[1](DATA[0][0]).cats


def test_the_selector_may_listen_to_a_shared_embedder() -> None:
    nlp = rationale_pipeline(
        tok2vec={"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "tok2vec"}
    )
    nlp.add_pipe("tok2vec", first=True, config={"model": TOK2VEC})
    made = rationale_examples(nlp)
    nlp.initialize(lambda: made)
    shared = nlp.get_pipe("tok2vec").model
    before = shared.to_bytes()
    for _ in range(3):
        for example in made:
            example.predicted = nlp.make_doc(example.reference.text)
        nlp.update(made, sgd=Adam(0.01))
    assert shared.to_bytes() != before
    text = DATA[0][0]
    expected = nlp(text).cats
    nlp.replace_listeners("tok2vec", "latent_textcat", ["model.tok2vec"])
    nlp.remove_pipe("tok2vec")
    assert nlp(text).cats == expected


# ---------------------------------------------------------------- bad input


def test_more_words_than_there_are() -> None:
    nlp = trained_rationale(rationale_pipeline(structure={"@misc": "spacy-latent.KOfN.v1", "k": 9}))
    assert rationale_words(nlp("it is bad")).all()
    doc = nlp("bad")
    assert doc.cats["B"] > 0.5 and rationale_words(doc).all()


def test_empty_docs_have_no_rationale() -> None:
    nlp = trained_rationale(rationale_pipeline(), steps=2)
    for doc in (nlp(""), next(nlp.pipe(["", "good"]))):
        assert doc.cats == {"A": 0.0, "B": 0.0} and len(doc.spans["rationale"]) == 0
    empty = Example.from_dict(nlp.make_doc(""), {"cats": {"A": 1.0, "B": 0.0}})
    assert nlp.update([empty])["latent_textcat"] == 0.0


@pytest.mark.parametrize("name", ["k of n", "budget", "fused", "contiguous", "contiguous tags"])
def test_forbidden_words_are_never_read(name: str) -> None:
    content = {"@misc": "spacy-latent.ContentWords.v1", "stop_words": False}
    nlp = trained_rationale(rationale_pipeline(candidates=content, **MODELS[name]))
    doc = nlp("this is a good film of it all ...")
    chosen = {token.text for token, seen in zip(doc, rationale_words(doc)) if seen}
    assert chosen <= {"good", "film"}
    # Without a word that may be chosen, the scores come from the bias of the linear layer.
    nothing = [nlp(text) for text in ("this is of it", ". . .", " ")]
    assert not any(rationale_words(one).any() for one in nothing)
    assert nothing[0].cats == nothing[1].cats == nothing[2].cats
    assert sum(nothing[0].cats.values()) == pytest.approx(1.0)


RELEASED = {
    "@misc": "spacy-latent.ReleasedCandidates.v1",
    "release_at": 2,
    "restricted": {"@misc": "spacy-latent.ContentWords.v1", "stop_words": False},
    "free": None,
}


def allowed_words(nlp, run) -> set[str]:
    """Return the words of DATA's longest text that may be chosen during ``run``."""
    layer = latent_layer(nlp.get_pipe("latent_textcat").model)
    original, kept = layer.read, []
    try:
        layer.read = lambda *given: kept.append(given[0][0, :, -1].tolist()) or original(*given)
        run()
    finally:
        del layer.read
    words = max((text.split() for text, _ in DATA), key=len)
    return {word for word, may in zip(words, kept[0]) if may}


def test_candidates_are_released_in_training_and_free_at_prediction() -> None:
    nlp = rationale_pipeline(candidates=RELEASED)
    longest = max((text for text, _ in DATA), key=len)
    everything = set(longest.split())
    made = rationale_examples(nlp)
    nlp.initialize(lambda: made)

    def train(nlp, updates: int) -> list[set[str]]:
        optimizer = SGD(0.1)
        batch = rationale_examples(nlp)
        found = []
        for _ in range(updates):
            found.append(allowed_words(nlp, lambda: nlp.update(batch, sgd=optimizer)))
            # Predictions may choose all words even in the first stage of training.
            assert allowed_words(nlp, lambda: nlp(longest)) == everything
            assert allowed_words(nlp, lambda: nlp.evaluate(batch)) == everything
        return found

    start = nlp.to_bytes()
    assert train(nlp, 4) == [{"bad"}, {"bad"}, everything, everything]
    # The pipeline is saved and loaded in the first stage.
    first = rationale_pipeline(candidates=RELEASED).from_bytes(start)
    assert train(first, 1) == [{"bad"}]
    with pytest.warns(LatentWarning, match=r"1.*AllWords.*ContentWords"):
        resumed = rationale_pipeline(candidates=RELEASED).from_bytes(first.to_bytes())
    assert train(resumed, 3) == [{"bad"}, everything, everything]
    weights = [
        [
            v.numpy()
            for v in latent_layer(one.get_pipe("latent_textcat").model).state_dict().values()
        ]
        for one in (nlp, resumed)
    ]
    for ours, theirs in zip(*weights):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("max_steps, refused", [(1, True), (2, True), (3, False), (0, False)])
def test_a_training_that_never_releases_its_candidates_is_refused(max_steps, refused) -> None:
    nlp = rationale_pipeline(candidates=RELEASED)
    nlp.config["training"]["max_steps"] = max_steps
    message = rf"max_steps.*{max_steps}.*AllWords.*ContentWords.*2.*release_at"
    made = rationale_examples(nlp)
    if refused:
        with pytest.raises(LatentError, match=message):
            nlp.initialize(lambda: made)
    else:
        nlp.initialize(lambda: made)


@pytest.mark.parametrize(
    "model, message",
    [
        (
            {"structure": {"@misc": "spacy-latent.SpanningTree.v1"}},
            "RationaleTextCat.*SpanningTree",
        ),
        ({"transition_cost": 1.0}, "transition_cost.*KOfN"),
        ({**CHAIN, "transition_cost": -1.0}, "transition_cost"),
        ({"rate": 1.5}, "rate"),
        ({"transitions": 0.0}, "transitions"),
        ({"damping": -1.0}, "damping"),
        ({"use_reduce_mean": False}, "reduction"),
        ({"scorer": {"@misc": "spacy-latent.EmissionScorer.v1"}}, "EmissionScorer.*KOfN"),
        ({"estimator": KUMA}, "HardKuma.*KOfN"),
    ],
)
def test_impossible_configs_are_refused(model, message: str) -> None:
    with pytest.raises((LatentError, IncompatiblePair), match=message):
        rationale_pipeline(**model)


def test_a_rate_needs_marginals() -> None:
    from spacy_latent.layers.rationale_layer import RationaleSettings
    from spacy_latent.models.rationale_text_cat import check_targets
    from spacy_latent.structures.items import ItemSet

    class OnlyMap(ItemSet):
        tractable = frozenset()

    with pytest.raises(NotTractable, match="rate"):
        check_targets(OnlyMap, RationaleSettings(rate=0.2))


def test_a_sequence_of_more_than_two_tags_is_refused() -> None:
    scorer = {"@misc": "spacy-latent.TransitionScorer.v1", "num_tags": 3}
    for cost in (0.0, 1.0):
        nlp = rationale_pipeline(**{**CHAIN, "scorer": scorer, "transition_cost": cost})
        nlp.initialize(lambda: rationale_examples(nlp))  # noqa: B023
        with pytest.raises(LatentError, match="tags"):
            nlp("a good film")


def test_spans_need_a_model_that_chooses() -> None:
    with pytest.raises(LatentError, match="spans_key"):
        spacy.blank("en").add_pipe("latent_textcat", config={"spans_key": "rationale"})
    with pytest.raises(LatentError, match="spans_key is ''"):
        rationale_pipeline(config={"spans_key": ""})
    for name in ("label_set_scorer", "rationale_scorer"):
        with pytest.raises(LatentError, match="spans_key is ''"):
            registry.get("scorers", f"spacy-latent.{name}.v1")(spans_key="")


def test_annotate_none_still_writes_spans() -> None:
    nlp = trained_rationale(rationale_pipeline(config={"annotate": "none"}), steps=2)
    doc = nlp("a good film")
    assert rationale_words(doc).sum() == 2 and not len(doc._.latent)
    off = trained_rationale(rationale_pipeline(config={"spans_key": None}), steps=2)
    assert "rationale" not in off("a good film").spans


def test_spacy_pretrains_both_embedders_and_their_weights_are_loaded():
    """``spacy pretrain`` initializes the layer ``tok2vec`` alone, before any label is known."""
    nlp, other = rationale_pipeline(), rationale_pipeline()
    docs = [nlp.make_doc("Give it a doc to infer shapes")]
    layer = nlp.get_pipe("latent_textcat").model.get_ref("tok2vec")
    layer.initialize(X=docs)
    model = chain(layer, list2array(), Linear(nO=3))
    model.initialize(X=docs)
    before = [rows.copy() for rows in layer.predict(docs)]
    optimizer = Adam(0.1)
    for _ in range(2):
        predicted, backprop = model.begin_update(docs)
        backprop(predicted - 1)
        model.finish_update(optimizer)
    rows = layer.predict(docs)
    selector, reader = (part.predict(docs)[0].shape[1] for part in layer.layers)
    changed = abs(rows[0] - before[0]).max(axis=0) > 0
    assert changed[:selector].any() and changed[selector : selector + reader].any()
    other.initialize(lambda: rationale_examples(other))
    target = other.get_pipe("latent_textcat").model.get_ref("tok2vec")
    target.from_bytes(layer.to_bytes())
    assert np.array_equal(target.predict(docs)[0], rows[0])
