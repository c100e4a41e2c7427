"""Text classifier that reads only chosen words: a selector, a structure, a reader.

The selector and the reader have separate embedders. The reader's embedder gives a word the same
vector in any text. The reader's encoder, which adds context, runs after all other words are
removed. So words that are not chosen have no influence on the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from spacy.pipeline.tok2vec import Tok2VecListener
from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from spacy_latent.errors import IncompatiblePair, LatentError, NotTractable, check_not_negative
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.stochastic_mask import check_shares
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.compatibility import build_part, check_kind
from spacy_latent.layers.encoded_scorer import EncoderBuilder
from spacy_latent.layers.rationale_layer import RationaleLayer, RationaleSettings
from spacy_latent.layers.rationale_reader import READABLE, RationaleReader
from spacy_latent.models.candidates import AllWords, Candidates
from spacy_latent.models.evidence_bound import EvidenceBound
from spacy_latent.models.latent_layer_model import LatentBatch
from spacy_latent.models.latent_shim import TrainingSettings
from spacy_latent.models.latent_text_classifier import (
    classifier,
    init_output,
    latent_layer,
    used_poolings,
)
from spacy_latent.models.layer_settings import LayerSettings
from spacy_latent.models.released_candidates import present_candidates
from spacy_latent.models.scheduled_value import Temperature
from spacy_latent.models.separate_tok2vec import refuse_no_vectors, refuse_separate, width_of
from spacy_latent.models.span_getters import DocSpans, SpanGetter
from spacy_latent.models.text_layer_model import text_layer_model
from spacy_latent.models.text_module import TextModule
from spacy_latent.models.token_vectors import token_vectors, with_tokens
from spacy_latent.stages import Staged, periods
from spacy_latent.structures.base import Structure

NAME = "RationaleTextCat"


def build_rationale_text_cat_v1(
    tok2vec: Model[list[Doc], list[Floats2d]],
    embed: Model[list[Doc], list[Floats2d]],
    exclusive_classes: bool,
    structure: Structure | None = None,
    scorer: ScorerBuilder | None = None,
    estimator: Estimator | None = None,
    encoder: EncoderBuilder | None = None,
    candidates: Candidates | None = None,
    rate: float | None = None,
    transitions: float | None = None,
    multiplier_rate: float = 0.1,
    damping: float = 10.0,
    transition_cost: float = 0.0,
    span_getter: SpanGetter | None = None,
    use_reduce_max: bool = False,
    use_reduce_mean: bool = True,
    scorer_learn_rate: float = 1.0,
    entropy_weight: float = 0.0,
    temperature: float | Iterable[float] = 1.0,
    dropout: float | None = None,
    mixed_precision: bool = False,
    evidence: EvidenceBound | None = None,
    nO: int | None = None,
) -> Model[list[Doc], Floats2d]:
    """Build a model from docs to scores of labels that depend on chosen words alone.

    It is for ``latent_textcat`` and its multilabel twin. A selector chooses words, and a reader
    scores the labels from these (Lei et al. 2016, section 4). For a fixed choice, no other word can
    change the scores. With an encoder, the number of words between the chosen ones can.

    Args:
        tok2vec: embedder of the selector, of any kind, including listeners. Only the choice depends
            on it.
        embed: embedder of the reader. It must give a word the same vector in any text, such as
            ``spacy.MultiHashEmbed.v2`` with attributes of the word itself. This is tested when the
            model is initialized.
        exclusive_classes: whether each doc has one label (softmax) or any number of them (sigmoid).
        structure: structure of items, or a sequence of two tags, of which 1 chooses; None for KOfN.
        scorer: None for ItemScorer.
        estimator: None for StraightThrough. Any estimator for the structure can be used. The scores
            depend on hard choices if its structures are 0/1 at prediction. Otherwise the reader
            sees words in part.
        encoder: module that gives the reader's words the context of each other, such as
            ``spacy-latent.BiLSTM.v1``; None for a bag of words.
        candidates: words that may be chosen; None for all. ``spacy-latent.ReleasedCandidates.v1``
            restricts them in the first updates of training.
        rate, transitions: targets for the expected share of the words of each text that are chosen,
            and for the expected share of adjacent pairs with only one chosen word. A Lagrangian
            enforces them in training. None if the structure or the estimator limits the choice.
        multiplier_rate, damping: as in HardKuma.
        transition_cost: for sequences of two tags, a cost at each end of a run of chosen words,
            except at the end of the text. It is subtracted from the score of a rationale.
            Rationales then have fewer runs.
        span_getter: function that returns the spans of tokens that share a structure; None for
            DocSpans, the whole doc.
        use_reduce_max, use_reduce_mean: reductions of the vectors of the chosen words to one vector
            of the doc. For the maximum, words that are not chosen count as zeros.
        scorer_learn_rate, entropy_weight, temperature, dropout, mixed_precision: as in
            ``spacy-latent.LatentTok2Vec.v1``.
        evidence: objective to learn from the words of texts, including those without labels: a
            prior over choices, and a decoder that predicts the words that are not chosen from the
            chosen ones; None to learn only from labels. Predictions do not use it.
        nO: number of labels; set by the component.
    """
    from spacy_latent.estimators.straight_through import StraightThrough
    from spacy_latent.layers.item_scorer import build_item_scorer_v1
    from spacy_latent.structures.k_of_n import KOfN

    structure = structure or KOfN()
    estimator = estimator or StraightThrough()
    scorer = scorer or build_item_scorer_v1()
    pooling = used_poolings(NAME, max=use_reduce_max, mean=use_reduce_mean)
    choice = RationaleSettings(transition_cost, rate, transitions, multiplier_rate, damping)
    check_choice(structure, estimator, choice)
    reader = partial(RationaleReader, choice=structure.parts, encoder=encoder)
    settings = LayerSettings(structure, estimator, scorer, reader, entropy_weight)
    if evidence is not None:
        check_kind("evidence", evidence, EvidenceBound)
        evidence.check(structure, estimator)
    build = partial(
        build_rationale_module, settings=settings, choice=choice, pooling=pooling, evidence=evidence
    )
    texts = text_layer_model(
        build,
        TrainingSettings(scorer_learn_rate, Temperature(temperature), dropout, mixed_precision),
        input_width=None,
        staged=[one for one in (candidates, structure, estimator) if isinstance(one, Staged)],
        evidence=evidence,
    )
    refuse_separate(NAME, tok2vec)
    embedders = build_embedders(tok2vec, embed, candidates or AllWords())
    spans = span_getter or DocSpans(max_length=512)
    model = classifier(NAME, embedders, texts, init, exclusive_classes, spans, nO)
    model.attrs["rationale"] = True
    return model


def check_choice(structure: Structure, estimator: Estimator, choice: RationaleSettings) -> None:
    """Raise an error if the structure is no choice of words, or the settings do not fit it."""
    check_structure(structure, choice.transition_cost)
    for first, _ in periods(structure, estimator):
        present, stage = structure.at(first), estimator.at(first)
        if choice.transition_cost and present.parts == "tags" and stage.solves:
            raise IncompatiblePair(
                f"{NAME} with transition_cost and {present.name}",
                stage.name,
                f"SparseMAP needs a part for each score, and {present.name} has no parts for "
                "transitions between tags",
                "LinearChain with TransitionScorer, or Marginals",
            )
        check_targets(present, choice)


def check_structure(structure: Structure, transition_cost: float) -> None:
    """Raise an error if a structure is no choice of words, or the cost does not fit it."""
    if structure.parts not in READABLE:
        raise IncompatiblePair(
            NAME,
            structure.name,
            f"a rationale is a choice of words, and this structure is made of {structure.parts}",
            "KOfN, Bits, OneOfN, or LinearChain or TagSequence with two tags",
        )
    check_not_negative(NAME, transition_cost=transition_cost)
    if transition_cost and structure.parts == "items":
        raise IncompatiblePair(
            f"{NAME} with transition_cost",
            structure.name,
            "only sequences of tags have transitions",
            "LinearChain or TagSequence with two tags, or transition_cost = 0.0",
        )


def check_targets(structure: Structure, choice: RationaleSettings) -> None:
    """Raise an error for shares outside of 0 to 1, or if their marginals are not tractable."""
    check_shares(NAME, choice.rate, choice.transitions, choice.multiplier_rate, choice.damping)
    for name, share in (("rate", choice.rate), ("transitions", choice.transitions)):
        if share is not None and "marginals" not in structure.tractable:
            raise NotTractable(structure.name, "marginals", f"{name} = null")


def build_rationale_module(
    widths: list[int],
    *,
    settings: LayerSettings,
    choice: RationaleSettings,
    pooling: tuple[str, ...],
    evidence: EvidenceBound | None = None,
) -> TextModule:
    """Build the torch module for the widths of the selector's and the reader's vectors."""
    selector_width, reader_width = widths
    total_width = selector_width + reader_width + 1
    # Weights are drawn in this order: the scorer's, the estimator's, the reader's.
    scorer = build_part("scorer", settings.scorer, selector_width)
    estimator = settings.estimator.each(lambda stage: stage.for_width(total_width))
    reader: Any = settings.composer(reader_width)
    layer = RationaleLayer(
        scorer, settings.structure, estimator, reader, reader_width=reader_width, settings=choice
    )
    return TextModule(layer, pooling, 1, settings.entropy_weight, evidence)


def init(model: Model, X: Any = None, Y: Any = None) -> Model:
    """Build the module for both embedders, and check that the reader sees no context."""
    embedders, texts, _ = model.layers
    docs = with_tokens(X)
    refuse_no_vectors(embedders, docs or [])
    embedders.initialize(X=docs)
    widths = [width_of(part, docs or []) for part in embedders.layers]
    if all(width is not None for width in widths):
        if docs:
            check_context_free(embedders.get_ref("embed"), docs)
        shim: Any = texts.shims[0]
        shim.build(widths)
        texts.set_dim("nO", shim.module.output_width, force=True)
    return init_output(model, Y)


def check_context_free(embed: Model, docs: Sequence[Doc]) -> None:
    """Raise an error if the reader's embedder gives a word different vectors in different texts."""
    words = [token.text for doc in docs for token in doc][:64]
    plain = Doc(docs[0].vocab, words=words)
    # Try docs with annotation, too, since components set it after reading the whole text.
    other = Doc(docs[0].vocab, words=words[::-1], tags=words, lemmas=words, pos=["X"] * len(words))
    listens = any(isinstance(node, Tok2VecListener) for node in embed.walk())
    if not listens:
        here, there = embed.predict([plain, other])
        listens = bool(abs(here - there[::-1]).max() > 1e-4)
    if listens:
        raise LatentError(
            f"{NAME}: the vectors of embed depend on the other words of the text, so that the "
            "classifier would also read words that are not chosen. Use an embedder of single "
            "words, such as spacy.MultiHashEmbed.v2 with attributes like NORM, PREFIX, SUFFIX and "
            "SHAPE. For vectors that depend on the other chosen words, set encoder."
        )


