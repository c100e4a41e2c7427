"""Text classifier that reads only a code of the text: a latent category, or a vector of bits.

With a bound on the evidence of words, it is a semi-supervised variational autoencoder of bags of
words with a discrete latent variable (compare Kingma et al. 2014; Miao et al. 2016, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from spacy_latent.errors import IncompatiblePair, LatentError, check_whole
from spacy_latent.estimators.base import Estimator
from spacy_latent.estimators.dense_marginalization import DenseMarginalization
from spacy_latent.layers.compatibility import check_kind, check_parts
from spacy_latent.layers.document_code import CodeEmbedding, CodeScorer, DocumentCodeLayer
from spacy_latent.layers.encoded_scorer import check_hidden_width
from spacy_latent.models.evidence_bound import EvidenceBound
from spacy_latent.models.latent_shim import TrainingSettings
from spacy_latent.models.latent_text_classifier import classifier, init, run
from spacy_latent.models.scheduled_value import Temperature
from spacy_latent.models.separate_tok2vec import refuse_separate, width_of
from spacy_latent.models.span_getters import DocSpans
from spacy_latent.models.text_layer_model import text_layer_model
from spacy_latent.models.text_module import TextModule
from spacy_latent.stages import periods
from spacy_latent.structures.base import Structure

NAME = "DocumentCode"
# Greater than the length of any doc, so that each has one code.
WHOLE = 10**9


def build_document_code_v1(
    tok2vec: Model[list[Doc], list[Floats2d]],
    exclusive_classes: bool,
    structure: Structure | None = None,
    estimator: Estimator | None = None,
    size: int = 16,
    code_width: int = 64,
    hidden_width: int | None = None,
    scorer_learn_rate: float = 1.0,
    temperature: float | Iterable[float] = 1.0,
    dropout: float | None = None,
    mixed_precision: bool = False,
    evidence: EvidenceBound | None = None,
    nO: int | None = None,
) -> Model[list[Doc], Floats2d]:
    """Build a model from docs to scores of labels that depend only on one code for each doc.

    Experimental: may change in any version.

    It is for ``latent_textcat`` and its multilabel twin. It needs ``annotate = "none"``, as there
    are no structures of words. ``models.document_code.codes`` returns the codes.

    Args:
        tok2vec: embedder, of any kind, including listeners.
        exclusive_classes: whether each doc has one label (softmax) or any number of them (sigmoid).
        structure: set of codes. None for OneOfN, a category; Bits for all vectors of bits; KOfN for
            vectors with k bits that are 1.
        estimator: None for DenseMarginalization, which sums over up to 64 codes. Any estimator for
            the structure can be used.
        size: number of categories, or of bits.
        code_width: width of the vector of a code, which is the sum of the vectors of its bits that
            are 1.
        hidden_width: width of a hidden layer between the mean and maximum of the token vectors and
            the scores of the parts of the code; None for no such layer.
        scorer_learn_rate, temperature, dropout, mixed_precision: as in
            ``spacy-latent.LatentTok2Vec.v1``.
        evidence: objective to learn from the words of texts, including those without labels: a
            prior over codes, and a decoder of the words from the code; None to learn only from
            labels.
        nO: number of labels; set by the component.
    """
    from spacy_latent.structures.one_of_n import OneOfN

    structure = structure or OneOfN()
    estimator = estimator or DenseMarginalization()
    check_whole(NAME, least=2, size=size)
    check_whole(NAME, code_width=code_width)
    check_hidden_width(NAME, hidden_width)
    check_codes(structure, estimator, size)
    if evidence is not None:
        check_kind("evidence", evidence, EvidenceBound)
        evidence.check(structure, estimator)
    refuse_separate(NAME, tok2vec)
    layer = partial(DocumentCodeLayer, size=size, code_width=code_width, hidden_width=hidden_width)
    build = partial(
        build_code_module, layer=layer, structure=structure, estimator=estimator, evidence=evidence
    )
    texts = text_layer_model(
        build,
        TrainingSettings(scorer_learn_rate, Temperature(temperature), dropout, mixed_precision),
        input_width=width_of(tok2vec, []),
        staged=[structure, estimator],
        evidence=evidence,
    )
    spans = DocSpans(max_length=WHOLE)
    model = classifier(NAME, tok2vec, texts, init, exclusive_classes, spans, nO)
    model.attrs["code"] = True
    return model


def check_codes(structure: Structure, estimator: Estimator, size: int) -> None:
    """Raise an error if the structure is no set of codes, or the estimator does not fit it."""
    check_kind("structure", structure, Structure)
    if structure.parts != "items":
        raise IncompatiblePair(
            NAME,
            structure.name,
            f"a code is made of items, and this structure is made of {structure.parts}",
            "OneOfN, KOfN or Bits",
        )
    check_parts(structure, estimator, partial(CodeScorer), partial(CodeEmbedding))
    for first, _ in periods(structure, estimator):
        check_stage(structure.at(first), estimator.at(first), size)


def check_stage(codes: Structure, estimator: Estimator, size: int) -> None:
    """Raise an error if an estimator needs structures of words, or sums over too many codes."""
    if not estimator.uses_scores:
        raise IncompatiblePair(
            NAME,
            estimator.name,
            "it gives structures of words, and a code has no words",
            "DenseMarginalization, ScoreFunction or another estimator that reads scores",
        )
    if estimator.reward is not None and estimator.reward.needs_gold:
        raise IncompatiblePair(
            NAME,
            type(estimator.reward).__name__,
            "it compares with gold structures, and no text has a gold code",
            "a reward that needs no gold structure, or null",
        )
    if isinstance(estimator, DenseMarginalization):
        count = float(codes.log_count(torch.zeros(1, size), torch.tensor([size])).exp())
        if count > estimator.max_structures + 0.5:
            raise LatentError(
                f"{NAME}: {codes!r} of size {size} has {count:.3g} codes, and {estimator.name} "
                f"sums at most {estimator.max_structures}. Raise its max_structures, lower size, "
                "or use SparseMAP with marginalize=true, TopKSparsemax or ScoreFunction."
            )


def build_code_module(
    width: int,
    *,
    layer: partial[DocumentCodeLayer],
    structure: Structure,
    estimator: Estimator,
    evidence: EvidenceBound | None,
) -> TextModule:
    """Build the module for embedders of this width, with one vector for each text."""
    own = estimator.each(lambda stage: stage.for_width(width))
    # All tokens of a text have the same vector.
    return TextModule(layer(width, structure, own), ("first",), 1, 0.0, evidence)


def codes(model: Model, docs: Sequence[Doc]) -> np.ndarray:
    """Return the code from which the labels of each doc are predicted, ``(D, size)`` float32.

    The code is 0/1 if the estimator predicts one code, otherwise the mean of the codes it predicts.
    It is NaN for an empty doc.

    Args:
        model: model of a component ``latent_textcat`` with a DocumentCode.
    """
    if not model.attrs.get("code"):
        raise LatentError(
            f"The model is {model.name!r}, which gives docs no codes. Use a latent_textcat with "
            'model.@architectures = "spacy-latent.DocumentCode.v1".'
        )
    docs = list(docs)
    shim: Any = model.get_ref("latent").shims[0]
    result = np.full((len(docs), shim.module.latent.scorer.size), np.nan, dtype="float32")
    if not any(len(doc) for doc in docs):
        return result
    batch = run(model, docs, is_train=False)[0].made.batch
    for group, output in zip(batch.groups, batch.outputs):
        mean = output.draw.mean().cpu().numpy()
        for b, (d, _) in enumerate(group.members):
            result[d] = mean[b]
    return result
