"""Sums of the gradients of all ranks, computed before the first weight changes.

spaCy's loop calls ``update`` of the pipeline, then ``finish_update`` of one component after
another. Between the two, all gradients of a step exist and none has been used. Reducing inside the
optimizer would fail: a rank that has no gradient for a component does not call it, and the weights
of the ranks would diverge.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from spacy.language import Language
from thinc.api import Model, Optimizer
from torch import Tensor

from spacy_latent.distributed.ranks import Ranks, RanksFailed, RanksLost, describe
from spacy_latent.distributed.trained_arrays import (
    Weights,
    buffers_of,
    models_of,
    shims_of,
    trained_components,
    weights_of,
)
from spacy_latent.pipeline.shared_upstream import SharedBatch

# Number of values in one message: 25 MiB of float32, as in torch's own buckets.
BUCKET = 25 * 2**20 // 4


class AllReduce:
    """First component of the pipeline that spaCy's loop receives; it adds up the gradients.

    Its ``finish_update`` is called after the last ``update`` and before every other
    ``finish_update``.

    Attributes:
        seconds: Total time of the reductions, including the time spent waiting for other ranks.
        values: Number of gradient values in the last reduction.
        failure: Error of this rank's update in this step, to be raised on all ranks.
    """

    is_trainable = True
    # spaCy's loop skips components without a model.
    model = "all ranks"

    def __init__(self, nlp: Language, frozen: Collection[str], ranks: Ranks) -> None:
        self.nlp, self.frozen, self.ranks = nlp, frozen, ranks
        self.step = self.values = 0
        self.seconds = 0.0
        self.failure: Exception | None = None
        # Checksum of the batch of this step.
        self.batch = 0
        # Buffers after the last reduction. Buffers that did not change since then are not averaged.
        self._before: list[Tensor] = []

    def begin(self, step: int, batch: int) -> None:
        """Begin a step.

        Args:
            batch: Checksum of the global batch, 0 at the end of the data.
        """
        self.step, self.batch = step, batch
        if not self._before:
            self._before = [buffer.clone() for buffer in buffers_of(self._models())]

    def finish_update(self, optimizer: Optimizer) -> None:
        """Give every rank the sum of all gradients, and the mean of the buffers that have changed.

        Raises:
            RanksFailed: On every rank, if one rank failed, read another batch, has weights of other
                shapes, or has a gradient that is not finite.
        """
        weights: list[Weights] = []
        if self.failure is None:
            with self.keeping_failure():
                self._backpropagate()
                weights = weights_of(models_of(self.nlp, self.frozen))
        started = time.perf_counter()
        self.agree(weights)
        shims = [shim for _, model in self._models() for shim in shims_of(model)]
        self.add_up(weights, self._share_overflow(shims))
        self._average_buffers()
        self._share_unseen_classes()
        self.seconds += time.perf_counter() - started

    @contextlib.contextmanager
    def keeping_failure(self) -> Iterator[None]:
        """Store an error that is raised inside, to raise it on all ranks at the next comparison.

        The other ranks wait for this one until then.
        """
        try:
            yield
        except RanksLost:
            raise
        except Exception as error:
            self.failure = error

    def agree(self, weights: Sequence[Weights] = ()) -> None:
        """Compare failures, batches and layouts of all ranks, in one small message.

        Raises:
            RanksFailed: On every rank, if a rank failed or the ranks differ.
        """
        layout = _checksum((w.component, tuple(w.values.shape)) for w in weights)
        numbers = [int(self.failure is not None), self.batch, -self.batch, layout, -layout]
        most = self.ranks.most(_flags(numbers)).tolist()
        what = f"Step {self.step}"
        if most[0]:
            own = self.failure
            self.ranks.raise_together(
                self.ranks.gather(None if own is None else _description(own)), what, own
            )
        if most[1] != -most[2]:
            raise RanksFailed(
                f"{what}: the ranks do not read the same batches. Readers and batchers must "
                "return the same batches on each process, which then takes its share. They must "
                "not depend on the order of a set, on unsorted files of a directory, or on the "
                "time."
            )
        if most[3] != -most[4]:
            raise RanksFailed(f"{what}: {self._other_shapes(weights)}")

    def add_up(self, weights: Sequence[Weights], unchecked: Collection[int] = ()) -> bool:
        """Replace the gradients by their sums over all ranks.

        An array without a gradient on any rank gets no gradient, so that momentum does not change
        it.

        Args:
            unchecked: Ids of shims in which a gradient of mixed precision overflowed.

        Returns:
            Whether there was any gradient.
        """
        has = _flags(w.gradient is not None for w in weights)
        if len(has):
            self.ranks.most(has)
        moved = [w for w, there in zip(weights, has.tolist()) if there]
        self.values = sum(w.values.numel() for w in moved)
        for bucket in _buckets(moved):
            self._send(bucket, unchecked)
        return bool(moved)

    def _send(self, bucket: list[Weights], unchecked: Collection[int]) -> None:
        parts = [torch.zeros_like(w.values) if (own := w.gradient) is None else own for w in bucket]
        flat = torch.cat([part.reshape(-1) for part in parts])
        self.ranks.sum(flat)
        summed = flat.split([part.numel() for part in parts])
        # In the usual case this is one pass over the values. If the sum overflows, check each
        # value.
        if not bool(torch.isfinite(flat.sum())):
            wrong = [
                i
                for i, (w, total) in enumerate(zip(bucket, summed))
                if id(getattr(w, "shim", None)) not in unchecked
                and not bool(torch.isfinite(total).all())
            ]
            if wrong:
                self._refuse(bucket, parts, wrong)
        for w, total in zip(bucket, summed):
            w.gradient = total

    def _refuse(self, bucket: list[Weights], parts: list[Tensor], wrong: list[int]) -> None:
        own = [not bool(torch.isfinite(parts[i]).all()) for i in wrong]
        having = [rank for rank, found in enumerate(self.ranks.gather(any(own))) if found]
        named = ", ".join(f"{bucket[i].component} ({bucket[i].name})" for i in wrong[:5])
        ranks = ", ".join(map(str, having))
        where = f"on rank(s) {ranks}" if having else "after the sum over all ranks"
        raise RanksFailed(
            f"Step {self.step}: the gradient of {named}{', ...' if len(wrong) > 5 else ''} is "
            f"not finite {where}. No weight was changed by this step. Lower the learning rate, "
            "or check the batch of that rank, and continue from the last checkpoint with "
            "--resume."
        )

    def _backpropagate(self) -> None:
        """Run the backward passes that components delay until their ``finish_update``."""
        pipes = [pipe for _, pipe in trained_components(self.nlp, self.frozen)]
        for pipe in pipes:
            if hasattr(pipe, "backprop_pending"):
                pipe.backprop_pending()
        for pipe in pipes:
            held = getattr(pipe, "__dict__", {}).get("finish_update")
            if isinstance(held, SharedBatch):
                held.flush()

    def _models(self) -> list[tuple[str, Model]]:
        return models_of(self.nlp, self.frozen)

    def _share_overflow(self, shims: Iterable[Any]) -> set[int]:
        """Skip a step on all ranks if it overflowed in float16 on one rank.

        Returns:
            Ids of the shims that skip the step.
        """
        scalers: dict[int, Any] = {
            id(shim): shim._grad_scaler
            for shim in shims
            if getattr(getattr(shim, "_grad_scaler", None), "_enabled", False)
        }
        if not scalers:
            return set()
        found = _flags(scaler.found_inf for scaler in scalers.values())
        overflowed = dict(zip(scalers, self.ranks.most(found).tolist()))
        for number, scaler in scalers.items():
            scaler._found_inf = bool(overflowed[number])
        return {number for number, over in overflowed.items() if over}

    def _average_buffers(self) -> None:
        """Average the buffers that have changed on any rank; integer buffers take their maximum."""
        buffers = buffers_of(self._models())
        if not buffers:
            return
        if [b.shape for b in buffers] != [b.shape for b in self._before]:
            # The modules were replaced.
            self._before = [torch.zeros_like(buffer) for buffer in buffers]
        changed = _flags(not _equal(b, old) for b, old in zip(buffers, self._before))
        self.ranks.most(changed)
        for buffer, old, there in zip(buffers, self._before, changed.tolist()):
            if there:
                if buffer.is_floating_point():
                    self.ranks.sum(buffer).div_(self.ranks.world)
                else:
                    # Gloo has no maximum of bool.
                    buffer.copy_(self.ranks.most(buffer.to(torch.int64)))
                old.copy_(buffer)

    def _share_unseen_classes(self) -> None:
        """Share which classes of spaCy's parsers have been seen in examples.

        Parsers do not predict classes without an example since they were added. A class that one
        rank has seen counts as seen on all ranks.
        """
        nodes = [
            node
            for _, model in self._models()
            for node in model.walk()
            if "unseen_classes" in node.attrs
        ]
        count = _flags(len(node.attrs["unseen_classes"]) for node in nodes)
        if nodes and bool((self.ranks.most(count) > 0).any()):
            found = self.ranks.gather([set(node.attrs["unseen_classes"]) for node in nodes])
            for node, *sets in zip(nodes, *found):
                node.attrs["unseen_classes"].intersection_update(*sets)

    def _other_shapes(self, weights: Sequence[Weights]) -> str:
        mine: dict[str, list[tuple[int, ...]]] = {}
        for w in weights:
            mine.setdefault(w.component, []).append(tuple(w.values.shape))
        found = self.ranks.gather(mine)
        names = sorted(
            {name for shapes in found for name in shapes if shapes[name] != found[0].get(name)}
        )
        return (
            f"the weights of {', '.join(map(repr, names)) or 'some components'} have other shapes "
            "on other ranks, for example if one rank met a label that the component did not know. "
            "Give all labels before the training (initialize.components.NAME.labels, see spacy "
            "init labels)."
        )


class InnerSteps:
    """Wrapper of a component that takes further steps on a batch in its ``finish_update``.

    The gradients of each further step are added up over the ranks as well.
    """

    is_trainable = True

    def __init__(self, name: str, pipe: Any, reduce: AllReduce) -> None:
        self.name, self.pipe, self.reduce = name, pipe, reduce
        self.model = pipe.model

    def finish_update(self, sgd: Optimizer) -> None:
        """Update the weights, and take further steps until no rank has any left."""
        self.model.finish_update(sgd)
        while True:
            own, weights = False, list[Weights]()
            with self.reduce.keeping_failure():
                own = self.pipe.backprop_further()
                weights = weights_of([(self.name, self.pipe.further_model)])
            # Raises an error on all ranks if one has failed.
            self.reduce.agree(weights)
            if not self.reduce.ranks.most(_flags([own])).item():
                return
            self.reduce.add_up(weights)
            self.pipe.finish_further(sgd)


def _buckets(weights: Iterable[Weights]) -> Iterable[list[Weights]]:
    """Divide weights into groups of one dtype and device, of about :data:`BUCKET` values."""
    bucket: list[Weights] = []
    size = 0
    for one in weights:
        if bucket and (size >= BUCKET or _alike(bucket[0].values) != _alike(one.values)):
            yield bucket
            bucket, size = [], 0
        bucket.append(one)
        size += one.values.numel()
    if bucket:
        yield bucket


def _flags(numbers: Iterable[int]) -> Tensor:
    """Return the numbers as a tensor on the CPU, as for all messages except gradients."""
    return torch.tensor([int(n) for n in numbers], dtype=torch.int64, device="cpu")


def _alike(tensor: Tensor) -> tuple[torch.dtype, torch.device]:
    return tensor.dtype, tensor.device


def _equal(tensor: Tensor, other: Tensor) -> bool:
    """Return whether the tensors are equal, with NaN equal to NaN."""
    return torch.equal(tensor, other) or bool(
        torch.equal(torch.isnan(tensor), torch.isnan(other))
        and torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(other))
    )


def _checksum(values: Iterable[Any]) -> int:
    return zlib.crc32(repr(list(values)).encode())


def _description(error: BaseException) -> str:
    """Return the error in words, with the component whose update raised it."""
    component = ""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is Language.update.__code__:
            component = trace.tb_frame.f_locals.get("name", "")
        trace = trace.tb_next
    text = describe(error)
    return f"{component!r}: {text}" if component and component not in text else text
