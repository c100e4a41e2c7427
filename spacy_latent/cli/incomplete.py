"""Command ``spacy latent incomplete``: a corpus without a part of its annotation."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spacy_latent.cli.messages import fail, failing, msg
from spacy_latent.cli.output import check_output, write_page
from spacy_latent.corpora.doc_files import stored_docs
from spacy_latent.errors import LatentError, number_of

if TYPE_CHECKING:
    from spacy.tokens import Doc

EXAMPLES = """
Examples:

  spacy latent incomplete corpus/train.spacy corpus/sparse.spacy --keep 0.3

  spacy latent incomplete corpus/train.spacy corpus/flags.spacy --flags --full 150

  spacy latent incomplete corpus/train.spacy corpus/sets.spacy --label-sets Chemical/Disease

  spacy latent incomplete corpus/train.spacy corpus/sources.spacy --sources 0.8,0.6,0.4
"""


def incomplete_cli(
    corpus: Path = typer.Argument(..., help="Annotated texts: .spacy, or a directory of these"),
    output: Path = typer.Argument(..., help="The .spacy file to write"),
    keep: float | None = typer.Option(
        None, "--keep", help="Keep this share of the entities; of other tokens nothing is known"
    ),
    flags: bool = typer.Option(
        False, "--flags", help="Say only whether a text has an entity of each label, in doc.cats"
    ),
    full: int | None = typer.Option(
        None, "--full", help="With --flags: leave so many texts as they are; by default 150"
    ),
    wrong: float | None = typer.Option(
        None, "--wrong", help="With --flags: this share of them is wrong; by default none"
    ),
    label_sets: str | None = typer.Option(
        None,
        "--label-sets",
        help="Annotate each text for one of these sets of labels: / between sets, commas in them",
    ),
    sources: str | None = typer.Option(
        None,
        "--sources",
        help="Let sources of annotation see the entities that are right so often, as 0.9,0.7,0.5; "
        "in doc.spans source_1 and so on",
    ),
    as_if_complete: bool = typer.Option(
        False,
        "--as-if-complete",
        help="Do not say what is not known, for comparison: other tokens count as outside of "
        "entities, with --flags only the complete texts are written, and with --sources the "
        "majority decides",
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of what is taken away"),
) -> None:
    """Remove annotation from a corpus, to measure how useful the remaining annotation is.

    Give one of --keep, --flags, --label-sets and --sources. The page "Learn from incomplete
    annotation" describes how a crf_ner uses each of them.
    """
    import spacy
    from spacy.tokens import DocBin

    import spacy_latent.annotations  # noqa: F401 (it registers doc._.annotated_labels)

    if sum((keep is not None, flags, label_sets is not None, sources is not None)) != 1:
        given = {
            "--keep": keep is not None,
            "--flags": flags,
            "--label-sets": label_sets is not None,
            "--sources": sources is not None,
        }
        chosen = ", ".join(option for option, is_given in given.items() if is_given)
        title = f"{chosen} exclude each other" if chosen else "Nothing is taken away"
        fail(title, f"Give one of {', '.join(given)}.")
    if not flags and (full is not None or wrong is not None):
        fail("--full and --wrong go with --flags", "Leave them out, or take --flags.")
    full, wrong = 150 if full is None else full, wrong or 0.0
    files = files_of(corpus, output)
    vocab = spacy.blank("xx").vocab
    with failing("Nothing was written"):
        docs = [doc for file in files for doc in stored_docs(file, vocab)]
        if not docs:
            raise LatentError(f"The corpus {corpus} holds no texts. Give one with at least one.")
        if not any(doc.ents for doc in docs):
            raise LatentError(
                f"No text of {corpus} has an annotated entity in doc.ents, so there is nothing to "
                "take away. Give texts with annotated entities."
            )
        made, settings = remove_annotation(
            docs, Removal(keep, flags, full, wrong, label_sets, sources), seed, as_if_complete
        )
    # User data only if there are any, because spaCy takes milliseconds per doc to read them.
    has_user_data = any(doc.user_data for doc in made)
    write_page(output, DocBin(docs=made, store_user_data=has_user_data).to_bytes())
    msg.good(f"{output}: {size_of(made)}")
    if not as_if_complete:
        print_settings(settings)


def size_of(docs: list[Doc]) -> str:
    """Return the numbers of texts and annotations in words."""
    entities = sum(len(doc.ents) for doc in docs)
    counts = [number_of(len(docs), "text"), number_of(entities, "entity", ",")]
    if spans := sum(len(group) for doc in docs for group in doc.spans.values()):
        counts.append(f"{number_of(spans, 'span', ',')} in doc.spans")
    return ", ".join(counts)


def print_settings(settings: dict[str, Any]) -> None:
    """Print how a crf_ner reads the annotation."""
    if settings:
        msg.info("A crf_ner reads it with this option of 'spacy train', NAME being its own name:")
        print(f"\n--components.NAME.evidence {shlex.quote(json.dumps(settings))}")
    else:
        msg.info("A crf_ner reads the labels in doc._.annotated_labels, without a setting")


def files_of(corpus: Path, output: Path) -> list[Path]:
    """Return the files of a corpus, or exit with an error if the output would damage it."""
    from spacy.training.corpus import walk_corpus

    if not corpus.exists():
        fail(f"{corpus} does not exist. Give a .spacy file, or a directory of these.")
    if output.suffix != ".spacy":
        fail(f"{output} is no .spacy file", "Give a name that ends so.")
    check_output(output)
    if corpus.is_file() and corpus.suffix != ".spacy":
        fail(
            f"{corpus} is no .spacy file",
            "'spacy convert' makes one of other files of annotated tokens.",
        )
    files = list(walk_corpus(corpus, ".spacy"))
    if corpus.is_dir() and corpus.resolve() in output.resolve().parents:
        fail(
            f"{output} is in the corpus",
            "Each text would be there twice, or its annotation be lost. Give another directory.",
        )
    if output.exists() and any(file.samefile(output) for file in files):
        fail(f"{output} is the corpus", "Its annotation would be lost. Give another name.")
    return files


@dataclass(frozen=True)
class Removal:
    """The options that say which annotation goes."""

    keep: float | None
    flags: bool
    full: int
    wrong: float
    label_sets: str | None
    sources: str | None


def remove_annotation(
    docs: list[Doc], removal: Removal, seed: int, as_if_complete: bool
) -> tuple[list[Doc], dict[str, Any]]:
    """Return docs without a part of their entities, and the settings of evidence to read them."""
    from spacy_latent.corpora.incomplete import (
        PREFIX,
        SOURCE,
        flag_all_but,
        keep_some,
        simulate_sources,
        split_by_labels,
    )

    if removal.keep is not None:
        kept = keep_some(docs, removal.keep, seed, as_if_complete)
        return list(kept), {"negative_share": 0.15}
    if removal.flags:
        # Before the entities are taken away.
        labels = sorted({span.label_ for doc in docs for span in doc.ents})
        flagged = flag_all_but(docs, removal.full, seed, removal.wrong, as_if_complete)
        names = {f"{PREFIX}{label}": label for label in labels}
        return list(flagged), {"flags": names, "flag_error": removal.wrong}
    if removal.sources is not None:
        try:
            shares = [float(share) for share in removal.sources.split(",")]
        except ValueError:
            raise LatentError(
                f"--sources is {removal.sources!r}; expected numbers, as 0.9,0.7,0.5."
            ) from None
        simulated = simulate_sources(docs, shares, seed, as_if_complete)
        return list(simulated), {"sources": [f"{SOURCE}{i}" for i in range(1, len(shares) + 1)]}
    sets = [list(map(str.strip, one.split(","))) for one in (removal.label_sets or "").split("/")]
    there = {span.label_ for doc in docs for span in doc.ents}
    if rest := sorted(there.difference(*sets)):
        msg.warn(
            f"No set of labels has {', '.join(rest)}, so no text keeps such entities. Name these "
            "labels in a set to keep them."
        )
    return list(split_by_labels(docs, sets, seed, as_if_complete)), {}
