"""Entities, spans and arcs that annotation judges correct or wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from spacy.training import Example

from spacy_latent.annotations import aligned_spans, annotated_labels

# token.ent_iob of tokens without annotation.
MISSING = 0


@dataclass
class JudgedEntities:
    """Entities of a component, judged correct or wrong by the annotation.

    Attributes:
        gold: number of entities in the annotation.
        unannotated: number of further entities that were found on tokens whose annotation is
            missing.
        outside_known: False if some annotation is missing and no token is annotated as outside of
            entities. Then an entity is known to be wrong only if it overlaps a gold entity.
        texts: number of the text of each entity. If it is empty, each entity counts as a text of
            its own.
        by_document: whether these texts are documents, of which a doc may be a piece.
        noun: name of the predictions in messages; spans and arcs are judged as entities are.
        lengths: number of tokens of each span or tree, or distance of each arc between head and
            modifier, 0 for roots; empty for entities.
    """

    probabilities: list[float] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    gold: int = 0
    unannotated: int = 0
    outside_known: bool = True
    texts: list[int] = field(default_factory=list)
    noun: str = "entity"
    lengths: list[int] = field(default_factory=list)
    by_document: bool = False

    def add(
        self, probability: float, right: bool, text: int, label: str = "", length: int | None = None
    ) -> None:
        """Append one prediction. ``text`` numbers its text; entities have no ``length``."""
        self.probabilities.append(probability)
        self.correct.append(right)
        self.texts.append(text)
        self.labels.append(label)
        if length is not None:
            self.lengths.append(length)


def judged_entities(
    examples: Iterable[Example], component: str = "crf_ner"
) -> JudgedEntities | None:
    """Return the entities of ``component`` that the annotation judges correct or wrong.

    An entity is correct if a gold entity has the same tokens and the same label. Entities that were
    on the doc before are left out, since the component gives them no probability. Entities on
    tokens whose annotation is missing, or of labels that a text was not annotated for, are counted
    in ``unannotated``.

    Returns:
        The entities, None if the component stored no probabilities.
    """
    found, missing, outside = JudgedEntities(), False, False
    for number, example in enumerate(examples):
        annotation = example.predicted._.latent.get(component)
        if annotation is None:
            continue
        tags: Any = example.reference.to_array(["ENT_IOB", "ENT_TYPE"])
        missing |= bool((tags[:, 0] == MISSING).any())
        outside |= bool(((tags[:, 0] != MISSING) & (tags[:, 1] == 0)).any())
        if any(span.entity_probabilities is None for span in annotation.spans):
            # Texts without annotation need no probabilities.
            if (tags[:, 0] != MISSING).any():
                return None
            continue
        asked = annotated_labels(example.reference)
        known = [span for span in example.reference.ents if asked is None or span.label_ in asked]
        aligned = aligned_spans(example, known)
        gold = {(span.start, span.end, span.label_) for span in aligned}
        found.gold += len(known)
        reference, place = example.reference, example.alignment.x2y
        for entity in annotation.entities():
            tokens = [i for token in range(entity.start, entity.end) for i in place[token].tolist()]
            right = (entity.start, entity.end, entity.label) in gold
            if entity.given:
                found.gold -= right
            elif (asked is not None and entity.label not in asked) or any(
                reference[i].ent_iob == MISSING for i in tokens
            ):
                found.unannotated += 1
            elif entity.probability is not None:
                found.add(entity.probability, right, number, entity.label)
    found.outside_known = outside or not missing
    return found
