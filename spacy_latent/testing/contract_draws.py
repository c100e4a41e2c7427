"""Checks of the structures and weights that an estimator gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from spacy_latent.errors import IncompatiblePair
from spacy_latent.estimators.base import Draw, Estimator, check_draw
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import repeat
from spacy_latent.testing.estimator_cases import Case, Problem
from spacy_latent.testing.random_scores import seeded, tied_scores
from spacy_latent.testing.reports import Report, written

Gradient = Literal["unbiased", "exact"]
# Width of the input vectors that an estimator's own networks read.
WIDTH = 3
# Tolerance of sums of weights: SumAndSample leaves out improbable structures, whose sum is below
# this.
SUM_TOLERANCE = 2e-3
STANDARD_ERRORS = 5.0
# A value this near to 0 or 1 is meant to be hard.
ROUNDED = 1e-4
# Largest number of structures over which the exact gradient is summed.
MOST_STRUCTURES = 200
# Bound on the number of draws, each of which is compared with all structures.
MOST_LISTED_DRAWS = 1000


@dataclass
class EstimatorChecks:
    """Base of the checks of an estimator: each method ``check_*`` is one check."""

    estimator: Estimator
    problems: list[Problem]
    gradient: Gradient | None
    strength: float
    num_draws: int
    seed: int

    def __post_init__(self) -> None:
        self.report = Report(self.estimator.name)

    def taken(self) -> Iterator[Case]:
        """Yield the cases on whose structures the estimator works."""
        for problem in self.problems:
            try:
                self.estimator.check(problem.structure)
            except IncompatiblePair:
                continue
            yield Case(problem, self.seed)

    def fresh(self) -> Estimator:
        """Return a copy as a model has it, always the same."""
        with seeded(self.seed):
            return self.estimator.for_width(WIDTH)

    def draw(
        self, case: Case, scores: Tensor, is_train: bool, seed: int = 0, what: str = ""
    ) -> Draw:
        """Return the draw of a fresh estimator for a case, the same for a seed."""
        return self._drawn_from(self.fresh(), case, scores, is_train, seed, what)

    def _drawn_from(self, estimator: Estimator, case: Case, scores: Tensor, *how: Any) -> Draw:
        """Return the draw for a case; see :meth:`drawn_by` for further arguments."""
        return self.drawn_by(estimator, case.structure, scores, case.lengths, *how)

    def drawn_by(
        self,
        estimator: Estimator,
        structure: Structure,
        scores: Tensor,
        lengths: Tensor,
        is_train: bool,
        seed: int = 0,
        what: str = "",
    ) -> Draw:
        """Return the draw of an estimator, the same for a seed, and check its shapes.

        Args:
            seed: added to the seed of the checks.
            what: description of the scores for messages.
        """
        when = "training" if is_train else "prediction"
        with seeded(self.seed + seed), self.report.works(structure.name, what or when):
            draw = estimator(structure, scores, lengths, is_train)
            check_draw(estimator.name, draw, len(scores))
        return draw

    def total(self, estimator: Estimator, case: Case, draw: Draw) -> Tensor:
        """Return the objective ``(B,)`` for a loss that is not linear in the structures."""
        losses = self.strength * case.loss(draw.z)
        log_probs = torch.zeros_like(losses) if draw.log_probs is None else draw.log_probs
        generator = torch.Generator().manual_seed(self.seed)
        features = torch.randn(losses.shape[1], WIDTH, generator=generator)
        with self.report.works("objective", case.name):
            extras = [] if draw.extras is None else [draw.extras]
            result = estimator.objective(losses, draw.weights, log_probs, features, *extras)
        return result if draw.penalty is None else result + draw.penalty

    def objective(self, case: Case, scores: Tensor) -> Tensor:
        """Return the objective of each item, always with the same noise."""
        estimator = self.fresh()
        draw = self._drawn_from(estimator, case, scores, True)
        return self.total(estimator, case, draw)

    def slopes(self, where: str, total: Tensor, scores: Tensor) -> Tensor | None:
        """Return the gradient of an objective, None if it does not depend on the scores."""
        if not total.requires_grad:
            return None
        with self.report.works("backward", where):
            return torch.autograd.grad(total, scores, allow_unused=True)[0]

    def finite_slopes(self, where: str, total: Tensor, scores: Tensor) -> Tensor | None:
        """Return the gradient as :meth:`slopes` does, and check that it is finite."""
        found = self.slopes(where, total, scores)
        finite = found is None or found.isfinite().all()
        self.report.holds("gradients", finite, f"{where}: not finite: {written(found)}.")
        return found

    def every_structure(self, case: Case, operation: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return all structures of the first item with their log-probabilities.

        Returns:
            The item's scores and length, with the axis of a batch; the structures
            ``(M, 1, *parts)``; and log-probabilities ``(M,)``.
        """
        scores, length = case.scores(fill=0.0)[:1], case.lengths[:1]
        every = case.structure.top_k(scores, length, MOST_STRUCTURES)
        z = every.z[~every.scores.isneginf()[:, 0]]
        self.report.holds(
            operation,
            len(z) < MOST_STRUCTURES,
            f"{case.name}: more than {MOST_STRUCTURES} structures cannot be summed over.",
        )
        return scores, length, z, case.structure.log_prob(z, scores, length)[:, 0]


