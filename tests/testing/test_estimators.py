"""Each check of estimators detects a class with the corresponding mistake, and says where it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError
from spacy_latent.estimators.base import Draw, Estimator
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.estimators.score_function import ScoreFunction
from spacy_latent.estimators.sparsemap import SparseMAP
from spacy_latent.estimators.straight_through import GradientOf, StraightThrough
from spacy_latent.structures.base import Structure
from spacy_latent.structures.k_of_n import KOfN
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment
from spacy_latent.testing import Problem, check_estimator, estimator_checks

PROBLEMS = [
    Problem(KOfN(2), (5, 0, 4, 1), (6,)),
    Problem(OneToOneAlignment(), ((3, 3), (0, 2), (2, 3)), (4, 4)),
]


class Own(Estimator):
    """A correct estimator of an extension: the MAP structure with a straight-through gradient."""

    hard = True

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        z = structure.map(scores, lengths)
        if is_train:
            open_parts = structure.part_mask(scores, lengths) & ~scores.isneginf()
            z = GradientOf.apply(scores.masked_fill(~open_parts, 0.0), z)
        return Draw(z[None], scores.new_ones((1, len(scores))))


def test_an_estimator_of_a_few_lines_keeps_the_contract() -> None:
    check_estimator(Own())


class TakesAll(Marginals):
    def check(self, structure: Structure) -> None:
        return None


class Changed(Own):
    """A base of incorrect estimators, which change the scores or the result of Own."""

    def before(self, structure: Structure, scores: Tensor) -> Tensor:
        return scores

    def after(self, draw: Draw, scores: Tensor) -> Any:
        return draw

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Any:
        changed = self.before(structure, scores)
        return self.after(super().__call__(structure, changed, lengths, is_train), scores)


class WrongShape(Changed):
    def after(self, draw: Draw, scores: Tensor) -> Draw:
        return Draw(draw.z[0], draw.weights)


class Heavy(Changed):
    def after(self, draw: Draw, scores: Tensor) -> Draw:
        return Draw(draw.z, 2 * draw.weights)


class SaysHard(Marginals):
    hard = True


class Leaks(Own):
    """Passes on the gradient of padding, which should be 0."""

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        z = structure.map(scores, lengths)
        return Draw(
            GradientOf.apply(scores, z)[None] if is_train else z[None],
            scores.new_ones((1, len(scores))),
        )


class Detached(Changed):
    def before(self, structure: Structure, scores: Tensor) -> Tensor:
        return scores.detach()


class Noisy(Changed):
    def before(self, structure: Structure, scores: Tensor) -> Tensor:
        return scores + 3 * torch.randn_like(scores)


class Reseeds(Changed):
    def before(self, structure: Structure, scores: Tensor) -> Tensor:
        torch.manual_seed(0)
        return scores


class UndefinedPenalty(Changed):
    def after(self, draw: Draw, scores: Tensor) -> Draw:
        return replace(draw, penalty=torch.full((scores.shape[0],), torch.nan))


class Forbidden(Changed):
    def before(self, structure: Structure, scores: Tensor) -> Tensor:
        return scores.masked_fill(scores.isneginf(), 9.0)


class ReadsPadding(Changed):
    def before(self, structure: Structure, scores: Tensor) -> Tensor:
        return scores * scores.flatten(1).mean(1).view(-1, *[1] * structure.part_axes)


class Together(Changed):
    def before(self, structure: Structure, scores: Tensor) -> Tensor:
        return scores + 5 * scores[-1:]


class Single(Changed):
    def after(self, draw: Draw, scores: Tensor) -> Draw:
        return Draw(draw.z.float(), draw.weights)


class InPlace(Changed):
    def after(self, draw: Draw, scores: Tensor) -> Draw:
        with torch.no_grad():
            scores *= 0.5
        return draw


class AsksMore(StraightThrough):
    """Uses marginals in the backward pass, but declares that MAP is all it needs."""

    def needed(self) -> frozenset[str]:
        return frozenset({"map"})


class Counting(Changed, nn.Module):
    """Counts its calls in a buffer, which copies of the estimator inherit."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.register_buffer("calls", torch.zeros(1))

    def before(self, structure: Structure, scores: Tensor) -> Tensor:
        self.calls += 1
        return scores


class Itself(Own):
    def for_width(self, width: int) -> Own:  # type: ignore[override]
        return self


class Swallows(Changed):
    def before(self, structure: Structure, scores: Tensor) -> Tensor:
        return scores.nan_to_num(0.0)


class Doubled(Marginals):
    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        draw = super().__call__(structure, scores, lengths, is_train)
        return Draw(GradientOf.apply(2 * draw.z, draw.z), draw.weights)


class OfTheSupport(SparseMAP):
    """Has the gradient of the present support's weights, which is wrong if structures tie."""

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        found = structure.sparsemap(scores, lengths)
        weights = found.weights.view(*found.weights.shape, *[1] * structure.part_axes)
        return Draw.single((weights * found.atoms).sum(0))


