"""Contract of an estimator, checked on structures that are small enough to list."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair, InfeasibleError, InvalidScores, LatentError
from spacy_latent.estimators.base import Draw, Estimator, check_draw
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.constituency_tree import ConstituencyTree
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.merge_sequence import MergeSequence
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.structures.shift_reduce import ShiftReduce
from spacy_latent.structures.spanning_tree import SpanningTree
from spacy_latent.testing.listing import Length
from spacy_latent.testing.noise import seeded
from spacy_latent.testing.reports import Check, Report, expect_made, first_failures, written
from spacy_latent.testing.ties import tied_scores

if TYPE_CHECKING:
    from typing_extensions import Unpack

Gradient = Literal["unbiased", "exact"]


class EstimatorOptions(TypedDict, total=False):
    """Options of :func:`estimator_checks`."""

    gradient: Gradient | None
    strength: float
    num_draws: int
    seed: int


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
OPERATIONS = (
    "log_partition",
    "marginals",
    "entropy",
    "sample",
    "log_prob",
    "reparameterize",
    "sample_trace",
    "reparameterize_trace",
)
# Operations that ``needed()`` need not name.
FREE = ("map", "top_k", "log_potential", "contains", "part_mask")


@dataclass(frozen=True)
class Problem:
    """Problem of a check: a structure, lengths of a batch, and the shape of the scores of an item.

    Entries beyond the lengths are padding. There are at least three items. The third has parts, and
    errors have to name it.
    """

    structure: Structure
    lengths: tuple[Length, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.lengths) < 3 or not np.all(self.lengths[2]):
            raise LatentError(
                f"Problem: the lengths are {self.lengths}; expected at least three, the third of "
                "them not 0."
            )


def problems() -> list[Problem]:
    """Return the default problems of :func:`check_estimator`.

    There is one of each kind of parts and of each degree of tractability.
    """
    return [
        Problem(OneOfN(), (5, 0, 4, 1), (6,)),
        Problem(KOfN(2), (5, 0, 4, 1), (6,)),
        Problem(Bits(), (4, 0, 3, 1), (6,)),
        Problem(SpanningTree(), (3, 0, 2, 1), (5, 5)),
        Problem(ConstituencyTree(), (5, 0, 4, 1), (6, 6)),
        Problem(LinearChain(), (4, 0, 3, 1), (5, 2, 2)),
        Problem(MonotoneAlignment(), ((3, 3), (0, 2), (2, 3), (1, 1)), (4, 4)),
        Problem(OneToOneAlignment(), ((3, 3), (0, 2), (2, 3), (1, 1)), (4, 4)),
        Problem(ShiftReduce(), (5, 0, 4, 1), (6, 6)),
        Problem(MergeSequence(), (4, 0, 3, 1), (4, 4)),
    ]


def check_estimator(
    estimator: Estimator,
    problems: Sequence[Problem] | None = None,
    **options: Unpack[EstimatorOptions],
) -> None:
    """Check the whole contract of an estimator; for the arguments see :func:`estimator_checks`.

    Raises:
        AssertionError: If any checks fail. The message names the structure, the item, the given and
            the expected value of all failed checks.
    """
    first_failures(estimator_checks(estimator, problems, **options))


def estimator_checks(
    estimator: Estimator,
    problems: Sequence[Problem] | None = None,
    *,
    gradient: Gradient | None = None,
    strength: float = 1.0,
    num_draws: int = 10_000,
    seed: int = 0,
) -> Iterator[Check]:
    """Yield the checks of :func:`check_estimator` one by one, for a test runner to name.

    On each structure that the estimator accepts, these are checked:

    - the shapes, dtypes and sums of a Draw.
    - hard structures are members.
    - the scores get a finite gradient, which is 0 at padding and forbidden parts.
    - prediction is without chance, and training repeats with torch's seed.
    - nothing depends on padding or the rest of the batch.
    - no operation is used that ``needed()`` does not name.
    - draws have the distribution that ``posterior`` states.
    - copies are independent.
    - errors name the item.

    Other structures must be refused with both names. Draws and gradients are also checked if scores
    tie.

    Args:
        problems: Problems for the checks; the result of :func:`problems` if None.
        gradient: "unbiased" compares the mean gradient over ``num_draws`` with the gradient of the
            expected loss, summed over all structures, by five standard errors. "exact" compares the
            gradient with finite differences of the result of forward, with the noise held fixed.
            None if the gradient belongs to another function, as for surrogates.
        strength: Factor of the loss in checks of gradients, for estimators that take a step along
            the gradient of the loss and round.
        seed: Seed of scores, losses and noise.
    """
    expect_made("check_estimator", estimator, Estimator, "SparseMAP()")
    contract = _Contract(
        estimator, list(problems or _default()), gradient, strength, num_draws, seed
    )
    for name in dir(contract):
        if name.startswith("check_") and (gradient or name != "check_the_gradient"):
            method: Callable[[], None] = getattr(contract, name)
            yield Check(name.removeprefix("check_"), estimator.name, method)


def _default() -> list[Problem]:
    return problems()


@dataclass
class _Contract:
    """Checks of an estimator: each method ``check_*`` is one check."""

    estimator: Estimator
    problems: list[Problem]
    gradient: Gradient | None
    strength: float
    num_draws: int
    seed: int

    def __post_init__(self) -> None:
        self.report = Report(self.estimator.name)

    # ---------------------------------------------------------------- problems

    def taken(self) -> Iterator[_Case]:
        """Yield the cases on whose structures the estimator works."""
        for problem in self.problems:
            try:
                self.estimator.check(problem.structure)
            except IncompatiblePair:
                continue
            yield _Case(problem, self.seed)

    def fresh(self) -> Estimator:
        """Return a copy as a model has it, always the same."""
        with seeded(self.seed):
            return self.estimator.for_width(WIDTH)

    def draw(
        self, case: _Case, scores: Tensor, is_train: bool, seed: int = 0, what: str = ""
    ) -> Draw:
        return self.drawn_by(
            self.fresh(), case.structure, scores, case.lengths, is_train, seed, what
        )

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
        when = "training" if is_train else "prediction"
        with seeded(self.seed + seed), self.report.works(structure.name, what or when):
            draw = estimator(structure, scores, lengths, is_train)
            check_draw(estimator.name, draw, len(scores))
        return draw

    def total(self, estimator: Estimator, case: _Case, draw: Draw) -> Tensor:
        """Return the objective ``(B,)`` for a loss that is not linear in the structures."""
        losses = self.strength * case.loss(draw.z)
        log_probs = draw.log_probs
        if log_probs is None:
            log_probs = torch.zeros_like(losses)
        features = torch.randn(
            losses.shape[1], WIDTH, generator=torch.Generator().manual_seed(self.seed)
        )
        with self.report.works("objective", case.structure.name):
            extras = [] if draw.extras is None else [draw.extras]
            result = estimator.objective(losses, draw.weights, log_probs, features, *extras)
        return result if draw.penalty is None else result + draw.penalty

    # ---------------------------------------------------------------- checks

    def check_pairs(self) -> None:
        """Check that some structures are accepted, and the others refused by name."""
        taken = 0
        for problem in self.problems:
            structure = problem.structure
            lacks = structure.lacks(self.estimator.needed())
            decides = self.estimator.linear_only and not structure.linear
            try:
                self.estimator.check(structure)
            except IncompatiblePair as error:
                named = self.estimator.name in str(error) and structure.name in str(error)
                self.report.holds("check", named, f"the refusal {str(error)!r} does not name both.")
            else:
                taken += 1
                self.report.holds(
                    "check",
                    not lacks and not decides,
                    f"{structure.name} is taken, but lacks {lacks or 'scores of parts'}.",
                )
        self.report.holds("check", taken > 0, "none of the structures is taken.")

    def check_draws(self) -> None:
        for case in self.taken():
            for is_train in (True, False):
                draw = self.draw(case, case.scores(), is_train)
                self.shapes(case, draw, "training" if is_train else "prediction")

    def shapes(self, case: _Case, draw: Draw, when: str) -> None:
        report, z = self.report, draw.z
        batch = len(case.lengths)
        where = f"{case.structure.name}, {when}"
        shape = (len(z), batch, *case.problem.shape)
        report.holds(
            "z",
            tuple(z.shape) == shape,
            f"{where}: given shape {tuple(z.shape)}, expected {shape}.",
        )
        for name in ("weights", "log_probs", "padding"):
            part = getattr(draw, name)
            if part is not None:
                report.holds(
                    name,
                    tuple(part.shape) == shape[:2],
                    f"{where}: given shape {tuple(part.shape)}, expected {shape[:2]}.",
                )
        weights = draw.weights.detach()
        report.holds("weights", (weights >= 0).all(), f"{where}: given {written(weights)}.")
        report.same(
            "weights",
            f"{where}, their sums",
            weights.sum(0),
            torch.ones(batch, dtype=weights.dtype),
            0.0,
            SUM_TOLERANCE,
        )
        if draw.padding is not None:
            report.holds(
                "padding",
                draw.padding.dtype == torch.bool and not weights[draw.padding].any(),
                f"{where}: it is no bool, or has a weight.",
            )
            report.holds(
                "padding", draw.present.any(0).all(), f"{where}: an item has nothing else."
            )
        if draw.extras is not None:
            report.holds(
                "extras",
                draw.extras.dim() == 2 and draw.extras.shape[1] == batch,
                f"{where}: given shape {tuple(draw.extras.shape)}, expected (E, {batch}).",
            )
        if draw.penalty is not None:
            report.holds(
                "penalty",
                tuple(draw.penalty.shape) == (batch,),
                f"{where}: given shape {tuple(draw.penalty.shape)}, expected {(batch,)}.",
            )
        report.holds("z", z.detach().isfinite().all(), f"{where}: it holds NaN or infinity.")
        report.holds(
            "z",
            (z.detach() >= -1e-6).all() and (z.detach() <= 1 + 1e-6).all(),
            f"{where}: values lie between {float(z.detach().min())} and {float(z.detach().max())}.",
        )
        report.holds(
            "z", not z.detach()[:, ~case.parts()].any(), f"{where}: it is not 0 at what is no part."
        )

    def check_hardness(self) -> None:
        """Check that structures stated to be hard are members."""
        for case in self.taken():
            for is_train in (True, False):
                hard = self.estimator.hard if is_train else self.estimator.hard_at_prediction
                if not hard:
                    continue
                self.members(case, self.draw(case, case.scores(), is_train), is_train)

    def members(self, case: _Case, draw: Draw, is_train: bool, given: str = "") -> None:
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
                f"{case.structure.name}{given}: given no structure of the set for the items "
                f"{wrong}, {said}",
            )

    def check_ties(self) -> None:
        """Check that, at equal scores, hard structures are members and gradients are finite.

        Exact gradients must agree with differences if there is no kink.
        """
        for case in self.taken():
            parts = case.parts()
            for given, tied in tied_scores(len(case.lengths), case.problem.shape, self.seed):
                where = f"{case.structure.name}, {given}"
                scores = tied.masked_fill(~parts, 0.0).requires_grad_()
                for is_train in (False, True):
                    estimator = self.fresh()
                    draw = self.drawn_by(
                        estimator, case.structure, scores, case.lengths, is_train, what=given
                    )
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
                elif total.requires_grad:
                    with self.report.works("backward", where):
                        (found,) = torch.autograd.grad(total, scores, allow_unused=True)
                    self.report.holds(
                        "gradients",
                        found is None or found.isfinite().all(),
                        f"{where}: not finite: {written(found)}.",
                    )

    def objective(self, case: _Case, scores: Tensor) -> Tensor:
        """Return the objective of each item, always with the same noise."""
        estimator = self.fresh()
        draw = self.drawn_by(estimator, case.structure, scores, case.lengths, True)
        return self.total(estimator, case, draw)

    def check_gradients(self) -> None:
        """Check that gradients are finite, and 0 at padding and at forbidden parts.

        Elsewhere some must not be 0. All must be 0 if scores are not used.
        """
        reached = False
        for case in self.taken():
            for seed in range(5):
                for forbids in (False, True):
                    estimator = self.fresh()
                    scores = case.scores(0.5, forbids, seed).requires_grad_()
                    draw = self.drawn_by(
                        estimator, case.structure, scores, case.lengths, True, seed
                    )
                    total = self.total(estimator, case, draw).sum()
                    found = None
                    if total.requires_grad:
                        with self.report.works("backward", case.structure.name):
                            (found,) = torch.autograd.grad(total, scores, allow_unused=True)
                    if found is None:
                        continue
                    closed = ~case.parts()
                    if case.structure.linear:
                        closed = closed | scores.detach().isneginf()
                    where = f"{case.structure.name}, seed {seed}"
                    self.report.holds(
                        "gradients",
                        found.isfinite().all(),
                        f"{where}: not finite: {written(found)}.",
                    )
                    self.report.holds(
                        "gradients",
                        not found[closed].any(),
                        f"{where}: not 0 at {(found.bool() & closed).nonzero().tolist()[:5]}, "
                        "which are no parts, or forbidden.",
                    )
                    reached = reached or bool(found.any())
        self.report.holds(
            "gradients",
            reached == self.estimator.uses_scores,
            f"the scores get {'one' if reached else 'none'}, and uses_scores is "
            f"{self.estimator.uses_scores}. If it takes a step of the gradient, give a larger "
            "strength.",
        )

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

    def weights_are_learned(self, case: _Case) -> None:
        scores = case.scores(0.1).requires_grad_()
        draw = self.draw(case, scores, True)
        z, where = draw.z.detach(), case.structure.name
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

    def draws_have_the_probability(self, case: _Case) -> None:
        scores, length, z, log_probs = self.every_structure(case, "posterior")
        count = min(self.num_draws, MOST_LISTED_DRAWS)
        copies = scores.repeat(count, *[1] * (scores.dim() - 1))
        lengths = length.repeat(count, *[1] * (length.dim() - 1))
        draw = self.drawn_by(self.fresh(), case.structure, copies, lengths, True)
        found = torch.stack(
            [
                (draw.weights.detach() * (draw.z.detach() == one).flatten(2).all(2)).sum(0)
                for one in z
            ]
        )
        expected = log_probs.exp()
        # The weight of one draw is at most 1, so its variance is at most p(1 - p).
        error = (expected * (1 - expected) / count).sqrt()
        apart = (found.mean(1) - expected).abs()
        bound = STANDARD_ERRORS * error + 10.0 / count + SUM_TOLERANCE
        worst = int((apart - bound).argmax())
        self.report.holds(
            "posterior",
            (apart <= bound).all(),
            f"{case.structure.name}: 'scores' is said, and over {count} draws the structure "
            f"{written(z[worst])} has the weight {float(found[worst].mean()):.4g}, expected "
            f'{float(expected[worst]):.4g}. Say "" if it draws from another distribution.',
        )

    def check_forbidden_parts(self) -> None:
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
                    f"{case.structure.name}: it is not 0 at parts whose score is -inf.",
                )

    def check_prediction(self) -> None:
        """Check that prediction is without chance, and that training repeats with the seed."""
        for case in self.taken():
            scores = case.scores()
            first, second = (self.draw(case, scores, False, seed).z for seed in (1, 2))
            self.report.identical("prediction", f"{case.structure.name}, twice", second, first)
            self.without_gradients("prediction", case, False, first)
            first, second = (self.draw(case, scores, True, 3).z for _ in range(2))
            self.report.identical(
                "training", f"{case.structure.name}, twice with one seed", second, first
            )
            self.without_gradients("training", case, True, first)

    def without_gradients(
        self, operation: str, case: _Case, is_train: bool, expected: Tensor
    ) -> None:
        for mode in (torch.no_grad, torch.inference_mode):
            where = f"{case.structure.name}, {mode.__name__}"
            # A network made in inference mode could not be trained.
            estimator = self.fresh()
            with self.report.works(operation, where), mode():
                given = case.scores(), case.lengths.clone()
                found = self.drawn_by(estimator, case.structure, *given, is_train, 3).z
            self.report.identical(operation, where, found, expected)

    def check_padding_is_never_read(self) -> None:
        for case in self.taken():
            for is_train in (True, False):
                expected = self.draw(case, case.scores(), is_train)
                for fill in (torch.nan, torch.inf, 1e30):
                    what = f"{fill} at what is no part"
                    found = self.draw(case, case.scores(fill=fill), is_train, what=what)
                    where = f"{case.structure.name}, {what}"
                    self.report.identical("z", where, found.z, expected.z)
                    self.report.identical("weights", where, found.weights, expected.weights)

    def check_items_are_alone(self) -> None:
        """Check that items are independent at prediction, and that an empty batch works."""
        for case in self.taken():
            scores, structure = case.scores(), case.structure
            together = self.draw(case, scores, False).mean()
            for b in range(len(case.lengths)):
                rows = slice(b, b + 1)
                alone = self.drawn_by(
                    self.fresh(), structure, scores[rows], case.lengths[rows], False
                )
                where = f"{structure.name}, item {b} alone"
                self.report.same("z", where, alone.mean()[0], together[b], 1e-6, 1e-6)
            for is_train in (True, False):
                none = self.drawn_by(
                    self.fresh(),
                    structure,
                    scores[:0],
                    case.lengths[:0],
                    is_train,
                    what="an empty batch",
                )
                self.report.holds(
                    "z", none.z.shape[1] == 0, f"{structure.name}: an empty batch has items."
                )

    def check_precision(self) -> None:
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
                            f"{case.structure.name}: given {getattr(part, 'dtype', None)} for "
                            f"scores of {dtype}.",
                        )

    def check_what_is_given_stays(self) -> None:
        for case in self.taken():
            scores, lengths = case.scores(fill=0.0), case.lengths.clone()
            kept = scores.clone()
            for is_train in (True, False):
                self.draw(case, scores, is_train)
                where = f"{case.structure.name}, after the call"
                self.report.identical("scores", where, scores, kept)
                self.report.identical("lengths", where, case.lengths, lengths)

    def check_needed(self) -> None:
        """Check that no operation is used that ``needed()`` does not name."""
        for case in self.taken():
            asked: list[str] = []
            watched = _watch(case.structure, asked)
            for is_train in (True, False):
                estimator = self.fresh()
                scores = case.scores(0.5).requires_grad_()
                draw = self.drawn_by(estimator, watched, scores, case.lengths, is_train)
                total = draw.z.sum()
                if is_train:
                    total = self.total(estimator, case, draw).sum()
                if total.requires_grad:
                    with self.report.works("backward", case.structure.name):
                        torch.autograd.grad(total, scores, allow_unused=True)
            needed = self.estimator.needed()
            solves = "sparsemap" in asked
            self.report.holds(
                "solves",
                not solves or self.estimator.solves,
                f"{case.structure.name}: it asks for sparsemap, and says that it does not.",
            )
            beyond = sorted(set(asked) - needed - {"log_prob", "sparsemap"})
            if "log_prob" in asked and not needed & {"log_prob", "log_partition"}:
                beyond.append("log_prob")
            self.report.holds(
                "needed",
                not beyond,
                f"{case.structure.name}: it asks for {beyond}; needed() names {sorted(needed)}.",
            )

    def check_copies(self) -> None:
        """Check that ``for_width`` returns one with the same settings and its own fresh state."""
        given = self.estimator
        with self.report.works("for_width"):
            made, other = given.for_width(WIDTH), given.for_width(WIDTH + 1)
        self.report.holds(
            "for_width",
            type(made) is type(given) and made is not given,
            f"given {made!r}, expected another {given.name}.",
        )
        before, after = _settings(given), _settings(made)
        self.report.holds("for_width", before == after, f"the settings {before} became {after}.")
        stages = [[(end, type(each)) for end, each in one.stages] for one in (given, made)]
        self.report.holds("for_width", stages[0] == stages[1], "the stages are lost.")
        for one, two in ((given, made), (made, other)):
            shared = {tensor.data_ptr() for tensor in _tensors(one)} - {0}
            self.report.holds(
                "for_width",
                not shared & {tensor.data_ptr() for tensor in _tensors(two)},
                "two copies share a weight or a buffer.",
            )
        kept = [tensor.clone() for tensor in _tensors(given)]
        first = [tensor.clone() for tensor in _tensors(self.fresh())]
        for case in self.taken():
            self.drawn_by(made, case.structure, case.scores(), case.lengths, True)
        for tensor, value in zip(_tensors(given), kept):
            self.report.identical(
                "for_width", "the original after a copy's training", tensor, value
            )
        used = self.fresh()
        for case in self.taken():
            self.drawn_by(used, case.structure, case.scores(), case.lengths, True)
            break
        with seeded(self.seed):
            again = used.for_width(WIDTH)
        for tensor, value in zip(_tensors(again), first):
            self.report.identical("for_width", "the state of a copy of one in use", tensor, value)
        with self.report.works("pickle"):
            pickle.loads(pickle.dumps(made))
            copy.deepcopy(made)

    def check_errors(self) -> None:
        if not self.estimator.uses_scores:
            return
        for case in self.taken():
            for is_train in (True, False):
                scores = case.scores(fill=0.0)
                place = (2, *case.parts()[2].nonzero()[0].tolist())
                scores[place] = torch.nan
                where = f"{case.structure.name}, NaN in item 2"
                with self.report.refused("scores", where, InvalidScores, "2"):
                    self.fresh()(case.structure, scores, case.lengths, is_train)
                scores = case.scores(fill=0.0)
                scores[2] = -torch.inf
                where = f"{case.structure.name}, item 2 with all parts forbidden"
                if case.may_be_empty():
                    continue
                with self.report.refused("scores", where, InfeasibleError, "2"):
                    self.fresh()(case.structure, scores, case.lengths, is_train)

    def check_the_gradient(self) -> None:
        for case in self.taken():
            if self.gradient == "exact":
                self.by_differences(case)
            else:
                self.by_enumeration(case)

    def every_structure(self, case: _Case, operation: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
            f"{case.structure.name}: more than {MOST_STRUCTURES} structures cannot be summed over.",
        )
        return scores, length, z, case.structure.log_prob(z, scores, length)[:, 0]

    def by_differences(self, case: _Case) -> None:
        scores = case.scores(0.4, fill=0.0)
        free = case.parts()
        leaf = scores[free].requires_grad_()

        def total(values: Tensor) -> Tensor:
            return self.objective(case, scores.masked_scatter(free, values))

        where = case.structure.name
        self.report.agrees_with_differences("the objective", where, total, leaf, 1e-3, 1e-4)

    def by_enumeration(self, case: _Case) -> None:
        """Check the gradient of the first item, repeated many times in a batch, by enumeration."""
        structure, count = case.structure, self.num_draws
        scores, length, z, _ = self.every_structure(case, "the gradient")
        leaf = scores.clone().requires_grad_()
        expected_loss = structure.log_prob(z, leaf, length).exp() * case.loss(z)
        (expected,) = torch.autograd.grad(self.strength * expected_loss.sum(), leaf)
        copies = scores.repeat(count, *[1] * (scores.dim() - 1)).requires_grad_()
        lengths = length.repeat(count, *[1] * (length.dim() - 1))
        estimator = self.fresh()
        draw = self.drawn_by(estimator, structure, copies, lengths, True)
        total = self.total(estimator, case, draw).sum()
        (found,) = torch.autograd.grad(total, copies)
        error = found.std(0) / count**0.5
        apart = (found.mean(0) - expected[0]).abs()
        bound = STANDARD_ERRORS * error + 1e-10
        worst = int((apart - bound).argmax())
        self.report.holds(
            "the gradient",
            (apart <= bound).all(),
            f"{structure.name}: of {count} draws the mean is {written(found.mean(0))}, expected "
            f"{written(expected[0])}; the difference of the number {worst} is "
            f"{float(apart.flatten()[worst]):.3g}, allowed {float(bound.flatten()[worst]):.3g}.",
        )


class _Case:
    """Scores and a loss for a problem."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.structure = problem.structure
        self.lengths = torch.tensor(problem.lengths, dtype=torch.int64)
        self.seed = seed

    def parts(self) -> Tensor:
        like = torch.zeros(len(self.lengths), *self.problem.shape)
        return self.structure.part_mask(like, self.lengths).expand_as(like)

    def may_be_empty(self) -> bool:
        """Return whether item 2 still has a structure if all parts are forbidden."""
        scores = torch.full((len(self.lengths), *self.problem.shape), -torch.inf)
        try:
            self.structure.map(scores[2:3], self.lengths[2:3])
        except InfeasibleError:
            return False
        return True

    def scores(
        self, scale: float = 1.0, forbids: bool = False, offset: int = 0, fill: float = 0.0
    ) -> Tensor:
        """Return scores ``(B, *shape)`` float64, with ``fill`` at entries that are no part.

        If ``forbids`` is set, some parts are −inf, but no part of the best structure is.
        """
        generator = torch.Generator().manual_seed(self.seed + offset)
        shape = (len(self.lengths), *self.problem.shape)
        scores = scale * torch.randn(*shape, generator=generator, dtype=torch.float64)
        parts = self.parts()
        scores = scores.masked_fill(~parts, 0.0)
        if forbids:
            best = self.structure.map(scores, self.lengths) > 0
            closed = (torch.rand(shape, generator=generator) < 0.3) & ~best & parts
            scores = scores.masked_fill(closed, -torch.inf)
        return scores.masked_fill(~parts, fill)

    def random(self, count: int, offset: int) -> Tensor:
        """Return random numbers ``(count, B, *shape)`` float64."""
        generator = torch.Generator().manual_seed(self.seed + offset)
        shape = (count, len(self.lengths), *self.problem.shape)
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def loss(self, z: Tensor) -> Tensor:
        """Return losses ``(K, B)`` for ``(K, B, *shape)``.

        They are not linear, and differ much from zero, so that control variates have an effect.
        """
        generator = torch.Generator().manual_seed(self.seed + 17)
        table = torch.randn(*self.problem.shape, generator=generator, dtype=torch.float64).to(z)
        axes = tuple(range(2, z.dim()))
        first = (z * table).sum(axes)
        second = (z * table.flip(0)).sum(axes)
        return 2.0 + first.tanh() + 0.3 * second.square()


