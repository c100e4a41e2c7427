"""Listeners of a pipeline, and mistakes that keep vectors or gradients from them.

In training, spaCy reports only some of these mistakes. A listener without vectors fails in the
first step, with an error whose advice usually concerns another mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spacy.language import Language
from spacy.pipeline.tok2vec import Tok2Vec, Tok2VecListener
from thinc.api import Model

from spacy_latent.models.listener import LatentListener, keeps_batch, no_such_component
from spacy_latent.pipeline.diagnostic import Diagnostic, error, warning
from spacy_latent.pipeline.latent_encoder import LatentEncoder
from spacy_latent.pipeline.training_settings import training_settings

# Architectures of listeners, by the factory of the component that they listen to.
LISTENERS = {
    "tok2vec": "spacy.Tok2VecListener.v1",
    "transformer": "spacy-transformers.TransformerListener.v1",
    "latent_encoder": "spacy-latent.LatentListener.v1",
}


@dataclass(frozen=True)
class Listening:
    """Listener of an enabled component.

    Attributes:
        component: name of the component that contains the listener.
        upstream: name that it listens to, or "*".
        answering: name of the enabled component before it whose vectors it gets, or None.
    """

    component: str
    node: Model
    upstream: str
    answering: str | None


def listeners_in(pipe: Any) -> list[tuple[Model, str]]:
    """Return the listeners inside a component's model, each with the name that it listens to."""
    model = getattr(pipe, "model", None)
    nodes = list(model.walk()) if isinstance(model, Model) else []
    # Listeners of curated transformers have the name in their attributes.
    named = ((node, getattr(node, "upstream_name", None)) for node in nodes)
    found = [(node, name or node.attrs.get("_upstream_name")) for node, name in named]
    return [(node, name) for node, name in found if name]


def listenings(nlp: Language) -> list[Listening]:
    """Return the listeners of all enabled components, in the order of the pipeline."""
    # Link listeners as spaCy does before training, since components may have been added in Python.
    nlp._link_components()
    found = []
    for place, (component, pipe) in enumerate(nlp.pipeline):
        for node, upstream in listeners_in(pipe):
            answering = [
                name
                for name, other in nlp.pipeline[:place]
                if upstream in ("*", name)
                and any(
                    node is one for one in getattr(other, "listener_map", {}).get(component, ())
                )
            ]
            # If several components answer, the listener has the vectors of the last one.
            found.append(Listening(component, node, upstream, answering[-1] if answering else None))
    return found


def listening_mistakes(nlp: Language) -> Iterator[Diagnostic]:
    """Yield mistakes of listeners.

    A ``LatentListener`` to a name that no component has is reported by
    :func:`spacy_latent.pipeline.missing_upstreams.missing_upstreams`. Some widths are unknown
    before the pipeline is initialized.
    """
    training = training_settings(nlp)
    frozen = set(training.get("frozen_components") or ())
    annotating = set(training.get("annotating_components") or ())
    found = listenings(nlp)
    for one in found:
        if one.answering is not None:
            yield from _of_vectors(nlp, one)
        elif one.component not in frozen:
            yield from _without_vectors(nlp, one, annotating)
    for upstream in nlp.pipe_names:
        yield from _of_order(nlp, upstream, found)
        listening = [one for one in found if one.answering == upstream]
        if listening:
            yield from _of_training(nlp, upstream, listening, frozen, annotating)


def _of_vectors(nlp: Language, one: Listening) -> Iterator[Diagnostic]:
    """Yield mistakes in the kind and width of the vectors that a listener gets."""
    assert one.answering is not None
    upstream: Any = nlp.get_pipe(one.answering)
    if not _suits(upstream, one.node):
        yield _wrong_kind(nlp, one, one.answering)
    wanted, given = one.node.maybe_get_dim("nO"), upstream.model.maybe_get_dim("nO")
    if wanted is not None and given is not None and wanted != given:
        yield error(
            "listener-width",
            f"The listener of {one.component} has width {wanted}, and {one.answering}, to which "
            f"it listens, sends vectors of {given} features. Set the listener's width to {given}.",
        )


def _without_vectors(nlp: Language, one: Listening, annotating: set[str]) -> Iterator[Diagnostic]:
    component, name = one.component, one.upstream
    before = nlp.pipe_names[: nlp.pipe_names.index(component)]
    suitable = [other for other in nlp.pipe_names if _suits(nlp.get_pipe(other), one.node)]
    if name == "*":
        if not suitable:
            kind = "tok2vec" if isinstance(one.node, Tok2VecListener) else "transformer"
            yield error(
                "no-upstream",
                f'{component} listens to "*", any {kind}, and the pipeline has none. Add one '
                f"before {component}, or give {component} an embedder of its own.",
            )
    elif name not in nlp.component_names:
        if isinstance(one.node, LatentListener):
            return
        listener, kind = "listener", " or ".join(suitable) or "a component that sends vectors"
        there = ", ".join(nlp.component_names)
        text = no_such_component(component, name, there, suitable, listener, kind)
        # Any listener of spaCy reads vectors that an annotating tok2vec writes on docs in training.
        reads = [
            other
            for other in suitable
            if other in before
            and other in annotating
            and not isinstance(nlp.get_pipe(other), LatentEncoder)
        ]
        if reads:
            text += (
                f" Now it reads the vectors that {reads[-1]} writes on docs, and sends no "
                "gradient back."
            )
        yield Diagnostic("warning" if reads else "error", "no-upstream", text)
    elif name in nlp.disabled:
        yield error(
            "disabled-upstream",
            f"{component} listens to {name}, which is disabled, so it gets no vectors. Remove "
            f"{name} from nlp.disabled, or give {component} an embedder of its own.",
        )
    elif name in before:
        yield _wrong_kind(nlp, one, name)


