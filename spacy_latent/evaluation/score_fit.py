"""Fit of a calibration to the scores of chains of tags, from annotation.

The scores are divided by a temperature (Guo et al. 2017). Each label may get a bias on the tags
that begin an entity. The scores are linear in both (in 1 / temperature), so the component's own
loss is convex in them. At its minimum, the expected scores and the expected numbers of entities
equal the values in the annotation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spacy_latent.evaluation.calibration_fit import FOLDS, SPREAD, STEPS, gain_of
from spacy_latent.models.tag_groups import bound_chain
from spacy_latent.models.tag_losses import TagLoss
from spacy_latent.pipeline.learnt_calibration import beginning_tags
from spacy_latent.structures.feasibility import infeasible_items
from spacy_latent.structures.tag_sequence import TagSequence


@dataclass
class ScoredDocs:
    """Scores of docs with similar length, and the tags that their annotation allows.

    Attributes:
        scores: ``(B, N, K)``.
        allowed: ``(B, N, K)`` bool.
        lengths: ``(B,)``.
        counts: ``(B,)`` float64, 1 if a sequence agrees with the annotation, else 0.
    """

    docs: list[int]
    scores: Tensor
    lengths: Tensor
    allowed: Tensor
    counts: Tensor


class ScoreFit:
    """Fit of temperature and biases on docs with annotation.

    Args:
        loss: loss of the component. Its ``calibration_loss`` is minimised.
        transitions: ``(K + 2, K)``.
        folds: fold of each doc, ``(D,)``.
    """

    def __init__(
        self,
        loss: TagLoss,
        tags: Sequence[str],
        transitions: Tensor,
        groups: Sequence[ScoredDocs],
        folds: np.ndarray,
    ) -> None:
        self.loss = loss.calibration_loss
        self.tags = tags
        self.transitions = transitions.double()
        self.groups = groups
        self.folds = torch.from_numpy(folds)
        self.size = sum(len(group.docs) for group in groups)
        places = [place for group in groups for place in group.docs]
        self.order = torch.tensor(places).argsort()
        # Docs that do not count or lack annotation have a loss of 0, and are left out of means.
        self.counted = self._in_order([(group.counts > 0) & _told(group) for group in groups])
        self.begins = beginning_tags((len(tags) - 1) // 4).double()

    def losses(self, point: Tensor) -> Tensor:
        """Return the loss of each doc, ``(D,)`` float64.

        Args:
            point: logarithm of 1 / temperature, and the biases or no biases, ``(1 + L,)`` or
                ``(1,)``.
        """
        scale = point[0].exp()
        shift = point[1:] @ self.begins if len(point) > 1 else point.new_zeros(())
        chain = bound_chain(self.transitions * scale, self.tags)
        values = []
        for group in self.groups:
            # Scores of −inf stay −inf, and have no gradient.
            is_open = ~group.scores.isneginf()
            own = torch.where(is_open, group.scores, 0.0) * scale + shift
            scores = torch.where(is_open, own, -torch.inf)
            each = self.loss.losses(chain, scores, group.lengths, group.allowed)
            values.append(each * group.counts)
        return self._in_order(values)

    def _in_order(self, values: Sequence[Tensor]) -> Tensor:
        """Return the values of all docs in their order, ``(D,)``."""
        return torch.cat(list(values))[self.order]

    def best(self, biases: bool, weights: Tensor, start: Tensor | None = None) -> Tensor:
        """Return the point that minimises the sum of the losses and of the penalty towards zero.

        Args:
            weights: weights of the docs, ``(D,)``.
            start: point at which the search begins; None for zero.
        """
        count = len(self.begins) if biases else 0
        point = torch.zeros(1 + count, dtype=torch.float64)
        if start is not None:
            point += start
        point.requires_grad_()
        search = torch.optim.LBFGS([point], max_iter=STEPS, line_search_fn="strong_wolfe")

        def value() -> Tensor:
            search.zero_grad()
            total = (self.losses(point) * weights).sum()
            total = total + 0.5 * (point / SPREAD).square().sum()
            total.backward()
            return total

        search.step(value)
        return point.detach()

    def cross_fit(self, start: Tensor) -> tuple[list[Tensor], Tensor]:
        """Fit the point on all folds but one, in turn.

        Args:
            start: point at which the search begins, with or without biases.

        Returns:
            The point of each fold, and the loss of each doc at the point fitted on the other folds,
            ``(D,)``.
        """
        found = torch.zeros(self.size, dtype=torch.float64)
        points = []
        for k in range(FOLDS):
            mine = self.folds == k
            point = self.best(len(start) > 1, (~mine).double(), start)
            points.append(point)
            if mine.any():
                with torch.no_grad():
                    found[mine] = self.losses(point)[mine]
        return points, found

    def choose(self, biases: bool | None) -> tuple[Tensor, dict[str, float]]:
        """Choose the point, and return it with mean losses by name.

        The losses are means over the docs that count. "as trained" is the loss without calibration.
        If ``biases`` is None, "temperature" and "temperature and biases" are losses of held-out
        docs, with calibrations fitted on the other folds. Otherwise "calibrated" is the loss of the
        same docs at the point.

        Args:
            biases: whether labels get biases. None for biases if they reduce the mean loss of
                held-out docs, in five folds, by more than the standard error of the difference.
        """
        everything = torch.ones(self.size, dtype=torch.float64)
        with torch.no_grad():
            plain = self.losses(torch.zeros(1, dtype=torch.float64))
        mean_losses = {"as trained": float(plain[self.counted].mean())}
        if biases is None:
            zero = torch.zeros(1 + len(self.begins), dtype=torch.float64)
            one, several = (self.cross_fit(start)[1][self.counted] for start in (zero[:1], zero))
            biases = gain_of(one.numpy(), several.numpy()).is_sure
            mean_losses["temperature"] = float(one.mean())
            mean_losses["temperature and biases"] = float(several.mean())
            return self.best(biases, everything), mean_losses
        point = self.best(biases, everything)
        with torch.no_grad():
            mean_losses["calibrated"] = float(self.losses(point)[self.counted].mean())
        return point, mean_losses


def _told(group: ScoredDocs) -> Tensor:
    """Return which docs have annotation that rules out some tag, ``(B,)`` bool."""
    return (~group.allowed & ~group.scores.isneginf()).flatten(1).any(1)


def feasible(
    chain: TagSequence, scores: Tensor, lengths: Tensor, allowed: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the tags that annotation allows, and which docs count.

    If no sequence agrees with a doc's annotation, all tags are allowed and the doc does not count.
    """
    counts = torch.ones(len(lengths), dtype=torch.float64)
    agreeing = scores.masked_fill(~allowed, -torch.inf)
    bad = infeasible_items(chain.best_tags, agreeing, lengths)
    if bad:
        allowed = allowed.clone()
        allowed[bad] = True
        counts[bad] = 0.0
    return allowed, counts
