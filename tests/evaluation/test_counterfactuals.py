"""Predictions of pipelines under an intervention, compared with enumerated structures."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import Adam, fix_random_seed

from spacy_latent.corpora.text_pairs import make_pair_doc
from spacy_latent.errors import LatentError, NothingLeft
from spacy_latent.evaluation.counterfactuals import counterfactual, editable_models, uneditable
from spacy_latent.interventions import Intervention, intervention_on
from spacy_latent.models.inspection import latent_models, read_batch
from spacy_latent.pipeline.inspection import inspect_docs, inspect_pipe
from tests import enumeration
from tests.models import pair_pipelines as pairs
from tests.pipeline import test_crf_ner as crf
from tests.pipeline import test_latent_parser as parser
from tests.pipeline import test_tree_spancat as spancat
from tests.pipeline.keyword_pipelines import EMBED, TREE, keyword_examples, keyword_pipeline
from tests.pipeline.rationale_pipelines import rationale_pipeline, trained_rationale

TEXT = "good filler1 filler2 bad"
NAME = "latent_textcat"


def classifier(steps: int = 6, **model: Any) -> Language:
    """Train a classifier a few steps, so that its structures matter and none is certain."""
    nlp = spacy.blank("xx")
    settings = {
        "@architectures": "spacy-latent.LatentTextClassifier.v1",
        "tok2vec": EMBED,
        "exclusive_classes": True,
        "estimator": {"@misc": "spacy-latent.Marginals.v1"},
        **model,
    }
    nlp.add_pipe(NAME, config={"model": settings, "annotate": "probabilities", "alternatives": 2})
    made = keyword_examples(nlp, 16, heads=False)
    fix_random_seed(0)
    nlp.initialize(lambda: made)
    optimizer = Adam(0.02)
    for _ in range(steps):
        nlp.update(made, sgd=optimizer)
    return nlp


@pytest.fixture(scope="module")
def nlp() -> Language:
    return classifier()


def asked(nlp: Language, text: str | Doc, key: str = NAME, start: int = 0, **edits: Any) -> Doc:
    """Return a doc that is predicted under an intervention.

    Args:
        edits: Forbidden and forced parts of the structure that begins at ``start``.
    """
    places = {name: tuple((start, part) for part in parts) for name, parts in edits.items()}
    with counterfactual(nlp, {key: Intervention(**places)}):
        return nlp(text)


def marginals(nlp: Language, keep: Any) -> np.ndarray:
    """Return the marginals of the trees over TEXT for which ``keep`` is true.

    The scores are those without an intervention.
    """
    (node,) = latent_models(nlp.get_pipe(NAME).model)
    scores = read_batch(node, [nlp.make_doc(TEXT)]).outputs[0].scores[0].double().numpy()
    trees = [heads for heads in enumeration.dependency_trees(len(TEXT.split())) if keep(heads)]
    z = np.stack([enumeration.arcs(heads) for heads in trees])
    potential = (z * np.where(z > 0, scores, 0.0)).sum((1, 2))
    weights = np.exp(potential - potential.max())
    return np.tensordot(weights / weights.sum(), z, 1)


def arcs_of(doc: Doc) -> np.ndarray:
    (span,) = doc._.latent[NAME].spans
    found = np.zeros((len(doc) + 1, len(doc) + 1))
    found[tuple(span.parts.T)] = span.probabilities
    return found


ARCS = [(head, word) for head in range(5) for word in range(1, 5) if head != word]


@pytest.mark.parametrize("arc", ARCS, ids=str)
def test_each_arc_as_among_all_trees(nlp: Language, arc: tuple[int, int]) -> None:
    head, word = arc
    forced = asked(nlp, TEXT, forced=[arc])
    assert forced._.latent[NAME].spans[0].decoded[word - 1] == head
    wanted = marginals(nlp, lambda heads: heads[word - 1] == head)
    np.testing.assert_allclose(arcs_of(forced), np.where(wanted > 0.01, wanted, 0), atol=1e-5)
    forbidden = asked(nlp, TEXT, forbidden=[arc])
    assert forbidden._.latent[NAME].spans[0].decoded[word - 1] != head
    assert all(decoded[word - 1] != head for decoded, _ in alternatives(forbidden))
    wanted = marginals(nlp, lambda heads: heads[word - 1] != head)
    np.testing.assert_allclose(arcs_of(forbidden), np.where(wanted > 0.01, wanted, 0), atol=1e-5)


def alternatives(doc: Doc) -> Any:
    found = doc._.latent[NAME].spans[0].alternatives
    assert found
    return found


def test_the_prediction_follows_and_nothing_stays(nlp: Language) -> None:
    before, weights = nlp(TEXT), nlp.to_bytes()
    categories = {arc: asked(nlp, TEXT, forced=[arc]).cats for arc in ARCS}
    assert len({round(cats["good"], 5) for cats in categories.values()}) > len(ARCS) / 2
    after = nlp(TEXT)
    assert after.cats == before.cats and nlp.to_bytes() == weights
    np.testing.assert_array_equal(arcs_of(after), arcs_of(before))
    assert intervention_on(editable_models(nlp)[NAME]) is None


def test_an_error_takes_the_intervention_with_it(nlp: Language) -> None:
    before = nlp(TEXT).cats
    with pytest.raises(NothingLeft):
        asked(nlp, TEXT, forced=[(0, 1), (2, 1)])
    with pytest.raises(NothingLeft):
        asked(nlp, TEXT, forbidden=[(head, 1) for head in (0, 2, 3, 4)])
    with pytest.raises(NothingLeft):
        # The forced arcs are a cycle.
        asked(nlp, TEXT, forced=[(2, 1), (1, 2)])
    assert nlp(TEXT).cats == before


@pytest.mark.parametrize("part", [(0, 5), (1, 1), (1, 0), (-1, 1), (1,), (1, 2, 3)])
def test_what_is_no_arc_of_the_text_is_refused(nlp: Language, part: tuple[int, ...]) -> None:
    with pytest.raises(LatentError, match=r"part|number"):
        asked(nlp, TEXT, forced=[part])


def test_places_and_names_that_are_not_there_are_refused(nlp: Language) -> None:
    with pytest.raises(LatentError, match="token 2"):
        asked(nlp, TEXT, start=2, forced=[(0, 1)])
    with (
        pytest.raises(LatentError, match="'ner'"),
        counterfactual(nlp, {"ner": Intervention()}),
    ):
        pass
    for temperature in (0.0, -1.0, float("inf"), float("nan"), "1"):
        with pytest.raises(LatentError, match="temperature"):
            Intervention(temperature=temperature)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "places", [((3, 1),), (0, (3, 1)), ((0, (3.0, 1.0)),), ((0, "31"),), ((0, (True, 2)),), 5]
)
def test_what_are_no_places_is_refused_where_it_is_given(places: Any) -> None:
    with pytest.raises(LatentError, match=r"forced.*\(\(0, \(3, 1\)\),\)"):
        Intervention(forced=places)


def test_places_in_lists_are_those_in_tuples(nlp: Language) -> None:
    listed: Any = [[0, [3, 1]]]
    assert Intervention(forced=listed) == Intervention(forced=((0, (3, 1)),))
    anything: Any = {NAME: listed}
    with (
        pytest.raises(LatentError, match="Intervention"),
        counterfactual(nlp, anything),
    ):
        pass


def test_temperature_divides_scores(nlp: Language) -> None:
    entropy = {}
    for temperature in (0.1, 1.0, 100.0):
        with counterfactual(nlp, {NAME: Intervention(temperature=temperature)}):
            p = arcs_of(nlp(TEXT))[:, 1:]
        entropy[temperature] = -(p * np.log(np.where(p > 0, p, 1))).sum()
    assert entropy[0.1] < entropy[1.0] < entropy[100.0]
    (node,) = latent_models(nlp.get_pipe(NAME).model)
    with counterfactual(nlp, {NAME: Intervention(temperature=4.0)}):
        hot = read_batch(node, [nlp.make_doc(TEXT)]).outputs[0].scores
    plain = read_batch(node, [nlp.make_doc(TEXT)]).outputs[0].scores
    np.testing.assert_allclose(4.0 * hot[0].numpy(), plain[0].numpy(), rtol=1e-5)


def test_threads_do_not_see_what_is_asked_of_others(nlp: Language) -> None:
    wanted = {arc: asked(nlp, TEXT, forced=[arc]).cats for arc in ARCS[:4]}
    plain = nlp(TEXT).cats
    barrier, wrong = threading.Barrier(5), []

    def work(arc: tuple[int, int] | None) -> None:
        barrier.wait()
        for _ in range(20):
            found = nlp(TEXT) if arc is None else asked(nlp, TEXT, forced=[arc])
            if found.cats != (plain if arc is None else wanted[arc]):
                wrong.append(arc)

    threads = [threading.Thread(target=work, args=(arc,)) for arc in (*wanted, None)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---------------------------------------------------------------- other components


def test_listeners_read_what_an_encoder_composes_by_another_tree() -> None:
    nlp = keyword_pipeline(TREE, steps=12)
    name = "latent_encoder"
    plain = nlp(TEXT)
    cats = {arc: asked(nlp, TEXT, name, forced=[arc]) for arc in ARCS}
    for (head, word), doc in cats.items():
        assert doc._.latent[name].spans[0].decoded[word - 1] == head
    assert len({round(doc.cats["good"], 6) for doc in cats.values()}) > len(ARCS) / 2
    assert nlp(TEXT).cats == plain.cats


def test_a_layer_inside_of_another_component() -> None:
    nlp = spacy.blank("xx")
    inline = {"@architectures": "spacy-latent.LatentTok2Vec.v1", **TREE}
    model = {"@architectures": "spacy.TextCatReduce.v1", "tok2vec": inline}
    model |= {f"use_reduce_{kind}": kind == "mean" for kind in ("first", "last", "max", "mean")}
    nlp.add_pipe("textcat", config={"model": {**model, "exclusive_classes": True}})
    made = keyword_examples(nlp, 8, heads=False)
    nlp.initialize(lambda: made)
    nlp.update(made, sgd=Adam(0.02))
    with counterfactual(nlp, {"textcat": Intervention(forced=((0, (4, 1)),))}):
        ((doc, _),) = inspect_pipe(nlp, [nlp.make_doc(TEXT)])
    assert doc._.latent["textcat"].spans[0].decoded[0] == 4
    assert doc.cats != nlp(TEXT).cats


def test_tags_of_entities() -> None:
    nlp = crf.trained(annotate="probabilities")
    text, tags = "I like London a lot", nlp.get_pipe("crf_ner").tags
    label = nlp(text).ents[0].label_
    unit, begin, last = (tags.index(f"{prefix}-{label}") for prefix in "UBL")
    assert not asked(nlp, text, "crf_ner", forced=[(2, 0)]).ents
    made = asked(nlp, text, "crf_ner", forced=[(2, begin), (3, last)])
    assert [(ent.text, ent.label_) for ent in made.ents] == [("London a", label)]
    assert made.ents[0]._.confidence == pytest.approx(1.0, abs=1e-6)
    # A forced tag is nearly certain even if the model is sure of another tag.
    assert asked(nlp, text, "crf_ner", forced=[(0, unit)]).ents[0]._.confidence > 0.999
    with pytest.raises(NothingLeft):
        asked(nlp, text, "crf_ner", forced=[(2, begin), (3, begin)])
    with pytest.raises(NothingLeft):
        asked(nlp, text, "crf_ner", forced=[(2, begin)], forbidden=[(2, begin)])
    sure = nlp(text)._.latent["crf_ner"].spans[0].probabilities.max()
    with counterfactual(nlp, {"crf_ner": Intervention(temperature=50.0)}):
        assert nlp(text)._.latent["crf_ner"].spans[0].probabilities.max() < sure
    assert nlp(text).ents[0].text == "London"


def test_heads_of_a_parser() -> None:
    nlp = parser.pipeline(annotate="probabilities")
    parser.trained(nlp, parser.parsed(nlp, *parser.PARSED), steps=20)
    text = parser.PARSED[0][0]
    span = nlp(text)._.latent["latent_parser"].spans[0]
    word = next(i for i, head in enumerate(span.decoded.tolist(), 1) if head)
    others = [h for h in range(1, len(span) + 1) if h not in (word, span.decoded[word - 1])]
    found = [asked(nlp, text, "latent_parser", forced=[(head, word)]) for head in others]
    for head, doc in zip(others, found):
        assert doc[word - 1].head.i == head - 1
        assert doc._.latent["latent_parser"].spans[0].decoded[word - 1] == head
    other = asked(nlp, text, "latent_parser", forbidden=[(int(span.decoded[word - 1]), word)])
    assert other[word - 1].head.i != span.decoded[word - 1] - 1
    with pytest.raises(NothingLeft):
        asked(nlp, text, "latent_parser", forced=[(head, word) for head in others[:2]])


def test_labelled_spans() -> None:
    nlp = spancat.trained(annotate="probabilities")
    label = nlp.get_pipe("tree_spancat").labels.index("NP")
    assert (0, 2, "NP") in spancat.found(nlp(spancat.FIRST))
    without = asked(nlp, spancat.FIRST, "tree_spancat", forbidden=[(0, 2, label)])
    assert (0, 2, "NP") not in spancat.found(without)
    crossing = asked(nlp, spancat.FIRST, "tree_spancat", forced=[(1, 3, label)])
    found = spancat.found(crossing)
    assert (1, 3, "NP") in found and (0, 2, "NP") not in found and (2, 5, "PP") not in found
    (group,) = crossing.spans.values()
    scores = dict(zip(found, group.attrs["scores"]))
    assert scores[1, 3, "NP"] == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(NothingLeft):
        asked(nlp, spancat.FIRST, "tree_spancat", forced=[(1, 3, label), (0, 2, label)])
    for part in [(0, 9, label), (0, 2, 9), (0, 2), (2, 1, label), (0, 2, -1)]:
        with pytest.raises(LatentError, match="label"):
            asked(nlp, spancat.FIRST, "tree_spancat", forced=[part])


def test_chosen_words_and_candidates() -> None:
    nlp = trained_rationale(rationale_pipeline(), 10)
    text = "this is a good film"
    for word in range(5):
        doc = asked(nlp, text, forced=[(word,)])
        assert word in doc._.latent[NAME].spans[0].decoded
        assert len(doc._.latent[NAME].spans[0].decoded) == 2
    with pytest.raises(NothingLeft):
        asked(nlp, text, forced=[(0,), (1,), (2,)])
    candidates = {"@misc": "spacy-latent.ContentWords.v1", "stop_words": False}
    nlp = trained_rationale(rationale_pipeline(candidates=candidates), 2)
    with pytest.raises(LatentError, match="Word 1"):
        asked(nlp, text, forced=[(0,)])


def test_pairs_of_words() -> None:
    nlp = pairs.trained(pairs.pipeline(), steps=2)

    def doc() -> Doc:
        return make_pair_doc(nlp, "the dog runs", "the dog runs fast")

    made = asked(nlp, doc(), forced=[(0, 3), (2, 0)])
    found = {(cell.source, cell.target) for cell in made._.latent[NAME].cells()}
    assert {(0, 6), (2, 3)} <= found
    with pytest.raises(NothingLeft):
        asked(nlp, doc(), forced=[(0, 0), (0, 1)])


def test_what_has_no_scores_of_parts_says_so() -> None:
    given = classifier(1, estimator={"@misc": "spacy-latent.GivenTrees.v1", "trees": "left"})
    assert uneditable(given) == {NAME: "they are given, not chosen by scores"}
    with pytest.raises(LatentError, match="chosen"):
        asked(given, TEXT, forced=[(0, 1)])
    assert given(TEXT).cats
    nlp = spacy.blank("xx")
    gumbel = {"@misc": "spacy-latent.GumbelTreeLstm.v1"}
    model = {"@architectures": "spacy-latent.ParserTok2Vec.v1", "tok2vec": EMBED, "parser": gumbel}
    nlp.add_pipe("latent_encoder", config={"model": model})
    nlp.initialize(lambda: keyword_examples(nlp, 4, heads=False))
    assert "while they are taken" in uneditable(nlp)["latent_encoder"]
    with pytest.raises(LatentError, match="edited"):
        asked(nlp, TEXT, "latent_encoder", forced=[(0, 1)])


def test_inspection_of_docs_follows(nlp: Language) -> None:
    with counterfactual(nlp, {NAME: Intervention(forced=((0, (3, 1)),))}):
        (doc,) = inspect_docs(nlp, [nlp(TEXT)])
    assert doc._.latent[NAME].spans[0].decoded[0] == 3