def _settings(estimator: Estimator) -> dict[str, Any]:
    """Return the settings of an estimator; for weights, buffers and modules only their types."""
    found = {}
    for name, value in vars(estimator).items():
        if name.startswith("_") or name in ("training", "stages"):
            continue
        plain = not isinstance(value, (Tensor, nn.Module))
        found[name] = repr(value) if plain else type(value).__name__
    if isinstance(estimator, nn.Module):
        found |= {name: type(module).__name__ for name, module in estimator.named_children()}
    return found


def _tensors(estimator: Estimator) -> list[Tensor]:
    if not isinstance(estimator, nn.Module):
        return []
    return [*estimator.parameters(), *estimator.buffers()]


def _watch(structure: Structure, asked: list[str]) -> Structure:
    """Return a copy that records which operations are called from outside."""
    watched = copy.copy(structure)
    inside = [0]

    def noting(name: str) -> Callable[..., Any]:
        method = getattr(structure, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if not inside[0] and name not in FREE:
                asked.append("log_partition" if name == "log_count" else name)
            inside[0] += 1
            try:
                return method(*arguments, **options)
            finally:
                inside[0] -= 1

        return call

    for name in (*OPERATIONS, "log_count", "sparsemap", *FREE):
        setattr(watched, name, noting(name))
    return watched
