"""Remarks at the head of a report, on its corpus and on components that find nothing."""

from __future__ import annotations

import math

from spacy_latent.analysis.calibration import EntityFigures, left_out_in_words
from spacy_latent.analysis.figures import Figures
from spacy_latent.analysis.reference_check import in_words
from spacy_latent.errors import number_of

LONGER = (
    "Train it longer, with a higher training.max_steps and training.patience, or on more annotated "
    "text; 'spacy latent debug' names mistakes of a config."
)
# Reasons why no prediction can be judged, by the kind of prediction.
NOT_ANNOTATED = {
    "arc": "no word of the texts has an annotated head",
    "entity": "no entity is annotated in the texts, and none is found where they are annotated",
    "span": "no span is annotated in the texts, and none is found where they are annotated",
}
# Name of the measure in spacy_latent.analysis.task.
F1 = "F1 of the entities"


def remarks(figures: Figures) -> list[str]:
    """Return the remarks as sentences, empty if there are none."""
    said = []
    if figures.left_out:
        were = "was" if figures.left_out == 1 else "were"
        said.append(f"{number_of(figures.left_out, 'text', ',')} without tokens {were} left out.")
    said += in_words(figures.task.unknown_labels)
    for name, noun in figures.unjudged.items():
        said.append(
            f"The confidence of {name} cannot be evaluated: {NOT_ANNOTATED[noun]}. Give texts "
            "with such annotation."
        )
    if not figures.task.measures:
        said.append(
            "No prediction was scored: the texts have no annotation of what the pipeline "
            "predicts, or the report has no score for it. So the report cannot show whether the "
            "structures help. Give annotated texts."
        )
    measure = figures.task.measures.get(F1)
    for name, found in figures.entities.items():
        if found.noun == "entity":
            said.append(_of_entities(name, found, math.nan if measure is None else measure.value))
        if found.noun in ("entity", "span"):
            said.append(left_out_in_words(name, found))
    return [each for each in said if each]


def _of_entities(name: str, found: EntityFigures, f1: float) -> str:
    """Return the remark on a component without entities, or without right ones."""
    if not found.gold:
        return ""
    wanted = number_of(found.gold, "entity", ",")
    if not found.found:
        return (
            f"{name} finds no entity, and the references have {found.gold:,}: precision, recall "
            f"and F1 are 0. Probably it has learned too little. {LONGER}"
        )
    if found.cuts[0].precision == 0:
        none = f"None of the {found.found:,} that {name} finds is right"
        return (
            f"{none if found.found > 1 else f'The one that {name} finds is wrong'}, and the "
            f"references have {wanted}. {LONGER} Check also that it has the labels and tokens of "
            "the references."
        )
    if f1 == 0:
        return (
            f"{name} finds correct entities, and none of them is in doc.ents. Check its "
            "min_confidence, and later components that write doc.ents."
        )
    return ""
