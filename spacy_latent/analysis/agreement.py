"""Agreement of structures with controls, with reference brackets, and with other models."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import numpy as np

from spacy_latent.analysis.alignments import ALIGNMENT_CONTROLS
from spacy_latent.analysis.structures import own_heads
from spacy_latent.analysis.trees import (
    BINARY_CONTROLS,
    Heads,
    balanced,
    flat,
    next_token,
    previous_token,
)
from spacy_latent.annotations import SpanStructure
from spacy_latent.errors import LatentError
from spacy_latent.kinds import PARTS, Part, complete_kind, find_kind, rows_of

# Controls by their names in a report. nearest_head_word computes NEAREST.
TREE_CONTROLS = {
    "left-branching": next_token,
    "right-branching": previous_token,
    "flat": flat,
    "balanced": balanced,
}
NEAREST = "nearest"
RANDOM = "random"


def head_words(sentences: Sequence[Sequence[str]], trees: Sequence[Heads]) -> frozenset[str]:
    """Return the words that have a modifier in at least half of their occurrences."""
    there: Counter[str] = Counter()
    heading: Counter[str] = Counter()
    for words, heads in zip(sentences, trees):
        there.update(words)
        own = np.asarray(heads)
        for i in set(own[own != np.arange(len(own))].tolist()):
            heading[words[i]] += 1
    return frozenset(word for word, count in heading.items() if 2 * count >= there[word])


def nearest_head_word(words: Sequence[str], heading: frozenset[str]) -> list[int]:
    """Attach every token to the nearest earlier token whose word is in ``heading``.

    If there is no earlier one, the head is the first such token of the text, which is then the
    root. If the text has no such token, all tokens are attached to its first one.
    """
    first = next((i for i, word in enumerate(words) if word in heading), 0)
    heads, last = [], first
    for i, word in enumerate(words):
        heads.append(last)
        if word in heading:
            last = i
    return heads


def _control_heads(
    words: Sequence[str], heading: frozenset[str], other: Sequence[str]
) -> dict[str, np.ndarray]:
    rng = random.Random(0)
    made = {name: control(words, rng) for name, control in TREE_CONTROLS.items()}
    made[NEAREST] = nearest_head_word(words, heading)
    return {name: np.asarray(heads, dtype="int64") for name, heads in made.items()}


def _control_brackets(
    words: Sequence[str], heading: frozenset[str], other: Sequence[str]
) -> dict[str, np.ndarray]:
    rng = random.Random(0)
    return {
        name: np.array(BINARY_CONTROLS[name](words, rng), dtype="int64").reshape(-1, 2) - [0, 1]
        for name in ("left-branching", "right-branching", "balanced")
    }


def _control_links(
    words: Sequence[str], heading: frozenset[str], other: Sequence[str]
) -> dict[str, np.ndarray]:
    return {
        name: np.array(control(words, other)).reshape(-1, 2)
        for name, control in ALIGNMENT_CONTROLS.items()
    }


def common_parts(kind: str, ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Count the parts that two structures of one span have in common.

    Brackets of single tokens do not count.

    Returns:
        Twice the number of common parts, and the number of parts of both structures. The quotient
        is an F1; for heads it is the share of tokens with the same head.
    """
    return find_kind(kind).common(ours, theirs)


