"""ListOps in an order: flat lists first, then deeper and deeper expressions, then all of them.

A list of digits has no tree to find, so what the operators do is learned there, and what they do is
what tells a right tree from a wrong one afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from spacy_latent.corpora.listops import (
    CLOSE,
    OPERATORS,
    evaluate,
    existing,
    make_example,
    read,
    sample_expression,
)
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.training import Example

Expression = tuple[str, list[str]]
MOST_ARGUMENTS = 5


def depth(tokens: Iterable[str]) -> int:
    """Lists within lists: 0 for a digit, 1 for a flat list."""
    deepest = level = 0
    for token in tokens:
        if token == CLOSE:
            level -= 1
        elif token not in "0123456789":
            level += 1
            deepest = max(deepest, level)
    return deepest


def flat_lists(operators: list[str], rng: random.Random) -> Iterator[Expression]:
    """Lists of 2 to 5 digits without end, each operator as often."""
    while True:
        tokens = sample_expression(rng, operators, 2, MOST_ARGUMENTS, 1.0, depth=1)
        yield str(evaluate(tokens)), tokens


def in_order(
    expressions: list[Expression], flat: int, growth: int, rng: random.Random
) -> Iterator[Expression]:
    """First ``flat`` lists of digits; then ``growth`` of the expressions, the greatest depth among
    them growing steadily from 1 to that of all; then all of them, shuffled, again and again."""
    levels = [depth(tokens) for _, tokens in expressions]
    used = {token[1:] for _, tokens in expressions for token in tokens if token.startswith("[")}
    operators = [name for name in OPERATORS if name in used]
    if operators:
        yield from islice(flat_lists(operators, rng), flat)
    deepest, shallowest = max(levels), min(levels)
    order = list(range(len(expressions)))
    given = 0
    while True:
        rng.shuffle(order)
        for index in order:
            if given < growth:
                allowed = max(shallowest, 1 + (deepest - 1) * given // growth)
                if levels[index] > allowed:
                    continue
            yield expressions[index]
            given += 1


def read_listops_v2(
    path: Path | None,
    heads: bool = False,
    limit: int = 0,
    brackets: str = "",
    flat: int = 0,
    growth: int = 0,
    seed: int = 0,
) -> Callable[[Language], Iterable[Example]]:
    """Reader for ``spacy train`` with a curriculum. Without one (``flat`` and ``growth`` 0) it
    reads the file once, as ``spacy-latent.ListOps.v1``. With one it never ends, so
    ``training.max_epochs`` must be -1 and ``training.max_steps`` or ``training.patience`` say when
    to stop. Each call begins anew, in the same order.

    path, heads, limit, brackets: as of ``spacy-latent.ListOps.v1``.
    flat: number of lists of digits to draw first, of the operators of the file.
    growth: number of expressions of the file during which the greatest depth grows from flat lists
        to the deepest; from then on all are read, shuffled, again and again.
    seed: of the draws and of the order.
    """
    if min(flat, growth, limit) < 0:
        raise LatentError(
            f"ListOps.v2: flat {flat}, growth {growth}, limit {limit}; expected numbers of "
            "expressions, 0 for none (of limit: for all)."
        )

    def read_corpus(nlp: Language) -> Iterator[Example]:
        found = islice(read(existing(path)), limit or None)
        if flat or growth:
            check_streaming(nlp)
            expressions = list(found)
            if not expressions:
                raise LatentError(f"ListOps corpus {path} is empty. Give one with expressions.")
            found = in_order(expressions, flat, growth, random.Random(seed))
        for label, tokens in found:
            yield make_example(nlp, label, tokens, heads, brackets)

    return read_corpus


def check_streaming(nlp: Language) -> None:
    """Refuse a config that would read all of an endless corpus before its first step."""
    epochs = nlp.config.get("training", {}).get("max_epochs", -1)
    if epochs != -1:
        raise LatentError(
            f"ListOps.v2: a curriculum (flat, growth) has no end and training.max_epochs is "
            f"{epochs}; expected -1, which reads the corpus while training. Set it, and end by "
            "training.max_steps, or set flat and growth to 0."
        )
