"""All registered functions, found through the entry points: a new line there adds a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from spacy_latent.estimators.attention import Attention
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.factorised import FactorisedEstimator, is_factorised
from spacy_latent.estimators.given_trees import GivenTrees
from spacy_latent.estimators.mixed_dirichlet import MixedDirichlet
from spacy_latent.estimators.sinkhorn import Sinkhorn
from spacy_latent.estimators.stochastic_mask import StochasticMask
from spacy_latent.kinds import find_kind
from spacy_latent.models.candidates import Candidates
from spacy_latent.structures.base import Structure
from spacy_latent.structures.bits import Bits
from spacy_latent.structures.constraints import Constraint
from spacy_latent.structures.one_of_n import OneOfN
from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment


@cache
def _all() -> dict[str, Any]:
    points = sorted(entry_points(group="spacy_misc"), key=lambda point: point.name)
    return {point.name: point.load() for point in points if point.name.startswith("spacy-latent.")}


def _registered(wanted: Callable[[Any], bool]) -> dict[str, Any]:
    return {name: loaded for name, loaded in _all().items() if wanted(loaded)}


@cache
def structures() -> dict[str, type[Structure]]:
    """Classes by registered name; each can be made without arguments."""
    return _registered(lambda loaded: inspect.isclass(loaded) and issubclass(loaded, Structure))


@cache
def estimators() -> dict[str, type[Estimator]]:
    return _registered(lambda loaded: inspect.isclass(loaded) and issubclass(loaded, Estimator))


@cache
def stages() -> dict[str, Callable[..., Any]]:
    """Functions that put structures, or estimators, one after another."""
    return _registered(
        lambda loaded: (
            not inspect.isclass(loaded) and _returns(loaded) in ("Structure", "Estimator")
        )
    )


@cache
def graphs() -> dict[str, Callable[..., Any]]:
    """Structures that are made of others."""
    return _registered(lambda loaded: _returns(loaded) == "FactorGraph")


@cache
def constraints() -> dict[str, type[Constraint]]:
    """Constraints that such structures may have."""
    return _registered(lambda loaded: inspect.isclass(loaded) and issubclass(loaded, Constraint))


@cache
def candidates() -> dict[str, Callable[..., Any]]:
    """Functions that select the words that may be part of a rationale."""
    return _registered(lambda loaded: _returns(loaded) == Candidates)


# Settings for estimators whose defaults do not suit scores as flat, or texts as long, as in these
# tests.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "spacy-latent.AdaptiveImplicitMLE.v1": {"initial": 10.0},
    "spacy-latent.BlackBox.v1": {"interpolation": 100.0},
    "spacy-latent.ConstrainedSparsemax.v1": {"upper_bound": 0.7},
    "spacy-latent.DenseMarginalization.v1": {"max_structures": 4096},
    "spacy-latent.Fusedmax.v1": {"penalty": 1e-4},
    # The trees do not depend on words.
    "spacy-latent.GivenTrees.v1": {"trees": "left"},
    "spacy-latent.ImplicitMLE.v1": {"target_step": 100.0},
    "spacy-latent.Oscarmax.v1": {"penalty": 1e-4},
}


def make_estimator(name: str) -> Estimator:
    return estimators()[name](**ARGUMENTS.get(name, {}))


def fits(estimator: Estimator, structure: Structure) -> bool:
    """Whether the structure has what the estimator needs."""
    linear = structure.linear or not estimator.linear_only
    if isinstance(estimator, (Attention, MixedDirichlet)) and not isinstance(structure, OneOfN):
        return False
    if isinstance(estimator, StochasticMask) and not isinstance(structure, Bits):
        return False
    if isinstance(estimator, FactorisedEstimator) and not is_factorised(structure):
        return False
    if isinstance(estimator, Sinkhorn) and not isinstance(structure, OneToOneAlignment):
        return False
    if isinstance(estimator, GivenTrees) and not find_kind(structure.kind).trees:
        return False
    return linear and not structure.lacks(estimator.needed())


@cache
def composers() -> dict[str, Callable[..., Any]]:
    return _registered(lambda loaded: _returns(loaded) == "ComposerBuilder")


@cache
def decoders() -> dict[str, Callable[..., Any]]:
    """Decoders of words from the vector of a text, or from their heads."""
    kinds = "DecoderBuilder", "ArcDecoderBuilder", "CellDecoderBuilder"
    return _registered(lambda loaded: _returns(loaded) in kinds)


@cache
def priors() -> dict[str, Callable[..., Any]]:
    return _registered(lambda loaded: _returns(loaded) == "PriorBuilder")


@cache
def bounds() -> dict[str, Callable[..., Any]]:
    """How they count."""
    kinds = "EvidenceBound", "CrfAutoencoder", "AlignedWords"
    return _registered(lambda loaded: _returns(loaded) in kinds)


@cache
def scorers() -> dict[str, Callable[..., Any]]:
    return _registered(lambda loaded: _returns(loaded) == "ScorerBuilder")


def _returns(loaded: Any) -> Any:
    """The annotated result of a function, its name where annotations are not evaluated."""
    return getattr(loaded, "__annotations__", {}).get("return") if callable(loaded) else None
