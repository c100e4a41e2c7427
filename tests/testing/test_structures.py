"""Each check of structures detects a class with the corresponding mistake, and says where it is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from spacy_latent.errors import LatentError, NotTractable
from spacy_latent.structures.base import Reparameterized, SparseSolution, Structure, TopK
from spacy_latent.structures.budget_tree import BudgetTree
from spacy_latent.structures.compiled import CompiledStructure
from spacy_latent.structures.items import decompose
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.monotone_alignment import MonotoneAlignment
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.results import ReparameterizedTrace, Traces
from spacy_latent.testing import check_structure, structure_checks
from tests.structures.contracts import budget_trees, chains, monotone, subsets


class Runs(Structure):
    """A correct structure, as in docs/extending.md: runs of two items, with a MAP oracle alone."""

    part_axes = 1

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        z = torch.zeros_like(scores)
        wrong = []
        for item, n in enumerate(lengths.tolist()):
            if n == 0:
                continue
            sums = scores[item, :n].unfold(0, min(2, n), 1).sum(1)
            start = int(sums.argmax())
            z[item, start : start + 2] = 1
            z[item, n:] = 0
            if sums[start].isneginf():
                wrong.append(item)
        if wrong:
            self.raise_infeasible(wrong)
        return z


def runs(n: int) -> list[np.ndarray]:
    starts = range(max(n - 1, 1))
    return [np.isin(np.arange(n), [start, start + 1]).astype(float) for start in starts]


def test_a_structure_that_gives_only_its_best_member_keeps_the_contract() -> None:
    check_structure(Runs(), runs, (5, 0, 4, 1))


class WithTable(Runs):
    def __init__(self) -> None:
        self.table = torch.zeros(3)


def test_a_structure_may_hold_a_tensor() -> None:
    check_structure(WithTable(), runs, (5, 0, 4, 1))
    assert WithTable().covers(WithTable())
    other = WithTable()
    other.table[0] = 1.0
    assert WithTable().covers(other) is None


class SecondBest(Runs):
    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super()._map(-scores.masked_fill(scores.isneginf(), 0.0), lengths)


class Clamped(Runs):
    """Clamps scores, so that all large scores tie."""

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        lowest = scores.masked_fill(scores.isneginf(), 0.0).clamp(-1e6, 0.0)
        return super()._map(torch.where(scores.isneginf(), scores, lowest), lengths)


class Reaching(Runs):
    """Chooses an item of the padding."""

    def map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        z = super().map(scores, lengths)
        z[:, -1] = 1.0
        return z


class InTurns(Runs):
    """Ties go to the first words in one call, and to the last words in the next one."""

    calls = 0

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        InTurns.calls += 1
        places = torch.arange(scores.shape[1], dtype=scores.dtype) / 100
        preferred = places if InTurns.calls % 2 else -places
        return super()._map(scores + preferred * (scores == 0), lengths)


class ReadsPadding(Runs):
    def masked(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.check(scores.nan_to_num(0.0), lengths)

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super()._map(scores + scores.sum() * torch.arange(scores.shape[1]), lengths)


class ReadsOthers(Runs):
    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        safe = scores.masked_fill(scores.isneginf(), 0.0)
        return super()._map(scores + 9 * safe[-1], lengths)


class Overwrites(Runs):
    def map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        result = super().map(scores, lengths)
        scores += 1.0
        return result


class FailsOnViews(Runs):
    def map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        scores.view(-1)
        return super().map(scores, lengths)


class NamesNoItem(Runs):
    def raise_infeasible(self, items: list[int]) -> None:
        super().raise_infeasible([0])


class Pickled(Runs):
    def __init__(self) -> None:
        self.width = lambda: 2


class TooManyAxes(Runs):
    part_axes = 2


class NamesNoOperation(KOfN):
    tractable = frozenset({"log_partition", "marginal"})


class NamesAsList(Runs):
    tractable = ["log_partition", "marginals"]  # type: ignore[assignment] # noqa: RUF012


class Exclusive(Runs):
    exclusive_axes = (0,)


class Fewer(Runs):
    """Has a mask of parts without the last item."""

    def part_mask(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super().part_mask(scores, lengths - 1)


class HoldsAll(Runs):
    def contains(self, z: Tensor, lengths: Tensor) -> Tensor:
        return torch.ones(len(z), dtype=torch.bool)


class Misspelt(Runs):
    def decode(self, z: np.ndarray, length: int) -> np.ndarray:
        return super().decode(z, length)[1:]


class Repeats(Runs):
    def top_k(self, scores: Tensor, lengths: Tensor, k: int) -> TopK:
        best = super().top_k(scores, lengths, k)
        return TopK(best.z[:1].expand_as(best.z), best.scores)


class Shuffled(Runs):
    """Returns the right k structures, in another order than their scores."""

    def top_k(self, scores: Tensor, lengths: Tensor, k: int) -> TopK:
        best = super().top_k(scores, lengths, k)
        z = best.z.clone()
        for item, count in enumerate(best.scores.isfinite().sum(0).tolist()):
            z[:count, item] = z[:count, item].flip(0)
        return TopK(z, best.scores)


class Approximate(Runs):
    def sparsemap(self, scores: Tensor, *arguments: Any) -> SparseSolution:
        return super().sparsemap(scores, arguments[0], 1)


class Doubled(Runs):
    """The gradient of SparseMAP is twice too large."""

    def sparsemap(self, scores: Tensor, *arguments: Any) -> SparseSolution:
        twice = torch.where(scores.isfinite(), 2 * scores - scores.detach(), scores)
        return super().sparsemap(twice, *arguments)


class OfTheSupport(LinearChain):
    """SparseMAP has the gradient of the present support's weights, which is wrong at ties."""

    def sparsemap(self, scores: Tensor, *arguments: Any) -> SparseSolution:
        found = super().sparsemap(scores, *arguments)
        weights = found.weights.view(*found.weights.shape, *[1] * self.part_axes)
        mean = (weights * found.atoms).sum(0)
        return SparseSolution(mean, found.weights, found.gap, lambda: found.atoms)