def _common_by_place(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    same = int((np.asarray(ours) == np.asarray(theirs)).sum())
    return 2.0 * same, 2.0 * len(ours)


def _common_rows(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    return _common(set(rows_of(ours)), set(rows_of(theirs)))


def _common_brackets(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    first, second = (
        {(a, b) for a, b in np.asarray(each).reshape(-1, 2).tolist() if b > a}
        for each in (ours, theirs)
    )
    return _common(first, second)


def _common(first: Set[Part], second: Set[Part]) -> tuple[float, float]:
    return 2.0 * len(first & second), float(len(first) + len(second))


def tag_information(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """Return the agreement of two taggings whose tags have no names in common.

    It is their mutual information divided by the mean of their entropies, from 0 to 1. It is 1 if
    both taggings have only one tag.
    """
    if not ours:
        return float("nan")
    a = np.unique(np.concatenate([np.ravel(tags) for tags in ours]), return_inverse=True)[1]
    b = np.unique(np.concatenate([np.ravel(tags) for tags in theirs]), return_inverse=True)[1]
    if not len(a):
        return float("nan")
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1.0)
    joint = table / table.sum()
    first, second = _nats(joint.sum(1)), _nats(joint.sum(0))
    if not first + second:
        return 1.0
    return float(2 * (first + second - _nats(joint.ravel())) / (first + second))


def _nats(shares: np.ndarray) -> float:
    some = shares[shares > 0]
    return float(-(some * np.log(some)).sum())


def reference_brackets(heads: Heads) -> set[tuple[int, int]]:
    """Return the first and last token of each subtree of a tree.

    Subtrees with gaps and subtrees of a single token are left out.

    Raises:
        LatentError: if the heads contain a cycle.
    """
    own = np.asarray(heads, dtype="int64")
    n = len(own)
    low, high, size = np.arange(n), np.arange(n), np.ones(n, dtype="int64")
    for i in range(n):
        node, steps = i, 0
        while own[node] != node:
            node = int(own[node])
            steps += 1
            if steps > n:
                raise LatentError("The reference's heads hold a cycle; expected a tree.")
            low[node], high[node] = min(low[node], i), max(high[node], i)
            size[node] += 1
    return {(int(a), int(b)) for a, b, s in zip(low, high, size) if s > 1 and b - a + 1 == s}


def spans_in_common(
    ours: Iterable[SpanStructure], theirs: Iterable[SpanStructure]
) -> Iterator[tuple[SpanStructure, SpanStructure]]:
    """Yield pairs of structures of a doc with the same bounds and kind, in the order of ``ours``.

    Pipelines may split a doc into different sentences, so the numbers of spans may differ.
    """

    def place(span: SpanStructure) -> tuple[object, ...]:
        return span.start, span.end, span.kind, span.other_start, span.other_end

    others = {place(span): span for span in theirs}
    for span in ours:
        if place(span) in others:
            yield span, others[place(span)]


def agreement(
    ours: Mapping[int, Sequence[SpanStructure]], theirs: Mapping[int, Sequence[SpanStructure]]
) -> tuple[float, int]:
    """Return the share of parts that two sets of structures have in common.

    Parts are counted by :func:`common_parts`. Tags are compared by :func:`tag_information`, and
    custom kinds by the ``agreement`` function of the kind. Spans with different bounds or kinds are
    left out.

    Args:
        theirs: structures of each doc in the other set.

    Returns:
        The agreement, NaN if nothing can be compared, and the number of spans compared.
    """
    shared, parts, compared = 0.0, 0.0, 0
    together: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
    for d in ours:
        for a, b in spans_in_common(ours[d], theirs.get(d, ())):
            compared += 1
            if find_kind(a.kind).agreement is not None:
                first, second = together.setdefault(a.kind, ([], []))
                first.append(a.decoded)
                second.append(b.decoded)
            else:
                both, all_parts = common_parts(a.kind, a.decoded, b.decoded)
                shared, parts = shared + both, parts + all_parts
    for kind, pairs in together.items():
        judged = find_kind(kind).agreement
        assert judged is not None
        return judged(*pairs), compared
    return (shared / parts if parts else float("nan")), compared


complete_kind(
    PARTS,
    controls=lambda words, heading, other: {},
    comparable=lambda decoded: decoded,
    common=_common_rows,
)
complete_kind("heads", controls=_control_heads, comparable=own_heads, common=_common_by_place)
complete_kind("spans", controls=_control_brackets, common=_common_brackets)
complete_kind("cells", controls=_control_links)
complete_kind("tags", common=_common_by_place, agreement=tag_information)
