"""Texts and steps leave nothing behind, so that neither many of them nor long ones fill the memory.

Allocations of torch are not traced, and its tensors are counted instead.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from spacy.language import Language
from spacy.tokens import Doc

from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized, latent_pipeline

TEXTS = ["I like London a lot", "I hate Paris", "Berlin is very grey"]
# What a text leaves on a Doc are some thousands, and the gradients of a step a hundred thousand. Of
# the first steps each takes some thousands for good, after sixty steps about 150.
BYTES_A_TEXT, BYTES_A_STEP = 500, 10_000


@pytest.fixture(scope="module")
def nlp() -> Language:
    """All components that write structures, a shared encoder among them."""
    stored = {"annotate": "probabilities"}
    made = latent_pipeline("textcat", encoder={**stored, "alternatives": 2})
    for name in ("crf_ner", "latent_textcat", "latent_parser", "tree_spancat"):
        made.add_pipe(name, config={"model": {"tok2vec": TOK2VEC}, **stored})
    initialized(made)
    return made


@pytest.fixture()
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def living() -> tuple[int, int, int]:
    """Bytes that Python and NumPy hold, docs, and tensors."""
    gc.collect()
    # No isinstance: it would call what lazy objects stand for.
    kinds = [type(one) for one in gc.get_objects()]
    docs = sum(kind is Doc for kind in kinds)
    tensors = sum(issubclass(kind, torch.Tensor) for kind in kinds)
    return tracemalloc.get_traced_memory()[0], docs, tensors


def grown(run: Callable[[], Any], rounds: int) -> list[int]:
    """Of each kind, by how much there is more after all rounds than after the first two, in which
    caches are filled and optimizers get their moments."""
    for _ in range(2):
        run()
    before = living()
    for _ in range(rounds):
        run()
    return [after - first for first, after in zip(before, living())]


def check(found: list[int], most: int) -> None:
    """most: bytes."""
    more_bytes, docs, tensors = found
    assert docs <= 0 and tensors <= 0
    assert more_bytes < most


def test_texts_leave_nothing(nlp: Language, traced: None) -> None:
    def run() -> None:
        for _ in nlp.pipe(TEXTS * 10):
            pass

    check(grown(run, 3), 3 * 10 * len(TEXTS) * BYTES_A_TEXT)


def test_steps_leave_nothing(nlp: Language, traced: None) -> None:
    optimizer = nlp.resume_training()

    def run() -> None:
        for _ in range(4):
            nlp.update(examples(nlp), sgd=optimizer, losses={})

    check(grown(run, 3), 3 * 4 * BYTES_A_STEP)


def test_what_is_left_behind_is_found(nlp: Language, traced: None) -> None:
    kept: list[Doc] = []
    found = grown(lambda: kept.extend(nlp.pipe(TEXTS * 4)), 2)
    assert found[1] == 2 * 4 * len(TEXTS)
    with pytest.raises(AssertionError):
        check([found[0], 0, 0], 2 * 4 * len(TEXTS) * BYTES_A_TEXT)
