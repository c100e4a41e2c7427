"""Structure to draw, with the queries that drawings of all kinds need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from spacy.tokens import Doc

from spacy_latent.analysis.task import gold_label
from spacy_latent.annotations import LatentAnnotation, SpanStructure, no_counters_message
from spacy_latent.annotations.heads import known_heads
from spacy_latent.annotations.span_parts import chosen_parts, labelled_parts
from spacy_latent.errors import LatentError
from spacy_latent.visualize.drawing_options import DrawingOptions
from spacy_latent.visualize.markup import shortened

TITLE_WORDS = 12
# More than this many arcs, lines or brackets per word would hide each other.
PARTS_PER_WORD = 3


def has_heads(gold: Doc) -> bool:
    """Return whether there are gold heads to draw: a gold doc may have only categories."""
    return bool((known_heads(gold)[0] >= 0).any())


@dataclass(frozen=True)
class StructureView:
    """Structure with its doc.

    Attributes:
        gold: Doc with the gold tree to draw below the words, with gold categories, or with both; or
            None.
    """

    doc: Doc
    component: str
    span: SpanStructure
    options: DrawingOptions
    gold: Doc | None

    @property
    def category(self) -> str:
        """Most probable category of the doc, or "".

        It is the category that a rationale or an alignment belongs to.
        """
        if not self.doc.cats:
            return ""
        best = max(self.doc.cats, key=lambda name: self.doc.cats[name])
        value = self.doc.cats[best]
        # A regression predicts no probability.
        score = f"{value:.0%}".replace("%", "\u202f%") if 0 <= value <= 1 else f"{value:.4g}"
        return f"predicted {best} ({score})"

    @property
    def gold_category(self) -> str:
        """Gold label of the doc, or "" without a gold label or without a prediction."""
        if self.gold is None or not self.gold.cats or not self.doc.cats:
            return ""
        return f"gold label {gold_label(self.gold.cats)}"

    @property
    def annotation(self) -> LatentAnnotation:
        """Structure as an annotation of its doc, for functions of the kind."""
        return LatentAnnotation(self.doc, self.component, [self.span])

    @property
    def words(self) -> list[str]:
        """Texts of the tokens of the span."""
        return [token.text for token in self.doc[self.span.start : self.span.end]]

    @property
    def spaced_words(self) -> list[tuple[str, str]]:
        """Texts of the tokens of the span, each with the white space after it."""
        tokens = self.doc[self.span.start : self.span.end]
        return [(token.text, token.whitespace_) for token in tokens]

    @property
    def known(self) -> bool:
        """True if the probabilities of parts are stored."""
        return self.span.probabilities is not None

    @property
    def counters(self) -> np.ndarray | None:
        """Counters to draw, or None if the options leave them out.

        Raises:
            LatentError: If no counters are stored.
        """
        if not self.options.counters:
            return None
        if self.span.counters is None:
            raise LatentError(
                f"{no_counters_message(self.component)} Leave the option counters out, or name "
                "another component."
            )
        return self.span.counters

    @property
    def title(self) -> str:
        """Title for screen readers: structure, component, and the first words."""
        words = [shortened(word) for word in self.words]
        more = " …" if len(words) > TITLE_WORDS else ""
        return f"{self.span.structure} of {self.component}: {' '.join(words[:TITLE_WORDS])}{more}"

    @property
    def choices(self) -> list[tuple[int | None, float | None]]:
        """Alternatives to draw, with their weights, or only the best structure."""
        asked = self.span.alternatives[: self.options.alternatives]
        return [(i, weight) for i, (_, weight) in enumerate(asked)] or [(None, None)]

    def parts(
        self, alternative: int | None, most: int | None = None
    ) -> list[tuple[tuple[int, ...], float, bool]]:
        """Return the parts of the structure, or with a threshold all parts that reach it.

        Args:
            alternative: Number of an alternative; None for the best structure.
            most: Greatest number of parts. Parts of the structure come first, then the most
                probable ones.

        Returns:
            For each part its indices within the span, its probability, and whether it belongs to
            the structure.
        """
        chosen = self.structure(alternative)
        if self.options.threshold is None or alternative is not None:
            return [(part, p, True) for part, p in chosen]
        own = {part for part, _ in chosen}
        found = [(part, p, part in own) for part, p in self.probable(self.options.threshold)]
        found.sort(key=lambda one: (not one[2], -one[1]))
        return found[:most]

    def arcs(
        self, alternative: int | None, most: int
    ) -> list[tuple[tuple[int, int], str, float, bool]]:
        """Return head and modifier of each arc, its label, and the rest as in :meth:`parts`.

        The label is "" if arcs have no labels. The probability is the probability of the arc with
        its label. With a threshold, each arc occurs once, with its most probable label.
        """
        if self.span.arc_labels is None:
            found = self.parts(alternative, most)
            return [((h, m), "", p, chosen) for (h, m), p, chosen in found]
        own = labelled_parts(self.span, None, alternative, self.component)
        tree = {(h, m) for (h, m, _), _ in own}
        if self.options.threshold is not None and alternative is None:
            own = labelled_parts(self.span, self.options.threshold, None, self.component)
        rows = [
            ((h, m), self.arc_name(h, label), 1.0 if p is None else p, (h, m) in tree)
            for (h, m, label), p in own
        ]
        rows.sort(key=lambda row: (not row[3], -row[2]))
        once: dict[tuple[int, int], tuple[tuple[int, int], str, float, bool]] = {}
        for row in rows:
            once.setdefault(row[0], row)
        return list(once.values())[:most]

    def arc_name(self, head: int, label: int) -> str:
        """Return the name of the label, or "" for the root's arc.

        The root's arc has only one label, and drawings write "root" anyway.
        """
        return self.tag_name(label) if head else ""

    def structure(self, alternative: int | None) -> list[tuple[tuple[int, ...], float]]:
        """Return the parts of the structure, whatever the threshold.

        The probabilities are 1 if none are stored.
        """
        found = chosen_parts(self.span, None, alternative, self.component)
        return [(part, 1.0 if p is None else p) for part, p in found]

    def probable(self, threshold: float) -> list[tuple[tuple[int, ...], float]]:
        """Return all parts with at least this probability.

        Raises:
            LatentError: If no probabilities are stored.
        """
        found = chosen_parts(self.span, threshold, None, self.component)
        return [(part, p) for part, p in found if p is not None]

    def first(self, alternative: int | None) -> set[tuple[int, ...]] | None:
        """Return the parts of the first alternative, if another alternative is drawn."""
        if not alternative:
            return None
        return {part for part, _ in self.structure(0)}

    def label(self, probability: float) -> str:
        """Write a probability, "" if none are stored or shown."""
        return f"{probability:.2f}" if self.known and self.options.probabilities else ""

    def tag_name(self, number: int) -> str:
        """Return the label of a number, or the number if it has no label."""
        labels = self.span.labels
        return labels[number] if labels and 0 <= number < len(labels) else str(number)
