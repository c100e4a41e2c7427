"""Contracts of structures and estimators, as functions that authors of extensions call.

Each operation is compared with a list of all structures. Nothing here needs a test runner.
"""

from spacy_latent.testing.estimator_cases import Problem, problems
from spacy_latent.testing.estimators import check_estimator, estimator_checks
from spacy_latent.testing.reports import Check
from spacy_latent.testing.structures import check_structure, structure_checks

__all__ = [
    "Check",
    "Problem",
    "check_estimator",
    "check_structure",
    "estimator_checks",
    "problems",
    "structure_checks",
]
