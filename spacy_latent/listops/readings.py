"""Predictions of pipelines on expressions of ListOps, and trees that do not depend on a model."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_latent import listops
from spacy_latent.analysis import (
    BINARY_CONTROLS,
    ReferenceTree,
    bracket_counts,
    brackets_of_heads,
    control_trees,
    nearest_operator,
    random_earlier_operator,
    reference_tree,
    tree_counts,
    without_words,
)
from spacy_latent.analysis.progress import Progress
from spacy_latent.analysis.task import best_category
from spacy_latent.analysis.trees import Control, flat, random_earlier, random_tree
from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.kinds import find_kind
from spacy_latent.listops.expressions import gold_doc
from spacy_latent.pipeline.inspection import latent_components, refuse_lost

CONTROLS: dict[str, Control] = {
    "nearest operator": nearest_operator,
    "random earlier operator": random_earlier_operator,
    "random earlier token": random_earlier,
    "random tree": random_tree,
    "flat": flat,
}
GOLD = "gold"
# Number of texts that show whether a pipeline predicts with trees other than the best.
SOME = 100
# Trees that replace the composer's own, in addition to the gold ones.
PUT_UNDER = {
    "heads": ("nearest operator", "flat", "random tree"),
    "spans": ("left-branching", "right-branching", "random merges"),
}

Counts = dict[str, np.ndarray]


@dataclass(frozen=True)
class Corpus:
    """Expressions with their gold trees, which six sets of trees are compared with.

    Attributes:
        expressions: value and tokens of each.
        brackets: spans of the binary tree of each.
        lists: its lists except the outermost one, which every tree has.
        counted: mask of the tokens that count.
    """

    expressions: list[tuple[str, list[str]]]
    words: list[list[str]]
    brackets: list[list[tuple[int, int]]]
    lists: list[list[tuple[int, int]]]
    counted: list[list[bool]]

    @classmethod
    def read(cls, path: Path) -> Corpus:
        """Read a corpus, and make its gold trees.

        Raises:
            LatentError: if the file does not exist or is empty.
        """
        if not path.exists():
            raise LatentError(
                f"ListOps corpus {path} does not exist. Make it with 'spacy latent generate "
                "listops'."
            )
        expressions = list(listops.read(path))
        if not expressions:
            raise LatentError(f"ListOps corpus {path} holds no expressions.")
        words = [tokens for _, tokens in expressions]
        return cls(
            expressions,
            words,
            [listops.gold_brackets(tokens) for tokens in words],
            [_inner_lists(tokens) for tokens in words],
            [[token != listops.CLOSE for token in tokens] for tokens in words],
        )


@dataclass
class Reading:
    """Predictions of a pipeline on a corpus.

    Attributes:
        trees: heads of the predicted tokens of each expression, or its spans (start, end).
        put_under: counts of right values with other trees, by the names of these trees.
    """

    examples: list[Example]
    component: str | None = None
    kind: str = ""
    references: list[ReferenceTree] = field(default_factory=list)
    trees: list[Any] = field(default_factory=list)
    counts: Counts = field(default_factory=dict)
    as_predicted: np.ndarray | None = None
    put_under: Counts = field(default_factory=dict)


@dataclass
class Run:
    """Run of one pipeline on one corpus."""

    nlp: Language
    corpus: Corpus
    component: str | None
    seed: int
    progress: Progress
    stage: str

    def reading(self) -> Reading:
        """Predict all expressions, and count the right trees and values.

        A pipeline without structures has counts of values alone.
        """
        some = self._predict("a look", SOME)
        latent = latent_components(self.nlp)
        if not latent and not any(doc._.latent for doc in some):
            plainly = self._predict("values")
            return Reading(self._examples(plainly), counts=self._values(plainly))
        component = self.component or only_component(some)
        pipe: Any = latent[component].pipe if component in latent else None
        best = self._best(pipe)
        kind = _kind(best, component)
        found = Reading(self._examples(best), component, kind)
        found.references = [tree for e in found.examples if (tree := reference_tree(e))]
        annotations = [doc._.latent[component] for doc in best]
        if kind == "heads":
            found.trees = [annotation.heads for annotation in annotations]
            found.counts = _count_heads(found.trees, found.references, self.corpus)
        else:
            found.trees = [[(b.start, b.end) for b in one.brackets()] for one in annotations]
            found.counts = _count_brackets(found.trees, self.corpus)
        found.counts |= self._values(best)
        if not all(_same(ours.cats, theirs.cats) for ours, theirs in zip(some, best)):
            found.as_predicted = self._values(self._predict("mixtures")).get("accuracy")
        if pipe is not None:
            found.put_under = self._put_under(pipe, kind)
        return found

    def _best(self, pipe: Any) -> list[Doc]:
        """Predict with the best trees alone, or with the trees that the layer is given."""
        from spacy_latent.models.inspection import latent_models, latent_module

        nodes = latent_models(pipe.model) if pipe else []
        if any(latent_module(node).latent.estimator.uses_scores for node in nodes):
            return self._predict_with(pipe, "best", "best trees")
        return self._predict("trees")

    def _put_under(self, pipe: Any, kind: str) -> Counts:
        """Count right values with trees that are not the pipeline's own."""
        made: dict[str, list[Any]]
        if kind == "heads":
            made = {GOLD: [listops.gold_heads(tokens) for tokens in self.corpus.words]}
            chosen = {name: CONTROLS[name] for name in PUT_UNDER[kind]}
            made |= control_trees(self.corpus.words, chosen, self.seed)
        else:
            made = {GOLD: self.corpus.brackets}
            made |= _binary_controls(self.corpus.words, PUT_UNDER[kind], self.seed)
        found = {}
        for name, trees in made.items():
            given = {tuple(tokens): tree for tokens, tree in zip(self.corpus.words, trees)}

            def trees_of(docs: Sequence[Doc], given: dict[Any, Any] = given) -> list[Any]:
                read = [given[tuple(token.text for token in doc)] for doc in docs]
                if kind == "heads":
                    return read
                return [np.array(one, dtype="int64").reshape(-1, 2) - [0, 1] for one in read]

            try:
                docs = self._predict_with(pipe, trees_of, f"{name} trees")
            except IncompatiblePair:
                # No tree belongs to the set of structures.
                return {}
            values = self._values(docs)
            if values:
                found[name] = values["accuracy"]
        return found

    def _predict_with(self, pipe: Any, substitute: Any, stage: str) -> list[Doc]:
        from spacy_latent.models.random_structure import substitute_structures

        with substitute_structures([pipe.model], substitute, self.seed):
            return self._predict(stage)

    def _predict(self, stage: str, limit: int | None = None) -> list[Doc]:
        docs = [Doc(self.nlp.vocab, words=tokens) for tokens in self.corpus.words[:limit]]
        shown = self.progress(self.nlp.pipe(docs), f"{self.stage}, {stage}", len(docs))
        found = list(shown)
        refuse_lost(len(docs), len(found), "expression", "Judge it without one.")
        return found

    def _examples(self, docs: list[Doc]) -> list[Example]:
        return [
            Example(doc, gold_doc(self.nlp, label, tokens))
            for doc, (label, tokens) in zip(docs, self.corpus.expressions)
        ]

    def _values(self, docs: list[Doc]) -> Counts:
        """Count right values; empty for a pipeline that predicts no values."""
        if not any(doc.cats for doc in docs):
            return {}
        right = [
            best_category(doc.cats) == label
            for doc, (label, _) in zip(docs, self.corpus.expressions)
        ]
        return {"accuracy": np.stack([right, np.ones(len(right))], 1).astype("float64")}


