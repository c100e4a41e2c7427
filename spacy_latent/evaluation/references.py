"""Comparison of a layer's structures with references, for each kind of parts that supports it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from spacy.training import Example

from spacy_latent.analysis import (
    TREE_MEASURES,
    ReferenceTree,
    attachments,
    resampling,
    shares,
    structures,
    tree_counts,
    without_words,
)
from spacy_latent.analysis import agreement as agreements
from spacy_latent.analysis.alignments import SURE, links_of
from spacy_latent.analysis.figures import Interval, ReferenceFigures, Relation
from spacy_latent.analysis.resampling import Value, accuracy, f_score
from spacy_latent.annotations import SpanStructure
from spacy_latent.annotations.aligned_heads import aligned_heads, same_tokens
from spacy_latent.kinds import PARTS, complete_kind

# Names of measures in the figures, if they differ from the names elsewhere.
DIRECTED = {"attachment": "directed"}

# Structures by the index of the doc.
Spans = dict[int, list[SpanStructure]]

Whole = TypeVar("Whole")


@dataclass
class ComparedLayer:
    """Structures of a layer, and references and controls to compare them with.

    A kind supports the comparison with ``reference`` of :class:`spacy_latent.kinds.Kind`, a
    function that returns the figures or None.

    Attributes:
        key: name under which the layer's structures are stored.
        spans: the layer's structures, by the index of the doc.
        controls: by the index of the doc, control structures of each span, by name. They have the
            form that ``comparable`` of the kind returns.
        random: trees of the same set, drawn uniformly, or None.
        trees: the reference's tree of each doc, or None if there is no tree.
        heads: the reference's heads at the predicted tokens of each doc, −1 if unknown.
        ignore: texts of tokens that do not count.
    """

    key: str
    examples: list[Example]
    spans: Spans
    controls: dict[int, list[dict[str, np.ndarray]]]
    random: Spans | None
    trees: list[ReferenceTree | None]
    heads: list[np.ndarray | None]
    ignore: tuple[str, ...]
    seed: int

    def rows(
        self,
        known: Sequence[int],
        whole: Callable[[Sequence[SpanStructure], list[np.ndarray] | None], Whole],
    ) -> dict[str, dict[int, Whole]]:
        """Collect the structures of known docs for the layer, each control and random structures.

        Args:
            whole: function that joins the structures of a doc. Its arguments are the spans of the
                doc, and None or other structures for these spans.

        Returns:
            The joined structures, by the name of the row and the index of the doc.
        """
        names = list(next((c for d in known for c in self.controls[d]), {}))
        found = {self.key: {d: whole(self.spans[d], None) for d in known}}
        for name in names:
            found[name] = {
                d: whole(self.spans[d], [control[name] for control in self.controls[d]])
                for d in known
            }
        if self.random:
            found[agreements.RANDOM] = {d: whole(self.random[d], None) for d in known}
        return found

    def ahead(
        self, counts: Mapping[str, np.ndarray], value: Value = accuracy
    ) -> dict[str, Interval]:
        """Return the difference of the layer to each other row, with its interval."""
        found = {}
        for name, theirs in counts.items():
            if name != self.key:
                drop = resampling.paired_drop(value, counts[self.key], theirs, self.seed)
                found[name] = (drop.drop, drop.low, drop.high)
        return found

    def figures(
        self,
        measure: str,
        of: str,
        known: Sequence[int],
        counts: dict[str, np.ndarray],
        value: Value = accuracy,
    ) -> ReferenceFigures:
        """Return the figures of one measure.

        Args:
            of: annotation of the references that is compared.
            counts: counts by the name of the row.
        """
        found = resampling.intervals(list(counts.values()), self.seed, value)
        return ReferenceFigures(
            key=measure,
            of=of,
            docs=len(known),
            tokens=sum(len(self.examples[d].predicted) for d in known),
            rows={name: {measure: row} for name, row in zip(counts, found)},
            ahead=self.ahead(counts, value),
        )


def _compare_heads(layer: ComparedLayer) -> ReferenceFigures | None:
    known = [d for d in layer.spans if layer.trees[d] is not None]
    if not known:
        return None
    key, rows = layer.key, layer.rows(known, _whole_heads)
    references = [tree for d in known if (tree := layer.trees[d]) is not None]
    counted = without_words(references, layer.ignore)
    gold = [tree.heads for tree in references]
    trees = {
        name: [
            tree.moved(_doc_heads(heads[d], len(layer.examples[d].predicted)))
            for d, tree in zip(known, references)
        ]
        for name, heads in rows.items()
    }
    labels = [tree.labels for tree in references]
    found = {name: attachments(each, gold, counted, labels) for name, each in trees.items()}
    counts = {name: tree_counts(each, gold, counted) for name, each in trees.items()}
    table = shares(counts, TREE_MEASURES, layer.seed)
    relations: list[Relation] = []
    for relation, (count, right, arcs, either) in found[key].relations.items():
        others = {
            name: one.relations[relation][1] / count for name, one in found.items() if name != key
        }
        best = max(others, key=lambda name: (others[name], name))
        relations.append(
            Relation(
                relation=relation or "(none)",
                tokens=count,
                directed=right / count,
                arcs=arcs,
                undirected=either / arcs if arcs else math.nan,
                control=best,
                control_directed=others[best],
            )
        )
    relations.sort(key=lambda row: (-row.tokens, row.relation))
    return ReferenceFigures(
        key="directed",
        of="heads",
        docs=len(known),
        tokens=int(found[key].directed[:, 1].sum()),
        rows={
            name: {DIRECTED.get(measure, measure): row[measure] for measure in row}
            for name, row in table.items()
        },
        ahead=layer.ahead({name: one.directed for name, one in found.items()}),
        relations=relations,
    )


def _compare_brackets(layer: ComparedLayer) -> ReferenceFigures | None:
    gold = {}
    for d in layer.spans:
        heads = layer.heads[d]
        if layer.trees[d] is not None and heads is not None and (heads >= 0).all():
            gold[d] = agreements.reference_brackets(heads)
    if not gold:
        return None
    counts = {
        name: np.array([(len(gold[d] & brackets[d]), len(gold[d])) for d in gold], dtype="float64")
        for name, brackets in layer.rows(list(gold), _whole_brackets).items()
    }
    return layer.figures("brackets", "heads", list(gold), counts)


def _compare_links(layer: ComparedLayer) -> ReferenceFigures | None:
    known = [d for d in layer.spans if SURE in layer.examples[d].reference._.latent]
    if not known:
        return None
    gold = {d: set(links_of(layer.examples[d].reference, SURE) or ()) for d in known}
    counts = {
        name: np.array([(len(gold[d] & own[d]), len(own[d]), len(gold[d])) for d in known], float)
        for name, own in layer.rows(known, _whole_links).items()
    }
    return layer.figures("links", "alignments", known, counts, f_score)


def _compare_annotations(layer: ComparedLayer) -> ReferenceFigures | None:
    """Compare with references that have structures of the component over the same tokens."""
    gold: dict[int, list[SpanStructure]] = {}
    for d, spans in layer.spans.items():
        annotation = layer.examples[d].reference._.latent.get(layer.key)
        alike = annotation is not None and same_tokens(layer.examples[d])
        theirs = annotation.spans if annotation is not None and alike else []
        if theirs and [_place(span) for span in theirs] == [_place(span) for span in spans]:
            gold[d] = theirs

    def whole(
        spans: Sequence[SpanStructure], others: Sequence[np.ndarray] | None
    ) -> Sequence[np.ndarray]:
        return [s.decoded for s in spans] if others is None else others

    if not gold:
        return None
    counts = {
        name: np.array([_common_counts(gold[d], own[d]) for d in gold], dtype="float64")
        for name, own in layer.rows(list(gold), whole).items()
    }
    return layer.figures("parts", "annotations", list(gold), counts, f_score)


def _place(span: SpanStructure) -> tuple[int, int, str]:
    return span.start, span.end, span.kind


def _common_counts(
    gold: Sequence[SpanStructure], own: Sequence[np.ndarray]
) -> tuple[float, float, float]:
    """Return the number of common parts, and the mean number of parts of both sides two times.

    The F1 of these counts equals the F1 of the structures.
    """
    found = [
        agreements.common_parts(span.kind, np.asarray(made), np.asarray(span.decoded))
        for span, made in zip(gold, own, strict=True)
    ]
    both, parts = (sum(each) / 2 for each in zip(*found))
    return both, parts, parts


def _whole_heads(
    spans: Sequence[SpanStructure], others: Sequence[np.ndarray] | None
) -> list[tuple[int, np.ndarray]]:
    """Return (start, heads) of each span of a doc."""
    heads = [structures.own_heads(s.decoded) for s in spans] if others is None else others
    return [(s.start, own + s.start) for s, own in zip(spans, heads)]


def _whole_links(
    spans: Sequence[SpanStructure], others: Sequence[np.ndarray] | None
) -> set[tuple[int, int]]:
    """Return the links, or the brackets, of all spans of a doc."""
    found: set[tuple[int, int]] = set()
    for i, span in enumerate(spans):
        parts = span.decoded if others is None else others[i]
        second = span.start if span.other_start is None else span.other_start
        found |= {
            (int(a) + span.start, int(b) + second) for a, b in np.asarray(parts).reshape(-1, 2)
        }
    return found


def _whole_brackets(
    spans: Sequence[SpanStructure], others: Sequence[np.ndarray] | None
) -> set[tuple[int, int]]:
    return {(a, b) for a, b in _whole_links(spans, others) if b > a}


def _doc_heads(parts: list[tuple[int, np.ndarray]], size: int) -> np.ndarray:
    heads = np.full(size, -1, dtype="int64")
    for start, own in parts:
        heads[start : start + len(own)] = own
    return heads


complete_kind(PARTS, reference=_compare_annotations)
complete_kind("heads", reference=_compare_heads)
complete_kind("spans", reference=_compare_brackets)
complete_kind("cells", reference=_compare_links)


def predicted_heads(example: Example) -> np.ndarray | None:
    """Return the heads of the reference at the predicted tokens, −1 if they are unknown."""
    if not len(example.predicted) or not example.reference.has_annotation("HEAD"):
        return None
    return aligned_heads(example)[0]
