"""Docs with structures of every kind, and texts that try to inject code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import spacy
from spacy.tokens import Doc
from spacy.vocab import Vocab

from spacy_latent.annotations import SpanStructure, write

INJECTIONS = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</text></svg><script>alert(1)</script>",
    "</title><img src=x onerror=alert(1)>",
    "</style><b onload=alert(1)>",
    "\"'><svg/onload=alert(1)>",
    "' onmouseover='alert(1)",
    "<a href=javascript:alert(1)>x</a>",
    "<!--",
    "-->",
    "<![CDATA[",
    "]]>",
    "&lt;script&gt;",
    "&#60;b&#62;",
    "&amp;",
    "{0}{text}%s",
    "\x00\x01\x1b[31m\x7f\x85",
    "\u202e\u2066cod.exe",
    "\u2069\u2069\u202elive",
    "\u2028\u2029",
    "\r\n\t",
    "   ",
    "\u200b",
    "\ufffe\uffff",
    "\ud800",
    "日本語",
    "مرحبا",
    "👩\u200d👩\u200d👧",
    "e\u0301" * 3,
    "long" * 100,
]


@cache
def vocab(lang: str) -> Vocab:
    return spacy.blank(lang).vocab


def annotated(
    kind: str,
    decoded: Any,
    parts: Mapping[tuple[int, ...], float] | None = None,
    words: Sequence[str] = ("a", "b", "c", "d"),
    lang: str = "xx",
    name: str = "encoder",
    **options: Any,
) -> Doc:
    doc = Doc(vocab(lang), words=list(words))
    end = options.pop("end", len(words))
    span = SpanStructure(0, end, "Some", kind, np.array(decoded, dtype="int32"), **options)
    if parts is not None:
        span.parts = np.array(list(parts), dtype="int32")
        span.probabilities = np.array(list(parts.values()), dtype="float32")
    write(doc, name, [span])
    return doc


def every_kind(words: Sequence[str], lang: str = "xx") -> dict[str, Doc]:
    """Return a doc for each kind of parts, with probabilities and two alternatives."""
    n = len(words)
    other = n // 2
    decoded: dict[str, Any] = {
        "heads": np.arange(n),
        "arcs": [[i, i + 1] for i in range(n)],
        "items": np.arange(0, n, 2),
        "tags": np.arange(n) % 3,
        "spans": [[0, n - 1], [0, n // 2]],
        "segments": [[0, other, 1], [other, n, 0]],
        "phrases": [[0, n, 1], [0, other, 0], [other, n, 0]],
        "cells": [[i, n - other - 1 - i] for i in range(other)],
    }
    docs = {}
    for kind, best in decoded.items():
        best = np.array(best, dtype="int32")
        if kind == "heads":
            parts = {(h, m): 0.5 for m, h in enumerate(best.tolist(), 1)} | {(n, 1): 0.4}
        elif kind == "tags":
            parts = {(i, tag): 0.5 for i, tag in enumerate(best.tolist())} | {(0, 2): 0.4}
        else:
            parts = {tuple(np.atleast_1d(part).tolist()): 0.5 for part in best}
        options = {"end": other, "other_start": other, "other_end": n} if kind == "cells" else {}
        alternatives = [(best, 0.75), (best, 0.25)]
        docs[kind] = annotated(kind, best, parts, words, lang, alternatives=alternatives, **options)
    return docs
