"""How components go through a stream of docs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from spacy.pipeline.trainable_pipe import TrainablePipe
from spacy.tokens import Doc
from spacy.util import minibatch


class BatchedComponent(TrainablePipe):
    """A component that predicts and annotates in batches."""

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Apply the component to a stream. A doc that fails goes to the error handler alone; the
        others of its batch go on."""
        for docs in minibatch(stream, size=batch_size):
            docs = list(docs)
            try:
                self.set_annotations(docs, self.predict(docs))
            except Exception:
                docs = [doc for doc in docs if _annotate(self, doc)]
            yield from docs


def _annotate(component: Any, doc: Doc) -> bool:
    try:
        component.set_annotations([doc], component.predict([doc]))
    except Exception as error:
        component.get_error_handler()(component.name, component, [doc], error)
        return False
    return True
