"""What components have in common when they are initialized and when they learn."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from spacy.errors import Errors
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example, validate_get_examples
from thinc.api import Model, Optimizer, set_dropout_rate

from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.models.token_vectors import token_vectors
from spacy_latent.pipeline.missing_upstreams import refuse_missing_upstreams
from spacy_latent.pipeline.stored_component import StoredComponent
from spacy_latent.pipeline.unreached_stages import refuse_unreached_stages

# How many docs tell the widths of a model.
SAMPLE = 10


def sample_of(examples: Iterable[Example]) -> list[Example]:
    """The first ones, of which some have tokens if any have: the widths of listeners, and the rows
    that some layers have, are not known from empty docs."""
    rest = iter(examples)
    found = list(islice(rest, SAMPLE))
    if not any(len(example.predicted) for example in found):
        found += islice((example for example in rest if len(example.predicted)), 1)
    return found


class TrainedComponent(StoredComponent):
    """A component that is saved with what it has learnt, labels among it where it has some."""

    # What was told, see tell_once; of components that have something to tell.
    _told: set[str]

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

    def warn_without_labels(self, of: str, consequence: str, needed: str, given: bool) -> None:
        """Say in initialize() that the training data teach nothing, which training itself does not
        show but by a loss of 0. of: what is missing there. consequence: what comes of it. needed:
        what texts are expected to have. given: that labels were given, and there are none."""
        block = f"initialize.components.{self.name}.labels"
        told = (
            f"no {of} in the training data, so it has {consequence}. Texts need {needed}; or give "
            f"the labels, under {block}."
        )
        if given:
            told = (
                f"the labels given, under {block}, are an empty list, so it has {consequence}, "
                "whatever texts have. Name labels there, or take the list out, so that they are "
                f"those of the texts, which need {needed}."
            )
        warnings.warn(f"{self.name}: {told}", LatentWarning, stacklevel=3)

    def tell_once(self, what: str, text: str) -> None:
        """Warn, once for each component, or a corpus would fill the screen. what: names the
        warning."""
        if what not in self._told:
            self._told.add(what)
            warnings.warn(f"{self.name}: {text} This is said once.", LatentWarning, stacklevel=4)

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
        sample = [example.predicted for example in sample_of(get_examples())]
        assert sample, Errors.E923.format(name=self.name)
        self.model.initialize(X=[doc for doc in sample if len(doc)] or None)

    def refuse_uninitialized(self, node: Model, param: str) -> None:
        """Raise spaCy's error for a component that was never initialized, where it has no labels
        and would find nothing. With labels its model raises what spaCy tells this by.

        node, param: of the model, with weights of its own from initialize() on.
        """
        if not node.has_param(param):
            raise ValueError(Errors.E109.format(name=self.name))

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

        measure: from the examples, of which some are not empty, and what the model gives for them,
            to the loss and its gradient for that.
        """
        from spacy_latent.models.added_labels import count_as_trained

        losses.setdefault(self.name, 0.0)
        if not any(len(example.predicted) for example in examples):
            return
        docs = [example.predicted for example in examples]
        set_dropout_rate(self.model, drop)
        if not self.labels:
            self._answer_upstream(docs)
            return
        found, backprop = self.model.begin_update(docs)
        loss, gradient = measure(examples, found)
        backprop(gradient)
        count_as_trained(self.model)
        if sgd is not None:
            self.finish_update(sgd)
        losses[self.name] += loss

    def _answer_upstream(self, docs: list[Doc]) -> None:
        """Give a shared embedder a gradient of zero: it waits for the last of its listeners, and
        without an answer it would learn nothing from the others."""
        arrays, backprop = token_vectors(self.model.get_ref("tok2vec"), docs, is_train=True)
        backprop([array * 0 for array in arrays])


def _is_name(label: object) -> bool:
    return isinstance(label, str)


def _are_names(labels: object) -> bool:
    return isinstance(labels, (list, tuple)) and all(map(_is_name, labels))


__all__ = ["TrainedComponent"]
