"""Classifier of pairs of texts, each composed by latent structures of its own.

See Niculae et al. 2018b. A pair with vectors u and v is classified by (u, v, |u − v|, u · v).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.base import Estimator, Given
from spacy_latent.kinds import find_kind
from spacy_latent.layers.base import ComposerBuilder, ScorerBuilder
from spacy_latent.layers.batch_interventions import BatchInterventions
from spacy_latent.layers.compatibility import check_kind
from spacy_latent.layers.latent_module import LatentOutput
from spacy_latent.models.latent_shim import TrainingSettings
from spacy_latent.models.latent_text_classifier import classifier, init, used_poolings
from spacy_latent.models.layer_settings import LayerSettings
from spacy_latent.models.scheduled_value import Temperature
from spacy_latent.models.separate_tok2vec import width_of
from spacy_latent.models.span_getters import PairSpans
from spacy_latent.models.span_groups import Group, no_loss
from spacy_latent.models.text_batch import Range
from spacy_latent.models.text_layer_model import build_text_layer_model
from spacy_latent.models.text_module import TextModule
from spacy_latent.structures.base import Structure

NAME = "composed_pair_textcat"
# Largest number of trees in the support of a text. Each pair of trees has a prediction.
MAX_ITER = 10
# Largest number of entries of the vectors of all pairs of a batch: a gigabyte in float32.
MAX_NUMBERS = 1 << 28


class TextsOfPairs(PairSpans):
    """Span getter that gives each of the two texts of a doc a structure of its own.

    A doc in which a text is empty has no spans.
    """

    def _split(self, doc: Doc) -> list[tuple[int, ...]]:
        first, second = self.texts(doc)
        sizes = [end - start for start, end in (first, second)]
        if not all(sizes):
            return []
        about = f"The doc {doc.text[:40]!r}: doc.spans[{self.keys[0]!r}] is tokens {first[0]} to "
        about += f"{first[1]}, and doc.spans[{self.keys[1]!r}] {second[0]} to {second[1]}"
        if first[1] > second[0]:
            raise LatentError(
                f"{about}. The first text has to end before the second begins. Make such docs with "
                "spacy_latent.corpora.text_pairs.make_pair_doc."
            )
        if max(sizes) > self.max_length:
            raise LatentError(
                f"{about}, which is longer than max_length = {self.max_length}. Each text has one "
                "structure. Raise max_length of spacy-latent.PairSpans.v1, or shorten the text."
            )
        return [first, second]


class PairModule(TextModule):
    """Module from rows to one vector for each doc of two texts and each pair of structures.

    The structures of both texts are independent. If the estimator weights structures, or draws
    samples without log-probabilities, all K² pairs are formed. A pair has the product of both
    weights, so that sums over pairs are exact. If samples have log-probabilities, the k-th samples
    of both texts are a pair, with the sum of their log-probabilities.
    """

    @property
    def output_width(self) -> int:
        return 4 * self.pooled_width

    def forward(  # type: ignore[override]
        self,
        rows: Tensor,
        groups: list[Group],
        docs: list[Range],
        texts: list[Range],
        given: Given | None = None,
        interventions: list[BatchInterventions] | None = None,
    ) -> tuple[tuple[Tensor, ...], Tensor | None, tuple[list[LatentOutput], Tensor]]:
        """Return the vectors of all docs; for arguments and results see TextModule."""
        apart, ranges = texts_apart(groups, len(docs))
        of_texts = None if given is None else [spans for spans in given for _ in range(2)]
        parts, penalty, (outputs, features) = super().forward(
            rows, apart, ranges, ranges, of_texts, interventions
        )
        sampled = any(output.draw.log_probs is not None for output in outputs)
        vectors, weights, log_probs, extras = (
            part.unflatten(1, (len(docs), 2)).unbind(2) for part in parts
        )
        if sampled:
            self._check_equal(*weights)
            (u, v), weight, log_prob = vectors, weights[0], log_probs[0] + log_probs[1]
        else:
            self._check_size(*weights[0].shape)
            u, v = in_pairs(*vectors)
            weight, other = in_pairs(*weights)
            weight = weight * other
            log_prob = torch.zeros_like(weight)
        pairs = torch.cat([u, v, (u - v).abs(), u * v], -1)
        if not outputs:
            # In training, a result without a gradient would raise an error.
            pairs = pairs + no_loss(rows)
        mean = features.unflatten(0, (len(docs), 2)).mean(1)
        return (pairs, weight, log_prob, extras[0] + extras[1]), penalty, (outputs, mean)

    def _check_size(self, count: int, docs: int) -> None:
        if count**2 * docs * self.output_width > MAX_NUMBERS:
            raise LatentError(
                f"{self.latent.present_estimator.name} returned up to {count} structures of a "
                f"text, so {count**2} pairs of them for each of {docs} docs. Lower the number of "
                "structures, as with max_iter = 10 of SparseMAP, or use smaller batches."
            )

    def _check_equal(self, first: Tensor, second: Tensor) -> None:
        if bool((first - second).detach().abs().gt(1e-4).any()):
            estimator = self.latent.present_estimator.name
            raise LatentError(
                f"{estimator} samples structures with different weights for each text, so that "
                "pairs of them have no weights. Use ScoreFunction, or SparseMAP with marginalize "
                "= true, whose pairs have the products of the weights."
            )


def in_pairs(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return all pairs of an entry of ``first`` and an entry of ``second``, both ``(K², ...)``."""
    count = len(first)
    return first.repeat_interleave(count, 0), second.repeat(count, *[1] * (second.dim() - 1))


