"""Torch module from the rows of a batch to the vectors of whole texts, for each of K structures."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError
from spacy_latent.estimators.base import Draw, Given
from spacy_latent.kernels.core.gpu_transfers import fetch, places_of
from spacy_latent.layers.batch_interventions import BatchInterventions
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.layers.latent_module import LatentOutput
from spacy_latent.models.alignment_evidence import AlignedWords, AlignmentWordObjective
from spacy_latent.models.evidence_bound import (
    BoundTerms,
    EvidenceBound,
    TextWordObjective,
    divergence_of_weights,
    is_exact,
    masked_prior,
)
from spacy_latent.models.latent_layer_model import total_penalty
from spacy_latent.models.latent_shim import Width
from spacy_latent.models.layer_settings import LayerSettings
from spacy_latent.models.span_groups import Group, Placed, of_group, side_by_side
from spacy_latent.models.text_batch import (
    Range,
    TextBatch,
    first_spans,
    padded_rows,
    padded_words,
    sum_over_spans,
    up_to,
)
from spacy_latent.structures.many_to_one_alignment import ManyToOneAlignment

# Reductions that do not read all tokens of a text.
ENDS = frozenset({"root", "first", "last"})


@dataclass
class Kept:
    """Structures of an update, kept for further steps on the same batch."""

    rows: Tensor
    groups: list[Group]
    docs: int
    drawn: list[Tensor]


class TextModule(nn.Module):
    """Module from rows ``(N, d)`` to one vector per doc and structure.

    Args:
        pooling: reductions of the vectors of tokens, which are concatenated: some of "first",
            "last", "max", "mean" and "root". "root" is the sum of the vectors of tokens, weighted
            by the degree to which each token is a root, averaged over the spans of a text.
        texts: number of texts of a doc, whose vectors are concatenated.
        entropy_weight: see ``build_latent_text_classifier_v1``.
        evidence: settings of a bound on the evidence of the words. With an EvidenceBound the layer
            needs a method ``shown``, as
            :class:`~spacy_latent.layers.rationale_layer.RationaleLayer` has, for the share of each
            word that a structure passes on.
    """

    def __init__(
        self,
        latent: LatentLayer,
        pooling: tuple[str, ...],
        texts: int,
        entropy_weight: float,
        evidence: EvidenceBound | AlignedWords | None = None,
    ) -> None:
        super().__init__()
        self.latent = latent
        self.dropout = nn.Dropout(0.0)
        self.pooling = pooling
        self.texts = texts
        self.entropy_weight = entropy_weight
        self.evidence: TextWordObjective | AlignmentWordObjective | None = None
        if isinstance(evidence, AlignedWords):
            width = latent.composer.output_width
            self.evidence = AlignmentWordObjective(evidence, latent.structure, width)
        elif evidence is not None:
            self.evidence = TextWordObjective(evidence, latent.structure, self.output_width)

    @property
    def pooled_width(self) -> int:
        """Width of the pooled vectors of the texts of a doc, one after the other."""
        return self.latent.composer.output_width * len(self.pooling) * self.texts

    @property
    def output_width(self) -> int:
        """Width of the vector of a doc."""
        return self.pooled_width

    def forward(
        self,
        rows: Tensor,
        groups: list[Group],
        docs: list[Range],
        texts: list[Range],
        given: Given | None = None,
        interventions: list[BatchInterventions] | None = None,
        words: Tensor | None = None,
    ) -> tuple[tuple[Tensor, ...], Tensor | None, tuple[list[LatentOutput], Tensor]]:
        """Return the vectors of all docs, and the other results that get a gradient.

        Args:
            rows: ``(N, d)``.
            texts: the rows of each text; the texts of a doc are adjacent.
            words: ``(N,)`` int64 on the CPU, hashes of the words of all rows, for a bound on their
                evidence; None without a bound.

        Returns:
            A tuple of vectors ``(K, D, width)``, weights and log-probabilities ``(K, D)``, extras
            ``(E, D)`` and, with words, both parts of BoundTerms; a penalty or None; and the
            structures with the features of the docs.
        """
        batch = TextBatch.of(rows, groups, docs, texts, words, ENDS.issuperset(self.pooling))
        composed, outputs = self._compose(rows, batch, given, interventions)
        count = max((len(part) for part in composed), default=1)
        draws = [output.draw for output in outputs]
        weighted = self._several_weighted(batch, draws, count)
        if weighted is not None:
            if self.training:
                raise LatentError(
                    "The span_getter splits a text into several spans with a structure each, and "
                    f"{self.latent.present_estimator.name} can only learn from one structure of "
                    "the whole text. Use the span_getter spacy-latent.DocSpans.v1, or PairSpans.v1 "
                    "for pairs of texts, with a larger max_length. Or leave out long texts by "
                    "max_length of spacy.Corpus.v1."
                )
            draws, composed = _best_alone(draws, composed, weighted)
            outputs = [replace(one, composed=draw) for one, draw in zip(outputs, draws)]
        pooled = self.dropout(self._pool(rows, batch, draws, composed, count))
        weights = self._of_docs(batch, draws, count)
        log_probs = self.log_probs(batch.doc, draws, count, len(docs), rows)
        most = max((len(draw.extras) for draw in draws if draw.extras is not None), default=0)
        parts_of_extras = [draw.extras for draw in draws]
        extras = sum_over_spans(batch.doc, parts_of_extras, most, len(docs), log_probs)
        vectors = pooled.view(count, len(docs), self.pooled_width)
        parts = [vectors, weights, log_probs, extras]
        if words is not None:
            aligned = isinstance(self.evidence, AlignmentWordObjective)
            evidence = self._aligned_evidence if aligned else self._evidence
            terms = evidence(rows, vectors, weights, batch, outputs)
            parts += [terms.fit, terms.divergence]
        penalty = None
        if self.training:
            penalty = total_penalty(self.latent, batch.placed, outputs, self.entropy_weight)
        padded, inside = padded_rows(rows.detach()[None], batch.of_docs)
        means = padded[0].sum(1) / inside.sum(1).clamp_min(1)[:, None]
        return tuple(part.float() for part in parts), penalty, (outputs, means)

    def _compose(
        self,
        rows: Tensor,
        batch: TextBatch,
        given: Given | None,
        interventions: list[BatchInterventions] | None,
    ) -> tuple[list[Tensor], list[LatentOutput]]:
        """Return the composed vectors and the structures of each group."""
        padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
        # Composing the vectors of all tokens would take most of the time for many structures.
        only_roots = self.pooling == ("root",)
        compose = self.latent.compose_roots if only_roots else self.latent.compose_each
        composed, outputs = [], []
        for number, (group, (places, lengths)) in enumerate(zip(batch.groups, batch.placed)):
            vectors = padded[places]
            asked = () if interventions is None else (interventions[number],)
            draw, scores = self.latent.read(vectors, lengths, of_group(given, group), *asked)
            composed.append(compose(vectors, draw, lengths))
            kept = self.latent.kept(vectors)
            outputs.append(LatentOutput(vectors.new_zeros(0), draw, scores, kept))
        return composed, outputs

    def _aligned_evidence(
        self,
        rows: Tensor,
        vectors: Tensor,
        weights: Tensor,
        batch: TextBatch,
        outputs: list[LatentOutput],
    ) -> BoundTerms:
        """Return the objective of aligned words, which sums over all alignments.

        For the arguments see :meth:`_evidence`.
        """
        assert isinstance(self.evidence, AlignmentWordObjective)
        structure = self.latent.present_structure
        assert isinstance(structure, ManyToOneAlignment)
        assert batch.words is not None
        parts: list[Tensor | None] = []
        for (places, texts), output in zip(batch.placed, outputs):
            lengths = self.latent.sizes(output.scores, texts)
            words = padded_words(batch.words, places)
            parts.append(-self.evidence(structure, output.scores, words, lengths)[None])
        divergence = sum_over_spans(batch.doc, parts, 1, weights.shape[1], weights)
        return BoundTerms(torch.zeros_like(weights), divergence)

    def _evidence(
        self,
        rows: Tensor,
        vectors: Tensor,
        weights: Tensor,
        batch: TextBatch,
        outputs: list[LatentOutput],
    ) -> BoundTerms:
        """Return the terms of the bound.

        Args:
            rows: ``(N, d)``.
            vectors, weights: ``(K, D, width)`` and ``(K, D)``, of K structures of D docs.
        """
        assert isinstance(self.evidence, TextWordObjective) and batch.words is not None
        count, docs = weights.shape
        degrees = [
            up_to(self.latent.shown(output.draw, places.shape[1])[..., None], count)
            for output, places in zip(outputs, batch.placed.rows)
        ]
        cells = side_by_side(degrees, batch.groups, rows, 1).index_select(1, batch.placed.cells)
        chosen, inside = padded_rows(cells, batch.of_docs)
        shown, words = chosen[..., 0], padded_words(batch.words, batch.of_docs)
        present: list[Tensor | None] = [output.draw.present for output in outputs]
        k, item = places_of(sum_over_spans(batch.doc, present, count, docs, weights) > 0)
        fit = self.evidence.decoder(vectors[k, item], shown[k, item], words, inside, item)
        fit = weights.new_zeros(count, docs).index_put((k, item), fit.to(weights))
        estimator = self.latent.present_estimator
        structure = self.latent.present_structure
        exact = is_exact(structure, estimator)
        parts: list[Tensor | None] = []
        for texts, output in zip(batch.placed.lengths, outputs):
            lengths = self.latent.sizes(output.scores, texts)
            prior = masked_prior(self.evidence.prior, output.scores, lengths)
            z = output.draw.z.detach()
            if estimator.posterior == "weights":
                parts.append(structure.log_prob(z, prior, lengths))
            elif exact:
                parts.append(structure.kl(output.scores, prior, lengths)[None])
            else:
                own = structure.log_prob(z, output.scores.detach(), lengths)
                parts.append(own - structure.log_prob(z, prior, lengths))
        summed = exact and estimator.posterior == "scores"
        divergence = sum_over_spans(batch.doc, parts, 1 if summed else count, docs, weights)
        if estimator.posterior == "weights":
            divergence = divergence_of_weights(weights, divergence)
        return BoundTerms(fit, divergence)

    def _pool(
        self, rows: Tensor, batch: TextBatch, draws: list[Draw], composed: list[Tensor], count: int
    ) -> Tensor:
        """Return the pooled vectors ``(K, texts, width of each)``; 0 for an empty text.

        Args:
            count: the largest number K of structures of a group.
        """
        width, docs = self.latent.composer.output_width, len(batch.first)
        composed = [up_to(part, count) for part in composed]
        roots = None
        if "root" in self.pooling:
            only_roots = self.pooling == ("root",)
            of_spans = composed if only_roots else _weighted_roots(draws, composed)
            roots = _roots(batch.doc, of_spans, rows.new_zeros(count, docs, width))
            if only_roots:
                return roots
        cells, place = side_by_side(composed, batch.groups, rows, width), batch.placed.cells
        first, end = batch.bounds.unbind(1)
        lengths = end - first
        tokens = inside = None
        if batch.of_texts is not None:
            tokens, inside = padded_rows(cells.index_select(1, place), batch.of_texts)
        pooled = []
        for kind in self.pooling:
            if kind == "root":
                assert roots is not None
                pooled.append(roots)
            elif tokens is None or (kind in ("first", "last") and tokens.shape[2]):
                token = first if kind == "first" else end - 1
                chosen = cells.index_select(1, place[token.clamp(0, len(place) - 1)])
                pooled.append(torch.where(lengths[:, None] > 0, chosen, 0.0))
            elif kind == "max" and tokens.shape[2]:
                assert inside is not None
                low = tokens.masked_fill(~inside[..., None], -torch.inf)
                pooled.append(torch.where(lengths[:, None] > 0, low.amax(2), 0.0))
            else:
                pooled.append(tokens.sum(2) / lengths.clamp_min(1)[:, None])
        return torch.cat(pooled, -1)

    def _of_docs(self, batch: TextBatch, draws: list[Draw], count: int) -> Tensor:
        """Return weights ``(K, D)``; the k-th structures of the spans of a doc belong together."""
        first = batch.first
        like = draws[0].weights if draws else first.new_zeros(0, dtype=torch.float32)
        result = like.new_zeros(count, len(first))
        result[0] = 1.0
        if not draws:
            return result
        weights = torch.cat([up_to(draw.weights, count) for draw in draws], 1)
        spans = weights.shape[1]
        return torch.where(first < spans, weights[:, first.clamp_max(spans - 1)], result)

    def _several_weighted(self, batch: TextBatch, draws: list[Draw], count: int) -> Tensor | None:
        """Return a mask of the spans of docs with several spans and unequally weighted structures.

        The weights of single spans do not determine the weights of combinations of their
        structures. Only equally weighted samples can be combined, the k-th with the k-th.

        Returns:
            ``(spans,)`` bool, in the order of the groups; None if there is no such span.
        """
        if not draws:
            return None
        weights = torch.cat([up_to(draw.weights, count) for draw in draws], 1).detach()
        spans = weights.shape[1]
        if int((fetch(batch.first) < spans).sum()) == spans:
            return None
        of_span = torch.cat(batch.doc)
        differ = (weights - weights[:, batch.first[of_span]]).abs().gt(1e-4).any(0)
        several = (weights > 0).sum(0) > 1
        if self.latent.present_estimator.posterior != "weights":
            least = weights.masked_fill(weights <= 0, torch.inf).amin(0)
            several &= weights.amax(0) > least + 1e-4
        beside = torch.bincount(of_span, minlength=len(batch.first))[of_span] > 1
        wrong = torch.zeros_like(batch.first).index_add(0, of_span, (differ | several).long()) > 0
        found = beside & wrong[of_span]
        return found if bool(found.any()) else None

    def log_probs(
        self, doc: list[Tensor], draws: list[Draw], count: int, docs: int, rows: Tensor
    ) -> Tensor:
        """Return log-probabilities ``(K, D)``, summed over the spans of each doc."""
        like = draws[0].weights if draws else rows.new_zeros(0)
        parts = [draw.log_probs for draw in draws]
        return sum_over_spans(doc, parts, count, docs, like)

    def again(self, kept: Kept) -> Tensor:
        """Return log-probabilities ``(K, D)`` of earlier structures under the present scorer."""
        padded = torch.cat([kept.rows, kept.rows.new_zeros(1, kept.rows.shape[1])])
        draws, latent = [], self.latent
        known = first_spans(kept.groups, kept.docs)[1]
        placed = Placed.of(kept.groups, len(kept.rows), kept.rows.device, *known)
        for (places, lengths), z in zip(placed, kept.drawn):
            vectors = padded[places]
            structure, scores = latent.score(vectors, lengths)
            log_probs = structure.log_prob(z, scores, latent.sizes(scores, lengths))
            draws.append(Draw(z, torch.ones_like(log_probs), log_probs))
        return self.log_probs(placed.others, draws, len(kept.drawn[0]), kept.docs, kept.rows)


def _best_alone(
    draws: list[Draw], composed: list[Tensor], spans: Tensor
) -> tuple[list[Draw], list[Tensor]]:
    """Give each of some spans its structure with the largest weight, as its first and only one.

    The exact sum would need all combinations of the structures of all spans, which are too many.

    Args:
        spans: ``(spans,)`` bool, in the order of the groups.
    """
    sizes = [draw.weights.shape[1] for draw in draws]
    alone, vectors = [], []
    for draw, part, chosen in zip(draws, composed, spans.split(sizes)):
        numbers = torch.arange(len(draw.weights), device=chosen.device)[:, None]
        best = torch.where(numbers == 0, draw.weights.argmax(0), numbers)
        order = torch.where(chosen, best, numbers)
        item = torch.arange(len(chosen), device=chosen.device)
        only = (numbers == 0).to(draw.weights)
        weights = torch.where(chosen, only, draw.weights)
        alone.append(replace(draw, z=draw.z[order, item], weights=weights))
        vectors.append(part[order, item])
    return alone, vectors


def _weighted_roots(draws: list[Draw], composed: list[Tensor]) -> list[Tensor]:
    """Return the vectors of the roots of each span of each group, ``(K, B, width)``."""
    return [
        (up_to(draw.z, len(part))[:, :, 0, 1:, None] * part).sum(2)
        for draw, part in zip(draws, composed)
    ]


def _roots(docs_of: list[Tensor], of_spans: list[Tensor], blank: Tensor) -> Tensor:
    """Return the vectors of the roots of each doc's trees, in the shape of ``blank``."""
    total, spans = blank, blank.new_zeros(blank.shape[1])
    for doc, part in zip(docs_of, of_spans):
        total = total.index_add(1, doc, part)
        spans = spans.index_add(0, doc, torch.ones_like(doc, dtype=spans.dtype))
    return total / spans.clamp_min(1)[:, None]


def build_text_module(
    input_width: Width,
    *,
    settings: LayerSettings,
    pooling: tuple[str, ...],
    texts: int,
    evidence: AlignedWords | None = None,
    module: type[TextModule] = TextModule,
) -> TextModule:
    """Build a module with its own latent layer for the width of the embedder."""
    latent = settings.build(input_width)
    return module(latent, pooling, texts, settings.entropy_weight, evidence)
