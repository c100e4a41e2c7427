"""Reader for ``spacy train`` over several corpora, each annotated for its own labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacy_latent.errors import LatentError, is_whole

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.training import Example

EXPECTED = ("path", "labels", "repeat")


def read_labelled_corpora_v1(
    corpora: Mapping[str, Mapping[str, Any]], max_length: int = 0
) -> Callable[[Language], Iterable[Example]]:
    """Read corpora that were annotated for different labels of entities, one after the other.

    It is a reader for ``spacy train``. For ``crf_ner``, a token outside of entities may belong to
    an entity with a label for which its corpus was not annotated.

    Args:
        corpora: a block for each corpus, under any name. Its ``path`` is a file of docs (.spacy) or
            a directory of them. Its ``labels`` are a list of the names for which it was annotated,
            or null for all (the default). Docs that already have ``doc._.annotated_labels`` keep
            them. Its ``repeat`` is the number of times it is read, 1 by default, so that a small
            corpus gets more weight.
        max_length: largest number of tokens of a doc, 0 for any. Longer docs are left out, since
            their sentences would not have the labels.
    """
    if not isinstance(corpora, Mapping) or not corpora:
        raise LatentError(
            f"LabelledCorpora: corpora is {corpora!r}; expected a block for each corpus, with "
            "path, labels and repeat."
        )
    read: list[tuple[Path, list[str] | None, int]] = []
    for name, block in corpora.items():
        unknown = set(block) - set(EXPECTED) if isinstance(block, Mapping) else {str(block)}
        if unknown or block.get("path") is None:
            given = f"has {min(unknown)!r}" if unknown else "has no path"
            raise LatentError(
                f"LabelledCorpora: the block {name!r} {given}; expected path, and perhaps labels "
                "and repeat."
            )
        path, own, count = Path(block["path"]), block.get("labels"), block.get("repeat", 1)
        names = isinstance(own, (list, tuple)) and all(isinstance(one, str) for one in own)
        if own is not None and not names:
            raise LatentError(
                f"LabelledCorpora: {name}: the labels are {own!r}; expected a list of names, or "
                "null where the corpus was annotated for all."
            )
        if not is_whole(count, 1):
            raise LatentError(
                f"LabelledCorpora: {name}: repeat is {count!r}; expected a whole number of at "
                "least 1."
            )
        read.append((path, None if own is None else list(own), int(count)))

    def examples(nlp: Language) -> Iterable[Example]:
        from spacy.training import Corpus

        from spacy_latent.annotations import annotated_labels

        for path, own, count in read:
            # Checked here, since a config is also read on machines without its corpora.
            if not path.exists():
                raise LatentError(f"LabelledCorpora: the corpus {path} does not exist.")
            for _ in range(count):
                for example in Corpus(path)(nlp):
                    reference = example.reference
                    if max_length and len(reference) > max_length:
                        continue
                    if own is not None and annotated_labels(reference) is None:
                        reference._.annotated_labels = list(own)
                    yield example

    return examples


__all__ = ["read_labelled_corpora_v1"]
