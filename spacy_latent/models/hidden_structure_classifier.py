"""Text classifier with a hidden structure: a hidden conditional random field.

The logit of a class is the log-partition of the scores of the parts, which depend on the class
(Quattoni et al. 2007).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from spacy.tokens import Doc
from thinc.api import Model, noop
from thinc.types import Floats2d
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair
from spacy_latent.estimators.base import Given
from spacy_latent.estimators.marginals import Marginals
from spacy_latent.layers.base import ScorerBuilder
from spacy_latent.layers.batch_interventions import BatchInterventions
from spacy_latent.layers.compatibility import check_parts
from spacy_latent.layers.hidden_structure import ClassScores, HiddenDraw, HiddenStructureLayer
from spacy_latent.layers.latent_module import LatentOutput
from spacy_latent.models.added_labels import UNTRAINED, count_as_trained
from spacy_latent.models.latent_layer_model import total_penalty
from spacy_latent.models.latent_shim import TrainingSettings
from spacy_latent.models.latent_text_classifier import forward, set_refs
from spacy_latent.models.scheduled_value import Temperature
from spacy_latent.models.separate_tok2vec import initialize_embedder, refuse_separate
from spacy_latent.models.span_getters import DocSpans, SpanGetter
from spacy_latent.models.span_groups import Group, Placed, no_loss, of_group
from spacy_latent.models.text_batch import Range
from spacy_latent.models.text_layer_model import text_layer_model
from spacy_latent.structures.base import Structure

NAME = "HiddenStructureClassifier"


class HiddenStructureModule(nn.Module):
    """Module from rows ``(N, d)`` to the logits of the classes of each doc.

    The structures of several spans of a doc are independent given its class, so their
    log-partitions are summed.
    """

    texts = 1
    evidence = None

    def __init__(self, latent: HiddenStructureLayer) -> None:
        super().__init__()
        self.latent = latent
        self.dropout = nn.Dropout(0.0)

    @property
    def output_width(self) -> int:
        """Number of classes."""
        return self.latent.composer.output_width

    def forward(
        self,
        rows: Tensor,
        groups: list[Group],
        docs: list[Range],
        texts: list[Range],
        given: Given | None = None,
        interventions: list[BatchInterventions] | None = None,
    ) -> tuple[tuple[Tensor, ...], Tensor | None, tuple[list[LatentOutput], Tensor]]:
        """Return the logits, as :class:`~spacy_latent.models.text_module.TextModule` does vectors.

        Each doc has one result, of weight 1.
        """
        composer = self.latent.composer
        padded = torch.cat([self.dropout(rows), rows.new_zeros(1, rows.shape[1])])
        sizes = torch.tensor([end - first for first, end in docs])
        members = [torch.tensor(group.docs) for group in groups]
        of_rows = torch.arange(len(docs)).repeat_interleave(sizes)
        placed = Placed.of(groups, len(rows), rows.device, of_rows, sizes, *members)
        of_rows, sizes, *members = placed.others
        logits = (no_loss(rows) + composer.bias).expand(len(docs), -1)
        read = []
        for number, (group, (places, lengths)) in enumerate(zip(groups, placed)):
            vectors = padded[places]
            asked = () if interventions is None else (interventions[number],)
            draw, scores = self.latent.read(vectors, lengths, of_group(given, group), *asked)
            if isinstance(draw, HiddenDraw) and draw.logits is not None:
                own = draw.logits
            else:
                own = composer.of_structures(vectors, draw.mean(), lengths)
            logits = logits.index_add(0, members[number], own.to(logits))
            read.append((draw, scores))
        penalty, outputs = None, self._outputs(read, placed, members, logits)
        if self.training:
            penalty, outputs = total_penalty(self.latent, placed, outputs, 0.0), []
        means = rows.new_zeros(len(docs), rows.shape[1]).index_add(0, of_rows, rows.detach())
        means = means / sizes.clamp_min(1)[:, None]
        logits = logits.float()
        one = logits.new_ones(1, len(docs))
        parts = (logits[None], one, torch.zeros_like(one), one[:0])
        return parts, penalty, (outputs, means)

    def _outputs(
        self, read: list[tuple[Any, Tensor]], placed: Placed, members: list[Tensor], logits: Tensor
    ) -> list[LatentOutput]:
        """Return the structures of each group, given the likeliest class of the whole doc."""
        likeliest = self.latent.likeliest(logits)
        outputs = []
        for (draw, scores), lengths, doc in zip(read, placed.lengths, members):
            if not self.training and isinstance(draw, HiddenDraw) and draw.every is not None:
                if draw.likeliest is None or not torch.equal(likeliest[doc], draw.likeliest):
                    draw, scores = self.latent.given_class(draw, lengths, likeliest[doc])
            outputs.append(LatentOutput(scores.new_zeros(0), draw, scores))
        return outputs


def build_hidden_structure_classifier_v1(
    tok2vec: Model[list[Doc], list[Floats2d]],
    exclusive_classes: bool,
    structure: Structure | None = None,
    scorer: ScorerBuilder | None = None,
    class_scorer: ScorerBuilder | None = None,
    span_getter: SpanGetter | None = None,
    dropout: float | None = None,
    nO: int | None = None,
) -> Model[list[Doc], Floats2d]:
    """Build a hidden conditional random field: p(y | x) ∝ Σ_z exp(z·(s + t_y)).

    The scores s of the parts are the same for all classes, and the scores t_y are of class y alone.
    The sum over the structures z is exact, so that training maximises the marginal likelihood of
    the labels. It is for spaCy's text classifiers, and for ``latent_textcat`` and its multilabel
    twin. These store the best structure and the marginals given the likeliest label.

    Labels that are not exclusive have a binary model each: the presence of a label has the scores
    s + t_y and its absence the scores s. Stored structures are those given the likeliest label, or
    given no label if all are absent.

    Args:
        tok2vec: embedder, of any width.
        exclusive_classes: whether each doc has one label (softmax) or any number of them (sigmoid).
        structure: set of structures with a log-partition; None for SpanningTree. For docs of two
            texts it may be an alignment, with PairSpans as the span_getter.
        scorer: scorer of s; None for BiaffineScorer.
        class_scorer: scorer of t_y, one for each label; None for the same kind as ``scorer``.
        span_getter: function that returns the spans of tokens that share a structure; None for
            DocSpans, the whole doc. Structures of several spans of a doc are independent given its
            label.
        dropout: rate of dropout of the vectors that the scorers read; None for training.dropout.
        nO: number of labels; set by the component.
    """
    from spacy_latent.layers.biaffine_scorer import build_biaffine_scorer_v1
    from spacy_latent.structures.spanning_tree import SpanningTree

    structure = structure or SpanningTree()
    scorer = scorer or build_biaffine_scorer_v1()
    class_scorer = class_scorer or scorer
    estimator = Marginals()
    for each in [structure, *(stage for _, stage in structure.stages)]:
        if not each.linear or "log_partition" not in each.tractable:
            raise IncompatiblePair(
                NAME,
                each.name,
                "the logit of a class is a log-partition, and this structure has none",
                "a structure with a log-partition, such as SpanningTree, TagSequence or KOfN, or "
                "LatentTextClassifier over this one",
            )
    for each in (scorer, class_scorer):
        check_parts(structure, estimator, each, partial(ClassScores, classes=1, scorer=each))
    refuse_separate(NAME, tok2vec)
    build = partial(
        build_module,
        structure=structure,
        scorer=scorer,
        class_scorer=class_scorer,
        exclusive=exclusive_classes,
    )
    texts = text_layer_model(
        build,
        TrainingSettings(1.0, Temperature(1.0), dropout),
        input_width=None,
        staged=[structure, estimator],
    )
    attrs = {
        "span_getter": span_getter or DocSpans(max_length=512),
        "multi_label": not exclusive_classes,
        UNTRAINED: 0,
    }
    layers: list[Model] = [tok2vec, texts, noop()]
    model: Model = Model(NAME, forward, init=init, layers=layers, dims={"nO": nO}, attrs=attrs)
    return set_refs(model)


def build_module(
    sizes: list[int],
    *,
    structure: Structure,
    scorer: ScorerBuilder,
    class_scorer: ScorerBuilder,
    exclusive: bool,
) -> HiddenStructureModule:
    """Build the module for ``sizes``, the width of the vectors and the number of classes."""
    width, classes = sizes
    layer = HiddenStructureLayer(width, structure, scorer, class_scorer, classes, exclusive)
    return HiddenStructureModule(layer)


def init(model: Model, X: Any = None, Y: Any = None) -> Model:
    """Build the module once the width of the embedder and the number of classes are known."""
    tok2vec, texts, _ = model.layers
    width = initialize_embedder(tok2vec, X)
    if Y is not None:
        model.set_dim("nO", Y.shape[1], force=True)
    if width is not None and model.has_dim("nO"):
        assert isinstance(width, int)
        shim: Any = texts.shims[0]
        shim.build([width, model.get_dim("nO")])
        texts.set_dim("nI", width, force=True)
        texts.set_dim("nO", model.get_dim("nO"), force=True)
    count_as_trained(model)
    return model
