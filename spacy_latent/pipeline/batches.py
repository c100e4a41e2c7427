"""Processing of a stream of docs in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from spacy.pipeline.trainable_pipe import TrainablePipe
from spacy.tokens import Doc
from spacy.training.batchers import minibatch_by_padded_size
from spacy.util import minibatch

# Number of words of a batch on a CPU, including padding. The second is for components with a
# transformer of their own, whose vectors are wider. These were about the fastest of 512, 1,024,
# 2,048, 4,096 and all words, with HashEmbedCNN and with a small pre-trained encoder.
WORDS = 2048
TRANSFORMED_WORDS = 512


class BatchedComponent(TrainablePipe):
    """Component that predicts and annotates in batches."""

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Apply the component to a stream.

        If a batch fails, its docs are processed one by one. Docs that fail then go to the error
        handler.
        """
        words = self._words_at_once()
        for docs in minibatch(stream, size=batch_size):
            docs = list(docs)
            again: set[int] = set()
            # Docs of similar length, so that a pre-trained encoder has little padding.
            parts = minibatch_by_padded_size(docs, words, buffer=len(docs)) if words else [docs]
            for part in map(list, parts):
                try:
                    self.set_annotations(part, self.predict(part))
                except Exception:
                    again.update(map(id, part))
            docs = [doc for doc in docs if id(doc) not in again or _annotate(self, doc)]
            yield from docs

    def _words_at_once(self) -> int | None:
        """Return the number of words, with padding, whose batch fits the cache; None on a GPU."""
        if self.model.ops.device_type != "cpu":
            return None
        # The name of models of spacy-transformers. Listeners use vectors that already exist.
        transformed = any("transformer" in node.name.split(">>") for node in self.model.walk())
        return TRANSFORMED_WORDS if transformed else WORDS


def _annotate(component: Any, doc: Doc) -> bool:
    try:
        component.set_annotations([doc], component.predict([doc]))
    except Exception as error:
        component.get_error_handler()(component.name, component, [doc], error)
        return False
    return True
