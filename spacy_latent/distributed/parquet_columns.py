"""Columns of annotated docs, built from the arrays of many docs at once.

Creating an object for each token or part would take more time than the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from spacy.attrs import ENT_IOB, IDX, LENGTH, ORTH, SENT_START, SPACY
from spacy.tokens import Doc

from spacy_latent.annotations import SpanStructure
from spacy_latent.confidence import confidences
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from pyarrow import Schema

# Attributes of the tokens in one array. Doc.text and Doc.has_annotation would create an object for
# each token.
ATTRIBUTES = [IDX, LENGTH, SENT_START, ENT_IOB, ORTH, SPACY]


def pyarrow() -> ModuleType:
    """Return the module pyarrow.

    Raises:
        LatentError: If pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise LatentError(
            "Parquet needs pyarrow, which is not installed. Install it with pip install "
            "'spacy-latent[parquet]', or use .spacy files instead (--format docbin)."
        ) from error
    return pyarrow


def schema() -> Schema:
    """Return the schema of the columns.

    Tokens are counted from 0 in the doc, and ends are exclusive. Offsets of ``tokens`` are
    characters of ``text``. The other fields of ``latent`` have the names and the meaning of
    :class:`spacy_latent.annotations.SpanStructure`.

    - id, text, error: in every row. error is null if there is a doc. Otherwise all other columns
      are null, except for the columns of the model.
    - tokens: start and end of each token.
    - sent_starts: the first token of each sentence; null if the pipeline sets no sentences.
    - cats: label and score of each category.
    - ents: start, end, label and probability, which is null if no component stored one. The column
      is null if the pipeline has no entities.
    - components: names of the components that wrote on the doc, including components that wrote no
      structures.
    - latent: one entry for each span of each component. ``decoded`` is flat. ``decoded_shape`` has
      the lengths of its axes after the first, and is empty for heads, tags and items. ``part_axes``
      is the number of axes of ``parts``.
    - model, model_version, model_hash: name and version from the pipeline's meta.json, and a digest
      of its files.
    """
    pa = pyarrow()
    index, real, text = pa.int32(), pa.float32(), pa.string()
    place = [("start", index), ("end", index)]
    entity = pa.struct([*place, ("label", text), ("probability", real)])
    return pa.schema(
        [
            ("id", text),
            ("text", text),
            ("tokens", pa.list_(pa.struct(place))),
            ("sent_starts", pa.list_(index)),
            ("cats", pa.list_(pa.struct([("label", text), ("score", pa.float64())]))),
            ("ents", pa.list_(entity)),
            ("components", pa.list_(text)),
            ("latent", pa.list_(_span_type())),
            ("model", text),
            ("model_version", text),
            ("model_hash", text),
            ("error", text),
        ]
    )


def _span_type() -> Any:
    """Return the type of a structure over a span."""
    pa = pyarrow()
    index, real, text = pa.int32(), pa.float32(), pa.string()
    indices, reals = pa.list_(index), pa.list_(real)
    alternative = pa.struct(
        [
            ("weight", pa.float64()),
            ("decoded", indices),
            ("arc_labels", indices),
            ("entity_probabilities", reals),
        ]
    )
    return pa.struct(
        [
            ("component", text),
            ("start", index),
            ("end", index),
            ("structure", text),
            ("kind", text),
            ("labels", pa.list_(text)),
            ("decoded", indices),
            ("decoded_shape", indices),
            ("parts", pa.list_(indices)),
            ("part_axes", index),
            ("probabilities", reals),
            ("entity_probabilities", reals),
            ("given", pa.list_(pa.bool_())),
            ("alternatives", pa.list_(alternative)),
            ("other_start", index),
            ("other_end", index),
            ("counters", pa.list_(reals)),
            ("arc_labels", indices),
            ("labelled_parts", pa.list_(indices)),
            ("labelled_probabilities", reals),
            ("possible", pa.list_(indices)),
            ("possible_probabilities", reals),
            ("min_confidence", pa.float64()),
            ("entities_calibrated", pa.bool_()),
            ("whole_probability", pa.float64()),
            ("labelled_whole_probability", pa.float64()),
        ]
    )


