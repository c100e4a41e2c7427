"""Training with spaCy's own loop on one of several ranks."""

from __future__ import annotations

import contextlib
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import (
    DIR_MODEL_BEST,
    DIR_MODEL_LAST,
    create_before_to_disk_callback,
    create_evaluation_callback,
    create_train_batches,
    train_while_improving,
    update_meta,
)
from spacy.util import load_config, registry, resolve_dot_names
from thinc.api import fix_random_seed, set_gpu_allocator
from wasabi import Printer

from spacy_latent.distributed.checkpoint import (
    Progress,
    check_optimizer,
    checkpoints_in,
    folder_of,
    load_checkpoint,
    save_checkpoint,
)
from spacy_latent.distributed.directories import finish_replacing, replace_directory
from spacy_latent.distributed.random_state import GENERATORS, RandomState, left_alone
from spacy_latent.distributed.rank_view import RankView, checksum_of_batch
from spacy_latent.distributed.ranks import Ranks, RanksFailed
from spacy_latent.distributed.trained_arrays import checksum, labels_of
from spacy_latent.errors import LatentError, number_of


class RankTraining:
    """Part of a training on one rank: the pipeline and the training settings of its config."""

    def __init__(
        self,
        ranks: Ranks,
        config_path: Path,
        output: Path | None,
        overrides: dict[str, object],
        *,
        gpu: int,
        drawn: int,
        stdout: IO[str],
        stderr: IO[str],
    ) -> None:
        self.ranks, self.output = ranks, output
        self.stdout, self.stderr = stdout, stderr
        raw = load_config(config_path, overrides=overrides, interpolate=False)
        seed = raw.interpolate().get("training", {}).get("seed")
        if seed is None and not ranks.alone:
            # Otherwise each rank would draw different initial weights.
            seed = drawn
            fix_random_seed(seed)
        self.nlp = init_nlp(raw, use_gpu=gpu)
        config = self.nlp.config.interpolate()
        if seed is not None:
            fix_random_seed(seed)
        allocator = config["training"]["gpu_allocator"]
        if gpu >= 0 and allocator:
            set_gpu_allocator(allocator)
        self.settings: dict[str, Any] = registry.resolve(
            config["training"], schema=ConfigSchemaTraining
        )
        names = [self.settings["train_corpus"], self.settings["dev_corpus"]]
        self.train_corpus, self.dev_corpus = resolve_dot_names(config, names)
        self.optimizer = self.settings["optimizer"]
        self.frozen: list[str] = self.settings["frozen_components"]
        self.before_to_disk = create_before_to_disk_callback(self.settings["before_to_disk"])
        self.progress = Progress(world=ranks.world, seed=seed or 0)
        self.view = RankView(
            self.nlp,
            self.frozen,
            ranks,
            seed=self.progress.seed,
            accumulate=self.settings["accumulate_gradient"],
        )
        self.checkpoint_every: int | None = 0
        self.resumed_at = 0
        self._score = create_evaluation_callback(
            self.nlp, self.dev_corpus, self.settings["score_weights"]
        )
        self._replayed: list[float] = []
        self._saved: RandomState | None = None

    # ---------------------------------------------------------------- before the first step

    def begin(self, *, resume: bool, checkpoint_every: int | None) -> None:
        """Compare the ranks, and restore the last checkpoint."""
        self.checkpoint_every = 0 if self.output is None else checkpoint_every
        if self.checkpoint_every != 0 or resume:
            check_optimizer(self.optimizer)
        if not self.ranks.same(list(labels_of(self.nlp))):
            raise RanksFailed(
                "The components have different labels on different ranks, or the same labels in "
                "another order. Set them in the config (initialize.components.NAME.labels, see "
                "spacy init labels)."
            )
        self._compare_weights("begin with different weights. Set training.seed")
        last = self.ranks.of_first(lambda: self._find_checkpoint(resume), "Looking for checkpoints")
        if last is None:
            if resume:
                self._tell("There is no checkpoint yet: training begins anew.")
            return
        self.progress = self.ranks.together(
            lambda: load_checkpoint(last, self.nlp, self.optimizer, self.frozen),
            "Reading the checkpoint",
        )
        self._compare_weights("have read different checkpoints. They need a disk in common")
        if self.progress.world != self.ranks.world:
            self._tell(
                f"The checkpoint is of {self.progress.world} rank(s) and this training of "
                f"{self.ranks.world}: from here on, noise and the order of sums differ."
            )
        self.resumed_at = self.progress.steps
        self.progress.world = self.ranks.world
        self.view.seed = self.progress.seed
        # If the checkpoint is from more ranks, the losses of the others are dropped. They are only
        # logged.
        mine = self.progress.losses[self.ranks.rank : self.ranks.rank + 1]
        self.view.carried = dict(mine[0]) if mine else {}
        self._replayed = list(self.progress.scores)
        self._saved = self.progress.random
        self._tell(f"Resuming after {number_of(self.resumed_at, 'step')}, from {last}")

    def _find_checkpoint(self, resume: bool) -> Path | None:
        if self.output is None:
            return None
        for name in (DIR_MODEL_BEST, DIR_MODEL_LAST):
            finish_replacing(self.output / name)
        found = checkpoints_in(self.output)
        if found and not resume:
            raise LatentError(
                f"{folder_of(self.output)} has checkpoints of an earlier training. Continue it "
                "with --resume, remove that directory, or give another --output."
            )
        return found[-1][1] if found else None

    def _compare_weights(self, what: str) -> None:
        if not self.ranks.alone and not self.ranks.same(checksum(self.nlp, self.frozen)):
            raise RanksFailed(f"The ranks {what}.")

    def _tell(self, text: str) -> None:
        if self.ranks.is_first:
            self.stdout.write(Printer(no_print=True).info(text) + "\n")

    # ---------------------------------------------------------------- the loop

    def run(self) -> tuple[Language, Path | None]:
        """Train, and return the pipeline and the path of model-last, None without an output."""
        settings = self.settings
        steps = train_while_improving(
            self.view,  # type: ignore[arg-type]
            self.optimizer,
            self._batches(),
            self._evaluate,
            dropout=settings["dropout"],
            # The view divides batches into parts, and each part into shares of the ranks.
            accumulate_gradient=1,
            patience=settings["patience"],
            max_steps=settings["max_steps"],
            eval_frequency=settings["eval_frequency"],
            exclude=self.frozen,
            annotating_components=settings["annotating_components"],
            before_update=self._before_update if settings["before_update"] else None,
        )
        self._tell(f"Pipeline: {self.nlp.pipe_names}")
        if self.frozen:
            self._tell(f"Frozen components: {self.frozen}")
        if settings["annotating_components"]:
            self._tell(f"Set annotations on update for: {settings['annotating_components']}")
        self._tell(f"Initial learn rate: {self.optimizer.learn_rate}")
        log, finish_log = self.ranks.together(self._logger, "Starting the logger")
        try:
            for _, info, best in steps:
                if info["step"] < self.resumed_at:
                    continue
                self.progress.steps = info["step"] + 1
                # After an evaluation, the loop resets the sums of losses.
                losses = dict(info["losses"]) if best is None else {}
                if best is not None:
                    self._save(info, best)
                try:
                    log(info if best is not None else None)
                except Exception as error:
                    if self.ranks.alone:
                        raise
                    # The next comparison raises the error on all ranks.
                    self.view.reduce.failure = error
                if self._checkpoint_is_due(best is not None):
                    self._save_checkpoint(losses)
        finally:
            finish_log()
        if not self.ranks.alone:
            self.view.reduce.agree()
        self._tell_if_nothing_was_trained()
        last = None if self.output is None else self.output / DIR_MODEL_LAST
        if last is not None:
            # The last steps follow the last evaluation.
            self._on_first(lambda: self._write_model(last), f"Saving to {self.output}")
        if warning := self.view.empty_shares_warning():
            self._tell(warning)
        if last is not None and self.ranks.is_first:
            text = Printer(no_print=True).good("Saved pipeline to output directory", last)
            self.stdout.write(text + "\n")
        return self.nlp, last

    def _tell_if_nothing_was_trained(self) -> None:
        if not self.resumed_at or self.progress.steps > self.resumed_at:
            return
        max_steps = self.settings["max_steps"]
        end = "training.max_epochs or training.patience"
        if 0 < max_steps <= self.resumed_at:
            end = f"training.max_steps, which is {max_steps},"
        self._tell(f"No further step was trained: {end} ends this training. Raise it to train on.")

    def _batches(self) -> Iterator[tuple[int, list[Example]]]:
        """Yield the batches of all ranks.

        Batches before the checkpoint are read without learning, to restore the position in the
        data.
        """
        batches = create_train_batches(
            self.nlp, self.train_corpus, self.settings["batcher"], self.settings["max_epochs"]
        )
        replayed, self.progress.epochs = dict(self.progress.epochs), {}
        data, expected = 0, self.progress.data
        left: RandomState | None = None
        # Generators from which other code has drawn since their state was stored. A replay lacks
        # these draws.
        elsewhere = GENERATORS
        step = 0
        while True:
            if step in replayed:
                RandomState.of_arrays(replayed[step]).set()
            if self._saved is not None and step == self.resumed_at:
                with self._failing_with_all():
                    if data != expected:
                        raise LatentError(
                            f"The first {self.resumed_at} batches differ from those of the "
                            "checkpoint. Resume with the same data, readers and batchers."
                        )
                self._saved.set()
                self._saved = None
            before = RandomState.now()
            with self._failing_with_all():
                batch = next(batches, None)
            now = RandomState.now()
            if left is not None:
                elsewhere |= before.differing(left)
            # If only the reader of the data draws from a generator, the replay restores its state.
            if needed := elsewhere & before.differing(now):
                self.progress.epochs[step] = before.arrays(needed)
                elsewhere -= needed
            left = now
            if batch is None:
                self.view.begin(step, [])
                return
            epoch, examples = batch[0], list(batch[1])
            data = zlib.crc32(str(checksum_of_batch(examples)).encode(), data)
            self.view.idle = step < self.resumed_at
            if not self.view.idle:
                self.progress.data = data
                self.view.begin(step, examples)
            yield epoch, examples
            step += 1

    def _before_update(self, _: Any, info: dict[str, Any]) -> None:
        if not self.view.idle:
            with self._failing_with_all():
                self.settings["before_update"](self.nlp, info)

    @contextlib.contextmanager
    def _failing_with_all(self) -> Iterator[None]:
        """Raise an error of this rank on all ranks, which wait for it in their next comparison."""
        try:
            yield
        except Exception as error:
            if not self.ranks.alone:
                self.view.reduce.failure = error
                self.view.reduce.agree()
            raise

    def _evaluate(self) -> tuple[float, dict[str, Any]]:
        if self._replayed:
            return self._replayed.pop(0), {}
        self._compare_weights("have drifted apart: a component changes its weights by itself")
        score, others = self._on_first(self._score, "Evaluating")
        totals = self.ranks.gather(dict(self.view.losses))
        for name in {name for losses in totals for name in losses}:
            self.view.losses[name] = sum(losses.get(name, 0.0) for losses in totals)
        self.progress.scores.append(float(score))
        return score, others

    def _on_first(self, action: Callable[[], Any], what: str) -> Any:
        """Run an action on rank 0, and return its result on every rank."""
        return self.ranks.of_first(lambda: self._without_drawing(action), what)

    def _without_drawing(self, action: Callable[[], Any]) -> Any:
        """Run an action that must not change the random number generators that ranks share.

        A single process behaves as in spaCy.
        """
        with contextlib.nullcontext() if self.ranks.alone else left_alone():
            return action()

    # ---------------------------------------------------------------- logging and saving

    def _logger(self) -> tuple[Callable[[Any], None], Callable[[], None]]:
        if not self.ranks.is_first:
            return lambda info: None, lambda: None
        with self.nlp.select_pipes(disable=self.frozen):
            log, finish = self.settings["logger"](self.nlp, self.stdout, self.stderr)
        return lambda info: self._without_drawing(lambda: log(info)), finish

    def _save(self, info: dict[str, Any], best: bool) -> None:
        with self.nlp.select_pipes(disable=self.frozen):
            update_meta(self.settings, self.nlp, info)
        if self.output is None:
            return
        last, kept = self.output / DIR_MODEL_LAST, self.output / DIR_MODEL_BEST

        def save() -> None:
            self._write_model(last)
            if best:
                replace_directory(kept, lambda made: shutil.copytree(last, made))

        self._on_first(save, f"Saving to {self.output}")
        info["output_path"] = str(last)

    def _write_model(self, path: Path) -> None:
        with self.nlp.use_params(self.optimizer.averages):
            replace_directory(path, self.before_to_disk(self.nlp).to_disk)

    def _checkpoint_is_due(self, evaluated: bool) -> bool:
        if self.checkpoint_every is None:
            return evaluated
        return bool(self.checkpoint_every) and self.progress.steps % self.checkpoint_every == 0

    def _save_checkpoint(self, losses: dict[str, float]) -> None:
        assert self.output is not None
        output, progress = self.output, self.progress
        progress.losses = self.ranks.gather(losses)
        progress.random = RandomState.now()
        self._on_first(
            lambda: save_checkpoint(output, self.nlp, self.optimizer, self.frozen, progress),
            f"Saving a checkpoint under {output}",
        )
