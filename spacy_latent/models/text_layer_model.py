"""The latent layer for losses of whole structures: each of K structures gives a vector per text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from thinc.api import Model, torch2xp, xp2torch
from thinc.types import Floats2d
from torch import Tensor, nn

from spacy_latent.errors import IncompatiblePair, LatentError
from spacy_latent.estimators.base import Draw, Estimator, Given
from spacy_latent.kernels.transfers import fetch, places_of
from spacy_latent.layers.base import ComposerBuilder, ScorerBuilder
from spacy_latent.layers.edits import Edits
from spacy_latent.layers.latent_layer import LatentLayer, LatentOutput, check_parts
from spacy_latent.models.evidence_bound import (
    EvidenceBound,
    EvidenceModule,
    EvidenceTerms,
    is_exact,
)
from spacy_latent.models.interventions import edits_of_layer
from spacy_latent.models.latent_layer_model import (
    Group,
    LatentBatch,
    Placed,
    Spans,
    build_latent_layer,
    check_entropy_weight,
    detached,
    group_spans,
    of_group,
    prepare,
    side_by_side,
    total_penalty,
)
from spacy_latent.models.latent_shim import Width
from spacy_latent.models.shim_model import refuse_not_finite, shim_model
from spacy_latent.models.temperature import Temperature
from spacy_latent.stages import Staged
from spacy_latent.structures.base import Structure

POOLINGS = ("root", "first", "last", "max", "mean")
# Those that do not read all tokens of a text.
ENDS = frozenset({"root", "first", "last"})

# Rows (first, end) of a text.
Range = tuple[int, int]


@dataclass
class TextVectors:
    """What the layer makes of D texts.

    vectors: ``(K·D, width)``, those of the first structure of all texts before the second's.
    weights, log_probs: ``(K, D)``; log_probs are 0 where the estimator has none.
    extras: ``(E, D)``, see :class:`spacy_latent.estimators.base.Draw`; E is 0 where it has none.
    features: ``(D, d)``, the mean input vectors, without gradient.
    batch: the structures; its vectors are empty.
    evidence: what the bound on the words' evidence is made of, where it was asked for.
    """

    vectors: Floats2d
    weights: Tensor
    log_probs: Tensor
    extras: Tensor
    features: Tensor
    batch: LatentBatch
    evidence: EvidenceTerms | None = None


@dataclass
class Kept:
    """The structures of an update, for further steps on them."""

    rows: Tensor
    groups: list[Group]
    docs: int
    drawn: list[Tensor]


class TextModule(nn.Module):
    """Rows ``(N, d)`` to one vector per doc and structure.

    pooling: which of POOLINGS make a text's vector, one after another, out of those of its tokens.
        Of these "root" is the sum of the tokens on the root, each as far as it is on it, and the
        mean of those sums where a text has several spans.
    texts: how many texts a doc has, whose vectors make the doc's, one after another.
    entropy_weight: see ``build_latent_text_classifier_v2``.
    evidence: for a bound on the evidence of the words; the layer then has to say which words a
        structure shows, as :class:`~spacy_latent.layers.rationale_layer.RationaleLayer` does.
    """

    def __init__(
        self,
        latent: LatentLayer,
        pooling: tuple[str, ...],
        texts: int,
        entropy_weight: float,
        evidence: EvidenceBound | None = None,
    ) -> None:
        super().__init__()
        self.latent = latent
        self.dropout = nn.Dropout(0.0)
        self.pooling = pooling
        self.texts = texts
        self.entropy_weight = entropy_weight
        self.evidence = None
        if evidence is not None:
            self.evidence = EvidenceModule(evidence, latent.structure, self.output_width)

    @property
    def reads_root(self) -> bool:
        return "root" in self.pooling

    @property
    def output_width(self) -> int:
        return self.latent.composer.output_width * len(self.pooling) * self.texts

    def forward(
        self,
        rows: Tensor,
        groups: list[Group],
        docs: list[Range],
        texts: list[Range],
        given: Given | None = None,
        edits: list[Edits] | None = None,
        words: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, tuple[list[LatentOutput], list[int], Tensor]]:
        """docs: the rows of each doc. texts: those of each text, a doc's together. given:
        structures that stand for those of spans. edits: as of SpanModule. words: ``(N,)`` int64 on
        the CPU, hashes of the words of all rows, for a bound on their evidence; None for none.

        RETURNS: vectors ``(K·D·width)``, weights and log-probabilities ``(K·D)``, extras ``(E·D)``
        and of EvidenceTerms both, in one row, so that there is one gradient; a penalty or None;
        structures, of how many rows of D each of these is made, and the docs' features.
        """
        padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
        composed, outputs = [], []
        bounds = torch.tensor(texts, dtype=torch.int64).view(-1, 2)
        first, doc = _first_spans(groups, len(docs))
        known = [bounds, _places(docs, len(rows)), first, *doc]
        # Of an empty text there is nothing at its root or its ends.
        if not ENDS.issuperset(self.pooling) or not bool((bounds[:, 1] > bounds[:, 0]).any()):
            known.append(_places(texts, len(rows)))
        if words is not None:
            known.append(words)
        placed = Placed.of(groups, len(rows), rows.device, *known)
        bounds, of_docs, first, *others = placed.others
        hashes = None if words is None else others.pop()
        doc, of_texts = others[: len(groups)], others[len(groups) :]
        for number, (group, (places, lengths)) in enumerate(zip(groups, placed)):
            vectors = padded[places]
            asked = () if edits is None else (edits[number],)
            draw, scores = self.latent.read(vectors, lengths, of_group(given, group), *asked)
            composed.append(self.latent.compose_each(vectors, draw, lengths))
            outputs.append(
                LatentOutput(vectors.new_zeros(0), draw, scores, self.latent.kept(vectors))
            )
        count = max((len(part) for part in composed), default=1)
        composed = [_up_to(part, count) for part in composed]
        width = self.latent.composer.output_width
        cells = side_by_side(composed, groups, rows, width)
        draws = [output.draw for output in outputs]
        blank = rows.new_zeros(count, len(docs), width)
        roots = _roots(doc, draws, composed, blank) if self.reads_root else None
        pooled = self.dropout(self._pool(cells, placed.cells, bounds, of_texts, roots))
        weights = self._of_docs(doc, first, draws, count)
        log_probs = self.log_probs(doc, draws, count, len(docs), rows)
        most = max((len(draw.extras) for draw in draws if draw.extras is not None), default=0)
        parts_of_extras = [draw.extras for draw in draws]
        extras = _sum_over_spans(doc, parts_of_extras, most, len(docs), log_probs)
        parts = [pooled, weights, log_probs, extras]
        if hashes is not None:
            shown = [
                self.latent.shown(draw, rows.shape[1]) for draw, rows in zip(draws, placed.rows)
            ]
            told = [_up_to(part[..., None], count) for part in shown]
            cells = side_by_side(told, groups, rows, 1).index_select(1, placed.cells)
            chosen, inside = _padded(cells, of_docs)
            read = pooled, chosen[..., 0], _padded_words(hashes, of_docs), inside
            terms = self._evidence(read, weights, doc, placed, outputs)
            parts += [terms.fit, terms.divergence]
        flat = torch.cat([part.float().flatten() for part in parts])
        penalty = None
        if self.training:
            penalty = total_penalty(self.latent, placed, outputs, self.entropy_weight)
        padded, inside = _padded(rows.detach()[None], of_docs)
        means = padded[0].sum(1) / inside.sum(1).clamp_min(1)[:, None]
        return flat, penalty, (outputs, [len(part) for part in parts], means)

    def _evidence(
        self,
        read: tuple[Tensor, Tensor, Tensor, Tensor],
        weights: Tensor,
        doc: list[Tensor],
        placed: Placed,
        outputs: list[LatentOutput],
    ) -> EvidenceTerms:
        """read: of K structures of D docs their vectors ``(K, D, width)`` and how far they show
        each word, ``(K, D, n)``; the words ``(D, n)`` and which are there. weights: ``(K, D)``."""
        assert self.evidence is not None
        vectors, shown, words, inside = read
        count, docs = weights.shape
        present: list[Tensor | None] = [output.draw.present for output in outputs]
        k, item = places_of(_sum_over_spans(doc, present, count, docs, weights) > 0)
        fit = self.evidence.decoder(vectors[k, item], shown[k, item], words, inside, item)
        fit = weights.new_zeros(count, docs).index_put((k, item), fit.to(weights))
        estimator = self.latent.present_estimator
        structure = self.latent.present_structure
        exact = is_exact(structure, estimator)
        parts: list[Tensor | None] = []
        for texts, output in zip(placed.lengths, outputs):
            lengths = self.latent.sizes(output.scores, texts)
            prior = self.evidence.prior_scores(output.scores, lengths)
            z = output.draw.z.detach()
            if estimator.posterior == "weights":
                parts.append(structure.log_prob(z, prior, lengths))
            elif exact:
                parts.append(structure.kl(output.scores, prior, lengths)[None])
            else:
                own = structure.log_prob(z, output.scores.detach(), lengths)
                parts.append(own - structure.log_prob(z, prior, lengths))
        summed = exact and estimator.posterior == "scores"
        divergence = _sum_over_spans(doc, parts, 1 if summed else count, docs, weights)
        if estimator.posterior == "weights":
            divergence = self.evidence.of_weights(weights, divergence)
        return EvidenceTerms(fit, divergence)

    def _pool(
        self,
        cells: Tensor,
        place: Tensor,
        bounds: Tensor,
        of_texts: list[Tensor],
        roots: Tensor | None,
    ) -> Tensor:
        """Vectors ``(K, C, width)`` of cells, and the cell of each token, as ``(K, texts, width of
        each)``; 0 for an empty text.

        bounds: ``(texts, 2)``, the rows of each text. of_texts: these as :func:`_places` has them,
        where all of a text's tokens are read. roots: of each text, ``(K, texts, width)``.
        """
        first, end = bounds.unbind(1)
        lengths = end - first
        tokens = inside = None
        if of_texts:
            tokens, inside = _padded(cells.index_select(1, place), of_texts[0])
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

    def _of_docs(self, doc: list[Tensor], first: Tensor, draws: list[Draw], count: int) -> Tensor:
        """Weights ``(K, D)``. The structures of a doc's spans are taken together by their place
        among the K. doc, first: see :func:`_first_spans`."""
        like = draws[0].weights if draws else first.new_zeros(0, dtype=torch.float32)
        result = like.new_zeros(count, len(first))
        result[0] = 1.0
        if not draws:
            return result
        weights = torch.cat([_up_to(draw.weights, count) for draw in draws], 1)
        spans = weights.shape[1]
        has = first < spans
        result = torch.where(has, weights[:, first.clamp_max(spans - 1)], result)
        if int((fetch(first) < spans).sum()) == spans:
            return result
        if bool((weights.detach() - result.detach()[:, torch.cat(doc)]).abs().gt(1e-4).any()):
            raise LatentError(
                f"A text has several spans, each with weighted structures of its own, and "
                f"{self.latent.present_estimator.name} needs one structure for a whole text. Use "
                "spacy-latent.DocSpans.v1, or for pairs of texts PairSpans.v1, with a larger "
                "max_length as the span_getter."
            )
        return result

    def log_probs(
        self, doc: list[Tensor], draws: list[Draw], count: int, docs: int, rows: Tensor
    ) -> Tensor:
        """``(K, D)``, summed over the spans of each doc. rows: of the batch."""
        like = draws[0].weights if draws else rows.new_zeros(0)
        parts = [draw.log_probs for draw in draws]
        return _sum_over_spans(doc, parts, count, docs, like)

    def again(self, kept: Kept) -> Tensor:
        """Log-probabilities ``(K, D)`` of structures drawn earlier, under the present scorer."""
        padded = torch.cat([kept.rows, kept.rows.new_zeros(1, kept.rows.shape[1])])
        draws, latent = [], self.latent
        known = _first_spans(kept.groups, kept.docs)[1]
        placed = Placed.of(kept.groups, len(kept.rows), kept.rows.device, *known)
        for (places, lengths), z in zip(placed, kept.drawn):
            vectors = padded[places]
            structure, scores = latent.score(vectors, lengths)
            log_probs = structure.log_prob(z, scores, latent.sizes(scores, lengths))
            draws.append(Draw(z, torch.ones_like(log_probs), log_probs))
        return self.log_probs(placed.others, draws, len(kept.drawn[0]), kept.docs, kept.rows)


def _first_spans(groups: list[Group], docs: int) -> tuple[Tensor, list[Tensor]]:
    """Of each doc its first span, among those of all groups, ``(D,)``, their number where it has
    none; and of each span of each group the doc, ``(B,)``; on the CPU."""
    doc = [torch.tensor([d for d, _ in group.members], dtype=torch.int64) for group in groups]
    together = torch.cat([*doc, torch.zeros(0, dtype=torch.int64)])
    first = torch.full((docs,), len(together))
    return first.scatter_reduce(0, together, torch.arange(len(together)), "amin"), doc


def _roots(
    docs_of: list[Tensor], draws: list[Draw], composed: list[Tensor], blank: Tensor
) -> Tensor:
    """The vectors of the roots of the trees of each doc, ``(K, D, width)`` as ``blank``."""
    count, docs, _ = blank.shape
    total, spans = blank, blank.new_zeros(docs)
    for doc, draw, part in zip(docs_of, draws, composed):
        on_root = _up_to(draw.z, count)[:, :, 0, 1:, None]
        total = total.index_add(1, doc, (on_root * part).sum(2))
        spans = spans.index_add(0, doc, torch.ones_like(doc, dtype=spans.dtype))
    return total / spans.clamp_min(1)[:, None]


def _sum_over_spans(
    docs_of: list[Tensor], parts: list[Tensor | None], count: int, docs: int, like: Tensor
) -> Tensor:
    """``(up to count, B)`` of each group, or None, as ``(count, D)`` in the dtype of ``like``."""
    total = like.new_zeros(count, docs)
    for doc, part in zip(docs_of, parts):
        if part is not None:
            total = total.index_add(1, doc, _up_to(part, count).to(total))
    return total


def _up_to(part: Tensor, count: int) -> Tensor:
    """``(K, ...)`` with zeros up to ``count``."""
    if len(part) == count:
        return part
    return torch.cat([part, part.new_zeros(count - len(part), *part.shape[1:])])


def _places(ranges: list[Range], count: int) -> Tensor:
    """``(ranges, longest)`` int64, the rows of each; their number ``count`` at padding."""
    first, end = torch.tensor(ranges, dtype=torch.int64).view(-1, 2).unbind(1)
    column = torch.arange(int((end - first).max()) if ranges else 0)
    inside = column < (end - first)[:, None]
    return torch.where(inside, first[:, None] + column, count)


def _padded(rows: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Rows ``(K, N, width)`` as ``(K, ranges, longest, width)`` with zeros, and what is inside.
    places: see :func:`_places`."""
    zero = rows.new_zeros(len(rows), 1, rows.shape[2])
    return torch.cat([rows, zero], 1)[:, places], places < rows.shape[1]


