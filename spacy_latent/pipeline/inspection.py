"""Docs through a pipeline, with the structures of every latent layer and how sure it is of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import Model

from spacy_latent.annotations import write
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy_latent.models.inspection import Uncertainty

Uncertainties = dict[str, list["Uncertainty"]]


def latent_components(nlp: Language) -> dict[str, list[Model | None]]:
    """The latent models in each component that has any, in the order of the pipeline."""
    from spacy_latent.models.inspection import latent_models

    found: dict[str, list[Model | None]] = {}
    for name, pipe in nlp.pipeline:
        model = getattr(pipe, "model", None)
        nodes = latent_models(model) if isinstance(model, Model) else []
        if nodes:
            # The component's name is that of its own structures, where it has such.
            found[name] = [*([None] if _writes_own(pipe) else []), *nodes]
    return found


def _writes_own(pipe: Any) -> bool:
    return bool(getattr(pipe, "writes_own_structures", False))


def annotating_components(nlp: Language) -> list[str]:
    """Components that write structures of their own, which are of no latent layer, such as
    ``crf_ner``."""
    return [name for name, pipe in nlp.pipeline if _writes_own(pipe)]


def choose_components(nlp: Language, component: str | None, annotating: bool = False) -> list[str]:
    """That component alone, or all that have a latent layer; with ``annotating`` also those that
    write structures without one. Raises LatentError for none."""
    known = {*latent_components(nlp), *(annotating_components(nlp) if annotating else ())}
    latent = [name for name in nlp.pipe_names if name in known]
    there = ", ".join(nlp.pipe_names) or "none"
    if component is not None and component not in latent:
        raise LatentError(
            f"The pipeline has no latent component {component!r}. Its components are {there}; "
            f"latent are: {', '.join(latent) or 'none'}."
        )
    if not latent:
        raise LatentError(
            f"The pipeline has no latent structure. Its components are {there}. Train one with a "
            "latent_encoder, a latent_textcat, a crf_ner, or spacy-latent.LatentTok2Vec.v1 inside "
            "a component."
        )
    return [component] if component else latent


def inspect_pipe(
    nlp: Language,
    docs: Iterable[Doc],
    *,
    components: Sequence[str] | None = None,
    batch_size: int | None = None,
    annotate: str = "probabilities",
    threshold: float = 0.01,
    alternatives: int = 0,
    uncertainty: bool = False,
) -> Iterator[tuple[Doc, Uncertainties]]:
    """As ``nlp.pipe`` over docs that were made but not processed, and ``doc._.latent`` holds the
    structures of every latent layer, whatever the config stores: those of a component's further
    layers under its name with ``#2`` and so on.

    Each layer is read just before its component runs, so that it sees the sentences that the
    component sees. The embedder therefore runs twice.

    components: names, of all latent ones if None.
    annotate, threshold, alternatives: as of ``latent_encoder``.
    uncertainty: whether to give it for each span of each layer; the dictionaries are empty if not.
    """
    latent, annotating = latent_components(nlp), annotating_components(nlp)
    if components is not None:
        latent = {name: nodes for name, nodes in latent.items() if name in components}
        annotating = [name for name in annotating if name in components]
    stored = {"annotate": annotate, "threshold": threshold, "alternatives": alternatives}
    stream = iter(docs)
    while batch := list(islice(stream, batch_size or nlp.batch_size)):
        sure: list[Uncertainties] = [{} for _ in batch]
        for name, pipe in nlp.pipeline:
            read = [
                (key, *_read(node, batch, annotate, threshold, alternatives, uncertainty))
                for key, node in layer_names(name, latent.get(name, ()))
            ]
            with _told(pipe, stored if name in annotating else {}):
                batch = list(_apply(pipe, batch))
            for key, structures, nats in read:
                for doc, known, spans, values in zip(batch, sure, structures, nats, strict=True):
                    write(doc, key, spans)
                    if uncertainty:
                        known[key] = values
        yield from zip(batch, sure)


def layer_names(component: str, nodes: Iterable[Model | None]) -> list[tuple[str, Model]]:
    """The latent layers of a component, by the names that their structures are stored under."""
    return [
        (component if count == 1 else f"{component}#{count}", node)
        for count, node in enumerate(nodes, 1)
        if node is not None
    ]


def _read(
    node: Model,
    docs: list[Doc],
    annotate: str,
    threshold: float,
    alternatives: int,
    uncertainty: bool,
) -> tuple[list[Any], list[Any]]:
    from spacy_latent.models.inspection import latent_module, read_batch, read_uncertainty
    from spacy_latent.models.structure_reader import read_structures

    batch, layer = read_batch(node, docs), latent_module(node).latent
    found = read_structures(batch, layer, annotate, threshold, alternatives)
    return found, read_uncertainty(batch, layer) if uncertainty else [[] for _ in docs]


@contextmanager
def _told(pipe: Any, settings: dict[str, Any]) -> Iterator[None]:
    """Let a component store what these settings say."""
    if not settings:
        yield
        return
    before = {key: pipe.cfg[key] for key in settings}
    pipe.cfg.update(settings)
    try:
        yield
    finally:
        pipe.cfg.update(before)


def _apply(pipe: Any, docs: list[Doc]) -> Iterable[Doc]:
    if hasattr(pipe, "pipe"):
        return pipe.pipe(docs, batch_size=len(docs))
    return [pipe(doc) for doc in docs]


def inspect_docs(
    pipeline: Any,
    docs: Iterable[Doc],
    *,
    annotate: str = "probabilities",
    threshold: float = 0.01,
    alternatives: int = 0,
) -> list[Doc]:
    """Annotate docs from every latent layer inside trained components, the inline ones as well.

    pipeline: an nlp object or one of its components.
    docs: already processed or not; they are annotated in place under the component's name, with
        ``#2`` and so on for further latent layers of one component.
    RETURNS: the docs.
    """
    from spacy_latent.models.inspection import latent_models

    named = pipeline.pipeline if isinstance(pipeline, Language) else [(pipeline.name, pipeline)]
    docs = list(docs)
    for name, pipe in named:
        model = getattr(pipe, "model", None)
        nodes: list[Model | None] = [None] if _writes_own(pipe) else []
        nodes += latent_models(model) if isinstance(model, Model) else []
        for key, node in layer_names(name, nodes):
            found, _ = _read(node, docs, annotate, threshold, alternatives, uncertainty=False)
            for doc, spans in zip(docs, found):
                write(doc, key, spans)
    return docs
