"""Assessment of pipelines on ListOps: values and trees by depth, with controls.

The controls are trees that do not depend on a model. All figures are of the single best tree of
each expression, even if the estimator predicts with a mixture. The figures are plain numbers and
names, see :func:`assess_listops`.
"""

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
    TREE_MEASURES,
    ReferenceTree,
    attachment_table,
    bracket_counts,
    brackets_of_heads,
    control_trees,
    edge_precision,
    nearest_operator,
    random_earlier_operator,
    reference_tree,
    shares,
    tree_counts,
    without_words,
)
from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.analysis.task import Value, accuracy, best_category, f_score
from spacy_latent.analysis.trees import Control, flat, random_earlier, random_tree
from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.kinds import find_kind
from spacy_latent.listops.groups import groups_by_depth, groups_by_operator
from spacy_latent.pipeline.inspection import latent_components, refuse_lost

ALL = "all"
# Measures of the value, and of each kind of tree.
VALUE_MEASURES: dict[str, Value] = {"accuracy": accuracy}
BRACKET_MEASURES: dict[str, Value] = {"spans": f_score, "whole trees": accuracy, "lists": accuracy}
MEASURES: dict[str, Value] = {**VALUE_MEASURES, **TREE_MEASURES, **BRACKET_MEASURES}
KINDS = {"heads": {**TREE_MEASURES, "spans": f_score}, "spans": BRACKET_MEASURES}
# Descriptions of the measures, for tables.
MEANINGS = {
    "accuracy": "share of the expressions with the right value",
    "attachment": "share of the tokens but ] with the head of the gold tree",
    "whole trees": "share of the expressions in which that is so of all tokens but ]; of binary "
    "trees, in which all spans are right",
    "undirected": "share of the gold tree's arcs, but those of ], that are there either way round",
    "yields": "F1 of the sets of tokens but ] under each head, against those of the lists",
    "one arc": "share of the lists that a single arc joins to all other tokens but ]",
    "spans": "F1 of the spans, against those of the published binary trees; of other trees, of "
    "those that come about as each head takes its modifiers one by one",
    "lists": "share of the lists whose tokens but ] are those of a span",
}
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


@dataclass
class ListOpsAssessment:
    """Result of :func:`assess_listops`.

    Attributes:
        figures: see :func:`assess_listops`.
        examples: examples of the first corpus with the predictions of the first model.
        component: name of its component with the trees, None if it has no such component.
        kind: kind of these trees, "heads" or "spans".
    """

    figures: dict[str, Any]
    examples: list[Example]
    component: str | None
    kind: str


