"""Properties that all components share.

Training reaches all weights and is reproducible. Predictions depend on the doc alone, and are the
same after saving and loading. Other tests are of errors of single docs, and of shared embedders.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from confection import ConfigValidationError
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.util import raise_error
from thinc.api import Config

from spacy_latent.annotations import to_json
from spacy_latent.errors import LatentError
from tests.pipeline.small_pipelines import (
    LISTENER,
    TOK2VEC,
    copied_weights,
    examples,
    initialized,
    latent_pipeline,
    learn,
    moved,
    step,
    stored,
    weights_of,
)

# Each component, and a label of its training texts.
LABELS = {
    "crf_ner": "GPE",
    "tree_spancat": "GPE",
    "latent_parser": "ROOT",
    "latent_textcat": "good",
    "latent_textcat_multilabel": "good",
}
# Methods that return the parts of a structure, for the components that have one.
READERS = {"crf_ner": "entities", "tree_spancat": "brackets", "latent_parser": "dependencies"}
EACH = pytest.mark.parametrize("name", LABELS)
TO_TOK2VEC = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16}
TEXTS = ["I like London " * 20, "I hate Paris", "", "Berlin is very grey", " ", "one"]


def pipeline(
    name: str,
    tok2vec: dict[str, Any] = TOK2VEC,
    upstream: str = "",
    number: int | None = None,
) -> Language:
    """Return a pipeline of the component.

    Args:
        upstream: Name of the component to whose vectors it listens.
        number: Number of outputs in the config.
    """
    nlp = latent_pipeline() if upstream == "latent_encoder" else spacy.blank("en")
    if upstream == "tok2vec":
        nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    settings = {"annotate": "probabilities", "alternatives": 2}
    if name == "tree_spancat":
        del settings["alternatives"]
    nlp.add_pipe(name, config={"model": {"tok2vec": tok2vec, "nO": number}, **settings})
    return nlp


def trained(name: str, steps: int) -> Language:
    nlp = pipeline(name)
    optimizer = initialized(nlp)
    learn(nlp, examples(nlp), steps, optimizer)
    return nlp


@pytest.fixture(scope="module")
def made() -> Callable[[str], Language]:
    """A function that returns the trained pipeline of a component. Tests do not change it."""
    known: dict[str, Language] = {}

    def find(name: str) -> Language:
        if name not in known:
            known[name] = trained(name, 20)
            assert says_something(known[name]("I hate Paris"))
        return known[name]

    return find


def says_something(doc: Doc) -> bool:
    spans = [*doc.ents, *doc.spans.get("sc", ())]
    return bool(spans or doc.cats or doc.has_annotation("DEP"))


def written(doc: Doc) -> list[Any]:
    """Return all annotations of a component on a doc, except probabilities."""
    spans = [(span.start, span.end, span.label_) for span in doc.spans.get("sc", ())]
    structures = [
        (span.start, span.end, span.decoded.tolist())
        for found in doc._.latent.values()
        for span in found.spans
    ]
    return [
        [(ent.start, ent.end, ent.label_) for ent in doc.ents],
        spans,
        list(doc.cats),
        [(token.head.i, token.dep_, token.is_sent_start) for token in doc],
        structures,
    ]


def probabilities(doc: Doc) -> list[float]:
    found = [*doc.cats.values()]
    if "sc" in doc.spans:
        found += doc.spans["sc"].attrs["scores"].tolist()
    for name, latent in doc._.latent.items():
        if name in READERS:
            found += [part.probability for part in getattr(latent, READERS[name])()]
        for span in latent.spans:
            found += [weight for _, weight in span.alternatives]
    return found


def check_same(own: Doc, other: Doc, tolerance: float = 0.0) -> None:
    assert written(own) == written(other)
    assert probabilities(own) == pytest.approx(probabilities(other), rel=0, abs=tolerance)


@EACH
def test_updates_reach_every_weight(name: str) -> None:
    nlp = pipeline(name)
    optimizer = initialized(nlp)
    model = nlp.get_pipe(name).model  # type: ignore[union-attr]
    before = copied_weights(model)
    for _ in range(3):
        nlp.update(examples(nlp), sgd=optimizer, drop=0.2)
    assert moved(before, model) == list(before)
    assert all(np.isfinite(value).all() for value in weights_of(model).values())


@EACH
def test_a_number_of_outputs_in_the_config_is_that_of_the_labels(name: str, tmp_path: Path) -> None:
    """A component sets it. With a wrong number the trained pipeline could not be loaded again."""
    nlp = pipeline(name)
    initialized(nlp)
    right = nlp.get_pipe(name).model.get_dim("nO")  # type: ignore[union-attr]
    for number in (0, right - 1, right + 1):
        nlp = pipeline(name, number=number)
        with pytest.raises(LatentError, match=f"nO is {number} .* need {right}"):
            initialized(nlp)
    nlp = pipeline(name, number=right)
    learn(nlp, examples(nlp), 3, initialized(nlp))
    for loaded in stored(nlp, tmp_path):
        check_same(loaded(TEXTS[0]), nlp(TEXTS[0]))
    pipe: Any = loaded.get_pipe(name)
    labels = pipe.labels
    assert pipe.add_label(labels[0]) == 0
    with pytest.raises(LatentError, match=f"nO is {right} "):
        pipe.add_label("a new label")
    assert pipe.labels == labels
    # As the message says.
    config = Config().from_disk(tmp_path / "config.cfg", interpolate=False)
    config["components"][name]["model"]["nO"] = None
    config.to_disk(tmp_path / "config.cfg")
    free: Any = spacy.load(tmp_path)
    assert free.get_pipe(name).add_label("a new label") == 1
    free.to_disk(tmp_path / "more")
    assert "a new label" in spacy.load(tmp_path / "more").get_pipe(name).labels  # type: ignore[attr-defined]


@EACH
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    first, second = (trained(name, 3).to_bytes(exclude=["vocab"]) for _ in range(2))
    assert first == second


@EACH
def test_neither_batch_nor_order_change_a_prediction(
    name: str, made: Callable[[str], Language]
) -> None:
    nlp = made(name)
    together = list(nlp.pipe(TEXTS))
    backward = list(nlp.pipe(TEXTS[::-1], batch_size=2))[::-1]
    for own, other, text in zip(together, backward, TEXTS):
        check_same(own, other, 1e-6)
        check_same(own, nlp(text), 1e-6)


@EACH
def test_what_is_written_survives_bytes_and_doc_bin(
    name: str, made: Callable[[str], Language]
) -> None:
    docs, blank = list(made(name).pipe(TEXTS)), spacy.blank("en").vocab
    bins = DocBin(docs=docs, store_user_data=True).get_docs(blank)
    for doc, *others in zip(docs, (Doc(blank).from_bytes(doc.to_bytes()) for doc in docs), bins):
        assert len(doc._.latent[name].spans) == bool(len(doc))
        for other in others:
            check_same(doc, other)
            assert to_json(other, [name]) == to_json(doc, [name])


@EACH
def test_disk_bytes_and_pickle_give_the_same_pipeline(
    name: str, made: Callable[[str], Language], tmp_path: Path
) -> None:
    nlp = made(name)
    for again in stored(nlp, tmp_path):
        assert again.get_pipe(name).label_data == nlp.get_pipe(name).label_data  # type: ignore[union-attr]
        for text in TEXTS:
            check_same(again(text), nlp(text))


@EACH
def test_a_doc_whose_scores_are_not_finite_goes_to_the_error_handler_alone(
    name: str, made: Callable[[str], Language]
) -> None:
    nlp, failed = made(name), []
    embedder = nlp.get_pipe(name).model.get_ref("tok2vec")  # type: ignore[union-attr]
    real = embedder._func

    def broken(model: Any, docs: list[Doc], is_train: bool) -> Any:
        rows, backprop = real(model, docs, is_train)
        if any(doc.text == "bad one" for doc in docs):
            rows = [np.full_like(own, np.nan) for own in rows]
        return rows, backprop

    nlp.set_error_handler(lambda name, pipe, docs, error: failed.extend(doc.text for doc in docs))
    embedder._func = broken
    try:
        kept = [doc.text for doc in nlp.pipe(["I like London", "bad one", "I hate Paris"])]
    finally:
        embedder._func = real
        nlp.set_error_handler(raise_error)
    assert kept == ["I like London", "I hate Paris"] and failed == ["bad one"]


# ---------------------------------------------------------------- shared embedders


@EACH
@pytest.mark.parametrize("upstream", ["tok2vec", "latent_encoder"])
def test_it_trains_a_shared_embedder_and_takes_it_along(
    name: str, upstream: str, tmp_path: Path
) -> None:
    nlp = pipeline(name, LISTENER if upstream == "latent_encoder" else TO_TOK2VEC, upstream)
    optimizer = initialized(nlp)
    losses = [step(nlp, examples(nlp), optimizer) for _ in range(30)]
    assert 0 <= losses[-1][name] < losses[0][name] and losses[1][upstream] > 0
    docs = [nlp(text) for text in TEXTS]
    assert says_something(docs[1])
    assert name in docs[1]._.latent and (upstream == "latent_encoder") == (
        "latent_encoder" in docs[1]._.latent
    )
    nlp.to_disk(tmp_path)
    for doc, text in zip(docs, TEXTS):
        check_same(spacy.load(tmp_path)(text), doc)
    if upstream == "latent_encoder":
        return
    nlp.replace_listeners("tok2vec", name, ["model.tok2vec"])
    other = spacy.blank("en")
    other.add_pipe(name, source=nlp)
    for doc, text in zip(docs, TEXTS):
        check_same(other(text), doc, 1e-6)
    other.to_disk(tmp_path / "other")
    other = spacy.load(tmp_path / "other")
    frozen = other.to_bytes()
    other.update(examples(other), exclude=[name], annotates=[name])
    assert other.to_bytes() == frozen
    optimizer = other.resume_training()
    assert np.isfinite(other.update(examples(other), sgd=optimizer)[name])


@EACH
def test_a_shared_embedder_learns_while_its_first_listener_is_excluded(name: str) -> None:
    nlp = pipeline(name, TO_TOK2VEC, "tok2vec")
    tagger = {"@architectures": "spacy.Tagger.v2", "tok2vec": TO_TOK2VEC}
    nlp.add_pipe("tagger", before=name, config={"model": tagger})
    optimizer = initialized(nlp)
    models = [nlp.get_pipe(one).model for one in ("tok2vec", "tagger")]  # type: ignore[union-attr]
    embedder, excluded = map(copied_weights, models)
    losses = [step(nlp, examples(nlp), optimizer, exclude=["tagger"]) for _ in range(3)]
    assert losses[-1][name] < losses[0][name]
    assert moved(embedder, models[0]) and not moved(excluded, models[1])


# ---------------------------------------------------------------- labels and bad input


@EACH
def test_labels_given_are_those_used_and_an_unknown_one_is_refused(name: str) -> None:
    nlp = pipeline(name)
    given = ["X", "ROOT"] if name == "latent_parser" else ["X", "Y"]
    nlp.config["initialize"]["components"][name] = {"labels": given}
    nlp.initialize(lambda: examples(nlp))
    # The label of roots comes first.
    expected = ("ROOT", "X") if name == "latent_parser" else ("X", "Y")
    assert nlp.get_pipe(name).labels == expected  # type: ignore[union-attr]
    if "textcat" not in name:
        with pytest.raises(LatentError, match=r"'s'" if name == "latent_parser" else "'GPE'.*X, Y"):
            nlp.update(examples(nlp))


@EACH
def test_what_was_never_initialized_says_so(name: str) -> None:
    for add_labels in (False, True):
        nlp = pipeline(name)
        if add_labels:
            nlp.get_pipe(name).add_label("X")  # type: ignore[union-attr]
        with pytest.raises(ValueError, match=rf"E109.*'{name}'.*initialize"):
            nlp("nothing here")


@EACH
def test_what_was_never_initialized_says_so_in_an_update(name: str) -> None:
    nlp = pipeline(name)
    texts = examples(nlp)
    for label in ("GPE", "good", "bad", *{token.dep_ for one in texts for token in one.reference}):
        if label:
            nlp.get_pipe(name).add_label(label)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"initialize\(\)"):
        nlp.update(texts)


@EACH
@pytest.mark.parametrize("width", [0, -1])
def test_an_embedder_without_any_width_is_refused(name: str, width: int) -> None:
    with pytest.raises(LatentError, match=f"width.*{width}"):
        initialized(pipeline(name, {**TOK2VEC, "width": width}))


@EACH
def test_an_embedder_of_vectors_that_the_pipeline_lacks_is_refused(name: str) -> None:
    with pytest.raises(LatentError, match="vectors"):
        initialized(pipeline(name, {**TOK2VEC, "pretrained_vectors": True}))


@EACH
def test_what_is_no_example_is_refused(name: str) -> None:
    nlp = pipeline(name)
    initialized(nlp)
    for wrong in (nlp.make_doc("I like London"), ("a", {})):
        with pytest.raises(TypeError):
            nlp.get_pipe(name).update([wrong])  # type: ignore


@EACH
def test_a_factory_takes_the_settings_of_its_component(name: str) -> None:
    nlp = spacy.blank("en")
    own: Any = nlp.add_pipe(name)
    make = spacy.registry.factories.get(name)
    # spaCy reads the signature, and then calls the factory.
    signature(make).bind(nlp, name, own.model, annotate="none", threshold=0.5)
    made = make(nlp, name, own.model, annotate="none", threshold=0.5)
    assert type(made) is type(own) and made.cfg["annotate"] == "none"
    assert pickle.loads(pickle.dumps(make)) is make
    for wrong in ({"annotate": 3}, {"unknown": 3}):
        with pytest.raises(ConfigValidationError):
            spacy.blank("en").add_pipe(name, config=wrong)
