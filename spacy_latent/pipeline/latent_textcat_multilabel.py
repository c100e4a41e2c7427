"""The component ``latent_textcat_multilabel``: any number of labels for each doc, or numbers."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
from spacy.errors import Errors
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.vocab import Vocab
from thinc.api import Model
from thinc.types import Floats2d

from spacy_latent.errors import LatentError
from spacy_latent.pipeline.factories import default_config, factory_of
from spacy_latent.pipeline.latent_textcat import (
    DEFAULT_CONFIG,
    SCORE_WEIGHTS,
    LatentTextCategorizer,
    is_finite_or_boolean,
    quoted,
)
from spacy_latent.pipeline.scores_given import warn_not_given
from spacy_latent.pipeline.scores_of_range import warn_judged_as_labels
from spacy_latent.pipeline.trained_component import sample_of

if TYPE_CHECKING:
    from torch import Tensor

    from spacy_latent.models.category_constraints import CategoryConstraints, LabelField


class MultiLabelLatentTextCategorizer(LatentTextCategorizer):
    """Text classifier like ``textcat_multilabel``, any number of labels, over latent structures.

    The loss that is reported in training is the same as for :class:`LatentTextCategorizer`, except
    with a score_range.

    Args:
        score_range: None, or the lowest and the highest score for regression. Then ``doc.cats``
            holds numbers in this range, and the loss is half the squared error of the score scaled
            to [0, 1]. The scorer for them is ``spacy-latent.regression_scorer.v1``.
        constraints: None, or a ``spacy-latent.CategoryConstraints.v1`` that says which labels
            exclude or imply each other. It cannot be combined with a score_range.
    """

    multi_label = True

    def __init__(
        self,
        vocab: Vocab,
        model: Model[list[Doc], Floats2d],
        name: str = "latent_textcat_multilabel",
        *,
        threshold: float = 0.5,
        annotate: str = "map",
        probability_threshold: float = 0.01,
        alternatives: int = 0,
        spans_key: str | None = None,
        score_range: list[float] | None = None,
        constraints: "CategoryConstraints | None" = None,
        scorer: Callable | None = None,
    ) -> None:
        if constraints is not None and not hasattr(constraints, "broken_by"):
            raise LatentError(
                f"{name}: constraints is of type {type(constraints).__name__}; expected a block "
                'with @misc = "spacy-latent.CategoryConstraints.v1", or null.'
            )
        if constraints is not None and score_range is not None:
            raise LatentError(
                f"{name}: score_range is {score_range}, so the component predicts numbers, and "
                "constraints are for labels. Leave out one of the two settings."
            )
        super().__init__(
            vocab,
            model,
            name,
            threshold=threshold,
            annotate=annotate,
            probability_threshold=probability_threshold,
            alternatives=alternatives,
            spans_key=spans_key,
            scorer=scorer,
        )
        self.cfg["score_range"] = score_range
        self.keep_settings()
        self.constraints = constraints
        self._field: tuple[tuple[str, ...], LabelField] | None = None

    def check_settings(self) -> None:
        super().check_settings()
        # The constructor of the base class calls this before score_range is set.
        given = self.cfg.get("score_range")
        if given is None:
            return
        numbers = isinstance(given, (list, tuple)) and all(
            isinstance(n, (int, float)) for n in given
        )
        if not numbers or len(given) != 2 or not -np.inf < given[0] < given[1] < np.inf:
            raise LatentError(
                f"{self.name}: score_range is {given}; expected the lowest and the highest score, "
                "such as [0.0, 5.0], or null for labels."
            )

    @property
    def field(self) -> "LabelField | None":
        """Distribution over the allowed sets of labels; None without constraints."""
        if self.constraints is None:
            return None
        if self._field is None or self._field[0] != self.labels:
            self._field = self.labels, self.constraints.over(self.labels)
        return self._field[1]

    def tell_model(self) -> None:
        from spacy_latent.models.latent_text_classifier import PROBABILITIES

        if self.labels and self.field is not None:
            self.model.attrs[PROBABILITIES] = self.field.probabilities

    def _after_loading(self) -> None:
        self.tell_model()

    def scores_of(self, probabilities: Floats2d) -> Floats2d:
        if self.cfg["score_range"] is None:
            return probabilities
        low, high = self.cfg["score_range"]
        return low + (high - low) * probabilities

    def targets_of(self, truths: Floats2d) -> Floats2d:
        if self.cfg["score_range"] is None:
            return truths
        low, high = self.cfg["score_range"]
        return (truths - low) / (high - low)

    def loss_of(self, logits: "Tensor", truths: "Tensor", known: "Tensor") -> "Tensor":
        from spacy_latent.models.text_losses import multilabel_loss, regression_loss

        if self.field is not None:
            return self.field.loss(logits, truths, known)
        loss = multilabel_loss if self.cfg["score_range"] is None else regression_loss
        return loss(logits, truths, known)

    def initialize(  # type: ignore[override]
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Language | None = None,
        labels: object = None,
    ) -> None:
        """Initialise as ``textcat_multilabel`` does; one label is enough.

        Warn with JudgedAsLabels if numbers in a score_range would be scored as labels.

        Args:
            labels (Iterable[str]): names of labels; if None, the labels of the examples.

        Raises:
            LatentError: if ``labels`` is not a list of names.
        """
        self.check_initialize(get_examples, nlp)
        warn_judged_as_labels(self)
        found = labels
        if found is None:
            found = [label for example in get_examples() for label in example.y.cats]
        for label in self.names_given(found):
            self.add_label(label)
        self._refuse_few_labels(set(self.labels), 1, labels is not None)
        # Building the field refuses contradictory constraints, which every text would violate.
        self.tell_model()
        self._validate_categories(get_examples())
        sample = sample_of(get_examples())
        if not sample:
            raise ValueError(Errors.E923.format(name=self.name))
        truths, _ = self._examples_to_truth(sample)
        self.model.initialize(X=[example.reference for example in sample], Y=truths)
        self.check_outputs()
        self._begin_evidence(get_examples)
        warn_not_given(self, nlp)

    def _validate_categories(self, examples: Iterable[Example]) -> None:
        for example in examples:
            self._refuse_values(example)
            broken = self.constraints and self.constraints.broken_by(example.reference.cats)
            if broken:
                raise LatentError(
                    f"{self.name}: the labels of {quoted(example)} break its constraints: "
                    f"{broken}. Correct the annotation or the constraints."
                )

    def _refuse_values(self, example: Example) -> None:
        if self.cfg["score_range"] is None:
            super()._refuse_values(example)
            return
        low, high = self.cfg["score_range"]
        for label, value in example.reference.cats.items():
            if not (is_finite_or_boolean(value) and low <= value <= high):
                raise LatentError(
                    f"{self.name}: {quoted(example)} has the label {label!r}: {value!r}; expected "
                    f"a number from {low} to {high}, its score_range."
                )


OF_LABELS = default_config(MultiLabelLatentTextCategorizer, "latent_textcat", DEFAULT_CONFIG)
OF_LABELS["scorer"] = {"@scorers": "spacy.textcat_multilabel_scorer.v2"}
OF_LABELS["model"]["exclusive_classes"] = False

make_latent_textcat_multilabel = Language.factory(
    "latent_textcat_multilabel",
    assigns=["doc.cats", "doc._.latent"],
    default_config=OF_LABELS,
    default_score_weights=SCORE_WEIGHTS,
    func=factory_of(MultiLabelLatentTextCategorizer, "latent_textcat_multilabel"),
)