def assess_listops(
    models: Mapping[str, Language],
    corpora: Mapping[str, Path],
    component: str | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> ListOpsAssessment:
    """Assess pipelines on corpora of expressions.

    For each corpus the figures are under "corpora", its name, "by_depth", and "all" or the number
    of levels of lists. They are also under "by_operator" and a group of :func:`groups_by_operator`.
    In each group there are:

    - "expressions": number of expressions. - "models" and "controls": by name, the available
    measures of :data:`MEASURES` as [share, low, high]. The last two are the ends of the 95 %
    interval by the bootstrap over expressions. NaN if nothing counts.

    A model also has "accuracy_as_predicted", its accuracy with a mixture of trees, if it composes
    with one. "accuracy_with" is the accuracy with other trees in place of the model's own, by their
    names.

    "accuracy", "accuracy_interval", "attachment", and "edges" or "brackets" at the top level are of
    the first model on the first corpus. The last three also have the controls. "edges" is the mean
    :func:`edge_precision`, which the literature on latent arborescences reports.

    Args:
        models: pipelines by name.
        corpora: paths by name.
        component: name of the component with the trees, if the first pipeline has several. It is
            also used in other pipelines that have a component of this name. A pipeline without a
            latent component only has figures of values.
        seed: seed of random trees and intervals.
    """
    read = {name: _read(path) for name, path in corpora.items()}
    figures: dict[str, Any] = {"seed": seed, "meanings": MEANINGS, "models": {}, "corpora": {}}
    first: ListOpsAssessment | None = None
    for corpus, expressions in read.items():
        words = [tokens for _, tokens in expressions]
        gold = _Gold.of(words)
        readings: dict[str, _Reading] = {}
        for name, nlp in models.items():
            # Other pipelines may have another name for their component.
            named = component if not readings or component in nlp.pipe_names else None
            run = _Run(nlp, expressions, gold, named, seed, progress, f"{name} on {corpus}")
            own = readings[name] = run.reading()
            figures["models"][name] = {"component": own.component, "kind": own.kind}
        kinds = {reading.kind for reading in readings.values()}
        controls = _controls(next(iter(models.values())), expressions, gold, kinds, seed)
        depths = {ALL: np.ones(len(words), bool), **groups_by_depth(words)}
        sizes = [len(tokens) for tokens in words]
        figures["corpora"][corpus] = {
            "expressions": len(words),
            "tokens": [min(sizes), max(sizes)],
            "depths": [int(depth) for depth in depths if depth != ALL],
            "by_depth": _by_group(depths, readings, controls, seed),
            "by_operator": _by_group(groups_by_operator(words), readings, controls, seed),
        }
        if first is None:
            name, reading = next(iter(readings.items()))
            best = figures["corpora"][corpus]["by_depth"][ALL]["models"][name]
            figures.update(_summary(best, reading, controls, seed))
            first = ListOpsAssessment(figures, reading.examples, reading.component, reading.kind)
    if first is None:
        raise LatentError("There is no corpus to judge the pipelines on.")
    return first


def _read(path: Path) -> list[tuple[str, list[str]]]:
    if not path.exists():
        raise LatentError(
            f"ListOps corpus {path} does not exist. Make it with 'spacy latent generate listops'."
        )
    expressions = list(listops.read(path))
    if not expressions:
        raise LatentError(f"ListOps corpus {path} holds no expressions.")
    return expressions


@dataclass
class _Reading:
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


class _Run:
    """Run of one pipeline on one corpus."""

    def __init__(
        self,
        nlp: Language,
        expressions: list[tuple[str, list[str]]],
        gold: _Gold,
        component: str | None,
        seed: int,
        progress: Progress,
        stage: str,
    ) -> None:
        self.nlp = nlp
        self.expressions = expressions
        self.words = [tokens for _, tokens in expressions]
        self.gold = gold
        self.component = component
        self.seed = seed
        self.progress = progress
        self.stage = stage

    def reading(self) -> _Reading:
        some = self._predict("a look", SOME)
        latent = latent_components(self.nlp)
        if not latent and not any(doc._.latent for doc in some):
            plainly = self._predict("values")
            return _Reading(self._examples(plainly), counts=self._values(plainly))
        component = self.component or only_component(some)
        pipe: Any = latent[component].pipe if component in latent else None
        best = self._best(pipe)
        kind = _kind(best, component)
        found = _Reading(self._examples(best), component, kind)
        found.references = [tree for e in found.examples if (tree := reference_tree(e))]
        annotations = [doc._.latent[component] for doc in best]
        if kind == "heads":
            found.trees = [annotation.heads for annotation in annotations]
            found.counts = _count_heads(found.trees, found.references, self.gold)
        else:
            found.trees = [[(b.start, b.end) for b in one.brackets()] for one in annotations]
            found.counts = _count_brackets(found.trees, self.gold)
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
            made = {GOLD: [listops.gold_heads(tokens) for tokens in self.words]}
            chosen = {name: CONTROLS[name] for name in PUT_UNDER[kind]}
            made |= control_trees(self.words, chosen, self.seed)
        else:
            made = {GOLD: self.gold.brackets}
            made |= _binary_controls(self.words, PUT_UNDER[kind], self.seed)
        found = {}
        for name, trees in made.items():
            given = {tuple(tokens): tree for tokens, tree in zip(self.words, trees)}

            def trees_of(docs: Sequence[Doc], given: dict[Any, Any] = given) -> list[Any]:
                read = [given[tuple(token.text for token in doc)] for doc in docs]
                return read if kind == "heads" else [_first_and_last(spans) for spans in read]

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
        docs = [Doc(self.nlp.vocab, words=tokens) for tokens in self.words[:limit]]
        shown = self.progress(self.nlp.pipe(docs), f"{self.stage}, {stage}", len(docs))
        found = list(shown)
        refuse_lost(len(docs), len(found), "expression", "Judge it without one.")
        return found

    def _examples(self, docs: list[Doc]) -> list[Example]:
        return [
            Example(doc, gold_doc(self.nlp, label, tokens))
            for doc, (label, tokens) in zip(docs, self.expressions)
        ]

    def _values(self, docs: list[Doc]) -> Counts:
        """Count right values; empty for a pipeline that predicts no values."""
        if not any(doc.cats for doc in docs):
            return {}
        right = [
            best_category(doc.cats) == label for doc, (label, _) in zip(docs, self.expressions)
        ]
        return {"accuracy": np.stack([right, np.ones(len(right))], 1).astype("float64")}


def _same(ours: Mapping[str, float], theirs: Mapping[str, float]) -> bool:
    """Compare scores, up to the rounding differences of another batch."""
    return all(abs(ours[label] - theirs.get(label, np.nan)) < 1e-4 for label in ours)


def gold_doc(nlp: Language, label: str, tokens: list[str]) -> Doc:
    """Make the reference of an expression, with its value and its gold tree."""
    heads = listops.gold_heads(tokens)
    labels = ["ROOT" if head == i else "arg" for i, head in enumerate(heads)]
    doc = Doc(nlp.vocab, words=tokens, heads=heads, deps=labels)
    doc.cats = {category: float(category == label) for category in listops.CATEGORIES}
    return doc


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


# ---------------------------------------------------------------- trees


@dataclass(frozen=True)
class _Gold:
    """Gold values for each expression.

    They are the brackets of its binary tree, its lists except the outermost one (which every tree
    has), and a mask of the tokens that count. Six sets of trees are compared with them.
    """

    brackets: list[list[tuple[int, int]]]
    lists: list[list[tuple[int, int]]]
    counted: list[list[bool]]

    @classmethod
    def of(cls, words: Sequence[list[str]]) -> _Gold:
        return cls(
            [listops.gold_brackets(tokens) for tokens in words],
            [_inner_lists(tokens) for tokens in words],
            [[token != listops.CLOSE for token in tokens] for tokens in words],
        )


def _count_heads(trees: Sequence[Any], references: Sequence[ReferenceTree], gold: _Gold) -> Counts:
    moved = [tree.moved(heads) for tree, heads in zip(references, trees, strict=True)]
    heads = [tree.heads for tree in references]
    counts = tree_counts(moved, heads, without_words(references, [listops.CLOSE]))
    binary = [brackets_of_heads(heads) for heads in moved]
    return {**counts, "spans": _count_brackets(binary, gold)["spans"]}


def _count_brackets(trees: Sequence[Sequence[tuple[int, int]]], gold: _Gold) -> Counts:
    return bracket_counts(trees, gold.brackets, gold.lists, gold.counted)


def _inner_lists(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Return the spans (start, end) of all lists except the outermost one."""
    heads = listops.gold_heads(tokens)
    ends = [i for i, token in enumerate(tokens) if token == listops.CLOSE and heads[i]]
    return [(heads[end], end + 1) for end in ends]


def _first_and_last(spans: Sequence[tuple[int, int]]) -> np.ndarray:
    return np.array(spans, dtype="int64").reshape(-1, 2) - [0, 1]


def _binary_controls(
    words: Sequence[list[str]], names: Iterable[str], seed: int
) -> dict[str, list[Any]]:
    found = {}
    for name in names:
        rng = random.Random(seed)
        found[name] = [BINARY_CONTROLS[name](tokens, rng) for tokens in words]
    return found


@dataclass
class _Control:
    trees: list[Any]
    counts: Counts


def _controls(
    nlp: Language, expressions: list[tuple[str, list[str]]], gold: _Gold, kinds: set[str], seed: int
) -> dict[str, _Control]:
    """Make trees that do not depend on a model, for each kind of tree in use."""
    words = [tokens for _, tokens in expressions]
    found = {}
    made: dict[str, list[Any]]
    if "heads" in kinds:
        docs = [gold_doc(nlp, label, tokens) for label, tokens in expressions]
        references = [tree for doc in docs if (tree := reference_tree(Example(doc, doc)))]
        made = dict(control_trees(words, CONTROLS, seed))
        for name, trees in made.items():
            found[name] = _Control(trees, _count_heads(trees, references, gold))
    if "spans" in kinds:
        made = _binary_controls(words, BINARY_CONTROLS, seed)
        for name, trees in made.items():
            found[name] = _Control(trees, _count_brackets(trees, gold))
    return found


# ---------------------------------------------------------------- figures


def _by_group(
    groups: Mapping[str, np.ndarray],
    readings: Mapping[str, _Reading],
    controls: Mapping[str, _Control],
    seed: int,
) -> dict[str, Any]:
    counts: dict[tuple[str, ...], Counts] = {}
    for name, reading in readings.items():
        counts["models", name] = reading.counts
        if reading.as_predicted is not None:
            counts["models", name, "as predicted"] = {"accuracy": reading.as_predicted}
        for trees, each in reading.put_under.items():
            counts["models", name, "with", trees] = {"accuracy": each}
    for name, control in controls.items():
        counts["controls", name] = control.counts
    result = {}
    for group, chosen in groups.items():
        part = {key: {m: each[chosen] for m, each in row.items()} for key, row in counts.items()}
        table = shares(part, MEASURES, seed)
        found: dict[str, Any] = {"expressions": int(chosen.sum()), "models": {}, "controls": {}}
        for key, row in table.items():
            listed: dict[str, Any] = {measure: list(share) for measure, share in row.items()}
            if len(key) == 2:
                found[key[0]][key[1]] = listed
            elif len(key) == 3:
                found["models"][key[1]]["accuracy_as_predicted"] = listed["accuracy"]
            else:
                own = found["models"][key[1]].setdefault("accuracy_with", {})
                own[key[3]] = listed["accuracy"]
        result[group] = found
    return result


def _summary(
    own: dict[str, Any], reading: _Reading, controls: Mapping[str, _Control], seed: int
) -> dict[str, Any]:
    """Summarise the figures of one model."""
    found: dict[str, Any] = {}
    if "accuracy" in own:
        share, low, high = own["accuracy"]
        found = {"accuracy": share, "accuracy_interval": [low, high]}
    beside = {name: control for name, control in controls.items() if reading.component}
    rows: dict[str, Any] = {str(reading.component): reading.trees}
    if reading.kind == "heads":
        rows |= {name: c.trees for name, c in beside.items() if "attachment" in c.counts}
        ways = {
            "without ]": without_words(reading.references, [listops.CLOSE]),
            "all tokens": without_words(reading.references, ()),
        }
        table = attachment_table(reading.references, rows, ways, seed)
        found["attachment"] = {
            name: {
                **{way: share for way, (share, _, _) in row.items()},
                **{f"{way}, 95 %": [low, high] for way, (_, low, high) in row.items()},
            }
            for name, row in table.items()
        }
        gold = [tree.heads for tree in reading.references]
        found["edges"] = {
            name: {
                way: edge_precision(
                    [tree.moved(heads) for tree, heads in zip(reading.references, trees)],
                    gold,
                    counted,
                )
                for way, counted in ways.items()
            }
            for name, trees in rows.items()
        }
    elif reading.kind == "spans":
        counts = {str(reading.component): reading.counts}
        counts |= {name: c.counts for name, c in beside.items() if "spans" in c.counts}
        found["brackets"] = {
            name: float(f_score(each["spans"].sum(0))) for name, each in counts.items()
        }
    return found
