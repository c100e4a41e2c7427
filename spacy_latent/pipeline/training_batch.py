"""Batch of a ``latent_encoder`` in training, which collects the gradients of the listeners."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from spacy.tokens import Doc
from thinc.api import get_array_module
from thinc.types import Floats2d

from spacy_latent.pipeline.shared_upstream import HeldBatch


class TrainingBatch(HeldBatch):
    """Gradients that arrive for one batch, from any number of listeners."""

    def __init__(self) -> None:
        super().__init__()
        self.backprop: Callable[[list[Floats2d]], object] | None = None
        self.losses: dict[str, float] = {}
        self.name = ""
        self.nothing: list[Floats2d] | None = None
        # Gradients of all docs, concatenated, and the number of rows of each doc.
        self.rows: Floats2d | None = None
        self.lengths: list[int] = []
        self.flushed = False

    def begin(
        self,
        backprop: Callable[[list[Floats2d]], object],
        losses: dict[str, float],
        name: str,
        nothing: list[Floats2d] | None,
    ) -> None:
        """Set the callback and the losses of the batch, once its vectors are computed.

        Args:
            nothing: gradients of 0, if the component learns without listeners; else None.
        """
        self.backprop = backprop
        self.losses = losses
        self.name = name
        self.nothing = nothing

    def receive(self, gradients: Sequence[Floats2d]) -> list[Doc]:
        """Add the gradients of one listener; some listeners may never call this."""
        if len(gradients):
            # Concatenate all docs first: each number that is read synchronizes the GPU. This makes
            # a copy, which is needed, since the listener may still write to its arrays.
            rows: Any = get_array_module(gradients[0]).concatenate(gradients)
            self.losses[self.name] += float((rows**2).sum())
            lengths = [len(d) for d in gradients]
            if self.rows is None:
                self.rows, self.lengths = rows, lengths
            elif lengths == self.lengths:
                self.rows += rows
            else:
                raise ValueError(
                    f"{self.name}: a listener sent gradients for docs of {lengths} tokens; "
                    f"expected gradients for the docs of the batch, of {self.lengths} tokens."
                )
        return []

    def flush(self, complete: bool = True) -> bool:
        """Backpropagate the gradients that arrived, once.

        Args:
            complete: whether no more gradients will arrive. If so, the component learns even if no
                gradient arrived.

        Returns:
            Whether anything was backpropagated.
        """
        self.flush_waiting()
        gradients = self.nothing if complete else None
        if self.rows is not None:
            ends = list(accumulate(self.lengths))
            gradients = [self.rows[end - n : end] for n, end in zip(self.lengths, ends)]
        if gradients is None or self.backprop is None:
            return False
        self.rows = self.nothing = None
        self.flushed = True
        self.backprop(gradients)
        return True

    def __getstate__(self) -> dict[str, Any]:
        # A listener may keep a reference to this batch, and its graph cannot be pickled.
        lost = dict.fromkeys(("backprop", "rows", "nothing"))
        return {**vars(self), **lost, "losses": {}, "waiting": []}