def _suits(upstream: Any, node: Model) -> bool:
    """Return whether a listener is made for components of this kind."""
    if isinstance(node, LatentListener):
        return isinstance(upstream, LatentEncoder)
    if isinstance(node, Tok2VecListener):
        named = node.upstream_name != "*"
        return isinstance(upstream, Tok2Vec) or (isinstance(upstream, LatentEncoder) and named)
    others = (Tok2Vec, LatentEncoder)
    return hasattr(upstream, "find_listeners") and not isinstance(upstream, others)


def _wrong_kind(nlp: Language, one: Listening, upstream: str) -> Diagnostic:
    factory = nlp.get_pipe_meta(upstream).factory
    if hasattr(nlp.get_pipe(upstream), "find_listeners"):
        take = f'Use @architectures = "{LISTENERS[factory]}"' if factory in LISTENERS else ""
        advice = take or "Use the listener for this kind of component"
    else:
        advice = "Set upstream to a component that sends vectors"
    return error(
        "listener-kind",
        f"{one.component} has a listener ({one.node.name}) to {upstream}, which is a {factory} "
        f"and sends it no vectors. {advice}.",
    )


def _of_order(nlp: Language, upstream: str, found: list[Listening]) -> Iterator[Diagnostic]:
    """Yield listeners that stand before their component, since spaCy only links later ones."""
    before = nlp.pipe_names[: nlp.pipe_names.index(upstream)]
    early = [
        one
        for one in found
        if one.answering is None
        and one.component in before
        and one.upstream in (upstream, "*")
        and _suits(nlp.get_pipe(upstream), one.node)
    ]
    if early:
        yield error(
            "listener-first",
            f"{_names(early)} listens to {upstream} and stands before it in the pipeline, so it "
            f"gets no vectors. Put {upstream} first.",
        )


def _of_training(
    nlp: Language, upstream: str, listening: list[Listening], frozen: set[str], annotating: set[str]
) -> Iterator[Diagnostic]:
    """Yield mistakes that come from frozen and annotating components."""
    awake = [one for one in listening if one.component not in frozen]
    if upstream in frozen and awake and upstream not in annotating:
        yield error(
            "frozen-encoder",
            f"{upstream} is frozen, and {_names(awake)}, which listens to it, is not, so it "
            f"would get no vectors in training. Add {upstream!r} to "
            "training.annotating_components, or give the listener a copy of its own: "
            'replace_listeners = ["model.tok2vec"] in the block of a component that is '
            "sourced.",
        )
    blind = [one for one in listening if one.component in annotating]
    if blind and upstream not in annotating:
        yield warning(
            "annotates-without-vectors",
            f"{_names(blind)} annotates in training, and {upstream}, to which it listens, does "
            "not. So it would annotate with vectors of zeros, and later components would learn "
            f"from that. Add {upstream!r} to training.annotating_components.",
        )
    if upstream not in frozen:
        yield from _of_gradient(nlp, upstream, listening, frozen)


def _of_gradient(
    nlp: Language, upstream: str, listening: list[Listening], frozen: set[str]
) -> Iterator[Diagnostic]:
    pipe: Any = nlp.get_pipe(upstream)
    is_encoder = isinstance(pipe, LatentEncoder)
    awake = [one for one in listening if one.component not in frozen]
    if not awake and not (is_encoder and pipe.cfg["supervision"]):
        # A frozen tok2vec or transformer may be intended, if it is pre-trained.
        yield Diagnostic(
            "error" if is_encoder else "warning",
            "frozen-listeners",
            f"All components that listen to {upstream} are frozen ({_names(listening)}), so "
            f"{upstream} gets no gradient. Freeze it too, or do not freeze one of them.",
        )
    # Only the last listener of a tok2vec or transformer has a callback that backpropagates, see
    # shared_upstream. Components of other packages may differ.
    last = list(pipe.listening_components)[-1]
    one_sends = not is_encoder and all(keeps_batch(one.node) for one in listening)
    held = any(isinstance(nlp.get_pipe(one.component), LatentEncoder) for one in awake)
    if awake and one_sends and not held and last in frozen:
        yield error(
            "last-listener",
            f"{upstream} learns nothing: spaCy sends it all gradients together with the gradient "
            f"of {last}, the last component that listens to it, and {last} is frozen. Freeze "
            f"{upstream} too, and add it to annotating_components. Or put {last} before "
            f"{_names(awake)}, or give {last} a copy of its own with replace_listeners = "
            '["model.tok2vec"].',
        )


def _names(listening: list[Listening]) -> str:
    return ", ".join(dict.fromkeys(one.component for one in listening))
