"""Conversion of dependency trees to binary trees, so that both can be scored by the same spans."""

from __future__ import annotations

import numpy as np

from spacy_latent.analysis.trees import Heads


def brackets_of_heads(heads: Heads) -> list[tuple[int, int]]:
    """Return the spans (start, end) of two or more tokens of the binary form of a tree.

    Every head takes its modifiers one by one: first those after it from left to right, then those
    before it from right to left. From the gold heads of ListOps this gives the brackets of the
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