def _same(ours: Mapping[str, float], theirs: Mapping[str, float]) -> bool:
    """Compare scores, up to the rounding differences of another batch."""
    return all(abs(ours[label] - theirs.get(label, np.nan)) < 1e-4 for label in ours)


def only_component(docs: Sequence[Doc]) -> str:
    """Return the name of the component that put trees on the docs."""
    names = sorted(set(chain.from_iterable(doc._.latent for doc in docs)))
    if len(names) != 1:
        raise LatentError(
            f"{', '.join(names) or 'No component'} put trees on the docs. Name the one to report "
            "with --component, and set its annotate to other than 'none'."
        )
    return names[0]


def _kind(docs: Sequence[Doc], component: str) -> str:
    if not all(component in doc._.latent for doc in docs):
        raise LatentError(
            f"The pipeline put no tree of {component!r} on the docs. Name the component that "
            "has one, and set its annotate to other than 'none'."
        )
    kinds = {span.kind for doc in docs for span in doc._.latent[component].spans}
    kind = "spans" if "spans" in {_form(one) for one in kinds} else "heads"
    others = sorted(one for one in kinds if _form(one) != kind)
    if others:
        raise LatentError(
            f"The structures of {component!r} are no trees: their kind is "
            f"{', '.join(others)}. Those of ListOps are of the kind heads or spans."
        )
    return kind


def _form(kind: str) -> str:
    """Return the form of the trees of a kind, "heads" or "spans"; empty for other kinds."""
    found = find_kind(kind)
    return "heads" if "heads" in found.accessors else "spans" if found.trees else ""


def _count_heads(trees: Sequence[Any], references: Sequence[ReferenceTree], gold: Corpus) -> Counts:
    moved = [tree.moved(heads) for tree, heads in zip(references, trees, strict=True)]
    heads = [tree.heads for tree in references]
    counts = tree_counts(moved, heads, without_words(references, [listops.CLOSE]))
    binary = [brackets_of_heads(heads) for heads in moved]
    return {**counts, "spans": _count_brackets(binary, gold)["spans"]}


def _count_brackets(trees: Sequence[Sequence[tuple[int, int]]], gold: Corpus) -> Counts:
    return bracket_counts(trees, gold.brackets, gold.lists, gold.counted)


def _inner_lists(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Return the spans (start, end) of all lists except the outermost one."""
    heads = listops.gold_heads(tokens)
    ends = [i for i, token in enumerate(tokens) if token == listops.CLOSE and heads[i]]
    return [(heads[end], end + 1) for end in ends]


def _binary_controls(
    words: Sequence[list[str]], names: Iterable[str], seed: int
) -> dict[str, list[Any]]:
    found = {}
    for name in names:
        rng = random.Random(seed)
        found[name] = [BINARY_CONTROLS[name](tokens, rng) for tokens in words]
    return found


@dataclass
class MeasuredControl:
    """Trees of a control, and their agreement with the gold trees."""

    trees: list[Any]
    counts: Counts


def controls(
    nlp: Language, corpus: Corpus, kinds: set[str], seed: int
) -> dict[str, MeasuredControl]:
    """Make trees that do not depend on a model, for each kind of tree in use."""
    words, found = corpus.words, {}
    made: dict[str, list[Any]]
    if "heads" in kinds:
        docs = [gold_doc(nlp, label, tokens) for label, tokens in corpus.expressions]
        references = [tree for doc in docs if (tree := reference_tree(Example(doc, doc)))]
        made = dict(control_trees(words, CONTROLS, seed))
        for name, trees in made.items():
            found[name] = MeasuredControl(trees, _count_heads(trees, references, corpus))
    if "spans" in kinds:
        made = _binary_controls(words, BINARY_CONTROLS, seed)
        for name, trees in made.items():
            found[name] = MeasuredControl(trees, _count_brackets(trees, corpus))
    return found
