"""Rehearsal of a chain of tags: cross-entropy to the chain of an earlier model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from thinc.api import torch2xp, xp2torch
from torch import Tensor

from spacy_latent.kernels.core.gpu_transfers import send_together
from spacy_latent.models.crf_tagger import TagScores
from spacy_latent.models.tag_groups import bound_chain


def rehearsal_gradient(
    found: TagScores, teacher: TagScores, tags: Sequence[str], sizes: Sequence[int]
) -> tuple[float, TagScores]:
    """Return the cross-entropy of the chain to the chain of a teacher, and its gradient.

    It is in nats, summed over docs. The teacher has the same tags, or only the first ones. The
    gradient is the difference between the marginals of both chains.
    """
    known = teacher.emissions.shape[1]
    own = first_tags(found, known)
    value, uses = _expected_uses(own, tags[:known], sizes)
    _, wanted = _expected_uses(teacher, tags[:known], sizes)
    d_emissions = torch.zeros_like(xp2torch(found.emissions))
    d_emissions[:, :known] = uses[0] - wanted[0]
    difference = uses[1] - wanted[1]
    d_transitions = torch.zeros_like(xp2torch(found.transitions))
    d_transitions[:known, :known] = difference[:known]
    d_transitions[len(tags) :, :known] = difference[known:]
    scored = (wanted[0] * xp2torch(own.emissions)).sum()
    scored = scored + (wanted[1] * xp2torch(own.transitions)).sum()
    gradient = TagScores(torch2xp(d_emissions), torch2xp(d_transitions))  # type: ignore[arg-type]
    # Rounding may make the difference of a nearly certain teacher negative.
    return max(value - float(scored), 0.0), gradient


def first_tags(found: TagScores, known: int) -> TagScores:
    """Return the scores of the first tags, and of their transitions."""
    transitions = xp2torch(found.transitions)
    count = transitions.shape[1]
    rows = [*range(known), count, count + 1]
    kept = torch2xp(transitions[rows][:, :known].contiguous())
    return TagScores(found.emissions[:, :known], kept)  # type: ignore[arg-type]


def _expected_uses(
    found: TagScores, tags: Sequence[str], sizes: Sequence[int]
) -> tuple[float, tuple[Tensor, Tensor]]:
    emissions = xp2torch(found.emissions).detach()
    transitions = xp2torch(found.transitions).detach()
    sums = bound_chain(transitions, tags).batch_sums(emissions, torch.tensor(sizes))
    uses = sums.uses(np.ones(len(sizes)))
    made = [torch.from_numpy(part).to(emissions.dtype) for part in uses[:2]]
    of_emissions, of_transitions = send_together(made, emissions.device)
    return float(sums.log_partition.sum()), (of_emissions, of_transitions)
