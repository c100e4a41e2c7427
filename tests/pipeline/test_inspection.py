"""``inspect_docs``, settings in Python, and listeners whose embedder is missing."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, Span

from spacy_latent.annotations import to_json
from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.pipeline.inspection import inspect_docs, inspect_pipe
from tests.pipeline.small_pipelines import LISTENER, TOK2VEC, examples, initialized, step

TEXT = "I like London a lot"
TO_TOK2VEC = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "tok2vec"}
MODELS: dict[str, dict[str, Any]] = {
    "crf_ner": {"hidden_width": 8},
    "latent_parser": {"label_hidden_width": 8},
    "tree_spancat": {"hidden_width": 8},
    "latent_textcat": {},
}
WITH_ALTERNATIVES = [name for name in MODELS if name != "tree_spancat"]


def pipeline(name: str, tok2vec: dict[str, Any] = TO_TOK2VEC, **config: Any) -> Language:
    """Train a pipeline a little. Its component may listen to a component before it."""
    nlp = spacy.blank("en")
    if tok2vec is TO_TOK2VEC:
        nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    if tok2vec is LISTENER:
        nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": TOK2VEC}})
    nlp.add_pipe(name, config={"model": {**MODELS[name], "tok2vec": tok2vec}, **config})
    optimizer = initialized(nlp)
    for _ in range(10):
        step(nlp, examples(nlp), optimizer)
    return nlp


def stored(doc: Doc, name: str) -> dict[str, Any]:
    """Return the stored structures of a component as JSON, with rounded numbers."""
    return to_json(doc, doc._.latent)[name]


@pytest.mark.parametrize(
    "tok2vec", [TO_TOK2VEC, TOK2VEC, LISTENER], ids=["shared", "own", "latent"]
)
@pytest.mark.parametrize("name", MODELS)
def test_inspected_docs_have_what_the_component_would_store(
    name: str, tok2vec: dict[str, Any]
) -> None:
    nlp = pipeline(name, tok2vec)
    pipe: Any = nlp.get_pipe(name)
    plain = nlp(TEXT)
    before = dict(pipe.cfg)
    assert all(span.probabilities is None for span in plain._.latent[name].spans)
    given = {"annotate": "probabilities", "alternatives": 3}
    processed, fresh = inspect_docs(nlp, [plain, nlp.make_doc(TEXT)], **given)  # type: ignore
    assert processed is plain and pipe.cfg == before
    pipe.cfg.update({key: value for key, value in given.items() if key in pipe.cfg})
    wanted = stored(nlp(TEXT), name)
    assert stored(fresh, name) == wanted
    for span in processed._.latent[name].spans:
        assert span.probabilities is not None
        assert len(span.alternatives) > 1 or name not in WITH_ALTERNATIVES
    if name != "latent_parser":
        # A parser takes the sentences of a parsed doc as given, which changes the probabilities.
        assert stored(processed, name) == wanted


@pytest.mark.parametrize("name", ["crf_ner", "latent_parser", "tree_spancat"])
def test_another_thread_predicts_by_its_own_settings_meanwhile(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nlp = pipeline(name, TOK2VEC)
    pipe: Any = nlp.get_pipe(name)
    predict, wanted, others = type(pipe).predict, stored(nlp(TEXT), name), []

    def together(self: Any, docs: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            with ThreadPoolExecutor(1) as other:
                others.append(stored(other.submit(nlp, TEXT).result(), name))
        return predict(self, docs)

    monkeypatch.setattr(type(pipe), "predict", together)
    (first,) = inspect_docs(nlp, [nlp.make_doc(TEXT)])
    ((second, _),) = inspect_pipe(nlp, [nlp.make_doc(TEXT)])
    assert others == [wanted, wanted]
    for doc in (first, second):
        assert all(span.probabilities is not None for span in doc._.latent[name].spans)


def test_entities_that_were_there_before_stay_given_in_an_inspected_doc() -> None:
    nlp = pipeline("crf_ner", annotate="map")
    doc = nlp.make_doc("I like London and Paris")
    doc.set_ents([Span(doc, 4, 5, label="GPE")])
    doc = nlp(doc)
    found = [(ent.start, ent.end, ent.label_) for ent in doc.ents]
    assert (2, 3, "GPE") in found
    inspect_docs(nlp, [doc])
    by_start = {one.start: one for one in doc._.latent["crf_ner"].entities()}
    assert by_start[4].given and by_start[4].probability == pytest.approx(1)
    assert not by_start[2].given and 0 < by_start[2].probability < 1
    assert [(ent.start, ent.end, ent.label_) for ent in doc.ents] == found
    # A second inspection gives the same probability.
    again = by_start[2].probability
    inspect_docs(nlp, [doc, doc])
    assert doc._.latent["crf_ner"].entities()[0].probability == pytest.approx(again)


@pytest.mark.parametrize("fails", [False, True])
def test_entities_of_an_inspected_doc_stay_as_they_were(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids, blocked tokens and missing tokens are kept, even if the component fails."""
    nlp = pipeline("crf_ner", TOK2VEC)
    crf: Any = nlp.get_pipe("crf_ner")
    doc = nlp("I like London and Paris a lot")
    found = [(ent.start, ent.end, ent.label_) for ent in doc.ents]
    assert found
    ents = [Span(doc, *bounds, kb_id="Q84", span_id="own") for bounds in found]
    ents.append(Span(doc, 6, 7, "GPE", kb_id="Q1", span_id="other"))
    doc.set_ents(ents, blocked=[doc[0:1]], missing=[doc[1:2]], default="outside")

    def state() -> list[Any]:
        return [(t.ent_iob, t.ent_type_, t.ent_kb_id_, t.ent_id_) for t in doc]

    def refuse(docs: list[Doc]) -> Any:
        raise ValueError("refused")

    before, settings = state(), dict(crf.cfg)
    if fails:
        monkeypatch.setattr(crf, "predict", refuse)
        with pytest.raises(ValueError, match="refused"):
            inspect_docs(nlp, [doc, doc])
    else:
        inspect_docs(nlp, [doc, doc])
        given = [one.given for one in doc._.latent["crf_ner"].entities()]
        assert given.count(True) == 1
    assert state() == before and crf.cfg == settings


