"""Structures with one label for each part, reduced to those without labels.

For scores ``(B, *parts, L)``, the sums over labelled structures are the sums for
``scores.logsumexp(-1)``. The best one is the best for ``scores.amax(-1)``, each part with its best
label. The k best take another step, defined here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spacy_latent.errors import InvalidScores, check_whole
from spacy_latent.structures.base import Structure
from spacy_latent.structures.results import TopK
from spacy_latent.structures.tag_sequence import TagSequence


def top_k_labelled(structure: Structure, scores: Tensor, lengths: Tensor, k: int) -> TopK:
    """Return the k best labelled structures by score, exact, ``(k, B, *parts, L)``.

    Each is one of the k best labellings of one of the k structures that are best with their best
    labels. For any other structure, k labelled ones are at least as good as all of its own
    labellings.

    Args:
        scores: ``(B, *parts, L)``; −inf forbids a label of a part.
        lengths: as the structure takes them.
    """
    check_whole("top_k_labelled", error=InvalidScores, k=k)
    expected = 2 + structure.part_axes
    if not isinstance(scores, Tensor) or scores.dim() != expected or not scores.shape[-1]:
        shape = f" of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else ""
        raise InvalidScores(
            f"top_k_labelled: scores are {type(scores).__name__}{shape}; expected a tensor with "
            f"{expected} axes, (B, parts, labels), at least one label."
        )
    exact = scores.detach().double()
    bare = structure.top_k(exact.amax(-1), lengths, k)
    count, batch = bare.scores.shape
    chosen = (bare.z > 0).flatten(2)
    sizes = chosen.sum(2)
    place = chosen.int().argsort(dim=2, descending=True, stable=True)
    place = place[:, :, : int(sizes.max()) if sizes.numel() else 0]
    rows = exact.flatten(1, -2).expand(count, -1, -1, -1)
    labels = scores.shape[-1]
    own = rows.gather(2, place[..., None].expand(-1, -1, -1, labels))
    tags, totals = TagSequence().top_k_tags(own.flatten(0, 1), sizes.flatten(), k)
    # Score of a labelling less the score of the best labelling of its structure.
    lost = (totals - totals[:1]).to(exact.device).view(k, count, batch)
    best = (bare.scores + lost).flatten(0, 1).topk(k, 0)
    z = torch.zeros((k, batch, rows.shape[2], labels), dtype=scores.dtype, device=scores.device)
    item = torch.arange(batch, device=scores.device)
    found = tags.to(scores.device).long().view(k, count, batch, -1)
    found = found[best.indices // count, best.indices % count, item]
    places = place[best.indices % count, item]
    known = (found >= 0) & ~best.values.isneginf()[..., None]
    rank, row = known.nonzero(as_tuple=True)[:2]
    z[rank, row, places[known], found[known]] = 1.0
    return TopK(z.view(k, *scores.shape), best.values).to(scores.dtype)
