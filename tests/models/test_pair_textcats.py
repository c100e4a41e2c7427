"""Behaviour that both classifiers of pairs of texts share."""

from __future__ import annotations

import math

import pytest
import torch
from spacy.tokens import Doc
from spacy.training import Example

from spacy_latent.corpora.text_pairs import make_pair_doc
from spacy_latent.errors import LatentError
from spacy_latent.models.latent_text_classifier import latent_layer, run
from tests.models.pair_pipelines import NAME, PAIRS, docs, examples, misc, pipeline, trained

BOTH = pytest.mark.parametrize("architecture", ["AlignedPairTextCat", "ComposedPairTextCat"])


@BOTH
def test_an_empty_text_gives_the_scores_of_no_words(architecture: str) -> None:
    nlp = trained(pipeline(architecture))
    pairs = [("the dog", ""), ("", "a cat"), ("", ""), *[pair[:2] for pair in PAIRS]]
    made = list(nlp.pipe(make_pair_doc(nlp, *pair) for pair in pairs))
    assert made[0].cats == pytest.approx(made[1].cats) and sum(made[0].cats.values()) > 0.99
    assert made[2].cats == {"same": 0.0, "other": 0.0}
    for doc in made[:3]:
        assert not any(len(span.decoded) for span in doc._.latent[NAME].spans)
    for doc, expected in zip(made[3:], docs(nlp)):
        assert doc.cats == pytest.approx(expected.cats, abs=1e-5)
    half = [Example(make_pair_doc(nlp, "a b", ""), examples(nlp)[0].reference)]
    assert math.isfinite(nlp.update(half)[NAME])


@BOTH
def test_docs_that_are_no_pairs_are_refused_with_advice_and_the_others_go_on(
    architecture: str,
) -> None:
    nlp = trained(pipeline(architecture), steps=1)
    several, overlapping = (make_pair_doc(nlp, "a b", "c d") for _ in range(2))
    several.spans["b"] = [several[2:3], several[3:4]]
    overlapping.spans["b"] = [overlapping[1:4]]
    bad = {
        r"spans\['a'\].*make_pair_doc.*TextPairs": nlp.make_doc("just one text"),
        r"spans\['b'\]": several,
        "overlap|has to end before": overlapping,
    }
    for message, doc in bad.items():
        with pytest.raises(LatentError, match=message):
            nlp(doc)
    failed: list[Doc] = []
    nlp.set_error_handler(lambda name, component, docs, error: failed.extend(docs))
    stream = [make_pair_doc(nlp, "a", "b"), *bad.values(), make_pair_doc(nlp, "c", "d")]
    assert len(list(nlp.pipe(stream))) == 2 and failed == [*bad.values()]


@BOTH
def test_the_loss_of_each_structure_trains_it(architecture: str) -> None:
    settings = {"estimator": misc("SparseMAP", marginalize=True)}
    if architecture == "AlignedPairTextCat":
        settings["structure"] = misc("ManyToOneAlignment")
    nlp = trained(pipeline(architecture, **settings), steps=1)
    model = nlp.get_pipe(NAME).model  # type: ignore[attr-defined]
    found, _ = run(model, [example.predicted for example in examples(nlp)], is_train=True)
    count = found.made.weights.shape[0]
    assert count > 1 and found.logits.shape == (count, len(PAIRS), 2)
    torch.testing.assert_close(found.made.weights.sum(0), torch.ones(len(PAIRS)))
    # Behind an output layer that starts at zero, the scorer learns from the second step on.
    before = {key: value.clone() for key, value in latent_layer(model).scorer.state_dict().items()}
    trained(nlp, steps=2)
    after = latent_layer(model).scorer.state_dict()
    assert any(not torch.equal(value, after[key]) for key, value in before.items())


@BOTH
def test_the_same_seed_gives_the_same_model(architecture: str) -> None:
    estimator = misc("ScoreFunction", num_samples=2, control_variate=misc("MovingAverage"))
    settings = {"estimator": estimator}
    if architecture == "AlignedPairTextCat":
        settings["structure"] = misc("ManyToOneAlignment")
    first, second = (trained(pipeline(architecture, **settings), steps=3) for _ in range(2))
    assert [doc.cats for doc in docs(first)] == [doc.cats for doc in docs(second)]
