"""One backward pass of a component that several share, when encoders that listen to it answer late.

spaCy's ``Tok2Vec`` and the ``Transformer`` of spacy-transformers give the last of their listeners
in the pipeline a callback that backpropagates what all of them have sent, and the others one that
only adds to it. A ``latent_encoder`` has no gradient to send before its own listeners have run: if
it is last, its gradient comes after the shared component's weights were updated, and if it is not,
after the backward pass. So the encoder holds that pass back, until the shared component is about to
update its weights or the next batch begins, and sends its own gradient first.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

from spacy.pipeline.tok2vec import Tok2Vec, Tok2VecListener
from thinc.api import Model, Optimizer

from spacy_latent.errors import LatentWarning
from spacy_latent.models.listener import keeps_batch


class HeldBatch:
    """A batch whose backward pass is held back until others have sent their gradients to it."""

    def __init__(self) -> None:
        self.waiting: list[HeldBatch] = []

    def flush(self) -> bool:
        """Backpropagate what arrived, once. RETURNS: whether there was anything."""
        raise NotImplementedError

    def drop(self) -> None:
        """Forget the batch: nothing will be backpropagated."""
        self.waiting = []

    def flush_waiting(self) -> None:
        """Let those that listen to this batch send what they have, which is all there will be."""
        waiting, self.waiting = self.waiting, []
        for batch in waiting:
            batch.flush()


class SharedBatch(HeldBatch):
    """A batch of a ``tok2vec`` or ``transformer`` component that latent encoders listen to.

    It takes the place of the callbacks that the component's update gave its listeners, and, until
    the component updates its weights, of its method ``finish_update``.
    """

    def __init__(self, upstream: Any) -> None:
        super().__init__()
        before = vars(upstream).get("finish_update")
        if isinstance(before, SharedBatch):
            before.flush()
            before = vars(upstream).get("finish_update")
        self.before = before
        self.upstream = upstream
        # A transformer's listeners forget the batch when they have sent their gradient. Those that
        # stand before the encoder have.
        *others, last = [one for one in upstream.listeners if one._backprop is not None]
        self.accumulate: Callable | None = others[0]._backprop if others else None
        self.backprop: Callable | None = last._backprop
        # What a tok2vec adds to is there from the start; a transformer fails where nothing came.
        sent = len(upstream.listeners) > 1 + len(others)
        self.arrived = sent or isinstance(last, Tok2VecListener)
        if isinstance(last, Tok2VecListener) and not any(map(len, last._outputs or ())):
            # Layers of Thinc fail at a gradient of no rows.
            self.backprop = None
        for listener in (*others, last):
            listener.receive(listener._batch_id, listener._outputs, self.receive)
        upstream.finish_update = self

    def receive(self, gradients: Any) -> Any:
        """The callback of the listeners that have not sent their gradient yet."""
        if self.accumulate is not None:
            self.arrived = True
            return self.accumulate(gradients)
        # The last callback, in the hands of the only one that has not called yet.
        backprop, self.backprop = self.backprop, None
        return [] if backprop is None else backprop(gradients)

    def __call__(self, sgd: Optimizer) -> None:
        """``finish_update`` of the component, which comes before that of its listeners."""
        self.flush()
        self.upstream.finish_update(sgd)

    def flush(self) -> bool:
        self.flush_waiting()
        backprop, self.backprop = self.backprop, None
        sent = backprop is not None and self.arrived
        if backprop is not None and sent:
            # Nothing more to add: everything came by the other callback.
            backprop([])
        self.drop()
        return sent

    def drop(self) -> None:
        """Forget the batch, and give the component its method back."""
        super().drop()
        for listener in self.upstream.listeners:
            if getattr(listener._backprop, "__self__", None) is self:
                listener.receive(None, None, None)
        self.accumulate = self.backprop = None
        if vars(self.upstream).get("finish_update") is self:
            if self.before is None:
                del self.upstream.finish_update
            else:
                self.upstream.finish_update = self.before

    def __getstate__(self) -> dict[str, Any]:
        # The graph of a batch cannot be pickled.
        lost = dict.fromkeys(("accumulate", "backprop"))
        return {**vars(self), **lost, "waiting": []}


class UpstreamListeners:
    """The listeners inside an encoder's model, with the batch that they have now."""

    def __init__(self, model: Model) -> None:
        nodes = list(model.walk())
        self.nodes: list[Any] = [node for node in nodes if keeps_batch(node)]
        # Listeners of curated transformers keep their batch elsewhere.
        self.others: list[str] = [
            node.attrs["_upstream_name"] for node in nodes if "_upstream_name" in node.attrs
        ]
        self.states = [_state(node) for node in self.nodes]

    def wait_for(self, batch: HeldBatch, name: str) -> list[HeldBatch]:
        """Hold back what the encoder called ``name`` listens to until ``batch`` is flushed.

        RETURNS: the batches that are held back. What a component of another kind gave is not, with
            a warning.
        """
        held: list[HeldBatch] = []
        for node in self.nodes:
            if node._backprop is None:
                continue  # A frozen component.
            holder = getattr(node._backprop, "__self__", None)
            if not isinstance(holder, HeldBatch):
                upstream = _component_of(node._backprop)
                if upstream is None:
                    _warn(name, node.upstream_name)
                    continue
                holder = SharedBatch(upstream)
            if holder not in held:
                held.append(holder)
                holder.waiting.append(batch)
        for upstream_name in self.others:
            _warn(name, upstream_name)
        self.states = [_state(node) for node in self.nodes]
        return held

    def backprop_by(self, backprop: Callable) -> Callable:
        """A callback for the batch of now, whichever the listeners have when it is called."""

        def backprop_at(gradients: Any) -> Any:
            current = [_state(node) for node in self.nodes]
            for node, state in zip(self.nodes, self.states):
                node.receive(*state)
            result = backprop(gradients)
            for node, state, now in zip(self.nodes, self.states, current):
                node.receive(*((None, None, None) if now[1] is state[1] else now))
            return result

        return backprop_at if self.nodes else backprop


def _state(node: Any) -> tuple[Any, Any, Any]:
    return node._batch_id, node._outputs, node._backprop


def _component_of(callback: Any) -> Any:
    """The ``tok2vec`` or ``transformer`` component whose update made a callback; None for others.

    Listeners know no more of it than its name, and names belong to a pipeline, which a component
    that is sourced leaves. The callback is a function inside the component's method.
    """
    if not inspect.isfunction(callback):
        return None
    found = inspect.getclosurevars(callback).nonlocals.get("self")
    packages = {kind.__module__.partition(".")[0] for kind in type(found).__mro__}
    return found if isinstance(found, Tok2Vec) or "spacy_transformers" in packages else None


def _warn(name: str, upstream: str) -> None:
    warnings.warn(
        f"{name!r} listens to {upstream!r}, which is neither a 'tok2vec' nor a 'transformer' "
        f"component. Other components that listen to it must stand before {name!r} in the "
        f"pipeline, or gradients are lost. Safer is an embedder of its own, as its model.tok2vec.",
        LatentWarning,
        stacklevel=4,
    )


__all__ = ["HeldBatch", "SharedBatch", "UpstreamListeners"]
