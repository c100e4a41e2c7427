"""The work of one rank, without other ranks."""

from __future__ import annotations

import io
import os
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.util import registry
from spacy.vocab import Vocab
from thinc.api import Adam, Config, Model, fix_random_seed
from typer.testing import CliRunner

from spacy_latent.distributed.__main__ import app
from spacy_latent.distributed.all_reduce import AllReduce, InnerSteps
from spacy_latent.distributed.directories import (
    finish_replacing,
    replace_directory,
    replace_entries,
)
from spacy_latent.distributed.random_state import (
    RandomState,
    left_alone,
    noise_of,
    stacked,
    unstacked,
)
from spacy_latent.distributed.rank_view import RankView
from spacy_latent.distributed.ranks import Ranks, RanksFailed
from spacy_latent.distributed.train import train
from spacy_latent.distributed.trained_arrays import TorchWeights, models_of, shims_of, weights_of
from spacy_latent.errors import LatentError
from spacy_latent.models.batch_share import only_a_share
from spacy_latent.pipeline.unreached_stages import CALLBACK
from tests.distributed.runs import files_under
from tests.distributed.trainings import (
    TOK2VEC,
    make_pipeline,
    save_corpus,
    shared,
    textcat,
    write_config,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    save_corpus(tmp_path / "train.spacy", count=12)
    return tmp_path / "train.spacy"


def run(config: Path, **options: Any) -> str:
    shown = io.StringIO()
    train(config, stdout=shown, stderr=shown, **options)
    return shown.getvalue()


# ---------------------------------------------------------------- shared components


def gradients(nlp: Any, examples: list[Example], *, held: bool) -> dict[str, torch.Tensor]:
    view = RankView(nlp, [], Ranks(0, 2), seed=0, accumulate=1)
    if held:
        with view._shared_components_wait():
            nlp.update(examples, sgd=False)
        view.reduce._backpropagate()
    else:
        nlp.update(examples, sgd=False)
    return {
        f"{w.component} {i}": w.gradient.clone()
        for i, w in enumerate(weights_of(models_of(nlp, [])))
        if w.component != "ner" and w.gradient is not None
    }


def test_a_rank_without_gold_for_the_last_listener_learns_from_the_others() -> None:
    """The gradients are those of a pipeline without the last listener.

    spaCy's shared layer runs its backward pass only with the gradient of the last listener. A
    single process has gold for it in most batches.
    """
    found = []
    for names, held in (
        (("tagger", "ner"), True),
        (("tagger",), False),
        (("tagger", "ner"), False),
    ):
        nlp, examples = make_pipeline(shared(*names))
        for example in examples:
            example.reference.set_ents([], default="missing")
        fix_random_seed(0)
        found.append(gradients(nlp, examples, held=held))
    held_back, alone, stock = found
    assert len(stock) < len(held_back) == len(alone)
    for name, gradient in alone.items():
        torch.testing.assert_close(held_back[name], gradient)


def test_a_weight_per_token_is_one_of_the_tokens_of_all_ranks() -> None:
    """The gradients of two halves with their shares add up to the gradient of the batch."""
    settings = textcat(entropy_weight=2.0)
    nlp, examples = make_pipeline(settings)
    size = len(examples) // 2
    parts = [examples, examples[:size], examples[size:]]
    total = sum(len(example.predicted) for example in examples)
    found = []
    for part in parts:
        with only_a_share(sum(len(example.predicted) for example in part) / total):
            found.append(_gradient(nlp, part))
    whole, first, second = found
    np.testing.assert_allclose(whole, first + second, atol=1e-6)
    together = _gradient(nlp, parts[1]) + _gradient(nlp, parts[2])
    assert np.abs(whole - together).max() > 1e-3


def _gradient(nlp: Any, examples: list[Example]) -> np.ndarray:
    weights = weights_of(models_of(nlp, []))
    for one in weights:
        if one.gradient is not None:
            one.gradient.zero_()
    nlp.update(examples, sgd=False)
    return np.concatenate(
        [w.gradient.numpy().ravel() for w in weights if w.gradient is not None]
    ).astype(np.float64)


class Paired(Ranks):
    """One of two ranks. The other one always sends the same values."""

    def __init__(self, tells: list[Any]) -> None:
        super().__init__(0, 2)
        self.tells = tells

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mul_(2)

    def most(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.tells]


def test_a_class_that_another_rank_has_seen_is_seen() -> None:
    nlp, _ = make_pipeline(shared("ner"))
    attrs = nlp.get_pipe("ner").model.attrs  # type: ignore[attr-defined]
    attrs["unseen_classes"] = {1, 2}
    AllReduce(nlp, [], Paired([[{2, 3}]]))._share_unseen_classes()
    assert attrs["unseen_classes"] == {2}


def test_what_overflowed_in_float16_is_left_out_and_no_error() -> None:
    nlp, examples = make_pipeline(textcat())
    reduce = AllReduce(nlp, [], Paired([True]))
    (shim,) = shims_of(nlp.get_pipe("latent_textcat").model)  # type: ignore[attr-defined]
    nlp.update(examples, sgd=False)  # type: ignore[arg-type]
    weights = [w for w in weights_of(models_of(nlp, [])) if isinstance(w, TorchWeights)]
    assert weights[0].gradient is not None
    weights[0].gradient.fill_(float("inf"))
    with pytest.raises(RanksFailed, match="latent_textcat"):
        reduce.add_up(weights)
    assert reduce._share_overflow([shim]) == set()
    shim._grad_scaler._enabled = shim._grad_scaler._found_inf = True
    assert reduce._share_overflow([shim]) == {id(shim)}
    assert reduce.add_up(weights, {id(shim)})


class FailingFurther:
    """A component whose inner step on a batch fails on this rank."""

    def __init__(self, model: Model) -> None:
        self.model = self.further_model = model

    def backprop_further(self) -> bool:
        raise MemoryError("no room for a further step")

    def finish_further(self, sgd: Any) -> None:
        raise AssertionError("No step was agreed on")


def test_a_further_step_that_fails_on_a_rank_is_told_to_all() -> None:
    """All ranks get the error, and do not wait for gradients until the timeout."""
    nlp, _ = make_pipeline(textcat())
    reduce = AllReduce(nlp, [], Paired([None]))
    pipe = FailingFurther(nlp.get_pipe("latent_textcat").model)  # type: ignore[attr-defined]
    with pytest.raises(RanksFailed, match=r"rank 0.*MemoryError"):
        InnerSteps("latent_textcat", pipe, reduce).finish_update(Adam())


def test_ranks_that_had_nothing_to_learn_from_are_told_of() -> None:
    """The warning counts the ranks' shares of batches that have no doc.

    The default config begins with batches of a hundred words, which may be only one doc.
    """
    nlp, examples = make_pipeline(shared("tagger"))
    view = RankView(nlp, [], Paired([None]), seed=0, accumulate=1)
    for _ in range(9):
        view.update(examples[:2], losses={}, sgd=False)
    view.update(examples[:1], losses={}, sgd=False)
    assert view.empty_shares_warning() is None
    for _ in range(2):
        view.update(examples[:1], losses={}, sgd=False)
    told = view.empty_shares_warning()
    assert told is not None and told.startswith("12% of the ranks' shares") and "batcher" in told


# ---------------------------------------------------------------- random numbers


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_noise_is_of_its_numbers_and_leaves_the_streams_alone() -> None:
    fix_random_seed(3)
    expected = drawn()
    fix_random_seed(3)
    noise = []
    for numbers in ((1, 0, 5), (1, 1, 5), (1, 0, 5)):
        with noise_of(*numbers):
            noise.append(drawn())
    with left_alone():
        drawn()
    assert noise[0] == noise[2] and noise[0] != noise[1]
    assert drawn() == expected


def test_streams_come_back_from_arrays() -> None:
    random.gauss(0, 1)
    state = RandomState.now()
    again = RandomState.of_arrays(state.arrays())
    assert again == state
    expected = (*drawn(), random.gauss(0, 1), float(np.random.randn()))
    assert RandomState.now() != state
    again.set()
    assert (*drawn(), random.gauss(0, 1), float(np.random.randn())) == expected


def test_states_of_many_steps_come_back_and_take_little_room() -> None:
    """A stream with an augmenter, beside an ner, keeps one for each step: 15 KB of each."""
    states: dict[int, dict[str, np.ndarray]] = {}
    for step in range(2000):
        random.random()
        states[step] = RandomState.now().arrays({"python"} if step % 7 else {"python", "numpy"})
    arrays = stacked(states)
    assert sum(array.nbytes for array in arrays.values()) < 200 * len(states)
    again = unstacked(arrays)
    assert list(again) == list(states)
    for step, own in states.items():
        assert own.keys() == again[step].keys()
        assert all(np.array_equal(own[key], again[step][key], equal_nan=True) for key in own)
    assert unstacked(stacked({})) == {}
    # Only the generators that are known are set.
    with left_alone():
        expected, numpy_before = random.random(), np.random.get_state()[1].tolist()
        RandomState.of_arrays(again[1999]).set()
        assert random.random() == expected
        assert np.random.get_state()[1].tolist() == numpy_before  # type: ignore[union-attr]


# ---------------------------------------------------------------- directories


def test_a_directory_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "model"

    def write(text: str) -> Any:
        def fill(folder: Path) -> None:
            folder.mkdir()
            (folder / "file").write_text(text)
            if text == "broken":
                raise OSError("No space left on device")

        return fill

    replace_directory(path, write("first"))
    replace_directory(path, write("second"))
    with pytest.raises(OSError, match="No space"):
        replace_directory(path, write("broken"))
    assert (path / "file").read_text() == "second"
    # Restore the state of a process that was killed between the two renames.
    os.replace(path, tmp_path / ".model.old")
    write("third")(tmp_path / ".model.new")
    finish_replacing(path)
    assert (path / "file").read_text() == "second"
    assert [found.name for found in tmp_path.iterdir()] == ["model"]


def test_two_writers_of_one_directory_do_not_mix_their_entries(tmp_path: Path) -> None:
    """The second writer begins when the first has written one of its two files."""
    half_written, second_began = Event(), Event()

    def first(folder: Path) -> None:
        (folder / "config.cfg").write_text("first")
        half_written.set()
        second_began.wait(0.3)
        (folder / "model").write_text("first")

    def second(folder: Path) -> None:
        second_began.set()
        for name in ("config.cfg", "model"):
            (folder / name).write_text("second")

    path = tmp_path / "calibrated"
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(replace_entries, path, first)
        assert half_written.wait(60)
        after = pool.submit(replace_entries, path, second)
        writing.result()
        after.result()
    found = {entry.name: entry.read_text() for entry in path.iterdir()}
    assert found == {"config.cfg": "second", "model": "second"}


def test_a_directory_that_cannot_be_read_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory without permission to read is written without a lock."""

    path, opened = tmp_path / "calibrated", os.open

    def refuse(given: Any, *rest: Any, **options: Any) -> int:
        if given == path:
            raise PermissionError(13, "Permission denied")
        return opened(given, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    replace_entries(path, lambda folder: (folder / "model").mkdir())
    assert [entry.name for entry in path.iterdir()] == ["model"]


@pytest.mark.skipif(not hasattr(os, "O_DIRECTORY"), reason="Windows has no such locks")
def test_the_wait_for_another_writer_is_outside_of_the_context_of_the_writing(
    tmp_path: Path,
) -> None:
    """A wait inside of a context that delays interrupts could not be interrupted."""
    done, said = Event(), list[str]()
    path = tmp_path / "calibrated"

    @contextmanager
    def during() -> Iterator[None]:
        said.append("begins")
        yield
        said.append("ends")

    with ThreadPoolExecutor(2) as pool:
        began = Event()

        def first(folder: Path) -> None:
            began.set()
            done.wait(60)
            said.append("first")

        pool.submit(replace_entries, path, first)
        assert began.wait(60)
        second = pool.submit(replace_entries, path, lambda folder: said.append("second"), during())
        assert not second.done() and said == []
        # A context that is entered too early would be entered within this time.
        assert not wait([second], 0.2).done and said == []
        done.set()
        second.result()
    assert said == ["first", "begins", "second", "ends"]


# ---------------------------------------------------------------- refused trainings


def test_a_training_is_not_mixed_with_another(tmp_path: Path, data: Path) -> None:
    config = write_config(tmp_path / "tagger.cfg", shared("tagger"), data, max_steps=2)
    output = tmp_path / "output"
    assert "There is no checkpoint yet" in run(config, output=output, resume=True)
    with pytest.raises(LatentError, match="checkpoints"):
        run(config, output=output)
    with pytest.raises(LatentError, match=r"training\.dropout.*0\.0.*0\.5"):
        run(config, output=output, resume=True, overrides={"training.dropout": 0.5})
    save_corpus(tmp_path / "other.spacy", count=12, seed=1)
    longer = {"training.max_steps": 4}
    with pytest.raises(LatentError, match="batches"):
        other = {**longer, "corpora.train.path": str(tmp_path / "other.spacy")}
        run(config, output=output, resume=True, overrides=other)
    # A config with the callback that refuses short trainings counts as the same training.
    refusing = Config().from_disk(config)
    assert refusing["nlp"].get("after_pipeline_creation") is None
    refusing["nlp"]["after_pipeline_creation"] = CALLBACK
    refusing.to_disk(config)
    assert "Resuming after 1 step," in run(config, output=output, resume=True, overrides=longer)
    assert [p.name for p in sorted((output / "checkpoints").iterdir())] == ["step-1", "step-4"]


@pytest.mark.parametrize("name", ["training.json", "training.npz", "pipeline/tagger/model"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used_without_it(
    tmp_path: Path, data: Path, name: str
) -> None:
    config = write_config(tmp_path / "tagger.cfg", shared("tagger"), data, max_steps=3)
    output = tmp_path / "output"
    run(config, output=output)
    last = output / "checkpoints" / "step-4"
    content = (last / name).read_bytes()
    (last / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(LatentError, match="step-4"):
        run(config, output=output, resume=True)
    shutil.rmtree(last)
    assert "Resuming after 1 step," in run(config, output=output, resume=True)


def check_parts_are_as_whole(config: Path, folder: Path, *steps: int) -> None:
    """Check that a training resumed after these steps ends as one without a stop."""
    for name, stops in (("whole", steps[-1:]), ("stopped", steps)):
        for last in stops:
            given = {"training.max_steps": last}
            run(config, output=folder / name, resume=True, overrides=given)
    whole, stopped = (files_under(folder / name / "model-last") for name in ("whole", "stopped"))
    assert whole == stopped


def test_lists_of_components_do_not_grow_when_a_training_is_resumed(tmp_path: Path) -> None:
    """spaCy's trees of lemmas and its patterns of attributes are appended when they are read."""
    words = ["dogs", "cats", "mice"]
    bin_ = DocBin()
    for _ in range(6):
        bin_.add(Doc(Vocab(), words=words, lemmas=["dog", "cat", "mouse"]))
    bin_.to_disk(tmp_path / "train.spacy")
    lemmatizer = {
        "model": {"@architectures": "spacy.Tagger.v2", "tok2vec": TOK2VEC, "nO": None},
        "min_tree_freq": 1,
    }
    pipeline = {"trainable_lemmatizer": lemmatizer, "attribute_ruler": {}}
    config = write_config(tmp_path / "l.cfg", pipeline, tmp_path / "train.spacy", max_steps=2)
    patterns = Config().from_disk(config)
    tags = {"tag_map": {"@misc": "tests.tag_map"}}
    patterns["initialize"] = {"components": {"attribute_ruler": tags}}
    patterns.to_disk(config)
    registry.misc("tests.tag_map")(lambda: {"X": {"POS": "NOUN"}})
    check_parts_are_as_whole(config, tmp_path, 2, 4, 6)


def test_a_checkpoint_of_a_stream_with_draws_does_not_grow_with_each_step(
    tmp_path: Path, data: Path
) -> None:
    """The reader draws from Python's generator at each step, and dropout from NumPy's."""
    path = write_config(
        tmp_path / "t.cfg", shared("tagger"), data, max_steps=12, max_epochs=-1, dropout=0.1
    )
    config = Config().from_disk(path)
    lower = {"@augmenters": "spacy.lower_case.v1", "level": 0.5}
    config["corpora"]["train"]["augmenter"] = lower
    config.to_disk(path)
    check_parts_are_as_whole(path, tmp_path, 5, 12)
    with np.load(tmp_path / "whole" / "checkpoints" / "step-13" / "training.npz") as file:
        # Without growth there is only the state before the first step, besides the last state.
        assert list(unstacked({"steps": file["random_before.steps"]})) == [0]


def test_data_may_draw_long_after_other_code_drew_from_the_same_generator(
    tmp_path: Path, data: Path
) -> None:
    """A callback draws from NumPy's generator in two steps; the augmenter does so in later ones."""

    @registry.augmenters("tests.late_draws")
    def make() -> Callable[[Any, Example], Iterator[Example]]:
        drawn = count()

        def augment(nlp: Any, example: Example) -> Iterator[Example]:
            upper = random.random() < 0.5
            if next(drawn) > 60:
                upper = np.random.rand() < 0.5
            words = [token.text.upper() if upper else token.text for token in example.reference]
            made = Doc(nlp.vocab, words, tags=[token.tag_ for token in example.reference])
            yield Example(Doc(nlp.vocab, words), made)

        return augment

    @registry.callbacks("tests.early_draws")
    def make_callback() -> Callable[[Any, dict[str, Any]], None]:
        return lambda nlp, info: np.random.rand() if info["step"] < 2 else None

    path = write_config(tmp_path / "t.cfg", shared("tagger"), data, max_steps=16, max_epochs=-1)
    config = Config().from_disk(path)
    config["corpora"]["train"]["augmenter"] = {"@augmenters": "tests.late_draws"}
    config["training"]["before_update"] = {"@callbacks": "tests.early_draws"}
    config.to_disk(path)
    check_parts_are_as_whole(path, tmp_path, 13, 16)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resume": True}, "resume"),
        ({"checkpoint_every": -1}, "checkpoint_every"),
        ({"timeout": 0.0}, "timeout"),
    ],
)
def test_settings_that_mean_nothing_are_refused(
    tmp_path: Path, data: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(LatentError, match=words):
        train(tmp_path / "none.cfg", **options)


def test_the_command_trains_and_says_what_is_wrong(tmp_path: Path, data: Path) -> None:
    config = write_config(tmp_path / "tagger.cfg", shared("tagger"), data)
    words = [
        "train",
        str(config),
        "--output",
        str(tmp_path / "output"),
        "--training.max_steps",
        "1",
    ]
    runner = CliRunner()
    done = runner.invoke(app, [*words, "--checkpoint-every", "1"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "output" / "model-last" / "meta.json").exists()
    again = runner.invoke(app, words)
    assert again.exit_code == 1 and "--resume" in again.output
