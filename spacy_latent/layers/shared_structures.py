"""What several structures of one item have in common, so that a composer does it once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.kernels.transfers import fetch, send_together


@dataclass
class Round:
    """The states that a round of messages adds.

    place: ``(R,)`` int64, of each state its token, as its place among those of all items.
    target: ``(E,)`` int64, of each message the state, among those of this round, that gets it.
    source: ``(E,)`` int64, where it comes from: the states of all earlier rounds are counted in
        turn, after those that tokens have before the first one where :class:`SharedSubtrees` has
        them.
    count: ``(R,)`` int64, messages of each state.
    """

    place: Tensor
    target: Tensor
    source: Tensor
    count: Tensor


@dataclass
class SharedSubtrees:
    """The different subtrees of S trees over tokens ``(B, n)``, from the leaves up.

    own: whether messages from tokens before the first round are asked for.
    rounds: the states that each adds.
    result: ``(S, n)`` int64, the state of each token after the last round, in the order in which
        the rounds add them; at padding that of some token.
    """

    own: bool
    rounds: list[Round]
    result: Tensor


def share_subtrees(
    z: Tensor, lengths: Tensor, items: int, item: Tensor | None, most: int, all_of_them: bool
) -> SharedSubtrees | None:
    """See kernels.subtrees. None where there is something else to do: soft structures, those whose
    arcs get a gradient, those with several heads of a token, and any on a GPU, where a product with
    all arcs takes less time than the way to the CPU.

    z: ``(S, n+1, n+1)``. lengths: ``(S,)``. item: ``(S,)``, which of the items each is of; None for
        each of its own.
    """
    if not _readable(z) or not lengths.any():
        return None
    from spacy_latent.kernels import subtrees

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
    """What is made of two halves, from the leaves up.

    left, right: ``(M,)`` int64, the halves of each: leaves are counted first, then what earlier
        rounds made.
    sizes: how many each round makes.
    """

    left: Tensor
    right: Tensor
    sizes: list[int]

    def rounds(self) -> Iterator[tuple[int, int]]:
        """The first merge of each round, and that after its last."""
        yield from pairwise(accumulate(self.sizes, initial=0))


@dataclass
class SharedMerges(Merges):
    """See kernels.head_merges.Merges; tensors on the device of the structures.

    on_right: ``(M,)`` bool, whether the modifier is the right half.
    """

    arcs: Tensor
    on_right: Tensor
    result: Tensor


def share_merges(z: Tensor, lengths: Tensor, items: int, item: Tensor | None) -> SharedMerges:
    """See kernels.head_merges. Merges are shared where arcs get no gradient of their own.

    z: ``(S, n+1, n+1)``, hard trees; LatentError where one is none. lengths: ``(S,)``. item:
    ``(S,)``, which of the items each is of; None for each of its own.
    """
    from spacy_latent.kernels import head_merges

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
    """Each pair of two numbers ``(N,)`` int64 once, in order: its first and its second ``(U,)``,
    and which of these each of the N is. count: above all of the second."""
    pairs, which = torch.unique(first * count + second, return_inverse=True)
    return pairs // count, pairs % count, which


def share_equals(z: Tensor, items: int, item: Tensor) -> tuple[Tensor, Tensor] | None:
    """Which of the structures ``(S, *parts)`` are an earlier one of the same item again: the first
    of each kind ``(U,)``, and the kind of each ``(S,)``. None where none is, and where their parts
    get a gradient, or are on a GPU.

    item: ``(S,)`` int64, which of the items each is of.
    """
    if not _readable(z) or len(z) <= items:
        return None
    from spacy_latent.kernels import subtrees

    first, kind = subtrees.share_equals(_array(z.flatten(1)), _array(item), items)
    if len(first) == len(z):
        return None
    return torch.from_numpy(first), torch.from_numpy(kind)


def _readable(z: Tensor) -> bool:
    traced = type(z) is not Tensor or torch.compiler.is_compiling()
    return not traced and not z.requires_grad and z.device.type == "cpu"


def _array(values: Tensor) -> np.ndarray:
    """Contiguous, and of a type that kernels are compiled for."""
    if values.dtype not in (torch.float32, torch.float64, torch.int64):
        values = values.float() if values.is_floating_point() else values.long()
    return values.contiguous().numpy()


def _item(items: int, item: Tensor | None) -> np.ndarray:
    return np.arange(items) if item is None else _array(item)
