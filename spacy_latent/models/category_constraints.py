"""Constraints between the labels of a text: some exclude each other, some imply others.

The allowed sets of labels form a random field over one bit for each label (Deng et al. 2014,
"Large-Scale Object Classification Using Label Relation Graphs"). The probability of an allowed set
is proportional to exp(the sum of the logits of its labels). All other sets have probability 0. Sums
over the sets are exact, by variable elimination, one label after another. A table holds only the
allowed states of its labels. A group of exclusive labels therefore has only one state more than it
has labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from spacy_latent.errors import LatentError, check_texts
from spacy_latent.structures.derivatives import recordable, recording

# Score of an impossible label. It is finite, so that gradients exist.
NEVER = -1e30
# Largest number of states of a table. Each label without constraints to the others doubles it.
MOST_STATES = 2**16
# Largest number of states of all tables together, which bounds the time until an error.
MOST_TOGETHER = 2**20


@dataclass(frozen=True)
class Table:
    """Allowed states of some labels.

    Attributes:
        labels: their numbers, ascending.
        states: for each state, the labels that a text has.
    """

    labels: tuple[int, ...]
    states: tuple[frozenset[int], ...]


@dataclass(frozen=True)
class Elimination:
    """Labels that are summed out of the tables that contain them.

    Attributes:
        labels: their numbers.
        sources: for each input table, its number and its row in each joint state, ``(S,)``.
        values: values of the labels in each joint state, ``(S, labels)``, 0 or 1.
        target: row of the output table for each joint state, ``(S,)``.
        rows: number of rows of the output table.
    """

    labels: list[int]
    sources: tuple[tuple[int, Tensor], ...]
    values: Tensor
    target: Tensor
    rows: int


class _Contradiction(LatentError):
    """Error of tables that allow no set of labels."""


def _checked(name: str, groups: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return the groups of a setting, or raise an error if they are no lists of labels."""
    if isinstance(groups, (str, Mapping)) or not isinstance(groups, Iterable):
        raise LatentError(f"CategoryConstraints: {name} is {groups!r}; expected lists of labels.")
    found: list[Any] = [list(one) if isinstance(one, Iterator) else one for one in groups]
    for group in found:
        check_texts("CategoryConstraints", False, **{f"a group of {name}": group})
        if len(group) < 2 or len(set(group)) < len(group):
            raise LatentError(
                f"CategoryConstraints: {name} has {group}; expected two different labels or more."
            )
    return [list(group) for group in found]


