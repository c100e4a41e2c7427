"""The component ``latent_parser``, which replaces spaCy's ``parser``.

Tests of its training data, its annotations, its errors, and its use by other components.
"""

from __future__ import annotations

import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.matcher import DependencyMatcher
from spacy.tokens import Doc, DocBin
from spacy.training import Example

from spacy_latent.annotations import Dependency
from spacy_latent.errors import IncompatiblePair, LatentError, LatentWarning, NotTractable
from spacy_latent.models import tree_losses
from spacy_latent.models.gold_trees import GoldTrees, read_gold
from spacy_latent.models.labelled_parser import module_of
from spacy_latent.models.sentences import find_sentences, hosts_of_space, log_of_bounds
from spacy_latent.structures.spanning_tree import SpanningTree
from tests.pipeline.small_pipelines import LISTENER, TOK2VEC, examples, initialized, learn, step


def tree(name: str, **settings: Any) -> dict[str, Any]:
    return {"@misc": f"spacy-latent.{name}.v1", "single_root": True, **settings}


SPANNING, PROJECTIVE = tree("SpanningTree"), tree("ProjectiveTree")
SHORT = tree("SpanningTree", max_arc_length=1)
MODEL: dict[str, Any] = {
    "tok2vec": TOK2VEC,
    "structure": SPANNING,
    "scorer": {
        "@misc": "spacy-latent.RelativeBiaffineScorer.v1",
        "hidden_width": 16,
        "encoder": {"@misc": "spacy-latent.BiLSTM.v1", "hidden_width": 8},
    },
    "label_hidden_width": 8,
}
# Sentences with the labels of the treebanks that spaCy's English pipelines are trained on.
PARSED = [
    ("She saw the old dog", [1, 1, 4, 4, 1], "nsubj ROOT det amod dobj"),
    ("He left", [1, 1], "nsubj ROOT"),
    ("The old dog left", [2, 2, 3, 3], "det amod nsubj ROOT"),
    ("She saw him", [1, 1, 1], "nsubj ROOT dobj"),
]


def pipeline(**config: Any) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("latent_parser", config={"model": MODEL, **config})
    return nlp


def parsed(nlp: Language, *rows: tuple[str, list[int], str]) -> list[Example]:
    return [
        Example.from_dict(nlp.make_doc(text), {"heads": heads, "deps": deps.split()})
        for text, heads, deps in rows or PARSED
    ]


def joined(nlp: Language) -> list[Example]:
    """Return two docs with all sentences of PARSED, one of them in reverse order."""
    made = []
    for rows in (PARSED, PARSED[::-1]):
        heads: list[int] = []
        for _, own, _ in rows:
            # A list, since a generator would read the length of the growing list.
            heads += [len(heads) + head for head in own]
        made += parsed(
            nlp,
            (" ".join(text for text, _, _ in rows), heads, " ".join(deps for _, _, deps in rows)),
        )
    return made


def trained(nlp: Language, sample: list[Example], steps: int = 40) -> Language:
    optimizer = initialized(nlp, sample=sample)
    learn(nlp, sample, steps, optimizer)
    return nlp


def tree_of(doc: Doc) -> list[tuple[int, str]]:
    return [(token.head.i, token.dep_) for token in doc]


def parser_of(nlp: Language) -> Any:
    return nlp.get_pipe("latent_parser")


def latent(doc: Doc) -> Any:
    return doc._.latent["latent_parser"]


@pytest.fixture(scope="module")
def nlp() -> Language:
    made = pipeline(annotate="probabilities", alternatives=3, threshold=0.0)
    return trained(made, joined(made) + parsed(made))


@pytest.mark.parametrize("structure", [SPANNING, PROJECTIVE])
def test_it_learns_sentences_trees_and_labels(structure: dict[str, Any]) -> None:
    made = pipeline(model={**MODEL, "structure": structure})
    sample = joined(made) + parsed(made)
    scores = trained(made, sample).evaluate(sample)
    assert scores["dep_uas"] == scores["dep_las"] == scores["sents_f"] == 1.0
    doc = made("He left She saw him")
    assert [sentence.text for sentence in doc.sents] == ["He left", "She saw him"]
    wanted = [(1, "nsubj"), (1, "ROOT"), (3, "nsubj"), (3, "ROOT"), (3, "dobj")]
    assert tree_of(doc) == wanted
    labels = parser_of(made).labels
    assert labels == ("ROOT", "amod", "det", "dobj", "nsubj")


def test_stock_components_and_matchers_read_its_parse(nlp: Language) -> None:
    words, classes = "She saw the old dog".split(), ["PRON", "VERB", "DET", "ADJ", "NOUN"]
    doc = nlp(Doc(nlp.vocab, words=words, pos=classes))
    assert [chunk.text for chunk in doc.noun_chunks] == ["She", "the old dog"]
    matcher = DependencyMatcher(nlp.vocab)
    verb = {"RIGHT_ID": "verb", "RIGHT_ATTRS": {"DEP": "ROOT"}}
    what = {
        "LEFT_ID": "verb",
        "REL_OP": ">",
        "RIGHT_ID": "what",
        "RIGHT_ATTRS": {"DEP": "dobj"},
    }
    matcher.add("DO", [[verb, what]])
    ((_, places),) = matcher(doc)
    assert [doc[i].text for i in places] == ["saw", "dog"]
    ruled = spacy.blank("en")
    ruled.add_pipe("latent_parser", source=nlp)
    ruler: Any = ruled.add_pipe("attribute_ruler")
    ruler.add([[{"DEP": "nsubj"}]], {"TAG": "SUBJECT"})
    assert [token.tag_ for token in ruled("He left")] == ["SUBJECT", ""]


