"""Processing of docs with the structures of every latent layer and their uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from spacy.language import Language
from spacy.tokens import Doc
from thinc.api import Model

from spacy_latent.annotations import PROBABILITIES, Stored, check_settings, write
from spacy_latent.errors import LatentError, number_of
from spacy_latent.models.listener import LatentListener, has_tensor, reads_tensor, recall

if TYPE_CHECKING:
    from spacy.pipeline import TrainablePipe

    from spacy_latent.models.inspection import KeptVectors, Uncertainty

Uncertainties = dict[str, list["Uncertainty"]]

# Number of docs that inspect_docs processes at once. It keeps their scores and vectors in memory.
INSPECTED = 128


@dataclass(frozen=True)
class LatentComponent:
    """Component that writes structures, or whose model has latent layers.

    Attributes:
        layers: models with a latent layer, by the names under which their structures are stored.
        own_kind: kind of the structures that the component itself writes under its name, as
            ``crf_ner`` does; see :class:`spacy_latent.annotations.SpanStructure`. It is "entities"
            for tags that make entities, and None if the component writes no structures of its own.
            A component with own structures has a method ``structures`` that predicts them.
    """

    name: str
    pipe: Any
    layers: dict[str, Model]
    own_kind: str | None

    @property
    def kinds(self) -> dict[str, str]:
        """Kinds of all its structures, by the names under which they are stored."""
        from spacy_latent.models.inspection import latent_module

        own = {} if self.own_kind is None else {self.name: self.own_kind}
        layers = {key: latent_module(node).latent for key, node in self.layers.items()}
        return own | {key: layer.structure.kind for key, layer in layers.items()}

    @property
    def has_alternatives(self) -> bool:
        """True if the component can store alternative structures, as every latent layer can."""
        return bool(self.layers) or "alternatives" in self.pipe.cfg


def latent_component(name: str, pipe: Any) -> LatentComponent:
    """Describe the latent layers of a component.

    The first layer is stored under the component's name, unless the component's own structures use
    that name. Further layers get ``#2`` and so on.
    """
    from spacy_latent.models.inspection import latent_models

    model = getattr(pipe, "model", None)
    own = getattr(pipe, "own_structures", None)
    nodes = latent_models(model) if isinstance(model, Model) else []
    counted = enumerate(nodes, 1 if own is None else 2)
    layers = {name if count == 1 else f"{name}#{count}": node for count, node in counted}
    return LatentComponent(name, pipe, layers, own)


def latent_components(nlp: Language, annotating: bool = False) -> dict[str, LatentComponent]:
    """Return the components with a latent layer, in the order of the pipeline.

    Args:
        annotating: whether to include components that write structures without a latent layer.
    """
    found = [latent_component(name, pipe) for name, pipe in nlp.pipeline]
    return {
        component.name: component
        for component in found
        if component.layers or (annotating and component.own_kind is not None)
    }


def reads_pairs(nlp: Language) -> bool:
    """Return whether the pipeline needs docs of two texts each."""
    from spacy_latent.models.span_getters import PairSpans

    nodes = [node for found in latent_components(nlp).values() for node in found.layers.values()]
    return any(isinstance(node.attrs["span_getter"], PairSpans) for node in nodes)


def choose_components(nlp: Language, component: str | None, annotating: bool = False) -> list[str]:
    """Return the name of this component of :func:`latent_components`, or all names if it is None.

    Raises:
        LatentError: if there is no such component.
    """
    latent = list(latent_components(nlp, annotating))
    there = ", ".join(nlp.pipe_names) or "none"
    learned = [name for name in latent_components(nlp, annotating=True) if name not in latent]
    if component in learned or (component is None and learned and not latent):
        raise LatentError(
            f"The structures of {component or ', '.join(learned)} are not latent: they were "
            "learned from annotated ones. Use 'spacy evaluate' to score them, and 'spacy latent "
            "show' or 'spacy latent render' to draw them."
        )
    if component is not None and component not in latent:
        raise LatentError(
            f"The pipeline has no latent component {component!r}. Its components are {there}; "
            f"latent are: {', '.join(latent) or 'none'}."
            + (f" Not latent, but with structures: {', '.join(learned)}." if learned else "")
        )
    if not latent:
        raise LatentError(
            f"The pipeline has no latent structure. Its components are {there}. Train one with a "
            "latent_encoder, a latent_textcat, or spacy-latent.LatentTok2Vec.v1 inside a component."
        )
    return [component] if component else latent


def inspect_pipe(
    nlp: Language,
    docs: Iterable[Doc],
    *,
    components: Sequence[str] | None = None,
    batch_size: int | None = None,
    stored: Stored = PROBABILITIES,
    uncertainty: bool = False,
    kept: Mapping[str, KeptVectors] | None = None,
) -> Iterator[tuple[Doc, Uncertainties]]:
    """Run docs through the pipeline as ``nlp.pipe`` does, and store the structures of all layers.

    ``doc._.latent`` then holds the structures of every latent layer, whatever the config stores.
    Structures of a component's further layers are under its name with ``#2`` and so on. Each layer
    is read just before its component runs, so that it uses the same sentences as the component.

    Args:
        docs: docs that are not processed yet.
        components: names of components; all latent ones if None.
        stored: results to store, whatever the config says.
        uncertainty: whether to compute the uncertainty of each span of each layer. If not, the
            dictionaries are empty.
        kept: by name of the component, vectors of its embedders from earlier runs, to which this
            run adds its own. All runs need the same docs in the same batches, and the same earlier
            components.
    """
    from spacy_latent.models.inspection import KeptVectors, embedding_once

    everything = latent_components(nlp, annotating=True)
    chosen = set(everything) if components is None else set(components)
    stream = iter(docs)
    for number in count():
        batch = list(islice(stream, batch_size or nlp.batch_size))
        if not batch:
            return
        sure: list[Uncertainties] = [{} for _ in batch]
        for name, pipe in nlp.pipeline:
            found = everything.get(name)
            layers = found.layers if found else {}
            own = found is not None and found.own_kind is not None and name in chosen
            storing = _storing(pipe, stored if own else None)
            store = (kept or {}).get(name) or KeptVectors()
            with embedding_once(layers.values(), batch, store, number):
                read = [
                    (key, *_read(node, batch, stored, uncertainty))
                    for key, node in layers.items()
                    if name in chosen
                ]
                given, batch = batch, list(applied(storing, batch, len(batch)))
            places = _places(name, given, batch)
            sure = [sure[place] for place in places]
            for key, structures, nats in read:
                for doc, known, place in zip(batch, sure, places):
                    write(doc, key, structures[place])
                    if uncertainty:
                        known[key] = nats[place]
        yield from zip(batch, sure)


def _read(
    node: Model,
    docs: list[Doc],
    stored: Stored,
    uncertainty: bool,
) -> tuple[list[Any], list[Any]]:
    from spacy_latent.models.inspection import latent_module, read_batch, read_uncertainty
    from spacy_latent.models.structure_reader import read_structures

    batch, layer = read_batch(node, docs), latent_module(node).latent
    found = read_structures(batch, layer, stored)
    return found, read_uncertainty(batch, layer) if uncertainty else [[] for _ in docs]


def _storing(pipe: Any, stored: Stored | None) -> Any:
    """Return a component that stores these results; the component itself for None.

    It is a copy with its own settings, since other threads may use the component.
    ``stored_settings`` of a component maps these names to the names of its settings. Settings that
    the component does not have are left out.
    """
    names = getattr(pipe, "stored_settings", {})
    given = {} if stored is None else asdict(stored)
    settings = {names.get(name, name): value for name, value in given.items()}
    settings = {name: value for name, value in settings.items() if name in pipe.cfg}
    if not settings:
        return pipe
    twin = copy(pipe)
    twin.cfg = {**pipe.cfg, **settings}
    return twin


def _places(name: str, given: list[Doc], left: list[Doc]) -> list[int]:
    """Return the indices in ``given`` of the docs that no error handler has dropped."""
    if len(left) == len(given):
        return list(range(len(given)))
    place = {id(doc): i for i, doc in enumerate(given)}
    if any(id(doc) not in place for doc in left):
        raise LatentError(
            f"Component {name!r} was given {number_of(len(given), 'doc')} and returned "
            f"{len(left)}, some of which are other objects; expected the given docs themselves. "
            "Change the component, or leave it out."
        )
    return [place[id(doc)] for doc in left]


def applied(pipe: Any, docs: list[Doc], batch_size: int) -> Iterable[Doc]:
    """Run a component on docs, also if it has no ``pipe`` method."""
    if hasattr(pipe, "pipe"):
        return pipe.pipe(docs, batch_size=batch_size)
    return (pipe(doc) for doc in docs)


def refuse_lost(given: int, left: int, noun: str, advice: str) -> None:
    """Raise LatentError if an error handler of the pipeline dropped some of the texts.

    Args:
        noun: noun for one text.
        advice: sentence of advice.
    """
    if left != given:
        raise LatentError(
            f"An error handler of the pipeline dropped {given - left} of "
            f"{number_of(given, noun)}, so that all figures would be wrong. {advice}"
        )


def inspect_docs(
    pipeline: Language | TrainablePipe,
    docs: Iterable[Doc],
    *,
    annotate: str = "probabilities",
    threshold: float = 0.01,
    alternatives: int = 0,
) -> list[Doc]:
    """Annotate docs with all structures of components, and of the latent layers inside them.

    Sentences and entities on a doc are kept, except entities that the component itself annotated.
    Shared embedders run on docs that lack their vectors.

    Args:
        pipeline: an nlp object or one of its components.
        docs: docs, processed or not. They are annotated in place under the component's name, with
            ``#2`` and so on for further latent layers of one component.
        annotate, threshold, alternatives: as in ``latent_encoder``. ``tree_spancat`` has no
            alternatives.

    Returns:
        The docs.

    Raises:
        LatentError: for anything but docs, and for invalid settings.
    """
    named = pipeline.pipeline if isinstance(pipeline, Language) else [(pipeline.name, pipeline)]
    docs = [docs] if isinstance(docs, Doc) else list(docs)
    for doc in docs:
        if not isinstance(doc, Doc):
            raise LatentError(
                f"inspect_docs: given {type(doc).__name__}; expected docs, such as "
                "[nlp.make_doc(text)]."
            )
    check_settings("inspect_docs", annotate, threshold, alternatives)
    stored = Stored(annotate, threshold, alternatives)
    components = [latent_component(name, pipe) for name, pipe in named]
    for start in range(0, len(docs), INSPECTED):
        batch = docs[start : start + INSPECTED]
        for component in components:
            if bare := _without_vectors(batch, component.pipe):
                list(applied(component.pipe, bare, len(bare)))
            found = {
                key: _read(node, batch, stored, uncertainty=False)[0]
                for key, node in component.layers.items()
            }
            if component.own_kind is not None:
                found[component.name] = _storing(component.pipe, stored).structures(batch)
            for key, structures in found.items():
                for doc, spans in zip(batch, structures):
                    write(doc, key, spans)
    return docs


def _without_vectors(docs: list[Doc], pipe: Any) -> list[Doc]:
    """Return the docs with tokens that have no vectors of a shared embedder yet."""
    listeners = getattr(pipe, "listeners", ())
    names = {one.upstream_name for one in listeners if isinstance(one, LatentListener)}
    of_tensor = any(reads_tensor(one) for one in listeners)
    return [
        doc
        for doc in docs
        if len(doc)
        and ((of_tensor and not has_tensor(doc)) or any(recall(doc, n) is None for n in names))
    ]
