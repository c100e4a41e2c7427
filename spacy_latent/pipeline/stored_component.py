"""Saving and loading of components. Settings in the config take precedence over saved ones."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import srsly
from spacy import util

from spacy_latent.errors import LatentError
from spacy_latent.pipeline.batches import BatchedComponent

# Keys of learnt values in a component's cfg. All other keys are settings in its config.
CALIBRATION = "calibration"
LEARNT = ("labels", "label_sets", "positive_label", CALIBRATION)
# Key of the saved cfg for settings that were changed in Python.
CHANGED = "changed"
# Key for the digest of the file of weights. Without it a changed bit of a float would go unnoticed.
DIGEST = "sha256_of_model"


class DamagedFile(LatentError):
    """Error for a file of a saved component that has changed since it was written."""


@contextmanager
def changed(cfg: dict[str, Any], **settings: Any) -> Iterator[None]:
    """Change settings of a component in a ``with`` block, and restore ``cfg`` at its end."""
    before = dict(cfg)
    cfg.update(settings)
    try:
        yield
    finally:
        cfg.update(before)


class StoredComponent(BatchedComponent):
    """Base class of components whose settings come from the config, not from the saved component.

    If a user changes ``config.cfg`` of a trained pipeline, or passes a ``config`` to
    ``spacy.load``, the component uses these values. spaCy's own components restore the saved
    values. Changes of ``cfg`` in Python are saved with the labels, and take precedence.
    """

    cfg: dict[str, Any]
    _configured: dict[str, Any]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, but refuse the name of a setting, since it would have no effect.

        Raises:
            LatentError: if the name is a key of ``cfg``.
        """
        if name in self.__dict__.get("_configured", ()) and not hasattr(type(self), name):
            raise LatentError(
                f"{self.name}: {name!r} is a setting, not an attribute. Change it in cfg: "
                f"nlp.get_pipe({self.name!r}).cfg[{name!r}] = {value!r}."
            )
        super().__setattr__(name, value)

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        self._validate_serialization_attrs()
        exclude = list(exclude)
        model = None if "model" in exclude else self.model.to_bytes()
        serialize = {
            "cfg": lambda: srsly.json_dumps(self._saved(model)),
            "vocab": lambda: self.vocab.to_bytes(exclude=exclude),
            "model": lambda: model,
        }
        return util.to_bytes(serialize, exclude)

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        self._validate_serialization_attrs()
        exclude = list(exclude)
        model = None if "model" in exclude else self.model.to_bytes()
        serialize: dict[str, Callable] = {
            "cfg": lambda p: srsly.write_json(p, self._saved(model)),
            "vocab": lambda p: self.vocab.to_disk(p, exclude=exclude),
            "model": lambda p: p.write_bytes(model),
        }
        util.to_disk(path, serialize, exclude)

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> StoredComponent:
        """Load the component from bytes.

        Raises:
            LatentError: if the weights belong to another component, or are damaged.
        """
        exclude = list(exclude)
        with self._loading("these bytes") as (read_cfg, read_model):
            deserialize: dict[str, Callable] = {
                "cfg": read_cfg,
                "vocab": lambda b: self.vocab.from_bytes(b, exclude=exclude),
                "model": read_model,
            }
            util.from_bytes(bytes_data, deserialize, exclude)
        return self

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> StoredComponent:
        """Load the component from a directory.

        Raises:
            LatentError: if the directory is incomplete, or if the weights belong to another
                component or are damaged.
        """
        exclude = list(exclude)
        # Without its cfg a component would have no labels, and find nothing.
        for file in ("model", "cfg"):
            if not (Path(path) / file).exists() and file not in exclude:
                raise LatentError(
                    f"{self.name}: {path} has no file {file!r}, so the pipeline on disk is "
                    "incomplete. Copy or save the whole directory again."
                )
        with self._loading(str(path)) as (read_cfg, read_model):
            deserialize: dict[str, Callable] = {
                "cfg": lambda p: read_cfg(p.read_bytes()),
                "vocab": lambda p: self.vocab.from_disk(p, exclude=exclude),
                "model": lambda p: read_model(p.read_bytes()),
            }
            util.from_disk(path, deserialize, exclude)
        return self

    def keep_settings(self) -> None:
        """Check the settings of the config and keep a copy; called at the end of a constructor."""
        self.check_settings()
        self._configured = {key: copy(self.cfg[key]) for key in self.cfg if key not in LEARNT}

    def configure(self, key: str, value: Any) -> None:
        """Change a setting that the caller also writes to the config."""
        self.cfg[key] = self._configured[key] = value

    def _learnt(self) -> dict[str, Any]:
        return {key: self.cfg[key] for key in LEARNT if key in self.cfg}

    def _saved(self, model: bytes | None) -> dict[str, Any]:
        given = self._configured
        changed = {key: self.cfg[key] for key in given if self.cfg[key] != given[key]}
        saved = self._learnt()
        if saved.get(CALIBRATION, "") is None:
            del saved[CALIBRATION]
        if changed:
            saved[CHANGED] = changed
        # Changes in Python have not been checked yet.
        advice = "It was changed in Python, in the component's cfg: correct it there."
        wrong = self._wrong_in(saved)
        if wrong:
            raise LatentError(f"{self.name}: its cfg has {wrong}. {advice}")
        try:
            self.check_settings()
        except LatentError as error:
            raise LatentError(f"{error} {advice}") from error
        if model is not None:
            saved[DIGEST] = hashlib.sha256(model).hexdigest()
        return saved

    @contextmanager
    def _loading(self, source: str) -> Iterator[tuple[Callable, Callable]]:
        """Provide the readers of the cfg and of the weights, in this order.

        If one of them fails, the component keeps its previous settings.
        """
        before = dict(self.cfg)
        saved: dict[str, Any] = {}
        if CALIBRATION in self.cfg:
            # The calibration belongs to the previous weights.
            self.cfg[CALIBRATION] = None

        def read_cfg(data: bytes | str) -> None:
            saved.update(self._read_saved(data, source))
            self.cfg.update(saved)

        def read_model(data: bytes) -> None:
            digest = saved.get(DIGEST)
            if digest is not None and hashlib.sha256(data).hexdigest() != digest:
                raise DamagedFile(
                    f"{self.name}: the weights in {source}, file 'model', are not those that were "
                    "saved with its file 'cfg'. One of the two was cut short, damaged or replaced. "
                    "Copy or save the whole directory again. If you replaced it on purpose, "
                    f"remove {DIGEST} from 'cfg'."
                )
            self.model.from_bytes(data)

        try:
            yield read_cfg, read_model
            changed = {k: v for k, v in saved.get(CHANGED, {}).items() if k in self._configured}
            learnt = self._learnt()
            self.cfg = {**before, **changed, **learnt}
            try:
                self.check_settings()
                self.check_learnt()
            except LatentError as error:
                raise DamagedFile(f"{error} This is in {source}, file 'cfg'.") from error
        except DamagedFile:
            self.cfg = before
            raise
        except Exception as error:
            self.cfg = before
            own, given = before.get("labels", []), saved.get("labels")
            # If the cfg was not read, for example from truncated bytes, there are no labels.
            if own and given is not None and len(own) != len(given):
                raise LatentError(
                    f"{self.name}: the weights in {source} are for the labels {', '.join(given)}, "
                    f"and this component has {', '.join(own)}. Load them into a new component "
                    "that was made from the config and is not initialized."
                ) from error
            raise LatentError(
                f"{self.name}: the weights in {source} cannot be read ({error}). They were cut "
                "short, or saved with another config. Copy or save the whole directory again."
            ) from error
        finally:
            # srsly disables the garbage collector while it reads. After an error it stays disabled.
            gc.enable()
            self._after_loading()

    def _read_saved(self, data: bytes | str, source: str) -> dict[str, Any]:
        """Read the output of :meth:`_saved`, and raise DamagedFile for other data."""
        try:
            saved = srsly.json_loads(data.decode("utf-8") if isinstance(data, bytes) else data)
            wrong = self._wrong_in(saved)
        except ValueError as error:
            saved, wrong = {}, f"no JSON ({error})"
        if wrong:
            raise DamagedFile(
                f"{self.name}: file 'cfg' in {source} has {wrong}. It was changed by hand or "
                "damaged. Copy or save the whole directory again."
            )
        return saved

    def _wrong_in(self, saved: Any) -> str:
        """Describe a value that :meth:`_saved` cannot have written; empty if there is none."""
        if not isinstance(saved, dict):
            return f"{type(saved).__name__!r}; expected values by name"
        labels, changed = saved.get("labels", []), saved.get(CHANGED, {})
        if not isinstance(labels, list) or any(not isinstance(name, str) for name in labels):
            return f"the labels {labels!r}; expected a list of names"
        sets, positive = saved.get("label_sets", []), saved.get("positive_label")
        if not isinstance(sets, list) or not all(
            isinstance(known, list) and known and all(name in labels for name in known)
            for known in sets
        ):
            return f"the label_sets {sets!r}; expected lists of some of the labels {labels!r}"
        if positive is not None and positive not in labels:
            return f"the positive_label {positive!r}; expected one of the labels {labels!r}"
        if not isinstance(changed, dict):
            return f"the {CHANGED} {changed!r}; expected settings by name"
        for key, value in changed.items():
            given = self._configured.get(key)
            if given is not None and value is not None and not _alike(given, value):
                return f"the {key} {value!r}; expected something like {given!r}"
        return ""

    def _after_loading(self) -> None:
        """Adapt other parts of the component to the loaded values; called after a failure, too."""

    def check_settings(self) -> None:
        """Check the settings when the component is made, saved and loaded.

        Raises:
            LatentError: if a setting in ``cfg`` is invalid.
        """

    def check_learnt(self) -> None:
        """Check learnt values after loading.

        Raises:
            LatentError: if training cannot have produced a value.
        """


def _alike(given: Any, value: Any) -> bool:
    numbers = (int, float)
    if isinstance(given, bool) or isinstance(value, bool):
        return type(given) is type(value)
    if isinstance(given, numbers):
        return isinstance(value, numbers)
    return isinstance(value, type(given))
