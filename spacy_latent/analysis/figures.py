"""What a report is made of: the figures of a pipeline's structures on a corpus, in one record each.

:func:`spacy_latent.pipeline.assessment.assess` fills them in; verdicts, the page, ``spacy latent
stats`` and ``spacy latent compare`` read them. NaN stands for what is not known. :func:`plain`
makes the JSON of them, in which a field that is None by default has no key.
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
    """The commonest label of the references, and what always answering it gives."""

    label: str
    share: float


@dataclass
class Score:
    """A measure of the task, with its 95 % interval over texts."""

    value: float
    low: float
    high: float
    chance: Chance | None = None


@dataclass
class TaskFigures:
    """measures: those with intervals. scores: all of ``nlp.evaluate`` that are numbers.
    unknown_labels: of the references, those that the pipeline does not know, by what they are the
    labels of."""

    measures: dict[str, Score] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    unknown_labels: dict[str, list[str]] = field(default_factory=dict)

    def plain(self) -> dict[str, object]:
        found = fields_of(self)
        if not self.unknown_labels:
            del found["unknown_labels"]
        return found


@dataclass
class OtherScore:
    """A measure of another pipeline. drop: what is lost when its predictions take the place of the
    first one's."""

    value: float
    low: float
    high: float
    drop: Interval


@dataclass
class RandomStructures:
    """A measure with random structures in the place of the pipeline's own, at prediction only.

    before, after, drop: with single best structures, with random ones, and the difference, whose
    interval is from low to high. before_low: the lower end of the interval of ``before``. docs:
    texts that count. draws: how often structures were drawn for each. mixture, mixture_low: of the
    predictions as they are, and the lower end of the interval of that, where these are composed of
    several structures. differ: texts whose score is another one with random structures.
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
    """A control that was trained. trees: with which, in words, None for another pipeline. what:
    the control in words. unlike: settings that differ beside the trees; unfair: those of training
    among them."""

    trees: str | None
    what: str
    unlike: list[str]
    unfair: list[str]


@dataclass
class ControlScore:
    """A measure of a control's trainings: their mean with its interval over texts, that of each,
    how far the pipeline is ahead, and two standard deviations of that between trainings, NaN where
    there is one of each. docs: texts that count. differ: those whose score is another one than the
    pipeline's."""

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
    """A measure of the pipeline's own trainings, beside those of controls by name."""

    value: float
    low: float
    high: float
    seeds: list[float]
    controls: dict[str, ControlScore]


@dataclass
class Trained:
    """Controls and measures by name; empty where no control was given."""

    controls: dict[str, TrainedControl] = field(default_factory=dict)
    measures: dict[str, TrainedScore] = field(default_factory=dict)

    def plain(self) -> dict[str, object]:
        return fields_of(self) if self.controls else {}


@dataclass
class Statistic:
    """One number of many structures. histogram: counts in equal bins from low to high."""

    mean: float
    quartiles: list[float]
    low: float
    high: float
    histogram: list[int]
    count: int


@dataclass
class Relation:
    """Agreement with the heads of references at the tokens of one relation. control: that with the
    most of the same heads."""

    relation: str
    tokens: int
    directed: float
    arcs: int
    undirected: float
    control: str
    control_directed: float

    def plain(self) -> dict[str, object]:
        found = fields_of(self)
        found["control directed"] = found.pop("control_directed")
        return found


@dataclass
class ReferenceFigures:
    """Agreement with references. key: the measure that counts. of: what references have that is
    compared with. rows: by name of the layer, of controls and of random structures, by measure.
    ahead: by name of the others how far the layer is ahead of them."""

    key: str
    of: str
    docs: int
    tokens: int
    rows: dict[str, dict[str, Interval]]
    ahead: dict[str, Interval]
    relations: list[Relation] | None = None


@dataclass
class OtherModels:
    """Agreement of every two of this pipeline and others. chance: that of random structures. alike:
    whether all of them are further trainings of the same model."""

    names: list[str]
    matrix: list[list[float]]
    mean: float
    chance: float
    alike: bool = False


@dataclass
class LoneStructures:
    """share: of the spans with several structures to choose from those whose mixture has come down
    to one. temperature: that of the model, NaN where it has another in each step. higher: the
    lowest of those tried at which the mixtures of half of the spans have several structures;
    infinite where none is enough."""

    share: float
    temperature: float
    higher: float


@dataclass
class LayerFigures:
    """Of one latent layer.

    component: the name that its structures are stored under. structure, estimator, scorer,
    composer: what it is made of. kind: see :mod:`spacy_latent.kinds`. constraint: what keeps the
    set small, in words. spans: how many structures there are. flat_share: of heads the share of
    tokens that are roots or hang on one. controls: shares of parts in common with structures that
    look at no model. tag_shares: by number of the tag. by_length: share of tokens whose part the
    text's length alone tells, and how many were looked at. reference: None without any. alone: of
    SparseMAP's mixtures, None for other estimators. docs: texts that have structures.
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
        """NaN where no structure has it."""
        found = self.statistics.get(statistic)
        return math.nan if found is None else found.mean


@dataclass
class Figures:
    """Of a pipeline on a corpus. components: by the name that the structures of each latent layer
    are stored under. others: by name of a further pipeline its measures. entities: by name of each
    component that finds entities and knows how sure it is; only where references have some, or it
    finds some. left_out: texts without tokens, which whoever read the corpus has left out."""

    docs: int
    tokens: int
    pipeline: list[str]
    task: TaskFigures
    components: dict[str, LayerFigures] = field(default_factory=dict)
    others: dict[str, dict[str, OtherScore]] = field(default_factory=dict)
    trained: Trained = field(default_factory=Trained)
    entities: dict[str, EntityFigures] = field(default_factory=dict)
    left_out: int = 0

    def plain(self) -> dict[str, object]:
        found = fields_of(self)
        for name in ("entities", "left_out"):
            if not found[name]:
                del found[name]
        return found


def fields_of(record: DataclassInstance) -> dict[str, object]:
    """By name; without those that are None where that is the default."""
    given = {each.name: getattr(record, each.name) for each in fields(record)}
    absent = {each.name for each in fields(record) if each.default is None}
    return {name: value for name, value in given.items() if name not in absent or value is not None}


@overload
def plain(value: DataclassInstance | Mapping[str, object]) -> dict[str, object]: ...


@overload
def plain(value: object) -> object: ...


def plain(value: object) -> object:
    """Figures for JSON: NaN and infinity, which it has not, as null."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(value.plain() if hasattr(value, "plain") else fields_of(value))
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value
