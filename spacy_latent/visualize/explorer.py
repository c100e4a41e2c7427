"""Predictions of a pipeline for one text, and predictions under changed structures.

These are the data of the page that ``spacy latent serve`` shows, and of the widget in a notebook.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TypedDict

from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import get_current_ops, require_gpu, set_active_gpu, set_current_ops
from thinc.util import get_torch_default_device

from spacy_latent.annotations import SpanStructure, Stored
from spacy_latent.confidence import confidences
from spacy_latent.corpora.text_pairs import make_pair_doc
from spacy_latent.errors import LatentError, number_of
from spacy_latent.evaluation.counterfactuals import counterfactual, editable_models, uneditable
from spacy_latent.interventions import Intervention
from spacy_latent.kinds import Part, find_kind
from spacy_latent.pipeline.inspection import inspect_pipe
from spacy_latent.visualize.drawing_options import DrawingOptions, settings_of
from spacy_latent.visualize.markup import element, shortened, text, visible
from spacy_latent.visualize.page import figure_markup
from spacy_latent.visualize.structure_view import PARTS_PER_WORD, StructureView
from spacy_latent.visualize.styles import draw_figure

# Less probable parts are not listed. Users can still forbid or force them.
LEAST = 0.01


@dataclass(frozen=True)
class Limits:
    """Limits of a request.

    Attributes:
        characters, tokens: Greatest size of a text, or of both texts of a pair together.
        edits: Greatest number of parts that interventions forbid or force at once.
        seconds: Time until a request is abandoned, including the time that it waits for others.
    """

    characters: int = 5000
    tokens: int = 300
    edits: int = 100
    seconds: float = 30.0


class TooMuch(LatentError):
    """Error for a request that exceeds the limits."""


class Busy(LatentError):
    """Error for a request that waited too long for another request."""


@dataclass(frozen=True)
class Prediction:
    """Predictions of a pipeline for a text, on a doc with the structures of all latent layers."""

    doc: Doc
    pipeline: Explorer

    @property
    def cats(self) -> list[tuple[str, float]]:
        """Categories with their scores, the most probable first."""
        return sorted(self.doc.cats.items(), key=lambda cat: (-cat[1], cat[0]))

    @property
    def entities(self) -> list[tuple[str, str, float | None]]:
        """Words, label and confidence of each entity; None if no component gives a confidence."""
        known = confidences(self.doc)
        return [
            (ent.text, ent.label_, known.get((ent.start, ent.end, ent.label_)))
            for ent in self.doc.ents
        ]

    def structures(self) -> list[PredictedStructure]:
        """Return the structures of all layers, one for each span."""
        return [
            PredictedStructure(self, key, span, self.pipeline.uneditable.get(key, ""))
            for key, annotation in self.doc._.latent.items()
            for span in annotation.spans
        ]

    def to_json(self) -> dict[str, object]:
        """Return the data of the prediction for the page, as plain values."""
        return {
            "tokens": len(self.doc),
            "cats": self.cats,
            "entities": self.entities,
            "structures": [one.to_json() for one in self.structures()],
        }


class Axis(TypedDict):
    """Possible values of one number of a part, in words, beginning with the value ``first``."""

    name: str
    first: int
    options: list[str]


@dataclass(frozen=True)
class PredictedStructure:
    """Structure of a text, with its parts as users see them.

    Attributes:
        key: Name that the structure is stored under.
        why_not: Reason if the structure cannot be edited, or "".
    """

    seen: Prediction
    key: str
    span: SpanStructure
    why_not: str = ""

    @property
    def place(self) -> tuple[str, int]:
        """Key of the structure, which is the same for the same words under any intervention."""
        return self.key, self.span.start

    def view(self, alternatives: int = 0) -> StructureView:
        """Return the structure to draw, with marks that scripts of the page find."""
        options = DrawingOptions(marked=True, alternatives=alternatives).of(
            settings_of(self.seen.doc)
        )
        return StructureView(self.seen.doc, self.key, self.span, options, None)

    def drawing(self, alternatives: int = 0) -> str:
        """Return HTML of the drawing, or of the alternatives; "" if there are no alternatives."""
        view = self.view(alternatives)
        if alternatives and len(self.span.alternatives) < 2:
            return ""
        try:
            return figure_markup(draw_figure(view, None))
        except LatentError:
            # No style draws structures of this kind.
            lines = find_kind(self.span.kind).text(
                view.annotation, self.span, 0 if alternatives else None
            )
            return element("pre", {}, "\n".join(map(text, lines)))

    def parts(self) -> list[PredictedPart]:
        """Return the parts of the best structure in order, then the other probable parts.

        The other parts are sorted by probability, the most probable first.
        """
        view = self.view()
        chosen, others = view.structure(None), []
        if view.known:
            own = {part for part, _ in chosen}
            others = [(part, p) for part, p in view.probable(LEAST) if part not in own]
            others.sort(key=lambda one: -one[1])
        everything = [*chosen, *others[: PARTS_PER_WORD * len(self.span)]]
        descriptions = [self._description(view, part) for part, _ in everything]
        twice = {text for text, count in Counter(descriptions).items() if count > 1}
        return [
            PredictedPart(
                part,
                f"{text} ({self._numbered(part)})" if text in twice else text,
                p if view.known else None,
                number < len(chosen),
            )
            for number, (text, (part, p)) in enumerate(zip(descriptions, everything))
        ]

    def _description(self, view: StructureView, part: Part) -> str:
        return visible(find_kind(self.span.kind).part_text(view.annotation, self.span, part))

    def _numbered(self, part: Part) -> str:
        """Return the numbers of the words of a part, from 1, to distinguish equal words."""
        numbers = sorted(int(word.lstrip("b")) + 1 for word in self.words_of(part))
        if not numbers:
            return str(list(part))
        return f"word{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"

    def axes(self) -> list[Axis]:
        """Return the possible values of each number of a part."""
        span, doc = self.span, self.seen.doc
        start, end = span.other_start or 0, span.other_end or 0
        words, others = (
            [f"{i} {shortened(token.text)}" for i, token in enumerate(doc[a:b], 1)]
            for a, b in ((span.start, span.end), (start, end))
        )
        known: dict[str, tuple[int, list[str]]] = {
            "nodes": (0, ["(root)", *words]),
            "words": (0, words),
            "from one": (1, words),
            "ends": (1, words),
            "others": (0, others),
            "labels": (0, [shortened(label) for label in span.labels or self._numbers()]),
        }
        return [
            {"name": name, "first": known[which][0], "options": known[which][1]}
            for name, which in find_kind(span.kind).axes
        ]

    def _numbers(self) -> Sequence[str]:
        """Return the label numbers that occur in the structure, for labels without names."""
        rows = find_kind(self.span.kind).parts(self.span.decoded)
        if self.span.parts is not None:
            rows = [*rows, *map(tuple, self.span.parts.tolist())]
        return [str(i) for i in range(1 + max((row[-1] for row in rows), default=-1))]

    def words_of(self, part: Part) -> list[str]:
        """Return the words of a part, as drawings mark them.

        See :func:`spacy_latent.visualize.markup.of_words`.
        """
        axes = [which for _, which in find_kind(self.span.kind).axes]
        if axes[:2] in (["words", "words"], ["words", "ends"]):
            end = part[1] + (axes[1] == "words")
            return [str(i) for i in range(part[0], end)]
        less = {"nodes": 1, "from one": 1, "words": 0}
        words = [
            str(number - less[which])
            for number, which in zip(part, axes)
            if which in less and number >= less[which]
        ]
        others = [f"b{number}" for number, which in zip(part, axes) if which == "others"]
        return words + others

    def to_json(self) -> dict[str, object]:
        """Return drawings, parts and possible edits, as plain values."""
        return {
            "key": self.key,
            "start": self.span.start,
            "name": self.span.structure,
            "words": [shortened(word) for word in self.view().words],
            "drawing": self.drawing(),
            "alternatives": self.drawing(self.seen.pipeline.alternatives),
            "parts": [{**one.to_json(), "words": self.words_of(one.part)} for one in self.parts()],
            "axes": [] if self.why_not else self.axes(),
            "why_not": self.why_not,
        }


@dataclass(frozen=True)
class PredictedPart:
    """Part of a structure.

    Attributes:
        part: The part, as in ``SpanStructure.parts``.
        chosen: True if the part belongs to the best structure.
    """

    part: Part
    description: str
    probability: float | None
    chosen: bool

    def to_json(self) -> dict[str, object]:
        """Return the part with its description in words, as plain values."""
        return {
            "part": list(self.part),
            "told": self.description,
            "probability": self.probability,
            "chosen": self.chosen,
        }


class Explorer:
    """Pipeline that answers requests of one thread at a time.

    Args:
        pairs: True if the pipeline reads pairs of texts.
        alternatives: Number of alternatives to draw for each structure.
    """

    def __init__(
        self,
        nlp: Language,
        name: str = "",
        *,
        pairs: bool = False,
        alternatives: int = 3,
        limits: Limits | None = None,
    ) -> None:
        self.nlp = nlp
        self.name = name
        self.pairs = pairs
        self.alternatives = alternatives
        self.limits = limits or Limits()
        self.uneditable = uneditable(nlp)
        self.editable = [key for key in editable_models(nlp) if key not in self.uneditable]
        # The device of the thread that has loaded the pipeline.
        self.device = get_torch_default_device()
        # One request at a time, because reading structures shares one embedding.
        self._turn = Lock()

    def predict(
        self, texts: Sequence[str], asked: Mapping[str, Intervention] | None = None
    ) -> Prediction:
        """Return the predictions of the pipeline for a text or a pair.

        Args:
            asked: Interventions, as in
                :func:`spacy_latent.evaluation.counterfactuals.counterfactual`. Without them the
                result is the result of ``nlp``.

        Raises:
            TooMuch: If the request exceeds the limits.
            Busy: If the pipeline is busy with another request.
            LatentError: If no structure can satisfy the interventions.
            NothingLeft: If the interventions leave no structure.
        """
        self._check(texts, asked or {})
        if not self._turn.acquire(timeout=self.limits.seconds):
            raise Busy("The pipeline is busy with another text. Try again.")
        try:
            doc = make_pair_doc(self.nlp, *texts) if self.pairs else self.nlp.make_doc(texts[0])
            if len(doc) > self.limits.tokens:
                raise TooMuch(
                    f"The text has {number_of(len(doc), 'token')}; expected at most "
                    f"{self.limits.tokens}. Give a shorter text."
                )
            with self._on_device(), counterfactual(self.nlp, asked or {}):
                stream = inspect_pipe(
                    self.nlp,
                    [doc],
                    batch_size=1,
                    stored=Stored("probabilities", LEAST, self.alternatives),
                )
                found = [doc for doc, _ in stream]
        finally:
            self._turn.release()
        if not found:
            raise LatentError(
                "An error handler of the pipeline dropped the text, so it has no result. Give "
                "another text."
            )
        return Prediction(found[0], self)

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Activate the device and the backend of the pipeline in the current thread.

        The active GPU and backend belong to a thread. A new thread starts with the first GPU and
        the CPU backend, even if the thread that loaded the pipeline uses others.
        """
        if self.device.type != "cuda":
            yield
            return
        ops, device = get_current_ops(), get_torch_default_device()
        require_gpu(self.device.index)
        try:
            yield
        finally:
            if device.type == "cuda":
                set_active_gpu(device.index)
            set_current_ops(ops)

    def _check(self, texts: Sequence[str], asked: Mapping[str, Intervention]) -> None:
        if len(texts) != 1 + self.pairs:
            raise LatentError(
                f"The pipeline reads {'two texts' if self.pairs else 'one text'}, and "
                f"{len(texts)} were given."
            )
        size = sum(map(len, texts))
        if size > self.limits.characters:
            raise TooMuch(
                f"The text has {number_of(size, 'character')}; expected at most "
                f"{self.limits.characters}. Give a shorter text."
            )
        edits = sum(len(one.forbidden) + len(one.forced) for one in asked.values())
        if edits > self.limits.edits:
            raise TooMuch(
                f"{edits} parts are edited; expected at most {self.limits.edits}. Take some "
                "edits back."
            )
