"""Latent layers inside a model of any component, their structures and uncertainty."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from spacy.tokens import Doc
from thinc.api import Model
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.kernels.core.gpu_transfers import send
from spacy_latent.layers.latent_module import LatentModule, LatentOutput
from spacy_latent.models.latent_layer_model import LatentBatch, SpanModule, given_structures
from spacy_latent.models.latent_shim import LatentShim
from spacy_latent.models.span_groups import Group
from spacy_latent.models.structure_reader import alternatives_of
from spacy_latent.models.text_module import TextModule
from spacy_latent.models.token_vectors import token_vectors


@dataclass(frozen=True)
class Uncertainty:
    """Uncertainty of the structure of one span.

    Attributes:
        nats: entropy of p(z), NaN if it is not tractable.
        log_count: log of the number of possible structures, NaN if it is not tractable.
        support: number of structures that the prediction is composed with; 0 for a relaxation, such
            as marginals, to which all structures contribute.
        warmth: for estimators with SparseMAP's mixture, the smallest factor of the temperature in
            :data:`WARMER` with which the mixture has several structures. It is 1 if it has several
            already, and infinite if no factor is large enough. NaN for other estimators.
    """

    nats: float
    log_count: float
    support: int
    warmth: float = math.nan


WARMER = tuple(2.0**i for i in range(1, 11))


def latent_models(model: Model) -> list[Model]:
    """Return the models from docs with a latent layer, anywhere in a component's model.

    Examples are ``LatentTok2Vec``, also inside another model, and the models of ``latent_textcat``.
    """
    return [node for node in model.walk() if _shims(node)]


def _shims(node: Model) -> list[LatentShim]:
    found = [shim for layer in node.layers for shim in layer.shims]
    return [shim for shim in found if isinstance(shim, LatentShim) and shim.has_layer]


def latent_shim(model: Model) -> LatentShim:
    """Return the shim of the latent layer of one of :func:`latent_models`."""
    return _shims(model)[0]


def latent_module(model: Model) -> SpanModule | TextModule:
    """Return the torch module around the latent layer of one of :func:`latent_models`.

    Its ``latent`` is the layer.
    """
    return latent_shim(model).module


class KeptVectors:
    """Vectors of embedders, kept for further runs over the same docs.

    Vectors beyond the memory limit are not kept.

    Args:
        memory_limit: largest size of the kept vectors in bytes.
    """

    def __init__(self, memory_limit: float = 256e6) -> None:
        self._free_bytes = memory_limit
        self._kept: dict[tuple[int, int], list[Any]] = {}

    def get(self, key: tuple[int, int]) -> list[Any] | None:
        """Return the kept vectors, None without any.

        Args:
            key: number of the batch, and place of the model in its component.
        """
        return self._kept.get(key)

    def put(self, key: tuple[int, int], vectors: list[Any]) -> None:
        """Keep the vectors of a batch, unless they exceed the remaining memory."""
        size = sum(rows.nbytes for rows in vectors)
        if size <= self._free_bytes:
            self._free_bytes -= size
            self._kept[key] = vectors


@contextmanager
def embedding_once(
    models: Iterable[Model], docs: Sequence[Doc], kept: KeptVectors, batch: int
) -> Iterator[None]:
    """Let the embedder of each of these :func:`latent_models` read each doc only once.

    Vectors that are kept for this number of a batch are not computed again. The docs must not
    change inside the ``with`` block.
    """
    embedders = [model.layers[0] for model in models]
    own = [embedder._func for embedder in embedders]
    for i, (embedder, function) in enumerate(zip(embedders, own)):
        # If the embedder has a latent layer, its structures may differ from run to run.
        store = KeptVectors() if latent_models(embedder) else kept
        embedder._func = _remembering(function, list(docs), store, (batch, i))
    try:
        yield
    finally:
        for embedder, function in zip(embedders, own):
            embedder._func = function


def _remembering(
    function: Callable[..., Any], known: list[Doc], kept: KeptVectors, key: tuple[int, int]
) -> Callable[..., Any]:
    # Vectors are kept by doc, since a component may read only some of the docs at a time.
    known = [doc for doc in known if len(doc)]
    made = dict(zip(map(id, known), kept.get(key) or ()))
    ours = set(map(id, known))

    def forward(model: Model, docs: Sequence[Doc], is_train: bool) -> Any:
        if is_train or not ours.issuperset(map(id, docs)):
            return function(model, docs, is_train)
        new = [doc for doc in docs if id(doc) not in made]
        if new:
            made.update(zip(map(id, new), function(model, new, is_train)[0]))
            if len(made) == len(ours):
                kept.put(key, [made[id(doc)] for doc in known])
        return [made[id(doc)] for doc in docs], _no_backprop

    return forward


def _no_backprop(gradient: Any) -> Any:
    raise LatentError(
        "Vectors that are kept for further predictions have no gradient. Call the model again "
        "with is_train=True."
    )


def read_batch(model: Model, docs: Sequence[Doc]) -> LatentBatch:
    """Return the prediction of one of :func:`latent_models` for docs, with its structures."""
    docs = list(docs)
    spans = model.attrs["span_getter"](docs)
    if not any(len(doc) for doc in docs):
        return LatentBatch([], spans, [], [])
    tok2vec, latent = model.layers[:2]
    given = given_structures(latent, docs, spans, is_train=False)
    made: Any = latent.predict((token_vectors(tok2vec, docs, False)[0], spans, given))
    return made if isinstance(made, LatentBatch) else made.batch


def read_uncertainty(batch: LatentBatch, layer: LatentModule) -> list[list[Uncertainty]]:
    """Return the uncertainty of each span, for each doc of the batch."""
    unknown = Uncertainty(math.nan, math.nan, 0)
    result = [[unknown] * len(spans) for spans in batch.spans]
    with torch.no_grad():
        for group, output in zip(batch.groups, batch.outputs):
            found = _of_group(group, output, layer)
            for (d, s), of_span in zip(group.members, zip(*found)):
                result[d][s] = Uncertainty(*of_span)
    return result


def _of_group(
    group: Group, output: LatentOutput, layer: LatentModule
) -> tuple[list[float], list[float], list[int], list[float]]:
    structure, scores = layer.structure, output.scores
    lengths = send(group.lengths, scores.device)
    unknown = [math.nan] * len(lengths)
    if not layer.estimator.uses_scores:
        return [0.0] * len(lengths), unknown, [1] * len(lengths), unknown
    nats = structure.entropy(scores, lengths) if "entropy" in structure.tractable else None
    countable = structure.linear and "log_partition" in structure.tractable
    count = structure.log_count(scores, lengths) if countable else None
    return (
        unknown if nats is None else nats.clamp_min(0.0).tolist(),
        unknown if count is None else count.tolist(),
        _supports(group, output, layer),
        _warmths(scores, lengths, layer),
    )


def _supports(group: Group, output: LatentOutput, layer: LatentModule) -> list[int]:
    draw = output.draw
    if draw.z.shape[0] > 1:
        return (draw.weights > 0).sum(0).tolist()
    if layer.estimator.hard_at_prediction:
        return [1] * len(group.members)
    if layer.estimator.has_support and layer.structure.has_map:
        _, weights = alternatives_of(output, layer, group.lengths, 1)
        return (weights > 0).sum(0).tolist()
    return [0] * len(group.members)


def _warmths(scores: Tensor, lengths: Tensor, layer: LatentModule) -> list[float]:
    warmths = torch.full((len(lengths),), math.inf)
    if not (layer.estimator.has_support and layer.structure.has_map and layer.structure.linear):
        return [math.nan] * len(lengths)
    for factor in (1.0, *WARMER):
        left = warmths.isinf().nonzero().flatten().to(scores.device)
        if not len(left):
            break
        weights = layer.structure.sparsemap(scores[left] / factor, lengths[left]).weights
        several = ((weights > 0).sum(0) > 1).cpu()
        warmths[left.cpu()[several]] = factor
    return warmths.tolist()
