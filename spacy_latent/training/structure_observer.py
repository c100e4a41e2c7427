"""Observation of structures during a training: statistics, changes, and drawn docs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from confection import ConfigValidationError
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import resolve_dot_names

from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy_latent.annotations import SpanStructure
    from spacy_latent.models.inspection import Uncertainty

Statistics = dict[str, dict[str, float]]

CHANGED = "changed"
# Number of docs that are drawn if no sentences are given.
DRAWN = 3


class StructureObserver:
    """Observer of the structures of the same docs at each evaluation, with statistics and changes.

    Other arguments are the same as in
    :func:`spacy_latent.training.structure_logger.build_structure_logger_v1`.

    Args:
        nlp: initialised pipeline with its whole config.
        sentences: texts whose structures are kept; the first three docs if there are none; None for
            no texts.
    """

    def __init__(
        self,
        nlp: Language,
        corpus: str | None = None,
        limit: int = 100,
        components: Sequence[str] | None = None,
        sentences: Sequence[str] | None = None,
    ) -> None:
        from spacy_latent.pipeline.inspection import choose_components

        self.nlp = nlp
        self.components = choose_components(nlp, None)
        if components is not None:
            self.components = [choose_components(nlp, name)[0] for name in components]
        self.docs = _corpus_docs(nlp, corpus, limit)
        self.drawn: list[Doc] = []
        if sentences is not None:
            made = [nlp.make_doc(text) for text in sentences] or self.docs
            # Some of spaCy's layers fail on a doc without tokens.
            self.drawn = [doc for doc in made if len(doc)][: len(sentences) or DRAWN]
        self.steps: list[int] = []
        # Drawn docs with their structures, and all statistics, at each evaluation.
        self.history: list[list[Doc]] = []
        self.statistics: list[Statistics] = []
        self._before: dict[str, list[list[SpanStructure]]] = {}

    def columns(self, names: Sequence[str] | None) -> list[tuple[str, str]]:
        """Return (layer, statistic) of each console column, and refuse unknown statistics."""
        from spacy_latent.analysis.structures import MEANINGS
        from spacy_latent.kinds import Kind, find_kind
        from spacy_latent.pipeline.inspection import latent_components

        latent = latent_components(self.nlp)
        kinds: dict[str, Kind] = {}
        for component in self.components:
            own = latent[component].kinds
            kinds |= {layer: find_kind(own[layer]) for layer in latent[component].layers}
        known = {*MEANINGS, CHANGED}.union(*(kind.meanings for kind in kinds.values()))
        if names is not None and not known.issuperset(names):
            unknown = ", ".join(repr(name) for name in names if name not in known)
            raise LatentError(
                f"StructureLogger: columns has {unknown}; expected some of "
                f"{', '.join(sorted(known))}."
            )
        return [
            (layer, name)
            for layer, kind in kinds.items()
            for name in ((*kind.columns, CHANGED) if names is None else names)
        ]

    def evaluate(self, step: int) -> Statistics:
        """Return the mean of each statistic, by layer."""
        from spacy_latent.annotations import BEST
        from spacy_latent.pipeline.inspection import inspect_pipe

        docs = [doc.copy() for doc in self.docs]
        rows: dict[str, dict[str, list[float]]] = {}
        now: dict[str, list[list[SpanStructure]]] = {}
        stream = inspect_pipe(
            self.nlp, docs, components=self.components, stored=BEST, uncertainty=True
        )
        for doc, known in stream:
            for layer in known:
                spans = doc._.latent[layer].spans if layer in doc._.latent else []
                now.setdefault(layer, []).append(spans)
                for row in _rows(spans, known[layer]):
                    values = rows.setdefault(layer, defaultdict(list))
                    for name, value in row.items():
                        if math.isfinite(value):
                            values[name].append(value)
        found = {
            layer: {name: sum(each) / len(each) for name, each in values.items()}
            for layer, values in rows.items()
        }
        for layer, spans_of_docs in now.items():
            share = changed_share(self._before.get(layer), spans_of_docs)
            if share is not None:
                found.setdefault(layer, {})[CHANGED] = share
        self._before = now
        self.steps.append(step)
        self.statistics.append(found)
        if self.drawn:
            copies = [doc.copy() for doc in self.drawn]
            kept = inspect_pipe(self.nlp, copies, components=self.components)
            self.history.append([doc for doc, _ in kept])
        return found


def _corpus_docs(nlp: Language, corpus: str | None, limit: int) -> list[Doc]:
    config = nlp.config.interpolate()
    name = corpus or config["training"]["dev_corpus"]
    try:
        (read,) = resolve_dot_names(config, [name])
    except ConfigValidationError as error:
        raise LatentError(
            f"StructureLogger: the config has no corpus {name!r} that can be read. Give the dot "
            'name of a block with a reader, such as corpus = "corpora.dev".'
        ) from error
    docs = [example.predicted for example in islice(read(nlp), limit)]
    if not docs:
        raise LatentError(
            f"StructureLogger: the corpus {name!r} has no docs. Give a corpus with docs."
        )
    return docs


def _rows(
    spans: Sequence[SpanStructure], known: Sequence[Uncertainty]
) -> Iterable[dict[str, float]]:
    from spacy_latent.analysis.structures import structure_statistics

    for span, sure in zip(spans, known):
        row = structure_statistics(span)
        if len(span):
            row["entropy"] = sure.nats / len(span)
        if sure.support:
            row["support"] = float(sure.support)
        yield row


def changed_share(
    before: Sequence[Sequence[SpanStructure]] | None, now: Sequence[Sequence[SpanStructure]]
) -> float | None:
    """Return 1 − the share of parts that both have, or None if nothing can be compared."""
    from spacy_latent.analysis.agreement import common_parts, spans_in_common

    shared = parts = 0.0
    for ours, theirs in zip(before or (), now):
        # If the sentences have changed, their parts cannot be compared.
        for a, b in spans_in_common(ours, theirs):
            both, either = common_parts(a.kind, a.decoded, b.decoded)
            shared, parts = shared + both, parts + either
    return 1.0 - shared / parts if parts else None
