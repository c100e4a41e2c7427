"""Losses of sentences, trees and labels: −log p of their annotation.

The loss of a tree is the log-partition of all trees, minus the log-partition of the trees that
agree with the known heads. Each token whose sentence start is known adds −log p(start or not). Each
known arc with a label adds −log p(label). An objective of the words is added if the model has one,
see :mod:`spacy_latent.models.tree_evidence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from spacy.tokens import Doc
from torch import Tensor
from torch.nn import functional

from spacy_latent.annotations.heads import crossing
from spacy_latent.kernels.core.gpu_transfers import fetch, send, send_together
from spacy_latent.layers.labelled_trees import LabelledTrees
from spacy_latent.models.evidence_bound import words_of
from spacy_latent.models.gold_trees import GoldTrees
from spacy_latent.models.parses import spaces_of, without_spaces
from spacy_latent.models.sentences import white_space
from spacy_latent.models.span_groups import Group, group_spans, no_loss
from spacy_latent.models.tree_evidence import Shares, TreeWordObjective
from spacy_latent.structures.dependency import DependencyTree
from spacy_latent.structures.feasibility import infeasible_items


@dataclass
class TreeLosses:
    """Sums of the losses of a batch in nats.

    Attributes:
        words: loss of the words of each doc without its weights, ``(D,)`` float64, or None.
        left_out: docs with a sentence whose heads no tree of the structure has; they do not count.
    """

    trees: float = 0.0
    labels: float = 0.0
    starts: float = 0.0
    words: np.ndarray | None = None
    left_out: tuple[int, ...] = ()


def batch_loss(
    module: LabelledTrees,
    rows: Tensor,
    docs: Sequence[Doc],
    gold: Sequence[GoldTrees],
    shares: Shares | None = None,
) -> tuple[tuple[Tensor], None, TreeLosses]:
    """Compute the summed loss of docs that have tokens.

    Args:
        rows: ``(N, width)``, for all tokens of the docs.
        shares: weights of the words, if the module learns from them.

    Returns:
        The loss in a tuple, None for no penalty, and the parts of the loss, as
        ``LatentShim.begin_update`` expects them.
    """
    starts = _start_loss(module, rows, gold)
    sizes, spans = [len(doc) for doc in docs], [one.spans for one in gold]
    spaces = white_space(docs)
    padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
    words = None if shares is None else _Words(module, docs, shares)
    trees, labels, of_words = no_loss(rows), rows.new_zeros(()), rows.new_zeros(())
    left_out: list[int] = []
    for group in group_spans(sizes, spans):
        places, lengths = group.on(rows.device)
        known = _known(group, gold, module.structure)
        if words is None and not (known.heads >= 0).any():
            continue
        scores, encoded = module.read(padded[places], lengths)
        scores = without_spaces(module.structure, scores, spaces_of(group, spans, spaces))
        agreeing = _agreeing(scores, known.heads)
        loss, bad = _tree_loss(module.structure, scores, agreeing, lengths, known.heads)
        left_out += [group.members[b][0] for b in bad]
        trees = trees + loss
        known.labels[bad] = -1
        labels = labels + _label_loss(module, encoded, known)
        if words is not None:
            arcs = scores, agreeing, lengths
            of_words = of_words + words.loss(group, *arcs, known.heads, bad)
    of_trees, of_labels, of_starts = (float(part.detach()) for part in (trees, labels, starts))
    lost = None if words is None else words.lost
    parts = TreeLosses(of_trees, of_labels, of_starts, lost, tuple(left_out))
    return (trees + labels + starts + of_words,), None, parts


class _Words:
    """Losses of the words of docs; ``lost`` has them without weights, ``(D,)`` float64."""

    def __init__(self, module: LabelledTrees, docs: Sequence[Doc], shares: Shares) -> None:
        evidence: Any = module.evidence
        self.evidence: TreeWordObjective = evidence
        self.shares = shares
        # The last element is for padding.
        self.hashes = np.append(words_of(docs, self.evidence.decoder.attr), 0)
        self.lost = np.zeros(len(docs))

    def loss(
        self,
        group: Group,
        scores: Tensor,
        agreeing: Tensor,
        lengths: Tensor,
        heads: np.ndarray,
        bad: Sequence[int],
    ) -> Tensor:
        """Return the weighted sum of the losses of the sentences of a group, ``()`` float32.

        Sentences that no tree agrees with do not count.
        """
        kept = np.setdiff1d(np.arange(len(group.members)), bad)
        known = (heads[kept] >= 0).any(1)
        share = np.where(known, self.shares.labelled, self.shares.unlabelled)
        parts = [kept, self.hashes[group.rows.numpy()[kept]], share]
        rows, words, shares = send_together([torch.from_numpy(x) for x in parts], scores.device)
        given = scores[rows], agreeing[rows], lengths[rows], words
        each = -self.evidence(*given, self.shares.kl)
        docs = [group.members[b][0] for b in kept]
        np.add.at(self.lost, docs, fetch(each.detach()).numpy())
        return (shares * each).sum().float()


@dataclass
class _Known:
    """Known heads and labels of the B sentences of a group.

    Attributes:
        heads: ``(B, n)``, 0 for the root, −1 if not known and at padding.
        labels: ``(B, n)``, −1 if not known and at padding.
    """

    heads: np.ndarray
    labels: np.ndarray


def _known(group: Group, gold: Sequence[GoldTrees], structure: DependencyTree) -> _Known:
    heads, labels = np.full((2, *group.rows.shape), -1)
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


def _start_loss(module: LabelledTrees, rows: Tensor, gold: Sequence[GoldTrees]) -> Tensor:
    wanted = np.concatenate([one.starts for one in gold])
    firsts = np.cumsum([0, *(len(one.starts) for one in gold[:-1])])
    # The first token always starts a sentence.
    wanted[firsts] = -1
    (known,) = np.nonzero(wanted >= 0)
    if not len(known):
        return rows.new_zeros(())
    scores = module.start_scores(rows[torch.from_numpy(known).to(rows.device)])
    targets = torch.from_numpy(wanted[known]).to(scores)
    return functional.binary_cross_entropy_with_logits(scores, targets, reduction="sum")


def _agreeing(scores: Tensor, heads: np.ndarray) -> Tensor:
    """Return the scores with −inf for the arcs that the known heads exclude."""
    allowed = np.ones(tuple(scores.shape), dtype=bool)
    b, m = np.nonzero(heads >= 0)
    allowed[b, :, m + 1] = False
    allowed[b, heads[b, m], m + 1] = True
    closed = send(torch.from_numpy(~allowed), scores.device)
    return scores.masked_fill(closed, -torch.inf)


def _tree_loss(
    structure: DependencyTree, scores: Tensor, agreeing: Tensor, lengths: Tensor, heads: np.ndarray
) -> tuple[Tensor, list[int]]:
    """Return the loss summed over the items, and the items that no tree agrees with."""
    b, m = np.nonzero(heads >= 0)
    bad = infeasible_items(structure.best_heads, agreeing, lengths)
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


def _label_loss(module: LabelledTrees, words: Tensor, known: _Known) -> Tensor:
    b, m = np.nonzero(known.labels >= 0)
    if not len(b):
        return words.new_zeros(())
    parts = (b, known.heads[b, m] - 1, m, known.labels[b, m])
    *arcs, labels = send_together([torch.from_numpy(part) for part in parts], words.device)
    return functional.cross_entropy(module.label_scores(words, *arcs), labels, reduction="sum")
