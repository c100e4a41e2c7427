"""Messages of failed checks: the operation, the item, the given and the expected values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from spacy_latent.errors import LatentError

Refusal = TypeVar("Refusal", bound=Exception)
# Number of values of a tensor that a message shows.
SHOWN = 40
NAN = (
    ", as of -inf less -inf, or of a gradient of torch.logaddexp(-inf, -inf) or of a logarithm of 0"
)


@dataclass(frozen=True)
class Check:
    """Part of a contract, which raises AssertionError if it is called and the contract is broken.

    Attributes:
        name: Name of the checked property, such as "marginals".
        of: Name of the checked object, for messages.
    """

    name: str
    of: str
    run: Callable[[], None]

    def __call__(self) -> None:
        """Run the check."""
        self.run()

    def __str__(self) -> str:
        return self.name


def written(value: object) -> str:
    """Return a tensor as text, shortened if it has many values."""
    if not isinstance(value, Tensor):
        return repr(value)
    if not value.dim():
        return f"{float(value.detach()):.10g}"
    flat = value.detach().flatten().tolist()
    numbers = ", ".join(f"{number:.10g}" for number in flat[:SHOWN])
    more = ", ..." if len(flat) > SHOWN else ""
    return f"[{numbers}{more}] of shape {tuple(value.shape)}"


def expect_made(check: str, given: object, kind: type, example: str) -> None:
    """Raise LatentError unless the value is an instance of ``kind``.

    Otherwise all checks of an invalid value, such as a class, would fail.
    """
    if not isinstance(given, kind):
        shown = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
        raise LatentError(f"{check}: {shown} is given; expected an instance, such as {example}.")


# The default of torch.autograd.gradcheck.
STEP = 1e-6
# A step that is larger than any tie of an algorithm, and the largest difference of the slopes on
# both sides, over the size of a direction, if there is no kink.
LONG_STEP, SMOOTH = 1e-5, 1e-4


def _slopes(function: Callable[[Tensor], Tensor], given: Tensor) -> Iterator[Tensor]:
    """Yield the central differences of all results by each value."""
    for i in range(given.numel()):
        step = torch.zeros_like(given)
        step.view(-1)[i] = STEP
        with torch.no_grad():
            both = function(given + step) - function(given - step)
        yield both.flatten() / (2 * STEP)


class Report:
    """Assertions whose messages name the checked structure or estimator."""

    def __init__(self, of: str) -> None:
        self.of = of

    def fail(self, operation: str, what: str) -> None:
        """Raise AssertionError that names the checked object and the operation."""
        raise AssertionError(f"{self.of}: {operation}: {what}")

    def same(
        self,
        operation: str,
        item: str,
        found: Tensor,
        expected: Tensor,
        rtol: float = 0.0,
        atol: float | None = None,
    ) -> None:
        """Assert that two tensors are equal up to a tolerance; NaN is not equal to anything.

        The tolerance is ``atol`` + ``rtol`` · |expected|. Both are equal if ``atol`` is None.
        """
        atol = rtol if atol is None else atol
        self.has_shape(operation, item, found, tuple(expected.shape))
        if torch.allclose(found.detach(), expected.detach().to(found), rtol=rtol, atol=atol):
            return
        unknown = found.detach().isnan().nonzero().tolist()
        if unknown:
            self.fail(
                operation, f"{item}: given NaN at {unknown[:3]}{NAN}; expected {written(expected)}."
            )
        apart = (found.detach() - expected.detach().to(found)).abs()
        largest = written(apart.flatten().nan_to_num(torch.inf, torch.inf).max())
        self.fail(
            operation,
            f"{item}: given {written(found)}, expected {written(expected)}; the largest difference "
            f"is {largest}, allowed are {atol:g} + {rtol:g} * |expected|.",
        )

    def identical(self, operation: str, what: str, found: Tensor, expected: Tensor) -> None:
        """Assert that two tensors are equal without any tolerance."""
        if not torch.equal(found, expected):
            self.fail(operation, f"{what}: given {written(found)}, expected {written(expected)}.")

    def holds(self, operation: str, condition: bool | Tensor, what: str) -> None:
        """Fail with this text unless the condition is true."""
        if not bool(condition):
            self.fail(operation, what)

    def has_shape(
        self, operation: str, given: str, found: Tensor, expected: tuple[int, ...]
    ) -> None:
        """Fail unless a tensor has the expected shape."""
        shape = tuple(found.shape)
        self.holds(
            operation, shape == expected, f"{given}: given shape {shape}, expected {expected}."
        )

    @contextmanager
    def refused(
        self, operation: str, given: str, error: type[Refusal], says: str = ""
    ) -> Iterator[dict[str, Refusal]]:
        """Assert that the code inside the context raises ``error``.

        Args:
            given: Description of the argument.
            says: Text that the error message must contain as a whole word.

        Yields:
            A dict that has the raised error as "error" after the context.
        """
        caught: dict[str, Refusal] = {}
        try:
            yield caught
        except error as raised:
            caught["error"] = raised
            # Only whole words count, because "2" also occurs in "float32".
            if says and not re.search(rf"(?<![\w.]){re.escape(says)}(?![\w.])", str(raised)):
                self.fail(
                    operation, f"{given}: the message {str(raised)!r} does not name {says!r}."
                )
        except Exception as raised:
            raise AssertionError(
                f"{self.of}: {operation}: {given}: given {type(raised).__name__} ({raised}), "
                f"expected {error.__name__}."
            ) from raised
        else:
            self.fail(operation, f"{given}: given no error, expected {error.__name__}.")

    def agrees_with_differences(
        self,
        operation: str,
        where: str,
        function: Callable[[Tensor], Tensor],
        leaf: Tensor,
        rtol: float,
        atol: float,
    ) -> None:
        """Assert that the gradient of ``function`` agrees with finite differences.

        The check is torch.autograd.gradcheck. The message names the first value that differs.
        """
        what = f"the gradient of {operation} by finite differences"
        with self.works(what, where):
            try:
                torch.autograd.gradcheck(function, leaf, atol=atol, rtol=rtol)
                return
            except GradcheckError as error:
                refused = str(error).partition("\n")[0]
            given = torch.autograd.functional.jacobian(function, leaf.detach())
            given = given.reshape(-1, leaf.numel())
            expected = torch.stack(list(_slopes(function, leaf.detach())), 1)
        wrong = ~((given - expected).abs() <= atol + rtol * expected.abs())
        unknown = given.isnan() & ~expected.isnan()
        where = f"{where}: " if where else ""
        if not bool(wrong.any()):
            self.fail(what, f"{where}{refused}")
        number, part = (unknown if bool(unknown.any()) else wrong).nonzero()[0].tolist()
        cause = NAN if bool(unknown.any()) else ""
        self.fail(
            what,
            f"{where}number {number} of the result by free score {part}: given "
            f"{float(given[number, part]):.6g}{cause}, expected {float(expected[number, part]):.6g}"
            f"; {int(wrong.sum())} of {wrong.numel()} are wrong.",
        )

    def agrees_with_both_sides(
        self,
        operation: str,
        where: str,
        function: Callable[[Tensor], Tensor],
        at: Tensor,
        directions: Tensor,
    ) -> None:
        """Assert that the gradient of ``function`` agrees with finite differences.

        Only items are checked whose differences on both sides agree. If they do not agree, there is
        a kink, and several gradients are valid.

        Args:
            where: Description of the point.
            function: Function of a tensor with the items first, as in ``at``.
            at: The point.
            directions: Directions, each with the shape of ``at``.
        """
        what = f"the gradient of {operation} by finite differences"
        leaf = at.clone().requires_grad_()
        with self.works(what, where):
            here = function(leaf)
            factors = torch.linspace(1.0, 2.0, max(here.numel(), 1), dtype=here.dtype)
            factors = factors[: here.numel()].view(here.shape)
            given = gradient((here * factors).sum(), leaf)
        for number, direction in enumerate(directions):
            step = LONG_STEP * direction
            with self.works(what, where), torch.no_grad():
                after = (function(at + step) - here) / LONG_STEP
                before = (here - function(at - step)) / LONG_STEP
            size = 1.0 + float(direction.abs().sum())
            smooth = ((after - before).abs() < SMOOTH * size).reshape(len(at), -1).all(1)
            expected = (0.5 * (after + before) * factors).reshape(len(at), -1).sum(1)
            found = (given * direction).flatten(1).sum(1)
            for b in smooth.nonzero().flatten().tolist():
                there = f"{where}, item {b} along direction {number}"
                self.same(what, there, found[b], expected[b], 1e-3, SMOOTH * size)

    @contextmanager
    def works(self, operation: str, given: str = "") -> Iterator[None]:
        """Assert that the code inside the context raises nothing except for AssertionError."""
        try:
            yield
        except AssertionError:
            raise
        except Exception as raised:
            place = f"{given}: " if given else ""
            raise AssertionError(
                f"{self.of}: {operation}: {place}raised {type(raised).__name__}: {raised}"
            ) from raised


def checks_of(contract: object, of: str, leave_out: str = "") -> Iterator[Check]:
    """Yield the methods ``check_*`` of a contract, except one."""
    for name in dir(contract):
        if name.startswith("check_") and name != leave_out:
            yield Check(name.removeprefix("check_"), of, getattr(contract, name))


def first_failures(checks: Iterator[Check]) -> None:
    """Run all checks, and raise one AssertionError with all failures, if there are any."""
    failed = []
    for check in checks:
        try:
            check()
        except AssertionError as error:
            failed.append((check.name, error))
        except Exception as error:
            raised = f"the check {check.name} raised {type(error).__name__}: {error}"
            said = AssertionError(f"{check.of}: {raised}")
            said.__cause__ = error
            failed.append((check.name, said))
    if len(failed) == 1:
        raise failed[0][1]
    if failed:
        listed = "\n".join(f"- {name}: {error}" for name, error in failed)
        raise AssertionError(f"{len(failed)} checks failed:\n{listed}") from failed[0][1]


def gradient(value: Tensor, leaf: Tensor, create_graph: bool = False) -> Tensor:
    """Return the gradient of a value, and keep the graph.

    The gradient is 0 if the value does not depend on the leaf.
    """
    found = None
    if value.requires_grad:
        (found,) = torch.autograd.grad(
            value, leaf, retain_graph=True, create_graph=create_graph, allow_unused=True
        )
    return torch.zeros_like(leaf) if found is None else found
