"""Errors for users; each names the given value, the expected one and the remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real


class LatentError(ValueError):
    """Base of the errors raised by spacy-latent."""


class InvalidScores(LatentError):
    """Scores, or other arguments of a structure, of a wrong type, shape or value."""


def not_finite_message(name: str, items: list[int]) -> str:
    """Return the error text for items whose scores hold NaN or +inf."""
    return (
        f"{name}: the scores of item(s) {items[:10]} of the batch hold NaN or +inf. Scores must be "
        "finite, or -inf to forbid a part. If this came up in training, lower the learning rate or "
        "clip gradients (training.optimizer.grad_clip)."
    )


def too_large_message(name: str, items: list[int]) -> str:
    """Return the error text for items whose sums of scores keep no digits."""
    return (
        f"{name}: the scores of item(s) {items[:10]} of the batch are too large: their sums in "
        "float64 lose every digit that probabilities depend on. Divide the scores by a "
        "temperature, and forbid parts by -inf. If this came up in training, lower the learning "
        "rate or clip gradients (training.optimizer.grad_clip)."
    )


def lost_digits_message(name: str, items: list[int]) -> str:
    """Return the error text for items whose structures all use very large scores."""
    return (
        f"{name}: in item(s) {items[:10]} of the batch all structures use scores so large that "
        "their sums lose every digit of the other scores. Forbid parts by -inf in place of large "
        "negative scores. Or call the structure outside of torch.compile, torch.export and "
        "torch.func: there, large negative scores count as masks, and the others decide."
    )


class InfeasibleError(LatentError):
    """Scores that forbid every structure of at least one item of the batch.

    Attributes:
        items: positions in the batch of the items without a feasible structure.
    """

    def __init__(self, structure: str, items: Sequence[int], advice: str = "") -> None:
        self.items = list(items)
        named = f"item(s) {', '.join(str(i) for i in self.items[:10])}" if self.items else "an item"
        more = ", ..." if len(self.items) > 10 else ""
        message = (
            f"{structure}: no feasible structure for {named}{more} of the batch: "
            "scores of -inf and the structure's constraints together forbid all of them. "
            "Allow at least one structure per item, for example by raising some scores above -inf."
        )
        super().__init__(f"{message} {advice}".strip())


class NothingLeft(LatentError):
    """An intervention that no structure satisfies."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"No {name} has all forced parts and no forbidden part: two forced parts exclude each "
            "other, or every structure has a forbidden part. Remove one of these edits."
        )


class NotTractable(LatentError, NotImplementedError):
    """An operation without a tractable exact algorithm on this structure."""

    def __init__(self, structure: str, operation: str, alternatives: str) -> None:
        super().__init__(
            f"{structure} has no tractable exact '{operation}'. Instead: {alternatives}."
        )


class NotDifferentiable(LatentError, RuntimeError):
    """A derivative that does not exist, such as the second one of marginals."""


class NotTraceable(LatentError, RuntimeError):
    """An operation that no exported program and no transform of torch.func can hold."""


class IncompatiblePair(LatentError):
    """Two parts of a config that cannot work together."""

    def __init__(self, first: str, second: str, reason: str, alternatives: str) -> None:
        super().__init__(
            f"{first} cannot be combined with {second}: {reason}. Use instead: {alternatives}."
        )


class NoLabels(LatentError):
    """The training data have fewer labels than a component needs."""


class LatentWarning(UserWarning):
    """Warnings of spacy-latent, so that they can be filtered by class."""


class PartlyAnnotated(LatentWarning):
    """Figures computed from annotation of which much is missing."""


def number_of(number: float, noun: str, form: str = "") -> str:
    """Return a number with its noun: "1 text", "2 texts", "1 entity", "2 entities".

    Args:
        noun: in the singular. It must form its plural by -s, or by -ies after a consonant and -y.
        form: format of the number, as after the colon in an f-string.
    """
    return f"{number:{form}} {noun if number == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a noun, see :func:`number_of`."""
    return f"{noun[:-1]}ies" if re.search(r"[^aeiou]y$", noun) else f"{noun}s"


