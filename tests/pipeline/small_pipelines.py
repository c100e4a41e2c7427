"""Small pipelines and data that the tests of models and components share."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Span
from spacy.training import Example
from thinc.api import Adam, Optimizer, fix_random_seed

WIDTH = 16
TOK2VEC = {
    "@architectures": "spacy.HashEmbedCNN.v2",
    "width": WIDTH,
    "depth": 1,
    "embed_size": 100,
    "window_size": 1,
    "maxout_pieces": 2,
    "subword_features": True,
    "pretrained_vectors": None,
}
LISTENER = {"@architectures": "spacy-latent.LatentListener.v1", "width": WIDTH}
INLINE = {"@architectures": "spacy-latent.LatentTok2Vec.v1", "tok2vec": TOK2VEC}
REDUCE = {
    "@architectures": "spacy.TextCatReduce.v1",
    "exclusive_classes": True,
    "use_reduce_mean": True,
    "use_reduce_first": False,
    "use_reduce_last": False,
    "use_reduce_max": False,
}
PARSER = {
    "@architectures": "spacy.TransitionBasedParser.v2",
    "extra_state_tokens": False,
    "hidden_width": 16,
    "maxout_pieces": 2,
    "use_upper": True,
}
STOCK: dict[str, dict[str, Any]] = {
    "textcat": {"model": REDUCE},
    "textcat_multilabel": {"model": {**REDUCE, "exclusive_classes": False}},
    "ner": {"model": {**PARSER, "state_type": "ner"}},
    "parser": {"model": {**PARSER, "state_type": "parser"}, "min_action_freq": 1},
    "tagger": {"model": {"@architectures": "spacy.Tagger.v2"}},
    "spancat": {
        "spans_key": "sc",
        "suggester": {"@misc": "spacy.ngram_suggester.v1", "sizes": [1, 2]},
        "model": {
            "@architectures": "spacy.SpanCategorizer.v1",
            "reducer": {"@layers": "spacy.mean_max_reducer.v1", "hidden_size": 16},
            "scorer": {"@layers": "spacy.LinearLogistic.v1"},
        },
    },
}


def stock(name: str, tok2vec: dict[str, Any]) -> dict[str, Any]:
    """Return the config of one of spaCy's own components over ``tok2vec``."""
    config = copy.deepcopy(STOCK[name])
    config["model"]["tok2vec"] = copy.deepcopy(tok2vec)
    return config


def examples(nlp: Language) -> list[Example]:
    made = []
    for words, tags, heads, deps, cat, place in [
        ("I like London a lot", "P V N D N", [1, 1, 1, 4, 1], "s ROOT o d m", "good", 2),
        ("I hate Paris", "P V N", [1, 1, 1], "s ROOT o", "bad", 2),
        ("Berlin is very grey", "N V R A", [1, 1, 3, 1], "s ROOT m o", "bad", 0),
    ]:
        doc = nlp.make_doc(words)
        example = Example.from_dict(
            doc,
            {
                "tags": tags.split(),
                "heads": heads,
                "deps": deps.split(),
                "cats": {"good": float(cat == "good"), "bad": float(cat == "bad")},
                "entities": [(doc[place].idx, doc[place].idx + len(doc[place]), "GPE")],
            },
        )
        example.reference.spans["sc"] = [Span(example.reference, place, place + 1, "GPE")]
        made.append(example)
    return made


def latent_pipeline(*names: str, encoder: dict[str, Any] | None = None) -> Language:
    """Return a pipeline of a latent encoder and components that listen to it."""
    nlp = spacy.blank("en")
    config: dict[str, Any] = {"model": {"tok2vec": TOK2VEC}}
    nlp.add_pipe("latent_encoder", config={**config, **(encoder or {})})
    for name in names:
        nlp.add_pipe(name, config=stock(name, LISTENER))
    return nlp


def inline_pipeline(*names: str, **options: Any) -> Language:
    nlp = spacy.blank("en")
    for name in names:
        nlp.add_pipe(name, config=stock(name, {**INLINE, **options}))
    return nlp


