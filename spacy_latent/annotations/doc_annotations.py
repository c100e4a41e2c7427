"""``doc._.latent``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import srsly
from spacy.tokens import Doc

from spacy_latent.annotations.as_json import to_json
from spacy_latent.annotations.latent_annotation import LatentAnnotation
from spacy_latent.annotations.records import packed, read, unpack
from spacy_latent.errors import LatentError, LatentWarning

EXTENSION = "latent"
# What Doc.from_json reads, beside what is for other programs.
STORED = "stored"


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
        :func:`to_json`, and all that is stored of each component for ``Doc.from_json``, which
        rounded numbers of the best parts would not give back."""
        shown: dict[str, dict[str, Any]] = to_json(self.doc, self)
        whole = {name: {**entry, STORED: packed(self.doc, name)} for name, entry in shown.items()}
        return srsly.json_dumps(whole)

    def __repr__(self) -> str:
        return f"{{{', '.join(f'{name!r}: {value!r}' for name, value in self.items())}}}"


def restore(doc: Doc, value: object) -> None:
    """Put back what ``doc.to_json(underscore=["latent"])`` wrote, or took as it is in memory; so
    that ``Doc.from_json`` does. Warns, with LatentWarning, of a component of which it holds too
    little, as of JSON of an earlier version.

    Raises LatentError for anything else: components write by ``annotations.write``.
    """
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
        except (TypeError, ValueError) as error:
            raise LatentError(
                f"doc._.latent: what is stored of {name!r} cannot be read ({error}). Write the doc "
                "again with doc.to_json(underscore=['latent'])."
            ) from error
        if name not in read(doc):
            lost.append(name)
    if lost:
        warnings.warn(
            f"No structure of {', '.join(map(repr, lost))} is on the doc: its JSON is of other "
            "tokens, or was not written by doc.to_json(underscore=['latent']) of this version. "
            "DocBin(store_user_data=True) and doc.to_bytes() keep structures too.",
            LatentWarning,
            stacklevel=2,
        )


Doc.set_extension(EXTENSION, getter=DocAnnotations, setter=restore, force=True)
