"""Loopy belief propagation: approximate marginals of structures and logic factors together.

The distribution is p(z) ∝ exp(z·s) over the members that satisfy all factors. Each factor sends a
message to each of its parts: the log-odds of the part by this factor, less the message that
the factor received. It is exact if the factors form a tree, so that any two share at most one part
and there are no cycles. Otherwise it is an approximation, whose fixed points are stationary points
of the Bethe free energy (Yedidia et al. 2001).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from spacy_latent.errors import InfeasibleError
from spacy_latent.structures.base import Structure
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.logic_factors import EXACTLY, OR_OUT, Encoded
from spacy_latent.structures.lp_sparsemap import OR_LOOSEN

# Probabilities of factors are kept this far from 0 and 1, where log-odds lose their digits.
SMALLEST = 1e-12
# Log-odds of a part that is certain for a logic factor, such as the negation of a forbidden one.
CERTAIN = 1e6
# Weight of the last message in the next one, against oscillation.
DAMPING = 0.5
# Rounds end if no message changes by more.
AT_REST = 1e-10


@dataclass
class Beliefs:
    """Result of belief propagation for B items.

    Attributes:
        marginals: ``(B, *parts)``, of the first structure under all messages. They are a mixture of
            its members also before messages converge.
        log_partition: ``(B,)``, the negative Bethe free energy. It approximates
            log Σ_z exp(z·s), and is no bound.
        residual: ``(B,)``, the largest difference between probabilities of one part by two factors.
            It is 0 at a fixed point.
    """

    marginals: Tensor
    log_partition: Tensor
    residual: Tensor


@dataclass
class _Group:
    """Logic factors of one kind and limit, padded to one width.

    Attributes:
        parts: ``(F, W)`` int64, numbers in the flattened batch.
        flips: ``(F, W)`` bool, the negated parts.
        inside: ``(F, W)`` bool, false at padding.
        item: ``(F,)`` int64, the item of each factor.
    """

    kind: int
    limit: int
    parts: Tensor
    flips: Tensor
    inside: Tensor
    item: Tensor

    def literals(self, odds: Tensor, allowed: Tensor) -> Tensor:
        """Return the log-odds of the literals; the literals of forbidden parts are certain."""
        signed = torch.where(self.flips, -odds, odds)
        certain = torch.where(self.flips, CERTAIN, -CERTAIN).to(odds)
        return torch.where(allowed & self.inside, signed, certain)

    @property
    def subsets(self) -> KOfN:
        return KOfN(self.limit, exactly=self.kind == EXACTLY)

    def probabilities(self, literals: Tensor) -> Tensor:
        """Return the probability of each literal, for factors that count."""
        if self.limit == 0:
            return torch.zeros_like(literals)
        return self.subsets.marginals(literals, self.inside.sum(1))

    def messages(self, odds: Tensor, allowed: Tensor) -> Tensor:
        """Return messages ``(F, W)`` for the log-odds of parts without this factor."""
        literals = self.literals(odds, allowed)
        if self.kind == OR_OUT:
            message = self._or_messages(literals)
        else:
            message = log_odds(self.probabilities(literals)) - literals
        return torch.where(allowed & self.inside, torch.where(self.flips, -message, message), 0.0)

    def log_partition(self, odds: Tensor, allowed: Tensor) -> Tensor:
        """Return the log of each factor's sum over its members, ``(F,)``."""
        literals = self.literals(odds, allowed)
        if self.kind == OR_OUT:
            output, inputs = self._output(literals)
            own = softplus(output + log_expm1(inputs.sum(1)))
        elif self.limit == 0:
            own = literals.new_zeros(len(literals))
        else:
            own = self.subsets.log_partition(literals, self.inside.sum(1))
        # A negated part counts if its literal is 0.
        return own - torch.where(self.flips & self.inside, literals, 0.0).sum(1)

    def certain(self, off: Tensor, on: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return which literals are then certain, and which factors have no member.

        Args:
            off, on: the parts that are certainly 0, and 1.

        Returns:
            Literals ``(F, W)`` that are certainly false, and true; factors ``(F,)``.
        """
        false = torch.where(self.flips, on[self.parts], off[self.parts]) & self.inside
        true = torch.where(self.flips, off[self.parts], on[self.parts]) & self.inside
        open_ = self.inside & ~false
        if self.kind != OR_OUT:
            held, possible = true.sum(1), open_.sum(1)
            none = held > self.limit
            more_false = (held >= self.limit)[:, None] & self.inside & ~true
            more_true = torch.zeros_like(true)
            if self.kind == EXACTLY:
                none = none | (possible < self.limit)
                more_true = (possible <= self.limit)[:, None] & open_
            return false | more_false, true | more_true, none
        last = self.inside.sum(1, keepdim=True) - 1
        place = torch.arange(self.parts.shape[1], device="cpu")
        output, inputs = self.inside & (place == last), self.inside & (place < last)
        some, left = (true & inputs).any(1, keepdim=True), (open_ & inputs).sum(1, keepdim=True)
        holds, fails = true.gather(1, last), false.gather(1, last)
        false = false | (fails & inputs) | ((left == 0) & output)
        true = true | (some & output) | (holds & (left == 1) & open_ & inputs)
        return false, true, (false & true).any(1)

    def _output(self, literals: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-odds of the output, and log(1 + odds) of each input, 0 elsewhere."""
        last = self.inside.sum(1, keepdim=True) - 1
        inputs = self.inside & (torch.arange(literals.shape[1], device="cpu") < last)
        return literals.gather(1, last)[:, 0], torch.where(inputs, softplus(literals), 0.0)

    def _or_messages(self, literals: Tensor) -> Tensor:
        output, inputs = self._output(literals)
        total = inputs.sum(1, keepdim=True)
        # Sums without one input; a difference of sums would lose the small ones.
        itself = torch.eye(inputs.shape[1], dtype=torch.bool, device="cpu")
        others = inputs[:, None].masked_fill(itself, 0.0)
        rest = others.sum(2)
        message = output[:, None] + rest - softplus(output[:, None] + log_expm1(rest))
        last = self.inside.sum(1, keepdim=True) - 1
        return message.scatter(1, last, log_expm1(total))


def log_odds(probabilities: Tensor) -> Tensor:
    """Return the log-odds of probabilities, finite for 0 and 1 as well."""
    return probabilities.clamp(SMALLEST, 1 - SMALLEST).logit()


def log_expm1(x: Tensor) -> Tensor:
    """Return log(e^x − 1) of non-negative numbers, large and negative at 0."""
    positive = x.clamp_min(1e-300)
    return positive + (-torch.expm1(-positive)).log()


def grouped(factors: Sequence[Sequence[Encoded]], parts: int) -> list[_Group]:
    """Return the logic factors of all items, in groups of one kind and limit.

    Args:
        factors: factors of each item, with numbers of its own parts.
        parts: number of scores of an item.
    """
    found: dict[tuple[int, int], list[tuple[int, Encoded]]] = {}
    for item, own in enumerate(factors):
        for factor in own:
            if factor.parts:
                found.setdefault((factor.kind, int(factor.limit)), []).append((item, factor))
    groups = []
    for (kind, limit), members in found.items():
        shape = len(members), max(len(factor.parts) for _, factor in members)
        places = torch.zeros(shape, dtype=torch.int64, device="cpu")
        flips, inside = (torch.zeros(shape, dtype=torch.bool, device="cpu") for _ in range(2))
        for row, (item, factor) in enumerate(members):
            count = len(factor.parts)
            places[row, :count] = torch.tensor(factor.parts, device="cpu") + item * parts
            flips[row, :count] = torch.tensor(factor.flips, device="cpu")
            inside[row, :count] = True
        items = torch.tensor([item for item, _ in members], device="cpu")
        groups.append(_Group(kind, limit, places, flips, inside, items))
    return groups


def contradicted(
    structures: Sequence[Structure],
    factors: Sequence[Sequence[Encoded]],
    groups: Sequence[_Group],
    scores: Tensor,
    lengths: Tensor,
) -> list[int]:
    """Return items whose certain parts contradict a factor or a structure.

    Forbidden parts are certainly 0, and other parts are by a factor whose other parts are certain.
    A structure is then asked for its best member without parts that are certainly 0.

    For the arguments see :func:`propagate` and :func:`grouped`.
    """
    found = {
        item
        for item, own in enumerate(factors)
        for factor in own
        if not factor.parts and (factor.kind == EXACTLY or factor.limit < 0)
    }
    forbidden = scores.detach().isneginf().flatten()
    off, on = forbidden.clone(), torch.zeros_like(forbidden)
    while True:
        known = int(off.sum() + on.sum())
        for group in groups:
            false, true, none = group.certain(off, on)
            found.update(group.item[none].tolist())
            off[group.parts[torch.where(group.flips, true, false)]] = True
            on[group.parts[torch.where(group.flips, false, true)]] = True
        if int(off.sum() + on.sum()) == known:
            break
    both = (off & on).view_as(scores).flatten(1).any(1)
    found.update(both.nonzero().flatten().tolist())
    if bool((off & ~forbidden).any()):
        left = scores.detach().masked_fill(off.view_as(scores), -torch.inf)
        for structure in structures:
            try:
                structure.map(left, lengths)
            except InfeasibleError as error:
                if not error.items:
                    raise
                found.update(error.items)
    return sorted(found)


def propagate(
    structures: Sequence[Structure],
    factors: Sequence[Sequence[Encoded]],
    scores: Tensor,
    lengths: Tensor,
    iterations: int,
    name: str,
) -> Beliefs:
    """Return the beliefs after messages of all factors at once; differentiable.

    The gradient goes back through the iterations.

    Args:
        structures: each with marginals and a log-partition.
        factors: logic factors of each item.
        scores: ``(B, *parts)`` float64, −inf at entries that are not a part of every structure.
        name: name of the set, for errors.

    Raises:
        InfeasibleError: see :func:`contradicted`.
    """
    allowed = ~scores.detach().isneginf()
    own = torch.where(allowed, scores, 0.0).flatten()
    flat = allowed.flatten()
    groups = grouped(factors, scores[0].numel() if len(scores) else 0)
    impossible = contradicted(structures, factors, groups, scores, lengths)
    if impossible:
        raise InfeasibleError(name, impossible, OR_LOOSEN)
    of_structures = [torch.zeros_like(own) for _ in structures]
    of_groups = [own.new_zeros(group.parts.shape) for group in groups]

    def given(odds: Tensor) -> Tensor:
        return torch.where(flat, odds, -torch.inf).view_as(scores)

    def total() -> Tensor:
        result = torch.stack([own, *of_structures]).sum(0)
        for group, message in zip(groups, of_groups):
            result = result.index_add(0, group.parts.flatten(), message.flatten())
        return result

    def damp(messages: list[Tensor], number: int, message: Tensor) -> None:
        change = (1 - DAMPING) * (message - messages[number])
        messages[number] = messages[number] + change
        changes.append(change.flatten())

    for _ in range(iterations):
        odds, changes = total(), [own.new_zeros(1)]
        for number, structure in enumerate(structures):
            left = odds - of_structures[number]
            message = log_odds(structure.marginals(given(left), lengths).flatten()) - left
            damp(of_structures, number, torch.where(flat, message, 0.0))
        for number, group in enumerate(groups):
            left = odds[group.parts] - of_groups[number]
            damp(of_groups, number, group.messages(left, flat[group.parts]))
        if float(torch.cat(changes).detach().abs().max()) <= AT_REST:
            break
    return _beliefs(structures, groups, given, total(), (of_structures, of_groups), lengths)


def _beliefs(
    structures: Sequence[Structure],
    groups: Sequence[_Group],
    given: Callable[[Tensor], Tensor],
    odds: Tensor,
    messages: tuple[Sequence[Tensor], Sequence[Tensor]],
    lengths: Tensor,
) -> Beliefs:
    """Return the beliefs for these messages.

    Args:
        given: function from flat log-odds to scores of structures.
        odds: flat log-odds of the parts by all messages.
        messages: of structures, and of groups.
    """
    batch = len(lengths)
    whole = given(odds.detach())
    flat = ~whole.flatten().isneginf()
    item = torch.arange(batch, device="cpu").repeat_interleave(whole[0].numel() if batch else 0)
    of_parts = torch.where(flat, odds.sigmoid(), 0.0)
    found, log_partition = [], odds.new_zeros(batch)
    degree = torch.full_like(odds, float(len(structures)))
    residual = odds.new_zeros(batch)
    for structure, message in zip(structures, messages[0]):
        left = given(odds - message)
        found.append(structure.marginals(left, lengths))
        log_partition = log_partition + structure.log_partition(left, lengths)
        apart = (found[-1].flatten() - of_parts).detach().abs()
        residual = residual.scatter_reduce(0, item, apart, "amax")
    for group, message in zip(groups, messages[1]):
        inside = flat[group.parts]
        left = odds[group.parts] - message
        sums = group.log_partition(left, inside)
        log_partition = log_partition.index_add(0, group.item, sums)
        degree = degree.index_add(0, group.parts.flatten(), group.inside.flatten().to(degree))
        after = torch.sigmoid(left + group.messages(left, inside))
        apart = torch.where(inside & group.inside, after - of_parts[group.parts], 0.0)
        apart = apart.detach().abs().amax(1)
        residual = residual.scatter_reduce(0, group.item, apart, "amax")
    shared = torch.where(flat, (1 - degree) * softplus(odds), 0.0)
    return Beliefs(found[0], log_partition.index_add(0, item, shared), residual)
