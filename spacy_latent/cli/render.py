"""Command ``spacy latent render``: drawings of the structures of many texts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, redirect_stdout, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spacy_latent.cli.corpus import FROM_A_TABLE, STDIN, lines_of_stdin
from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.options import Alternatives, Code, Component, GpuId, Model, Threshold
from spacy_latent.cli.output import check_output, print_document, write_page
from spacy_latent.cli.pipelines import annotated, load, not_calibrated, prepare
from spacy_latent.corpora.text_files import json_lines, opened
from spacy_latent.errors import LatentError, number_of

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

    from spacy_latent.visualize.elements import Markup

STDOUT = "-"
# Default key of texts in .jsonl.
TEXT = "text"
BARE = "A text without words has no structure, and a pair of texts with an empty text has none."
FORMATS = {".html": "html", ".htm": "html", ".svg": "svg"}


def render_cli(
    model: Model,
    data: str = typer.Argument(
        STDIN,
        metavar="INPUT",
        help="Docs (.spacy), texts (.jsonl), or one text per line (any other file; - for standard "
        "input)",
    ),
    output: str = typer.Argument(
        STDOUT, metavar="OUT", help="File to write (.html or .svg), or - for standard output"
    ),
    component: Component = None,
    style: str | None = typer.Option(
        None,
        "--style",
        "-s",
        help="Style of the drawings: tree, alignment, heatmap, tags, entities, rationale, "
        "brackets, parts; or displaCy's dep, ent, span. Default: the style of the structure",
    ),
    threshold: Threshold = None,
    alternatives: Alternatives = 0,
    gold: bool = typer.Option(
        False, "--gold", "-G", help="Also draw the annotated trees of a .spacy file"
    ),
    counters: bool = typer.Option(
        False,
        "--counters",
        help="Draw the counters below trees and brackets, if the scorer has counters",
    ),
    limit: int = typer.Option(25, "--limit", "-n", min=1, help="Number of texts to draw at most"),
    text_key: list[str] | None = typer.Option(
        None,
        "--text-key",
        "-tk",
        help="Key of the text in .jsonl; for pairs of texts two, as text_a,text_b or by repeating "
        "the option. Default: 'text'; for pairs the keys in the pipeline's config, else "
        "'text_a,text_b'",
    ),
    as_format: str | None = typer.Option(
        None, "--format", "-f", help="html or svg. Default: the ending of OUT, or html"
    ),
    minify: bool = typer.Option(False, "--minify", help="Write HTML without line breaks"),
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Draw the latent structures of texts, as an HTML page or one SVG.

    \b
    Examples:
      spacy latent render training/model-best texts.txt page.html
      spacy latent render training/model-best dev.spacy trees.svg --gold -n 3
      spacy latent render training/model-best pairs.jsonl map.html -s heatmap -tk first,second
      echo "They solve it ." | spacy latent render training/model-best -k 3
    """
    from spacy_latent.visualize import render, render_svg
    from spacy_latent.visualize.page import NOTHING

    # Standard output may receive the drawing, and must receive nothing else.
    with redirect_stdout(sys.stderr):
        kind = format_of(output, as_format)
        check_output(Path(output) if output != STDOUT else None, data)
        check_input(data, gold)
        prepare(code, gpu_id)
        nlp = load(model)
        check_texts(nlp, data)
        keys = keys_of_texts(nlp, text_key or ())
        with failing("The texts could not be drawn"):
            docs, references, more = _annotate(
                nlp, data, keys, limit, component, threshold, alternatives
            )
            trees = [one for one in references if one is not None] if gold else None
            golds = trees or with_categories(docs, references)
            count = count_drawn(docs, trees, component, data)
            options = {"threshold": threshold, "alternatives": alternatives, "counters": counters}
            if kind == "svg":
                drawn = render_svg(docs, component, style, options, golds)
            else:
                drawn = render(
                    docs,
                    component,
                    style,
                    page=True,
                    minify=minify,
                    jupyter=False,
                    options=options,
                    gold=golds,
                    closing=agreement(docs, trees, component) if trees else NOTHING,
                    note=not_calibrated(nlp, docs, [component] if component else nlp.pipe_names),
                )
    if output == STDOUT:
        print_document(drawn)
        return
    path = Path(output)
    write_page(path, drawn)
    msg.good(f"Drawings of {number_of(count, 'text')} saved to {path}")
    if count < len(docs):
        msg.info(
            f"Not drawn: {len(docs) - count} of {len(docs)} texts, which have no structure. {BARE}"
        )
    if more:
        msg.info(f"{data} has more texts. To draw them, give a higher --limit")


