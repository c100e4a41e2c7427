"""Common code of components that learn labels from annotation, and store a calibration."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from spacy.errors import Errors
from spacy.tokens import Doc
from spacy.training import Example
from spacy.vocab import Vocab
from thinc.api import Model, Optimizer, set_dropout_rate

from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.models.token_vectors import token_vectors
from spacy_latent.pipeline.learnt_calibration import CalibratedComponent, Map
from spacy_latent.pipeline.trained_component import TrainedComponent


class LabelledComponent(CalibratedComponent[Map], TrainedComponent):
    """Component that learns labels from annotation."""

    # Plural noun for the things that the labels belong to, for messages.
    _labelled: ClassVar[str]

    def __init__(
        self, vocab: Vocab, model: Model, name: str, scorer: Callable | None, **settings: Any
    ) -> None:
        self.vocab = vocab
        self.model = model
        self.name = name
        self.scorer = scorer
        self._warned: set[str] = set()
        self.cfg: dict[str, Any] = {"labels": [], **settings, "calibration": None}
        self.keep_settings()

    # ---------------------------------------------------------------- labels

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels in the order in which they were added."""
        return tuple(self.cfg["labels"])

    @property
    def label_data(self) -> Sequence[str | list[str]]:
        return list(self.cfg["labels"])

    @property
    def _calibrated_labels(self) -> tuple[str, ...]:
        return self.labels

    def add_label(self, label: str) -> int:
        """Add a label.

        Predictions do not change until the component is trained again.

        Returns:
            1, or 0 if the label is known.
        """
        if not self._take_label(label):
            return 0
        self._resize()
        return 1

    def _take_label(self, label: str) -> bool:
        """Add a label to ``cfg``, but not to the model, and return whether it was new."""
        if not isinstance(label, str):
            raise ValueError(Errors.E187)
        if not label:
            raise LatentError(f"{self.name}: a label of {self._labelled} must not be empty.")
        if label in self.labels:
            return False
        self.check_new_label()
        self.cfg["labels"].append(label)
        self.vocab.strings.add(label)
        return True

    def _resize(self) -> None:
        """Give the model an output for each label."""
        raise NotImplementedError

    # ---------------------------------------------------------------- initialize() and predict()

    def warn_without_labels(self, of: str, consequence: str, needed: str, given: bool) -> None:
        """Warn in initialize() that the training data have no annotation to learn from.

        Args:
            of, needed: annotation that is missing, and a description of how to give it.
            consequence: result of this for the component.
            given: whether an empty list of labels was given.
        """
        block = f"initialize.components.{self.name}.labels"
        reason = f"no {of} in the training data"
        advice = f"Texts need {needed}; or give the labels, under {block}."
        if given:
            reason = f"{block} is an empty list"
            advice = f"Name labels there, or remove the list: then texts need {needed}."
        warnings.warn(
            f"{self.name}: {reason}, so it has {consequence}. {advice}",
            LatentWarning,
            stacklevel=3,
        )

    def refuse_uninitialized(self, node: Model, param: str) -> None:
        """Raise spaCy's error for a component without labels that was never initialized.

        Such a component would find nothing. With labels, the model itself raises spaCy's error.

        Args:
            node: layer of the model that has weights of its own after initialize().
        """
        if not node.has_param(param):
            raise ValueError(Errors.E109.format(name=self.name))

    # ---------------------------------------------------------------- update()

    def _training_step(
        self,
        examples: Sequence[Example],
        loss_of: Callable[[Sequence[Example], Any], tuple[float, Any]],
        drop: float,
        sgd: Optimizer | None,
        losses: dict[str, float],
    ) -> None:
        """Run one training step, and add its loss to ``losses``.

        Args:
            loss_of: function of the examples and of the output of the model for them. It returns
                the loss and its gradient for the output.
        """
        from spacy_latent.models.added_labels import count_as_trained

        if not any(len(example.predicted) for example in examples):
            return
        docs = [example.predicted for example in examples]
        set_dropout_rate(self.model, drop)
        if not self.labels:
            self._answer_upstream(docs)
            return
        found, backprop = self.model.begin_update(docs)
        loss, gradient = loss_of(examples, found)
        backprop(gradient)
        count_as_trained(self.model)
        if sgd is not None:
            self.finish_update(sgd)
        losses[self.name] += loss
        # Only after the step, since a refused batch changes no weights.
        self.forget_calibration(stacklevel=5)

    def _answer_upstream(self, docs: list[Doc]) -> None:
        """Send a gradient of zero to a shared embedder, which waits for its last listener."""
        arrays, backprop = token_vectors(self.model.get_ref("tok2vec"), docs, is_train=True)
        backprop([array * 0 for array in arrays])
