"""Trees that are not learned, such as random trees, chains and a parser's, as controls."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from spacy_latent.errors import IncompatiblePair, LatentError, check_one_of, check_texts
from spacy_latent.estimators.base import Draw, Estimator, Given
from spacy_latent.kinds import find_kind
from spacy_latent.structures.base import Structure
from spacy_latent.structures.constituency_tree import ConstituencyTree

if TYPE_CHECKING:
    from spacy.tokens import Doc

Trees = Literal["random", "left", "right", "flat", "balanced", "root", "nearest", "heads"]
TREES = get_args(Trees)
# Names of the controls of a report.
CONTROLS = {
    "left": "left-branching",
    "right": "right-branching",
    "flat": "flat",
    "balanced": "balanced",
}
DESCRIBED = {
    "root": "every token on the root",
    "random": "random trees",
    "nearest": "trees of the nearest head word",
    "heads": "the heads that docs have",
}
LOOKS_AT_WORDS = ("random", "nearest", "heads")


class GivenTrees(Estimator):
    """Trees that do not depend on the scores, in training and at prediction.

    A model with learned trees can be compared with such a model. The scorer is not run and learns
    nothing.

    With "root" no arc is between two tokens, so the composer has the same weights without a tree.
    Structures of spans take only "random", "left", "right" and "balanced". All trees except
    "random" may break a structure's ``direction``, ``max_arc_length`` or ``single_root``.

    Args:
        trees: the head of each token. "random": a tree of the structure's set, all equally likely;
            the same words always get the same tree, in every epoch and process. "left": the next
            token. "right": the token before. "flat": the first token. "balanced": the middle token
            heads the middle tokens of both halves, and so on. "root": the root. "nearest": the
            nearest earlier token that is one of ``words``, else the first such token of the text.
            "heads": the head in the doc, written by the corpus reader or by a parser before this
            component; name the parser in ``training.annotating_components``.
        seed: seed of the random trees.
        words: with "nearest", the texts of the tokens that may have modifiers.
    """

    requires: ClassVar[frozenset[str]] = frozenset()
    linear_only: ClassVar[bool] = False
    uses_scores: ClassVar[bool] = False
    hard = True

    def __init__(
        self, trees: Trees = "random", seed: int = 0, words: Sequence[str] | None = None
    ) -> None:
        check_one_of(self.name, TREES, trees=trees)
        check_texts(self.name, or_null=True, words=words)
        if (trees == "nearest") != bool(words):
            raise LatentError(
                f"{self.name}: trees is {trees!r} and words is {words!r}; expected words, the "
                "tokens that may be heads, with trees = 'nearest', and none with other trees."
            )
        self.trees: Trees = trees
        self.seed = seed
        self.words = frozenset(words or ())

    @property
    def described(self) -> str:
        """The kind of trees in words."""
        return DESCRIBED.get(self.trees) or f"{CONTROLS[self.trees]} trees"

    def check(self, structure: Structure) -> None:
        found = find_kind(structure.kind).trees
        if not found:
            raise IncompatiblePair(
                self.name,
                structure.name,
                f"it gives trees, and this structure is made of {structure.parts or 'other parts'}",
                "a structure of arcs or spans, such as SpanningTree or ConstituencyTree; as a "
                "control of other structures, a pipeline for the same task without them, such as "
                "one that reads all words",
            )
        if self.trees not in found:
            raise IncompatiblePair(
                f"{self.name} with trees = {self.trees!r}",
                structure.name,
                f"there is no such tree of {structure.kind}",
                f"one of {', '.join(found)}",
            )

    def given(
        self, structure: Structure, docs: Sequence[Doc], spans: Sequence[Sequence[tuple[int, ...]]]
    ) -> Given:
        return [
            self._of_doc(structure, doc, doc_spans)
            for doc, doc_spans in zip(docs, spans, strict=True)
        ]

    def __call__(
        self, structure: Structure, scores: Tensor, lengths: Tensor, is_train: bool
    ) -> Draw:
        """Return trees that depend on the lengths alone, for callers without docs."""
        self.check(structure)
        if self.trees in LOOKS_AT_WORDS:
            trees = find_kind(structure.kind).trees
            others = [tree for tree in trees if tree not in LOOKS_AT_WORDS]
            raise LatentError(
                f"{self.name} with trees = {self.trees!r} needs the docs, and got only scores. "
                f"Run it inside a model over docs, or use one of {', '.join(others)}."
            )
        z = torch.zeros_like(scores)
        for b, length in enumerate(lengths.tolist()):
            tree = self._tree(structure, [""] * length)
            made = torch.as_tensor(structure.encode(tree, length), device="cpu")
            z[b][tuple(slice(0, size) for size in made.shape)] = made.to(z)
        return Draw.single(z)

    def _of_doc(
        self, structure: Structure, doc: Doc, spans: Sequence[tuple[int, ...]]
    ) -> list[np.ndarray | None]:
        if any(len(span) != 2 for span in spans):
            raise LatentError(
                f"{self.name}: the span getter gives pairs of texts, and a tree is over one. Take "
                "spacy-latent.SentenceSpans.v1 or spacy-latent.DocSpans.v1. For a tree of each "
                "text, take spacy-latent.ComposedPairTextCat.v1. For words that are "
                "composed over trees before two texts are aligned, put a latent_encoder with these "
                "trees before the aligning component, which listens to it."
            )
        if self.trees != "heads":
            words = [token.text for token in doc]
            return [self._tree(structure, words[start:end]) for start, end, *_ in spans]
        heads = doc_heads(doc)
        found = [None if heads is None else tree_within(heads, *span[:2]) for span in spans]
        if any(tree is None for tree in found):
            raise LatentError(
                f"{self.name} with trees = 'heads': the doc {doc.text[:40]!r} does not have the "
                "heads of all its tokens. Put a parser before this component and name it in "
                "training.annotating_components, or use a corpus reader that gives heads."
            )
        return found

    def _tree(self, structure: Structure, words: list[str]) -> np.ndarray:
        """Return a tree in the form of ``structure.decode``."""
        from spacy_latent.analysis.agreement import TREE_CONTROLS, nearest_head_word
        from spacy_latent.analysis.trees import BINARY_CONTROLS

        if self.trees == "random":
            return random_tree(structure, len(words), text_seed(words, self.seed))
        if not _has_heads(structure):
            brackets = BINARY_CONTROLS[CONTROLS[self.trees]](words, random.Random(0))
            rows = {(i, i) for i in range(len(words))} | {(i, end - 1) for i, end in brackets}
            return np.array(sorted(rows), dtype="int32").reshape(-1, 2)
        if self.trees == "nearest":
            heads = nearest_head_word(words, self.words)
        elif self.trees == "root":
            heads = list(range(len(words)))
        else:
            heads = TREE_CONTROLS[CONTROLS[self.trees]](words, random.Random(0))
        tree = tree_within(np.asarray(heads, dtype="int64"), 0, len(words))
        assert tree is not None
        return tree


def _has_heads(structure: Structure) -> bool:
    """Return whether the trees are made of arcs; otherwise they are made of brackets."""
    return "heads" in find_kind(structure.kind).accessors


def text_seed(words: Sequence[str], seed: int) -> int:
    """Return a number from 0 to 2⁶³ − 1 that is the same everywhere for the same words and seed."""
    content = "\0".join([str(seed), *words]).encode("utf8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1


def random_tree(structure: Structure, length: int, seed: int) -> np.ndarray:
    """Return a random tree of the structure's set, in the form of ``structure.decode``.

    All trees of the set are equally likely if the structure has "sample". Otherwise the tree is the
    best one under random scores.
    """
    # Parsers build their trees by decisions. Their trees of spans are constituency trees.
    drawn = structure if _has_heads(structure) else ConstituencyTree()
    size = length + 1 if _has_heads(structure) else length
    generator = torch.Generator().manual_seed(seed)
    scores, lengths = torch.zeros(1, size, size, device="cpu"), torch.tensor([length], device="cpu")
    if "sample" in drawn.tractable:
        z = drawn.sample(scores, lengths, 1, generator)[0, 0]
    else:
        z = drawn.map(torch.randn(scores.shape, generator=generator, device="cpu"), lengths)[0]
    return drawn.decode(z.numpy(), length)


def doc_heads(doc: Doc) -> np.ndarray | None:
    """Return the index of each token's head in the doc, or None for a doc without heads.

    It is the token's own index for a root and −1 for a token without a head.
    """
    if not len(doc):
        return np.zeros(0, dtype="int64")
    if not doc.has_annotation("HEAD"):
        return None
    offsets, labels = doc.to_array(["HEAD", "DEP"]).T
    place = np.arange(len(doc))
    heads = place + offsets.astype("int64")
    # Like token.has_head(): a token without a label has no head. spaCy's converter makes tokens
    # without a head in CoNLL-U their own heads, with the label "_".
    unknown = (labels == 0) | ((labels == doc.vocab.strings["_"]) & (heads == place))
    return np.where(unknown, -1, heads)


def tree_within(heads: np.ndarray, start: int, end: int) -> np.ndarray | None:
    """Return the heads of a span, ``(end − start,)`` int32, from the heads of a doc.

    A head is 0 for the root and i for the i-th token of the span. A head outside of the span
    becomes the root. The result is None if a head of the span is unknown (−1).
    """
    chosen = heads[start:end]
    if (chosen < 0).any():
        return None
    inside = (chosen >= start) & (chosen < end) & (chosen != np.arange(start, end))
    return np.where(inside, chosen - start + 1, 0).astype("int32")
