"""The component ``tree_spancat``: labelled spans that may nest but never cross."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from spacy.errors import Errors
from spacy.language import Language
from spacy.tokens import Doc, Span, SpanGroup
from spacy.training import Example
from spacy.util import check_lexeme_norms
from spacy.vocab import Vocab
from thinc.api import Model, Optimizer

from spacy_latent import annotations
from spacy_latent.errors import LatentError
from spacy_latent.interventions import intervention_on
from spacy_latent.pipeline.evidence_survey import DoubtfulEvidence, lost_by_augmenter
from spacy_latent.pipeline.factories import default_config, factory_of
from spacy_latent.pipeline.labelled_component import LabelledComponent
from spacy_latent.pipeline.learnt_calibration import EntityCalibration
from spacy_latent.pipeline.scores_given import follow_settings
from spacy_latent.pipeline.span_gold import SpanGold

if TYPE_CHECKING:
    from spacy_latent.models.found_spans import FoundSpans, LabelledSpan
    from spacy_latent.models.tree_span_classifier import SpanScores

DEFAULT_CONFIG = """
[tree_spancat]
scorer = {"@scorers": "spacy.spancat_scorer.v1"}

[tree_spancat.model]
@architectures = "spacy-latent.TreeSpanClassifier.v1"
hidden_width = 64
max_width = null

[tree_spancat.model.span_getter]
@misc = "spacy-latent.SentenceSpans.v1"
max_length = 128

