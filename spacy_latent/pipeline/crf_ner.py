"""The component ``crf_ner``: named entities by a linear chain of BILUO tags."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import compress, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example, validate_examples
from spacy.util import check_lexeme_norms
from spacy.vocab import Vocab
from thinc.api import Model, Optimizer, xp2torch

from spacy_latent import annotations, confidence
from spacy_latent.errors import LatentError
from spacy_latent.interventions import intervention_on
from spacy_latent.pipeline.entity_evidence import (
    EvidenceReader,
    EvidenceSettings,
    unknown_source_label,
)
from spacy_latent.pipeline.entity_gold import EntityGold
from spacy_latent.pipeline.evidence_survey import (
    SURVEYED,
    DoubtfulEvidence,
    EvidenceSurvey,
    lost_by_augmenter,
)
from spacy_latent.pipeline.factories import default_config, factory_of
from spacy_latent.pipeline.labelled_component import LabelledComponent
from spacy_latent.pipeline.learnt_calibration import EntityCalibration
from spacy_latent.pipeline.open_tags import blocked_tokens, open_tags
from spacy_latent.pipeline.scored_entities import ScoredGroup, add_spans
from spacy_latent.pipeline.scores_given import warn_not_given

if TYPE_CHECKING:
    from torch import Tensor

    from spacy_latent.models.crf_tagger import TagScores
    from spacy_latent.models.tag_evidence import TagEvidence
    from spacy_latent.models.tag_losses import TagLoss
    from spacy_latent.models.tag_sources import SourceReliability, TagSources, Written
    from spacy_latent.structures.tag_sequence import TagSequence

DEFAULT_CONFIG = """
[crf_ner]
scorer = {"@scorers": "spacy.ner_scorer.v1"}

[crf_ner.model]
@architectures = "spacy-latent.CrfTagger.v2"
hidden_width = 64
window_size = 1
maxout_pieces = 2
gain = 4.0

