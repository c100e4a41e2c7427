"""A pytest plugin that puts a latent structure over spaCy's default tok2vec.

``spacy.HashEmbedCNN.v2`` and ``spacy.Tok2Vec.v2`` are registered again, wrapped in LatentTok2Vec.
Every pipeline that spaCy's own tests build from them then trains through a latent tree.
``tests/spacy_suite.py`` runs these tests.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("spacy.HashEmbedCNN.v2", "spacy.Tok2Vec.v2")
outcomes: dict[str, str] = {}
built = 0

# Two modules of spaCy's tests import mock, a backport of unittest.mock.
sys.modules.setdefault("mock", unittest.mock)


def wrap(build: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build)
    def build_latent(*args: Any, **kwargs: Any) -> Any:
        from spacy_latent.models.latent_tok2vec import build_latent_tok2vec_v1

        global built
        built += 1
        return build_latent_tok2vec_v1(build(*args, **kwargs))

    return build_latent


def pytest_configure() -> None:
    if os.environ.get("SPACY_LATENT_SUITE") != "with":
        return
    import spacy

    spacy.blank("en")  # fills the registry
    for name in NAMES:
        build = spacy.registry.architectures.get(name)
        spacy.registry.architectures.register(name, func=wrap(build))


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        # The node id of a test outside of pytest's root does not name its file.
        path, _, test = report.location
        outcomes[f"{path}::{test}"] = report.outcome


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        outcomes[report.nodeid] = "failed"


def pytest_sessionfinish() -> None:
    path = os.environ.get("SPACY_LATENT_SUITE_RESULT")
    if path:
        Path(path).write_text(json.dumps({"built": built, "outcomes": outcomes}))