def _padded_words(words: Tensor, places: Tensor) -> Tensor:
    """``(D, longest)`` of words ``(N,)``; places as of :func:`_padded`."""
    return torch.cat([words, words.new_zeros(1)])[places]


def build_text_module(
    input_width: Width,
    *,
    pooling: tuple[str, ...],
    texts: int,
    structure: Structure,
    estimator: Estimator,
    scorer: ScorerBuilder,
    composer: ComposerBuilder,
    entropy_weight: float,
) -> TextModule:
    latent = build_latent_layer(input_width, structure, estimator, scorer, composer)
    return TextModule(latent, pooling, texts, entropy_weight)


def build_text_layer_model(
    *,
    input_width: Width | None,
    pooling: tuple[str, ...],
    texts: int,
    structure: Structure,
    estimator: Estimator,
    scorer: ScorerBuilder,
    composer: ComposerBuilder,
    scorer_learn_rate: float,
    entropy_weight: float,
    temperature: Temperature,
    dropout: float | None,
    mixed_precision: bool,
) -> Model[tuple[list[Floats2d], Spans], TextVectors]:
    """Model from (rows of each doc, spans of each doc) to :class:`TextVectors`.

    texts: how many texts each doc has that are pooled on their own: 1, or 2 for pairs of spans.
    Its backprop takes the gradients of vectors, weights, log_probs and extras and returns those of
    the rows. For the arguments see ``build_latent_text_classifier_v2``.
    """
    check_parts(structure, estimator, scorer, composer)
    check_entropy_weight(structure, entropy_weight)
    if "root" in pooling and structure.parts != "arcs":
        raise IncompatiblePair(
            "use_reduce_root",
            structure.name,
            f"only trees of arcs have a root, and this structure is made of {structure.parts}",
            "use_reduce_mean or another of the reductions, or a tree such as ProjectiveTree",
        )
    build = partial(
        build_text_module,
        pooling=pooling,
        texts=texts,
        structure=structure,
        estimator=estimator,
        scorer=scorer,
        composer=composer,
        entropy_weight=entropy_weight,
    )
    return text_layer_model(
        build,
        input_width=input_width,
        scorer_learn_rate=scorer_learn_rate,
        temperature=temperature,
        dropout=dropout,
        mixed_precision=mixed_precision,
        staged=[structure, estimator],
    )


