"""Small rationale pipelines that several tests share."""

from __future__ import annotations

from typing import Any

import spacy
from spacy.language import Language
from spacy.training import Example
from thinc.api import fix_random_seed

from tests.pipeline.small_pipelines import TOK2VEC, learn

EMBED = {
    "@architectures": "spacy.MultiHashEmbed.v2",
    "width": 12,
    "attrs": ["NORM"],
    "rows": [200],
    "include_static_vectors": False,
}
BITS = {"@misc": "spacy-latent.Bits.v1"}
TAGS = {
    "structure": {"@misc": "spacy-latent.TagSequence.v1"},
    "scorer": {"@misc": "spacy-latent.EmissionScorer.v1", "num_tags": 2},
}
CHAIN = {
    "structure": {"@misc": "spacy-latent.LinearChain.v1"},
    "scorer": {"@misc": "spacy-latent.TransitionScorer.v1", "num_tags": 2},
}
DATA = [
    ("this is a good film of it all", "A"),
    ("it is a very bad bad film", "B"),
    ("good", "A"),
    ("so bad and so on for ever and ever", "B"),
    ("all of it is good", "A"),
]


def rationale_pipeline(
    component: str = "latent_textcat", config: dict[str, Any] | None = None, **model: Any
) -> Language:
    fix_random_seed(0)
    nlp = spacy.blank("en")
    settings = {
        "@architectures": "spacy-latent.RationaleTextCat.v1",
        "exclusive_classes": component == "latent_textcat",
        "tok2vec": TOK2VEC,
        "embed": EMBED,
        "structure": {"@misc": "spacy-latent.KOfN.v1", "k": 2},
        **model,
    }
    nlp.add_pipe(component, config={"spans_key": "rationale", **(config or {}), "model": settings})
    return nlp


def rationale_examples(nlp: Language) -> list[Example]:
    return [
        Example.from_dict(nlp.make_doc(text), {"cats": {"A": label == "A", "B": label == "B"}})
        for text, label in DATA
    ]


def trained_rationale(nlp: Language, steps: int = 30) -> Language:
    made = rationale_examples(nlp)
    optimizer = nlp.initialize(lambda: made)
    optimizer.learn_rate = 0.01
    learn(nlp, made, steps, optimizer)
    return nlp
