"""Ctrl+C ends commands at once, with the exit code of an interrupt and no incomplete files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import DocBin
from spacy.training.loop import train
from spacy.util import registry

from spacy_latent.cli.output import finished_first, write_page
from tests.pipeline.small_pipelines import TOK2VEC, examples, initialized


@pytest.fixture(autouse=True)
def listens_to_interrupts() -> Iterator[None]:
    """Restore the default handler, since background processes of a shell ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def small(name: str = "latent_textcat") -> spacy.Language:
    nlp = spacy.blank("en")
    nlp.add_pipe(name, config={"model": {"tok2vec": TOK2VEC}})
    initialized(nlp)
    return nlp


@pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
def test_a_command_ends_with_the_code_of_an_interrupt(tmp_path: Path) -> None:
    small().to_disk(tmp_path / "model")
    page = tmp_path / "page.html"
    page.write_text("of before")
    # So many texts that the command cannot finish before the interrupt.
    texts = tmp_path / "texts.txt"
    texts.write_text("I like London a lot, and Paris as well\n" * 200_000)
    command = [sys.executable, "-m", "spacy_latent", "show", str(tmp_path / "model"), "-"]
    with texts.open() as lines:
        process = subprocess.Popen(
            [*command, "--html", str(page)],
            stdin=lines,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            # The process would inherit an ignored signal.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    # Older versions of typer print "Aborted!", and Python itself ends by the signal.
    assert process.returncode in (130, -signal.SIGINT) or b"Aborted" in errors
    assert page.read_text() == "of before"


def test_what_is_being_written_is_written_to_its_end(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        with finished_first():
            signal.raise_signal(signal.SIGINT)
            write_page(tmp_path / "new" / "page.html", "whole")
    assert (tmp_path / "new" / "page.html").read_text() == "whole"
    # Interrupts work again afterwards, even if writing failed.
    with pytest.raises(OSError, match="full"), finished_first():
        raise OSError("The disk is full")
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_other_threads_write_as_well(tmp_path: Path) -> None:
    thread = threading.Thread(target=write_page, args=(tmp_path / "page.html", "whole"))
    thread.start()
    thread.join()
    assert (tmp_path / "page.html").read_text() == "whole"


def test_training_that_is_interrupted_leaves_a_pipeline_that_loads(tmp_path: Path) -> None:
    nlp = small()
    DocBin(docs=[example.reference for example in examples(nlp)]).to_disk(tmp_path / "a.spacy")
    reader = {
        "@readers": "spacy.Corpus.v1",
        "path": str(tmp_path / "a.spacy"),
        "gold_preproc": False,
        "max_length": 0,
        "limit": 0,
        "augmenter": None,
    }
    nlp.config["corpora"] = {"train": reader, "dev": reader}
    steps: list[int] = []

    @registry.callbacks("interrupt_at_the_third_step")
    def create() -> Any:
        def before_update(nlp: Any, info: dict[str, Any]) -> None:
            steps.append(info["step"])
            if len(steps) == 3:
                signal.raise_signal(signal.SIGINT)

        return before_update

    nlp.config["training"]["before_update"] = {"@callbacks": "interrupt_at_the_third_step"}
    initialized(nlp)
    (tmp_path / "output").mkdir()
    with pytest.raises(KeyboardInterrupt):
        train(nlp, tmp_path / "output")
    assert len(steps) == 3
    found = spacy.load(tmp_path / "output" / "model-last")
    assert set(found("I like London").cats) == {"good", "bad"}
