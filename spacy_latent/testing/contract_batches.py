"""Checks of changes of a batch that have no effect, and of refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from spacy_latent.errors import InfeasibleError, InvalidScores, NotTractable
from spacy_latent.structures.smoothed import smoothed_expectation, smoothed_value
from spacy_latent.testing.contract_scores import StructureChecks

# Operations that sum over structures.
SUMS = ("log_partition", "marginals", "entropy")
# Number of masks of one item in the check of feasibility.
MASKS = 30


class BatchChecks(StructureChecks):
    """Checks of changes of a batch that have no effect, and of refusals."""

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
            if self._call(name, *arguments, given=given) is not None:
                able[name] = function
        return able

    def check_padding_is_never_read(self) -> None:
        """Check that values of entries that are no part change no result."""
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
                given = f"{self.listing.item(b)} alone, without padding"
                with self.report.works(name, given):
                    alone = function(own, self.lengths[b : b + 1])
                part = together[b][window] if alone.shape[1:] == own.shape[1:] else together[b]
                self.report.same(name, given, alone[0], part, 1e-9)
            with self.report.works(name, "a batch nine times as large, in reverse"):
                many = function(scores[rows], self.lengths[rows])
            self.report.same(name, "a batch nine times as large", many, together[rows], 1e-9)
            with self.report.works(name, "an empty batch"):
                empty = function(*none)
            self.report.holds(
                name, len(empty) == 0, f"an empty batch: given shape {tuple(empty.shape)}."
            )
        if "sample" in self.structure.tractable:
            with self.report.works("sample", "an empty batch"):
                drawn = self.structure.sample(*none, 2)
            self.report.has_shape("sample", "an empty batch", drawn, (2, 0, *self.listing.shape))

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
            self.report.same(name, "scores with other strides", found, expected, 1e-12)
            with self.report.works(name, "one item, expanded"):
                several = scores[:1].expand(3, *scores.shape[1:])
                found = function(several, self.lengths[:1].expand(3, *self.lengths.shape[1:]))
            repeated = expected[:1].expand_as(found)
            self.report.same(name, "one item, expanded", found, repeated, 1e-12)
            # The second is torch's type for an unsigned array of NumPy, which has no operations.
            for kind in (torch.int32, torch.uint16):
                with self.report.works(name, f"lengths as {kind}"):
                    found = function(scores, self.lengths.to(kind))
                self.report.identical(name, f"lengths as {kind}", found, expected)

    def check_determinism(self) -> None:
        """Check that results repeat, ties included, and that no call depends on another one."""
        for given, scores in (
            ("ties of all structures", self.scores(0.0, fill=0.0)),
            ("scores of scale 1", self.scores(offset=51)),
        ):
            for name, function in self.deterministic().items():
                with self.report.works(name, given):
                    first = function(scores, self.lengths)
                    second = function(scores.clone(), self.lengths.clone())
                self.report.identical(name, f"{given}, called again", second, first)
        scores, others = self.scores(offset=51), self.scores(offset=52)
        for name, function in self.deterministic().items():
            reused = scores.clone()
            result = function(reused, self.lengths)
            kept = result.clone()
            reused.copy_(others)
            found = function(reused, self.lengths).clone()
            expected = function(others.clone(), self.lengths)
            self.report.identical(name, "scores that were written to in place", found, expected)
            self.report.identical(name, "a result after calls with other scores", result, kept)

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
        operations = self.deterministic()
        if "smoothed" in self.structure.tractable:
            operations["smoothed_value"] = partial(smoothed_value, self.structure)
            operations["smoothed_expectation"] = partial(smoothed_expectation, self.structure)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            scores = self.scores(offset=61).to(dtype)
            # Larger than the rounding of the result: sums are computed in float32 at least.
            tolerance = 1e-4 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
            for name, function in operations.items():
                with self.report.works(name, f"{dtype}"):
                    found = function(scores, self.lengths)
                self.report.holds(
                    name, found.dtype == dtype, f"given {found.dtype} for scores of {dtype}."
                )
                expected = function(scores.double(), self.lengths).to(dtype)
                self.report.same(name, f"scores of {dtype}", found, expected, tolerance)
            if "sample" in self.structure.tractable:
                drawn = self.structure.sample(scores, self.lengths, 2)
                self.report.holds(
                    "sample", drawn.dtype == dtype, f"given {drawn.dtype} for scores of {dtype}."
                )
        # Exponentials of such scores, and of their differences, overflow in float32.
        scores = self.scores(300.0, offset=62).float()
        for name, function in operations.items():
            given = "scores of scale 300 in float32"
            with self.report.works(name, given):
                found = function(scores, self.lengths)
            expected = function(scores.double(), self.lengths).float()
            self.report.same(name, given, found, expected, 1e-2)

    def check_errors(self) -> None:
        """Check the errors for wrong scores, lengths and shapes, and their item."""
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
                self.refuses_infeasible(name, given, b, function, scores, self.lengths)
            lengths = self.lengths
            wrong_calls = {
                "scores of integers": (blank.long(), lengths),
                "scores without the axis of items": (blank[0], lengths),
                "lengths that are no integers": (blank, lengths.double()),
                "lengths beyond the scores": (blank, lengths + max(blank.shape[1:])),
                "negative lengths": (blank, lengths - 1 - int(lengths.max())),
            }
            for given, arguments in wrong_calls.items():
                with report.refused(name, given, InvalidScores):
                    function(*arguments)

    def refuses_infeasible(
        self,
        name: str,
        given: str,
        item: int,
        function: Callable[[Tensor, Tensor], Tensor],
        *arguments: Tensor,
    ) -> None:
        """Check that the call is refused because of this item alone."""
        with self.report.refused(name, given, InfeasibleError, str(item)) as caught:
            function(*arguments)
        items = caught["error"].items
        self.report.holds(name, items == [item], f"{given}: the error names the items {items}.")

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
                if not len(z):
                    # Without any member there may still be a point of the relaxation.
                    if name != "sparsemap" or self.structure.has_map:
                        item = masked[b : b + 1], sizes
                        self.refuses_infeasible(name, given, 0, function, *item)
                    continue
                with self.report.works(name, given):
                    found = function(masked[b : b + 1], sizes)[0]
                if name in SUMS:
                    own = found[listing.windows[b]] if found.dim() else found
                    expected = self.reference(name, masked, b)
                    self.report.same(name, given, own, expected, self.tolerance)
                elif name == "map" and self.structure.linear:
                    number = listing.find(b, found[None])
                    self.report.holds(name, number >= 0, f"{given}: given no member.")
                    of_all = listing.totals(masked, b)
                    self.report.same(name, given, of_all[number][0], totals.max(), 1e-9)

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
