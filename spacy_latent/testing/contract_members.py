"""Checks of single structures: the best ones, membership and annotations."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spacy_latent.testing.contract_scores import StructureChecks
from spacy_latent.testing.listing import scored

# Share of the parts that get one of the largest scores, and the same share one of the smallest.
LARGE = 0.15


class MemberChecks(StructureChecks):
    """Checks of single structures: the best ones, membership and annotations."""

    def check_map(self) -> None:
        """Check that ``map`` returns a member with the best score."""
        for given, scores in self.cases():
            self.best(given, scores.requires_grad_())

    def best(self, given: str, scores: Tensor) -> None:
        """Check ``map`` for these scores. Its score is compared if the set is linear."""
        z = self._call("map", scores, self.lengths, given=given)
        if z is None:
            return
        self.report.holds("map", not z.requires_grad, f"{given}: the result has a gradient.")
        self.members("map", given, z[None], scores)
        for b in range(len(self.listing)) if self.structure.linear else ():
            _, totals = self.listing.feasible(scores.detach(), b)
            own = self.listing.totals(scores.detach(), b, self.listing.own(z, b)[None])
            there = f"{given}, the score of {self.listing.item(b)}"
            self.report.same("map", there, own[0], totals.max(), 1e-12)

    def check_top_k(self) -> None:
        """Check that ``top_k`` returns the best members in order, each once."""
        for given, scores in self.cases():
            self.several_best(given, scores)

    def several_best(self, given: str, scores: Tensor) -> None:
        """Check ``top_k`` for these scores, for k up to more than there are."""
        listing = self.listing
        # If scores belong to decisions, k is large enough for all structures. If the best
        # structures are exact, k is small.
        most = max(len(z) for z in listing.members)
        counts = (1, 3, min(most + 2, 40)) if self.structure.linear else (most + 2,)
        for k in counts:
            best = self._call("top_k", scores, self.lengths, k, given=given)
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
                self.report.same("top_k", there, found, expected, 1e-9)
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
                every = self.listing.totals(scores, b)
                own = (every if self.structure.linear else every.log_softmax(0))[number]
                there = f"{there}, beside the structures that are given with them"
                self.report.same("top_k", there, found, own, 1e-9)

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
            z = self._call("map", scores, self.lengths, given=given)
            best = self._call("top_k", scores, self.lengths, k, given=given)
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
                own = self.listing.totals(scores, b, self.listing.members[b][number])
                # Differences that are lost in a total of float64 cannot be distinguished.
                tolerance = 1e-13 * size * max(1, self.listing.own(scores, b).numel())
                there = f"{given}, the score of {self.listing.item(b)}"
                self.report.same("map", there, own[0], expected[0], 1e-12, tolerance)
                self.report.same("top_k", there, own[1:], expected, 1e-12, tolerance)

    def check_contains(self) -> None:
        """Check ``contains`` for members, and for changed, halved or random arrays."""
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
            found = self._call("contains", given, sizes)
            if found is None:
                return
            number = listing.find(b, given)
            totals = listing.totals(zeros, b)
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
        """Check that ``encode`` and ``encode_for`` reverse ``decode``, with padding or not."""
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
                # Models have no options to give.
                with self.report.works("encode_for", where):
                    made = structure.encode_for(stored, length, z.shape)
                self.report.holds(
                    "encode_for",
                    np.array_equal(np.asarray(made), np.asarray(back)),
                    f"{where}: given {np.asarray(made).tolist()}; expected what encode gives with "
                    f"{self.encode_options}: {np.asarray(back).tolist()}.",
                )
                if one_each:
                    self.report.same("encode", where, found, z)
                self.report.holds(
                    "encode",
                    np.array_equal(again, stored),
                    f"{where}: decoded again it is {again.tolist()}.",
                )
