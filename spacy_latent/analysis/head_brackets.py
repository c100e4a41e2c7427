"""Dependency trees as binary ones, so that both can be judged by the same spans."""

from __future__ import annotations

import numpy as np

from spacy_latent.analysis.trees import Heads


def brackets_of_heads(heads: Heads) -> list[tuple[int, int]]:
    """Spans (start, end) of two tokens and more of the binary tree in which every head takes its
    modifiers one by one: those behind it from left to right, then those before it from right to
    left. Of the gold heads of ListOps these are the brackets of the published files.

    heads: a root is its own head or has -1. What a head has put together is left out where it has
        gaps, as in trees with crossing arcs, and so is what hangs on a cycle.
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
