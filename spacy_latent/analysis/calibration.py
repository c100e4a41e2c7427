"""How far the probabilities of entities can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.training import Example


def expected_calibration_error(
    probabilities: Sequence[float], correct: Sequence[bool], bins: int = 10
) -> float:
    """The mean distance, in [0, 1], between how probable predictions are said to be and how many
    are right, over equal ranges of probability weighted by their predictions (Guo et al. 2017,
    eq. 3). NaN without predictions."""
    if len(probabilities) != len(correct) or bins < 1:
        raise LatentError(
            f"expected_calibration_error: {len(probabilities)} probabilities, {len(correct)} "
            f"outcomes and {bins} bins; expected as many of the first two, and at least one bin."
        )
    if not len(probabilities):
        return float("nan")
    said, right = np.asarray(probabilities, dtype="float64"), np.asarray(correct, dtype="float64")
    place = np.minimum((said * bins).astype("int64"), bins - 1)
    differences = np.bincount(place, said - right, minlength=bins)
    return float(np.abs(differences).sum() / len(said))


def entity_calibration_error(
    examples: Iterable[Example], component: str = "crf_ner", bins: int = 10
) -> float | None:
    """That of the entities that ``component`` found; None where it stored no probabilities or found
    none. Neither entities that were on the doc before count, which have no probability of the
    component's, nor those on tokens whose annotation is missing."""
    probabilities: list[float] = []
    correct: list[bool] = []
    for example in examples:
        annotation = example.predicted._.latent.get(component)
        if annotation is None or not example.reference.has_annotation("ENT_IOB"):
            continue
        if any(span.entity_probabilities is None for span in annotation.spans):
            return None
        aligned = example.get_aligned_spans_y2x(list(example.reference.ents))
        gold = {(span.start, span.end, span.label_) for span in aligned}
        reference, place = example.reference, example.alignment.x2y
        for entity in annotation.entities():
            tokens = [i for token in range(entity.start, entity.end) for i in place[token].tolist()]
            if entity.given or not all(reference[i].ent_iob for i in tokens):
                continue
            probabilities.append(entity.probability)
            correct.append((entity.start, entity.end, entity.label) in gold)
    return expected_calibration_error(probabilities, correct, bins) if probabilities else None


def build_entity_scorer_v1(
    component: str = "crf_ner", bins: int = 10
) -> Callable[..., dict[str, Any]]:
    """spaCy's scores of entities and ``ents_ece``, the expected calibration error of those that
    ``component`` found with ``annotate = "probabilities"``.

    bins: into how many equal ranges probabilities are sorted.
    """

    def score(examples: Iterable[Example], **kwargs: Any) -> dict[str, Any]:
        from spacy.scorer import get_ner_prf

        examples = list(examples)
        found = get_ner_prf(examples, **kwargs)
        return {**found, "ents_ece": entity_calibration_error(examples, component, bins)}

    return score
