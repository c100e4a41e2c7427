"""Statistics of trees, and control trees that depend on no model.

Trees are arrays of heads, as in ``LatentAnnotation.heads`` and ``token.head``: the index of each
token's head. A root is its own head.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spacy_latent.errors import LatentError

Heads = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class TreeStatistics:
    """Statistics of one tree.

    Attributes:
        depth: number of arcs from a root to the deepest token.
        left_branching: share of arcs whose head comes later in the text.
        root_share: share of tokens that are roots.
        arc_length: mean |head − modifier|, 0 without arcs.
    """

    depth: int
    left_branching: float
    root_share: float
    arc_length: float


def tree_statistics(heads: Heads) -> TreeStatistics:
    """Return the statistics of a tree. Without tokens, all are 0.

    Raises:
        LatentError: if the heads hold a cycle.
    """
    heads = np.asarray(heads, dtype="int64")
    n = len(heads)
    if not n:
        return TreeStatistics(0, 0.0, 0.0, 0.0)
    own = np.arange(n)
    is_arc = heads != own
    node, level = own, np.zeros(n, dtype="int64")
    for _ in range(n + 1):
        parent = heads[node]
        level += parent != node
        if (parent == node).all():
            break
        node = parent
    else:
        raise LatentError(f"Heads {heads.tolist()[:20]} hold a cycle, so they are no tree.")
    arcs = heads[is_arc]
    return TreeStatistics(
        depth=int(level.max()),
        left_branching=float((arcs > own[is_arc]).mean()) if len(arcs) else 0.0,
        root_share=float((~is_arc).mean()),
        arc_length=float(np.abs(arcs - own[is_arc]).mean()) if len(arcs) else 0.0,
    )


def previous_token(words: Sequence[str], rng: random.Random) -> list[int]:
    """Attach every token to the one before it: a chain."""
    return [max(0, i - 1) for i in range(len(words))]


def next_token(words: Sequence[str], rng: random.Random) -> list[int]:
    """Attach every token to the one after it: a chain in the other direction."""
    return [min(len(words) - 1, i + 1) for i in range(len(words))]


def flat(words: Sequence[str], rng: random.Random) -> list[int]:
    """Attach every token to the first."""
    return [0] * len(words)


def balanced(words: Sequence[str], rng: random.Random) -> list[int]:
    """Attach the middle tokens of both halves to the middle token, recursively."""
    heads = list(range(len(words)))

    def attach(start: int, end: int, head: int | None) -> None:
        if start < end:
            middle = (start + end) // 2
            heads[middle] = middle if head is None else head
            attach(start, middle, middle)
            attach(middle + 1, end, middle)

    attach(0, len(words), None)
    return heads


def random_earlier(words: Sequence[str], rng: random.Random) -> list[int]:
    """Attach every token to an earlier one, all equally likely."""
    return [rng.randrange(i) if i else 0 for i in range(len(words))]


def random_tree(words: Sequence[str], rng: random.Random) -> list[int]:
    """Attach tokens in random order, each to one of its predecessors in that order."""
    order = list(range(len(words)))
    rng.shuffle(order)
    heads = list(order)
    for place, token in enumerate(order):
        heads[token] = order[rng.randrange(place)] if place else token
    return heads


def nearest_longer_word(words: Sequence[str], rng: random.Random) -> list[int]:
    """Attach every token to the nearest one with more characters.

    If two are at the same distance, the left one is the head. Tokens of the greatest length are
    attached to the first of them. Long words are often content words, so these heads are often
    right.
    """
    lengths = [len(word) for word in words]
    longest = lengths.index(max(lengths)) if words else 0
    heads = []
    for i, length in enumerate(lengths):
        longer = [j for j, other in enumerate(lengths) if other > length]
        heads.append(min(longer, key=lambda j: (abs(i - j), j), default=longest))
    return heads


def nearest_operator(words: Sequence[str], rng: random.Random) -> list[int]:
    """Attach every token of a ListOps expression to the nearest operator on its left."""
    heads, last = [], 0
    for i, word in enumerate(words):
        heads.append(last)
        if word.startswith("["):
            last = i
    return heads


def random_earlier_operator(words: Sequence[str], rng: random.Random) -> list[int]:
    """Attach every token of a ListOps expression to an earlier operator, all equally likely.

    A token without an earlier operator is attached to the first token.
    """
    heads: list[int] = []
    operators: list[int] = []
    for i, word in enumerate(words):
        heads.append(rng.choice(operators) if operators else 0)
        if word.startswith("["):
            operators.append(i)
    return heads


Control = Callable[[Sequence[str], random.Random], list[int]]
CONTROLS: dict[str, Control] = {
    "previous token": previous_token,
    "next token": next_token,
    "flat": flat,
    "balanced": balanced,
    "random earlier token": random_earlier,
    "random tree": random_tree,
    "nearest longer word": nearest_longer_word,
}


def control_trees(
    sentences: Iterable[Sequence[str]], controls: Mapping[str, Control] = CONTROLS, seed: int = 0
) -> dict[str, list[list[int]]]:
    """Return the trees of every text by each control, by name of the control."""
    words = list(sentences)
    found = {}
    for name, control in controls.items():
        rng = random.Random(seed)
        found[name] = [control(sentence, rng) for sentence in words]
    return found


Brackets = Iterable[tuple[int, int]]


def bracketing_f1(predicted: Sequence[Brackets], gold: Sequence[Brackets]) -> float:
    """Return the unlabelled F1, 0 to 1, of spans (start, end) over all sentences.

    Spans of two or more tokens count, the whole sentence included. The F1 is 0 if there are no such
    spans.
    """
    found = [{span for span in spans if span[1] - span[0] > 1} for spans in predicted]
    wanted = [{span for span in spans if span[1] - span[0] > 1} for spans in gold]
    right = sum(len(ours & theirs) for ours, theirs in zip(found, wanted, strict=True))
    total = sum(map(len, found)) + sum(map(len, wanted))
    return 2 * right / total if total else 0.0


def left_branching(words: Sequence[str], rng: random.Random) -> list[tuple[int, int]]:
    """Return all spans that start at the first word."""
    return [(0, end) for end in range(2, len(words) + 1)]


def right_branching(words: Sequence[str], rng: random.Random) -> list[tuple[int, int]]:
    """Return all spans that end at the last word."""
    return [(start, len(words)) for start in range(len(words) - 1)]


def halved(words: Sequence[str], rng: random.Random) -> list[tuple[int, int]]:
    """Return the spans of the sentence, its halves, their halves, and so on."""

    def split(start: int, end: int) -> list[tuple[int, int]]:
        if end - start < 2:
            return []
        middle = (start + end) // 2
        return [(start, end), *split(start, middle), *split(middle, end)]

    return split(0, len(words))


def random_merges(words: Sequence[str], rng: random.Random) -> list[tuple[int, int]]:
    """Return the spans of merging random neighbours, all pairs equally likely in each step."""
    row, made = [(i, i + 1) for i in range(len(words))], []
    while len(row) > 1:
        place = rng.randrange(len(row) - 1)
        row[place : place + 2] = [(row[place][0], row[place + 1][1])]
        made.append(row[place])
    return made


BINARY_CONTROLS: dict[str, Callable[[Sequence[str], random.Random], list[tuple[int, int]]]] = {
    "left-branching": left_branching,
    "right-branching": right_branching,
    "balanced": halved,
    "random merges": random_merges,
}


def brackets_of_heads(heads: Heads) -> list[tuple[int, int]]:
    """Return the spans (start, end) of two or more tokens of the binary form of a tree.

    Every head takes its modifiers one by one: first those after it from left to right, then those
    before it from right to left. For the gold heads of ListOps these are the brackets of the
    published files. A span with gaps is left out, as in trees with crossing arcs. Tokens whose path
    of heads ends in a cycle are left out too.

    Args:
        heads: head of each token. A root is its own head or has −1.
    """
    own = np.asarray(heads, dtype="int64").tolist()
    modifiers: list[list[int]] = [[] for _ in own]
    order = []
    for token, head in enumerate(own):
        if head in (token, -1):
            order.append(token)
        else:
            modifiers[head].append(token)
    for token in order:
        order += modifiers[token]
    first, last, size = list(range(len(own))), list(range(len(own))), [1] * len(own)
    spans = []
    for head in reversed(order):
        behind = [token for token in modifiers[head] if token > head]
        before = [token for token in modifiers[head] if token < head]
        for token in [*behind, *reversed(before)]:
            first[head] = min(first[head], first[token])
            last[head] = max(last[head], last[token])
            size[head] += size[token]
            if last[head] - first[head] + 1 == size[head]:
                spans.append((first[head], last[head] + 1))
    return spans
