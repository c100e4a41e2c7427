"""Reader for ``spacy train`` over several corpora, each annotated for its own labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import warn

from spacy_latent.annotations.settings import check_group
from spacy_latent.corpora.annotated_lines import annotated_rows, read_line, span_keys
from spacy_latent.corpora.doc_files import stored_docs
from spacy_latent.errors import LatentError, LatentWarning, check_whole, is_whole, number_of

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc
    from spacy.training import Example

EXPECTED = ("path", "labels", "repeat", "unmarked", "incorrect_spans_key")
UNMARKED = ("outside", "missing")
DOCS, LINES = ".spacy", (".jsonl", ".json")


@dataclass(frozen=True)
class _Corpus:
    """One block of the reader."""

    path: Path
    labels: list[str] | None
    repeat: int
    unmarked: str | None
    rejected: str | None

    @classmethod
    def of_block(cls, name: str, block: Mapping[str, Any]) -> _Corpus:
        """Read and check the settings of a block."""
        unknown = set(block) - set(EXPECTED) if isinstance(block, Mapping) else {str(block)}
        if unknown or block.get("path") is None:
            given = f"has {min(unknown)!r}" if unknown else "has no path"
            raise LatentError(
                f"LabelledCorpora: the block {name!r} {given}; expected path, and optionally "
                f"{', '.join(EXPECTED[1:])}."
            )
        place, own, count = block["path"], block.get("labels"), block.get("repeat", 1)
        if not isinstance(place, (str, Path)) or not str(place):
            raise LatentError(
                f"LabelledCorpora: {name}: path is {place!r}; expected a file, or a directory of "
                ".spacy files."
            )
        names = isinstance(own, (list, tuple)) and all(isinstance(o, str) and o for o in own)
        if own is not None and not names:
            raise LatentError(
                f"LabelledCorpora: {name}: the labels are {own!r}; expected a list of names, or "
                "null if the corpus was annotated for all."
            )
        if not is_whole(count, 1):
            raise LatentError(
                f"LabelledCorpora: {name}: repeat is {count!r}; expected a whole number of at "
                "least 1."
            )
        unmarked, rejected = block.get("unmarked"), block.get("incorrect_spans_key")
        if unmarked is not None and unmarked not in UNMARKED:
            raise LatentError(
                f"LabelledCorpora: {name}: unmarked is {unmarked!r}; expected one of {UNMARKED}."
            )
        check_group(f"LabelledCorpora: {name}", or_null=True, incorrect_spans_key=rejected)
        return cls(Path(place), None if own is None else list(own), int(count), unmarked, rejected)

    def examples(self, nlp: Language) -> Iterator[Example]:
        if self.path.suffix not in LINES:
            from spacy.training import Corpus
            from spacy.training.corpus import walk_corpus

            corpus = Corpus(self.path)
            for file in walk_corpus(self.path, DOCS):
                docs = (doc for doc in stored_docs(file, nlp.vocab) if len(doc))
                for example in corpus.make_examples(nlp, docs):
                    self._mark(example.reference, False)
                    yield example
            return
        misaligned: list[str] = []
        left_out: list[str] = []
        keys = span_keys(nlp)
        for place, row in annotated_rows(self.path):
            line = read_line(nlp, row, f"{self.path}, {place}", keys, self.rejected)
            misaligned += [f"in {place} {span}" for span in line.misaligned]
            # Groups of spans cannot mark tokens as unannotated: a single judged span would count as
            # complete annotation.
            if line.example is None or (keys and line.is_partial):
                left_out.append(place)
                continue
            self._mark(line.example.reference, line.is_partial or bool(line.misaligned))
            yield line.example
        if left_out:
            warn(
                f"LabelledCorpora: {number_of(len(left_out), 'text')} of {self.path} left out, "
                f"first {left_out[0]}: they are not annotated, or rejected or ignored, or only a "
                "single span was accepted or rejected, which components of overlapping spans "
                "cannot use. Rejected entities are read if incorrect_spans_key is set.",
                LatentWarning,
                stacklevel=2,
            )
        if misaligned:
            warn(
                f"LabelledCorpora: {len(misaligned)} span(s) of {self.path} do not begin and end "
                "where tokens do. The tokens of such an entity count as not annotated; groups "
                f"of spans lack such a span. The first is {misaligned[0]}.",
                LatentWarning,
                stacklevel=2,
            )

    def _mark(self, reference: Doc, has_missing: bool) -> None:
        """Write to the doc whether its tokens outside of entities are annotated.

        Args:
            has_missing: whether tokens that were read as unannotated stay unannotated.
        """
        rejected = self.rejected is not None and self.rejected in reference.spans
        if self.unmarked is None or rejected:
            return
        missing = [reference[t.i : t.i + 1] for t in reference if t.ent_iob == 0]
        reference.set_ents(
            list(reference.ents), missing=missing if has_missing else [], default=self.unmarked
        )

    def prepare(self, reference: Doc) -> None:
        """Write to the doc for which labels it was annotated, and where its rejected spans are."""
        from spacy_latent.annotations import annotated_labels, name_rejected

        if self.rejected is not None and self.rejected in reference.spans:
            name_rejected(reference, self.rejected)
        if self.labels is not None and annotated_labels(reference) is None:
            reference._.annotated_labels = list(self.labels)


def read_labelled_corpora_v1(
    corpora: Mapping[str, Mapping[str, Any]], max_length: int = 0
) -> Callable[[Language], Iterable[Example]]:
    """Read corpora that were annotated for different labels of entities, one after the other.

    It is a reader for ``spacy train``. For ``crf_ner``, a token outside of entities may belong to
    an entity with a label for which its corpus was not annotated.

    Args:
        corpora: a block for each corpus, under any name. ``path`` in it is a file of docs (.spacy),
            a directory of such files, or a file that Prodigy, doccano or Label Studio exported
            (.jsonl or .json). ``labels`` is a list of the names for which the corpus was annotated,
            or null for all (the default). Docs that already have ``doc._.annotated_labels`` keep
            them. ``repeat`` is the number of times that the corpus is read, 1 by default, so that a
            small corpus gets more weight. ``unmarked`` is the annotation of a token outside of
            entities, "outside" or "missing"; by default the file decides. ``incorrect_spans_key``
            is the group of ``doc.spans`` for the spans of lines with the answer "reject". Without
            it, such lines are left out.
        max_length: largest number of tokens of a doc, 0 for any. Longer docs are left out:
            splitting them into sentences would lose the labels for which they were annotated.
    """
    if not isinstance(corpora, Mapping) or not corpora:
        raise LatentError(
            f"LabelledCorpora: corpora is {corpora!r}; expected a block for each corpus, with "
            "path, labels and repeat."
        )
    check_whole("LabelledCorpora", 0, max_length=max_length)
    read = [_Corpus.of_block(name, block) for name, block in corpora.items()]

    def examples(nlp: Language) -> Iterable[Example]:
        for own in read:
            # Checked here, since a config is also read on machines without its corpora.
            if not own.path.exists():
                raise LatentError(f"LabelledCorpora: the corpus {own.path} does not exist.")
            if own.path.is_file() and own.path.suffix not in (DOCS, *LINES):
                raise LatentError(
                    f"LabelledCorpora: the corpus {own.path} is no file of {DOCS}, "
                    f"{' or '.join(LINES)}. Convert it: 'python -m spacy convert' reads tokens "
                    "with tags, and writes .spacy."
                )
            for _ in range(own.repeat):
                for example in own.examples(nlp):
                    if max_length and len(example.reference) > max_length:
                        continue
                    own.prepare(example.reference)
                    yield example

    return examples
