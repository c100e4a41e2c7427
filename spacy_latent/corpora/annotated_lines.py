"""Annotated texts in lines of JSON.

Lines may have spaCy's training format, or the formats of Prodigy, doccano, Label Studio and
``Doc.to_json``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spacy_latent.corpora.categories import read_categories
from spacy_latent.corpora.iob import UNKNOWN, is_tag, to_biluo
from spacy_latent.corpora.span_offsets import (
    EXAMPLE,
    Bounds,
    Triple,
    align_spans,
    first_overlap,
    read_spans,
    shown,
)
from spacy_latent.corpora.text_files import (
    ESCAPED_HALF,
    check_pairs,
    json_lines,
    json_value,
    read_text,
)
from spacy_latent.errors import LatentError

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc
    from spacy.training import Example

# Keys of spaCy's training format. Other keys of a line are ignored.
PER_TOKEN = ("tags", "heads", "deps", "sent_starts")
KNOWN = ("words", "spaces", "cats", "entities", "spans", *PER_TOKEN)
# Prodigy's names for a rejected annotation, and for a skipped one.
WRONG, SKIPPED = "reject", "ignore"
# Keys of the values of Label Studio's results about whole texts.
OF_TEXTS = {"choices", "taxonomy", "rating", "number", "datetime"}
# Components whose spans may overlap.
SPAN_FACTORIES = ("spancat", "spancat_singlelabel", "tree_spancat")


@dataclass(frozen=True)
class Line:
    """Result of reading a line.

    Attributes:
        example: example whose predicted doc is not processed yet; None if the annotator rejected or
            ignored it.
        misaligned: spans that do not begin and end at token boundaries, and spans of white space
            alone. Tags of the tokens of a misaligned entity are unknown. In ``doc.spans``
            misaligned spans are missing.
        is_partial: True if the annotator judged a single span, as in Prodigy's ``ner.teach``. All
            other tokens of the example are not annotated.
    """

    example: Example | None
    misaligned: Sequence[str] = ()
    is_partial: bool = False


def annotated_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the values in the lines of .jsonl, or in the list of .json, with their places.

    A place is "line 3" or "text 3".

    Raises:
        LatentError: if the file is not JSON, or contains half of a surrogate pair.
    """
    if path.suffix != ".json":
        for number, row in json_lines(path):
            yield f"line {number}", row
        return
    text = read_text(path)
    rows = json_value(text, path)
    if not isinstance(rows, list):
        raise LatentError(
            f"{path} holds no list; expected a list of annotated texts, as Label Studio exports it."
        )
    has_halves = ESCAPED_HALF.search(text) is not None
    for number, row in enumerate(rows, 1):
        if has_halves:
            check_pairs(row, f"{path}, text {number}")
        yield f"text {number}", row


def span_keys(nlp: Language) -> list[str]:
    """Return the keys in ``doc.spans`` that the pipeline's components use."""
    factories = {name: nlp.get_pipe_meta(name).factory for name in nlp.pipe_names}
    pipes: list[Any] = [
        nlp.get_pipe(name) for name, factory in factories.items() if factory in SPAN_FACTORIES
    ]
    return list(dict.fromkeys(pipe.key for pipe in pipes))


def read_line(
    nlp: Language,
    row: Any,
    place: str,
    span_keys: Sequence[str] = (),
    rejected_key: str | None = None,
) -> Line:
    """Read a line.

    Args:
        row: value of the line. It has "text" or "tokens", and any annotation: the keys of spaCy's
            training format; "spans" as in Prodigy; "label", "labels" or "entities" as in doccano;
            categories in "label", or in "options" and "accept"; or all keys of ``Doc.to_json``. Or
            it is a task of Label Studio, with "data" and "annotations". Offsets count characters.
            Spans are read as entities. Overlapping spans are only read for ``span_keys``.
        span_keys: groups of ``doc.spans`` that also get the spans.
        rejected_key: group of ``doc.spans`` for the spans of lines with the answer reject. The
            tokens of such a line are not annotated. None leaves these lines out.

    Raises:
        LatentError: if the line has another format.
    """
    try:
        row = _object_of(row, place)
        is_partial = _is_question(row) and not _asks_for_category(row)
        if _is_left_out(row, rejected_key):
            return Line(None, is_partial=is_partial)
        if is_stored_doc(row):
            return Line(_stored_example(nlp, row))
        return Line(*_read_annotation(nlp, row, place, span_keys, rejected_key), is_partial)
    except LatentError:
        raise
    except Exception as error:
        # Errors of spaCy, and of values of other types, do not name the line.
        other = isinstance(error, (AttributeError, KeyError, TypeError))
        hint = " Annotations are those of spaCy's training format." if other else ""
        raise LatentError(
            f"{place}, cannot be read ({type(error).__name__}: {error}).{hint}"
        ) from error


