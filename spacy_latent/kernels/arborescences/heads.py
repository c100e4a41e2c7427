"""Dependency trees as lists of heads: validation, and orders of their tokens."""

from __future__ import annotations

from spacy_latent.kernels.core.compilation import kernel

HARD, SOFT = 0, 1
# Height and depth of a token on a cycle: above those of any tree.
ENDLESS = 1 << 30


@kernel
def read_heads(z, n, heads):
    """Write the heads of the tokens 1 .. n, −1 if a token has none.

    The result is SOFT if z is not 0/1 or a token has several heads, else HARD.
    """
    heads[: n + 1] = -1
    for head in range(n + 1):
        row = z[head]
        for modifier in range(1, n + 1):
            value = row[modifier]
            if value != 0.0:
                if value != 1.0 or heads[modifier] >= 0:
                    return SOFT
                heads[modifier] = head
    return HARD


@kernel
def order_upwards(heads, n, waiting, order, height, depth):
    """Write an order of the tokens from the leaves up.

    Args:
        order: written: the tokens, each after its modifiers, and at the end the tokens of cycles.
        height: written: the height of the subtree of each token, 0 for a leaf.
        depth: written: the number of ancestors of each token.

    Returns:
        The number of levels among tokens that are neither on a cycle nor below one, at least 1.
    """
    waiting[: n + 1] = 0
    for token in range(1, n + 1):
        height[token] = 0
        depth[token] = 0
        if heads[token] > 0:
            waiting[heads[token]] += 1
    ordered = 0
    for token in range(1, n + 1):
        if waiting[token] == 0:
            order[ordered] = token
            ordered += 1
    done = 0
    while done < ordered:
        token = order[done]
        done += 1
        head = heads[token]
        if head > 0:
            height[head] = max(height[head], height[token] + 1)
            waiting[head] -= 1
            if waiting[head] == 0:
                order[ordered] = head
                ordered += 1
    hanging = ordered
    for token in range(1, n + 1):
        if waiting[token] > 0:
            height[token], depth[token] = ENDLESS, ENDLESS
            order[ordered] = token
            ordered += 1
    levels = 1
    for index in range(hanging - 1, -1, -1):
        token = order[index]
        if heads[token] > 0:
            depth[token] = depth[heads[token]] + 1
        if depth[token] < ENDLESS:
            levels = max(levels, depth[token] + 1)
    return levels


@kernel
def modifiers_of(heads, n, start, modifiers):
    """Write the modifiers of each token t, in order, to modifiers[start[t]:start[t + 1]]."""
    start[: n + 2] = 0
    for token in range(1, n + 1):
        if heads[token] > 0:
            start[heads[token] + 1] += 1
    for token in range(1, n + 1):
        start[token + 1] += start[token]
    for token in range(1, n + 1):
        head = heads[token]
        if head > 0:
            modifiers[start[head]] = token
            start[head] += 1
    # Each start has advanced to the start of the next token.
    for token in range(n, 0, -1):
        start[token + 1] = start[token]
    start[1] = 0
