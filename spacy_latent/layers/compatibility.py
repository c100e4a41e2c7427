"""Compatible scorers and composers for a structure and an estimator."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from typing import Any, TypeVar

from torch import nn

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.base import Estimator
from spacy_latent.layers.base import Composer, ComposerBuilder, PartScorer, ScorerBuilder
from spacy_latent.stages import periods
from spacy_latent.structures.base import Structure
from spacy_latent.structures.dependency import DependencyTree

KINDS: dict[str, type[Any]] = {"scorer": PartScorer, "composer": Composer}
# The simplest layers, which come first if several are compatible.
FIRST = ("BiaffineScorer", "SpanScorer", "GraphConvolution", "SpanAttention")
# Axes of the scores by the kind of the parts.
AXES = {
    "items": 1,
    **dict.fromkeys(("arcs", "cells", "merges", "spans", "tags"), 2),
    **dict.fromkeys(("segments", "transitions"), 3),
}


def check_kind(argument: str, given: object, expected: type, instead: str = "") -> None:
    """Refuse an object of another kind than expected.

    Configs name objects of all kinds in one registry, so nothing else detects a wrong kind.

    Args:
        instead: a name in the registry of an object of the expected kind.
    """
    if not isinstance(given, expected):
        fits = f'. An example is "{instead}"' if instead else ""
        raise LatentError(
            f"{argument} is of type {type(given).__name__}; expected {expected.__name__}. "
            f"Check the @misc name in the config's block for the {argument}{fits}."
        )


Part = TypeVar("Part", bound=nn.Module)


def build_part(argument: str, builder: Callable[[int], Part], width: int) -> Part:
    """Build the scorer or composer for vectors of this width."""
    if isinstance(builder, nn.Module) or not callable(builder):
        raise LatentError(
            f"{argument} is of type {type(builder).__name__}; expected a builder: a function from "
            "the width of the vectors to the module. Return the class from the registered "
            "function, or a functools.partial of it."
        )
    return builder(width)


def check_parts(
    structure: Structure,
    estimator: Estimator,
    scorer: PartScorer | ScorerBuilder,
    composer: Composer | ComposerBuilder,
) -> None:
    """Refuse combinations that cannot work, before any text is read.

    Args:
        scorer, composer: the module, or its builder: its class, a partial of its class, as from a
            config, or a function.
    """
    check_kind("structure", structure, Structure)
    check_kind("estimator", estimator, Estimator)
    for first, _ in periods(structure, estimator):
        estimator.at(first).check(structure.at(first))
        _check_budget(structure.at(first))
    of_parts = {
        argument: parts
        for argument, part in (("scorer", scorer), ("composer", composer))
        if (parts := getattr(_class(part), "parts", ""))
    }
    wrong = [each for each, parts in of_parts.items() if structure.parts not in ("", parts)]
    if wrong:
        argument, parts = wrong[0], of_parts[wrong[0]]
        raise IncompatiblePair(
            _class(scorer if argument == "scorer" else composer).__name__,
            structure.name,
            f"this {argument} is for {parts} and the structure is made of {structure.parts}",
            f"{_compatible(structure.parts, *wrong)}, or a structure of {parts}",
        )
    kind = _class(scorer)
    decides = getattr(kind, "decides", "")
    if decides and decides != structure.name:
        raise IncompatiblePair(
            kind.__name__,
            structure.name,
            f"this scorer scores the decisions that build a {decides}",
            f"{_compatible(structure.parts, 'scorer')}, or the structure {decides}",
        )
    kind = _class(composer)
    cyclic = [s for s in (structure, *(each for _, each in structure.stages)) if not s.acyclic]
    if getattr(kind, "requires_hard", False) and cyclic:
        raise IncompatiblePair(
            kind.__name__,
            cyclic[0].name,
            "this composer needs trees, and this structure may have cycles",
            f"SpanningTree, or a composer of any graph ({_soft_composers(structure.parts)})",
        )
    soft = [stage for _, stage in estimator.stages if not stage.hard]
    if not (estimator.hard and estimator.hard_at_prediction):
        soft.append(estimator)
    if getattr(kind, "requires_hard", False) and soft:
        raise IncompatiblePair(
            kind.__name__,
            soft[0].name,
            "this composer needs hard 0/1 structures, and the estimator gives soft ones",
            "StraightThrough, Spigot, PerturbAndMap or SparseMAP with marginalize=true, or a "
            f"composer of soft structures ({_soft_composers(structure.parts)})",
        )
    _check_tags(scorer, composer)


def _check_budget(structure: Structure) -> None:
    """Refuse trees that only texts of one word have. The structure alone may have such settings."""
    if not isinstance(structure, DependencyTree):
        return
    if structure.single_root and not structure.most_modifiers:
        raise LatentError(
            f"{structure.name}: max_modifiers is 0 and single_root is true, so that no text of two "
            "words has a tree. Set max_modifiers to at least 1, or single_root to false."
        )


def check_axes(structure: Structure, scorer: Any, composer: Any) -> None:
    """Refuse layers for parts of another number of axes, if the structure does not name its parts.

    The default layers are for arcs, and would end with an IndexError.
    """
    for argument, part in (("scorer", scorer), ("composer", composer)):
        kind = _class(part)
        axes, own = AXES.get(getattr(kind, "parts", "")), structure.part_axes
        if not structure.parts and axes not in (None, own):
            raise IncompatiblePair(
                kind.__name__,
                structure.name,
                f"this {argument} is for {kind.parts}, which have part_axes = {axes}, and the "
                f"structure has part_axes = {own}",
                f"a {argument} of your own for its parts, in the block of the {argument}",
            )


def _check_tags(scorer: Any, composer: Any) -> None:
    """Refuse builders of scorer and composer with different numbers of tags."""
    settings = [getattr(part, "keywords", {}) for part in (scorer, composer)]
    scored, composed = (own.get("num_tags") for own in settings)
    if None not in (scored, composed) and scored != composed:
        raise LatentError(
            f"{_class(scorer).__name__} has num_tags = {scored} and {_class(composer).__name__} "
            f"has {composed}. Set num_tags of scorer and composer to the same number."
        )


def compatible_layers(structure: Structure, estimator: Estimator) -> tuple[str, str]:
    """Return registered names of a scorer and a composer that work with these two.

    Their default settings are used.

    Raises:
        IncompatiblePair: there are no such layers.
    """
    scorers, composers = (
        [(n, made) for n, made in registered_layers(base) if _class(made).parts == structure.parts]
        for base in KINDS.values()
    )
    if not (scorers and composers):
        raise IncompatiblePair(
            structure.name,
            estimator.name,
            f"no scorer and composer for {structure.parts or 'parts without a name'} is known",
            f"{_compatible(structure.parts, *KINDS)}, or another structure",
        )
    refused: list[IncompatiblePair] = []
    for scorer, composer in itertools.product(scorers, composers):
        try:
            check_parts(structure, estimator, scorer[1], composer[1])
        except IncompatiblePair as error:
            refused.append(error)
        else:
            return scorer[0], composer[0]
    raise refused[0]


def _class(part: object) -> Any:
    """Return the class of a module, or the class that its builder will call.

    For any other builder, such as a function, return the class of the builder itself, which has no
    parts to check.
    """
    called = part.func if isinstance(part, partial) else part
    return called if isinstance(called, type) else type(called)


def _compatible(parts: str, *arguments: str) -> str:
    """Return advice: the layers for parts of this kind that may replace these arguments."""
    advice = []
    for argument in arguments:
        found = [(name, _class(made)) for name, made in registered_layers(KINDS[argument])]
        fits = [(name, kind) for name, kind in found if kind.parts == parts]
        names = [name for name, kind in fits if not getattr(kind, "decides", "")]
        advice.append(f"{argument} = {' or '.join(names) or f'one of your own for {parts}'}")
    return ", ".join(advice)


def _soft_composers(parts: str) -> str:
    found = [(name, _class(made)) for name, made in registered_layers(Composer)]
    return ", ".join(name for name, kind in found if kind.parts == parts and not kind.requires_hard)


def registered_layers(base: type[Any]) -> list[tuple[str, Any]]:
    """Return scorers or composers of this package by registered name, with their makers.

    A maker uses the default settings. The names of :data:`FIRST` come before others.
    """
    found = []
    for point in entry_points(group="spacy_misc"):
        if point.value.startswith("spacy_latent.layers."):
            made = point.load()()
            # Modules of another kind are left out, such as parsers that compose while they parse.
            if issubclass(_class(made), base):
                found.append((point.name, made))
    return sorted(found, key=lambda entry: (entry[0].split(".")[1] not in FIRST, entry[0]))
