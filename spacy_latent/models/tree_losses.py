"""What sentences, trees and labels are learned from: −log p of what is known of them.

Of a tree that is known in part, p is the sum over all trees that agree with what is known: their
log-partition less that of all trees. Of sentences each token has its own −log p, and so has the
label of each arc that is known with its label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from spacy.tokens import Doc
from torch import Tensor
from torch.nn import functional

from spacy_latent.errors import InfeasibleError
from spacy_latent.kernels.transfers import fetch, send, send_together
from spacy_latent.layers.labelled_trees import LabelledTrees
from spacy_latent.models.gold_trees import GoldTrees
from spacy_latent.models.latent_layer_model import Group, group_spans
from spacy_latent.models.parses import spaces_of, white_space, without_spaces
from spacy_latent.structures.dependency import DependencyTree


@dataclass
class Told:
    """Of a batch: sums of the losses in nats, and the docs with a sentence whose heads no tree of
    the structure has; they do not count."""

    trees: float = 0.0
    labels: float = 0.0
    starts: float = 0.0
    left_out: tuple[int, ...] = ()


def learn(
    module: LabelledTrees, rows: Tensor, docs: Sequence[Doc], gold: Sequence[GoldTrees]
) -> tuple[Tensor, None, Told]:
    """The loss of docs that have tokens, summed, ``(1,)``. rows: ``(N, width)``, of all their
    tokens."""
    told = Told()
    starts = _start_loss(module, rows, gold)
    sizes, spans = [len(doc) for doc in docs], [one.spans for one in gold]
    spaces = white_space(docs)
    padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
    trees, labels = rows.new_zeros(()), rows.new_zeros(())
    left_out: list[int] = []
    for group in group_spans(sizes, spans):
        places, lengths = send_together([group.rows, group.lengths], rows.device)
        known = _known(group, gold, module.structure)
        if not (known.heads >= 0).any():
            continue
        scores, words = module.read(padded[places], lengths)
        scores = without_spaces(module.structure, scores, spaces_of(group, spans, spaces))
        loss, bad = _tree_loss(module.structure, scores, lengths, known.heads)
        left_out += [group.members[b][0] for b in bad]
        trees = trees + loss
        labels = labels + _label_loss(module, words, known)
    told.trees, told.labels = float(trees.detach()), float(labels.detach())
    told.starts, told.left_out = float(starts.detach()), tuple(left_out)
    return (trees + labels + starts)[None], None, told


@dataclass
class _Known:
    """Of the B sentences of a group. heads: ``(B, n)``, 0 for the root, −1 where one is not known
    and at padding. labels: ``(B, n)``, −1 likewise."""

    heads: np.ndarray
    labels: np.ndarray


def _known(group: Group, gold: Sequence[GoldTrees], structure: DependencyTree) -> _Known:
    shape = tuple(group.rows.shape)
    heads, labels = np.full(shape, -1), np.full(shape, -1)
    for b, (d, s) in enumerate(group.members):
        one = gold[d]
        start, end = one.spans[s][:2]
        place, own = np.arange(start, end), one.heads[start:end]
        inside = (own >= start) & (own < end)
        found = np.where(own == place, 0, np.where(inside, own - start + 1, -1))
        if not structure.crosses:
            found[crossing(found)] = -1
        heads[b, : end - start] = found
        labels[b, : end - start] = np.where(found > 0, one.labels[start:end], -1)
    return _Known(heads, labels)


def crossing(heads: np.ndarray) -> np.ndarray:
    """Which tokens have an arc that crosses another when all are drawn above the sentence, that of
    the root from before the first token, ``(n,)`` bool.

    heads: ``(n,)``, 0 for the root, i for the i-th token, −1 for one that is not known.
    """
    crosses = np.zeros(len(heads), dtype=bool)
    (modifiers,) = np.nonzero(heads >= 0)
    ends = np.sort(np.stack([heads[modifiers], modifiers + 1]), 0)
    low, high = ends[:, :, None], ends[:, None, :]
    over = (low[0] < high[0]) & (high[0] < low[1]) & (low[1] < high[1])
    crosses[modifiers] = (over | over.T).any(1)
    return crosses


def _start_loss(module: LabelledTrees, rows: Tensor, gold: Sequence[GoldTrees]) -> Tensor:
    wanted = np.concatenate([one.starts for one in gold])
    firsts = np.cumsum([0, *(len(one.starts) for one in gold[:-1])])
    # That the first token starts a sentence is nothing to learn.
    wanted[firsts] = -1
    (known,) = np.nonzero(wanted >= 0)
    if not len(known):
        return rows.new_zeros(())
    scores = module.start_scores(rows[torch.from_numpy(known).to(rows.device)])
    targets = torch.from_numpy(wanted[known]).to(scores)
    return functional.binary_cross_entropy_with_logits(scores, targets, reduction="sum")


def _tree_loss(
    structure: DependencyTree, scores: Tensor, lengths: Tensor, heads: np.ndarray
) -> tuple[Tensor, list[int]]:
    """The loss summed over the items, and those that no tree agrees with."""
    allowed = np.ones(tuple(scores.shape), dtype=bool)
    b, m = np.nonzero(heads >= 0)
    allowed[b, :, m + 1] = False
    allowed[b, heads[b, m], m + 1] = True
    closed = send(torch.from_numpy(~allowed), scores.device)
    agreeing = scores.masked_fill(closed, -torch.inf)
    bad = _infeasible(structure, agreeing, lengths)
    sizes = fetch(lengths).numpy()
    known = (heads >= 0).sum(1)
    known[bad] = 0
    (rows,) = np.nonzero(known)
    if not len(rows):
        return scores.new_zeros(()), bad
    # In double precision: the difference of two large numbers.
    loss = structure.log_partition(scores[rows].double(), lengths[rows]).sum()
    whole = (known == sizes) & (known > 0)
    here = whole[b]
    loss = loss - scores[b[here], heads[b, m][here], m[here] + 1].double().sum()
    (partial,) = np.nonzero((known > 0) & ~whole)
    if len(partial):
        loss = loss - structure.log_partition(agreeing[partial].double(), lengths[partial]).sum()
    return loss.float(), bad


def _infeasible(structure: DependencyTree, scores: Tensor, lengths: Tensor) -> list[int]:
    try:
        structure.best_heads(scores, lengths)
    except InfeasibleError as error:
        return list(error.items)
    return []


def _label_loss(module: LabelledTrees, words: Tensor, known: _Known) -> Tensor:
    b, m = np.nonzero(known.labels >= 0)
    if not len(b):
        return words.new_zeros(())
    parts = (b, known.heads[b, m] - 1, m, known.labels[b, m])
    sent = send_together([torch.from_numpy(part) for part in parts], words.device)
    items, heads, modifiers, labels = sent
    scores = module.label_scores(words, items, heads, modifiers)
    return functional.cross_entropy(scores, labels, reduction="sum")
