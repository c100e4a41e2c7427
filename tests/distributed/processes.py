"""``python -m tests.distributed.processes JOBS``: trainings on real processes.

The modules of the trainings are imported once, and each rank is a fork of this process. JOBS is a
JSON file with a list of groups of processes, which run one after another. Each group has a list of
runs, one after another in the same processes. The results of each rank are in a file whose name
begins with JOBS.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from spacy.lang.en import English
from spacy.lang.tokenizer_exceptions import BASE_EXCEPTIONS
from spacy.language import Language
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as spacy_train
from spacy.util import load_config

from spacy_latent.distributed import checkpoint, directories, train
from spacy_latent.distributed.rank_view import RankView
from spacy_latent.distributed.trained_arrays import checksum, models_of, shims_of, weights_of

# Remove the exceptions for contractions, as in tests/conftest.py. They take 50 ms in each pipeline.
English.Defaults.tokenizer_exceptions = BASE_EXCEPTIONS

# The time limit of a group in seconds. Three ranks took 6 s of CPU time, and 103 s of wall time on
# two cores under a load of ten. Without cached machine code, each rank also compiles the kernels.
PATIENCE = 900


def main(path: Path) -> None:
    for number, group in enumerate(json.loads(path.read_text())):
        if group["world"] == 1:
            # A single process is no fork, so that later forks have its loaded modules.
            _be_rank(path, number, group, 0)
            continue
        ranks = []
        for rank in range(group["world"]):
            child = os.fork()
            if not child:
                _be_rank(path, number, group, rank)
                os._exit(0)
            ranks.append(child)
        end = time.monotonic() + PATIENCE
        codes: dict[int, int] = {}
        while len(codes) < len(ranks):
            for child in ranks:
                if child not in codes and os.waitpid(child, os.WNOHANG)[0]:
                    codes[child] = 0
            lasting = set(ranks) - set(codes)
            # As torchrun does, kill the rank that hangs on purpose when all others have ended.
            hanging = group.get("hangs") is not None and len(lasting) == 1
            if hanging or time.monotonic() > end:
                for child in lasting:
                    os.kill(child, signal.SIGKILL)
            time.sleep(0.01)


def _be_rank(path: Path, number: int, group: dict[str, Any], rank: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results = []
    try:
        if group["world"] > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{path}.{number}.meeting",
                rank=rank,
                world_size=group["world"],
                timeout=timedelta(seconds=group.get("timeout", PATIENCE)),
            )
        for run in group["runs"]:
            results.append(_train(run, rank))
    except BaseException:
        results += [{"error": traceback.format_exc()}] * (len(group["runs"]) - len(results))
    Path(f"{path}.{number}.{rank}.json").write_text(json.dumps(results, default=float))


def _train(run: dict[str, Any], rank: int) -> dict[str, Any]:
    fault = run.get("fault")
    changed = _cause(fault, rank) if fault else None
    shown = io.StringIO()
    if run.get("program") == "spacy":
        _train_with_spacy(run)
        return {"error": None}
    started = time.process_time()
    try:
        nlp, _ = train.train(
            run["config"],
            run.get("output"),
            overrides=run.get("overrides"),
            resume=run.get("resume", False),
            checkpoint_every=run.get("checkpoint_every", 0),
            stdout=shown,
            stderr=shown,
        )
    except Exception as error:
        return {"error": str(error), "kind": type(error).__name__, "shown": shown.getvalue()}
    finally:
        if changed is not None:
            changed()
    models = models_of(nlp, run.get("frozen", []))
    if run.get("weights"):
        np.savez(
            f"{run['weights']}.{rank}.npz",
            **{str(i): w.values.numpy() for i, w in enumerate(weights_of(models))},
        )
    shims = [shim for _, model in models for shim in shims_of(model) if hasattr(shim, "updates")]
    return {
        "error": None,
        "checksum": checksum(nlp, []),
        "performance": nlp.meta["performance"],
        "updates": [shim.updates for shim in shims],
        "seconds": time.process_time() - started,
        "shown": shown.getvalue(),
    }


def _train_with_spacy(run: dict[str, Any]) -> None:
    """Train a run as ``spacy train`` does."""
    nlp = init_nlp(load_config(run["config"], interpolate=False))
    shown = io.StringIO()
    Path(run["output"]).mkdir()
    spacy_train(nlp, Path(run["output"]), stdout=shown, stderr=shown)


def _cause(fault: dict[str, Any], rank: int) -> Callable[[], None] | None:
    """Have a rank fail, and return a function that undoes the cause, or None for other ranks."""
    if fault["rank"] != rank:
        return None
    kind = fault["kind"]
    if kind == "saving":
        return _replaced(checkpoint.np, "savez", _at_second_call(checkpoint.np.savez, _kill))
    if kind == "full disk":
        return _replaced(checkpoint.np, "savez", _no_space)
    if kind == "full disk of the model":
        return _replaced(Language, "to_disk", _at_call(3, Language.to_disk, _no_space))
    if kind == "file too large":
        return _small_files()
    if kind == "saving model":
        # The model of step 0 and a checkpoint are saved before the third call.
        return _replaced(Language, "to_disk", _at_call(3, Language.to_disk, _kill))
    if kind == "between renames":
        # The fifth rename is of model-last at step 3, after the model of step 0 was moved away.
        return _replaced(directories.os, "replace", _at_call(5, os.replace, _kill))
    if kind == "evaluating":
        return _replaced(Language, "evaluate", _at_second_call(Language.evaluate, _kill))
    update = RankView.update

    def fail(self: RankView, examples: Any, **options: Any) -> Any:
        if self.step != fault["step"] or self.idle:
            return update(self, examples, **options)
        if kind == "killed":
            _kill()
        if kind == "hangs":
            time.sleep(1000)
        if kind == "not finite":
            name = fault["component"]
            found = weights_of([(name, self.nlp.get_pipe(name).model)])
            result = update(self, examples, **options)
            own = next(w.gradient for w in found if w.gradient is not None)
            own.view(-1)[0] = float("nan")
            return result
        if kind == "other labels":
            result = update(self, examples, **options)
            # A label that only this rank has seen changes the shape of the output layer.
            tagger = self.nlp.get_pipe(fault["component"])
            tagger.model.get_ref("output_layer").set_param("b", np.zeros(3, dtype="f"))
            return result
        if kind == "other batches":
            self.begin(self.step, examples[::-1])
        if kind == "raises":
            self.nlp.get_pipe(fault["component"]).update = _no_space
        return update(self, examples, **options)

    return _replaced(RankView, "update", fail)


def _at_second_call(before: Callable[..., Any], then: Callable[..., Any]) -> Callable[..., Any]:
    return _at_call(2, before, then)


def _at_call(
    number: int, before: Callable[..., Any], then: Callable[..., Any]
) -> Callable[..., Any]:
    calls: list[int] = []

    def called(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return (before if len(calls) < number else then)(*arguments, **options)

    return called


def _small_files() -> Callable[[], None]:
    """Limit files to 30 kB, as if the disk were full, and return a function that undoes it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _replaced(owner: Any, name: str, value: Any) -> Callable[[], None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before)


def _kill(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _no_space(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
