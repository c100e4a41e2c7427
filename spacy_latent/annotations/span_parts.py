"""Parts of one span's structures, with their probabilities."""

from __future__ import annotations

import numpy as np

from spacy_latent.annotations.span_structure import SpanStructure, probability_of_parts
from spacy_latent.errors import LatentError
from spacy_latent.kinds import find_kind


def chosen_parts(
    span: SpanStructure, threshold: float | None, alternative: int | None, component: str
) -> list[tuple[tuple[int, ...], float | None]]:
    """Return the indices of the parts within the span, with their probabilities.

    A probability is 0 if it is below the threshold from which the component stores probabilities,
    and None if the component stored none. ``component`` is its name, for messages.
    """
    known = probability_of_parts(span.parts, span.probabilities)
    if threshold is not None and alternative is None:
        return _at_least(threshold, known, component)
    decoded = span.decoded
    if alternative is not None:
        if alternative >= len(span.alternatives):
            return []
        decoded = span.alternatives[alternative][0]
    chosen = find_kind(span.kind).parts(decoded)
    return [(part, None if known is None else known.get(part, 0.0)) for part in chosen]


def labelled_parts(
    span: SpanStructure, threshold: float | None, alternative: int | None, component: str
) -> list[tuple[tuple[int, ...], float | None]]:
    """Return the same as :func:`chosen_parts` for labelled arcs, (head, modifier, label)."""
    known = probability_of_parts(span.labelled_parts, span.labelled_probabilities)
    if threshold is not None and alternative is None:
        return _at_least(threshold, known, component)
    heads, labels = span.decoded, span.arc_labels
    if alternative is not None:
        if alternative >= len(span.alternative_labels):
            return []
        heads = span.alternatives[alternative][0]
        labels = span.alternative_labels[alternative]
    assert labels is not None
    places = zip(heads.tolist(), range(1, len(heads) + 1), labels.tolist())
    return [(place, None if known is None else known.get(place, 0.0)) for place in places]


def possible_parts(span: SpanStructure, noun: str, component: str) -> list[tuple[list[int], float]]:
    """Return the rows of the calibrated set of a structure, with their probabilities.

    Raises:
        LatentError: If there is no set. The error names its members by ``noun``.
    """
    if span.possible is None or span.possible_probabilities is None or not span.labels:
        raise LatentError(
            f"{component!r} stored no set of possible {noun}. Calibrate it with 'spacy latent "
            'calibrate MODEL DEV OUT --coverage 0.9\', and set annotate = "probabilities".'
        )
    return list(zip(span.possible.tolist(), span.possible_probabilities.tolist()))


def is_below(span: SpanStructure, probability: float | None) -> bool:
    """Return whether an entity is less probable than the component's ``min_confidence``."""
    least = span.min_confidence
    return least is not None and probability is not None and probability < least


def doc_heads(span: SpanStructure, heads: np.ndarray) -> np.ndarray:
    """Return heads of a span's tree as positions in the doc; a root is its own head."""
    own = np.arange(span.start, span.end)
    return np.where(heads == 0, own, heads - 1 + span.start)


def _at_least(
    threshold: float, known: dict[tuple[int, ...], float] | None, component: str
) -> list[tuple[tuple[int, ...], float | None]]:
    if known is None:
        raise LatentError(no_probabilities_message(component))
    return [(part, p) for part, p in known.items() if p >= threshold]


def no_probabilities_message(component: str) -> str:
    """Return the error text for a threshold on structures without probabilities."""
    return (
        f"A threshold needs probabilities, and {component!r} stored none. Ask a trained pipeline "
        "for them by inspect_docs(nlp, docs) of spacy_latent.pipeline.latent_encoder, set "
        'annotate = "probabilities" in the component\'s config, or leave the threshold out.'
    )


def no_counters_message(component: str) -> str:
    """Return the error text for counters that a component did not store."""
    return (
        f"No counters of {component!r} are stored. They need a scorer that counts, such as "
        'spacy-latent.CounterScorer.v1, and annotate = "probabilities" in the component\'s config.'
    )
