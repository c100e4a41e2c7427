"""Evidence about the tags of tokens, from complete or incomplete annotation of entities."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import filter_spans

from spacy_latent.annotations import aligned_spans, annotated_labels, check_share, entity_flags
from spacy_latent.annotations.completeness import ANNOTATED_LABELS, ENTITY_FLAGS
from spacy_latent.errors import LatentError, number_of
from spacy_latent.pipeline.open_tags import starts_and_spaces

if TYPE_CHECKING:
    from spacy_latent.models.tag_evidence import EntityCount
    from spacy_latent.models.tag_sources import Written

# A category with a larger value states that the text has such an entity.
EVEN = 0.5
# Names that a config file would change when it is written and read.
UNSAVED = re.compile(r"[=:\n\r]|^[#;\[\s]|\s$")


@dataclass(frozen=True)
class Flag:
    """Statement that a text has at least ``least`` entities of a label.

    Attributes:
        least: least number of entities. 0 states that the text has no such entity.
        wrong: probability that the statement is wrong.
        source: place of the statement, for messages.
    """

    label: str
    least: int
    wrong: float
    source: str

    def __str__(self) -> str:
        said = "none" if not self.least else f"at least {self.least}"
        return f"{self.source} says {said} of {self.label!r}"


@dataclass(frozen=True)
class EvidenceSettings:
    """Settings of the block ``evidence`` of a ``crf_ner``.

    Attributes:
        flags: label of entities for each category in ``doc.cats`` that states whether a text has
            such an entity. A value above 0.5 states that there is at least one, a value below 0.5
            that there is none. Values other than 0 and 1 are the probability that there is one. 0.5
            states nothing.
        flag_error: probability that a flag, in ``doc.cats`` or ``doc._.entity_flags``, is wrong.
            With 0, a flag that contradicts the annotated entities is an error.
        negative_share: share of the tokens with missing or incomplete annotation that is assumed to
            be outside of entities. Other tokens are drawn at each step (Li et al. 2021).
        sources: names of groups in ``doc.spans``. Each group holds the entities according to one
            source: a person, a list of names, patterns, or another model. The reliability of each
            source is learned. A doc without the group of a source has no evidence from this source.
            An empty group means that the source found no entity.
    """

    flags: Mapping[str, str] = field(default_factory=dict)
    flag_error: float = 0.0
    negative_share: float = 0.0
    sources: Sequence[str] = ()

    @classmethod
    def of_block(cls, name: str, block: object) -> EvidenceSettings:
        """Make the settings from a block of the config.

        Raises:
            LatentError: if the block is invalid.
        """
        if block is None:
            return cls()
        known = [one.name for one in fields(cls)]
        wrong = [key for key in block if key not in known] if isinstance(block, Mapping) else [""]
        if wrong:
            given = f"has {wrong[0]!r}" if wrong[0] else f"is {block!r}"
            raise LatentError(
                f"{name}: evidence {given}; expected a block with some of {', '.join(known)}, or "
                "null."
            )
        assert isinstance(block, Mapping)
        made = cls(**block)
        made._check(name)
        return made

    def _check(self, name: str) -> None:
        flags = self.flags
        if not isinstance(flags, Mapping) or not all(
            isinstance(one, str) and one for pair in flags.items() for one in pair
        ):
            raise LatentError(
                f"{name}: evidence.flags is {flags!r}; expected a label for each category of "
                'doc.cats, as {"has_chemical": "Chemical"}.'
            )
        if unsaved := [category for category in flags if UNSAVED.search(category)]:
            raise LatentError(
                f"{name}: evidence.flags has the category {unsaved[0]!r}, which config.cfg cannot "
                "hold: a key may not have '=', ':' or a line break, and may not begin with '#', "
                "';', '[' or a blank. Rename the category, or give the flags as "
                f"doc._.{ENTITY_FLAGS}."
            )
        if len(set(flags.values())) < len(flags):
            raise LatentError(
                f"{name}: evidence.flags is {dict(flags)!r}; expected each label once. If several "
                "categories flag one label, merge them in doc.cats."
            )
        for share in ("flag_error", "negative_share"):
            check_share(name, f"evidence.{share}", getattr(self, share))
        if self.flag_error >= EVEN:
            raise LatentError(
                f"{name}: evidence.flag_error is {self.flag_error}; expected less than {EVEN}. "
                "With a larger error the flags would be right more often if inverted."
            )
        sources = self.sources
        if (
            not isinstance(sources, (list, tuple))
            or not all(isinstance(one, str) and one for one in sources)
            or len(set(sources)) < len(sources)
        ):
            raise LatentError(
                f"{name}: evidence.sources is {sources!r}; expected a list of names of groups in "
                "doc.spans, each once."
            )

    @property
    def needs_probabilities(self) -> bool:
        """True if the settings need a loss that sums over sequences."""
        return bool(self.flags or self.flag_error or self.sources)

    @property
    def tells_outside(self) -> bool:
        """True if a setting gives evidence that unannotated tokens are outside of entities."""
        return bool(self.flags or self.negative_share or self.sources)

    def flags_of(self, doc: Doc) -> list[Flag]:
        """Return the flags of a text, sorted by label.

        ``doc._.entity_flags`` takes precedence over categories.

        Raises:
            LatentError: if a value is not from 0 to 1, or if two certain flags contradict each
                other.
        """
        found: dict[str, Flag] = {}
        for category, label in self.flags.items():
            value = doc.cats.get(category)
            if value is None or value == EVEN:
                continue
            if not isinstance(value, (Real, np.bool_)) or not 0 <= value <= 1:
                raise LatentError(
                    f"doc.cats[{category!r}] of {doc.text[:60]!r} is {value!r}; expected a number "
                    "from 0, if the text has no such entity, to 1, if it has one."
                )
            wrong = max(self.flag_error, min(value, 1 - value))
            source = f"doc.cats[{category!r}] = {value:g}"
            found[label] = Flag(label, int(value > EVEN), float(wrong), source)
        for label, least in entity_flags(doc).items():
            own = Flag(label, least, self.flag_error, f"doc._.{ENTITY_FLAGS}")
            before = found.get(label)
            sure = before is not None and before.wrong == own.wrong == 0
            if before is not None and sure and bool(before.least) != bool(least):
                raise LatentError(
                    f"{before}, and {own}; expected both to agree. Correct one of them, or set "
                    "evidence.flag_error above 0."
                )
            found[label] = own
        return [found[label] for label in sorted(found)]


class EvidenceReader:
    """Reader of the annotation of references, for a component with given labels.

    Args:
        name: name of the component, for messages.
        tags: "O" and four tags for each label, as in ``crf_ner``.
        tell: function that warns once of each key, such as
            :meth:`~spacy_latent.pipeline.trained_component.TrainedComponent.tell_once`.
    """

    def __init__(
        self,
        name: str,
        labels: Sequence[str],
        tags: Sequence[str],
        settings: EvidenceSettings,
        tell: Callable[[str, str], None],
    ) -> None:
        self.name, self.labels, self.settings = name, tuple(labels), settings
        self.tags, self.tell = tags, tell
        self._label_of_tag = np.array([tag.partition("-")[2] for tag in tags])

    def open_labels(self, allowed: np.ndarray, example: Example) -> None:
        """Allow the tags of labels without annotation, on tokens outside of entities.

        Args:
            allowed: ``(n, K)`` bool, changed in place. Tags that agree with complete annotation.
        """
        asked = annotated_labels(example.reference)
        if asked is None:
            return
        others = np.array([tag != "O" and tag.partition("-")[2] not in asked for tag in self.tags])
        outside = allowed[:, 0] & (allowed.sum(1) == 1)
        allowed[outside] |= others

    def counts(
        self, allowed: np.ndarray, example: Example, refuse: Callable[[str], Any]
    ) -> tuple[EntityCount, ...]:
        """Return the counts of entities that the flags state.

        Args:
            allowed: ``(n, K)`` bool, changed in place. Tags of labels that are certainly absent are
                forbidden.
            refuse: function that raises an error with the given message. It is called for
                contradictions and for unknown labels.
        """
        from spacy_latent.models.tag_evidence import EntityCount

        found: list[EntityCount] = []
        there = {span.label_ for span in example.reference.ents}
        for label in annotated_labels(example.reference) or ():
            if label not in self.labels:
                refuse(unknown_label(f"doc._.{ANNOTATED_LABELS}", label, self.labels))
        of_ends = [i for i, tag in enumerate(self.tags) if tag[0] in "LU"]
        spaces = starts_and_spaces(example.predicted)[1]
        # Only annotated entities may end at white space.
        size = int((~spaces | allowed[:, of_ends].any(1)).sum())
        flags: list[Flag] = []
        try:
            flags = self.settings.flags_of(example.reference)
        except LatentError as error:
            refuse(str(error))
        for flag in flags:
            if flag.label not in self.labels:
                refuse(unknown_label(flag.source, flag.label, self.labels))
            if not flag.wrong and flag.least > size:
                tokens = number_of(size, "token") + " beside white space" * bool(spaces.any())
                refuse(f"{flag}, and the text has {tokens}. Expected at most one for each.")
            if not flag.wrong and not flag.least and flag.label in there:
                text = next(s.text for s in example.reference.ents if s.label_ == flag.label)
                refuse(
                    f"{flag}, and {text!r} is an entity of it. Expected the two to agree; where "
                    "flags may be wrong, set evidence.flag_error."
                )
            own = self._label_of_tag == flag.label
            if not flag.least and not flag.wrong:
                allowed[:, own] = False
            else:
                ends = tuple(i for i in np.flatnonzero(own).tolist() if self.tags[i][0] in "LU")
                holds = flag.least > 0
                found.append(EntityCount(ends, max(flag.least, 1), holds, flag.wrong))
        sure = [flag for flag in flags if flag.least and not flag.wrong]
        last = int(allowed[:, of_ends].any(1).sum())
        if len(sure) > 1 and sum(flag.least for flag in sure) > last:
            # Counts may be summed in several groups, and no group alone shows this contradiction.
            said = "; ".join(map(str, sure))
            tokens = f"{last} token{'s' * (last != 1)}"
            refuse(
                f"{said}, and entities may end at {tokens} of the text. Expected no more entities "
                "than such tokens."
            )
        return tuple(found)

    def written(self, example: Example) -> list[Written]:
        """Return the annotation of the sources on the tokens of the predicted doc.

        If spans of a source overlap, the longest counts. Spans with an unknown label do not count.
        Tokens under spans that do not align with tokens count as not annotated by the source.
        """
        from spacy_latent.models.tag_sources import PLACES, Written

        spans, found, size = example.reference.spans, [], len(example.predicted)
        for number, name in enumerate(self.settings.sources):
            if name not in spans:
                continue
            classes, places = np.zeros(size, dtype=np.int64), np.full(size, -1)
            marked = [span for span in spans[name] if len(span) and span.label_]
            given = [span for span in marked if span.label_ in self.labels]
            if len(given) < len(marked):
                self._tell_unknown(name, example)
            aligned = aligned_spans(example, given, allow_overlap=True)
            if len(aligned) < len(given):
                classes[self._misaligned(name, given, example)] = -1
            for span in filter_spans(aligned):
                own = slice(span.start, span.end)
                classes[own] = self.labels.index(span.label_) + 1
                places[own] = PLACES.index("I")
                places[span.start], places[span.end - 1] = PLACES.index("B"), PLACES.index("L")
                if len(span) == 1:
                    places[span.start] = PLACES.index("U")
            found.append(Written(number, classes, places))
        return found

    def _tell_unknown(self, name: str, example: Example) -> None:
        known = {"", *self.labels}
        for own in example.reference.spans[name]:
            if own.label_ not in known:
                self.tell(
                    unknown_source_label(own.label_),
                    f"the source {name!r} gives {own.text[:60]!r} the label {own.label_!r}, which "
                    "the component does not have: such spans count as if they were not there. Look "
                    f"at the spelling, or call add_label({own.label_!r}), before training.",
                )

    def _misaligned(self, name: str, given: Sequence[Span], example: Example) -> np.ndarray:
        """Return the predicted tokens under spans that do not align with tokens, and warn once."""
        to_own, doc = example.alignment.y2x, example.predicted
        under = [np.concatenate([to_own[i] for i in range(s.start, s.end)]) for s in given]
        fit = [
            len(own) > 0 and doc[int(own.min()) : int(own.max()) + 1].text == span.text
            for span, own in zip(given, under)
        ]
        lost = [span for span, fits in zip(given, fit) if not fits]
        self.tell(
            f"spans of {name}",
            f"the span {lost[0].text[:60]!r} of the source {name!r} does not begin and end where "
            f"tokens of {example.predicted.text[:60]!r} do. Such spans say nothing of their "
            "tokens.",
        )
        tokens = [own for own, fits in zip(under, fit) if not fits]
        return np.unique(np.concatenate(tokens)).astype(np.int64)

    def take_as_outside(
        self, allowed: np.ndarray, example: Example, written: Sequence[Written] = ()
    ) -> None:
        """Forbid all tags but "O" for a random share of the tokens that may have several tags.

        The tokens of misaligned entities, and tokens to which a source gives a label, are left out.

        Args:
            allowed: ``(n, K)`` bool, changed in place.
        """
        share = self.settings.negative_share
        if not share:
            return
        may_be = allowed[:, 0] & (allowed.sum(1) > 1)
        to_own = example.alignment.y2x
        for span in example.reference.ents:
            for i in range(span.start, span.end):
                may_be[to_own[i]] = False
        # NumPy's own generator, whose state trainings seed and checkpoints hold.
        for source in written:
            may_be &= source.classes == 0
        taken = may_be & (np.random.random(len(allowed)) < share)
        allowed[taken, 1:] = False

    def contradiction(self, example: Example) -> str:
        """Describe the flags of a text that no sequence of tags satisfies."""
        said = "; ".join(map(str, self.settings.flags_of(example.reference)))
        there = ", ".join(f"{s.text!r} ({s.label_})" for s in example.reference.ents) or "none"
        return (
            f"no sequence of entities agrees with what is known of it. {said}. Its annotated "
            f"entities: {there}. Expected the two to agree: a token that is annotated as outside "
            "is no entity, and one without annotation may be; where flags may be wrong, set "
            "evidence.flag_error."
        )


def unknown_source_label(label: str) -> str:
    """Return the key of the warning about a label of sources that the component does not have."""
    return f"label {label} of sources"


def unknown_label(source: str, label: str, labels: Sequence[str]) -> str:
    """Return the message of an error about a label that a component does not have."""
    if not labels:
        return (
            f"{source} has the label {label!r}, and the component has no labels. Initialize it "
            f"with annotated texts, or call add_label({label!r}), before training."
        )
    return (
        f"{source} has the label {label!r}, which is unknown; expected some of "
        f"{', '.join(labels)}. Look at the spelling, or call add_label({label!r}), before training."
    )
