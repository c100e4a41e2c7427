"""What a latent component writes on a Doc, and how it is read: ``doc._.latent``.

``doc._.latent`` maps the name of each latent component to a :class:`LatentAnnotation`. The data are
plain Python and NumPy in ``doc.user_data``, one entry per span, under the keys that spaCy uses for
span attributes. They therefore survive ``Doc.to_bytes``, ``DocBin(store_user_data=True)``,
``nlp.pipe(n_process=2)`` and ``Doc.from_docs``, and ``Span.as_doc(copy_user_data=True)`` for the
structures that lie wholly inside the span. Without ``copy_user_data`` or ``store_user_data`` spaCy
drops them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from spacy.tokens import Doc

from spacy_latent.errors import LatentError

EXTENSION = "latent"
# On a doc without tokens: the span from character 0 to 0.
EMPTY = ("._.", EXTENSION, 0, 0)


@dataclass
class SpanStructure:
    """The structure of one span of tokens.

    start, end: token offsets in the doc.
    structure: name of the set that it was chosen from, such as "SpanningTree".
    kind: how ``decoded`` is to be read. "heads": for each token of the span its head, 0 for the
        root and i for the i-th token of the span, counted from 1. "parts": the indices of the
        chosen parts.
    decoded: the best structure, int32.
    parts: ``(P, axes)`` int32, the parts that have a probability above the threshold, or None.
    probabilities: ``(P,)`` float32, or None.
    alternatives: other structures, decoded, with their weights; heaviest first.
    """

    start: int
    end: int
    structure: str
    kind: str
    decoded: np.ndarray
    parts: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    alternatives: list[tuple[np.ndarray, float]] = field(default_factory=list)

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Arc:
    """An arc between tokens of a doc. head: token index, or None for the root."""

    head: int | None
    modifier: int
    probability: float


class LatentAnnotation:
    """The structures that one component put on a doc.

    spans: one :class:`SpanStructure` per span, in the order of the text.
    """

    def __init__(self, doc: Doc, component: str, spans: Sequence[SpanStructure]) -> None:
        self.doc = doc
        self.component = component
        self.spans = list(spans)

    def __repr__(self) -> str:
        return f"LatentAnnotation(component={self.component!r}, spans={len(self.spans)})"

    @property
    def heads(self) -> np.ndarray:
        """Index in the doc of each token's head, ``(len(doc),)`` int32. A root is its own head, as
        ``token.head`` has it; −1 where no structure covers the token."""
        heads = np.full(len(self.doc), -1, dtype="int32")
        for span in self.spans:
            heads[span.start : span.end] = _doc_heads(span, self._heads_of(span))
        return heads

    def arcs(self, threshold: float | None = None, alternative: int | None = None) -> list[Arc]:
        """Arcs of the best trees, or of all arcs at least ``threshold`` probable.

        threshold: needs probabilities (``annotate = "probabilities"``).
        alternative: take this one of the alternatives instead; spans without it have no arcs.
        """
        return [arc for span in self.spans for arc in self._span_arcs(span, threshold, alternative)]

    def to_displacy(
        self, threshold: float | None = None, alternative: int | None = None
    ) -> list[dict[str, Any]]:
        """One drawing per span, for ``displacy.render(..., style="dep", manual=True)``.

        The root is marked by the tag "root"; probabilities, where there are any, label the arcs.
        For the arguments see :meth:`arcs`.
        """
        drawings = []
        for span in self.spans:
            arcs = self._span_arcs(span, threshold, alternative)
            roots = {arc.modifier for arc in arcs if arc.head is None}
            # displaCy escapes the text of a word, and nothing else.
            words = [
                {"text": _visible(token.text), "tag": escape("root") if token.i in roots else ""}
                for token in self.doc[span.start : span.end]
            ]
            has_probabilities = span.probabilities is not None
            drawn = [
                {
                    "start": min(arc.head, arc.modifier) - span.start,
                    "end": max(arc.head, arc.modifier) - span.start,
                    "label": escape(f"{arc.probability:.2f}" if has_probabilities else ""),
                    "dir": "left" if arc.modifier < arc.head else "right",
                }
                for arc in arcs
                if arc.head is not None and arc.head != arc.modifier
            ]
            drawings.append({"words": words, "arcs": drawn})
        return drawings

    def _heads_of(self, span: SpanStructure, alternative: int | None = None) -> np.ndarray | None:
        if span.kind != "heads":
            raise LatentError(
                f"{span.structure} is not a dependency tree, so it has no heads. Its parts are in "
                "doc._.latent[...].spans[i].decoded."
            )
        if alternative is None:
            return span.decoded
        if alternative >= len(span.alternatives):
            return None
        return span.alternatives[alternative][0]

    def _span_arcs(
        self, span: SpanStructure, threshold: float | None, alternative: int | None
    ) -> list[Arc]:
        heads = self._heads_of(span, alternative)
        if heads is None:
            return []
        if threshold is not None and alternative is None:
            if span.parts is None or span.probabilities is None:
                raise LatentError(
                    f"A threshold needs probabilities, and {self.component!r} stored none. Set "
                    'annotate = "probabilities" in its config, or leave the threshold out.'
                )
            chosen = [
                (h, m, p)
                for (h, m), p in zip(span.parts.tolist(), span.probabilities.tolist())
                if p >= threshold
            ]
        else:
            known = {}
            if span.parts is not None and span.probabilities is not None:
                pairs = zip(span.parts.tolist(), span.probabilities.tolist())
                known = {(h, m): p for (h, m), p in pairs}
            otherwise = 1.0 if span.probabilities is None else 0.0
            chosen = [(h, m, known.get((h, m), otherwise)) for m, h in enumerate(heads.tolist(), 1)]
        shift = span.start - 1
        return [Arc(None if h == 0 else h + shift, m + shift, p) for h, m, p in chosen]


def _doc_heads(span: SpanStructure, heads: np.ndarray | None) -> np.ndarray:
    heads = np.asarray(heads)
    own = np.arange(span.start, span.end)
    return np.where(heads == 0, own, heads - 1 + span.start)


def _visible(text: str) -> str:
    """displaCy draws nothing for white space; show that there is a token."""
    return text if text.strip() else "␣"


class DocAnnotations(Mapping[str, LatentAnnotation]):
    """``doc._.latent``: annotations by the name of the component."""

    def __init__(self, doc: Doc) -> None:
        self.doc = doc
        self._spans = _read(doc)

    def __getitem__(self, component: str) -> LatentAnnotation:
        if component not in self._spans:
            there = ", ".join(repr(name) for name in sorted(self._spans)) or "nothing"
            raise KeyError(f"No latent structure of {component!r} on this doc; it has {there}.")
        return LatentAnnotation(self.doc, component, self._spans[component])

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: {value!r}' for name, value in self.items())}}}"


def write(doc: Doc, component: str, spans: Sequence[SpanStructure]) -> None:
    """Replace what ``component`` has written on ``doc``."""
    user_data: dict[Any, Any] = doc.user_data
    for key, value in list(user_data.items()):
        if _is_ours(key) and component in value:
            rest = {name: record for name, record in value.items() if name != component}
            if rest:
                user_data[key] = rest
            else:
                del user_data[key]
    if not len(doc):
        # So that a loop over docs finds an annotation on the empty ones, too.
        user_data[EMPTY] = {**user_data.get(EMPTY, {}), component: {}}
    for span in spans:
        first, last = doc[span.start], doc[span.end - 1]
        key = ("._.", EXTENSION, first.idx, last.idx + len(last))
        record: dict[str, Any] = {
            "structure": span.structure,
            "kind": span.kind,
            "decoded": np.array(span.decoded, dtype="int32"),
        }
        if span.parts is not None and span.probabilities is not None:
            record["parts"] = np.array(span.parts, dtype="int32")
            record["probabilities"] = np.array(span.probabilities, dtype="float32")
        if span.alternatives:
            record["alternatives"] = [
                [np.array(decoded, dtype="int32"), float(weight)]
                for decoded, weight in span.alternatives
            ]
        user_data[key] = {**user_data.get(key, {}), component: record}


def _is_ours(key: Any) -> bool:
    return (
        isinstance(key, tuple)
        and len(key) == 4
        and key[:2] == ("._.", EXTENSION)
        and key[2] is not None
        and key[3] is not None
    )


def _read(doc: Doc) -> dict[str, list[SpanStructure]]:
    user_data: dict[Any, Any] = doc.user_data
    keys = sorted(key for key in user_data if _is_ours(key))
    if not keys:
        return {}
    if not len(doc):
        return {component: [] for key in keys for component in user_data[key]}
    starts = {token.idx: token.i for token in doc}
    ends = {token.idx + len(token): token.i + 1 for token in doc}
    found: dict[str, list[SpanStructure]] = {}
    for key in keys:
        start, end = starts.get(key[2]), ends.get(key[3])
        if start is None or end is None or start >= end:
            continue
        for component, record in user_data[key].items():
            decoded = record["decoded"]
            # Tokens merged or split since then: the structure is of other tokens.
            if record["kind"] == "heads" and len(decoded) != end - start:
                continue
            found.setdefault(component, []).append(
                SpanStructure(
                    start,
                    end,
                    record["structure"],
                    record["kind"],
                    decoded,
                    record.get("parts"),
                    record.get("probabilities"),
                    [(heads, weight) for heads, weight in record.get("alternatives", [])],
                )
            )
    return found


def register_extension() -> None:
    """Make ``doc._.latent`` available. Importing this module does it."""
    Doc.set_extension(EXTENSION, getter=DocAnnotations, force=True)


register_extension()


def set_heads(doc: Doc, spans: Sequence[SpanStructure], component: str) -> None:
    """Write trees to ``token.head`` and ``token.dep_`` of a doc that has no parse.

    The dependency label is "latent", and "ROOT" at the root of a span. Further roots of a span are
    attached to the first with the label "latent-root", because spaCy would start a sentence at each
    root. Each span becomes a sentence.

    Raises LatentError if the doc has been parsed by something else.
    """
    if not spans:
        return
    if doc.has_annotation("DEP") and not {token.dep_ for token in doc} <= {"", *_OUR_LABELS}:
        raise LatentError(
            f"{component}: set_heads would overwrite the dependency parse that is on the doc. "
            "Set set_heads = false, or remove the parser from the pipeline."
        )
    heads, labels = list(range(len(doc))), [""] * len(doc)
    for span in spans:
        if span.kind != "heads":
            raise LatentError(f"{component}: set_heads needs trees, not {span.structure}.")
        first_root = None
        for modifier, head in enumerate(span.decoded.tolist()):
            if head:
                heads[span.start + modifier] = span.start + head - 1
                labels[span.start + modifier] = "latent"
            elif first_root is None:
                first_root = span.start + modifier
                labels[first_root] = "ROOT"
            else:
                heads[span.start + modifier] = first_root
                labels[span.start + modifier] = "latent-root"
    strings = [doc.vocab.strings.add(label) if label else 0 for label in labels]
    offsets = np.array(heads, dtype="int64") - np.arange(len(doc))
    values: Any = np.stack([offsets.astype("uint64"), np.array(strings, dtype="uint64")], 1)
    doc.from_array(["HEAD", "DEP"], values)


_OUR_LABELS = ("latent", "latent-root", "ROOT")
