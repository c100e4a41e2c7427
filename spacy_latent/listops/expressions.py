"""ListOps (Nangia and Bowman 2018): nested list operations whose value depends on their tree.

``[MAX 2 9 [MIN 4 7 ] ]`` has the value 9. The generator follows the published definition. A node at
depth d is a list with probability ``expansion`` if d < ``max_depth``, else a digit. A list has 2 to
``max_arguments`` arguments. A file has a line per expression, ``label TAB tokens``. The parentheses
of the published files are ignored.

The gold dependency tree follows from the brackets and is never stored. An operator heads each of
its arguments. A nested list is represented by its operator. ``]`` attaches to its own operator, and
the outermost operator is the root.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from spacy_latent.corpora.text_files import opened
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc
    from spacy.training import Example

CLOSE = "]"
CATEGORIES = [str(value) for value in range(10)]
# Limit well above any published corpus. Beyond it a single draw may never end.
MAX_EXPECTED_LENGTH = 10_000
OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(median(values)),
    "SM": lambda values: sum(values) % 10,
}


def sample_expression(
    rng: random.Random,
    operators: Sequence[str],
    max_depth: int,
    max_arguments: int,
    expansion: float,
    depth: int = 1,
) -> list[str]:
    """Sample the tokens of one expression by the published scheme."""
    if depth >= max_depth or rng.random() > expansion:
        return [str(rng.randrange(10))]
    arguments: list[str] = []
    for _ in range(rng.randint(2, max_arguments)):
        arguments += sample_expression(
            rng, operators, max_depth, max_arguments, expansion, depth + 1
        )
    return [f"[{rng.choice(list(operators))}", *arguments, CLOSE]


def evaluate(tokens: Sequence[str]) -> int:
    """Return the value of an expression, 0 to 9."""
    stack: list[list[int]] = [[]]
    pending: list[str] = []
    for token in tokens:
        if token.startswith("["):
            pending.append(token[1:])
            stack.append([])
        elif token == CLOSE:
            stack[-2].append(OPERATORS[pending.pop()](stack.pop()))
        else:
            stack[-1].append(int(token))
    return stack[0][0]


def gold_heads(tokens: Sequence[str]) -> list[int]:
    """Return the index of each token's head in ``tokens``; the root is its own head."""
    heads: list[int] = []
    operators: list[int] = []
    for index, token in enumerate(tokens):
        heads.append(operators[-1] if operators else index)
        if token.startswith("["):
            operators.append(index)
        elif token == CLOSE and operators:
            operators.pop()
    return heads


def depth(tokens: Sequence[str]) -> int:
    """Return the number of levels of lists: 0 for a digit, 1 for ``[MAX 2 9 ]``."""
    level = deepest = 0
    for token in tokens:
        level += token.startswith("[") - (token == CLOSE)
        deepest = max(deepest, level)
    return deepest