class UnsureAtTies(Changed):
    def after(self, draw: Draw, scores: Tensor) -> Draw:
        tied = scores.flatten(1).amax() == scores.flatten(1)[0, 0]
        return Draw(torch.where(tied, 0.5 * draw.z, draw.z), draw.weights)


class Biased(ScoreFunction):
    def objective(self, losses: Tensor, *others: Any) -> Tensor:
        return super().objective(2 * losses, *others)


class DrawsAnother(ScoreFunction):
    """Draws all structures with equal probability, but inherits ``posterior = "scores"``."""

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        return super().__call__(structure, 0.0 * scores, lengths, is_train)


class NothingLearned(SparseMAP):
    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        draw = super().__call__(structure, scores, lengths, is_train)
        return Draw(draw.z, draw.weights.detach(), padding=draw.padding)


class Solver(SparseMAP):
    @property
    def solves(self) -> bool:
        return False


class NoDraw(Changed):
    def after(self, draw: Draw, scores: Tensor) -> Tensor:
        return draw.z


class HardButForRounding(Marginals):
    hard = True

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        z, soft = structure.map(scores, lengths), structure.marginals(scores, lengths)
        return Draw.single(z + soft - soft.detach())


WRONG: list[tuple[str, str, Estimator, dict]] = [
    ("pairs", r"check: OneToOneAlignment is taken, but lacks \['marginals'\]", TakesAll(), {}),
    ("draws", r"returned a Draw with z of shape \(4, 6\)", WrongShape(), {}),
    ("draws", "weights: KOfN, training, their sums", Heavy(), {}),
    ("draws", r"KOfN: training: .* NoDraw returned Tensor; expected a Draw", NoDraw(), {}),
    ("hardness", "hard: KOfN: given no structure of the set for the items", SaysHard(), {}),
    ("hardness", r"but for rounding: .* with_gradient_of\(soft, z\)", HardButForRounding(), {}),
    ("gradients", "gradients: KOfN, seed 0: not 0 at", Leaks(), {}),
    ("gradients", "the scores get none, and uses_scores is True", Detached(), {}),
    ("forbidden_parts", "z: KOfN: it is not 0 at parts whose score is -inf", Forbidden(), {}),
    ("prediction", "prediction: KOfN, twice", Noisy(), {}),
    ("prediction", "training: KOfN: it seeds", Reseeds(), {}),
    ("draws", "penalty: KOfN, training: given", UndefinedPenalty(), {}),
    ("padding_is_never_read", "z: KOfN, nan at what is no part|hold NaN", ReadsPadding(), {}),
    ("items_are_alone", r"z: \w+, item 0 alone", Together(), {}),
    ("precision", "z: KOfN: given torch.float32 for scores of torch.float64", Single(), {}),
    ("what_is_given_stays", "scores: KOfN, after the call", InPlace(), {}),
    ("needed", r"it asks for \['marginals'\]", AsksMore("marginals"), {}),
    ("needed", "solves: KOfN: it asks for sparsemap", Solver(), {}),
    ("posterior", "'scores' is said, and over 1000 draws the structure", DrawsAnother(), {}),
    ("posterior", "the weights have no gradient", NothingLearned(marginalize=True), {}),
    ("copies", "the state of a copy of one in use", Counting(), {}),
    ("copies", "for_width: given .* expected another Itself", Itself(), {}),
    ("errors", "scores: KOfN, NaN in item 2: given no error", Swallows(), {}),
    ("ties", "KOfN, equal scores: given no structure of the set", UnsureAtTies(), {}),
    ("ties", "finite differences: KOfN, equal scores", OfTheSupport(), {"gradient": "exact"}),
    ("the_gradient", "of the objective by finite differences", Doubled(), {"gradient": "exact"}),
    ("the_gradient", "of 10000 draws the mean is", Biased(), {"gradient": "unbiased"}),
]


@pytest.mark.parametrize("name, message, estimator, options", WRONG)
def test_a_mistake_is_found(name: str, message: str, estimator: Estimator, options: dict) -> None:
    checks = estimator_checks(estimator, PROBLEMS, **options)
    (check,) = [check for check in checks if check.name == name]
    with pytest.raises(AssertionError, match=message) as caught:
        check()
    assert estimator.name in str(caught.value)


def test_every_check_has_a_mistake_that_it_finds() -> None:
    checks = estimator_checks(Own(), PROBLEMS, gradient="exact")
    assert {check.name for check in checks} == {name for name, *_ in WRONG}


def test_problems_without_an_item_to_name_are_refused() -> None:
    for lengths in ((3, 2), (3, 2, 0)):
        with pytest.raises(LatentError, match="three"):
            Problem(KOfN(2), lengths, (4,))


def test_a_class_is_refused() -> None:
    with pytest.raises(LatentError, match="Own"):
        check_estimator(Own)  # type: ignore[arg-type]


def test_all_that_fails_is_said_at_once() -> None:
    with pytest.raises(AssertionError, match=r"(?s)draws.*errors"):
        check_estimator(BothWrong(), PROBLEMS)


class BothWrong(Heavy, Swallows):
    pass