class RepeatsTies(Runs):
    """Repeats a structure in place of another one with the same score."""

    def top_k(self, scores: Tensor, lengths: Tensor, k: int) -> TopK:
        best = super().top_k(scores, lengths, k)
        same = best.scores.diff(dim=0) == 0
        z = best.z.clone()
        for place, item in same.nonzero().tolist():
            z[place + 1, item] = z[place, item]
        return TopK(z, best.scores)


class BesideTies(Runs):
    """Returns two separate items, which are no run, if all scores are equal."""

    def map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        z = super().map(scores, lengths)
        for item, n in enumerate(lengths.tolist()):
            if n > 2 and scores[item, 0] == scores[item, 2]:
                z[item] = 0.0
                z[item, 0] = z[item, 2] = 1.0
        return z


class Silent(Runs):
    """Refuses an operation with an error that has no message."""

    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        raise NotImplementedError


class Incomparable(KOfN):
    def __init__(self) -> None:
        super().__init__(2, exactly=False)
        self.incomparable = True


class Shifted(KOfN):
    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super()._log_partition(scores, lengths) + 1e-6


class NoGradient(KOfN):
    def _log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super()._log_partition(scores.detach(), lengths)


class Biased(KOfN):
    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super()._marginals(1.001 * scores, lengths)


class Drowned(KOfN):
    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return CompiledStructure._marginals(self, scores, lengths)


class Unrecorded(KOfN):
    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        found = super()._marginals(scores, lengths)
        return torch.zeros_like(found) if torch.is_inference_mode_enabled() else found


class WrongHessian(KOfN):
    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super()._marginals(1.001 * scores - 0.001 * scores.detach(), lengths)


