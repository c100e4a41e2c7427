"""A listener to a missing component is refused at the start of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.util import load_model_from_config

from spacy_latent.errors import LatentError
from spacy_latent.evaluation.mistakes import find_traps
from spacy_latent.pipeline.missing_upstreams import missing_upstreams
from tests.pipeline.small_pipelines import (
    LISTENER,
    TOK2VEC,
    WIDTH,
    examples,
    initialized,
    latent_pipeline,
    step,
    stock,
)

MISSPELT = {**LISTENER, "upstream": "latentencoder"}


def listening(name: str, listener: dict[str, Any], nlp: Language | None = None) -> Language:
    nlp = latent_pipeline() if nlp is None else nlp
    config = {"model": {"tok2vec": listener}}
    nlp.add_pipe(name, config=config if "_" in name else stock(name, listener))
    return nlp


@pytest.mark.parametrize("name", ["textcat", "crf_ner", "latent_textcat"])
def test_a_misspelt_upstream_is_refused_at_initialize(name: str) -> None:
    nlp = listening(name, MISSPELT)
    with pytest.raises(LatentError) as raised:
        initialized(nlp)
    said = str(raised.value)
    assert f"{name} listens to 'latentencoder', and the pipeline has no such component" in said
    assert f"(it has: latent_encoder, {name})" in said
    assert "Did you mean 'latent_encoder'?" in said


@pytest.mark.parametrize(
    "name", ["crf_ner", "latent_textcat", "latent_textcat_multilabel", "latent_parser"]
)
def test_our_components_see_it_without_any_encoder(name: str) -> None:
    nlp = listening(name, LISTENER, spacy.blank("en"))
    with pytest.raises(LatentError, match=rf"{name}.*latent_encoder") as raised:
        initialized(nlp)
    assert "Did you mean" not in str(raised.value)


def test_stock_components_without_any_encoder_are_told_at_the_first_step() -> None:
    """No component of this package is in the pipeline, so no check runs at initialization."""
    nlp = listening("textcat", LISTENER, spacy.blank("en"))
    optimizer = initialized(nlp)
    with pytest.raises(LatentError, match="name") as raised:
        step(nlp, examples(nlp), optimizer)
    assert "rehearse" not in str(raised.value)


def test_stock_components_beside_what_is_frozen_are_told_before_training(tmp_path: Path) -> None:
    """Initialization finds the missing component although this package's components are disabled.

    ``spacy train`` disables frozen components in the same way.
    """
    source = latent_pipeline()
    source.add_pipe("crf_ner", config={"model": {"tok2vec": LISTENER}})
    initialized(source)
    source.to_disk(tmp_path)
    config = latent_pipeline("tagger").config.copy()
    taken = {"source": str(tmp_path)}
    config["nlp"]["pipeline"] = ["latent_encoder", "crf_ner", "tagger"]
    config["components"] |= {"latent_encoder": taken, "crf_ner": taken}
    tok2vec = config["components"]["tagger"]["model"]["tok2vec"]
    for upstream in ("encoder", "latent_encoder"):
        tok2vec["upstream"] = upstream
        nlp = load_model_from_config(config, auto_fill=True)
        with nlp.select_pipes(disable=["latent_encoder", "crf_ner"]):
            if upstream == "latent_encoder":
                initialized(nlp)
                continue
            with pytest.raises(LatentError) as raised:
                initialized(nlp)
        said = str(raised.value)
        assert "tagger listens to 'encoder', and the pipeline has no such component" in said
        assert "(it has: the latent encoder latent_encoder)" in said and "rehearse" not in said
        # Without initialization, the first step gives the same message.
        tagger: Any = nlp.get_pipe("tagger")
        with pytest.raises(LatentError, match=r"tagger.*'encoder'"):
            tagger.model.get_ref("tok2vec")([nlp.make_doc("a")], is_train=True)


def test_of_several_encoders_the_one_that_is_meant_is_named() -> None:
    nlp = spacy.blank("en")
    for name in ("syntax", "alignment"):
        nlp.add_pipe("latent_encoder", name=name, config={"model": {"tok2vec": TOK2VEC}})
    listening("textcat", {**LISTENER, "upstream": "syntax"}, nlp)
    listening("tagger", {**LISTENER, "upstream": "alignmnt"}, nlp)
    with pytest.raises(LatentError, match=r"tagger.*alignmnt.*alignment"):
        initialized(nlp)
    nlp.remove_pipe("tagger")
    listening("tagger", {**LISTENER, "upstream": "alignment"}, nlp)
    initialized(nlp)
    assert not list(missing_upstreams(nlp))


def test_who_listens_may_be_added_first_and_the_encoder_be_disabled() -> None:
    nlp = listening("crf_ner", LISTENER, spacy.blank("en"))
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": TOK2VEC}}, first=True)
    initialized(nlp)
    # spacy train initializes with disabled components if these are sourced from other pipelines.
    with nlp.select_pipes(disable=["latent_encoder"]):
        initialized(nlp)


def test_listeners_of_spacy_are_left_to_it() -> None:
    nlp = latent_pipeline("textcat")
    nlp.add_pipe("tok2vec", first=True, config={"model": TOK2VEC})
    wildcard = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "*"}
    listening("tagger", wildcard, nlp)
    initialized(nlp)
    listening("textcat_multilabel", {**wildcard, "upstream": "tok2vek"}, nlp)
    assert not list(missing_upstreams(nlp))


@pytest.mark.parametrize("name", ["crf_ner", "latent_textcat", "latent_parser", "tree_spancat"])
def test_a_tok2vec_is_no_latent_encoder(name: str) -> None:
    """A tok2vec is refused as the upstream of a listener to a latent encoder.

    It would send its vectors in training, but not in prediction.
    """
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    listening(name, {**LISTENER, "upstream": "tok2vec"}, nlp)
    with pytest.raises(LatentError, match=rf"{name}.*'tok2vec'.*spacy\.Tok2VecListener\.v1"):
        initialized(nlp)


def test_an_encoder_does_not_listen_to_itself() -> None:
    nlp = listening("latent_encoder", LISTENER, spacy.blank("en"))
    with pytest.raises(LatentError, match="latent_encoder listens to itself"):
        initialized(nlp)


def test_a_pipeline_that_is_there_already_is_diagnosed() -> None:
    nlp = latent_pipeline("textcat")
    initialized(nlp)
    nlp.rename_pipe("latent_encoder", "shared")
    found = {finding.code: finding.text for finding in find_traps(nlp)}
    assert "(it has: shared, textcat)" in found["no-upstream"]
