"""The processes of one training, as one of them sees them.

A *rank* is one process. What they tell each other goes through here, so that one process alone
needs no process group, and a rank that is gone is an error that says so.
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

# Seconds, as torch's own for gloo. An evaluation by rank 0 has to fit in.
TIMEOUT = 1800.0


class RanksFailed(LatentError):
    """What failed on one rank, raised with the same words on every rank."""


class RanksLost(LatentError):
    """A rank that died or does not answer, as another one meets it."""


class Ranks:
    """rank, world: which process this is, from 0, and how many there are. timeout: how many seconds
    a rank waits for the others."""

    def __init__(self, rank: int = 0, world: int = 1, timeout: float = TIMEOUT) -> None:
        self.rank = rank
        self.world = world
        self.timeout = timeout

    @classmethod
    def join(cls, *, use_gpu: bool = False, timeout: float = TIMEOUT) -> Ranks:
        """Meet the other ranks: those of a process group that is there already, else those that the
        environment tells of, as ``torchrun`` does, else none.

        use_gpu: gradients on a GPU go by NCCL. What is on the CPU goes by gloo in any case.
        timeout: seconds; of a process group that is there already, the one it was made with counts.
        """
        if not timeout > 0:
            raise LatentError(f"timeout is {timeout}; expected a number of seconds above 0.")
        if not dist.is_available():
            raise LatentError("This build of torch has no torch.distributed. Install another.")
        if not dist.is_initialized():
            if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
                return cls(timeout=timeout)
            if int(os.environ["WORLD_SIZE"]) == 1:
                return cls(timeout=timeout)
            backend = "cpu:gloo,cuda:nccl" if use_gpu else "gloo"
            waiting = timedelta(seconds=timeout)
            store, rank, world = next(dist.rendezvous("env://", timeout=waiting))
            # What starts the ranks again may still have the addresses of those that are gone.
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
        return self.rank == 0

    @property
    def alone(self) -> bool:
        return self.world == 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up the tensors of all ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def most(self, tensor: Tensor) -> Tensor:
        """The largest of all ranks, number by number, in place."""
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def _reduce(self, tensor: Tensor, operation: Any) -> Tensor:
        if not self.alone:
            with self._waiting():
                dist.all_reduce(tensor, operation)
        return tensor

    def gather(self, value: Result) -> list[Result]:
        """What each rank has, in their order, on every rank. It has to be picklable."""
        found: list[Any] = [value]
        if not self.alone:
            found = [None] * self.world
            with self._waiting():
                dist.all_gather_object(found, value)
        return found

    def together(self, action: Callable[[], Result], what: str) -> Result:
        """Do something on every rank. Raises RanksFailed on all of them if it failed on any.

        what: what is being done, for the message.
        """
        if self.alone:
            return action()
        result, error = _attempt(action)
        self.raise_together(self.gather(None if error is None else describe(error)), what, error)
        return result  # type: ignore[return-value]

    def of_first(self, action: Callable[[], Result], what: str) -> Result:
        """Do something on rank 0 alone. RETURNS: on every rank what it gave there."""
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
        """messages: of each rank, None where nothing failed. own: this rank's error."""
        failed: dict[str, list[str]] = {}
        for rank, text in enumerate(messages):
            if text is not None:
                failed.setdefault(text, []).append(str(rank))
        if failed:
            told = (f"rank {' and '.join(ranks)}: {text}" for text, ranks in failed.items())
            raise RanksFailed(f"{what} failed on {'; '.join(told)}") from own

    def same(self, value: object) -> bool:
        """Whether all ranks have the same. RETURNS: the same on every rank."""
        found = self.gather(value)
        return all(other == found[0] for other in found)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        try:
            yield
        # torch has errors of its own for some backends, all of which are of this kind.
        except RuntimeError as error:
            raise RanksLost(
                f"Rank {self.rank} of {self.world} lost the others, or waited for them for more "
                f"than {self.timeout:g} s: a process was killed, ran out of memory, or hangs. What "
                "it printed last tells more. Start all of them again with --resume, with a longer "
                f"--timeout if one only was slow, as in an evaluation. (torch says: "
                f"{str(error).splitlines()[0][:300]})"
            ) from error

    def leave(self) -> None:
        if not self.alone and dist.is_initialized():
            dist.destroy_process_group()


def describe(error: BaseException) -> str:
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
    """The GPU that this process is to use: as many as there are, in the order of the ranks of a
    machine."""
    count = torch.cuda.device_count()
    if not count:
        raise LatentError("There is no GPU that torch can use. Leave --gpu out to train on CPUs.")
    local = int(os.environ.get("LOCAL_RANK", 0))
    if local >= count:
        raise LatentError(
            f"This machine has {count} GPU(s), and is to run more processes. Start as many as "
            "there are GPUs: torchrun --nproc-per-node gpu."
        )
    return torch.device("cuda", local)


__all__ = ["Ranks", "RanksFailed", "RanksLost", "gpu_of_this_rank"]
