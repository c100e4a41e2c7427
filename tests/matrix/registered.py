"""All registered functions, found by entry points, so that new ones are tested automatically."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from spacy_latent.estimators.attention import Attention
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.control_variates import ControlVariate
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
    """Return the classes of structures by registered name. None requires arguments."""
    return _registered(lambda loaded: inspect.isclass(loaded) and issubclass(loaded, Structure))


@cache
def estimators() -> dict[str, type[Estimator]]:
    return _registered(lambda loaded: inspect.isclass(loaded) and issubclass(loaded, Estimator))


@cache
def control_variates() -> dict[str, type[ControlVariate]]:
    return _registered(
        lambda loaded: inspect.isclass(loaded) and issubclass(loaded, ControlVariate)
    )


@cache
def stages() -> dict[str, Callable[..., Any]]:
    """Return the functions that make sequences of structures, or of estimators."""
    return _registered(
        lambda loaded: (
            not inspect.isclass(loaded) and _returns(loaded) in ("Structure", "Estimator")
        )
    )


@cache
def graphs() -> dict[str, Callable[..., Any]]:
    """Return the functions that make factor graphs, which combine structures."""
    return _registered(lambda loaded: _returns(loaded) == "FactorGraph")


@cache
def constraints() -> dict[str, type[Constraint]]:
    """Return the classes of constraints of factor graphs."""
    return _registered(lambda loaded: inspect.isclass(loaded) and issubclass(loaded, Constraint))


@cache
def candidates() -> dict[str, Callable[..., Any]]:
    """Return the functions that choose the candidate words of a rationale."""
    return _registered(lambda loaded: _returns(loaded) == Candidates)


# Settings of estimators whose defaults do not suit the small scores or the lengths of these tests.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "spacy-latent.AdaptiveImplicitMLE.v1": {"initial": 10.0},
    "spacy-latent.BlackBox.v1": {"interpolation": 100.0},
    "spacy-latent.ConstrainedSparsemax.v1": {"upper_bound": 0.7},
    "spacy-latent.DenseMarginalization.v1": {"max_structures": 4096},
    "spacy-latent.Fusedmax.v1": {"penalty": 1e-4},
    # These given trees need no annotation.
    "spacy-latent.GivenTrees.v1": {"trees": "left"},
    "spacy-latent.ImplicitMLE.v1": {"target_step": 100.0},
    "spacy-latent.Oscarmax.v1": {"penalty": 1e-4},
}


def make_estimator(name: str) -> Estimator:
    return estimators()[name](**ARGUMENTS.get(name, {}))


def fits(estimator: Estimator, structure: Structure) -> bool:
    """Return whether the estimator supports the structure."""
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
    """Return the decoders of words from the vector of a text, from heads or from aligned words."""
    kinds = "DecoderBuilder", "ArcDecoderBuilder", "CellDecoderBuilder"
    return _registered(lambda loaded: _returns(loaded) in kinds)


@cache
def priors() -> dict[str, Callable[..., Any]]:
    return _registered(lambda loaded: _returns(loaded) == "PriorBuilder")


@cache
def bounds() -> dict[str, Callable[..., Any]]:
    """Return the functions that make objectives of the reconstruction of words."""
    kinds = "EvidenceBound", "CrfAutoencoder", "AlignedWords"
    return _registered(lambda loaded: _returns(loaded) in kinds)


@cache
def scorers() -> dict[str, Callable[..., Any]]:
    return _registered(lambda loaded: _returns(loaded) == "ScorerBuilder")


def _returns(loaded: Any) -> Any:
    """Return the return annotation of a function. It is a string if annotations are postponed."""
    return getattr(loaded, "__annotations__", {}).get("return") if callable(loaded) else None
