"""The component ``latent_textcat``: a text classifier that computes the loss of each structure."""

from collections.abc import Callable, Iterable
from itertools import chain
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from spacy.language import Language
from spacy.pipeline.textcat import TextCategorizer
from spacy.tokens import Doc
from spacy.training import Example, validate_examples
from spacy.vocab import Vocab
from thinc.api import Model, Optimizer, set_dropout_rate, xp2torch
from thinc.types import Floats2d

from spacy_latent import annotations
from spacy_latent.errors import LatentError, NoLabels
from spacy_latent.pipeline.factories import default_config, factory_of
from spacy_latent.pipeline.scores_given import warn_not_given
from spacy_latent.pipeline.trained_component import TrainedComponent, sample_of

if TYPE_CHECKING:
    from torch import Tensor

    from spacy_latent.annotations import SpanStructure
    from spacy_latent.models.latent_text_classifier import TextPredictions

    Predictions = tuple[Floats2d, list[list[SpanStructure]], list[np.ndarray]]

DEFAULT_CONFIG = """
[latent_textcat]
scorer = {"@scorers": "spacy.textcat_scorer.v2"}

[latent_textcat.model]
@architectures = "spacy-latent.LatentTextClassifier.v1"
exclusive_classes = true
use_reduce_mean = true

[latent_textcat.model.tok2vec]
@architectures = "spacy.HashEmbedCNN.v2"

[latent_textcat.model.structure]
@misc = "spacy-latent.SpanningTree.v1"

[latent_textcat.model.scorer]
@misc = "spacy-latent.BiaffineScorer.v1"

[latent_textcat.model.estimator]
@misc = "spacy-latent.ScoreFunction.v1"
num_samples = 1

[latent_textcat.model.estimator.control_variate]
@misc = "spacy-latent.SelfCritical.v1"

[latent_textcat.model.composer]
@misc = "spacy-latent.GraphConvolution.v1"

[latent_textcat.model.span_getter]
@misc = "spacy-latent.DocSpans.v1"
max_length = 512
"""
# The default score weights of textcat.
SCORE_WEIGHTS: dict[str, float | None] = {
    "cats_score": 1.0,
    "cats_score_desc": None,
    "cats_micro_p": None,
    "cats_micro_r": None,
    "cats_micro_f": None,
    "cats_macro_p": None,
    "cats_macro_r": None,
    "cats_macro_f": None,
    "cats_macro_auc": None,
    "cats_f_per_type": None,
}
# Prefix of the names of scores of categories.
CATS = "cats_"