# ---------------------------------------------------------------- annotations


def test_probabilities_of_arcs_labels_and_trees(nlp: Language) -> None:
    doc = nlp("The dog saw old him")
    (span,) = latent(doc).spans
    assert [(head, label) for head, label in tree_of(doc)] == [
        (found.modifier if found.head is None else found.head, found.label)
        for found in latent(doc).dependencies()
    ]
    _, modifiers = span.parts.T
    np.testing.assert_allclose(np.bincount(modifiers, span.probabilities)[1:], 1.0, atol=1e-4)
    arcs = {tuple(part): p for part, p in zip(span.parts.tolist(), span.probabilities)}
    summed = dict.fromkeys(arcs, 0.0)
    for (head, modifier, _), p in zip(span.labelled_parts.tolist(), span.labelled_probabilities):
        summed[head, modifier] += p
    for arc, p in arcs.items():
        assert summed[arc] == pytest.approx(p, abs=1e-5)
    trees, weights = zip(*span.alternatives)
    assert len(trees) == 3 and list(weights) == sorted(weights, reverse=True)
    assert trees[0].tolist() == span.decoded.tolist()
    assert latent(doc).dependencies(alternative=0) == latent(doc).dependencies()
    with pytest.raises(LatentError, match="alternative"):
        latent(doc).dependencies(alternative=30)
    above = latent(doc).dependencies(threshold=0.2)
    assert above and all(found.probability >= 0.2 for found in above)
    # With a threshold, an arc may be there with several labels. In a tree it has one label.
    assert len(latent(doc).dependencies(threshold=0.0)) > len(doc)


def test_the_probability_of_a_whole_tree_is_that_of_all_it_has(nlp: Language) -> None:
    words = "The dog saw old him".split()
    given = Doc(nlp.vocab, words=words, sent_starts=[True, False, False, False, False])
    (span,) = latent(nlp(given)).spans
    # The bounds of the sentence are given, so only the tree contributes to the probability.
    assert span.whole_probability == pytest.approx(span.alternatives[0][1], rel=1e-4)
    arcs = {tuple(part): p for part, p in zip(span.parts.tolist(), span.probabilities)}
    both = {tuple(p): q for p, q in zip(span.labelled_parts.tolist(), span.labelled_probabilities)}
    labels = 1.0
    for m, (head, label) in enumerate(zip(span.decoded.tolist(), span.arc_labels.tolist()), 1):
        labels *= both[head, m, label] / arcs[head, m]
    product = span.whole_probability * labels
    assert span.labelled_whole_probability == pytest.approx(product, rel=1e-3)
    # Bounds that the parser finds multiply the probability by their own.
    (found,) = latent(nlp(Doc(nlp.vocab, words=words))).spans
    assert found.decoded.tolist() == span.decoded.tolist()
    assert 0 < found.whole_probability < span.whole_probability
    assert 0 < found.labelled_whole_probability < found.whole_probability


def test_bounds_of_sentences_are_as_probable_as_their_starts() -> None:
    doc = Doc(spacy.blank("en").vocab, words=["a", "b", "\n", "c", "d"])
    # The odds of a start are 3 to 1 at c, and 1 to 4 at b and at d.
    scores = np.array([-5.0, -np.log(4), 7.0, np.log(3), -np.log(4)])
    found = np.exp(log_of_bounds(doc, scores, [(0, 3), (3, 5)]))
    assert found == pytest.approx([0.8 * 0.75, 0.75 * 0.8])
    assert np.exp(log_of_bounds(doc, scores, [(0, 5)])) == pytest.approx([0.8 * 0.25 * 0.8])
    doc[3].is_sent_start = True
    assert np.exp(log_of_bounds(doc, scores, [(0, 3), (3, 5)])) == pytest.approx([0.8, 0.8])


def test_stored_trees_are_read_with_alternatives_and_thresholds(nlp: Language) -> None:
    doc = nlp("She saw the old dog")
    (copy,) = DocBin(docs=[doc], store_user_data=True).get_docs(spacy.blank("en").vocab)
    last = max(len(span.alternatives) for span in latent(doc).spans) - 1
    for options in ({"alternative": last}, {"threshold": 0.01}):
        assert latent(copy).dependencies(**options) == latent(doc).dependencies(**options)
    (drawing,) = latent(doc).to_displacy()
    assert drawing["arcs"][0]["label"].startswith("nsubj ")


