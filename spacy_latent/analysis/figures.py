"""Records of the figures in a report on a pipeline's structures on a corpus.

:func:`spacy_latent.evaluation.assessment.assess` fills them in. Verdicts, the page, ``spacy latent
evaluate stats`` and ``spacy latent evaluate compare`` read them. NaN stands for an unknown number.
:func:`plain` converts them to JSON, in which a field that is None by default has no key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, overload

import numpy as np

from spacy_latent.analysis.calibration import EntityFigures

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# A share or a difference, and the ends of its 95 % interval.
Interval = tuple[float, float, float]


@dataclass
class Chance:
    """Most frequent label of the references, and the score of always answering it."""

    label: str
    share: float


@dataclass
class Score:
    """Value of a measure of the task, with its 95 % interval over texts."""

    value: float
    low: float
    high: float
    chance: Chance | None = None


@dataclass
class TaskFigures:
    """Scores of the task.

    Attributes:
        scores: all scores of ``nlp.evaluate`` that are numbers.
        unknown_labels: labels in the references that the pipeline does not know, by the name of
            their annotation.
    """

    measures: dict[str, Score] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    unknown_labels: dict[str, list[str]] = field(default_factory=dict)

    def plain(self) -> dict[str, object]:
        """Return the fields for JSON, without ``unknown_labels`` if there are none."""
        found = fields_of(self)
        if not self.unknown_labels:
            del found["unknown_labels"]
        return found


@dataclass
class OtherScore:
    """Value of a measure of another pipeline, with its 95 % interval.

    Attributes:
        drop: score of the first pipeline minus the score of this one.
    """

    value: float
    low: float
    high: float
    drop: Interval


@dataclass
class RandomStructures:
    """Value of a measure if random structures replace the pipeline's own, at prediction only.

    Attributes:
        before: score with single best structures.
        after: score with random structures.
        low: lower end of the 95 % interval of ``drop``.
        before_low: lower end of the interval of ``before``.
        docs: number of texts that count.
        draws: number of random structures drawn for each text.
        mixture: score of the unchanged predictions, if they are composed with several structures.
        differ: number of texts whose score changes with random structures.
        mixture_low: lower end of the interval of ``mixture``.
    """

    before: float
    after: float
    drop: float
    low: float
    high: float
    before_low: float
    docs: int
    draws: int
    mixture: float | None = None
    chance: Chance | None = None
    differ: int | None = None
    mixture_low: float | None = None

    @property
    def own(self) -> tuple[float, float]:
        """The pipeline's own score, and the lower end of its interval."""
        if self.mixture is None or self.mixture_low is None:
            return self.before, self.before_low
        return self.mixture, self.mixture_low


@dataclass
class TrainedControl:
    """A control that was trained.

    Attributes:
        trees: description of its trees, None for another pipeline.
        what: description of the control.
        unlike: settings that differ, except the trees.
        unfair: settings in ``unlike`` that concern training.
    """

    trees: str | None
    what: str
    unlike: list[str]
    unfair: list[str]


@dataclass
class ControlScore:
    """Values of a measure over the trainings of a control.

    Attributes:
        value: mean over trainings, with its interval over texts.
        seeds: score of each training.
        difference: lead of the pipeline over the control, with its interval.
        spread: two standard deviations of the difference over trainings; NaN if both have only one
            training.
        docs: number of texts that count.
        differ: number of these texts on which the score differs from the pipeline's.
    """

    value: float
    low: float
    high: float
    seeds: list[float]
    difference: Interval
    spread: float
    docs: int
    differ: int | None = None


@dataclass
class TrainedScore:
    """Values of a measure over the pipeline's own trainings, and over controls by name."""

    value: float
    low: float
    high: float
    seeds: list[float]
    controls: dict[str, ControlScore]


@dataclass
class Trained:
    """Controls and measures by name; empty if no control was given."""

    controls: dict[str, TrainedControl] = field(default_factory=dict)
    measures: dict[str, TrainedScore] = field(default_factory=dict)

    def plain(self) -> dict[str, object]:
        """Return the fields for JSON; empty if no control was given."""
        return fields_of(self) if self.controls else {}


@dataclass
class Statistic:
    """Distribution of one number over many structures.

    Attributes:
        histogram: counts in equal bins from ``low`` to ``high``.
    """

    mean: float
    quartiles: tuple[float, float, float]
    low: float
    high: float
    histogram: list[int]
    count: int


@dataclass
class Relation:
    """Agreement with reference heads at the tokens of one relation.

    Attributes:
        directed: share of tokens with the reference head.
        undirected: share of arcs that are present in either direction.
        control: name of the control that agrees on most heads.
        control_directed: ``directed`` of that control.
    """

    relation: str
    tokens: int
    directed: float
    arcs: int
    undirected: float
    control: str
    control_directed: float

    def plain(self) -> dict[str, object]:
        """Return the fields for JSON, with ``control_directed`` as "control directed"."""
        found = fields_of(self)
        found["control directed"] = found.pop("control_directed")
        return found