def _stored_example(nlp: Language, row: dict[str, Any]) -> Example:
    """Return the example of a whole doc."""
    from spacy.tokens import Doc
    from spacy.training import Example

    # Leave out custom attributes, which would register extensions here.
    own = {k: v for k, v in row.items() if k != "_" and not k.startswith("underscore_")}
    reference = Doc(nlp.vocab).from_json(own)
    return Example(nlp.make_doc(reference.text), reference)


def _read_annotation(
    nlp: Language,
    row: dict[str, Any],
    place: str,
    span_keys: Sequence[str],
    rejected_key: str | None,
) -> tuple[Example, list[str]]:
    """Return the example of a row, and its spans that are misaligned; see :func:`read_line`."""
    from spacy.training import Example

    for key, kinds in (("spans", (list, dict)), ("entities", list)):
        if row.get(key) is not None and not isinstance(row[key], kinds):
            raise LatentError(
                f"{place}: {key!r} is {row[key]!r}; expected a list such as {EXAMPLE}."
            )
    predicted, gold = _tokens(nlp, row, place)
    known = {key: row[key] for key in PER_TOKEN if row.get(key) is not None}
    if known or gold is not predicted:
        known["words"] = [token.text for token in gold]
        known["spaces"] = [bool(token.whitespace_) for token in gold]
    if cats := _categories(row, place):
        known["cats"] = cats
    misaligned: list[str] = []
    tags = row.get("entities")
    if isinstance(tags, list) and tags and all(t is None or isinstance(t, str) for t in tags):
        known["entities"] = _tags(tags, gold, place)
    elif (found := _spans_of(row)) is not None:
        spans = read_spans(found, row, gold, place, misaligned)
        aligned = align_spans(spans, gold, misaligned)
        if _is_wrong_span(row):
            known["spans"] = {str(rejected_key): aligned}
            known["entities"] = [UNKNOWN] * len(gold)
        else:
            if not (span_keys and first_overlap(spans)):
                known["entities"] = _entities(spans, aligned, gold, _is_question(row), place)
            known["spans"] = {key: aligned for key in span_keys}
    if isinstance(groups := row.get("spans"), dict):
        known["spans"] = {
            key: align_spans(
                read_spans(group, row, gold, place, misaligned, labelled=False), gold, misaligned
            )
            for key, group in groups.items()
        }
    with warnings.catch_warnings():
        # Ignore spaCy's warning about misaligned entities, which are in the result.
        warnings.filterwarnings("ignore", message=r"\[W030\]")
        return Example.from_dict(predicted, known), misaligned


def _object_of(row: Any, place: str) -> dict[str, Any]:
    """Return the row in the format of Prodigy or spaCy, and raise an error for other values."""
    if isinstance(row, dict) and isinstance(row.get("annotations"), list) and "data" in row:
        row = _of_label_studio(row, place)
    if isinstance(row, dict) and ("text" in row or "tokens" in row):
        return row
    there = f"; there is {', '.join(map(repr, row))}" if isinstance(row, dict) and row else ""
    raise LatentError(f"{place}: expected an object with 'text' or 'tokens'{there}.")


def _is_question(row: dict[str, Any]) -> bool:
    """Return whether the annotator judged only the spans in the row, not the whole text."""
    return row.get("_is_binary") is True and isinstance(row.get("spans"), list)


def _is_wrong_span(row: dict[str, Any]) -> bool:
    """Return whether the annotator rejected the spans of the row."""
    spans = row.get("spans")
    return row.get("answer") == WRONG and isinstance(spans, list) and bool(spans)


def _is_left_out(row: dict[str, Any], rejected_key: str | None) -> bool:
    """Return whether the row is left out: skipped, or rejected in a way that teaches nothing."""
    answer = row.get("answer")
    if answer != SKIPPED and (answer != WRONG or _asks_for_category(row)):
        return False
    return rejected_key is None or not _is_wrong_span(row)


def _entities(
    spans: dict[Triple, Bounds], aligned: list[Triple], gold: Doc, is_question: bool, place: str
) -> list[Triple] | list[str]:
    """Return spans as entities. If only these were judged, all other tokens are unannotated."""
    from spacy.training import offsets_to_biluo_tags

    if clash := first_overlap(spans):
        first, second = (shown(one, spans[one], gold.text) for one in clash)
        raise LatentError(
            f"{place}: {first} and {second} overlap; expected entities that do not. Remove one. "
            "For overlapping spans, use a pipeline with spancat or tree_spancat."
        )
    if is_question:
        return offsets_to_biluo_tags(gold, aligned, missing=UNKNOWN)
    return list(spans)


