"""Contract of a structure, checked against a list of all its members."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

import torch

from spacy_latent.structures.base import Structure
from spacy_latent.testing.contract_batches import BatchChecks
from spacy_latent.testing.contract_members import MemberChecks
from spacy_latent.testing.contract_samples import SampleChecks
from spacy_latent.testing.contract_sparsemap import SparsemapChecks
from spacy_latent.testing.contract_sums import SumChecks
from spacy_latent.testing.listing import Length, Listing, LogPotential, Members
from spacy_latent.testing.random_scores import tied_scores
from spacy_latent.testing.reports import Check, checks_of, expect_made, first_failures

if TYPE_CHECKING:
    from typing_extensions import Unpack


# Names that may be in ``tractable``.
TRACTABLE = frozenset(
    {
        "entropy",
        "log_partition",
        "log_prob",
        "marginals",
        "reparameterize",
        "reparameterize_trace",
        "sample",
        "sample_trace",
        "smoothed",
    }
)


class StructureOptions(TypedDict, total=False):
    """Options of :func:`structure_checks`."""

    log_potential: LogPotential | None
    encode_options: Mapping[str, object] | None
    scales: Sequence[float]
    tolerance: float
    num_samples: int
    seed: int


def check_structure(
    structure: Structure,
    members: Members,
    lengths: Sequence[Length] = (4, 0, 3, 1),
    **options: Unpack[StructureOptions],
) -> None:
    """Check the whole contract of a structure; for the arguments see :func:`structure_checks`.

    Raises:
        AssertionError: If any checks fail. The message names the operation, the item, the given and
            the expected value of all failed checks.
    """
    first_failures(structure_checks(structure, members, lengths, **options))


def structure_checks(
    structure: Structure,
    members: Members,
    lengths: Sequence[Length] = (4, 0, 3, 1),
    *,
    log_potential: LogPotential | None = None,
    encode_options: Mapping[str, object] | None = None,
    scales: Sequence[float] = (1e-3, 1.0, 1e3),
    tolerance: float = 1e-8,
    num_samples: int = 4000,
    seed: int = 0,
) -> Iterator[Check]:
    """Yield the checks of :func:`check_structure` one by one, for a test runner to name.

    These operations are compared with the list: map, log_partition, marginals, entropy,
    cross_entropy, kl, log_count, log_prob, log_potential, top_k, sparsemap, contains, encode and
    decode, and smoothed sums. Their gradients are compared as well, for marginals the product with
    the Hessian, and for log_partition the second derivative. This is done at each of the scales,
    with ragged items, NaN at entries that are no part and −inf at some parts.

    Other comparisons with the list:

    - the frequencies of sampled structures, and how often two of them are the same, which shows
      whether draws and items are independent.
    - the best structure if there are scores of 1e15 and 1e30, and sums if structures have to use
      scores of −1e15 and −1e30. They are compared to the precision of total scores, and may be
      refused.
    - the best structure, several best ones, marginals, samples and SparseMAP if scores tie, for
      example because of equal words.

    Then the checks ensure that nothing depends on padding, layout, the rest of the batch, earlier
    calls, chance or torch's inference mode. Samples depend on the given generator alone. dtypes
    must be kept, atoms of SparseMAP must be members in half precision, too, and errors must name
    the item. If ``structure.tractable`` (``has_map`` for map, ``linear`` for sparsemap) does not
    promise an operation, it may raise NotTractable instead.

    Args:
        members: Function that returns all structures of an item of a given length, ``(M, *parts)``
            0/1 arrays. The length is an int, or a tuple of one for each axis, as in ``lengths``. A
            few thousand at most.
        lengths: Lengths of the items of the checked batch, at least two. Best include one that is
            empty and one of a single part.
        log_potential: Function that returns the score of each of the structures ``z``
            ``(M, *parts)`` of an item from its own ``scores`` ``(*parts)`` and its length, ``(M,)``
            float64, differentiable; −inf for forbidden structures. If scores belong to decisions,
            it is the log-probability. None for z·s.
        encode_options: Further arguments of ``structure.encode``. With them, ``encode_for`` is to
            give the same.
        scales: Scales of the scores in comparisons with the list.
        tolerance: Relative and absolute tolerance, in float64.
        num_samples: Number of samples for frequencies. These may differ by five standard errors.
        seed: Seed of all scores and samples.
    """
    expect_made("check_structure", structure, Structure, "SpanningTree()")
    listing = Listing(members, lengths, log_potential)
    given = dict(encode_options or {}), tuple(scales), tolerance, num_samples, seed
    contract = _Contract(structure, listing, *given)
    yield from checks_of(contract, repr(structure))


class _Contract(MemberChecks, SumChecks, SampleChecks, SparsemapChecks, BatchChecks):
    """All checks of a structure."""

    def check_declarations(self) -> None:
        structure, listing, report = self.structure, self.listing, self.report
        axes = len(listing.shape)
        report.holds(
            "part_axes",
            structure.part_axes == axes,
            f"given {structure.part_axes}; the members listed have {axes} axes of parts.",
        )
        # Estimators would be refused for a name that is misspelt, and fail at a list.
        names = structure.tractable
        report.holds(
            "tractable",
            isinstance(names, (frozenset, set)) and names <= TRACTABLE,
            f"given {names!r}; expected a frozenset of some of {sorted(TRACTABLE)}.",
        )
        parts, inside, used = self.parts(), listing.inside(), listing.used()
        for b in range(len(listing)):
            report.holds(
                "part_mask",
                not (parts[b] & ~inside[b]).any(),
                f"{listing.item(b)}: {(parts[b] & ~inside[b]).nonzero().tolist()[:5]} are called "
                "parts, but lie beyond the item.",
            )
            report.holds(
                "part_mask",
                not (used[b] & ~parts[b]).any(),
                f"{listing.item(b)}: {(used[b] & ~parts[b]).nonzero().tolist()[:5]} are no parts, "
                "but there are structures that hold them.",
            )
            exclusive = list(structure.exclusive_axes)
            if exclusive:
                counts = listing.members[b].sum([1 + axis for axis in exclusive])
                expected = (counts > 0).any(0)
                report.holds(
                    "exclusive_axes",
                    (counts == expected).all(),
                    f"{listing.item(b)}: along the axes {exclusive} not every structure has "
                    "exactly one part at each place that has any.",
                )
            if structure.incomparable:
                members = listing.members[b].flatten(1).double()
                held = members @ members.mT == members.sum(1)[:, None]
                report.holds(
                    "incomparable",
                    int(held.sum()) == len(members),
                    f"{listing.item(b)}: some structure holds all parts of another one.",
                )
        again = copy.deepcopy(structure)
        with report.works("pickle"):
            pickle.loads(pickle.dumps(vars(structure)))
        report.holds(
            "covers", structure.covers(again) is not False, "given False of a copy of itself."
        )

    def check_ties(self) -> None:
        """Check results if scores tie.

        The best structure must be one of the best, the k best must be different ones, and marginals
        and samples must include all. For SparseMAP the gradient is checked wherever it exists. It
        must include all structures that tie.
        """
        parts = self.parts()
        for given, tied in tied_scores(len(self.listing), self.listing.shape, self.seed):
            scores = tied.masked_fill(~parts, torch.nan)
            self.best(given, scores)
            self.several_best(given, scores)
            self.sum("marginals", given, scores)
            asked = scores, self.lengths, max(self.num_samples // 8, 1), self.generator(3)
            drawn = self._call("sample", *asked, given=given)
            if drawn is not None:
                self.frequencies("sample", given, drawn, scores)
            if self.average(given, scores):
                self.report.agrees_with_both_sides(
                    "sparsemap",
                    given,
                    lambda values: self.structure.sparsemap(values, self.lengths, 1000, 1e-11).mean,
                    tied.masked_fill(~parts, 0.0),
                    self.random(140, 2, *scores.shape) * parts,
                )
