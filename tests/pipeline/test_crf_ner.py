"""The component ``crf_ner``: its training data, its annotations and its errors."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from thinc.api import Adam, Config

from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.pipeline.open_tags import open_tags
from tests.pipeline.small_pipelines import (
    TOK2VEC,
    examples,
    initialized,
    learn,
)

MODEL: dict[str, Any] = {"tok2vec": TOK2VEC}


def pipeline(**config: Any) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": MODEL, **config})
    return nlp


def trained(steps: int = 20, **config: Any) -> Language:
    nlp = pipeline(**config)
    optimizer = initialized(nlp)
    learn(nlp, examples(nlp), steps, optimizer)
    return nlp


def entities(doc: Doc) -> list[tuple[str, str]]:
    return [(ent.text, ent.label_) for ent in doc.ents]


@pytest.fixture(scope="module")
def nlp() -> Language:
    return trained(annotate="probabilities", alternatives=3)


@pytest.mark.parametrize("loss", ["crf", "quadratic", "perceptron", "sparsemap"])
def test_each_loss_learns_the_entities(loss: str) -> None:
    nlp = trained(loss=loss, annotate="probabilities", alternatives=2)
    assert nlp.evaluate(examples(nlp))["ents_f"] == 1.0
    doc = nlp("I like London a lot")
    assert entities(doc) == [("London", "GPE")]
    (found,) = doc._.latent["crf_ner"].entities()
    assert (found.start, found.end, found.label) == (2, 3, "GPE") and 0 < found.probability <= 1
    (span,) = doc._.latent["crf_ner"].spans
    assert 1 <= len(span.alternatives) <= 2 and span.alternatives[0][1] > 0


@pytest.mark.parametrize("loss", ["entropic", ["crf"], None])
def test_a_loss_that_does_not_exist_is_an_error_when_saved_and_when_run(loss: Any) -> None:
    nlp = pipeline()
    optimizer = initialized(nlp)
    crf: Any = nlp.get_pipe("crf_ner")
    crf.configure("loss", loss)
    with pytest.raises(LatentError):
        nlp.to_bytes()
    with pytest.raises(LatentError):
        nlp("I like London")
    with pytest.raises(LatentError):
        learn(nlp, examples(nlp), 1, optimizer)


def test_probabilities_of_all_tags_are_stored_and_drawn(nlp: Language) -> None:
    doc = nlp("I like London a lot")
    (span,) = doc._.latent["crf_ner"].spans
    token, tag = span.parts.T  # type: ignore[union-attr]
    totals = np.bincount(token, span.probabilities, minlength=5)
    assert (totals > 0.9).all() and (totals < 1.001).all()
    assert span.labels is not None and span.labels[tag[0]] == "O"
    (drawing,) = doc._.latent["crf_ner"].to_displacy()
    assert "U-GPE" in drawing["spans"][2]["label"]
    (copy,) = DocBin(docs=[doc], store_user_data=True).get_docs(spacy.blank("en").vocab)
    last = len(span.alternatives) - 1
    assert copy._.latent["crf_ner"].entities(last) == doc._.latent["crf_ner"].entities(last)


def test_changed_transitions_change_the_next_prediction(nlp: Language) -> None:
    crf: Any = nlp.get_pipe("crf_ner")
    transitions: Any = crf.model.get_ref("transitions").get_param("transitions")
    before = transitions.copy()
    assert nlp("I like London a lot").ents
    try:
        # No entity can begin: all transitions to tags other than "O" are forbidden.
        transitions[:, 1:] = -1e4
        assert not nlp("I like London a lot").ents
    finally:
        transitions[:] = before
    assert nlp("I like London a lot").ents


def test_the_second_version_of_the_model_multiplies_scores_and_gradients() -> None:
    from spacy_latent.models.crf_tagger import TagScores

    first, second = (
        trained(
            0, model={"@architectures": f"spacy-latent.CrfTagger.v{v}", "hidden_width": 8, **MODEL}
        )
        for v in (1, 2)
    )
    one, other = (nlp.get_pipe("crf_ner").model for nlp in (first, second))  # type: ignore[union-attr]
    for model in (one, other):
        draw = np.random.RandomState(0)
        output, table = model.get_ref("output_layer"), model.get_ref("transitions")
        output.set_param("W", draw.normal(size=output.get_param("W").shape).astype("f"))
        table.set_param("transitions", draw.normal(size=(7, 5)).astype("f"))
    found = []
    for nlp, model in ((first, one), (second, other)):
        scores, backprop = model.begin_update([nlp.make_doc("I like London")])
        backprop(TagScores(np.ones((3, 5), "f"), np.ones((7, 5), "f")))  # type: ignore[arg-type]
        gradients = [
            model.get_ref("output_layer").get_grad("b"),
            model.get_ref("transitions").get_grad("transitions"),
        ]
        found.append([scores.emissions, scores.transitions, *gradients])
    gain = other.attrs["gain"]
    assert gain > 1
    for own, multiplied in zip(*found):
        np.testing.assert_allclose(gain * own, multiplied, rtol=1e-4, atol=1e-5)


def test_transitions_that_are_not_learned_stay_at_zero() -> None:
    for learned in (True, False):
        model = {
            "@architectures": "spacy-latent.CrfTagger.v2",
            "learn_transitions": learned,
            **MODEL,
        }
        nlp = trained(model=model)
        table = nlp.get_pipe("crf_ner").model.get_ref("transitions")  # type: ignore[union-attr]
        assert table.get_param("transitions").any() == learned
        assert nlp.evaluate(examples(nlp))["ents_f"] == 1.0


# ---------------------------------------------------------------- entities set beforehand


def test_entities_that_are_there_stay_and_blocked_tokens_stay_outside(nlp: Language) -> None:
    doc = nlp.make_doc("I like London a lot")
    doc.ents = [Span(doc, 0, 2, label="GPE"), Span(doc, 3, 5, label="OTHER")]
    assert entities(nlp(doc)) == [("I like", "GPE"), ("London", "GPE"), ("a lot", "OTHER")]
    doc = nlp.make_doc("I like London a lot")
    doc.set_ents([], blocked=[doc[2:3]], default="missing")
    assert entities(nlp(doc)) == []
    assert doc[2].ent_iob == 3 and not doc[2].ent_type
    certain = [e for e in nlp(doc)._.latent["crf_ner"].entities() if e.start == 2]
    assert not certain


def test_it_says_which_entities_were_given(nlp: Language) -> None:
    doc = nlp.make_doc("I like London a lot")
    doc.ents = [Span(doc, 0, 2, label="GPE"), Span(doc, 3, 5, label="OTHER")]
    (copy,) = DocBin(docs=[nlp(doc)], store_user_data=True).get_docs(spacy.blank("en").vocab)
    for one in (doc, copy):
        latent = one._.latent["crf_ner"]
        assert [(e.start, e.end, e.given) for e in latent.entities()] == [
            (0, 2, True),
            (2, 3, False),
        ]
        # All alternatives keep the given entity.
        assert latent.entities(alternative=1)[0].given
    assert not any(e.given for e in nlp("I like London")._.latent["crf_ner"].entities())


def test_entities_do_not_cross_sentences_or_begin_with_white_space(nlp: Language) -> None:
    sequences = nlp.get_pipe("crf_ner")
    doc = Doc(nlp.vocab, words=["New", "\n", "York", "London"], sent_starts=[1, 0, 0, 1])
    tags, labels = sequences.tags, sequences.labels  # type: ignore[union-attr]
    mask = open_tags(doc, tags, labels)
    allowed = [{tags[k] for k in np.flatnonzero(row)} for row in mask]
    assert allowed[0] == set(tags)
    assert allowed[1] == {"O", "I-GPE"}
    assert allowed[3] == {"O", "B-GPE", "U-GPE"}
    assert open_tags(nlp.make_doc("New York"), tags, labels) is None


def test_missing_annotation_is_not_taken_for_the_absence_of_entities() -> None:
    """One entity is annotated. Only complete annotation makes the other tokens outside."""
    nlp = pipeline()
    words = ["London", "met", "Paris"]

    def example(complete: bool) -> Example:
        reference = Doc(nlp.vocab, words=words)
        default = "outside" if complete else "missing"
        reference.set_ents([Span(reference, 0, 1, label="GPE")], default=default)
        return Example(Doc(nlp.vocab, words=words), reference)

    def outside() -> Any:
        crf: Any = nlp.get_pipe("crf_ner")
        found = crf.model.predict([Doc(nlp.vocab, words=words)]).emissions
        return found[:, 0] - found[:, 1:].max(1)

    gained = []
    for complete in (True, False):
        optimizer = initialized(nlp, sample=[example(complete)])
        before = outside()
        losses = learn(nlp, [example(complete)], 40, optimizer)
        assert losses["crf_ner"] < 0.5 and outside()[0] < 0
        gained.append(outside()[2] - before[2])
    complete_gain, missing_gain = gained
    assert complete_gain > 1 and missing_gain < complete_gain / 4
    unknown = Example(Doc(nlp.vocab, words=words), Doc(nlp.vocab, words=words))
    assert nlp.update([unknown])["crf_ner"] == pytest.approx(0.0, abs=1e-5)


def test_entities_that_the_tokens_do_not_fit_count_as_missing() -> None:
    nlp = pipeline()
    initialized(nlp)
    reference = Doc(nlp.vocab, words=["New", "York", "ers"], spaces=[True, False, False])
    reference.ents = [Span(reference, 0, 2, label="GPE")]
    misaligned = Example(Doc(nlp.vocab, words=["New", "Yorkers"]), reference)
    crf: Any = nlp.get_pipe("crf_ner")
    assert crf.gold_tags(misaligned).all()
    assert np.isfinite(nlp.update([misaligned])["crf_ner"])


def test_annotation_that_nothing_agrees_with_is_named_once() -> None:
    nlp = pipeline()
    initialized(nlp)
    crf: Any = nlp.get_pipe("crf_ner")
    first, second = examples(nlp)[:2]
    crf.gold_tags = lambda example: __import__("torch").zeros(
        len(example.predicted), len(crf.tags), dtype=bool
    )
    with pytest.warns(LatentWarning, match="London"):
        losses = nlp.update([first])
    assert losses["crf_ner"] == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        assert nlp.update([second])["crf_ner"] == 0.0


# ---------------------------------------------------------------- spans that are wrong


def rejection(nlp: Language, text: str, start: int, end: int, label: str) -> Example:
    """Return a text whose only annotation says that this span is no entity with this label."""
    reference = nlp.make_doc(text)
    reference.spans["wrong"] = [Span(reference, start, end, label=label)]
    return Example(nlp.make_doc(text), reference)


def loss_of(nlp: Language, example: Example) -> float:
    crf: Any = nlp.get_pipe("crf_ner")
    return float(crf.get_loss([example], crf.model.predict([example.predicted]))[0])


def test_a_span_known_to_be_wrong_is_unlearned(tmp_path: Path) -> None:
    nlp = trained(8, incorrect_spans_key="wrong", annotate="probabilities")
    text = "I like London"
    (found,) = nlp(text)._.latent["crf_ner"].entities()
    assert (found.start, found.end, found.label) == (2, 3, "GPE")
    example = rejection(nlp, text, 2, 3, "GPE")
    before = loss_of(nlp, example)
    assert -np.expm1(-before) == pytest.approx(found.probability, abs=1e-4)
    # The key is a setting, so it is saved.
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    optimizer = Adam(0.005)
    learn(again, [rejection(again, text, 2, 3, "GPE")], 60, optimizer)
    assert entities(again(text)) == [] and loss_of(again, example) < min(0.7, before)


def test_accepted_and_rejected_spans_of_one_doc_both_count() -> None:
    nlp = pipeline(incorrect_spans_key="wrong")
    optimizer = initialized(nlp)
    example = rejection(nlp, "London met Paris", 2, 3, "GPE")
    reference = example.reference
    reference.set_ents([Span(reference, 0, 1, label="GPE")], default="missing")
    learn(nlp, [Example(nlp.make_doc("London met Paris"), reference)], 40, optimizer)
    found = entities(nlp("London met Paris"))
    assert ("London", "GPE") in found and ("Paris", "GPE") not in found


def test_of_wrong_spans_that_say_nothing_nothing_is_learned() -> None:
    nlp = trained(3, incorrect_spans_key="wrong")
    # ner does the same. It cannot predict an entity with an unknown label or an empty one.
    for label in ("OTHER", ""):
        assert loss_of(nlp, rejection(nlp, "I like London", 2, 3, label)) == 0.0
    reference = Doc(nlp.vocab, words=["New", "York", "ers"], spaces=[True, False, False])
    reference.spans["wrong"] = [Span(reference, 0, 2, label="GPE")]
    misaligned = Example(Doc(nlp.vocab, words=["New", "Yorkers"]), reference)
    assert loss_of(nlp, misaligned) == 0.0
    unread = trained(3)
    assert loss_of(unread, rejection(unread, "I like London", 2, 3, "GPE")) == 0.0


def test_a_span_said_twice_to_be_wrong_counts_once() -> None:
    nlp = trained(3, incorrect_spans_key="wrong")
    once = rejection(nlp, "I like London", 2, 3, "GPE")
    twice = rejection(nlp, "I like London", 2, 3, "GPE")
    spans = twice.reference.spans["wrong"]
    spans.append(Span(twice.reference, 2, 3, label="GPE"))
    assert len(spans) == 2 and loss_of(nlp, twice) == loss_of(nlp, once) > 0


def test_a_group_of_wrong_spans_that_no_text_has_is_told() -> None:
    nlp = pipeline(incorrect_spans_key="incorect")
    crf: Any = nlp.get_pipe("crf_ner")
    with pytest.warns(LatentWarning, match="'incorect'"):
        nlp.initialize(lambda: examples(nlp))
    crf.cfg["incorrect_spans_key"] = "sc"
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        nlp.initialize(lambda: examples(nlp))
        crf.cfg["incorrect_spans_key"] = "incorect"
        nlp.initialize()


def test_what_is_an_entity_and_a_wrong_span_is_refused() -> None:
    nlp = trained(1, incorrect_spans_key="wrong")
    example = rejection(nlp, "I like London", 2, 3, "GPE")
    example.reference.ents = [Span(example.reference, 2, 3, label="GPE")]
    with pytest.raises(LatentError, match=r"'London'.*'GPE'"):
        nlp.update([example])


# ---------------------------------------------------------------- labels


def test_labels_may_be_added_and_what_was_learned_stays() -> None:
    nlp = trained()
    crf: Any = nlp.get_pipe("crf_ner")
    assert crf.labels == ("GPE",) and crf.label_data == ["GPE"]
    before = crf.model.predict([nlp.make_doc("I like London")])
    assert crf.add_label("GPE") == 0 and crf.add_label("PERSON") == 1
    after = crf.model.predict([nlp.make_doc("I like London")])
    np.testing.assert_allclose(after.emissions[:, :5], before.emissions, atol=1e-6)
    np.testing.assert_array_equal(after.transitions[:5, :5], before.transitions[:5])
    np.testing.assert_array_equal(after.transitions[9:, :5], before.transitions[5:])
    assert entities(nlp("I like London"))[0] == ("London", "GPE")
    optimizer = nlp.resume_training()
    doc = nlp.make_doc("I like Anna")
    example = Example.from_dict(doc, {"entities": [(7, 11, "PERSON")]})
    for _ in range(30):
        nlp.update([example], sgd=optimizer)
        losses = nlp.rehearse(examples(nlp), sgd=optimizer)
    assert losses["crf_ner"] >= 0
    assert entities(nlp("I like Anna")) == [("Anna", "PERSON")]
    assert entities(nlp("I hate Paris")) == [("Paris", "GPE")]
    again = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert entities(again("I like Anna")) == [("Anna", "PERSON")]


@pytest.mark.parametrize("loss", ["crf", "sparsemap"])
def test_an_added_label_changes_no_prediction_until_it_is_learned(loss: str) -> None:
    nlp = trained(loss=loss, annotate="probabilities", alternatives=2)
    texts = ["I like London a lot", "Berlin hates what I said, and is grey", "I like Anna"]

    def found() -> list[Any]:
        stored = [doc._.latent["crf_ner"] for doc in nlp.pipe(texts)]
        return [(each.entities(), [w for _, w in each.spans[0].alternatives]) for each in stored]

    before, crf = found(), nlp.get_pipe("crf_ner")
    for label in ("PERSON", "ORG"):
        crf.add_label(label)  # type: ignore[union-attr]
    assert found() == before and crf.untrained_labels == ("PERSON", "ORG")  # type: ignore[union-attr]
    again = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert entities(again("I like London a lot")) == entities(nlp("I like London a lot"))
    assert again.get_pipe("crf_ner").untrained_labels == ("PERSON", "ORG")  # type: ignore[union-attr]
    # An entity that is on the doc stays, although its label is untrained.
    doc = nlp.make_doc("I like Anna")
    doc.ents = [Span(doc, 2, 3, label="PERSON")]
    assert entities(nlp.get_pipe("crf_ner")(doc)) == [("Anna", "PERSON")]

    optimizer = Adam(0.005)
    # Texts without these labels do not raise their probabilities.
    nlp.update(examples(nlp), sgd=optimizer)
    assert {label for text in texts for _, label in entities(nlp(text))} <= {"GPE"}
    assert crf.untrained_labels == ()  # type: ignore[union-attr]
    anna = {"entities": [(7, 11, "PERSON")]}
    for _ in range(12):
        example = Example.from_dict(nlp.make_doc("I like Anna"), anna)
        nlp.update([*examples(nlp), example], sgd=optimizer)
    assert entities(nlp("I like Anna")) == [("Anna", "PERSON")]
    assert entities(nlp("I like London a lot")) == [("London", "GPE")]


def test_labels_that_are_added_before_training_begin_as_the_others() -> None:
    nlp = trained(0)
    crf: Any = nlp.get_pipe("crf_ner")
    crf.add_label("PERSON")
    scores = crf.model.predict([nlp.make_doc("I like London")])
    assert crf.untrained_labels == () and not scores.emissions.any()
    assert not scores.transitions.any()


def one_label_each(nlp: Language) -> list[Example]:
    """Return two examples, each annotated for one label only."""
    made = []
    for text, word, label in (("Anna went to London", 0, "PERSON"), ("we saw London", 2, "GPE")):
        doc = nlp.make_doc(text)
        doc.ents = [Span(doc, word, word + 1, label=label)]
        doc._.annotated_labels = [label]
        made.append(Example(nlp.make_doc(text), doc))
    return made


@pytest.mark.parametrize("version", [1, 2])
def test_with_incomplete_annotation_each_token_begins_outside(version: int) -> None:
    architecture = f"spacy-latent.CrfTagger.v{version}"
    nlp = pipeline(model={"@architectures": architecture, "hidden_width": 8, **MODEL})
    nlp.initialize(lambda: one_label_each(nlp))
    crf: Any = nlp.get_pipe("crf_ner")

    def shares() -> Any:
        scores = np.exp(crf.model.predict([nlp.make_doc("we saw Anna")]).emissions)
        return scores / scores.sum(1, keepdims=True)

    for labels in (2, 3):
        assert shares().shape == (3, 1 + 4 * labels)
        np.testing.assert_allclose(shares()[:, 0], 0.5, rtol=1e-5)
        np.testing.assert_allclose(shares()[:, 1:], 0.125 / labels, rtol=1e-5)
        crf.add_label("ORG")
    nlp.initialize(lambda: examples(nlp))
    np.testing.assert_allclose(shares(), 1 / shares().shape[1], rtol=1e-5)


def test_without_labels_nothing_is_found_and_nothing_breaks() -> None:
    nlp = pipeline()
    blank = Example(nlp.make_doc("no entities"), nlp.make_doc("no entities"))
    with pytest.warns(LatentWarning, match="crf_ner") as warned:
        optimizer = nlp.initialize(lambda: [blank])
    assert "initialize.components.crf_ner.labels" in str(warned[0].message)
    assert nlp.update([blank], sgd=optimizer)["crf_ner"] == 0.0
    assert entities(nlp("nothing here")) == []
    # With an entity to learn from, a loss of 0 would hide that nothing is learned.
    with pytest.raises(LatentError, match="'GPE'"):
        nlp.update(examples(nlp), sgd=optimizer)
    # The given labels can be learned, so there is no warning.
    given = pipeline()
    given.config["initialize"]["components"] = {"crf_ner": {"labels": ["GPE"]}}
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        given.initialize(lambda: [blank])


@pytest.mark.parametrize("name", ["crf_ner", "tree_spancat", "latent_parser", "latent_textcat"])
def test_labels_given_that_are_none_are_not_said_to_be_missing_in_the_texts(name: str) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe(name, config={"model": MODEL})
    nlp.config["initialize"]["components"] = {name: {"labels": []}}
    if name == "latent_textcat":
        with pytest.raises(LatentError, match="labels"):
            nlp.initialize(lambda: examples(nlp))
        return
    with pytest.warns(LatentWarning, match="labels"):
        nlp.initialize(lambda: examples(nlp))


def test_gold_entities_that_no_prediction_can_have_are_told_once() -> None:
    nlp = trained(0)
    doc = nlp.make_doc("I like New York \n a lot")
    doc[3].is_sent_start = True
    crossing = Example.from_dict(doc, {"entities": [(7, 15, "GPE")]})
    reference = nlp.make_doc(doc.text)
    reference.ents = [Span(reference, 3, 5, label="GPE")]
    spaced = Example(doc, reference)
    missing = Example(doc, nlp.make_doc(doc.text))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        nlp.update([missing, *examples(nlp)])
    with pytest.warns(LatentWarning, match="'New York'"):
        nlp.update([crossing])
    with pytest.warns(LatentWarning, match="white space"):
        nlp.update([spaced])
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        nlp.update([crossing, spaced])


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"loss": "hinge"}, "loss.*'hinge'"),
        ({"annotate": "all"}, "annotate"),
        ({"alternatives": -1}, "alternatives"),
        ({"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": TOK2VEC}}, "CrfTagger.v2"),
        ({"loss": "quadratic", "incorrect_spans_key": "wrong"}, "'crf'"),
        ({"incorrect_spans_key": ""}, "incorrect_spans_key"),
        ({"model": {**MODEL, "hidden_width": 0}}, "hidden_width"),
        ({"model": {**MODEL, "hidden_width": "64"}}, "hidden_width"),
        ({"model": {**MODEL, "gain": 0.0}}, "gain"),
        ({"model": {**MODEL, "window_size": -1}}, "window_size"),
        ({"model": {**MODEL, "maxout_pieces": 0}}, "maxout_pieces"),
    ],
)
def test_impossible_settings_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(LatentError, match=message):
        pipeline(**config)


def test_a_long_doc(nlp: Language) -> None:
    doc = nlp(Doc(nlp.vocab, words=["I", "like", "London", "."] * 2_500))
    found = {ent.start for ent in doc.ents}
    assert found >= set(range(2, 10_000, 4))


CONFIGS = Path(__file__).parents[2] / "configs"


def test_the_recipes_fill_without_a_change() -> None:
    for name in ("ner_crf", "ner_baseline"):
        config = Config().from_disk(CONFIGS / f"{name}.cfg", interpolate=False)
        filled = spacy.util.load_model_from_config(config, auto_fill=True).config
        assert filled["components"] == config.interpolate()["components"]


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(CONFIGS.glob("*.cfg")) if '"crf_ner"' in path.read_text("utf8")],
    ids=lambda path: path.stem,
)
def test_recipes_name_all_settings_of_the_component(path: Path) -> None:
    config = Config().from_disk(path, interpolate=False)
    filled = spacy.util.load_model_from_config(config, auto_fill=True).config
    for name, given in config.interpolate()["components"].items():
        if given["factory"] == "crf_ner":
            assert filled["components"][name] == given


def test_a_latent_layer_inside_is_shown_beside_the_tags() -> None:
    from spacy_latent.pipeline.inspection import choose_components, inspect_docs, inspect_pipe
    from tests.pipeline.small_pipelines import INLINE

    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"tok2vec": INLINE}})
    initialized(nlp)
    names = choose_components(nlp, None, annotating=True)
    ((doc, _),) = inspect_pipe(nlp, [nlp.make_doc("I like London")], components=names)
    assert {name: doc._.latent[name].spans[0].kind for name in doc._.latent} == {
        "crf_ner": "tags",
        "crf_ner#2": "heads",
    }
    assert doc._.latent["crf_ner"].spans[0].probabilities is not None
    assert nlp.get_pipe("crf_ner").cfg["annotate"] == "map"  # type: ignore[union-attr]
    (doc,) = inspect_docs(nlp, [nlp("I like London")])
    assert set(doc._.latent) == {"crf_ner", "crf_ner#2"}


def test_a_blocked_token_of_the_reference_is_outside() -> None:
    nlp = pipeline()
    initialized(nlp)
    reference = nlp.make_doc("New York")
    reference.set_ents([], blocked=[reference[0:1]], default="missing")
    crf: Any = nlp.get_pipe("crf_ner")
    allowed = crf.gold_tags(Example(nlp.make_doc("New York"), reference))
    assert allowed[0].tolist() == [True, False, False, False, False] and allowed[1].all()