def initialized(nlp: Language, seed: int = 0, sample: list[Example] | None = None) -> Optimizer:
    fix_random_seed(seed)
    nlp.initialize(lambda: sample or examples(nlp))
    return Adam(0.005)


def step(
    nlp: Language, batch: list[Example], optimizer: Optimizer, **options: Any
) -> dict[str, float]:
    """Take one step as ``spacy train`` does: update all components, then change the weights."""
    losses = nlp.update(batch, sgd=False, **options)  # type: ignore[arg-type]
    for name, pipe in nlp.pipeline:
        if name not in options.get("exclude", ()) and getattr(pipe, "is_trainable", False):
            pipe.finish_update(optimizer)  # type: ignore[union-attr]
    return losses


def learn(
    nlp: Language, batch: list[Example], steps: int, optimizer: Optimizer
) -> dict[str, float]:
    """Update ``steps`` times with the same batch, and return the losses of the last update."""
    losses: dict[str, float] = {}
    for _ in range(steps):
        losses = nlp.update(batch, sgd=optimizer)
    return losses


def weights_of(model: Any) -> dict[str, np.ndarray]:
    """Return the weights of a model, Thinc's and torch's. Training changes them in place."""
    found = {}
    for i, node in enumerate(model.walk()):
        for key in node.param_names:
            if node.has_param(key):
                found[f"{i} {node.name} {key}"] = node.get_param(key)
        for shim in node.shims:
            for key, value in shim._model.named_parameters():
                found[f"{i} {node.name} {key}"] = value.detach().numpy()
    return found


def copied_weights(model: Any) -> dict[str, np.ndarray]:
    return {key: value.copy() for key, value in weights_of(model).items()}


def moved(before: dict[str, np.ndarray], model: Any) -> list[str]:
    """Return the names of the weights that differ from ``before``."""
    after = weights_of(model)
    assert after.keys() == before.keys()
    return [key for key, value in after.items() if not np.array_equal(value, before[key])]


def latent_layers(nlp: Language, name: str) -> list[Any]:
    from spacy_latent.models.inspection import latent_models, latent_module

    return [latent_module(node).latent for node in latent_models(nlp.get_pipe(name).model)]  # type: ignore[union-attr]


def scorer_weights(nlp: Language, name: str) -> np.ndarray:
    """Return a copy of all weights of the scorers inside a component."""
    return np.concatenate(
        [
            parameter.detach().numpy().ravel()
            for layer in latent_layers(nlp, name)
            for parameter in layer.scorer.parameters()
        ]
    ).copy()


TRANSFORMER_WIDTH = 12


def save_small_transformer(path: Path, **options: Any) -> None:
    """Save a transformer with random weights and ten word pieces, in the format of the hub.

    Args:
        options: Settings of its ``BertConfig``, such as ``hidden_dropout_prob``.
    """
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("spacy_transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "i", "like", "hate", "london", "##s"]
    (path / "vocab.txt").write_text("\n".join(words))
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=TRANSFORMER_WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        **options,
    )
    fix_random_seed(0)
    transformers.BertModel(config).save_pretrained(path)
    transformers.BertTokenizerFast(str(path / "vocab.txt")).save_pretrained(path)


TO_TRANSFORMER: dict[str, Any] = {
    "@architectures": "spacy-transformers.TransformerListener.v1",
    "grad_factor": 1.0,
    "upstream": "transformer",
    "pooling": {"@layers": "reduce_mean.v1"},
}


def add_transformer(nlp: Language, path: Path) -> None:
    """Add the component that TO_TRANSFORMER listens to.

    Args:
        path: Directory of a transformer that ``save_small_transformer`` wrote.
    """
    model = {
        "@architectures": "spacy-transformers.TransformerModel.v3",
        "name": str(path),
        "tokenizer_config": {"use_fast": True},
        "get_spans": {"@span_getters": "spacy-transformers.doc_spans.v1"},
    }
    nlp.add_pipe("transformer", config={"model": model})


def stored(nlp: Language, folder: Path) -> Iterator[Language]:
    """Yield the pipeline as restored from a folder, from bytes and from a pickle."""
    nlp.to_disk(folder)
    yield spacy.load(folder)
    yield spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    yield pickle.loads(pickle.dumps(nlp))
