"""Counts of the annotation of entities in training texts, and doubts about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import islice
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_latent.annotations import annotated_labels, entity_flags
from spacy_latent.annotations.completeness import ANNOTATED_LABELS, ENTITY_FLAGS
from spacy_latent.errors import LatentWarning, number_of
from spacy_latent.pipeline.entity_evidence import EvidenceSettings
from spacy_latent.pipeline.training_settings import training_reader

# Number of texts in the survey of the evidence if labels are given.
SURVEYED = 1000
# Value of token.ent_iob of a token without annotation.
MISSING = 0
# Advice if no setting determines which tokens are outside of entities.
ADVICE = (
    "evidence.negative_share (0.15 treats a random 15 % of the tokens without annotation as "
    "outside in each step), or annotate some texts completely"
)


class DoubtfulEvidence(LatentWarning):
    """Warning of initialize() about texts whose annotation is incomplete."""


@dataclass
class EvidenceSurvey:
    """Counts of the annotation in training texts.

    All are counted in one pass, since a corpus may be slow to read.

    Attributes:
        inside: number of tokens in entities.
        outside: number of tokens that are annotated as outside of entities.
        missing: number of tokens without annotation.
        found: labels of entities.
        asked: labels in ``doc._.annotated_labels`` of any text.
        sets: the different values of ``doc._.annotated_labels``.
        flagged: labels of flags on docs.
        given: for each label that sources give, these sources.
        marked: numbers of tokens in spans of sources: annotated as inside of entities, and
            annotated as outside.
        marked_texts: number of texts with spans of sources, and number of these texts that have no
            annotated entity and a token in such a span that is annotated as outside.
        without_labels: number of texts that were annotated for no label.
        there: categories of flags, and groups of sources, that occur in some text.
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
    given: dict[str, set[str]] = field(default_factory=dict)
    marked: list[int] = field(default_factory=lambda: [0, 0])
    marked_texts: list[int] = field(default_factory=lambda: [0, 0])
    without_labels: int = 0
    there: set[str] = field(default_factory=set)
    says_none: bool = False

    @classmethod
    def of(cls, examples: Iterable[Example], settings: EvidenceSettings) -> EvidenceSurvey:
        """Count the annotation of the references of these examples."""
        made = cls(settings)
        for example in examples:
            made.add(example.reference)
        return made

    def add(self, doc: Doc) -> None:
        """Count the annotation of one more reference."""
        self.texts += 1
        tags: Any = doc.to_array(["ENT_IOB", "ENT_TYPE"])
        entity = tags[:, 1] != 0
        self.inside += int(entity.sum())
        labels = annotated_labels(doc)
        # If a text was annotated for no label, every label may be on its other tokens.
        outside = (tags[:, 0] != MISSING) & ~entity & (labels is None or bool(labels))
        self.outside += int(outside.sum())
        self.missing += int((~entity & ~outside).sum())
        self.found.update(span.label_ for span in doc.ents)
        self.without_labels += labels is not None and not labels
        if labels is not None:
            self.sets.add(frozenset(labels))
            self.asked.update(labels)
        flags = entity_flags(doc)
        self.flagged.update(flags)
        self.says_none |= any(not least for least in flags.values())
        self.there.update(category for category in self.settings.flags if category in doc.cats)
        written = [source for source in self.settings.sources if source in doc.spans]
        self.there.update(written)
        before = self.marked[1]
        spans = [(source, span) for source in written for span in doc.spans[source] if span.label_]
        for source, span in spans:
            self.given.setdefault(span.label_, set()).add(source)
            own = slice(span.start, span.end)
            self.marked[0] += int(entity[own].sum())
            if labels is None or span.label_ in labels:
                self.marked[1] += int(outside[own].sum())
        self.marked_texts[0] += bool(spans)
        self.marked_texts[1] += self.marked[1] > before and not entity.any()

    def leaves_open(self, labels: Iterable[str]) -> bool:
        """Return whether the annotation leaves open for some token whether it is in an entity.

        Annotation is missing, covers only some labels, or comes from sources, which may be wrong.
        """
        partly = any(not asked.issuperset(labels) for asked in self.sets)
        return bool(self.missing) or partly or bool(self.there.intersection(self.settings.sources))

    @property
    def names(self) -> set[str]:
        """Labels about which the texts have some evidence."""
        named = self.found | self.asked | self.flagged | set(self.given)
        return (named | set(self.settings.flags.values())) - {""}

    def doubts(self, labels: Iterable[str] | None = None) -> list[str]:
        """Return sentences about settings and annotation that are probably mistakes.

        Args:
            labels: labels of the component; None if they are the labels of the texts.
        """
        said = self._doubts_of_sources(self.names if labels is None else set(labels))
        were = "was" if self.texts == 1 else "were"
        texts = f"{number_of(self.texts, 'training text')} that {were} read"
        annotated = self.inside or self.outside
        absent = [category for category in self.settings.flags if category not in self.there]
        if absent and annotated:
            said.append(
                f"evidence.flags has {', '.join(map(repr, absent))}, and none of {texts} has "
                "such a category in doc.cats. If no text has it, nothing is learned from it. "
                "Check the name."
            )
        absent = [source for source in self.settings.sources if source not in self.there]
        if absent and self.texts:
            said.append(
                f"evidence.sources has {', '.join(map(repr, absent))}, and none of {texts} has "
                "such a group in doc.spans. If no text has it, nothing is learned from it. "
                "Check the name, and whether spans were saved with the texts."
            )
        seen = self.found | set(self.given)
        of_categories = {
            label for category, label in self.settings.flags.items() if category in self.there
        }
        flagged = self.flagged | of_categories
        if lone := sorted(flagged - seen):
            where = f"doc._.{ENTITY_FLAGS}" if self.flagged - seen else "evidence.flags"
            said.append(
                f"{number_of(len(lone), 'label')} of flags, {', '.join(map(repr, lone))}: none "
                f"of {texts} has such an entity. Check the spelling in {where}. If it is right, "
                "annotate some texts completely: flags do not tell where entities begin and end."
            )
        elsewhere = seen | flagged | set(self.settings.flags.values())
        for label in sorted(self.asked - elsewhere):
            said.append(
                f"texts are declared to be annotated for {label!r}, and none of {texts} has such "
                f"an entity. Check the spelling in doc._.{ANNOTATED_LABELS}, or annotate such "
                "entities."
            )
        says_outside = self.settings.tells_outside or self.says_none
        are_open = self.missing and self.inside and self.outside < self.inside
        if are_open and not says_outside and self.without_labels:
            are = "text has" if self.without_labels == 1 else "texts have"
            said.append(
                f"{self.without_labels} {are} an empty list in doc._.{ANNOTATED_LABELS}, so no "
                "token of them is known to be outside of entities, and the component may learn "
                "that every token is in one. Name the annotated labels, or remove the list."
            )
        elif are_open and not says_outside:
            said.append(
                f"in {number_of(self.texts, 'training text')}, {self.inside} tokens are in "
                f"entities, {self.missing} have no annotation, and {self.outside or 'none'} are "
                "annotated as outside. From many such texts, the component learns that every "
                f"token is in an entity, with a precision near 0. Set {ADVICE}."
            )
        return said

    def _doubts_of_sources(self, labels: set[str]) -> list[str]:
        said = []
        inside, outside = self.marked
        texts, contradicted = self.marked_texts
        # A source may be wrong in some texts, but hardly in nearly all of its spans.
        if outside > 9 * inside and 2 * contradicted > texts:
            said.append(
                f"{number_of(outside, 'token')} in spans of the sources "
                f"{'is' if outside == 1 else 'are'} annotated as outside of entities, and "
                f"{inside} as inside. This annotation counts as certain, so the sources are "
                "taken as wrong there. If only the sources annotated these texts, leave their "
                'entities missing: doc.set_ents([], default="missing").'
            )
        for label in sorted(set(self.given) - labels):
            said.append(
                f"sources give the label {label!r}, which the component does not have, so such "
                "spans are ignored. Check the spelling, or add it to the labels."
            )
        certain = self.found | self.asked | self.flagged
        told: set[str | None] = set()
        for label, sources in sorted(self.given.items()):
            others = (set(self.given) | certain) - {label}
            near = _near(label, others) if len(sources) == 1 and label in labels - certain else None
            if near and near not in told:
                told.add(label)
                said.append(
                    f"only the source {min(sources)!r} gives the label {label!r}, which is spelt "
                    f"nearly like {near!r}. If they mean the same, use one spelling: these are "
                    "two labels."
                )
        return said


def _near(label: str, others: Iterable[str]) -> str | None:
    """Return the most similar of the labels that may be another spelling or an abbreviation."""
    return max(
        (other for other in sorted(others) if _are_near(label, other)),
        key=lambda other: _likeness(label, other),
        default=None,
    )


def _are_near(label: str, other: str) -> bool:
    short, long = sorted((label, other), key=len)
    # If the longer label adds a word, as in drug_dose and DiseaseClass, the labels are different.
    new_word = re.match(r"[\W_\d]|[A-Z][a-z]", long[len(short) :])
    short, long = (re.sub(r"[\W_]", "", one).lower() for one in (short, long))
    if long in (short, f"{short}s"):
        return True
    return long.startswith(short) and not new_word and _likeness(label, other) > 0.6


def _likeness(label: str, other: str) -> float:
    return SequenceMatcher(None, label.lower(), other.lower()).ratio()


def lost_by_augmenter(nlp: Language | None, examples: Iterable[Example]) -> str:
    """Describe the loss of evidence in the texts that an augmenter of the training corpus changes.

    Augmenters of spaCy make new docs without ``doc.user_data``, where this evidence is stored.

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
