"""latent_textcat_multilabel with labels that exclude and imply each other."""

from __future__ import annotations

import pickle

import pytest
import spacy
from spacy.language import Language
from spacy.training import Example
from thinc.api import fix_random_seed

from spacy_latent.errors import LatentError
from tests.pipeline.small_pipelines import TOK2VEC, learn

LABELS = ["good", "bad", "crime", "novel"]
CONSTRAINTS = {
    "@misc": "spacy-latent.CategoryConstraints.v1",
    "exclusive": [["good", "bad"]],
    "implied": [["crime", "novel"]],
}
DATA = [
    ("a great crime story", {"good", "crime", "novel"}),
    ("a dull crime story", {"bad", "crime", "novel"}),
    ("a great poem", {"good"}),
    ("a long story", {"novel"}),
]
NAME = "latent_textcat_multilabel"


def pipeline(**config) -> Language:
    fix_random_seed(0)
    nlp = spacy.blank("en")
    scores = {"@misc": "spacy-latent.SparseMAP.v1", "marginalize": True}
    model = {"exclusive_classes": False, "tok2vec": TOK2VEC, "estimator": scores}
    nlp.add_pipe(NAME, config={"model": model, "constraints": CONSTRAINTS, **config})
    return nlp


def examples(nlp: Language, labels: list[str] = LABELS) -> list[Example]:
    return [
        Example.from_dict(
            nlp.make_doc(text), {"cats": {label: float(label in own) for label in labels}}
        )
        for text, own in DATA
    ]


def trained(steps: int = 40) -> Language:
    nlp = pipeline()
    made = examples(nlp)
    optimizer = nlp.initialize(lambda: made)
    optimizer.learn_rate = 0.01
    learn(nlp, made, steps, optimizer)
    return nlp


@pytest.fixture(scope="module")
def nlp() -> Language:
    return trained()


def test_it_learns_and_what_it_says_is_allowed(nlp: Language) -> None:
    for text, own in DATA:
        assert {label for label, score in nlp(text).cats.items() if score > 0.5} == own
    for text in ("", "a great dull crime", "poem", "crime crime crime great bad"):
        cats = nlp(text).cats
        assert cats["good"] + cats["bad"] <= 1 + 1e-6 and cats["crime"] <= cats["novel"] + 1e-6


def test_what_two_constraints_forbid_has_no_gradient() -> None:
    """A state that both constraints rule out does not make the gradient NaN."""
    own = {
        "@misc": "spacy-latent.CategoryConstraints.v1",
        "exclusive": [["cat", "dog"]],
        "implied": [["kitten", "cat", "animal"]],
    }
    nlp = pipeline(constraints=own)
    labels = ("animal", "cat", "dog", "kitten")
    made = [
        Example.from_dict(nlp.make_doc(text), {"cats": {x: float(x in true) for x in labels}})
        for text, true in [("a puppy", ["dog"]), ("a kitten", ["animal", "cat", "kitten"])]
    ]
    optimizer = nlp.initialize(lambda: made)
    optimizer.learn_rate = 0.01
    losses = [nlp.update(made, sgd=optimizer)[NAME] for _ in range(30)]
    assert losses[-1] < losses[0] / 2 and nlp("a puppy").cats["dog"] > 0.5


def test_a_pipeline_that_is_not_initialized_is_saved_and_read() -> None:
    again = pipeline().from_bytes(pipeline().to_bytes())
    again.initialize(lambda: examples(again))
    assert set(again("a text").cats) == set(LABELS)


def test_before_training_too() -> None:
    nlp = pipeline()
    nlp.initialize(lambda: examples(nlp))
    # Each of "good", "bad" and neither has 1/3. One of the three allowed pairs of "crime" and
    # "novel" has no "novel".
    cats = nlp("a text").cats
    assert cats["good"] == cats["bad"] == pytest.approx(1 / 3)
    assert (cats["crime"], cats["novel"]) == pytest.approx((1 / 3, 2 / 3))


def test_a_saved_pipeline_says_the_same(nlp: Language, tmp_path) -> None:
    nlp.to_disk(tmp_path)
    text = "a great crime"
    expected = nlp(text).cats
    again = spacy.load(tmp_path)
    assert again.config["components"][NAME]["constraints"]["implied"] == [["crime", "novel"]]
    assert again(text).cats == expected
    assert pickle.loads(pickle.dumps(nlp))(text).cats == expected
    copied = spacy.blank("en")
    copied.add_pipe(NAME, source=again)
    assert copied(text).cats == expected
    # The model by itself, as explanations run it.
    (scores,) = again.get_pipe(NAME).model.predict([again.make_doc(text)])
    assert scores.tolist() == pytest.approx([expected[label] for label in LABELS])


def test_labels_that_are_not_annotated_are_summed_out() -> None:
    nlp = pipeline()
    made = examples(nlp)
    optimizer = nlp.initialize(lambda: made)
    optimizer.learn_rate = 0.01
    for example in made:
        del example.reference.cats["novel"], example.reference.cats["bad"]
    losses: dict[str, float] = {}
    for _ in range(40):
        nlp.update(made, sgd=optimizer, losses=losses)
    cats = nlp("a great crime story").cats
    assert cats["crime"] > 0.5 and cats["novel"] > 0.5 and cats["bad"] < 0.5


def test_what_breaks_a_constraint_names_the_text(nlp: Language) -> None:
    for own, said in (
        ({"good", "bad"}, "exclusive"),
        ({"crime"}, "it has 'crime' without 'novel', which 'crime' implies"),
    ):
        wrong = {label: float(label in own) for label in LABELS}
        example = Example.from_dict(nlp.make_doc("a wrong text"), {"cats": wrong})
        with pytest.raises(LatentError, match=rf"'a wrong text'.*{said}"):
            nlp.update([example])


def test_labels_that_there_are_not_are_named() -> None:
    nlp = pipeline()
    with pytest.raises(LatentError, match="'novel'"):
        nlp.initialize(lambda: examples(nlp, ["good", "bad", "crime"]))


def test_constraints_that_no_set_satisfies_are_told_before_any_text_is_blamed() -> None:
    constraints = {**CONSTRAINTS, "one_of": [["good", "bad"]]}
    constraints["implied"] = [["crime", "novel"], ["good", "bad"], ["bad", "good"]]
    nlp = pipeline(constraints=constraints)
    with pytest.raises(LatentError) as raised:
        nlp.initialize(lambda: examples(nlp))
    said = str(raised.value)
    assert "one_of ['good', 'bad']" in said and "implied ['bad', 'good']" in said
    # The message names no label outside of the conflict, and no text.
    assert "novel" not in said and "story" not in said


def test_a_label_that_is_added_later_is_free(nlp: Language) -> None:
    again = pickle.loads(pickle.dumps(nlp))
    again.get_pipe(NAME).add_label("poem")
    assert set(again("a great poem").cats) == {*LABELS, "poem"}


def test_numbers_have_no_constraints() -> None:
    with pytest.raises(LatentError, match="labels"):
        pipeline(score_range=[0.0, 1.0])


def test_constraints_are_a_block_that_makes_them() -> None:
    for given, kind in (("good", "str"), ({"@misc": "spacy-latent.KOfN.v1"}, "KOfN")):
        with pytest.raises(LatentError, match=rf"constraints.*{kind}"):
            pipeline(constraints=given)
