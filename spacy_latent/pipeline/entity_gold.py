"""Tags of a training text that agree with its annotation, and spans known not to be entities."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from spacy.attrs import ENT_IOB
from spacy.tokens import Span
from spacy.training import Example, remove_bilu_prefix

from spacy_latent.annotations import aligned_spans, rejected_key
from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.pipeline.entity_evidence import EvidenceReader, unknown_label
from spacy_latent.pipeline.evidence_survey import MISSING
from spacy_latent.pipeline.open_tags import (
    BOUNDING,
    CROSSING,
    biluo,
    blocked_tokens,
    prefixes_of,
    starts_and_spaces,
)

if TYPE_CHECKING:
    from torch import Tensor

    from spacy_latent.models.tag_evidence import Run

# Rejected spans of more tokens are ignored.
LONGEST = 100


@dataclass(frozen=True)
class EntityGold:
    """Reader of the gold entities of examples, for a component of these labels and tags.

    Attributes:
        name: name of the component, for messages.
        tags: its tags, K.
        incorrect_spans_key: group of spans that are known not to be entities, or None.
    """

    name: str
    labels: Sequence[str]
    tags: Sequence[str]
    incorrect_spans_key: str | None

    def allowed(
        self, example: Example, reader: EvidenceReader, refuse_unknown: bool = True
    ) -> Tensor:
        """Return the tags that agree with the reference.

        If the annotation of a token is missing or misaligned, all tags agree. If the text was not
        annotated for a label, all tags of this label agree. An entity begins or ends with white
        space only if it is annotated so.

        Args:
            refuse_unknown: whether an unknown label is an error. If not, no tag agrees with it.

        Returns:
            A mask ``(n, K)`` bool.

        Raises:
            LatentError: if a label is unknown and ``refuse_unknown`` is set.
        """
        import torch

        place = {tag: i for i, tag in enumerate(self.tags)}
        allowed = torch.zeros(len(example.predicted), len(self.tags), dtype=torch.bool)
        spaces = starts_and_spaces(example.predicted)[1]
        for i, tag in enumerate(_with_unknown_spaces(example, spaces)):
            if tag is None or tag == "-":
                allowed[i] = True
            elif tag in place:
                allowed[i, place[tag]] = True
            elif refuse_unknown:
                source = f"{self.name}: an entity of {example.reference.text[:60]!r}"
                raise LatentError(unknown_label(source, remove_bilu_prefix(tag), self.labels))
        reader.open_labels(allowed.numpy(), example)
        if spaces.any():
            # Predictions never begin or end with white space, so such entities must not satisfy a
            # flag. A token of an annotated entity cannot be outside, so it keeps its tag.
            unknown = np.flatnonzero(spaces & allowed[:, 0].numpy())
            bounding = np.flatnonzero(np.isin(prefixes_of(self.tags), BOUNDING))
            allowed.numpy()[np.ix_(unknown, bounding)] = False
        if blocked := blocked_tokens(example.reference):
            # y2x is computed at each access.
            to_own = example.alignment.y2x
        for span in blocked:
            for i in to_own[span.start].tolist():
                allowed[i] = False
                allowed[i, 0] = True
        return allowed

    def unpredictable(
        self, example: Example, allowed: Tensor, known: Container[str]
    ) -> Iterator[tuple[str, str]]:
        """Yield each reason why gold entities can never be predicted, with a warning.

        See :func:`spacy_latent.pipeline.open_tags.open_tags` for the reasons.

        Args:
            allowed: mask of :meth:`allowed`.
            known: reasons to leave out.
        """
        doc = example.predicted
        starts, spaces = starts_and_spaces(doc)
        if not (starts.any() or spaces.any()):
            return
        closed = ~allowed.numpy()
        for what, where, prefixes, advice in (
            (
                "crosses the start of a sentence",
                starts,
                CROSSING,
                "what sets the sentences, which may have put one inside of the entity",
            ),
            ("begins or ends with white space", spaces, BOUNDING, "the annotation"),
        ):
            others = ~np.isin(prefixes_of(self.tags), prefixes)
            found = np.flatnonzero(where & closed[:, others].all(1))
            if len(found) and what not in known:
                token = int(found[0])
                gold = aligned_spans(example, example.reference.ents)
                of = next((span.text for span in gold if span.start <= token < span.end), "")
                yield (
                    what,
                    f"the annotated entity {of[:60]!r} of {doc.text[:60]!r} {what}, as none that "
                    f"is predicted does. It is learned and cannot be found. Look at {advice}.",
                )

    def incorrect_runs(self, example: Example) -> list[Run]:
        """Return the tags of spans that are known to be wrong.

        Spans with an unknown label are left out, as in ``ner``, and so are spans of more than
        :data:`LONGEST` tokens.

        Raises:
            LatentError: if such a span is an entity of the reference.
        """
        from spacy_latent.models.tag_evidence import Run

        key = self.incorrect_spans_key
        reference = example.reference
        if key is None or key not in reference.spans:
            return []
        spans = list(reference.spans[key])
        gold = {(span.start_char, span.end_char, span.label_) for span in reference.ents}
        for span in spans:
            if (span.start_char, span.end_char, span.label_) in gold:
                raise LatentError(
                    f"{self.name}: {span.text!r} is an entity {span.label_!r} of a reference doc, "
                    f"and also in doc.spans[{key!r}], its incorrect spans; expected at most one. "
                    "Remove it from one of them."
                )
        place = {tag: i for i, tag in enumerate(self.tags)}
        return sorted(
            {
                Run(span.start, tuple(place[tag] for tag in biluo(len(span), span.label_)))
                for span in self._known(example, spans)
                if len(span) <= LONGEST
            },
            key=lambda run: (run.start, run.tags),
        )

    def _known(self, example: Example, spans: Sequence[Span]) -> list[Span]:
        """Return spans with known labels, on the predicted doc."""
        known = [span for span in spans if span.label_ in self.labels]
        return aligned_spans(example, known, allow_overlap=True)

    def long_rejects(self, example: Example) -> str:
        """Describe a rejected span that is too long to be read; "" if there is none."""
        key = self.incorrect_spans_key
        if key is None or key not in example.reference.spans:
            return ""
        # Alignment is slow, and hardly ever makes a span more than twice as long.
        long = [span for span in example.reference.spans[key] if 2 * len(span) > LONGEST]
        longest = max(map(len, self._known(example, long)), default=0)
        if longest <= LONGEST:
            return ""
        return (
            f"a rejected span in doc.spans[{key!r}] has {longest:,} tokens. Rejected spans of more "
            f"than {LONGEST} tokens are left out, since the time for them grows with their length."
        )

    def unread_rejects(self, example: Example) -> str:
        """Describe the rejected spans of the reference that are not read; "" if there are none."""
        key = rejected_key(example.reference)
        if key is None or key == self.incorrect_spans_key:
            return ""
        return (
            f"texts have rejected spans in doc.spans[{key!r}], as the reader of the corpus was "
            f"told, and incorrect_spans_key of the component is {self.incorrect_spans_key!r}: "
            "nothing is learned of them. Set it to that name, in the component's block of the "
            "config; of a component with a source, in the config of that pipeline."
        )

    def warn_without_incorrect_spans(self, examples: Iterable[Example]) -> None:
        """Warn if no training text has ``incorrect_spans_key``, which may be misspelt."""
        key = self.incorrect_spans_key
        if key is None:
            return
        groups: set[str] = set()
        annotated = False
        for example in examples:
            groups.update(example.reference.spans)
            annotated = annotated or bool(example.reference.ents)
            if key in groups:
                return
        # spaCy's own placeholder examples have no groups and no entities.
        if groups or annotated:
            there = f"The groups are {', '.join(sorted(groups))}. " if groups else ""
            warnings.warn(
                f"{self.name}: incorrect_spans_key is {key!r}, and no training text has such a "
                f"group in doc.spans, so nothing is learned from incorrect spans. {there}Check the "
                "name, and whether the spans were saved with the texts.",
                LatentWarning,
                stacklevel=3,
            )


def _with_unknown_spaces(example: Example, spaces: np.ndarray) -> list[str | None]:
    """Return the BILUO tags of the reference at the predicted tokens, None or "-" if unknown.

    spaCy takes white space without annotation for outside. If the words around it are not annotated
    either, it may be inside of an entity, as a line break in a name.

    Args:
        spaces: mask of the white space of the predicted doc, ``(n,)`` bool.
    """
    tags: list[str | None] = [*example.get_aligned_ner()]
    missing = example.reference.to_array(ENT_IOB) == MISSING
    if spaces.any() and missing.any():
        # x2y is computed at each access.
        to_gold = example.alignment.x2y
        for i in np.flatnonzero(spaces).tolist():
            if tags[i] == "O" and missing[to_gold[i]].all():
                tags[i] = None
    return tags
