"""The corpora of the control experiments for incomplete annotation."""

from __future__ import annotations

import random
from collections.abc import Iterable

import spacy
from spacy.tokens import Doc, Span

from benchmarks.incomplete_controls import (
    Sources,
    agreement,
    annotated,
    flags_of,
    negatives,
    self_trained,
    some_outside,
)
from benchmarks.label_models import of_labels
from benchmarks.learning_groups import MORE_CORPORA
from spacy_latent.corpora.incomplete import (
    flag_all_but,
    keep_some,
    simulate_sources,
    split_by_labels,
)

NLP = spacy.blank("en")
RULES = {"aspirin": "A", "fever": "B", "pain": "B"}
NLP.add_pipe("entity_ruler").add_patterns(
    [{"label": label, "pattern": word} for word, label in RULES.items() if word != "pain"]
)


def texts(count: int) -> list[Doc]:
    chance = random.Random(0)
    found = []
    for _ in range(count):
        words = chance.choices([*RULES, "the", "and", "with"], k=3)
        doc = Doc(NLP.vocab, words=words)
        ents = [Span(doc, i, i + 1, RULES[w]) for i, w in enumerate(words) if w in RULES]
        doc.set_ents(ents, default="outside")
        found.append(doc)
    return found


def test_negatives_are_complete() -> None:
    found = list(negatives(list(flag_all_but(texts(60), 5))))
    assert 5 < len(found) < 60
    assert all(token.ent_iob != 0 for doc in found for token in doc)
    assert all(not any(flags_of(doc).values()) for doc in found)


def test_the_model_annotates_and_flags_filter() -> None:
    given = list(flag_all_but(texts(60), 5))
    found = list(self_trained(given, NLP))
    flagged = [doc for doc in found if doc.cats]
    assert 0 < len(flagged) < 55
    for doc in flagged:
        there = {label for label, present in flags_of(doc).items() if present}
        # The model does not find "pain". A text is left out if it finds no entity of a flagged
        # label.
        assert {span.label_ for span in doc.ents} == there


def test_some_tokens_without_annotation_are_outside() -> None:
    before = list(keep_some(texts(300), 0.5))
    wanted = [[span.text for span in doc.ents] for doc in before]
    missing = sum(not token.ent_iob for doc in before for token in doc)
    after = list(some_outside(before, 0.25))
    assert [[span.text for span in doc.ents] for doc in after] == wanted
    tags = [token.ent_iob_ for doc in after for token in doc]
    assert tags.count("") + tags.count("O") == missing
    # The tolerance is four standard deviations of the share of about 700 draws.
    assert abs(tags.count("O") / missing - 0.25) < 0.07


def sources_of(texts: list[list[list[tuple[int, int, str]]]]) -> list[Doc]:
    """Return texts of three words in which each source wrote these spans."""
    found = []
    for own in texts:
        doc = Doc(NLP.vocab, words=["a", "b", "c"])
        for number, spans in enumerate(own, 1):
            doc.spans[f"source_{number}"] = [Span(doc, *one) for one in spans]
        found.append(doc)
    return found


def test_each_token_has_the_tag_with_most_votes() -> None:
    long, short, other = (0, 2, "A"), (0, 1, "A"), (2, 3, "B")
    docs = sources_of(
        [
            # Two of three sources include the second token.
            [[long], [long], [short]],
            # All three sources have "A"; only the third one has "B".
            [[short], [short], [short, other]],
            # "A", "B" and outside have one vote each, and outside wins ties.
            [[short], [(0, 1, "B")], []],
            [[], [], []],
        ]
    )
    sources = Sources(docs)
    assert sources.plurality == [{long}, {short}, set(), set()]
    # The first two sources agree best, each with one entity too many in the third text. The first
    # one wins the tie.
    assert sources.best_source() == [{long}, {short}, {(0, 1, "A")}, set()]
    made = list(annotated(docs, sources.plurality))
    assert [len(doc.ents) for doc in made] == [1, 1, 0, 0]
    assert not any(doc.spans for doc in made)
    assert all(token.ent_iob != 0 for doc in made for token in doc)


def test_the_hidden_markov_model_corrects_sources_and_does_not_drift() -> None:
    gold = [{(s.start, s.end, s.label_) for s in doc.ents} for doc in texts(300)]
    docs = list(simulate_sources(texts(300), [0.95, 0.9, 0.8]))
    assert agreement(Sources(docs).by_hmm(), gold) > 0.95
    sources = Sources(docs)
    before = agreement(sources.by_hmm(rounds=0), sources.plurality)
    assert agreement(Sources(docs).by_hmm(rounds=3), sources.plurality) >= before


def test_a_model_of_a_label_reads_the_texts_that_were_annotated_for_it() -> None:
    def entities(docs: Iterable[Doc], label: str) -> int:
        return sum(span.label_ == label for doc in docs for span in doc.ents)

    halves = list(split_by_labels(texts(60), [["A"], ["B"]]))
    found = list(of_labels(halves, {"A"}))
    assert len(found) == 30 and entities(found, "B") == 0
    assert entities(found, "A") == entities(halves, "A") > 0
    whole = list(of_labels(texts(60), {"A"}))
    assert len(whole) == 60 and entities(whole, "A") > 0 == entities(whole, "B")


def test_each_kind_of_annotation_has_a_control_in_every_corpus() -> None:
    for name, corpus in MORE_CORPORA.items():
        entries = corpus.entries(name)
        for kind in ("flags", "label_sets", "sparse", "sources"):
            own = [one for one in entries if one.config == f"ner_{kind}" and not one.is_control]
            controls = [one for one in entries if kind in one.what and one.is_control]
            assert len(own) == 1 and len(controls) >= 2