def test_entities_below_min_confidence_are_marked_in_an_inspected_doc() -> None:
    nlp = pipeline("crf_ner", min_confidence=1.0)
    doc = nlp("I like London")
    assert not doc.ents
    inspect_docs(nlp, [doc])
    assert all(one.below_min_confidence for one in doc._.latent["crf_ner"].entities())


def test_docs_without_tokens_are_inspected() -> None:
    for name in MODELS:
        nlp = pipeline(name)
        empty, doc = inspect_docs(nlp, [nlp.make_doc(""), nlp.make_doc(TEXT)])
        assert name not in empty._.latent or not empty._.latent[name].spans
        assert doc._.latent[name].spans
    assert inspect_docs(nlp, []) == []


@pytest.mark.parametrize("name", MODELS)
def test_a_setting_is_no_attribute(name: str) -> None:
    nlp = spacy.blank("en")
    pipe: Any = nlp.add_pipe(name)
    for setting, value in {"annotate": "none", "min_confidence": 0.5, "alternatives": 3}.items():
        if setting in pipe.cfg:
            with pytest.raises(LatentError, match="cfg"):
                setattr(pipe, setting, value)
    pipe.own = 3
    assert pipe.own == 3


@pytest.mark.parametrize("name", MODELS)
def test_a_listener_without_its_embedder_is_told_once(name: str) -> None:
    nlp = pipeline(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        list(nlp.pipe([TEXT, "", "I hate Paris"]))
        with nlp.select_pipes(enable=[name]):
            nlp("")
    with nlp.select_pipes(enable=[name]):
        with pytest.warns(LatentWarning, match=r"tok2vec.*did not run"):
            list(nlp.pipe(["", TEXT]))
        with warnings.catch_warnings():
            warnings.simplefilter("error", LatentWarning)
            nlp(TEXT)


def test_an_annotating_component_without_its_embedder_is_told_in_training() -> None:
    nlp = pipeline("crf_ner")
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        nlp.update(examples(nlp), annotates=["tok2vec", "crf_ner"])
    with pytest.warns(LatentWarning, match="annotating_components"):
        nlp.update(examples(nlp), annotates=["crf_ner"])


def test_a_component_with_a_copy_of_its_embedder_is_not_told() -> None:
    nlp = pipeline("crf_ner")
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        nlp(TEXT)
        expected = [ent.text for ent in nlp(TEXT).ents]
        nlp.replace_listeners("tok2vec", "crf_ner", ["model.tok2vec"])
        with nlp.select_pipes(enable=["crf_ner"]):
            assert [ent.text for ent in nlp(TEXT).ents] == expected


def test_many_docs_are_inspected_in_parts_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    nlp = pipeline("crf_ner")
    texts = [TEXT, "", "I like Berlin", "London"]
    alone = [stored(*inspect_docs(nlp, [nlp.make_doc(text)]), "crf_ner") for text in texts]
    monkeypatch.setattr("spacy_latent.pipeline.inspection.INSPECTED", 3)
    together = inspect_docs(nlp, map(nlp.make_doc, texts))
    assert [stored(doc, "crf_ner") for doc in together] == alone
    (one,) = inspect_docs(nlp, nlp.make_doc(TEXT))
    assert stored(one, "crf_ner") == alone[0]


@pytest.mark.parametrize(
    ("docs", "settings", "said"),
    [
        ([TEXT], {}, "str"),
        ([], {"alternatives": -1}, "alternatives"),
        ([], {"annotate": "probs"}, "probs"),
    ],
)
def test_what_cannot_be_inspected_is_refused(
    docs: list[Any], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(LatentError, match=said):
        inspect_docs(spacy.blank("en"), docs, **settings)
