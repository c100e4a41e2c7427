"""What components have in common when they are initialized and when they learn."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from spacy.errors import Errors
from spacy.language import Language
from spacy.training import Example, validate_get_examples
from thinc.api import Optimizer, set_dropout_rate

from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.pipeline.missing_upstreams import refuse_missing_upstreams
from spacy_latent.pipeline.stored_component import StoredComponent
from spacy_latent.pipeline.unreached_stages import refuse_unreached_stages

# How many docs tell the widths of a model.
SAMPLE = 10


class TrainedComponent(StoredComponent):
    """A component that is saved with what it has learnt, labels among it where it has some."""

    # ---------------------------------------------------------------- labels

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

    def names_given(self, labels: object, sets: bool = False) -> list[Any]:
        """The labels that initialize() was given, as a list. It takes anything, since spaCy answers
        what its signature does not with all of it: a file of another component's labels, such as
        the moves of ``ner``, fills pages. Raises LatentError for what is no list of names.

        sets: whether lists of names may be among them.
        """
        if isinstance(labels, Mapping):
            what = f"a mapping of {reprlib.repr(list(labels))}"
        elif isinstance(labels, str) or not isinstance(labels, Iterable):
            what = reprlib.repr(labels)
        else:
            given = list(labels)
            wrong = [one for one in given if not (_is_name(one) or (sets and _are_names(one)))]
            if not wrong:
                return given
            what = f"a list with {reprlib.repr(wrong[0])} in it"
        expected = "a list of names, or of lists of these" if sets else "a list of names"
        raise LatentError(
            f"{self.name}: its labels, initialize.components.{self.name}.labels, are {what}; "
            f"expected {expected}. A file of 'spacy init labels' is of one kind of component, and "
            "this one may be of another, as of spaCy's own: run 'spacy init labels' again with the "
            "new config."
        )

    def warn_without_labels(self, of: str, consequence: str, needed: str) -> None:
        """Say in initialize() that the training data teach nothing, which training itself does not
        show but by a loss of 0. of: what is missing there. consequence: what comes of it. needed:
        what texts are expected to have."""
        warnings.warn(
            f"{self.name}: no {of} in the training data, so it has {consequence}. Texts need "
            f"{needed}; or give the labels, under initialize.components.{self.name}.labels.",
            LatentWarning,
            stacklevel=3,
        )

    # ---------------------------------------------------------------- initialize()

    def check_initialize(
        self, get_examples: Callable[[], Iterable[Example]], nlp: Language | None
    ) -> None:
        """What initialize() does first. Raises spaCy's error for examples that are none, and
        LatentError where the pipeline lacks what a component listens to, or its training ends
        before the last stage of the model."""
        validate_get_examples(get_examples, f"{type(self).__name__}.initialize")
        refuse_missing_upstreams(nlp)
        refuse_unreached_stages(self.name, self.model, nlp)

    def initialize_model(self, get_examples: Callable[[], Iterable[Example]]) -> None:
        """With the first docs, which tell it its widths. Raises AssertionError, as spaCy's
        components do, where there are none."""
        sample = [example.predicted for example in islice(get_examples(), SAMPLE)]
        assert sample, Errors.E923.format(name=self.name)
        self.model.initialize(X=[doc for doc in sample if len(doc)] or None)

    # ---------------------------------------------------------------- update()

    def _learn(
        self,
        examples: Sequence[Example],
        measure: Callable[[Sequence[Example], Any], tuple[float, Any]],
        drop: float,
        sgd: Optimizer | None,
        losses: dict[str, float],
    ) -> None:
        """One step of a component with labels, whose loss is added to ``losses``.

        measure: from the examples that are not empty, and what the model gives for them, to the
            loss and its gradient for that.
        """
        losses.setdefault(self.name, 0.0)
        examples = [example for example in examples if len(example.predicted)]
        if not examples or not self.labels:
            return
        set_dropout_rate(self.model, drop)
        found, backprop = self.model.begin_update([example.predicted for example in examples])
        loss, gradient = measure(examples, found)
        backprop(gradient)
        if sgd is not None:
            self.finish_update(sgd)
        losses[self.name] += loss


def _is_name(label: object) -> bool:
    return isinstance(label, str)


def _are_names(labels: object) -> bool:
    return isinstance(labels, (list, tuple)) and all(map(_is_name, labels))


__all__ = ["TrainedComponent"]
