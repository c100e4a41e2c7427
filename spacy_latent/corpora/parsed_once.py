"""Reader for ``spacy train`` whose docs a frozen parser parses once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from spacy_latent.errors import LatentError, check_texts

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import DocBin
    from spacy.training import Example

BATCH = 256
DAY = 24 * 60 * 60
# Attributes of a parse. The first tokens of sentences follow from the heads.
KEPT = ("HEAD", "DEP")

# Parsed corpora of each pipeline. They are shared, since "spacy train" makes one reader for
# initialization and another one for training.
_parsed: WeakKeyDictionary[Language, dict[ParsedOnce, DocBin]] = WeakKeyDictionary()


class ParsedOnce:
    """Examples of a corpus whose predicted docs have the heads of frozen components.

    Components of ``training.annotating_components`` run over every batch of every epoch. A frozen
    component gives the same result each time. This reader runs it over each text once, when the
    corpus is first read for a pipeline. It keeps heads and their labels, from which sentences
    follow, but no other annotation.
    """

    def __init__(
        self,
        read: Callable[[Language], Iterable[Example]],
        components: Sequence[str],
        keep: Path | None = None,
        settings: tuple[object, ...] = (),
    ) -> None:
        self.read = read
        self.components = tuple(components)
        self.keep = keep
        self._same = (self.components, keep, *settings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ParsedOnce) and self._same == other._same

    def __hash__(self) -> int:
        return hash(self._same)

    def __call__(self, nlp: Language) -> Iterator[Example]:
        """Yield the examples; the first call for a pipeline parses all of them."""
        from spacy.training import Example

        known = _parsed.setdefault(nlp, {})
        if self not in known:
            known[self] = self._docs(nlp, list(self.read(nlp)))
        docs = known[self].get_docs(nlp.vocab)
        for example, doc in zip(self.read(nlp), docs, strict=True):
            yield Example(doc, example.reference)

    def _docs(self, nlp: Language, examples: Sequence[Example]) -> DocBin:
        from spacy.tokens import DocBin

        pipes = [self._pipe(nlp, name) for name in self.components]
        path = None
        if self.keep is not None:
            path = self.keep / f"{_digest(nlp, pipes, examples)}.spacy"
            if path.exists():
                try:
                    return DocBin().from_disk(path)
                except Exception as error:
                    raise LatentError(
                        f"ParsedOnce: {path} cannot be read ({type(error).__name__}: {error}). "
                        "It is damaged. Delete it to annotate the texts again."
                    ) from error
        docs: Iterable[Any] = (example.predicted for example in examples)
        for pipe in pipes:
            docs = pipe.pipe(docs, batch_size=BATCH)
        found = DocBin(attrs=KEPT, docs=docs)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Rename the finished file, so that other processes never read an incomplete one. The
            # temporary name is random, since processes in two containers may have the same id.
            unfinished = path.with_suffix(f".{uuid4().hex}")
            try:
                found.to_disk(unfinished)
                unfinished.replace(path)
            finally:
                unfinished.unlink(missing_ok=True)
            _remove_unfinished(path)
        return found

    def _pipe(self, nlp: Language, name: str) -> Any:
        frozen = nlp.config["training"]["frozen_components"]
        if name not in nlp.component_names or name not in frozen:
            raise LatentError(
                f"ParsedOnce: {name!r} is the component that annotates each text once; the "
                f"components are {', '.join(nlp.component_names) or 'none'}, and frozen are "
                f"{', '.join(frozen) or 'none'}. Add it to nlp.pipeline and to "
                "training.frozen_components. If it is trained, its annotations change: add it "
                "to training.annotating_components instead, and use another reader."
            )
        return nlp.get_pipe(name)


def _remove_unfinished(path: Path) -> None:
    """Remove unfinished files next to a file, whose writers were killed at least a day ago."""
    for rest in path.parent.glob(f"{path.stem}.*"):
        with suppress(OSError):
            if rest != path and time.time() - rest.stat().st_mtime > DAY:
                rest.unlink()


def _digest(nlp: Language, pipes: Iterable[Any], examples: Iterable[Example]) -> str:
    """Return a digest of everything that determines the heads: components, weights and words."""
    digest = hashlib.sha256()
    for pipe in pipes:
        digest.update(pipe.to_bytes(exclude=["vocab"]))
    digest.update(nlp.vocab.vectors.to_bytes() if len(nlp.vocab.vectors) else b"")
    for example in examples:
        words = [token.text_with_ws for token in example.predicted]
        digest.update("\0".join([*words, "\n"]).encode("utf8", "surrogatepass"))
    return digest.hexdigest()[:32]


def read_parsed_once_v1(
    path: str | Path | None,
    components: Sequence[str] = ("latent_parser",),
    keep: str | Path | None = None,
    max_length: int = 0,
    limit: int = 0,
) -> Callable[[Language], Iterable[Example]]:
    """Read docs with the heads of a frozen parser, parsed once and not in every epoch.

    It is a reader for ``spacy train``, for ``GivenTrees`` with ``trees = "heads"``.

    Args:
        path, max_length, limit: as in ``spacy.Corpus.v1``: a file of docs (.spacy) or a directory
            of them; the largest number of tokens of a doc; and the largest number of docs. 0 for
            any number.
        components: names of the components that annotate, in their order. All must be in
            ``training.frozen_components``, and not in ``training.annotating_components``.
        keep: directory that stores the heads for further trainings, under a digest of the
            components, their weights and the words of the corpus.
    """
    from spacy.training import Corpus

    check_texts("ParsedOnce", components=components)
    if path is None or not Path(path).exists():
        raise LatentError(
            f"ParsedOnce: the corpus {path} does not exist. Give the right one, for example with "
            "--paths.train."
        )
    corpus = Corpus(path, max_length=max_length, limit=limit)
    folder = None if keep is None else Path(keep)
    return ParsedOnce(corpus, components, folder, (Path(path), max_length, limit))
