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
    output: Path = typer.Argument(..., help=".spacy file to write"),
    keep: float | None = typer.Option(
        None,
        "--keep",
        help="Share of the entities to keep. All other tokens become tokens without annotation",
    ),
    flags: bool = typer.Option(
        False,
        "--flags",
        help="Replace entities by flags in doc.cats, such as has_GPE: 1 if the text has an entity "
        "of the label, else 0",
    ),
    full: int | None = typer.Option(
        None, "--full", help="With --flags: number of texts that keep their entities. Default: 150"
    ),
    wrong: float | None = typer.Option(
        None, "--wrong", help="With --flags: share of flags to invert. Default: 0"
    ),
    label_sets: str | None = typer.Option(
        None,
        "--label-sets",
        help="Sets of labels, with / between sets, such as PER,ORG/LOC. Each text keeps the "
        "entities of one random set",
    ),
    sources: str | None = typer.Option(
        None,
        "--sources",
        help="Simulate sources of annotation, one for each share of correct entities, such as "
        "0.9,0.7,0.5. Their entities are in doc.spans, as source_1 and so on",
    ),
    as_if_complete: bool = typer.Option(
        False,
        "--as-if-complete",
        help="For comparison, write the result as complete annotation: all tokens without an "
        "entity are outside of entities. With --flags, write only the texts that keep their "
        "entities. With --sources, write the entities of the majority",
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of the random choices"),
) -> None:
    """Remove entity annotation from a corpus, to measure how useful the remaining part is.

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
        title = f"{chosen} exclude each other" if chosen else "No annotation is removed"
        fail(title, f"Give one of {', '.join(given)}.")
    if not flags and (full is not None or wrong is not None):
        fail("--full and --wrong need --flags", "Leave them out, or give --flags.")
    full, wrong = 150 if full is None else full, wrong or 0.0
    files = files_of(corpus, output)
    vocab = spacy.blank("xx").vocab
    with failing("Nothing was written"):
        docs = [doc for file in files for doc in stored_docs(file, vocab)]
        if not docs:
            raise LatentError(f"The corpus {corpus} holds no texts. Give one with at least one.")
        if not any(doc.ents for doc in docs):
            raise LatentError(
                f"No text of {corpus} has an annotated entity in doc.ents, so there is nothing "
                "to remove. Give texts with annotated entities."
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
        msg.info("To train a crf_ner called NAME on it, give 'spacy train' this option:")
        print(f"\n--components.NAME.evidence {shlex.quote(json.dumps(settings))}")
    else:
        msg.info(
            "A crf_ner reads the sets of labels from doc._.annotated_labels; it needs no setting"
        )


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
            "Convert other formats with 'spacy convert'.",
        )
    files = list(walk_corpus(corpus, ".spacy"))
    if corpus.is_dir() and corpus.resolve() in output.resolve().parents:
        fail(
            f"{output} is in the corpus",
            "The corpus would then hold each text twice. Give another directory.",
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
