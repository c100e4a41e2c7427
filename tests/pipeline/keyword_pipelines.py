"""A small task whose label is one word of the text, and models that learn it in seconds.

One model chooses a word, and one composes trees.
"""

from __future__ import annotations

import random
from typing import Any

import spacy
from spacy.language import Language
from spacy.training import Example
from thinc.api import Adam, fix_random_seed

from tests.pipeline.small_pipelines import LISTENER, REDUCE, learn

FILLERS = [f"filler{i}" for i in range(12)]
EMBED = {
    "@architectures": "spacy.MultiHashEmbed.v2",
    "width": 16,
    "attrs": ["ORTH"],
    "rows": [200],
    "include_static_vectors": False,
}
CHOICE = {
    "tok2vec": EMBED,
    "residual": False,
    "structure": {"@misc": "spacy-latent.KOfN.v1", "k": 1},
    "scorer": {"@misc": "spacy-latent.ItemScorer.v1"},
    "estimator": {"@misc": "spacy-latent.SparseMAP.v1"},
    "composer": {"@misc": "spacy-latent.Selection.v1"},
}
TREE = {"tok2vec": EMBED, "residual": True}


def texts(count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    made = []
    for i in range(count):
        label = ("good", "bad")[i % 2]
        words = [rng.choice(FILLERS) for _ in range(rng.randint(5, 9))]
        words[rng.randrange(len(words))] = label
        made.append((" ".join(words), label))
    return made


def keyword_examples(nlp: Language, count: int, seed: int = 1, heads: bool = True) -> list[Example]:
    """Return examples with the label of each text, and with gold heads if ``heads``.

    The word that equals the label is the root, and the head of all other words.
    """
    made = []
    for text, label in texts(count, seed):
        doc = nlp.make_doc(text)
        gold: dict[str, Any] = {"cats": {"good": 0.0, "bad": 0.0, label: 1.0}}
        if heads:
            key = text.split().index(label)
            gold["heads"] = [key] * len(doc)
            gold["deps"] = ["ROOT" if i == key else "mod" for i in range(len(doc))]
        made.append(Example.from_dict(doc, gold))
    return made


def keyword_pipeline(model: dict[str, Any], steps: int = 60, seed: int = 0) -> Language:
    nlp = spacy.blank("xx")
    nlp.add_pipe("latent_encoder", config={"model": model})
    nlp.add_pipe("textcat", config={"model": {**REDUCE, "tok2vec": LISTENER}})
    train = keyword_examples(nlp, 64, seed=0, heads=False)
    fix_random_seed(seed)
    nlp.initialize(lambda: train)
    optimizer = Adam(0.02)
    learn(nlp, train, steps, optimizer)
    return nlp
