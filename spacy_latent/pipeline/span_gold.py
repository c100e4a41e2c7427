"""Annotated spans that a tree of spans can have, and the classes that agree with their labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spacy.tokens import Span
from spacy.training import Example

from spacy_latent.annotations import aligned_spans, annotated_labels
from spacy_latent.annotations.completeness import ANNOTATED_LABELS
from spacy_latent.errors import LatentError
from spacy_latent.pipeline.entity_evidence import unknown_label

if TYPE_CHECKING:
    from spacy_latent.models.span_losses import Observed


@dataclass(frozen=True)
class SpanGold:
    """Reader of the annotated spans of examples, for a ``tree_spancat``.

    Attributes:
        name: name of the component, for messages.
        label_sets: sets of labels that a span may have at once, one for each class except the
            first.
        key: name of the group in ``doc.spans``.
        max_width: largest number of tokens of a span, or None.
        tell: function that warns once of each key, such as
            :meth:`~spacy_latent.pipeline.trained_component.TrainedComponent.tell_once`.
    """

    name: str
    labels: Sequence[str]
    label_sets: Sequence[Sequence[str]]
    key: str
    max_width: int | None
    tell: Callable[[str, str], None]

    def unlabelled(self, example: Example) -> tuple[int, ...]:
        """Return the classes that an unannotated span may have."""
        asked = annotated_labels(example.reference)
        if asked is None:
            return (0,)
        for label in asked:
            if label not in self.labels:
                source = f"{self.name}: doc._.{ANNOTATED_LABELS}"
                raise LatentError(unknown_label(source, label, self.labels))
        free = (place for place, own in enumerate(self.label_sets, 1) if not {*own} & {*asked})
        return (0, *free)

    def observed(self, example: Example, pieces: Sequence[tuple[int, ...]]) -> list[Observed]:
        """Return the annotated spans that a tree can have, with the classes of their labels."""
        from spacy_latent.models.compatible_spans import most_compatible
        from spacy_latent.models.span_losses import place_of

        annotated = list(example.reference.spans.get(self.key, []))
        given = [span for span in annotated if len(span)]
        if len(given) < len(annotated):
            self.tell(
                "empty",
                f"a span of {example.reference.text[:60]!r} has no tokens. Such spans are left "
                "out: look at what made the annotation.",
            )
        aligned = aligned_spans(example, given, allow_overlap=True) if given else []
        if len(aligned) < len(given):
            self.tell(
                "misaligned",
                f"the tokens of {example.reference.text[:60]!r} are not those of the reference, "
                "and spans do not fit them. They are left out.",
            )
        by_place: dict[tuple[int, int], set[str]] = {}
        asked = annotated_labels(example.reference)
        bound = self.max_width
        for span in aligned:
            if bound is not None and len(span) > bound:
                self.tell(
                    "wide",
                    f"the span {span.text[:60]!r} has {len(span)} tokens, and max_width is "
                    f"{bound}. Such spans are left out: raise max_width of the model.",
                )
            elif span[0].is_space or span[-1].is_space:
                self.tell(
                    "space",
                    f"the span {span.text[:60]!r} begins or ends with white space. Such spans are "
                    "left out, and are not predicted: leave the white space out of the span.",
                )
            elif place_of(pieces, span.start, span.end) is None:
                self.tell(
                    "cut",
                    f"the span {span.text[:60]!r} lies in more than one sentence, or window of "
                    "the model's span_getter. Such spans are left out: look at what sets the "
                    "sentences, or raise max_length of the span_getter.",
                )
            else:
                by_place.setdefault((span.start, span.end), set()).add(span.label_)
        places = list(by_place)
        kept = most_compatible(places)
        if not all(kept):
            lost = [place for place, own in zip(places, kept) if not own]
            self._warn_of_crossing([example.predicted[start:end] for start, end in lost])
        return [
            (*place, self._classes_of(by_place[place], asked))
            for place, own in zip(places, kept)
            if own
        ]

    def sets_of(self, examples: Iterable[Example]) -> list[list[str]]:
        """Return the sets of labels that spans of examples have, and warn of spans that cross.

        First come sets of one label: each label of a span, or in ``doc._.annotated_labels``.
        """
        from spacy_latent.models.compatible_spans import most_compatible

        found: set[tuple[str, ...]] = set()
        asked: set[str] = set()
        lost: list[Span] = []
        for example in examples:
            asked.update(annotated_labels(example.reference) or ())
            by_place: dict[tuple[int, int], set[str]] = {}
            for span in example.reference.spans.get(self.key, []):
                by_place.setdefault((span.start, span.end), set()).add(span.label_)
            found.update(tuple(sorted(names)) for names in by_place.values())
            kept = zip(by_place, most_compatible(list(by_place)))
            lost += [example.reference[start:end] for (start, end), own in kept if not own]
        if lost:
            self._warn_of_crossing(lost)
        there = {label for names in found for label in names}
        for label in sorted(asked - there):
            self.tell(
                f"no {label}",
                f"texts are said to be annotated for {label!r}, and none has such a span in "
                f"doc.spans[{self.key!r}]. Look at the spelling in doc._.{ANNOTATED_LABELS}, "
                "unless the label is one of another component.",
            )
        singles = sorted(there | asked)
        return [[label] for label in singles] + [list(names) for names in sorted(found)]

    def _classes_of(self, names: set[str], asked: Sequence[str] | None = None) -> tuple[int, ...]:
        """Return the numbers of the classes that agree with the labels of a span.

        One is the class of exactly these labels. With ``asked``, classes with further labels also
        agree if the text was not annotated for the further ones. If no class has all the labels,
        the classes with the largest number of them agree.
        """
        sets = [set(known) for known in self.label_sets]
        free = set() if asked is None else set(self.labels) - {*asked}
        agreeing = tuple(place for place, own in enumerate(sets, 1) if names <= own <= names | free)
        if agreeing:
            return agreeing
        unknown = sorted(names - set(self.labels))
        if unknown:
            raise self._unknown(unknown[0])
        self.tell(
            "together",
            f"a span has the labels {', '.join(sorted(names))} at once, which were not seen "
            "together before. It counts as having some of them: call add_label_set before "
            "training.",
        )
        within = [(len(known), place) for place, known in enumerate(sets, 1) if known < names]
        most = max(size for size, _ in within)
        return tuple(place for size, place in within if size == most)

    def refuse_unknown(self, example: Example) -> None:
        """Raise LatentError if an annotated span has an unknown label."""
        for span in example.reference.spans.get(self.key, []):
            if span.label_ not in self.labels:
                raise self._unknown(span.label_)

    def _unknown(self, label: str) -> LatentError:
        source = f"{self.name}: doc.spans[{self.key!r}]"
        return LatentError(unknown_label(source, label, self.labels))

    def _warn_of_crossing(self, lost: Sequence[Span]) -> None:
        named = ", ".join(f"{span.text[:60]!r} of {span.doc.text[:60]!r}" for span in lost[:3])
        more = ", ..." if len(lost) > 3 else ""
        self.tell(
            "crossing",
            f"{len(lost)} annotated span(s) cross others: they overlap, and neither holds the "
            "other. No tree has both, so that as few as possible are left out, here and wherever "
            f"spans cross: {named}{more}. spaCy's 'spancat' can learn such spans.",
        )
