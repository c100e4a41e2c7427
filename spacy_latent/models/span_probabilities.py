"""Probabilities of spans as entities, in the best sequence of tags or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spacy_latent.structures.linear_chain import LinearChain
from spacy_latent.structures.smoothed import smoothed_expectation
from spacy_latent.structures.tag_sequence import TagSequence

# Span with its label: first token, token after its last, number of the label.
Place = tuple[int, int, int]


class SpanProbabilities:
    """Probabilities of all labelled spans in a group of docs, under the learned distribution.

    See :func:`spacy_latent.models.tag_losses.probabilities`. A span is one run of tags. Its
    probability is that of its first tag, times the probability of each further tag given the
    previous one. A group takes time O(N·K²). Memory is O(N·K) for "crf" and "perceptron", and
    "quadratic" keeps every pair of tags. Then a span takes time in proportion to its length.

    Args:
        kind: name of the loss.
        chain: chain of BILUO tags, in the order of ``scheme_tags``.
        scores: ``(B, N, K)``.
        lengths: ``(B,)``.
    """

    def __init__(self, kind: str, chain: TagSequence, scores: Tensor, lengths: Tensor) -> None:
        self.lengths = lengths.tolist()
        self._mixture: list[dict[Place, float]] | None = None
        if kind == "sparsemap":
            self._mixture = _of_mixture(chain, scores, lengths)
            return
        if kind == "quadratic":
            of_tags, steps = _of_walk(chain, scores, lengths)
        else:
            of_tags, steps = _of_crf(chain, scores, lengths)
        count = (of_tags.shape[-1] - 1) // 4
        # "O", then B, I, L and U of each label.
        of_labels = of_tags[..., 1:].unflatten(-1, (count, 4)).cpu().numpy()
        self._begin, self._single = of_labels[..., 0], of_labels[..., 3]
        self._steps = {name: step.cpu().numpy() for name, step in steps.items()}

    def of(self, b: int, place: Place) -> float:
        """Return the probability of one span of the b-th doc."""
        start, end, label = place
        if self._mixture is not None:
            return self._mixture[b].get(place, 0.0)
        if end == start + 1:
            return float(self._single[b, start, label])
        names = ["BL"] if end == start + 2 else ["BI", *["II"] * (end - start - 3), "IL"]
        value = float(self._begin[b, start, label])
        for i, name in enumerate(names, start):
            value *= float(self._steps[name][b, i, label])
        return value

    def above(self, b: int, least: float) -> list[tuple[Place, float]]:
        """Return all spans of the b-th doc with at least this probability, the most probable first.

        Args:
            b: number of the doc.
            least: least probability, above 0. At most 1 / least of the spans begin at one token.
        """
        if self._mixture is not None:
            found = [(place, p) for place, p in self._mixture[b].items() if p >= least]
        else:
            found = self._grown(b, self.lengths[b], least)
        return sorted(found, key=lambda one: (-one[1], one[0]))

    def _grown(self, b: int, length: int, least: float) -> list[tuple[Place, float]]:
        """Extend spans token by token, and drop runs that are less probable than ``least``.

        A longer span is no more probable than the run it extends.
        """
        single, running = self._single[b, :length], self._begin[b, :length].copy()
        found = _places(single, 0, 1, least)
        steps = {name: step[b] for name, step in self._steps.items()}
        for size in range(2, length + 1):
            running = running[: length - size + 1]
            if not (running >= least).any():
                break
            # The step to the last token of such spans, from the one before.
            before = slice(size - 2, length - 1)
            close, go_on = ("BL", "BI") if size == 2 else ("IL", "II")
            found += _places(running * steps[close][before], 0, size, least)
            running = running * steps[go_on][before]
        return found


def _places(values: np.ndarray, start: int, size: int, least: float) -> list[tuple[Place, float]]:
    tokens, labels = np.nonzero(values >= least)
    return [
        ((start + i, start + i + size, label), float(values[i, label]))
        for i, label in zip(tokens.tolist(), labels.tolist())
    ]


def _steps(of_pairs: Tensor) -> dict[str, Tensor]:
    """Return the entries of ``(…, K, K)`` within each label, ``(…, labels)``."""
    count = (of_pairs.shape[-1] - 1) // 4
    begin, inside, last = (1 + 4 * torch.arange(count) + prefix for prefix in range(3))
    return {
        "BI": of_pairs[..., begin, inside],
        "BL": of_pairs[..., begin, last],
        "II": of_pairs[..., inside, inside],
        "IL": of_pairs[..., inside, last],
    }


def _of_crf(
    chain: TagSequence, scores: Tensor, lengths: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return marginals ``(B, N, K)``, and probabilities of tags given the previous one, in float64.

    The latter use sums over all continuations (Rabiner 1989, section III).
    """
    assert chain.bound is not None
    between, start, end = (part.double() for part in chain.bound)
    emissions = scores.double()
    top = emissions.amax(-1, keepdim=True)
    weight = (emissions - top).exp()
    # One factor for all transitions cancels in each step.
    factor = (between - between.amax()).exp()
    last = (end - end.amax()).exp()
    batch, positions, count = scores.shape
    after = last.expand(batch, count)
    follows: list[Tensor] = [after] * positions
    for i in range(positions - 2, -1, -1):
        reached = (weight[:, i + 1] * after) @ factor.T
        reached = reached / reached.amax(-1, keepdim=True).clamp_min(
            torch.finfo(torch.float64).tiny
        )
        inside = (i + 1 < lengths).to(reached.device)[:, None]
        after = torch.where(inside, reached, last)
        follows[i] = after
    following = torch.stack(follows, 1)
    ahead = weight[:, 1:] * following[:, 1:]
    total = ahead @ factor.T
    steps = {}
    tags = torch.arange(count)
    # Only the few steps within a label are kept.
    rows = {name: place for name, place in _steps(tags[:, None] * count + tags).items()}
    for name, place in rows.items():
        first, second = place // count, place % count
        below = total[..., first]
        step = factor[first, second] * ahead[..., second] / below.where(below > 0, 1.0)
        steps[name] = step.where(below > 0, 0.0)
    marginals = chain.bind(between, start, end).marginals(emissions, lengths)
    return marginals, steps


