"""Numbers that describe one structure, as its kind defines them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from spacy_latent.analysis.figures import Statistic
from spacy_latent.analysis.trees import tree_statistics
from spacy_latent.analysis.yields import without_cycles
from spacy_latent.annotations import SpanStructure
from spacy_latent.kinds import PARTS, complete_kind, find_kind

# Description of each number.
MEANINGS: dict[str, str] = {
    "tokens": "tokens of a structure; for pairs, of both texts",
    "depth": "arcs, brackets or phrases from the root to the deepest token",
    "left-branching": "share of arcs whose head comes later in the text",
    "left splits": "share of a bracket's tokens, except two, in its left half: 1 if every tree is "
    "left-branching, 0 if it is right-branching",
    "root share": "share of tokens that are roots",
    "on the root": "share of tokens that are roots or have a root as head",
    "arc length": "tokens from a head to its modifier",
    "arcs per token": "arcs, including root arcs, for each token",
    "rate": "share of tokens that are chosen",
    "runs": "runs of neighbouring chosen tokens",
    "first token": "whether the first token is chosen",
    "switches": "share of neighbouring tokens with different tags",
    "commonest tag": "share of tokens with the most frequent tag of the text",
    "segments": "segments of a text",
    "segment length": "tokens of a segment",
    "phrases": "labelled phrases of a text",
    "phrase length": "tokens of a labelled phrase",
    "coverage": "share of the tokens of the first side that are aligned",
    "monotonicity": "share of neighbouring aligned tokens whose partners are in the same order",
    "diagonal": "share of cells on the diagonal",
    "parts": "chosen parts",
    "entropy": "entropy of p(z), in nats per token; for pairs, per token of the first text",
    "relative entropy": "share of the entropy of a uniform distribution",
    "effective number": "exp(entropy of a text): number of equally probable structures with this "
    "entropy",
    "support": "number of structures in the mixture of a prediction",
}
SHARES = frozenset(
    {
        *("left-branching", "left splits", "root share", "on the root", "rate", "first token"),
        *("switches", "commonest tag", "coverage", "monotonicity", "diagonal", "relative entropy"),
    }
)
# Numbers whose mean is dominated by a few texts.
SKEWED = frozenset({"effective number"})
# Largest entropy whose effective number is a float.
MOST_NATS = 700.0
# Numbers of at least this size are written as powers of ten.
LARGE = 1e7


def structure_statistics(span: SpanStructure) -> dict[str, float]:
    """Return the numbers that describe a structure, by name.

    The kind selects names from :data:`MEANINGS`, or defines its own. Numbers that a structure does
    not have are left out, such as the arc length of a single token.
    """
    kind = find_kind(span.kind)
    numbers = kind.said("statistics", kind.statistics(np.asarray(span.decoded), len(span)))
    tokens = len(span)
    if span.other_start is not None and span.other_end is not None:
        tokens += span.other_end - span.other_start
    found = {"tokens": tokens, **numbers}
    return {name: float(value) for name, value in found.items() if value is not None}


def meaning(name: str, kind: str) -> str:
    """Describe a number of structures of this kind in words; empty if it has no description."""
    return find_kind(kind).meanings.get(name) or MEANINGS.get(name, "")


def is_share(name: str, kind: str = PARTS) -> bool:
    """Return whether a number of structures of this kind is shown in percent."""
    return name in SHARES or name in find_kind(kind).shares


def effective_number(nats: float) -> float:
    """Return exp of an entropy, or of :data:`MOST_NATS` if the entropy is larger."""
    return math.exp(min(nats, MOST_NATS))


def power_of_ten(value: float) -> str:
    """Write a number of at least :data:`LARGE` by its magnitude alone, as "10^250"."""
    over = "over " if value >= math.exp(MOST_NATS) else ""
    return f"{over}10^{math.floor(math.log10(value)) if over else round(math.log10(value))}"


def own_heads(decoded: Sequence[int] | np.ndarray) -> np.ndarray:
    """Convert heads of ``SpanStructure.decoded`` to the index of each token's head.

    In ``decoded`` 0 is the root and i the i-th token. In the result a root is its own head.
    """
    heads = np.asarray(decoded, dtype="int64")
    return np.where(heads == 0, np.arange(len(heads)), heads - 1)


def _heads(decoded: np.ndarray, n: int) -> dict[str, Any]:
    heads = own_heads(decoded)
    own = np.arange(n)
    # If heads are chosen independently, there may be cycles, whose words count as roots.
    heads = np.where(without_cycles(heads) < 0, own, heads)
    tree = tree_statistics(heads)
    is_root = heads == own
    has_arcs = not is_root.all()
    return {
        "depth": tree.depth,
        "left-branching": tree.left_branching if has_arcs else None,
        "root share": tree.root_share if n else None,
        "on the root": float(is_root[heads].mean()) if n > 1 else None,
        "arc length": tree.arc_length if has_arcs else None,
    }


def _spans(decoded: np.ndarray, n: int) -> dict[str, Any]:
    """Return the numbers of a binary tree, whose brackets are first and last token."""
    brackets = sorted(
        ((int(a), int(b)) for a, b in decoded.reshape(-1, 2) if b > a),
        key=lambda bracket: (bracket[0], -bracket[1]),
    )
    known, shares, deepest = set(brackets), [], 0
    open_ends: list[int] = []
    for first, last in brackets:
        while open_ends and open_ends[-1] < first:
            open_ends.pop()
        open_ends.append(last)
        deepest = max(deepest, len(open_ends))
        size = last - first + 1
        if size > 2:
            # The left half is a bracket that starts here, or the first token.
            left = max((b for a, b in known if a == first and b < last), default=first)
            shares.append((left - first) / (size - 2))
    return {"depth": deepest, "left splits": float(np.mean(shares)) if shares else None}


def _arcs(decoded: np.ndarray, n: int) -> dict[str, Any]:
    arcs = decoded.reshape(-1, 2)
    inner = arcs[arcs[:, 0] > 0]
    return {
        "arcs per token": len(arcs) / n if n else None,
        "root share": len(set(arcs[arcs[:, 0] == 0][:, 1].tolist())) / n if n else None,
        "left-branching": float((inner[:, 0] > inner[:, 1]).mean()) if len(inner) else None,
        "arc length": float(np.abs(inner[:, 0] - inner[:, 1]).mean()) if len(inner) else None,
    }


def _items(decoded: np.ndarray, n: int) -> dict[str, Any]:
    chosen = np.sort(decoded.ravel())
    return {
        "rate": len(chosen) / n if n else None,
        "runs": int((np.diff(chosen) > 1).sum()) + 1 if len(chosen) else 0,
        "first token": float(len(chosen) > 0 and chosen[0] == 0) if n else None,
    }


def _tags(decoded: np.ndarray, n: int) -> dict[str, Any]:
    tags = decoded.ravel()
    return {
        "switches": float((tags[1:] != tags[:-1]).mean()) if n > 1 else None,
        "commonest tag": Counter(tags.tolist()).most_common(1)[0][1] / n if n else None,
    }


def _segments(decoded: np.ndarray, n: int) -> dict[str, Any]:
    found = decoded.reshape(-1, 3)
    lengths = found[:, 1] - found[:, 0]
    return {"segments": len(found), "segment length": float(lengths.mean()) if len(found) else None}


def _phrases(decoded: np.ndarray, n: int) -> dict[str, Any]:
    found = decoded.reshape(-1, 3)[:, :2]
    depth = np.zeros(n + 1, dtype="int64")
    places = np.unique(found, axis=0)
    np.add.at(depth, places[:, 0], 1)
    np.add.at(depth, places[:, 1], -1)
    return {
        "phrases": len(found),
        "phrase length": float((found[:, 1] - found[:, 0]).mean()) if len(found) else None,
        "depth": int(depth.cumsum().max()),
    }


def _cells(decoded: np.ndarray, n: int) -> dict[str, Any]:
    """Return the numbers of an alignment, whose cells are [first-side token, second-side token]."""
    cells = decoded.reshape(-1, 2)
    cells = cells[np.lexsort((cells[:, 1], cells[:, 0]))]
    steps = np.diff(cells[:, 1])
    return {
        "parts": len(cells),
        "coverage": len(set(cells[:, 0].tolist())) / n if n else None,
        "monotonicity": float((steps >= 0).mean()) if len(steps) else None,
        "diagonal": float((cells[:, 0] == cells[:, 1]).mean()) if len(cells) else None,
    }


# ---------------------------------------------------------------- numbers for each token


def _items_by_token(decoded: np.ndarray, n: int) -> np.ndarray:
    each = np.zeros(n, dtype="int64")
    each[np.ravel(decoded)] = 1
    return each


def _brackets_by_token(decoded: np.ndarray, n: int) -> np.ndarray:
    each = np.zeros(n, dtype="int64")
    brackets = decoded.reshape(-1, 2)
    np.add.at(each, brackets[:, 0], n + 1)
    np.add.at(each, brackets[:, 1], 1)
    return each


complete_kind(
    PARTS, statistics=lambda decoded, n: {"parts": len(decoded)}, numbers=lambda decoded, n: None
)
complete_kind("heads", statistics=_heads, numbers=lambda decoded, n: own_heads(decoded))
complete_kind("spans", statistics=_spans, numbers=_brackets_by_token)
complete_kind("arcs", statistics=_arcs)
complete_kind("items", statistics=_items, numbers=_items_by_token)
complete_kind("tags", statistics=_tags, numbers=lambda decoded, n: np.ravel(decoded))
complete_kind("segments", statistics=_segments)
complete_kind("phrases", statistics=_phrases)
complete_kind("cells", statistics=_cells)


BINS = 16


def distribution(
    name: str, values: Sequence[float] | np.ndarray, kind: str = PARTS
) -> Statistic | None:
    """Return the distribution of a number, None if no value is finite."""
    array = np.asarray(values, dtype="float64")
    array = array[np.isfinite(array)]
    if not len(array):
        return None
    low, high = float(array.min()), float(array.max())
    if is_share(name, kind):
        low, high = 0.0, max(1.0, high)
    # Bins are relative to the range. Floats as large as the number of trees over a long text could
    # not represent the edges of narrow bins.
    places = (array - low) / (high - low if high > low else 1.0)
    counts, _ = np.histogram(places, BINS, (0.0, 1.0))
    first, middle, third = np.quantile(array, [0.25, 0.5, 0.75]).tolist()
    quartiles = first, middle, third
    return Statistic(float(array.mean()), quartiles, low, high, counts.tolist(), len(array))


BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(histogram: Sequence[int], unicode: bool = True) -> str:
    """Draw a histogram in one line of text.

    Args:
        unicode: whether blocks can be printed; otherwise ".", ":" and "#" are used.
    """
    top = max(histogram, default=0)
    if not top:
        return ""
    if not unicode:
        return "".join("#" if 2 * count > top else ":" if count else "." for count in histogram)
    return "".join(
        BLOCKS[-(-count * (len(BLOCKS) - 1) // top)] if count else " " for count in histogram
    )


def position_share(
    sentences: Sequence[Sequence[str]], structures: Sequence[np.ndarray], least: int = 5
) -> tuple[float, int]:
    """Measure to which degree the length of a text alone determines its structure.

    Only texts of four or more tokens are examined, and only lengths with at least ``least``
    different texts.

    Args:
        structures: one number for each token, such as its head.
        least: least number of different texts of a length.

    Returns:
        The share of tokens whose number is the most frequent one at their position among the
        *other* texts of their length, and the number of tokens examined.
    """
    groups: dict[int, dict[tuple[str, ...], np.ndarray]] = {}
    for words, numbers in zip(sentences, structures):
        if len(words) > 3:
            groups.setdefault(len(words), {}).setdefault(tuple(words), np.asarray(numbers))
    same = total = 0
    for group in groups.values():
        if len(group) < least:
            continue
        table = np.stack(list(group.values()))
        total += table.size
        for column in table.T:
            _, counts = np.unique(column, return_counts=True)
            ranked = np.sort(counts)[::-1]
            # Largest count among the other texts: the text's own value counts one less.
            others = np.where(counts == ranked[0], ranked[1] if len(ranked) > 1 else 0, ranked[0])
            alone = counts - 1
            same += int(counts[(alone >= others) & (alone > 0)].sum())
    return (same / total if total else float("nan")), total
