"""Checks of samples, of their traces and of scores with noise."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from spacy_latent.structures.base import Reparameterized
from spacy_latent.structures.copies import repeat
from spacy_latent.structures.results import ReparameterizedTrace
from spacy_latent.testing.contract_scores import DRAWS_BESIDE, STANDARD_ERRORS, StructureChecks
from spacy_latent.testing.random_scores import seeded


class SampleChecks(StructureChecks):
    """Checks of samples, of their traces and of scores with noise."""

    def check_samples(self) -> None:
        """Check that samples have the distribution, and follow the generator."""
        structure, count = self.structure, self.num_samples
        for given, scores in (
            ("scores of scale 1", self.scores(offset=21)),
            ("scores of scale 30", self.scores(30.0, offset=22)),
            ("with -inf at some parts", self.scores(forbids=True, offset=1000)),
        ):
            leaf = scores.clone().requires_grad_()
            drawn = self._call("sample", leaf, self.lengths, count, self.generator(3), given=given)
            if drawn is None:
                return
            self.report.has_shape("sample", given, drawn, (count, *scores.shape))
            self.report.holds("sample", not drawn.requires_grad, f"{given}: it has a gradient.")
            self.frequencies("sample", given, drawn, scores)
            again = structure.sample(scores, self.lengths, count, self.generator(3))
            self.report.identical("sample", f"{given}, the same generator", again, drawn)
        # Nothing is forbidden, so that there is a choice.
        self.source_of_chance(self.scores(offset=21))
        self.independence()

    def source_of_chance(self, scores: Tensor) -> None:
        """Check that draws use the given generator alone, and torch's own if there is none."""
        report, draw = self.report, partial(self.structure.sample, scores, self.lengths, 50)
        given = self.generator(4)
        with seeded(self.seed):
            before = torch.get_rng_state()
            by_generator = draw(given), draw(given)
            kept = torch.equal(torch.get_rng_state(), before)
            without = draw(), draw()
        said = "a call with a generator changed the state of torch's default generator."
        report.holds("sample", kept, said)
        with seeded(self.seed):
            report.identical("sample", "torch.manual_seed, without a generator", draw(), without[0])
        if max(len(self.listing.feasible(scores, b)[0]) for b in range(len(self.listing))) < 2:
            return
        said = "a generator that was used before gives the same samples again."
        report.holds("sample", not torch.equal(*by_generator), said)
        said = "two calls without a generator give the same samples."
        report.holds("sample", not torch.equal(*without), said)

    def independence(self) -> None:
        """Check that draws depend neither on other draws nor on the draws of other items.

        Two independent draws are the same structure with the probability Σ p².
        """
        count = self.num_samples
        scores = self.scores(0.5, offset=24)
        twice, sizes = (torch.cat([each, each]) for each in (scores, self.lengths))
        drawn = self.structure.sample(twice, sizes, count, self.generator(5))
        for b in range(len(self.listing)):
            p = self.listing.totals(scores, b).softmax(0)
            first = self.listing.find(b, drawn[:, b])
            second = self.listing.find(b, drawn[:, b + len(self.listing)])
            pairs = {
                "an item of the same scores": (first, second),
                "the next draw": (first[1:], first[:-1]),
                "the draw half of all draws later": (first[: count // 2], first[-(count // 2) :]),
            }
            expected = float(p.square().sum())
            for other, (one, another) in pairs.items():
                found = float((one == another).double().mean())
                # Neighbouring pairs have a draw in common, which adds less than their variance.
                spread = (3 * expected * max(1 - expected, 0.0) / len(one)) ** 0.5
                bound = STANDARD_ERRORS * spread + DRAWS_BESIDE / len(one)
                self.report.holds(
                    "sample",
                    abs(found - expected) <= bound,
                    f"{self.listing.item(b)}: a draw is the same as that of {other} at a rate of "
                    f"{found:.5f}, expected {expected:.5f} of independent draws, allowed a "
                    f"difference of {bound:.5f}.",
                )

    def check_traces(self) -> None:
        """Check that traces lead to members and repeat themselves.

        Check also that ∇log p(trace) has the mean 0.
        """
        count = 2000
        for given, scores in self.two_cases(41):
            leaf, sizes = self.copies(scores, count)
            found = self._call("sample_trace", leaf, sizes, 1, self.generator(5), given=given)
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
        """Check that ``z`` has the distribution, and is best under the noise."""
        count = 500
        scores = self.scores(offset=31)
        repeated, sizes = self.copies(scores, count)
        with seeded(self.seed):
            found = self._call("reparameterize", repeated, sizes)
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
        closed = ~self.parts() | scores.isneginf()
        outside = repeat(closed, len(repeated) // len(scores))
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
        for given, scores in self.two_cases(51):
            repeated, sizes = self.copies(scores, count)
            with seeded(self.seed):
                found = self._call(operation, repeated, sizes, given=given)
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
        count = len(repeated) // len(scores)
        closed = repeat(~self.parts() | scores.isneginf(), count)
        factors = repeat(self.random(6, *scores.shape), count)

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
        """Check that the mean gradient of ``count`` log-probabilities per item is 0."""
        (slopes,) = torch.autograd.grad(log_probs.sum(), leaf)
        slopes = slopes.view(count, -1, *leaf.shape[1:])
        bound = STANDARD_ERRORS * slopes.std(0) / count**0.5 + 1e-9
        self.report.holds(
            operation,
            (slopes.mean(0).abs() <= bound).all(),
            f"{given}: the mean gradient of log_probs over {count} traces is not 0.",
        )
