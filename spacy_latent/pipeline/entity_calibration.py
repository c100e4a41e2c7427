"""Probabilities of entities that mean what they say: what is fitted on held-out text, and kept.

The scores of a chain of tags are divided by a temperature (Guo et al. 2017), and each label may get
a bias on the tags that begin an entity. Both are linear in what they multiply, so the component's
own loss is convex in them, and at its minimum the scores and the numbers of entities that the chain
expects are those of the annotation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from spacy.util import minibatch

from spacy_latent.analysis.progress import Progress, silent
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.training import Example
    from torch import Tensor

    from spacy_latent.analysis.calibration import Cut, JudgedEntities
    from spacy_latent.annotations import SpanStructure
    from spacy_latent.layers.edits import Edits
    from spacy_latent.structures.tag_sequence import TagSequence

FOLDS = 5
# Standard deviation of the Gaussians that the logarithm of the temperature and the biases are drawn
# to zero by: a label that held-out text does not have keeps a finite bias.
SPREAD = 1.0
# Sets of entities would be all spans.
LEAST = 1e-5
STEPS = 60
# Nearer to 0 and 1 odds are not told apart.
NEAR = 1e-6
# Docs that are scored together.
BATCH = 256


@dataclass(frozen=True)
class EntityCalibration:
    """What a component learned from held-out text about its own probabilities.

    temperature: what scores are divided by.
    biases: by label, what is added to the scores of the tags that begin an entity of it; empty for
        none.
    slope, shift, shifts: the logarithm of the odds of an entity's confidence is that of its
        probability times ``slope``, and ``shift``, and that of its label in ``shifts``.
    coverage: of texts with entities, the share in which sets hold all of them; None where there are
        no sets.
    least: probability, before slope and shifts, from which spans are in the set.
    docs, entities: how many it was fitted on.
    """

    temperature: float = 1.0
    biases: dict[str, float] = field(default_factory=dict)
    slope: float = 1.0
    shift: float = 0.0
    shifts: dict[str, float] = field(default_factory=dict)
    coverage: float | None = None
    least: float | None = None
    docs: int = 0
    entities: int = 0

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, found: object, name: str, labels: Sequence[str]) -> EntityCalibration:
        """From what a component ``name`` has saved. Raises LatentError for what it cannot be."""

        def refuse(what: str) -> NoReturn:
            raise LatentError(
                f"{name}: its calibration {what}. The saved pipeline was changed by hand or cut "
                "short: run 'spacy latent calibrate' again."
            )

        if not isinstance(found, Mapping):
            refuse(f"is {found!r}; expected its fields by name")
        known = {each.name for each in fields(cls)}
        if set(found) - known:
            refuse(f"has {', '.join(sorted(map(str, set(found) - known)))}, which are not known")
        made = cls(**found)
        numbers = [made.temperature, made.slope, made.shift, made.docs, made.entities]
        numbers += [value for value in (made.coverage, made.least) if value is not None]
        for key in ("biases", "shifts"):
            of_labels = getattr(made, key)
            if not isinstance(of_labels, Mapping):
                refuse(f"has the {key} {of_labels!r}; expected numbers by label")
            unknown = set(of_labels) - set(labels)
            if unknown:
                refuse(f"has {key} of the labels {', '.join(map(str, unknown))}, which are not its")
            numbers += of_labels.values()
        if any(isinstance(n, bool) or not isinstance(n, (int, float)) for n in numbers):
            refuse("holds what is no number")
        if not all(math.isfinite(n) for n in numbers):
            refuse("holds a number that is not finite")
        if made.temperature <= 0 or made.slope <= 0:
            refuse(f"has temperature {made.temperature} and slope {made.slope}; expected above 0")
        if (made.coverage is None) != (made.least is None):
            refuse("has one of coverage and least without the other")
        for value in (made.coverage, made.least):
            if value is not None and not 0 < value < 1:
                refuse(f"has coverage {made.coverage} and least {made.least}; expected in (0, 1)")
        return made

    def of_scores(
        self, emissions: Tensor, transitions: Tensor, labels: Sequence[str]
    ) -> tuple[Tensor, Tensor]:
        """Emissions ``(N, K)`` and transitions ``(K + 2, K)`` as the calibration changes them."""
        biases = [self.biases.get(label, 0.0) for label in labels]
        shift = emissions.new_tensor(biases) @ _begins(len(labels)).to(emissions)
        return emissions / self.temperature + shift, transitions / self.temperature

    def confidence(self, probability: float, label: str) -> float:
        """That of an entity, from its probability under the chain."""
        shift = self.shift + self.shifts.get(label, 0.0)
        if self.slope == 1 and shift == 0:
            return min(1.0, probability)
        near = min(max(probability, NEAR), 1 - NEAR)
        odds = math.log(near) - math.log1p(-near)
        return 1 / (1 + math.exp(-max(-700.0, self.slope * odds + shift)))


def _begins(count: int) -> Tensor:
    """Which tags begin an entity of each label, ``(L, K)``: B and U of "O" and B, I, L, U …"""
    import torch

    own = torch.zeros(count, 1 + 4 * count)
    label = torch.arange(count)
    own[label, 1 + 4 * label] = 1.0
    own[label, 4 + 4 * label] = 1.0
    return own


# ---------------------------------------------------------------- prediction


@dataclass
class ScoredGroup:
    """Docs of similar length. docs: their places. transitions: learned, ``(K + 2, K)``. scores:
    ``(B, N, K)``. lengths: ``(B,)``. edits: what the scores were changed by, or None."""

    docs: list[int]
    chain: TagSequence
    transitions: Tensor
    scores: Tensor
    lengths: Tensor
    edits: Edits | None = None


def add_spans(
    structures: Sequence[SpanStructure],
    group: ScoredGroup,
    kind: str,
    labels: Sequence[str],
    calibration: EntityCalibration,
) -> None:
    """The confidence of each entity of the alternatives, and the set of entities that the
    calibration's coverage is for."""
    from spacy_latent.models.span_probabilities import SpanProbabilities, spans_of_tags

    if calibration.least is None and not any(found.alternatives for found in structures):
        return
    likely = SpanProbabilities(kind, group.chain, group.scores, group.lengths)
    for b, found in enumerate(structures):
        found.alternative_probabilities = [
            np.array(
                [
                    calibration.confidence(likely.of(b, place), labels[place[2]])
                    for place in spans_of_tags(tags)
                ],
                dtype="float32",
            )
            for tags, _ in found.alternatives
        ]
        if calibration.least is not None:
            held = [
                (calibration.confidence(p, labels[place[2]]), place)
                for place, p in likely.above(b, calibration.least)
            ]
            held.sort(key=lambda one: -one[0])
            # Of the tags that a label has, U stands for it.
            rows = [(start, end, 4 + 4 * label) for _, (start, end, label) in held]
            found.possible = np.array(rows, dtype="int32").reshape(-1, 3)
            found.possible_probabilities = np.array([p for p, _ in held], dtype="float32")


