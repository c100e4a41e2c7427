"""How components go through a stream of docs."""

from collections.abc import Iterable, Iterator
from typing import Any

from spacy.tokens import Doc
from spacy.util import minibatch


def annotate_stream(component: Any, stream: Iterable[Doc], batch_size: int) -> Iterator[Doc]:
    """Predict and annotate in batches. A doc that fails goes to the error handler alone; the others
    of its batch go on."""
    for docs in minibatch(stream, size=batch_size):
        docs = list(docs)
        try:
            component.set_annotations(docs, component.predict(docs))
        except Exception:
            docs = [doc for doc in docs if _annotate(component, doc)]
        yield from docs


def _annotate(component: Any, doc: Doc) -> bool:
    try:
        component.set_annotations([doc], component.predict([doc]))
    except Exception as error:
        component.get_error_handler()(component.name, component, [doc], error)
        return False
    return True
