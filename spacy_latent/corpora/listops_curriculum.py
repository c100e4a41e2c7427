"""ListOps in an order: flat lists first, then deeper and deeper expressions, then all of them.

A list of digits has no tree to find. What the operators do is learned there, and what they do is
what tells a right tree from a wrong one afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from spacy_latent.corpora.listops import depth, existing, make_example, read
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.training import Example

Expression = tuple[str, list[str]]


def in_order(
    expressions: Sequence[Expression], flat: int, growth: int, rng: random.Random
) -> Iterator[Expression]:
    """First ``flat`` expressions without a list in a list, or of the least depth that there is, of
    each length equally many; then ``growth`` of a greatest depth that grows to that of all, so that
    each depth is the greatest for as long as its share of those that are not flat; then all.
    Whatever there is of the kind is shuffled, read, and read again, without end."""
    levels = [depth(tokens) for _, tokens in expressions]
    shallow, given = max(1, min(levels)), 0
    nested = sorted(level for level in levels if level > shallow) or [shallow]
    if flat:
        least = [expressions[number] for number, level in enumerate(levels) if level <= shallow]
        yield from islice(of_all_lengths(least, rng), flat)
        given = flat

    def allowed() -> int:
        if given < flat + growth:
            return nested[len(nested) * (given - flat) // growth]
        return nested[-1]

    while True:
        most = allowed()
        fitting = [number for number, level in enumerate(levels) if level <= most]
        rng.shuffle(fitting)
        for number in fitting:
            yield expressions[number]
            given += 1
            if allowed() != most:
                break


def of_all_lengths(expressions: Iterable[Expression], rng: random.Random) -> Iterator[Expression]:
    """One expression of each length in turn, those of a length shuffled and read again and again:
    what two numbers give is learned first, and most lists have more."""
    lengths: dict[int, list[Expression]] = {}
    for label, tokens in expressions:
        lengths.setdefault(len(tokens), []).append((label, tokens))
    each = [_again_and_again(lengths[length], rng) for length in sorted(lengths)]
    while each:
        yield from map(next, each)


def _again_and_again(expressions: list[Expression], rng: random.Random) -> Iterator[Expression]:
    while True:
        rng.shuffle(expressions)
        yield from expressions


def read_listops_v2(
    path: Path | None,
    heads: bool = False,
    limit: int = 0,
    brackets: str = "",
    flat: int = 0,
    growth: int = 0,
    seed: int = 0,
) -> Callable[[Language], Iterable[Example]]:
    """Reader for ``spacy train`` with a curriculum, which is an order of what is in the file: no
    expression is added. Without one (``flat`` and ``growth`` 0) it reads the file once, as
    ``spacy-latent.ListOps.v1`` does. With one it never ends, so ``training.max_epochs`` must be -1,
    and ``training.max_steps`` or ``training.patience`` say when to stop. Each call begins anew, in
    the same order.

    path, heads, limit, brackets: as of ``spacy-latent.ListOps.v1``.
    flat: number of expressions to read first that have no list in a list, equally many of each
        length, so that few are read more often; in a file without any, those of the least depth.
    growth: number of expressions after these during which the greatest depth grows to that of the
        file, slowly where most expressions are; from then on all are read.
    seed: of the order.
    """
    if min(flat, growth, limit) < 0:
        raise LatentError(
            f"ListOps.v2: flat is {flat}, growth is {growth}, limit is {limit}; expected numbers "
            "of expressions: 0 for none, and for all as the limit."
        )

    # spaCy asks five times and more for a few examples before the first step.
    kept: dict[int, list[Expression]] = {}

    def read_whole(file: Path) -> list[Expression]:
        written = file.stat().st_mtime_ns
        if written not in kept:
            kept.clear()
            kept[written] = list(islice(read(file), limit or None))
        if not kept[written]:
            raise LatentError(f"ListOps corpus {path} holds no expressions.")
        return kept[written]

    def read_corpus(nlp: Language) -> Iterator[Example]:
        found: Iterable[Expression]
        if flat or growth:
            check_streaming(nlp)
            found = in_order(read_whole(existing(path)), flat, growth, random.Random(seed))
        else:
            found = islice(read(existing(path)), limit or None)
        for label, tokens in found:
            yield make_example(nlp, label, tokens, heads, brackets)

    return read_corpus


def check_streaming(nlp: Language) -> None:
    """Refuse a config that would read all of an endless corpus before its first step, or train
    without end."""
    training = nlp.config["training"]
    epochs = training["max_epochs"]
    if epochs != -1:
        raise LatentError(
            f"ListOps.v2: a curriculum (flat, growth) has no end and training.max_epochs is "
            f"{epochs}; expected -1, which reads the corpus while training. Set it, and end by "
            "training.max_steps, or set flat and growth to 0."
        )
    if not training["max_steps"] and not training["patience"]:
        raise LatentError(
            "ListOps.v2: a curriculum (flat, growth) has no end, and training.max_steps and "
            "training.patience are both 0. Set one of them, so that training ends."
        )
