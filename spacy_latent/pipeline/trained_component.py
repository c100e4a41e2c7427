"""Common code of components for initialization and training."""

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
from spacy_latent.models.listener import reads_tensor
from spacy_latent.models.token_vectors import token_vectors
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

    # Keys of the warnings that were given, see tell_once.
    _warned: set[str]
    # Whether the model had a listener to ``doc.tensor`` at the last look; None before the first.
    _listens: bool | None = None

    # ---------------------------------------------------------------- labels

    def take_label(self, label: str, of: str) -> bool:
        """Add a label to the labels of the component.

        Args:
            of: plural noun for the labelled spans or texts, for messages.

        Returns:
            Whether the label was new. If so, the model has to be resized.
        """
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
        """Return the labels that were passed to initialize(), as a list.

        The argument may be anything. If it does not match a type annotation, spaCy's own message
        prints the whole value. A file of labels of another component, such as the moves of ``ner``,
        would fill pages.

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
        """Warn in initialize() that the training data teach nothing.

        In training itself, only a loss of 0 would show it.

        Args:
            of: name of the annotation that is missing in the data.
            consequence: result of this for the component.
            needed: annotation that the texts need.
            given: whether an empty list of labels was given.
        """
        block = f"initialize.components.{self.name}.labels"
        message = (
            f"no {of} in the training data, so it has {consequence}. Texts need {needed}; or give "
            f"the labels, under {block}."
        )
        if given:
            message = (
                f"the labels given, under {block}, are an empty list, so it has {consequence}, "
                "whatever texts have. Name labels there, or take the list out, so that they are "
                f"those of the texts, which need {needed}."
            )
        warnings.warn(f"{self.name}: {message}", LatentWarning, stacklevel=3)

    def tell_once(self, what: str, text: str) -> None:
        """Warn once for each component, since a corpus could repeat the warning without end.

        Args:
            what: key of the warning.
        """
        warned = self.__dict__.setdefault("_warned", set())
        if what not in warned:
            warned.add(what)
            warnings.warn(f"{self.name}: {text} This is said once.", LatentWarning, stacklevel=4)

    # ---------------------------------------------------------------- predict()

    def warn_without_vectors(self, docs: Iterable[Doc]) -> None:
        """Warn once if the component that this one listens to did not run.

        spaCy's listener then returns zeros.
        """
        # Most components either listen, to docs with vectors, or do not listen.
        if self._listens is False or all(doc.tensor.size or not len(doc) for doc in docs):
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
                f"it listens to {upstream!r}, which did not run on these docs, so that it reads "
                f"zeros and its predictions are of no use. Enable {known!r} too, before "
                f"{self.name!r}, and if this one is in training.annotating_components, list "
                f"{known!r} there too. Or, before it is left out, give this component a copy of "
                f"its own: nlp.replace_listeners({known!r}, {self.name!r}, ['model.tok2vec']).",
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
        """
        sample = [example.predicted for example in sample_of(get_examples())]
        assert sample, Errors.E923.format(name=self.name)
        self.model.initialize(X=[doc for doc in sample if len(doc)] or None)

    def refuse_uninitialized(self, node: Model, param: str) -> None:
        """Raise spaCy's error for a component without labels that was never initialized.

        It would find nothing. With labels, the model itself raises spaCy's error.

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
        """Run one training step of a component with labels, and add its loss to ``losses``.

        Args:
            loss_of: function of the examples, of which some are not empty, and of the output of the
                model. It returns the loss and its gradient for the output.
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
        loss, gradient = loss_of(examples, found)
        backprop(gradient)
        count_as_trained(self.model)
        if sgd is not None:
            self.finish_update(sgd)
        losses[self.name] += loss

    def forget_calibration(self) -> None:
        """Drop the calibration with a warning, since it belongs to the weights before training."""
        if self.cfg["calibration"] is None:
            return
        self.cfg["calibration"] = None
        warnings.warn(
            f"{self.name}: its calibration is of the weights before this training, and is left "
            "out. Run 'spacy latent calibrate' again when it is trained.",
            LatentWarning,
            stacklevel=4,
        )

    def _answer_upstream(self, docs: list[Doc]) -> None:
        """Send a gradient of zero to a shared embedder.

        The embedder waits for the last of its listeners. Without this gradient it would not learn
        from the others.
        """
        arrays, backprop = token_vectors(self.model.get_ref("tok2vec"), docs, is_train=True)
        backprop([array * 0 for array in arrays])


def _is_name(label: object) -> bool:
    return isinstance(label, str)


def _are_names(labels: object) -> bool:
    return isinstance(labels, (list, tuple)) and all(map(_is_name, labels))