class CategoryConstraints:
    """Constraints on labels that exclude or imply each other, for ``latent_textcat_multilabel``.

    ``doc.cats`` then holds the probability of each label over the allowed sets. The probabilities
    of a group of exclusive labels sum to at most 1, and no label is more probable than one it
    implies. So the labels above a threshold of 0.5 or more satisfy these constraints, except that a
    ``one_of`` group may have no label above it. The loss is −log of the probability of the known
    labels of a text.

    Args:
        exclusive: groups of labels of which a text has at most one.
        one_of: groups of labels of which a text has exactly one.
        implied: lists of a label and the labels that every text with it has as well.

    Raises:
        LatentError: if a group has fewer than two labels, or a label twice.
    """

    def __init__(
        self,
        exclusive: Iterable[Iterable[str]] = (),
        one_of: Iterable[Iterable[str]] = (),
        implied: Iterable[Iterable[str]] = (),
    ) -> None:
        self.exclusive = _checked("exclusive", exclusive)
        self.one_of = _checked("one_of", one_of)
        self.implied = _checked("implied", implied)

    @property
    def labels(self) -> set[str]:
        """All labels in the constraints."""
        groups = *self.exclusive, *self.one_of, *self.implied
        return {label for group in groups for label in group}

    def broken_by(self, cats: dict[str, float]) -> str | None:
        """Describe a constraint that the labels of a text violate, None if there is none.

        Args:
            cats: as ``doc.cats`` of a reference; absent labels are not known.
        """
        for group in self.exclusive:
            both = [label for label in group if cats.get(label) == 1.0]
            if len(both) > 1:
                return f"it has {both[0]!r} and {both[1]!r}, which are exclusive"
        for group in self.one_of:
            own = [cats.get(label) for label in group]
            if own.count(1.0) > 1 or own.count(0.0) == len(group):
                return f"it has {own.count(1.0)} of {group}, of which every text has one"
        for premise, *conclusions in self.implied:
            for label in conclusions:
                if cats.get(premise) == 1.0 and cats.get(label) == 0.0:
                    return f"it has {premise!r} without {label!r}, which {premise!r} implies"
        return None

    def over(self, labels: Sequence[str]) -> LabelField:
        """Return the sums over allowed sets of these labels.

        Raises:
            LatentError: if a label of the constraints is not among ``labels``, if no set is
                allowed, or if connected labels have more than 65,536 states to sum over.
        """
        missing = sorted(self.labels - set(labels))
        if missing:
            raise LatentError(
                f"CategoryConstraints names {missing}, but the labels are {sorted(labels)}. Give "
                "all labels when the component is initialized, or correct the names."
            )
        number = {label: place for place, label in enumerate(labels)}
        size = len(labels)
        # The key of the setting in a config.
        said: dict[str, list[Table]] = {}
        for name, groups, least in (("exclusive", self.exclusive, 0), ("one_of", self.one_of, 1)):
            for group in groups:
                parts = [[number[label] for label in part] for part in self._alike(group)]
                tables = _of_group(parts, least, size)
                # A group may be there twice.
                said.setdefault(f"{name} {group}", []).extend(tables)
                size += len(tables) - 1
        for premise, *conclusions in self.implied:
            tables = said.setdefault(f"implied {[premise, *conclusions]}", [])
            for label in conclusions:
                first, second = number[premise], number[label]
                allowed: tuple[list[int], ...] = ([], [second], [first, second])
                both = min(first, second), max(first, second)
                tables.append(Table(both, tuple(map(frozenset, allowed))))
        try:
            tables = [table for each in said.values() for table in each]
            return LabelField(size, tables, hidden=size - len(labels))
        except _Contradiction:
            together = ", ".join(_contradicting(size, said))
            raise LatentError(
                f"CategoryConstraints allow no set of labels at all: none satisfies {together} at "
                "once. Remove or correct one of these."
            ) from None

    def _alike(self, group: list[str]) -> list[list[str]]:
        """Divide a group into parts: labels that imply the same others, and single other labels."""
        conclusions: dict[str, set[str]] = {}
        for premise, *others in self.implied:
            conclusions.setdefault(premise, set()).update(others)
        alike: dict[object, list[str]] = {}
        for label in group:
            key = frozenset(conclusions[label]) if label in conclusions else label
            alike.setdefault(key, []).append(label)
        return list(alike.values()) if len(alike) > 1 else [[label] for label in group]


def _of_group(parts: Sequence[list[int]], least: int, first: int) -> list[Table]:
    """Return the tables of a group with at most one label, or with exactly one if ``least`` is 1.

    A part with several labels has a hidden label, numbered from ``first``, which is 1 if a label of
    the part is. So the labels of a part are summed out before they share a table with other parts.
    """
    tables: list[Table] = []
    members: list[int] = []
    for part in parts:
        if len(part) == 1:
            members += part
            continue
        hidden = first + len(tables)
        states = (frozenset([place, hidden]) for place in sorted(part))
        tables.append(Table((*sorted(part), hidden), (frozenset(), *states)))
        members.append(hidden)
    none = [] if least else [frozenset[int]()]
    singles = (frozenset([place]) for place in sorted(members))
    return [*tables, Table(tuple(sorted(members)), (*none, *singles))]


