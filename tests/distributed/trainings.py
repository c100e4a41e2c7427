"""Small configs and a small corpus for trainings on several processes."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from thinc.api import Config

from tests.pipeline.small_pipelines import (
    LISTENER,
    TOK2VEC,
    WIDTH,
    examples,
    initialized,
    stock,
)

SHARED = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "tok2vec"}
ADAM = {"@optimizers": "Adam.v1", "learn_rate": 0.01, "use_averages": False}
# Clipping would divide by norms that differ by rounding between one process and several.
SGD = {"@optimizers": "SGD.v1", "learn_rate": 0.05, "grad_clip": 0.0, "use_averages": False}
# With accumulate_gradient = 3, spaCy divides a batch into parts of two docs, one for each of two
# ranks.
BATCH = 8

Pipeline = dict[str, dict[str, Any]]


def save_corpus(path: Path, *, count: int = 40, seed: int = 0) -> None:
    """Save docs with all kinds of annotation.

    Every third doc has no gold entities, so that only one of two ranks has some in some batches.
    """
    draw = random.Random(seed)
    vocab = spacy.blank("en").vocab
    bin_ = DocBin(store_user_data=True)
    for number in range(count):
        words = [draw.choice("abcdefghijkl") for _ in range(draw.randint(3, 9))]
        has_entities = number % 3 > 0
        doc = Doc(
            vocab,
            words=words,
            tags=["A" if word < "f" else "B" for word in words],
            heads=[max(0, i - 1) for i in range(len(words))],
            deps=["ROOT", *["dep"] * (len(words) - 1)],
            ents=["B-X" if word == "c" else "O" for word in words] if has_entities else None,
        )
        doc.cats = {"yes": float("a" in words), "no": float("a" not in words)}
        doc.spans["sc"] = [Span(doc, i, i + 1, "S") for i, w in enumerate(words) if w == "k"]
        bin_.add(doc)
    bin_.to_disk(path)


def write_config(
    path: Path, pipeline: Pipeline, data: Path, *, dev: Path | None = None, **training: Any
) -> Path:
    """Write a config, and return its path.

    Args:
        pipeline: Settings of each component. "factory" is the factory if it differs from the name.
        training: Settings of training that replace the defaults below.
    """
    components = {
        name: {"factory": settings.pop("factory", name), **settings}
        if "source" not in settings
        else settings
        for name, settings in copy.deepcopy(pipeline).items()
    }
    reader = {"@readers": "spacy.Corpus.v1", "gold_preproc": False, "max_length": 0, "limit": 0}
    config = {
        "nlp": {"lang": "en", "pipeline": list(components)},
        "components": components,
        "corpora": {
            "train": {**reader, "path": str(data), "augmenter": None},
            "dev": {**reader, "path": str(dev or data), "augmenter": None, "limit": 8},
        },
        "training": {
            "seed": 1,
            "gpu_allocator": None,
            "dropout": 0.0,
            "max_steps": 5,
            "max_epochs": 0,
            "patience": 0,
            "eval_frequency": 3,
            "optimizer": ADAM,
            "batcher": {
                "@batchers": "spacy.batch_by_sequence.v1",
                "size": BATCH,
                "get_length": None,
            },
            "logger": {"@loggers": "spacy.ConsoleLogger.v1", "progress_bar": False},
            **training,
        },
    }
    Config(config).to_disk(path)
    return path


def shared(*names: str) -> Pipeline:
    """Return a tok2vec and spaCy's components that listen to it."""
    listening = {name: stock(name, SHARED) for name in names}
    return {"tok2vec": {"model": TOK2VEC}, **listening}


def encoder(*names: str, **model: Any) -> Pipeline:
    """Return a latent encoder over a shared tok2vec, and spaCy's components that listen to it."""
    own = {"@architectures": "spacy-latent.LatentTok2Vec.v1", "tok2vec": SHARED, **model}
    listening = {name: stock(name, LISTENER) for name in names}
    return {"tok2vec": {"model": TOK2VEC}, "latent_encoder": {"model": own}, **listening}


def textcat(**model: Any) -> Pipeline:
    settings = {
        "@architectures": "spacy-latent.LatentTextClassifier.v1",
        "tok2vec": TOK2VEC,
        "structure": {"@misc": "spacy-latent.SpanningTree.v1"},
        "estimator": {"@misc": "spacy-latent.Marginals.v1"},
        **model,
    }
    return {"latent_textcat": {"model": settings}}


def make_pipeline(pipeline: Pipeline) -> tuple[Language, list[Example]]:
    """Return a pipeline of these components, and the examples that initialize it."""
    nlp = spacy.blank("en")
    for name, settings in copy.deepcopy(pipeline).items():
        nlp.add_pipe(settings.pop("factory", name), name=name, config=settings)
    made = examples(nlp)
    initialized(nlp, sample=made)
    return nlp, made