[crf_ner.model.tok2vec]
@architectures = "spacy.HashEmbedCNN.v2"
"""


class CrfEntityRecognizer(LabelledComponent[EntityCalibration]):
    """Entity recognizer like spaCy's ``ner``: it takes the best valid sequence of BILUO tags.

    Entities that are already on a doc stay, and new entities do not overlap them. Blocked tokens
    stay outside of entities. No entity crosses a sentence start that is set on the doc. No entity
    begins or ends with white space.

    The loss that is reported in training is in nats, summed over docs.

    Args:
        loss: "crf", −log p(gold); "quadratic", with a smoothed maximum in the recursion (Mensch and
            Blondel 2018); "perceptron"; or "sparsemap". Tokens without annotation may have any tag.
        annotate: "map" writes the tags to ``doc._.latent``. "probabilities" also writes the
            probabilities of tags and entities. "none" writes nothing there.
        threshold: least probability of a tag that is stored.
        alternatives: number of ranked sequences to store, including the best one. With "quadratic"
            and "sparsemap" they are ranked by their weight under the distribution of that loss, and
            the first may differ from the entities in ``doc.ents``.
        min_confidence: least probability of an entity in ``doc.ents``. Less probable entities stay
            in ``doc._.latent`` only. 0 keeps all. ``spacy latent calibrate --precision`` finds a
            value.
        incorrect_spans_key: name of a group in the ``spans`` of reference docs, as in ``ner``. Its
            spans are known not to be entities with their labels. The loss must be "crf", and each
            span adds −log(1 − P(span)) to it.
        scorer: scorer of the component, as in ``ner``.
        evidence: settings for texts whose annotation is incomplete, or null. Keys: flags,
            flag_error, negative_share and sources, see
            :class:`~spacy_latent.pipeline.entity_evidence.EvidenceSettings`.
    """

    # Kind of the structures that the component itself predicts, see inspection.LatentComponent.
    # Latent layers inside its model have their own kinds.
    own_structures = "entities"
    _labelled = "entities"
    _calibration_type = EntityCalibration

    def __init__(
        self,
        vocab: Vocab,
        model: Model,
        name: str = "crf_ner",
        *,
        loss: str = "crf",
        annotate: str = "map",
        threshold: float = 0.01,
        alternatives: int = 0,
        min_confidence: float = 0.0,
        incorrect_spans_key: str | None = None,
        scorer: Callable | None = None,
        evidence: dict[str, object] | None = None,
    ) -> None:
        if model.name != "crf_tagger":
            raise LatentError(
                f"{name}: its model is {model.name!r}, which has no chain of tags. Use "
                'model.@architectures = "spacy-latent.CrfTagger.v2" with that model as tok2vec.'
            )
        self._rehearsal_model: Model | None = None
        # Transitions of the last prediction, and their chain.
        self._bound: tuple[bytes, TagSequence] | None = None
        super().__init__(
            vocab,
            model,
            name,
            scorer,
            loss=loss,
            annotate=annotate,
            threshold=threshold,
            alternatives=alternatives,
            min_confidence=min_confidence,
            incorrect_spans_key=incorrect_spans_key,
            evidence=None if evidence is None else dict(evidence),
        )
        confidence.register_extension()

    # ---------------------------------------------------------------- labels

    @property
    def tags(self) -> list[str]:
        """Tags of the chain: "O", then four tags for each label; those of a new label come last."""
        from spacy_latent.structures.tag_sequence import scheme_tags

        return scheme_tags(self.labels, "biluo")

    @property
    def untrained_labels(self) -> tuple[str, ...]:
        """Labels that were not trained on since they were added. They are not predicted."""
        return self.labels[len(self.labels) - self.model.attrs["untrained"] // 4 :]

    def _resize(self) -> None:
        from spacy_latent.models.crf_tagger import set_tags
        from spacy_latent.models.tag_sources import keep_sources

        sources = self._sources()
        set_tags(self.model, len(self.tags))
        if sources is not None:
            names = self._evidence_settings.sources
            keep_sources(self.model, names, sources.with_labels(len(self.labels)))

    # ---------------------------------------------------------------- settings

    def check_settings(self) -> None:
        cfg, name = self.cfg, self.name
        annotations.check_settings(name, cfg["annotate"], cfg["threshold"], cfg["alternatives"])
        annotations.check_share(name, "min_confidence", cfg["min_confidence"])
        loss, key = cfg["loss"], cfg["incorrect_spans_key"]
        annotations.check_group(name, or_null=True, incorrect_spans_key=key)
        self._loss()
        if key is not None and loss != "crf":
            raise LatentError(
                f"{name}: incorrect_spans_key is {key!r} and loss is {loss!r}; expected loss = "
                "'crf', the only loss with probabilities of spans. Set it, or set "
                "incorrect_spans_key to null."
            )

        evidence = self._evidence_settings
        if key in evidence.sources:
            raise LatentError(
                f"{name}: incorrect_spans_key and evidence.sources both name the group {key!r} of "
                "doc.spans. Its spans are either incorrect or the annotation of a source. Use "
                "two groups with different names."
            )
        if evidence.needs_probabilities and loss != "crf":
            raise LatentError(
                f"{name}: evidence is {cfg['evidence']!r} and loss is {loss!r}; expected loss = "
                "'crf', the only loss that can use flags and sources. Set it, or leave out all "
                "fields of evidence except negative_share."
            )

    @property
    def _evidence_settings(self) -> EvidenceSettings:
        return EvidenceSettings.of_block(self.name, self.cfg["evidence"])

    # ---------------------------------------------------------------- prediction

    def predict(self, docs: Iterable[Doc]) -> list[annotations.SpanStructure | None]:
        """Find the best sequence of tags of each doc.

        Returns:
            One structure for each doc, or None for an empty doc.
        """
        from spacy_latent.layers.batch_interventions import naming_interventions

        docs = list(docs)
        found: list[annotations.SpanStructure | None] = [None] * len(docs)
        if not any(len(doc) for doc in docs):
            return found
        if not self.labels:
            self.refuse_uninitialized(self.model.get_ref("transitions"), "transitions")
            return [_outside(doc) if len(doc) else None for doc in docs]
        self.warn_without_vectors(docs)
        tags = tuple(self.tags)
        loss, level = self._loss(), self.cfg["annotate"]
        calibration = self.calibration or EntityCalibration()
        needs_probabilities = level == "probabilities" or self.cfg["min_confidence"]
        needs_entity_sets = level == "probabilities" and (
            calibration.least is not None or bool(self.cfg["alternatives"])
        )
        for group in self.scored(docs, calibration):
            probabilities = None
            with naming_interventions(group.chain.name, group.interventions):
                if needs_probabilities:
                    probabilities = loss.probabilities(group, within_labels=needs_entity_sets)
                    path = probabilities.best
                else:
                    path = group.chain.best_path(group.scores, group.lengths)
            structures = []
            for b, (d, n) in enumerate(zip(group.docs, group.lengths.tolist())):
                made = _structure(docs[d], group.chain.name, path[b, :n].copy(), tags)
                structures.append(made)
                found[d] = made
                if probabilities is not None:
                    self._add_probabilities(made, probabilities, b, calibration)
                    made.min_confidence = self.cfg["min_confidence"] or None
            if level != "none" and self.cfg["alternatives"]:
                others = loss.ranked(group, self.cfg["alternatives"])
                for structure, sequences in zip(structures, others):
                    structure.alternatives = sequences
            if needs_entity_sets and probabilities is not None:
                add_spans(structures, probabilities.spans(), self.labels, calibration)
        return found

    def _loss(self) -> "TagLoss":
        from spacy_latent.models.tag_losses import LOSSES

        loss = self.cfg["loss"]
        # The value may have any type. Search in a list, since a dictionary refuses values without a
        # hash.
        if loss not in list(LOSSES):
            raise LatentError(
                f"{self.name}: loss is {loss!r}; expected one of {', '.join(LOSSES)}."
            )
        return LOSSES[loss]

    def scored(self, docs: Sequence[Doc], calibration: EntityCalibration) -> list[ScoredGroup]:
        """Score the tags of docs, grouped by similar length.

        Scores are −inf for tags that the annotation on a doc rules out. An intervention on the
        model is applied to the scores.
        """
        import torch

        from spacy_latent.layers.batch_interventions import constrained_scores
        from spacy_latent.models.interventions import interventions_of
        from spacy_latent.models.tag_groups import group_docs, lengths_on

        made, tags, asked = self.model.predict(docs), self.tags, intervention_on(self.model)
        masks = [open_tags(doc, tags, self.labels) for doc in docs]
        with torch.no_grad():
            arrays = calibration.of_scores(made.emissions, made.transitions, self.labels)
            emissions, transitions = (
                torch.from_numpy(one) if isinstance(one, np.ndarray) else xp2torch(one)
                for one in arrays
            )
            if asked is not None:
                emissions = emissions / asked.temperature
                transitions = transitions / asked.temperature
            chain = self._chain(transitions, tags)
            if any(mask is not None for mask in masks):
                whole = [
                    np.ones((len(doc), len(tags)), dtype=bool) if mask is None else mask
                    for doc, mask in zip(docs, masks)
                ]
                closed = torch.from_numpy(~np.concatenate(whole)).to(emissions.device)
                emissions = emissions.masked_fill(closed, -torch.inf)
            groups = []
            if len(docs) == 1 and len(docs[0]):
                lengths = lengths_on([len(docs[0])], emissions.device)
                groups = [ScoredGroup([0], chain, transitions, emissions[None], lengths)]
            else:
                padded = torch.cat([emissions, emissions.new_zeros(1, len(tags))])
                for part in group_docs([len(doc) for doc in docs]):
                    places, lengths = part.on(padded.device)
                    groups.append(
                        ScoredGroup(part.docs, chain, transitions, padded[places], lengths)
                    )
            if asked is not None:
                # Each doc is one span.
                spans: list[list[tuple[int, ...]]] = [[(0, len(doc))] for doc in docs]
                members = [[(d, 0) for d in group.docs] for group in groups]
                for group, interventions in zip(
                    groups, interventions_of(asked, members, spans, chain, "tags")
                ):
                    group.scores = constrained_scores(
                        chain, group.scores, group.lengths, interventions
                    )
                    group.interventions = interventions
            return groups

    def _chain(self, transitions: "Tensor", tags: Sequence[str]) -> "TagSequence":
        """Return the chain with these transitions, from the cache if they have not changed."""
        from spacy_latent.models.tag_groups import bound_chain

        if transitions.is_cuda:
            # A comparison would wait for the GPU.
            return bound_chain(transitions, tags)
        # Compare bytes: for a short text, comparing numbers takes as long as finding its best
        # sequence.
        values = transitions.numpy().tobytes()
        # Read once: another thread may predict with other transitions.
        kept = self._bound
        if kept is None or kept[0] != values:
            kept = self._bound = values, bound_chain(transitions, tags)
        return kept[1]

    def _add_probabilities(
        self,
        structure: annotations.SpanStructure,
        likely: Any,
        b: int,
        calibration: EntityCalibration,
    ) -> None:
        assert structure.labels is not None
        if self.cfg["annotate"] == "probabilities":
            tag_marginals = likely.tags[b, : len(structure)]
            likely_tags = tag_marginals > max(self.cfg["threshold"], 0.0)
            structure.parts = np.array(np.nonzero(likely_tags), dtype="int32").T
            structure.probabilities = tag_marginals[likely_tags].astype("float32")
        entities = annotations.entities_of(structure.decoded, structure.labels)
        structure.entity_probabilities = np.array(
            [
                calibration.confidence(likely.of_run(b, start, end), label)
                for start, end, label in entities
            ],
            dtype="float32",
        )
        structure.entities_calibrated = calibration.changes_odds

    def set_annotations(
        self, docs: Iterable[Doc], predictions: Sequence[annotations.SpanStructure | None]
    ) -> None:
        for doc, structure in zip(docs, predictions):
            if structure is not None and structure.labels is not None:
                found = annotations.entities_of(structure.decoded, structure.labels)
                least, sure = structure.min_confidence, structure.entity_probabilities
                if least is not None and sure is not None:
                    # float64 as in Entity.below_min_confidence: NumPy would round the threshold to
                    # float32.
                    found = list(compress(found, sure.astype("float64") >= least))
                ents = list(doc.ents)
                kept = {(span.start, span.end) for span in ents}
                ents += [
                    Span(doc, start, end, label=label)
                    for start, end, label in found
                    if (start, end) not in kept
                ]
                doc.set_ents(ents, blocked=blocked_tokens(doc), default="outside")
            if self.cfg["annotate"] != "none":
                annotations.write(doc, self.name, [] if structure is None else [structure])

    def structures(self, docs: Sequence[Doc]) -> list[list[annotations.SpanStructure]]:
        """Predict the structures of docs, see :func:`spacy_latent.pipeline.inspect_docs`.

        Entities that this component wrote to a doc do not count as given.
        """
        with ExitStack() as stack:
            for doc in docs:
                stack.enter_context(self._without_own_entities(doc))
            return [[] if one is None else [one] for one in self.predict(docs)]

    @contextmanager
    def _without_own_entities(self, doc: Doc) -> Iterator[None]:
        """Take the entities that this component found from a doc, for a ``with`` block."""
        stored = doc._.latent.get(self.name)
        found = [] if stored is None else stored.entities()
        own = {(one.start, one.end, one.label) for one in found if not one.given}
        before = list(doc.ents)
        kept = [span for span in before if (span.start, span.end, span.label_) not in own]
        if len(kept) == len(before):
            yield
            return
        blocked = blocked_tokens(doc)
        missing = [doc[token.i : token.i + 1] for token in doc if token.ent_iob == 0]
        doc.set_ents(kept, blocked=blocked, missing=missing, default="outside")
        try:
            yield
        finally:
            doc.set_ents(before, blocked=blocked, missing=missing, default="outside")

    # ---------------------------------------------------------------- training

    def _learn(
        self, examples: list[Example], drop: float, sgd: Optimizer | None, losses: dict[str, float]
    ) -> None:
        # As in ner, entities that are already on the docs give labels.
        for example in examples:
            for span in example.predicted.ents:
                if span.label_:
                    self.add_label(span.label_)
        if not self.labels:
            # The step computes no loss, which would refuse unknown labels.
            for example in examples:
                self.gold_tags(example)
        self._training_step(examples, self._training_loss, drop, sgd, losses)

    def _training_loss(
        self, examples: Sequence[Example], scores: "TagScores"
    ) -> tuple[float, "TagScores"]:
        """Return the loss and its gradient, and store the counts of sources for finish_update."""
        from spacy_latent.models.tag_sources import add_counts

        loss, gradient, counted = self._loss_with_counts(examples, scores)
        sources = self._sources()
        if sources is not None and counted is not None:
            add_counts(self.model, self._evidence_settings.sources, sources, counted)
        return loss, gradient

    def finish_update(self, sgd: Optimizer) -> None:
        from spacy_latent.models.tag_sources import keep_sources, learn_counts

        names = self._evidence_settings.sources
        sources = learn_counts(self.model, names)
        super().finish_update(sgd)
        if sources is not None:
            keep_sources(self.model, names, sources)

    def get_loss(
        self, examples: Iterable[Example], scores: "TagScores"
    ) -> tuple[float, "TagScores"]:
        """Compute the loss of a batch.

        Returns:
            The loss summed over docs, and its gradient for the scores.
        """
        loss, gradient, _ = self._loss_with_counts(examples, scores)
        return loss, gradient

    def _loss_with_counts(
        self, examples: Iterable[Example], scores: "TagScores"
    ) -> tuple[float, "TagScores", "TagSources | None"]:
        """Return the results of get_loss, and the counts of the sources' annotation.

        The emissions are unchanged outputs of the model. ``open_tags`` forbids tags in prediction
        only.
        """
        from spacy_latent.models.tag_evidence import Contradiction

        examples = list(examples)
        reader = self._evidence_reader()
        sources = self._sources()
        written = [reader.written(example) for example in examples]
        evidence = [
            self._evidence(d, example, reader, written[d]) for d, example in enumerate(examples)
        ]
        if sources is not None:
            for one, texts in zip(evidence, written):
                for own in texts:
                    one.potentials += sources.log_likelihood(own)
        posteriors: list[np.ndarray] = []
        try:
            losses, gradient, left_out = self._loss().loss_and_gradient(
                scores, self.tags, evidence, posteriors
            )
        except Contradiction as error:
            d = error.docs[0]
            raise self._refusal(d, examples[d], reader.contradiction(examples[d])) from None
        pairs = [(own, posteriors[d]) for d, texts in enumerate(written) for own in texts]
        counted = sources.counted(*zip(*pairs)) if sources is not None and pairs else None
        if left_out:
            text = examples[left_out[0]].reference.text[:60]
            self.tell_once(
                "left out",
                f"no sequence of entities agrees with the annotation of {len(left_out)} doc(s) of "
                f"a batch, such as {text!r}. Such docs do not count, here and in other batches.",
            )
        return float(sum(losses)), gradient, counted

    def _sources(self) -> "TagSources | None":
        """Return the learned reliability of the sources of annotation, or None without sources."""
        from spacy_latent.models.tag_sources import sources_of

        names = self._evidence_settings.sources
        return sources_of(self.model, names, len(self.labels)) if names else None

    def source_reliability(self) -> "list[SourceReliability]":
        """Estimate how often each source is right on a label, from the last batches of training."""
        sources, names = self._sources(), self._evidence_settings.sources
        return [] if sources is None else sources.reliability(names, self.labels)

    def _evidence_reader(self) -> EvidenceReader:
        settings = self._evidence_settings
        return EvidenceReader(self.name, self.labels, self.tags, settings, self.tell_once)

    def _evidence(
        self, number: int, example: Example, reader: EvidenceReader, written: "list[Written]"
    ) -> "TagEvidence":
        """Collect the evidence about the tags of one doc of a batch."""
        from spacy_latent.models.tag_evidence import TagEvidence

        known = self.gold_tags(example)
        for what, warning in self._gold_reader().unpredictable(example, known, self._warned):
            self.tell_once(what, warning)
        if unread := self._gold_reader().unread_rejects(example):
            self.tell_once("rejected spans", unread)
        if long := self._gold_reader().long_rejects(example):
            self.tell_once("long rejected spans", long)
        allowed = known.numpy()

        def refuse(why: str) -> None:
            raise self._refusal(number, example, why)

        counts = reader.counts(allowed, example, refuse)
        # Tokens that are taken as outside at random must not contradict a flag.
        if not any(one.holds and not one.wrong for one in counts):
            reader.take_as_outside(allowed, example, written)
        found = TagEvidence.of_mask(allowed, self._gold_reader().incorrect_runs(example))
        found.counts = counts
        if not found.only_forbids and self.cfg["loss"] != "crf":
            # ``check_settings`` refuses flags in the settings with this loss, so these come from
            # the doc.
            refuse(
                f"doc._.entity_flags counts entities, and loss is {self.cfg['loss']!r}; only loss "
                "= 'crf' has probabilities of counts. Use that, or leave out flags other than 0."
            )
        return found

    def _gold_reader(self) -> EntityGold:
        return EntityGold(self.name, self.labels, self.tags, self.cfg["incorrect_spans_key"])

    def gold_tags(self, example: Example, refuse_unknown: bool = True) -> "Tensor":
        """Return the tags that agree with the reference, see :meth:`EntityGold.allowed`."""
        return self._gold_reader().allowed(example, self._evidence_reader(), refuse_unknown)

    def _refusal(self, number: int, example: Example, why: str) -> LatentError:
        text = example.reference.text[:60]
        return LatentError(f"{self.name}: text {number + 1} of the batch, {text!r}: {why}")

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Language | None = None,
        labels: object = None,
    ) -> None:
        """Take the labels from ``labels`` or from the examples, and initialise the model.

        Args:
            labels (Sequence[str]): names of labels, as ``spacy init labels`` writes them.

        Raises:
            LatentError: if ``labels`` is not a list of names.
        """
        from spacy_latent.models.crf_tagger import begin_outside
        from spacy_latent.models.tag_sources import keep_sources

        self.check_initialize(get_examples, nlp)
        check_lexeme_norms(self.vocab, "crf_ner")
        settings = self._evidence_settings
        if labels is not None:
            names = self.names_given(labels)
            # The labels are known, and the first texts are enough for the warnings.
            survey = EvidenceSurvey.of(islice(get_examples(), SURVEYED), settings)
        else:
            survey = EvidenceSurvey.of(get_examples(), settings)
            names = sorted(survey.names)
        self.cfg["calibration"] = None
        keep_sources(self.model, settings.sources, None)
        for name in names:
            self.add_label(name)
        if not self.labels:
            self.warn_without_labels(
                "entity",
                "no labels to learn, and will find nothing",
                "annotated entities in doc.ents",
                labels is not None,
            )
        self._gold_reader().warn_without_incorrect_spans(get_examples())
        if unknown := set(settings.flags.values()).difference(self.labels):
            raise LatentError(
                f"{self.name}: evidence.flags has the label {min(unknown)!r}, and the labels are "
                f"{', '.join(self.labels)}. Correct the spelling, or add it to the labels."
            )
        lost = lost_by_augmenter(nlp, get_examples())
        for doubt in [*survey.doubts(self.labels), *filter(None, [lost])]:
            warnings.warn(f"{self.name}: {doubt}", DoubtfulEvidence, stacklevel=2)
        # The warnings above named these labels already.
        self._warned.update(unknown_source_label(label) for label in survey.given)
        self._resize()
        self.initialize_model(get_examples)
        if survey.leaves_open(self.labels):
            begin_outside(self.model)
        warn_not_given(self, nlp)

    def rehearse(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optimizer | None = None,
        losses: dict[str, float] | None = None,
    ) -> dict[str, float]:
        """Keep the predictions close to those before training was resumed.

        The loss is the cross-entropy to the sequences of the earlier model, for the labels that it
        knew.
        """
        from spacy_latent.models.tag_rehearsal import first_tags, rehearsal_gradient

        losses = {} if losses is None else losses
        before = self._rehearsal_model
        if before is None:
            return losses
        losses.setdefault(self.name, 0.0)
        examples = list(examples)
        validate_examples(examples, "CrfEntityRecognizer.rehearse")
        known = before.get_dim("nO") - before.attrs["untrained"]

        def loss_of(batch: Sequence[Example], found: Any) -> tuple[float, Any]:
            docs = [example.predicted for example in batch]
            sizes = [len(doc) for doc in docs]
            teacher = first_tags(before.predict(docs), known)
            return rehearsal_gradient(found, teacher, self.tags, sizes)

        self._training_step(examples, loss_of, drop, sgd, losses)
        return losses


make_crf_ner = Language.factory(
    "crf_ner",
    assigns=["doc.ents", "token.ent_iob", "token.ent_type", "doc._.latent"],
    default_config=default_config(CrfEntityRecognizer, "crf_ner", DEFAULT_CONFIG),
    default_score_weights={"ents_f": 1.0, "ents_p": 0.0, "ents_r": 0.0, "ents_per_type": None},
    func=factory_of(CrfEntityRecognizer, "crf_ner"),
)


def _structure(
    doc: Doc, chain: str, path: np.ndarray, tags: tuple[str, ...]
) -> annotations.SpanStructure:
    found = annotations.SpanStructure(0, len(path), chain, "tags", path, labels=tags)
    before = {(span.start, span.end) for span in doc.ents}
    if before:
        entities = annotations.entities_of(path, tags)
        found.given = np.array([(start, end) in before for start, end, _ in entities], dtype=bool)
    return found


def _outside(doc: Doc) -> annotations.SpanStructure:
    """Return a structure with all tokens outside of entities, for a component without labels."""
    nothing = np.zeros(len(doc), dtype="int32")
    return annotations.SpanStructure(0, len(doc), "TagSequence", "tags", nothing, labels=("O",))