class LabelField:
    """Sums over the sets of labels that all tables allow.

    Args:
        hidden: number of hidden labels without a score. They are the last ones.
    """

    def __init__(self, size: int, tables: Sequence[Table], hidden: int = 0) -> None:
        self.size, self.hidden = size, hidden
        # Tables by their index in the order in which they are made.
        present = dict(enumerate(tables))
        self.rows = [len(table.states) for table in tables]
        self.steps: list[Elimination] = []
        holders: dict[int, set[int]] = {}
        for k, table in present.items():
            for label in table.labels:
                holders.setdefault(label, set()).add(k)
        self.free = sorted(set(range(size)) - set(holders))
        costs = {label: _cost([present[k] for k in found]) for label, found in holders.items()}
        tied, together = len(holders), 0
        while holders:
            label = min(holders, key=lambda label: (costs[label], label))
            own = {k: present.pop(k) for k in sorted(holders[label])}
            joint, sources = _joined(own)
            together += len(joint.states)
            if together > MOST_TOGETHER:
                raise _too_many(MOST_TOGETHER, tied)
            gone = [known for known in joint.labels if holders[known] <= own.keys()]
            rest = frozenset(joint.labels) - frozenset(gone)
            remains = [state & rest for state in joint.states]
            rows = {state: row for row, state in enumerate(dict.fromkeys(remains))}
            values = torch.tensor([[known in state for known in gone] for state in joint.states])
            target = torch.tensor([rows[state] for state in remains])
            self.steps.append(Elimination(gone, sources, values.double(), target, len(rows)))
            made = len(self.rows)
            present[made] = Table(tuple(sorted(rest)), tuple(rows))
            self.rows.append(len(rows))
            for known in gone:
                del holders[known]
            for known in rest:
                holders[known] = (holders[known] - own.keys()) | {made}
                costs[known] = _cost([present[k] for k in holders[known]])
        # Tables without labels, of one row each.
        self.last = sorted(present)

    def log_partition(self, present: Tensor, absent: Tensor) -> Tensor:
        """Return the log of the sum over allowed sets of exp(the sum of the scores of the labels).

        Args:
            present: score of each label in a set, ``(..., labels)``, of any floating dtype; NEVER
                to exclude it.
            absent: score of each label that is not in a set, of the same shape and dtype.

        Returns:
            ``(...)``, of the same dtype.
        """
        present, absent = pad(present, (0, self.hidden)), pad(absent, (0, self.hidden))
        result = torch.logaddexp(present[..., self.free], absent[..., self.free]).sum(-1)
        found: dict[int, Tensor] = {}
        for number, step in enumerate(self.steps, start=len(self.rows) - len(self.steps)):
            values = step.values.to(present)
            total = present[..., step.labels] @ values.T + absent[..., step.labels] @ (1 - values.T)
            for table, row in step.sources:
                if table in found:
                    total = total + found.pop(table)[..., row.to(present.device)]
            found[number] = _log_sums(total, step.target.to(present.device), step.rows)
        for table in self.last:
            result = result + found[table][..., 0]
        return result

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each label over all allowed sets, without a gradient.

        Logits and result are ``(..., labels)``.
        """
        with recording():
            present = recordable(logits).detach().double().requires_grad_()
            total = self.log_partition(present, torch.zeros_like(present))
            (marginals,) = torch.autograd.grad(total.sum(), present)
        return marginals.to(logits.dtype)

    def loss(self, logits: Tensor, truths: Tensor, known: Tensor) -> Tensor:
        """Return −log of the probability of the known labels, in nats, ``(K, D)``.

        Without constraints it is the multi-label loss of models.text_losses, which has the same
        arguments.

        Raises:
            LatentError: if no allowed set has the known labels of a text.
        """
        present = logits.double()
        absent = torch.zeros_like(present)
        impossible = torch.full_like(present, NEVER)
        is_known = known.bool()
        free = self.log_partition(present, absent)
        bound = self.log_partition(
            torch.where(is_known & (truths == 0), impossible, present),
            torch.where(is_known & (truths == 1), impossible, absent),
        )
        broken = (bound < NEVER / 2).flatten(0, -2).any(0).nonzero().flatten().tolist()
        if broken:
            raise LatentError(
                f"CategoryConstraints: the labels of text(s) {broken[:10]} of the batch violate "
                "the constraints. Correct the annotation or the constraints."
            )
        return (free - bound).to(logits.dtype)


def _contradicting(size: int, said: dict[str, list[Table]]) -> list[str]:
    """Reduce contradicting constraints to those that still contradict.

    Constraints are removed one after another, as long as the others allow no set of labels.
    """
    kept = dict(said)
    for one in said:
        others = {name: tables for name, tables in kept.items() if name != one}
        try:
            LabelField(size, [table for tables in others.values() for table in tables])
        except _Contradiction:
            kept = others
        except LatentError:
            # Too many states to sum.
            continue
    return list(kept)


def _cost(tables: Sequence[Table]) -> float:
    """Return an upper bound on the base-2 logarithm of the number of states of the joint table."""
    product = sum(log2(len(table.states)) for table in tables)
    # All tables share one label. Counting labels that only some of them share would take longer.
    bound = min(product, 1 + sum(len(table.labels) - 1 for table in tables))
    if bound <= log2(MOST_STATES):
        return bound
    return min(product, len({label for table in tables for label in table.labels}))


def _too_many(states: int, labels: int) -> LatentError:
    return LatentError(
        f"CategoryConstraints: the constraints connect {labels} labels with more than {states:,} "
        "allowed sets, which is too many to sum over. Remove some constraints, or put labels that "
        "exclude each other into one group. Labels that imply different labels of such a group "
        "need no group of their own."
    )


def _joined(tables: dict[int, Table]) -> tuple[Table, tuple[tuple[int, Tensor], ...]]:
    """Return the states that all tables allow, and the row of each table in each state."""
    labels: frozenset[int] = frozenset()
    # The labels of a state, with its row in each table that was joined.
    states: list[tuple[frozenset[int], tuple[int, ...]]] = [(frozenset(), ())]
    order = sorted(tables, key=lambda k: len(tables[k].states))
    for table in map(tables.__getitem__, order):
        shared = labels.intersection(table.labels)
        labels = labels.union(table.labels)
        by_shared: dict[frozenset[int], list[int]] = {}
        for row, state in enumerate(table.states):
            by_shared.setdefault(state & shared, []).append(row)
        joined = []
        for known, rows in states:
            for row in by_shared.get(known & shared, ()):
                joined.append((known | table.states[row], (*rows, row)))
                if len(joined) > MOST_STATES:
                    raise _too_many(MOST_STATES, len(labels))
        states = joined
    if not states:
        raise _Contradiction("CategoryConstraints allow no set of labels at all.")
    rows_of = torch.tensor([rows for _, rows in states]).T
    return Table(tuple(sorted(labels)), tuple(state for state, _ in states)), tuple(
        zip(order, rows_of)
    )


def _log_sums(values: Tensor, target: Tensor, rows: int) -> Tensor:
    """Return log Σ exp of the values ``(..., S)`` that have the same target, ``(..., rows)``."""
    # A state that two tables forbid gets the same value as one that a single table forbids. Values
    # below NEVER would make a sum 0, and the gradient of its logarithm NaN.
    values = values.clamp_min(NEVER)
    places = target.expand_as(values)
    shape = (*values.shape[:-1], rows)
    with torch.no_grad():
        largest = torch.full(shape, NEVER, dtype=values.dtype, device=values.device)
        largest = largest.scatter_reduce(-1, places, values, "amax")
    shifted = (values - largest.gather(-1, places)).exp()
    sums = torch.zeros(shape, dtype=values.dtype, device=values.device)
    return largest + sums.scatter_add(-1, places, shifted).log()
