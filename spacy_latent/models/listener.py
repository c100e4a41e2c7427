"""Listener that gets its vectors from a latent encoder without ``doc.tensor``."""

import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from spacy.attrs import IDX
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.tokens import Doc
from spacy.util import replace_model_node
from thinc.api import Model
from thinc.types import Floats2d
from thinc.util import get_array_module

from spacy_latent.errors import LatentError, LatentWarning

# Vectors by doc and component, with the offsets of the doc's tokens. Unlike doc.tensor, no other
# component writes them, and they are never saved.
_vectors: "WeakKeyDictionary[Doc, dict[str, tuple[np.ndarray, Floats2d]]]" = WeakKeyDictionary()


def remember(doc: Doc, upstream: str, vectors: Floats2d) -> None:
    """Keep the vectors of a doc for the listeners of the component ``upstream``."""
    _vectors.setdefault(doc, {})[upstream] = _starts(doc), vectors


def recall(doc: Doc, upstream: str) -> Floats2d | None:
    """Return the kept vectors for the present tokens of a doc, None without any.

    A merged token has the vector of its last part, as spaCy does for doc.tensor. The parts of a
    split token have its vector.
    """
    kept = _vectors.get(doc, {}).get(upstream)
    if kept is None:
        return None
    before, vectors = kept
    now = _starts(doc)
    if np.array_equal(before, now):
        return vectors
    ends = np.append(now[1:], np.iinfo(np.int64).max)
    last = np.searchsorted(before, ends) - 1
    return vectors[get_array_module(vectors).asarray(last)]


def _starts(doc: Doc) -> np.ndarray:
    """Return the offset of the first character of each token."""
    return doc.to_array(IDX).astype("int64")


