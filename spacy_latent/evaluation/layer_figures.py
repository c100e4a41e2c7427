"""Figures of a layer's structures on a corpus."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from spacy.language import Language
from spacy.training import Example

from spacy_latent.analysis import agreement as agreements
from spacy_latent.analysis import structures
from spacy_latent.analysis.figures import LoneStructures, OtherModels, Statistic
from spacy_latent.annotations import SpanStructure
from spacy_latent.evaluation.references import Spans
from spacy_latent.kinds import Kind
from spacy_latent.pipeline.inspection import latent_components

if TYPE_CHECKING:
    from spacy_latent.models.inspection import Uncertainty
    from spacy_latent.structures.base import Structure

# Spans of fewer tokens are left out, since their structures are nearly all alike.
LONG_ENOUGH = 4
# Least logarithm of the number of structures of a span with more than one. A span of one token has
# a single structure, and so has a span whose tokens must all be chosen.
SEVERAL = math.log(1.5)

# Uncertainty of each span of a doc, by the number of the doc. Docs without it are missing.
Known = Mapping[int, Sequence["Uncertainty"]]


def spans_of(examples: Sequence[Example], key: str) -> Spans:
    """Return the structures under a name, by number of the text."""
    read = ((d, example.predicted._.latent.get(key)) for d, example in enumerate(examples))
    return {d: annotation.spans for d, annotation in read if annotation is not None}


def statistics(kind: Kind, spans: Spans, known: Known) -> dict[str, Statistic]:
    """Return the distribution of each statistic, in the order of tables."""
    values: dict[str, list[float]] = {}
    for d, found in spans.items():
        for i, span in enumerate(found):
            row = structures.structure_statistics(span)
            if known.get(d) and len(span):
                sure = known[d][i]
                row["entropy"] = sure.nats / len(span)
                if sure.log_count > SEVERAL:
                    row["relative entropy"] = sure.nats / sure.log_count
                row["effective number"] = structures.effective_number(sure.nats)
                if sure.support:
                    row["support"] = sure.support
            for name, value in row.items():
                values.setdefault(name, []).append(value)
    made = {name: structures.distribution(name, each, kind.name) for name, each in values.items()}
    order = list(dict.fromkeys([*structures.MEANINGS, *kind.meanings, *made]))
    shown = [(name, found) for name, found in made.items() if found is not None]
    return dict(sorted(shown, key=lambda entry: order.index(entry[0])))


def lone_structures(node: Any, spans: Spans, known: Known) -> LoneStructures | None:
    """Return how many of SparseMAP's mixtures have one structure; None if nothing is known."""
    from spacy_latent.models.inspection import latent_shim

    warmths = []
    for d, found in spans.items():
        # A single structure has probability 1 at any temperature.
        warmths += [
            sure.warmth
            for span, sure in zip(found, known.get(d, ()))
            if len(span) > 1 and not sure.log_count < SEVERAL
        ]
    warmths = [warmth for warmth in warmths if not math.isnan(warmth)]
    if not warmths:
        return None
    share = sum(warmth > 1 for warmth in warmths) / len(warmths)
    half = sorted(warmths)[(len(warmths) - 1) // 2]
    temperature = latent_shim(node).temperature
    return LoneStructures(share, temperature, half * temperature)


def constraint(structure: Structure) -> str:
    """Describe the constraint that keeps the set of structures small; empty if there is none."""
    direction = getattr(structure, "direction", "any")
    longest = getattr(structure, "max_arc_length", None)
    said = [f"direction = {direction!r}"] if direction != "any" else []
    return ", ".join([*said, *([f"max_arc_length = {longest}"] if longest is not None else [])])


def random_trees(
    structure: Structure, words: Mapping[int, list[str]], spans: Spans, seed: int
) -> Spans:
    """Draw for each span one of the trees that the layer chooses from, uniformly."""
    from spacy_latent.estimators.given_trees import random_tree, text_seed

    def drawn(d: int, span: SpanStructure) -> SpanStructure:
        own = text_seed([str(d), *words[d][span.start : span.end]], seed)
        return replace(span, decoded=random_tree(structure, len(span), own))

    return {d: [drawn(d, span) for span in found] for d, found in spans.items()}


def controls(
    kind: Kind, words: Mapping[int, list[str]], spans: Spans
) -> dict[int, list[dict[str, np.ndarray]]]:
    """Return for each span the structures that do not depend on a model, by name."""
    heading: frozenset[str] = frozenset()
    if "heads" in kind.accessors:
        pairs = [(words[d][s.start : s.end], s) for d in spans for s in spans[d]]
        trees = [structures.own_heads(span.decoded) for _, span in pairs]
        heading = agreements.head_words([part for part, _ in pairs], trees)
    return {
        d: [
            kind.said(
                "controls",
                kind.controls(
                    words[d][s.start : s.end],
                    heading,
                    words[d][s.other_start : s.other_end] if s.other_start is not None else (),
                ),
            )
            for s in found
        ]
        for d, found in spans.items()
    }


def flat_share(spans: Spans) -> float:
    """Return the share of tokens that are roots or depend on one; NaN for short texts."""
    near = total = 0
    for found in spans.values():
        for span in found:
            if len(span) < LONG_ENOUGH:
                continue
            heads = structures.own_heads(span.decoded)
            is_root = heads == np.arange(len(heads))
            near += int(is_root[heads].sum())
            total += len(heads)
    return near / total if total else math.nan


def like_controls(
    kind: Kind, spans: Spans, controls: dict[int, list[dict[str, np.ndarray]]]
) -> dict[str, float]:
    """Return for each control the share of its parts that are also in the structures."""
    shared: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for d, found in spans.items():
        for span, made in zip(found, controls[d]):
            if len(span) < LONG_ENOUGH:
                continue
            own = kind.comparable(span.decoded)
            for name, other in made.items():
                both, parts = kind.common(own, other)
                shared[name] += both  # type: ignore[assignment]
                total[name] += parts  # type: ignore[assignment]
    return {name: shared[name] / total[name] for name in total if total[name]}


def by_length(kind: Kind, words: dict[int, list[str]], spans: Spans) -> tuple[float, int]:
    """Return the share of tokens that the length determines, and the number examined."""
    sentences, numbers = [], []
    for d, found in spans.items():
        for span in found:
            each = kind.numbers(np.asarray(span.decoded), len(span))
            if each is not None:
                sentences.append(words[d][span.start : span.end])
                numbers.append(each)
    return structures.position_share(sentences, numbers)


def between(
    key: str,
    spans: Spans,
    compared: Mapping[str, tuple[Language, list[Example]]],
    random: Spans | None,
) -> OtherModels:
    """Compute the agreement of each two models on the structures of a layer."""
    all_spans = {"this": spans}
    for name, (nlp, examples) in compared.items():
        keys = [key for found in latent_components(nlp).values() for key in found.layers]
        all_spans[name] = spans_of(examples, key if key in keys else keys[0])
    names = list(all_spans)
    matrix = [
        [1.0 if a == b else agreements.agreement(all_spans[a], all_spans[b])[0] for b in names]
        for a in names
    ]
    pairs = [matrix[i][j] for i in range(len(names)) for j in range(i)]
    finite = [value for value in pairs if math.isfinite(value)]
    return OtherModels(
        names=names[1:],
        matrix=matrix,
        mean=float(np.mean(finite)) if finite else math.nan,
        chance=agreements.agreement(spans, random)[0] if random else math.nan,
    )
