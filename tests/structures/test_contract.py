"""Every structure of the package against the list of its members, by ``spacy_latent.testing``."""

from __future__ import annotations

import pytest

from spacy_latent.testing import Check
from tests.matrix import registered
from tests.structures.contracts import every_structure

LISTED = list(every_structure())
CHECKS = [
    pytest.param(check, id=f"{i}-{listed}-{check}")
    for i, listed in enumerate(LISTED)
    for check in listed.checks()
]


@pytest.mark.parametrize("check", CHECKS)
def test_contract(check: Check) -> None:
    check()


def test_every_registered_structure_is_listed() -> None:
    classes = {type(listed.structure) for listed in LISTED}
    assert set(registered.structures().values()) <= classes
