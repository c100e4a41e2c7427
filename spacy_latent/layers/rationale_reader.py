"""Vectors of chosen words, without any information from other words."""

from __future__ import annotations

from torch import Tensor, nn

from spacy_latent.errors import LatentError
from spacy_latent.layers.base import Composer
from spacy_latent.layers.encoded_scorer import EncoderBuilder

# Kinds of parts with which words can be chosen.
READABLE = ("items", "tags", "transitions")


class RationaleReader(Composer):
    """Composition r_i = (n / Σ_j c_j) · c_i · e_i with e = encoder(c · v).

    c_i in [0, 1] is the choice of word i (:meth:`chosen`). The mean of r over the n words is the
    weighted mean of e over the chosen ones. If no word is chosen, r is 0.

    The encoder reads zeros in the places of words that are not chosen. So the result depends on the
    number and places of these words, but not on the words. The divisor is at least 1, so that a
    soft choice near 0 is not enlarged.

    Args:
        choice: "items" for structures of items, "tags" or "transitions" for sequences of two tags,
            of which 1 chooses.
        encoder: gives the chosen words the context of each other; None for their vectors alone.
    """

    # RationaleTextCat checks that the kind is one of these three.
    parts = ""

    def __init__(self, width: int, choice: str, encoder: EncoderBuilder | None = None) -> None:
        super().__init__()
        self.choice = choice
        self.encoder: nn.Module | None = None if encoder is None else encoder(width)
        self.output_width = width if self.encoder is None else int(self.encoder.output_width)  # type: ignore[arg-type]

    def chosen(self, z: Tensor) -> Tensor:
        """Return the choices of words ``(..., n)`` of structures ``(..., *parts)``."""
        if self.choice == "items":
            return z
        check_two_tags(z)
        return z[..., 1] if self.choice == "tags" else z.sum(-2)[..., 1]

    def forward(self, vectors: Tensor, z: Tensor, lengths: Tensor) -> Tensor:
        chosen = self.chosen(z).to(vectors.dtype)
        result = chosen[..., None] * vectors
        if self.encoder is not None:
            result = chosen[..., None] * self.encoder(result, lengths)
        share = lengths[:, None].to(result) / chosen.sum(1, keepdim=True).clamp_min(1.0)
        return share[..., None] * result


def check_two_tags(scores: Tensor) -> None:
    """Refuse another number of tags than two.

    Args:
        scores: of tags or transitions, or structures of these.
    """
    if scores.shape[-1] != 2:
        raise LatentError(
            "A rationale needs two tags, unchosen and chosen, and the scorer gives scores for "
            f"{scores.shape[-1]}. Set its num_tags to 2."
        )
