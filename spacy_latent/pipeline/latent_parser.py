"""The component ``latent_parser``: sentences with labelled dependency trees and probabilities."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from spacy.attrs import DEP, HEAD, IS_SPACE
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.util import check_lexeme_norms
from spacy.vocab import Vocab
from thinc.api import Model, Optimizer, set_dropout_rate

from spacy_latent import annotations
from spacy_latent.annotations.heads import known_heads, some_starts
from spacy_latent.errors import LatentError
from spacy_latent.interventions import intervention_on
from spacy_latent.pipeline.factories import default_config, factory_of
from spacy_latent.pipeline.labelled_component import LabelledComponent
from spacy_latent.pipeline.learnt_parse_calibration import ParseCalibration
from spacy_latent.pipeline.scores_given import warn_not_given

if TYPE_CHECKING:
    from spacy_latent.models.parses import Parse

DEFAULT_CONFIG = """
[latent_parser]
scorer = {"@scorers": "spacy.parser_scorer.v1"}

[latent_parser.model]
@architectures = "spacy-latent.LabelledParser.v1"
label_hidden_width = 32
max_length = 512
scorer_learn_rate = 3.0

[latent_parser.model.tok2vec]
@architectures = "spacy.HashEmbedCNN.v2"

[latent_parser.model.structure]
@misc = "spacy-latent.SpanningTree.v1"
single_root = true

[latent_parser.model.scorer]
@misc = "spacy-latent.RelativeBiaffineScorer.v1"
hidden_width = 128

