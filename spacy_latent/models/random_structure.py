"""What if the structures were random? The layers of a trained pipeline with others put in."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from thinc.api import Model
from torch import Tensor

from spacy_latent.errors import LatentError
from spacy_latent.estimators.base import Draw
from spacy_latent.layers.gumbel_tree_lstm import GumbelTreeLstm
from spacy_latent.models.inspection import latent_models, latent_module
from spacy_latent.structures.base import Structure

Substitute = Literal["random", "best"]
SUBSTITUTES = ("random", "best")


@contextmanager
def substitute_structures(
    models: Iterable[Model], substitute: Substitute = "random", seed: int = 0
) -> Iterator[int]:
    """While it lasts, the latent layers inside of ``models`` compose with other structures than
    their estimators give. Only prediction is meant, training inside of it learns nothing of use.

    substitute: "random", for each span a structure that does not depend on its words: the best one
        under independent Gaussian scores; of items and tags, whose number nothing but the scores
        tells, those of the best structure at random places; "best", the single best structure, for
        estimators that would compose with a mixture.
    seed: of the random ones, which are the same for the same docs in the same batches.
    YIELDS: how many layers were found.
    """
    if substitute not in SUBSTITUTES:
        raise LatentError(f"substitute is {substitute!r}; expected one of {SUBSTITUTES}.")
    generator = torch.Generator().manual_seed(seed)
    layers = [latent_module(node).latent for model in models for node in latent_models(model)]
    changed: list[tuple[Any, str]] = []
    try:
        for layer in layers:
            name = "choose" if isinstance(layer, GumbelTreeLstm) else "read"
            if name in vars(layer):
                raise LatentError(
                    "The structures of this layer are substituted already. Leave one context "
                    "before the next is entered."
                )
            other: Callable[..., Any]
            if isinstance(layer, GumbelTreeLstm):
                other = _chooser(layer, substitute, generator)
            else:
                other = _reader(layer, substitute, generator)
            # On the instance, where it hides the method until it is deleted.
            object.__setattr__(layer, name, other)
            changed.append((layer, name))
        yield len(layers)
    finally:
        for layer, name in changed:
            object.__delattr__(layer, name)


def _reader(layer: Any, substitute: Substitute, generator: torch.Generator) -> Callable[..., Any]:
    """In the place of ``LatentLayer.read``, whose last argument are the lengths."""
    read, structure = layer.read, layer.structure

    def read_other(*arguments: Any) -> tuple[Draw, Tensor]:
        draw, scores = read(*arguments)
        lengths = arguments[-1]
        if substitute == "random" and _can_shuffle(structure, scores, lengths):
            z = _shuffled(structure, structure.map(scores, lengths), lengths, generator)
            # Scores whose best structure it is, for whoever asks for that.
            return Draw(z[None], scores.new_ones((1, scores.shape[0]))), 2 * z - 1
        if substitute == "random":
            scores = _noise(structure, scores, lengths, generator)
        elif not structure.linear:
            # What is best under the decisions of a bound scorer, no scores tell.
            return draw, scores
        if not structure.has_map:
            return layer.estimator(structure, scores, lengths, False), scores
        z = structure.map(scores, lengths)
        return Draw(z[None], scores.new_ones((1, scores.shape[0]))), scores

    return read_other


def _can_shuffle(structure: Structure, scores: Tensor, lengths: Tensor) -> bool:
    """Whether parts may change places: those of items and tags without forbidden ones."""
    if structure.parts != "items" and structure.annotation != "tags":
        return False
    lengths = lengths.to(scores.device)
    forbidden = scores.isneginf() & structure.part_mask(scores, lengths)
    return structure.linear and structure.has_map and not bool(forbidden.any())


def _shuffled(
    structure: Structure, z: Tensor, lengths: Tensor, generator: torch.Generator
) -> Tensor:
    """The same items or tags as those of z ``(B, *parts)``, at other places."""
    encode: Any = structure.encode
    result = torch.zeros_like(z)
    for b, length in enumerate(lengths.tolist()):
        n = int(length)
        order = torch.randperm(n, generator=generator).numpy()
        decoded = structure.decode(z[b].cpu().numpy(), n)
        if structure.annotation == "tags":
            made = encode(decoded[order], n, num_tags=z.shape[-1])
        else:
            made = encode(np.sort(order[decoded]), n)
        place: Any = [b, *(slice(0, size) for size in made.shape)]
        result[tuple(place)] = torch.as_tensor(made).to(z)
    return result


def _noise(
    structure: Structure, scores: Tensor, lengths: Tensor, generator: torch.Generator
) -> Tensor:
    """Scores that know nothing of the words; what was forbidden is so still."""
    drawn = torch.randn(scores.shape, generator=generator).to(scores)
    if structure.parts == "arcs" and not structure.exclusive_axes and structure.has_map:
        # Of a graph, too, the scores tell how many arcs it has: as many of the highest.
        mask = structure.part_mask(scores, lengths.to(scores.device)) & ~scores.isneginf()
        count = structure.map(scores, lengths).flatten(1).sum(1, keepdim=True)
        rank = drawn.masked_fill(~mask, -torch.inf).flatten(1).argsort(1, descending=True)
        place = rank.argsort(1).view_as(scores)
        drawn = torch.where(place < count.view(-1, 1, 1), 1.0, -1.0).to(scores)
    return drawn.masked_fill(scores.isneginf(), -torch.inf)


def _chooser(
    layer: GumbelTreeLstm, substitute: Substitute, generator: torch.Generator
) -> Callable[..., Any]:
    choose = layer.choose

    def choose_other(scores: Tensor, allowed: Tensor) -> Tensor:
        if substitute == "random":
            scores = torch.randn(scores.shape, generator=generator).to(scores)
        return choose(scores, allowed)

    return choose_other
