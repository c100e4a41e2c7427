"""Command ``spacy latent evaluate attachment``: unlabelled attachment of a pipeline's trees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spacy_latent.cli.figures import in_percent
from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.options import Code, GpuId, Metrics, Models
from spacy_latent.cli.output import check_output, write_json
from spacy_latent.cli.pipelines import check_arguments, load, prepare, trained_name

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc
    from spacy.training import Example

    from spacy_latent.analysis.attachment import Share
    from spacy_latent.analysis.progress import Progress
    from spacy_latent.analysis.trees import Heads

EXAMPLES = """
Examples:

  spacy latent evaluate attachment training/model-best dev.spacy

  spacy latent evaluate attachment training/model-best training/parser/model-best dev.spacy
"""


def main(
    models: Models,
    corpus: Path = typer.Argument(
        ..., help="Docs with heads: .spacy, a directory of these, or .jsonl"
    ),
    gold_preproc: bool = typer.Option(
        False, "--gold-preproc", help="Parse the gold sentences and tokens of the corpus"
    ),
    metrics: Metrics = None,
    code: Code = None,
    gpu_id: GpuId = -1,
) -> None:
    """Print the unlabelled attachment scores of latent trees, parses and control trees.

    Also prints measures that do not depend on a convention for heads. Control trees need no model,
    such as the word before as head.
    """
    from spacy_latent.cli.progress import progress

    check_output(metrics)
    prepare(code, gpu_id)
    check_arguments(models, corpus, "attachment")
    table: dict[str, dict[str, Share]] = {}
    names = [trained_name(path) for path in models]
    for path, short in zip(models, names):
        nlp = load(str(path))
        examples = read_with_heads(nlp, corpus, gold_preproc)
        name = short if names.count(short) == 1 else str(path)
        trees = predicted_trees(nlp, examples, gold_preproc, progress)
        if not trees:
            fail(
                f"{path} writes no trees on docs: it has neither a parse nor latent heads. Give "
                "a pipeline with one of them."
            )
        if not any(example.reference.has_annotation("DEP") for example in examples):
            fail(
                f"The docs of {corpus} have no heads to compare with. Give docs with annotated "
                "heads."
            )
        with failing(f"The trees cannot be compared with the heads of {corpus}"):
            found = measure(examples, {f"{name}: {source}": each for source, each in trees.items()})
        # Each table ends with the controls. Keep them once.
        table = {**{row: table[row] for row in table if row not in found}, **found}
    print_table(table)
    if any(row.endswith(f": {PARSE}") for row in table):
        msg.text(
            f"{PARSE} is the parse on the docs at the end of the pipeline. Rows with the name of "
            "a component evaluate its trees in doc._.latent"
        )
    if metrics is not None:
        write_json(metrics, for_json(table))


def read_with_heads(nlp: Language, corpus: Path, gold_preproc: bool) -> list[Example]:
    """Return a corpus as examples. If it cannot be read, print why and exit."""
    from spacy.training import Corpus

    from spacy_latent.cli.corpus import read_examples

    if corpus.is_file() and corpus.suffix != ".spacy":
        if gold_preproc:
            fail(
                "--gold-preproc needs docs in spaCy's binary format (.spacy)",
                f"The corpus is {corpus}.",
            )
        with failing(f"The corpus {corpus} cannot be read"):
            return read_examples(nlp, str(corpus))
    try:
        return list(Corpus(corpus, gold_preproc=gold_preproc)(nlp))
    except Exception as error:
        # For every error of a reader, the user needs the name of the file and the reason.
        fail(
            f"The corpus {corpus} cannot be read",
            f"{type(error).__name__}: {error}\nGive docs with heads in spaCy's binary format, as "
            "'spacy convert' writes them.",
        )


# The tokens that count: as in spaCy's dep_uas, and all.
COUNTED = ("without punctuation", "all tokens")
# Name of the row of the parse. It is not the name of a component: a latent_parser has a row under
# its own name, usually "parser", for its trees in doc._.latent.
PARSE = "token.head"


def predicted_trees(
    nlp: Language,
    examples: Sequence[Example],
    one_sentence: bool = False,
    progress: Progress | None = None,
) -> dict[str, Sequence[Heads]]:
    """Return the heads of every doc, by the name of a latent layer, or :data:`PARSE`.

    Inline layers and structures that are not stored are included.

    Args:
        one_sentence: Mark each doc as one sentence, which a parser would otherwise split.
    """
    for example in examples if one_sentence else ():
        for token in example.predicted:
            token.is_sent_start = token.i == 0
    found: dict[str, Sequence[Heads]] = {}
    stream = read_structures(nlp, [example.predicted for example in examples])
    docs = list(stream if progress is None else progress(stream, "Trees", len(examples)))
    if any(doc.has_annotation("DEP") for doc in docs):
        found[PARSE] = [[token.head.i for token in doc] for doc in docs]
    for name in sorted({name for doc in docs for name in doc._.latent}):
        if all(_has_heads(doc, name) for doc in docs):
            found[name] = [doc._.latent[name].heads for doc in docs]
    return found


def read_structures(nlp: Language, docs: Sequence[Doc]) -> Iterator[Doc]:
    """Yield docs as ``nlp.pipe`` does, with the structures of all latent layers."""
    from spacy_latent.annotations import BEST
    from spacy_latent.pipeline.inspection import inspect_pipe, latent_components

    if not latent_components(nlp):
        yield from nlp.pipe(docs)
        return
    for doc, _ in inspect_pipe(nlp, docs, stored=BEST):
        yield doc


def _has_heads(doc: Doc, component: str) -> bool:
    from spacy_latent.kinds import find_kind

    annotation = doc._.latent.get(component)
    return annotation is not None and all(
        "heads" in find_kind(span.kind).accessors for span in annotation.spans
    )


def measure(
    examples: Sequence[Example], trees: dict[str, Sequence[Heads]], seed: int = 0
) -> dict[str, dict[str, Share]]:
    """Return the shares of tokens with the head of the reference, with control trees.

    The shares are by the name of the trees and by the counted tokens. They include the other
    :data:`spacy_latent.analysis.TREE_MEASURES`, without punctuation.
    """
    from spacy_latent.analysis import (
        PUNCTUATION,
        attachment_table,
        control_trees,
        reference_tree,
        tree_table,
        without_labels,
    )

    known = [(d, tree) for d, e in enumerate(examples) if (tree := reference_tree(e)) is not None]
    references = [tree for _, tree in known]
    words = [[token.text for token in examples[d].predicted] for d, _ in known]
    found = {name: [heads[d] for d, _ in known] for name, heads in trees.items()}
    ways = dict(zip(COUNTED, (without_labels(references, left) for left in (PUNCTUATION, ()))))
    every: dict[str, Sequence[Heads]] = {**found, **control_trees(words, seed=seed)}
    table = attachment_table(references, every, ways, seed)
    for name, row in tree_table(references, every, ways[COUNTED[0]], seed).items():
        table[name] |= {measure: row[measure] for measure in row if measure != "attachment"}
    return table


def print_table(table: dict[str, dict[str, Share]]) -> None:
    """Print the shares in percent, with 95 % intervals of the attachment."""
    ways = list(next(iter(table.values())))
    rows = [
        (name, *(_shown(*row[way]) if way in COUNTED else in_percent(row[way][0]) for way in ways))
        for name, row in table.items()
    ]
    header = ("", *(f"{way} (95 %)" if way in COUNTED else way for way in ways))
    msg.table(rows, header=header)


def _shown(share: float, low: float, high: float) -> str:
    return f"{in_percent(share)} ({in_percent(low)} to {in_percent(high)})"


def for_json(table: dict[str, dict[str, Share]]) -> dict[str, dict[str, Any]]:
    """Return the table for JSON.

    A share has the name of the counted tokens as its key. Its interval has this name followed by ",
    95 %". A share without any counted tokens is null.
    """
    from spacy_latent.analysis.figures import plain

    found: dict[str, dict[str, Any]] = {}
    for name, row in table.items():
        shares = {way: share for way, (share, _, _) in row.items()}
        intervals = {f"{way}, 95 %": [low, high] for way, (_, low, high) in row.items()}
        found[name] = plain({**shares, **intervals})
    return found
