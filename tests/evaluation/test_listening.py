"""Reports on listeners that would get no vectors, with a remedy, before training fails."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language

from spacy_latent.evaluation.mistakes import find_traps, frozen_without_weights
from spacy_latent.pipeline.diagnostic import Diagnostic
from tests.pipeline.small_pipelines import (
    LISTENER,
    TO_TRANSFORMER,
    TOK2VEC,
    add_transformer,
    examples,
    initialized,
    latent_pipeline,
    save_small_transformer,
    step,
    stock,
)

SHARED = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "tok2vec"}


def add(nlp: Language, name: str, listener: dict[str, Any]) -> None:
    config = {"model": {"tok2vec": copy.deepcopy(listener)}}
    nlp.add_pipe(name, config=stock(name, listener) if "_" not in name else config)


def over_tok2vec(*names: str, **listener: Any) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": copy.deepcopy(TOK2VEC)})
    for name in names:
        add(nlp, name, {**SHARED, **listener})
    return nlp


def found(nlp: Language, **training: Any) -> dict[str, Diagnostic]:
    """Return diagnostics by their code, without notes."""
    initialized(nlp)
    nlp.config["training"] = {**nlp.config["training"], **training}
    return {
        diagnostic.code: diagnostic for diagnostic in find_traps(nlp) if diagnostic.level != "note"
    }


@pytest.mark.parametrize("name", ["crf_ner", "tagger"])
def test_a_frozen_tok2vec_has_to_annotate(name: str) -> None:
    frozen = {"frozen_components": ["tok2vec"]}
    error = found(over_tok2vec(name), **frozen)["frozen-encoder"]
    assert error.level == "error" and f"tok2vec is frozen, and {name}, which listens" in error.text
    assert "Add 'tok2vec' to training.annotating_components" in error.text
    assert "replace_listeners" in error.text
    assert not found(over_tok2vec(name), **frozen, annotating_components=["tok2vec"])
    assert not found(over_tok2vec(name), frozen_components=["tok2vec", name])


@pytest.mark.parametrize("upstream", ["tok2vec", "*"])
def test_who_stands_before_what_it_listens_to(upstream: str) -> None:
    nlp = spacy.blank("en")
    add(nlp, "crf_ner", {**SHARED, "upstream": upstream})
    nlp.add_pipe("tok2vec", config={"model": copy.deepcopy(TOK2VEC)})
    errors = found(nlp)
    assert "crf_ner listens to tok2vec and stands before it" in errors["listener-first"].text
    assert "Put tok2vec first" in errors["listener-first"].text and "no-upstream" not in errors


def test_an_upstream_that_there_is_not() -> None:
    nlp = over_tok2vec("crf_ner", upstream="tok2vecc")
    error = found(nlp)["no-upstream"]
    assert error.level == "error" and "crf_ner listens to 'tok2vecc'" in error.text
    assert "(it has: tok2vec, crf_ner). Did you mean 'tok2vec'?" in error.text
    # The component trains on the vectors that tok2vec writes to docs, which may be intended.
    reads = {"frozen_components": ["tok2vec"], "annotating_components": ["tok2vec"]}
    warning = found(nlp, **reads)["no-upstream"]
    assert warning.level == "warning" and "reads the vectors that tok2vec writes" in warning.text
    step(nlp, examples(nlp), initialized(nlp), exclude=["tok2vec"], annotates=["tok2vec"])
    nlp = spacy.blank("en")
    add(nlp, "tagger", {**SHARED, "upstream": "*"})
    assert (
        'listens to "*", any tok2vec, and the pipeline has none' in found(nlp)["no-upstream"].text
    )


def test_a_listener_of_another_width() -> None:
    error = found(over_tok2vec("crf_ner", width=8))["listener-width"]
    assert "listener of crf_ner has width 8, and tok2vec" in error.text
    assert "vectors of 16 features. Set the listener's width to 16." in error.text


def test_listeners_of_another_kind() -> None:
    taken = found(over_tok2vec("tagger", **{"@architectures": LISTENER["@architectures"]}))
    assert 'Use @architectures = "spacy.Tok2VecListener.v1"' in taken["listener-kind"].text
    nlp = over_tok2vec("tagger")
    add(nlp, "crf_ner", {**SHARED, "upstream": "tagger"})
    assert "crf_ner has a listener (tok2vec-listener) to tagger" in found(nlp)["listener-kind"].text


def test_a_tok2vec_that_is_disabled() -> None:
    nlp = over_tok2vec("crf_ner")
    initialized(nlp)
    nlp.disable_pipe("tok2vec")
    assert "listens to tok2vec, which is disabled" in found(nlp)["disabled-upstream"].text


def moved(nlp: Language, **options: Any) -> bool:
    """Return True if two steps of training change the weights of the tok2vec."""
    optimizer, pipe = initialized(nlp), nlp.get_pipe("tok2vec")
    before = pipe.to_bytes()  # type: ignore[attr-defined]
    for _ in range(2):
        step(nlp, examples(nlp), optimizer, **options)
    return before != pipe.to_bytes()  # type: ignore[attr-defined]


def test_a_last_listener_that_is_frozen_keeps_the_tok2vec_from_learning() -> None:
    nlp = over_tok2vec("textcat", "tagger")
    errors = found(nlp, frozen_components=["tagger"])
    assert "tok2vec learns nothing" in errors["last-listener"].text
    assert not moved(nlp, exclude=["tagger"])
    assert not found(nlp, frozen_components=["textcat"]) and moved(nlp, exclude=["textcat"])
    both = found(nlp, frozen_components=["textcat", "tagger"])
    assert [(code, one.level) for code, one in both.items()] == [("frozen-listeners", "warning")]
    # An encoder defers its backward pass until all listeners have sent their gradients.
    nlp = over_tok2vec("latent_encoder", "tagger")
    add(nlp, "textcat", LISTENER)
    assert not found(nlp, frozen_components=["tagger"]) and moved(nlp, exclude=["tagger"])


@pytest.mark.filterwarnings("ignore:No vectors from")
@pytest.mark.parametrize("encoder", [False, True], ids=["tok2vec", "latent_encoder"])
def test_who_annotates_needs_vectors_in_training_too(encoder: bool) -> None:
    nlp = latent_pipeline("tagger") if encoder else over_tok2vec("tagger")
    upstream = nlp.pipe_names[0]
    seen = []

    class Seen:
        def update(self, examples: Any, **options: Any) -> None:
            seen.append([token.tag_ for example in examples for token in example.predicted])

        def __call__(self, doc: Any) -> Any:
            return doc

    optimizer = initialized(nlp)
    for _ in range(40):
        step(nlp, examples(nlp), optimizer)
    Language.factory("tests_seen", func=lambda nlp, name: Seen())
    nlp.add_pipe("tests_seen")
    for annotating in (["tagger"], [upstream, "tagger"]):
        nlp.config["training"] = {**nlp.config["training"], "annotating_components": annotating}
        codes = {one.code for one in find_traps(nlp) if one.level == "warning"}
        assert codes == ({"annotates-without-vectors"} if len(annotating) == 1 else set())
        step(nlp, examples(nlp), optimizer, annotates=annotating)
    # All words get the same tag from vectors of zeros.
    assert len(set(seen[0])) == 1 and len(set(seen[1])) > 1


def test_names_of_components_that_there_are_not() -> None:
    texts = found(
        over_tok2vec("tagger"), frozen_components=["tager"], annotating_components=["tok2vec"]
    )
    assert texts["no-component"].level == "error"
    assert "frozen_components: the pipeline has no component 'tager'" in texts["no-component"].text
    assert "Did you mean tagger?" in texts["no-component"].text
    nlp = over_tok2vec("tagger")
    nlp.config["initialize"] = {**nlp.config["initialize"], "components": {"ner": {}}}
    warning = found(nlp, annotating_components=["tok2vecc"])["no-component"]
    assert warning.level == "warning"
    texts = {one.text for one in find_traps(nlp) if one.code == "no-component"}
    assert any(
        "annotating_components: the pipeline has no component 'tok2vecc'" in t for t in texts
    )
    assert any("[initialize.components]: the pipeline has no component 'ner'" in t for t in texts)


def test_what_is_frozen_and_has_no_weights() -> None:
    nlp = over_tok2vec("tagger", "crf_ner")
    nlp.add_pipe("sentencizer")
    frozen = ["tok2vec", "tagger", "sentencizer"]
    nlp.config["training"] = {**nlp.config["training"], "frozen_components": frozen}
    with nlp.select_pipes(disable=frozen):
        initialized(nlp)
    assert frozen_without_weights(nlp) == ["tok2vec", "tagger"]
    initialized(nlp)
    assert frozen_without_weights(nlp) == []


def test_over_a_transformer(tmp_path: Path) -> None:
    save_small_transformer(tmp_path)
    nlp = spacy.blank("en")
    add_transformer(nlp, tmp_path)
    frozen = {"frozen_components": ["transformer"]}
    add(nlp, "crf_ner", TO_TRANSFORMER)
    nlp.config["training"] = {**nlp.config["training"], **frozen}
    assert frozen_without_weights(nlp) == ["transformer"]
    assert not found(nlp, frozen_components=[]) and not frozen_without_weights(nlp)
    assert "Add 'transformer' to" in found(nlp, **frozen)["frozen-encoder"].text
    assert not found(nlp, **frozen, annotating_components=["transformer"])
    nlp.remove_pipe("crf_ner")
    add(nlp, "crf_ner", {**SHARED, "upstream": "transformer"})
    assert "spacy-transformers.TransformerListener.v1" in found(nlp)["listener-kind"].text
    nlp.remove_pipe("crf_ner")
    # This listener cannot be initialized, since it gets its width from the upstream component.
    add(nlp, "crf_ner", {**TO_TRANSFORMER, "upstream": "transformr"})
    (error,) = (one for one in find_traps(nlp) if one.code == "no-upstream")
    assert "Did you mean 'transformer'?" in error.text
