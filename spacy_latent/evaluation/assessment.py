"""Figures of a trained pipeline's structures on a corpus.

They describe the structures, whether the task uses them, and their agreement with references.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from spacy.language import Language
from spacy.training import Example

from spacy_latent.analysis.figures import Figures
from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.analysis.task import first_classifier, labels_of_others
from spacy_latent.analysis.verdicts import Verdict, verdicts
from spacy_latent.annotations.settings import cfg_of
from spacy_latent.evaluation.assessment_run import AssessmentRun
from spacy_latent.evaluation.controls import differences
from spacy_latent.pipeline.inspection import Uncertainties, latent_components


@dataclass
class Assessment:
    """Result of :func:`assess`.

    Attributes:
        figures: numbers and names only, see docs/reports.md; NaN for unknown values.
            :func:`spacy_latent.analysis.figures.plain` makes JSON of them.
        verdicts: verdicts on each latent layer, by its name.
        uncertainties: for each example, the uncertainty of each layer.
        scores: score of each example by the first measure; NaN if there is none.
        heads: for each example, the reference's heads at the predicted tokens, −1 if unknown; or
            None.
        further_categories: categories that only classifiers after the first one predict.
        are_numbers: whether the first classifier predicts numbers, in a ``score_range``.
        ignore: texts of tokens that do not count for the agreement with reference heads.
    """

    figures: Figures
    verdicts: dict[str, list[Verdict]]
    examples: list[Example]
    uncertainties: list[Uncertainties]
    scores: list[float]
    heads: list[np.ndarray | None]
    further_categories: frozenset[str] = frozenset()
    are_numbers: bool = False
    ignore: tuple[str, ...] = ()


def assess(
    nlp: Language,
    examples: Iterable[Example],
    *,
    component: str | None = None,
    others: Mapping[str, Language] | None = None,
    controls: Mapping[str, Sequence[Language]] | None = None,
    ignore: Sequence[str] = (),
    random: bool = True,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress = silent,
) -> Assessment:
    """Predict every example and compute the figures.

    Args:
        examples: examples whose ``predicted`` docs are not processed yet. References may lack any
            annotation. Figures that need it are then left out.
        component: name of a latent component. None for all of them, and for components with
            probabilities of entities, whose calibration is measured.
        others: further pipelines by name, such as other seeds, whose scores and latent structures
            are compared. Pipelines without latent structures are allowed, too.
        controls: by name, trainings of the same model with structures that are not learned. They
            show the task's measure without learned structures. If all settings of a pipeline of
            ``others`` but its seed are the same, it counts as a further training.
        ignore: texts of tokens that do not count for the agreement with reference heads.
        random: whether to run the pipeline with random structures too.
        seed: seed of random structures and of the bootstrap.
    """
    run = AssessmentRun(
        nlp, list(examples), component, tuple(ignore), seed, batch_size, progress, bool(others)
    )
    alike = [name for name, other in (others or {}).items() if not differences(nlp, other)]
    figures = Figures(
        docs=len(run.examples),
        tokens=sum(len(example.predicted) for example in run.examples),
        pipeline=list(nlp.pipe_names),
        task=run.task(),
        entities=run.entity_figures(),
    )
    if component is not None or not (figures.entities or run.components):
        figures.unjudged = run.unjudged(figures.entities)
    found: dict[str, list[Verdict]] = {}
    substituted = {name: run.substituted(name, random) for name in run.components}
    compared = {name: run.predict_other(name, other) for name, other in (others or {}).items()}
    for name, (_, predicted) in compared.items():
        figures.others[name] = run.differences(predicted)
    structured = {name: each for name, each in compared.items() if latent_components(each[0])}
    seeds = [predicted for name, (_, predicted) in compared.items() if name in alike]
    figures.trained = run.trained(controls or {}, seeds)
    for name in run.components:
        for layer_name, node in run.latent[name].layers.items():
            part = run.layer(name, layer_name, node, substituted[name], structured)
            part.trained = figures.trained
            if part.others is not None:
                part.others.alike = len(alike) == len(structured)
            figures.components[layer_name] = part
            found[layer_name] = verdicts(part)
    read = run.examples, run.uncertainties, run.text_scores(), run.heads
    return Assessment(figures, found, *read, *_of_first_classifier(nlp), tuple(ignore))


def _of_first_classifier(nlp: Language) -> tuple[frozenset[str], bool]:
    """Return categories that others predict, and whether the first classifier predicts numbers."""
    name = first_classifier(nlp)
    if name is None:
        return frozenset(), False
    return labels_of_others(nlp, name), bool(cfg_of(nlp.get_pipe(name)).get("score_range"))