# ---------------------------------------------------------------- both embedders side by side


def build_embedders(
    tok2vec: Model[list[Doc], list[Floats2d]],
    embed: Model[list[Doc], list[Floats2d]],
    candidates: Candidates,
) -> Model[list[Doc], list[Floats2d]]:
    """Build the rows that :class:`~spacy_latent.layers.rationale_layer.RationaleLayer` reads."""
    refs: dict[str, Model | None] = {"tok2vec": tok2vec, "embed": embed}
    return Model(
        "rationale_embedders",
        embed_both,
        init=init_both,
        layers=[tok2vec, embed],
        refs=refs,
        # "update" is the number of the update of training, from 0; None for prediction.
        attrs={"candidates": candidates, "update": None},
    )


def init_both(model: Model, X: Any = None, Y: Any = None) -> None:
    """Initialize both embedders. ``spacy pretrain`` initializes this layer alone."""
    for part in model.layers:
        part.initialize(X=X)


def embed_both(model: Model, docs: list[Doc], is_train: bool) -> tuple[list[Floats2d], Any]:
    """Return the features of the selector and of the reader, then 1 if a word may be chosen."""
    ops: Any = model.ops
    selector, backprop_selector = token_vectors(model.layers[0], docs, is_train)
    reader, backprop_reader = token_vectors(model.layers[1], docs, is_train)
    update = model.attrs["update"] if is_train else None
    allowed = present_candidates(model.attrs["candidates"], docs, update)
    # One transfer to a GPU.
    flat = ops.asarray2f(np.concatenate(allowed)[:, None]) if allowed else None
    may = ops.unflatten(flat, [len(one) for one in allowed]) if allowed else []
    rows = [ops.xp.concatenate(parts, axis=1) for parts in zip(selector, reader, may)]
    widths = [part[0].shape[1] if part else 0 for part in (selector, reader)]

    def backprop(gradients: list[Floats2d]) -> list[Doc]:
        cut = widths[0]
        backprop_selector([ops.as_contig(d[:, :cut]) for d in gradients])
        backprop_reader([ops.as_contig(d[:, cut : cut + widths[1]]) for d in gradients])
        return []

    return rows, backprop


# ---------------------------------------------------------------- chosen words


def chosen_weights(model: Model, batch: LatentBatch) -> list[np.ndarray]:
    """Return the degree to which the reader saw each word, ``(len(doc),)`` float32 for each doc.

    It is 0 for a word that the reader did not see, and 1 for a word chosen with certainty.
    """
    layer: Any = latent_layer(model)
    sizes = [max((end for _, end in spans), default=0) for spans in batch.spans]
    result = [np.zeros(size, dtype="float32") for size in sizes]
    for group, output in zip(batch.groups, batch.outputs):
        read = output.draw if output.composed is None else output.composed
        weights = layer.chosen(read).cpu().numpy()
        for b, (d, s) in enumerate(group.members):
            start, end = batch.spans[d][s]
            result[d][start:end] = weights[b, : end - start]
    return result
