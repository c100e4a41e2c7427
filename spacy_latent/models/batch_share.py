"""How much of a batch this process has, where several processes train on one batch together.

Losses are sums over docs, and gradients of several processes are added up. A term that is a mean
over the tokens of a batch would then count once for each process; with the share of the tokens that
a process has, the sum over processes is the mean over all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_share: ContextVar[float] = ContextVar("share_of_batch", default=1.0)


def share_of_batch() -> float:
    """The part of the tokens of the batch that is here, 1 if all of them are."""
    return _share.get()


@contextlib.contextmanager
def only_a_share(share: float) -> Iterator[None]:
    """Updates inside have this part of the tokens of a batch, in (0, 1]."""
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)


__all__ = ["only_a_share", "share_of_batch"]
