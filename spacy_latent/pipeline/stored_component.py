"""What is saved of a component, and what stands in the config when it is loaded again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import srsly
from spacy import util
from spacy.errors import Errors

from spacy_latent.errors import LatentError
from spacy_latent.pipeline.batches import BatchedComponent

# What training finds out. All else in a component's cfg is a setting of its config.
CALIBRATION = "calibration"
LEARNT = ("labels", "label_sets", "positive_label", CALIBRATION)
# Where the saved cfg has settings that were changed in Python.
CHANGED = "changed"


class StoredComponent(BatchedComponent):
    """A component whose settings are those of the config that it is made from, also where weights
    are loaded that were saved with other settings: who edits ``config.cfg`` of a trained pipeline,
    or gives ``spacy.load`` a ``config``, gets what stands there. spaCy's own components take back
    what was saved. What was changed in ``cfg`` in Python is saved beside the labels, and counts."""

    cfg: dict[str, Any]
    _configured: dict[str, Any]

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        self._validate_serialization_attrs()
        serialize = {
            "cfg": lambda: srsly.json_dumps(self._saved()),
            "vocab": lambda: self.vocab.to_bytes(exclude=exclude),
            "model": self.model.to_bytes,
        }
        return util.to_bytes(serialize, exclude)

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        self._validate_serialization_attrs()
        serialize = {
            "cfg": lambda p: srsly.write_json(p, self._saved()),
            "vocab": lambda p: self.vocab.to_disk(p, exclude=exclude),
            "model": self.model.to_disk,
        }
        util.to_disk(path, serialize, exclude)

    def from_bytes(self, bytes_data: bytes, *, exclude: Iterable[str] = ()) -> StoredComponent:
        """Raises LatentError where the weights are not those of such a component."""
        with self._loading("these bytes"):
            return super().from_bytes(bytes_data, exclude=exclude)

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> StoredComponent:
        """Raises LatentError where the directory is not complete, or the weights are not those of
        such a component."""
        # Without its cfg a component would have no labels, and find nothing.
        for file in ("model", "cfg"):
            if not (Path(path) / file).exists() and file not in exclude:
                raise LatentError(
                    f"{self.name}: {path} has no file {file!r}, so the pipeline on disk is "
                    "incomplete. Copy or save the whole directory again."
                )
        with self._loading(str(path)):
            return super().from_disk(path, exclude=exclude)

    def keep_settings(self) -> None:
        """Remember what the config says; called at the end of a constructor."""
        self._configured = {key: copy(self.cfg[key]) for key in self.cfg if key not in LEARNT}

    def configure(self, key: str, value: Any) -> None:
        """Change a setting that the config is to have as well, where the caller writes it."""
        self.cfg[key] = self._configured[key] = value

    def take_label(self, label: str, of: str) -> bool:
        """Add a label to those of the component. of: what has such labels, in words. RETURNS:
        whether it was not known; then the model needs room for it."""
        if not isinstance(label, str):
            raise ValueError(Errors.E187)
        if not label:
            raise LatentError(f"{self.name}: a label of {of} must not be empty.")
        if label in self.labels:
            return False
        self.cfg["labels"].append(label)
        self.vocab.strings.add(label)
        return True

    def _learnt(self) -> dict[str, Any]:
        return {key: self.cfg[key] for key in LEARNT if key in self.cfg}

    def _saved(self) -> dict[str, Any]:
        given = self._configured
        changed = {key: self.cfg[key] for key in given if self.cfg[key] != given[key]}
        learnt = self._learnt()
        if learnt.get(CALIBRATION, "") is None:
            del learnt[CALIBRATION]
        return {**learnt, **({CHANGED: changed} if changed else {})}

    @contextmanager
    def _loading(self, source: str) -> Iterator[None]:
        before = dict(self.cfg)
        if CALIBRATION in self.cfg:
            # It is of the weights that were here.
            self.cfg[CALIBRATION] = None
        try:
            yield
        except (ValueError, KeyError, TypeError) as error:
            own, saved = before.get("labels", []), self.cfg.get("labels", [])
            self.cfg = before
            if own and len(own) != len(saved):
                raise LatentError(
                    f"{self.name}: what {source} holds was learnt for the labels "
                    f"{', '.join(saved)}, and this component has {', '.join(own)}. Load it into "
                    "one that was made from the config and not initialized yet."
                ) from error
            raise LatentError(
                f"{self.name}: the weights in {source} cannot be read ({error}). They were cut "
                "short, or saved with another config. Copy or save the whole directory again."
            ) from error
        try:
            self._check_saved(source)
            changed = {k: v for k, v in self.cfg.get(CHANGED, {}).items() if k in self._configured}
            learnt = self._learnt()
            self.cfg = {**before, **changed, **learnt}
            self.check_learnt()
        except LatentError:
            self.cfg = before
            raise

    def _check_saved(self, source: str) -> None:
        """Refuse a cfg that is JSON, and not what :meth:`_saved` writes."""
        wrong = ""
        labels, changed = self.cfg.get("labels", []), self.cfg.get(CHANGED, {})
        if not isinstance(labels, list) or any(not isinstance(name, str) for name in labels):
            wrong = f"labels {labels!r}; expected a list of names"
        elif not isinstance(changed, dict):
            wrong = f"{CHANGED} {changed!r}; expected settings by name"
        else:
            for key, value in changed.items():
                given = self._configured.get(key)
                if given is not None and value is not None and not _alike(given, value):
                    wrong = f"{key} {value!r}; expected something like {given!r}"
        if wrong:
            raise LatentError(
                f"{self.name}: cfg in {source} has the {wrong}. It was changed by hand or damaged. "
                "Copy or save the whole directory again."
            )

    def check_learnt(self) -> None:
        """Called when something was loaded. Raises LatentError for what training cannot have found
        out."""


def _alike(given: Any, value: Any) -> bool:
    numbers = (int, float)
    if isinstance(given, bool) or isinstance(value, bool):
        return type(given) is type(value)
    if isinstance(given, numbers):
        return isinstance(value, numbers)
    return isinstance(value, type(given))


__all__ = ["LEARNT", "StoredComponent"]
