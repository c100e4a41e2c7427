"""Processes of one training, from the point of view of one of them.

A *rank* is one process. All communication between ranks is in this module. A single process
therefore needs no process group, and a lost rank causes an error that names the reason.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from spacy_latent.errors import LatentError

Result = TypeVar("Result")

# Seconds, as in torch's own default for gloo. An evaluation by rank 0 must not take longer.
TIMEOUT = 1800.0


class RanksFailed(LatentError):
    """Error of one rank, raised with the same message on every rank."""


class RanksLost(LatentError):
    """Error on the other ranks if a rank died or does not answer."""


class Ranks:
    """Communication of this process with the other ranks.

    Attributes:
        rank: Number of this process, from 0.
        world: Number of processes.
        timeout: Seconds that a rank waits for the others.
    """

    def __init__(self, rank: int = 0, world: int = 1, timeout: float = TIMEOUT) -> None:
        self.rank, self.world, self.timeout = rank, world, timeout

    @classmethod
    def join(cls, *, use_gpu: bool = False, timeout: float = TIMEOUT) -> Ranks:
        """Connect to the other ranks.

        These are the ranks of an existing process group. Without a group, they are the ranks that
        the environment declares, as ``torchrun`` does. Otherwise this process is alone.

        Args:
            use_gpu: Reduce gradients on a GPU by NCCL. Tensors on the CPU use gloo in any case.
            timeout: Seconds to wait. An existing process group keeps the timeout that it was
                created with.
        """
        if not timeout > 0:
            raise LatentError(f"timeout is {timeout}; expected a number of seconds above 0.")
        if not dist.is_available():
            raise LatentError(
                "This build of torch has no torch.distributed. Install another build of torch."
            )
        if not dist.is_initialized():
            if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", 1)) == 1:
                return cls(timeout=timeout)
            backend = "cpu:gloo,cuda:nccl" if use_gpu else "gloo"
            waiting = timedelta(seconds=timeout)
            store, rank, world = next(dist.rendezvous("env://", timeout=waiting))
            # A launcher that restarts the ranks may still have the addresses of the lost ones.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            dist.init_process_group(
                backend,
                store=dist.PrefixStore(f"attempt {attempt}", store),
                rank=rank,
                world_size=world,
                timeout=waiting,
            )
        return cls(dist.get_rank(), dist.get_world_size(), timeout)

    @property
    def is_first(self) -> bool:
        """True for rank 0, which prints and saves for all ranks."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """True if there is only one process, which has no process group."""
        return self.world == 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up the tensors of all ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def most(self, tensor: Tensor) -> Tensor:
        """Compute the elementwise maximum of the tensors of all ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def _reduce(self, tensor: Tensor, operation: Any) -> Tensor:
        if not self.alone:
            with self._waiting():
                dist.all_reduce(tensor, operation)
        return tensor

    def gather(self, value: Result) -> list[Result]:
        """Return the picklable values of all ranks, in order, on every rank."""
        found: list[Any] = [value]
        if not self.alone:
            found = [None] * self.world
            with self._waiting():
                dist.all_gather_object(found, value)
        return found

    def together(self, action: Callable[[], Result], what: str) -> Result:
        """Run an action on every rank.

        Args:
            what: Description of the action, for the message.

        Raises:
            RanksFailed: On all ranks, if the action failed on any rank.
        """
        if self.alone:
            return action()
        result, error = _attempt(action)
        self.raise_together(self.gather(None if error is None else describe(error)), what, error)
        return result  # type: ignore[return-value]

    def of_first(self, action: Callable[[], Result], what: str) -> Result:
        """Run an action on rank 0 alone, and return its result on every rank."""
        if self.alone:
            return action()
        result, error = _attempt(action) if self.is_first else (None, None)
        box: list[Any] = [(result, error and describe(error))]
        with self._waiting():
            dist.broadcast_object_list(box)
        result, message = box[0]
        self.raise_together([message], what, error)
        return result

    def raise_together(
        self, messages: list[str | None], what: str, own: BaseException | None
    ) -> None:
        """Raise the errors of all ranks on every rank.

        Args:
            messages: Message of each rank, None for a rank without an error.
        """
        failed: dict[str, list[str]] = {}
        for rank, text in enumerate(messages):
            if text is not None:
                failed.setdefault(text, []).append(str(rank))
        if failed:
            errors = (f"rank {' and '.join(ranks)}: {text}" for text, ranks in failed.items())
            raise RanksFailed(f"{what} failed on {'; '.join(errors)}") from own

    def same(self, value: object) -> bool:
        """Return whether all ranks have the same value; the result is the same on every rank."""
        found = self.gather(value)
        return all(other == found[0] for other in found)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        try:
            yield
        # torch has its own errors for some backends, all of which are subclasses of this one.
        except RuntimeError as error:
            raise RanksLost(
                f"Rank {self.rank} of {self.world} lost the connection to other ranks, or waited "
                f"for them for more than {self.timeout:g} s: a process was killed, ran out of "
                "memory, or hangs. Its last output may show the reason. Start all processes "
                "again with --resume, and with a longer --timeout if one was only slow, as in "
                f"an evaluation. (torch says: {str(error).splitlines()[0][:300]})"
            ) from error


def describe(error: BaseException) -> str:
    """Return the text of an error for all ranks, with its type if it is not for users."""
    text = str(error).strip()
    return text if isinstance(error, LatentError) else f"{type(error).__name__}: {text}"


def _attempt(action: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    try:
        return action(), None
    except RanksLost:
        raise
    except Exception as error:
        return None, error


def gpu_of_this_rank() -> torch.device:
    """Return the GPU of this process; the ranks of a machine take its GPUs in order."""
    count = torch.cuda.device_count()
    if not count:
        raise LatentError("There is no GPU that torch can use. Leave --gpu out to train on CPUs.")
    local = int(os.environ.get("LOCAL_RANK", 0))
    if local >= count:
        raise LatentError(
            f"This machine has {count} GPU(s), and there are more processes. Start one process "
            "for each GPU: torchrun --nproc-per-node gpu."
        )
    return torch.device("cuda", local)