def texts_apart(groups: list[Group], docs: int) -> tuple[list[Group], list[Range]]:
    """Return the groups with numbers of texts in place of docs, and the rows of each text.

    The texts 2d and 2d + 1 are of doc d. They have no rows if the doc has no spans.
    """
    ranges = [(0, 0)] * (2 * docs)
    apart = []
    for group in groups:
        members = [(2 * doc + side, side) for doc, side in group.members]
        apart.append(replace(group, members=members))
        begins, lengths = group.rows[:, 0].tolist(), group.lengths.tolist()
        for (text, _), begin, length in zip(members, begins, lengths):
            ranges[text] = begin, begin + length
    return apart, ranges


def build_composed_pair_textcat_v1(
    tok2vec: Model[list[Doc], list[Floats2d]],
    exclusive_classes: bool,
    structure: Structure | None = None,
    scorer: ScorerBuilder | None = None,
    estimator: Estimator | None = None,
    composer: ComposerBuilder | None = None,
    span_getter: PairSpans | None = None,
    use_reduce_root: bool = True,
    use_reduce_first: bool = False,
    use_reduce_last: bool = False,
    use_reduce_max: bool = False,
    use_reduce_mean: bool = False,
    scorer_learn_rate: float = 1.0,
    entropy_weight: float = 0.0,
    temperature: float | Iterable[float] = 1.0,
    dropout: float | None = None,
    mixed_precision: bool = False,
    nO: int | None = None,
) -> Model[list[Doc], Floats2d]:
    """Build a model from docs of two texts each, with a structure for each text, to label scores.

    It is for ``latent_textcat`` and its multilabel twin. The texts are under ``doc.spans["a"]`` and
    ``doc.spans["b"]``. The same weights compose each by its own structures to a vector, u and v. A
    linear layer reads (u, v, |u − v|, u · v). With SparseMAP or another estimator that weights K
    structures of a text, the loss is summed exactly over the K² pairs, and time and memory for the
    linear layer grow with K². If one of the texts is empty, the scores are the same as for no
    words.

    Args:
        tok2vec: embedder, of any width. It reads the doc as one text. An embedder with context lets
            words at the boundary of the texts see some of the other text.
        exclusive_classes, scorer_learn_rate, entropy_weight, temperature, dropout: as in
            ``spacy-latent.LatentTextClassifier.v1``.
        structure: structure over one text; None for SpanningTree.
        scorer: None for BiaffineScorer.
        estimator: None for SparseMAP with marginalize = true and at most ten trees of a text.
        composer: None for ChildSumTreeLstm.
        span_getter: PairSpans with the names of both span groups; None for "a" and "b". Texts
            longer than its max_length are an error.
        use_reduce_root: whether to read the vector of the root of each text's tree, as in
            ``spacy-latent.LatentTextClassifier.v1``. Only for structures of arcs.
        use_reduce_first, use_reduce_last, use_reduce_max, use_reduce_mean: reductions of the
            vectors of the words of each text to one vector.
        mixed_precision: as in ``spacy-latent.LatentTextClassifier.v1``.
        nO: number of labels; set by the component.
    """
    from spacy_latent.estimators.sparsemap import SparseMAP
    from spacy_latent.layers.biaffine_scorer import build_biaffine_scorer_v1
    from spacy_latent.layers.child_sum_tree_lstm import build_child_sum_tree_lstm_v1
    from spacy_latent.structures.spanning_tree import SpanningTree

    pairs = span_getter or PairSpans()
    check_kind("span_getter", pairs, PairSpans, "spacy-latent.PairSpans.v1")
    settings = LayerSettings(
        structure or SpanningTree(),
        estimator or SparseMAP(marginalize=True, max_iter=MAX_ITER),
        scorer or build_biaffine_scorer_v1(),
        composer or build_child_sum_tree_lstm_v1(),
        entropy_weight,
    )
    check_settings(settings)
    pooling = used_poolings(
        NAME,
        root=use_reduce_root,
        first=use_reduce_first,
        last=use_reduce_last,
        max=use_reduce_max,
        mean=use_reduce_mean,
    )
    latent = build_text_layer_model(
        settings,
        TrainingSettings(scorer_learn_rate, Temperature(temperature), dropout, mixed_precision),
        input_width=width_of(tok2vec, []),
        pooling=pooling,
        texts=1,
        module=PairModule,
    )
    spans = TextsOfPairs(*pairs.keys, max_length=pairs.max_length)
    return classifier(NAME, tok2vec, latent, init, exclusive_classes, spans, nO)


def check_settings(settings: LayerSettings) -> None:
    """Raise an error for structures of both texts, or for weights that pairs cannot have."""
    from spacy_latent.estimators.sum_and_sample import SumAndSample

    for each in [settings.estimator, *(stage for _, stage in settings.estimator.stages)]:
        if isinstance(each, SumAndSample):
            raise IncompatiblePair(
                "ComposedPairTextCat",
                each.name,
                "it samples structures with different weights for each text, so that pairs of "
                "them have no weights",
                "SparseMAP with marginalize = true, or ScoreFunction",
            )
    for each in [settings.structure, *(stage for _, stage in settings.structure.stages)]:
        if any(place == "others" for _, place in find_kind(each.kind).axes):
            raise IncompatiblePair(
                "ComposedPairTextCat",
                each.name,
                "each text needs a structure of its own, and an alignment is one of both texts",
                "spacy-latent.AlignedPairTextCat.v1",
            )