def with_categories(docs: list[Doc], references: list[Doc | None]) -> list[Doc] | None:
    """Return docs with the categories of the references, without heads; None if there are none."""
    from spacy.tokens import Doc

    if not any(reference is not None and reference.cats for reference in references):
        return None
    found = []
    for doc, reference in zip(docs, references):
        made = Doc(doc.vocab, words=[token.text for token in doc])
        made.cats = dict(reference.cats) if reference is not None else {}
        found.append(made)
    return found


def format_of(output: str, as_format: str | None) -> str:
    """Return the format of the drawing, or exit with an error if neither option nor name has it."""
    default = "html" if output == STDOUT else FORMATS.get(Path(output).suffix.lower(), "")
    kind = as_format or default
    if kind not in FORMATS.values():
        fail(
            f"The format of {output} is unknown",
            "Give a file that ends in .html or .svg, or --format html or --format svg.",
        )
    return kind


def check_input(data: str, gold: bool) -> None:
    """Exit with an error if the input is no file, or --gold is given and it cannot have trees."""
    if Path(data).is_dir():
        fail(f"{data} is a folder", "Give a file of texts as INPUT.")
    # A shell gives <(command) as the name of a pipe.
    if data != STDIN and not (Path(data).is_file() or Path(data).is_fifo()):
        fail(f"The file {data} does not exist")
    if gold and Path(data).suffix != ".spacy":
        fail("--gold needs the trees of a .spacy file", f"INPUT is {data}.")


def check_texts(nlp: Language, data: str) -> None:
    """Exit with an error if the input cannot hold what the pipeline reads: texts, or pairs."""
    from spacy_latent.corpora.text_pairs import NO_PAIRS, WITH_FIELDS
    from spacy_latent.pipeline.inspection import reads_pairs

    ending = Path(data).suffix.lower()
    pairs = reads_pairs(nlp)
    if pairs and ending not in (".spacy", *WITH_FIELDS):
        fail(
            NO_PAIRS,
            "Give a .jsonl file, or a .tsv or .csv file whose first line names its columns, "
            "with a field for each text, or a .spacy file.",
        )
    if not pairs and ending in (".csv", ".tsv", ".json"):
        # Read line by line, the header and all columns of a table would become texts.
        fail(
            f"{data} is no list of texts",
            "Give .txt with a text per line, .jsonl with a text under --text-key, or .spacy. "
            f"{FROM_A_TABLE}",
        )


def keys_of_texts(nlp: Language, text_key: Iterable[str]) -> list[str]:
    """Return the key of the text, or the keys of both texts of a pair, as the option says."""
    from spacy_latent.corpora.text_pairs import pair_fields
    from spacy_latent.pipeline.inspection import reads_pairs

    pairs = reads_pairs(nlp)
    keys = [key for given in text_key for key in given.split(",")]
    if len(keys) > 2:
        fail(
            f"--text-key names {len(keys)} keys: {', '.join(keys)}",
            "Give one, or two for pairs of texts.",
        )
    if pairs and len(keys) == 1:
        fail(
            f"The pipeline reads pairs of texts, and --text-key names one key: {keys[0]}",
            "Give two, as in --text-key text_a,text_b.",
        )
    if keys:
        return keys
    return list(pair_fields(nlp.config.interpolate())[:2]) if pairs else [TEXT]


def count_drawn(docs: list[Doc], trees: list[Doc] | None, component: str | None, data: str) -> int:
    """Return the number of docs with a structure; exit if there is nothing to draw."""
    from spacy_latent.visualize.drawing import is_drawn

    count = sum(is_drawn(doc, component) for doc in docs)
    if not count and any(len(doc._.latent) for doc in docs):
        fail(f"No text of {data} has a structure to draw", BARE)
    if trees and not any(doc.has_annotation("DEP") for doc in trees):
        fail(f"The docs of {data} have no dependency trees. Leave out --gold")
    return count


def agreement(docs: list[Doc], trees: list[Doc], component: str | None) -> Markup:
    """Return a table of the shares of tokens with the gold head, empty without latent trees.

    It has the trees of each component, and controls without a model.
    """
    from spacy_latent.analysis import CONTROLS, attachment, control_trees
    from spacy_latent.annotations.heads import known_heads
    from spacy_latent.kinds import find_kind
    from spacy_latent.visualize.figure_table import FigureRow, figure_table
    from spacy_latent.visualize.page import NOTHING

    names = [component] if component else list(dict.fromkeys(n for d in docs for n in d._.latent))
    gold = [[token.head.i for token in doc] for doc in trees]
    counted = [known_heads(doc)[0] >= 0 for doc in trees]

    def share(heads: Any) -> list[tuple[str, str]]:
        return [(f"{attachment(heads, gold, counted):.1%}", "")]

    rows = []
    for name in names:
        found = [doc._.latent.get(name) for doc in docs]
        spans = [span for one in found if one is not None for span in one.spans]
        if spans and all("heads" in find_kind(span.kind).accessors for span in spans):
            heads = [[-1] * len(d) if one is None else one.heads for d, one in zip(docs, found)]
            rows.append(FigureRow(name, share(heads), own=True))
    if not rows:
        return NOTHING
    words = [[token.text for token in doc] for doc in docs]
    for name, controls in control_trees(words, CONTROLS).items():
        rows.append(FigureRow(name, share(controls)))
    caption = "Tokens with the head of the gold tree; below, control trees that need no model"
    return figure_table(caption, ["same head"], rows)


