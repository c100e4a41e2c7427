"""These tests run with spaCy's own English tokenizer, so that pages print what users see.

All other tests run without its contractions, see tests/conftest.py.
"""

from __future__ import annotations

import pytest
from spacy.lang.en import English

from tests.conftest import CONTRACTIONS


@pytest.fixture(autouse=True)
def contractions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(English.Defaults, "tokenizer_exceptions", CONTRACTIONS)
