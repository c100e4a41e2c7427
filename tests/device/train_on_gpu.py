"""``spacy train`` on the CPU and on a simulated GPU, for the tests.

It runs in a process of its own, since Thinc looks for a GPU once.

    python -m tests.device.train_on_gpu DIRECTORY [NAME ...]

The directory contains the data. For each recipe, the program writes the pipelines NAME-cpu and
NAME-gpu there. It also writes the docs that the second pipeline annotates on the GPU, its bytes
after a load on the GPU, and found.json.
"""

from __future__ import annotations

import sys
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from tests.device.pretended_cupy import Array, pretended_cupy
from tests.device.pretended_gpu import CudaTensor, Kind, Log, pretended_gpu

STEPS = 4
SHORT = {
    "training.max_steps": STEPS,
    "training.max_epochs": 0,
    "training.eval_frequency": STEPS,
    # Otherwise Adam makes full steps for gradients that are 0 except for rounding.
    "training.optimizer.eps": 1e-3,
}
# For each config, the changes that make it small, and texts.
RECIPES: dict[str, tuple[dict[str, Any], list[str]]] = {
    # The training passes through both structures and both estimators of the demo.
    "demo": (
        {
            "paths.train": "listops.tsv",
            "paths.dev": "listops.tsv",
            "training.batcher.size": 300,
            "training.optimizer.learn_rate.warmup_steps": 1,
            "components.latent_textcat.model.structure.release_at": 1,
            "components.latent_textcat.model.estimator.switch_at": 2,
        },
        ["[MAX 1 8 ]", "[MED [MAX 1 8 ] 5 ]", "7"],
    ),
    "ner_crf": (
        {
            "paths.train": "docs.spacy",
            "paths.dev": "docs.spacy",
            "components.tok2vec.model.width": 16,
            "components.tok2vec.model.depth": 1,
            "components.tok2vec.model.embed_size": 100,
            "components.crf_ner.model.hidden_width": 8,
            "components.crf_ner.model.tok2vec.width": 16,
        },
        ["I like London", "Paris", "I hate London a lot"],
    ),
    "ner_transformer": (
        {
            "paths.train": "docs.spacy",
            "paths.dev": "docs.spacy",
            "paths.encoder": "encoder",
            "components.ner.model.tok2vec.width": 12,
        },
        ["I like London", "I hate London a lot"],
    ),
}
PATHS = ("paths.train", "paths.dev", "paths.encoder")

ENCODER, CLASSIFIER = "components.latent_encoder.model", "components.latent_textcat.model"
# Trainings by name: the config, its changes, and the number of the counted step. Kernels are
# compared and stages begin before this step.
MODELS: dict[str, tuple[str, dict[str, Any], int]] = {
    "spanning trees, marginals, attention to heads": (
        "sentiment_marginals",
        {f"{ENCODER}.composer": {"@misc": "spacy-latent.HeadAttention.v1"}},
        2,
    ),
    "spanning trees, SparseMAP marginalized, Tree-LSTM": ("listops_sparsemap_tree_lstm", {}, 2),
    "entities by chains": ("ner_crf", {}, 2),
    "the demo, first stage": ("demo", {}, 2),
    "the demo, last stage": (
        "demo",
        {f"{CLASSIFIER}.structure.release_at": 1, f"{CLASSIFIER}.estimator.switch_at": 1},
        3,
    ),
    "rationales of k words": ("rationale_k_of_n", {}, 2),
}
DOCS = 32
KINDS: tuple[Kind, ...] = ("up", "down", "wait")


