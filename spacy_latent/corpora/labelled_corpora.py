"""A reader for ``spacy train`` over several corpora, each annotated for labels of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spacy_latent.errors import LatentError, is_whole

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.training import Example


def read_labelled_corpora_v1(
    paths: Sequence[str | Path],
    labels: Sequence[Sequence[str] | None],
    repeats: Sequence[int] | None = None,
    max_length: int = 0,
) -> Callable[[Language], Iterable[Example]]:
    """Reader for ``spacy train`` over corpora that were annotated for different labels of entities,
    one after the other. ``crf_ner`` takes a token outside of entities for one that may belong to an
    entity of a label that its corpus was not annotated for.

    paths: of each corpus, a file of docs (.spacy) or a directory of them.
    labels: those that it was annotated for, as a list of names, or null for all. Docs that have
        ``doc._.annotated_labels`` already keep them.
    repeats: how often each corpus is read, so that a small one counts for more; null for once.
    max_length: the most tokens of a doc; longer ones are left out, since their sentences would not
        have the labels. 0 for any.
    """
    files, times = [Path(path) for path in paths], repeats or [1] * len(paths)
    if not files or len(files) != len(labels) or len(files) != len(times):
        raise LatentError(
            f"LabelledCorpora: there are {len(files)} paths, {len(labels)} sets of labels and "
            f"{len(times)} repeats; expected as many of each, at least one."
        )
    for path, own, count in zip(files, labels, times):
        if not path.exists():
            raise LatentError(f"LabelledCorpora: the corpus {path} does not exist.")
        names = isinstance(own, (list, tuple)) and all(isinstance(one, str) for one in own)
        if own is not None and not names:
            raise LatentError(
                f"LabelledCorpora: the labels of {path} are {own!r}; expected a list of names, or "
                "null where it was annotated for all."
            )
        if not is_whole(count, 1):
            raise LatentError(
                f"LabelledCorpora: {path} is to be read {count!r} times; expected a whole number "
                "of at least 1."
            )

    def read(nlp: Language) -> Iterable[Example]:
        from spacy.training import Corpus

        from spacy_latent.annotations import annotated_labels

        for path, own, count in zip(files, labels, times):
            for _ in range(count):
                for example in Corpus(path)(nlp):
                    reference = example.reference
                    if max_length and len(reference) > max_length:
                        continue
                    if own is not None and annotated_labels(reference) is None:
                        reference._.annotated_labels = list(own)
                    yield example

    return read


__all__ = ["read_labelled_corpora_v1"]