def _of_label_studio(row: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a task of Label Studio as a row of Prodigy's.

    Annotations that were cancelled do not count. If there are several, a ground truth is read, or
    else the first. Categories are choices, and all names on the paths of taxonomies. Ratings,
    numbers and dates are not read.
    """
    data = row["data"]
    texts = [value for value in data.values() if isinstance(value, str)] if data else []
    text = data.get("text", texts[0] if len(texts) == 1 else None) if data else None
    if not isinstance(text, str):
        raise LatentError(
            f"{place}: 'data' is {data!r}; expected an object with the 'text', or with one text "
            "under any name."
        )
    if not all(isinstance(one, dict) for one in row["annotations"]):
        raise LatentError(
            f"{place}: 'annotations' is {row['annotations']!r}; expected a list of objects with "
            "'result', as Label Studio exports them whole."
        )
    done = [one for one in row["annotations"] if not one.get("was_cancelled")]
    if not done:
        return {"text": text, "answer": SKIPPED}
    best = next((one for one in done if one.get("ground_truth")), done[0])
    results = [one for one in best.get("result") or () if isinstance(one.get("value"), dict)]
    values = [one["value"] for one in results if not _is_of_a_span(one)]
    spans = [value for value in values if "start" in value]
    chosen = [label for value in values for label in value.get("choices", ())]
    for value in values:
        chosen += [name for path in value.get("taxonomy", ()) for name in path]
    made = {"text": text, "answer": "accept", "cats": dict.fromkeys(chosen, 1.0)}
    # A task that only asks for these gives no annotation of entities.
    is_of_text = any(OF_TEXTS & value.keys() for value in values)
    return made if is_of_text and not spans else {**made, "spans": spans}


def _is_of_a_span(result: dict[str, Any]) -> bool:
    """Return whether a result of Label Studio is a choice or note about a span, which has its own.

    Such a result repeats the bounds of the span, and does not annotate the text. Spans of web pages
    and dialogues have labels, too, as "hypertextlabels". Their bounds have another format, which
    raises an error.
    """
    value, names = result["value"], [str(result.get("type", "labels")), *result["value"]]
    return "start" in value and not any(name.endswith("labels") for name in names)


def is_stored_doc(row: dict[str, Any]) -> bool:
    """Return whether the row is a whole doc, as ``Doc.to_json`` writes it.

    Tokens of Prodigy have a text, and tokens of ``Doc.to_json`` have not.
    """
    tokens = row.get("tokens")
    if not isinstance(tokens, list) or not isinstance(row.get("text"), str):
        return False
    return all(isinstance(token, dict) and "text" not in token for token in tokens) and (
        bool(tokens) or "ents" in row
    )


def words_of(row: dict[str, Any]) -> list[str] | None:
    """Return the words of a row without a text, or None."""
    tokens = row.get("tokens")
    if "text" in row or not isinstance(tokens, list):
        return None
    words = [token.get("text") if isinstance(token, dict) else token for token in tokens]
    known = [word for word in words if isinstance(word, str) and word]
    return known if len(known) == len(words) else None


def _asks_for_category(row: dict[str, Any]) -> bool:
    """Return whether the question was if one category is right.

    If it was, a rejection means that the text does not have the category.
    """
    return isinstance(row.get("label"), str) and not row.get("spans")


def _categories(row: dict[str, Any], place: str) -> dict[str, float]:
    """Return the categories of a row.

    They are in "cats", which is a list in doccano's intents with slots; in Prodigy's options; in
    the label of Prodigy's question; or in doccano's list "label" if nothing else is annotated. A
    single label without an answer is ambiguous, and ignored.
    """
    intents = row.get("cats")
    if isinstance(intents, list) and isinstance(row.get("entities"), list):
        if all(isinstance(one, str) for one in intents):
            return dict.fromkeys(intents, 1.0)
    if cats := read_categories(row, place):
        return cats
    accepted, options = row.get("accept"), row.get("options")
    if isinstance(accepted, list) and isinstance(options, list):
        ids = [option.get("id") for option in options if isinstance(option, dict)]
        # An accepted option may be missing, if it was removed from the options later.
        return {str(one): float(one in accepted) for one in [*ids, *accepted]}
    label = row.get("label")
    if any(row.get(key) for key in ("spans", *KNOWN)):
        return {}
    if isinstance(label, str) and "answer" in row:
        return {label: float(row["answer"] != WRONG)}
    if isinstance(label, list) and all(isinstance(one, str) for one in label):
        return {one: 1.0 for one in label}
    return {}


def _tokens(nlp: Language, row: dict[str, Any], place: str) -> tuple[Doc, Doc]:
    """Return a doc for the pipeline, and a doc of the annotated tokens; they may be the same.

    The pipeline's doc has the given words. If tokens have offsets in a text, it has the tokens of
    that text.
    """
    from spacy.tokens import Doc
    from spacy.util import get_words_and_spaces

    text, tokens = row.get("text"), row.get("tokens")
    if text is not None and not isinstance(text, str):
        raise LatentError(f"{place}: 'text' is {text!r}, not a text.")
    given = tokens if tokens is not None else row.get("words")
    if given is None or (given == [] and text):
        if text is None:
            raise LatentError(
                f"{place}: 'text' is null, and 'tokens' is missing; expected one of them."
            )
        doc = nlp.make_doc(text)
        return doc, doc
    if not isinstance(given, list) or not all(isinstance(one, (str, dict)) for one in given):
        raise LatentError(
            f"{place}: 'tokens' is {given!r}; expected a list of words, or of objects with 'text', "
            "'start' and 'end', as Prodigy writes them."
        )
    words = [one if isinstance(one, str) else one.get("text") for one in given]
    if wrong := [one for one, word in zip(given, words) if not isinstance(word, str)]:
        raise LatentError(f"{place}: the token {wrong[0]!r} has no 'text'.")
    spaces = [one.get("ws", True) if isinstance(one, dict) else True for one in given]
    if isinstance(row.get("spaces"), list):
        spaces = row["spaces"]
    is_apart = tokens is None or any(isinstance(one, dict) for one in given)
    if text is not None:
        try:
            fitting, spaced = get_words_and_spaces(words, text)
        except ValueError:
            fitting = []
        if fitting == words:
            spaces = spaced
        elif is_apart and tokens is not None:
            # The tokens do not make up the text, for example if they are pieces of words.
            doc = nlp.make_doc(text)
            return doc, doc
        elif _has_offsets(row) and _is_per_token(row) and not _makes_up(words, spaces, text):
            raise LatentError(
                f"{place}: the tokens and their white space do not add up to the text, and the "
                "line has both offsets in the text and annotations of tokens. Correct the "
                "tokens, or leave out one of the two."
            )
        elif _has_offsets(row) and not fitting:
            # Offsets in the text would refer to other characters of the tokens.
            doc = nlp.make_doc(text)
            return doc, doc
        elif fitting and not _is_per_token(row):
            # Offsets count the characters of the text, with all of its white space.
            words, spaces = fitting, spaced
    gold = Doc(nlp.vocab, words=words, spaces=spaces)
    return (gold if text is None or not is_apart else nlp.make_doc(text)), gold


def _makes_up(words: list[str], spaces: list[Any], text: str) -> bool:
    """Return whether the tokens make up the text, except for white space at its end.

    Offsets then mean the same characters in both.
    """
    joined = "".join(f"{word} " if space else word for word, space in zip(words, spaces))
    return joined.rstrip() == text.rstrip()


def _has_offsets(row: dict[str, Any]) -> bool:
    """Return whether some annotation of the row is a span of characters."""
    spans = row.get("spans")
    return bool(_spans_of(row)) or (isinstance(spans, dict) and any(spans.values()))


def _is_per_token(row: dict[str, Any]) -> bool:
    """Return whether some annotation of the row has a value for each token."""
    entities = row.get("entities")
    tags = isinstance(entities, list) and any(isinstance(one, str) for one in entities)
    return tags or any(row.get(key) for key in PER_TOKEN)


def _tags(tags: list[str | None], doc: Doc, place: str) -> list[str]:
    given = [UNKNOWN if tag in (None, "") else tag for tag in tags]
    if wrong := [tag for tag in given if tag != UNKNOWN and not is_tag(tag)]:
        raise LatentError(
            f"{place}: 'entities' has the tag {wrong[0]!r}; expected O, or a label after B-, I-, "
            'L-, U-, E-, M- or S-; or offsets such as [[0, 5, "ORG"]].'
        )
    if len(given) != len(doc):
        raise LatentError(
            f"{place}: 'entities' has {len(given)} tags; expected one for each of the {len(doc)} "
            "tokens. Give the 'tokens' of the tags."
        )
    return to_biluo(given)


def _spans_of(row: dict[str, Any]) -> list[Any] | None:
    """Return the list of spans under any of its keys, or None.

    An empty list means that there is no entity.
    """
    for key in ("spans", "entities", "ents", "label", "labels"):
        value = row.get(key)
        # Doccano's categories are texts in "label".
        if isinstance(value, list) and not all(isinstance(one, str) for one in value or [0]):
            return value
    return None
