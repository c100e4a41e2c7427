"""Backward pass of a shared component whose listeners include encoders with late gradients.

spaCy's ``Tok2Vec`` and the ``Transformer`` of spacy-transformers give their last listener a
callback that backpropagates all gradients. The callback of the other listeners only adds a
gradient.

A ``latent_encoder`` has no gradient before its own listeners have run. If it is the last listener,
its gradient arrives after the weights of the shared component were updated. Otherwise it arrives
after the backward pass. So the encoder delays the backward pass until the shared component is about
to update its weights, or until the next batch begins. It sends its own gradient first.
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
    """Batch whose backward pass is delayed until others have sent their gradients."""

    def __init__(self) -> None:
        self.waiting: list[HeldBatch] = []

    def flush(self) -> bool:
        """Backpropagate the gradients that arrived, once.

        Returns:
            Whether there were any.
        """
        raise NotImplementedError

    def drop(self) -> None:
        """Forget the batch without backpropagation."""
        self.waiting = []

    def flush_waiting(self) -> None:
        """Flush the batches that listen to this one, so that they send all their gradients."""
        waiting, self.waiting = self.waiting, []
        for batch in waiting:
            batch.flush()


class SharedBatch(HeldBatch):
    """Batch of a ``tok2vec`` or ``transformer`` component that latent encoders listen to.

    It replaces the callbacks that the component's update gave its listeners. Until the component
    updates its weights, it also replaces its method ``finish_update``.
    """

    def __init__(self, upstream: Any) -> None:
        super().__init__()
        before = vars(upstream).get("finish_update")
        if isinstance(before, SharedBatch):
            before.flush()
            before = vars(upstream).get("finish_update")
        self.before = before
        self.upstream = upstream
        # Listeners of a transformer drop their callback after they have sent their gradient. Those
        # before the encoder have done so already.
        *others, last = [one for one in upstream.listeners if one._backprop is not None]
        self.accumulate: Callable | None = others[0]._backprop if others else None
        self.backprop: Callable | None = last._backprop
        # A tok2vec starts with zero gradients; a transformer fails if no gradient arrived.
        sent = len(upstream.listeners) > 1 + len(others)
        self.arrived = sent or isinstance(last, Tok2VecListener)
        if isinstance(last, Tok2VecListener) and not any(map(len, last._outputs or ())):
            # Thinc layers fail on a gradient without rows.
            self.backprop = None
        for listener in (*others, last):
            listener.receive(listener._batch_id, listener._outputs, self.receive)
        upstream.finish_update = self

    def receive(self, gradients: Any) -> Any:
        """Add a gradient; the callback of listeners that have not sent theirs yet."""
        if self.accumulate is not None:
            self.arrived = True
            return self.accumulate(gradients)
        # There is no adding callback if only one listener has not sent its gradient.
        backprop, self.backprop = self.backprop, None
        return [] if backprop is None else backprop(gradients)

    def __call__(self, sgd: Optimizer) -> None:
        """Run ``finish_update`` of the component, after backpropagating all gradients."""
        self.flush()
        self.upstream.finish_update(sgd)

    def flush(self) -> bool:
        self.flush_waiting()
        backprop, self.backprop = self.backprop, None
        sent = backprop is not None and self.arrived
        if backprop is not None and sent:
            # All gradients have arrived through the other callback.
            backprop([])
        self.drop()
        return sent

    def drop(self) -> None:
        """Forget the batch, and restore the component's method."""
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
    """Listeners inside an encoder's model, with their current batch."""

    def __init__(self, model: Model) -> None:
        nodes = list(model.walk())
        self.nodes: list[Any] = [node for node in nodes if keeps_batch(node)]
        # Listeners of curated transformers, which store their batch in another place.
        apart = [node for node in nodes if "_upstream_name" in node.attrs]
        self.others: list[str] = [node.attrs["_upstream_name"] for node in apart]
        self.keeping = self.nodes + [node for node in apart if "_state" in node.attrs]
        self.states = [_state(node) for node in self.keeping]

    def wait_for(self, batch: HeldBatch, name: str) -> list[HeldBatch]:
        """Delay the backward passes below the encoder called ``name`` until ``batch`` is flushed.

        Components other than ``tok2vec`` and ``transformer`` are not delayed, with a warning.

        Returns:
            The delayed batches.
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
        self.states = [_state(node) for node in self.keeping]
        return held

    def backprop_by(self, backprop: Callable) -> Callable:
        """Wrap a callback so that it runs with the present batch of the listeners."""

        def backprop_at(gradients: Any) -> Any:
            current = [_state(node) for node in self.keeping]
            for node, state in zip(self.keeping, self.states):
                _receive(node, state)
            result = backprop(gradients)
            for node, state, now in zip(self.keeping, self.states, current):
                _receive(node, (None, None, None) if now[1] is state[1] else now)
            return result

        return backprop_at if self.keeping else backprop


def _state(node: Any) -> tuple[Any, Any, Any]:
    if keeps_batch(node):
        return node._batch_id, node._outputs, node._backprop
    apart = node.attrs["_state"]
    return apart.batch_id, apart.outputs, apart.backprop


def _receive(node: Any, state: tuple[Any, Any, Any]) -> None:
    if keeps_batch(node):
        node.receive(*state)
    else:
        apart = node.attrs["_state"]
        apart.batch_id, apart.outputs, apart.backprop = state


def _component_of(callback: Any) -> Any:
    """Return the ``tok2vec`` or ``transformer`` whose update made a callback; None for others.

    Listeners only know its name. Names belong to a pipeline, which a sourced component leaves. The
    callback is a function inside the component's method, so its closure holds the component.
    """
    if not inspect.isfunction(callback):
        return None
    found = inspect.getclosurevars(callback).nonlocals.get("self")
    packages = {kind.__module__.partition(".")[0] for kind in type(found).__mro__}
    return found if isinstance(found, Tok2Vec) or "spacy_transformers" in packages else None


def _warn(name: str, upstream: str) -> None:
    warnings.warn(
        f"{name!r} listens to {upstream!r}, which is neither a 'tok2vec' nor a 'transformer' "
        f"component. Place the other components that listen to it before {name!r} in the "
        f"pipeline, or gradients are lost. It is safer to give {name!r} an embedder of its own, "
        "as its model.tok2vec.",
        LatentWarning,
        stacklevel=5,
    )
