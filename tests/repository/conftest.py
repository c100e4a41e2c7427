"""What the pages print, they print with the tokenizer that users have."""

from __future__ import annotations

import pytest
from spacy.lang.en import English

from tests.conftest import CONTRACTIONS


@pytest.fixture(autouse=True)
def contractions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(English.Defaults, "tokenizer_exceptions", CONTRACTIONS)
