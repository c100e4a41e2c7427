"""Sequences of tags with the same transition scores at all positions, as in CRF taggers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, NotTractable
from spacy_latent.kernels.autograd import arrays, families, operators
from spacy_latent.kernels.autograd.tracing import not_traced
from spacy_latent.kernels.core.gpu_transfers import fetch
from spacy_latent.kernels.core.pool import spread
from spacy_latent.kernels.core.status import UNSOLVED
from spacy_latent.structures.base import SparseSolution, chosen_parts, subtract_highest
from spacy_latent.structures.extreme_scores import contains_extreme
from spacy_latent.structures.linear_chain import ChainOfTags, LinearChain, check_tags

if TYPE_CHECKING:
    from spacy_latent.kernels.chains.tag_batches import BatchSums

Scheme = Literal["biluo", "iob2"]
Self = TypeVar("Self", bound="TagSequence")
NO_PAIRS = np.empty((2, 0), dtype=np.int64)


class TagSequence(ChainOfTags):
    """Sequences with one tag for each position (Lafferty et al. 2001).

    Scores are emissions ``(B, N, K)``, ``[b, position, tag]``. Lengths are ``(B,)``, each at most
    N. −inf forbids a tag at a position. So the log-partition over sequences that agree with partial
    annotation is the log-partition of the scores with −inf at all other tags (Tsuboi et al. 2008).

    :meth:`bind` gives a copy that also scores adjacent tags, and the first and the last tag.
    Without it, positions are independent. log_partition, marginals, entropy and log_prob are
    differentiable in the bound scores as well. The gradient of log_partition is the expected number
    of uses of each.

    Time is O(N·K²), memory O(N·K). For the algorithms see
    :class:`~spacy_latent.structures.linear_chain.LinearChain`.
    """

    part_axes: ClassVar[int] = 2
    parts: ClassVar[str] = "tags"
    exclusive_axes: ClassVar[tuple[int, ...]] = (1,)
    family: ClassVar[str] = "spacy_latent.kernels.chains.tag_sequence:FAMILY"

    def __init__(self) -> None:
        self.bound: tuple[Tensor, Tensor, Tensor] | None = None

    def _settings(self) -> dict[str, Any]:
        return {} if self.bound is None else {"tags": len(self.bound[0])}

    def __repr__(self) -> str:
        tags = "" if self.bound is None else f"{len(self.bound[0])} tags"
        return f"{self.name}({tags})"

    def bind(self: Self, transitions: Tensor, start: Tensor, end: Tensor) -> Self:
        """Return a copy with scores of transitions and of the first and the last tag.

        Args:
            transitions: ``(K, K)``, [previous tag, tag], floating-point; −inf forbids, see
                :func:`allowed_transitions`.
            start, end: ``(K,)``, scores of the first and the last tag.
        """
        for given in (transitions, start, end):
            if not isinstance(given, Tensor):
                raise InvalidScores(
                    f"{self.name}.bind: got {type(given).__name__}; expected three tensors. "
                    "Convert them with torch.as_tensor()."
                )
        count = len(start) if start.dim() == 1 else 0
        shapes = tuple(transitions.shape), tuple(start.shape), tuple(end.shape)
        if count < 1 or shapes != ((count, count), (count,), (count,)):
            raise InvalidScores(
                f"{self.name}.bind: transitions, start and end have shapes {shapes[0]}, "
                f"{shapes[1]} and {shapes[2]}; expected (K, K), (K,) and (K,), K at least 1."
            )
        for given in (transitions, start, end):
            if not given.is_floating_point():
                raise InvalidScores(
                    f"{self.name}.bind: a tensor has dtype {given.dtype}; expected floating point."
                )
        result = copy(self)
        # Converted to float32 as scores are.
        wide = [one.float() if one.element_size() < 4 else one for one in (transitions, start, end)]
        result.bound = (wide[0], wide[1], wide[2])
        return result

    def check(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        scores, lengths = super().check(scores, lengths)
        count = scores.shape[-1]
        if count < 1 or (self.bound is not None and len(self.bound[0]) != count):
            bound = "at least 1" if self.bound is None else f"{len(self.bound[0])}, as bound"
            raise InvalidScores(
                f"{self.name}: scores have shape {tuple(scores.shape)}; expected the last "
                f"size, K, the number of tags, to be {bound}."
            )
        lengths = self.check_lengths(lengths, scores.shape[1])
        return scores, lengths

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        position = torch.arange(scores.shape[1], device=scores.device)
        return (position < lengths.to(scores.device)[:, None])[:, :, None]

    def smoothed_maximum(
        self, scores: Tensor, lengths: Tensor, maximum: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Run the recursion of :class:`LinearChain` with a smoothed maximum."""
        return LinearChain().smoothed_maximum(self.chain_scores(scores, lengths), lengths, maximum)

    def smoothed_by_kernels(
        self, scores: Tensor, lengths: Tensor, regularizer: str, gamma: float
    ) -> Tensor:
        pairs = self.chain_scores(scores, lengths)
        return LinearChain().smoothed_by_kernels(pairs, lengths, regularizer, gamma)

    def chain_scores(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return scores for :class:`LinearChain` that give the same distribution.

        The sequences and their scores are the same. They are differentiable in emissions and in the
        bound scores.

        Args:
            scores: ``(B, N, K)``, emissions.

        Returns:
            ``(B, N, K, K)``.
        """
        count = scores.shape[-1]
        if not scores.shape[1] or self.bound is None:
            return scores[:, :, None, :].expand(-1, -1, count, -1)
        transitions, start, end = (given.to(scores) for given in self.bound)
        position = torch.arange(scores.shape[1], device=scores.device)
        last = (position == lengths.to(scores.device)[:, None] - 1)[..., None]
        emissions = scores + torch.where(last, end, 0.0)
        first = (emissions[:, :1] + start)[:, :, None, :].expand(-1, -1, count, -1)
        return torch.cat([first, emissions[:, 1:, None, :] + transitions], 1)

    @not_traced
    def follow(self, tags: Tensor, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return marginals, and the conditional probabilities of tags along the sequences ``tags``.

        A run of tags from i to j has the probability marginals[i, tag i] · Π steps[i + 1 … j].

        Args:
            tags: ``(B, N)``.

        Returns:
            Marginals ``(B, N, K)``, and steps ``(B, N)``: the probability of each tag given the one
            before, and for the first tag its own. Both are float64, without gradient, 0 at padding.
        """
        if self.part_axes != 2:
            raise NotTractable(self.name, "follow", "marginals")
        array, sizes = self._read_to_sum(scores, lengths)
        inside = torch.arange(scores.shape[1], device="cpu") < lengths.cpu()[:, None]
        read = tags.cpu()[inside] if tags.shape == scores.shape[:2] else tags.new_full((1,), -1)
        if bool(((read < 0) | (read >= scores.shape[2])).any()):
            raise InvalidScores(
                f"{self.name}.follow: tags have shape {tuple(tags.shape)}; expected "
                f"{tuple(scores.shape[:2])}, and numbers from 0 to {scores.shape[2] - 1} up to "
                "each length."
            )
        given = tags.to("cpu", torch.int32).contiguous().numpy()
        marginals, steps, _ = self._follow(array, sizes, given, NO_PAIRS)
        found = torch.from_numpy(marginals), torch.from_numpy(steps)
        return found[0].to(scores.device), found[1].to(scores.device)

    def best_path(self, scores: Tensor, lengths: Tensor) -> np.ndarray:
        """Return :meth:`best_tags` as an array.

        Shapes are not checked. For one short text the checks would take longer than the search.

        Args:
            scores: ``(B, N, K)``, float32 or float64.
            lengths: ``(B,)`` int64, from 0 to N.
        """
        scores = scores.detach()
        if scores.is_cuda or self.part_axes != 2:
            return self._best(scores, lengths).cpu().numpy()
        return self._best_path(*self._read_kernel_input(scores, lengths))

    def best_and_follow(
        self, scores: Tensor, lengths: Tensor, pairs: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return :meth:`best_path`, and :meth:`follow` along it, as arrays.

        Args:
            scores: ``(B, N, K)``, float32 or float64.
            lengths: ``(B,)`` int64, from 0 to N.
            pairs: ``(2, P)`` int64, the first and the second tags of P steps.

        Returns:
            The best path, marginals and steps, and the probability of each step of ``pairs`` given
            its first tag, ``(B, N, P)`` float64, at the position of its second tag. It is 0 at the
            first position, at padding and if its first tag is impossible.
        """
        pairs = NO_PAIRS if pairs is None else pairs

        if self.part_axes != 2:
            raise NotTractable(self.name, "best_and_follow", "marginals")
        scores = scores.detach()
        if not scores.is_cuda:
            array, sizes = self._read_kernel_input(scores, lengths)
            if not contains_extreme(array):
                path = self._best_path(array, sizes)
                return path, *self._follow(array, sizes, path, pairs)
        path = self._best(scores, lengths).to("cpu", torch.int32).contiguous().numpy()
        return path, *self._follow(*self._read_to_sum(scores, lengths), path, pairs)

    def _read_kernel_input(self, scores: Tensor, lengths: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Return :meth:`_kernel_input` of emissions on the CPU, and lengths, as arrays.

        NumPy copies the few numbers of a short text in less time than torch.
        """
        emissions = fetch(scores).numpy()
        batch, longest, count = emissions.shape
        array = np.empty((batch, longest + count + 2, count), dtype=emissions.dtype)
        array[:, :longest] = emissions
        if self.bound is None:
            array[:, longest:] = 0.0
        else:
            places = array[:, longest:-2], array[:, -2], array[:, -1]
            for place, given in zip(places, self.bound):
                place[...] = fetch(given).numpy()
        return array, fetch(lengths).contiguous().numpy()

    def _read_to_sum(self, scores: Tensor, lengths: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Return emissions with the bound scores as the kernels read them, and lengths.

        Scores as large as masks are reduced first.
        """
        own, near = self._to_sum_over(*self._read(scores, lengths))
        return arrays.read(own._kernel_input(near), lengths)

    def _best_path(self, array: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        from spacy_latent.kernels.chains import tag_sequence

        family = tag_sequence.FAMILY
        count = array.shape[-1]
        path = np.empty((len(array), array.shape[1] - count - 2), dtype=np.int32)
        status = np.zeros(len(array), dtype=np.int8)
        _spread(family.best, family.best_cost, sizes, array, path, status)
        families.check(self.name, status)
        return path

    def _follow(
        self, array: np.ndarray, sizes: np.ndarray, tags: np.ndarray, pairs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        from spacy_latent.kernels.chains import tag_sequence

        marginals = np.empty((*tags.shape, array.shape[-1]))
        steps, status = np.empty(tags.shape), np.zeros(len(tags), dtype=np.int8)
        of_pairs = np.zeros((*tags.shape, pairs.shape[1]))
        costs = tag_sequence.FAMILY.total_cost
        followed = marginals, steps, of_pairs
        for follow in (tag_sequence.follow_sequences, tag_sequence.follow_in_logarithms):
            _spread(follow, costs, sizes, array, tags, pairs, followed, status)
            if not (status == UNSOLVED).any():
                break
        families.check(self.name, status)
        return marginals, steps, of_pairs

    @not_traced
    def batch_sums(self, emissions: Tensor, lengths: Tensor) -> BatchSums:
        """Return log-partitions ``(B,)`` and a call for the gradient of their weighted sum.

        This is for a loss that needs no second derivative. It is many times as fast as
        :meth:`log_partition` if there are many tags, or if most transitions are −inf.

        Args:
            emissions: ``(T, K)``, of all items without padding.
            lengths: ``(B,)``, adding up to T.

        Returns:
            See :class:`~spacy_latent.kernels.chains.tag_batches.BatchSums`. An item without a
            feasible sequence has the log-partition −inf, and no gradient.
        """
        from spacy_latent.kernels.chains.tag_batches import BatchSums

        count = emissions.shape[-1] if emissions.dim() == 2 else 0
        sizes = lengths.detach().cpu().numpy()
        bound = self.bound is None or len(self.bound[0]) == count
        if not count or not bound or sizes.sum() != len(emissions) or (sizes < 0).any():
            tags = "K" if self.bound is None else f"{len(self.bound[0])}, as bound"
            raise InvalidScores(
                f"{self.name}.batch_sums: emissions have shape {tuple(emissions.shape)}; expected "
                f"(T, {tags}), and lengths that add up to T."
            )
        if self.bound is None:
            shared = emissions.new_zeros((count + 2, count))
        else:
            transitions, start, end = self.bound
            shared = torch.cat([transitions, start[None], end[None]])
        if emissions.dtype not in (torch.float32, torch.float64):
            emissions = emissions.float()
        array = emissions.detach().cpu().numpy()
        return BatchSums(array, sizes, shared.detach().cpu().double().numpy(), self.name)

    def best_tags(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return :meth:`map` as tags ``(B, N)`` int32, −1 at padding."""
        return self._best(*self._read(scores.detach(), lengths))

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        uses = self._expected_uses(scores, lengths)
        return uses[:, : -scores.shape[-1] - 2].reshape(scores.shape)

    def log_count(self, scores: Tensor, lengths: Tensor) -> Tensor:
        if self.bound is None:
            return super().log_count(scores, lengths)
        for given in self.bound:
            if bool(torch.isnan(given).any() | torch.isposinf(given).any()):
                raise InvalidScores(
                    f"{self.name}: scores given to bind() hold NaN or +inf; expected finite "
                    "numbers, or -inf for forbidden transitions."
                )
        allowed = self.bind(*(_allowed(given) for given in self.bound))
        return super(TagSequence, allowed).log_count(scores, lengths)

    def contains(self, z: Tensor, lengths: Tensor) -> Tensor:
        chosen, valid, lengths = chosen_parts(self, z, lengths)
        whole = valid & self._covers_positions(chosen, lengths)
        if self.bound is None:
            return whole
        safe = torch.where(whole.view(-1, *[1] * self.part_axes), chosen, False).to(z.dtype)
        return whole & ~self._total(safe, torch.zeros_like(safe), lengths).isneginf()

    def sparsemap(
        self, scores: Tensor, lengths: Tensor, max_iter: int = 200, tolerance: float = 1e-6
    ) -> SparseSolution:
        if self.bound is not None and any(_allowed(given).ne(given).any() for given in self.bound):
            raise NotTractable(
                f"{self.name} with transitions other than 0 and -inf",
                "sparsemap",
                "LinearChain, whose parts are the transitions; or marginals",
            )
        return super().sparsemap(scores, lengths, max_iter, tolerance)

    def decode(self, z: np.ndarray, length: int) -> np.ndarray:
        """Return the tags of the positions, ``(n,)`` int32."""
        return z[:length].argmax(1).astype("int32")

    def encode(self, gold: np.ndarray, length: int, num_tags: int | None = None) -> np.ndarray:
        """Return a 0/1 array ``(n, K)`` from tags as in :meth:`decode`.

        Args:
            num_tags: K; must be given unless transitions are bound.
        """
        if num_tags is None and self.bound is not None:
            num_tags = len(self.bound[0])
        check_tags(self.name, gold, length, num_tags)
        z = np.zeros((length, num_tags or 0), dtype="float32")
        z[np.arange(length), np.asarray(gold, dtype="int64")] = 1.0
        return z

    def encode_for(
        self, gold: np.ndarray, length: int | Sequence[int], parts: Sequence[int]
    ) -> np.ndarray:
        return self.encode(gold, int(np.sum(length)), num_tags=parts[-1])

    # ---------------------------------------------------------------- emissions and bound scores

    def _k_best_kernel(self) -> Callable[..., None]:
        from spacy_latent.kernels.chains import tag_sequence

        return tag_sequence.k_best_sequences

    def _kernel_input(self, scores: Tensor) -> Tensor:
        """Return emissions, transitions, start and end of each item, ``(B, N + K + 2, K)``."""
        batch, count = scores.shape[0], scores.shape[-1]
        if self.bound is None:
            shared = scores.new_zeros((count + 2, count))
        else:
            transitions, start, end = (given.to(scores) for given in self.bound)
            # Separate ones for each item, see :meth:`_with_kernel_input`, or the same for all.
            shared = torch.cat([transitions, start[..., None, :], end[..., None, :]], -2)
        return torch.cat([scores.flatten(1, -2), shared.expand(batch, -1, -1)], 1)

    def _with_kernel_input(self: Self, given: Tensor, scores: Tensor) -> tuple[Self, Tensor]:
        count = scores.shape[-1]
        own, shared = given[:, : -count - 2], given[:, -count - 2 :]
        result = copy(self)
        result.bound = (shared[:, :count], shared[:, count], shared[:, count + 1])
        return result, own.reshape(scores.shape)

    def _kernel_input_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        own = super()._kernel_input_mask(scores, lengths).flatten(1, -2)
        count = scores.shape[-1]
        return torch.cat([own, own.new_ones(own.shape[0], count + 2, count)], 1)

    def _kernel_input_without_offset(
        self, given: Tensor, scores: Tensor, lengths: Tensor
    ) -> Tensor:
        """Subtract offsets of the bound scores.

        Every sequence has one first tag, one last tag, and a fixed number of transitions.
        """
        count = scores.shape[-1]
        own = given[:, : -count - 2].reshape(scores.shape)
        shared = given[:, -count - 2 :]
        parts = torch.ones_like(shared, dtype=torch.bool)
        between = shared[:, :count]
        if self.exclusive_axes:
            between = subtract_highest(between, parts[:, :count], (0, 1))
        ends = subtract_highest(shared[:, count:], parts[:, count:], (1,))
        return torch.cat(
            [self._without_common_offset(own, lengths).flatten(1, -2), between, ends], 1
        )

    def _has_extreme_scores(self, scores: Tensor) -> bool:
        return super()._has_extreme_scores(scores) or any(
            map(super()._has_extreme_scores, self.bound or ())
        )

    def _expected_uses(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return operators.marginals(
            self._kernel_input(scores), lengths, self.family, self._options(scores)
        )

    def _total(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the score of hard sequences ``z``, from emissions and bound scores."""
        joined = self._kernel_input(scores)
        uses = self._uses(z, scores, lengths)
        return (uses * torch.where(uses != 0, joined, 0.0)).sum((-2, -1))

    def _uses(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        z = torch.where(self.part_mask(scores, lengths), z, 0.0)
        begins, ends = self._border_tags(z)
        position = torch.arange(ends.shape[-2], device=z.device)[:, None]
        last = (position == lengths.to(z.device)[:, None, None] - 1).to(z)
        # No slices: torch.export would need to know that these hold two positions.
        following = torch.where(position < begins.shape[-2] - 1, begins.roll(-1, -2), 0.0)
        pairs = ends.transpose(-1, -2) @ following
        first, final = begins[..., :1, :].sum(-2, True), (ends * last).sum(-2, True)
        return torch.cat([z.flatten(1 - scores.dim(), -2), pairs, first, final], -2)

    def _covers_positions(self, chosen: Tensor, lengths: Tensor) -> Tensor:
        """Return a mask ``(B,)`` of the items that choose one part at each position.

        Args:
            chosen: ``(B, *parts)`` bool.
            lengths: ``(B,)`` int64.
        """
        position = torch.arange(chosen.shape[1], device=chosen.device)
        return (chosen.sum(2) == (position < lengths[:, None])).all(1)

    def _border_tags(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tags that begin and that end at each position, ``(..., N, K)`` each."""
        return z, z

    def _indicate(self, found: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return 0/1 arrays ``(R, *parts)`` from the tag of each emission, −1 if it is not used."""
        z = found.new_zeros((*found.shape, scores.shape[-1]), dtype=scores.dtype)
        chosen = (found >= 0).to(z.dtype).unsqueeze(-1)
        z.scatter_(-1, found.clamp_min(0).long().unsqueeze(-1), chosen)
        return z.view(*found.shape[:-1], *scores.shape[1:])


def _spread(
    kernel: Callable[..., None],
    costs: Callable[[np.ndarray], np.ndarray],
    sizes: np.ndarray,
    array: np.ndarray,
    *arguments: Any,
) -> None:
    """Call a kernel for all items; a single one needs no estimate of its cost."""
    if len(sizes) == 1:
        kernel(0, 1, (array, sizes, ()), *arguments)
    else:
        spread(kernel, costs(sizes), ((array, sizes, ()), *arguments))


def _allowed(scores: Tensor) -> Tensor:
    """Return 0, and −inf at entries of ``scores`` that are −inf."""
    return torch.where(scores.isneginf(), scores.detach(), 0.0)


# ---------------------------------------------------------------- schemes of spans


def scheme_tags(labels: Sequence[str], scheme: Scheme) -> list[str]:
    """Return the tags of a scheme for labels of spans: "O", then the tags of each label in turn."""
    return list(_tags_of(tuple(labels), scheme))


@lru_cache(maxsize=32)
def _tags_of(labels: tuple[str, ...], scheme: Scheme) -> tuple[str, ...]:
    return ("O", *(f"{prefix}-{label}" for label in labels for prefix in _prefixes(scheme)))


def allowed_transitions(tags: Sequence[str], scheme: Scheme) -> tuple[Tensor, Tensor, Tensor]:
    """Return transitions ``(K, K)``, start and end ``(K,)`` for :meth:`TagSequence.bind`, float32.

    They are 0 if a scheme of spans allows them, else −inf. Add learned scores to them.

    Args:
        tags: "O" and tags such as "B-PER", in any order, see :func:`scheme_tags`.
        scheme: "biluo", in which a span is U or B I … I L; or "iob2", in which it is B I … I.
    """
    between, start, end = _allowed_table(tuple(tags), scheme)
    return between.clone(), start.clone(), end.clone()


@lru_cache(maxsize=32)
def _allowed_table(tags: tuple[str, ...], scheme: Scheme) -> tuple[Tensor, Tensor, Tensor]:
    prefixes = _prefixes(scheme)
    parsed = [tuple(tag.split("-", 1)) for tag in tags]
    for tag, (prefix, *label) in zip(tags, parsed):
        if tag != "O" and (prefix not in prefixes or not label or not label[0]):
            raise InvalidScores(
                f"allowed_transitions: {tag!r} is no tag of the scheme {scheme!r}; expected 'O' "
                f"or one of {list(prefixes)} with a label, as in '{prefixes[0]}-PER'."
            )

    def allowed(previous: tuple[str, ...], own: tuple[str, ...]) -> bool:
        """Return whether the tags may be adjacent; "O" stands for positions beyond both ends."""
        inside = own[0] in ("I", "L")
        open_end = previous[0] in ("B", "I")
        if inside:
            return open_end and previous[1] == own[1]
        return scheme == "iob2" or not open_end

    outside = ("O",)

    def scores(rows: list[tuple[str, ...]], columns: list[tuple[str, ...]]) -> Tensor:
        table = [
            [0.0 if allowed(row, column) else -torch.inf for column in columns] for row in rows
        ]
        return torch.tensor(table, device="cpu").view(len(rows), len(columns))

    return scores(parsed, parsed), scores([outside], parsed)[0], scores(parsed, [outside])[:, 0]


def _prefixes(scheme: Scheme) -> tuple[str, ...]:
    known: dict[str, tuple[str, ...]] = {"biluo": ("B", "I", "L", "U"), "iob2": ("B", "I")}
    if scheme not in known:
        raise InvalidScores(f"The scheme is {scheme!r}; expected one of {list(known)}.")
    return known[scheme]
