"""Common code of components for initialization and training."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, ClassVar

from spacy.errors import Errors
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example, validate_examples, validate_get_examples
from thinc.api import Model, Optimizer

from spacy_latent.errors import LatentError, LatentWarning
from spacy_latent.models.listener import has_tensor, reads_tensor
from spacy_latent.pipeline.missing_upstreams import refuse_missing_upstreams
from spacy_latent.pipeline.stored_component import StoredComponent
from spacy_latent.pipeline.unreached_stages import refuse_unreached_stages

# Number of docs from which a model infers its widths.
SAMPLE = 10


def sample_of(examples: Iterable[Example]) -> list[Example]:
    """Return the first examples, with at least one that has tokens if any example has.

    Empty docs do not show the widths of listeners or the number of rows of some layers.
    """
    rest = iter(examples)
    found = list(islice(rest, SAMPLE))
    if not any(len(example.predicted) for example in found):
        found += islice((example for example in rest if len(example.predicted)), 1)
    return found


class TrainedComponent(StoredComponent):
    """Component that is saved with everything it has learnt, including its labels."""

    # Whether the component gives its model an output for each label.
    output_for_each_label: ClassVar[bool] = True

    # Number of outputs in the config of the model; None if the component may choose it.
    configured_outputs: int | None = None

    # Keys of the warnings that were given, see tell_once.
    _warned: set[str]
    # Whether the model had a listener to ``doc.tensor`` at the last check; None before the first.
    _listens: bool | None = None

    # ---------------------------------------------------------------- labels

    def names_given(self, labels: object, sets: bool = False) -> list[Any]:
        """Return the labels that were passed to initialize(), as a list.

        The argument may have any type. With a type annotation, spaCy's error for a wrong type would
        print the whole value. For labels of another component, such as the moves of ``ner``, this
        fills pages.

        Args:
            sets: whether lists of names may be among the labels.

        Raises:
            LatentError: if ``labels`` is not a list of names.
        """
        if isinstance(labels, Mapping):
            what = f"a mapping of {reprlib.repr(list(labels))}"
        elif isinstance(labels, str) or not isinstance(labels, Iterable):
            what = reprlib.repr(labels)
        else:
            given = list(labels)
            lists = (list, tuple) if sets else ()
            wrong = [
                one for one in given if not _are_names(one if isinstance(one, lists) else [one])
            ]
            if not wrong:
                return given
            what = f"a list with {reprlib.repr(wrong[0])} in it"
        expected = "a list of names, or of lists of these" if sets else "a list of names"
        raise LatentError(
            f"{self.name}: its labels, initialize.components.{self.name}.labels, are {what}; "
            f"expected {expected}. A file of labels is for one kind of component: run "
            "'spacy init labels' again with the new config."
        )

    def tell_once(self, what: str, text: str) -> None:
        """Warn once for each component, since a corpus could repeat the warning without end.

        Args:
            what: key of the warning.
        """
        warned = self.__dict__.setdefault("_warned", set())
        if what not in warned:
            warned.add(what)
            warnings.warn(
                f"{self.name}: {text} This warning is shown once.", LatentWarning, stacklevel=4
            )

    # ---------------------------------------------------------------- predict()

    def warn_without_vectors(self, docs: Iterable[Doc]) -> None:
        """Warn once of zeros from spaCy's listener, if the component it listens to did not run."""
        # Most components either have docs with vectors, or do not listen.
        if self._listens is False or all(has_tensor(doc) or not len(doc) for doc in docs):
            return
        # The model may have changed: nlp.replace_listeners puts an embedder in the place of a
        # listener.
        names = {node.upstream_name for node in self.model.walk() if reads_tensor(node)}
        self._listens = bool(names)
        if names:
            upstream = min(names)
            known = upstream if upstream != "*" else "tok2vec"
            self.tell_once(
                "no vectors",
                f"it listens to {upstream!r}, which did not run on these docs. So it reads "
                f"zeros, and its predictions are useless. Enable {known!r} too, before "
                f"{self.name!r}, and if this one is in training.annotating_components, list "
                f"{known!r} there too. For a pipeline without {known!r}, give this component a "
                "copy of its own: run 'spacy assemble' with a config whose block of "
                f"{self.name!r} has this pipeline as its source and replace_listeners = "
                '["model.tok2vec"].',
            )

    # ---------------------------------------------------------------- initialize()

    def check_initialize(
        self, get_examples: Callable[[], Iterable[Example]], nlp: Language | None
    ) -> None:
        """Check the arguments of initialize() and the pipeline.

        Raises:
            TypeError, ValueError: from spaCy, if the examples are invalid.
            LatentError: if the pipeline lacks a component that this one listens to, or if training
                ends before the last stage of the model.
        """
        validate_get_examples(get_examples, f"{type(self).__name__}.initialize")
        refuse_missing_upstreams(nlp)
        refuse_unreached_stages(self.name, self.model, nlp)

    def initialize_model(self, get_examples: Callable[[], Iterable[Example]]) -> None:
        """Initialise the model with the first docs, from which it infers its widths.

        Raises:
            AssertionError: if there are no docs, as in spaCy's components.
            LatentError: see :meth:`check_outputs`.
        """
        sample = [example.predicted for example in sample_of(get_examples())]
        assert sample, Errors.E923.format(name=self.name)
        self.model.initialize(X=[doc for doc in sample if len(doc)] or None)
        self.check_outputs()

    def check_outputs(self) -> None:
        """Compare the outputs of the initialized model with ``nO`` in its config.

        Raises:
            LatentError: if they differ. The pipeline could be trained and saved, and not be loaded.
        """
        given, needed = self.configured_outputs, self.model.maybe_get_dim("nO")
        if given is not None and given != needed:
            raise LatentError(
                f"{self.name}: model.nO is {given} in the config, and its labels need {needed}. "
                "Set model.nO to null, and the component sets it to the right number."
            )

    def check_new_label(self) -> None:
        """Refuse a further label of an initialized model if its config has the number of outputs.

        Raises:
            LatentError: if it has. The pipeline could be trained and saved, and not be loaded.
        """
        if self.configured_outputs is not None and _has_weights(self.model):
            raise LatentError(
                f"{self.name}: model.nO is {self.configured_outputs} in the config, so that its "
                "model has no output for a new label. Set model.nO to null in the config. If the "
                "pipeline is trained, change its config.cfg, and load it again."
            )

    # ---------------------------------------------------------------- update()

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optimizer | None = None,
        losses: dict[str, float] | None = None,
    ) -> dict[str, float]:
        """Learn from a batch.

        Returns:
            The losses. The docstring of the class says what the loss of its components is.

        Raises:
            ValueError: from spaCy, if the component was not initialized.
        """
        losses = {} if losses is None else losses
        losses.setdefault(self.name, 0.0)
        examples = list(examples)
        validate_examples(examples, f"{type(self).__name__}.update")
        try:
            self._learn(examples, drop, sgd, losses)
        except KeyError as error:
            # As nlp() does for predict. Thinc names a parameter without a value.
            if _has_weights(self.model):
                raise
            raise ValueError(Errors.E109.format(name=self.name)) from error
        return losses

    def _learn(
        self, examples: list[Example], drop: float, sgd: Optimizer | None, losses: dict[str, float]
    ) -> None:
        """Learn from a batch, and add its loss to ``losses``."""
        raise NotImplementedError


def _has_weights(model: Model) -> bool:
    """Return whether all parameters have values; has_param is None for those without."""
    return all(node.has_param(name) for node in model.walk() for name in node.param_names)


def _are_names(labels: Iterable[object]) -> bool:
    return all(isinstance(label, str) for label in labels)
