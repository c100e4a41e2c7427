"""Docs in groups of similar length, and the chain of tags that their losses share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from spacy_latent.kernels.core.gpu_transfers import send_together
from spacy_latent.models.span_groups import Group, group_spans
from spacy_latent.structures.tag_sequence import TagSequence, allowed_transitions


def group_docs(sizes: Sequence[int]) -> list[Group]:
    """Return the docs that have tokens, each as one span, in groups of similar length."""
    return group_spans(sizes, [[(0, size)] if size else [] for size in sizes])


def lengths_on(sizes: Sequence[int], device: torch.device) -> Tensor:
    """Return sizes as a tensor ``(B,)`` int64 on a device."""
    return send_together([torch.from_numpy(np.array(sizes, dtype="int64"))], device)[0]


def bound_chain(transitions: Tensor, tags: Sequence[str]) -> TagSequence:
    """Return sequences of BILUO tags with learned scores ``(K + 2, K)`` of neighbours."""
    count = len(tags)
    scores = transitions + _allowed(tuple(tags), transitions.dtype, transitions.device)
    return TagSequence().bind(scores[:count], scores[count], scores[count + 1])


@lru_cache(maxsize=32)
def _allowed(tags: tuple[str, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return 0 for neighbours that the scheme allows, else −inf, ``(K + 2, K)``."""
    between, start, end = allowed_transitions(tags, "biluo")
    joined = torch.cat([between, start[None], end[None]]).to(dtype)
    return send_together([joined], device)[0]


class ScoredTags(Protocol):
    """Scores of a group of docs.

    Attributes:
        chain: chain of BILUO tags, in the order of ``scheme_tags``.
        scores: ``(B, N, K)``.
        lengths: ``(B,)``.
    """

    chain: TagSequence
    scores: Tensor
    lengths: Tensor
