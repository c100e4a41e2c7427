"""Assessment of pipelines on ListOps: values and trees by depth, with controls.

The controls are trees that do not depend on a model. All figures are of the single best tree of
each expression, even if the estimator predicts with a mixture. The figures are plain numbers and
names, see :func:`assess_listops`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from spacy.language import Language
from spacy.training import Example

from spacy_latent import listops
from spacy_latent.analysis import (
    TREE_MEASURES,
    attachment_table,
    edge_precision,
    shares,
    without_words,
)
from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.analysis.resampling import Value, accuracy, f_score
from spacy_latent.errors import LatentError
from spacy_latent.listops.groups import groups_by_depth, groups_by_operator
from spacy_latent.listops.readings import (
    Corpus,
    Counts,
    MeasuredControl,
    Reading,
    Run,
    controls,
    only_component,
)

__all__ = ["ALL", "MEANINGS", "MEASURES", "ListOpsAssessment", "assess_listops", "only_component"]

ALL = "all"
# Measures of the value, and of each kind of tree.
VALUE_MEASURES: dict[str, Value] = {"accuracy": accuracy}
BRACKET_MEASURES: dict[str, Value] = {"spans": f_score, "whole trees": accuracy, "lists": accuracy}
MEASURES: dict[str, Value] = {**VALUE_MEASURES, **TREE_MEASURES, **BRACKET_MEASURES}
# Descriptions of the measures, for tables.
MEANINGS = {
    "accuracy": "share of the expressions with the right value",
    "attachment": "share of the tokens, other than ], with the head of the gold tree",
    "whole trees": "share of the expressions in which every token, other than ], has the right "
    "head, or, for binary trees, in which every span is right",
    "undirected": "share of the gold tree's arcs, other than those to ], that the tree has in "
    "either direction",
    "yields": "F1 of the sets that a head and the tokens below it make, compared with the tokens "
    "of each list, both without ]",
    "one arc": "share of the lists that a single arc separates from all other tokens, without ]",
    "spans": "F1 of the spans, compared with those of the published binary trees. A tree of heads "
    "becomes binary if each head joins its modifiers one by one",
    "lists": "share of the lists whose tokens, without ], are the tokens of a span",
}


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
    A group has the number of its "expressions". Under "models" and "controls" it has, by name, the
    available measures of :data:`MEASURES` as [share, low, high]. The last two are the ends of the
    95 % interval by the bootstrap over expressions. NaN if nothing counts.

    A model also has "accuracy_as_predicted", its accuracy with a mixture of trees, if it composes
    with one. "accuracy_with" is the accuracy with other trees in place of the model's own, by their
    names.

    "accuracy", "accuracy_interval", "attachment", and "edges" or "brackets" at the top level are of
    the first model on the first corpus. The last three also have the controls. "edges" is the mean
    :func:`edge_precision`, which the literature on latent arborescences reports.

    Args:
        component: name of the component with the trees, if the first pipeline has several. It is
            also used in other pipelines that have a component of this name. A pipeline without a
            latent component only has figures of values.
        seed: seed of random trees and intervals.
    """
    read = {name: Corpus.read(path) for name, path in corpora.items()}
    figures: dict[str, Any] = {"seed": seed, "meanings": MEANINGS, "models": {}, "corpora": {}}
    first: ListOpsAssessment | None = None
    for corpus_name, corpus in read.items():
        readings: dict[str, Reading] = {}
        for name, nlp in models.items():
            # Other pipelines may have another name for their component.
            named = component if not readings or component in nlp.pipe_names else None
            run = Run(nlp, corpus, named, seed, progress, f"{name} on {corpus_name}")
            own = readings[name] = run.reading()
            figures["models"][name] = {"component": own.component, "kind": own.kind}
        kinds = {reading.kind for reading in readings.values()}
        beside = controls(next(iter(models.values())), corpus, kinds, seed)
        figures["corpora"][corpus_name] = found = _figures(corpus.words, readings, beside, seed)
        if first is None:
            name, reading = next(iter(readings.items()))
            best = found["by_depth"][ALL]["models"][name]
            figures.update(_summary(best, reading, beside, seed))
            first = ListOpsAssessment(figures, reading.examples, reading.component, reading.kind)
    if first is None:
        raise LatentError("No corpus is given to evaluate the pipelines on. Give at least one.")
    return first


def _figures(
    words: Sequence[list[str]],
    readings: Mapping[str, Reading],
    controls: Mapping[str, MeasuredControl],
    seed: int,
) -> dict[str, Any]:
    """Return the figures of one corpus."""
    depths = {ALL: np.ones(len(words), bool), **groups_by_depth(words)}
    sizes = [len(tokens) for tokens in words]
    return {
        "expressions": len(words),
        "tokens": [min(sizes), max(sizes)],
        "depths": [int(depth) for depth in depths if depth != ALL],
        "by_depth": _by_group(depths, readings, controls, seed),
        "by_operator": _by_group(groups_by_operator(words), readings, controls, seed),
    }


def _by_group(
    groups: Mapping[str, np.ndarray],
    readings: Mapping[str, Reading],
    controls: Mapping[str, MeasuredControl],
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
    own: dict[str, Any], reading: Reading, controls: Mapping[str, MeasuredControl], seed: int
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
