"""Scores, results and lists of structures that all checks of a structure use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spacy_latent.errors import NotTractable
from spacy_latent.structures.base import Structure
from spacy_latent.structures.copies import repeat
from spacy_latent.testing.listing import Listing, scored
from spacy_latent.testing.reports import Report

# Share of the parts that masks forbid.
FORBIDDEN = 0.3
# Standard errors by which frequencies may differ from probabilities, and a number of draws that is
# added to them.
STANDARD_ERRORS, DRAWS_BESIDE = 5.0, 3.0


@dataclass
class StructureChecks:
    """Base of the checks of a structure: each method ``check_*`` is one check."""

    structure: Structure
    listing: Listing
    encode_options: dict[str, object]
    scales: tuple[float, ...]
    tolerance: float
    num_samples: int
    seed: int

    def __post_init__(self) -> None:
        self.report = Report(repr(self.structure))
        self.lengths = self.listing.lengths

    def generator(self, offset: int = 0) -> torch.Generator:
        """Return a generator on the CPU, seeded by the checks and the offset."""
        return torch.Generator().manual_seed(self.seed + offset)

    def random(self, offset: int, *shape: int) -> Tensor:
        """Return standard normal numbers, float64."""
        return torch.randn(*shape, generator=self.generator(offset), dtype=torch.float64)

    def parts(self) -> Tensor:
        """Return the structure's mask of parts, ``(B, *shape)`` bool."""
        like = torch.zeros(len(self.listing), *self.listing.shape)
        return self.structure.part_mask(like, self.lengths).expand_as(like)

    def scores(
        self, scale: float = 1.0, forbids: bool = False, offset: int = 0, fill: float = torch.nan
    ) -> Tensor:
        """Return scores ``(B, *shape)`` float64, with ``fill`` at entries that are no part.

        If ``forbids`` is set, some parts are −inf, so that each item still has a structure.
        """
        listing = self.listing
        scores = scale * self.random(offset, len(listing), *listing.shape)
        parts = self.parts()
        if forbids:
            drawn = torch.rand(scores.shape, generator=self.generator(offset + 1))
            unused = drawn < FORBIDDEN
            for b in range(len(listing)):
                z, _ = listing.feasible(torch.zeros_like(scores), b)
                pick = int(torch.randint(len(z), (1,), generator=self.generator(offset + b)))
                listing.own(unused, b)[z[pick].bool()] = False
            scores = scores.masked_fill(unused, -torch.inf)
        return scores.masked_fill(~parts, fill)

    def cases(self) -> Iterator[tuple[str, Tensor]]:
        """Yield scores of each scale, and scores with forbidden parts, with a name."""
        for i, scale in enumerate(self.scales):
            yield f"scores of scale {scale:g}", self.scores(scale, offset=100 * i)
        yield "with -inf at some parts", self.scores(forbids=True, offset=1000)

    def two_cases(self, offset: int) -> tuple[tuple[str, Tensor], ...]:
        """Return scores of scale 1 and scores with forbidden parts, with names."""
        return (
            ("scores of scale 1", self.scores(offset=offset)),
            ("with -inf at some parts", self.scores(forbids=True, offset=1000)),
        )

    def copies(self, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return a batch with each item ``count`` times, with gradient, and its lengths."""
        return repeat(scores, count).requires_grad_(), repeat(self.lengths, count)

    def promises(self, operation: str) -> bool:
        """Return whether the structure must have an operation."""
        structure = self.structure
        if operation in ("map", "top_k"):
            return structure.has_map
        if operation == "contains":
            return structure.linear and structure.has_map
        if operation == "sparsemap":
            return structure.linear and self.listing.log_potential is scored
        needed = {"log_count": "log_partition", "cross_entropy": "entropy", "kl": "entropy"}
        return needed.get(operation, operation) in structure.tractable

    def _call(self, operation: str, *arguments: Any, given: str = "") -> Any:
        """Return the result of an operation, or None if it is absent and may be."""
        try:
            with self.report.works(operation, given):
                return getattr(self.structure, operation)(*arguments)
        except AssertionError as error:
            if isinstance(error.__cause__, NotTractable) and not self.promises(operation):
                return None
            raise

    def reference(self, operation: str, scores: Tensor, b: int) -> Tensor:
        """Return the result for item b from the list, differentiable."""
        z, totals = self.listing.feasible(scores, b)
        if operation == "log_partition":
            return totals.logsumexp(0)
        log_p = totals.log_softmax(0)
        if operation == "marginals":
            return torch.tensordot(log_p.exp(), z, 1)
        return -(log_p.exp() * log_p).sum()

    def members(self, operation: str, given: str, z: Tensor, scores: Tensor) -> list[Tensor]:
        """Check that ``(K, B, *shape)`` are structures of their items that the scores allow.

        Returns:
            Their indices in the list, for each item.
        """
        numbers = []
        for b in range(len(self.listing)):
            number = self.listing.find(b, z[:, b])
            strange = (number < 0).nonzero().flatten()
            if len(strange):
                shown = self.listing.own(z[strange[0]], b)
                self.report.fail(
                    operation,
                    f"{given}, {self.listing.item(b)}: given parts {shown.nonzero().tolist()}, "
                    f"{z[strange[0], b].count_nonzero()} with those in the padding, which is no "
                    "structure of the list.",
                )
            totals = self.listing.totals(scores.detach(), b)
            self.report.holds(
                operation,
                not totals[number].isneginf().any(),
                f"{given}, {self.listing.item(b)}: given a structure with a forbidden part.",
            )
            numbers.append(number)
        return numbers

    def nothing_outside(self, operation: str, given: str, found: Tensor, scores: Tensor) -> None:
        """Assert that a result is zero at forbidden parts and at entries that are no part."""
        closed = ~self.parts() | scores.detach().isneginf()
        self.report.holds(
            operation,
            not found.detach()[closed].any(),
            f"{given}: not 0 at {(found.detach().bool() & closed).nonzero().tolist()[:5]}, which "
            "are no parts, or forbidden.",
        )

    def frequencies(self, operation: str, given: str, drawn: Tensor, scores: Tensor) -> None:
        """Check that draws ``(K, B, *shape)`` have the frequencies of the scores."""
        numbers = self.members(operation, given, drawn, scores)
        for b, number in enumerate(numbers):
            totals = self.listing.totals(scores, b)
            p = totals.softmax(0)
            found = torch.bincount(number, minlength=len(p)).double() / len(number)
            spread = (p * (1 - p) / len(number)).sqrt()
            bound = STANDARD_ERRORS * spread + DRAWS_BESIDE / len(number)
            worst = int(((found - p).abs() - bound).argmax())
            self.report.holds(
                operation,
                (found - p).abs()[worst] <= bound[worst],
                f"{given}, {self.listing.item(b)}: the structure with the parts "
                f"{self.listing.members[b][worst].nonzero().tolist()} has the frequency "
                f"{float(found[worst]):.5f} in {len(number)} draws, expected "
                f"{float(p[worst]):.5f}, allowed a difference of {float(bound[worst]):.5f}.",
            )
