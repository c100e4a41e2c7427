"""Torch module of every latent model: score the parts, draw structures, compose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from spacy_latent.errors import LatentError, is_whole
from spacy_latent.estimators.base import Draw, Estimator, Given, check_draw
from spacy_latent.kernels.core.gpu_transfers import places_of
from spacy_latent.layers.base import Composer, PartScorer
from spacy_latent.layers.batch_interventions import (
    BatchInterventions,
    check_forced,
    constrained_scores,
    naming_interventions,
)
from spacy_latent.layers.compatibility import check_axes, check_kind, check_parts
from spacy_latent.layers.given_structures import encode_given
from spacy_latent.layers.latent_module import LatentOutput
from spacy_latent.structures.base import Structure

if TYPE_CHECKING:
    from spacy.tokens import Doc


# Gradients of scores below the smallest normal number times this are set to 0.
TRACE = 1e8


class LatentLayer(nn.Module):
    """Weighted average of compositions over the K structures of a Draw.

    Args:
        temperature: divisor of the scores. It is a plain attribute that a schedule may set.
        scorer_width: number of features at the end of each vector that only the scorer reads. Only
            the composer reads the others. None if both read all features.

    Attributes:
        update: number of this update of training, from 0; None at prediction. This plain attribute
            determines the stage of the structure and of the estimator, if they have stages.
    """

    update: int | None

    def __init__(
        self,
        scorer: PartScorer,
        structure: Structure,
        estimator: Estimator,
        composer: Composer,
        temperature: float = 1.0,
        scorer_width: int | None = None,
    ) -> None:
        super().__init__()
        check_parts(structure, estimator, scorer, composer)
        check_kind("scorer", scorer, PartScorer)
        check_kind("composer", composer, Composer)
        check_axes(structure, scorer, composer)
        if not is_whole(getattr(composer, "output_width", None), least=0):
            raise LatentError(
                f"{type(composer).__name__} has no output_width; set it in __init__ to the width "
                "of the vectors that it returns."
            )
        if not temperature > 0:
            raise LatentError(
                f"{type(self).__name__}: temperature is {temperature}; expected a number above 0."
            )
        self.scorer = scorer
        self.structure = structure
        self.estimator = estimator
        self.composer = composer
        self.temperature = temperature
        self.scorer_width = scorer_width
        self.update = None
        # Stages with weights are registered, so that they are stored and trained with the model.
        early = [stage for _, stage in estimator.stages if isinstance(stage, nn.Module)]
        self.earlier_estimators = nn.ModuleList(early)

    @property
    def present_structure(self) -> Structure:
        """Structure of the stage at ``update``; the last one at prediction."""
        return self.structure.at(self.update)

    @property
    def present_estimator(self) -> Estimator:
        """Estimator of the stage at ``update``; the last one at prediction."""
        return self.estimator.at(self.update)

    def forward(
        self,
        vectors: Tensor,
        lengths: Tensor,
        given: Sequence[np.ndarray | None] | None = None,
        interventions: BatchInterventions | None = None,
    ) -> LatentOutput:
        # Subclasses may take no interventions.
        asked = () if interventions is None else (interventions,)
        draw, scores = self.read(vectors, lengths, given, *asked)
        composed = self.compose(vectors, draw, lengths)
        return LatentOutput(composed, draw, scores, self.kept(vectors))

    def given(self, docs: Sequence[Doc], spans: list[list[tuple[int, ...]]]) -> Given | None:
        """Return given structures of these spans, if any; see :meth:`Estimator.given`."""
        return self.present_estimator.given(self.present_structure, docs, spans)

    def read(
        self,
        vectors: Tensor,
        lengths: Tensor,
        given: Sequence[np.ndarray | None] | None = None,
        interventions: BatchInterventions | None = None,
    ) -> tuple[Draw, Tensor]:
        """Return the estimator's draw of structures, and the scores divided by the temperature.

        Args:
            given: structures that replace drawn ones for some items, as :meth:`given` returns them.
                The scores of these items are 1 for parts of the structure and −1 for others.
            interventions: conditions on the structures, only at prediction and without ``given``.
                The returned scores include them, in float64 if parts are forbidden or forced.

        Raises:
            NothingLeft: no structure satisfies the interventions.
        """
        if given is not None:
            return self._read_given(vectors, lengths, given)
        asked = () if interventions is None else (self.temperature * interventions.temperature,)
        structure, scores = self.score(vectors, lengths, *asked)
        if interventions is not None and interventions.of_parts:
            with torch.autocast(device_type=scores.device.type, enabled=False):
                return self._read_constrained(structure, scores, lengths, interventions)
        return self.drawn(structure, scores, vectors, lengths), scores

    def drawn(
        self,
        structure: Structure,
        scores: Tensor,
        vectors: Tensor,
        lengths: Tensor,
        known: Tensor | None = None,
    ) -> Draw:
        """Return the draw of the estimator for the structure and the scores of :meth:`score`.

        In training it includes the cost of the scorer.

        Args:
            known: structures ``(B, *parts)`` to take instead of calling the estimator.
        """
        if known is None:
            with torch.autocast(device_type=scores.device.type, enabled=False):
                draw = self.draw(structure, scores, lengths)
        else:
            draw = Draw.single(known)
        cost = self.scorer.cost(self._scored(vectors), lengths) if self.training else None
        if cost is not None:
            draw.cost = cost.to(draw.weights)
        return draw

    def _read_constrained(
        self,
        structure: Structure,
        scores: Tensor,
        lengths: Tensor,
        interventions: BatchInterventions,
    ) -> tuple[Draw, Tensor]:
        exact = constrained_scores(structure, scores, lengths, interventions)
        with naming_interventions(structure.name, interventions):
            draw = self.draw(structure, exact, lengths)
            best = structure.map(exact, lengths) if structure.has_map else draw.mean()
        check_forced(best, interventions, structure.name)
        if not (torch.isfinite(draw.z).all() and torch.isfinite(draw.weights).all()):
            raise LatentError(
                f"{self.present_estimator.name} returned NaN or infinite values for "
                f"{structure.name} with forbidden or forced parts. Remove these interventions."
            )
        draw = replace(draw, z=draw.z.to(scores.dtype), weights=draw.weights.to(scores.dtype))
        return draw, exact

    def _read_given(
        self, vectors: Tensor, lengths: Tensor, given: Sequence[np.ndarray | None]
    ) -> tuple[Draw, Tensor]:
        if all(one is None for one in given):
            return self.read(vectors, lengths)
        z, known = encode_given(self.present_structure, given, vectors, lengths)
        if bool(known.all()):
            return Draw.single(z), 2 * z - 1
        draw, scores = self.read(vectors, lengths)
        here = known.view(-1, *[1] * (z.dim() - 1))
        draw = replace(draw, z=torch.where(here, z.to(draw.z), draw.z))
        return draw, torch.where(here, (2 * z - 1).to(scores), scores)

    def draw(self, structure: Structure, scores: Tensor, lengths: Tensor) -> Draw:
        """Draw from the scores with the present estimator, and check the result."""
        estimator = self.present_estimator
        draw = estimator(structure, scores, lengths, self.training)
        # Not len(), which torch.export would treat as a constant.
        check_draw(estimator.name, draw, scores.shape[0])
        return draw

    def sizes(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Return the lengths of the structures; by default the lengths of the texts.

        Args:
            scores: ``(B, *parts)``.
            lengths: ``(B,)`` or ``(B, 2)`` int64, lengths of the texts.
        """
        return lengths

    def shown(self, draw: Draw, tokens: int) -> Tensor:
        """Return the share of each token that each structure's vectors contain, ``(K, B, tokens)``.

        A decoder must not predict this share of the token from itself.
        """
        raise LatentError(
            f"{type(self).__name__} does not know which word each vector stands for, so it has no "
            "bound on the evidence of words. Set evidence = null."
        )

    def score(
        self, vectors: Tensor, lengths: Tensor, temperature: float | None = None
    ) -> tuple[Structure, Tensor]:
        """Return the structure with the scorer's bindings, and the scores over the temperature.

        If ``temperature`` is None, it is the layer's own.
        """
        temperature = self.temperature if temperature is None else temperature
        scores = self.scorer(self._scored(vectors), lengths)
        self._check_scores(scores, vectors)
        # Inference stays in float32 under autocast: in half precision exp overflows.
        with torch.autocast(device_type=scores.device.type, enabled=False):
            if scores.dtype in (torch.float16, torch.bfloat16):
                scores = scores.float()
            elif scores.dtype == torch.float64:
                # The scorer computed in float64, but composers need structures in the precision of
                # the vectors.
                scores = scores.to(torch.promote_types(vectors.dtype, torch.float32))
            scores = scores / temperature
            if scores.requires_grad:
                scores.register_hook(without_traces)
            return self.bound(vectors, lengths, temperature), scores

    def _check_scores(self, scores: Tensor, vectors: Tensor, per_token: bool = False) -> None:
        """Refuse scores in a shape that the structure cannot read.

        Args:
            per_token: whether each part belongs to a token, the first axis of an item's scores.
        """
        structure = self.present_structure
        if not (isinstance(scores, Tensor) and scores.is_floating_point()):
            what = f"{scores.dtype}" if isinstance(scores, Tensor) else type(scores).__name__
            raise LatentError(
                f"{type(self.scorer).__name__} gave {what}; expected a tensor of floating-point "
                f"numbers, the scores (B, *parts) of {structure.name}."
            )
        shape = tuple(scores.shape)
        batch, tokens = vectors.shape[:2]
        fits = len(shape) == 1 + structure.part_axes and shape[0] == batch
        if self.scorer.decides or (fits and (not per_token or shape[1] == tokens)):
            return
        sizes = {"items": (tokens,), "spans": (tokens,) * 2, "arcs": (tokens + 1,) * 2}
        more = (tokens,) if structure.part_axes == 1 else (f"{structure.part_axes} axes of parts",)
        expected = ", ".join(map(str, (batch, *sizes.get(structure.parts, more))))
        raise LatentError(
            f"{type(self.scorer).__name__} gave scores of shape {shape}; {structure.name} over "
            f"{tokens} tokens needs ({expected})."
        )

    def bound(
        self, vectors: Tensor, lengths: Tensor, temperature: float | None = None
    ) -> Structure:
        """Return the structure, with the scorer's bindings."""
        structure = self.present_structure
        temperature = self.temperature if temperature is None else temperature
        made = self.scorer.bind(structure, self._scored(vectors), lengths, temperature)
        if structure.linear and made is not structure:
            scorer = type(self.scorer).__name__
            raise LatentError(
                f"{scorer}.bind returned another structure than the given {structure.name}; "
                "expected the same one. Annotations, entropies and bounds on evidence read only "
                "the scores of parts. Add all other scores to these. For transitions between tags, "
                "return the scores of a LinearChain, see TagSequence.chain_scores."
            )
        return made

    def kept(self, vectors: Tensor) -> Tensor | None:
        """Return the scorer's input ``(B, n, d)`` at prediction if it has counters, else None."""
        keeps = self.scorer.counts and not self.training
        return self._scored(vectors).detach() if keeps else None

    def _scored(self, vectors: Tensor) -> Tensor:
        return vectors if self.scorer_width is None else vectors[..., -self.scorer_width :]

    def _composed(self, vectors: Tensor) -> Tensor:
        return vectors if self.scorer_width is None else vectors[..., : -self.scorer_width]

    def compose(self, vectors: Tensor, draw: Draw, lengths: Tensor) -> Tensor:
        """Return Σ_k weight_k · composer(vectors, z_k), ``(B, n, output_width)``.

        The composer runs once for all structures of all items. Their number is not padded, since an
        item's support may be much smaller than the largest in the batch.
        """
        vectors = self._composed(vectors)
        if draw.weights.shape[0] == 1:
            return self._made(vectors, draw.z[0], lengths)
        if draw.padding is None:
            item = _items(draw)
            z, weights = draw.z.flatten(0, 1), draw.weights.flatten()
        else:
            k, item = places_of(draw.present)
            z, weights = draw.z[k, item], draw.weights[k, item]
        composed = self._made(vectors, z, lengths, item)
        weighted = weights[:, None, None] * composed
        total = weighted.new_zeros(vectors.shape[0], *weighted.shape[1:])
        # The result is in half precision only if the vectors are. Structures never are.
        return total.index_add(0, item, weighted).to(vectors.dtype)

    def compose_each(self, vectors: Tensor, draw: Draw, lengths: Tensor) -> Tensor:
        """Return each composer(vectors, z_k), ``(K, B, n, output_width)``, 0 at padding."""
        return self._each(self._made, self._composed(vectors), draw, lengths)

    def compose_roots(self, vectors: Tensor, draw: Draw, lengths: Tensor) -> Tensor:
        """Return the sum of the composed vectors of each tree's roots, ``(K, B, output_width)``.

        It is weighted as in :meth:`Composer.compose_roots`. Some composers need less time for it
        than for the vectors of all tokens.
        """
        return self._each(self._made_roots, self._composed(vectors), draw, lengths)

    def _each(
        self,
        compose: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
        vectors: Tensor,
        draw: Draw,
        lengths: Tensor,
    ) -> Tensor:
        """Return ``compose`` of each structure, ``(K, B, ...)``, 0 at padding."""
        if draw.weights.shape[0] == 1:
            return compose(vectors, draw.z[0], lengths, None)[None]
        if draw.padding is None:
            composed = compose(vectors, draw.z.flatten(0, 1), lengths, _items(draw))
            return composed.unflatten(0, draw.weights.shape)
        k, item = places_of(draw.present)
        composed = compose(vectors, draw.z[k, item], lengths, item)
        result = composed.new_zeros(*draw.weights.shape, *composed.shape[1:])
        return result.index_put((k, item), composed)

    def _made(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None = None
    ) -> Tensor:
        """Compose structures, see :meth:`Composer.compose_several`."""
        composed = self.composer.compose_several(vectors, z, lengths, item)
        expected = (z.shape[0], vectors.shape[1], self.composer.output_width)
        self._check_composed(composed, expected, "for each token of each structure")
        return composed

    def _made_roots(
        self, vectors: Tensor, z: Tensor, lengths: Tensor, item: Tensor | None
    ) -> Tensor:
        """Compose roots, see :meth:`Composer.compose_roots`."""
        composed = self.composer.compose_roots(vectors, z, lengths, item)
        expected = (z.shape[0], self.composer.output_width)
        self._check_composed(composed, expected, "for each structure")
        return composed

    def _check_composed(self, composed: Tensor, expected: tuple[int, ...], of_what: str) -> None:
        given = tuple(composed.shape) if isinstance(composed, Tensor) else None
        if given != expected:
            said = "" if given is None else f" of shape {given}"
            raise LatentError(
                f"{type(self.composer).__name__} gave {type(composed).__name__}{said}; expected a "
                f"tensor of shape {expected}: vectors of its output_width {of_what}."
            )


def _items(draw: Draw) -> Tensor:
    """Return the item of each structure, ``(K · B,)``, if all items have K."""
    count, items = draw.weights.shape
    return torch.arange(items, device=draw.weights.device).repeat(count)


def without_traces(gradient: Tensor) -> Tensor:
    """Set entries of a gradient to 0 that are so small that products with them are subnormal.

    Processors take a hundred times as long for subnormal numbers. If one structure of an item is
    nearly certain, its gradient may consist of such numbers alone. This would double the time of
    the second half of a training.
    """
    smallest = TRACE * torch.finfo(gradient.dtype).tiny
    return torch.where(gradient.abs() < smallest, torch.zeros_like(gradient), gradient)
