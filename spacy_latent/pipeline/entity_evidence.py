"""Evidence about the tags of tokens, from complete or incomplete annotation of entities."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import filter_spans

from spacy_latent.annotations import annotated_labels, check_share, entity_flags
from spacy_latent.annotations.completeness import ANNOTATED_LABELS, ENTITY_FLAGS
from spacy_latent.errors import LatentError, LatentWarning, number_of
from spacy_latent.pipeline.open_tags import starts_and_spaces
from spacy_latent.pipeline.training_settings import training_reader

if TYPE_CHECKING:
    from spacy_latent.models.tag_evidence import EntityCount
    from spacy_latent.models.tag_sources import Written

# Value of a category above which a text has such an entity.
EVEN = 0.5
# Number of texts in the survey of the evidence if labels are given.
SURVEYED = 1000
# Names that a config file would not give back as they were.
UNSAVED = re.compile(r"[=:\n\r]|^[#;\[\s]|\s$")
# Value of token.ent_iob without annotation.
MISSING = 0
# Advice if no setting determines which tokens are outside of entities.
ADVICE = (
    "evidence.negative_share (0.15 takes a random 15 % of the tokens without annotation as outside "
    "at each step), or annotate some texts completely"
)


class DoubtfulEvidence(LatentWarning):
    """Warning of initialize() about texts whose annotation is incomplete."""


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
        flags: labels of entities, by the categories in ``doc.cats`` that mean that a text has such
            an entity. A value above a half means that there is at least one, a value below that
            there is none. A value other than 0 or 1 is taken as the probability.
        flag_error: probability that a flag, in ``doc.cats`` or ``doc._.entity_flags``, is wrong.
            With 0, a flag that contradicts the annotated entities is an error.
        negative_share: share of the tokens that may be inside or outside of entities which is taken
            as outside. The tokens are drawn anew at each step (Li et al. 2021).
        sources: names of groups in ``doc.spans``. Each group holds the entities according to one
            source: a person, a list of names, patterns, or another model. The reliability of each
            source is learned. A source gives no evidence on a doc without its group. An empty group
            means that the source saw no entity.
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
                "hold: a name on the left of a line has no '=', no ':' and no line break, and "
                "begins with no '#', ';', '[' or blank. Name the category otherwise, or give the "
                f"flags as doc._.{ENTITY_FLAGS}."
            )
        if len(set(flags.values())) < len(flags):
            raise LatentError(
                f"{name}: evidence.flags is {dict(flags)!r}; expected each label once. Where "
                "several categories tell of one label, join them in the texts."
            )
        for share in ("flag_error", "negative_share"):
            check_share(name, f"evidence.{share}", getattr(self, share))
        if self.flag_error >= EVEN:
            raise LatentError(
                f"{name}: evidence.flag_error is {self.flag_error}; expected less than {EVEN}, or "
                "the flags would say the contrary."
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
        """True if only a loss that sums over sequences can learn from the settings."""
        return bool(self.flags or self.flag_error or self.sources)

    @property
    def tells_outside(self) -> bool:
        """True if some setting determines how many tokens are outside of entities.

        Annotated tokens do not count for this.
        """
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
            if not 0 <= value <= 1:
                raise LatentError(
                    f"doc.cats[{category!r}] of {doc.text[:60]!r} is {value!r}; expected a number "
                    "from 0, for none of its entities, to 1."
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
                    f"{before}, and {own}. Expected both to agree; or set evidence.flag_error."
                )
            found[label] = own
        return [found[label] for label in sorted(found)]


class EvidenceReader:
    """Reader of the annotation of references, for a component with given labels.

    Args:
        name: name of the component, for messages.
        tags: "O" and four tags for each label, as in ``crf_ner``.
    """

    def __init__(
        self, name: str, labels: Sequence[str], tags: Sequence[str], settings: EvidenceSettings
    ) -> None:
        self.name, self.labels, self.settings = name, tuple(labels), settings
        self.tags = tags
        self._label_of_tag = np.array([tag.partition("-")[2] for tag in tags])

    def open_labels(self, allowed: np.ndarray, example: Example) -> None:
        """Allow the tags of labels without annotation, on tokens outside of entities.

        Args:
            allowed: ``(n, K)`` bool, tags that agree with the reference as if it were complete. It
                is changed in place.
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
                refuse(self._unknown(label, f"doc._.{ANNOTATED_LABELS}"))
        of_ends = [i for i, tag in enumerate(self.tags) if tag[0] in "LU"]
        spaces = starts_and_spaces(example.predicted)[1]
        # An annotated entity may end at white space, and no other.
        size = int((~spaces | allowed[:, of_ends].any(1)).sum())
        flags: list[Flag] = []
        try:
            flags = self.settings.flags_of(example.reference)
        except LatentError as error:
            refuse(str(error))
        for flag in flags:
            if flag.label not in self.labels:
                refuse(self._unknown(flag.label, flag.source))
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
            # Sums over counts do not find it if they are not all summed together.
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
        """
        from spacy_latent.models.tag_sources import PLACES, Written

        spans, found, size = example.reference.spans, [], len(example.predicted)
        for number, name in enumerate(self.settings.sources):
            if name not in spans:
                continue
            classes, places = np.zeros(size, dtype=np.int64), np.full(size, -1)
            aligned = example.get_aligned_spans_y2x(list(spans[name]), allow_overlap=True)
            for span in filter_spans([one for one in aligned if one.label_ in self.labels]):
                own = slice(span.start, span.end)
                classes[own] = self.labels.index(span.label_) + 1
                places[own] = PLACES.index("I")
                places[span.start], places[span.end - 1] = PLACES.index("B"), PLACES.index("L")
                if len(span) == 1:
                    places[span.start] = PLACES.index("U")
            found.append(Written(number, classes, places))
        return found

    def take_as_outside(
        self, allowed: np.ndarray, example: Example, written: Sequence[Written] = ()
    ) -> None:
        """Forbid all tags but "O" for a random share of the tokens that may have several tags.

        The tokens of misaligned annotated entities are left out, and so are tokens to which a
        source gives a label.

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
        """Describe flags with which no sequence of tags agrees."""
        said = "; ".join(map(str, self.settings.flags_of(example.reference)))
        there = ", ".join(f"{s.text!r} ({s.label_})" for s in example.reference.ents) or "none"
        return (
            f"no sequence of entities agrees with what is known of it. {said}. Its annotated "
            f"entities: {there}. Expected the two to agree: a token that is annotated as outside "
            "is no entity, and one without annotation may be; where flags may be wrong, set "
            "evidence.flag_error."
        )

    def _unknown(self, label: str, source: str) -> str:
        return (
            f"{source} has the label {label!r}, which is unknown; expected some of "
            f"{', '.join(self.labels)}. Look at the spelling, or call add_label({label!r})."
        )


