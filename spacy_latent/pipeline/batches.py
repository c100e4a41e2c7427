"""How components go through a stream of docs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from spacy.pipeline.trainable_pipe import TrainablePipe
from spacy.tokens import Doc
from spacy.training.batchers import minibatch_by_padded_size
from spacy.util import minibatch

# Words of docs that are predicted at once on a CPU, padding counted: without a transformer, and
# with one of its own, whose vectors are wider. Of 512, 1,024, 2,048, 4,096 and all these were the
# fastest or nearly so, of HashEmbedCNN and of a small pre-trained encoder.
WORDS = 2048
TRANSFORMED_WORDS = 512


class BatchedComponent(TrainablePipe):
    """A component that predicts and annotates in batches."""

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Apply the component to a stream. A doc that fails goes to the error handler alone; the
        others of its batch go on."""
        words = self._words_at_once()
        for docs in minibatch(stream, size=batch_size):
            docs = list(docs)
            again: set[int] = set()
            # Of similar length: a pre-trained encoder pads little.
            parts = minibatch_by_padded_size(docs, words, buffer=len(docs)) if words else [docs]
            for part in map(list, parts):
                try:
                    self.set_annotations(part, self.predict(part))
                except Exception:
                    again.update(map(id, part))
            docs = [doc for doc in docs if id(doc) not in again or _annotate(self, doc)]
            yield from docs

    def _words_at_once(self) -> int | None:
        """What a processor's cache has room for; None on a GPU, which many small batches would keep
        waiting."""
        if self.model.ops.device_type != "cpu":
            return None
        # As spacy-transformers calls its own. What listens to one finds vectors that are made.
        transformed = any("transformer" in node.name.split(">>") for node in self.model.walk())
        return TRANSFORMED_WORDS if transformed else WORDS


def _annotate(component: Any, doc: Doc) -> bool:
    try:
        component.set_annotations([doc], component.predict([doc]))
    except Exception as error:
        component.get_error_handler()(component.name, component, [doc], error)
        return False
    return True