def test_labels_are_written_without_probabilities_too(nlp: Language) -> None:
    quiet = pipeline()
    trained(quiet, parsed(quiet), 5)
    doc = quiet("He left")
    assert {found.probability for found in latent(doc).dependencies()} == {None}
    (drawing,) = latent(doc).to_displacy()
    assert [arc["label"] for arc in drawing["arcs"]] == ["nsubj"]
    with pytest.raises(LatentError, match='annotate = "probabilities"'):
        latent(doc).dependencies(threshold=0.5)
    parser_of(quiet).cfg["annotate"] = "none"
    silent = quiet("He left")
    assert tree_of(silent) == tree_of(doc) and "latent_parser" not in silent._.latent


def test_trees_without_labels_say_so() -> None:
    made = spacy.blank("en")
    made.add_pipe("latent_encoder", config={"model": {"tok2vec": TOK2VEC}})
    initialized(made)
    with pytest.raises(LatentError, match="'latent_encoder'"):
        made("He left")._.latent["latent_encoder"].dependencies()


# ---------------------------------------------------------------- sentences


def test_starts_that_are_set_stay(nlp: Language) -> None:
    words = "He left She saw him".split()
    doc = nlp(Doc(nlp.vocab, words=words, sent_starts=[True, False, False, False, False]))
    assert len(list(doc.sents)) == 1 and len([t for t in doc if t.dep_ == "ROOT"]) == 1
    doc = nlp(Doc(nlp.vocab, words=words, sent_starts=[None, True, None, None, None]))
    assert [sentence.start for sentence in doc.sents] == [0, 1, 2]
    # An earlier parse is overwritten.
    again = nlp(doc.copy())
    assert tree_of(again) == tree_of(doc)


def test_white_space_hangs_on_the_word_before_it(nlp: Language) -> None:
    doc = nlp("She  saw the\n\nold dog \n He left")
    without = nlp("She saw the old dog He left")
    words = [token for token in doc if not token.is_space]
    for own, other in zip(words, without, strict=True):
        assert own.is_space is other.is_space is False
    for token in doc:
        if token.is_space:
            assert token.head.i == max(word.i for word in words if word.i < token.i)
            assert token.dep_ == "dep" and not token.is_sent_start
    assert [token.text for token in nlp(" \n He left") if token.head.i == token.i] == ["left"]
    assert [token.dep_ for token in nlp("  ")] == ["ROOT"]


def test_white_space_may_be_a_root_where_arcs_are_bound() -> None:
    nlp = pipeline(model={"structure": SHORT}, annotate="probabilities")
    initialized(nlp, sample=parsed(nlp))
    doc = nlp("   He left")
    for token in doc:
        assert (token.dep_ == "ROOT") == (token.head.i == token.i)
    (span,) = latent(doc).spans
    arcs, labelled = np.zeros((2, len(doc) + 1, len(doc) + 1))
    np.add.at(arcs, tuple(span.parts.T), span.probabilities)
    np.add.at(labelled, tuple(span.labelled_parts[:, :2].T), span.labelled_probabilities)
    assert (labelled <= arcs + 1e-5).all()


def test_hosts_of_white_space() -> None:
    def hosts(*spaces: int) -> list[int] | None:
        found = hosts_of_space(np.array(spaces, dtype=bool))
        return None if found is None else found.tolist()

    assert hosts(1, 1, 0, 1, 0, 1) == [2, 2, -1, 2, -1, 4]
    assert hosts(0, 0) is None and hosts(1, 1) is None


def test_sentences_from_scores() -> None:
    doc = Doc(spacy.blank("en").vocab, words=["a", "b", "\n", "c", "d", "e", "f", "g"])
    scores = np.array([-9.0, -3.0, 5.0, 2.0, -1.0, -0.5, -2.0, -4.0])
    assert find_sentences(doc, scores, 100) == [(0, 3), (3, 8)]
    # A sentence of five tokens is too long, and is split at the highest score near its middle.
    assert find_sentences(doc, scores, 4) == [(0, 3), (3, 5), (5, 8)]
    assert all(end - start == 1 for start, end in find_sentences(doc, scores, 1))
    doc[4].is_sent_start, doc[3].is_sent_start = True, False
    assert find_sentences(doc, scores, 100) == [(0, 4), (4, 8)]


def test_a_long_doc(nlp: Language) -> None:
    # A copy, since sourcing would share the component with the other tests.
    made = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    parser = parser_of(made)
    parser.cfg.update(annotate="map", alternatives=0)
    doc = made(Doc(made.vocab, words=["He", "left"] * 1_000))
    assert [sentence.start for sentence in doc.sents] == list(range(0, 2_000, 2))
    parser.model.attrs["max_length"] = 100
    one = made(Doc(made.vocab, words=["He"] * 300, sent_starts=[True] + [False] * 299))
    assert max(len(span) for span in latent(one).spans) <= 100
    assert all(token.has_head() for token in one)


# ---------------------------------------------------------------- training data


def gold_of(reference: Doc, words: list[str], *labels: str) -> GoldTrees:
    """Return the gold trees for a doc of these words, read from a reference."""
    places = {reference.vocab.strings[label]: i for i, label in enumerate(labels)}
    return read_gold(Example(Doc(reference.vocab, words=words), reference), places, "x", 512)