@dataclass
class EvidenceSurvey:
    """Counts of the annotation in training texts.

    They come from one pass, since a corpus may be slow to read.

    Attributes:
        inside: number of tokens in entities.
        outside: number of tokens that are annotated as outside of entities.
        missing: number of tokens without annotation.
        found: labels of entities.
        asked: labels for which texts were annotated.
        sets: for each text that says for which labels it was annotated, these labels.
        flagged: labels of flags on docs.
        given: labels that sources give.
        there: categories of flags, and sources, that some text has.
    """

    settings: EvidenceSettings
    texts: int = 0
    inside: int = 0
    outside: int = 0
    missing: int = 0
    sets: set[frozenset[str]] = field(default_factory=set)
    found: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    flagged: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)
    says_none: bool = False

    @classmethod
    def of(cls, examples: Iterable[Example], settings: EvidenceSettings) -> EvidenceSurvey:
        made = cls(settings)
        for example in examples:
            made.add(example.reference)
        return made

    def add(self, doc: Doc) -> None:
        self.texts += 1
        tags: Any = doc.to_array(["ENT_IOB", "ENT_TYPE"])
        entity = tags[:, 1] != 0
        self.inside += int(entity.sum())
        self.missing += int((tags[:, 0] == MISSING).sum())
        self.outside += int(((tags[:, 0] != MISSING) & ~entity).sum())
        self.found.update(span.label_ for span in doc.ents)
        labels = annotated_labels(doc)
        if labels is not None:
            self.sets.add(frozenset(labels))
            self.asked.update(labels)
        flags = entity_flags(doc)
        self.flagged.update(flags)
        self.says_none |= any(not least for least in flags.values())
        self.there.update(category for category in self.settings.flags if category in doc.cats)
        for source in self.settings.sources:
            if source in doc.spans:
                self.there.add(source)
                self.given.update(span.label_ for span in doc.spans[source])

    def leaves_open(self, labels: Iterable[str]) -> bool:
        """Return whether some token is known neither as outside of entities nor as part of one.

        With sources nothing is open: each of them judges every token of its texts.
        """
        partly = any(not asked.issuperset(labels) for asked in self.sets)
        return (bool(self.missing) or partly) and not self.there.intersection(self.settings.sources)

    @property
    def names(self) -> set[str]:
        """Labels about which the texts have some evidence."""
        named = self.found | self.asked | self.flagged | self.given
        return (named | set(self.settings.flags.values())) - {""}

    def doubts(self, advice: str = "") -> list[str]:
        """Return sentences about settings and annotation that are probably mistakes.

        Args:
            advice: what to do as well about a label of which no text has an entity.
        """
        said = []
        were = "was" if self.texts == 1 else "were"
        texts = f"{number_of(self.texts, 'training text')} that {were} read"
        annotated = self.inside or self.outside
        absent = [category for category in self.settings.flags if category not in self.there]
        if absent and annotated:
            said.append(
                f"evidence.flags has {', '.join(map(repr, absent))}, and none of {texts} has such "
                "a category in doc.cats. If no text has it, nothing is learned of it: look at the "
                "name."
            )
        absent = [source for source in self.settings.sources if source not in self.there]
        if absent and self.texts:
            said.append(
                f"evidence.sources has {', '.join(map(repr, absent))}, and none of {texts} has "
                "such a group in doc.spans. If no text has it, nothing is learned of it: look at "
                "the name, and whether spans were saved with the texts."
            )
        seen = self.found | self.given
        of_categories = {
            label for category, label in self.settings.flags.items() if category in self.there
        }
        flagged = self.flagged | of_categories
        if lone := sorted(flagged - seen):
            where = f"doc._.{ENTITY_FLAGS}" if self.flagged - seen else "evidence.flags"
            said.append(
                f"{number_of(len(lone), 'label')} that flags name, {', '.join(map(repr, lone))}: "
                f"none of {texts} has such an entity. Look at the spelling in {where}. If it is "
                "right, annotate some texts completely: flags do not tell where entities begin "
                f"and end. {advice}".rstrip()
            )
        elsewhere = seen | flagged | set(self.settings.flags.values())
        for label in sorted(self.asked - elsewhere):
            said.append(
                f"texts are said to be annotated for {label!r}, and none of {texts} has such an "
                f"entity. Look at the spelling in doc._.{ANNOTATED_LABELS}, or annotate such "
                f"entities. {advice}".rstrip()
            )
        says_outside = self.settings.tells_outside or self.says_none
        if self.missing and self.inside and self.outside < self.inside and not says_outside:
            said.append(
                f"of the tokens of {number_of(self.texts, 'training text')} {self.inside} are in "
                f"entities, {self.missing} have no annotation, and {self.outside or 'none'} are "
                "annotated as outside. That "
                "everything is an entity agrees with that, and it is what large corpora like this "
                f"teach, with a precision near 0. Set {ADVICE}."
            )
        return said


def lost_by_augmenter(nlp: Language | None, examples: Iterable[Example]) -> str:
    """Describe the loss of evidence in the texts that an augmenter of the training corpus changes.

    Augmenters of spaCy make new docs without ``doc.user_data``.

    Returns:
        Sentences, or an empty string if there is no augmenter or no such evidence.
    """
    augmenter = None if nlp is None else training_reader(nlp).get("augmenter")
    if not augmenter or not any(
        annotated_labels(example.reference) is not None or entity_flags(example.reference)
        for example in islice(examples, SURVEYED)
    ):
        return ""
    return (
        f"the training corpus has an augmenter, and texts that it changes lose "
        f"doc._.{ANNOTATED_LABELS} and doc._.{ENTITY_FLAGS}: they count as annotated for all "
        "labels. Set augmenter = null; to augment, change the texts before they are saved with "
        "these."
    )