class Rounded(KOfN):
    def entropy(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super().entropy(scores.float(), lengths).to(scores.dtype)


class Widened(KOfN):
    def marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super().marginals(scores, lengths).double()


class SplitAfterRounding(KOfN):
    """Decomposes a mean that was rounded to half precision, so that atoms are not in the set."""

    def sparsemap(self, scores: Tensor, *arguments: Any) -> SparseSolution:
        found = super().sparsemap(scores, *arguments)
        halved = scores.dtype in (torch.float16, torch.bfloat16)
        return decompose(found.mean.double()).cast(scores.dtype) if halved else found


class Reversed(KOfN):
    def kl(self, scores: Tensor, other: Tensor, lengths: Tensor) -> Tensor:
        return super().kl(other, scores, lengths)


class Unnormalised(KOfN):
    def log_prob(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        return self.log_potential(z, scores, lengths)


class Miscounts(KOfN):
    def log_count(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super().log_count(torch.zeros_like(scores), lengths)


class Uniform(KOfN):
    def _sample(self, scores: Tensor, *arguments: Any) -> Tensor:
        return super()._sample(scores.clamp(-0.0, 0.0), *arguments)


class Heedless(KOfN):
    """Ignores the generator."""

    def _sample(self, scores: Tensor, lengths: Tensor, number: int, generator: Any) -> Tensor:
        return super()._sample(scores, lengths, number, None)


class Reseeded(KOfN):
    """Starts from the same seed in each call without a generator."""

    def _sample(self, scores: Tensor, lengths: Tensor, number: int, generator: Any) -> Tensor:
        own = generator or torch.Generator().manual_seed(torch.initial_seed() % 2**31)
        return super()._sample(scores, lengths, number, own)


class DisturbsOthers(KOfN):
    """Draws a number from torch's default generator, although another generator is given."""

    def _sample(self, *arguments: Any) -> Tensor:
        torch.rand(())
        return super()._sample(*arguments)


class SameForAllItems(KOfN):
    """Draws all items of a batch with the same random numbers."""

    def _sample(self, scores: Tensor, lengths: Tensor, number: int, generator: Any) -> Tensor:
        seed = int(torch.randint(2**31, (), generator=generator))
        alone = [
            super(SameForAllItems, self)._sample(
                scores[b : b + 1], lengths[b : b + 1], number, torch.Generator().manual_seed(seed)
            )
            for b in range(len(scores))
        ]
        return torch.cat([scores.new_zeros(number, 0, scores.shape[1]), *alone], 1)


class InPairs(KOfN):
    """Returns each draw twice."""

    def _sample(self, scores: Tensor, lengths: Tensor, number: int, generator: Any) -> Tensor:
        drawn = super()._sample(scores, lengths, (number + 1) // 2, generator)
        return drawn.repeat_interleave(2, 0)[:number]


class Attached(KOfN):
    """Samples carry the gradient of the marginals."""

    def sample(self, scores: Tensor, lengths: Tensor, *arguments: Any) -> Tensor:
        soft = self.marginals(scores, lengths)
        drawn: Tensor = super().sample(scores, lengths, *arguments) + (soft - soft.detach())
        return drawn


class Scaled(KOfN):
    """The gradient of log_potential is too large by one percent."""

    def log_potential(self, z: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
        more = 1.01 * scores - 0.01 * scores.detach()
        return super().log_potential(z, torch.where(scores.isfinite(), more, scores), lengths)


class OnceDifferentiable(KOfN):
    """The gradient of its log-partition is a constant, without a gradient of its own."""

    def log_partition(self, scores: Tensor, lengths: Tensor) -> Tensor:
        total = super().log_partition(scores, lengths)
        if not scores.requires_grad:
            return total
        known = torch.where(self.marginals(scores.detach(), lengths) != 0, scores, 0.0)
        linear = (known * self.marginals(scores.detach(), lengths)).sum(1)
        return total.detach() + linear - linear.detach()


class Remembers(Runs):
    """Returns its last result again if the same tensor is given."""

    last: tuple[Tensor | None, Tensor | None] = (None, None)

    def map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        if Remembers.last[0] is not scores:
            Remembers.last = scores, super().map(scores, lengths)
        found = Remembers.last[1]
        assert found is not None
        return found


class Reuses(Runs):
    """Writes all results of the same shape into one tensor."""

    results: ClassVar[dict[Any, Tensor]] = {}

    def map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        found = super().map(scores, lengths)
        kept = Reuses.results.setdefault((found.shape, found.dtype), torch.empty_like(found))
        return kept.copy_(found)


class Overflows(KOfN):
    """Overflows like a sum of exponentials, except in double precision."""

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        found = super()._marginals(scores, lengths)
        exact = scores.dtype == torch.float64
        return found if exact else torch.where(scores.exp().isposinf(), torch.inf, found)


class WrongInSingle(MonotoneAlignment):
    """Smoothed values are wrong in single precision alone."""

    def smoothed_by_kernels(self, scores: Tensor, *arguments: Any) -> Tensor:
        factor = 1.01 if scores.dtype == torch.float32 else 1.0
        return factor * super().smoothed_by_kernels(scores, *arguments)


class NotDrawnAgain(OneOfN):
    def _reparameterize(self, scores: Tensor, lengths: Tensor) -> Reparameterized:
        found = super()._reparameterize(scores, lengths)
        redrawn = torch.where(found.z > 0, found.redrawn + 1.0, found.redrawn)
        return Reparameterized(found.z, found.noisy, redrawn)


class Unsmooth(MonotoneAlignment):
    def smoothed_maximum(self, scores: Tensor, lengths: Tensor, maximum: Any) -> Tensor:
        return super().smoothed_maximum(2 * scores, lengths, maximum)


class BelowTheBest(BudgetTree):
    """Returns the relaxation for the negated scores."""

    def sparsemap(self, scores: Tensor, *arguments: Any) -> SparseSolution:
        return super().sparsemap(-scores, *arguments)


class Deaf(LinearChain):
    """Accepts NaN and infeasible scores without an error."""

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super()._map(scores.nan_to_num(0.0), lengths)


class Hopeful(Runs):
    """Returns a result if the scores of all structures are -inf."""

    def _map(self, scores: Tensor, lengths: Tensor) -> Tensor:
        return super()._map(scores.clamp_min(-1e9), lengths)


class WrongTraces(KOfN):
    """Subtracts positive scores from the log-probabilities of traces."""

    def _sample_trace(self, scores: Tensor, *arguments: Any) -> Traces:
        found = super()._sample_trace(scores, *arguments)
        high = scores.nan_to_num(0.0, neginf=0.0).clamp_min(0.0).sum(1)
        return Traces(found.z, found.log_probs - high)


class TracesNotDrawnAgain(KOfN):
    def _reparameterize_trace(self, scores: Tensor, lengths: Tensor) -> ReparameterizedTrace:
        found = super()._reparameterize_trace(scores, lengths)
        return replace(found, redrawn=found.redrawn + found.z)


class TracesThatHardlyMove(KOfN):
    """The gradient of the redrawn values is half as large as it should be."""

    def _reparameterize_trace(self, scores: Tensor, lengths: Tensor) -> ReparameterizedTrace:
        found = super()._reparameterize_trace(scores, lengths)
        return replace(found, redrawn=(found.redrawn + found.redrawn.detach()) / 2)


class Undefined(KOfN):
    """The gradient of its marginals is NaN."""

    def _marginals(self, scores: Tensor, lengths: Tensor) -> Tensor:
        mean = super()._marginals(scores, lengths)
        return torch.where(mean == 0, (mean * 0).log().exp() * mean, mean)


WRONG: list[tuple[str, str, Structure]] = [
    ("map", "map: scores of scale", SecondBest()),
    ("map", "in the padding", Reaching()),
    ("determinism", "map: ties", InTurns()),
    ("padding_is_never_read", "map: ", ReadsPadding()),
    ("items_are_alone", "map: item 0 .* alone", ReadsOthers()),
    ("layout", "map: scores after the call", Overwrites()),
    ("layout", "map: scores with other strides: raised RuntimeError", FailsOnViews()),
    ("errors", r"the error names the items \[0\]|does not name '2'", NamesNoItem()),
    ("feasibility", "map: mask .* of item 0", Hopeful()),
    ("declarations", "pickle", Pickled()),
    ("declarations", "part_axes: given 2", TooManyAxes()),
    ("declarations", "tractable: given .*'marginal'", NamesNoOperation(2)),
    ("declarations", r"tractable: given \[", NamesAsList()),
    ("declarations", "exclusive_axes: item 0", Exclusive()),
    ("declarations", "incomparable: item 0", Incomparable()),
    ("declarations", "part_mask: item 0", Fewer()),
    ("contains", "given True, expected False", HoldsAll()),
    ("encode_and_decode", "encode: item 0", Misspelt()),
    ("top_k", "expected different ones", Repeats()),
    ("top_k", "beside the structures", Shuffled()),
    ("large_scores", r"several scores of 1e\+15", Clamped()),
    ("sparsemap", "expected none above the mean|gap", Approximate()),
    ("sparsemap", "finite differences", Doubled()),
    ("sparsemap", r"torch\.b?float16, item \d .*: an atom is no structure", SplitAfterRounding(2)),
    ("ties", "the gradient of sparsemap by finite differences: equal scores", OfTheSupport()),
    ("ties", "top_k: equal scores, .*expected different ones", RepeatsTies()),
    ("ties", "map: equal scores, item 0 .* which is no structure", BesideTies()),
    ("refusals", "log_partition: .* NotImplementedError", Silent()),
    (
        "log_partition",
        "log_partition: .*given .* expected .* difference is (1e-06|9.99)",
        Shifted(2),
    ),
    ("log_partition", "has no gradient", NoGradient(2)),
    ("marginals", "marginals: scores of scale 0.001, item 0", Biased(2)),
    ("marginals", "the gradient of marginals", WrongHessian(2)),
    ("masked_scores", r"marginals: scores of -1e\+\d+ at a share", Drowned(2)),
    ("inference_mode", "marginals: inference mode", Unrecorded(2)),
    (
        "gradients_by_differences",
        r"gradient of marginals by finite differences: number 0 of the result by free score 0: "
        r"given \S+, expected \S+; \d+ of \d+ are wrong\.$",
        WrongHessian(2),
    ),
    (
        "gradients_by_differences",
        r"number \d+ of the result by free score \d+: given nan, as of -inf less -inf",
        Undefined(2),
    ),
    ("marginals", r"the gradient of marginals: .*: given NaN at \[\[.*logaddexp", Undefined(2)),
    ("entropy", "entropy: scores of scale 1, item", Rounded(2)),
    ("precision", "marginals: given torch.float64 for scores of torch.float32", Widened(2)),
    ("cross_entropy_and_kl", "kl: item 0", Reversed(2)),
    ("log_prob", "log_prob: scores of scale", Unnormalised(2)),
    ("log_count", "log_count: with -inf", Miscounts(2)),
    ("samples", "has the frequency .* expected", Uniform(2)),
    ("samples", "the same generator", Heedless(2)),
    ("samples", "two calls without a generator give the same samples", Reseeded(2)),
    ("samples", "changed the state of torch's default generator", DisturbsOthers(2)),
    ("samples", "the same as that of an item of the same scores", SameForAllItems(2)),
    ("samples", "the same as that of the next draw", InPairs(2)),
    ("samples", "it has a gradient", Attached(2)),
    ("log_potential", "the gradient of log_potential: scores of scale 1", Scaled(2)),
    ("log_partition", "the gradient of the gradient of log_partition", OnceDifferentiable(2)),
    ("determinism", "map: scores that were written to in place", Remembers()),
    ("determinism", "map: a result after calls with other scores", Reuses()),
    ("precision", "marginals: scores of scale 300 in float32", Overflows(2)),
    ("precision", "smoothed_value: scores of torch.float32", WrongInSingle()),
    ("traces", "the mean gradient of log_probs", WrongTraces(2)),
    ("reparameterize", "the means of noisy and redrawn", NotDrawnAgain()),
    ("traces_drawn_again", "the means of noisy and redrawn", TracesNotDrawnAgain(2)),
    ("traces_drawn_again", "mean gradient of redrawn", TracesThatHardlyMove(2)),
    ("smoothed", "smoothed, entropic", Unsmooth()),
    ("sparsemap", "the objective is|finite differences", BelowTheBest(1)),
    ("errors", "map: nan in item 2, part .*: given no error", Deaf()),
]


def checks_of(structure: Structure) -> Iterator[Any]:
    if isinstance(structure, OneOfN):
        return structure_checks(structure, subsets(1, 1))
    if isinstance(structure, KOfN):
        return structure_checks(structure, subsets(2 if structure.exactly else 0, 2))
    if isinstance(structure, MonotoneAlignment):
        return structure_checks(structure, monotone("dtw", None), ((3, 3), (0, 2), (2, 3)))
    if isinstance(structure, BudgetTree):
        return structure_checks(structure, budget_trees(False, 1), (3, 0, 2))
    if isinstance(structure, LinearChain):
        return structure_checks(structure, chains(2))
    return structure_checks(structure, runs, (5, 0, 4, 1))


@pytest.mark.parametrize("name, message, structure", WRONG)
def test_a_mistake_is_found(name: str, message: str, structure: Structure) -> None:
    (check,) = [check for check in checks_of(structure) if check.name == name]
    with pytest.raises(AssertionError, match=message) as caught:
        check()
    assert type(structure).__name__ in str(caught.value)


def test_every_check_has_a_mistake_that_it_finds() -> None:
    assert {check.name for check in checks_of(Runs())} == {name for name, _, _ in WRONG}


def test_all_that_fails_is_said_at_once() -> None:
    with pytest.raises(AssertionError, match=r"(?s)contains.*top_k"):
        check_structure(BothWrong(), runs, (5, 0, 4, 1))


class BothWrong(HoldsAll, Repeats):
    pass


class Crashes(Runs):
    def covers(self, other: Structure) -> bool | None:
        raise KeyError("width")


def test_a_check_that_breaks_down_hides_no_other() -> None:
    with pytest.raises(AssertionError, match=r"declarations.*'width'"):
        check_structure(Crashes(), runs, (3, 0, 1))


class Choosy(Runs):
    def top_k(self, scores: Tensor, lengths: Tensor, k: int) -> TopK:
        raise NotTractable(self.name, "top_k", "map")


def test_what_is_promised_may_not_be_refused() -> None:
    with pytest.raises(AssertionError, match=r"top_k.*NotTractable"):
        check_structure(Choosy(), runs, (5, 0, 4, 1))


def test_lists_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(LatentError, match="0 structures"):
        next(structure_checks(Runs(), lambda n: [], (2, 1, 0)))
    with pytest.raises(LatentError, match="two"):
        next(structure_checks(Runs(), runs, (2,)))
    for members, message in (
        (lambda n: [*runs(n), runs(n)[0]], r"members\(2\).*0 and 1"),
        (lambda n: [z / 2 for z in runs(n)], r"members\(2\).*0\.5"),
        (lambda n: [np.ones(n), np.ones(n + 1)], r"\(2,\).*\(3,\)"),
    ):
        with pytest.raises(LatentError, match=message):
            next(structure_checks(Runs(), members, (2, 1, 0)))


def test_a_class_is_refused() -> None:
    with pytest.raises(LatentError, match="Runs"):
        check_structure(Runs, runs)  # type: ignore[arg-type]


def test_no_test_runner_is_needed() -> None:
    code = "import sys, spacy_latent.testing; assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
