"""Contract of an estimator, checked on structures that are small enough to list."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair, InfeasibleError, InvalidScores
from spacy_latent.estimators.base import Estimator
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import repeat
from spacy_latent.testing.contract_draws import STANDARD_ERRORS, WIDTH, DrawChecks, Gradient
from spacy_latent.testing.estimator_cases import Case, Problem
from spacy_latent.testing.estimator_cases import problems as default_problems
from spacy_latent.testing.random_scores import seeded
from spacy_latent.testing.reports import Check, checks_of, expect_made, first_failures, written

if TYPE_CHECKING:
    from typing_extensions import Unpack

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


class EstimatorOptions(TypedDict, total=False):
    """Options of :func:`estimator_checks`."""

    gradient: Gradient | None
    strength: float
    num_draws: int
    seed: int


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
    chosen = list(problems or default_problems())
    contract = _Contract(estimator, chosen, gradient, strength, num_draws, seed)
    yield from checks_of(contract, estimator.name, "" if gradient else "check_the_gradient")


class _Contract(DrawChecks):
    """All checks of an estimator."""

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
                    draw = self._drawn_from(estimator, case, scores, True, seed)
                    total = self.total(estimator, case, draw).sum()
                    where = f"{case.name}, seed {seed}"
                    found = self.finite_slopes(where, total, scores)
                    if found is None:
                        continue
                    closed = ~case.parts()
                    if case.structure.linear:
                        closed = closed | scores.detach().isneginf()
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

    def check_prediction(self) -> None:
        """Check that prediction is without chance, and that training repeats with the seed."""
        for case in self.taken():
            scores = case.scores()
            first, second = (self.draw(case, scores, False, seed).z for seed in (1, 2))
            self.report.identical("prediction", f"{case.name}, twice", second, first)
            self.without_gradients("prediction", case, False, first)
            first, second = (self.draw(case, scores, True, 3).z for _ in range(2))
            self.report.identical("training", f"{case.name}, twice with one seed", second, first)
            self.without_gradients("training", case, True, first)
            states = [self.state_of_generator(case, seed) for seed in (1, 2)]
            what = "it seeds torch's default generator. Give a torch.Generator of its own."
            self.report.holds("training", not torch.equal(*states), f"{case.name}: {what}")

    def state_of_generator(self, case: Case, seed: int) -> Tensor:
        """Return the state of torch's generator after a draw in training that began with a seed."""
        estimator = self.fresh()
        with seeded(seed), self.report.works("training", case.name):
            estimator(case.structure, case.scores(), case.lengths, True)
            return torch.get_rng_state()

    def without_gradients(
        self, operation: str, case: Case, is_train: bool, expected: Tensor
    ) -> None:
        for mode in (torch.no_grad, torch.inference_mode):
            where = f"{case.name}, {mode.__name__}"
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
                    where = f"{case.name}, {what}"
                    self.report.identical("z", where, found.z, expected.z)
                    self.report.identical("weights", where, found.weights, expected.weights)

    def check_items_are_alone(self) -> None:
        """Check that items are independent at prediction, and that an empty batch works."""
        for case in self.taken():
            scores, structure = case.scores(), case.structure
            together = self.draw(case, scores, False).mean()
            for b in range(len(case.lengths)):
                own = scores[b : b + 1], case.lengths[b : b + 1]
                alone = self.drawn_by(self.fresh(), structure, *own, False)
                where = f"{structure.name}, item {b} alone"
                self.report.same("z", where, alone.mean()[0], together[b], 1e-6)
            for is_train in (True, False):
                given, what = (scores[:0], case.lengths[:0], is_train), "an empty batch"
                none = self.drawn_by(self.fresh(), structure, *given, what=what)
                self.report.holds("z", none.z.shape[1] == 0, f"{structure.name}: {what} has items.")

    def check_what_is_given_stays(self) -> None:
        for case in self.taken():
            scores, lengths = case.scores(fill=0.0), case.lengths.clone()
            kept = scores.clone()
            for is_train in (True, False):
                self.draw(case, scores, is_train)
                where = f"{case.name}, after the call"
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
                self.slopes(case.name, total, scores)
            needed = self.estimator.needed()
            solves = "sparsemap" in asked
            self.report.holds(
                "solves",
                not solves or self.estimator.solves,
                f"{case.name}: it asks for sparsemap, and says that it does not.",
            )
            beyond = sorted(set(asked) - needed - {"log_prob", "sparsemap"})
            if "log_prob" in asked and not needed & {"log_prob", "log_partition"}:
                beyond.append("log_prob")
            self.report.holds(
                "needed",
                not beyond,
                f"{case.name}: it asks for {beyond}; needed() names {sorted(needed)}.",
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
        used = self.fresh()
        for case in self.taken():
            self._drawn_from(made, case, case.scores(), True)
        for tensor, value in zip(_tensors(given), kept):
            name = "the original after a copy's training"
            self.report.identical("for_width", name, tensor, value)
        for case in islice(self.taken(), 1):
            self._drawn_from(used, case, case.scores(), True)
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
                where = f"{case.name}, NaN in item 2"
                with self.report.refused("scores", where, InvalidScores, "2"):
                    self.fresh()(case.structure, scores, case.lengths, is_train)
                if case.may_be_empty():
                    continue
                scores[2] = -torch.inf
                where = f"{case.name}, item 2 with all parts forbidden"
                with self.report.refused("scores", where, InfeasibleError, "2"):
                    self.fresh()(case.structure, scores, case.lengths, is_train)

    def check_the_gradient(self) -> None:
        check = self.by_differences if self.gradient == "exact" else self.by_enumeration
        for case in self.taken():
            check(case)

    def by_differences(self, case: Case) -> None:
        scores, free = case.scores(0.4, fill=0.0), case.parts()
        leaf = scores[free].requires_grad_()

        def total(values: Tensor) -> Tensor:
            return self.objective(case, scores.masked_scatter(free, values))

        self.report.agrees_with_differences("the objective", case.name, total, leaf, 1e-3, 1e-4)

    def by_enumeration(self, case: Case) -> None:
        """Check the gradient of the first item, repeated many times in a batch, by enumeration."""
        structure, count = case.structure, self.num_draws
        scores, length, z, _ = self.every_structure(case, "the gradient")
        leaf = scores.clone().requires_grad_()
        expected_loss = structure.log_prob(z, leaf, length).exp() * case.loss(z)
        (expected,) = torch.autograd.grad(self.strength * expected_loss.sum(), leaf)
        copies, lengths = repeat(scores, count).requires_grad_(), repeat(length, count)
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
