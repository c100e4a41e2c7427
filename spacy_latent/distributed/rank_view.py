"""View of a pipeline that spaCy's own loop receives on one rank of several."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from spacy.language import Language
from spacy.pipeline.tok2vec import Tok2Vec
from spacy.tokens import Doc
from spacy.training import Example
from spacy.training.loop import subdivide_batch

from spacy_latent.distributed.all_reduce import AllReduce, InnerSteps
from spacy_latent.distributed.random_state import noise_of
from spacy_latent.distributed.ranks import Ranks
from spacy_latent.distributed.trained_arrays import trained_components
from spacy_latent.models.batch_share import only_a_share
from spacy_latent.pipeline.shared_upstream import SharedBatch

# A small share is normal, because the last batch of an epoch is small in every training.
MANY_EMPTY = 0.1


class RankView:
    """Proxy of a pipeline whose ``update`` learns from this rank's share of a batch.

    ``update`` receives the batch of all ranks. Gradients are added up before the first
    ``finish_update``. On a single rank there is nothing to add up, and both methods are the
    pipeline's own. All other attributes are attributes of the pipeline.

    Attributes:
        seed: Seed of the noise of all ranks, from which each rank derives its own.
        accumulate: Number of parts of a batch, see ``training.accumulate_gradient``. Each rank
            takes its share of each part.
        idle: True while the steps before a checkpoint are replayed without learning.
        shares: Number of parts of batches that all ranks together have had.
        empty_shares: Number of these parts without a doc.
        losses: Losses that the loop is adding up.
        carried: Losses before a checkpoint, with which the sums begin.
    """

    def __init__(
        self, nlp: Language, frozen: Collection[str], ranks: Ranks, *, seed: int, accumulate: int
    ) -> None:
        self.nlp, self.frozen, self.ranks = nlp, frozen, ranks
        self.seed, self.accumulate = seed, accumulate
        self.reduce = AllReduce(nlp, frozen, ranks)
        self.idle = False
        self.shares = self.empty_shares = self.step = 0
        self.losses: dict[str, float] = {}
        self.carried: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.nlp, name)

    @property
    def pipeline(self) -> list[tuple[str, Any]]:
        """Components whose ``finish_update`` the loop calls; the first one reduces gradients."""
        if self.idle:
            return []
        if self.ranks.alone:
            return self.nlp.pipeline
        pipes: list[tuple[str, Any]] = [("all_reduce", self.reduce)]
        for name, pipe in self.nlp.pipeline:
            further = hasattr(pipe, "backprop_further")
            pipes.append((name, InnerSteps(name, pipe, self.reduce) if further else pipe))
        return pipes

    def begin(self, step: int, batch: Sequence[Example]) -> None:
        """Begin a step with a new batch, or with an empty batch at the end of the data."""
        self.step = step
        if not self.ranks.alone:
            self.reduce.begin(step, checksum_of_batch(batch) if len(batch) else 0)

    def update(
        self, examples: list[Example], *, losses: dict[str, float], **options: Any
    ) -> dict[str, float]:
        """Learn from this rank's share of each part of the batch, unless ``idle``."""
        self.losses = losses
        if self.idle:
            return losses
        for name, loss in self.carried.items():
            losses[name] = losses.get(name, 0.0) + loss
        self.carried = {}
        parts = subdivide_batch(examples, self.accumulate)
        if self.ranks.alone:
            for part in parts:
                self.nlp.update(part, losses=losses, **options)
            return losses
        with self.reduce.keeping_failure(), self._shared_components_wait():
            for number, part in enumerate(parts):
                self.shares += self.ranks.world
                self.empty_shares += max(0, self.ranks.world - len(part))
                share = part[self.ranks.rank :: self.ranks.world]
                if share:
                    noise = noise_of(self.seed, self.ranks.rank, self.step, number)
                    with noise, only_a_share(_words(share) / _words(part)):
                        self.nlp.update(share, losses=losses, **options)
        return losses

    def empty_shares_warning(self) -> str | None:
        """Return a warning if many batches had fewer docs than there are ranks, or None."""
        if self.empty_shares <= MANY_EMPTY * self.shares:
            return None
        return (
            f"{self.empty_shares / self.shares:.0%} of the ranks' shares of batches had no doc: "
            f"batches had fewer docs than the {self.ranks.world} ranks, and a rank without one "
            "waits for the others. Give larger batches (training.batcher), shorter docs, or fewer "
            "ranks."
        )

    @contextlib.contextmanager
    def _shared_components_wait(self) -> Iterator[None]:
        """Delay the backward pass of shared components until all their listeners have run.

        spaCy runs it when the last listener sends its gradient. But a rank's share may have no gold
        annotation for that listener.
        """
        held = [
            pipe
            for _, pipe in trained_components(self.nlp, self.frozen)
            if self._waits(pipe) and "update" not in vars(pipe)
        ]
        for pipe in held:
            pipe.update = partial(_held_update, pipe)
        try:
            yield
        finally:
            for pipe in held:
                del pipe.update

    def _waits(self, pipe: Any) -> bool:
        packages = {kind.__module__.partition(".")[0] for kind in type(pipe).__mro__}
        if not isinstance(pipe, Tok2Vec) and "spacy_transformers" not in packages:
            return False
        # If the last listener is frozen, nothing is ever backpropagated, as on one process.
        last = list(getattr(pipe, "listening_components", []))[-1:]
        return bool(last) and last[0] not in self.frozen


def _held_update(pipe: Any, examples: Iterable[Example], **options: Any) -> Any:
    """Update a shared component, whose backward pass then waits for the reduction."""
    result = type(pipe).update(pipe, examples, **options)
    if any(listener._backprop is not None for listener in pipe.listeners):
        SharedBatch(pipe)
    return result


def checksum_of_batch(batch: Sequence[Example]) -> int:
    """Return a checksum > 0 of the words of the docs, in their order."""
    crc = 0
    for example in batch:
        doc: Doc = example.predicted
        crc = zlib.crc32(doc.to_array("ORTH").tobytes(), zlib.crc32(str(len(doc)).encode(), crc))
    return crc + 1


def _words(examples: Sequence[Example]) -> int:
    return max(1, sum(len(example.predicted) for example in examples))
