"""A small task whose label depends on two words of a text, at any distance from each other.

A tree with an arc between the two words helps, and a bag of words does not. It is learned in
seconds.
"""

from __future__ import annotations

import random
from typing import Any

import spacy
from spacy.language import Language
from spacy.training import Example
from thinc.api import Adam, fix_random_seed

from tests.pipeline.keyword_pipelines import EMBED, FILLERS
from tests.pipeline.small_pipelines import LISTENER, REDUCE, learn

WORDS, FLAGS = ("good", "bad"), ("plain", "not")
MODEL: dict[str, Any] = {"tok2vec": EMBED, "residual": False}


def texts(count: int, seed: int) -> list[tuple[list[str], str]]:
    """Return the words and the label of each text. A flag "not" reverses the label of the word."""
    rng, made = random.Random(seed), []
    for i in range(count):
        word, flag = i % 2, i // 2 % 2
        words = [rng.choice(FILLERS) for _ in range(rng.randint(4, 8))]
        for one in (WORDS[word], FLAGS[flag]):
            words.insert(rng.randint(0, len(words)), one)
        made.append((words, WORDS[word ^ flag]))
    return made


def flag_examples(nlp: Language, count: int, seed: int = 1, heads: bool = True) -> list[Example]:
    """Return examples with the label of each text, and with gold heads if ``heads``.

    The head of the flag is the word of WORDS, which is the root. Every second filler has the flag
    as its head, and the others have the word of WORDS.
    """
    made = []
    for words, label in texts(count, seed):
        gold: dict[str, Any] = {"cats": {"good": 0.0, "bad": 0.0, label: 1.0}}
        if heads:
            key = next(i for i, word in enumerate(words) if word in WORDS)
            flag = next(i for i, word in enumerate(words) if word in FLAGS)
            on_flag = [word in FILLERS[::2] for word in words]
            gold["heads"] = [flag if there else key for there in on_flag]
            gold["deps"] = ["dep"] * len(words)
        made.append(Example.from_dict(nlp.make_doc(" ".join(words)), gold))
    return made


def flag_pipeline(
    steps: int = 60, seed: int = 0, supervision: float = 0.0, trees: str | None = None
) -> Language:
    """Train a classifier over a latent encoder.

    Args:
        supervision: Weight of the loss on the heads of the references.
        trees: ``trees`` of GivenTrees. If None, the trees are learned.
    """
    nlp = spacy.blank("xx")
    model = {**MODEL}
    if trees is not None:
        model["estimator"] = {"@misc": "spacy-latent.GivenTrees.v1", "trees": trees}
    nlp.add_pipe("latent_encoder", config={"model": model, "supervision": supervision})
    nlp.add_pipe("textcat", config={"model": {**REDUCE, "tok2vec": LISTENER}})
    train = flag_examples(nlp, 128, seed=0, heads=supervision > 0)
    fix_random_seed(seed)
    nlp.initialize(lambda: train)
    optimizer = Adam(0.02)
    learn(nlp, train, steps, optimizer)
    return nlp
