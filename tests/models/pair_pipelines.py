"""Small pipelines that classify pairs of texts, and their data."""

from __future__ import annotations

from typing import Any

import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import fix_random_seed

from spacy_latent.corpora.text_pairs import make_pair_doc

NAME = "latent_textcat"
TOK2VEC = {
    "@architectures": "spacy.MultiHashEmbed.v2",
    "width": 16,
    "attrs": ["NORM"],
    "rows": [200],
    "include_static_vectors": False,
}
PAIRS = [
    ("the dog runs", "the dog runs fast", "same"),
    ("a cat sleeps", "the house is red", "other"),
    ("red houses", "red houses and a cat", "same"),
    ("he ran", "they all bought", "other"),
]


def misc(name: str, **options: Any) -> dict[str, Any]:
    return {"@misc": f"spacy-latent.{name}.v1", **options}


def pipeline(
    architecture: str = "AlignedPairTextCat",
    multilabel: bool = False,
    component: dict[str, Any] | None = None,
    **model: Any,
) -> Language:
    nlp = spacy.blank("en")
    config = {
        "@architectures": f"spacy-latent.{architecture}.v1",
        "tok2vec": TOK2VEC,
        "exclusive_classes": not multilabel,
        **model,
    }
    name = "latent_textcat_multilabel" if multilabel else NAME
    nlp.add_pipe(name, name=NAME, config={"model": config, **(component or {})})
    return nlp


def write_chains(doc: Doc) -> None:
    """Write heads on both texts: the head of a word is the next word of its text."""
    size = doc.spans["a"][0].end
    for token in doc:
        last = size - 1 if token.i < size else len(doc) - 1
        token.head = doc[min(token.i + 1, last)]
        token.dep_ = "dep"


def unread(
    nlp: Language, with_heads: bool = False, pairs: list[tuple[str, str, str]] = PAIRS
) -> list[Doc]:
    made = [make_pair_doc(nlp, first, second) for first, second, _ in pairs]
    if with_heads:
        for doc in made:
            write_chains(doc)
    return made


def examples(
    nlp: Language,
    scores: dict[str, float] | None = None,
    with_heads: bool = False,
    pairs: list[tuple[str, str, str]] = PAIRS,
) -> list[Example]:
    made = []
    for predicted, (first, second, label) in zip(unread(nlp, with_heads, pairs), pairs):
        reference = make_pair_doc(nlp, first, second)
        reference.cats = {name: float(name == label) for name in ("same", "other")}
        if scores is not None:
            reference.cats = {"how": scores[label]}
        made.append(Example(predicted, reference))
    return made


def trained(nlp: Language, steps: int = 25, **options: Any) -> Language:
    """Train a pipeline on pairs.

    Args:
        options: Arguments of ``examples``.
    """
    fix_random_seed(0)
    nlp.initialize(lambda: examples(nlp, **options))
    optimizer = nlp.resume_training()
    optimizer.learn_rate = 0.02
    for _ in range(steps):
        nlp.update(examples(nlp, **options), sgd=optimizer)
    return nlp


def docs(nlp: Language, **options: Any) -> list[Doc]:
    """Return docs of pairs with predictions.

    Args:
        options: Arguments of ``unread``.
    """
    return list(nlp.pipe(unread(nlp, **options)))