[tree_spancat.model.tok2vec]
@architectures = "spacy.HashEmbedCNN.v2"
"""
STRUCTURE = "ConstituencyTree"


class TreeSpanCategorizer(LabelledComponent[EntityCalibration]):
    """Span categorizer like spaCy's ``spancat`` that parses each sentence into a tree of spans.

    Every span of the tree has a label or no label (Fu et al. 2021). Spans may contain others and
    have any length. They do not overlap otherwise. No suggester is needed.

    The component writes ``doc.spans[spans_key]``. The probability of each span and label, or
    its confidence after calibration, is in ``doc.spans[spans_key].attrs["scores"]``.

    It learns from the same group of the references. It leaves out, with a warning, spans that do
    not align with tokens, begin or end with white space, or are wider than ``max_width`` of the
    model. It also leaves out spans that are not inside one sentence (or window of the model's
    ``span_getter``). If spans cross, it leaves out as few of them as possible. A span may have
    several labels at once if a span in the data of ``initialize`` has the same set of labels.

    The loss that is reported in training is in nats, summed over docs.

    Args:
        spans_key: name of the group in ``doc.spans``.
        threshold: least probability of a label that is predicted, as in ``spancat``. Below .5,
            crossing spans may reach it. The prediction is then the set of spans without crossings
            that has the largest sum of probability minus threshold. At 0, the start of ``spacy
            find-threshold``, these sets are whole trees. A calibration does not change which spans
            reach the threshold.
        min_confidence: least confidence of a predicted span, after calibration. 0 keeps all.
            ``spacy latent calibrate --precision`` finds a value.
        annotate: "map" writes the spans to ``doc._.latent``. "probabilities" also writes spans that
            were not predicted, and all probabilities. "none" writes nothing there.
        probability_threshold: least probability of a span that is stored in ``doc._.latent``.
        scorer: scorer of the component, as in ``spancat``.
    """

    # See pipeline.inspection.LatentComponent.
    own_structures = "phrases"
    _labelled = "spans"
    _calibration_type = EntityCalibration
    # See pipeline.inspection. ``threshold`` is spaCy's setting for predicted spans.
    stored_settings: ClassVar[dict[str, str]] = {"threshold": "probability_threshold"}

    def __init__(
        self,
        vocab: Vocab,
        model: Model,
        name: str = "tree_spancat",
        *,
        spans_key: str = "sc",
        threshold: float = 0.5,
        min_confidence: float = 0.0,
        annotate: str = "map",
        probability_threshold: float = 0.01,
        scorer: Callable | None = None,
    ) -> None:
        if model.name != "tree_span_classifier":
            raise LatentError(
                f"{name}: its model is {model.name!r}, which scores no spans for a tree. Use "
                'model.@architectures = "spacy-latent.TreeSpanClassifier.v1" with that model as '
                "tok2vec."
            )
        self.renamed_scores: dict[str, str] = {}
        super().__init__(
            vocab,
            model,
            name,
            scorer,
            label_sets=[],
            spans_key=spans_key,
            threshold=threshold,
            min_confidence=min_confidence,
            annotate=annotate,
            probability_threshold=probability_threshold,
        )

    def check_settings(self) -> None:
        least = self.cfg["probability_threshold"]
        annotations.check_settings(
            self.name, self.cfg["annotate"], least, 0, "probability_threshold"
        )
        annotations.check_share(self.name, "threshold", self.cfg["threshold"])
        annotations.check_share(self.name, "min_confidence", self.cfg["min_confidence"])
        annotations.check_group(self.name, spans_key=self.cfg["spans_key"])

    @property
    def key(self) -> str:
        """Name of the group in ``doc.spans``."""
        return str(self.cfg["spans_key"])

    @property
    def score_names(self) -> dict[str, str]:
        """Default names of scores, mapped to their names under ``spans_key``.

        See :func:`spacy_latent.pipeline.scores_given.follow_settings`.
        """
        return {f"spans_sc_{kind}": f"spans_{self.key}_{kind}" for kind in "fpr"}

    # ---------------------------------------------------------------- labels

    @property
    def label_sets(self) -> tuple[tuple[str, ...], ...]:
        """Sets of one or several labels that a span may have, in the order of their addition."""
        return tuple(tuple(known) for known in self.cfg["label_sets"])

    @property
    def label_data(self) -> list[str | list[str]]:
        """Labels, and lists of labels that a span may have at once."""
        return [known[0] if len(known) == 1 else list(known) for known in self.label_sets]

    def add_label(self, label: str) -> int:
        return self._add_set([label]) if self._take_label(label) else 0

    def add_label_set(self, labels: Iterable[str]) -> int:
        """Allow a span to have these labels at once.

        Returns:
            1, or 0 if the set is known.
        """
        if isinstance(labels, str):
            raise ValueError(Errors.E187)
        names = sorted(set(labels))
        for label in names:
            self.add_label(label)
        return self._add_set(names) if len(names) > 1 else 0

    def _add_set(self, names: list[str]) -> int:
        from spacy_latent.models.tree_span_classifier import set_classes

        if tuple(names) in self.label_sets:
            return 0
        self.cfg["label_sets"].append(names)
        set_classes(self.model, self._classes)
        return 1

    @property
    def _classes(self) -> int:
        """Number of classes of a span, including "no label"."""
        return 1 + len(self.cfg["label_sets"])

    # ---------------------------------------------------------------- prediction

    def predict(self, docs: Iterable[Doc]) -> list[list["FoundSpans"]]:
        """Find the spans of the docs.

        Returns:
            For each doc, the spans of each of its sentences.
        """
        from spacy_latent.models.found_spans import edit_spans, find_spans
        from spacy_latent.models.span_confidence import SpanConfidence

        docs = list(docs)
        if not any(len(doc) for doc in docs):
            return [[] for _ in docs]
        if not self.labels:
            self.refuse_uninitialized(self.model.get_ref("pairs"), "weight")
            return [[] for _ in docs]
        self.warn_without_vectors(docs)
        sets = self.numbered_sets
        stored = self.cfg["annotate"] == "probabilities"
        calibration = self.calibration or EntityCalibration()
        scored, asked = self.model.predict(docs), intervention_on(self.model)
        if asked is not None:
            scored = edit_spans(scored, sets, asked)
        found = find_spans(
            scored,
            sets,
            self.cfg["threshold"],
            self.cfg["probability_threshold"] if stored else None,
            SpanConfidence(
                calibration.temperature, calibration.slope, calibration.shifts_of(self.labels)
            ),
            calibration.least if stored else None,
        )
        least = self.cfg["min_confidence"]
        for piece in (piece for pieces in found for piece in pieces):
            piece.chosen = [one for one in piece.chosen if one.probability >= least]
        return found

    @property
    def numbered_sets(self) -> list[list[int]]:
        """Label sets by the numbers of their labels."""
        number = {label: i for i, label in enumerate(self.labels)}
        return [[number[label] for label in known] for known in self.label_sets]

    def set_annotations(
        self, docs: Iterable[Doc], predictions: Sequence[list["FoundSpans"]]
    ) -> None:
        labels = self.labels
        for doc, pieces in zip(docs, predictions):
            chosen = [found for piece in pieces for found in piece.chosen]
            spans = [Span(doc, one.start, one.end, label=labels[one.label]) for one in chosen]
            scores = np.array([one.probability for one in chosen], dtype="float32")
            doc.spans[self.key] = SpanGroup(
                doc, name=self.key, attrs={"scores": scores}, spans=spans
            )
            if self.cfg["annotate"] != "none":
                annotations.write(doc, self.name, [self._structure(piece) for piece in pieces])

    def structures(self, docs: Sequence[Doc]) -> list[list[annotations.SpanStructure]]:
        """Predict the structures of docs, see :func:`spacy_latent.pipeline.inspect_docs`."""
        return [[self._structure(piece) for piece in pieces] for pieces in self.predict(docs)]

    def _structure(self, piece: "FoundSpans") -> annotations.SpanStructure:
        found = annotations.SpanStructure(
            piece.start,
            piece.end,
            STRUCTURE,
            self.own_structures,
            _rows(piece, piece.chosen),
            labels=self.labels,
        )
        if self.cfg["annotate"] == "probabilities":
            found.parts = _rows(piece, piece.likely)
            found.probabilities = np.array([one.probability for one in piece.likely], "float32")
            if piece.possible is not None:
                found.possible = _rows(piece, piece.possible)
                found.possible_probabilities = np.array(
                    [one.probability for one in piece.possible], "float32"
                )
        return found

    # ---------------------------------------------------------------- training

    def _learn(
        self, examples: list[Example], drop: float, sgd: Optimizer | None, losses: dict[str, float]
    ) -> None:
        if not self.labels:
            # The step computes no loss, which would refuse unknown labels.
            for example in examples:
                self._gold_reader().refuse_unknown(example)
        self._training_step(examples, self.get_loss, drop, sgd, losses)

    def get_loss(
        self, examples: Iterable[Example], scores: "SpanScores"
    ) -> tuple[float, "SpanScores"]:
        """Compute the loss of a batch.

        Returns:
            −log p(annotation) summed over docs, and its gradient for the scores.
        """
        from spacy_latent.models.span_losses import loss_and_gradient

        examples = list(examples)
        gold, pairs = self._gold_reader(), zip(examples, scores.spans)
        observed = [gold.observed(example, pieces) for example, pieces in pairs]
        unlabelled: list[tuple[int, ...]] = []
        if any(annotations.annotated_labels(example.reference) is not None for example in examples):
            unlabelled = [gold.unlabelled(example) for example in examples]
        return loss_and_gradient(scores, observed, unlabelled)

    def _gold_reader(self) -> SpanGold:
        bound = self.model.attrs["max_width"] or None
        return SpanGold(self.name, self.labels, self.label_sets, self.key, bound, self.tell_once)

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Language | None = None,
        labels: object = None,
    ) -> None:
        """Take the labels from ``labels`` or from the examples, and initialise the model.

        Args:
            labels (Sequence[str | Sequence[str]]): names of labels, and lists of labels that a span
                may have at once, as ``spacy init labels`` writes them.

        Raises:
            LatentError: if ``labels`` has other values.
        """
        from spacy_latent.models.tree_span_classifier import set_classes

        self.check_initialize(get_examples, nlp)
        check_lexeme_norms(self.vocab, "tree_spancat")
        self.cfg["calibration"] = None
        if labels is not None:
            names = self.names_given(labels, sets=True)
            given = [[own] if isinstance(own, str) else list(own) for own in names]
        else:
            given = self._gold_reader().sets_of(get_examples())
        for known in given:
            for label in known:
                self.add_label(label)
        for known in given:
            self.add_label_set(known)
        if not self.labels:
            key = f"doc.spans[{self.key!r}]"
            self.warn_without_labels(
                f"span in {key}",
                "no labels to learn, and will find nothing",
                f"annotated spans in {key}, the name that spans_key gives",
                labels is not None,
            )
        if lost := lost_by_augmenter(nlp, get_examples()):
            warnings.warn(f"{self.name}: {lost}", DoubtfulEvidence, stacklevel=2)
        set_classes(self.model, self._classes)
        self.initialize_model(get_examples)
        follow_settings(self, nlp)


make_tree_spancat = Language.factory(
    "tree_spancat",
    assigns=["doc.spans", "doc._.latent"],
    default_config=default_config(TreeSpanCategorizer, "tree_spancat", DEFAULT_CONFIG),
    default_score_weights={"spans_sc_f": 1.0, "spans_sc_p": 0.0, "spans_sc_r": 0.0},
    func=factory_of(TreeSpanCategorizer, "tree_spancat"),
)


def _rows(piece: "FoundSpans", found: Sequence["LabelledSpan"]) -> np.ndarray:
    rows = [(one.start - piece.start, one.end - piece.start, one.label) for one in found]
    return np.array(rows, dtype="int32").reshape(-1, 3)