def text_layer_model(
    build: Callable[[Any], TextModule],
    *,
    input_width: Width | None,
    scorer_learn_rate: float,
    temperature: Temperature,
    dropout: float | None,
    mixed_precision: bool,
    staged: Sequence[Staged],
    evidence: EvidenceBound | None = None,
) -> Model[tuple[list[Floats2d], Spans], TextVectors]:
    """The model around a module that ``build`` makes for the width of the input. staged: as in
    LatentShim. evidence: what the module was given."""
    return shim_model(
        "latent_text",
        forward,
        build,
        input_width=input_width,
        scorer_learn_rate=scorer_learn_rate,
        temperature=temperature,
        dropout=dropout,
        mixed_precision=mixed_precision,
        staged=staged,
        learn_rates={} if evidence is None else {"evidence.": evidence.learn_rate},
    )


def forward(model: Model, inputs: tuple[Any, ...], is_train: bool) -> Any:
    """inputs: rows of each doc, its spans, and where there are any structures that are given for
    spans, or None; and hashes of the words, where a bound on their evidence is asked for in
    training."""
    arrays, spans, *known = inputs
    words = known.pop() if len(known) == 2 else None
    shim: Any = model.shims[0]
    ops: Any = model.ops
    sizes = [len(array) for array in arrays]
    groups = group_spans(sizes, spans)
    flat = ops.xp.concatenate([ops.asarray2f(array) for array in arrays])
    rows = xp2torch(ops.xp.ascontiguousarray(flat), device=shim.device, requires_grad=is_train)
    prepare(model, is_train)
    backprop_rows = None
    ends = list(accumulate(sizes, initial=0))
    docs = list(zip(ends, ends[1:]))
    texts = docs if shim.module.texts == 1 else pair_ranges(docs, spans)
    read = (rows, groups, docs, texts, *known)
    if words is not None:
        read = (*read, None, torch.as_tensor(words))
    if is_train:
        (result, _, (outputs, counts, features)), backprop_rows = shim.begin_update(read)
    else:
        edits = edits_of_layer(model, groups, spans)
        if edits is not None:
            read = (rows, groups, docs, texts, known[0] if known else None, edits)
        result, _, (outputs, counts, features) = shim.predict(read)
        if not torch.isfinite(result).all():
            refuse_not_finite()
    held = result.detach()
    size = result.numel() - sum(counts[1:]) * len(sizes)
    vectors: Any = torch2xp(held[:size].view(counts[0] * len(sizes), -1).clone())
    batch = LatentBatch([], spans, groups, [detached(output) for output in outputs])
    each = held[size:].split([rows * len(sizes) for rows in counts[1:]])
    weights, log_probs, extras, *more = (
        part.view(rows, len(sizes)) for part, rows in zip(each, counts[1:])
    )
    told = features.detach()
    evidence = EvidenceTerms(*more) if more else None
    made = TextVectors(ops.asarray2f(vectors), weights, log_probs, extras, told, batch, evidence)

    def backprop(gradients: tuple[Any, ...]) -> list[Floats2d]:
        if backprop_rows is None:
            raise LatentError("The latent layer cannot backpropagate from a prediction.")
        d_vectors = xp2torch(ops.xp.ascontiguousarray(gradients[0]), device=shim.device)
        parts = [d_vectors, *(part.to(d_vectors) for part in gradients[1:])]
        gradient = torch.cat([part.flatten() for part in parts])
        return ops.unflatten(ops.asarray2f(torch2xp(backprop_rows(gradient))), sizes)

    return made, backprop


