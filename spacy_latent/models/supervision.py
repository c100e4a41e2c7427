"""Gold structures of a batch: what a latent layer learns from directly, where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from spacy.training import Example
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.estimators.base import Draw
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.structures.base import Structure
from spacy_latent.structures.constituency_tree import ConstituencyTree


@dataclass
class Supervision:
    """gold: for each doc, for each of its spans, its structure as annotations have it, or None.

    weight: of the mean of −log p(gold) in nats per token that has gold.
    teacher_forcing: whether the composer gets the gold structure in place of the drawn ones.
    nats: the mean, once the layer has run. left_out: how many gold structures are not in the set
        that the layer chooses from; they do not count.
    """

    gold: list[list[np.ndarray | None]]
    weight: float
    teacher_forcing: bool
    nats: float = 0.0
    left_out: int = 0

    def encode(
        self, structure: Structure, members: list[tuple[int, int]], lengths: Tensor, draw: Draw
    ) -> tuple[Tensor, Tensor]:
        """Gold ``(B, *parts)`` of the spans of a group, and which are known, ``(B,)`` bool; what is
        drawn where they are not."""
        drawn = draw.z[0].detach()
        z, known = drawn.clone(), torch.zeros(len(members), dtype=torch.bool)
        for b, ((doc, span), length) in enumerate(zip(members, lengths.tolist())):
            gold = self.gold[doc][span]
            if gold is not None:
                try:
                    array = torch.as_tensor(structure.encode(gold, length))
                except ValueError:
                    self.left_out += 1
                    continue
                z[b] = 0.0
                z[b][tuple(slice(0, size) for size in array.shape)] = array.to(z)
                known[b] = True
        known = known.to(z.device)
        inside = _is_member(structure, z, lengths) | ~known
        self.left_out += int((~inside).sum())
        known = known & inside
        return torch.where(known.view(-1, *[1] * structure.part_axes), z, drawn), known


def _is_member(structure: Structure, z: Tensor, lengths: Tensor) -> Tensor:
    """Which of ``(B, *parts)`` are in the set, ``(B,)`` bool: those that are the best where their
    parts count for them and all others against."""
    if structure.parts == "merges":
        return torch.ones(len(z), dtype=torch.bool, device=z.device)
    linear = structure if structure.linear else ConstituencyTree()
    return (linear.map(2 * z - 1, lengths) == z).flatten(1).all(1)


def supervise(
    supervision: Supervision,
    latent: LatentLayer,
    members: list[tuple[int, int]],
    vectors: Tensor,
    lengths: Tensor,
    draw: Draw,
    scores: Tensor,
) -> tuple[Draw, Tensor, int]:
    """What to compose, the sum of −log p(gold), and the number of tokens that have gold."""
    gold, known = supervision.encode(latent.structure, members, lengths, draw)
    structure = latent.scorer.bind(latent.structure, vectors, lengths, latent.temperature)
    log_prob = structure.log_prob(gold, scores, lengths)
    if supervision.teacher_forcing:
        here = known.view(1, -1, *[1] * structure.part_axes)
        draw = replace(draw, z=torch.where(here, gold, draw.z))
    nats = -torch.where(known, log_prob, 0.0).sum()
    return draw, nats, int(lengths[known].sum())


def gold_structures(
    examples: Sequence[Example],
    spans: list[list[tuple[int, ...]]],
    component: str,
    structure: Structure,
) -> list[list[np.ndarray | None]]:
    """What the references say of each span: ``reference._.latent[component]`` for the same tokens,
    or for dependency trees the heads of a parsed reference."""
    return [
        [_gold(example, offsets, component, structure) for offsets in doc_spans]
        for example, doc_spans in zip(examples, spans, strict=True)
    ]


def _gold(
    example: Example, offsets: tuple[int, ...], component: str, structure: Structure
) -> np.ndarray | None:
    reference = example.reference
    if len(reference) != len(example.predicted):
        return None
    kind = structure.parts if structure.annotation == "parts" else structure.annotation
    annotation = reference._.latent.get(component)
    for span in annotation.spans if annotation is not None else ():
        here = (span.start, span.end, span.other_start, span.other_end)[: len(offsets)]
        if here == offsets:
            if span.kind != kind:
                raise LatentError(
                    f"The reference has {span.kind} for {component!r} and {structure.name} is made "
                    f"of {kind}. Write annotations of {kind}, or set supervision = 0."
                )
            return span.decoded
    if kind != "heads" or not reference.has_annotation("HEAD"):
        return None
    start, end = offsets
    heads = [token.head.i for token in reference[start:end]]
    if not all(start <= head < end for head in heads):
        return None
    return np.array([0 if h == i else h - start + 1 for i, h in enumerate(heads, start)])
