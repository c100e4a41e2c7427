"""Equal parts of several structures of one item, which a composer composes only once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.kernels.core.gpu_transfers import fetch, send_together


@dataclass
class Round:
    """States that a round of messages adds.

    Attributes:
        place: ``(R,)`` int64, the token of each state, as its place among the tokens of all items.
        target: ``(E,)`` int64, the state of this round that gets each message.
        source: ``(E,)`` int64, the state that sends each message. States are numbered through all
            earlier rounds, after the initial states of tokens if ``own`` of :class:`SharedSubtrees`
            is true.
        count: ``(R,)`` int64, number of messages that each state gets.
    """

    place: Tensor
    target: Tensor
    source: Tensor
    count: Tensor


@dataclass
class SharedSubtrees:
    """Different subtrees of S trees over tokens ``(B, n)``, from the leaves up.

    Attributes:
        own: whether messages from tokens before the first round are needed.
        rounds: the rounds, with the states that each adds.
        result: ``(S, n)`` int64, the state of each token after the last round, in the order in
            which the rounds add them; at padding the state of some token.
    """

    own: bool
    rounds: list[Round]
    result: Tensor


def share_subtrees(
    z: Tensor, lengths: Tensor, items: int, item: Tensor | None, most: int, all_of_them: bool
) -> SharedSubtrees | None:
    """Return the different subtrees of trees, or None if they cannot be shared.

    They cannot be shared if structures are soft, if arcs need a gradient, or if a token has several
    heads. They are never shared on a GPU, where a product with all arcs takes less time than a copy
    to the CPU.

    Args:
        z: ``(S, n+1, n+1)``.
        lengths: ``(S,)``.
        item: ``(S,)``, the item of each; None if there is one for each.
    """
    if not _readable(z) or not lengths.any():
        return None
    from spacy_latent.kernels.arborescences import subtrees

    arrays = _array(z), _array(lengths), _item(items, item)
    states = subtrees.share_subtrees(*arrays, items, most, all_of_them)
    if states is None:
        return None
    own = bool((states.sources < 0).any())
    first_state = items * (z.shape[-1] - 1) if own else 0
    sources = np.where(states.sources < 0, -1 - states.sources, states.sources + first_state)
    sizes, heard = states.sizes.tolist(), states.heard.tolist()
    place, count, target, source, result = map(
        torch.from_numpy, (states.place, states.counts, states.targets, sources, states.result)
    )
    parts = zip(place.split(sizes), target.split(heard), source.split(heard), count.split(sizes))
    return SharedSubtrees(own, [Round(*part) for part in parts], result)


@dataclass
class Merges:
    """Compositions of two halves, from the leaves up.

    Attributes:
        left, right: ``(M,)`` int64, the halves of each: leaves are counted first, then results of
            earlier rounds.
        sizes: number of merges of each round.
    """

    left: Tensor
    right: Tensor
    sizes: list[int]

    def rounds(self) -> Iterator[tuple[int, int]]:
        """Yield the start and the end of each round, as positions in the list of merges."""
        yield from pairwise(accumulate(self.sizes, initial=0))


@dataclass
class SharedMerges(Merges):
    """Shared merges of heads and modifiers, see kernels.arborescences.head_merges.Merges.

    Tensors are on the device of the structures.

    Attributes:
        on_right: ``(M,)`` bool, whether the modifier is the right half.
    """

    arcs: Tensor
    on_right: Tensor
    result: Tensor


def share_merges(z: Tensor, lengths: Tensor, items: int, item: Tensor | None) -> SharedMerges:
    """Return the merges of hard trees, see kernels.arborescences.head_merges.

    Merges are shared unless arcs need a gradient.

    Args:
        z: ``(S, n+1, n+1)``, hard trees.
        lengths: ``(S,)``.
        item: ``(S,)``, the item of each; None if there is one for each.

    Raises:
        LatentError: a structure is no hard tree.
    """
    from spacy_latent.kernels.arborescences import head_merges

    arrays = _array(fetch(z)), _array(fetch(lengths))
    merges = head_merges.merge_heads(
        *arrays, _item(items, None if item is None else fetch(item)), items, not z.requires_grad
    )
    if merges is None:
        raise LatentError(
            "A structure is no hard dependency tree: expected arcs of 0 and 1, one head for each "
            "token, and no token above itself."
        )
    arrays_made = merges.left, merges.right, merges.arcs, merges.result
    left, right, arcs, result = send_together([*map(torch.from_numpy, arrays_made)], z.device)
    on_right = arcs[:, 2] > arcs[:, 1]
    return SharedMerges(left, right, merges.sizes.tolist(), arcs, on_right, result)


def distinct_pairs(first: Tensor, second: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return each different pair of two numbers ``(N,)`` int64 once, in order.

    Args:
        count: number greater than all in ``second``.

    Returns:
        First and second numbers of the pairs ``(U,)``, and the pair of each of the N.
    """
    pairs, which = torch.unique(first * count + second, return_inverse=True)
    return pairs // count, pairs % count, which


def share_equals(z: Tensor, items: int, item: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the different structures among ``(S, *parts)``, or None if they are not shared.

    Only structures of the same item are compared. They are not shared if all are different, if
    their parts get a gradient, or if they are on a GPU.

    Args:
        item: ``(S,)`` int64, the item of each.

    Returns:
        The first structure of each kind ``(U,)``, and the kind of each ``(S,)``.
    """
    if not _readable(z) or len(z) <= items:
        return None
    from spacy_latent.kernels.arborescences import subtrees

    first, kind = subtrees.share_equals(_array(z.flatten(1)), _array(item), items)
    if len(first) == len(z):
        return None
    return torch.from_numpy(first), torch.from_numpy(kind)


def _readable(z: Tensor) -> bool:
    traced = type(z) is not Tensor or torch.compiler.is_compiling()
    return not traced and not z.requires_grad and z.device.type == "cpu"


def _array(values: Tensor) -> np.ndarray:
    """Return a contiguous array of a type for which kernels are compiled."""
    if values.dtype not in (torch.float32, torch.float64, torch.int64):
        values = values.float() if values.is_floating_point() else values.long()
    return values.contiguous().numpy()


def _item(items: int, item: Tensor | None) -> np.ndarray:
    return np.arange(items) if item is None else _array(item)