def pair_ranges(docs: list[Range], spans: Spans) -> list[Range]:
    """Rows of the first and the second text of each doc, in turns; none where there is no pair."""
    ranges = []
    for (begin, _), pairs in zip(docs, spans):
        if not all(len(pair) == 4 for pair in pairs):
            raise LatentError(
                f"The span getter gave {pairs[:3]} for a doc of two texts; expected (start, end, "
                "other_start, other_end) for each pair. Use spacy-latent.PairSpans.v1."
            )
        for side in (0, 2):
            first = min((pair[side] for pair in pairs), default=0)
            end = max((pair[side + 1] for pair in pairs), default=0)
            ranges.append((begin + first, begin + end))
    return ranges


def keep(model: Model, arrays: list[Floats2d], made: TextVectors) -> Kept:
    """What :func:`inner_step` needs of an update."""
    shim: Any = model.shims[0]
    ops: Any = model.ops
    flat = ops.xp.concatenate([ops.asarray2f(array) for array in arrays])
    rows = xp2torch(ops.xp.ascontiguousarray(flat), device=shim.device).clone()
    drawn = [output.draw.z for output in made.batch.outputs]
    return Kept(rows, made.batch.groups, len(arrays), drawn)


def inner_step(model: Model, kept: Kept, advantage: Tensor, before: Tensor, clip: float) -> None:
    """Leave in the scorer the gradient of PPO's clipped objective (Schulman et al. 2017, eq. 7).

    advantage: ``(K, D)``, the gradient of the objective for log_probs at the draw. before: those
    log_probs.
    """
    shim: Any = model.shims[0]

    def objective(module: TextModule) -> Tensor:
        ratio = (module.again(kept) - before).exp()
        clipped = ratio.clamp(1 - clip, 1 + clip)
        return torch.maximum(ratio * advantage, clipped * advantage).sum()

    shim.accumulate(objective, kept.rows)
