"""Corpora of the controls of incomplete annotation."""

from __future__ import annotations

import random

import spacy
from spacy.tokens import Doc, Span

from benchmarks.incomplete_controls import aggregated, flags_of, negatives, self_trained
from benchmarks.learning_groups import MORE_CORPORA
from spacy_latent.corpora.incomplete import flag_all_but, simulate_sources

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
        # The model does not know "pain": texts with a flag for it alone are left out.
        assert {span.label_ for span in doc.ents} == there


def test_the_hidden_markov_model_corrects_sources() -> None:
    gold = [{(s.start, s.end, s.label_) for s in doc.ents} for doc in texts(300)]
    made = list(aggregated(list(simulate_sources(texts(300), [0.95, 0.9, 0.8]))))
    found = [{(s.start, s.end, s.label_) for s in doc.ents} for doc in made]
    right = sum(len(own & other) for own, other in zip(found, gold))
    assert right / sum(map(len, gold)) > 0.95 and right / sum(map(len, found)) > 0.95
    assert not any(doc.spans for doc in made)


def test_each_kind_of_annotation_has_a_control_in_every_corpus() -> None:
    for name, corpus in MORE_CORPORA.items():
        entries = corpus.entries(name)
        for kind in ("flags", "label_sets", "sparse", "sources"):
            own = [one for one in entries if one.config == f"ner_{kind}" and not one.is_control]
            controls = [one for one in entries if kind in one.what and one.is_control]
            assert len(own) == 1 and len(controls) >= 2
