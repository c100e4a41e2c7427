"""Rewards of the structures of a batch of texts, for estimators that use them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from spacy.training import Example
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.estimators.rewards import Reward
from spacy_latent.models.latent_layer_model import LatentBatch
from spacy_latent.models.supervision import gold_structures
from spacy_latent.structures.base import Structure


def rewards_of(
    reward: Reward,
    examples: Sequence[Example],
    batch: LatentBatch,
    structure: Structure,
    component: str,
    like: Tensor,
) -> Tensor:
    """Return the rewards ``(K, D)`` in the dtype of ``like`` ``(K, D)``.

    The reward of a text with several spans is their mean; without spans it is 0.

    Args:
        component: name under which references have structures.
        like: tensor of the result's shape, dtype and device.
    """
    gold: list[list[np.ndarray | None]] = [[None] * len(spans) for spans in batch.spans]
    if reward.needs_gold:
        gold = gold_structures(examples, batch.spans, component, structure)
    total = torch.zeros_like(like)
    counts = torch.tensor([max(len(spans), 1) for spans in batch.spans], device=like.device)
    for group, output in zip(batch.groups, batch.outputs):
        z = output.draw.z
        known = [gold[doc][span] for doc, span in group.members]
        made = reward(structure, z, group.lengths, known)
        if tuple(made.shape) != tuple(z.shape[:2]):
            raise LatentError(
                f"{component}: {reward.name} returned rewards of shape {tuple(made.shape)}; "
                f"expected {tuple(z.shape[:2])}, a reward for each structure of each text."
            )
        doc = torch.tensor(group.docs, device=like.device)
        total = total.index_add(1, doc, made.detach().to(total))
    return total / counts