# Largest valid whole number: kernels compute with 64 bits, and add small numbers to settings.
LARGEST = 10**18
# Largest number of things that take memory for each item or update, such as samples.
MANY = 1_000_000


def is_whole(number: object, least: int) -> bool:
    """Return whether a value is a whole number that is large enough; booleans are not."""
    return isinstance(number, Integral) and not isinstance(number, bool) and int(number) >= least


def check_whole(
    name: str,
    least: int = 1,
    or_null: bool = False,
    error: type[LatentError] = LatentError,
    most: int = LARGEST,
    **settings: object,
) -> None:
    """Raise an error for the first setting that is not a whole number in ``least`` to ``most``.

    Args:
        name: the object that has the settings, for the message.
        or_null: whether None is valid, too.
        most: largest valid number.
    """
    for setting, number in settings.items():
        valid = is_whole(number, least) and int(number) <= most  # type: ignore[call-overload]
        if not valid and not (or_null and number is None):
            bound = f" and at most {most:,}" if is_whole(number, most) else ""
            raise error(
                f"{name}: {setting} is {number!r}; expected a whole number of at least {least}"
                f"{bound}{', or null' * or_null}."
            )


def check_positive(name: str, or_null: bool = False, **settings: object) -> None:
    """Raise an error for the first setting that is not a finite number above 0."""
    check_number(name, lambda number: number > 0, "a finite number above 0", or_null, **settings)


def check_not_negative(name: str, **settings: object) -> None:
    """Raise an error for the first setting that is not a finite number of at least 0."""
    check_number(
        name, lambda number: number >= 0, "a finite number of at least 0", False, **settings
    )


def check_number(
    name: str,
    valid: Callable[[float], bool] = lambda number: True,
    expected: str = "a finite number",
    or_null: bool = False,
    **settings: object,
) -> None:
    """Raise an error for the first setting that is not a finite number in a range.

    A config does not check the types of the settings of a registered class. Booleans are no
    numbers.

    Args:
        name: the object that has the settings, for the message.
        valid: function that returns whether a number is in the range.
        expected: the range in words.
        or_null: whether None is valid, too.
    """
    for setting, number in settings.items():
        # Not float(number), which overflows for large integers.
        finite = is_number(number) and abs(number) < math.inf  # type: ignore[arg-type]
        if not (finite and valid(number)) and not (or_null and number is None):  # type: ignore[arg-type]
            more = ", or null" * or_null
            raise LatentError(f"{name}: {setting} is {number!r}; expected {expected}{more}.")


def is_number(value: object) -> bool:
    """Return whether a value is a real number, infinity or NaN; booleans are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_one_of(
    name: str, known: Iterable[str], error: type[LatentError] = LatentError, **settings: object
) -> None:
    """Raise an error for the first setting that is none of the ``known`` values."""
    valid = list(known)
    for setting, value in settings.items():
        if value not in valid:
            raise error(
                f"{name}: {setting} is {value!r}; expected {' or '.join(map(repr, valid))}."
            )


def check_texts(name: str, or_null: bool = False, **settings: object) -> None:
    """Raise an error for the first setting that is not a list of texts.

    A single text, without the brackets of a list, would count as a list of its letters.
    """
    for setting, texts in settings.items():
        valid = isinstance(texts, Collection) and not isinstance(texts, (str, bytes, Mapping))
        if not (valid and all(isinstance(text, str) for text in texts)):  # type: ignore[attr-defined]
            if not (or_null and texts is None):
                example = f", such as [{texts!r}]" if isinstance(texts, str) and texts else ""
                raise LatentError(
                    f"{name}: {setting} is {texts!r}; expected a list of texts{example}"
                    f"{', or null' * or_null}."
                )


def check_flags(name: str, error: type[LatentError] = LatentError, **settings: object) -> None:
    """Raise an error for the first setting that is neither true nor false.

    ``"no"`` in a config, and ``False`` as Python spells it on a command line, are texts. They would
    count as true.
    """
    for setting, flag in settings.items():
        if isinstance(flag, str) or flag not in (True, False):
            raise error(f"{name}: {setting} is {flag!r}; expected true or false.")
