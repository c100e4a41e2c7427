"""``doc._.latent``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import srsly
from spacy.tokens import Doc

from spacy_latent.annotations.as_json import to_json
from spacy_latent.annotations.latent_annotation import LatentAnnotation
from spacy_latent.annotations.records import read

EXTENSION = "latent"


class DocAnnotations(Mapping[str, LatentAnnotation]):
    """``doc._.latent``: annotations by the name of the component."""

    def __init__(self, doc: Doc) -> None:
        self.doc = doc
        self._spans = read(doc)

    def __getitem__(self, component: str) -> LatentAnnotation:
        if component not in self._spans:
            there = ", ".join(repr(name) for name in sorted(self._spans)) or "nothing"
            raise KeyError(f"No latent structure of {component!r} on this doc; it has {there}.")
        return LatentAnnotation(self.doc, component, self._spans[component])

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __json__(self) -> str:
        """For srsly, and so for ``doc.to_json(underscore=["latent"])`` and what writes that: as
        :func:`to_json`."""
        return srsly.json_dumps(to_json(self.doc, self))

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: {value!r}' for name, value in self.items())}}}"


Doc.set_extension(EXTENSION, getter=DocAnnotations, force=True)
