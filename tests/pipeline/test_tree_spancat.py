"""The component ``tree_spancat``: its training data, its annotations and its errors."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.cli.find_threshold import find_threshold
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example

from spacy_latent.analysis.label_sets import build_label_set_scorer_v1
from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.evaluation.mistakes import find_traps
from spacy_latent.models.compatible_spans import crosses
from tests.pipeline.small_pipelines import TOK2VEC, initialized, learn, step, stock

MODEL: dict[str, Any] = {"tok2vec": TOK2VEC, "hidden_width": 16}
KEY = "sc"
NESTED = [
    ("the dog in the park ran", [(0, 5, "NP"), (0, 2, "NP"), (2, 5, "PP"), (3, 5, "NP")]),
    ("a cat saw the dog", [(0, 2, "NP"), (3, 5, "NP")]),
    ("the park saw a cat in the dog", [(0, 2, "NP"), (3, 8, "NP"), (3, 5, "NP"), (5, 8, "PP")]),
    ("in the park", [(0, 3, "PP"), (1, 3, "NP")]),
]
FIRST = NESTED[0][0]
# The spans of the first text, outer spans first.
NESTED_FIRST = [(0, 5, "NP"), (0, 2, "NP"), (2, 5, "PP"), (3, 5, "NP")]


def example(nlp: Language, text: str, spans: list[tuple[int, int, str]]) -> Example:
    reference = nlp.make_doc(text)
    reference.spans[KEY] = [Span(reference, *span) for span in spans]
    return Example(nlp.make_doc(text), reference)


def examples(nlp: Language) -> list[Example]:
    return [example(nlp, *one) for one in NESTED]


def pipeline(model: dict[str, Any] | None = None, **config: Any) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("tree_spancat", config={"model": model or MODEL, **config})
    return nlp


def trained(steps: int = 60, data: list[Any] = NESTED, **config: Any) -> Language:
    nlp = pipeline(**config)
    batch = [example(nlp, *one) for one in data]
    optimizer = initialized(nlp, sample=batch)
    learn(nlp, batch, steps, optimizer)
    return nlp


def found(doc: Doc, key: str = KEY) -> list[tuple[int, int, str]]:
    return [(span.start, span.end, span.label_) for span in doc.spans[key]]


@pytest.fixture(scope="module")
def nlp() -> Language:
    return trained(annotate="probabilities")


def test_it_learns_spans_that_nest(nlp: Language) -> None:
    scores = nlp.evaluate(examples(nlp))
    assert scores["spans_sc_f"] == 1.0 and scores["spans_sc_per_type"]["PP"]["f"] == 1.0
    doc = nlp(FIRST)
    assert found(doc) == NESTED_FIRST
    probabilities = doc.spans[KEY].attrs["scores"]
    assert probabilities.shape == (4,) and (probabilities > 0.5).all()
    brackets = doc._.latent["tree_spancat"].brackets()
    assert [(b.start, b.end, b.name) for b in brackets] == found(doc)
    assert [b.probability for b in brackets] == pytest.approx(probabilities.tolist())


def test_a_corpus_without_spans_is_warned_of() -> None:
    nlp = pipeline(spans_key="phrases")
    with pytest.warns(LatentWarning, match="'phrases'") as warned:
        optimizer = initialized(nlp, sample=examples(nlp))
    said = str(warned[0].message)
    assert "spans_key" in said and "initialize.components.tree_spancat.labels" in said
    assert nlp.update(examples(nlp), sgd=optimizer)["tree_spancat"] == 0.0
    nlp.config["initialize"]["components"] = {"tree_spancat": {"labels": ["NP"]}}
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        initialized(nlp, sample=examples(nlp))


def test_nothing_it_predicts_crosses_whatever_the_threshold(nlp: Language) -> None:
    spans: Any = nlp.get_pipe("tree_spancat")
    texts = ["the dog in a park saw the cat", "in in in", "ran the the dog a cat ran in"]
    counts = []
    for threshold in (0.0, 1e-6, 0.01, 0.3, 0.5, 0.9):
        spans.cfg["threshold"] = threshold
        docs = list(nlp.pipe(texts))
        for doc in docs:
            assert not crosses([(start, end) for start, end, _ in found(doc)])
            assert (doc.spans[KEY].attrs["scores"] >= threshold).all()
        counts.append(sum(len(doc.spans[KEY]) for doc in docs))
    spans.cfg["threshold"] = 0.5
    # Nearly whole trees are predicted with a threshold near zero.
    least = sum(2 * len(doc) - 1 for doc in docs) - 5
    assert counts[0] >= counts[1] > counts[-1] and counts[1] >= least


def test_the_command_that_looks_for_a_threshold_finds_one(nlp: Language, tmp_path: Path) -> None:
    """``spacy find-threshold`` tries thresholds from 0 to 1."""
    nlp.to_disk(tmp_path / "model")
    DocBin(docs=[one.reference for one in examples(nlp)]).to_disk(tmp_path / "dev.spacy")
    best, score, tried = find_threshold(
        str(tmp_path / "model"),
        tmp_path / "dev.spacy",
        pipe_name="tree_spancat",
        threshold_key="threshold",
        scores_key="spans_sc_f",
        n_trials=3,
    )
    assert sorted(tried) == [0.0, 0.5, 1.0] and (best, score) == (0.5, 1.0)
    assert tried[0.0] < 1.0


def test_stored_probabilities_are_those_of_all_spans(nlp: Language) -> None:
    doc = nlp(FIRST)
    (structure,) = doc._.latent["tree_spancat"].spans
    assert structure.kind == "phrases" and structure.labels == ("NP", "PP")
    assert structure.probabilities is not None
    assert len(structure.probabilities) >= len(structure.decoded)
    assert ((structure.probabilities >= 0.01) & (structure.probabilities <= 1.0001)).all()
    likely = doc._.latent["tree_spancat"].brackets(threshold=0.5)
    assert {(b.start, b.end, b.name) for b in likely} == set(found(doc))


def test_the_gradient_of_the_model_is_that_of_its_loss() -> None:
    """The derivative of the loss along a random direction equals a finite difference.

    The direction has all weights above the embedder.
    """
    nlp = trained(3)
    spans: Any = nlp.get_pipe("tree_spancat")
    model, batch = spans.model, examples(nlp)
    docs = [one.predicted for one in batch]
    nodes = [(model.get_ref("pairs"), name) for name in ("weight", "bias", "width")]
    nodes += [(model.get_ref("ends"), name) for name in ("W", "b")]
    drawn = np.random.default_rng(0)
    along = [drawn.normal(size=node.get_param(name).shape) for node, name in nodes]
    scores, backprop = model.begin_update(docs)
    backprop(spans.get_loss(batch, scores)[1])
    expected = sum((node.get_grad(name) * d).sum() for (node, name), d in zip(nodes, along))
    start = [np.array(node.get_param(name)) for node, name in nodes]

    def loss(size: float) -> float:
        for (node, name), value, direction in zip(nodes, start, along):
            node.set_param(name, (value + size * direction).astype("float32"))
        return spans.get_loss(batch, model.predict(docs))[0]

    assert (loss(1e-3) - loss(-1e-3)) / 2e-3 == pytest.approx(expected, rel=2e-2)


def test_a_listener_trains_beside_an_empty_doc() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16}
    nlp.add_pipe("tree_spancat", config={"model": {"tok2vec": listener, "hidden_width": 16}})
    optimizer = initialized(nlp, sample=examples(nlp))
    empty = Example(nlp.make_doc(""), nlp.make_doc(""))
    first, *rest = examples(nlp)
    for batch in ([empty, first, *rest], [first, empty, *rest], [first, *rest, empty]):
        assert step(nlp, batch, optimizer)["tree_spancat"] > 0


def test_without_labels_it_does_not_keep_a_shared_embedder_from_learning() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16}
    nlp.add_pipe("tagger", config=stock("tagger", listener))
    nlp.add_pipe("tree_spancat", config={"spans_key": "none", "model": {"tok2vec": listener}})
    tagged = [
        Example.from_dict(nlp.make_doc(text), {"tags": ["A", "B"]}) for text in ("a b", "c d")
    ]
    with pytest.warns(LatentWarning, match="span"):
        optimizer = initialized(nlp, sample=tagged)
    before = nlp.get_pipe("tok2vec").model.to_bytes()  # type: ignore[union-attr]
    # The tagger's output weights start at zero, and so does the gradient below them.
    for _ in range(2):
        step(nlp, tagged, optimizer)
    assert nlp.get_pipe("tok2vec").model.to_bytes() != before  # type: ignore[union-attr]


# ---------------------------------------------------------------- gold spans


def loss_of(nlp: Language, one: Example) -> float:
    """Return the loss of an example, without a step of training."""
    spans: Any = nlp.get_pipe("tree_spancat")
    return spans.get_loss([one], spans.model.predict([one.predicted]))[0]


def test_spans_that_cross_are_left_out_with_a_warning() -> None:
    nlp = pipeline()
    initialized(nlp, sample=examples(nlp))
    crossing = [(0, 2, "NP"), (1, 3, "NP"), (2, 4, "NP")]
    with pytest.warns(LatentWarning, match=r"1.*'dog in'"):
        lost = loss_of(nlp, example(nlp, "the dog in the park", crossing))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # The warning is given once. The span that crosses two others is left out.
        again = loss_of(nlp, example(nlp, "the dog in the park", crossing))
        kept = loss_of(nlp, example(nlp, "the dog in the park", crossing[::2]))
    assert lost == again == pytest.approx(kept)
    # The warning at initialization counts the omitted spans of all training data.
    data = [("the dog in the park", crossing), *NESTED, ("a cat in a park", crossing)]
    with pytest.warns(LatentWarning, match=r"\b2\b"):
        initialized(pipeline(), sample=[example(nlp, *one) for one in data])


@pytest.mark.parametrize(
    ("max_width", "max_length", "message"),
    [(3, 128, "4 tokens.*max_width.*3"), (None, 3, "sentence")],
)
def test_spans_that_no_tree_has_room_for(
    max_width: int | None, max_length: int, message: str
) -> None:
    getter = {"@misc": "spacy-latent.DocSpans.v1", "max_length": max_length}
    nlp = pipeline({**MODEL, "max_width": max_width, "span_getter": getter})
    initialized(nlp, sample=examples(nlp))
    with pytest.warns(LatentWarning, match=message):
        lost = loss_of(nlp, example(nlp, "the dog ran in the park", [(1, 5, "NP"), (0, 1, "NP")]))
    kept = loss_of(nlp, example(nlp, "the dog ran in the park", [(0, 1, "NP")]))
    assert lost == pytest.approx(kept)


def test_no_span_begins_or_ends_with_white_space() -> None:
    nlp = trained(annotate="probabilities", probability_threshold=0.0)
    texts = [" ", "the dog  ", "\n\nthe dog in the park ran", "the dog  in the park", FIRST]
    for doc in [*nlp.pipe(texts), nlp(texts[2])]:
        spans = [*doc._.latent["tree_spancat"].brackets(), *doc.spans[KEY]]
        assert len(doc.spans[KEY]) > 0 or doc.text == " "
        ends = [token for span in spans for token in (doc[span.start], doc[span.end - 1])]
        assert not any(token.is_space for token in ends)
    # White space inside of a span does not shorten it.
    assert found(nlp(texts[3]))[0] == (0, 6, "NP")
    with pytest.warns(LatentWarning, match="'the dog  '"):
        lost = loss_of(nlp, example(nlp, texts[1], [(0, 3, "NP"), (0, 2, "NP")]))
    assert lost == pytest.approx(loss_of(nlp, example(nlp, texts[1], [(0, 2, "NP")])))


def test_a_bound_on_the_width_holds() -> None:
    nlp = trained(model={**MODEL, "max_width": 2}, data=[NESTED[1]], threshold=1e-9)
    doc = nlp("a cat saw the dog in the park")
    assert {end - start for start, end, _ in found(doc)} == {1, 2}


def test_each_sentence_has_its_own_tree(nlp: Language) -> None:
    words = FIRST.split()
    both = Doc(nlp.vocab, words=words * 2, sent_starts=[True, *[False] * 5] * 2)
    alone = found(nlp(Doc(nlp.vocab, words=words)))
    spans: Any = nlp.get_pipe("tree_spancat")
    predicted = spans.predict([both])[0]
    assert [(piece.start, piece.end) for piece in predicted] == [(0, 6), (6, 12)]
    pieces = [[(one.start, one.end) for one in piece.chosen] for piece in predicted]
    assert all(piece.chosen for piece in predicted) and alone
    assert all(end <= 6 for _, end in pieces[0]) and all(start >= 6 for start, _ in pieces[1])


def test_spans_that_the_tokens_do_not_fit_are_left_out() -> None:
    nlp = pipeline()
    initialized(nlp, sample=examples(nlp))
    reference = Doc(nlp.vocab, words=["the", "dog", "s", "ran"], spaces=[True, False, True, False])
    reference.spans[KEY] = [Span(reference, 0, 2, label="NP")]
    misaligned = Example(Doc(nlp.vocab, words=["the", "dogs", "ran"]), reference)
    with pytest.warns(LatentWarning, match="fit"):
        lost = loss_of(nlp, misaligned)
    assert lost == pytest.approx(loss_of(nlp, example(nlp, "the dogs ran", [])))


def test_a_span_without_tokens_is_left_out_for_that_reason() -> None:
    nlp = pipeline()
    initialized(nlp, sample=examples(nlp))
    with pytest.warns(LatentWarning, match="'the dogs ran'"):
        lost = loss_of(nlp, example(nlp, "the dogs ran", [(2, 2, "NP"), (0, 2, "NP")]))
    assert lost == pytest.approx(loss_of(nlp, example(nlp, "the dogs ran", [(0, 2, "NP")])))


def test_a_span_may_have_labels_that_were_seen_together() -> None:
    both = [("a cat", [(0, 2, "NP"), (0, 2, "SUBJ")]), ("the dog ran", [(0, 2, "NP")])]
    nlp = trained(data=both)
    spans: Any = nlp.get_pipe("tree_spancat")
    assert spans.labels == ("NP", "SUBJ")
    assert spans.label_data == ["NP", "SUBJ", ["NP", "SUBJ"]]
    assert found(nlp("a cat")) == both[0][1] and found(nlp("the dog ran")) == both[1][1]
    again = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert found(again("a cat")) == both[0][1]


def test_labels_not_seen_together_count_as_either() -> None:
    nlp = pipeline()
    initialized(nlp, sample=examples(nlp))
    spans: Any = nlp.get_pipe("tree_spancat")
    pairs = spans.model.get_ref("pairs")
    pairs.set_param("weight", np.zeros_like(pairs.get_param("weight")))
    with pytest.warns(LatentWarning, match="NP, PP"):
        loss = loss_of(nlp, example(nlp, "a cat", [(0, 2, "NP"), (0, 2, "PP")]))
    # The weights are 0, so the three classes of each of the three spans are equally likely. Two
    # classes of the whole span agree with the annotation.
    assert loss == pytest.approx(np.log(3**3 / 2), rel=1e-5)
    assert spans.add_label_set(["PP", "NP"]) == 1 and spans.add_label_set(["NP", "PP"]) == 0
    loss = loss_of(nlp, example(nlp, "a cat", [(0, 2, "NP"), (0, 2, "PP")]))
    assert loss == pytest.approx(np.log(4**3), rel=1e-5)


# ---------------------------------------------------------------- labels


def test_labels_may_be_added_and_what_was_learned_stays() -> None:
    nlp = trained()
    spans: Any = nlp.get_pipe("tree_spancat")
    before = spans.model.predict([nlp.make_doc(FIRST)]).scores[0]
    sure = nlp(FIRST).spans[KEY].attrs["scores"]
    assert spans.add_label("NP") == 0 and spans.add_label("VP") == 1
    after = spans.model.predict([nlp.make_doc(FIRST)]).scores[0]
    np.testing.assert_allclose(after[:3], before, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(nlp(FIRST).spans[KEY].attrs["scores"], sure, atol=1e-6)
    optimizer = nlp.resume_training()
    # Texts without this label do not raise its probability.
    nlp.update(examples(nlp), sgd=optimizer)
    assert {label for *_, label in found(nlp("ran fast in the park"))} <= {"NP", "PP"}
    batch = [*examples(nlp), example(nlp, "ran fast", [(0, 2, "VP")])]
    learn(nlp, batch, 60, optimizer)
    assert found(nlp("ran fast")) == [(0, 2, "VP")] and found(nlp(FIRST)) == NESTED_FIRST
    again = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert found(again("ran fast")) == [(0, 2, "VP")]


def test_labels_given_are_those_used_and_an_unknown_one_is_refused() -> None:
    nlp = pipeline()
    labels = ["NP", "X", ["NP", "X"]]
    nlp.config["initialize"]["components"]["tree_spancat"] = {"labels": labels}
    nlp.initialize(lambda: examples(nlp))
    spans: Any = nlp.get_pipe("tree_spancat")
    assert spans.labels == ("NP", "X") and spans.label_data == labels
    with pytest.raises(LatentError, match=r"'PP'.*NP, X"):
        nlp.update(examples(nlp))


def test_without_labels_nothing_is_found_and_nothing_breaks() -> None:
    nlp = pipeline()
    blank = example(nlp, "no spans", [])
    optimizer = nlp.initialize(lambda: [blank])
    assert nlp.update([blank], sgd=optimizer)["tree_spancat"] == 0.0
    assert found(nlp("nothing here")) == []
    with pytest.raises(LatentError, match="'NP'"):
        nlp.update(examples(nlp), sgd=optimizer)


def test_other_keys_of_spans() -> None:
    nlp = pipeline(spans_key="phrases")
    batch = []
    for one in examples(nlp):
        one.reference.spans["phrases"] = one.reference.spans.pop(KEY)
        batch.append(one)
    optimizer = initialized(nlp, sample=batch)
    learn(nlp, batch, 60, optimizer)
    assert nlp.evaluate(batch)["spans_phrases_f"] == 1.0
    assert KEY not in nlp(FIRST).spans


# ---------------------------------------------------------------- bad input, and long input


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"threshold": -0.1}, "threshold"),
        ({"spans_key": ""}, "spans_key"),
        ({"annotate": "all"}, "annotate"),
        ({"probability_threshold": 2.0}, "probability_threshold"),
        ({"model": {**MODEL, "hidden_width": 0}}, "hidden_width"),
        ({"model": {**MODEL, "max_width": 0}}, "max_width"),
        (
            {"model": {**MODEL, "span_getter": {"@misc": "spacy-latent.PairSpans.v1"}}},
            "pairs.*SentenceSpans",
        ),
        (
            {"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": TOK2VEC}},
            "TreeSpanClassifier",
        ),
    ],
)
def test_impossible_settings_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(LatentError, match=message):
        pipeline(**config)


def test_a_span_getter_may_give_nothing() -> None:
    nlp = pipeline()
    optimizer = initialized(nlp, sample=examples(nlp))
    spans: Any = nlp.get_pipe("tree_spancat")
    spans.model.attrs["span_getter"] = lambda docs: [[] for _ in docs]
    with pytest.warns(LatentWarning, match="left out"):
        assert nlp.update(examples(nlp), sgd=optimizer)["tree_spancat"] == 0.0
    assert found(nlp(FIRST)) == []


def test_a_long_doc_is_split(nlp: Language) -> None:
    doc = Doc(nlp.vocab, words=FIRST.split() * 100)
    with pytest.warns(LatentWarning, match="max_length=128"):
        nlp(doc)
    assert len(doc._.latent["tree_spancat"].spans) == 5
    assert max(end for _, end, _ in found(doc)) > 590


def test_it_may_be_pickled(nlp: Language) -> None:
    again = pickle.loads(pickle.dumps(nlp.get_pipe("tree_spancat")))
    assert found(again(nlp.make_doc(FIRST))) == NESTED_FIRST


def test_it_is_shown_with_all_probabilities(nlp: Language) -> None:
    from spacy_latent.annotations import Stored, to_json
    from spacy_latent.pipeline.inspection import inspect_pipe
    from spacy_latent.visualize import render
    from spacy_latent.visualize.terminal import format_annotation

    spans: Any = nlp.get_pipe("tree_spancat")
    spans.cfg["annotate"] = "map"
    ((doc, _),) = inspect_pipe(nlp, [nlp.make_doc(FIRST)], stored=Stored("probabilities", 0.0))
    settings = spans.cfg["annotate"], spans.cfg["threshold"], spans.cfg["probability_threshold"]
    spans.cfg["annotate"] = "probabilities"
    assert settings == ("map", 0.5, 0.01)
    annotation = doc._.latent["tree_spancat"]
    # The prediction does not depend on stored annotations.
    assert found(doc) == NESTED_FIRST and annotation.spans[0].probabilities is not None
    assert annotation.spans[0].probabilities.min() < 0.01 < annotation.brackets()[0].probability
    assert "PP  in the park" in format_annotation(annotation, None)
    assert ">PP" in render(doc, "tree_spancat") and "PP" in render(doc, "tree_spancat", "span")
    shown = to_json(doc, ["tree_spancat"])["tree_spancat"]
    assert [(a, b, label) for a, b, _, label in shown["brackets"]] == NESTED_FIRST


def annotated_for(nlp: Language, *labels: str) -> list[Example]:
    """Return the texts with spans of these labels only, and mark them as annotated for these."""
    made = []
    for text, spans in NESTED:
        own = example(nlp, text, [span for span in spans if span[2] in labels])
        own.reference._.annotated_labels = list(labels)
        made.append(own)
    return made


def test_each_text_teaches_the_labels_that_it_was_annotated_for() -> None:
    nlp = pipeline()
    complete = examples(nlp)
    optimizer = initialized(nlp, sample=complete)
    batch = [*annotated_for(nlp, "NP"), *annotated_for(nlp, "PP")]
    learn(nlp, batch, 60, optimizer)
    assert nlp.evaluate(complete)["spans_sc_f"] == 1.0
    # A span of a label that its text was not annotated for is neither right nor wrong.
    score = build_label_set_scorer_v1(KEY)
    predicted = [
        Example(nlp(one.predicted.copy()), one.reference) for one in annotated_for(nlp, "PP")
    ]
    scores = score(predicted)
    assert scores["spans_sc_p"] == scores["spans_sc_r"] == 1.0
    assert nlp.get_pipe("tree_spancat").score(predicted)["spans_sc_p"] < 1.0  # type: ignore[attr-defined]


def test_debug_finds_scorers_that_know_no_label_sets() -> None:
    def codes(nlp: Language, texts: list[Example]) -> set[str]:
        initialized(nlp, sample=examples(nlp))
        return {found.code for found in find_traps(nlp, texts) if "tree_spancat" in found.text}

    nlp = pipeline()
    assert "label-sets" in codes(nlp, annotated_for(nlp, "NP"))
    assert "label-sets" not in codes(nlp, examples(nlp))
    scorer = {"@scorers": "spacy-latent.label_set_scorer.v1", "spans_key": KEY}
    nlp = pipeline(scorer=scorer)
    assert "label-sets" not in codes(nlp, annotated_for(nlp, "NP"))


def test_a_label_that_is_not_there_is_no_label_of_a_text() -> None:
    nlp = pipeline()
    optimizer = initialized(nlp, sample=examples(nlp))
    with pytest.raises(LatentError, match="'NX'"):
        nlp.update(annotated_for(nlp, "NX"), sgd=optimizer)


def test_a_label_without_any_span_is_told_and_known() -> None:
    nlp = pipeline()
    batch = annotated_for(nlp, "NX")
    with pytest.warns(LatentWarning, match="'NX'"):
        optimizer = initialized(nlp, sample=[*examples(nlp), *batch])
    assert "NX" in nlp.get_pipe("tree_spancat").labels  # type: ignore[attr-defined]
    assert np.isfinite(nlp.update(batch, sgd=optimizer)["tree_spancat"])
