"""Runs of the assessed pipeline over all examples, and the figures of their results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from spacy.language import Language
from spacy.scorer import Scorer
from spacy.training import Example

from spacy_latent.analysis import reference_tree, resampling, task
from spacy_latent.analysis.arc_calibration import ARC, judged_arcs
from spacy_latent.analysis.calibration import EntityFigures, entity_figures
from spacy_latent.analysis.figures import (
    Chance,
    ControlScore,
    LayerFigures,
    OtherScore,
    RandomStructures,
    Score,
    TaskFigures,
    Trained,
    TrainedControl,
    TrainedScore,
)
from spacy_latent.analysis.judged_entities import judged_entities
from spacy_latent.analysis.progress import Progress
from spacy_latent.analysis.reference_check import unknown_labels
from spacy_latent.analysis.span_calibration import judged_spans
from spacy_latent.analysis.task import Measure
from spacy_latent.annotations import BEST, Stored
from spacy_latent.errors import LatentError
from spacy_latent.evaluation import layer_figures
from spacy_latent.evaluation.calibration_examples import without_entities_of_others
from spacy_latent.evaluation.controls import (
    differences,
    kind_of_trees,
    of_training,
    unintended_differences,
)
from spacy_latent.evaluation.references import ComparedLayer, Spans, predicted_heads
from spacy_latent.kinds import find_kind
from spacy_latent.pipeline.calibrated_components import (
    entity_components,
    parse_components,
    span_components,
)
from spacy_latent.pipeline.inspection import (
    Uncertainties,
    choose_components,
    inspect_pipe,
    latent_components,
    refuse_lost,
)

# Number of random structures over all texts. A text gets at most MOST_DRAWS.
DRAWN = 1000
MOST_DRAWS = 5
# Bytes of vectors that are kept between runs.
VECTORS = 256e6


@dataclass
class Substituted:
    """Results with random structures in place of the layer's own.

    Attributes:
        drops: drop of each measure, by its name.
        spans: random structures of each doc, by the name of the layer.
    """

    drops: dict[str, RandomStructures] = field(default_factory=dict)
    spans: dict[str, Spans] = field(default_factory=dict)


class AssessmentRun:
    """Predictions of one pipeline, and its figures with its own and with random structures."""

    def __init__(
        self,
        nlp: Language,
        examples: list[Example],
        component: str | None,
        ignore: tuple[str, ...],
        seed: int,
        batch_size: int | None,
        progress: Progress,
        compares: bool,
    ) -> None:
        from spacy_latent.models.inspection import KeptVectors

        if not examples:
            raise LatentError("The corpus holds no texts. Give one with at least one.")
        self.nlp = nlp
        # Components whose confidences are reported.
        self.parsers, self.finders, self.span_finders = (
            [name for name in of(nlp) if component in (None, name)]
            for of in (parse_components, entity_components, span_components)
        )
        others = self.finders or self.parsers or self.span_finders
        # Pipelines without structures are allowed if only scores are compared.
        is_enough = others or (compares and component is None)
        self.components = []
        if not is_enough or (component is None and latent_components(nlp)):
            self.components = choose_components(nlp, component)
        self.latent = latent_components(nlp)
        self.ignore = ignore
        self.seed = seed
        self.batch_size = batch_size
        self.progress = progress
        # Vectors of embedders can be kept, since they do not depend on the structures above them.
        self.kept = {name: KeptVectors(VECTORS / len(self.components)) for name in self.components}
        # Each run starts from unprocessed docs.
        self.raw = [example.predicted.copy() for example in examples]
        names = [*dict.fromkeys([*self.components, *self.finders, *self.parsers])]
        self.examples, self.uncertainties = self._predict(
            nlp, examples, "Predicting", names, uncertainty=True, kept=self.kept
        )
        self.measures = task.find_measures(nlp, self.examples)
        self.counts = {m.name: m.counts(self.examples) for m in self.measures}
        self.references = [reference_tree(example) for example in self.examples]
        self.heads = [predicted_heads(example) for example in self.examples]

    def _predict(
        self,
        nlp: Language,
        examples: Sequence[Example],
        stage: str,
        components: Sequence[str],
        **options: Any,
    ) -> tuple[list[Example], list[Uncertainties]]:
        docs = (self.raw[d].copy() for d in range(len(examples)))
        stream = inspect_pipe(
            nlp, docs, components=components, batch_size=self.batch_size, **options
        )
        found, sure = [], []
        shown = list(self.progress(stream, stage, len(examples)))
        advice = "Assess it without one, to see the error, or leave these docs out."
        refuse_lost(len(examples), len(shown), "doc", advice)
        for example, (doc, known) in zip(examples, shown, strict=True):
            found.append(Example(doc, example.reference))
            sure.append(known)
        return found, sure

    # ---------------------------------------------------------------- the task

    def task(self) -> TaskFigures:
        """Return the measures with their intervals, and all scores of the pipeline."""
        figures = TaskFigures(unknown_labels=unknown_labels(self.nlp, self.examples))
        for measure in self.measures:
            found = resampling.interval(measure.value, self.counts[measure.name], self.seed)
            figures.measures[measure.name] = Score(*found, _chance(measure))
        if self.measures or any(heads is not None for heads in self.heads):
            everything = Scorer(self.nlp).score(self.examples)
            figures.scores = {
                name: float(value)
                for name, value in everything.items()
                if isinstance(value, (int, float)) and not isinstance(value, bool)
            }
        return figures

    def entity_figures(self) -> dict[str, EntityFigures]:
        """Return the calibration of entities, spans and arcs by component.

        Trees and labelled arcs of a parser have names of their own, such as "parser: trees".
        """
        judged = {
            name: judged_entities(without_entities_of_others(self.nlp, name, self.examples), name)
            for name in self.finders
        }
        for name in self.span_finders:
            pipe: Any = self.nlp.get_pipe(name)
            judged[name] = judged_spans(self.examples, pipe.key)
        for name in self.parsers:
            for noun, found in judged_arcs(self.examples, name).items():
                judged[name if noun == ARC else f"{name}: {noun}s"] = found
        return {
            name: entity_figures(found)
            for name, found in judged.items()
            if found is not None and (found.probabilities or found.gold)
        }

    def unjudged(self, judged: Container[str]) -> dict[str, str]:
        """Return the kind of prediction of each component whose confidences could not be judged."""
        sought = {
            **dict.fromkeys(self.finders, "entity"),
            **dict.fromkeys(self.span_finders, "span"),
            **dict.fromkeys(self.parsers, ARC),
        }
        return {name: noun for name, noun in sought.items() if name not in judged}

    def text_scores(self) -> list[float]:
        """Return the first measure of each text, NaN if there is no measure."""
        if not self.measures:
            return [math.nan] * len(self.examples)
        first = self.measures[0]
        return [float(value) for value in first.value(self.counts[first.name])]

    def differences(self, examples: Sequence[Example]) -> dict[str, OtherScore]:
        """Score the predictions of another pipeline, and the drop from the first one."""
        found = {}
        for measure in self.measures:
            theirs = measure.counts(examples)
            score = resampling.interval(measure.value, theirs, self.seed)
            drop = resampling.paired_drop(
                measure.value, self.counts[measure.name], theirs, self.seed
            )
            found[measure.name] = OtherScore(*score, (drop.drop, drop.low, drop.high))
        return found

    def substituted(self, name: str, random: bool) -> Substituted:
        """Run with random structures in this component.

        If predictions are composed of more than the best structures, also run with the best ones.
        """
        from spacy_latent.models.random_structure import substitute_structures

        result = Substituted()
        if not random:
            return result
        pipe: Any = self.nlp.get_pipe(name)
        keys, kept = list(self.latent[name].layers), {name: self.kept[name]}
        draws = min(MOST_DRAWS, max(1, DRAWN // len(self.examples)))
        totals = {m.name: 0.0 * self.counts[m.name] for m in self.measures}
        for draw in range(draws):
            with substitute_structures([pipe.model], "random", self.seed + draw):
                progress = f"Random structures in {name}"
                examples, _ = self._predict(
                    self.nlp, self.examples, progress, [name], stored=BEST, kept=kept
                )
            for measure in self.measures:
                totals[measure.name] += measure.counts(examples) / draws
            if not draw:
                result.spans = {key: layer_figures.spans_of(examples, key) for key in keys}
        before = self.counts
        mixed = any(
            sure.support != 1
            for known in self.uncertainties
            for key in keys
            for sure in known.get(key, ())
        )
        if mixed and self.measures:
            with substitute_structures([pipe.model], "best", self.seed):
                progress = f"Best structures in {name}"
                examples, _ = self._predict(
                    self.nlp, self.examples, progress, [], stored=Stored("none"), kept=kept
                )
            before = {m.name: m.counts(examples) for m in self.measures}
        for measure in self.measures:
            own = before[measure.name]
            drop = resampling.paired_drop(measure.value, own, totals[measure.name], self.seed)
            _, low, _ = resampling.interval(measure.value, own, self.seed)
            counts = self.counts[measure.name]
            mixture = (
                resampling.interval(measure.value, counts, self.seed) if mixed else (None, None)
            )
            result.drops[measure.name] = RandomStructures(
                **vars(drop),
                before_low=low,
                draws=draws,
                mixture=mixture[0],
                mixture_low=mixture[1],
                chance=_chance(measure),
            )
        return result

    def trained(
        self, controls: Mapping[str, Sequence[Language]], seeds: Sequence[Sequence[Example]]
    ) -> Trained:
        """Compare the scores of this pipeline's trainings with the trainings of each control."""
        if not controls:
            return Trained()
        known: dict[str, TrainedControl] = {}
        predicted: dict[str, list[list[Example]]] = {}
        for name, pipelines in controls.items():
            if not pipelines:
                raise LatentError(f"The control {name!r} has no pipeline. Give at least one.")
            found = [differences(self.nlp, one) for one in pipelines]
            trees = kind_of_trees(pipelines[0])
            what = "another pipeline" if trees is None else f"the same model trained with {trees}"
            known[name] = TrainedControl(
                trees=trees,
                what=what,
                unlike=sorted({str(c) for each in found for c in unintended_differences(each)}),
                unfair=sorted({str(c) for each in found for c in of_training(each)}),
            )
            predicted[name] = [self.predict_other(name, one, [])[1] for one in pipelines]
        measures = {}
        for measure in self.measures:
            own = [self.counts[measure.name], *(measure.counts(one) for one in seeds)]
            row = TrainedScore(*self._trainings(measure, own), controls={})
            for name, found_of in predicted.items():
                theirs = [measure.counts(one) for one in found_of]
                # Repeat each training as often as the other side has trainings, so that numbers are
                # equal.
                ours = np.concatenate([one for one in own for _ in theirs], 1)
                others = np.concatenate([one for one in theirs for _ in own], 1)
                value = resampling.mean_over(measure.value, len(own) * len(theirs))
                drop = resampling.paired_drop(value, ours, others, self.seed)
                row.controls[name] = ControlScore(
                    *self._trainings(measure, theirs),
                    difference=(drop.drop, drop.low, drop.high),
                    spread=_spread(*[_values(measure, one) for one in (own, theirs)]),
                    docs=drop.docs,
                    differ=drop.differ,
                )
            measures[measure.name] = row
        return Trained(known, measures)

    def _trainings(
        self, measure: Measure, counts: Sequence[np.ndarray]
    ) -> tuple[float, float, float, list[float]]:
        """Return the mean score of all trainings, its interval over texts, and each score."""
        value = resampling.mean_over(measure.value, len(counts))
        found = resampling.interval(value, np.concatenate(counts, 1), self.seed)
        return *found, _values(measure, counts)

    def predict_other(
        self, name: str, nlp: Language, components: Sequence[str] | None = None
    ) -> tuple[Language, list[Example]]:
        """Predict the examples with another pipeline.

        Args:
            components: components whose structures are needed; all latent ones if None.
        """
        if components is None:
            components = list(latent_components(nlp))
        examples, _ = self._predict(nlp, self.examples, f"Predicting with {name}", components)
        for ours, theirs in zip(self.examples, examples):
            if len(ours.predicted) != len(theirs.predicted):
                raise LatentError(f"{name} does not keep the tokens of the first pipeline.")
        return nlp, examples

    # ---------------------------------------------------------------- a layer

    def layer(
        self,
        component: str,
        key: str,
        node: Any,
        substituted: Substituted,
        compared: Mapping[str, tuple[Language, list[Example]]],
    ) -> LayerFigures:
        """Return the figures of a latent layer, whose structures are stored under ``key``."""
        from spacy_latent.models.inspection import latent_module

        layer = latent_module(node).latent
        spans = layer_figures.spans_of(self.examples, key)
        flat = [span for found in spans.values() for span in found]
        kind = find_kind(layer.structure.kind)
        known = {d: own[key] for d, own in enumerate(self.uncertainties) if key in own}
        words = {d: [token.text for token in self.examples[d].predicted] for d in spans}
        figures = LayerFigures(
            component=key,
            structure=repr(layer.structure),
            estimator=layer.estimator.name,
            scorer=type(layer.scorer).__name__,
            composer=type(layer.composer).__name__,
            kind=kind.name,
            plural=kind.plural,
            constraint=layer_figures.constraint(layer.structure),
            spans=len(flat),
            docs=len(spans),
            statistics=layer_figures.statistics(kind, spans, known),
            random=substituted.drops,
            alone=layer_figures.lone_structures(node, spans, known),
        )
        if "heads" in kind.accessors:
            figures.flat_share = layer_figures.flat_share(spans)
        controls = layer_figures.controls(kind, words, spans)
        figures.controls = layer_figures.like_controls(kind, spans, controls)
        if "tags" in kind.accessors:
            tags = Counter(int(tag) for span in flat for tag in np.ravel(span.decoded))
            total = sum(tags.values())
            figures.tag_shares = {str(tag): tags[tag] / total for tag in sorted(tags)}
        figures.by_length = layer_figures.by_length(kind, words, spans)
        random = substituted.spans.get(key)
        if kind.trees and (compared or any(self.references[d] is not None for d in spans)):
            random = layer_figures.random_trees(layer.structure, words, spans, self.seed)
        compared_layer = ComparedLayer(
            key,
            self.examples,
            spans,
            controls,
            random,
            self.references,
            self.heads,
            self.ignore,
            self.seed,
        )
        figures.reference = kind.reference(compared_layer)
        if compared:
            figures.others = layer_figures.between(key, spans, compared, random)
        return figures


def _chance(measure: Measure) -> Chance | None:
    return None if measure.majority is None else Chance(*measure.majority)


def _values(measure: Measure, counts: Sequence[np.ndarray]) -> list[float]:
    return [float(measure.value(one.sum(0))) for one in counts]


def _spread(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return two standard deviations of the difference of two trainings' scores.

    A side with one training is assumed to vary as much as the other. NaN if both have one.
    """
    known = [float(np.var(each, ddof=1)) for each in (ours, theirs) if len(each) > 1]
    return 2 * math.sqrt(2 * float(np.mean(known))) if known else math.nan
