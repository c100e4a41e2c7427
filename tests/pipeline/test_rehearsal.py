"""``nlp.rehearse`` with each component, and with components that listen to an encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.training import Example

from spacy_latent.errors import LatentError
from tests.pipeline.small_pipelines import (
    LISTENER,
    TOK2VEC,
    examples,
    initialized,
    latent_pipeline,
    learn,
    stock,
)

REHEARSING = ("crf_ner", "latent_textcat", "latent_textcat_multilabel")
PASSED_BY = ("latent_encoder", "latent_parser", "tree_spancat")
LISTENING = ("textcat", "ner", "parser", "tagger", "crf_ner", "latent_textcat")


def raw(nlp: Language) -> list[Example]:
    texts = ("I like London", "we hate Paris a lot")
    return [Example(nlp.make_doc(text), nlp.make_doc(text)) for text in texts]


def weights(nlp: Language, name: str) -> bytes:
    return nlp.get_pipe(name).model.to_bytes()  # type: ignore[union-attr]


def trained(nlp: Language) -> Any:
    optimizer = initialized(nlp)
    learn(nlp, examples(nlp), 2, optimizer)
    nlp.resume_training(sgd=optimizer)
    # The gradient is 0 as long as the weights equal the teacher's, so take a step.
    nlp.update(examples(nlp), sgd=optimizer)
    return optimizer


def listening(name: str) -> Language:
    if name in REHEARSING:
        nlp = latent_pipeline()
        nlp.add_pipe(name, config={"model": {"tok2vec": LISTENER}})
        return nlp
    return latent_pipeline(name)


@pytest.mark.parametrize("name", [*REHEARSING, *PASSED_BY])
def test_components_rehearse_or_stay_as_they_are(name: str) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe(name, config={"model": {"tok2vec": TOK2VEC}})
    optimizer = trained(nlp)
    before = weights(nlp, name)
    losses = nlp.rehearse(raw(nlp), sgd=optimizer)
    assert (weights(nlp, name) != before) == (name in REHEARSING) == (name in losses)
    assert np.isfinite(list(losses.values())).all()


@pytest.mark.parametrize("name", LISTENING)
def test_who_listens_rehearses_where_the_encoder_has_run(name: str) -> None:
    nlp = listening(name)
    optimizer = trained(nlp)
    with pytest.raises(LatentError, match="latent_encoder"):
        nlp.rehearse(raw(nlp), sgd=optimizer)
    batch = raw(nlp)
    encoder: Any = nlp.get_pipe("latent_encoder")
    list(encoder.pipe([example.predicted for example in batch]))
    before = weights(nlp, name), weights(nlp, "latent_encoder")
    assert nlp.rehearse(batch, sgd=optimizer)[name] > 0
    assert weights(nlp, name) != before[0] and weights(nlp, "latent_encoder") == before[1]
    # Training still works after the error and the rehearsal.
    losses = nlp.update(examples(nlp), sgd=optimizer)
    assert losses["latent_encoder"] > 0


def test_a_copy_of_the_encoder_rehearses_with_its_component() -> None:
    nlp = latent_pipeline("textcat")
    initialized(nlp)
    nlp.replace_listeners("latent_encoder", "textcat", ["model.tok2vec"])
    nlp.remove_pipe("latent_encoder")
    optimizer = nlp.resume_training()
    nlp.update(examples(nlp), sgd=optimizer)
    before = weights(nlp, "textcat")
    assert nlp.rehearse(raw(nlp), sgd=optimizer)["textcat"] > 0
    assert weights(nlp, "textcat") != before


def test_the_recipe_holds_for_a_listener_of_spacy() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": TOK2VEC}})
    architecture = {"@architectures": "spacy.Tok2VecListener.v1", "upstream": "latent_encoder"}
    nlp.add_pipe("textcat", config=stock("textcat", {**architecture, "width": LISTENER["width"]}))
    initialized(nlp)
    optimizer = nlp.resume_training()
    batch = raw(nlp)
    with pytest.raises(ValueError, match=r"E203|E953"):
        nlp.rehearse(batch, sgd=optimizer)
    encoder: Any = nlp.get_pipe("latent_encoder")
    list(encoder.pipe([example.predicted for example in batch]))
    assert "textcat" in nlp.rehearse(batch, sgd=optimizer)


@pytest.mark.parametrize("name", ["latent_textcat", "latent_textcat_multilabel"])
def test_of_a_label_that_was_added_since_nothing_is_rehearsed(name: str) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe(name, config={"model": {"tok2vec": TOK2VEC}})
    optimizer = trained(nlp)
    nlp.get_pipe(name).add_label("new")  # type: ignore[union-attr]
    assert np.isfinite(nlp.rehearse(raw(nlp), sgd=optimizer)[name])
    assert set(nlp("I like London").cats) == {"good", "bad", "new"}
