"""The extension attribute ``doc._.latent``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import srsly
from spacy.tokens import Doc

from spacy_latent.annotations.as_json import to_json
from spacy_latent.annotations.latent_annotation import LatentAnnotation
from spacy_latent.annotations.records import is_stored, packed, read, remove, remove_all, unpack
from spacy_latent.errors import LatentError, LatentWarning

EXTENSION = "latent"
# Key of the data that Doc.from_json reads. The other keys of the JSON are for other programs.
STORED = "stored"


class DocAnnotations(Mapping[str, LatentAnnotation]):
    """Mapping from the names of components to their annotations: ``doc._.latent``."""

    def __init__(self, doc: Doc) -> None:
        self.doc = doc
        self._spans = read(doc)

    def __getitem__(self, component: str) -> LatentAnnotation:
        if component not in self._spans:
            there = ", ".join(repr(name) for name in sorted(self._spans)) or "nothing"
            message = f"No latent structure of {component!r} on this doc; it has {there}."
            if is_stored(self.doc, component):
                message += (
                    f" A structure of {component!r} was written, but its tokens have been merged, "
                    "split or cut off since. Read it before a component that does this, such as "
                    "merge_entities, or run the pipeline on the new doc."
                )
            raise KeyError(message)
        return LatentAnnotation(self.doc, component, self._spans[component])

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __json__(self) -> str:
        """Return the annotations as JSON, for srsly and ``doc.to_json(underscore=["latent"])``.

        It is the result of :func:`to_json` with the complete stored data of each component, which
        ``Doc.from_json`` reads: the rounded numbers of the best parts do not restore them.
        """
        shown: dict[str, dict[str, Any]] = to_json(self.doc, self)
        whole = {name: {**entry, STORED: packed(self.doc, name)} for name, entry in shown.items()}
        return srsly.json_dumps(whole)

    def __repr__(self) -> str:
        return repr(dict(self))


def restore(doc: Doc, value: object) -> None:
    """Restore the structures that ``doc.to_json(underscore=["latent"])`` wrote.

    ``Doc.from_json`` calls this function. It also accepts a :class:`DocAnnotations` from memory. It
    warns with LatentWarning about a component whose stored data are incomplete, such as JSON of an
    earlier version. None removes all structures, as in the ``attrs`` of spaCy's ``doc_cleaner``.

    Raises:
        LatentError: If the value is anything else; components write by ``annotations.write``.
    """
    if value is None:
        remove_all(doc)
        return
    if not isinstance(value, Mapping):
        raise LatentError(
            f"doc._.latent is set to {value!r}; expected what doc.to_json(underscore=['latent']) "
            "gives. To put structures on a doc, use spacy_latent.annotations.write."
        )
    lost = []
    for name, entry in value.items():
        text = entry.get(STORED) if isinstance(entry, Mapping) else None
        if isinstance(value, DocAnnotations):
            text = packed(value.doc, name)
        try:
            if text is not None:
                unpack(doc, name, text)
            if name not in read(doc):
                lost.append(name)
        except Exception as error:
            # The text may be anything, and so may the values in it.
            remove(doc, name)
            raise LatentError(
                f"doc._.latent: the stored structures of {name!r} cannot be read "
                f"({type(error).__name__}: {error}). Write the doc again with "
                "doc.to_json(underscore=['latent'])."
            ) from error
    if lost:
        warnings.warn(
            f"The structures of {', '.join(map(repr, lost))} were not read: the JSON has other "
            "tokens, or was not written by doc.to_json(underscore=['latent']) of this version. "
            "DocBin(store_user_data=True) and doc.to_bytes() keep structures too.",
            LatentWarning,
            stacklevel=2,
        )


Doc.set_extension(EXTENSION, getter=DocAnnotations, setter=restore, force=True)
