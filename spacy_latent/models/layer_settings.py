"""Settings of a latent layer, which registered functions pass on as one object."""

from __future__ import annotations

from dataclasses import dataclass

from spacy_latent.errors import IncompatiblePair, NotTractable, check_number
from spacy_latent.estimators.base import Estimator
from spacy_latent.layers.base import ComposerBuilder, ScorerBuilder
from spacy_latent.layers.compatibility import build_part, check_parts
from spacy_latent.layers.latent_layer import LatentLayer
from spacy_latent.models.latent_shim import Width
from spacy_latent.models.separate_tok2vec import total
from spacy_latent.structures.base import Structure


@dataclass(frozen=True)
class LayerSettings:
    """Compatible parts of a latent layer.

    Args:
        entropy_weight: see ``build_latent_tok2vec_v1``.
    """

    structure: Structure
    estimator: Estimator
    scorer: ScorerBuilder
    composer: ComposerBuilder
    entropy_weight: float = 0.0

    def __post_init__(self) -> None:
        check_parts(self.structure, self.estimator, self.scorer, self.composer)
        check_entropy_weight(self.structure, self.estimator, self.entropy_weight)

    def build(self, input_width: Width) -> LatentLayer:
        """Build the layer for the width of vectors, or for widths of the composer and scorer."""
        scorer_width = None
        if isinstance(input_width, int):
            composed = scored = input_width
        else:
            composed, scored = input_width
            scorer_width = scored
        # Copy the estimator: if it has a state, this is reset whenever weights are drawn.
        own = self.estimator.each(lambda stage: stage.for_width(total(input_width)))
        return LatentLayer(
            build_part("scorer", self.scorer, scored),
            self.structure,
            own,
            build_part("composer", self.composer, composed),
            scorer_width=scorer_width,
        )


def check_entropy_weight(structure: Structure, estimator: Estimator, weight: float) -> None:
    """Raise an error if ``entropy_weight`` is not finite, or the entropy is not tractable."""
    check_number("The latent layer", entropy_weight=weight)
    for each in [structure, *(stage for _, stage in structure.stages)]:
        if weight and "entropy" not in each.tractable:
            raise NotTractable(each.name, "entropy", "entropy_weight = 0.0")
    for one in [estimator, *(stage for _, stage in estimator.stages)]:
        if weight and not one.entropy_of_scores:
            raise IncompatiblePair(
                "entropy_weight",
                one.name,
                "it weights the entropy of a softmax over structures, and this estimator trains "
                "another distribution",
                "entropy_weight = 0.0",
            )