class Lists:
    """Builder of a column of lists: lengths and nulls; subclasses or callers add the values."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.nulls: list[bool] = []

    def add(self, length: int | None) -> None:
        """Begin a list with this number of values; None for a null."""
        self.lengths.append(length or 0)
        self.nulls.append(length is None)

    def around(self, values: Any) -> Any:
        """Return the column as a pyarrow array, with the values of all lists in a row."""
        pa = pyarrow()
        offsets = np.zeros(len(self.lengths) + 1, dtype="int32")
        np.cumsum(self.lengths, out=offsets[1:])
        return pa.ListArray.from_arrays(
            pa.array(offsets), values, mask=pa.array(np.array(self.nulls, dtype="bool"))
        )


class Arrays(Lists):
    """Builder of a column of flat arrays, or of lists of their rows."""

    def __init__(self, dtype: str, *, rows: bool = False) -> None:
        super().__init__()
        self.dtype, self.rows = dtype, rows
        self.flat: list[np.ndarray] = []
        self.widths: list[int] = []

    def append(self, array: np.ndarray | None) -> None:
        """Append an array; None for a null."""
        if array is None:
            self.add(None)
            return
        self.add(len(array) if self.rows else array.size)
        if array.size:
            self.flat.append(array.ravel())
        if self.rows:
            self.widths.append(array.shape[1])

    def build(self) -> Any:
        """Return the column as a pyarrow array of lists, or of lists of lists for rows."""
        pa = pyarrow()
        values = np.concatenate(self.flat) if self.flat else np.empty(0)
        found = pa.array(values.astype(self.dtype, copy=False))
        if self.rows:
            lengths = [n for n, null in zip(self.lengths, self.nulls) if not null]
            inner = np.repeat(np.array(self.widths, dtype="int64"), lengths)
            offsets = np.concatenate([[0], np.cumsum(inner)]).astype("int32")
            found = pa.ListArray.from_arrays(pa.array(offsets), found)
        return self.around(found)


class Names:
    """Builder of a column of few different strings."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.codes: list[int] = []

    def append(self, name: str) -> None:
        """Append one string, which is stored once however often it occurs."""
        self.codes.append(self.numbers.setdefault(name, len(self.numbers)))

    def extend(self, names: Iterable[str]) -> None:
        """Append the strings of a list, whose length the caller stores."""
        for name in names:
            self.append(name)

    def build(self) -> Any:
        """Return the column as a pyarrow array of strings."""
        pa = pyarrow()
        return pa.array(list(self.numbers), pa.string()).take(pa.array(self.codes, pa.int32()))


class SpanColumns(Lists):
    """Builder of the column ``latent``."""

    # Names of fields of both the schema and SpanStructure, and their types.
    FLAT = (
        ("probabilities", "float32"),
        ("entity_probabilities", "float32"),
        ("given", "bool"),
        ("arc_labels", "int32"),
        ("labelled_probabilities", "float32"),
        ("possible_probabilities", "float32"),
    )
    ROWS = (
        ("parts", "int32"),
        ("counters", "float32"),
        ("labelled_parts", "int32"),
        ("possible", "int32"),
    )
    NAMED = ("structure", "kind")
    NUMBERS = ("start", "end", "other_start", "other_end")
    REALS = ("min_confidence", "whole_probability", "labelled_whole_probability")

    def __init__(self) -> None:
        super().__init__()
        self.names = {name: Names() for name in ("component", *self.NAMED)}
        self.numbers: dict[str, list[int | None]] = {name: [] for name in self.NUMBERS}
        self.reals: dict[str, list[float | None]] = {name: [] for name in self.REALS}
        self.calibrated: list[bool] = []
        self.part_axes: list[int | None] = []
        self.arrays = {name: Arrays(dtype) for name, dtype in self.FLAT}
        self.arrays |= {name: Arrays(dtype, rows=True) for name, dtype in self.ROWS}
        self.decoded, self.shapes = Arrays("int32"), Arrays("int32")
        self.labelled, self.labels = Lists(), Names()
        self.alternatives, self.weights = Lists(), list[float]()
        self.others = [Arrays("int32"), Arrays("int32"), Arrays("float32")]

    def append(self, component: str, span: SpanStructure) -> None:
        """Append a structure of a component; fields that it lacks become nulls."""
        self.names["component"].append(component)
        for name in self.NAMED:
            self.names[name].append(getattr(span, name))
        for name, numbers in self.numbers.items():
            numbers.append(getattr(span, name))
        for name, arrays in self.arrays.items():
            arrays.append(getattr(span, name))
        for name, reals in self.reals.items():
            reals.append(getattr(span, name))
        self.calibrated.append(span.entities_calibrated)
        self.part_axes.append(None if span.parts is None else span.parts.shape[1])
        self.decoded.append(span.decoded)
        self.shapes.append(np.array(span.decoded.shape[1:], dtype="int32"))
        self.labelled.add(None if span.labels is None else len(span.labels))
        self.labels.extend(span.labels or ())
        self.alternatives.add(len(span.alternatives))
        for number, (decoded, weight) in enumerate(span.alternatives):
            self.weights.append(weight)
            self.others[0].append(decoded)
            for column, known in (
                (self.others[1], span.alternative_labels),
                (self.others[2], span.alternative_probabilities),
            ):
                column.append(known[number] if number < len(known) else None)

    def build(self, of: Any) -> Any:
        """Return the column."""
        pa = pyarrow()
        columns = {name: names.build() for name, names in self.names.items()}
        columns |= {name: pa.array(list_, pa.int32()) for name, list_ in self.numbers.items()}
        columns |= {name: arrays.build() for name, arrays in self.arrays.items()}
        columns |= {name: pa.array(list_, pa.float64()) for name, list_ in self.reals.items()}
        columns["entities_calibrated"] = pa.array(self.calibrated, pa.bool_())
        columns["part_axes"] = pa.array(self.part_axes, pa.int32())
        columns["decoded"], columns["decoded_shape"] = self.decoded.build(), self.shapes.build()
        columns["labels"] = self.labelled.around(self.labels.build())
        weights = pa.array(self.weights, pa.float64())
        inner = of.field("alternatives").type.value_type
        others = [weights, *(column.build() for column in self.others)]
        columns["alternatives"] = self.alternatives.around(structs(others, inner))
        return self.around(structs([columns[field.name] for field in of], of))