# ---------------------------------------------------------------- temperature and biases


@dataclass
class ScoredDocs:
    """Docs of similar length with what their annotation allows.

    docs: their places. scores, allowed: ``(B, N, K)``, the second bool. lengths: ``(B,)``.
    counts: whether a sequence agrees with the annotation of each, ``(B,)`` float64.
    """

    docs: list[int]
    scores: Tensor
    lengths: Tensor
    allowed: Tensor
    counts: Tensor


class ScoreFit:
    """Finds temperature and biases on docs with annotation.

    kind: the component's loss; that of a CRF for the perceptron's, which has no probabilities.
    transitions: ``(K + 2, K)``.
    """

    def __init__(
        self,
        kind: str,
        tags: Sequence[str],
        transitions: Tensor,
        groups: Sequence[ScoredDocs],
    ) -> None:
        self.kind = "crf" if kind == "perceptron" else kind
        self.tags = tags
        self.transitions = transitions.double()
        self.groups = groups
        self.size = sum(len(group.docs) for group in groups)
        self.begins = _begins((len(tags) - 1) // 4).double()

    def losses(self, point: Tensor) -> Tensor:
        """Of each doc, ``(D,)`` float64. point: logarithm of 1 / temperature, and biases or none of
        them, ``(1 + L,)`` or ``(1,)``."""
        import torch

        from spacy_latent.models.tag_losses import bound_chain, tag_loss

        scale = point[0].exp()
        shift = point[1:] @ self.begins if len(point) > 1 else point.new_zeros(())
        chain = bound_chain(self.transitions * scale, self.tags)
        places, values = [], []
        for group in self.groups:
            # Closed tags stay closed, and have no gradient.
            is_open = ~group.scores.isneginf()
            own = torch.where(is_open, group.scores, 0.0) * scale + shift
            scores = torch.where(is_open, own, -torch.inf)
            each = tag_loss(self.kind, chain, scores, group.lengths, group.allowed)
            values.append(each * group.counts)
            places += group.docs
        order = torch.tensor(places).argsort()
        return torch.cat(values)[order]

    def best(self, biases: bool, weights: Tensor) -> Tensor:
        """The point at which the sum of the losses, and what draws the point to zero, is least.
        weights: of the docs, ``(D,)``."""
        import torch

        count = len(self.begins) if biases else 0
        point = torch.zeros(1 + count, dtype=torch.float64, requires_grad=True)
        search = torch.optim.LBFGS([point], max_iter=STEPS, line_search_fn="strong_wolfe")

        def value() -> Tensor:
            search.zero_grad()
            total = (self.losses(point) * weights).sum()
            total = total + 0.5 * (point / SPREAD).square().sum()
            total.backward()
            return total

        search.step(value)
        return point.detach()

    def held_out(self, biases: bool) -> Tensor:
        """The loss of each doc at the point of the other folds, ``(D,)``."""
        import torch

        fold = torch.arange(self.size) % FOLDS
        found = torch.zeros(self.size, dtype=torch.float64)
        for k in range(FOLDS):
            mine = fold == k
            if mine.any():
                point = self.best(biases, (~mine).double())
                found[mine] = self.losses(point)[mine]
        return found

    def choose(self, biases: bool | None) -> tuple[Tensor, dict[str, float]]:
        """The point, and mean losses of held-out docs by the names of what was compared: as
        trained, with what was fitted on the other folds, and, where nothing was left to compare,
        "calibrated", of the same docs at the point.

        biases: whether labels get some; None for where they lower the mean loss of held-out docs,
            in five folds, by more than the standard error of the difference.
        """
        import torch

        everything = torch.ones(self.size, dtype=torch.float64)
        with torch.no_grad():
            plain = self.losses(torch.zeros(1, dtype=torch.float64))
        told = {"as trained": float(plain.mean())}
        if biases is None:
            one, several = self.held_out(False), self.held_out(True)
            gain = one - several
            error = float(gain.std()) / math.sqrt(self.size) if self.size > 1 else math.inf
            biases = float(gain.mean()) > error
            told["temperature"] = float(one.mean())
            told["temperature and biases"] = float(several.mean())
            return self.best(biases, everything), told
        point = self.best(biases, everything)
        with torch.no_grad():
            told["calibrated"] = float(self.losses(point).mean())
        return point, told


def feasible(
    chain: TagSequence, scores: Tensor, lengths: Tensor, allowed: Tensor
) -> tuple[Tensor, Tensor]:
    """What annotation allows, all where no sequence agrees with it, and which docs count."""
    import torch

    from spacy_latent.errors import InfeasibleError

    counts = torch.ones(len(lengths), dtype=torch.float64)
    try:
        chain.best_tags(scores.masked_fill(~allowed, -torch.inf), lengths)
    except InfeasibleError as error:
        bad = list(error.items)
        allowed = allowed.clone()
        allowed[bad] = True
        counts[bad] = 0.0
    return allowed, counts


# ---------------------------------------------------------------- confidence


def fit_confidence(
    probabilities: Sequence[float] | np.ndarray,
    correct: Sequence[bool] | np.ndarray,
    labels: Sequence[str] | np.ndarray = (),
) -> EntityCalibration:
    """Slope and shift of the logarithm of the odds (Platt 1999), by Newton's method, drawn to 1 and
    0 as the biases are. labels: those of the entities, for shifts of each; none without."""
    names = sorted(set(labels))
    said = np.clip(np.asarray(probabilities, dtype="float64"), NEAR, 1 - NEAR)
    right = np.asarray(correct, dtype="float64")
    odds = np.log(said) - np.log1p(-said)
    own = [np.asarray([label == name for label in labels], dtype="float64") for name in names]
    inputs = np.stack([odds, np.ones_like(odds), *own], 1)
    start = point = np.eye(1, 2 + len(names))[0]

    def loss(at: np.ndarray) -> float:
        found = inputs @ at
        drawn = 0.5 * ((at - start) ** 2).sum() / SPREAD**2
        return float((np.logaddexp(0, found) - right * found).sum() + drawn)

    for _ in range(STEPS):
        value = np.exp(-np.logaddexp(0, -(inputs @ point)))
        gradient = inputs.T @ (value - right) + (point - start) / SPREAD**2
        curvature = (inputs.T * (value * (1 - value))) @ inputs + np.eye(len(point)) / SPREAD**2
        step = np.linalg.solve(curvature, gradient)
        # Where the curvature is small, a whole step may go far beyond the minimum.
        while loss(point - step) > loss(point) and np.abs(step).max() > 1e-9:
            step /= 2
        point = point - step
        if np.abs(step).max() < 1e-9:
            break
    slope, shift, *shifts = point.tolist()
    return EntityCalibration(slope=max(slope, 0.05), shift=shift, shifts=dict(zip(names, shifts)))


def choose_confidence(
    found: JudgedEntities, mapped: bool | None = None
) -> tuple[EntityCalibration, dict[str, float]]:
    """The slope and the shifts that entities ask for: none; a slope and a shift; these and a shift
    for each label. Each has to lower the mean loss of entities that are left out, −log of the
    probability given to what they are, in five folds, by more than the standard error of the
    difference to the one before. Also these losses.

    mapped: True for a slope and a shift in any case, False for none.
    """
    said, right = np.asarray(found.probabilities), np.asarray(found.correct, dtype=bool)
    names = np.asarray(found.labels, dtype=object)
    plain = EntityCalibration()
    if mapped is False or not len(said):
        return plain, {}
    fold = np.arange(len(said)) % FOLDS
    options = {"slope and shift": False, "slope and shifts of labels": True}
    losses = {"probability": _surprise(said, right)}
    for option, by_label in options.items():
        losses[option] = np.zeros(len(said))
        for k in range(FOLDS):
            rest, mine = fold != k, fold == k
            made = fit_confidence(said[rest], right[rest], names[rest] if by_label else ())
            pairs = zip(said[mine].tolist(), names[mine])
            losses[option][mine] = _surprise(
                [made.confidence(*pair) for pair in pairs], right[mine]
            )
    best = "slope and shift" if mapped else "probability"
    for option in options:
        gain = losses[best] - losses[option]
        error = float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
        if float(gain.mean()) > error:
            best = option
    told = {option: float(loss.mean()) for option, loss in losses.items()}
    if best == "probability":
        return plain, told
    return fit_confidence(said, right, names if options[best] else ()), told


def _surprise(said: Sequence[float] | np.ndarray, right: np.ndarray) -> np.ndarray:
    sure = np.clip(np.asarray(said, dtype="float64"), NEAR, 1 - NEAR)
    return -np.log(np.where(right, sure, 1 - sure))


# ---------------------------------------------------------------- the whole


@dataclass
class Calibrated:
    """What was found.

    losses: of held-out docs, by what was compared; confidence_losses: of held-out entities.
    before, after: entities with their probabilities, as the component was and as it is, on the docs
        that it was calibrated on. Without biases they are the same entities.
    set_sizes: how many spans the set of each doc holds; empty without a coverage.
    left_out: docs whose annotation no sequence of tags agrees with.
    """

    calibration: EntityCalibration
    losses: dict[str, float]
    confidence_losses: dict[str, float]
    before: JudgedEntities
    after: JudgedEntities
    set_sizes: list[int]
    left_out: int


def entity_components(nlp: Language) -> list[str]:
    """Names of those whose probabilities of entities can be calibrated."""
    return [name for name, pipe in nlp.pipeline if hasattr(pipe, "scored")]


def calibrate(
    nlp: Language,
    examples: Iterable[Example],
    component: str | None = None,
    *,
    biases: bool = False,
    confidence: bool | None = None,
    coverage: float | None = None,
    progress: Progress = silent,
) -> Calibrated:
    """Fit the calibration of a component and put it there.

    examples: with entities, and none that it was trained on. Predicted docs are not processed yet.
    component: name of a ``crf_ner``; may be left out where there is one.
    biases: whether each label may get one, where held-out docs ask for them, see
        :meth:`ScoreFit.choose`. With biases the component finds other entities than before.
    confidence: whether there are a slope and a shift; None for where held-out entities ask for
        them, see :func:`choose_confidence`.
    coverage: of texts with entities, the share whose set is to hold all of them; None for no sets.
    progress: see :class:`spacy_latent.analysis.progress.Progress`.
    """
    name = _choose(nlp, component)
    pipe: Any = nlp.get_pipe(name)
    if not pipe.labels:
        raise LatentError(f"{name!r} has no labels, so there is nothing to calibrate. Train it.")
    made = [example for example in _up_to(nlp, name, examples, progress) if len(example.predicted)]
    if not any(example.reference.ents for example in made):
        raise LatentError(
            f"No text has an annotated entity, so {name!r} cannot be calibrated. Give annotated "
            "text that it was not trained on."
        )
    known = pipe.calibration
    try:
        return _fit(pipe, made, biases, confidence, coverage, progress)
    except Exception:
        pipe.calibration = known
        raise


def _fit(
    pipe: Any,
    made: Sequence[Example],
    biases: bool,
    confidence: bool | None,
    coverage: float | None,
    progress: Progress,
) -> Calibrated:
    pipe.calibration = None
    before = _judge(pipe, made, progress)
    fit, left_out = _score_fit(pipe, made, progress)
    point, losses = fit.choose(None if biases else False)
    found = EntityCalibration(
        temperature=float((-point[0]).exp()),
        biases=dict(zip(pipe.labels, point[1:].tolist())),
        docs=len(made),
        entities=sum(len(example.reference.ents) for example in made),
    )
    pipe.calibration = found
    after = _judge(pipe, made, progress)
    sure, told = choose_confidence(after, confidence)
    found = replace(found, slope=sure.slope, shift=sure.shift, shifts=sure.shifts)
    sizes: list[int] = []
    if coverage is not None:
        least = _least(pipe, made, found, coverage, progress)
        found = replace(found, coverage=coverage, least=least)
    pipe.calibration = found
    after = _judge(pipe, made, progress, sizes)
    return Calibrated(found, losses, told, before, after, sizes, left_out)


@dataclass
class Measured:
    """entities: with their probabilities. covered: the share of texts with entities whose set holds
    all of them, and how many such texts there are; None without sets or such texts. set_size: how
    many spans a set holds on average, NaN without."""

    entities: JudgedEntities
    covered: tuple[float, int] | None
    set_size: float


def measure(
    nlp: Language,
    examples: Iterable[Example],
    component: str | None = None,
    progress: Progress = silent,
) -> Measured:
    """What a component says of texts, beside their annotation; arguments as of :func:`calibrate`.
    Nothing is fitted."""
    name = _choose(nlp, component)
    pipe: Any = nlp.get_pipe(name)
    made = [example for example in _up_to(nlp, name, examples, progress) if len(example.predicted)]
    sizes: list[int] = []
    judged, covered = _judge(pipe, made, progress, sizes), None
    found = pipe.calibration
    if found is not None and found.least is not None:
        scores = _least_of_texts(pipe, made, found, progress)
        if scores:
            covered = sum(score >= found.least for score in scores) / len(scores), len(scores)
    return Measured(judged, covered, sum(sizes) / len(sizes) if sizes else math.nan)


def set_precision(
    nlp: Language,
    found: Calibrated,
    precision: float,
    component: str | None = None,
    *,
    few: bool = False,
) -> Cut:
    """Set ``min_confidence`` of a component to the lowest value at which the entities that it was
    calibrated on have this precision, in its config as well: 0 where all of them together have it,
    else midway between the least confident entity that is kept and the next below. Raises
    LatentError where there is no such value, and where one above 0 keeps fewer than 20 entities or
    than one in ten.

    few: set it there as well.
    """
    from spacy_latent.analysis import calibration as known

    name = _choose(nlp, component)
    pipe: Any = nlp.get_pipe(name)
    least = known.threshold_for(found.after, precision)
    if least is None:
        thresholds, reached = known.precisions(found.after)
        told = "There are no entities."
        if len(thresholds):
            best = known.cut(found.after, float(thresholds[reached.argmax()]))
            told = (
                f"The highest is {best.precision:.3f}, of the {best.kept} entities with a "
                f"confidence of {known.in_digits(best.threshold)} or more."
            )
        raise LatentError(
            f"At no confidence the precision is {precision}. {told} Ask for a lower precision, or "
            "calibrate on more annotated text."
        )
    if least.threshold and known.keeps_few(least, found.after) and not few:
        enough = known.most_precise(found.after)
        told = f"No threshold keeps {known.FEW} of them. "
        if enough is not None:
            told = (
                "The highest precision of a threshold that keeps more is "
                f"{enough.precision:.3f}, of {enough.kept} with a confidence of "
                f"{known.in_digits(enough.threshold)} or more. "
            )
        raise LatentError(
            f"A min_confidence of {known.in_digits(least.threshold)}, for a precision of "
            f"{precision}, would keep "
            f"{known.in_words(least, found.after, 'the calibration texts')}. Fewer than "
            f"{known.FEW}, or than one in ten, do not tell the precision, and the pipeline would "
            f"find next to nothing. {told}Ask for a lower precision or for none, or calibrate on "
            "more annotated text. To set it all the same, give --few, in Python few=True."
        )
    pipe.configure("min_confidence", least.threshold)
    nlp.get_pipe_config(name)["min_confidence"] = least.threshold
    return least


def _choose(nlp: Language, component: str | None) -> str:
    known = entity_components(nlp)
    there = ", ".join(nlp.pipe_names) or "none"
    if component is None and len(known) == 1:
        return known[0]
    if component in known:
        return str(component)
    asked = "Several can be calibrated" if component is None else f"{component!r} is none of them"
    if not known:
        raise LatentError(
            "The pipeline has no component whose probabilities of entities can be calibrated. Its "
            f"components are {there}; expected a crf_ner."
        )
    raise LatentError(f"{asked}: {', '.join(known)}. Name one of these as component.")


def _up_to(
    nlp: Language, name: str, examples: Iterable[Example], progress: Progress
) -> list[Example]:
    """With docs that the components before ``name`` have processed."""
    from spacy.training import Example

    examples = list(examples)
    docs = [example.predicted for example in examples]
    for before, pipe in nlp.pipeline:
        if before == name:
            break
        size = nlp.batch_size
        stream = (
            pipe.pipe(docs, batch_size=size)
            if hasattr(pipe, "pipe")
            else (pipe(doc) for doc in docs)
        )
        docs = list(progress(stream, before, len(docs)))
    if len(docs) != len(examples):
        raise LatentError(
            f"An error handler of the pipeline let go {len(examples) - len(docs)} of "
            f"{len(examples)} docs. Calibrate it without one, or leave these docs out."
        )
    return [Example(doc, example.reference) for doc, example in zip(docs, examples)]


def _batches(
    examples: Sequence[Example], progress: Progress, stage: str
) -> Iterator[list[Example]]:
    return minibatch(progress(examples, stage, len(examples)), BATCH)


def _score_fit(pipe: Any, examples: Sequence[Example], progress: Progress) -> tuple[ScoreFit, int]:
    import torch

    groups, done = [], 0
    for batch in _batches(examples, progress, "Scores"):
        gold = [pipe._gold_tags(example) for example in batch]
        for group in pipe.scored([example.predicted for example in batch], EntityCalibration()):
            scores, lengths = group.scores.cpu().double(), group.lengths.cpu()
            allowed = torch.ones(scores.shape, dtype=torch.bool)
            for b, d in enumerate(group.docs):
                allowed[b, : len(gold[d])] = gold[d]
            transitions = group.transitions.cpu()
            chain = group.chain.bind(*(part.cpu().double() for part in group.chain.bound))
            allowed, counts = feasible(chain, scores, lengths, allowed)
            places = [done + d for d in group.docs]
            groups.append(ScoredDocs(places, scores, lengths, allowed, counts))
        done += len(batch)
    fit = ScoreFit(pipe.cfg["loss"], pipe.tags, transitions, groups)
    return fit, sum(int((group.counts == 0).sum()) for group in groups)


def _judge(
    pipe: Any, examples: Sequence[Example], progress: Progress, sizes: list[int] | None = None
) -> JudgedEntities:
    """What the component finds now. sizes: those of the sets are added."""
    from spacy_latent.analysis.calibration import judged_entities
    from spacy_latent.annotations import write

    before = dict(pipe.cfg)
    pipe.cfg.update(annotate="probabilities", alternatives=0, min_confidence=0.0)
    try:
        for batch in _batches(examples, progress, "Entities"):
            docs = [example.predicted for example in batch]
            for doc, found in zip(docs, pipe.predict(docs)):
                # Not set_annotations: entities on a doc would stay as they are from then on.
                write(doc, pipe.name, [found])
                if sizes is not None and found.possible is not None:
                    sizes.append(len(found.possible))
    finally:
        pipe.cfg.update(before)
    judged = judged_entities(examples, pipe.name)
    assert judged is not None
    return judged


def _least(
    pipe: Any,
    examples: Sequence[Example],
    calibration: EntityCalibration,
    coverage: float,
    progress: Progress,
) -> float:
    """The probability that all entities of a text reach, in so many of the texts with some."""
    from spacy_latent.analysis.calibration import conformal_threshold

    scores = _least_of_texts(pipe, examples, calibration, progress)
    least = conformal_threshold(scores, coverage)
    if least < LEAST:
        reached = sum(score >= LEAST for score in scores) / (len(scores) + 1)
        raise LatentError(
            f"No set of useful size has a coverage of {coverage}: {len(scores)} texts have "
            f"entities, and in more than {1 - coverage:.2g} of them one is less probable than "
            f"{LEAST}. The most that sets can cover is {math.floor(100 * reached) / 100}."
        )
    # So that the last digits of a probability, which depend on the batch, leave none out.
    return least * (1 - 1e-6)


def _least_of_texts(
    pipe: Any, examples: Sequence[Example], calibration: EntityCalibration, progress: Progress
) -> list[float]:
    """Of each text with entities the probability of the least probable one."""
    from spacy_latent.models.span_probabilities import SpanProbabilities

    number = {label: i for i, label in enumerate(pipe.labels)}
    scores: list[float] = []
    for batch in _batches(examples, progress, "Sets"):
        for group in pipe.scored([example.predicted for example in batch], calibration):
            likely = SpanProbabilities(pipe.cfg["loss"], group.chain, group.scores, group.lengths)
            for b, d in enumerate(group.docs):
                gold = batch[d].reference.ents
                if not gold:
                    continue
                aligned = batch[d].get_aligned_spans_y2x(list(gold))
                # What tokens or labels of the component cannot be is found by no set.
                own = [0.0] * (len(gold) - len(aligned))
                own += [
                    likely.of(b, (span.start, span.end, number[span.label_]))
                    if span.label_ in number
                    else 0.0
                    for span in aligned
                ]
                scores.append(min(own))
    return scores


__all__ = [
    "Calibrated",
    "EntityCalibration",
    "Measured",
    "ScoredGroup",
    "add_spans",
    "calibrate",
    "entity_components",
    "measure",
    "set_precision",
]
