"""Interface of every torch module with a latent structure, and its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor, nn

from spacy_latent.estimators.base import Draw, Estimator, Given
from spacy_latent.layers.base import Composer
from spacy_latent.structures.base import Structure

if TYPE_CHECKING:
    from spacy.tokens import Doc


@dataclass
class LatentOutput:
    """Output of a latent layer.

    Attributes:
        vectors: ``(B, n, output_width)``.
        scores: ``(B, *parts)``, after division by temperature.
        scored: ``(B, n, d)``, input of the scorer, kept in prediction if the scorer has counters.
        composed: the structures that were composed, if they are not those of ``draw``.
    """

    vectors: Tensor
    draw: Draw
    scores: Tensor
    scored: Tensor | None = None
    composed: Draw | None = None


class LatentModule(Protocol):
    """Interface of every torch module with a latent structure.

    One kind is :class:`spacy_latent.layers.latent_layer.LatentLayer`, which scores, draws and
    composes. The other kind decides while it composes, such as
    :class:`spacy_latent.layers.gumbel_tree_lstm.GumbelTreeLstm`.

    Attributes:
        structure, estimator: used for prediction; present_structure, present_estimator: used in the
            present stage of training.
        temperature, update: see :class:`spacy_latent.layers.latent_layer.LatentLayer`.
    """

    structure: Structure
    estimator: Estimator
    temperature: float
    update: int | None

    @property
    def scorer(self) -> nn.Module:
        """Module whose scores decide on the structure."""
        ...

    @property
    def composer(self) -> Composer:
        """Composer of vectors from a structure."""
        ...

    @property
    def present_structure(self) -> Structure:
        """Structure of the present stage of training, or of prediction."""
        ...

    @property
    def present_estimator(self) -> Estimator:
        """Estimator of the present stage of training, or of prediction."""
        ...

    def given(self, docs: Sequence[Doc], spans: list[list[tuple[int, ...]]]) -> Given | None:
        """Return structures of these spans that are not drawn: see :meth:`Estimator.given`."""
        ...

    def __call__(
        self, vectors: Tensor, lengths: Tensor, given: Sequence[np.ndarray | None] | None = None
    ) -> LatentOutput:
        """Return the output for token vectors ``(B, n, d)``; some structures may be given."""
        ...
