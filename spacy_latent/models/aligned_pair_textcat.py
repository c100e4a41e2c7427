"""Classifier of pairs of texts over K alignments of their words: align, compare, aggregate.

See Parikh et al. 2016, and Niculae et al. 2018a for structured alignments.
"""

from __future__ import annotations

from collections.abc import Iterable

from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from spacy_latent.estimators.base import Estimator
from spacy_latent.layers.base import ComposerBuilder, ScorerBuilder
from spacy_latent.layers.compatibility import check_kind
from spacy_latent.models.alignment_evidence import AlignedWords
from spacy_latent.models.latent_shim import TrainingSettings
from spacy_latent.models.latent_text_classifier import classifier, init, used_poolings
from spacy_latent.models.layer_settings import LayerSettings
from spacy_latent.models.scheduled_value import Temperature
from spacy_latent.models.separate_tok2vec import width_of
from spacy_latent.models.span_getters import PairSpans, SpanGetter
from spacy_latent.models.text_layer_model import build_text_layer_model
from spacy_latent.structures.base import Structure

NAME = "aligned_pair_textcat"


def build_aligned_pair_textcat_v1(
    tok2vec: Model[list[Doc], list[Floats2d]],
    exclusive_classes: bool,
    structure: Structure | None = None,
    scorer: ScorerBuilder | None = None,
    estimator: Estimator | None = None,
    composer: ComposerBuilder | None = None,
    span_getter: SpanGetter | None = None,
    use_reduce_first: bool = False,
    use_reduce_last: bool = False,
    use_reduce_max: bool = True,
    use_reduce_mean: bool = True,
    scorer_learn_rate: float = 1.0,
    entropy_weight: float = 0.0,
    temperature: float | Iterable[float] = 1.0,
    dropout: float | None = None,
    mixed_precision: bool = False,
    evidence: AlignedWords | None = None,
    nO: int | None = None,
) -> Model[list[Doc], Floats2d]:
    """Build a model from docs of two texts each to scores of labels.

    It is for ``latent_textcat`` and its multilabel twin. The words of the texts under
    ``doc.spans["a"]`` and ``doc.spans["b"]`` are aligned. Each word is compared with the words
    aligned with it. The results are pooled for each text and concatenated. If one of the texts is
    empty, there is no alignment, and the scores are the same as for no words.

    Args:
        tok2vec: embedder, of any width. It reads the doc as one text. An embedder with context lets
            words at the boundary of the texts see some of the other text.
        exclusive_classes, scorer_learn_rate, entropy_weight, temperature, dropout: as in
            ``spacy-latent.LatentTextClassifier.v1``.
        structure: None for OneToOneAlignment.
        scorer: None for CellScorer.
        estimator: None for SparseMAP. Any estimator for the structure can be used.
        composer: None for AlignedComparison.
        span_getter: function that returns the two texts of each doc; None for PairSpans, those
            under "a" and "b".
        use_reduce_first, use_reduce_last, use_reduce_max, use_reduce_mean: reductions of the
            vectors of the words of each text to one vector.
        mixed_precision: as in ``spacy-latent.LatentTextClassifier.v1``.
        evidence: objective to learn alignments from the words of pairs, including those without
            labels: the words of the first text given the second text; None to learn only from
            labels. The structure must be ManyToOneAlignment.
        nO: number of labels; set by the component.
    """
    from spacy_latent.estimators.sparsemap import SparseMAP
    from spacy_latent.layers.aligned_comparison import build_aligned_comparison_v1
    from spacy_latent.layers.cell_scorer import build_cell_scorer_v1
    from spacy_latent.structures.one_to_one_alignment import OneToOneAlignment

    settings = LayerSettings(
        structure or OneToOneAlignment(),
        estimator or SparseMAP(),
        scorer or build_cell_scorer_v1(),
        composer or build_aligned_comparison_v1(),
        entropy_weight,
    )
    if evidence is not None:
        check_kind("evidence", evidence, AlignedWords, "spacy-latent.AlignedWords.v1")
        evidence.check(settings.structure, settings.estimator)
    pooling = used_poolings(
        NAME, first=use_reduce_first, last=use_reduce_last, max=use_reduce_max, mean=use_reduce_mean
    )
    latent = build_text_layer_model(
        settings,
        TrainingSettings(scorer_learn_rate, Temperature(temperature), dropout, mixed_precision),
        input_width=width_of(tok2vec, []),
        pooling=pooling,
        texts=2,
        evidence=evidence,
    )
    spans = span_getter or PairSpans()
    return classifier(NAME, tok2vec, latent, init, exclusive_classes, spans, nO)
