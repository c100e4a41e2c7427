"""Memory does not grow with the number of predicted texts, or of training steps.

Python does not trace the allocations of torch, so its tensors are counted instead.
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
# The annotations of a Doc take some thousands of bytes, and the gradients of a step a hundred
# thousand. Each of the first steps keeps some thousands of bytes, and a step after sixty about 150.
BYTES_A_TEXT, BYTES_A_STEP = 500, 10_000


@pytest.fixture(scope="module")
def nlp() -> Language:
    """A pipeline of all components that write structures, with a shared encoder."""
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
    """Return the bytes that Python and NumPy hold, and the numbers of docs and tensors."""
    gc.collect()
    # isinstance would resolve lazy objects, so compare types.
    kinds = [type(one) for one in gc.get_objects()]
    docs = sum(kind is Doc for kind in kinds)
    tensors = sum(issubclass(kind, torch.Tensor) for kind in kinds)
    return tracemalloc.get_traced_memory()[0], docs, tensors


def grown(run: Callable[[], Any], rounds: int) -> list[int]:
    """Return the growth of bytes, docs and tensors over some rounds.

    Two rounds before the first measurement fill the caches and the optimizer.
    """
    for _ in range(2):
        run()
    before = living()
    for _ in range(rounds):
        run()
    return [after - first for first, after in zip(before, living())]


def check(found: list[int], most: int) -> None:
    """Check that no docs and tensors are left, and fewer than ``most`` bytes."""
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
