"""Getters of the spans of a doc that have a structure each."""

from __future__ import annotations

import spacy
from spacy.tokens import Doc

from spacy_latent.models.span_getters import SentenceSpans


def test_sentences_of_a_hook_may_come_in_any_order_and_leave_out_tokens() -> None:
    doc = Doc(spacy.blank("en").vocab, words=list("abcdef"))
    doc.user_hooks["sents"] = lambda doc: iter([doc[3:5], doc[3:3], doc[1:3]])
    assert SentenceSpans()([doc]) == [[(0, 1), (1, 3), (3, 6)]]
    doc.user_hooks["sents"] = lambda doc: iter([])
    assert SentenceSpans(max_length=4)([doc]) == [[(0, 3), (3, 6)]]