def _annotate(
    nlp: Language,
    data: str,
    keys: list[str],
    limit: int,
    component: str | None,
    threshold: float | None,
    alternatives: int,
) -> tuple[list[Doc], list[Doc | None], bool]:
    """Return processed docs, their references or None, and whether there are more docs."""
    from tqdm import tqdm

    try:
        inputs = list(islice(_inputs(nlp, data, keys), limit + 1))
    except Exception as error:
        # Each format has different errors. The user needs the name of the file and the reason.
        fail(f"{data} cannot be read", str(error))
    more, inputs = len(inputs) > limit, inputs[:limit]
    if not inputs:
        fail(f"There are no texts in {'standard input' if data == STDIN else data}")
    found = annotated(nlp, (made for made, _ in inputs), component, threshold, alternatives)
    docs = list(tqdm(found, total=len(inputs), desc="Drawing", unit="text", disable=None))
    return docs, [reference for _, reference in inputs], more


def _inputs(nlp: Language, data: str, keys: list[str]) -> Iterator[tuple[Any, Any]]:
    """Yield texts, or docs of words and spans, for the pipeline, with their references or None.

    A reference is the original doc. For a line with "cats" it is a doc without words that has them.
    """
    from spacy.tokens import Doc, DocBin

    from spacy_latent.corpora.text_pairs import (
        WITH_FIELDS,
        NoSuchField,
        missing_labels,
        pair_fields,
        read_text_pairs_v1,
    )

    path = Path(data)
    if path.suffix == ".spacy":
        for reference in DocBin().from_disk(path).get_docs(nlp.vocab):
            spaces = [bool(token.whitespace_) for token in reference]
            made = Doc(nlp.vocab, words=[token.text for token in reference], spaces=spaces)
            # A pair of texts is a doc with a span for each text.
            for key, group in reference.spans.items():
                made.spans[key] = group.copy(doc=made)
            yield made, reference
    elif path.suffix in WITH_FIELDS and len(keys) == 2:
        try:
            first, second = keys
            config = nlp.config.interpolate()
            *_, label = pair_fields(config)
            missing = missing_labels(config)
            for example in read_text_pairs_v1(path, first, second, label, missing=missing)(nlp):
                yield example.predicted, example.reference
        except LatentError as error:
            unknown = isinstance(error, NoSuchField)
            advice = " Here: with --text-key FIRST,SECOND." if unknown else ""
            fail(f"{data} cannot be read", f"{error}{advice}")
    elif path.suffix == ".jsonl":
        yield from _inputs_of_json(nlp, path, keys)
    else:
        given = nullcontext(lines_of_stdin()) if data == STDIN else opened(path)
        with given as lines:
            for line in lines:
                if line.strip():
                    yield line.rstrip("\r\n"), None


def _inputs_of_json(nlp: Language, path: Path, keys: list[str]) -> Iterator[tuple[Any, Any]]:
    from spacy.tokens import Doc

    from spacy_latent.corpora.annotated_lines import words_of
    from spacy_latent.corpora.categories import read_categories

    for i, line in json_lines(path):
        entry = line if isinstance(line, dict) else {}
        reference = None
        # Other corpora have other things under "cats", and a drawing needs no gold label.
        with suppress(LatentError):
            if cats := read_categories(entry, f"line {i}"):
                reference = Doc(nlp.vocab)
                reference.cats = cats
        if keys == [TEXT] and (words := words_of(entry)):
            yield Doc(nlp.vocab, words=words), reference
            continue
        text = entry.get(keys[0])
        if not isinstance(text, str) and keys[0] in entry:
            fail(f"Line {i} of {path} has {repr(text)[:60]} under {keys[0]!r}", "Give a text.")
        if not isinstance(text, str):
            there = ", ".join(map(repr, entry)) if entry is line else "no object"
            fail(
                f"Line {i} of {path} has no text under {keys[0]!r}",
                f"There is {there or 'nothing'}. Say where the text is with --text-key.",
            )
        yield text, reference
