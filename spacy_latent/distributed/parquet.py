"""Annotated docs as rows of Parquet, and the reverse conversion.

A row is a doc, or a text that failed, with its error. ``latent`` holds the exact content of
``doc._.latent``; :func:`schema` lists the other columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from spacy.attrs import ENT_IOB
from spacy.tokens import Doc, Span
from spacy.training import Example

from spacy_latent.annotations import DocAnnotations, SpanStructure, write
from spacy_latent.distributed.parquet_columns import (
    ATTRIBUTES,
    EntityColumns,
    Lists,
    Names,
    SpanColumns,
    TokenColumns,
    pyarrow,
    structs,
)
from spacy_latent.distributed.parquet_columns import schema as schema
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from pyarrow import Table
    from spacy.language import Language
    from spacy.vocab import Vocab

# Number of docs read at once. More of them would need many Python objects at a time.
READ_AT_ONCE = 256


@dataclass
class Row:
    """Text with its annotation or its error.

    Attributes:
        text: Text in the corpus. The column has the text of the doc if there is one, because a
            tokenizer may change the text.
        doc: Annotated doc, or None.
        error: Reason why there is no doc, or None.
    """

    id: str
    text: str
    doc: Doc | None = None
    error: str | None = None


def to_table(rows: Sequence[Row], model: tuple[str, str, str] = ("", "", "")) -> Table:
    """Return a ``pyarrow.Table`` of these rows with the columns of :func:`schema`.

    Args:
        model: Name, version and hash of the pipeline.
    """
    pa, columns = pyarrow(), schema()
    there = np.array([row.doc is not None for row in rows], dtype="bool")
    attributes = [np.empty((0, len(ATTRIBUTES)), dtype="uint64")]
    cats, cat_labels, scores = Lists(), Names(), list[float]()
    ents, components, component_names, latent = EntityColumns(), Lists(), Names(), SpanColumns()
    for row in rows:
        doc = row.doc
        if doc is None:
            for column in (cats, ents, components, latent):
                column.add(None)
            continue
        attributes.append(doc.to_array(ATTRIBUTES).reshape(-1, len(ATTRIBUTES)))
        cats.add(len(doc.cats))
        cat_labels.extend(doc.cats)
        scores.extend(doc.cats.values())
        ents.append(doc)
        written = DocAnnotations(doc)
        components.add(len(written))
        component_names.extend(written)
        spans = [(name, span) for name, found in written.items() for span in found.spans]
        latent.add(len(spans))
        for name, span in spans:
            latent.append(name, span)
    lengths = np.zeros(len(rows), dtype="int64")
    lengths[there] = [len(array) for array in attributes[1:]]
    tokens = TokenColumns(np.concatenate(attributes), lengths, there)
    ents.nulls = (~there | ~tokens.any_of(ENT_IOB)).tolist()
    strings = next((row.doc.vocab.strings for row in rows if row.doc is not None), None)
    texts = [
        row.text if row.doc is None else text for row, text in zip(rows, tokens.texts(strings))
    ]

    def around(lists: Lists, name: str, *parts: Any) -> Any:
        inner = columns.field(name).type.value_type
        return lists.around(structs([pa.array(part) for part in parts], inner))

    return pa.Table.from_arrays(
        [
            pa.array([row.id for row in rows], pa.string()),
            pa.array(texts, pa.string()),
            around(tokens.lists(there), "tokens", tokens.starts, tokens.ends),
            tokens.sentences(),
            around(cats, "cats", cat_labels.build(), np.array(scores, dtype="float64")),
            around(ents, "ents", *ents.build()),
            components.around(component_names.build()),
            latent.build(columns.field("latent").type.value_type),
            *(pa.repeat(value, len(rows)) for value in model),
            pa.array([row.error for row in rows], pa.string()),
        ],
        schema=columns,
    )


def read_rows(path: Path | str, vocab: Vocab) -> Iterator[Row]:
    """Yield the rows of a file of :func:`to_table`, or of all such files below a directory.

    The files are sorted by name. The docs have everything that the columns hold.
    """
    pa = pyarrow()
    for file in parquet_files(Path(path)):
        with pa.parquet.ParquetFile(file) as opened:
            missing = set(schema().names) - set(opened.schema_arrow.names)
            if missing:
                raise LatentError(
                    f"{file} has no column {', '.join(sorted(missing))}. Expected a file that "
                    "'spacy latent annotate' wrote; its --format is parquet."
                )
            for batch in opened.iter_batches(READ_AT_ONCE):
                for entry in batch.to_pylist():
                    doc = None if entry["tokens"] is None else _to_doc(vocab, entry)
                    yield Row(entry["id"], entry["text"], doc, entry["error"])


def parquet_files(path: Path) -> list[Path]:
    """Return the file, or the files of a directory by name, except for hidden temporary files."""
    if not path.exists():
        raise LatentError(f"{path} does not exist. Give a .parquet file, or a directory of these.")
    if path.is_file():
        return [path]
    found = sorted(file for file in path.rglob("*.parquet") if not file.name.startswith("."))
    if not found:
        raise LatentError(f"{path} holds no .parquet files. Give a directory with some.")
    return found


def _to_doc(vocab: Vocab, entry: dict[str, Any]) -> Doc:
    text, places = entry["text"], [(t["start"], t["end"]) for t in entry["tokens"]]
    # spaCy has one space or no space between tokens.
    spaces = [text[end : end + 1] == " " for _, end in places]
    follows = [start for start, _ in places[1:]] + [len(text)]
    spaces = [space and end < next_ for space, (_, end), next_ in zip(spaces, places, follows)]
    starts = None if entry["sent_starts"] is None else set(entry["sent_starts"])
    doc = Doc(
        vocab,
        words=[text[start:end] for start, end in places],
        spaces=spaces,
        sent_starts=None if starts is None else [i in starts for i in range(len(places))],
    )
    doc.cats = {cat["label"]: cat["score"] for cat in entry["cats"]}
    if entry["ents"] is not None:
        ents = [Span(doc, ent["start"], ent["end"], ent["label"]) for ent in entry["ents"]]
        doc.set_ents(ents, default="outside")
    for component in entry["components"]:
        spans = [_to_span(span) for span in entry["latent"] if span["component"] == component]
        write(doc, component, spans)
    return doc


def _to_span(entry: dict[str, Any]) -> SpanStructure:
    shape, labels = entry["decoded_shape"], entry["labels"]

    def rows(values: Any, dtype: str, width: int) -> Any:
        return None if values is None else np.array(values, dtype=dtype).reshape(-1, width)

    def flat(values: Any, dtype: str) -> Any:
        return None if values is None else np.array(values, dtype=dtype)

    def decoded(values: Any) -> np.ndarray:
        found = np.array(values, dtype="int32")
        return found.reshape(-1, *shape) if found.size else np.empty((0, *shape), dtype="int32")

    others = entry["alternatives"]
    return SpanStructure(
        entry["start"],
        entry["end"],
        entry["structure"],
        entry["kind"],
        decoded(entry["decoded"]),
        parts=rows(entry["parts"], "int32", entry["part_axes"]),
        alternatives=[(decoded(other["decoded"]), other["weight"]) for other in others],
        labels=None if labels is None else tuple(labels),
        other_start=entry["other_start"],
        other_end=entry["other_end"],
        counters=flat(entry["counters"], "float32"),
        labelled_parts=rows(entry["labelled_parts"], "int32", 3),
        alternative_labels=_known(others, "arc_labels", "int32"),
        alternative_probabilities=_known(others, "entity_probabilities", "float32"),
        possible=rows(entry["possible"], "int32", 3),
        # Files of earlier versions do not have all of these columns.
        entities_calibrated=bool(entry.get("entities_calibrated")),
        **{name: entry.get(name) for name in SpanColumns.REALS},
        **{name: flat(entry[name], dtype) for name, dtype in SpanColumns.FLAT},
    )


def _known(alternatives: Sequence[dict[str, Any]], field: str, dtype: str) -> list[np.ndarray]:
    return [np.array(a[field], dtype=dtype) for a in alternatives if a[field] is not None]


def read_annotated_v1(path: Path | None, limit: int = 0) -> Callable[[Language], Iterable[Example]]:
    """Read the Parquet files of ``spacy latent annotate`` as a corpus of ``spacy train``.

    Sentences, categories, entities and ``doc._.latent`` are the reference. Texts that failed are
    left out.

    Args:
        path: A .parquet file, or a directory with such files.
        limit: Number of docs to read; 0, or a negative number, for all.
    """

    def read_corpus(nlp: Language) -> Iterator[Example]:
        if path is None:
            raise LatentError(
                "The path of annotated docs is missing. Give it, for example with --paths.train."
            )
        docs = (row.doc for row in read_rows(path, nlp.vocab) if row.doc is not None)
        for doc in islice(docs, limit if limit > 0 else None):
            words = [token.text for token in doc]
            spaces = [bool(token.whitespace_) for token in doc]
            yield Example(Doc(nlp.vocab, words=words, spaces=spaces), doc)

    return read_corpus