class DrawChecks(EstimatorChecks):
    """Checks of the structures and weights that an estimator gives."""

    def check_draws(self) -> None:
        """Check shapes, weights and values of draws in training and at prediction."""
        for case in self.taken():
            for is_train in (True, False):
                draw = self.draw(case, case.scores(), is_train)
                self.shapes(case, draw, "training" if is_train else "prediction")

    def shapes(self, case: Case, draw: Draw, when: str) -> None:
        """Check that shapes agree, weights sum to 1, and ``z`` is in [0, 1] and 0 off parts."""
        report, z = self.report, draw.z.detach()
        batch = len(case.lengths)
        where = f"{case.name}, {when}"
        shape = (len(z), batch, *case.problem.shape)
        report.has_shape("z", where, z, shape)
        for name in ("weights", "log_probs", "padding"):
            part = getattr(draw, name)
            if part is not None:
                report.has_shape(name, where, part, shape[:2])
        weights = draw.weights.detach()
        report.holds("weights", (weights >= 0).all(), f"{where}: given {written(weights)}.")
        ones = torch.ones(batch, dtype=weights.dtype)
        report.same("weights", f"{where}, their sums", weights.sum(0), ones, 0.0, SUM_TOLERANCE)
        if draw.padding is not None:
            fits = draw.padding.dtype == torch.bool and not weights[draw.padding].any()
            report.holds("padding", fits, f"{where}: it is no bool, or has a weight.")
            some = draw.present.any(0).all()
            report.holds("padding", some, f"{where}: an item has nothing else.")
        if draw.extras is not None:
            report.holds(
                "extras",
                draw.extras.dim() == 2 and draw.extras.shape[1] == batch,
                f"{where}: given shape {tuple(draw.extras.shape)}, expected (E, {batch}).",
            )
        if draw.penalty is not None:
            report.has_shape("penalty", where, draw.penalty, (batch,))
            finite = draw.penalty.isfinite().all()
            report.holds("penalty", finite, f"{where}: given {written(draw.penalty)}.")
        report.holds("z", z.isfinite().all(), f"{where}: it holds NaN or infinity.")
        least, most = z.aminmax()
        said = f"{where}: values lie between {float(least)} and {float(most)}."
        report.holds("z", least >= -1e-6 and most <= 1 + 1e-6, said)
        outside = z[:, ~case.parts()].any()
        report.holds("z", not outside, f"{where}: it is not 0 at what is no part.")

    def check_hardness(self) -> None:
        """Check that structures stated to be hard are members."""
        for case in self.taken():
            for is_train in (True, False):
                hard = self.estimator.hard if is_train else self.estimator.hard_at_prediction
                if not hard:
                    continue
                self.members(case, self.draw(case, case.scores(), is_train), is_train)

    def members(self, case: Case, draw: Draw, is_train: bool, given: str = "") -> None:
        """Check that all drawn structures except padding are members of the set."""
        for z, present in zip(draw.z.detach(), draw.present):
            member = case.structure.contains(z, case.lengths) | ~present
            wrong = (~member).nonzero().flatten().tolist()
            if not wrong:
                continue
            said = f"values {written(z[wrong[0]])}."
            apart = float((z - z.round()).abs().max())
            near = case.structure.contains(z.round(), case.lengths) | ~present
            if bool(near.all()) and apart < ROUNDED:
                said = (
                    f"but for rounding: some values are off 0 and 1 by {apart:.1g}. So are "
                    "those of z + soft - soft.detach(). with_gradient_of(soft, z) of "
                    "spacy_latent.estimators.straight_through is z itself, with the "
                    "gradient of soft."
                )
            self.report.fail(
                "hard" if is_train else "hard_at_prediction",
                f"{case.name}{given}: given no structure of the set for the items {wrong}, {said}",
            )

    def check_ties(self) -> None:
        """Check that, at equal scores, hard structures are members and gradients are finite.

        Exact gradients must agree with differences if there is no kink.
        """
        for case in self.taken():
            parts = case.parts()
            for given, tied in tied_scores(len(case.lengths), case.problem.shape, self.seed):
                where = f"{case.name}, {given}"
                scores = tied.masked_fill(~parts, 0.0).requires_grad_()
                for is_train in (False, True):
                    estimator = self.fresh()
                    draw = self._drawn_from(estimator, case, scores, is_train, 0, given)
                    self.shapes(case, draw, given)
                    if self.estimator.hard if is_train else self.estimator.hard_at_prediction:
                        self.members(case, draw, is_train, f", {given}")
                total = self.total(estimator, case, draw).sum()
                if self.gradient == "exact":
                    self.report.agrees_with_both_sides(
                        "the objective",
                        where,
                        partial(self.objective, case),
                        scores.detach(),
                        case.random(2, 19) * parts,
                    )
                else:
                    self.finite_slopes(where, total, scores)

    def check_posterior(self) -> None:
        """Check the statement of ``posterior`` about the structures of a Draw.

        "weights" means that they are hard and all different, and that their weights are learned.
        "scores" means that over many draws each has the weight that ``log_prob`` of the structure
        gives it.
        """
        if not self.estimator.posterior:
            return
        for case in self.taken():
            if self.estimator.posterior == "weights":
                self.weights_are_learned(case)
            else:
                self.draws_have_the_probability(case)

    def weights_are_learned(self, case: Case) -> None:
        """Check that weights have gradients, and structures are hard and differ."""
        scores = case.scores(0.1).requires_grad_()
        draw = self.draw(case, scores, True)
        z, where = draw.z.detach(), case.name
        self.report.holds(
            "posterior",
            draw.weights.requires_grad,
            f"{where}: 'weights' is said, and the weights have no gradient.",
        )
        used = draw.weights.detach() > 0
        same = (z[:, None] == z[None]).flatten(3).all(3) & used[:, None] & used[None]
        self.report.holds(
            "posterior",
            ((z == 0) | (z == 1)).flatten(2).all(2)[used].all() and (same.sum(1)[used] == 1).all(),
            f"{where}: 'weights' is said, and a structure with a weight is soft or comes twice.",
        )

    def draws_have_the_probability(self, case: Case) -> None:
        """Check that the mean weight of each structure is its probability."""
        scores, length, z, log_probs = self.every_structure(case, "posterior")
        count = min(self.num_draws, MOST_LISTED_DRAWS)
        copies, lengths = repeat(scores, count), repeat(length, count)
        draw = self.drawn_by(self.fresh(), case.structure, copies, lengths, True)
        drawn, weights = draw.z.detach(), draw.weights.detach()
        found = torch.stack([(weights * (drawn == one).flatten(2).all(2)).sum(0) for one in z])
        expected = log_probs.exp()
        # The weight of one draw is at most 1, so its variance is at most p(1 - p).
        error = (expected * (1 - expected) / count).sqrt()
        apart = (found.mean(1) - expected).abs()
        bound = STANDARD_ERRORS * error + 10.0 / count + SUM_TOLERANCE
        worst = int((apart - bound).argmax())
        self.report.holds(
            "posterior",
            (apart <= bound).all(),
            f"{case.name}: 'scores' is said, and over {count} draws the structure "
            f"{written(z[worst])} has the weight {float(found[worst].mean()):.4g}, expected "
            f'{float(expected[worst]):.4g}. Say "" if it draws from another distribution.',
        )

    def check_forbidden_parts(self) -> None:
        """Check that parts with a score of −inf are 0 in all structures."""
        for case in self.taken():
            if not case.structure.linear:
                # There a score is of a decision, and the part may come about without one.
                continue
            scores = case.scores(forbids=True)
            closed = scores.isneginf()
            for is_train in (True, False):
                z = self.draw(case, scores, is_train).z.detach()
                self.report.holds(
                    "z",
                    not self.estimator.uses_scores or not z[:, closed].any(),
                    f"{case.name}: it is not 0 at parts whose score is -inf.",
                )

    def check_precision(self) -> None:
        """Check that results have the dtype of the scores, 16 to 64 bits."""
        for case in self.taken():
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
                scores = case.scores().to(dtype)
                for is_train in (True, False):
                    draw = self.draw(case, scores, is_train, what=f"{dtype}")
                    for name in ("z", "weights", "log_probs"):
                        part = getattr(draw, name)
                        self.report.holds(
                            name,
                            part is None or part.dtype == dtype,
                            f"{case.name}: given {getattr(part, 'dtype', None)} for "
                            f"scores of {dtype}.",
                        )
