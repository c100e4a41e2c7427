"""Contract of a structure, checked against a list of all its members."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, NotTractable
from spacy_latent.structures.base import Reparameterized, SparseSolution, Structure
from spacy_latent.structures.results import ReparameterizedTrace
from spacy_latent.structures.smoothed import (
    Regularizer,
    maximum,
    smoothed_expectation,
    smoothed_sample,
    smoothed_value,
)
from spacy_latent.testing.listing import Length, Listing, LogPotential, Members, scored
from spacy_latent.testing.noise import seeded
from spacy_latent.testing.reports import (
    Check,
    Report,
    expect_made,
    first_failures,
    gradient,
    written,
)
from spacy_latent.testing.ties import tied_scores

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Operations that sum over structures.
SUMS = ("log_partition", "marginals", "entropy")
# Share of the parts that masks forbid.
FORBIDDEN = 0.3
# Share of the parts that get one of the largest scores, and the same share one of the smallest.
LARGE = 0.15
# Shares of the parts with scores of a mask, which every structure then has to use.
MASKED = (0.4, 0.8, 1.0)
# Number of masks of one item in the check of feasibility.
MASKS = 30
# A score whose exponential underflows to 0 in float64.
UNLIKELY = -800.0
# Standard errors by which frequencies may differ from probabilities, and a number of draws that is
# added to them.
STANDARD_ERRORS, DRAWS_BESIDE = 5.0, 3.0


class StructureOptions(TypedDict, total=False):
    """Options of :func:`structure_checks`."""

    log_potential: LogPotential | None
    encode_options: Mapping[str, object] | None
    scales: Sequence[float]
    tolerance: float
    num_samples: int
    seed: int


def check_structure(
    structure: Structure,
    members: Members,
    lengths: Sequence[Length] = (4, 0, 3, 1),
    **options: Unpack[StructureOptions],
) -> None:
    """Check the whole contract of a structure; for the arguments see :func:`structure_checks`.

    Raises:
        AssertionError: If any checks fail. The message names the operation, the item, the given and
            the expected value of all failed checks.
    """
    first_failures(structure_checks(structure, members, lengths, **options))


def structure_checks(
    structure: Structure,
    members: Members,
    lengths: Sequence[Length] = (4, 0, 3, 1),
    *,
    log_potential: LogPotential | None = None,
    encode_options: Mapping[str, object] | None = None,
    scales: Sequence[float] = (1e-3, 1.0, 1e3),
    tolerance: float = 1e-8,
    num_samples: int = 4000,
    seed: int = 0,
) -> Iterator[Check]:
    """Yield the checks of :func:`check_structure` one by one, for a test runner to name.

    These operations are compared with the list: map, log_partition, marginals, entropy,
    cross_entropy, kl, log_count, log_prob, top_k, sparsemap, contains, encode and decode, and
    smoothed sums. Their gradients are compared as well, and for marginals the product with the
    Hessian. This is done at each of the scales, with ragged items, NaN at entries that are no part
    and −inf at some parts.

    Other comparisons with the list:

    - the frequencies of sampled structures.
    - the best structure if there are scores of 1e15 and 1e30, and sums if structures have to use
      scores of −1e15 and −1e30. They are compared to the precision of total scores, and may be
      refused.
    - the best structure, several best ones, marginals, samples and SparseMAP if scores tie, for
      example because of equal words.

    Then the checks ensure that nothing depends on padding, layout, the rest of the batch, chance or
    torch's inference mode. dtypes must be kept, atoms of SparseMAP must be members in half
    precision, too, and errors must name the item. If ``structure.tractable`` (``has_map`` for map,
    ``linear`` for sparsemap) does not promise an operation, it may raise NotTractable instead.

    Args:
        members: Function that returns all structures of an item of a given length, ``(M, *parts)``
            0/1 arrays. The length is an int, or a tuple of one for each axis, as in ``lengths``. A
            few thousand at most.
        lengths: Lengths of the items of the checked batch, at least two. Best include one that is
            empty and one of a single part.
        log_potential: Function that returns the score of each of the structures ``z``
            ``(M, *parts)`` of an item from its own ``scores`` ``(*parts)`` and its length, ``(M,)``
            float64, differentiable; −inf for forbidden structures. If scores belong to decisions,
            it is the log-probability. None for z·s.
        encode_options: Further arguments of ``structure.encode``.
        scales: Scales of the scores in comparisons with the list.
        tolerance: Relative and absolute tolerance, in float64.
        num_samples: Number of samples for frequencies. These may differ by five standard errors.
        seed: Seed of all scores and samples.
    """
    expect_made("check_structure", structure, Structure, "SpanningTree()")
    contract = _Contract(
        structure,
        Listing(members, lengths, log_potential),
        dict(encode_options or {}),
        tuple(scales),
        tolerance,
        num_samples,
        seed,
    )
    for name in dir(contract):
        if name.startswith("check_"):
            method: Callable[[], None] = getattr(contract, name)
            yield Check(name.removeprefix("check_"), repr(structure), method)


@dataclass
class _Contract:
    """Checks of a structure: each method ``check_*`` is one check."""

    structure: Structure
    listing: Listing
    encode_options: dict[str, Any]
    scales: tuple[float, ...]
    tolerance: float
    num_samples: int
    seed: int

    def __post_init__(self) -> None:
        self.report = Report(repr(self.structure))
        self.lengths = self.listing.lengths

    # ---------------------------------------------------------------- scores

    def generator(self, offset: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + offset)

    def random(self, offset: int, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator(offset), dtype=torch.float64)

    def parts(self) -> Tensor:
        """Return the structure's mask of parts, ``(B, *shape)`` bool."""
        like = torch.zeros(len(self.listing), *self.listing.shape)
        return self.structure.part_mask(like, self.lengths).expand_as(like)

    def scores(
        self, scale: float = 1.0, forbids: bool = False, offset: int = 0, fill: float = torch.nan
    ) -> Tensor:
        """Return scores ``(B, *shape)`` float64, with ``fill`` at entries that are no part.

        If ``forbids`` is set, some parts are −inf, so that each item still has a structure.
        """
        listing = self.listing
        scores = scale * self.random(offset, len(listing), *listing.shape)
        parts = self.parts()
        if forbids:
            drawn = torch.rand(scores.shape, generator=self.generator(offset + 1))
            unused = drawn < FORBIDDEN
            for b in range(len(listing)):
                z, _ = listing.feasible(torch.zeros_like(scores), b)
                pick = int(torch.randint(len(z), (1,), generator=self.generator(offset + b)))
                listing.own(unused, b)[z[pick].bool()] = False
            scores = scores.masked_fill(unused, -torch.inf)
        return scores.masked_fill(~parts, fill)

    def cases(self) -> Iterator[tuple[str, Tensor]]:
        for i, scale in enumerate(self.scales):
            yield f"scores of scale {scale:g}", self.scores(scale, offset=100 * i)
        yield "with -inf at some parts", self.scores(forbids=True, offset=1000)

    def promises(self, operation: str) -> bool:
        if operation == "map" or operation == "top_k":
            return self.structure.has_map
        if operation == "contains":
            return self.structure.linear and self.structure.has_map
        if operation == "sparsemap":
            return self.structure.linear and self.listing.log_potential is scored
        if operation == "log_count":
            return "log_partition" in self.structure.tractable
        if operation in ("cross_entropy", "kl"):
            return "entropy" in self.structure.tractable
        return operation in self.structure.tractable

    def call(self, operation: str, *arguments: Any, given: str = "") -> Any:
        """Return the result of an operation, or None if it is absent and may be."""
        try:
            with self.report.works(operation, given):
                return getattr(self.structure, operation)(*arguments)
        except AssertionError as error:
            if isinstance(error.__cause__, NotTractable) and not self.promises(operation):
                return None
            raise

    def reference(self, operation: str, scores: Tensor, b: int) -> Tensor:
        """Return the result for item b from the list, differentiable."""
        z, totals = self.listing.feasible(scores, b)
        if operation == "log_partition":
            return totals.logsumexp(0)
        log_p = totals.log_softmax(0)
        if operation == "marginals":
            return torch.tensordot(log_p.exp(), z, 1)
        return -(log_p.exp() * log_p).sum()

    # ---------------------------------------------------------------- attributes of the class

    def check_declarations(self) -> None:
        structure, listing, report = self.structure, self.listing, self.report
        axes = len(listing.shape)
        report.holds(
            "part_axes",
            structure.part_axes == axes,
            f"given {structure.part_axes}; the members listed have {axes} axes of parts.",
        )
        parts, inside, used = self.parts(), listing.inside(), listing.used()
        for b in range(len(listing)):
            report.holds(
                "part_mask",
                not (parts[b] & ~inside[b]).any(),
                f"{listing.item(b)}: {(parts[b] & ~inside[b]).nonzero().tolist()[:5]} are called "
                "parts, but lie beyond the item.",
            )
            report.holds(
                "part_mask",
                not (used[b] & ~parts[b]).any(),
                f"{listing.item(b)}: {(used[b] & ~parts[b]).nonzero().tolist()[:5]} are no parts, "
                "but there are structures that hold them.",
            )
            exclusive = list(structure.exclusive_axes)
            if exclusive:
                counts = listing.members[b].sum([1 + axis for axis in exclusive])
                some = listing.own(used, b).any(*exclusive) if len(exclusive) == 1 else None
                expected = (listing.members[b].sum([1 + axis for axis in exclusive]) > 0).any(0)
                expected = expected if some is None else some
                report.holds(
                    "exclusive_axes",
                    (counts == expected).all(),
                    f"{listing.item(b)}: along the axes {exclusive} not every structure has "
                    "exactly one part wherever there is one.",
                )
            if structure.incomparable:
                members = listing.members[b].flatten(1).double()
                held = members @ members.mT == members.sum(1)[:, None]
                report.holds(
                    "incomparable",
                    int(held.sum()) == len(members),
                    f"{listing.item(b)}: some structure holds all parts of another one.",
                )
        again = copy.deepcopy(structure)
        with report.works("pickle"):
            pickle.loads(pickle.dumps(vars(structure)))
        report.holds(
            "covers", structure.covers(again) is not False, "given False of a copy of itself."
        )

    # ---------------------------------------------------------------- single structures

    def check_map(self) -> None:
        for given, scores in self.cases():
            self.best(given, scores.requires_grad_())

    def best(self, given: str, scores: Tensor) -> None:
        z = self.call("map", scores, self.lengths, given=given)
        if z is None:
            return
        self.report.holds("map", not z.requires_grad, f"{given}: the result has a gradient.")
        self.members("map", given, z[None], scores)
        for b in range(len(self.listing)) if self.structure.linear else ():
            _, totals = self.listing.feasible(scores.detach(), b)
            own = self.listing.log_potential(
                self.listing.own(z, b)[None],
                self.listing.own(scores.detach(), b),
                self.listing.sizes[b],
            )
            self.report.same(
                "map",
                f"{given}, the score of {self.listing.item(b)}",
                own[0],
                totals.max(),
                1e-12,
                1e-12,
            )

    def members(self, operation: str, given: str, z: Tensor, scores: Tensor) -> list[Tensor]:
        """Check that ``(K, B, *shape)`` are structures of their items that the scores allow.

        Returns:
            Their indices in the list, for each item.
        """
        numbers = []
        for b in range(len(self.listing)):
            number = self.listing.find(b, z[:, b])
            strange = (number < 0).nonzero().flatten()
            if len(strange):
                shown = self.listing.own(z[strange[0]], b)
                self.report.fail(
                    operation,
                    f"{given}, {self.listing.item(b)}: given parts {shown.nonzero().tolist()}, "
                    f"{z[strange[0], b].count_nonzero()} with those in the padding, which is no "
                    "structure of the list.",
                )
            totals = self.listing.log_potential(
                self.listing.members[b], self.listing.own(scores.detach(), b), self.listing.sizes[b]
            )
            self.report.holds(
                operation,
                not totals[number].isneginf().any(),
                f"{given}, {self.listing.item(b)}: given a structure with a forbidden part.",
            )
            numbers.append(number)
        return numbers

    def check_top_k(self) -> None:
        for given, scores in self.cases():
            self.several_best(given, scores)

    def several_best(self, given: str, scores: Tensor) -> None:
        listing = self.listing
        # If scores belong to decisions, k is large enough for all structures. If the best
        # structures are exact, k is small.
        most = max(len(z) for z in listing.members)
        counts = (1, 3, min(most + 2, 40)) if self.structure.linear else (most + 2,)
        for k in counts:
            best = self.call("top_k", scores, self.lengths, k, given=given)
            if best is None:
                return
            shape = (k, len(listing))
            self.report.holds(
                "top_k",
                tuple(best.z.shape[:2]) == shape and tuple(best.scores.shape) == shape,
                f"{given}, k = {k}: given shapes {tuple(best.z.shape)} and "
                f"{tuple(best.scores.shape)}; expected {shape} and parts, and {shape}.",
            )
            for b in range(len(listing)):
                z, totals = listing.feasible(scores, b)
                if not self.structure.linear:
                    totals = totals.log_softmax(0)
                    kept = totals.exp() > 0
                    z, totals = z[kept], totals[kept]
                expected = totals.sort(descending=True).values[:k]
                there = f"{given}, k = {k}, scores of {listing.item(b)}"
                found = best.scores[: len(expected), b]
                self.report.same("top_k", there, found, expected, 1e-9, 1e-9)
                beyond = best.scores[len(expected) :, b]
                self.report.holds(
                    "top_k",
                    beyond.isneginf().all(),
                    f"{there}: there are {len(expected)} structures, and what comes after them "
                    f"is {beyond.tolist()[:5]} in place of -inf.",
                )
                number = listing.find(b, best.z[: len(expected), b])
                self.report.holds(
                    "top_k",
                    (number >= 0).all() and len(number.unique()) == len(number),
                    f"{there}: {number.tolist()} are the places in the list of what is given; "
                    "expected different ones, none of them -1.",
                )

    def check_large_scores(self) -> None:
        """Check the best structures if large scores absorb all digits of the others."""
        if not (self.structure.linear and self.listing.log_potential is scored):
            return
        k = 3
        for size in (1e15, 1e30):
            given = f"several scores of {size:g}"
            chosen = torch.rand(self.scores().shape, generator=self.generator(7))
            scores = torch.where(chosen < LARGE, size, self.scores())
            scores = torch.where(chosen > 1 - LARGE, -size, scores).masked_fill(
                ~self.parts(), torch.nan
            )
            z = self.call("map", scores, self.lengths, given=given)
            best = self.call("top_k", scores, self.lengths, k, given=given)
            if z is None or best is None:
                return
            self.members("map", given, z[None], scores)
            for b in range(len(self.listing)):
                _, totals = self.listing.feasible(scores, b)
                expected = totals.sort(descending=True).values[:k]
                count = len(expected)
                number = self.listing.find(b, torch.cat([z[None], best.z[:count]])[:, b])
                self.report.holds(
                    "top_k",
                    (number >= 0).all() and len(number[1:].unique()) == count,
                    f"{given}, {self.listing.item(b)}: {number[1:].tolist()} are the places in the "
                    "list of what is given; expected different ones, none of them -1.",
                )
                own = self.listing.log_potential(
                    self.listing.members[b][number],
                    self.listing.own(scores, b),
                    self.listing.sizes[b],
                )
                # Differences that are lost in a total of float64 cannot be distinguished.
                tolerance = 1e-13 * size * max(1, self.listing.own(scores, b).numel())
                there = f"{given}, the score of {self.listing.item(b)}"
                self.report.same("map", there, own[0], expected[0], 1e-12, tolerance)
                self.report.same("top_k", there, own[1:], expected, 1e-12, tolerance)

    def check_masked_scores(self) -> None:
        """Check sums if every structure has to use parts with scores of a mask.

        The result must depend on the structures with the fewest such parts, by all their other
        scores.
        """
        if not self.structure.linear:
            return
        for (i, share), size in itertools.product(enumerate(MASKED), (1e15, 1e30)):
            given = f"scores of {-size:g} at a share of {share:g} of the parts"
            scores = self.scores(offset=110 + i, fill=0.0)
            drawn = torch.rand(scores.shape, generator=self.generator(120 + i))
            masked = (drawn < share) & self.parts()
            found, asked = [], torch.where(masked, -size, scores)
            try:
                for operation in ("log_partition", "marginals", "entropy", "kl"):
                    other = (torch.zeros_like(scores),) if operation == "kl" else ()
                    found.append(self.call(operation, asked, *other, self.lengths, given=given))
            except AssertionError as error:
                # Refusing these scores is correct, too.
                if isinstance(error.__cause__, InvalidScores):
                    continue
                raise
            if any(one is None for one in found):
                return
            for b in range(len(self.listing)):
                self.of_fewest(given, b, masked, scores, size, [one[b] for one in found])
            self.samples_of_fewest(given, masked, scores, asked)

    def fewest(self, b: int, masked: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the smallest number of masked parts in members of item b.

        Returns:
            This number, a mask of the members that have it, and the scores of their other parts.
        """
        rest = torch.where(masked, 0.0, scores)
        members = self.listing.members[b]
        totals = self.listing.log_potential(
            members, self.listing.own(rest, b), self.listing.sizes[b]
        )
        count = (members * self.listing.own(masked, b)).flatten(1).sum(1)
        least = count[~totals.isneginf()].min()
        kept = (count == least) & ~totals.isneginf()
        return least, kept, torch.where(kept, totals, -torch.inf)

    def of_fewest(
        self, given: str, b: int, masked: Tensor, scores: Tensor, size: float, found: list[Tensor]
    ) -> None:
        least, kept, totals = self.fewest(b, masked, scores)
        p = totals.softmax(0)
        logs = torch.where(kept, totals.log_softmax(0), 0.0)
        zeros = torch.zeros_like(self.listing.own(scores, b))
        others = self.listing.log_potential(self.listing.members[b], zeros, self.listing.sizes[b])
        ratio = logs - torch.where(kept, others.log_softmax(0), 0.0)
        expected = {
            "log_partition": totals.logsumexp(0) - size * least,
            "marginals": torch.tensordot(p, self.listing.members[b], 1),
            "entropy": -(p * logs).sum(),
            "kl": (p * ratio).sum(),
        }
        for (operation, own), one in zip(expected.items(), found):
            one = one[self.listing.windows[b]] if operation == "marginals" else one
            there = f"{given}, {self.listing.item(b)}"
            self.report.same(operation, there, one, own, 1e-12, 1e-6)

    def samples_of_fewest(self, given: str, masked: Tensor, scores: Tensor, asked: Tensor) -> None:
        drawn = self.call("sample", asked, self.lengths, 20, self.generator(3), given=given)
        if drawn is None:
            return
        log_p = self.structure.log_prob(drawn, asked, self.lengths)
        for b, number in enumerate(self.members("sample", given, drawn, scores)):
            _, kept, totals = self.fewest(b, masked, scores)
            there = f"{given}, {self.listing.item(b)}"
            self.report.holds(
                "sample", kept[number].all(), f"{there}: given one with more masked parts."
            )
            expected = totals.log_softmax(0)[number]
            self.report.same("log_prob", there, log_p[:, b], expected, 1e-12, 1e-6)

    def check_log_prob(self) -> None:
        listing = self.listing
        most = max(len(z) for z in listing.members)
        for given, scores in self.cases():
            leaf = scores.clone().requires_grad_()
            z = torch.zeros(most, len(listing), *listing.shape, dtype=torch.float64)
            for b, members in enumerate(listing.members):
                place = torch.arange(most).clamp_max(len(members) - 1)
                z[:, b] = listing.placed(b, members)[place]
            found = self.call("log_prob", z, leaf, self.lengths, given=given)
            if found is None:
                return
            shape = (most, len(listing))
            self.report.holds(
                "log_prob",
                tuple(found.shape) == shape,
                f"{given}: given shape {tuple(found.shape)}, expected {shape}.",
            )
            alone = self.call("log_prob", z[0], leaf, self.lengths, given=given)
            self.report.same("log_prob", f"{given}, first of each item", alone, found[0], 1e-12)
            other = scores.clone().requires_grad_()
            expected = []
            for b, members in enumerate(listing.members):
                own = listing.own(other, b)
                totals = listing.log_potential(members, own, listing.sizes[b])
                expected.append(totals - listing.feasible(other, b)[1].logsumexp(0))
                self.report.same(
                    "log_prob",
                    f"{given}, {listing.item(b)}",
                    found[: len(members), b],
                    expected[-1],
                    self.tolerance,
                    self.tolerance,
                )
            # Only finite values: others have no gradient to compare.
            up = self.random(7, most, len(listing))
            mine, listed = [], []
            for b, values in enumerate(expected):
                possible = ~values.detach().isneginf()
                mine.append(found[: len(values), b][possible] * up[: len(values), b][possible])
                listed.append(values[possible] * up[: len(values), b][possible])
            self.same_gradients("log_prob", given, torch.cat(mine), leaf, torch.cat(listed), other)

    def check_contains(self) -> None:
        listing = self.listing
        parts = self.parts()
        zeros = torch.zeros(len(listing), *listing.shape, dtype=torch.float64)
        for b in range(len(listing)):
            known = listing.placed(b, listing.members[b])
            picked = torch.randperm(len(known), generator=self.generator(b))[:50]
            known = known[picked]
            flips = torch.rand(known.shape, generator=self.generator(b + 1))
            few = 1.5 / max(1, int(parts[b].sum()))
            changed = torch.where((flips < few) & parts[b], 1 - known, known)
            anything = (flips < 0.5).to(known) * parts[b]
            halves = 0.5 * known[:1]
            beyond = known[:1].clone()
            beyond[0, ~parts[b]] = 1.0
            given = torch.cat([known, changed, anything, halves, beyond])
            sizes = self.lengths[b : b + 1].expand(len(given), *self.lengths.shape[1:])
            found = self.call("contains", given, sizes)
            if found is None:
                return
            number = listing.find(b, given)
            totals = listing.log_potential(
                listing.members[b], listing.own(zeros, b), listing.sizes[b]
            )
            expected = (number >= 0) & ~totals[number.clamp_min(0)].isneginf()
            self.report.holds(
                "contains",
                found.dtype == torch.bool and found.shape == expected.shape,
                f"{listing.item(b)}: given {found.dtype} of shape {tuple(found.shape)}, expected "
                f"torch.bool of shape {tuple(expected.shape)}.",
            )
            for row in (found != expected).nonzero().flatten().tolist()[:1]:
                self.report.fail(
                    "contains",
                    f"{listing.item(b)}: of the parts {given[row].nonzero().tolist()} with values "
                    f"{given[row][given[row] != 0].tolist()}: given {bool(found[row])}, expected "
                    f"{bool(expected[row])}.",
                )

    def check_encode_and_decode(self) -> None:
        listing, structure = self.listing, self.structure
        for b, length in enumerate(listing.sizes):
            members = listing.members[b][:50]
            decoded = []
            for z in members:
                padded = listing.placed(b, z[None])[0].numpy()
                with self.report.works("decode", listing.item(b)):
                    stored = structure.decode(padded, length)
                    trimmed = structure.decode(z.numpy(), length)
                where = f"{listing.item(b)}, parts {z.nonzero().tolist()}"
                self.report.holds(
                    "decode",
                    isinstance(stored, np.ndarray) and np.issubdtype(stored.dtype, np.integer),
                    f"{where}: given {stored!r}; expected an array of integers.",
                )
                self.report.holds(
                    "decode",
                    np.array_equal(stored, trimmed),
                    f"{where}: with padding given {stored.tolist()}, without {trimmed.tolist()}.",
                )
                decoded.append(stored)
            # If two structures have the same annotation, either of them may be returned.
            one_each = len({(d.shape, d.tobytes()) for d in decoded}) == len(decoded)
            for z, stored in zip(members, decoded):
                where = f"{listing.item(b)}, of {stored.tolist()}"
                with self.report.works("encode", where):
                    back = structure.encode(stored, length, **self.encode_options)
                    again = structure.decode(np.asarray(back), length)
                    found = torch.from_numpy(np.asarray(back, dtype="float64"))
                if one_each:
                    self.report.same("encode", where, found, z)
                self.report.holds(
                    "encode",
                    np.array_equal(again, stored),
                    f"{where}: decoded again it is {again.tolist()}.",
                )

    # ---------------------------------------------------------------- sums

    def check_log_partition(self) -> None:
        self.sums("log_partition")

    def check_marginals(self) -> None:
        self.sums("marginals")

    def check_entropy(self) -> None:
        self.sums("entropy")

    def sums(self, operation: str) -> None:
        for given, scores in self.cases():
            self.sum(operation, given, scores)
        if operation == "log_partition":
            self.gradient_is_marginals()

    def sum(self, operation: str, given: str, scores: Tensor) -> None:
        listing = self.listing
        leaf, other = scores.clone().requires_grad_(), scores.clone().requires_grad_()
        found = self.call(operation, leaf, self.lengths, given=given)
        if found is None:
            return
        values, listed = [], []
        for b in range(len(listing)):
            expected = self.reference(operation, other, b)
            own = listing.own(found, b) if operation == "marginals" else found[b]
            self.report.same(
                operation,
                f"{given}, {listing.item(b)}",
                own,
                expected,
                self.tolerance,
                self.tolerance,
            )
            up = self.random(b + 3, expected.numel())
            values.append(own.flatten() * up)
            listed.append(expected.flatten() * up)
        if operation == "marginals":
            self.nothing_outside(operation, given, found, scores)
        self.report.holds(operation, found.requires_grad, f"{given}: the result has no gradient.")
        self.same_gradients(operation, given, torch.cat(values), leaf, torch.cat(listed), other)

    def gradient_is_marginals(self) -> None:
        leaf = self.scores(forbids=True, offset=1000).requires_grad_()
        marginals = self.call("marginals", leaf.detach(), self.lengths)
        if marginals is None:
            return
        total = self.structure.log_partition(leaf, self.lengths).sum()
        self.report.same(
            "log_partition",
            "its gradient, which is marginals",
            gradient(total, leaf),
            marginals,
            1e-9,
            1e-9,
        )

    def same_gradients(
        self,
        operation: str,
        given: str,
        values: Tensor,
        leaf: Tensor,
        listed: Tensor,
        other: Tensor,
    ) -> None:
        """Compare gradients of the sum of ``values`` for ``leaf`` with the list's."""
        with self.report.works(f"the gradient of {operation}", given):
            found = gradient(values.sum(), leaf)
        expected = gradient(listed.sum(), other)
        size = float(expected.abs().max()) if expected.numel() else 0.0
        for b in range(len(self.listing)):
            self.report.same(
                f"the gradient of {operation}",
                f"{given}, {self.listing.item(b)}",
                found[b],
                expected[b],
                100 * self.tolerance,
                100 * self.tolerance * max(1.0, size),
            )

    def nothing_outside(self, operation: str, given: str, found: Tensor, scores: Tensor) -> None:
        """Assert that a result is zero at forbidden parts and at entries that are no part."""
        closed = ~self.parts() | scores.detach().isneginf()
        self.report.holds(
            operation,
            not found.detach()[closed].any(),
            f"{given}: not 0 at {(found.detach().bool() & closed).nonzero().tolist()[:5]}, which "
            "are no parts, or forbidden.",
        )

    def check_gradients_by_differences(self) -> None:
        """Check gradients in float64 (torch.autograd.gradcheck)."""
        scores = self.scores(forbids=True, offset=2000, fill=0.0)
        free = self.parts() & scores.isfinite()
        leaf = scores[free].requires_grad_()
        for operation in ("log_partition", "marginals", "entropy"):
            if self.call(operation, scores, self.lengths) is None:
                continue

            def of(values: Tensor, operation: str = operation) -> Tensor:
                full = scores.masked_scatter(free, values)
                result: Tensor = getattr(self.structure, operation)(full, self.lengths)
                return result

            self.report.agrees_with_differences(operation, "", of, leaf, 1e-4, 1e-5)

    def check_cross_entropy_and_kl(self) -> None:
        listing = self.listing
        p, q = self.scores(offset=11), self.scores(offset=12)
        for operation in ("cross_entropy", "kl"):
            leaves = [p.clone().requires_grad_(), q.clone().requires_grad_()]
            others = [p.clone().requires_grad_(), q.clone().requires_grad_()]
            found = self.call(operation, *leaves, self.lengths)
            if found is None:
                return
            listed = []
            for b in range(len(listing)):
                log_p = listing.feasible(others[0], b)[1].log_softmax(0)
                log_q = listing.feasible(others[1], b)[1].log_softmax(0)
                log_ratio = log_p - log_q if operation == "kl" else -log_q
                listed.append((log_p.exp() * log_ratio).sum())
                self.report.same(
                    operation, listing.item(b), found[b], listed[-1], self.tolerance, self.tolerance
                )
            for leaf, other in zip(leaves, others):
                self.report.same(
                    f"the gradient of {operation}",
                    "all items",
                    gradient(found.sum(), leaf),
                    gradient(torch.stack(listed).sum(), other),
                    100 * self.tolerance,
                    100 * self.tolerance,
                )
            self.infinite(operation, p)

    def infinite(self, operation: str, p: Tensor) -> None:
        """Check values if q forbids structures that p allows.

        These are once likely under p, and once so unlikely that their probability underflows.
        """
        q = self.scores(forbids=True, offset=1000)
        if not bool((q.isneginf() & self.listing.used()).flatten(1).any(1)[0]):
            return
        for given in (p, p.masked_fill(q.isneginf(), UNLIKELY)):
            self.infinite_between(operation, given, q)

    def infinite_between(self, operation: str, p: Tensor, q: Tensor) -> None:
        leaf = p.clone().requires_grad_()
        found = self.call(operation, leaf, q, self.lengths)
        for b in range(len(self.listing)):
            lost = bool((q[b].isneginf() & self.listing.used()[b]).any())
            totals = self.listing.feasible(p, b)[1]
            lost = lost and len(self.listing.feasible(q, b)[1]) < len(totals)
            self.report.holds(
                operation,
                bool(found[b].isposinf()) == lost,
                f"{self.listing.item(b)}: given {written(found[b])} where the second scores "
                f"forbid {'some' if lost else 'none'} of what the first allow.",
            )
        self.report.holds(
            operation,
            gradient(found[found.isfinite()].sum(), leaf).isfinite().all(),
            "the gradient holds NaN beside an item whose value is infinite.",
        )

    def check_log_count(self) -> None:
        for given, scores in self.cases():
            found = self.call("log_count", scores, self.lengths, given=given)
            if found is None:
                return
            for b in range(len(self.listing)):
                count = float(len(self.listing.feasible(scores, b)[0]))
                expected = torch.tensor(count, dtype=torch.float64).log()
                where = f"{given}, {self.listing.item(b)}"
                self.report.same("log_count", where, found[b], expected, 1e-9, 1e-9)

    def check_smoothed(self) -> None:
        structure = self.structure
        if "smoothed" not in structure.tractable:
            return
        for given, scores in self.cases():
            for gamma in (1.0, 0.3):
                with self.report.works("smoothed", given):
                    soft = self.smoothed(scores, "entropic", gamma)
                    sparse = self.smoothed(scores, "quadratic", gamma)
                for b in range(len(self.listing)):
                    totals = self.listing.feasible(scores, b)[1]
                    expected = gamma * (totals / gamma).logsumexp(0)
                    where = f"{given}, γ = {gamma}, {self.listing.item(b)}"
                    for found in soft:
                        self.report.same(
                            "smoothed, entropic", where, found[b], expected, self.tolerance, 1e-8
                        )
                    self.report.holds(
                        "smoothed, quadratic",
                        sparse[0][b] >= totals.max() - 1e-9 * (1 + totals.max().abs()),
                        f"{where}: given {float(sparse[0][b])}, below the score of the best, "
                        f"{float(totals.max())}.",
                    )
                    pair = sparse[0][b], sparse[1][b]
                    self.report.same(
                        "smoothed, quadratic, by kernels", where, *pair, self.tolerance, 1e-8
                    )
            # With "entropic" the walk has the distribution of exact samples.
            count, generator = self.num_samples, self.generator(6)
            with self.report.works("smoothed_sample", given):
                drawn = smoothed_sample(
                    structure, scores, self.lengths, "entropic", 1.0, count, generator
                )
            self.frequencies("smoothed_sample", given, drawn, scores)

    def smoothed(self, scores: Tensor, regularizer: Regularizer, gamma: float) -> list[Tensor]:
        """Return the smoothed values by kernels, if there are any, and by the recursion."""
        able: Any = self.structure
        masked, lengths = able.masked(scores, self.lengths)
        return [
            smoothed_value(able, scores, self.lengths, regularizer, gamma),
            able.smoothed_maximum(masked, lengths, maximum(regularizer, gamma)),
        ]

    # ---------------------------------------------------------------- samples

    def check_samples(self) -> None:
        structure, count = self.structure, self.num_samples
        for given, scores in (
            ("scores of scale 1", self.scores(offset=21)),
            ("scores of scale 30", self.scores(30.0, offset=22)),
            ("with -inf at some parts", self.scores(forbids=True, offset=1000)),
        ):
            drawn = self.call("sample", scores, self.lengths, count, self.generator(3), given=given)
            if drawn is None:
                return
            self.report.holds(
                "sample",
                tuple(drawn.shape) == (count, *scores.shape) and not drawn.requires_grad,
                f"{given}: given shape {tuple(drawn.shape)}, expected {(count, *scores.shape)} "
                "without gradient.",
            )
            self.frequencies("sample", given, drawn, scores)
            again = structure.sample(scores, self.lengths, count, self.generator(3))
            self.report.identical("sample", f"{given}, the same generator", again, drawn)
        shared = self.generator(4)
        first, second = (structure.sample(scores, self.lengths, 50, shared) for _ in range(2))
        if max(len(self.listing.feasible(scores, b)[0]) for b in range(len(self.listing))) > 1:
            self.report.holds(
                "sample",
                not torch.equal(first, second),
                "a generator that was used before gives the same samples again.",
            )
        with seeded(self.seed):
            first = structure.sample(scores, self.lengths, 50)
        with seeded(self.seed):
            second = structure.sample(scores, self.lengths, 50)
        self.report.identical("sample", "torch.manual_seed, without a generator", second, first)

    def frequencies(self, operation: str, given: str, drawn: Tensor, scores: Tensor) -> None:
        numbers = self.members(operation, given, drawn, scores)
        for b, number in enumerate(numbers):
            totals = self.listing.log_potential(
                self.listing.members[b], self.listing.own(scores, b), self.listing.sizes[b]
            )
            p = totals.softmax(0)
            found = torch.bincount(number, minlength=len(p)).double() / len(number)
            spread = (p * (1 - p) / len(number)).sqrt()
            bound = STANDARD_ERRORS * spread + DRAWS_BESIDE / len(number)
            worst = int(((found - p).abs() - bound).argmax())
            self.report.holds(
                operation,
                (found - p).abs()[worst] <= bound[worst],
                f"{given}, {self.listing.item(b)}: the structure with the parts "
                f"{self.listing.members[b][worst].nonzero().tolist()} has the frequency "
                f"{float(found[worst]):.5f} in {len(number)} draws, expected "
                f"{float(p[worst]):.5f}, allowed a difference of {float(bound[worst]):.5f}.",
            )

    def check_traces(self) -> None:
        """Check that traces lead to members and repeat themselves.

        Check also that ∇log p(trace) has the mean 0.
        """
        count = 2000
        for given, scores in (
            ("scores of scale 1", self.scores(offset=41)),
            ("with -inf at some parts", self.scores(forbids=True, offset=1000)),
        ):
            leaf = scores.repeat(count, *[1] * (scores.dim() - 1)).requires_grad_()
            sizes = self.lengths.repeat(count, *[1] * (self.lengths.dim() - 1))
            found = self.call("sample_trace", leaf, sizes, 1, self.generator(5), given=given)
            if found is None:
                return
            z = found.z.view(count, *scores.shape)
            self.members("sample_trace", given, z, scores)
            self.report.holds(
                "sample_trace",
                tuple(found.log_probs.shape) == (1, len(leaf)) and (found.log_probs <= 1e-9).all(),
                f"{given}: log_probs are not (1, {len(leaf)}) logarithms of probabilities.",
            )
            again = self.structure.sample_trace(leaf.detach(), sizes, 1, self.generator(5))
            self.report.identical("sample_trace", f"{given}, the same generator", again.z, found.z)
            self.report.same(
                "sample_trace", f"{given}, without gradient", again.log_probs, found.log_probs
            )
            self.mean_score("sample_trace", given, found.log_probs, leaf, count)

    def check_reparameterize(self) -> None:
        count = 500
        scores = self.scores(offset=31)
        repeated = scores.repeat(count, *[1] * (scores.dim() - 1)).requires_grad_()
        sizes = self.lengths.repeat(count, *[1] * (self.lengths.dim() - 1))
        with seeded(self.seed):
            found = self.call("reparameterize", repeated, sizes)
        if found is None:
            return
        z = found.z.detach().view(count, *scores.shape)
        self.frequencies("reparameterize", "its z", z, scores)
        self.drawn_twice("reparameterize", found, repeated, scores)
        for name in ("noisy", "redrawn"):
            best = self.structure.map(getattr(found, name).detach(), sizes)
            self.report.identical(
                "reparameterize", f"map of {name}, which is z", best, found.z.to(best)
            )

    def drawn_twice(
        self, operation: str, found: Reparameterized, repeated: Tensor, scores: Tensor
    ) -> None:
        """Check noisy scores of many copies ``repeated`` of ``scores``.

        Noisy scores must be −inf at the right entries and have gradients. Both draws must have the
        same distribution.
        """
        closed = ~self.parts().expand_as(scores) | scores.isneginf()
        outside = closed.repeat(len(repeated) // len(scores), *[1] * (scores.dim() - 1))
        for name in ("noisy", "redrawn"):
            noisy = getattr(found, name)
            self.report.holds(
                operation,
                noisy[outside].isneginf().all(),
                f"{name} is not -inf at what is no part, or forbidden.",
            )
            (slopes,) = torch.autograd.grad(
                noisy[~outside].sum(), repeated, retain_graph=True, allow_unused=True
            )
            self.report.holds(
                operation,
                slopes is not None and slopes.isfinite().all(),
                f"the gradient of {name} is missing or not finite.",
            )
        # The mean of one part is compared.
        pair = [
            getattr(found, name).detach().view(-1, *scores.shape)[:, ~closed]
            for name in ("noisy", "redrawn")
        ]
        apart = (pair[0] - pair[1]).mean(0)
        bound = 6 * (pair[0].var(0) + pair[1].var(0)).div(len(pair[0])).sqrt() + 1e-9
        self.report.holds(
            operation,
            (apart.abs() <= bound).all(),
            f"the means of noisy and redrawn differ by {apart.abs().max():.4f}.",
        )

    def check_traces_drawn_again(self) -> None:
        """Check as :meth:`check_traces` and :meth:`check_reparameterize` do.

        The ``map`` of the noisy scores need not be z.
        """
        count, operation = 2000, "reparameterize_trace"
        for given, scores in (
            ("scores of scale 1", self.scores(offset=51)),
            ("with -inf at some parts", self.scores(forbids=True, offset=1000)),
        ):
            repeated = scores.repeat(count, *[1] * (scores.dim() - 1)).requires_grad_()
            sizes = self.lengths.repeat(count, *[1] * (self.lengths.dim() - 1))
            with seeded(self.seed):
                found = self.call(operation, repeated, sizes, given=given)
            if found is None:
                return
            self.members(operation, given, found.z.view(count, *scores.shape), scores)
            self.drawn_twice(operation, found, repeated, scores)
            self.same_gradient(operation, given, found, repeated, scores)
            self.mean_score(operation, given, found.log_probs, repeated, count)

    def same_gradient(
        self,
        operation: str,
        given: str,
        found: ReparameterizedTrace,
        repeated: Tensor,
        scores: Tensor,
    ) -> None:
        """Check that ∇E[f(noisy)] is E[∇f(redrawn) + f(redrawn)·∇log p(trace)].

        They are equal because both draws have the same distribution; control variates rely on this.
        f is bounded, and another function for each part.
        """
        closed = (~self.parts().expand_as(scores) | scores.isneginf()).repeat(
            len(repeated) // len(scores), *[1] * (scores.dim() - 1)
        )
        factors = torch.randn(scores.shape, dtype=scores.dtype, generator=self.generator(6))
        factors = factors.repeat(len(repeated) // len(scores), *[1] * (scores.dim() - 1))

        def judged(noisy: Tensor) -> Tensor:
            return (noisy.masked_fill(closed, 0.0).tanh() * factors).flatten(1).sum(1)

        free, known = judged(found.noisy), judged(found.redrawn)
        surrogate = free - known - known.detach() * found.log_probs.view(-1)
        (slopes,) = torch.autograd.grad(surrogate.sum(), repeated, retain_graph=True)
        slopes = slopes.view(-1, *scores.shape)
        bound = STANDARD_ERRORS * slopes.std(0) / len(slopes) ** 0.5 + 1e-9
        self.report.holds(
            operation,
            (slopes.mean(0).abs() <= bound).all(),
            f"{given}: the mean gradient of redrawn, with that of log_probs, is not that of noisy.",
        )

    def mean_score(
        self, operation: str, given: str, log_probs: Tensor, leaf: Tensor, count: int
    ) -> None:
        (slopes,) = torch.autograd.grad(log_probs.sum(), leaf)
        slopes = slopes.view(count, -1, *leaf.shape[1:])
        bound = STANDARD_ERRORS * slopes.std(0) / count**0.5 + 1e-9
        self.report.holds(
            operation,
            (slopes.mean(0).abs() <= bound).all(),
            f"{given}: the mean gradient of log_probs over {count} traces is not 0.",
        )

    # ---------------------------------------------------------------- SparseMAP

    def check_sparsemap(self) -> None:
        for given, scores in self.cases():
            if not self.average(given, scores):
                return
        if self.structure.has_map:
            for dtype in (torch.float16, torch.bfloat16):
                given, scores = f"scores in {dtype}", self.scores(0.5, offset=2000).to(dtype)
                solution = self.call("sparsemap", scores, self.lengths, 1000, 1e-9, given=given)
                self.of_the_list(given, solution)
        self.gradient_of_sparsemap()

    def average(self, given: str, scores: Tensor) -> bool:
        """Check SparseMAP.

        Returns:
            False if the structure has no SparseMAP.
        """
        solution = self.call("sparsemap", scores, self.lengths, 1000, 1e-9, given=given)
        if solution is None:
            return False
        self.nothing_outside("sparsemap", given, solution.mean, scores)
        if self.structure.has_map:
            self.mixture(given, solution, scores)
        self.optimal(given, solution, scores)
        return True

    def mixture(self, given: str, solution: SparseSolution, scores: Tensor) -> None:
        weights, atoms = solution.weights, solution.atoms
        report, tolerance = self.report, 1e-7
        ones = torch.ones_like(weights[0])
        report.same("sparsemap", f"{given}, sums of weights", weights.sum(0), ones, 0, tolerance)
        report.holds(
            "sparsemap",
            (weights >= 0).all() and (weights[:-1] >= weights[1:]).all(),
            f"{given}: weights are negative, or not the heaviest first.",
        )
        shaped = weights.view(*weights.shape, *[1] * (atoms.dim() - 2))
        size = 1.0 + 0 * solution.mean
        report.same(
            "sparsemap",
            f"{given}, the weighted sum of atoms",
            (shaped * atoms).sum(0),
            solution.mean,
            0,
            tolerance * float(size.max()) if size.numel() else tolerance,
        )
        self.of_the_list(given, solution)
        for b in range(len(self.listing)):
            there = weights[:, b] > 0
            report.holds(
                "sparsemap",
                not atoms[~there, b].any(),
                f"{given}, {self.listing.item(b)}: an atom without weight is not zero.",
            )

    def of_the_list(self, given: str, solution: SparseSolution) -> None:
        for b in range(len(self.listing)):
            there = solution.weights[:, b] > 0
            number = self.listing.find(b, solution.atoms[there, b])
            self.report.holds(
                "sparsemap",
                (number >= 0).all(),
                f"{given}, {self.listing.item(b)}: an atom is no structure of the list.",
            )

    def optimal(self, given: str, solution: SparseSolution, scores: Tensor) -> None:
        """Assert that no structure is better than the mean along the gradient s − μ there."""
        for b in range(len(self.listing)):
            z, _ = self.listing.feasible(scores, b)
            used = z.bool().any(0)
            mean = self.listing.own(solution.mean.detach(), b)
            slope = torch.where(used, self.listing.own(scores, b) - mean, 0.0)
            reached = (mean * slope).sum()
            best = (z * slope).flatten(1).sum(1).max()
            size = 1.0 + float(slope.abs().max()) if slope.numel() else 1.0
            where = f"{given}, {self.listing.item(b)}"
            if not self.structure.has_map:
                # A point of a larger polytope must be at least as good as every structure.
                own = torch.where(used, self.listing.own(scores, b), 0.0)
                values = (z * own).flatten(1).sum(1) - 0.5 * z.flatten(1).sum(1)
                value = (mean * own).sum() - 0.5 * mean.square().sum()
                self.report.holds(
                    "sparsemap",
                    value >= values.max() - 1e-5 * size,
                    f"{where}: the objective is {float(value)}, that of a structure "
                    f"{float(values.max())}.",
                )
                continue
            self.report.holds(
                "sparsemap",
                best - reached <= 1e-7 * size,
                f"{where}: along s - mean a structure has {float(best):.9g} and the mean "
                f"{float(reached):.9g}; expected none above the mean.",
            )
            self.report.holds(
                "sparsemap",
                solution.gap[b] >= float(best - reached) - 1e-7 * size,
                f"{where}: the gap is {float(best - reached):.3g}, and is said to be "
                f"{float(solution.gap[b]):.3g}.",
            )

    def gradient_of_sparsemap(self) -> None:
        scores = self.scores(0.7, forbids=True, offset=3000, fill=0.0)
        free = self.parts() & scores.isfinite()
        leaf = scores[free].requires_grad_()

        def mean(values: Tensor) -> Tensor:
            full = scores.masked_scatter(free, values)
            return self.structure.sparsemap(full, self.lengths, 1000, 1e-11).mean

        self.report.agrees_with_differences("sparsemap", "", mean, leaf, 1e-3, 1e-4)
        if not self.structure.has_map:
            return
        whole = scores.clone().requires_grad_()
        solution = self.structure.sparsemap(whole, self.lengths, 1000, 1e-11)
        up = self.random(41, *scores.shape)
        shares = (solution.atoms * up).flatten(2).sum(2)
        self.report.same(
            "sparsemap",
            "the gradient through weights, that through the mean expected",
            gradient((solution.weights * shares).sum(), whole),
            gradient((solution.mean * up).sum(), whole),
            1e-5,
            1e-5,
        )

    # ---------------------------------------------------------------- ties

    def check_ties(self) -> None:
        """Check results if scores tie.

        The best structure must be one of the best, the k best must be different ones, and marginals
        and samples must include all. For SparseMAP the gradient is checked wherever it exists. It
        must include all structures that tie.
        """
        parts = self.parts()
        for given, tied in tied_scores(len(self.listing), self.listing.shape, self.seed):
            scores = tied.masked_fill(~parts, torch.nan)
            self.best(given, scores)
            self.several_best(given, scores)
            self.sum("marginals", given, scores)
            count = max(self.num_samples // 8, 1)
            drawn = self.call("sample", scores, self.lengths, count, self.generator(3), given=given)
            if drawn is not None:
                self.frequencies("sample", given, drawn, scores)
            if self.average(given, scores):
                self.report.agrees_with_both_sides(
                    "sparsemap",
                    given,
                    lambda values: self.structure.sparsemap(values, self.lengths, 1000, 1e-11).mean,
                    tied.masked_fill(~parts, 0.0),
                    self.random(140, 2, *scores.shape) * parts,
                )

    # ---------------------------------------------------------------- changes without an effect

    def deterministic(self, given: str = "") -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
        """Return the operations without chance that the structure has.

        Each is a function to one tensor with the items first.
        """
        structure = self.structure
        found: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            "map": structure.map,
            "log_partition": structure.log_partition,
            "marginals": structure.marginals,
            "entropy": structure.entropy,
            "top_k": lambda s, n: structure.top_k(s, n, 3).scores.t(),
            "sparsemap": lambda s, n: structure.sparsemap(s, n).mean,
        }
        scores = self.scores(offset=51)
        able = {}
        for name, function in found.items():
            arguments = (scores, self.lengths, *([3] if name == "top_k" else []))
            if self.call(name, *arguments, given=given) is not None:
                able[name] = function
        return able

    def check_padding_is_never_read(self) -> None:
        blank = self.scores(offset=51, fill=0.0)
        for name, function in self.deterministic().items():
            expected = function(blank, self.lengths)
            for fill in (torch.nan, torch.inf, -torch.inf, 1e30, -1e30):
                scores = self.scores(offset=51, fill=fill)
                with self.report.works(name, f"{fill} at what is no part"):
                    found = function(scores, self.lengths)
                self.report.identical(name, f"with {fill} at what is no part", found, expected)

    def check_items_are_alone(self) -> None:
        """Check that the content, size and order of the rest of the batch have no effect."""
        scores = self.scores(offset=51)
        rows = torch.arange(len(self.listing)).flip(0).repeat(9)
        none = scores[:0], self.lengths[:0]
        for name, function in self.deterministic().items():
            together = function(scores, self.lengths)
            for b, window in enumerate(self.listing.windows):
                every = (slice(None), *window)
                own = scores[b : b + 1][every]
                with self.report.works(name, f"{self.listing.item(b)} alone, without padding"):
                    alone = function(own, self.lengths[b : b + 1])
                part = together[b][window] if alone.shape[1:] == own.shape[1:] else together[b]
                given = f"{self.listing.item(b)} alone, without padding"
                self.report.same(name, given, alone[0], part, 1e-9, 1e-9)
            with self.report.works(name, "a batch nine times as large, in reverse"):
                many = function(scores[rows], self.lengths[rows])
            self.report.same(name, "a batch nine times as large", many, together[rows], 1e-9, 1e-9)
            with self.report.works(name, "an empty batch"):
                empty = function(*none)
            self.report.holds(
                name, len(empty) == 0, f"an empty batch: given shape {tuple(empty.shape)}."
            )
        if "sample" in self.structure.tractable:
            with self.report.works("sample", "an empty batch"):
                drawn = self.structure.sample(*none, 2)
            expected = (2, 0, *self.listing.shape)
            self.report.holds(
                "sample",
                tuple(drawn.shape) == expected,
                f"an empty batch: given shape {tuple(drawn.shape)}, expected {expected}.",
            )

    def check_layout(self) -> None:
        """Check that strides and the integer type of lengths have no effect.

        Check also that arguments do not change.
        """
        scores = self.scores(offset=51, fill=0.0)
        turned = scores.flip(0).transpose(0, -1).contiguous().transpose(0, -1).flip(0)
        kept, sizes = scores.clone(), self.lengths.clone()
        for name, function in self.deterministic().items():
            expected = function(scores, self.lengths)
            self.report.identical(name, "scores after the call", scores, kept)
            self.report.identical(name, "lengths after the call", self.lengths, sizes)
            with self.report.works(name, "scores with other strides"):
                found = function(turned, self.lengths)
            self.report.same(name, "scores with other strides", found, expected, 1e-12, 1e-12)
            with self.report.works(name, "one item, expanded"):
                several = scores[:1].expand(3, *scores.shape[1:])
                found = function(several, self.lengths[:1].expand(3, *self.lengths.shape[1:]))
            repeated = expected[:1].expand_as(found)
            self.report.same(name, "one item, expanded", found, repeated, 1e-12, 1e-12)
            # The second is torch's type for an unsigned array of NumPy, which has no operations.
            for kind in (torch.int32, torch.uint16):
                with self.report.works(name, f"lengths as {kind}"):
                    found = function(scores, self.lengths.to(kind))
                self.report.identical(name, f"lengths as {kind}", found, expected)

    def check_determinism(self) -> None:
        """Check that results repeat, ties included."""
        for given, scores in (
            ("ties of all structures", self.scores(0.0, fill=0.0)),
            ("scores of scale 1", self.scores(offset=51)),
        ):
            for name, function in self.deterministic().items():
                with self.report.works(name, given):
                    first = function(scores, self.lengths)
                    second = function(scores.clone(), self.lengths.clone())
                self.report.identical(name, f"{given}, called again", second, first)

    def check_inference_mode(self) -> None:
        """Check that results in torch's inference mode are the same as outside of it."""
        scores, operations = self.scores(offset=51), self.deterministic()
        if "smoothed" in self.structure.tractable:
            operations["smoothed_expectation"] = partial(smoothed_expectation, self.structure)
        if "sample" in self.structure.tractable:
            operations["sample"] = lambda s, n: self.structure.sample(s, n, 5, self.generator(3))
        for name, function in operations.items():
            expected = function(scores, self.lengths)
            with self.report.works(name, "inference mode"), torch.inference_mode():
                found = function(scores.clone(), self.lengths.clone())
            self.report.identical(name, "inference mode", found, expected.detach())

    def check_precision(self) -> None:
        """Check that dtypes are kept, and that results are as exact as they can be."""
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            scores = self.scores(offset=61).to(dtype)
            # Larger than the rounding of the result: sums are computed in float32 at least.
            unit = torch.finfo(dtype).eps
            rtol, atol = (1e-4, 1e-4) if dtype == torch.float32 else (2 * unit, 2 * unit)
            for name, function in self.deterministic().items():
                with self.report.works(name, f"{dtype}"):
                    found = function(scores, self.lengths)
                self.report.holds(
                    name, found.dtype == dtype, f"given {found.dtype} for scores of {dtype}."
                )
                expected = function(scores.double(), self.lengths).to(dtype)
                self.report.same(name, f"scores of {dtype}", found, expected, rtol, atol)
            if "sample" in self.structure.tractable:
                drawn = self.structure.sample(scores, self.lengths, 2)
                self.report.holds(
                    "sample", drawn.dtype == dtype, f"given {drawn.dtype} for scores of {dtype}."
                )

    # ---------------------------------------------------------------- refusals

    def check_errors(self) -> None:
        listing, report = self.listing, self.report
        operations = dict(self.deterministic())
        if "sample" in self.structure.tractable:
            operations["sample"] = lambda s, n: self.structure.sample(s, n, 2)
        # The item is not the first, since a wrong message would name the first.
        b = max(range(1, len(listing)), key=lambda item: len(listing.members[item]))
        own = self.parts()[b].nonzero().tolist()
        # The first part, one in the middle and the last.
        places = [(b, *own[i]) for i in {0, len(own) // 2, len(own) - 1} if own]
        nothing = torch.full(listing.shape, -torch.inf, dtype=torch.float64)
        totals = listing.log_potential(
            listing.members[b], nothing[listing.windows[b]], listing.sizes[b]
        )
        impossible = bool(totals.isneginf().all())
        blank = self.scores(offset=71, fill=0.0)
        for name, function in operations.items():
            for place, wrong in itertools.product(places, (torch.nan, torch.inf)):
                scores = blank.clone()
                scores[place] = wrong
                given = f"{wrong} in item {b}, part {place[1:]}"
                with report.refused(name, given, InvalidScores, str(b)):
                    function(scores, self.lengths)
            if impossible:
                scores = blank.clone()
                scores[b] = -torch.inf
                given = f"item {b} with all parts forbidden"
                with report.refused(name, given, InfeasibleError, str(b)) as caught:
                    function(scores, self.lengths)
                report.holds(
                    name,
                    caught["error"].items == [b],
                    f"{given}: the error names the items {caught['error'].items}.",
                )
            with report.refused(name, "scores of integers", InvalidScores):
                function(blank.long(), self.lengths)
            with report.refused(name, "scores without the axis of items", InvalidScores):
                function(blank[0], self.lengths)
            with report.refused(name, "lengths that are no integers", InvalidScores):
                function(blank, self.lengths.double())
            with report.refused(name, "lengths beyond the scores", InvalidScores):
                function(blank, self.lengths + max(blank.shape[1:]))
            with report.refused(name, "negative lengths", InvalidScores):
                function(blank, self.lengths - 1 - int(self.lengths.max()))

    def check_feasibility(self) -> None:
        """Check that an item with forbidden parts is feasible exactly if a structure is left.

        This is done for many masks of one item.
        """
        listing, operations = self.listing, self.deterministic()
        b = max(range(len(listing)), key=lambda item: len(listing.members[item]))
        scores, sizes = self.scores(offset=81), self.lengths[b : b + 1]
        for trial in range(MASKS):
            masked = scores.clone()
            drawn = torch.rand(masked.shape, generator=self.generator(90 + trial))
            # Masks range from those that forbid few parts to those that forbid most.
            masked[(drawn < 0.2 + 0.7 * trial / MASKS) & self.parts()] = -torch.inf
            z, totals = listing.feasible(masked, b)
            given = f"mask {trial} of {listing.item(b)}"
            for name, function in operations.items():
                relaxes = name == "sparsemap" and not self.structure.has_map
                if not len(z) and relaxes:
                    # A set without any member may still have a point of the relaxation.
                    continue
                if not len(z):
                    with self.report.refused(name, given, InfeasibleError, "0") as caught:
                        function(masked[b : b + 1], sizes)
                    self.report.holds(
                        name,
                        caught["error"].items == [0],
                        f"{given}: the error names the items {caught['error'].items}.",
                    )
                    continue
                with self.report.works(name, given):
                    found = function(masked[b : b + 1], sizes)[0]
                if name in SUMS:
                    self.report.same(
                        name,
                        given,
                        found[listing.windows[b]] if found.dim() else found,
                        self.reference(name, masked, b),
                        self.tolerance,
                        self.tolerance,
                    )
                elif name == "map" and self.structure.linear:
                    number = listing.find(b, found[None])
                    self.report.holds(name, number >= 0, f"{given}: given no member.")
                    of_all = listing.log_potential(
                        listing.members[b], listing.own(masked, b), listing.sizes[b]
                    )
                    self.report.same(name, given, of_all[number][0], totals.max(), 1e-9, 1e-9)

    def check_refusals(self) -> None:
        """Check that intractable operations work, or say so and name another way."""
        structure = self.structure
        for name in ("log_partition", "marginals", "sample", "reparameterize", "entropy"):
            if name in structure.tractable:
                continue
            try:
                getattr(structure, name)(self.scores(fill=0.0), self.lengths)
            except NotTractable as error:
                self.report.holds(
                    name,
                    structure.name in str(error) and "Instead:" in str(error),
                    f"the refusal {str(error)!r} does not name {structure.name} and what to use.",
                )
            except Exception as error:
                self.report.fail(
                    name,
                    f"not in tractable; raised {type(error).__name__}: {error}; expected "
                    "NotTractable.",
                )
