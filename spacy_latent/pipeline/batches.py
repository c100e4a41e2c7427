"""How components go through a stream of docs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from spacy.pipeline.trainable_pipe import TrainablePipe
from spacy.tokens import Doc
from spacy.training.batchers import minibatch_by_padded_size
from spacy.util import minibatch

# Words of docs that are predicted at once on a CPU, padding counted. Of 1,024, 2,048, 4,096 and
# all, this was the fastest or nearly so, over a pre-trained encoder and over HashEmbedCNN.
WORDS = 2048


class BatchedComponent(TrainablePipe):
    """A component that predicts and annotates in batches."""

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Apply the component to a stream. A doc that fails goes to the error handler alone; the
        others of its batch go on."""
        for docs in minibatch(stream, size=batch_size):
            docs = list(docs)
            again: set[int] = set()
            for part in self._parts(docs):
                try:
                    self.set_annotations(part, self.predict(part))
                except Exception:
                    again.update(map(id, part))
            docs = [doc for doc in docs if id(doc) not in again or _annotate(self, doc)]
            yield from docs

    def _parts(self, docs: list[Doc]) -> Iterable[list[Doc]]:
        """Docs of similar length, so that a pre-trained encoder pads little and a processor's cache
        has room for what it makes of them. A GPU is not kept waiting by many small batches."""
        if self.model.ops.device_type != "cpu":
            return [docs]
        return map(list, minibatch_by_padded_size(docs, WORDS, buffer=len(docs)))


def _annotate(component: Any, doc: Doc) -> bool:
    try:
        component.set_annotations([doc], component.predict([doc]))
    except Exception as error:
        component.get_error_handler()(component.name, component, [doc], error)
        return False
    return True
