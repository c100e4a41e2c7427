"""Every registered method has a config. Every config trains, and has a row of measured figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import load_config, load_model_from_config, registry, resolve_dot_names
from thinc.api import fix_random_seed

from benchmarks.config_digest import digest_of
from benchmarks.learning import rows_of
from benchmarks.learning_groups import GROUPS
from spacy_latent.errors import LatentError
from spacy_latent.evaluation.mistakes import find_traps
from spacy_latent.pipeline.unreached_stages import CALLBACK
from tests.pipeline.small_pipelines import copied_weights, moved, weights_of
from tests.repository.recipes import RECIPES, recipe

# Recipes that need their own corpora or weights. tests/cli/test_spacy_commands.py and
# tests/pipeline/test_transformer_recipes.py train them.
TRAINED_ELSEWHERE = re.compile(r"^(listops|demo)(_|$)|_transformer|_encoder$")
# Recipes over a trained parser. tests/pipeline/test_given_tree_recipes.py trains the parser, too.
OVER_A_PARSER = [path for path in RECIPES if "parser" in load_config(path)["paths"]]


def names_in(block: Any) -> Iterator[str]:
    """Yield the names of registered functions in a block, at any depth."""
    for key, value in block.items():
        if isinstance(value, dict):
            yield from names_in(value)
        elif key.startswith("@"):
            yield value


def method(name: str) -> str:
    """Return a registered name without its version, so that one version stands for all."""
    return name.rpartition(".v")[0]


def test_every_method_has_a_config() -> None:
    """Methods are structures, estimators, scorers, composers and their registered settings."""
    known = [point.name for point in entry_points(group="spacy_misc")]
    ours = {method(name) for name in known if name.startswith("spacy-latent.")}
    assert len(ours) > 80
    named = {method(name) for path in RECIPES for name in names_in(load_config(path))}
    assert not sorted(ours - named)


def test_every_config_has_a_row() -> None:
    """The row comes from a training with the present config.

    ``python -m benchmarks learning GROUP --only CONFIG`` makes one.
    """
    entries = {entry for group in GROUPS.values() for entry in group.entries}
    rows = {entry.config for entry in entries if rows_of(entry)}
    without = sorted({path.stem for path in RECIPES} - rows)
    assert not without, (
        f"No row of the present config: {', '.join(without)}. Train it by 'python -m benchmarks "
        "learning GROUP --only NAME'. If it changed by a new setting with a neutral default, add "
        "this to ADDED in benchmarks/config_digest.py."
    )


STAGES = ("ReleasedStructure", "GrowingArcs", "EstimatorSequence", "ReleasedCandidates")
STAGED = [
    path
    for path in RECIPES
    if any(name.split(".")[1] in STAGES for name in names_in(load_config(path)["components"]))
]


@pytest.mark.parametrize("path", STAGED, ids=lambda path: path.stem)
def test_configs_with_stages_are_refused_where_training_ends_before(path: Path) -> None:
    config = load_config(path, overrides={"training.max_steps": 1, "nlp.lang": "xx"})
    with pytest.raises(LatentError, match="max_steps"):
        load_model_from_config(config, auto_fill=False, validate=True)


def test_the_refusal_makes_no_other_config_of_one_for_its_results(tmp_path: Path) -> None:
    path = tmp_path / "config.cfg"
    digests = []
    for callback in (None, CALLBACK, {"@callbacks": "another"}):
        config = load_config(STAGED[0], interpolate=False)
        del config["nlp"]["after_pipeline_creation"]
        config["nlp"]["after_pipeline_creation"] = callback
        config.to_disk(path)
        digests.append(digest_of(path))
    assert digests[0] == digests[1] != digests[2] and digest_of(STAGED[0]) == digests[0]


def test_a_setting_that_was_added_later_makes_no_other_config_unless_it_is_used(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.cfg"
    digests = []
    for forward in (None, "map", "mean"):
        config = load_config(recipe("sentiment_spigot_marginals"), interpolate=False)
        estimator = config["components"]["latent_encoder"]["model"]["estimator"]
        del estimator["forward"]
        if forward is not None:
            estimator["forward"] = forward
        config.to_disk(path)
        digests.append(digest_of(path))
    assert digests[0] == digests[1] != digests[2]


# ---------------------------------------------------------------- training steps of each config

MOST_STEPS = 4


def example(nlp: Language, label: str, first: str, second: str) -> Example:
    """Return an example of a pair of texts, with every kind of annotation that a recipe may need.

    Each text has an entity and a noun phrase, and one tree spans both. Words have tags and lemmas.
    """
    words = first.split() + second.split()
    starts = [0, len(first.split())]
    reference = Doc(
        nlp.vocab,
        words=words,
        tags=["XY"[i % 2] for i in range(len(words))],
        pos=[("NOUN", "VERB")[i % 2] for i in range(len(words))],
        lemmas=[word.lower() for word in words],
        heads=[0 if i in starts else starts[int(i > starts[1])] for i in range(len(words))],
        deps=["dep" if i else "ROOT" for i in range(len(words))],
    )
    reference.ents = [Span(reference, start, start + 1, "person") for start in starts]
    reference.spans["sc"] = [Span(reference, start, start + 2, "NP") for start in starts]
    reference.cats = {"good": float(label == "good"), "bad": float(label == "bad")}
    given = Doc(nlp.vocab, words=words)
    for doc in (reference, given):
        for name, start, end in zip("ab", starts, [*starts[1:], len(words)]):
            doc.spans[name] = [doc[start:end]]
    return Example(given, reference)


def small(path: Path) -> dict[str, Any]:
    """Return overrides of a config that make its pipeline fast to create.

    Embedding tables have few rows, and the tokenizer has no exceptions of a language.
    """

    def overrides(block: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in block.items():
            if isinstance(value, dict):
                yield from overrides(value, f"{place}{key}.")
            elif key == "embed_size":
                yield f"{place}{key}", 50
            elif key == "rows":
                yield f"{place}{key}", [50] * len(value)
            elif key in ("min_action_freq", "min_tree_freq"):
                yield f"{place}{key}", 1

    tables = overrides(load_config(path)["components"], "components.")
    return {"nlp.lang": "xx", **dict(tables)}


def unmoved(nlp: Language, before: dict[str, dict[str, np.ndarray]]) -> list[str]:
    """Return the names of components whose weights have not changed."""
    return [name for name, own in before.items() if not moved(own, nlp.get_pipe(name).model)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "path",
    [path for path in RECIPES if path not in OVER_A_PARSER],
    ids=lambda path: path.stem,
)
def test_each_config_is_whole_and_trains(path: Path) -> None:
    elsewhere = TRAINED_ELSEWHERE.search(path.stem)
    raw = load_config(path, overrides={} if elsewhere else small(path))
    nlp = load_model_from_config(raw, auto_fill=False, validate=True)
    assert nlp.pipe_names == raw["nlp"]["pipeline"]
    config = nlp.config.interpolate()
    training = registry.resolve(config["training"], schema=ConfigSchemaTraining)
    resolve_dot_names(config, [training["train_corpus"], training["dev_corpus"]])
    if elsewhere:
        return
    fix_random_seed(0)
    examples = [
        example(nlp, "good", "Ada likes it", "Bob likes a film"),
        example(nlp, "bad", "Eve hates a film so", "Ada hates it"),
    ]
    nlp.initialize(lambda: examples)
    assert not [one.text for one in find_traps(nlp) if one.level != "note"]
    before = {name: copied_weights(pipe.model) for name, pipe in nlp.pipeline}  # type: ignore[attr-defined]
    # Some weights move late: the first learning rate may be zero, layers that begin at zero pass no
    # gradient in the first step, and listeners reach a shared encoder one step late.
    for step in range(MOST_STEPS):
        losses = nlp.update(examples, sgd=training["optimizer"])
        training["optimizer"].step_schedules()
        if step and not unmoved(nlp, before):
            break
    assert losses and all(isfinite(loss) for loss in losses.values()), losses
    assert not unmoved(nlp, before)
    for name, pipe in nlp.pipeline:
        assert all(np.isfinite(one).all() for one in weights_of(pipe.model).values()), name  # type: ignore[attr-defined]
