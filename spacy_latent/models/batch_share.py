"""Share of a batch in this process, if several processes train on one batch together.

Losses are sums over docs, and gradients of several processes are added up. A mean over tokens would
then be counted once for each process. Each process multiplies its mean by its share of the tokens,
so that the sum is the mean over all tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_share: ContextVar[float] = ContextVar("share_of_batch", default=1.0)


def share_of_batch() -> float:
    """Return the share of the batch's tokens that are in this process, 1 if all of them are."""
    return _share.get()


@contextlib.contextmanager
def only_a_share(share: float) -> Iterator[None]:
    """Set the share of the tokens of a batch for updates in this context, in (0, 1]."""
    token = _share.set(share)
    try:
        yield
    finally:
        _share.reset(token)
