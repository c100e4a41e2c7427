"""Sentences, trees and labels of a batch of docs from their vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from spacy.tokens import Doc
from torch import Tensor

from spacy_latent.annotations import SpanStructure
from spacy_latent.annotations.span_structure import LEAST_IN_SETS
from spacy_latent.interventions import Intervention
from spacy_latent.layers.batch_interventions import (
    BatchInterventions,
    constrained_scores,
    naming_interventions,
)
from spacy_latent.layers.labelled_trees import LabelledTrees
from spacy_latent.models.added_labels import IMPOSSIBLE
from spacy_latent.models.interventions import interventions_of
from spacy_latent.models.sentences import (
    Bounds,
    find_all_sentences,
    log_of_all_bounds,
    spaces_of,
    white_space,
)
from spacy_latent.models.span_groups import Group, group_spans
from spacy_latent.structures.dependency import DependencyTree

# Order of labels in the names of a SpanStructure: the label of roots, the learned labels, and the
# label of white space.
ROOT = 0
# Map from probabilities of arcs ``(A,)`` and places of their labels ``(A,)`` to confidences.
ArcConfidences = Callable[[np.ndarray, np.ndarray], np.ndarray]
# For each sentence its arcs, one in a row of int32, and their confidences, float32.
ArcsOfSentences = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Request:
    """Requested annotation of docs, see the component ``latent_parser``.

    Attributes:
        names: the label of roots, the labels that the module scores, and the label of white space.
        threshold: least probability of annotated parts that are not of the best tree, before their
            map to confidences.
        untrained: number of the last labels that were added and not trained yet.
        temperature, label_temperature: divisors of the scores of arcs and labels, of a calibration.
        confidences: map of the probabilities of arcs, each with its most probable label, or None.
            The probabilities of labels given the arc stay as they are.
        least_of_set: least confidence of an arc in the set of possible arcs, or None for no set.
        lowest_of_set: lower bound on the probability, before the map, of the arcs in the set.
    """

    names: tuple[str, ...]
    level: str = "map"
    threshold: float = 0.01
    alternatives: int = 0
    max_length: int = 512
    asked: Intervention | None = None
    untrained: int = 0
    temperature: float = 1.0
    label_temperature: float = 1.0
    confidences: ArcConfidences | None = None
    least_of_set: float | None = None
    lowest_of_set: float = 0.0


@dataclass
class Parse:
    """Parse of one doc with n tokens.

    Attributes:
        heads: ``(n,)`` int64, position in the doc. A root is its own head.
        labels: ``(n,)`` int64, places in ``Request.names``.
        spans: structure of each sentence; empty with the level "none".
    """

    heads: np.ndarray
    labels: np.ndarray
    spans: list[SpanStructure] = field(default_factory=list)


def parse(
    module: LabelledTrees, rows: Tensor, docs: Sequence[Doc], request: Request
) -> list[Parse]:
    """Return the parses of docs.

    Args:
        rows: ``(N, width)``, for all tokens of the docs.
        docs: docs, at least one of which has tokens.
    """
    starts = start_scores(module, rows, docs)
    sentences = find_all_sentences(starts, docs, request.max_length)
    found = [Parse(np.arange(len(doc)), np.zeros(len(doc), dtype="int64")) for doc in docs]
    made: list[list[SpanStructure | None]] = [[None] * len(own) for own in sentences]
    sure = None
    if request.level == "probabilities":
        sure = log_of_all_bounds(starts, docs, sentences)
    for group in parse_groups(module, rows, docs, request, sentences):
        group.write(found, made, sentences, sure)
    for one, spans in zip(found, made):
        one.spans = [span for span in spans if span is not None]
    return found


def parse_groups(
    module: LabelledTrees,
    rows: Tensor,
    docs: Sequence[Doc],
    request: Request,
    sentences: list[Bounds],
) -> Iterator[GroupParse]:
    """Yield the parses of all sentences of docs, in groups of similar length."""
    spaces = white_space(docs)
    padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
    groups = group_spans([len(doc) for doc in docs], sentences)
    interventions: Sequence[BatchInterventions | None] = [None] * len(groups)
    if request.asked is not None:
        members = [group.members for group in groups]
        interventions = interventions_of(
            request.asked, members, sentences, module.structure, "heads"
        )
    for group, own in zip(groups, interventions):
        yield GroupParse(module, padded, group, spaces_of(group, sentences, spaces), request, own)


def start_scores(module: LabelledTrees, rows: Tensor, docs: Sequence[Doc]) -> list[np.ndarray]:
    """Return the scores of sentence starts of each doc, with arguments as for :func:`parse`."""
    ends = np.cumsum([len(doc) for doc in docs])
    return np.split(_numpy(module.start_scores(rows)), ends[:-1])


def without_spaces(
    structure: DependencyTree, scores: Tensor, hosts: dict[int, np.ndarray]
) -> Tensor:
    """Return scores ``(B, n+1, n+1)`` that fix the heads of white space.

    White space cannot be a head in them.
    """
    # If the structure restricts the length or direction of arcs, no tree may have such arcs.
    if not hosts or structure.direction != "any" or structure.max_arc_length is not None:
        return scores
    closed = torch.zeros(scores.shape, dtype=torch.bool)
    for b, host in hosts.items():
        nodes = torch.from_numpy(np.flatnonzero(host >= 0) + 1)
        closed[b, nodes] = True
        closed[b, :, nodes] = True
        closed[b, torch.from_numpy(host[host >= 0] + 1), nodes] = False
    return scores.masked_fill(closed.to(scores.device), -torch.inf)


class ProbableArcs(NamedTuple):
    """Arcs of the sentences of a group with their confidences.

    Without a map, confidences are probabilities.

    Attributes:
        arcs: head and modifier.
        labelled: head, modifier and label.
        possible: the set of possible arcs: head, modifier and most probable label.
    """

    arcs: ArcsOfSentences
    labelled: ArcsOfSentences
    possible: ArcsOfSentences


class GroupParse:
    """The sentences of a group, which are parsed together."""

    def __init__(
        self,
        module: LabelledTrees,
        padded: Tensor,
        group: Group,
        hosts: dict[int, np.ndarray],
        request: Request,
        interventions: BatchInterventions | None,
    ) -> None:
        self.module, self.group, self.hosts, self.request = module, group, hosts, request
        self.forced = [] if interventions is None else interventions.forced
        asked = 1.0 if interventions is None else interventions.temperature
        self.temperature = request.label_temperature * asked
        places, self.lengths = group.on(padded.device)
        scores, self.words = module.read(padded[places], self.lengths)
        if request.temperature != 1:
            scores = scores / request.temperature
        self.scores = without_spaces(module.structure, scores, hosts)
        if interventions is not None:
            scores = self.scores / asked
            self.scores = constrained_scores(module.structure, scores, self.lengths, interventions)
        with naming_interventions(module.structure.name, interventions):
            best = module.structure.best_heads(self.scores, self.lengths)
        self.heads = _numpy(best)[:, 1:]
        self.inside = np.arange(self.heads.shape[1]) < group.lengths.numpy()[:, None]

    def write(
        self,
        found: list[Parse],
        made: list[list[SpanStructure | None]],
        sentences: list[Bounds],
        sure: list[np.ndarray] | None,
    ) -> None:
        """Write heads, labels and structures of the sentences.

        Args:
            sure: log-probabilities that the sentences of each doc are right, for the level
                "probabilities"; None for other levels.
        """
        level = self.request.level
        # Only whole trees need the probabilities of labels.
        found_labels = self._label(self.heads[None], likely=sure is not None)
        labels, of_labels = (part[0] for part in found_labels)
        probable = None
        if sure is not None:
            probable = self._probable(labels)
            whole = self._log_whole(self.scores)
            whole += [sure[d][s] for d, s in self.group.members]
            labelled_whole = np.exp(whole + of_labels.sum(1))
            whole = np.exp(whole)
        others = self._others() if self.request.alternatives and level != "none" else None
        lengths = self.group.lengths.tolist()
        for b, ((d, s), length) in enumerate(zip(self.group.members, lengths)):
            start, end = sentences[d][s][:2]
            own = self.heads[b, :length]
            place = np.arange(start, end)
            found[d].heads[start:end] = np.where(own == 0, place, own - 1 + start)
            found[d].labels[start:end] = labels[b, :length]
            if level == "none":
                continue
            span = SpanStructure(start, end, self.module.structure.name, "heads", own.copy())
            span.labels, span.arc_labels = self.request.names, labels[b, :length].copy()
            if probable is not None:
                span.parts, span.probabilities = probable.arcs[b]
                span.labelled_parts, span.labelled_probabilities = probable.labelled[b]
                if self.request.least_of_set is not None:
                    span.possible, span.possible_probabilities = probable.possible[b]
                span.whole_probability = float(whole[b])
                span.labelled_whole_probability = float(labelled_whole[b])
            if others is not None:
                trees, weights, their_labels = others
                there = [k for k in range(len(trees)) if weights[k, b] > 0]
                span.alternatives = [
                    (trees[k, b, :length].copy(), float(weights[k, b])) for k in there
                ]
                span.alternative_labels = [their_labels[k, b, :length].copy() for k in there]
            made[d][s] = span

    def _log_whole(self, scores: Tensor) -> np.ndarray:
        """Return the log-probabilities of the best trees under these scores, ``(B,)`` float64."""
        exact = scores.double()
        b, m = np.nonzero(self.inside)
        places = [torch.from_numpy(part).long() for part in (b, self.heads[b, m], m + 1)]
        item, head, modifier = (place.to(exact.device) for place in places)
        total = exact.new_zeros(len(exact)).index_add(0, item, exact[item, head, modifier])
        return _numpy(total - self.module.structure.log_partition(exact, self.lengths))

    def _label(self, heads: np.ndarray, likely: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels of the arcs of trees ``(K, B, n)``.

        Args:
            likely: whether to compute log-probabilities. Otherwise they are 0.

        Returns:
            Labels, 0 at padding, and their log-probabilities given the arcs, 0 at roots, white
            space and padding, both ``(K, B, n)``.
        """
        labels, said = np.zeros(heads.shape, dtype="int32"), np.zeros(heads.shape)
        k, b, m = np.nonzero((heads > 0) & self.inside)
        if len(b):
            scores = self._label_scores(b, heads[k, b, m] - 1, m)
            best, places = scores.max(1)
            labels[k, b, m] = 1 + _numpy(places)
            if likely:
                said[k, b, m] = _numpy(best - scores.logsumexp(1))
        for item, host in self.hosts.items():
            own, hanging = labels[:, item, : len(host)], heads[:, item, : len(host)] > 0
            own[hanging & (host >= 0)] = len(self.request.names) - 1
            said[:, item, : len(host)][:, host >= 0] = 0.0
        return labels, said

    def at_temperatures(
        self, temperatures: Sequence[float]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the probabilities of the best trees at further temperatures.

        Returns:
            Probabilities of arcs ``(B, n, T)``, labels ``(B, n)``, and their probabilities given
            the arcs, ``(B, n, T)``, 1 for roots and white space. Then probabilities of whole trees
            without labels, ``(B, T)``.
        """
        labels = self._label(self.heads[None])[0][0]
        whole = np.zeros((len(self.heads), len(temperatures)))
        shape = (*self.heads.shape, len(temperatures))
        arcs, of_labels = np.zeros(shape), np.ones(shape)
        items = np.arange(len(self.heads))[:, None]
        modifiers = np.arange(1, self.heads.shape[1] + 1)
        worded = (self.heads > 0) & self.inside & (labels < len(self.request.names) - 1)
        b, m = np.nonzero(worded)
        scores = self._label_scores(b, self.heads[b, m] - 1, m) if len(b) else None
        for t, temperature in enumerate(temperatures):
            marginals = self.module.structure.marginals(self.scores / temperature, self.lengths)
            arcs[:, :, t] = _numpy(marginals)[items, self.heads, modifiers]
            whole[:, t] = np.exp(self._log_whole(self.scores / temperature))
            if scores is not None:
                each = _numpy((scores / temperature).softmax(1))
                of_labels[b, m, t] = each[np.arange(len(b)), labels[b, m] - 1]
        return arcs, labels, of_labels, whole

    def _label_scores(self, items: np.ndarray, heads: np.ndarray, modifiers: np.ndarray) -> Tensor:
        device = self.words.device
        arcs = [torch.from_numpy(part).long().to(device) for part in (items, heads, modifiers)]
        scores = self.module.label_scores(self.words, *arcs) / self.temperature
        if self.request.untrained:
            scores[:, -self.request.untrained :] = IMPOSSIBLE
        return scores

    def _probable(self, labels: np.ndarray) -> ProbableArcs:
        """Return the arcs of the best trees, further arcs above the threshold, and the sets.

        Arcs of the best trees are included at any probability. The labels of the best trees are
        ``(B, n)``.
        """
        threshold, least = max(self.request.threshold, 0.0), self.request.least_of_set
        lowest = threshold
        if least is not None:
            lowest = min(threshold, max(LEAST_IN_SETS, self.request.lowest_of_set))
        marginals = _numpy(self.module.structure.marginals(self.scores, self.lengths))
        likely = marginals > lowest
        items, words = np.nonzero(self.inside)
        likely[items, self.heads[items, words], words + 1] = True
        arcs = np.argwhere(likely)
        exact = marginals[tuple(arcs.T)]
        p = exact.astype("float32")
        b, h, m = arcs.T
        of_labels = np.zeros((len(arcs), len(self.request.names)), dtype="float32")
        of_labels[h == 0, ROOT] = 1.0
        spaces = np.zeros(marginals.shape[:2], dtype=bool)
        for item, host in self.hosts.items():
            spaces[item, 1 : len(host) + 1] = host >= 0
        space = spaces[b, m] & (h > 0)
        of_labels[space, -1] = 1.0
        worded = (h > 0) & ~space
        if worded.any():
            scores = self._label_scores(b[worded], h[worded] - 1, m[worded] - 1)
            of_labels[worded, 1:-1] = _numpy(scores.softmax(1))
        stored = of_labels * p[:, None] > threshold
        of_best = self.heads[b, m - 1] == h
        best = np.flatnonzero(of_best)
        stored[best, labels[b, m - 1][best]] = True
        arc, label = np.nonzero(stored)
        kept = (exact > threshold) | of_best
        labelled = np.column_stack([arcs[arc], label]).astype("int32")
        if self.request.confidences is not None:
            # The head of white space is fixed, and so is the head of a word whose arc is forced.
            free = ~space
            for item, forced in enumerate(self.forced):
                for place in forced:
                    free &= (arcs != [item, *place]).any(1)
            p[free] = self.request.confidences(p[free], of_labels[free].argmax(1))
        of_labelled = of_labels[arc, label] * p[arc]
        # The candidates do not depend on the threshold, since the coverage was measured with them.
        candidates = (exact > LEAST_IN_SETS) | of_best
        possible = np.flatnonzero(candidates & (p >= (np.inf if least is None else least)))
        # The heads of each word together, the most probable first.
        possible = possible[np.lexsort((-p[possible], m[possible], b[possible]))]
        rows = np.column_stack([arcs, of_labels.argmax(1)]).astype("int32")
        return ProbableArcs(
            self._by_sentence(rows[kept, :3], p[kept]),
            self._by_sentence(labelled, of_labelled),
            self._by_sentence(rows[possible], p[possible]),
        )

    def _by_sentence(self, rows: np.ndarray, confidences: np.ndarray) -> ArcsOfSentences:
        """Divide arcs in the order of their sentences, which are the first column of ``rows``."""
        ends = np.searchsorted(rows[:, 0], np.arange(1, len(self.heads)))
        return list(zip(np.split(rows[:, 1:], ends), np.split(confidences, ends)))

    def _others(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the best trees ``(K, B, n)``, their probabilities ``(K, B)`` and their labels.

        The probability is 0 if there are fewer than K trees.
        """
        structure, exact = self.module.structure, self.scores.double()
        best = structure.top_k(exact, self.lengths, self.request.alternatives)
        weights = (best.scores - structure.log_partition(exact, self.lengths)).exp()
        trees = _numpy(best.z.argmax(2))[:, :, 1:].astype("int32")
        return trees, _numpy(weights), self._label(trees)[0]


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()