def _of_walk(
    chain: TagSequence, scores: Tensor, lengths: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the same for the walk that quadratic smoothing induces."""
    pairs = chain.chain_scores(scores, lengths)
    walk = smoothed_expectation(LinearChain(), pairs, lengths, "quadratic").double()
    of_tags = walk.sum(2)
    before = of_tags[:, :-1, :, None]
    return of_tags, _steps(walk[:, 1:] / before.where(before > 0, 1.0))


def _of_mixture(chain: TagSequence, scores: Tensor, lengths: Tensor) -> list[dict[Place, float]]:
    """Return for each doc the weight of SparseMAP's sequences that have each span."""
    solution = LinearChain().sparsemap(chain.chain_scores(scores, lengths), lengths)
    sequences = solution.atoms.amax(3).argmax(-1).cpu().numpy()
    weights = solution.weights.cpu().numpy()
    found: list[dict[Place, float]] = []
    for b, length in enumerate(lengths.tolist()):
        own: dict[Place, float] = {}
        for sequence, weight in zip(sequences[:, b, :length], weights[:, b].tolist()):
            for place in spans_of_tags(sequence) if weight > 0 else ():
                own[place] = own.get(place, 0.0) + weight
        found.append(own)
    return found


def spans_of_tags(tags: Sequence[int] | np.ndarray) -> list[Place]:
    """Return the entities of a valid sequence of BILUO tags, numbered as in ``scheme_tags``."""
    found, start = [], 0
    for i, tag in enumerate(np.asarray(tags).tolist()):
        if not tag:
            continue
        label, prefix = divmod(tag - 1, 4)
        if prefix in (0, 3):
            start = i
        if prefix in (2, 3):
            found.append((start, i + 1, label))
    return found


__all__ = ["Place", "SpanProbabilities", "spans_of_tags"]
