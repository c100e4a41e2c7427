"""Processor time of a training step, compared with spaCy's component for the same task.

    python -m benchmarks steps

Both pipelines of a pair have the same embedder, learn the same annotation of the same docs, and
take steps in turn. With an embedder of width 96, the figures are the cost of a step on a CPU. With
width 8, there is hardly any arithmetic. The remaining cost is Python, thinc and the dispatch of
operations, which is also the cost of a step for the host of a GPU. It includes exact inference of
structures on the CPU.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from datetime import date
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from thinc.api import Adam, fix_random_seed

from benchmarks.pipeline import REDUCED_TEXTCAT, TOK2VEC
from benchmarks.sections import write_section

WIDTHS = (96, 8)
LABELS = ("A", "B")
# The default model of `textcat`: a bag of words beside attention over the embedder.
ENSEMBLE_TEXTCAT = {
    "@architectures": "spacy.TextCatEnsemble.v2",
    "linear_model": {
        "@architectures": "spacy.TextCatBOW.v3",
        "exclusive_classes": True,
        "length": 262144,
        "ngram_size": 1,
        "no_output_layer": False,
    },
}


class Pair(NamedTuple):
    """Two components for one task.

    Attributes:
        stock: spaCy's component.
        own: our component.
        settings: function of the embedder's width that returns the settings of our model.
        stock_model: settings of spaCy's model, or nothing for its default.
        note: words about spaCy's model for the table.
    """

    stock: str
    own: str
    settings: Callable[[int], dict[str, Any]] = lambda width: {}
    stock_model: dict[str, Any] | None = None
    note: str = ""


def latent(structure: str, estimator: str, width: int) -> dict[str, Any]:
    """Return the settings of a text classifier with a latent structure."""
    return {
        "@architectures": "spacy-latent.LatentTextClassifier.v1",
        "exclusive_classes": True,
        "structure": {"@misc": f"spacy-latent.{structure}.v1"},
        "scorer": {"@misc": "spacy-latent.BiaffineScorer.v1", "hidden_width": min(width, 64)},
        "estimator": {"@misc": f"spacy-latent.{estimator}.v1"},
    }


def marginals(width: int) -> dict[str, Any]:
    return latent("SpanningTree", "Marginals", width)


def sparsemap(width: int) -> dict[str, Any]:
    return latent("ProjectiveTree", "SparseMAP", width)


BY_DEFAULT, BY_MEAN = "by default", "the mean of vectors"
PAIRS = {
    "categories, marginals of spanning trees": [
        Pair("textcat", "latent_textcat", marginals, ENSEMBLE_TEXTCAT, BY_DEFAULT),
        Pair("textcat", "latent_textcat", marginals, REDUCED_TEXTCAT, BY_MEAN),
    ],
    "categories, SparseMAP of projective trees": [
        Pair("textcat", "latent_textcat", sparsemap, ENSEMBLE_TEXTCAT, BY_DEFAULT),
        Pair("textcat", "latent_textcat", sparsemap, REDUCED_TEXTCAT, BY_MEAN),
    ],
    "entities": [Pair("ner", "crf_ner")],
    "parses": [Pair("parser", "latent_parser")],
    "nested spans": [Pair("spancat", "tree_spancat")],
}


def embedder(width: int) -> dict[str, Any]:
    return {**TOK2VEC, "width": width}


def annotated(vocab: Any, count: int, rng: random.Random) -> list[Doc]:
    """Make docs of 10 to 35 words with a category, entities, a tree and nested spans."""
    docs = []
    for number in range(count):
        length = rng.randint(10, 35)
        words = [f"word{rng.randrange(2000)}" for _ in range(length)]
        # The head of a word is the word before it or the second word, which is the root. Such trees
        # are projective.
        heads = [1, 1, *(rng.choice((1, word - 1)) for word in range(2, length))]
        labels = [rng.choice(LABELS) if word != 1 else "ROOT" for word in range(length)]
        doc = Doc(vocab, words=words, heads=heads, deps=labels)
        doc.cats = {label: float(number % 2 == place) for place, label in enumerate(LABELS)}
        starts = range(0, length - 4, 5)
        inner = [Span(doc, start, start + 2, label=rng.choice(LABELS)) for start in starts]
        outer = [Span(doc, start, start + 4, label=rng.choice(LABELS)) for start in starts]
        doc.set_ents(inner)
        doc.spans["sc"] = [*inner, *outer]
        docs.append(doc)
    return docs


class Training:
    """A pipeline of one component in training."""

    def __init__(self, component: str, docs: int, width: int, model: dict[str, Any]) -> None:
        fix_random_seed(0)
        self.nlp: Language = spacy.blank("en")
        self.docs = annotated(self.nlp.vocab, docs, random.Random(0))
        config: dict[str, Any] = {"model": {**model, "tok2vec": embedder(width)}}
        if component == "parser":
            # Labels have few arcs in so few docs, and the parser would drop such labels.
            config["min_action_freq"] = 1
        self.nlp.add_pipe(component, config=config)
        self.nlp.initialize(self.examples)
        self.optimizer = Adam(0.001)

    def examples(self) -> list[Example]:
        return [
            Example(Doc(self.nlp.vocab, words=[token.text for token in doc]), doc)
            for doc in self.docs
        ]

    def step(self) -> float:
        """Take a step, and return its processor time in milliseconds."""
        examples = self.examples()
        start = time.process_time()
        self.nlp.update(examples, sgd=self.optimizer, drop=0.1)
        return 1e3 * (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", type=int, default=256, help="docs of a step")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    words = sum(map(len, annotated(spacy.blank("en").vocab, arguments.docs, random.Random(0))))
    lines = [
        f"{date.today()}, torch {torch.__version__}, spaCy {spacy.__version__}, one thread. A step "
        f"on {arguments.docs} docs of {words:,} words, in milliseconds of a "
        f"processor; medians of {arguments.rounds} steps in turn. With width 8 hardly any "
        "arithmetic of the embedder is left.",
        "",
        "| learned | ours | spaCy's | width | spaCy's, ms | ours, ms | ratio |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for learned, pairs in PAIRS.items():
        for pair, width in product(pairs, WIDTHS):
            trainings = (
                Training(pair.stock, arguments.docs, width, pair.stock_model or {}),
                Training(pair.own, arguments.docs, width, pair.settings(width)),
            )
            times: list[list[float]] = [[], []]
            for number in range(arguments.rounds + 2):
                for training, taken in zip(trainings, times):
                    # The first two steps are not counted, since they allocate and compile.
                    taken += [training.step()][: number >= 2]
            first, second = map(median, times)
            stock = f"`{pair.stock}`" + (f", {pair.note}" if pair.note else "")
            lines.append(
                f"| {learned} | `{pair.own}` | {stock} | {width} | {first:.0f} | {second:.0f} | "
                f"{second / first:.2f} |"
            )
            print(lines[-1], flush=True)
    write_section("steps", "Training steps beside spaCy's components", lines)


if __name__ == "__main__":
    main()