def no_such_component(
    component: str,
    upstream: str,
    there: str,
    meant: Iterable[str],
    listener: str = "spacy-latent.LatentListener.v1",
    expected: str = "a latent encoder",
) -> str:
    """Return the message for a component that listens to a name that no component has.

    Args:
        there: description of the components of the pipeline.
        expected: description of the components that it can listen to.
    """
    near = get_close_matches(upstream, list(meant), n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return (
        f"{component} listens to {upstream!r}, and the pipeline has no such component (it has: "
        f"{there}). {hint}Set upstream, in the block of the {listener} of {component}, to the name "
        f"of {expected}."
    )


class LatentListener(Tok2VecListener):
    """Layer that returns the vectors of a ``latent_encoder`` and sends the gradient back to it."""

    name = "latent-listener"

    def __init__(self, upstream_name: str, width: int) -> None:
        attrs = {"trained": False}
        Model.__init__(self, self.name, forward, init=init, dims={"nO": width}, attrs=attrs)
        self.upstream_name = upstream_name
        # A listener has no access to the pipeline. It only knows its component, and the latent
        # encoders before this component.
        self.component = ""
        self.encoders: set[str] = set()
        self.clear()

    def meet(self, encoder: str, component: str) -> None:
        """Record an encoder and the component that the listener is in.

        Each latent encoder before the component calls this on its listeners.
        """
        self.component = component
        self.encoders.add(encoder)

    def refuse_unknown_upstream(self) -> None:
        """Raise LatentError if there are latent encoders, and none has the name."""
        if self.encoders and self.upstream_name not in self.encoders:
            names = sorted(self.encoders)
            there = f"the latent encoder{'s' * (len(names) > 1)} {', '.join(names)}"
            raise LatentError(no_such_component(self.component, self.upstream_name, there, names))

    def clear(self) -> None:
        """Forget the vectors and the backprop of the last batch."""
        self._batch_id = None
        self._outputs = None
        self._backprop = None

    def backprop_and_clear(self, gradients: list[Floats2d]) -> Any:
        """Send the gradient upstream once, and drop the callback, which refers to the graph."""
        backprop = self._backprop
        self.clear()
        return [] if backprop is None else backprop(gradients)


def build_latent_listener_v1(width: int, upstream: str = "latent_encoder") -> LatentListener:
    """Build a listener to the component named ``upstream``, with vectors of ``width`` features."""
    if upstream == "*":
        raise LatentError(
            "LatentListener: upstream is '*', which a tok2vec component matches as well. Give the "
            "name of the latent encoder, for example 'latent_encoder'."
        )
    return LatentListener(upstream_name=upstream, width=width)


def has_tensor(doc: Doc) -> bool:
    """Return whether ``doc.tensor`` holds vectors; spaCy's ``doc_cleaner`` sets it to None."""
    return doc.tensor is not None and bool(doc.tensor.size)


def reads_tensor(node: Model) -> bool:
    """Return whether a node is a listener of spaCy, which reads vectors from ``doc.tensor``."""
    return isinstance(node, Tok2VecListener) and not isinstance(node, LatentListener)


def keeps_batch(node: Model) -> bool:
    """Return whether a node is a listener that keeps its batch as spaCy's do.

    spaCy, spacy-transformers and this package have such listeners.
    """
    return hasattr(node, "_backprop")


def holds_batch(node: Model) -> bool:
    """Return whether a node is a listener, of any package, that now has a batch of training."""
    # Listeners of curated transformers keep their batch in a separate object.
    apart = getattr(node.attrs.get("_state"), "batch_id", None)
    return getattr(node, "_batch_id", apart) is not None


def renew_listeners(model: Model, copied: Model) -> None:
    """Replace copies of listeners in a copied model by listeners.

    ``Model.copy`` copies the forward function of a listener, but neither its batch nor the name
    that it listens to.
    """
    for node, other in zip(list(model.walk()), list(copied.walk())):
        if keeps_batch(node):
            replace_model_node(copied, other, _another(node))


def _another(listener: Any) -> Model:
    """Return a listener to the same component, without a batch."""
    width = listener.maybe_get_dim("nO")
    if isinstance(listener, Tok2VecListener):
        made = type(listener)(listener.upstream_name, width)
    else:
        made = type(listener)(listener.upstream_name)
        if width is not None:
            made.set_dim("nO", width)
    made.attrs.update(listener.attrs)
    return made


def init(model: LatentListener, X: Any = None, Y: Any = None) -> None:
    """Check that the encoder of this name exists, if it is known; there are no weights."""
    # Components also check the names, since they know the pipeline, but only if they are
    # initialized.
    model.refuse_unknown_upstream()
    model.attrs["trained"] = False


def forward(model: LatentListener, docs: Sequence[Doc], is_train: bool) -> Any:
    """Return the encoder's vectors of the same batch in training, otherwise those on the docs.

    Docs without vectors get zeros at prediction, with a warning after training.

    Raises:
        LatentError: if vectors are missing in training.
    """
    if is_train and model._batch_id is not None:
        model.verify_inputs(docs)
        model.attrs["trained"] = True
        return model._outputs, model.backprop_and_clear
    vectors = [recall(doc, model.upstream_name) for doc in docs]
    missing = any(found is None and len(doc) for doc, found in zip(docs, vectors))
    if is_train and missing:
        model.refuse_unknown_upstream()
        # The advice about rehearsal only applies if a component has that name.
        rehearsal = (
            f"For nlp.rehearse, run it first: list(nlp.get_pipe({model.upstream_name!r})"
            ".pipe(docs)) with the docs of the examples. "
        )
        raise LatentError(
            f"No vectors from {model.upstream_name!r}: it is neither trained nor run in this "
            "training step. Look whether the pipeline has a component of this name, before this "
            "one. If it is frozen, add it to training.annotating_components. "
            f"{rehearsal if model.encoders else ''}Or give this component a copy of its own with "
            "replace_listeners."
        )
    if missing and model.attrs["trained"]:
        warnings.warn(
            f"No vectors from {model.upstream_name!r}: a component that was trained on them now "
            f"gets zeros. Keep {model.upstream_name!r} in the pipeline, enabled, before the "
            "components that listen to it. No component between them may return another Doc, "
            "such as a copy.",
            LatentWarning,
            stacklevel=2,
        )
    # spaCy's listener does the same: components are initialized before any vectors exist.
    width = model.get_dim("nO")
    outputs = [
        model.ops.alloc2f(len(doc), width) if found is None else model.ops.asarray2f(found)
        for doc, found in zip(docs, vectors)
    ]
    return outputs, _no_gradient


def _no_gradient(gradients: list[Floats2d]) -> list[Doc]:
    return []
