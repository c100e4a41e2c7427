"""Which config a raw result is of. Raw results themselves are read where spaCy must not be."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spacy.util import load_config


def digest_of(config: Path, overrides: Mapping[str, Any] | None = None) -> str:
    """Of what a config says with these settings, whatever its comments are."""
    read = load_config(config, overrides=dict(overrides or {}), interpolate=False)
    return hashlib.sha256(read.to_str(interpolate=False).encode("utf8")).hexdigest()[:16]