class LatentTextCategorizer(TrainedComponent, TextCategorizer):
    """Text classifier like spaCy's ``textcat``, one label per doc, over latent structures.

    It has the same labels, ``doc.cats``, threshold and scores as ``textcat``. It is trained with
    the loss of each structure, so every estimator works.

    The loss that is reported in training is the mean over docs, in nats, by the estimator's
    criterion. In regression it is half a squared error. If the model has a bound on the evidence of
    words, the loss includes minus this bound, times its weight. Minus the mean bound, in nats and
    without the weight, is reported under the component's name with "_bound". If a reward judges the
    structures, its mean is reported with "_reward".

    Args:
        annotate: "map" writes the best structure to ``doc._.latent``. "probabilities" also writes
            the probabilities of its parts. "none" writes nothing.
        probability_threshold: least probability of a part that is stored.
        alternatives: number of alternative structures to store for each span.
        spans_key: with a rationale model, write the chosen words to ``doc.spans[spans_key]``.
            Adjacent words form one Span with this key as its label. Its mean weight is in the
            group's ``attrs["scores"]``. None for no spans.
        threshold, scorer: as in ``textcat``.
    """

    multi_label = False

    def __init__(
        self,
        vocab: Vocab,
        model: Model[list[Doc], Floats2d],
        name: str = "latent_textcat",
        *,
        threshold: float = 0.0,
        annotate: str = "map",
        probability_threshold: float = 0.01,
        alternatives: int = 0,
        spans_key: str | None = None,
        scorer: Callable | None = None,
    ) -> None:
        if "multi_label" not in model.attrs or not model.has_ref("latent"):
            raise LatentError(
                f"{name}: its model is {model.name!r}, which has no latent structures. Use "
                'model.@architectures = "spacy-latent.LatentTextClassifier.v1", or for docs of two '
                'texts "spacy-latent.AlignedPairTextCat.v1" or '
                '"spacy-latent.ComposedPairTextCat.v1".'
            )
        if model.attrs["multi_label"] != self.multi_label:
            wanted = str(not self.multi_label).lower()
            raise LatentError(f"{name}: set model.exclusive_classes = {wanted} for this component.")
        super().__init__(vocab, model, name, threshold=threshold, scorer=scorer)
        self.cfg.update(annotate=annotate, probability_threshold=probability_threshold)
        self.cfg.update(alternatives=alternatives, spans_key=spans_key)
        self.keep_settings()
        self._further: list[Callable[[], None]] = []

    def check_settings(self) -> None:
        cfg, name, attrs = self.cfg, self.name, self.model.attrs
        annotate, key = cfg["annotate"], cfg["spans_key"]
        stored = cfg["probability_threshold"], cfg["alternatives"], "probability_threshold"
        annotations.check_settings(name, annotate, *stored)
        annotations.check_share(name, "threshold", cfg["threshold"])
        annotations.check_group(name, or_null=True, spans_key=key)
        if attrs.get("code") and annotate != "none":
            raise LatentError(
                f"{name}: annotate is {annotate!r}, but the code of a doc is no structure of its "
                'words. Set annotate = "none"; spacy_latent.models.document_code.codes gives codes.'
            )
        if key is not None and not attrs.get("rationale"):
            raise LatentError(
                f"{name}: spans_key is {key!r}, but its model chooses no words. Use "
                'model.@architectures = "spacy-latent.RationaleTextCat.v1", or spans_key = null.'
            )

    # ---------------------------------------------------------------- prediction

    def predict(self, docs: Iterable[Doc]) -> "Predictions":
        """Predict scores and structures.

        Returns:
            Scores ``(D, labels)``; the structures of each doc; and, with spans_key, the weight of
            each word in the rationale of each doc.
        """
        from spacy_latent.models.latent_text_classifier import latent_layer, run
        from spacy_latent.models.structure_reader import read_structures

        docs = list(docs)
        if not any(len(doc) for doc in docs):
            nothing: list[Any] = [[] for _ in docs]
            zeros = self.model.ops.alloc2f(len(docs), len(self.labels))
            return self.scores_of(zeros), nothing, nothing
        self.warn_without_vectors(docs)
        self.tell_model()
        found, _ = run(self.model, docs, is_train=False)
        level = self.cfg["annotate"]
        structures: list[Any] = [[] for _ in docs]
        if level != "none":
            stored = annotations.Stored(
                level, self.cfg["probability_threshold"], self.cfg["alternatives"]
            )
            structures = read_structures(found.made.batch, latent_layer(self.model), stored)
        chosen: list[Any] = [[] for _ in docs]
        if self.cfg["spans_key"] is not None:
            from spacy_latent.models.rationale_text_cat import chosen_weights

            chosen = chosen_weights(self.model, found.made.batch)
        probabilities = found.scores
        # An empty doc has the same scores as in a batch of empty docs.
        probabilities[[not len(doc) for doc in docs]] = 0.0
        return self.scores_of(probabilities), structures, chosen

    def add_label(self, label: str) -> int:
        """Add a label as spaCy does, but refuse an empty one.

        Until the component is trained on, other predictions do not change and no text has the new
        label. With a score_range, the number of the new label is at first the middle of the range.

        Raises:
            LatentError: if the label is empty, or if the config of the model has no output for it.
        """
        from spacy_latent.models.latent_text_classifier import begin_as_absent

        if label == "":
            raise LatentError(f"{self.name}: a label of categories must not be empty.")
        known = len(self.labels)
        if label not in self.labels:
            self.check_new_label()
        added = super().add_label(label)
        if added and self.cfg.get("score_range") is None:
            begin_as_absent(self.model, known)
        return added

    def tell_model(self) -> None:
        """Pass constraints on the labels to the model, before it runs."""

    def scores_of(self, probabilities: Floats2d) -> Floats2d:
        """Return the values of ``doc.cats`` for these probabilities."""
        return probabilities

    def set_annotations(self, docs: Iterable[Doc], predictions: "Predictions") -> None:
        docs = list(docs)
        scores, structures, chosen = predictions
        super().set_annotations(docs, scores)
        if self.cfg["annotate"] != "none":
            for doc, spans in zip(docs, structures):
                annotations.write(doc, self.name, spans)
        if self.cfg["spans_key"] is not None:
            for doc, weights in zip(docs, chosen):
                annotations.write_spans(doc, self.cfg["spans_key"], weights)

    # ---------------------------------------------------------------- training

    @property
    def support_missing_values(self) -> bool:
        """True: labels missing in ``cats`` are unknown. spaCy's ``textcat`` takes them as wrong."""
        return True

    def score(self, examples: Iterable[Example], **kwargs: object) -> dict[str, object]:
        """Score predictions; texts whose categories are unknown do not count.

        spaCy's scorer of exclusive categories takes a text without a category as wrong, and scores
        0 if all texts are so.
        """
        examples = list(examples)
        scores: dict[str, object] = super().score(examples, **kwargs)
        known = [example for example in examples if self._can_be_scored(example)]
        if len(known) < len(examples):
            of_known = super().score(known, **kwargs) if known else {}
            described = f"{CATS}score_desc"
            found = {key: of_known.get(key) for key in scores if key.startswith(CATS)}
            scores.update({key: value for key, value in found.items() if key != described})
        return scores

    def _can_be_scored(self, example: Example) -> bool:
        cats = example.reference.cats
        if self.multi_label:
            return any(label in cats for label in self.labels)
        # Other components of the pipeline predict categories of their own.
        others = example.predicted.cats.keys() - set(self.labels)
        return any(value and label not in others for label, value in cats.items())

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Language | None = None,
        labels: object = None,
        positive_label: str | None = None,
    ) -> None:
        """Initialise as ``textcat`` does.

        Args:
            labels (Iterable[str]): names of labels; if None, the labels of the examples.

        Raises:
            LatentError: if there are fewer than two labels, if ``labels`` is not a list of names,
                or if training ends before its last stage.
        """
        self.check_initialize(get_examples, nlp)
        given = labels is not None
        if labels is None:
            labels = [label for example in get_examples() for label in example.y.cats]
        labels = list(dict.fromkeys(self.names_given(labels)))
        self._refuse_few_labels({*self.labels, *labels}, 2, given)
        # spaCy takes the first examples as its sample.
        first = [one for one in sample_of(get_examples()) if len(one.reference)]
        super().initialize(
            lambda: chain(first, get_examples()),
            nlp=nlp,
            labels=labels,
            positive_label=positive_label,
        )
        self.check_outputs()
        self._begin_evidence(get_examples)
        warn_not_given(self, nlp)

    def _refuse_few_labels(self, found: set[str], needed: int, given: bool) -> None:
        """Raise NoLabels if there are too few; ``given`` says that they come from the config."""
        if len(found) >= needed:
            return
        labels = f"only the label {', '.join(map(repr, found))}" if found else "no label"
        alone = " For one label alone take latent_textcat_multilabel." if found else ""
        block = f"initialize.components.{self.name}.labels"
        if given:
            raise NoLabels(
                f"{self.name}: {labels} was given, under {block}; expected at least {needed}. "
                f"Give more there, or remove the list to use the labels of the texts.{alone}"
            )
        raise NoLabels(
            f"{self.name}: {labels} was found; expected at least {needed}. Give texts of the "
            f"training corpus doc.cats, such as {{'yes': 1.0, 'no': 0.0}}, or give the labels "
            f"under {block}.{alone}"
        )

    def _validate_categories(self, examples: Iterable[Example]) -> None:
        """Raise LatentError if this component cannot learn from a category."""
        for example in examples:
            cats = example.reference.cats
            self._refuse_values(example)
            own = [label for label, value in cats.items() if value == 1.0]
            if len(own) > 1:
                raise LatentError(
                    f"{self.name}: {quoted(example)} has the labels {', '.join(map(repr, own))}; "
                    "expected one label for each text. For several labels use "
                    "latent_textcat_multilabel."
                )

    def _refuse_values(self, example: Example) -> None:
        """Raise LatentError if the value of a category is neither 0 nor 1."""
        for label, value in example.reference.cats.items():
            if value in (0.0, 1.0):
                continue
            advice = ""
            if is_finite_or_boolean(value):
                where = "" if self.multi_label else "take latent_textcat_multilabel, and "
                advice = (
                    f" To learn numbers {where}set its score_range to the lowest and the highest, "
                    "such as [0.0, 5.0]."
                )
            raise LatentError(
                f"{self.name}: {quoted(example)} has the label {label!r}: {value!r}; expected 1.0 "
                f"if it has this label, else 0.0.{advice}"
            )

    def _begin_evidence(self, get_examples: Callable[[], Iterable[Example]]) -> None:
        """Show the words of the training docs to the decoder of a bound on the evidence."""
        from spacy_latent.models.evidence_bound import begin_word_objective

        begin_word_objective(self.model, (example.predicted for example in get_examples()))

    def _learn(
        self, examples: list[Example], drop: float, sgd: Optimizer | None, losses: dict[str, float]
    ) -> None:
        from spacy_latent.models.added_labels import count_as_trained
        from spacy_latent.models.latent_text_classifier import (
            further_step,
            latent_layer,
            run_and_keep,
        )

        self._validate_categories(examples)
        if not any(len(example.predicted) for example in examples):
            return
        set_dropout_rate(self.model, drop)
        self.tell_model()
        docs = [example.predicted for example in examples]
        found, backprop, keep = run_and_keep(self.model, docs, is_train=True)
        estimator = latent_layer(self.model).present_estimator
        if estimator.reward is not None:
            self._reward(examples, found, losses)
        loss, gradients = self.get_loss(examples, found)
        backprop(gradients)
        count_as_trained(self.model)
        if estimator.inner_steps > 1:
            kept, advantage, before = keep(), gradients[2], found.made.log_probs
            for _ in range(estimator.inner_steps - 1):
                self._further.append(
                    lambda: further_step(self.model, kept, advantage, before, estimator.clip)
                )
        if sgd is not None:
            self.finish_update(sgd)
        losses[self.name] += loss
        if found.made.evidence is not None:
            bound = found.made.evidence.bound(found.made.weights)
            key = f"{self.name}_bound"
            losses[key] = losses.get(key, 0.0) - float(bound[_filled(examples)].mean())

    def _reward(
        self, examples: list[Example], found: "TextPredictions", losses: dict[str, float]
    ) -> None:
        """Store the rewards of the structures for :meth:`get_loss`, and report their mean."""
        from spacy_latent.models.latent_text_classifier import latent_layer
        from spacy_latent.models.structure_rewards import rewards_of

        layer, weights = latent_layer(self.model), found.made.weights
        reward = layer.present_estimator.reward
        assert reward is not None
        settings = found.made.batch, layer.present_structure, self.name, weights
        found.rewards = rewards_of(reward, examples, *settings)
        key = f"{self.name}_reward"
        mean = (weights * found.rewards).sum(0)[_filled(examples)].mean()
        losses[key] = losses.get(key, 0.0) + float(mean)

    def finish_update(self, sgd: Optimizer) -> None:
        self.model.finish_update(sgd)
        while self.backprop_further():
            self.finish_further(sgd)

    @property
    def further_model(self) -> Model:
        """Part of the model that further steps on a batch change.

        Other parts have no gradient in these steps. An optimizer would move them by momentum alone.
        """
        return self.model.get_ref("latent")

    def backprop_further(self) -> bool:
        """Backpropagate the next further step on the batches of the last updates.

        Returns:
            Whether there was such a step.
        """
        if not self._further:
            return False
        self._further.pop(0)()
        return True

    def finish_further(self, sgd: Optimizer) -> None:
        """Update the weights with the gradient of a further step."""
        self.further_model.shims[0].finish_update(sgd)

    def get_loss(  # type: ignore[override]
        self, examples: Iterable[Example], scores: "TextPredictions"
    ) -> tuple[float, tuple["Tensor", ...]]:
        """Compute the mean loss and its gradients.

        Docs without tokens do not count, since their scores are always 0. If the annotated labels
        of a doc do not determine a loss, its loss is 0, and score-function estimators leave it out.

        Returns:
            The mean loss, and the gradients summed over docs as in spaCy's textcat. There are
            gradients of the logits, weights and log-probabilities of each structure, of the extras,
            and of the terms of a bound on the evidence.
        """
        import torch

        from spacy_latent.models import evidence_bound
        from spacy_latent.models.autograd_recording import recording_if
        from spacy_latent.models.latent_text_classifier import latent_layer
        from spacy_latent.structures.derivatives import recordable

        examples = list(examples)
        made, logits = scores.made, scores.logits
        filled = _filled(examples)
        parts = [logits, made.weights, made.log_probs, made.extras]
        if made.evidence is not None:
            parts += [made.evidence.fit, made.evidence.divergence]
        examples = [example for example in examples if len(example.predicted)]
        layer = latent_layer(self.model)
        estimator = layer.present_estimator
        judged: Any = slice(None)
        if made.evidence is None and estimator.leaves_out_unlabelled:
            judged = _indices([self._tells(example) for example in examples])
        if filled == [] or judged == []:
            return 0.0, tuple(map(torch.zeros_like, parts))
        targets, told = self._targets(examples)
        with recording_if(True):
            truths, known = (xp2torch(part, device=logits.device) for part in (targets, told))
            leaves = [recordable(part).detach().requires_grad_() for part in parts]
            own = [leaf[:, filled] for leaf in leaves]
            each = self.loss_of(own[0], truths, known)
            # Passed only if there are extras: custom objectives need not accept them.
            extras = [own[3]] if len(own[3]) else []
            if scores.rewards is not None:
                extras = [scores.rewards[:, filled]]
            weights, log_probs = own[1:3]
            features = made.features[filled]
            if made.evidence is None:
                compared = weights[:, judged], log_probs[:, judged], features[judged]
                extras = [part[:, judged] for part in extras]
                objective = estimator.objective(each[:, judged], *compared, *extras)
            else:
                exact = evidence_bound.is_exact(layer.present_structure, estimator)
                terms = evidence_bound.BoundTerms(*own[4:])
                share, kl_weight = self._evidence_weights(examples)
                others = (weights, log_probs, features, *extras)
                objective = evidence_bound.objective(
                    estimator, each, terms, exact, share, kl_weight, *others
                )
            objective.sum().backward()
        gradients = tuple(
            torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves
        )
        expected = estimator.loss_of_text(each, weights).detach()
        if made.evidence is not None:
            bound = made.evidence.bound(made.weights, kl_weight)
            expected = expected - share * bound[filled]
        return float(expected.mean()), gradients

    def _targets(self, examples: list[Example]) -> tuple[Floats2d, Floats2d]:
        """Return the targets of the labels, and a mask: 1 for labels that are annotated, else 0."""
        given: Any = self._examples_to_truth(examples)
        targets: Any = self.targets_of(given[0])
        if not self.multi_label:
            # If the right label is one that the component lacks, no label of the component is
            # right. The softmax cannot learn this, so all labels count as unknown.
            given[1][[self._has_other_label(one) for one in examples]] = 0.0
        told: Any = self.model.ops.asarray(given[1])
        return targets, told

    def _tells(self, example: Example) -> bool:
        """Return whether the loss of a text depends on its prediction.

        This reads the annotation on the CPU. Reading the targets would wait for a GPU.
        """
        cats = example.reference.cats
        own = [cats[label] for label in self.labels if label in cats]
        if self.multi_label or any(own):
            return bool(own)
        return 0 < len(own) < len(self.labels) and not self._has_other_label(example)

    def _has_other_label(self, example: Example) -> bool:
        cats = example.reference.cats
        return any(value and label not in self.labels for label, value in cats.items())

    def _evidence_weights(self, examples: list[Example]) -> "tuple[Tensor, float]":
        """Return the weight of the bound in each doc's loss, ``(D,)``, and the weight of its KL.

        Categories that other components predict are no labels.
        """
        import torch

        from spacy_latent.models.latent_text_classifier import word_objective_of

        module = word_objective_of(self.model)
        assert module is not None
        shim: Any = self.model.get_ref("latent").shims[0]
        settings, update = module.settings, shim.updates
        labelled = settings.labelled_weight.at(update)
        unlabelled = settings.unlabelled_weight.at(update)
        shares = [labelled if self._tells(example) else unlabelled for example in examples]
        return torch.tensor(shares, device=shim.device), settings.kl_weight.at(update)

    def loss_of(self, logits: "Tensor", truths: "Tensor", known: "Tensor") -> "Tensor":
        """Return the losses ``(K, D)``, see models.text_losses."""
        from spacy_latent.models.text_losses import exclusive_loss

        return exclusive_loss(logits, truths, known)

    def targets_of(self, truths: Floats2d) -> Floats2d:
        """Return the targets of the loss for these values of categories."""
        return truths

    def rehearse(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optimizer | None = None,
        losses: dict[str, float] | None = None,
    ) -> dict[str, float]:
        """Keep the predictions close to those before training was resumed.

        Labels that were added since do not count.

        Returns:
            The losses, including this component's.
        """
        from spacy_latent.models.added_labels import UNTRAINED

        losses = {} if losses is None else losses
        losses.setdefault(self.name, 0.0)
        examples = list(examples)
        validate_examples(examples, f"{type(self).__name__}.rehearse")
        self._validate_categories(examples)
        docs = [example.predicted for example in examples]
        if self._rehearsal_model is None or not any(len(doc) for doc in docs):
            return losses
        set_dropout_rate(self.model, drop)
        scores, backprop = self.model.begin_update(docs)
        target: Any = self._rehearsal_model.predict(docs)
        known = target.shape[1] - self._rehearsal_model.attrs[UNTRAINED]
        gradient = scores * 0
        gradient[:, :known] = scores[:, :known] - target[:, :known]
        empty = [not len(doc) for doc in docs]
        if any(empty):
            gradient[empty] = 0.0
        backprop(gradient)
        if sgd is not None:
            self.finish_update(sgd)
        losses[self.name] += float((gradient**2).sum())
        return losses


make_latent_textcat = Language.factory(
    "latent_textcat",
    assigns=["doc.cats", "doc._.latent"],
    default_config=default_config(LatentTextCategorizer, "latent_textcat", DEFAULT_CONFIG),
    default_score_weights=SCORE_WEIGHTS,
    func=factory_of(LatentTextCategorizer, "latent_textcat"),
)


def _filled(examples: list[Example]) -> Any:
    """Return the indices of docs with tokens, see :func:`_indices`."""
    return _indices([len(example.predicted) > 0 for example in examples])


def _indices(chosen: list[bool]) -> Any:
    """Return the indices of true values, or a slice, which needs no copy to a GPU, if all are."""
    return slice(None) if all(chosen) else [i for i, one in enumerate(chosen) if one]


def quoted(example: Example) -> str:
    """Quote the text of an example, for messages."""
    return f"the text {example.reference.text[:80]!r}"


def is_finite_or_boolean(value: object) -> bool:
    """Return whether a value is a finite real number or a boolean."""
    return isinstance(value, Real) and bool(np.isfinite(float(value)))