def tree_loss(structure: Any, heads: list[int], scores: torch.Tensor) -> float:
    lengths = torch.tensor([len(heads)])
    known = np.array([heads])
    agreeing = tree_losses._agreeing(scores, known)
    loss, bad = tree_losses._tree_loss(structure, scores, agreeing, lengths, known)
    assert not bad
    return float(loss)


def test_a_partial_tree_counts_as_all_that_agree_with_it() -> None:
    """The loss equals an explicit sum over the trees of three tokens."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(1, 4, 4, generator=generator)

    def total(known: list[int]) -> float:
        value = 0.0
        for heads in product(range(4), repeat=3):
            seen = [[m, heads[m - 1]] for m in (1, 2, 3)]
            for path in seen:
                while path[-1] and len(path) < 5:
                    path.append(heads[path[-1] - 1])
            is_tree = all(path[-1] == 0 for path in seen) and heads.count(0) == 1
            if is_tree and all(k in (-1, h) for k, h in zip(known, heads)):
                value += float(
                    torch.stack([scores[0, h, m + 1] for m, h in enumerate(heads)]).sum().exp()
                )
        return value

    for known in ([2, 0, 2], [-1, 0, -1], [3, -1, -1], [-1, 1, 0]):
        wanted = np.log(total([-1, -1, -1])) - np.log(total(known))
        assert tree_loss(SpanningTree(single_root=True), known, scores) == pytest.approx(
            wanted, abs=1e-5
        )


def test_crossing_arcs_count_as_unknown_where_none_may_cross() -> None:
    heads = np.array([3, 4, 0, 3, -1])
    assert tree_losses.crossing(heads).tolist() == [True, True, True, False, False]
    assert not tree_losses.crossing(np.array([2, 0, 2, -1])).any()
    made = pipeline(model={**MODEL, "structure": PROJECTIVE})
    crossed = parsed(made, ("a b c d", [2, 3, 2, 2], "x x ROOT x"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        trained(made, crossed, 3)


def test_heads_that_no_tree_has_are_named_once() -> None:
    made = pipeline(model={"structure": SHORT})
    sample = parsed(made, ("He never left", [2, 2, 2], "nsubj neg ROOT"))
    optimizer = initialized(made, sample=sample)
    others = parsed(made, ("She often leaves", [2, 2, 2], "nsubj neg ROOT"))
    with pytest.warns(LatentWarning, match=r"1.*'He never"):
        made.update(sample, sgd=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        made.update(others, sgd=optimizer)
    words = ["two", "roots"]
    reference = Doc(made.vocab, words=words, heads=[0, 1], deps=["ROOT", "ROOT"])
    assert gold_of(reference, words).spans == [(0, 1), (1, 2)]
    # A word without a head may be of either sentence. The doc is then one span, and the heads of
    # its two roots are unknown.
    words = ["two", "of", "more", "roots"]
    deps = ["ROOT", "prep", None, "ROOT"]
    reference = Doc(made.vocab, words=words, heads=[0, 0, None, 3], deps=deps)
    gold = gold_of(reference, words, "prep")
    assert gold.spans == [(0, 4)] and gold.heads.tolist() == [-1, 0, -1, -1]


def test_of_a_word_with_a_head_that_is_labelled_as_a_root_the_head_is_learned() -> None:
    made = pipeline()
    sample = parsed(made, ("She saw him", [1, 1, 1], "nsubj ROOT ROOT"))
    with pytest.warns(LatentWarning, match="'ROOT'"):
        trained(made, sample, 40)
    assert parser_of(made).labels == ("ROOT", "nsubj")
    assert [head for head, _ in tree_of(made("She saw him"))] == [1, 1, 1]


def test_partial_trees_teach_what_they_have() -> None:
    """One head of five is annotated. The other heads and the starts of sentences have no loss."""
    made = pipeline()
    words = "She saw the old dog".split()
    reference = Doc(
        made.vocab,
        words=words,
        heads=[None, None, None, 4, None],
        deps=[None, None, None, "amod", None],
    )
    example = Example(Doc(made.vocab, words=words), reference)
    initialized(made, sample=parsed(made))
    gold = gold_of(reference, words, "amod")
    assert gold.heads.tolist() == [-1, -1, -1, 4, -1] and gold.labels.tolist()[3] == 0
    assert gold.spans == [(0, 5)] and (gold.starts == -1).all()
    trained(made, [example], 30)
    doc = made(Doc(made.vocab, words=words, sent_starts=[True] + [False] * 4))
    assert (doc[3].head.i, doc[3].dep_) == (4, "amod")
    nothing = Example(made.make_doc("He left"), made.make_doc("He left"))
    assert made.update([nothing])["latent_parser"] == 0.0


def test_words_of_references_without_heads_do_not_count_in_scores(nlp: Language) -> None:
    """Texts without any head come first, and other texts lack some heads."""
    texts = [text for text, _, _ in PARSED]
    whole = [nlp(text) for text in texts]
    nothing = [nlp.make_doc(text) for text in texts]
    some = []
    for doc in whole:
        heads = [None if i == 0 else token.head.i for i, token in enumerate(doc)]
        deps = ["" if i == 0 else token.dep_ for i, token in enumerate(doc)]
        some.append(Doc(nlp.vocab, words=[token.text for token in doc], heads=heads, deps=deps))

    def scores(references: list[Doc]) -> dict[str, Any]:
        found = nlp.evaluate([Example(nlp.make_doc(one.text), one) for one in references])
        return {key: found[key] for key in ("dep_uas", "dep_las", "sents_f")}

    right = {"dep_uas": 1.0, "dep_las": 1.0, "sents_f": 1.0}
    assert scores(whole) == scores([*nothing, *some, *whole]) == right
    assert scores(some) == {**right, "sents_f": None}
    assert set(scores(nothing).values()) == {None}
    # References of another vocab, as from another pipeline.
    others = DocBin(docs=[*nothing, *some]).get_docs(spacy.blank("en").vocab)
    assert scores([*others, *whole]) == right
    # One known head is wrong.
    wrong = some[1].copy()
    wrong[1].head, wrong[1].dep_ = wrong[0], "nsubj"
    known = sum(len(doc) - 1 for doc in some)
    assert scores([some[0], wrong, *some[2:]])["dep_uas"] == pytest.approx(1 - 1 / known)


@pytest.mark.parametrize("known", [True, False])
def test_tokens_that_join_words_without_heads_do_not_count_in_scores(
    nlp: Language, known: bool
) -> None:
    """The prediction has one token for "can" and "not", and the reference may know other heads."""
    words = ["She", "can", "not", "see", "him"]
    heads: list[int | None] = [3, None, None, 3, 3] if known else [None] * 5
    deps = ["nsubj", "", "", "ROOT", "dobj"] if known else [""] * 5
    spaces = [True, False, True, True, False]
    reference = Doc(nlp.vocab, words=words, spaces=spaces, heads=heads, deps=deps)
    words, deps = ["She", "cannot", "see", "him"], ["nsubj", "aux", "ROOT", "dobj"]
    predicted = Doc(nlp.vocab, words=words, heads=[2, 2, 2, 2], deps=deps)
    before = [token.dep_ for token in predicted]
    whole = nlp(PARSED[0][0])
    parser = parser_of(nlp)

    def scores(*examples: Example) -> list[Any]:
        found = parser.score(examples)
        return [found["dep_uas"], found["dep_las"]]

    partly = Example(predicted, reference)
    assert scores(Example(whole, whole), partly) == [1.0, 1.0]
    assert scores(partly) == ([1.0, 1.0] if known else [None, None])
    # The prediction itself stays as it is.
    assert [token.dep_ for token in predicted] == before


def test_whole_trees_that_meet_teach_starts_beside_sentences_without_heads() -> None:
    made = pipeline()
    rng = np.random.default_rng(0)
    for _ in range(100):
        heads: list[int | None] = []
        true, known = [], []
        before_is_whole = True
        for size in rng.integers(1, 5, rng.integers(1, 7)).tolist():
            first, root = len(heads), int(rng.integers(size))
            # Each word between the root and an end is headed by its neighbour or by the root.
            own = [
                first + int(rng.choice([root, i + (1 if i < root else -1)]))
                if i != root
                else first + i
                for i in range(size)
            ]
            is_whole = rng.random() < 0.7
            heads += own if is_whole else [None] * size
            true += [1] + [0] * (size - 1)
            known += [is_whole and before_is_whole] * size
            before_is_whole = is_whole
        if all(head is None for head in heads):
            continue
        words = [f"w{i}" for i in range(len(heads))]
        deps = [None if h is None else "ROOT" if h == i else "x" for i, h in enumerate(heads)]
        gold = gold_of(Doc(made.vocab, words=words, heads=heads, deps=deps), words, "x")
        wanted = [start if is_known else -1 for start, is_known in zip(true, known)]
        assert gold.starts.tolist() == wanted
        spans = np.flatnonzero(np.array(wanted) == 1).tolist()
        assert [start for start, _ in gold.spans] == sorted({0, *spans})
        arcs = [i for i, head in enumerate(heads) if head not in (None, i)]
        assert [gold.heads[i] for i in arcs] == [heads[i] for i in arcs]


def test_whole_trees_that_meet_teach_starts_with_other_tokens() -> None:
    made = pipeline()
    reference = Doc(
        made.vocab,
        words=["He", "ca", "n't", "She", "\n", "will", "go", "now", "They", "left"],
        spaces=[True, False, True, True, False, True, True, True, True, False],
        heads=[1, 1, 1, 5, 3, 5, None, 5, 9, 9],
        deps=["s", "ROOT", "n", "s", "dep", "ROOT", None, "n", "s", "ROOT"],
    )
    words = ["He", "can't", "She", "\n", "will", "go", "now", "They", "left"]
    gold = gold_of(reference, words, "s", "n")
    labels = {made.vocab.strings[label]: i for i, label in enumerate(("s", "n"))}
    # The second sentence is no whole tree, so neither its own start nor the next is known.
    assert gold.starts.tolist() == [1, 0, -1, -1, -1, -1, -1, -1, -1]
    # Sentences that are set on the prediction are kept.
    doc = Doc(made.vocab, words=words, sent_starts=[i in (0, 2, 7) for i in range(len(words))])
    assert read_gold(Example(doc, reference), labels, "x", 512).spans == [(0, 2), (2, 7), (7, 9)]


def test_sentence_starts_alone_teach_sentences() -> None:
    made = pipeline()
    words = "He left She left".split()
    reference = Doc(made.vocab, words=words, sent_starts=[True, False, True, False])
    sample = [Example(Doc(made.vocab, words=words), reference)]
    optimizer = initialized(made, sample=parsed(made))
    learn(made, sample, 30, optimizer)
    assert [sentence.start for sentence in made(Doc(made.vocab, words=words)).sents] == [0, 2]


def test_some_sentence_starts_teach_no_others() -> None:
    """Each word is set as a start, as none, or not set. White space is never a start itself."""
    made = pipeline()
    words = ["a", "b", "\n", "c", "d"]
    for given in product([True, False, None], repeat=4):
        reference = Doc(made.vocab, words=words)
        for i, start in enumerate(given, 1):
            reference[i].is_sent_start = start
        behind_space = True if given[1] else given[2]
        known = [given[0], behind_space, given[3]]
        # As in spaCy, tokens are non-starts if starts alone are set.
        if False not in given:
            known = [False if one is None and any(given) else one for one in known]
        gold = gold_of(reference, words)
        wanted = [-1 if one is None else int(one) for one in known]
        assert gold.starts[[1, 3, 4]].tolist() == wanted
        assert gold.starts[2] == -1
        starts = [0, *(i for i, one in zip((1, 3, 4), wanted) if one == 1)]
        assert [start for start, _ in gold.spans] == starts


@pytest.mark.parametrize("words", [["He", "left", "She"], ["\n", "He", "left", "She"]])
def test_the_first_word_starts_a_sentence_without_annotation(words: list[str]) -> None:
    made = pipeline()
    optimizer = initialized(made, sample=parsed(made))
    reference = Doc(made.vocab, words=words)
    reference[-2].is_sent_start, reference[-1].is_sent_start = False, True
    learn(made, [Example(Doc(made.vocab, words=words), reference)], 1, optimizer)
    scores = made.evaluate([Example(Doc(made.vocab, words=words), reference)])
    assert scores["sents_f"] is not None


def test_some_sentence_starts_with_other_tokens() -> None:
    made = pipeline()
    reference = Doc(
        made.vocab,
        words=["He", "ca", "n't", "She", "will", "go"],
        spaces=[True, False, True, True, True, False],
    )
    reference[2].is_sent_start, reference[3].is_sent_start = False, True
    gold = gold_of(reference, ["He", "can't", "She", "will", "go"])
    assert gold.starts[1:].tolist() == [-1, 1, -1, -1]
    # The second part of a word starts no sentence, even if nothing is known about the word.
    reference = Doc(made.vocab, words=["He", "cannot", "She", "will"])
    reference[2].is_sent_start, reference[3].is_sent_start = True, False
    gold = gold_of(reference, ["He", "can", "not", "She", "will"])
    assert gold.starts[1:].tolist() == [-1, 0, 1, 0]


def test_texts_with_some_sentence_starts_do_not_count_in_scores() -> None:
    made = pipeline()
    optimizer = initialized(made, sample=parsed(made))
    words = "He left She left".split()
    whole = Doc(made.vocab, words=words, sent_starts=[True, False, True, False])
    learn(made, [Example(Doc(made.vocab, words=words), whole)], 30, optimizer)
    some = Doc(made.vocab, words=words, sent_starts=[True, False, None, None])

    def score(*references: Doc) -> Any:
        return made.evaluate([Example(Doc(made.vocab, words=words), one) for one in references])

    assert score(whole, some)["sents_f"] == 1.0
    assert score(some)["sents_f"] is None


def test_a_sentence_of_the_reference_that_begins_with_white_space() -> None:
    """White space at the start of a sentence has no loss; the start is at the first word.

    spaCy's sentencizer makes such sentences.
    """
    made = pipeline()
    words = ["He", "left", "\n", "She", "left", "\n"]
    starts = [True, False, True, False, False, True]
    reference = Doc(made.vocab, words=words, sent_starts=starts)
    gold = gold_of(reference, words)
    assert gold.starts.tolist() == [1, 0, -1, 1, 0, -1]
    assert gold.spans == [(0, 3), (3, 6)]


def test_the_first_word_of_a_doc_teaches_no_start_behind_white_space() -> None:
    made = pipeline()
    words = ["\n", "He", "left", "She", "left"]
    reference = Doc(made.vocab, words=words, sent_starts=[True, False, False, True, False])
    assert gold_of(reference, words).starts[1:].tolist() == [-1, 0, 1, 0]
    # Heads of white space alone say nothing of sentences.
    hanging = Doc(made.vocab, words=words, heads=[1, *[None] * 4], deps=["dep", *[None] * 4])
    assert set(gold_of(hanging, words).starts.tolist()) == {-1}


def test_a_doc_that_it_parsed_teaches_it_also_with_white_space() -> None:
    made = pipeline()
    optimizer = initialized(made, sample=parsed(made))
    before = parser_of(made).labels
    doc = made("He \n left")
    assert doc[1].dep_ not in before
    assert made.update([Example(made.make_doc(doc.text), doc)], sgd=optimizer)
    # The label of white space is not collected at initialization either.
    again = pipeline()
    initialized(again, sample=[*parsed(again), Example(again.make_doc(doc.text), doc)])
    assert set(parser_of(again).labels) == set(before)


def test_other_tokens_than_the_references() -> None:
    made = pipeline()
    reference = Doc(
        made.vocab,
        words=["She", "ca", "n't", "go", "He", "left"],
        spaces=[True, False, True, True, True, False],
        heads=[3, 3, 3, 3, 5, 5],
        deps=["nsubj", "aux", "neg", "ROOT", "nsubj", "ROOT"],
    )
    labels = ("aux", "neg", "nsubj")
    gold = gold_of(reference, ["She", "can't", "go", "He", "left"], *labels)
    assert gold.heads.tolist() == [2, -1, 2, 4, 4]
    assert gold.labels.tolist() == [2, -1, -1, 2, -1]
    assert gold.spans == [(0, 3), (3, 5)] and gold.starts.tolist() == [1, 0, 0, 1, 0]
    # White space without a head does not make a tree partial.
    heads, deps = [1, 1, None, 4, 4], ["nsubj", "ROOT", None, "nsubj", "ROOT"]
    words = ["He", "left", "\n", "She", "left"]
    spaced = Doc(made.vocab, words=words, heads=heads, deps=deps)
    assert gold_of(spaced, words, *labels).spans == [(0, 3), (3, 5)]
    gold = gold_of(reference, ["She", "\n", "ca", "n't", "go", "He", "left"], *labels)
    assert gold.heads.tolist() == [4, -1, 4, 4, 4, 6, 6]
    assert gold.spans == [(0, 5), (5, 7)]


# ---------------------------------------------------------------- labels


def test_labels_may_be_added_and_what_was_learned_stays() -> None:
    made = pipeline()
    trained(made, parsed(made))
    parser = parser_of(made)
    assert parser.label_data == ["amod", "det", "dobj", "nsubj"]
    before = [tree_of(made(text)) for text, _, _ in PARSED]
    assert parser.add_label("nsubj") == parser.add_label("ROOT") == 0
    known = module_of(parser.model).labeller.weight.detach().clone()
    assert parser.add_label("iobj") == 1
    assert torch.equal(module_of(parser.model).labeller.weight[:4], known)
    assert [tree_of(made(text)) for text, _, _ in PARSED] == before
    optimizer = made.resume_training()
    new = parsed(made, ("She gave him", [1, 1, 1], "nsubj ROOT iobj"))
    learn(made, new, 40, optimizer)
    assert made("She gave him")[2].dep_ == "iobj"
    again = spacy.blank("en").from_config(made.config).from_bytes(made.to_bytes())
    assert again("She gave him")[2].dep_ == "iobj"
    # The optimizer still has moments in the smaller shape of before.
    parser.add_label("vocative")
    learn(made, new, 2, optimizer)
    weight = module_of(parser.model).labeller.weight
    assert len(weight) == 6 and torch.isfinite(weight).all() and weight.abs().max() < 10


def test_without_arcs_nothing_breaks() -> None:
    made = pipeline()
    alone = parsed(made, ("Yes", [0], "ROOT"))
    with pytest.warns(LatentWarning, match="latent_parser"):
        trained(made, alone, 2)
    assert tree_of(made("Yes"))[0] == (0, "ROOT")
    assert {token.dep_ for token in made("Yes it is so")} <= {"ROOT", "dep"}


@pytest.mark.parametrize("given", ["arcs", "labels", "words"])
def test_what_there_is_to_learn_is_not_warned_of(given: str) -> None:
    evidence = {
        "@misc": "spacy-latent.EvidenceBound.v1",
        "decoder": {"@misc": "spacy-latent.WordsByHeads.v1"},
        "prior": {"@misc": "spacy-latent.LearnedArcPrior.v1"},
    }
    made = pipeline(model={**MODEL, "evidence": evidence} if given == "words" else MODEL)
    if given == "labels":
        made.config["initialize"]["components"] = {"latent_parser": {"labels": ["det"]}}
    bare = [Example(made.make_doc("He left"), made.make_doc("He left"))]
    with warnings.catch_warnings():
        warnings.simplefilter("error", LatentWarning)
        initialized(made, sample=parsed(made) if given == "arcs" else bare)


# ---------------------------------------------------------------- in pipelines


def test_an_encoder_composes_with_its_trees(nlp: Language) -> None:
    """``GivenTrees`` reads the heads that the parser wrote, in training and in prediction."""
    made = spacy.blank("en")
    made.add_pipe("latent_parser", source=nlp)
    estimator = {"@misc": "spacy-latent.GivenTrees.v1", "trees": "heads"}
    encoder = {"tok2vec": TOK2VEC, "structure": SPANNING, "estimator": estimator}
    made.add_pipe("latent_encoder", config={"model": encoder})
    tagger = {"@architectures": "spacy.Tagger.v2", "tok2vec": LISTENER}
    made.add_pipe("tagger", config={"model": tagger})
    with made.select_pipes(disable="latent_parser"):
        tagged = [Example(example.predicted, example.reference) for example in examples(made)]
        for example in tagged:
            parser_of(nlp)(example.predicted)
        optimizer = made.initialize(lambda: tagged)
    fresh = [Example(made.make_doc(e.reference.text), e.reference) for e in tagged]
    losses = made.update(
        fresh, sgd=optimizer, exclude=["latent_parser"], annotates=["latent_parser"]
    )
    assert losses["tagger"] > 0
    doc = made("She saw the old dog He left")
    assert doc._.latent["latent_encoder"].heads.tolist() == [token.head.i for token in doc]
    assert len(doc._.latent["latent_encoder"].spans) == 2


def test_commands_that_look_for_latent_layers_name_it_as_learned(nlp: Language) -> None:
    from spacy_latent.pipeline.inspection import choose_components

    with pytest.raises(LatentError, match="latent_parser"):
        choose_components(nlp, None)
    assert choose_components(nlp, None, annotating=True) == ["latent_parser"]


# ---------------------------------------------------------------- bad input


RELEASED = {
    "@misc": "spacy-latent.ReleasedStructure.v1",
    "restricted": {**SPANNING, "direction": "earlier"},
    "free": SPANNING,
    "release_at": 1,
}
ANOTHER_MODEL = {"@architectures": "spacy.Tagger.v2", "tok2vec": TOK2VEC}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"annotate": "all"}, "annotate"),
        ({"alternatives": -1}, "alternatives"),
        ({"model": ANOTHER_MODEL}, "LabelledParser.v1"),
        *(
            ({"model": {**MODEL, name: value}}, name)
            for name, value in (("max_length", 0), ("dropout", 1.0), ("scorer_learn_rate", -1.0))
        ),
    ],
)
def test_impossible_settings_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(LatentError, match=message):
        made = pipeline(**config)
        made.initialize(lambda: parsed(made))


@pytest.mark.parametrize(
    ("structure", "error", "message"),
    [
        (tree("ProjectiveTree", single_root=False), IncompatiblePair, "several"),
        ({"@misc": "spacy-latent.ConstituencyTree.v1"}, IncompatiblePair, "dependency trees"),
        (tree("BudgetTree", max_modifiers=2), NotTractable, "log_partition"),
        (
            RELEASED,
            IncompatiblePair,
            r"LabelledParser.*SpanningTree.*'any'.*SpanningTree.*'earlier'",
        ),
    ],
)
def test_impossible_structures_are_refused(
    structure: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        made = pipeline(model={**MODEL, "structure": structure})
        made.initialize(lambda: parsed(made))


def test_a_dependency_says_what_it_is(nlp: Language) -> None:
    found = latent(nlp("He left")).dependencies()
    assert [(d.head, d.modifier, d.label) for d in found] == [(1, 0, "nsubj"), (None, 1, "ROOT")]
    assert all(isinstance(d, Dependency) and d.probability for d in found)


# ---------------------------------------------------------------- encoders initialized from it


def started(path: Path, **model: Any) -> Language:
    made = spacy.blank("en")
    encoder = {"tok2vec": TOK2VEC, "structure": SPANNING, "scorer": MODEL["scorer"], **model}
    made.add_pipe("latent_encoder", config={"model": encoder})
    made.add_pipe(
        "tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": LISTENER}}
    )
    made.config["initialize"]["after_init"] = {
        "@callbacks": "spacy-latent.StartFromParser.v1",
        "path": str(path),
    }
    return made


def test_an_encoder_starts_with_the_trees_of_a_parser_and_is_let_go(
    nlp: Language, tmp_path: Path
) -> None:
    nlp.to_disk(tmp_path)
    made = started(tmp_path)
    optimizer = initialized(made)
    for text, _, _ in PARSED:
        doc = made(text)
        assert doc._.latent["latent_encoder"].heads.tolist() == [t.head.i for t in nlp(text)]
    own = module_of(parser_of(nlp).model).scorer.root
    for _ in range(2):
        losses = step(made, examples(made), optimizer)
    assert losses["latent_encoder"] > 0
    encoder: Any = made.get_pipe("latent_encoder")
    assert not torch.equal(encoder.model.layers[1].shims[0].module.latent.scorer.root, own)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"tok2vec": {**TOK2VEC, "depth": 2}}, "model.tok2vec"),
        ({"scorer": {**MODEL["scorer"], "hidden_width": 8}}, "model.scorer"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    nlp: Language, tmp_path: Path, model: dict[str, Any], message: str
) -> None:
    nlp.to_disk(tmp_path)
    with pytest.raises(LatentError, match=message):
        initialized(started(tmp_path, **model))


def test_a_pipeline_without_the_parser_is_refused(nlp: Language, tmp_path: Path) -> None:
    nlp.to_disk(tmp_path)
    other = started(tmp_path)
    other.config["initialize"]["after_init"]["parser"] = "parser"
    with pytest.raises(LatentError, match="'parser'"):
        initialized(other)