@dataclass
class ReferenceFigures:
    """Agreement with references.

    Attributes:
        key: the main measure.
        of: description of the compared annotation of the references.
        rows: values by measure, by name of the layer, of controls and of random structures.
        ahead: lead of the layer over each of the others, by name.
    """

    key: str
    of: str
    docs: int
    tokens: int
    rows: dict[str, dict[str, Interval]]
    ahead: dict[str, Interval]
    relations: list[Relation] | None = None


@dataclass
class OtherModels:
    """Agreement between each two of several pipelines, including this one.

    Attributes:
        chance: agreement of random structures.
        alike: whether all are trainings of the same model.
    """

    names: list[str]
    matrix: list[list[float]]
    mean: float
    chance: float
    alike: bool = False


@dataclass
class LoneStructures:
    """Spans whose SparseMAP mixture holds a single structure.

    Attributes:
        share: share of such spans among the spans with several possible structures.
        temperature: temperature of the model; NaN if it follows a schedule.
        higher: lowest of the tried temperatures at which the mixtures of half of the spans have
            several structures. It is infinite if none is high enough.
    """

    share: float
    temperature: float
    higher: float


@dataclass
class LayerFigures:
    """Figures of one latent layer.

    Attributes:
        component: name under which its structures are stored.
        kind: see :mod:`spacy_latent.kinds`.
        plural: name of the structures in sentences.
        constraint: the constraint on the set of structures, in words.
        random: measures with random structures, by name of the measure.
        flat_share: for heads, the share of tokens that are roots or modifiers of a root.
        controls: share of parts in common with structures that are computed without a model, by
            name.
        tag_shares: share of tokens by number of the tag.
        by_length: share of tokens whose part the length of the text determines, and number of
            tokens examined.
        alone: single structures of SparseMAP's mixtures, None for other estimators.
        docs: number of texts that have structures.
    """

    component: str
    structure: str
    estimator: str
    scorer: str
    composer: str
    kind: str
    plural: str
    constraint: str
    spans: int
    statistics: dict[str, Statistic] = field(default_factory=dict)
    random: dict[str, RandomStructures] = field(default_factory=dict)
    flat_share: float | None = None
    controls: dict[str, float] = field(default_factory=dict)
    tag_shares: dict[str, float] | None = None
    by_length: tuple[float, int] = (math.nan, 0)
    reference: ReferenceFigures | None = None
    others: OtherModels | None = None
    trained: Trained = field(default_factory=Trained)
    alone: LoneStructures | None = None
    docs: int | None = None

    def mean(self, statistic: str) -> float:
        """Return the mean of a statistic, NaN if no structure has it."""
        found = self.statistics.get(statistic)
        return math.nan if found is None else found.mean


@dataclass
class Figures:
    """Figures of a pipeline on a corpus.

    Attributes:
        components: figures of each latent layer, by the name under which its structures are stored.
        others: measures of further pipelines, by name.
        entities: calibration by name of each component that finds entities with probabilities. A
            component is left out if neither the references nor its predictions have entities.
        left_out: number of texts without tokens, which the reader of the corpus left out.
        unjudged: components whose confidences could not be compared with annotation, since the
            references have none. By name of the component, "entity", "span" or "arc".
    """

    docs: int
    tokens: int
    pipeline: list[str]
    task: TaskFigures
    components: dict[str, LayerFigures] = field(default_factory=dict)
    others: dict[str, dict[str, OtherScore]] = field(default_factory=dict)
    trained: Trained = field(default_factory=Trained)
    entities: dict[str, EntityFigures] = field(default_factory=dict)
    left_out: int = 0
    unjudged: dict[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, object]:
        """Return the fields for JSON, without optional fields that are empty or 0."""
        found = fields_of(self)
        for name in ("entities", "left_out", "unjudged"):
            if not found[name]:
                del found[name]
        return found


def fields_of(record: DataclassInstance) -> dict[str, object]:
    """Return the fields of a record by name, except None in fields that are None by default."""
    given = {each.name: getattr(record, each.name) for each in fields(record)}
    absent = {each.name for each in fields(record) if each.default is None}
    return {name: value for name, value in given.items() if name not in absent or value is not None}


@overload
def plain(value: DataclassInstance | Mapping[str, object]) -> dict[str, object]: ...


@overload
def plain(value: object) -> object: ...


def plain(value: object) -> object:
    """Convert figures for JSON; NaN and infinity, which JSON lacks, become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(value.plain() if hasattr(value, "plain") else fields_of(value))
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value
