"""ListOps with a curriculum: flat lists first, then deeper and deeper expressions, then all.

A list of digits has only one tree. It teaches the operators. Afterwards the values of nested lists
distinguish right trees from wrong ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from spacy_latent.errors import LatentError
from spacy_latent.listops.expressions import depth, existing, make_example, read

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.training import Example

Expression = tuple[str, list[str]]


def in_order(
    expressions: Sequence[Expression], flat: int, growth: int, rng: random.Random
) -> Iterator[Expression]:
    """Yield expressions in the order of the curriculum, without end.

    The first ``flat`` expressions have no nested list, or the least depth in the data. They have
    each length equally often. The next ``growth`` expressions have a greatest depth that grows to
    the greatest of all. Each depth is the greatest one for a time in proportion to its share of the
    expressions that are not flat. After that all expressions are read. Expressions of each stage
    are shuffled, and read repeatedly.
    """
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
    """Yield one expression of each length in turn, without end.

    The expressions of a length are shuffled and repeated. Operations on two numbers are learned
    first, and most lists are longer.
    """
    lengths: dict[int, list[Expression]] = {}
    for label, tokens in expressions:
        lengths.setdefault(len(tokens), []).append((label, tokens))
    each = [_repeated(lengths[length], rng) for length in sorted(lengths)]
    while each:
        yield from map(next, each)


def _repeated(expressions: list[Expression], rng: random.Random) -> Iterator[Expression]:
    while True:
        rng.shuffle(expressions)
        yield from expressions


def read_listops_v1(
    path: Path | None,
    heads: bool = False,
    limit: int = 0,
    brackets: str = "",
    flat: int = 0,
    growth: int = 0,
    seed: int = 0,
) -> Callable[[Language], Iterable[Example]]:
    """Read ListOps for ``spacy train``, with the value as one of ten exclusive categories.

    Without a curriculum (``flat`` and ``growth`` 0) it reads the file once. With a curriculum it
    never ends, and adds no expression to the file. Then ``training.max_epochs`` must be -1, and
    ``training.max_steps`` or ``training.patience`` end the training. Each call begins anew, in the
    same order.

    Args:
        path: file of expressions with their values, as ``spacy latent generate listops`` writes it.
        heads: give the gold tree to the reference, for evaluation. Do not set it for training.
        limit: number of expressions to read, 0 for all.
        brackets: name of a component that learns from gold binary trees (its ``supervision``). The
            reference gets them as its annotation. Empty for no trees.
        flat: number of expressions without a nested list at the beginning. They have each length
            equally often, so rare lengths are repeated more. If a file has no such expressions, the
            expressions of the least depth are read.
        growth: number of expressions after these, during which the greatest depth grows until it is
            the greatest depth of the file. It grows slowly at frequent depths. After that all
            expressions are read.
        seed: seed of the order.
    """
    if min(flat, growth, limit) < 0:
        raise LatentError(
            f"ListOps.v1: flat is {flat}, growth is {growth}, limit is {limit}; expected numbers "
            "of expressions: 0 for none, and for all as the limit."
        )

    # spaCy reads a few examples five times and more before the first step.
    kept: dict[int, list[Expression]] = {}

    def read_whole(file: Path) -> list[Expression]:
        written = file.stat().st_mtime_ns
        if written not in kept:
            kept.clear()
            kept[written] = list(islice(read(file), limit or None))
        if not kept[written]:
            raise LatentError(f"ListOps corpus {path} holds no expressions. Generate it again.")
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
    """Refuse a config that reads an endless corpus before its first step, or trains without end."""
    training = nlp.config["training"]
    epochs = training["max_epochs"]
    if epochs != -1:
        raise LatentError(
            f"ListOps.v1: a curriculum (flat, growth) has no end and training.max_epochs is "
            f"{epochs}; expected -1, which reads the corpus while training. Set it, and end by "
            "training.max_steps, or set flat and growth to 0."
        )
    if not training["max_steps"] and not training["patience"]:
        raise LatentError(
            "ListOps.v1: a curriculum (flat, growth) has no end, and training.max_steps and "
            "training.patience are both 0. Set one of them, so that training ends."
        )
