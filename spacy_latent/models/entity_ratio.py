"""Expected entity ratio (Effland and Collins 2021).

If a few entities are annotated and nothing is said about other tokens, a model in which every token
is in an entity agrees with the annotation. This loss holds the expected share of tokens in entities
near a given one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from thinc.api import torch2xp, xp2torch
from torch.nn.utils.rnn import pad_sequence

from spacy_latent.kernels.transfers import fetch_together, send_together
from spacy_latent.models.crf_tagger import TagScores
from spacy_latent.models.entity_counts import batch_sums
from spacy_latent.models.tag_losses import bound_chain


@dataclass(frozen=True)
class EntityRatio:
    """Settings of the loss.

    Attributes:
        expected: share of tokens in entities.
        tolerance: largest difference from it that costs nothing.
        weight: cost in nats for each text and each unit of the difference beyond the tolerance.
    """

    expected: float
    tolerance: float
    weight: float


@dataclass
class RatioLoss:
    """The loss of several texts together.

    Attributes:
        share: the model's expected share of tokens in entities, over all texts.
        loss: in nats.
        emissions: gradient, ``(T, K)`` float64.
        transitions: gradient, ``(K + 2, K)`` float64.
    """

    share: float
    loss: float
    emissions: np.ndarray
    transitions: np.ndarray


def ratio_loss(
    emissions: np.ndarray,
    transitions: np.ndarray,
    tags: Sequence[str],
    sizes: Sequence[int],
    ratio: EntityRatio,
) -> RatioLoss:
    """Return weight · texts · max(0, |share − expected| − tolerance) and its gradient.

    The share is the expected one of tokens whose tag is not the first, "O", over all texts
    together. The gradient consists of covariances of tags with the parts of the chain. It is
    computed only outside of the tolerance.

    Args:
        emissions: ``(T, K)``, the texts one after the other.
        transitions: ``(K + 2, K)``, without the scores of −inf that BILUO adds.
        tags: names of the tags.
        sizes: numbers of tokens of the texts.
        ratio: the settings.
    """
    given = torch.from_numpy(transitions.astype(np.float64))
    nothing = np.zeros(emissions.shape), np.zeros(transitions.shape)
    count = int(np.sum(sizes))
    if not count:
        return RatioLoss(0.0, 0.0, *nothing)
    sums = batch_sums(bound_chain(given, tags), [emissions.astype(np.float64)], sizes)
    outside = sums.uses(np.ones(len(sizes)))[0][:, 0].sum()
    share = 1.0 - float(outside) / count
    excess = abs(share - ratio.expected) - ratio.tolerance
    if excess <= 0:
        return RatioLoss(share, 0.0, *nothing)
    weight = ratio.weight * len(sizes)
    rows, shared = torch.from_numpy(emissions.astype(np.float64)), given
    with torch.enable_grad():
        rows, shared = rows.requires_grad_(), shared.requires_grad_()
        padded = pad_sequence(list(rows.split([int(size) for size in sizes])), batch_first=True)
        lengths = torch.tensor([int(size) for size in sizes])
        marginals = bound_chain(shared, tags).marginals(padded, lengths)
        found = torch.autograd.grad(marginals[:, :, 0].sum(), (rows, shared))
    slope = -weight * np.sign(share - ratio.expected) / count
    return RatioLoss(share, weight * excess, *(slope * part.numpy() for part in found))


def add_ratio_loss(
    found: TagScores,
    gradient: TagScores,
    tags: Sequence[str],
    sizes: Sequence[int],
    chosen: Sequence[int],
    ratio: EntityRatio,
) -> tuple[float, TagScores]:
    """Return the loss of some texts, and ``gradient`` with their gradient added.

    Args:
        found: scores of all texts.
        gradient: gradient for these scores.
        tags: names of the tags.
        sizes: numbers of tokens of all texts.
        chosen: places of the texts that the loss is of.
        ratio: the settings.
    """
    emissions, transitions = xp2torch(found.emissions), xp2torch(found.transitions)
    given = fetch_together([emissions.detach(), transitions.detach()])
    ends = np.cumsum(sizes)
    rows = np.concatenate([np.arange(ends[d] - sizes[d], ends[d]) for d in chosen])
    own = [sizes[d] for d in chosen]
    scores = given[0].numpy()[rows], given[1].numpy()
    made = ratio_loss(scores[0], scores[1], tags, own, ratio)
    if not made.loss:
        return 0.0, gradient
    more = torch.zeros(given[0].shape, dtype=torch.float64)
    more[torch.from_numpy(rows)] = torch.from_numpy(made.emissions)
    slopes = [more.to(given[0].dtype), torch.from_numpy(made.transitions).to(given[1].dtype)]
    sent = send_together(slopes, emissions.device)
    before = xp2torch(gradient.emissions), xp2torch(gradient.transitions)
    added = [torch2xp(a + b) for a, b in zip(before, sent)]
    return made.loss, TagScores(added[0], added[1])  # type: ignore[arg-type]


__all__ = ["EntityRatio", "RatioLoss", "add_ratio_loss", "ratio_loss"]
