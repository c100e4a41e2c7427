"""Control models with the same config and trees that are not learned, and config differences."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalogue import RegistryError
from spacy.language import Language
from spacy.util import get_lang_class, registry
from thinc.api import Config

from spacy_latent.errors import LatentError

ESTIMATOR = "spacy-latent.GivenTrees.v1"
PARSER_MODEL = "spacy-latent.ParserTok2Vec.v1"
# Two trainings that differ in these settings only are of the same model.
OF_NO_MATTER = (
    "training.seed",
    "training.logger",
    "training.gpu_allocator",
    "training.dev_corpus",
    "corpora.dev",
    "paths",
    "system",
)


@dataclass(frozen=True)
class Change:
    """Changed setting of a config, by its dotted name; None if it was not set."""

    name: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.name}: {_said(self.before)} → {_said(self.after)}"


def _said(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "default" if value is None else repr(value)
    options = ", ".join(f"{k} = {v!r}" for k, v in value.items() if not k.startswith("@"))
    name = next((str(v) for k, v in value.items() if k.startswith("@")), "")
    return f"{name} ({options})" if options else name


def control_config(
    config: Config,
    trees: str = "random",
    *,
    seed: int = 0,
    words: Sequence[str] = (),
    components: Sequence[str] = (),
) -> tuple[Config, list[Change]]:
    """Copy a training config, so that its latent layers compose with given trees.

    Args:
        trees, seed, words: see :class:`~spacy_latent.estimators.given_trees.GivenTrees`.
        components: names of the components to change; all with a latent layer if empty.

    Returns:
        The copy, and the list of its changes.

    Raises:
        LatentError: if there is nothing to change.
    """
    from spacy_latent.estimators.given_trees import GivenTrees

    options: dict[str, Any] = {"trees": trees, "seed": seed, "words": list(words) or None}
    # Building it raises an error for wrong options before any training.
    GivenTrees(**options)
    estimator = {"@misc": ESTIMATOR, **options}
    changed, changes = config.copy(), []
    there = config.get("components", {})
    unknown = [name for name in components if name not in there]
    if unknown:
        raise LatentError(
            f"The config has no component {unknown[0]!r}; it has {', '.join(there) or 'none'}."
        )
    parsers = []
    for name in components or there:
        whole = _with_defaults(config, name)
        for place, block in _blocks(whole, ("components", name)):
            if block["@architectures"] == PARSER_MODEL:
                parsers.append(name)
            elif _has_estimator(block["@architectures"]):
                changes.append(
                    _set(changed, (*place, "estimator"), block.get("estimator"), estimator)
                )
                if block.get("entropy_weight"):
                    # The entropy would be of scores that are not used.
                    weight = block["entropy_weight"]
                    changes.append(_set(changed, (*place, "entropy_weight"), weight, 0.0))
        # This covers a latent_encoder, also under a custom factory.
        if "teacher_forcing" in whole:
            for setting, off in (("supervision", 0.0), ("teacher_forcing", False)):
                if whole.get(setting):
                    place = ("components", name, setting)
                    changes.append(_set(changed, place, whole[setting], off))
    if not any(change.name.endswith(".estimator") for change in changes):
        reason = "it has no latent layer whose estimator could be replaced"
        if parsers:
            reason = (
                f"{parsers[0]} has {PARSER_MODEL}, which decides while it composes. Write the "
                "control by hand: spacy-latent.LatentTok2Vec.v1 with ConstituencyTree, SpanScorer "
                "and BinaryTreeLstm, and GivenTrees as the estimator"
            )
        raise LatentError(f"There is no control of this config: {reason}.")
    return changed, changes


def _with_defaults(config: Config, name: str) -> dict[str, Any]:
    """Return the block of a component, filled with the defaults of its factory."""
    block = config["components"][name]
    factory = block.get("factory")
    language = get_lang_class(str(config["nlp"]["lang"]))
    if factory is None or not language.has_factory(factory):
        return dict(block)
    return dict(Config(language.get_factory_meta(factory).default_config).merge(block))


def _blocks(
    section: Mapping[str, Any], place: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield all blocks of an architecture with their paths."""
    if "@architectures" in section:
        yield place, section
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _blocks(value, (*place, key))


def _has_estimator(architecture: str) -> bool:
    try:
        function = registry.architectures.get(architecture)
    except RegistryError:
        return False
    return {"structure", "estimator"} <= inspect.signature(function).parameters.keys()


def _set(config: Config, place: tuple[str, ...], before: Any, after: Any) -> Change:
    section: Any = config
    for key in place[:-1]:
        section = section.setdefault(key, {})
    section[place[-1]] = after
    return Change(".".join(place), before, after)


# ---------------------------------------------------------------- differences of two pipelines


def differences(ours: Language, theirs: Language) -> list[Change]:
    """Return the settings in which the configs of two trained pipelines differ, ours first.

    Seeds, the logger, and settings of the machine or of the development set are ignored.
    """
    first, second = (dict(_flat(nlp.config.interpolate(), ())) for nlp in (ours, theirs))
    found = []
    for name in sorted(first.keys() | second.keys()):
        ignored = any(name == known or name.startswith(f"{known}.") for known in OF_NO_MATTER)
        if not ignored and not _same(name, first.get(name), second.get(name)):
            found.append(Change(name, first.get(name), second.get(name)))
    return found


def _same(name: str, ours: Any, theirs: Any) -> bool:
    if name.endswith(".path") and isinstance(ours, str) and isinstance(theirs, str):
        return Path(ours).resolve() == Path(theirs).resolve()
    return ours == theirs


def unintended_differences(found: Sequence[Change]) -> list[Change]:
    """Select the differences that :func:`control_config` did not make."""
    made = (".entropy_weight", ".supervision", ".teacher_forcing")
    return [c for c in found if ".estimator." not in c.name and not c.name.endswith(made)]


def of_training(found: Sequence[Change]) -> list[Change]:
    """Select the differences in the training and its corpora."""
    return [c for c in found if c.name.split(".")[0] in ("training", "corpora")]


def _flat(section: Mapping[str, Any], place: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*place, key))
        else:
            yield ".".join((*place, key)), value


def kind_of_trees(nlp: Language) -> str | None:
    """Describe the trees that a control composes with; None for learned trees or no trees."""
    from spacy_latent.estimators.given_trees import GivenTrees
    from spacy_latent.models.inspection import latent_module
    from spacy_latent.pipeline.inspection import latent_components

    layers = [n for found in latent_components(nlp).values() for n in found.layers.values()]
    given = [latent_module(node).latent.estimator for node in layers]
    named = [one.described for one in given if isinstance(one, GivenTrees)]
    return ", ".join(dict.fromkeys(named)) or None