def gold_brackets(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Return the spans (start, end) of two or more tokens in the published binary tree.

    The arguments are added to an operator one by one, and then its bracket.
    """
    spans: list[tuple[int, int]] = []
    operators: list[int] = []
    for index, token in enumerate(tokens):
        if token.startswith("["):
            operators.append(index)
            continue
        if operators:
            spans.append((operators[-1], index + 1))
        if token == CLOSE and operators:
            operators.pop()
            if operators:
                spans.append((operators[-1], index + 1))
    return spans


def generate(
    sizes: Sequence[int],
    operators: Sequence[str] = ("MIN", "MAX", "MED", "SM"),
    max_depth: int = 20,
    max_arguments: int = 5,
    expansion: float = 0.25,
    min_length: int = 1,
    max_length: int | None = None,
    seed: int = 0,
    progress: Callable[[int], object] = lambda count: None,
    min_depth: int = 0,
    without: Container[str] = (),
) -> list[list[list[str]]]:
    """Generate splits of the given sizes, in which no expression occurs twice.

    Args:
        max_depth: as published. The root has depth 1 and all nodes at this depth are digits, so
            there are up to ``max_depth - 1`` levels of lists.
        min_length, max_length: bounds on the number of tokens.
        min_depth: least number of levels of lists, as in :func:`depth`.
        without: expressions to leave out, with their tokens joined by spaces.
        progress: function that is called with 1 for each expression.

    Returns:
        For each split a list of expressions, each a list of tokens.
    """
    unknown = [name for name in operators if name not in OPERATORS]
    if unknown or not operators:
        raise LatentError(f"ListOps operators {unknown or 'none'}; choose from {list(OPERATORS)}.")
    if max_length is not None and max_length < max(min_length, 1):
        raise LatentError(f"ListOps max_length {max_length} is below min_length {min_length}.")
    check_shape(max_depth, max_arguments, expansion)
    if min_depth >= max_depth:
        raise LatentError(
            f"ListOps min_depth {min_depth} with max_depth {max_depth}: nodes at max_depth are "
            f"digits, so that there are at most {max_depth - 1} levels of lists. Lower min_depth, "
            "or raise max_depth."
        )
    rng = random.Random(seed)
    found: dict[str, list[str]] = {}
    wanted, misses = sum(sizes), 0
    while len(found) < wanted:
        tokens = sample_expression(rng, operators, max_depth, max_arguments, expansion)
        text = " ".join(tokens)
        fits = min_length <= len(tokens) and (max_length is None or len(tokens) <= max_length)
        if fits and depth(tokens) >= min_depth and text not in found and text not in without:
            found[text] = tokens
            misses = 0
            progress(1)
        else:
            misses += 1
            if misses > 1_000_000:
                raise LatentError(
                    f"ListOps: only {len(found)} of {wanted} different expressions were found in a "
                    "million tries. Generate fewer, or allow more depths, lengths or arguments."
                )
    expressions = list(found.values())
    rng.shuffle(expressions)
    rest = iter(expressions)
    return [list(islice(rest, size)) for size in sizes]


def generate_depths(
    sizes: Sequence[int],
    depths: Sequence[int],
    operators: Sequence[str] = ("MIN", "MAX", "MED", "SM"),
    max_arguments: int = 5,
    expansion: float = 0.25,
    min_length: int = 1,
    max_length: int | None = None,
    seed: int = 0,
    progress: Callable[[int], object] = lambda count: None,
    without: Container[str] = (),
) -> list[list[list[str]]]:
    """Generate as :func:`generate` does, with equally many expressions of each depth.

    Each split is shuffled.

    Args:
        depths: numbers of levels of lists.
        min_length: least number of tokens. It is ignored for depths whose expressions are all
            shorter. For example, lists of digits have ``max_arguments + 2`` tokens at most.
    """
    shares = [size // len(depths) for size in sizes] if depths else []
    if not depths or len({*depths}) < len(depths) or min(depths) < 1:
        raise LatentError(
            f"ListOps depths {list(depths)}: expected different numbers, each at least 1."
        )
    if any(share * len(depths) != size for share, size in zip(shares, sizes)):
        raise LatentError(
            f"ListOps sizes {list(sizes)} cannot be shared equally among {len(depths)} depths. "
            f"Take multiples of {len(depths)}."
        )
    splits: list[list[list[str]]] = [[] for _ in sizes]
    for level in depths:
        longest = 0
        for _ in range(level):
            longest = 2 + max_arguments * max(longest, 1)
        found = generate(
            shares,
            operators,
            max_depth=level + 1,
            max_arguments=max_arguments,
            expansion=expansion,
            min_length=min_length if min_length <= longest else 1,
            max_length=max_length,
            seed=seed + level,
            progress=progress,
            min_depth=level,
            without=without,
        )
        for split, own in zip(splits, found):
            split += own
    for split in splits:
        random.Random(seed).shuffle(split)
    return splits


def check_shape(max_depth: int, max_arguments: int, expansion: float) -> None:
    """Refuse settings from which nothing can be drawn, before the first draw."""
    if max_depth < 1 or max_arguments < 2 or not 0 <= expansion <= 1:
        raise LatentError(
            f"ListOps max_depth {max_depth}, max_arguments {max_arguments}, expansion {expansion}: "
            "expected at least 1, at least 2, and a probability."
        )
    growth = expansion * (2 + max_arguments) / 2
    expected = 0.0
    for _ in range(max_depth):
        expected = 1 + growth * expected
        if expected > MAX_EXPECTED_LENGTH:
            raise LatentError(
                f"ListOps max_depth {max_depth}, max_arguments {max_arguments}, expansion "
                f"{expansion}: one expression would have over {MAX_EXPECTED_LENGTH} tokens on "
                "average. Lower one of them."
            )


def is_expression(tokens: Sequence[str]) -> bool:
    """Return whether tokens are one list or digit, with closed brackets and known operators."""
    open_lists: list[int] = []
    for index, token in enumerate(tokens):
        if index and not open_lists:
            return False
        if token == CLOSE:
            if not open_lists or open_lists.pop() == index - 1:
                return False
        elif token[:1] == "[" and token[1:] in OPERATORS:
            open_lists.append(index)
        elif token not in CATEGORIES:
            return False
    return bool(tokens) and not open_lists


def write(path: Path, expressions: Iterable[Sequence[str]]) -> None:
    """Write a line with value and tokens for each expression, in a new folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf8") as out:
        for tokens in expressions:
            out.write(f"{evaluate(tokens)}\t{' '.join(tokens)}\n")


def read(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (label, tokens) of each line; errors name the line."""
    with opened(path) as lines:
        for number, line in enumerate(lines, 1):
            label, tab, expression = line.rstrip("\n").partition("\t")
            tokens = [token for token in expression.split() if token not in ("(", ")")]
            if not tab or label not in CATEGORIES or not is_expression(tokens):
                raise LatentError(
                    f"{path}, line {number}: {line.rstrip()!r} is not 'label TAB expression' with "
                    "a label from 0 to 9 and closed brackets, for example '9\\t[MAX 2 9 ]'."
                )
            yield label, tokens


def existing(path: Path | None) -> Path:
    """Return the path of a corpus, and refuse one that does not exist."""
    if path is None or not Path(path).exists():
        raise LatentError(
            f"ListOps corpus {path} does not exist. Make it with 'spacy latent generate listops', "
            "or pass --paths.train and --paths.dev."
        )
    return Path(path)


def gold_tree(tokens: Sequence[str]) -> dict[str, Any]:
    """Return the gold tree as arguments of Doc."""
    heads = gold_heads(tokens)
    return {
        "heads": heads,
        "deps": ["ROOT" if head == i else "arg" for i, head in enumerate(heads)],
    }


def gold_doc(nlp: Language, label: str, tokens: list[str], heads: bool = True) -> Doc:
    """Make the reference of an expression, with its value, and its gold tree if ``heads``."""
    from spacy.tokens import Doc

    doc = Doc(nlp.vocab, words=tokens, **(gold_tree(tokens) if heads else {}))
    doc.cats = {category: float(category == label) for category in CATEGORIES}
    return doc


def make_example(
    nlp: Language, label: str, tokens: list[str], heads: bool, brackets: str
) -> Example:
    """Make the example of an expression.

    Args:
        heads, brackets: see :func:`spacy_latent.listops.curriculum.read_listops_v1`.
    """
    from spacy.tokens import Doc
    from spacy.training import Example

    from spacy_latent import annotations

    # Example.from_dict takes ten times as long.
    reference = gold_doc(nlp, label, tokens, heads)
    if brackets:
        last = len(tokens) - 1
        spans = [(start, end - 1) for start, end in gold_brackets(tokens)]
        decoded = np.array(sorted(spans + [(i, i) for i in range(last + 1)]))
        gold = annotations.SpanStructure(0, last + 1, "gold", "spans", decoded)
        annotations.write(reference, brackets, [gold])
    return Example(Doc(nlp.vocab, words=tokens), reference)
