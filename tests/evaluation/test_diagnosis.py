"""Diagnoses of pipelines: each mistake is reported if and only if it is there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_latent.evaluation import diagnosis
from spacy_latent.evaluation.diagnosis import (
    FURTHER,
    describe,
    gradient_norms,
    judge_gradients,
    judge_training,
)
from spacy_latent.evaluation.mistakes import find_traps
from spacy_latent.kernels.gpu import dispatch
from spacy_latent.models.latent_shim import LatentShim
from tests.pipeline.small_pipelines import (
    INLINE,
    LISTENER,
    TOK2VEC,
    examples,
    initialized,
    inline_pipeline,
    latent_pipeline,
    stock,
)

# A parser that reads no heads.
BINARY = {
    "tok2vec": TOK2VEC,
    "structure": {"@misc": "spacy-latent.ShiftReduce.v1"},
    "scorer": {"@misc": "spacy-latent.StackScorer.v1", "hidden_width": 16},
    "estimator": {"@misc": "spacy-latent.BestStraightThrough.v1"},
    "composer": {"@misc": "spacy-latent.BinaryTreeLstm.v1"},
}


def codes(nlp: Language) -> set[str]:
    return {finding.code for finding in find_traps(nlp) if finding.level != "note"}


def made(nlp: Language, **training: Any) -> Language:
    initialized(nlp)
    nlp.config["training"] = {**nlp.config["training"], **training}
    return nlp


def test_nothing_is_wrong_with_what_is_right() -> None:
    assert codes(made(latent_pipeline("textcat"))) == set()
    assert codes(made(inline_pipeline("textcat"))) == set()
    # The learning rate of the first step is 0, as in spaCy's configs with a transformer.
    warm_up = {"warmup_steps": 250, "total_steps": 20000, "initial_rate": 5e-5}
    rate = {"@schedules": "warmup_linear.v1", **warm_up}
    optimizer = {"@optimizers": "Adam.v1", "learn_rate": rate}
    assert codes(made(inline_pipeline("textcat"), optimizer=optimizer)) == set()
    frozen = {"frozen_components": ["latent_encoder"], "annotating_components": ["latent_encoder"]}
    assert codes(made(latent_pipeline("textcat"), **frozen)) == set()
    both = {"frozen_components": ["latent_encoder", "textcat"]}
    assert codes(made(latent_pipeline("textcat"), **both)) == set()


def test_frozen_encoder_with_unfrozen_listeners() -> None:
    nlp = made(latent_pipeline("textcat", "tagger"), frozen_components=["latent_encoder", "tagger"])
    (error,) = (finding for finding in find_traps(nlp) if finding.level == "error")
    assert error.code == "frozen-encoder" and "annotating_components" in error.text
    assert "textcat, which" in error.text and "tagger" not in error.text
    nlp = made(latent_pipeline("textcat", "tagger"), frozen_components=["textcat", "tagger"])
    assert codes(nlp) == {"frozen-listeners"}
    assert codes(made(latent_pipeline("textcat", "tagger"), frozen_components=["tagger"])) == set()


def test_where_kernels_cannot_be_launched_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    nlp = made(inline_pipeline("textcat"))
    assert "no-gpu-kernels" not in {finding.code for finding in find_traps(nlp)}
    monkeypatch.setattr(LatentShim, "device", torch.device("cuda", 0))
    monkeypatch.setattr(dispatch, "why_unusable", lambda: "the driver is too old")
    (found,) = (finding for finding in find_traps(nlp) if finding.code == "no-gpu-kernels")
    assert found.level == "note" and "the driver is too old" in found.text
    monkeypatch.setattr(dispatch, "why_unusable", lambda: None)
    assert "no-gpu-kernels" not in {finding.code for finding in find_traps(nlp)}


def test_listeners() -> None:
    assert codes(made(latent_pipeline())) == {"no-listener"}
    assert codes(made(latent_pipeline(encoder={"supervision": 1.0}))) == set()
    nlp = spacy.blank("en")
    nlp.add_pipe("textcat", config=stock("textcat", LISTENER))
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": TOK2VEC}})
    assert codes(made(nlp)) == {"listener-first"}
    nlp = latent_pipeline("textcat")
    nlp.add_pipe("tok2vec", first=True)
    wildcard = {"@architectures": "spacy.Tok2VecListener.v1", "width": 96, "upstream": "*"}
    nlp.add_pipe("tagger", config=stock("tagger", wildcard))
    assert codes(made(nlp)) == {"wildcard"}


@pytest.mark.parametrize("pooled", [("max",), ("first", "last"), ()])
def test_a_classifier_that_cannot_read_empty_texts(pooled: tuple[str, ...]) -> None:
    nlp = spacy.blank("en")
    flags = {f"use_reduce_{which}": which in pooled for which in ("first", "last", "max")}
    architecture = {"@architectures": "spacy.TextCatReduce.v1", "exclusive_classes": True}
    model = {**architecture, **flags, "use_reduce_mean": True, "tok2vec": copy.deepcopy(TOK2VEC)}
    textcat: Any = nlp.add_pipe("textcat", config={"model": model})
    for label in ("good", "bad"):
        textcat.add_label(label)
    nlp.initialize()
    found = [finding for finding in find_traps(nlp) if finding.code == "empty-texts"]
    assert len(found) == bool(pooled)
    texts = ["", "a good film"]
    if not found:
        assert len(list(nlp.pipe(texts))) == 2
        return
    assert all(f"use_reduce_{which}" in found[0].text for which in pooled)
    with pytest.raises(ValueError, match="lengths"):
        list(nlp.pipe(texts))
    nlp = spacy.blank("en")
    own = {**model, "@architectures": "spacy-latent.TextCatReduce.v1"}
    nlp.add_pipe("textcat", config={"model": own})
    nlp.initialize(lambda: examples(nlp))
    assert "empty-texts" not in {finding.code for finding in find_traps(nlp)}


@pytest.mark.parametrize("order", [("latent_encoder", "tagger"), ("tagger", "latent_encoder")])
def test_an_embedder_may_be_shared(order: tuple[str, str]) -> None:
    shared = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "tok2vec"}
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": copy.deepcopy(TOK2VEC)})
    for name in order:
        if name == "tagger":
            nlp.add_pipe("tagger", config=stock("tagger", shared))
        else:
            nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": shared}})
    nlp.add_pipe("textcat", config=stock("textcat", LISTENER))
    assert codes(made(nlp)) == set()


@pytest.mark.parametrize("name", ["crf_ner", "latent_textcat"])
def test_an_embedder_that_nobody_shares(name: str) -> None:
    """``spacy init config`` leaves such an embedder if it does not know the components."""
    shared = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "tok2vec"}

    def found(*others: str, embedder: dict[str, Any] = TOK2VEC, **training: Any) -> dict[str, str]:
        nlp = spacy.blank("en")
        nlp.add_pipe("tok2vec", config={"model": copy.deepcopy(TOK2VEC)})
        for other in others:
            nlp.add_pipe(other, config=stock(other, shared))
        nlp.add_pipe(name, config={"model": {"tok2vec": embedder}})
        texts = {
            finding.code: finding.text
            for finding in find_traps(made(nlp, **training))
            if finding.code in ("idle-embedder", "own-embedder")
        }
        if texts:
            assert all(name in text and "width = 16" in text for text in texts.values())
        return texts

    assert "No component listens to tok2vec" in found()["idle-embedder"]
    # The tagger uses the embedder, so the separate one may be intended.
    assert found("tagger").keys() == {"own-embedder"}
    assert found("tagger", embedder=shared) == found(embedder=shared) == {}
    assert found("tagger", frozen_components=["tok2vec", "tagger"]) == {}


def test_the_tok2vec_that_answers_a_wildcard_is_no_trap() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": copy.deepcopy(TOK2VEC)})
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "*"}
    nlp.add_pipe("tagger", config=stock("tagger", listener))
    nlp.add_pipe("crf_ner", config={"model": {"tok2vec": TOK2VEC}})
    assert [finding.code for finding in find_traps(made(nlp))] == ["own-embedder"]


def test_a_wildcard_before_any_encoder_is_no_trap() -> None:
    """A listener with a wildcard may precede any encoder, as in ``spacy latent init --shared``.

    The encoder then listens to the embedder that ``spacy init config`` shares.
    """
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": copy.deepcopy(TOK2VEC)})
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "*"}
    nlp.add_pipe("tagger", config=stock("tagger", listener))
    nlp.add_pipe("latent_encoder", config={"model": {"tok2vec": listener}})
    nlp.add_pipe("textcat", config=stock("textcat", LISTENER))
    assert codes(made(nlp)) == set()


def test_sentences_only_at_prediction() -> None:
    nlp = latent_pipeline("textcat")
    nlp.add_pipe("sentencizer", first=True)
    assert codes(made(nlp)) == {"sentences-in-training"}
    # The reader of the corpus may have set the sentences.
    nlp = made(nlp)
    read = [Example(nlp.get_pipe("sentencizer")(one.x), one.y) for one in examples(nlp)]  # type: ignore[operator]
    assert not [finding for finding in find_traps(nlp, read) if finding.level != "note"]
    assert codes(made(nlp, annotating_components=["sentencizer"])) == set()
    texts = {f.code: f.text for f in find_traps(made(latent_pipeline("textcat")))}
    assert "before latent_encoder sets sentence boundaries" in texts["no-sentences"]
    assert "128 tokens" in texts["no-sentences"]
    of_docs = latent_pipeline(
        "textcat",
        encoder={
            "model": {"tok2vec": TOK2VEC, "span_getter": {"@misc": "spacy-latent.DocSpans.v1"}}
        },
    )
    assert "no-sentences" not in {finding.code for finding in find_traps(made(of_docs))}


def test_ways_round_the_structure_are_noted() -> None:
    notes = {finding.code for finding in find_traps(made(latent_pipeline("textcat")))}
    assert notes == {"residual", "context-below", "no-sentences"}
    still = latent_pipeline(
        "textcat", encoder={"model": {"tok2vec": TOK2VEC, "scorer_learn_rate": 0.0}}
    )
    assert codes(made(still)) == {"scorer-still"}


@pytest.mark.parametrize(
    ("name", "cats", "expected"),
    [
        ("latent_textcat", [{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0}, {}], set()),
        ("latent_textcat", [{"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 0.0}], {"category-never"}),
        ("latent_textcat", [{"a": 0.0, "b": 0.0}], {"category-never"}),
        # A single label alone is enough where there is one for each text.
        ("latent_textcat", [{"a": 1.0}, {"b": 1.0}], set()),
        # So are wrong labels, from which spaCy's own does not learn the others.
        ("latent_textcat", [{"a": 0.0}, {"b": 0.0}], set()),
        ("textcat", [{"a": 0.0}, {"b": 0.0}], {"category-never"}),
        ("latent_textcat_multilabel", [{"a": 1.0}, {"b": 1.0}], {"category-always"}),
        ("latent_textcat_multilabel", [{"a": 1.0}, {"b": 1.0, "a": 0.0}, {"b": 0.0}], set()),
        ("textcat_multilabel", [{"a": 1.0, "b": 0.0}], {"category-never", "category-always"}),
    ],
)
def test_categories_with_one_value_in_all_texts(name, cats, expected) -> None:
    nlp = spacy.blank("en")
    stocks = {own: stock(own, TOK2VEC) for own in ("textcat", "textcat_multilabel")}
    exclusive = name == "latent_textcat"
    model = {"tok2vec": TOK2VEC, "exclusive_classes": exclusive}
    nlp.add_pipe(name, config=stocks.get(name, {"model": model}))
    made = [Example.from_dict(nlp.make_doc("a text"), {"cats": one}) for one in cats]
    nlp.initialize(lambda: made)
    found = {one.code for one in find_traps(nlp, made)}
    assert {code for code in found if code.startswith("category")} == expected


@pytest.mark.parametrize(
    ("name", "config", "learns"),
    [
        ("latent_parser", {}, True),
        ("latent_encoder", {"supervision": 1.0}, True),
        ("latent_encoder", {}, False),
        ("latent_encoder", {"supervision": 1.0, "model": BINARY}, False),
    ],
)
@pytest.mark.parametrize("text", ["He left early", "Heleftearly"])
@pytest.mark.filterwarnings("ignore:.*no gold structure")
def test_heads_that_are_lost_by_the_tokenizer(
    text: str, name: str, config: dict[str, Any], learns: bool
) -> None:
    nlp = spacy.blank("xx")
    nlp.add_pipe(name, config=config)
    spaces = [" " in text] * 2 + [False]
    words, heads, deps = ["He", "left", "early"], [1, 1, 1], ["nsubj", "ROOT", "advmod"]
    reference = Doc(nlp.vocab, words, spaces=spaces, heads=heads, deps=deps)
    sample = [Example(nlp.make_doc(text), reference)]
    nlp.initialize(lambda: sample)
    expected = " " not in text and learns
    assert ("other-tokens" in {one.code for one in find_traps(nlp, sample)}) == expected
    nlp.config["training"]["frozen_components"] = [name]
    assert "other-tokens" not in {one.code for one in find_traps(nlp, sample)}


def test_constraints_tell_what_categories_a_text_lacks() -> None:
    nlp = spacy.blank("en")
    constraints = {
        "@misc": "spacy-latent.CategoryConstraints.v1",
        "exclusive": [["crime", "fantasy"]],
        "implied": [["crime", "novel"]],
    }
    model = {"tok2vec": TOK2VEC, "exclusive_classes": False}
    nlp.add_pipe("latent_textcat_multilabel", config={"model": model, "constraints": constraints})
    cats: list[dict[str, float]] = [{"crime": 1.0}, {"fantasy": 1.0, "novel": 0.0}]
    texts = [Example.from_dict(nlp.make_doc("a text"), {"cats": one}) for one in cats]
    nlp.initialize(lambda: texts)
    codes = {one.code for one in find_traps(nlp, texts)}
    assert not codes & {"category-never", "category-always"}


def test_what_a_pipeline_is_made_of() -> None:
    nlp = made(latent_pipeline("textcat"))
    layer = describe(nlp)["latent_encoder"]
    assert layer["structure"].startswith("SpanningTree(") and layer["scorer"] == "BiaffineScorer"
    assert layer["estimator"].startswith("Marginals(") and layer["listeners"] == ["textcat"]
    assert {"map", "marginals"} <= set(layer["tractable"])
    assert layer["learn rate"] == {"scorer": 0.001, "others": 0.001}
    (pipe,) = (nlp.get_pipe(name) for name in ("latent_encoder",))
    shim = pipe.model.get_ref("latent").shims[0]  # type: ignore[attr-defined]
    total = sum(parameter.numel() for parameter in shim.module.parameters())
    counted = layer["parameters"]
    assert counted["scorer"] + counted["composer"] + counted["output"] == total
    # The head is a linear layer with two labels over 16 features.
    assert counted["head"] == 2 * 16 + 2 and counted["embedder"] > 0


@pytest.mark.parametrize("kind", ["encoder", "inline", "latent_textcat"])
def test_gradients_reach_everything(kind: str) -> None:
    if kind == "latent_textcat":
        nlp = spacy.blank("en")
        nlp.add_pipe("latent_textcat", config={"model": {"tok2vec": TOK2VEC}})
    else:
        nlp = latent_pipeline("textcat") if kind == "encoder" else inline_pipeline("textcat")
    made(nlp)
    norms = gradient_norms(nlp, examples(nlp), steps=4)
    name = {"encoder": "latent_encoder", "inline": "textcat"}.get(kind, kind)
    assert {"embedder", "scorer", "composer"} <= set(norms[name])
    assert all(norm > 0 for norm in norms[name].values())
    assert judge_gradients(nlp, norms) == []
    if kind == "encoder":
        assert set(norms["textcat"]) == {"head"}


def test_a_scorer_that_gets_nothing_is_an_error() -> None:
    nlp = made(inline_pipeline("textcat"))
    assert {
        f.code for f in judge_gradients(nlp, {"textcat": {"scorer": 0.0, "composer": 1.0}})
    } == {"no-gradient-at-scorer"}
    faint = judge_gradients(nlp, {"textcat": {"scorer": 1e-9, "composer": 1.0}})
    assert [finding.level for finding in faint] == ["warning"]
    lost = judge_gradients(nlp, {"textcat": {"scorer": float("nan"), "composer": 1.0}})
    assert [finding.code for finding in lost] == ["not-finite"]
    # The output layer starts at zero, so the gradient below it is zero in the first step.
    first = gradient_norms(nlp, examples(nlp), steps=1)
    assert {f.code for f in judge_gradients(nlp, first)} == {"no-gradient-at-scorer"}


@pytest.mark.parametrize("first", [4, FURTHER + 3, None])
def test_a_scorer_whose_gradient_comes_late_is_no_mistake(
    first: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a few short texts ImplicitMLE changes the best structure in one step of ten."""
    steps_taken = 0

    def norms(
        nlp: Language, texts: Any, steps: int = 3, progress: Any = None, optimizer: Any = None
    ) -> Any:
        nonlocal steps_taken
        steps_taken += steps
        scorer = 0.5 if steps_taken == first else 0.0
        return {"textcat": {"scorer": scorer, "composer": 1.0}, "other": {"head": 1.0}}

    monkeypatch.setattr(diagnosis, "gradient_norms", norms)
    mle = {"@misc": "spacy-latent.ImplicitMLE.v1"}
    for estimator, level in ((mle, "warning"), ({"@misc": "spacy-latent.Marginals.v1"}, "error")):
        steps_taken = 0
        nlp = made(inline_pipeline("textcat", estimator=estimator))
        found, (told,) = judge_training(nlp, [], steps=3)
        assert steps_taken == first or steps_taken == FURTHER + 3
        assert found["textcat"]["scorer"] == (0.0 if first is None else 0.5)
        assert told.level == (level if first is None else "note")