[latent_parser.model.scorer.encoder]
@misc = "spacy-latent.BiLSTM.v1"
hidden_width = 64
"""
# Labels of roots and of white space, as in spaCy's parser.
ROOT, OTHER = "ROOT", "dep"
# Label that spaCy's scorer leaves out.
PUNCTUATION = "punct"
ATTACHMENT = "dep_uas", "dep_las", "dep_las_per_type"
SENTENCES = "sents_p", "sents_r", "sents_f"


class LatentParser(LabelledComponent[ParseCalibration]):
    """Parser like spaCy's ``parser``: it sets ``doc.sents``, ``token.head`` and ``token.dep_``.

    Sentences are found first: each token starts one or not, independently of the others. Starts
    that are set on a doc stay, and so do tokens that are set not to start a sentence. Each sentence
    then gets the tree of the model's structure with the highest sum of arc scores. Each arc gets
    its best label. Roots have the label "ROOT". White space attaches to the word before it, with
    the label "dep". A parse that is already on the doc is replaced.

    The loss that is reported in training is in nats, summed over docs and over the losses of trees,
    labels and sentences. If the model learns from words, it includes their weighted loss. Their
    unweighted loss is reported under the component's name with "_bound" or "_evidence".

    Args:
        annotate: "map" writes the best trees to ``doc._.latent``. "probabilities" also writes the
            probabilities of arcs, of labelled arcs and of whole trees. "none" writes nothing there.
        threshold: least probability of an arc that is stored. A calibration's slope and shifts are
            applied after this selection. Arcs of the best tree are always stored.
        alternatives: number of ranked trees to store for each sentence, including the best one.
        scorer: scorer of the component, as in ``parser``.
    """

    # See pipeline.inspection.LatentComponent.
    own_structures = "heads"
    _labelled = "dependencies"
    _calibration_type = ParseCalibration

    def __init__(
        self,
        vocab: Vocab,
        model: Model,
        name: str = "latent_parser",
        *,
        annotate: str = "map",
        threshold: float = 0.01,
        alternatives: int = 0,
        scorer: Callable | None = None,
    ) -> None:
        if model.name != "labelled_parser":
            raise LatentError(
                f"{name}: its model is {model.name!r}, which has no labelled trees. Use "
                'model.@architectures = "spacy-latent.LabelledParser.v1" with that model as '
                "tok2vec."
            )
        super().__init__(
            vocab,
            model,
            name,
            scorer,
            annotate=annotate,
            threshold=threshold,
            alternatives=alternatives,
        )

    def check_settings(self) -> None:
        cfg = self.cfg
        annotations.check_settings(
            self.name, cfg["annotate"], cfg["threshold"], cfg["alternatives"]
        )

    # ---------------------------------------------------------------- labels

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of arcs: the label of roots, then the others in the order of their addition."""
        return (ROOT, *self.cfg["labels"])

    @property
    def all_labels(self) -> tuple[str, ...]:
        """Labels of all arcs: roots, the learned labels, and white space."""
        return (*self.labels, OTHER)

    @property
    def _calibrated_labels(self) -> tuple[str, ...]:
        return self.all_labels

    def _resize(self) -> None:
        from spacy_latent.models.labelled_parser import set_labels

        set_labels(self.model, len(self.cfg["labels"]))

    # ---------------------------------------------------------------- prediction

    def predict(self, docs: Iterable[Doc]) -> list["Parse | None"]:
        """Parse the docs.

        Returns:
            A :class:`spacy_latent.models.parses.Parse` for each doc, or None for a doc without
            tokens.
        """
        from spacy_latent.models.added_labels import UNTRAINED
        from spacy_latent.models.labelled_parser import run_on_rows
        from spacy_latent.models.parses import Request, parse

        docs = list(docs)
        found: list[Parse | None] = [None] * len(docs)
        filled = [i for i, doc in enumerate(docs) if len(doc)]
        if not filled:
            return found
        self.warn_without_vectors(docs)
        calibration = self.calibration or ParseCalibration()
        request = Request(
            self.all_labels,
            self.cfg["annotate"],
            self.cfg["threshold"],
            self.cfg["alternatives"],
            self.model.attrs["max_length"],
            intervention_on(self.model),
            self.model.attrs[UNTRAINED],
            calibration.temperature,
            calibration.label_temperature,
            calibration.confidences(self.all_labels),
            calibration.least,
            calibration.lowest_of_set(self.all_labels),
        )
        own = [docs[i] for i in filled]
        parses, _ = run_on_rows(
            self.model, own, partial(parse, docs=own, request=request), is_train=False
        )
        for i, one in zip(filled, parses):
            found[i] = one
            for span in one.spans:
                whole, labelled = span.whole_probability, span.labelled_whole_probability
                if whole is not None and labelled is not None:
                    sure = calibration.tree_confidences(whole, labelled)
                    span.whole_probability, span.labelled_whole_probability = sure
        return found

    def set_annotations(self, docs: Iterable[Doc], predictions: Sequence["Parse | None"]) -> None:
        names, vocab, hashes = self.all_labels, None, np.zeros(0, dtype="uint64")
        for doc, parse in zip(docs, predictions):
            if parse is not None:
                # In a sourced component this may differ from the component's own vocab.
                if doc.vocab is not vocab:
                    vocab = doc.vocab
                    hashes = np.array([vocab.strings.add(name) for name in names], dtype="uint64")
                offsets = (parse.heads - np.arange(len(doc))).astype("uint64")
                values: Any = np.stack([offsets, hashes[parse.labels]], 1)
                # Sentences follow from the roots.
                doc.from_array([HEAD, DEP], values)
            if self.cfg["annotate"] != "none":
                annotations.write(doc, self.name, [] if parse is None else parse.spans)

    def structures(self, docs: Sequence[Doc]) -> list[list[annotations.SpanStructure]]:
        """Predict the structures of docs, see :func:`spacy_latent.pipeline.inspect_docs`."""
        return [[] if parse is None else parse.spans for parse in self.predict(docs)]

    # ---------------------------------------------------------------- training

    def _learn(
        self, examples: list[Example], drop: float, sgd: Optimizer | None, losses: dict[str, float]
    ) -> None:
        from spacy_latent.models.added_labels import count_as_trained
        from spacy_latent.models.gold_trees import read_gold
        from spacy_latent.models.labelled_parser import run_on_rows, shares_of, word_objective_of
        from spacy_latent.models.tree_losses import batch_loss

        docs = [example.predicted for example in examples]
        examples = [example for example in examples if len(example.predicted)]
        if not examples:
            return
        places = {self.vocab.strings[label]: i for i, label in enumerate(self.cfg["labels"])}
        longest = self.model.attrs["max_length"]
        gold = [read_gold(example, places, self.name, longest) for example in examples]
        set_dropout_rate(self.model, drop)
        filled = [example.predicted for example in examples]
        compute = partial(batch_loss, docs=filled, gold=gold, shares=shares_of(self.model))
        (loss, parts), backprop = run_on_rows(self.model, docs, compute, is_train=True)
        backprop()
        count_as_trained(self.model)
        self.forget_calibration(stacklevel=4)
        if sgd is not None:
            self.finish_update(sgd)
        losses[self.name] += loss
        evidence = word_objective_of(self.model)
        if evidence is not None:
            key = f"{self.name}_{evidence.settings.loss}"
            losses[key] = losses.get(key, 0.0) + float(parts.words.sum())
        if parts.left_out:
            text = examples[parts.left_out[0]].reference.text[:60]
            self.tell_once(
                "left out",
                f"no tree agrees with the heads of {len(parts.left_out)} sentence(s) of a batch, "
                f"such as one in {text!r}. Such sentences do not count, here and in other batches.",
            )

    def get_loss(self, examples: Iterable[Example], scores: object) -> NoReturn:
        """Raise NotImplementedError, since the loss needs more than the model's output.

        Labels are scored at the arcs of the reference trees. See
        :mod:`spacy_latent.models.tree_losses`.
        """
        raise NotImplementedError(f"{self.name} computes its loss in update(). Call that.")

    def score(self, examples: Iterable[Example], **kwargs: object) -> dict[str, object]:
        """Score parses; words of references without a head do not count.

        spaCy's scorer takes the places of such words in one text as places without heads in all
        later texts, and tokens that join such words as wrong. The attachment scores are therefore
        computed on one long text, in which such tokens are labelled as punctuation. Sentences are
        scored in texts with all heads or none, because spaCy derives wrong starts from some heads.
        Texts with some sentence starts are left out, too.
        """
        examples = list(examples)
        scores: dict[str, object] = super().score(examples, **kwargs)
        heads = [_heads_of_words(example.reference) for example in examples]
        if all((own >= 0).all() for own in heads):
            return scores
        sides = [[example.x for example in examples], [example.y for example in examples]]
        if len({id(doc.vocab) for docs in sides for doc in docs}) > 1:
            # Docs of several vocabs cannot be joined.
            sides = [list(DocBin(docs=docs).get_docs(self.vocab)) for docs in sides]
        # Its type hints lack ``exclude``.
        join: Any = Doc.from_docs
        joined = [join(docs, exclude=["spans", "user_data"]) for docs in sides]
        if joined[0] is not None and joined[1] is not None:
            whole_text = Example(joined[0], joined[1])
            _leave_out_unknown(whole_text)
            of_heads = super().score([whole_text], **kwargs)
            scores.update({key: of_heads[key] for key in ATTACHMENT if key in of_heads})
        whole = [
            example
            for example, own in zip(examples, heads)
            if (own >= 0).all() or ((own < 0).all() and some_starts(example.reference) is None)
        ]
        of_starts = super().score(whole, **kwargs)
        scores.update({key: of_starts[key] for key in SENTENCES if key in of_starts})
        return scores

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
        from spacy_latent.models.evidence_bound import begin_word_objective
        from spacy_latent.models.labelled_parser import word_objective_of

        self.check_initialize(get_examples, nlp)
        check_lexeme_norms(self.vocab, "latent_parser")
        given = _labels_of(get_examples()) if labels is None else self.names_given(labels)
        for name in given:
            self.add_label(name)
        self.cfg["calibration"] = None
        has_arcs = bool(self.cfg["labels"])
        if not has_arcs:
            self.add_label(OTHER)
        self._resize()
        self.initialize_model(get_examples)
        begin_word_objective(self.model, (example.predicted for example in get_examples()))
        # With a loss of words the parser also learns without labels.
        if not has_arcs and word_objective_of(self.model) is None:
            self.warn_without_labels(
                "dependency",
                "no trees and no labels to learn, and its parses will say nothing",
                "token.head and token.dep, as a parser learns from",
                labels is not None,
            )
        warn_not_given(self, nlp)


