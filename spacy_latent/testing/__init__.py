"""The contracts of structures and estimators as functions that authors of extensions call on their
own: each operation against a list of all structures. Nothing here needs a test runner.
"""

from spacy_latent.testing.reports import Check
from spacy_latent.testing.structures import check_structure, structure_checks

__all__ = ["Check", "check_structure", "structure_checks"]