def main(directory: Path, *only: str) -> None:
    with pretended_gpu() as log, pretended_cupy():
        import spacy
        import srsly
        from spacy.cli.train import train
        from spacy.tokens import DocBin
        from thinc.api import CupyOps, get_current_ops, require_cpu, require_gpu

        from benchmarks.recipes import path_of

        found = {}
        for name in only or RECIPES:
            settings, texts = RECIPES[name]
            overrides = {**SHORT, **settings}
            overrides |= {key: str(directory / settings[key]) for key in PATHS if key in settings}
            config = path_of(name, directory)
            train(config, directory / f"{name}-cpu", use_gpu=-1, overrides=overrides)
            assert not isinstance(get_current_ops(), CupyOps)
            log.clear()
            train(config, directory / f"{name}-gpu", use_gpu=0, overrides=overrides)
            assert isinstance(get_current_ops(), CupyOps)
            found[name] = {kind: log.count(kind) for kind in KINDS}
            require_gpu(0)
            nlp = spacy.load(directory / f"{name}-gpu" / "model-last")
            found[name]["left on the CPU"] = on_the_cpu(nlp)
            docs = list(nlp.pipe(texts, batch_size=2))
            found[name]["left on docs"] = [str(type(v)) for doc in docs for v in gpu_arrays(doc)]
            DocBin(docs=docs, store_user_data=True).to_disk(directory / f"{name}.spacy")
            (directory / f"{name}.bytes").write_bytes(nlp.to_bytes())
            require_cpu()
        if not only:
            require_gpu(0)
            found["steps"] = {name: count_step(log, *model) for name, model in MODELS.items()}
        srsly.write_json(directory / "found.json", found)


def count_step(log: Log, name: str, changes: dict[str, Any], step: int) -> dict[str, Any]:
    """Count transfers and waits of the package in a training step, before the weights change."""
    from spacy.tokens import Doc
    from spacy.training import Example
    from spacy.util import load_config, load_model_from_config
    from thinc.api import Adam, fix_random_seed

    from benchmarks.recipes import path_of

    config = load_config(path_of(name))
    for path, value in changes.items():
        *sections, last = path.split(".")
        reduce(getitem, sections, config)[last] = value
    for section in ("training", "initialize", "corpora"):
        config.pop(section)
    fix_random_seed(0)
    nlp = load_model_from_config(config, auto_fill=True, validate=False)
    examples = []
    for i in range(DOCS):
        words = [str((i * k) % 10) for k in range(1, 11 + i % 7)]
        doc = Doc(nlp.vocab, words=words)
        entities = ["O", "B-ORG", "L-ORG", *["O"] * (len(words) - 3)]
        gold = {"cats": {"a": float(i % 2), "b": float(1 - i % 2)}, "entities": entities}
        examples.append(Example.from_dict(doc, gold))
    nlp.initialize(lambda: examples)
    optimizer = Adam(0.001)
    for _ in range(step):
        log.clear()
        nlp.update(examples, sgd=None)
        counted = log.own()
        for _, pipe in nlp.pipeline:
            pipe.finish_update(optimizer)
    lines = "\n".join(counted.lines(kind) for kind in KINDS)
    return {"moved": [counted.count(kind) for kind in KINDS], "lines": lines}


def on_the_cpu(nlp: Any) -> list[str]:
    """Return the names of nodes with weights on the CPU, in the components of this package."""
    left = []
    for _, pipe in nlp.pipeline:
        if not type(pipe).__module__.startswith("spacy_latent"):
            # spaCy keeps parts of its parser on the CPU.
            continue
        for node in pipe.model.walk():
            weights = [node.get_param(name) for name in node.param_names if node.has_param(name)]
            weights += [p for shim in node.shims for p in shim._model.parameters()]
            if not all(isinstance(array, (Array, CudaTensor)) for array in weights):
                left.append(node.name)
    return left


def gpu_arrays(value: Any) -> list[Any]:
    """Return arrays of a doc, or of its data, that are on the GPU. spaCy leaves the doc's tensor
    there.
    """
    if isinstance(value, dict):
        return [found for part in value.values() for found in gpu_arrays(part)]
    if isinstance(value, (list, tuple)):
        return [found for part in value for found in gpu_arrays(part)]
    if isinstance(value, (Array, CudaTensor)):
        return [value]
    data = getattr(value, "user_data", None) or getattr(value, "__dict__", {})
    groups = [group.attrs for group in getattr(value, "spans", {}).values()]
    return gpu_arrays([*data.values(), *groups, *getattr(value, "cats", {}).values()])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