make_latent_parser = Language.factory(
    "latent_parser",
    assigns=["token.dep", "token.head", "token.is_sent_start", "doc.sents", "doc._.latent"],
    default_config=default_config(LatentParser, "latent_parser", DEFAULT_CONFIG),
    default_score_weights={
        "dep_uas": 0.5,
        "dep_las": 0.5,
        "dep_las_per_type": None,
        "sents_p": None,
        "sents_r": None,
        "sents_f": 0.0,
    },
    func=factory_of(LatentParser, "latent_parser"),
)


def _labels_of(examples: Iterable[Example]) -> list[str]:
    """Return the sorted labels of the arcs of all references, except arcs of white space."""
    found: set[str] = set()
    for example in examples:
        reference = example.reference
        heads, labels = known_heads(reference)
        known = (heads >= 0) & (heads != np.arange(len(heads))) & (labels != 0)
        words = reference.to_array(IS_SPACE) == 0
        found.update(
            reference.vocab.strings[int(label)] for label in np.unique(labels[known & words])
        )
    return sorted(found)


def _leave_out_unknown(example: Example) -> None:
    """Label predicted tokens as punctuation if they join words of the reference without heads."""
    unknown, to_gold = known_heads(example.reference)[0] < 0, example.alignment.x2y
    for i in np.flatnonzero(to_gold.lengths > 1).tolist():
        if unknown[to_gold[i]].all():
            example.predicted[i].dep_ = PUNCTUATION


def _heads_of_words(doc: Doc) -> np.ndarray:
    """Return the heads of the words of a doc, −1 if unknown."""
    heads, _ = known_heads(doc)
    return heads[doc.to_array(IS_SPACE) == 0]
