"""Replacement of the structures of a trained pipeline, for example by random ones."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from spacy.tokens import Doc
from thinc.api import Model
from torch import Tensor

from spacy_latent.errors import LatentError, number_of
from spacy_latent.estimators.base import Draw, Given
from spacy_latent.estimators.given_trees import GivenTrees, tree_within
from spacy_latent.kinds import find_kind
from spacy_latent.layers.gumbel_tree_lstm import GumbelTreeLstm
from spacy_latent.models.compatible_spans import crosses
from spacy_latent.models.inspection import latent_models, latent_module
from spacy_latent.structures.base import Structure

# Function from docs to the heads or brackets of each; see substitute_structures.
TreesOfDocs = Callable[[Sequence[Doc]], Sequence["np.ndarray | Sequence[int] | None"]]
Substitute = Literal["random", "best"] | GivenTrees | TreesOfDocs
SUBSTITUTES = ("random", "best")


@contextmanager
def substitute_structures(
    models: Iterable[Model], substitute: Substitute = "random", seed: int = 0
) -> Iterator[int]:
    """Let the latent layers inside of ``models`` compose with other structures.

    It is meant for prediction only. Training in this context learns nothing useful.

    "random" gives each span the best structure under independent Gaussian scores, which does not
    depend on its words. For items and tags it moves the parts of the best structure to random
    places, which keeps their number. "best" gives the single best structure, for estimators that
    compose with a mixture.

    Layers of trees also accept given trees: a GivenTrees, or a function from docs to one array for
    each doc, or None for a doc that keeps its trees. The function receives some of the docs at a
    time, in any order. The trees need not belong to the layer's set of structures.

    For dependency trees, an array has the position in the doc of each token's head. A root is its
    own head, and −1 is an unknown head. Spans with an unknown head keep their trees. For structures
    of spans, an array ``(m, 2)`` has the first and last token of each bracket. Brackets that are
    not inside a span are ignored. Single tokens and the whole span may be omitted.

    Args:
        seed: seed of the random structures, which are the same for the same docs in the same
            batches.

    Yields:
        The number of layers found.

    Raises:
        LatentError: if ``substitute`` is invalid, or the structures of a layer are already
            replaced.
    """
    if not callable(substitute) and substitute not in SUBSTITUTES:
        raise LatentError(
            f"substitute is {substitute!r}; expected one of {SUBSTITUTES}, a GivenTrees, or a "
            "function from docs to their heads."
        )
    generator = torch.Generator().manual_seed(seed)
    layers = [latent_module(node).latent for model in models for node in latent_models(model)]
    changed: list[tuple[Any, str]] = []
    try:
        for layer in layers:
            if {"choose", "read", "given"} & vars(layer).keys():
                raise LatentError(
                    "The structures of this layer are substituted already. Exit this context "
                    "before you enter another one."
                )
            name, other = _other(layer, substitute, generator)
            # Set on the instance, where it hides the method of the class until it is deleted.
            object.__setattr__(layer, name, other)
            changed.append((layer, name))
        yield len(layers)
    finally:
        for layer, name in changed:
            object.__delattr__(layer, name)


def _other(
    layer: Any, substitute: Substitute, generator: torch.Generator
) -> tuple[str, Callable[..., Any]]:
    """Return the name of a method of the layer, and its replacement."""
    if isinstance(substitute, GivenTrees):
        substitute.check(layer.structure)
        return "given", partial(substitute.given, layer.structure)
    if callable(substitute):
        return "given", partial(given_by, substitute, layer.structure)
    if isinstance(layer, GumbelTreeLstm):
        return "choose", _chooser(layer, substitute, generator)
    return "read", _reader(layer, substitute, generator)


def given_by(
    trees: TreesOfDocs,
    structure: Structure,
    docs: Sequence[Doc],
    spans: Sequence[Sequence[tuple[int, ...]]],
) -> Given:
    """Convert trees of docs to trees of spans, as ``structure.decode`` returns them.

    A span with an unknown tree has None.
    """
    GivenTrees("left").check(structure)
    found = trees(docs)
    if len(found) != len(docs):
        given = f"{len(found)} of {number_of(len(docs), 'doc')}"
        raise LatentError(
            f"The function returned trees for {given}; expected one tree, or None, for each doc."
        )
    has_heads = "heads" in find_kind(structure.kind).accessors
    within = _heads_within if has_heads else _brackets_within
    return [
        [None if tree is None else within(doc, np.asarray(tree), *span[:2]) for span in doc_spans]
        for doc, tree, doc_spans in zip(docs, found, spans, strict=True)
    ]


def _heads_within(doc: Doc, heads: np.ndarray, start: int, end: int) -> np.ndarray | None:
    if heads.shape != (len(doc),) or ((heads < -1) | (heads >= len(doc))).any():
        raise LatentError(
            f"The heads {heads.tolist()[:10]} are given for the doc {doc.text[:40]!r} of "
            f"{number_of(len(doc), 'token')}; expected the index of each token's head in the doc, "
            "its own index for a root, or −1 for an unknown head."
        )
    tree = tree_within(heads, start, end)
    if tree is None:
        return None
    above = np.concatenate([[0], tree])
    for _ in range(len(tree).bit_length()):
        above = above[above]
    if above.any():
        raise LatentError(
            f"The heads {heads.tolist()[:10]} that are given for the doc {doc.text[:40]!r} hold a "
            "cycle; expected trees. A root has its own index as head."
        )
    return tree


def _brackets_within(doc: Doc, brackets: np.ndarray, start: int, end: int) -> np.ndarray:
    rows = brackets.reshape(-1, 2).astype("int64")
    inside = {(int(a), int(b)) for a, b in rows if start <= a < b < end}
    inside |= {(i, i) for i in range(start, end)} | {(start, end - 1)}
    if crosses([(a, b + 1) for a, b in inside]) or len(inside) != 2 * (end - start) - 1:
        raise LatentError(
            f"The brackets {rows.tolist()[:10]} are given for the doc {doc.text[:40]!r}; expected "
            f"a binary tree over tokens {start} to {end - 1}: {end - start - 1} brackets of two "
            "tokens and more that do not cross."
        )
    return np.array(sorted(inside), dtype="int32").reshape(-1, 2) - start


def _reader(layer: Any, substitute: Any, generator: torch.Generator) -> Callable[..., Any]:
    """Return a replacement of ``LatentLayer.read``."""
    read, structure = layer.read, layer.structure

    def read_other(
        vectors: Tensor,
        lengths: Tensor,
        given: Sequence[np.ndarray | None] | None = None,
        *interventions: Any,
    ) -> tuple[Draw, Tensor]:
        draw, scores = read(vectors, lengths, given, *interventions)
        if substitute == "random" and _can_shuffle(structure, scores, lengths):
            z = _shuffled(structure, structure.map(scores, lengths), lengths, generator)
            # Scores whose best structure is z, for callers that compute it from the scores.
            sure = 2 * z - 1
            # The best structure may differ for sets with constraints on neighbours, such as runs of
            # items.
            if torch.equal(structure.map(sure, lengths), z):
                return Draw.single(z), sure
        if substitute == "random":
            scores = _noise(structure, scores, lengths, generator)
        elif not structure.linear:
            # If a bound scorer scores decisions, these scores do not determine the best structure.
            return draw, scores
        if not structure.has_map:
            return layer.estimator(structure, scores, lengths, False), scores
        return Draw.single(structure.map(scores, lengths)), scores

    return read_other


def _can_shuffle(structure: Structure, scores: Tensor, lengths: Tensor) -> bool:
    """Return whether parts may be moved: items and tags of which none is forbidden."""
    if find_kind(structure.kind).moved is None:
        return False
    lengths = lengths.to(scores.device)
    forbidden = scores.isneginf() & structure.part_mask(scores, lengths)
    return structure.linear and structure.has_map and not bool(forbidden.any())


def _shuffled(
    structure: Structure, z: Tensor, lengths: Tensor, generator: torch.Generator
) -> Tensor:
    """Return the items or tags of z ``(B, *parts)`` at other places."""
    encode: Any = structure.encode
    moved: Any = find_kind(structure.kind).moved
    result = torch.zeros_like(z)
    for b, n in enumerate(lengths.tolist()):
        order = torch.randperm(n, generator=generator).numpy()
        decoded = structure.decode(z[b].cpu().numpy(), n)
        more = {"num_tags": z.shape[-1]} if structure.annotation == "tags" else {}
        made = encode(moved(decoded, order), n, **more)
        place: Any = [b, *(slice(0, size) for size in made.shape)]
        result[tuple(place)] = torch.as_tensor(made).to(z)
    return result


def _noise(
    structure: Structure, scores: Tensor, lengths: Tensor, generator: torch.Generator
) -> Tensor:
    """Return scores that do not depend on the words; forbidden parts stay forbidden."""
    drawn = torch.randn(scores.shape, generator=generator).to(scores)
    if structure.parts == "arcs" and not structure.exclusive_axes and structure.has_map:
        # A graph has as many arcs as the scores say. Random scores keep this number.
        mask = structure.part_mask(scores, lengths.to(scores.device)) & ~scores.isneginf()
        count = structure.map(scores, lengths).flatten(1).sum(1, keepdim=True)
        rank = drawn.masked_fill(~mask, -torch.inf).flatten(1).argsort(1, descending=True)
        place = rank.argsort(1).view_as(scores)
        drawn = torch.where(place < count.view(-1, 1, 1), 1.0, -1.0).to(scores)
    return drawn.masked_fill(scores.isneginf(), -torch.inf)


def _chooser(
    layer: GumbelTreeLstm, substitute: Any, generator: torch.Generator
) -> Callable[..., Any]:
    choose = layer.choose

    def choose_other(scores: Tensor, allowed: Tensor) -> Tensor:
        if substitute == "random":
            scores = torch.randn(scores.shape, generator=generator).to(scores)
        return choose(scores, allowed)

    return choose_other