def test_a_scorer_that_is_not_used_is_no_mistake() -> None:
    given = {"@misc": "spacy-latent.GivenTrees.v1", "trees": "flat"}
    nlp = made(inline_pipeline("textcat", estimator=given))
    norms = gradient_norms(nlp, examples(nlp), steps=4)
    assert norms["textcat"]["scorer"] == 0.0 and norms["textcat"]["composer"] > 0
    assert judge_gradients(nlp, norms) == []
    assert "given-trees" in {finding.code for finding in find_traps(nlp)}


def test_a_scorer_that_one_stage_does_not_use_is_none_either() -> None:
    given = {"@misc": "spacy-latent.GivenTrees.v1", "trees": "flat"}
    marginals = {"@misc": "spacy-latent.Marginals.v1"}
    stages = {"@misc": "spacy-latent.EstimatorSequence.v1", "switch_at": 50}
    later = made(
        inline_pipeline("textcat", estimator={**stages, "first": given, "then": marginals})
    )
    norms = gradient_norms(later, examples(later), steps=4)
    assert norms["textcat"]["scorer"] == 0.0 and norms["textcat"]["composer"] > 0
    assert judge_gradients(later, norms) == []
    assert "given-trees" not in {finding.code for finding in find_traps(later)}
    at_end = made(
        inline_pipeline("textcat", estimator={**stages, "first": marginals, "then": given})
    )
    (note,) = [finding for finding in find_traps(at_end) if finding.code == "given-trees"]
    assert "GivenTrees after Marginals" in note.text and "learned scores are not used" in note.text


def test_structures_under_one_name_are_told() -> None:
    def found(own: str, other: str, annotate: str = "map") -> set[str]:
        nlp = inline_pipeline("tagger", stored_as=own)
        inline = {**INLINE, "stored_as": other}
        nlp.add_pipe("crf_ner", config={"model": {"tok2vec": inline}, "annotate": annotate})
        return codes(made(nlp))

    assert "stored-twice" in found("x", "x") & found("x", "crf_ner") & found("crf_ner", "x")
    assert "stored-twice" not in found("x", "y") | found("x", "crf_ner", "none")
