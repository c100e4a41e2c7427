"""Thinc model around a torch module that is built when the width of its input is known."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from thinc.api import Model, xp2torch
from thinc.types import Floats2d
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.models.latent_shim import LatentShim, TrainingSettings, Width
from spacy_latent.models.separate_tok2vec import initialize_embedder, total
from spacy_latent.stages import Staged


def shim_model(
    name: str,
    forward: Callable,
    build: Callable[[Any], Any],
    training: TrainingSettings,
    *,
    input_width: Width | None,
    width: int | None = None,
    staged: Sequence[Staged] = (),
    learn_rates: dict[str, float] | None = None,
) -> Model:
    """Build a Thinc model around a torch module, which is made once the input width is known.

    Args:
        build: function that makes the module for the width of the input. The module has an
            ``output_width``.
        input_width: width of the input, None if it is not known.
        width: width of the output, None if it is not known.
        learn_rates: see LatentShim, in addition to the scorer's rate.
    """
    shim = LatentShim(
        build,
        training,
        learn_rates={"latent.scorer.": training.scorer_learn_rate, **(learn_rates or {})},
        staged=staged,
    )
    dims = {"nI": None, "nO": width}
    model: Model = Model(name, forward, init=_init, dims=dims, attrs=training.attrs, shims=[shim])
    if input_width is not None:
        set_input_width(model, input_width)
    return model


def set_input_width(model: Model, width: Width) -> None:
    """Build the module for an input of ``width`` features, with new weights."""
    model.set_dim("nI", total(width), force=True)
    shim: Any = model.shims[0]
    shim.build(width)
    model.set_dim("nO", shim.module.output_width)


def _init(model: Model, X: Any = None, Y: Any = None) -> Model:
    shim: Any = model.shims[0]
    width = shim.cfg["width"] or model.maybe_get_dim("nI")
    if X is not None and len(X[0]):
        width = X[0][0].shape[1]
    if width is not None:
        set_input_width(model, width)
    return model


def initialize_over(tok2vec: Model, latent: Model, X: Any) -> None:
    """Initialize an embedder, and the model of the latent layer above it for its width."""
    width = initialize_embedder(tok2vec, X)
    if width is None:
        latent.initialize()
    else:
        set_input_width(latent, width)


def rows_of(model: Model, arrays: Sequence[Floats2d], requires_grad: bool = False) -> Tensor:
    """Return the rows ``(N, width)`` of one or more docs in order, on the module's device."""
    ops: Any = model.ops
    shim: Any = model.shims[0]
    rows = ops.xp.concatenate([ops.asarray2f(array) for array in arrays])
    flat = ops.xp.ascontiguousarray(rows)
    return xp2torch(flat, device=shim.device, requires_grad=requires_grad)


def refuse_not_finite(results: Sequence[Tensor]) -> None:
    """Raise an error for a prediction with vectors that are not finite.

    In training, a step that overflows in half precision is skipped. In prediction the overflow
    would be hidden.
    """
    # Check the sum first, which is faster: if it is finite, so are all vectors.
    if torch.isfinite(torch.stack([result.sum() for result in results]).sum()):
        return
    if not all(torch.isfinite(result).all() for result in results):
        raise LatentError(
            "The latent layer gave vectors with NaN or infinite values. Its weights, or the "
            "embedder's vectors, are not finite: train again with a lower learning rate or "
            "with training.optimizer.grad_clip."
        )
