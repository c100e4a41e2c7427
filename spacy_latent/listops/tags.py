"""ListOps with tags of tokens that depend on the tree: two experiments of the literature.

``arguments``: the tag of an operator is the number of its arguments (Corro and Titov 2019; Niculae
and Martins 2020, section 5.1). Other tokens have no tag. ``infix``: the tag of a token is the
operator after it in infix notation, or ``-`` if there is no operator. So ``[MAX 2 9 [MIN 4 7 ] ]``
becomes ``( 2 MAX 9 MAX ( 4 MIN 7 ) )``. This is the transduction of trees of Kim et al. 2017
(section 4.1) with one output for each token instead of a decoder.

    python -m spacy_latent.listops.tags arguments corpus/listops corpus/arguments
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from spacy_latent.corpora.standard_streams import run
from spacy_latent.errors import LatentError, number_of
from spacy_latent.listops.expressions import CLOSE, gold_heads, gold_tree, read

# The part without gold trees, for learning latent ones.
TRAIN = "train"
NO_OPERATOR = "-"


def argument_tags(tokens: Sequence[str]) -> list[str]:
    """Return the number of arguments of each operator as its tag; other tokens have no tag."""
    counts = [0] * len(tokens)
    for token, (index, head) in zip(tokens, enumerate(gold_heads(tokens))):
        if head != index and token != CLOSE:
            counts[head] += 1
    return [str(count) if token[0] == "[" else "" for token, count in zip(tokens, counts)]


def infix_tags(tokens: Sequence[str]) -> list[str]:
    """Return the operator after each token in infix notation.

    An argument that is not the last of its list is followed by the operator of the list.
    """
    heads, tags = gold_heads(tokens), []
    for index, token in enumerate(tokens):
        argument = heads[index] if token == CLOSE else index
        last = index + 1 == len(tokens) or tokens[index + 1] == CLOSE
        between = token[0] != "[" and heads[argument] != argument and not last
        tags.append(tokens[heads[argument]][1:] if between else NO_OPERATOR)
    return tags


class Task(str, Enum):
    """Meaning of the tags: numbers of arguments, or operators in infix notation."""

    arguments = "arguments"
    infix = "infix"


TAGS: dict[Task, Callable[[Sequence[str]], list[str]]] = {
    Task.arguments: argument_tags,
    Task.infix: infix_tags,
}


def write_tagged(source: Path, target: Path, task: Task, heads: bool, limit: int = 0) -> int:
    """Write the expressions of one file as docs to ``target``.

    Args:
        heads: whether the docs get their trees.

    Returns:
        The number of docs.
    """
    from spacy.tokens import Doc, DocBin
    from spacy.vocab import Vocab

    found, vocab = DocBin(attrs=["ORTH", "TAG", "HEAD", "DEP"]), Vocab()
    for _, tokens in islice(read(source), limit or None):
        tree = gold_tree(tokens) if heads else {}
        found.add(Doc(vocab, words=tokens, tags=TAGS[task](tokens), **tree))
    target.parent.mkdir(parents=True, exist_ok=True)
    found.to_disk(target)
    return len(found)


def main(
    task: Annotated[Task, typer.Argument(help="What the tags say")],
    source: Annotated[Path, typer.Argument(help="A folder of expressions, as .tsv files")],
    output: Annotated[Path, typer.Argument(help="Folder for as many .spacy files")],
    limit: Annotated[int, typer.Option(help="Of the training set; 0 for all of it", min=0)] = 0,
) -> None:
    """Write the expressions of SOURCE as docs with tags to OUTPUT.

    All files but train.spacy also have the trees, to evaluate latent structures.
    """
    files = sorted(source.glob("*.tsv"))
    if not files:
        raise LatentError(
            f"{source} has no .tsv files. Make them with 'spacy latent generate listops {source}'."
        )
    for path in files:
        learned = path.stem == TRAIN
        target = output / f"{path.stem}.spacy"
        count = write_tagged(path, target, task, not learned, limit if learned else 0)
        print(f"{target}: {number_of(count, 'expression')}")


if __name__ == "__main__":
    run(main)
