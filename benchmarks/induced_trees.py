"""Compare latent trees of several seeds with each other, chains, random trees and a treebank.

    python -m spacy project run sentiment-data
    python -m spacy project run english-data
    python -m benchmarks induced_trees --seeds 0 1 2 3 4

Each entry of a group of ``benchmarks learning`` that has one of the configs is trained with every
seed, or resumes from its last checkpoint. The models are kept in their folders. They read the gold
sentences and tokens of the corpus, by default the development set of UD English EWT. Brackets are
taken from the binary form of a tree (:func:`spacy_latent.analysis.trees.brackets_of_heads`). Whole
sentences do not count, since all trees have them. A span with gaps has no bracket.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from datetime import date
from itertools import combinations
from pathlib import Path
from statistics import mean

import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc, DocBin

from benchmarks import learning
from benchmarks.learning_groups import GROUPS
from benchmarks.sections import write_section
from spacy_latent.analysis import trees
from spacy_latent.errors import LatentError

# Lists of heads, one for each sentence.
Treebank = list[list[int]]
# benchmarks.learning uses another folder, from which it removes its models.
RUNS = learning.RUNS.with_name("induced_trees")
CONFIGS = ("sentiment_sparsemap_tree_lstm", "sentiment_perturb_and_parse")
COLUMNS = (
    *("depth", "heads as in gold", "heads as with another seed", "F1 to gold"),
    *("F1 to another seed", "F1 to left-branching", "F1 to right-branching"),
)


def gold_of(path: Path) -> tuple[list[list[str]], Treebank]:
    """Return the words and heads of each sentence of a corpus; a root is its own head.

    Raises:
        LatentError: The docs have no heads.
    """
    docs = list(DocBin().from_disk(path).get_docs(spacy.blank("en").vocab))
    if not docs or not all(doc.has_annotation("DEP") for doc in docs):
        raise LatentError(f"{path} has docs without heads; expected a treebank.")
    sentences = [sentence for doc in docs for sentence in doc.sents]
    return (
        [[token.text for token in sentence] for sentence in sentences],
        [[token.head.i - sentence.start for token in sentence] for sentence in sentences],
    )


def trees_of(nlp: Language, sentences: Sequence[Sequence[str]]) -> Treebank:
    """Return the best trees of a pipeline with one latent structure."""
    docs = nlp.pipe(Doc(nlp.vocab, words=list(words)) for words in sentences)
    return [next(iter(doc._.latent.values())).heads.tolist() for doc in docs]


def same_heads(first: Treebank, second: Treebank) -> float:
    """Return the share of tokens with the same head."""
    same = [a == b for one, other in zip(first, second, strict=True) for a, b in zip(one, other)]
    return mean(same)


def f1(first: Treebank, second: Treebank) -> float:
    """Return the F1 between the brackets of two treebanks, without brackets of whole sentences."""

    def inner(heads: list[int]) -> list[tuple[int, int]]:
        return [span for span in trees.brackets_of_heads(heads) if span != (0, len(heads))]

    return trees.bracketing_f1(*([inner(heads) for heads in each] for each in (first, second)))


def table(
    sentences: Sequence[Sequence[str]], gold: Treebank, found: dict[str, list[Treebank]]
) -> list[str]:
    """Return a row for each kind of trees, with means over its seeds or over pairs of seeds.

    Args:
        found: the treebanks of each kind, one for each seed.
    """
    # The binary form of a flat tree branches to the left, and the one of a chain to the right.
    left, right = (
        [control(words, random.Random(0)) for words in sentences]
        for control in (trees.flat, trees.previous_token)
    )
    lines = [f"| trees | seeds | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * (len(COLUMNS) + 1)}"]
    for name, seeds in found.items():
        pairs = list(combinations(seeds, 2))
        figures = [
            [same_heads(one, gold) for one in seeds],
            [same_heads(*pair) for pair in pairs],
            [f1(one, gold) for one in seeds],
            [f1(*pair) for pair in pairs],
            [f1(one, left) for one in seeds],
            [f1(one, right) for one in seeds],
        ]
        depth = mean(trees.tree_statistics(heads).depth for one in seeds for heads in one)
        cells = [f"{100 * mean(values):.1f}" if values else "" for values in figures]
        lines.append(f"| {' | '.join([name, str(len(seeds)), f'{depth:.1f}', *cells])} |")
    return lines


def controls(sentences: Sequence[Sequence[str]], seeds: Sequence[int]) -> dict[str, list[Treebank]]:
    """Return treebanks of both kinds of chains, and of random trees for each seed."""
    made = {
        "control: each word on the next": [trees.next_token],
        "control: each word on the one before": [trees.previous_token],
        "control: random trees": [trees.random_tree] * len(seeds),
    }
    return {
        name: [
            [control(words, rng) for words in sentences]
            for control, rng in zip(each, map(random.Random, seeds))
        ]
        for name, each in made.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--group", choices=GROUPS, default="tree_lstm")
    parser.add_argument("--configs", nargs="+", default=CONFIGS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--corpus", type=Path, default=Path("corpus/english/test.spacy"))
    parser.add_argument("--runs", type=Path, default=RUNS, help="where models are kept")
    given = parser.parse_args()
    group = GROUPS[given.group].entries
    entries = [entry for entry in group if entry.config in given.configs]
    unknown = sorted(set(given.configs) - {entry.config for entry in entries})
    if unknown:
        configs = ", ".join(dict.fromkeys(entry.config for entry in group))
        parser.error(
            f"--configs has {', '.join(unknown)}; expected some of {configs}, of --group "
            f"{given.group}."
        )
    torch.set_num_threads(1)
    sentences, gold = gold_of(given.corpus)
    found: dict[str, list[Treebank]] = {}
    for entry in entries:
        runs = [
            learning.Run(entry, seed, given.runs.resolve(), learning.RAW) for seed in given.seeds
        ]
        for run in runs:
            learning.train(run)
        name = f"`{entry.config}`: {entry.what}"
        models = [spacy.load(run.folder / entry.model) for run in runs]
        found[name] = [trees_of(nlp, sentences) for nlp in models]
    found = {**found, **controls(sentences, given.seeds), "gold": [gold]}
    seeds = ", ".join(map(str, given.seeds))
    lines = [
        f"{date.today()}, torch {torch.__version__}, spaCy {spacy.__version__}, one thread. "
        f"{len(sentences):,} sentences of `{given.corpus}`, seeds {seeds}. "
        "Figures but the depth in percent.",
        "",
        *table(sentences, gold, found),
    ]
    write_section("induced_trees", "Latent trees beside chains, random trees and a treebank", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
