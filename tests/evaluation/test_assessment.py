"""Reports on pipelines that are known to use their structures, or to ignore them."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_latent.analysis.figures import plain
from spacy_latent.analysis.resampling import f_score
from spacy_latent.analysis.task import Measure
from spacy_latent.errors import LatentError
from spacy_latent.evaluation import assessment_run
from spacy_latent.evaluation.assessment import Assessment, assess
from spacy_latent.evaluation.assessment_run import AssessmentRun
from spacy_latent.evaluation.references import predicted_heads
from spacy_latent.models.inspection import latent_models, latent_module
from spacy_latent.pipeline import batches
from spacy_latent.pipeline.inspection import choose_components, inspect_docs, inspect_pipe
from tests.pipeline.keyword_pipelines import CHOICE, TREE, keyword_examples, keyword_pipeline
from tests.pipeline.small_pipelines import (
    INLINE,
    TOK2VEC,
    examples,
    initialized,
    inline_pipeline,
    stock,
)


def module(nlp: Language) -> Any:
    (node,) = latent_models(nlp.get_pipe("latent_encoder").model)  # type: ignore[attr-defined]
    return latent_module(node)


@pytest.fixture(scope="module")
def chosen() -> Language:
    return keyword_pipeline(CHOICE, steps=30)


@pytest.fixture(scope="module")
def tree() -> Language:
    return keyword_pipeline(TREE, steps=30)


def codes(assessment: Assessment) -> set[str]:
    return {verdict.code for verdict in assessment.verdicts["latent_encoder"]}


def test_a_choice_that_the_task_hangs_on(chosen: Language) -> None:
    found = assess(chosen, keyword_examples(chosen, 120))
    assert "co-adapted" in codes(found) and "ignored" not in codes(found)
    part = found.figures.components["latent_encoder"]
    row = part.random["accuracy"]
    # The model sees a random word of five to nine. It is right at the key word, and else guesses.
    assert row.before == 1.0 and 0.45 < row.after < 0.75
    assert row.drop == pytest.approx(row.before - row.after)
    assert row.low < row.drop < row.high
    assert part.kind == "items" and part.statistics["runs"].mean == 1.0
    assert part.reference is None and part.controls == {}
    assert found.scores == [1.0] * 120
    again = assess(chosen, keyword_examples(chosen, 120))
    assert json.dumps(plain(again.figures)) == json.dumps(plain(found.figures))


def test_a_tree_that_is_ignored_and_one_that_is_not(tree: Language) -> None:
    found = assess(tree, keyword_examples(tree, 120))
    assert "co-adapted" in codes(found)
    # The pipeline composes soft trees, so its own score differs from the score with best trees.
    row, own = found.figures.components["latent_encoder"].random["accuracy"], found.figures.task
    assert row.own == (own.measures["accuracy"].value, own.measures["accuracy"].low)
    gain = module(tree).gain
    kept = gain.data.clone()
    gain.data.zero_()
    try:
        ignored = assess(tree, keyword_examples(tree, 400))
    finally:
        gain.data = kept
    assert "ignored" in codes(ignored)
    row = ignored.figures.components["latent_encoder"].random["accuracy"]
    # No text of 400 differs. By the rule of three, a rate of up to 3/400 is still possible.
    assert (row.drop, row.low, row.high) == (0.0, -3 / 400, 3 / 400)
    assert (row.docs, row.differ) == (400, 0)


def test_references_and_controls(tree: Language) -> None:
    found = assess(tree, keyword_examples(tree, 60), random=False)
    part = found.figures.components["latent_encoder"]
    assert part.random == {}
    rows = part.reference.rows
    controls = {"left-branching", "right-branching", "flat", "balanced", "nearest"}
    assert set(rows) == {"latent_encoder", "random"} | controls
    # Count the gold heads that equal the previous token: the key word is the head of all others.
    exact = 0
    for example in found.examples:
        heads = [token.head.i for token in example.reference]
        exact += sum(head == max(0, i - 1) for i, head in enumerate(heads))
    tokens = found.figures.tokens
    assert rows["right-branching"]["directed"][0] == pytest.approx(exact / tokens)
    relations = {row.relation: row for row in part.reference.relations}
    assert set(relations) == {"ROOT", "mod"} and relations["ROOT"].tokens == 60
    ours = [example.predicted._.latent["latent_encoder"].heads for example in found.examples]
    right = sum(int((own == gold).sum()) for own, gold in zip(ours, found.heads))
    assert rows["latent_encoder"]["directed"][0] == pytest.approx(right / tokens)
    part = assess(tree, keyword_examples(tree, 60), random=False, ignore=["good", "bad"])
    reference = part.figures.components["latent_encoder"].reference
    assert reference.tokens == tokens - 60
    assert {row.relation for row in reference.relations} == {"mod"}


def test_a_word_without_a_head_in_the_reference_is_no_root() -> None:
    nlp = spacy.blank("en")
    words, deps = ["a", "b", "c"], ["mod", "ROOT", ""]
    reference = Doc(nlp.vocab, words=words, heads=[1, 1, 2], deps=deps)
    example = Example(Doc(nlp.vocab, words=words), reference)
    assert predicted_heads(example).tolist() == [1, 1, -1]


def test_parts_of_a_word_of_the_reference_have_no_known_head() -> None:
    nlp = spacy.blank("en")
    heads, deps = [3, 2, 0, 3], ["nsubj", "cc", "conj", "ROOT"]
    reference = Doc(nlp.vocab, words=["cats", "and/or", "dogs", "ran"], heads=heads, deps=deps)
    predicted = Doc(
        nlp.vocab,
        words=["cats", "and", "/", "or", "dogs", "ran"],
        spaces=[True, False, False, True, True, True],
    )
    assert predicted_heads(Example(predicted, reference)).tolist() == [5, -1, -1, -1, 0, 5]


def test_the_f1_of_trainings_is_their_mean_if_one_finds_nothing() -> None:
    measure = Measure("F1", lambda example: (), f_score)
    counts = [np.ones((50, 3)), np.tile([0.0, 0.0, 1.0], (50, 1))]
    run: Any = SimpleNamespace(seed=0)
    value, low, high, seeds = AssessmentRun._trainings(run, measure, counts)
    assert seeds == [1.0, 0.0] and value == 0.5 and low <= 0.5 <= high


def test_a_collapsed_scorer_is_found_out(tree: Language) -> None:
    scorer = module(tree).latent.scorer
    kept = {name: value.clone() for name, value in scorer.state_dict().items()}
    for parameter in scorer.parameters():
        parameter.data.zero_()
    try:
        found = assess(tree, keyword_examples(tree, 120), random=False)
    finally:
        scorer.load_state_dict(kept)
    assert {"by-length", "undecided-scores"} <= codes(found)
    part = found.figures.components["latent_encoder"]
    assert part.by_length[0] == 1.0
    assert part.statistics["relative entropy"].mean == pytest.approx(1.0, abs=1e-4)


def test_models_of_two_seeds(tree: Language) -> None:
    other = keyword_pipeline(TREE, steps=0, seed=1)
    same = {"twin": tree, "other": other}
    found = assess(tree, keyword_examples(tree, 40), others=same)
    others = found.figures.components["latent_encoder"].others
    assert others.names == ["twin", "other"]
    assert others.matrix[0][1] == 1.0 and others.matrix[0][2] < 0.9
    assert others.matrix[1][2] == others.matrix[0][2] == others.matrix[2][0]
    assert others.mean == pytest.approx((1 + 2 * others.matrix[0][2]) / 3)
    assert 0 < others.chance < 1
    drop = found.figures.others["twin"]["accuracy"].drop
    assert drop == (0.0, pytest.approx(-3 / 40), pytest.approx(3 / 40))
    assert found.figures.others["other"]["accuracy"].drop[1] > 0.2


def test_inline_layers_and_owned_losses_are_read() -> None:
    nlp = inline_pipeline("tagger")
    nlp.add_pipe("latent_textcat", config={"model": {"tok2vec": TOK2VEC}})
    nlp.add_pipe("textcat", config=stock("textcat", INLINE))
    initialized(nlp)
    found = assess(nlp, examples(nlp))
    assert set(found.figures.components) == {"tagger", "latent_textcat", "textcat"}
    assert set(found.figures.task.measures) == {"accuracy of the tags", "accuracy"}
    for verdicts in found.verdicts.values():
        assert "few" in {verdict.code for verdict in verdicts}
    only = assess(nlp, examples(nlp), component="textcat", random=False)
    assert set(only.figures.components) == {"textcat"}
    docs = inspect_docs(nlp, [nlp.make_doc("I like it")])
    assert set(docs[0]._.latent) == {"tagger", "latent_textcat", "textcat"}


def test_texts_without_references_empty_and_of_one_token(tree: Language) -> None:
    made = [Example(tree.make_doc(text), tree.make_doc(text)) for text in ("", "a", "a b c d e")]
    found = assess(tree, made)
    assert plain(found.figures.task) == {"measures": {}, "scores": {}}
    part = found.figures.components["latent_encoder"]
    assert part.spans == 2 and part.random == {} and part.reference is None
    assert all(math.isnan(score) for score in found.scores) and found.heads == [None] * 3
    json.dumps(plain(found.figures), allow_nan=False)
    with pytest.raises(LatentError, match="texts"):
        assess(tree, [])
    with pytest.raises(LatentError, match="'ner'"):
        assess(tree, made, component="ner")
    with pytest.raises(LatentError, match="structure"):
        choose_components(spacy.blank("en"), None)


def test_other_tokens_are_refused(tree: Language) -> None:
    nlp = tree
    doc = Doc(nlp.vocab, words=["a", "b"])
    found = assess(nlp, [Example(doc, Doc(nlp.vocab, words=["ab"]))], random=False)
    assert found.heads == [None]
    reference = Doc(nlp.vocab, words=["a b", "c"], heads=[0, 0], deps=["ROOT", "x"])
    predicted = Doc(nlp.vocab, words=["a", "b", "c"])
    found = assess(nlp, [Example(predicted, reference)], random=False)
    (heads,) = found.heads
    # Only the last token is a token of the reference, and its gold head is two predicted tokens.
    assert heads is not None and (heads[:2] == -1).all()


def test_inspection_gives_what_the_component_gives(tree: Language) -> None:
    docs = [example.predicted for example in keyword_examples(tree, 10)]
    found = list(inspect_pipe(tree, [doc.copy() for doc in docs], batch_size=3, uncertainty=True))
    for (doc, sure), plainly in zip(found, tree.pipe(docs)):
        ours, theirs = doc._.latent["latent_encoder"], plainly._.latent["latent_encoder"]
        assert np.array_equal(ours.heads, theirs.heads) and doc.cats == plainly.cats
        assert ours.spans[0].probabilities is not None and theirs.spans[0].probabilities is None
        assert len(sure["latent_encoder"]) == 1
        assert 0 <= sure["latent_encoder"][0].nats <= sure["latent_encoder"][0].log_count + 1e-4


def test_docs_that_an_error_handler_lets_go(tree: Language) -> None:
    """Docs that fail are left out of the inspection, and a report without them is refused."""

    class Picky:
        def __call__(self, doc: Doc) -> Doc:
            return doc

        def pipe(self, docs: Any, batch_size: int) -> Any:
            return (doc for doc in docs if doc.text != "b c")

    nlp = tree
    texts = ["a", "b c", "a b c d", "b", "b c"]
    expected = [doc for doc in nlp.pipe(texts) if doc.text != "b c"]
    name = "latent_encoder"
    picky = Picky()
    nlp._components.insert(nlp.component_names.index(name) + 1, ("picky", picky))
    try:
        docs = [nlp.make_doc(text) for text in texts]
        found = list(inspect_pipe(nlp, docs, batch_size=3, uncertainty=True))
        assert [doc.text for doc, _ in found] == ["a", "a b c d", "b"]
        for (doc, sure), plainly in zip(found, expected):
            assert np.array_equal(doc._.latent[name].heads, plainly._.latent[name].heads)
            assert doc.cats == plainly.cats and name in sure
        with pytest.raises(LatentError, match="2 of 5"):
            assess(nlp, [Example.from_dict(nlp.make_doc(t), {"cats": {}}) for t in texts])
        picky.pipe = lambda docs, batch_size: (docs[i].copy() for i in range(2))  # type: ignore
        with pytest.raises(LatentError, match=r"'picky'.*3.*2"):
            list(inspect_pipe(nlp, map(nlp.make_doc, texts), batch_size=3))
    finally:
        nlp._components.remove(("picky", picky))


@pytest.mark.parametrize("room", [256e6, 0.0])
@pytest.mark.parametrize("words", [batches.WORDS, 40])
def test_docs_are_embedded_once_where_there_is_room(
    tree: Language, room: float, words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures are the same, and memory for vectors decides how often docs are embedded.

    Args:
        room: Bytes for the vectors of docs.
        words: Number of words in a batch of a component.
    """
    monkeypatch.setattr(batches, "WORDS", words)
    corpus = keyword_examples(tree, 20)
    expected = plain(assess(tree, corpus).figures)
    encoder: Any = tree.get_pipe("latent_encoder")
    embedder = encoder.model.layers[0]
    read: list[Doc] = []
    own = embedder._func

    def counting(model: Any, docs: Any, is_train: bool) -> Any:
        read.extend(docs)
        return own(model, docs, is_train)

    monkeypatch.setattr(embedder, "_func", counting)
    monkeypatch.setattr(assessment_run, "VECTORS", room)
    assert plain(assess(tree, corpus).figures) == expected
    # Without that memory, docs are embedded again for five draws and for the best structures.
    assert len(read) == len(corpus) * (1 if room else 7)
    assert embedder._func is counting
