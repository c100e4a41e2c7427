"""Checks of sums over structures and of their gradients."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores
from spacy_latent.structures.smoothed import Regularizer, maximum, smoothed_sample, smoothed_value
from spacy_latent.testing.contract_scores import StructureChecks
from spacy_latent.testing.reports import gradient, written

# Shares of the parts with scores of a mask, which every structure then has to use.
MASKED = (0.4, 0.8, 1.0)
# A score whose exponential underflows to 0 in float64.
UNLIKELY = -800.0


class SumChecks(StructureChecks):
    """Checks of sums over structures and of their gradients."""

    def check_log_partition(self) -> None:
        """Check ``log_partition`` with the list, and its two derivatives."""
        self.sums("log_partition")
        self.gradient_is_marginals()

    def check_marginals(self) -> None:
        """Check ``marginals`` and their gradient with the list."""
        self.sums("marginals")

    def check_entropy(self) -> None:
        """Check ``entropy`` and its gradient with the list."""
        self.sums("entropy")

    def sums(self, operation: str) -> None:
        """Check an operation and its gradient with the list, for all cases."""
        for given, scores in self.cases():
            self.sum(operation, given, scores)

    def sum(self, operation: str, given: str, scores: Tensor) -> None:
        """Check an operation and its gradient with the list, for these scores."""
        listing = self.listing
        leaf, other = scores.clone().requires_grad_(), scores.clone().requires_grad_()
        found = self._call(operation, leaf, self.lengths, given=given)
        if found is None:
            return
        values, listed = [], []
        for b in range(len(listing)):
            expected = self.reference(operation, other, b)
            own = listing.own(found, b) if operation == "marginals" else found[b]
            there = f"{given}, {listing.item(b)}"
            self.report.same(operation, there, own, expected, self.tolerance)
            up = self.random(b + 3, expected.numel())
            values.append(own.flatten() * up)
            listed.append(expected.flatten() * up)
        if operation == "marginals":
            self.nothing_outside(operation, given, found, scores)
        self.report.holds(operation, found.requires_grad, f"{given}: the result has no gradient.")
        self.same_gradients(operation, given, torch.cat(values), leaf, torch.cat(listed), other)

    def gradient_is_marginals(self) -> None:
        """Check that the gradient of ``log_partition`` is ``marginals``."""
        leaf = self.scores(forbids=True, offset=1000).requires_grad_()
        marginals = self._call("marginals", leaf.detach(), self.lengths)
        if marginals is None:
            return
        total = self.structure.log_partition(leaf, self.lengths).sum()
        given = "its gradient, which is marginals"
        self.report.same("log_partition", given, gradient(total, leaf), marginals, 1e-9)
        for given, scores in self.two_cases(8):
            self.second_derivative(given, scores)

    def second_derivative(self, given: str, scores: Tensor) -> None:
        """Check the product of the Hessian of the log-partition with a direction."""
        items, along, slopes = range(len(self.listing)), self.random(9, *scores.shape), []
        leaf, other = scores.clone().requires_grad_(), scores.clone().requires_grad_()
        with self.report.works("the second derivative of log_partition", given):
            total = self.structure.log_partition(leaf, self.lengths).sum()
            listed = torch.stack([self.reference("log_partition", other, b) for b in items]).sum()
            for value, own in ((total, leaf), (listed, other)):
                slopes.append((gradient(value, own, create_graph=True) * along).sum())
        operation = "the gradient of log_partition"
        self.same_gradients(operation, given, slopes[0], leaf, slopes[1], other)

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
        what = f"the gradient of {operation}"
        with self.report.works(what, given):
            found = gradient(values.sum(), leaf)
        expected = gradient(listed.sum(), other)
        size = float(expected.abs().max()) if expected.numel() else 0.0
        rtol = 100 * self.tolerance
        for b in range(len(self.listing)):
            there = f"{given}, {self.listing.item(b)}"
            self.report.same(what, there, found[b], expected[b], rtol, rtol * max(1.0, size))

    def check_gradients_by_differences(self) -> None:
        """Check gradients in float64 (torch.autograd.gradcheck)."""
        scores = self.scores(forbids=True, offset=2000, fill=0.0)
        free = self.parts() & scores.isfinite()
        leaf = scores[free].requires_grad_()
        for operation in ("log_partition", "marginals", "entropy"):
            if self._call(operation, scores, self.lengths) is None:
                continue

            def of(values: Tensor, operation: str = operation) -> Tensor:
                full = scores.masked_scatter(free, values)
                result: Tensor = getattr(self.structure, operation)(full, self.lengths)
                return result

            self.report.agrees_with_differences(operation, "", of, leaf, 1e-4, 1e-5)

    def check_log_prob(self) -> None:
        """Check ``log_prob`` of every member, and its gradient."""
        listing = self.listing
        most = max(len(z) for z in listing.members)
        for given, scores in self.cases():
            leaf = scores.clone().requires_grad_()
            z = torch.zeros(most, len(listing), *listing.shape, dtype=torch.float64)
            for b, members in enumerate(listing.members):
                place = torch.arange(most).clamp_max(len(members) - 1)
                z[:, b] = listing.placed(b, members)[place]
            found = self._call("log_prob", z, leaf, self.lengths, given=given)
            if found is None:
                return
            self.report.has_shape("log_prob", given, found, (most, len(listing)))
            alone = self._call("log_prob", z[0], leaf, self.lengths, given=given)
            first = f"{given}, first of each item"
            self.report.same("log_prob", first, alone, found[0], 1e-12, 0.0)
            other = scores.clone().requires_grad_()
            expected = []
            for b, members in enumerate(listing.members):
                total = listing.feasible(other, b)[1].logsumexp(0)
                expected.append(listing.totals(other, b) - total)
                there, own = f"{given}, {listing.item(b)}", found[: len(members), b]
                self.report.same("log_prob", there, own, expected[-1], self.tolerance)
            # Only finite values: others have no gradient to compare.
            up = self.random(7, most, len(listing))
            mine, listed = [], []
            for b, values in enumerate(expected):
                possible = ~values.detach().isneginf()
                factors = up[: len(values), b][possible]
                mine.append(found[: len(values), b][possible] * factors)
                listed.append(values[possible] * factors)
            self.same_gradients("log_prob", given, torch.cat(mine), leaf, torch.cat(listed), other)

    def check_log_potential(self) -> None:
        """Check scores of structures with their gradients, up to a constant of each item."""
        listing = self.listing
        for given, scores in self.two_cases(13):
            leaf, other = scores.clone().requires_grad_(), scores.clone().requires_grad_()
            mine, listed = [leaf.new_zeros(0)], [other.new_zeros(0)]
            for b in range(len(listing)):
                possible = ~listing.totals(scores, b).isneginf()
                members = listing.members[b][possible]
                z = torch.zeros(len(members), *scores.shape, dtype=torch.float64)
                z[:, b] = listing.placed(b, members)
                found = self._call("log_potential", z, leaf, self.lengths, given=given)
                if found is None:
                    return
                self.report.has_shape("log_potential", given, found, (len(z), len(listing)))
                expected = listing.totals(other, b, members)
                pair = found[:, b] - found[:1, b], expected - expected[:1]
                where = f"{given}, {listing.item(b)}, less that of the first structure"
                self.report.same("log_potential", where, *pair, self.tolerance)
                up = self.random(b + 7, len(z))
                mine.append(pair[0] * up)
                listed.append(pair[1] * up)
            self.same_gradients(
                "log_potential", given, torch.cat(mine), leaf, torch.cat(listed), other
            )

    def check_cross_entropy_and_kl(self) -> None:
        """Check both with the list, with gradients and infinite values."""
        listing = self.listing
        p, q = self.scores(offset=11), self.scores(offset=12)
        for operation in ("cross_entropy", "kl"):
            leaves = [p.clone().requires_grad_(), q.clone().requires_grad_()]
            others = [p.clone().requires_grad_(), q.clone().requires_grad_()]
            found = self._call(operation, *leaves, self.lengths)
            if found is None:
                return
            listed = []
            for b in range(len(listing)):
                log_p = listing.feasible(others[0], b)[1].log_softmax(0)
                log_q = listing.feasible(others[1], b)[1].log_softmax(0)
                log_ratio = log_p - log_q if operation == "kl" else -log_q
                listed.append((log_p.exp() * log_ratio).sum())
                self.report.same(operation, listing.item(b), found[b], listed[-1], self.tolerance)
            for leaf, other in zip(leaves, others):
                own = gradient(found.sum(), leaf)
                expected = gradient(torch.stack(listed).sum(), other)
                what = f"the gradient of {operation}"
                self.report.same(what, "all items", own, expected, 100 * self.tolerance)
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
        """Check that a value is +inf only if q forbids a member that p allows."""
        leaf = p.clone().requires_grad_()
        found = self._call(operation, leaf, q, self.lengths)
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
        """Check that ``log_count`` counts the members that are not forbidden."""
        for given, scores in self.cases():
            found = self._call("log_count", scores, self.lengths, given=given)
            if found is None:
                return
            for b in range(len(self.listing)):
                count = float(len(self.listing.feasible(scores, b)[0]))
                expected = torch.tensor(count, dtype=torch.float64).log()
                where = f"{given}, {self.listing.item(b)}"
                self.report.same("log_count", where, found[b], expected, 1e-9)

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
                    found.append(self._call(operation, asked, *other, self.lengths, given=given))
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
        totals = self.listing.totals(rest, b)
        count = (members * self.listing.own(masked, b)).flatten(1).sum(1)
        least = count[~totals.isneginf()].min()
        kept = (count == least) & ~totals.isneginf()
        return least, kept, torch.where(kept, totals, -torch.inf)

    def of_fewest(
        self, given: str, b: int, masked: Tensor, scores: Tensor, size: float, found: list[Tensor]
    ) -> None:
        """Check results for an item with the members that have the fewest masked parts.

        Args:
            size: minus the score of a masked part.
            found: log-partition, marginals, entropy and KL that the structure gives for the item.
        """
        least, kept, totals = self.fewest(b, masked, scores)
        p = totals.softmax(0)
        logs = torch.where(kept, totals.log_softmax(0), 0.0)
        others = self.listing.totals(torch.zeros_like(scores), b)
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
        """Check that samples have the fewest masked parts, and ``log_prob`` agrees."""
        drawn = self._call("sample", asked, self.lengths, 20, self.generator(3), given=given)
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

    def check_smoothed(self) -> None:
        """Check smoothed sums: entropic ones exactly, quadratic ones with a bound."""
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
                    what = "smoothed, entropic"
                    for found in soft:
                        self.report.same(what, where, found[b], expected, self.tolerance, 1e-8)
                    self.report.holds(
                        "smoothed, quadratic",
                        sparse[0][b] >= totals.max() - 1e-9 * (1 + totals.max().abs()),
                        f"{where}: given {float(sparse[0][b])}, below the score of the best, "
                        f"{float(totals.max())}.",
                    )
                    pair, what = (sparse[0][b], sparse[1][b]), "smoothed, quadratic, by kernels"
                    self.report.same(what, where, *pair, self.tolerance, 1e-8)
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