def structs(columns: Sequence[Any], of: Any) -> Any:
    """Return columns as a pyarrow array of structs with the fields ``of``."""
    return pyarrow().StructArray.from_arrays(list(columns), fields=list(of))


class EntityColumns(Lists):
    """Builder of the column of entities."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[tuple[int, int]] = []
        self.labels = Names()
        self.probabilities: list[float | None] = []

    def append(self, doc: Doc) -> None:
        """Append the entities of a doc, with nulls for those without a confidence."""
        found = doc.ents
        self.add(len(found))
        known = confidences(doc) if found else {}
        for ent in found:
            self.places.append((ent.start, ent.end))
            self.labels.append(ent.label_)
            self.probabilities.append(known.get((ent.start, ent.end, ent.label_)))

    def build(self) -> tuple[Any, ...]:
        """Return starts, ends, labels and probabilities."""
        pa = pyarrow()
        starts, ends = np.array(self.places, dtype="int32").reshape(-1, 2).T
        return starts, ends, self.labels.build(), pa.array(self.probabilities, pa.float32())


class TokenColumns:
    """Tokens of many docs, in one array.

    Attributes:
        values: ``(T, A)``, the :data:`ATTRIBUTES` of each token.
        lengths: ``(R,)``, the number of tokens of each row.
        there: ``(R,)`` bool, true for rows with a doc.
    """

    def __init__(self, values: np.ndarray, lengths: np.ndarray, there: np.ndarray) -> None:
        self.lengths, self.there = lengths, there
        self.columns = dict(zip(ATTRIBUTES, values.T))
        self.first = np.cumsum(lengths) - lengths
        self.starts = self.columns[IDX].astype("int32")
        self.ends = self.starts + self.columns[LENGTH].astype("int32")

    def lists(self, known: np.ndarray, lengths: np.ndarray | None = None) -> Lists:
        """Return a list of values for each row, null for rows that are not ``known``.

        Args:
            known: ``(R,)`` bool.
            lengths: ``(R,)``, the numbers of values of the rows; None for the numbers of tokens.
        """
        made = Lists()
        made.lengths = np.where(known, self.lengths if lengths is None else lengths, 0).tolist()
        made.nulls = (~known).tolist()
        return made

    def counts(self, chosen: np.ndarray) -> np.ndarray:
        """Return ``(R,)``, the number of chosen tokens in each row, for ``(T,)`` bool."""
        sums = np.concatenate([[0], np.cumsum(chosen)])
        return sums[self.first + self.lengths] - sums[self.first]

    def any_of(self, attribute: int) -> np.ndarray:
        """Return ``(R,)`` bool, true for rows with a token that has the attribute."""
        return self.counts(self.columns[attribute] != 0) > 0

    def sentences(self) -> Any:
        """Return the first token of each sentence, or null for docs without sentences.

        In spaCy, 0 at a token after the first one means that its value is unknown; the first token
        always has 1.
        """
        values = self.columns[SENT_START]
        known = self.there & ((self.counts(values != 0) > 1) | (self.lengths <= 1))
        begins = (values == 1) & np.repeat(known, self.lengths)
        places = np.flatnonzero(begins) - np.repeat(self.first, self.counts(begins))
        lists = self.lists(known, self.counts(begins))
        return lists.around(pyarrow().array(places.astype("int32")))

    def texts(self, strings: Any) -> list[str]:
        """Return the text of each row, "" for rows without a doc.

        Args:
            strings: the strings of the vocabulary.
        """
        orths, inverse = np.unique(self.columns[ORTH], return_inverse=True)
        words = [strings[orth] for orth in orths.tolist()]
        words += [f"{word} " for word in words]
        spaced = (inverse + len(orths) * (self.columns[SPACY] != 0)).tolist()
        found = [words[number] for number in spaced]
        ends = (self.first + self.lengths).tolist()
        return ["".join(found[start:end]) for start, end in zip(self.first.tolist(), ends)]
